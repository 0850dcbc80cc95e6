"""A node as a call of numbadnn's: the function, its arrays and parameters, and how its results become the node's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import numbadnn
from numbadnn import dispatch
from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.measuring.compare import SUBNORMAL, UNIT, Bound
from numbadnn.registry import SEQUENCE
from numbadnn.validate.oracle import Trial, expected

Arrays = tuple[np.ndarray, ...]


class Unposed(Exception):
    """numbadnn has no operation for this node; the text says why."""


class Posed(NamedTuple):
    """``numbadnn.<function>(*arrays, **keywords)``; ``arrange`` moves its results to the places that the node gives them.

    ``factor``, then ``bias``, are multiplied with and added to the first result after that.
    """

    function: str
    arrays: Arrays
    keywords: dict[str, Any] = {}
    arrange: Callable[[Arrays], Arrays] = tuple
    bias: np.ndarray | None = None
    factor: np.ndarray | None = None

    @property
    def problem(self) -> Any:
        """What the call asks for; Unposed where the function refuses it."""
        try:
            return dispatch.intercept("problem", getattr(numbadnn, self.function), self.arrays, dict(self.keywords))
        except (ValueError, TypeError) as error:
            raise Unposed(str(error)) from None

    def finish(self, results: Arrays) -> Arrays:
        first, *rest = self.arrange(results)
        if self.factor is not None:
            first = first * self.factor.astype(first.dtype)
        if self.bias is not None:
            first = first + self.bias.astype(first.dtype)
        return (first, *rest)


def exact(posed: Posed, problem: Any) -> Arrays:
    """The node's outputs by the reference, in float64, on the arrays that it is posed with."""
    return posed.finish(expected(problem, posed.arrays))


def bounds(posed: Posed, trial: Trial) -> tuple[Bound, ...]:
    """How far the node's outputs may be off, of anybody who adds in any order, in the type's own arithmetic."""
    given = trial.bounds("ieee", SEQUENCE)
    errors = posed.arrange(tuple(b.accumulated for b in given))
    first, *rest = posed.arrange(trial.values)
    e, unit = errors[0], UNIT["float64" if given[0].dtype == "float64" else "float32"]
    for number, more in ((0, posed.factor), (1, posed.bias)):
        if more is not None:  # what was there is rounded, to the output's type where the operations are apart
            e = e + max(unit, UNIT[given[0].dtype]) * (np.abs(first) + e) + SUBNORMAL[given[0].dtype] / 2
            factor = more.astype(np.float64)
            off = np.abs(factor.astype(numpy_dtype(given[0].dtype)).astype(np.float64) - factor) * (np.abs(first) + e)
            first, e = (first + factor, e) if number else (first * factor, e * np.abs(factor) + off)
    return tuple(Bound(error, b.dtype) for error, b in zip((e, *errors[1:]), given, strict=False))
