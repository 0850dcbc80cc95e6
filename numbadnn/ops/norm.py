"""Batch normalization, for training and for inference, and the gradients of both: the problem, and the public functions.

A *channel* is what one pair of gamma and beta belongs to. ``spatial`` averages over axis 0 and all axes from 2 on, so that a
channel is an index of axis 1; ``per-activation`` averages over axis 0, so that every position is a channel of its own. Every
parameter and statistic has the rank of the inputs, with size 1 on the axes averaged over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.dispatch import Request
from numbadnn.call.operands import output_spec
from numbadnn.parameters import real
from numbadnn.problem import Spec, number, operand, shown

TRAIN, TEST = "batch_normalization_train", "batch_normalization_test"
TRAIN_GRAD, TEST_GRAD = "batch_normalization_train_grad", "batch_normalization_test_grad"
MODES = ("per-activation", "spatial")

#: operation -> names of its inputs and of its outputs; those of a training pass without running averages come first
OPERANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    TRAIN: (("x", "gamma", "beta", "running_mean", "running_var"), ("y", "mean", "invstd", "new_mean", "new_var")),
    TEST: (("x", "gamma", "beta", "mean", "var"), ("y",)),
    TRAIN_GRAD: (("x", "dy", "gamma", "mean", "invstd"), ("dx", "dgamma", "dbeta")),
    TEST_GRAD: (("x", "dy", "gamma", "mean", "var"), ("dx", "dgamma", "dbeta", "dmean", "dvar")),
}
#: operands with the shape of x
_LIKE_X = ("x", "dy", "y", "dx")


@dataclass(frozen=True, slots=True)
class NormProblem:
    """One of the four operations; ``inputs`` and ``outputs`` in the order of OPERANDS.

    x, dy and their results have one shape, all others that of gamma. Every operand has a dtype of its own: y and dx have
    x's, statistics and parameter gradients gamma's. ``factor`` is what running averages take of the new statistic.
    """

    op: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    mode: str = "per-activation"
    epsilon: float = 1e-4
    factor: float = 0.1

    @property
    def x(self) -> Spec:
        return self.inputs[0]

    @property
    def gamma(self) -> Spec:
        return self.inputs[OPERANDS[self.op][0].index("gamma")]

    @property
    def output(self) -> Spec:
        return self.outputs[0]

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes averaged over."""
        return axes_of(self.mode, len(self.x.shape))

    @property
    def averaged(self) -> int:
        """Elements that a channel has."""
        return math.prod(self.x.shape[a] for a in self.axes)

    @property
    def running(self) -> bool:
        return self.op == TRAIN and len(self.inputs) == 5

    @property
    def empty_values(self) -> tuple[float, ...]:
        """What outputs that are not empty hold where the inputs are: no mean of nothing, and gradients that are sums."""
        return (0.0, math.nan, math.nan)[: len(self.outputs)] if self.op == TRAIN else (0.0,) * len(self.outputs)

    @property
    def flops(self) -> int:
        return {TRAIN: 8, TEST: 3, TRAIN_GRAD: 10, TEST_GRAD: 6}[self.op] * self.x.size

    @property
    def bytes(self) -> int:
        return sum(s.size * s.itemsize for s in (*self.inputs, *self.outputs))

    @property
    def keyword_inputs(self) -> tuple[str, ...]:
        """The last inputs, which the public function takes by keyword."""
        return ("running_mean", "running_var") if self.running else ()

    @property
    def keywords(self) -> dict[str, Any]:
        """The parameters as keyword arguments of the public function, and of the reference."""
        more = {"running_average_factor": self.factor} if self.op == TRAIN else {}
        return {"mode": self.mode, "epsilon": self.epsilon, **more}

    def __str__(self) -> str:
        inputs, outputs = OPERANDS[self.op]
        named = [*zip(inputs, self.inputs, strict=False), *zip(outputs, self.outputs, strict=False)]
        text = " ".join(f"{name}={spec}" for name, spec in named)
        factor = f" factor={shown(self.factor)}" if self.running else ""
        return f"{self.op} {text} mode={self.mode} epsilon={self.epsilon!r}{factor}"

    @staticmethod
    def parse(text: str) -> NormProblem:
        """The inverse of ``str``; operands left out are packed like x, in its dtype; ``running_mean`` brings running_var.

        >>> str(NormProblem.parse("batch_normalization_test x=float32:2x3 mode=spatial")).split()[1:3]
        ['x=float32:2x3', 'gamma=float32:1x3']
        """
        op, *words = text.split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        inputs, outputs = OPERANDS.get(op, ((), ()))
        known = {*inputs, *outputs, "mode", "epsilon", "factor"}
        if not inputs or len(fields) != len(words) or "x" not in fields or not set(fields) <= known:
            raise ValueError(f"expected '{op} x=SPEC' and {', '.join(sorted(known - {'x'}))}, got {text!r}")
        x, mode = operand(fields["x"]), fields.get("mode", "per-activation")
        if op == TRAIN and not {"running_mean", "running_var"} & set(fields):
            inputs, outputs = inputs[:3], outputs[:3]
        shape = parameter_shape(x.shape, mode)
        gamma = operand(fields["gamma"]) if "gamma" in fields else Spec.of(x.dtype, shape)

        def spec(name: str) -> Spec:
            like_x = name in _LIKE_X
            if name in fields:
                given = operand(fields[name], result=name in outputs)
                if given.shape != (x.shape if like_x else shape):
                    raise ValueError(f"{name}: expected shape {x.shape if like_x else shape}, got {given.shape}")
                return given
            if like_x:
                return Spec.of(x.dtype, x.shape, x.layout)
            return Spec.of(gamma.dtype, shape)

        epsilon = _epsilon(number("epsilon", fields.get("epsilon", "1e-4")))
        factor = _number("factor", number("factor", fields.get("factor", "0.1")), 0.0, 1.0, "a number from 0 to 1")
        return NormProblem(op, tuple(map(spec, inputs)), tuple(map(spec, outputs)), mode, epsilon, factor)


