"""Packed copies in the workspace of operands of any strides and alignment, for kernels that need them packed.

Recurrent networks spend their time in products; the copy of an operand with gaps costs little beside them, and is a
fact of the plan that ``explain`` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numbadnn.kernels.copies.copy import plan_copy
from numbadnn.problem import Spec, contiguous_strides
from numbadnn.problems.rnn import RnnProblem
from numbadnn.registry import Executable

ALIGN = 256


def padded(nbytes: int) -> int:
    """The next multiple of ALIGN."""
    return -(-nbytes // ALIGN) * ALIGN


def packed(spec: Spec) -> Spec:
    """The same operand without gaps, aligned."""
    return Spec(spec.dtype, spec.shape, contiguous_strides(spec.shape))


def plan_packed(problem: RnnProblem, device: int, plan: Callable[[RnnProblem], Executable]) -> Executable:
    """``plan`` for the packed problem, between copies of the operands that are not packed."""
    ins = [i for i, s in enumerate(problem.inputs) if s != packed(s)]
    outs = [i for i, s in enumerate(problem.outputs) if s != packed(s)]
    inner = plan(
        replace(problem, inputs=tuple(map(packed, problem.inputs)), outputs=tuple(map(packed, problem.outputs)))
    )
    if not ins and not outs:
        return inner
    at = padded(inner.workspace_bytes)
    copies_in: list[tuple[int, int, Callable[[int, int, int], None]]] = []
    copies_out: list[tuple[int, int, Callable[[int, int, int], None]]] = []
    for kind, indices, specs in ((copies_in, ins, problem.inputs), (copies_out, outs, problem.outputs)):
        for i in indices:
            spec, whole, offset = specs[i], packed(specs[i]), (0,) * len(specs[i].shape)
            pair = (spec, whole) if kind is copies_in else (whole, spec)
            kind.append((i, at, plan_copy(*pair, offset, device)))
            at += padded(spec.size * spec.itemsize)
    run_inner = inner.run

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: Any) -> None:
        sources, targets = list(inputs), list(outputs)
        for i, offset, step in copies_in:
            step(inputs[i], workspace + offset, stream)
            sources[i] = workspace + offset
        for i, offset, _ in copies_out:
            targets[i] = workspace + offset
        run_inner(tuple(sources), tuple(targets), workspace, stream)
        for i, offset, step in copies_out:
            step(workspace + offset, outputs[i], stream)

    inner.run, inner.direct, inner.workspace_bytes = run, None, at
    inner.facts["copies"] = [problem.names[i] for i in ins] + [problem.result_names[i] for i in outs]
    return inner
