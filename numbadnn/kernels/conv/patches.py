"""``numba.patches``: convolutions whose windows do not overlap (patch embeddings), as a product with the matrix of windows.

A pixel belongs to one window at most, so the matrix of windows (im2col) is no larger than the images. It is written for the
whole batch, with the pixels of a window next to each other. Then it is multiplied like 1x1 filters: by ``numba.implicit_gemm``
in 16 bits, else by ``numba.implicit_tiles``. Without the matrix these two cannot walk such strides, or multiply mostly zeros.

Extra memory: the images once, and what the product takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numbadnn.kernels.conv.corrmm.matrices import CorrmmConfig, Matrices, padded
from numbadnn.kernels.conv.corrmm.steps import gather_launch
from numbadnn.kernels.conv.implicit import gemm
from numbadnn.kernels.conv.implicit.walk import STEPS
from numbadnn.kernels.conv.parts import in_parts
from numbadnn.kernels.conv.tiles import tiles
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable, Impl, register

#: channels that do not fill a step of the copy engine's windows by far
FEW = 8
#: microseconds of the launch that writes the matrix, and bytes that it reads and writes in one
LAUNCH, SPEED = 4.0, 1.5e6
#: the same bytes of 16 bits, and microseconds a window: 95 and 83 us of ViT-B/16 in float16, 140 and 126 of patches of 4x4
SPEED_OF_HALVES, WINDOW = 0.32e6, 4e-4


def _fits(problem: ConvProblem) -> str:
    """Why the windows are not patches, "" if they are."""
    if problem.unshared or problem.groups > 1:
        return "needs shared filters and one group"
    if any(s < n or (d > 1 and n > 1) for s, n, d in zip(problem.stride, problem.taps, problem.dilation, strict=True)):
        return "needs windows that do not overlap, without dilation"
    if max(problem.stride) <= STEPS and problem.x.shape[1] > FEW:
        return f"needs a stride of more than {STEPS} or at most {FEW} channels: others are multiplied without a matrix"
    if math.prod(problem.taps) == 1:
        return "needs filters of more than one tap"
    return ""


def product(problem: ConvProblem) -> ConvProblem:
    """The product over the matrix, as a convolution with filters of one tap."""
    m, (n, _, *places), axes = Matrices(problem), problem.y.shape, problem.axes
    steps = [m.rows]
    for size in places[:0:-1]:
        steps.insert(0, steps[0] * size)
    x = Spec(problem.x.dtype, (n, m.rows, *places), (m.rows * m.columns, 1, *steps))
    one = (1,) * axes
    w = Spec(problem.w.dtype, (m.K, m.rows, *one), (problem.w.strides[0], 1, *one), problem.w.aligned)
    none = ((0, 0),) * axes
    return replace(problem, x=x, w=w, padding=none, stride=one, dilation=one, flip=False)


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can."""
    if reason := _fits(problem):
        return reason
    m = Matrices(problem)
    if m.w is not problem.w:
        return "needs filters whose channels and taps are one axis of memory"
    nbytes = padded(m.N * m.matrix_bytes)
    if nbytes > policy.workspace_limit:
        return f"needs {nbytes} bytes for the matrix, the workspace limit is {policy.workspace_limit}"
    left = replace(policy, workspace_limit=policy.workspace_limit - nbytes)
    return (gemm.supports if problem.x.itemsize == 2 else tiles.supports)(product(problem), left)


def plan(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    """The launch that writes the matrix, then the product's."""
    m = Matrices(problem)
    nbytes = padded(m.N * m.matrix_bytes)
    left = replace(policy, workspace_limit=policy.workspace_limit - nbytes)
    make: Callable[..., Executable] = gemm.plan if problem.x.itemsize == 2 else tiles.plan
    inner = make(product(problem), left, config)
    write = gather_launch(m, policy.device, CorrmmConfig(m.N, True, m.last), m.N)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        write(stream, inputs[0], workspace)
        inner.run((workspace, inputs[1]), outputs, workspace + nbytes, stream)

    def direct(stream: int, x: int, w: int, y: int, workspace: int) -> None:
        run((x, w), (y,), workspace, stream)

    facts = {"matrix_bytes": nbytes, **inner.facts}
    return replace(inner, run=run, direct=direct, workspace_bytes=nbytes + inner.workspace_bytes, facts=facts)


def rank(problem: ConvProblem) -> float:
    """Microseconds: the matrix is written and read by its own launch, then the product."""
    if _fits(problem):
        return math.inf
    m = Matrices(problem)
    moved = 2 * m.matrix_bytes * m.N
    if problem.x.itemsize == 2:
        return LAUNCH + moved / SPEED_OF_HALVES + WINDOW * m.columns * m.N + gemm.rank(product(problem))
    return LAUNCH + moved / SPEED + tiles.rank(product(problem))


for _op in ("conv2d", "conv3d"):
    _how = ("numba", "numba.patches", supports, plan, rank, "tensor_core", "batch_invariant")
    register(in_parts(Impl(_op, *_how)))
