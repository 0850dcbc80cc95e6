"""softmax and its gradient through cudnnSoftmaxForward and cudnnSoftmaxBackward: implementation "cudnn.softmax".

Source: cudnn_ops.h. cuDNN knows 4-D tensors with any positive strides and two modes: over axis 1 (channel) or over all
axes but 0 (instance). Other ranks are folded: neighbouring axes that lie in memory as one axis are merged, alike in
every operand. 'fast' does not subtract the maximum, so that it overflows near x = 88 in float32; cuDNN means that by
it.
"""

from __future__ import annotations

import math
from typing import Any

from numbadnn.cudnn import lib
from numbadnn.cudnn._enums import SoftmaxAlgorithm, SoftmaxMode
from numbadnn.cudnn._tensors import scalars, strides_of, tensor, uncountable
from numbadnn.problem import Policy, Spec
from numbadnn.problems.softmax import SoftmaxProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register

Folded = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


def supports(problem: SoftmaxProblem, policy: Policy) -> str:
    """ "" if cuDNN's softmax can do this, else the reason; asks no device."""
    operands = (*problem.inputs, problem.output)
    dtype, rank = problem.y.dtype, len(problem.y.shape)
    if rank < 2:
        return f"cuDNN's softmax needs an axis 0 of images and an axis 1 of channels, the array has {rank} axes"
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return f"cuDNN guarantees run_to_run at best, the option determinism asks for {policy.determinism}"
    if policy.precision == "float16" or (policy.precision == "float64" and dtype != "float64"):
        return f"cuDNN's softmax computes {dtype} data in its own accumulator, not in {policy.precision}"
    if policy.precision == "float32" and dtype == "float64":
        return "cuDNN's softmax does not compute float64 data in float32"
    if dtype in ("float16", "bfloat16") and problem.op == "softmax":
        return f"cuDNN's softmax rounds twice to {dtype}: up to 1.6 of the bound (cuDNN 9.19, H200)"
    if any(s <= 0 for spec in operands for n, s in zip(spec.shape, spec.strides, strict=True) if n > 1):
        return "cuDNN's softmax takes positive strides only"
    if too_large := uncountable(operands):
        return too_large
    shape, strides = fold(problem.mode, operands)
    if len(shape) > 4:
        return f"the strides fold to {len(shape)} axes, cuDNN's softmax takes 4"
    if len(set(strides)) > 1:  # accepted by cuDNN 9.19, and computed with one operand's strides for all (H200)
        return "cuDNN's softmax needs the same strides in every operand"
    return ""


def fold(mode: str, operands: tuple[Spec, ...]) -> Folded:
    """(shape, strides of each operand) with at least 4 axes: the merged axes, then axes of size 1.

    >>> fold("channel", (Spec.of("float32", (2, 3, 4, 5, 6)),))
    ((2, 3, 120, 1), ((360, 120, 1, 1),))
    """
    kept = 2 if mode == "channel" else 1
    shape = operands[0].shape
    dims = list(shape[:kept])
    strides = [list(strides_of(spec)[:kept]) for spec in operands]
    merging = False
    for axis in range(kept, len(shape)):
        n = shape[axis]
        if n == 1:
            continue
        inner = [spec.strides[axis] for spec in operands]
        if merging and all(s[-1] == n * i for s, i in zip(strides, inner, strict=True)):
            dims[-1] *= n
            for s, i in zip(strides, inner, strict=True):
                s[-1] = i
            continue
        dims.append(n)
        for s, i in zip(strides, inner, strict=True):
            s.append(i)
        merging = True
    missing = 4 - len(dims)
    dims += [1] * missing
    for s in strides:
        s += [1] * missing
    return tuple(dims), tuple(map(tuple, strides))


def plan(problem: SoftmaxProblem, policy: Policy, config: Any) -> Executable:
    """Descriptors and scalars, bound into one callable."""
    from numbadnn.cudnn._call import POINTER as A
    from numbadnn.cudnn._call import prepare

    shape, strides = fold(problem.mode, (*problem.inputs, problem.output))
    forward, library = problem.op == "softmax", lib.load()
    tensors = [tensor(library, problem.y.dtype, shape, s) for s in strides]
    t = [d.value for d in tensors]
    one, zero, memory = scalars(problem.y.dtype)
    kind = (int(SoftmaxAlgorithm[problem.algo.upper()]), int(SoftmaxMode[problem.mode.upper()]))
    words: tuple[int, ...]
    if forward:
        function, words = "cudnnSoftmaxForward", (one, t[0], A[0], zero, t[1], A[1])
    else:  # of dy, y and dx, y first
        function, words = "cudnnSoftmaxBackward", (one, t[1], A[1], t[0], A[0], zero, t[2], A[2])
    issue = prepare(library, policy.device, problem.op, function, (*kind, *words), keep=(tensors, memory))

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: int | None, stream: int | None) -> None:
        issue(stream or 0, *inputs, *outputs)

    facts: dict[str, Any] = {"folded": "x".join(map(str, shape)), "algorithm": problem.algo, "copies": []}
    facts["cudnn"] = library.version
    if forward and problem.algo != "fast":
        facts["not finite"] = "a row of nothing but -inf gives 0 (log: -inf), not NaN"
    return Executable(run=run, facts=facts, direct=issue, summation=SEQUENCE)


def rank(problem: SoftmaxProblem) -> float:
    """An estimate in microseconds: launch, and memory at what cuDNN reached on an H200.

    That was 1.6 TB/s at the least, but for gradients with one position a channel 6 GB/s.
    """
    positions = math.prod(problem.y.shape[2:]) if problem.mode == "channel" else 1
    slow = problem.op == "softmax_grad" and positions == 1
    return 6.0 + problem.bytes / (6e3 if slow else 1.6e6)


for _op in ("softmax", "softmax_grad"):
    register(
        Impl(
            op=_op,
            backend="cudnn",
            name="cudnn.softmax",
            supports=supports,
            plan=plan,
            rank=rank,
            arithmetic="ieee",
            determinism="run_to_run",
        )
    )
