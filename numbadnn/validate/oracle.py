"""What a problem's result should be: the reference of the same name, on float64 copies of the very inputs."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numbadnn import reference
from numbadnn.measuring.compare import Bound, Comparison, bounds, compare, compare_exactly, worst
from numbadnn.measuring.data import make_arrays
from numbadnn.registry import BLOCKED, Summation


def expected(problem: Any, inputs: tuple[Any, ...], old: Any = None) -> tuple[np.ndarray, ...]:
    """The results in float64; ``old`` is what the output held, where beta is not 0."""
    named = getattr(problem, "keyword_inputs", ())  # the function takes them behind its parameters
    n = len(inputs) - len(named)
    more = dict(zip(named, inputs[n:], strict=True)) | ({} if old is None else {"out": old})
    results = getattr(reference, problem.op)(*inputs[:n], **problem.keywords, **more)
    return results if isinstance(results, tuple) else (results,)


class Trial:
    """One problem with one set of inputs: the reference and the bounds are worked out once, for every implementation."""

    def __init__(self, problem: Any, inputs: tuple[Any, ...], old: Any = None, kind: str = "") -> None:
        """``kind``: of the data, where ``make_arrays`` made them."""
        self.problem, self.inputs, self.old, self.kind = problem, inputs, old, kind
        self._bounds: dict[tuple[str, Summation], tuple[Bound, ...]] = {}

    @staticmethod
    def of(problem: Any, seed: int = 0, kind: str = "random") -> Trial:
        """Inputs as ``make_arrays`` makes them."""
        return Trial(problem, *make_arrays(problem, seed, kind), kind)

    @functools.cached_property
    def values(self) -> tuple[np.ndarray, ...]:
        """What each output should be, in float64."""
        return expected(self.problem, self.inputs, self.old)

    @property
    def value(self) -> np.ndarray:
        """The first output's values."""
        return self.values[0]

    def bounds(self, arithmetic: str, summation: Summation = BLOCKED) -> tuple[Bound, ...]:
        declared = (arithmetic, summation)
        if declared not in self._bounds:
            self._bounds[declared] = bounds(self.problem, self.inputs, self.old, *declared)
        return self._bounds[declared]

    def compare(self, results: Any, arithmetic: str, summation: Summation = BLOCKED) -> Comparison:
        """The results (a tuple, or the only one) of an implementation that declares this, held against the reference."""
        triples = zip(_tuple(results), self.values, self.bounds(arithmetic, summation), strict=True)
        return worst([compare(*triple) for triple in triples])

    def compare_exactly(self, results: Any) -> Comparison:
        return worst([compare_exactly(r, v) for r, v in zip(_tuple(results), self.values, strict=True)])


def _tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)
