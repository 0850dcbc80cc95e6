"""Run a layer of any batch by the same kernel: a batch that the kernel cannot take as it is gets copied, or computed in parts.

What a kernel takes may depend on how many images there are (their offsets fit 32 bits), on the step between them and on their
address. Under ``batch_invariant`` one image, packed and aligned, decides: it is what every batch can be brought to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numbadnn.errors import NotSupportedError
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.conv.implicit.layout import around, microseconds, nbytes
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.problems.images import is_invariant, of_images, plainly
from numbadnn.registry import Executable, Impl


def in_parts(impl: Impl) -> Impl:
    """The same implementation, which takes a layer in every batch or in none where bits may not depend on the batch."""

    def supports(problem: ConvProblem, policy: Policy) -> str:
        return impl.supports(of_images(problem, 1) if is_invariant(problem, policy) else problem, policy)

    def plan(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
        if not is_invariant(problem, policy):
            return impl.plan(problem, policy, config)
        return _planned(impl, plainly(problem), policy, config)

    return replace(impl, supports=supports, plan=plan)


def by_channels_last(impl: Impl) -> Impl:
    """The same implementation, which takes images of other layouts as copies whose channels follow each other."""

    def by_copies(problem: ConvProblem, policy: Policy) -> tuple[_Part, Policy]:
        specs = {name: getattr(problem, name) for name in "xy"}
        last = {name: Spec.of(spec.dtype, spec.shape, "nhwc") for name, spec in specs.items()}
        part = _Part(problem, {name: spec for name, spec in last.items() if spec != specs[name]})
        return part, _left(part, policy)

    def supports(problem: ConvProblem, policy: Policy) -> str:
        reason = impl.supports(problem, policy)
        if not reason or len(problem.x.shape) != len(problem.w.shape):
            return reason
        part, left = by_copies(problem, policy)
        return "" if left.workspace_limit >= 0 and not impl.supports(part.inner, left) else reason

    def plan(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
        if not impl.supports(problem, policy):
            return impl.plan(problem, policy, config)
        part, _ = by_copies(problem, policy)
        return _made(impl, part, policy, config)

    def rank(problem: ConvProblem) -> float:
        part, _ = by_copies(problem, Policy())
        return impl.rank(problem) + microseconds(problem, part.buffers)

    return replace(impl, supports=supports, plan=plan, rank=rank)


@dataclass(frozen=True, slots=True)
class _Part:
    """So many images, and the operands that are copied first: name -> the buffer's spec."""

    problem: ConvProblem
    buffers: dict[str, Spec]

    @property
    def inner(self) -> ConvProblem:
        changes: dict[str, Any] = {**self.buffers}
        return replace(self.problem, **changes) if changes else self.problem


def _planned(impl: Impl, problem: ConvProblem, policy: Policy, config: Any) -> Executable:
    """One executable, or one for as many images as are taken at a time and one for the rest."""
    count = problem.x.shape[0]
    size, reason = count, ""
    while size:
        part, why = _part(impl, problem, size, policy)
        if part is not None:
            break
        size, reason = size // 2, reason or why
    else:
        raise NotSupportedError(f"{impl.name} cannot compute one image of {problem} at a time: {reason}")
    whole = _made(impl, part, policy, config)
    if size == count:
        return whole
    rest = None
    if left := count % size:
        last, why = _part(impl, problem, left, policy)
        if last is None:
            raise NotSupportedError(f"{impl.name} cannot compute {left} images of {problem}: {why}")
        rest = _made(impl, last, policy, config)
    return _one_by_one(problem, size, whole, rest)


def _part(impl: Impl, problem: ConvProblem, size: int, policy: Policy) -> tuple[_Part | None, str]:
    """How so many images are computed at a time, as they lie or as a packed copy; or why they cannot be."""
    images = problem if size == problem.x.shape[0] else replace(
        problem, x=_some(problem.x, size), y=_some(problem.y, size)
    )  # fmt: skip
    reason = impl.supports(images, policy)
    if not reason:
        return _Part(images, {}), ""
    packed = {name: _packed(getattr(images, name)) for name in "xy"}
    copied = _Part(images, {name: spec for name, spec in packed.items() if spec != getattr(images, name)})
    left = _left(copied, policy)
    if copied.buffers and left.workspace_limit >= 0 and not impl.supports(copied.inner, left):
        return copied, ""
    return None, reason


def _made(impl: Impl, part: _Part, policy: Policy, config: Any) -> Executable:
    executable = impl.plan(part.inner, _left(part, policy), config)
    return around(part.problem, executable, policy.device, part.buffers)


def _left(part: _Part, policy: Policy) -> Policy:
    """The policy with the workspace that the buffers leave."""
    taken = sum(nbytes(spec) for spec in part.buffers.values())
    return replace(policy, workspace_limit=policy.workspace_limit - taken) if taken else policy


def _some(spec: Spec, size: int) -> Spec:
    """The first images, or as many others."""
    step = size * spec.strides[0] * spec.itemsize
    return replace(spec, shape=(size, *spec.shape[1:]), aligned=spec.aligned and step % 16 == 0)


def _packed(spec: Spec) -> Spec:
    return Spec.of(spec.dtype, spec.shape, "nhwc" if spec.strides[1] == 1 and spec.shape[1] > 1 else "")


def _one_by_one(problem: ConvProblem, size: int, whole: Executable, rest: Executable | None) -> Executable:
    """The parts one after the other; they share the workspace."""
    names = (*problem.input_names, problem.output_name)
    steps = tuple(0 if n == "w" else size * getattr(problem, n).strides[0] * problem.x.itemsize for n in names)
    times = problem.x.shape[0] // size
    runs = [whole.run] * times + ([rest.run] if rest is not None else [])

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        a, b, out = *inputs, *outputs
        for part in runs:
            part((a, b), (out,), workspace, stream)
            a, b, out = a + steps[0], b + steps[1], out + steps[2]

    def direct(stream: int, a: int, b: int, out: int, workspace: int = 0) -> None:
        run((a, b), (out,), workspace, stream)

    workspace_bytes = max(whole.workspace_bytes, rest.workspace_bytes if rest is not None else 0)
    facts = {**whole.facts, "images at a time": size}
    return replace(whole, run=run, workspace_bytes=workspace_bytes, direct=direct, facts=facts)
