"""What a problem's result should be: the reference of the same name, on float64 copies of the very inputs."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numbadnn import reference
from numbadnn.validate.compare import Bound, Comparison, bound, compare, compare_exactly
from numbadnn.validate.data import make_arrays


def keywords(problem: Any) -> dict[str, Any]:
    """A problem's parameters as the keyword arguments of the public function (and of the reference) called ``problem.op``.

    >>> from numbadnn.ops.softmax import SoftmaxProblem
    >>> keywords(SoftmaxProblem.parse("softmax x=float32:2x5 algo=log"))
    {'algo': 'log', 'mode': 'channel'}
    """
    if not problem.op.startswith("conv"):
        return {"algo": problem.algo, "mode": problem.mode}
    shape = {
        "conv2d_grad_wrt_inputs": {"input_shape": problem.x.shape},
        "conv2d_grad_wrt_weights": {"filter_shape": problem.w.shape},
    }
    return {
        **shape.get(problem.op, {}),
        "border_mode": problem.padding,
        "subsample": problem.stride,
        "filter_flip": problem.flip,
        "filter_dilation": problem.dilation,
        "num_groups": problem.groups,
        "alpha": problem.alpha,
        "beta": problem.beta,
    }


def expected(problem: Any, inputs: tuple[Any, ...], old: Any = None) -> np.ndarray:
    """The result in float64; ``old`` is what the output held, where beta is not 0."""
    more = {} if old is None else {"out": old}
    return getattr(reference, problem.op)(*inputs, **keywords(problem), **more)


class Trial:
    """One problem with one set of inputs: the reference and the bounds are worked out once, for every implementation."""

    def __init__(self, problem: Any, inputs: tuple[Any, ...], old: Any = None) -> None:
        self.problem, self.inputs, self.old = problem, inputs, old
        self._bounds: dict[str, Bound] = {}

    @staticmethod
    def of(problem: Any, seed: int = 0, kind: str = "random") -> Trial:
        """Inputs as ``make_arrays`` makes them."""
        return Trial(problem, *make_arrays(problem, seed, kind))

    @functools.cached_property
    def value(self) -> np.ndarray:
        return expected(self.problem, self.inputs, self.old)

    def bound(self, arithmetic: str) -> Bound:
        if arithmetic not in self._bounds:
            self._bounds[arithmetic] = bound(self.problem, self.inputs, self.old, arithmetic)
        return self._bounds[arithmetic]

    def compare(self, result: Any, arithmetic: str) -> Comparison:
        """The result of an implementation of this arithmetic, held against the reference."""
        return compare(result, self.value, self.bound(arithmetic))

    def compare_exactly(self, result: Any) -> Comparison:
        return compare_exactly(result, self.value)
