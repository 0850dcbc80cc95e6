"""What is known of an operator of ONNX: how it is computed, and how far a computation of it may be off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numbadnn.validate.model.graph import Node
from numbadnn.validate.model.posed import Posed

#: the arrays that a node reads, in order, None for what is left out
Given = list[Any]
Outputs = tuple[np.ndarray, ...]


class Kind(NamedTuple):
    """``pose`` says the node as a call of numbadnn's; ``compute`` is NumPy, in whatever type the arrays have.

    ``errors(node, inputs, outputs, unit)``: the largest error of each output of one who computes in arithmetic of this unit, by
    the float64 inputs and outputs; None: nothing is rounded. ``flops``: of one node; without: an operation an output.
    ``unjudged``: NumPy for what ``pose`` does not take, of which no bound is known; without it onnx.reference computes that.
    """

    pose: Callable[[Node, Given], Posed] | None = None
    compute: Callable[[Node, Given], Outputs] | None = None
    errors: Callable[[Node, Given, Outputs, float], Outputs] | None = None
    flops: Callable[[Node, Given, Outputs], int] | None = None
    arithmetic: bool = True
    wide: Callable[[Node, Given], Outputs] | None = None
    unjudged: Callable[[Node, Given], Outputs] | None = None


def moving(compute: Callable[[Node, Given], Outputs]) -> Kind:
    """Of an operator that moves numbers and computes none."""
    return Kind(None, compute, None, lambda *_: 0, arithmetic=False)


def axes_of(node: Node, given: Given, place: int, rank: int) -> tuple[int, ...] | None:
    """The axes that a node names, by an attribute or, in later opsets, by an input; not negative; None: it names none."""
    named = node.get("axes")
    if named is None and len(given) > place and given[place] is not None:
        named = given[place].ravel().tolist()
    return None if named is None else tuple(axis_of(axis, rank) for axis in named)


def axis_of(axis: int, rank: int, most: int | None = None) -> int:
    """The axis, not negative; ValueError for one that an array of this rank has not. ``most``: the last there is."""
    rank = max(rank, 1)  # a single number has no axis, and 0 names it
    if not -rank <= axis <= (rank - 1 if most is None else most):
        raise ValueError(f"axis: expected one of an array of {rank}, got {axis}")
    return int(axis) + rank if axis < 0 else int(axis)