PROBLEM = NormProblem


def axes_of(mode: str, rank: int) -> tuple[int, ...]:
    """The axes averaged over; ValueError for an unknown mode or rank 0."""
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if rank < 1:
        raise ValueError("inputs: expected at least 1 dimension, got a scalar")
    return (0,) if mode == "per-activation" else (0, *range(2, rank))


def parameter_shape(shape: tuple[int, ...], mode: str) -> tuple[int, ...]:
    """The shape of gamma: that of the inputs, with 1 on the axes averaged over.

    >>> parameter_shape((8, 3, 5, 5), "spatial")
    (1, 3, 1, 1)
    """
    axes = axes_of(mode, len(shape))
    return tuple(1 if a in axes else n for a, n in enumerate(shape))


def _number(name: str, value: Any, low: float, high: float, wanted: str) -> float:
    try:
        given = real(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name}: expected a number, got {value!r}") from None
    if not low <= given <= high:
        raise ValueError(f"{name}: expected {wanted}, got {value!r}")
    return given


def _epsilon(value: Any) -> float:
    return _number("epsilon", value, 0.0, 1.7e308, "a finite number >= 0")


def _build(op: str, views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    mode, epsilon, factor = params
    names, results = OPERANDS[op]
    names = ("inputs", *names[1:])  # as the argument is called
    x, gamma = views[0], views[names.index("gamma")]
    shape = parameter_shape(x.shape, mode)
    for name, view in zip(names[1:], views[1:], strict=False):
        wanted = x.shape if name == "dy" else shape
        if view.shape != wanted:
            why = "the inputs'" if name == "dy" else f"1 on the axes averaged over in mode {mode!r}"
            raise ValueError(f"{name}: expected shape {wanted} ({why}), got {view.shape}")
    epsilon = _epsilon(epsilon)
    factor = _number("running_average_factor", factor, 0.0, 1.0, "a number from 0 to 1")
    results = results[: len(views)] if op == TRAIN else results
    if out_views and len(out_views) != len(results):
        raise ValueError(f"out: expected {len(results)} arrays ({', '.join(results)}), got {len(out_views)}")
    targets: list[View | None] = [*out_views] or [None] * len(results)
    outputs = [output_spec(x.shape, x.dtype, x, targets[0])]
    outputs += [output_spec(shape, gamma.dtype, x, t) for t in targets[1:]]
    if op != TRAIN or len(views) < 5:
        factor = 0.1  # no running averages: it does nothing, and one problem must have one key
    problem = NormProblem(op, tuple(v.spec() for v in views), tuple(outputs), mode, epsilon, factor)
    if problem.running and problem.averaged < 2:
        raise ValueError(
            f"running_var: expected at least 2 values to average (its factor is m / (m - 1)), got {problem.averaged}"
        )
    return Request(problem)


@dispatch.operation("inputs", "gamma", "beta", "running_mean", "running_var")
def _build_train(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    return _build(TRAIN, views, out_views, params)


@dispatch.operation("inputs", "gamma", "beta", "mean", "var")
def _build_test(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    return _build(TEST, views, out_views, (*params, 0.0))


@dispatch.operation("inputs", "dy", "gamma", "mean", "invstd")
def _build_train_grad(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    return _build(TRAIN_GRAD, views, out_views, (*params, 0.0))


@dispatch.operation("inputs", "dy", "gamma", "mean", "var")
def _build_test_grad(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    return _build(TEST_GRAD, views, out_views, (*params, 0.0))


def batch_normalization_train(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mode: str = "per-activation",
    epsilon: float = 1e-4,
    running_average_factor: float = 0.1,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Batch normalization with the statistics of the batch: (out, mean, invstd[, new_running_mean, new_running_var]).

    ``out = (inputs - mean) * invstd * gamma + beta``, mean and var (biased) over axis 0 (``spatial``: and all from 2 on),
    ``invstd = 1 / sqrt(var + epsilon)``. With f the factor and m the number of values averaged, the new running averages are
    ``old * (1 - f) + mean * f`` and ``old * (1 - f) + m / (m - 1) * var * f``. inputs has any rank >= 1; all else has its
    rank, with 1 on the axes averaged over. out has the dtype of inputs, the statistics gamma's. Nothing given is modified.
    The mean and invstd of an empty batch are NaN. Source: spec/semantics.md 1.7; Ioffe and Szegedy 2015.

    Raises ValueError for an unknown mode, a wrong shape, epsilon < 0, a factor outside [0, 1], one running average without
    the other, or running averages of a single value; TypeError for other dtypes.

    >>> import numpy as np, numbadnn
    >>> out, mean, invstd = numbadnn.batch_normalization_train(
    ...     np.array([[1.0], [3.0]]), np.ones((1, 1)), np.zeros((1, 1)), epsilon=0)
    >>> out.ravel(), mean.item(), invstd.item()
    (array([-1.,  1.]), 2.0, 1.0)
    """
    arrays: tuple[Any, ...]
    if running_mean is None and running_var is None:
        arrays = (inputs, gamma, beta)
    elif running_mean is None or running_var is None:
        missing = "running_mean" if running_mean is None else "running_var"
        raise ValueError(f"{missing}: expected both running averages or neither, got one")
    else:
        arrays = (inputs, gamma, beta, running_mean, running_var)
    return dispatch.call_any(_build_train, arrays, (mode, epsilon, running_average_factor), backend, out, stream)


def batch_normalization_test(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    var: Any,
    mode: str = "per-activation",
    epsilon: float = 1e-4,
    *,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Batch normalization with given statistics: ``(inputs - mean) * gamma / sqrt(var + epsilon) + beta``.

    Shapes, dtypes and errors as in ``batch_normalization_train``; ``var`` is a variance, not a standard deviation. Source:
    spec/semantics.md 1.7.

    >>> import numpy as np, numbadnn
    >>> one = np.ones(1)
    >>> numbadnn.batch_normalization_test(np.array([1.0, 5.0]), one, one, one, 4 * one, epsilon=0)
    array([1., 3.])
    """
    return dispatch.call_any(_build_test, (inputs, gamma, beta, mean, var), (mode, epsilon), backend, out, stream)


def batch_normalization_train_grad(
    inputs: Any,
    dy: Any,
    gamma: Any,
    mean: Any,
    invstd: Any,
    mode: str = "per-activation",
    epsilon: float = 1e-4,
    *,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradients of ``batch_normalization_train`` through ``out`` alone: (dinputs, dgamma, dbeta).

    ``dinputs = gamma * (c - mean(c))`` with ``c = dy * invstd - (inputs - mean) * mean(dy * (inputs - mean)) * invstd**3``,
    ``dgamma = sum(dy * (inputs - mean)) * invstd``, ``dbeta = sum(dy)``. mean and invstd are those the forward call returned;
    epsilon is in invstd already and does not enter. dinputs has the dtype of inputs, the others gamma's. Errors as in the
    forward call. Source: spec/semantics.md 1.7.

    >>> import numpy as np, numbadnn
    >>> one = np.ones(1)
    >>> dx, dgamma, dbeta = numbadnn.batch_normalization_train_grad(
    ...     np.array([1.0, 3.0]), np.array([1.0, 0.0]), one, 2 * one, one)
    >>> dx, dgamma, dbeta
    (array([0., 0.]), array([-1.]), array([1.]))
    """
    return dispatch.call_any(
        _build_train_grad, (inputs, dy, gamma, mean, invstd), (mode, epsilon), backend, out, stream
    )


def batch_normalization_test_grad(
    inputs: Any,
    dy: Any,
    gamma: Any,
    mean: Any,
    var: Any,
    mode: str = "per-activation",
    epsilon: float = 1e-4,
    *,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradients of ``batch_normalization_test`` in every array: (dinputs, dgamma, dbeta, dmean, dvar).

    With ``s = sqrt(var + epsilon)``: ``dinputs = dy * gamma / s``, ``dgamma = sum(dy * (inputs - mean)) / s``,
    ``dbeta = sum(dy)``, ``dmean = -sum(dy) * gamma / s``,
    ``dvar = -sum(dy * (inputs - mean)) * gamma / (2 * (var + epsilon) * s)``. dinputs has the
    dtype of inputs, the others gamma's. Errors as in the forward call. Source: spec/semantics.md 1.7.

    >>> import numpy as np, numbadnn
    >>> one = np.ones(1)
    >>> grads = numbadnn.batch_normalization_test_grad(np.array([1.0, 3.0]), np.ones(2), one, one, one, epsilon=0)
    >>> [g.tolist() for g in grads]
    [[1.0, 1.0], [2.0], [2.0], [-2.0], [-1.0]]
    """
    return dispatch.call_any(_build_test_grad, (inputs, dy, gamma, mean, var), (mode, epsilon), backend, out, stream)
