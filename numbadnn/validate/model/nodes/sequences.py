"""Sequences of arrays, whose shapes may differ: an array of arrays here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from numbadnn.validate.model.graph import Node
from numbadnn.validate.model.nodes.kinds import Given, Outputs, axis_of, moving


def _sequence(arrays: Iterable[np.ndarray]) -> Outputs:
    arrays = list(arrays)
    found = np.empty(len(arrays), object)
    for number, array in enumerate(arrays):
        found[number] = array
    return (found,)


def _place(given: Given, place: int) -> int | None:
    """The number of an element, from the end where it is negative; None where none is given."""
    return None if len(given) <= place or given[place] is None else int(given[place].item())


def _insert(node: Node, given: Given) -> Outputs:
    arrays, at = list(given[0]), _place(given, 2)
    arrays.insert(len(arrays) if at is None else at, given[1])
    return _sequence(arrays)


def _erase(node: Node, given: Given) -> Outputs:
    arrays, at = list(given[0]), _place(given, 1)
    del arrays[-1 if at is None else at]
    return _sequence(arrays)


def _concat(node: Node, given: Given) -> Outputs:
    join = np.stack if node.get("new_axis", 0) else np.concatenate
    return (join(list(given[0]), axis=node.get("axis")),)


def _split(node: Node, given: Given) -> Outputs:
    """By sizes, in pieces of one size, or one by one; then without the axis where ``keepdims`` is 0."""
    x = given[0]
    axis = axis_of(node.get("axis", 0), x.ndim)
    sizes = given[1] if len(given) > 1 else None
    if sizes is None:
        parts = np.split(x, x.shape[axis], axis)
        return _sequence(parts if node.get("keepdims", 1) else (part.squeeze(axis) for part in parts))
    ends = np.cumsum(sizes)[:-1] if sizes.ndim else np.arange(int(sizes), x.shape[axis], int(sizes))
    return _sequence(np.split(x, ends.tolist(), axis))


TABLE: dict[str, Any] = {
    "SequenceEmpty": moving(lambda node, given: _sequence(())),
    "SequenceConstruct": moving(lambda node, given: _sequence(given)),
    "SequenceAt": moving(lambda node, given: (given[0][int(given[1].item())],)),
    "SequenceLength": moving(lambda node, given: (np.asarray(len(given[0]), np.int64),)),
    "SequenceInsert": moving(_insert),
    "SequenceErase": moving(_erase),
    "ConcatFromSequence": moving(_concat),
    "SplitToSequence": moving(_split),
}
