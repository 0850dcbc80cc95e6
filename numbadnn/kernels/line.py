"""``numba.line``: causal_conv1d, at half the speed of a copy as long as the sums are short.

The device code is in ``_line_kernels``. Steps and filters of a thread, and few taps, are frozen into a kernel, all else is an
argument; strides are free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numbadnn.kernels._launch import Kernel
from numbadnn.kernels._support import LIMIT32, accumulator_of, device_reason
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import ITEMSIZE, Policy
from numbadnn.registry import Executable, Impl, register

THREADS = 128
SHARED_BYTES = 32 * 1024
MOST_FROZEN_TAPS = 4


@dataclass(frozen=True, slots=True)
class LineConfig:
    """``steps`` x ``filters`` sums a thread; ``taps`` frozen (0: an argument); ``room``: numbers in shared memory."""

    steps: int
    filters: int
    taps: int
    room: int


def heuristic(problem: ConvProblem, acc: str = "float32") -> LineConfig:
    """Up to 16 filters, as many as the filters of a group fill and shared memory holds; the fewer, the more steps."""
    K, (C, taps) = problem.w.shape[0] // problem.groups, (problem.w.shape[1], problem.taps[1])
    filters = min(16, 1 << (K - 1).bit_length())
    while filters > 1 and _numbers(C * taps, filters) * ITEMSIZE[acc] > SHARED_BYTES:
        filters //= 2
    steps = 8 if filters == 1 else 4
    frozen = taps if taps <= MOST_FROZEN_TAPS else 0
    return LineConfig(steps, filters, frozen, _numbers(C * taps, filters))


def _numbers(terms: int, filters: int) -> int:
    """Rounded up, so that few kernels are compiled: a power of two, at least 256."""
    return max(256, 1 << (terms * filters - 1).bit_length())


def kernel(dtype: str, acc: str, config: LineConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels import _line_kernels

        return _line_kernels.forward(dtype, acc, config.steps, config.filters, config.taps, config.room)

    parameters = "ptr ptr ptr i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64*3 i64 i64*3 i64*3"
    name = f"line {dtype} {acc} {config.steps} {config.filters} {config.taps} {config.room}"
    return Kernel(name, parameters, build, THREADS)


def _supports(problem: ConvProblem, policy: Policy) -> str:
    if problem.unshared:
        return "needs one filter for all positions (not unshared)"
    if (
        _numbers(problem.w.shape[1] * problem.taps[1], 1) * ITEMSIZE[accumulator_of(problem.x.dtype, policy)]
        > SHARED_BYTES
    ):
        return f"needs a filter of at most {SHARED_BYTES} bytes"
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision == "float32" and problem.x.dtype == "float64":
        return "accumulates float64 data in float64, not in float32"
    reach = problem.x.shape[3] * max(problem.stride) + problem.padding[1][0] + THREADS * 8
    if max(reach, problem.y.size) >= LIMIT32:
        return "needs lines of fewer than 2**31 steps"
    return device_reason(policy)


def _plan(problem: ConvProblem, policy: Policy, config: LineConfig | None = None) -> Executable:
    dtype, acc = problem.x.dtype, accumulator_of(problem.x.dtype, policy)
    config = config or heuristic(problem, acc)
    chosen = kernel(dtype, acc, config)
    (N, _, _, _), (_, K, _, Q), w = problem.x.shape, problem.y.shape, problem.w
    K //= problem.groups
    tiles, blocks_of_filters = -(-Q // (THREADS * config.steps)), -(-K // config.filters)
    k, c, _, s = w.strides
    start, s = ((problem.taps[1] - 1) * s, -s) if problem.flip else (0, s)
    scalars = (
        *(blocks_of_filters, tiles, problem.groups, K, w.shape[1], problem.taps[1], Q),
        *(problem.padding[1][0], problem.stride[1], problem.dilation[1]),
        *((*problem.x.strides[:2], problem.x.strides[3]), start, (k, c, s)),
        (*problem.y.strides[:2], problem.y.strides[3]),
    )
    grid = (blocks_of_filters * tiles * problem.groups * N, 1, 1)
    launch = chosen.prepare(policy.device, grid, (THREADS, 1, 1), scalars)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        launch(stream, inputs[0], inputs[1], outputs[0])

    facts = {"kernel": chosen.name, "config": config}
    return Executable(run, determinism="gpu_to_gpu", facts=facts, direct=launch.direct)


def _rank(problem: ConvProblem) -> float:
    """Microseconds, from an H200: 2.2 TB/s, or 12 TFLOP/s."""
    return 3 + max(problem.bytes / 2.2e6, problem.flops / 1.2e7)


def kernels() -> Iterator[Kernel]:
    """Few filters and many, frozen taps and not, each dtype among them."""
    yield kernel("float32", "float32", LineConfig(8, 1, 4, 256))
    yield kernel("float16", "float32", LineConfig(4, 16, 2, 512))
    yield kernel("bfloat16", "float32", LineConfig(4, 8, 0, 1024))
    yield kernel("float64", "float64", LineConfig(4, 4, 3, 256))


register(Impl("causal_conv1d", "numba", "numba.line", _supports, _plan, _rank, "ieee", "gpu_to_gpu"))
