"""Copies around an implicit GEMM, where the copy engine cannot read an image or the result is not channels-last.

``readable`` is the same problem on images whose channels lie together and whose pixels start at multiples of 16 bytes; those that
do not are buffers in the workspace, behind what the product itself needs. ``around`` makes an Executable of both.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.implicit.walk import image_reason
from numbadnn.kernels.copies.copy import plan_copy
from numbadnn.problem import Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable

#: microseconds of a copy's launch, and the bytes that it reads and writes in one, on an H200
LAUNCH, SPEED = 2.5, 1.7e6
#: times as long from or to planes of an odd number of 16-bit elements, no two of which are read at once
ODD = 2.0


def buffers(problem: ConvProblem) -> dict[str, Spec]:
    """Operand -> the buffer that stands in for it."""
    found = {}
    for name in ("x", "y"):
        spec: Spec = getattr(problem, name)
        written = name == problem.output_name
        if (written and spec.strides[1] != 1 and spec.shape[1] > 1) or (not written and image_reason(spec, name)):
            found[name] = _packed(spec)
    return found


def _packed(spec: Spec) -> Spec:
    _, c, *sizes = spec.shape
    vector = 16 // spec.itemsize
    pitch, steps = -(-c // vector) * vector, []
    for size in reversed(sizes):
        steps.append(pitch)
        pitch *= size
    return Spec(spec.dtype, spec.shape, (pitch, 1, *reversed(steps)), True)


def readable(problem: ConvProblem) -> ConvProblem:
    """The problem that the kernels compute."""
    found = buffers(problem)
    changes: dict[str, Any] = {**found}
    return dataclasses.replace(problem, **changes) if found else problem


def nbytes(spec: Spec) -> int:
    return -(-spec.shape[0] * spec.strides[0] * spec.itemsize // 256) * 256


def buffer_bytes(problem: ConvProblem) -> int:
    """What all buffers take of the workspace."""
    return sum(nbytes(spec) for spec in buffers(problem).values())


def microseconds(problem: ConvProblem, found: dict[str, Spec] | None = None) -> float:
    """The time of the copies; an output that is read (beta) is copied both ways."""
    total = 0.0
    for name, spec in (buffers(problem) if found is None else found).items():
        ways = 2 if name == problem.output_name and problem.beta else 1
        given = getattr(problem, name)
        odd = spec.itemsize == 2 and math.prod(spec.shape[2:]) % 2 and not given.is_channels_last
        total += ways * (LAUNCH + 2 * math.prod(spec.shape) * spec.itemsize * (ODD if odd else 1.0) / SPEED)
    return total


def around(
    problem: ConvProblem, executable: Executable, device: int, found: dict[str, Spec] | None = None
) -> Executable:
    """The executable of a problem on buffers, those of ``readable(problem)``, with copies before and after it."""
    found = buffers(problem) if found is None else found
    if not found:
        return executable
    names = (*problem.input_names, problem.output_name)
    position = -(-executable.workspace_bytes // 256) * 256
    before: list[tuple[Callable[[int, int, int], None], int, int]] = []
    after: list[tuple[Callable[[int, int, int], None], int, int]] = []
    places: dict[int, int] = {}
    copies = []
    for name, spec in found.items():
        slot, outer, still = names.index(name), getattr(problem, name), (0,) * len(spec.shape)
        places[slot] = position
        if name != problem.output_name or problem.beta:
            before.append((plan_copy(outer, spec, still, device), slot, position))
            copies.append(f"{name} -> workspace (channels-last, {nbytes(spec)} bytes)")
        if name == problem.output_name:
            after.append((plan_copy(spec, outer, still, device), slot, position))
            copies.append(f"workspace -> {name} (channels-last, {nbytes(spec)} bytes)")
        position += nbytes(spec)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        outside = (*inputs, *outputs)
        for step, slot, at in before:
            step(outside[slot], workspace + at, stream)
        inside = tuple(workspace + places[i] if i in places else address for i, address in enumerate(outside))
        executable.run(inside[:2], inside[2:], workspace, stream)
        for step, slot, at in after:
            step(workspace + at, outside[slot], stream)

    def direct(stream: int, a: int, b: int, out: int, workspace: int) -> None:
        run((a, b), (out,), workspace, stream)

    facts = {**executable.facts, "copies": [*executable.facts.get("copies", ()), *copies]}
    return dataclasses.replace(executable, run=run, workspace_bytes=position, facts=facts, direct=direct)
