"""Batch normalization, for training and for inference, and the gradients of both: the public functions.

``problems/norm.py`` holds what they ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Never

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.call.operands import output_spec
from numbadnn.call.seen import Axes, Seen, seen_views
from numbadnn.dispatch import Request
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Backend, NormMode
from numbadnn.parameters import channels_last
from numbadnn.problem import Spec
from numbadnn.problems.norm import (
    OPERANDS,
    TEST,
    TEST_GRAD,
    TRAIN,
    TRAIN_GRAD,
    NormProblem,
    check_epsilon,
    check_number,
    parameter_shape,
)


def _hint(name: str, given: tuple[int, ...], inputs: tuple[int, ...], mode: str) -> str:
    """What to add to an error where a parameter is right but for its axes, the mode or the inputs' layout ("" = it is not)."""
    rank, one = len(inputs), math.prod(given)
    if rank < 2 or one != max(given, default=1):
        return ""
    if one != inputs[1]:
        return channels_last("inputs", inputs, one)
    if mode == "per-activation" and rank > 2:
        return "; mode='spatial' takes one number a channel"
    return f"; {name}.reshape(1, -1{', 1' * (rank - 2)}) has it" if len(given) == 1 else ""


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
            hint = _hint(name, view.shape, x.shape, mode) if name != "dy" else ""
            raise ValueError(f"{name}: expected shape {wanted} ({why}), got {view.shape}{hint}")
    epsilon = check_epsilon(epsilon)
    factor = check_number("running_average_factor", factor, 0.0, 1.0, "a number from 0 to 1")
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


