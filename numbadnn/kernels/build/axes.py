"""Fold axes that follow each other in the memory of all operands into one, and find the widest access to neighbours."""

from __future__ import annotations

from typing import NamedTuple

from numbadnn.problem import Spec


class Axis(NamedTuple):
    """One folded axis: its extent and its element stride in each operand."""

    n: int
    strides: tuple[int, ...]


def fold(axes: list[Axis], last: int = -1) -> tuple[Axis, ...]:
    """The same index set on as few axes as can be, sorted by the strides of operand ``last``; axes of one element are dropped."""
    folded: list[Axis] = []
    for axis in sorted((a for a in axes if a.n > 1), key=lambda a: -abs(a.strides[last])):
        outer = folded[-1] if folded else None
        if outer and outer.strides == tuple(s * axis.n for s in axis.strides):
            folded[-1] = Axis(outer.n * axis.n, axis.strides)
        else:
            folded.append(axis)
    return tuple(folded)


def vector_of(specs: tuple[Spec, ...], axis: int, counts: tuple[int, ...]) -> int:
    """The most elements, up to 16 bytes, that every vector of ``axis`` in these operands is aligned to; 0: no neighbours.

    They divide ``counts``.
    """
    if any(s.strides[axis] != 1 and s.shape[axis] > 1 for s in specs):
        return 0
    vec = 16 // specs[0].itemsize if all(s.aligned for s in specs) else 1
    free = [t for s in specs for i, t in enumerate(s.strides) if i != axis and s.shape[i] > 1]
    while vec > 1 and any(v % vec for v in (*counts, *free)):
        vec //= 2
    return vec
