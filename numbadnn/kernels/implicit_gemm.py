"""``numba.implicit_gemm``: convolution on Hopper's tensor cores without writing a matrix; channels-last, 16-bit types and TF32.

The copy engine (TMA) in its im2col mode brings, for each tap, the channels of 128 or 256 pixels into shared memory, where
wgmma multiplies them with the filters (``implicit_pixels``: forward, gradient with respect to the image), or with y
(``implicit_weights``: gradient with respect to the filters). Sums are kept in float32. Filters that the copy engine
cannot read where they are (channels not next to each other) are rearranged into the workspace first. Partial sums of
``splits`` are added in a fixed order by a second kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from numbadnn.kernels import _driver, implicit_pixels, implicit_weights, simulate
from numbadnn.kernels._launch import Kernel
from numbadnn.kernels._support import device_reason
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import Policy
from numbadnn.registry import Impl, register

DIRECTIONS = {
    "conv2d": implicit_pixels,
    "conv2d_grad_wrt_inputs": implicit_pixels,
    "conv2d_grad_wrt_weights": implicit_weights,
}


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can."""
    if simulate.active():
        return "needs tensor cores and a copy engine, which the simulator has not"
    if problem.axes != 2 or problem.unshared:
        return "needs two spatial axes and shared filters"
    if problem.x.dtype == "float64" or (problem.x.dtype == "float32" and policy.fp32_precision != "tf32"):
        return "needs float16 or bfloat16, or float32 where TF32 is allowed"
    if policy.precision in ("float16", "float64"):
        return f"accumulates in float32, not in {policy.precision}"
    reason = DIRECTIONS[problem.op].supports(problem, policy) or device_reason(policy)
    if not reason and _driver.compute_capability(policy.device) != (9, 0):
        return "needs compute capability 9.0"
    return reason


def space(problem: ConvProblem, limit: int = 1 << 30) -> list[Any]:
    """Every configuration worth timing, the heuristic's first."""
    return [*DIRECTIONS[problem.op].space(problem, limit)]


def heuristic(problem: ConvProblem, limit: int = 1 << 30) -> Any:
    """The configuration whose estimated time is the shortest."""
    return space(problem, limit)[0]


def _space(problem: ConvProblem, policy: Policy) -> list[Any]:
    return space(problem, policy.workspace_limit)


def rank(problem: ConvProblem) -> float:
    """Microseconds: the estimate that chooses the configuration, which was up to a quarter low, and what launches take."""
    return math.inf if problem.unshared else 1.25 * DIRECTIONS[problem.op].rank(problem)


def kernels() -> Iterator[Kernel]:
    """Those that every architecture has the instructions for."""
    yield from implicit_pixels.kernels()
    yield from implicit_weights.kernels()


def hopper_kernels() -> Iterator[Kernel]:
    """Those of sm_90a."""
    yield from implicit_pixels.hopper_kernels()
    yield from implicit_weights.hopper_kernels()


for _op, _module in DIRECTIONS.items():
    register(
        Impl(
            _op,
            "numba",
            "numba.implicit_gemm",
            supports,
            _module.plan,
            rank,
            "tensor_core",
            "run_to_run",
            space=_space,
        )
    )
