"""``numba.line``: causal_conv1d by tiles of steps and filters, at any strides, on plain threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.build.support import LIMIT32, accumulator_of, device_reason, reach_reason
from numbadnn.kernels.conv.line.channels import THREADS, facts_of
from numbadnn.kernels.conv.line.dense import MOST_FROZEN_TAPS, SHARED_BYTES, capacity_of, filters_of
from numbadnn.problem import ITEMSIZE, Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable


@dataclass(frozen=True, slots=True)
class LineConfig:
    """``steps`` x ``filters`` sums a thread; ``taps`` frozen (0: an argument); ``capacity``: numbers in shared memory.

    ``packed``: the steps that a thread reads, and those that it writes, are neighbours of its neighbours' in memory.
    """

    steps: int
    filters: int
    taps: int
    capacity: int
    packed: bool = False


def heuristic(problem: ConvProblem, acc: str = "float32") -> LineConfig:
    """Tiles at any strides: the fewer filters, the more steps."""
    K, (C, taps) = problem.w.shape[0] // problem.groups, (problem.w.shape[1], problem.taps[1])
    filters = filters_of(K, C * taps, acc)
    steps = 8 if filters == 1 else 4
    frozen = taps if taps <= MOST_FROZEN_TAPS else 0
    packed = problem.x.strides[3] * problem.stride[1] == 1 == problem.y.strides[3]
    return LineConfig(steps, filters, frozen, capacity_of(C * taps, filters), packed)


def kernel(dtype: str, acc: str, config: LineConfig) -> Kernel:
    parameters = Arguments(
        *("ptr:3", "i32 blocks_of_filters tiles groups K C S Q past stride dilation"),
        *("i64*3 x_strides", "i64 w_start", "i64*3 w_strides y_strides"),
    )
    return Kernel.of("line", "conv.line.device.kernels.forward", (dtype, acc, *astuple(config)), parameters, THREADS)


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why no kernel for lines takes a problem ("" = some do)."""
    if problem.unshared:
        return "needs one filter for all positions (not unshared)"
    if (
        capacity_of(problem.w.shape[1] * problem.taps[1], 1) * ITEMSIZE[accumulator_of(problem.x.dtype, policy)]
        > SHARED_BYTES
    ):
        return f"needs a filter of at most {SHARED_BYTES} bytes"
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision == "float32" and problem.x.dtype == "float64":
        return "accumulates float64 data in float64, not in float32"
    if reason := reach_reason(problem):
        return reason
    reach = problem.x.shape[3] * max(problem.stride) + problem.padding[1][0] + THREADS * 8
    if max(reach, problem.y.size) >= LIMIT32:
        return "needs lines of fewer than 2**31 steps"
    return device_reason(policy)


def plan(problem: ConvProblem, policy: Policy, config: LineConfig) -> Executable:
    """One launch."""
    chosen = kernel(problem.x.dtype, accumulator_of(problem.x.dtype, policy), config)
    return one_launch(chosen, _prepare(problem, policy.device, config, chosen), config, summation=SEQUENCE)


def estimate(problem: ConvProblem, config: LineConfig) -> float:
    """Microseconds on an H200."""
    return 3 + max(problem.bytes / 2.2e6, problem.flops / 1.2e7)


def _prepare(problem: ConvProblem, device: int, config: LineConfig, chosen: Kernel) -> Any:
    x, (N, K, _, Q), y = problem.x.strides, problem.y.shape, problem.y.strides
    K //= problem.groups
    tiles, blocks_of_filters = -(-Q // (THREADS * config.steps)), -(-K // config.filters)
    scalars = chosen.values(
        facts_of(problem),
        blocks_of_filters=blocks_of_filters,
        tiles=tiles,
        Q=Q,
        x_strides=(*x[:2], x[3]),
        y_strides=(*y[:2], y[3]),
    )
    grid = (blocks_of_filters * tiles * problem.groups * N, 1, 1)
    return chosen.prepare(device, grid, (THREADS, 1, 1), scalars)


def kernels() -> Iterator[Kernel]:
    """Few filters and many, frozen taps and not, each dtype among them."""
    yield kernel("float32", "float32", LineConfig(8, 1, 4, 256, True))
    yield kernel("bfloat16", "float32", LineConfig(4, 8, 0, 1024))
    yield kernel("float64", "float64", LineConfig(4, 4, 3, 256))
