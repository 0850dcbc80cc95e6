"""``numba.line_channels``: lines of one channel a group, which problems and tiles; device code: ``device/channels.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel
from numbadnn.problems.conv import ConvProblem

THREADS = 128


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """A thread has ``pieces`` of ``vec`` steps; taps and dilation are frozen, or 0: then it is a multiple of ``vec``.

    ``near``: the pieces are neighbours, not a block apart.
    """

    vec: int
    pieces: int
    taps: int
    dilation: int
    near: bool = False


#: what a thread may have in registers of the steps behind its own, and how many taps are written out
MOST_BEHIND, MOST_WINDOW_TAPS = 32, 32
#: so many steps behind are shared by pieces that are neighbours: fewer accesses, though each less well aligned with the others
MANY_BEHIND = 16


def whole(problem: ConvProblem, vec: int) -> bool:
    """Whether lines are whole aligned pieces of ``vec`` steps, one behind the other in memory."""
    x, y = problem.x, problem.y
    if not (
        x.aligned and y.aligned and x.shape[3] % vec == 0 and problem.stride[1] == x.strides[3] == y.strides[3] == 1
    ):
        return False
    return not any(s.strides[i] % vec for s in (x, y) for i in (0, 1) if s.shape[i] > 1)


def first_tap(problem: ConvProblem) -> tuple[int, int]:
    """Where the first tap lies, and the stride from one to the next."""
    step = problem.w.strides[3]
    return ((problem.taps[1] - 1) * step, -step) if problem.flip else (0, step)


def facts_of(problem: ConvProblem) -> dict[str, Any]:
    """What the kernels of lines take of the problem, by the names of their parameters."""
    x, w, y = problem.x, problem.w, problem.y
    start, step = first_tap(problem)
    return {
        "groups": problem.groups,
        "N": x.shape[0],
        "K": w.shape[0] // problem.groups,
        "C": w.shape[1],
        "S": problem.taps[1],
        "Q": x.shape[3],
        "past": problem.padding[1][0],
        "stride": problem.stride[1],
        "dilation": problem.dilation[1],
        "x_strides": x.strides[:2],
        "w_start": start,
        "w_strides": (*w.strides[:2], step),
        "y_strides": y.strides[:2],
    }


def heuristic(problem: ConvProblem) -> ChannelConfig | None:
    """Where each channel has a filter of its own and lines are whole pieces of 16 bytes, None elsewhere."""
    vec = 16 // problem.x.itemsize
    if problem.w.shape[:2] != (problem.groups, 1) or not whole(problem, vec):
        return None
    taps, dilation = problem.taps[1], problem.dilation[1]
    if dilation % vec == 0 or taps == 1:
        return ChannelConfig(vec, 2, 0, 0)
    if (taps - 1) * dilation > MOST_BEHIND or taps > MOST_WINDOW_TAPS:
        return None
    return ChannelConfig(vec, 2, taps, dilation, near=(taps - 1) * dilation >= MANY_BEHIND)


def kernel(dtype: str, acc: str, config: ChannelConfig) -> Kernel:
    parameters = "ptr:3 i32:7 i64*2 i64 i64*2 i64*2"
    return Kernel.of("line_channels", "conv.line.device.channels.forward", (dtype, acc, config), parameters, THREADS)


def prepare(problem: ConvProblem, device: int, config: ChannelConfig, chosen: Kernel) -> Any:
    (N, _, _, Q), K = problem.x.shape, problem.w.shape[0]
    tiles = -(-Q // (THREADS * config.vec * config.pieces))
    start, s = first_tap(problem)
    scalars = (
        *(tiles, K // problem.groups, K, problem.taps[1], Q, problem.padding[1][0], problem.dilation[1]),
        *(problem.x.strides[:2], start, (problem.w.strides[0], s), problem.y.strides[:2]),
    )
    return chosen.prepare(device, (tiles * N * K, 1, 1), (THREADS, 1, 1), scalars)


def kernels() -> Iterator[Kernel]:
    yield kernel("float32", "float32", ChannelConfig(4, 2, 4, 1))
    yield kernel("float16", "float32", ChannelConfig(8, 2, 0, 0))
    # pieces that are neighbours are not among these: sm_100's code has a stack frame of 192 bytes (sm_80's and sm_90a's none)
    yield kernel("float32", "float32", ChannelConfig(4, 2, 32, 1))
