"""``numba.implicit_gemm``: convolution on Hopper's tensor cores without writing a matrix; 16-bit types and TF32.

The copy engine (TMA) in its im2col mode brings, for each tap, the channels of 128 or 256 pixels into shared memory, where
wgmma multiplies them with the filters (``pixels.py``: forward, gradient with respect to the image), or with y
(``weights.py``: gradient with respect to the filters). Sums are kept in float32. Filters that the copy engine
cannot read where they are (channels not next to each other) are rearranged into the workspace first, and so are images
(``layout.py``). Partial sums of ``splits`` are added in a fixed order by a second kernel. Two or three spatial axes: the
kernels are made for the number; on three the copy engine's windows reach less far (``walk.py``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from numbadnn.gpu import driver as _driver
from numbadnn.kernels.build import simulate
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.support import device_reason, reach_reason
from numbadnn.kernels.conv.implicit import layout as implicit_layout
from numbadnn.kernels.conv.implicit import pixels as implicit_pixels
from numbadnn.kernels.conv.implicit import weights as implicit_weights
from numbadnn.kernels.conv.parts import in_parts
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.problems.images import is_invariant, level_of
from numbadnn.registry import Executable, Impl, register

DIRECTIONS = {
    "conv2d": implicit_pixels,
    "conv2d_grad_wrt_inputs": implicit_pixels,
    "conv2d_grad_wrt_weights": implicit_weights,
    "conv3d": implicit_pixels,
    "conv3d_grad_wrt_inputs": implicit_pixels,
    "conv3d_grad_wrt_weights": implicit_weights,
}

#: times the estimate that chooses the configuration, and microseconds more, as measured: convolutions and gradients of images by
#: products and others; gradients of filters that are no plain product
PRODUCT, OTHERS, FILTERS = (0.97, 2.6), (1.05, 3.0), (0.9, 4.0)
#: times it, and nothing more: gradients of images by strides; of filters by plain products; both again with three axes
STRIDED, PRODUCTS, VOLUMES = 1.55, 1.25, 1.5
#: times it for images of at most four channels, which are filled up to eight; of convolutions beyond so many microseconds
FEW_CHANNELS, FEW_AT_LEAST = {"forward": 2.0, "grad_inputs": 1.3, "grad_weights": 2.0}, 8.0
#: times it, gradients of images, and of volumes of fewer than 64 channels
IMAGES, NARROW_VOLUMES = 1.08, 1.6
#: bytes a microsecond of results whose channels fill no vector
RAGGED = 0.6e6
#: bytes a microsecond of filters' gradients whose taps are neighbours, so that no two elements of a tile are
SCATTERED = 0.17e6


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can."""
    if simulate.active():
        return "needs tensor cores and a copy engine, which the simulator has not"
    if problem.unshared:
        return "needs shared filters"
    if problem.x.dtype == "float64" or (problem.x.dtype == "float32" and policy.fp32_precision != "tf32"):
        return "needs float16 or bfloat16, or float32 where TF32 is allowed"
    if policy.precision in ("float16", "float64"):
        return f"accumulates in float32, not in {policy.precision}"
    if reason := reach_reason(problem):
        return reason
    readable, left = implicit_layout.readable(problem), _left(problem, policy)
    if left.workspace_limit < 0:
        needed = implicit_layout.buffer_bytes(problem)
        return f"needs {needed} bytes for channels-last images, the workspace limit is {policy.workspace_limit}"
    reason = DIRECTIONS[problem.op].supports(readable, left) or device_reason(policy)
    if not reason and _driver.compute_capability(policy.device) != (9, 0):
        return "needs compute capability 9.0"
    return reason


def _left(problem: ConvProblem, policy: Policy) -> Policy:
    """The policy with the workspace that buffers of images leave."""
    needed = implicit_layout.buffer_bytes(problem)
    return dataclasses.replace(policy, workspace_limit=policy.workspace_limit - needed) if needed else policy


def space(problem: ConvProblem, limit: int = 1 << 30, whole: bool = False) -> list[Any]:
    """Every configuration worth timing, the heuristic's first; ``whole``: of those of pixels that do not split sums."""
    left = limit - implicit_layout.buffer_bytes(problem)
    return [*DIRECTIONS[problem.op].space(implicit_layout.readable(problem), left, *([True] if whole else []))]


def heuristic(problem: ConvProblem, limit: int = 1 << 30) -> Any:
    """The configuration whose estimated time is the shortest."""
    return space(problem, limit)[0]


def _space(problem: ConvProblem, policy: Policy) -> list[Any]:
    return space(problem, policy.workspace_limit, is_invariant(problem, policy))


def plan(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    """The product on readable images, with the copies that it takes."""
    config = config or _space(problem, policy)[0]
    inner = DIRECTIONS[problem.op].plan(implicit_layout.readable(problem), _left(problem, policy), config)
    inner = dataclasses.replace(inner, determinism=level_of(policy))
    return implicit_layout.around(problem, inner, policy.device)


def rank(problem: ConvProblem) -> float:
    """Microseconds: the estimate that chooses the configuration, which was up to a quarter low, and what copies take."""
    if problem.unshared:
        return math.inf
    factor, more = _as_measured(problem)
    estimate = DIRECTIONS[problem.op].rank(implicit_layout.readable(problem))
    if problem.x.shape[1] <= 4:
        least = min(estimate, FEW_AT_LEAST) if problem.direction == "forward" else 0.0
        estimate = least + FEW_CHANNELS[problem.direction] * (estimate - least)
    elif problem.direction == "grad_inputs":
        factor *= NARROW_VOLUMES if problem.axes == 3 and problem.x.shape[1] < 64 else IMAGES
    if problem.direction == "grad_weights" and max(problem.taps) > 1 and not problem.w.is_channels_last:
        more += problem.w.size * problem.w.itemsize / SCATTERED
    written = problem.output
    if problem.direction != "grad_weights" and written.strides[1] == 1 and (ragged := written.shape[1] % 8):
        more += written.size * written.itemsize / (RAGGED if ragged != 4 else 2 * RAGGED)
    return factor * estimate + more + implicit_layout.microseconds(problem)


def _as_measured(problem: ConvProblem) -> tuple[float, float]:
    """What the estimate is multiplied by, and microseconds more."""
    strided, product = max(problem.stride) > 1, max(problem.taps) == 1
    slower = VOLUMES if problem.axes == 3 else 1.0
    if problem.direction == "grad_weights":
        return (PRODUCTS * slower, 0.0) if product and not strided else FILTERS
    if problem.direction == "grad_inputs" and strided:
        return STRIDED * slower, 0.0
    return PRODUCT if product else OTHERS


def kernels() -> Iterator[Kernel]:
    """Those that every architecture has the instructions for."""
    yield from implicit_pixels.kernels()
    yield from implicit_weights.kernels()


def hopper_kernels() -> Iterator[Kernel]:
    """Those of sm_90a."""
    yield from implicit_pixels.hopper_kernels()
    yield from implicit_weights.hopper_kernels()


for _op in DIRECTIONS:
    _how = ("numba", "numba.implicit_gemm", supports, plan, rank, "tensor_core", "batch_invariant")
    register(in_parts(Impl(_op, *_how, space=_space)))
