"""``numba.softmax_alike``: copies inputs to the layout of the result, then runs one of the other kernels.

PyTorch makes such inputs: its log_softmax returns C order for a channels-last image. On an H200 the gradient of 64x256x96x96 in
float16 takes 494 us this way, and 2234 us by strides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numbadnn.kernels.copies.copy import plan_copy
from numbadnn.kernels.copies.pack import padded
from numbadnn.problem import FIXED_LEVELS, Policy, Spec, is_dense
from numbadnn.problems.softmax import SoftmaxProblem
from numbadnn.registry import Executable, Impl, implementations

#: those that the strided kernel is slower than
FAST = ("numba.softmax_rows", "numba.softmax_long", "numba.softmax_channels", "numba.softmax_tiles")
#: bytes a microsecond that a copy into another layout moves, an estimate
COPIED = 3.0e6


def _copied(problem: SoftmaxProblem) -> dict[str, Any]:
    """The inputs that a copy replaces, by name: each as the copy lies."""
    names = ("x",) if problem.op == "softmax" else ("dy", "y")
    given = {name: getattr(problem, name) for name in names}
    strides = problem.output.strides
    return {n: Spec(s.dtype, s.shape, strides) for n, s in given.items() if s.strides != strides}


def _inner(problem: SoftmaxProblem, policy: Policy) -> tuple[SoftmaxProblem, Impl | None]:
    """The problem after the copies, and the kernel that is estimated to be the fastest for it."""
    inner = replace(problem, **_copied(problem))
    able = [i for i in implementations(problem.op, ("numba",)) if i.name in FAST and not i.supports(inner, policy)]
    return inner, min(able, key=lambda i: i.rank(inner), default=None)


def _is_image_dense(spec: Spec) -> bool:
    return is_dense(Spec(spec.dtype, spec.shape[1:], spec.strides[1:]))


def supports(problem: SoftmaxProblem, policy: Policy) -> str:
    copied = _copied(problem)
    if not copied or not is_dense(problem.output):
        return "needs an input that lies otherwise than a dense result"
    if policy.determinism in FIXED_LEVELS and not all(map(_is_image_dense, (*problem.inputs, problem.output))):
        return f"needs dense images under determinism={policy.determinism}, so that the batch decides nothing"
    _, impl = _inner(problem, policy)
    if impl is None:
        return "none of the faster kernels takes what lies as the result does"
    nbytes = sum(padded(s.size * s.itemsize) for s in copied.values())
    limit = policy.workspace_limit
    return f"needs a workspace of {nbytes} bytes, the limit is {limit}" if nbytes > limit else ""


def plan(problem: SoftmaxProblem, policy: Policy, config: Any = None) -> Executable:
    """A launch for each copy, then the kernel's."""
    inner, impl = _inner(problem, policy)
    assert impl is not None
    made, steps, at = impl.plan(inner, policy, config), [], 0
    names = ["x"] if problem.op == "softmax" else ["dy", "y"]
    for name, spec in _copied(problem).items():
        step = plan_copy(getattr(problem, name), spec, (0,) * len(spec.shape), policy.device)
        steps.append((names.index(name), at, step))
        at += padded(spec.size * spec.itemsize)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: Any) -> None:
        sources = list(inputs)
        for i, offset, step in steps:
            step(inputs[i], workspace + offset, stream)
            sources[i] = workspace + offset
        made.run(tuple(sources), outputs, None, stream)

    facts = made.facts | {"copied": " ".join(names[i] for i, _, _ in steps)}
    return replace(made, run=run, workspace_bytes=at, facts=facts, direct=None)


def rank(problem: SoftmaxProblem) -> float:
    """The copies at about three quarters of the speed of memory, then the kernel."""
    return 4 + sum(2 * s.size * s.itemsize for s in _copied(problem).values()) / COPIED + problem.bytes / 3.7e6
