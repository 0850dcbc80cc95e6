"""``numba.line_toeplitz``: which 16-bit lines of one channel a group go to tensor cores; device code: ``device/toeplitz.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.support import accumulator_of
from numbadnn.kernels.conv.line.channels import first_tap, whole
from numbadnn.kernels.conv.line.f16 import LANES, MULTIPROCESSORS
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem

WARPS = 8
#: times of a stretch, and of a warp's 16 at a time; words of two taps: what is needed of 63 + 32 diagonals
STRETCH, TIMES, DIAGONALS = 32, 512, 96


#: fewer taps are multiplied as fast as memory brings what they see; in short lines the tables of taps take their time too
FEWEST_TAPS, FEWEST_OF_SHORT, SHORT = 12, 24, 64 * TIMES


@dataclass(frozen=True, slots=True)
class ToeplitzConfig:
    """Whatever the taps, there is one kernel; so many blocks of it on a multiprocessor."""

    resident: int = 3


def heuristic(problem: ConvProblem, policy: Policy) -> ToeplitzConfig | None:
    """None where the threads of ``numba.line`` are to do it."""
    x, taps, past = problem.x, problem.taps[1], problem.padding[1][0]
    if x.itemsize != 2 or accumulator_of(x.dtype, policy) != "float32" or problem.w.shape[:2] != (problem.groups, 1):
        return None
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return None  # how tensor cores round differs from one to the next
    if past > STRETCH or taps < (FEWEST_OF_SHORT if x.shape[3] < SHORT else FEWEST_TAPS):
        return None
    return ToeplitzConfig() if whole(problem, 8) else None


def kernel(dtype: str, config: ToeplitzConfig) -> Kernel:
    title, made_by = f"line_toeplitz {config.resident}", "conv.line.device.toeplitz.forward"
    parameters = "ptr:3 i32:8 i64*2 i64 i64*2 i64*2"
    return Kernel.of(title, made_by, (dtype,), parameters, LANES * WARPS, config.resident)


def prepare(problem: ConvProblem, device: int, config: ToeplitzConfig, chosen: Kernel) -> Any:
    (N, _, _, Q), K = problem.x.shape, problem.w.shape[0]
    tiles = -(-Q // TIMES)
    parts = max(1, min(-(-tiles // WARPS), MULTIPROCESSORS * config.resident // (N * K)))
    start, s = first_tap(problem)
    scalars = (
        *(parts, tiles, K // problem.groups, K, problem.taps[1], Q, problem.padding[1][0], problem.dilation[1]),
        *(problem.x.strides[:2], start, (problem.w.strides[0], s), problem.y.strides[:2]),
    )
    return chosen.prepare(device, (parts * N * K, 1, 1), (LANES * WARPS, 1, 1), scalars)


def kernels() -> Iterator[Kernel]:
    yield kernel("float16", ToeplitzConfig())
    yield kernel("bfloat16", ToeplitzConfig())
