"""``numba.pointwise``: convolutions of NCHW images with filters of one tap, as one matrix product for each image.

    y[n] = W x[n],  W (K, C), x[n] (C, pixels), y[n] (K, pixels)        the gradient of the image: x[n] = W' y[n]

Hopper's copy engine reads both as they lie. ``numba.implicit_gemm`` needs channels-last images and transposes them first.
An image's rows must begin at multiples of 16 bytes; other rows are copied. 16-bit types; sums in float32.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from numbadnn.gpu import driver as _driver
from numbadnn.kernels.build import simulate
from numbadnn.kernels.build.support import LIMIT32, device_reason, float32_reason
from numbadnn.kernels.conv.corrmm.matrices import fold
from numbadnn.kernels.conv.implicit.layout import around, nbytes
from numbadnn.kernels.conv.parts import in_parts
from numbadnn.kernels.gemm.config import FEW_TILES, wgmma_config, wgmma_reason
from numbadnn.kernels.gemm.gemm import plan_gemm
from numbadnn.kernels.gemm.problem import GemmProblem
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.problems.images import level_of
from numbadnn.registry import Executable, Impl, register

HOPPER = (9, 0)
#: times the estimate, which was made of other kernels' figures: where cuDNN is as near as this, it goes first
CAUTION = 1.2


def _source(problem: ConvProblem) -> str:
    return "x" if problem.direction == "forward" else "y"


def buffers(problem: ConvProblem) -> dict[str, Spec]:
    """The image that is read, where its rows are copied to begin at multiples of 16 bytes."""
    spec: Spec = getattr(problem, _source(problem))
    n, c, *sizes = spec.shape
    pixels, vector = math.prod(sizes), 16 // spec.itemsize
    lies = fold(tuple(sizes), spec.strides[2:]) == 1 or pixels == 1
    others = [s for size, s in ((n, spec.strides[0]), (c, spec.strides[1])) if size > 1]
    if lies and spec.aligned and all(s > 0 and s % vector == 0 for s in others):
        return {}
    pitch, steps = -(-pixels // vector) * vector, Spec.of(spec.dtype, (1, 1, *sizes)).strides[2:]
    return {_source(problem): Spec(spec.dtype, spec.shape, (c * pitch, pitch, *steps))}


def product(problem: ConvProblem, precision: str = "ieee") -> GemmProblem:
    """The product of all images, read where ``buffers`` puts them."""
    forward, found = problem.direction == "forward", buffers(problem)
    source = found.get(_source(problem), getattr(problem, _source(problem)))
    target, w = (problem.y if forward else problem.x), problem.w
    filters = (w.strides[0], w.strides[1]) if forward else (w.strides[1], w.strides[0])
    rows, terms = (w.shape[0], w.shape[1]) if forward else (w.shape[1], w.shape[0])
    pixels, n = math.prod(source.shape[2:]), source.shape[0]
    return GemmProblem(
        rows, pixels, terms, w.dtype, w.dtype, filters, (source.strides[1], 1), (target.strides[1], 1), n,
        (0, source.strides[0], target.strides[0]), problem.alpha, problem.beta, precision,
        (w.aligned, source.aligned, target.aligned),
    )  # fmt: skip


def _fits(problem: ConvProblem) -> str:
    """Why it is no product of this kind, "" if it is."""
    plain = set(problem.taps) | set(problem.stride) == {1} and not any(map(any, problem.padding))
    if problem.unshared or problem.groups > 1 or not plain:
        return "needs shared filters of one tap, one group, strides of 1 and no padding"
    if problem.x.itemsize != 2:
        return "needs float16 or bfloat16"
    target = problem.y if problem.direction == "forward" else problem.x
    if math.prod(target.shape[2:]) < 2 or fold(target.shape[2:], target.strides[2:]) != 1:
        return "needs results whose pixels follow each other in memory"
    if getattr(problem, _source(problem)).strides[1] == 1 and problem.w.shape[1] > 1:
        return "needs images whose pixels follow each other in memory"
    if not all(s.size for s in (problem.x, problem.w, problem.y)):
        return "needs operands that are not empty"
    return ""


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can."""
    if simulate.active():
        return "needs tensor cores and a copy engine, which the simulator has not"
    if reason := _fits(problem) or float32_reason(policy):
        return reason
    p = product(problem)
    if reason := wgmma_reason(p, HOPPER):
        return reason
    if max(p.m, p.n, p.k, problem.x.size, problem.y.size) >= LIMIT32 or p.batch > 65535:
        return "needs operands of fewer than 2**31 elements, and at most 65535 images"
    needed = sum(map(nbytes, buffers(problem).values()))
    if needed > policy.workspace_limit:
        return (
            f"needs {needed} bytes for rows at multiples of 16 bytes, the workspace limit is {policy.workspace_limit}"
        )
    reason = device_reason(policy)
    if not reason and _driver.compute_capability(policy.device) != HOPPER:
        return "needs compute capability 9.0"
    return reason


def plan(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    """One launch, and a copy before it where rows do not begin at multiples of 16 bytes."""
    inner = plan_gemm(product(problem), policy.device, config)
    assert inner.direct is not None, "on a GPU"
    multiply = inner.direct

    def direct(stream: int, image: int, filters: int, out: int, *workspace: int) -> None:
        multiply(stream, filters, image, out)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        multiply(stream, inputs[1], inputs[0], outputs[0])

    made = replace(inner, run=run, direct=direct, determinism=level_of(policy))
    return around(problem, made, policy.device, buffers(problem))


def rank(problem: ConvProblem) -> float:
    """Microseconds: a launch, memory or steps of 64 terms and tiles as ``numba.implicit_gemm`` takes them, and a copy."""
    if _fits(problem):
        return math.inf
    p, copied = product(problem), sum(map(nbytes, buffers(problem).values()))
    if wgmma_reason(p, HOPPER):
        return math.inf
    n = wgmma_config(p).n
    waves = -(-(-(-p.m // 128) * -(-p.n // n) * p.batch) // FEW_TILES)
    step = 0.0037 + 5.9e-4 * (128 + n) + 9.2e-6 * 128 * n
    working = waves * (-(-p.k // 64) * step + 2 * (0.24 + 7.6e-5 * 128 * n))
    moved = (problem.x.size + problem.y.size) * problem.x.itemsize / 3.0e6
    return CAUTION * (5 + math.cbrt(working**3 + moved**3) + (2.5 + 2 * copied / 2.8e6 if copied else 0.0))


for _op in ("conv2d", "conv2d_grad_wrt_inputs", "conv3d", "conv3d_grad_wrt_inputs"):
    _how = ("numba", "numba.pointwise", supports, plan, rank, "tensor_core", "batch_invariant")
    register(in_parts(Impl(_op, *_how)))
