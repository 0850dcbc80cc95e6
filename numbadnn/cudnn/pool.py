"""Pooling and its gradient through cudnnPoolingForward and cudnnPoolingBackward: implementation "cudnn.pool".

Source: cudnn_ops.h. The gradient of a maximum always asks for MAX_DETERMINISTIC: NVIDIA documents the other as not
reproducible, and both give a tie to the first element of the window (measured, cuDNN 9.19 on an H200).
"""

from __future__ import annotations

from typing import Any

from numbadnn.cudnn import lib
from numbadnn.cudnn._enums import NanPropagation, PoolingMode
from numbadnn.cudnn._tensors import ints, made, scalars, strides_of, tensor, uncountable
from numbadnn.problem import Policy
from numbadnn.problems.pool import PoolProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register

MODES = {
    "max": PoolingMode.MAX,
    "max_deterministic": PoolingMode.MAX_DETERMINISTIC,
    "average_inc_pad": PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING,
    "average_exc_pad": PoolingMode.AVERAGE_COUNT_EXCLUDE_PADDING,
}


def supports(problem: PoolProblem, policy: Policy) -> str:
    """ "" if cuDNN's pooling can do this, else the reason; asks no device."""
    operands, dtype = (*problem.inputs, problem.output), problem.x.dtype
    if problem.mode not in MODES:
        return f"cuDNN's pooling has no mode {problem.mode}; its average times the window's size rounds twice"
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return f"cuDNN guarantees run_to_run at best, the option determinism asks for {policy.determinism}"
    if policy.precision == "float16" or (policy.precision == "float64" and dtype != "float64"):
        return f"cuDNN's pooling computes {dtype} data in its own accumulator, not in {policy.precision}"
    if any(s <= 0 for spec in operands for n, s in zip(spec.shape, spec.strides, strict=True) if n > 1):
        return "cuDNN's pooling takes positive strides only"
    if too_large := uncountable(operands, problem.window, problem.pad, problem.stride):
        return too_large
    if problem.op == "pool_grad":  # CUDNN_STATUS_BAD_PARAM, as cudnnPoolingBackward documents it
        for a, b in (("x", "dx"), ("y", "dy")):
            strides = [strides_of(getattr(problem, name)) for name in (a, b)]
            if strides[0] != strides[1]:
                return f"cuDNN's pooling needs the same strides in {a} and {b}, got {strides[0]} and {strides[1]}"
    return ""


def _pooling(library: lib.Library, problem: PoolProblem) -> Any:
    out = made(library, "Pooling")
    mode = MODES["max_deterministic" if problem.is_max and problem.op == "pool_grad" else problem.mode]
    axes = [ints(v) for v in (problem.window, problem.pad, problem.stride)]
    numbers = (int(mode), int(NanPropagation.PROPAGATE_NAN), len(problem.window))
    library.call("cudnnSetPoolingNdDescriptor", out.value, *numbers, *axes)
    return out


def plan(problem: PoolProblem, policy: Policy, config: Any) -> Executable:
    """Descriptors and scalars, bound into one callable."""
    from numbadnn.cudnn._call import POINTER as A
    from numbadnn.cudnn._call import prepare

    library = lib.load()
    tensors = [tensor(library, s.dtype, s.shape, strides_of(s)) for s in (*problem.inputs, problem.output)]
    pooling, t = _pooling(library, problem), [d.value for d in tensors]
    one, zero, memory = scalars(problem.x.dtype)
    words: tuple[int, ...]
    if problem.op == "pool":
        function, words = "cudnnPoolingForward", (one, t[0], A[0], zero, t[1], A[1])
    else:  # of x, y, dy and dx, in the order y, dy, x
        function = "cudnnPoolingBackward"
        words = (one, t[1], A[1], t[2], A[2], t[0], A[0], zero, t[3], A[3])
    keep = (tensors, pooling, memory)
    issue = prepare(library, policy.device, problem.op, function, (pooling.value, *words), keep=keep)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: int | None, stream: int | None) -> None:
        issue(stream or 0, *inputs, *outputs)

    facts: dict[str, Any] = {"mode": problem.mode, "copies": [], "cudnn": library.version}
    if problem.is_max:
        facts["not finite"] = "a window of nothing but -inf gives the lowest finite number"
    return Executable(run=run, facts=facts, direct=issue, summation=SEQUENCE)


def rank(problem: PoolProblem) -> float:
    """An estimate in microseconds: launch, and memory at what cuDNN reached on an H200.

    A maximum comes last, to run only where cuDNN is asked for: its windows of nothing but -inf are not -inf.
    """
    if problem.is_max:
        return 1e12
    return 6.0 + problem.bytes / (1.6e6 if problem.op == "pool" else 0.5e6)


for _op in ("pool", "pool_grad"):
    register(
        Impl(
            op=_op,
            backend="cudnn",
            name="cudnn.pool",
            supports=supports,
            plan=plan,
            rank=rank,
            arithmetic="ieee",
            determinism="run_to_run",
        )
    )
