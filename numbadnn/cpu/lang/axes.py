"""Axes of operands that are walked together: sorted by how far apart neighbours lie, joined where one step serves all."""

from __future__ import annotations

import numpy as np

#: an axis: its length, and the element stride of each operand along it
Axis = tuple[int, tuple[int, ...]]


def merged(axes: list[Axis]) -> list[Axis]:
    """The same index set, outermost axis first, with axes joined that every operand walks at one step.

    >>> merged([(4, (6,)), (3, (2,)), (1, (9,)), (2, (1,))])
    [(24, (1,))]
    """
    out: list[Axis] = []
    for n, steps in axes:
        if n == 1:
            continue
        if out and all(s == n * t for s, t in zip(out[-1][1], steps, strict=True)):
            out[-1] = (out[-1][0] * n, steps)
        else:
            out.append((n, steps))
    return out


def reach(axis: Axis) -> int:
    """How far apart neighbours along the axis lie, in the first input and the output."""
    return abs(axis[1][0]) + abs(axis[1][2])


def lists(axes: list[Axis]) -> tuple[np.ndarray, np.ndarray]:
    """Lengths, and strides as (operand, axis)."""
    shape = np.array([n for n, _ in axes], np.int64)
    return shape, np.array([s for _, s in axes], np.int64).reshape(len(axes), 3).T.copy()