def of_vectors(build: Callable[..., Request]) -> Callable[..., Request]:
    """The same operation in spatial mode with parameters and statistics of one axis, (C,), as PyTorch has them.

    Training writes the new running averages to the old ones.
    """

    def build_of_vectors(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
        rank = len(views[0].shape)
        whole: Axes = tuple((axis,) for axis in range(rank))
        line: Axes = ((), (0,), *((),) * (rank - 2))
        inputs = tuple(line if len(view.shape) == 1 else whole for view in views)
        request = build(seen_views(views, inputs), out_views, ("spatial", *params))
        first, *rest = request.problem.outputs
        shared = tuple(range(3, len(views))) if build is _build_train else ()
        made = (first, *(Spec.of(spec.dtype, spec.shape[1:2]) for spec in rest[: len(rest) - len(shared)]))
        return request._replace(seen=Seen(inputs, (whole, *(line,) * len(rest)), made, shared))

    return dispatch.operation(*dispatch.ARGUMENTS[build])(build_of_vectors)


TRAIN_OF_VECTORS, TRAIN_GRAD_OF_VECTORS = of_vectors(_build_train), of_vectors(_build_train_grad)
TEST_OF_VECTORS, TEST_GRAD_OF_VECTORS = of_vectors(_build_test), of_vectors(_build_test_grad)


def batch_normalization_train(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mode: NormMode = "per-activation",
    epsilon: float = 1e-4,
    running_average_factor: float = 0.1,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Batch normalization with the statistics of the batch: (out, mean, invstd[, new_running_mean, new_running_var]).

    ``out = (inputs - mean) * invstd * gamma + beta``, mean and var (biased) over axis 0 (``spatial``: and all from 2 on),
    ``invstd = 1 / sqrt(var + epsilon)``. With f the factor and m the number of values averaged, the new running averages are
    ``old * (1 - f) + mean * f`` and ``old * (1 - f) + m / (m - 1) * var * f``. inputs has any rank >= 1; all else has its
    rank, with 1 on the axes averaged over. out has the dtype of inputs, the statistics gamma's. Nothing given is modified.
    The mean and invstd of an empty batch are NaN.
    Source: docs/explanation/semantics.md#batch-normalization; Ioffe and Szegedy 2015.

    Raises ValueError for an unknown mode, a wrong shape, epsilon < 0, a factor outside [0, 1], one running average without
    the other, or running averages of a single value; TypeError for other dtypes.

    >>> import numpy as np, numbadnn
    >>> out, mean, invstd = numbadnn.batch_normalization_train(
    ...     np.array([[1.0], [3.0]]), np.ones((1, 1)), np.zeros((1, 1)), epsilon=0)
    >>> out.ravel(), mean.item(), invstd.item()
    (array([-1.,  1.]), 2.0, 1.0)
    """
    if unknown:
        refuse(unknown)
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
    mode: NormMode = "per-activation",
    epsilon: float = 1e-4,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Batch normalization with given statistics: ``(inputs - mean) * gamma / sqrt(var + epsilon) + beta``.

    Shapes, dtypes and errors as in ``batch_normalization_train``; ``var`` is a variance, not a standard deviation.
    Source: docs/explanation/semantics.md#batch-normalization.

    >>> import numpy as np, numbadnn
    >>> one = np.ones(1)
    >>> numbadnn.batch_normalization_test(np.array([1.0, 5.0]), one, one, one, 4 * one, epsilon=0)
    array([1., 3.])
    """
    if unknown:
        refuse(unknown)
    return dispatch.call_any(_build_test, (inputs, gamma, beta, mean, var), (mode, epsilon), backend, out, stream)


def batch_normalization_train_grad(
    inputs: Any,
    dy: Any,
    gamma: Any,
    mean: Any,
    invstd: Any,
    mode: NormMode = "per-activation",
    epsilon: float = 1e-4,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradients of ``batch_normalization_train`` through ``out`` alone: (dinputs, dgamma, dbeta).

    ``dinputs = gamma * (c - mean(c))`` with ``c = dy * invstd - (inputs - mean) * mean(dy * (inputs - mean)) * invstd**3``,
    ``dgamma = sum(dy * (inputs - mean)) * invstd``, ``dbeta = sum(dy)``. mean and invstd are those the forward call returned;
    epsilon is in invstd already and does not enter. dinputs has the dtype of inputs, the others gamma's. Errors as in the
    forward call. Source: docs/explanation/semantics.md#batch-normalization.

    >>> import numpy as np, numbadnn
    >>> one = np.ones(1)
    >>> dx, dgamma, dbeta = numbadnn.batch_normalization_train_grad(
    ...     np.array([1.0, 3.0]), np.array([1.0, 0.0]), one, 2 * one, one)
    >>> dx, dgamma, dbeta
    (array([0., 0.]), array([-1.]), array([1.]))
    """
    if unknown:
        refuse(unknown)
    return dispatch.call_any(
        _build_train_grad, (inputs, dy, gamma, mean, invstd), (mode, epsilon), backend, out, stream
    )


def batch_normalization_test_grad(
    inputs: Any,
    dy: Any,
    gamma: Any,
    mean: Any,
    var: Any,
    mode: NormMode = "per-activation",
    epsilon: float = 1e-4,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradients of ``batch_normalization_test`` in every array: (dinputs, dgamma, dbeta, dmean, dvar).

    With ``s = sqrt(var + epsilon)``: ``dinputs = dy * gamma / s``, ``dgamma = sum(dy * (inputs - mean)) / s``,
    ``dbeta = sum(dy)``, ``dmean = -sum(dy) * gamma / s``,
    ``dvar = -sum(dy * (inputs - mean)) * gamma / (2 * (var + epsilon) * s)``. dinputs has the
    dtype of inputs, the others gamma's. Errors as in the forward call.
    Source: docs/explanation/semantics.md#batch-normalization.

    >>> import numpy as np, numbadnn
    >>> one = np.ones(1)
    >>> grads = numbadnn.batch_normalization_test_grad(np.array([1.0, 3.0]), np.ones(2), one, one, one, epsilon=0)
    >>> [g.tolist() for g in grads]
    [[1.0, 1.0], [2.0], [2.0], [-2.0], [-1.0]]
    """
    if unknown:
        refuse(unknown)
    return dispatch.call_any(_build_test_grad, (inputs, dy, gamma, mean, var), (mode, epsilon), backend, out, stream)
