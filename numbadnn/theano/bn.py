"""``theano.tensor.nnet.bn``: batch normalization over any axes, on any backend.

Source: docs/explanation/semantics.md#batch-normalization."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numbadnn
from numbadnn.arrays.namespace import namespace, transposed
from numbadnn.dispatch import frozen
from numbadnn.option_types import NormMode
from numbadnn.parameters import whole
from numbadnn.theano.dnn_ops.norm import check_epsilon

__all__ = ["batch_normalization", "batch_normalization_test", "batch_normalization_train"]


def batch_normalization(inputs: Any, gamma: Any, beta: Any, mean: Any, std: Any, mode: str = "low_mem") -> Any:
    """``(inputs - mean) * gamma / std + beta``: of a standard deviation, not a variance; the mode orders the operations.

    >>> import numpy as np
    >>> batch_normalization(np.array([[1.0], [5.0]]), 1.0, 0.0, 1.0, 2.0)
    array([[0.],
           [2.]])
    """
    if mode == "low_mem":
        return (inputs - mean) / std * gamma + beta
    if mode == "high_mem":
        return (inputs - mean) * (gamma / std) + beta
    raise ValueError(f"mode: expected 'low_mem' or 'high_mem', got {mode!r}")


class _Layout(NamedTuple):
    """How a batch of ``shape`` becomes one that a mode of ``numbadnn`` normalises over these axes, and back.

    Where no mode does, it is a matrix (averaged, kept), its axes in that order. ``squeezed``: parameters lack the axes.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    squeezed: bool

    @property
    def named(self) -> NormMode | None:
        """The mode that averages over just these axes, if there is one."""
        rank = len(self.shape)
        modes: dict[tuple[int, ...], NormMode] = {(0,): "per-activation", (0, *range(2, rank)): "spatial"}
        return modes.get(self.axes)

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(a for a in range(len(self.shape)) if a not in self.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.shape[a] for a in self.kept)

    @property
    def parameters(self) -> tuple[int, ...]:
        """The shape of parameters that have every axis."""
        return tuple(1 if a in self.axes else n for a, n in enumerate(self.shape))

    def batch(self, x: Any) -> Any:
        if self.named:
            return x
        averaged = math.prod(self.shape[a] for a in self.axes)
        return transposed(x, (*self.axes, *self.kept)).reshape(averaged, math.prod(self.sizes))

    def back(self, batch: Any) -> Any:
        if self.named:
            return batch
        order = (*self.axes, *self.kept)
        moved = batch.reshape(tuple(self.shape[a] for a in order))
        return transposed(moved, tuple(order.index(a) for a in range(len(order))))

    def parameter(self, name: str, array: Any) -> Any:
        """A parameter as the batch needs it; ValueError for a shape that does not broadcast."""
        xp, given = namespace(array, name), tuple(array.shape)
        wanted = self.sizes if self.squeezed else self.parameters
        if len(given) != len(wanted) or any(g not in (1, w) for g, w in zip(given, wanted, strict=True)):
            raise ValueError(f"{name}: expected shape {wanted}, or 1 where it is the same for an axis, got {given}")
        shape = given if self.squeezed else tuple(given[a] for a in self.kept)
        full = xp.broadcast_to(array.reshape(shape), self.sizes)
        return full.reshape(self.parameters if self.named else (1, math.prod(self.sizes)))

    def statistic(self, found: Any) -> Any:
        return found.reshape(self.sizes if self.squeezed else self.parameters)


def _axes(axes: Any, rank: int) -> tuple[int, ...]:
    if isinstance(axes, str) and axes in ("per-activation", "spatial"):
        return (0,) if axes == "per-activation" else (0, *range(2, rank))
    axes = frozen(axes)
    if not isinstance(axes, tuple):
        raise ValueError(f"axes: expected 'per-activation', 'spatial' or a tuple of axes, got {axes!r}")
    numbers = tuple(whole(a) for a in axes)
    if not numbers or len(set(numbers)) < len(numbers) or not all(0 <= a < rank for a in numbers):
        raise ValueError(f"axes: expected one or more different axes from 0 to {rank - 1}, got {axes!r}")
    return tuple(sorted(numbers))


def _layout(inputs: Any, axes: Any, gamma: Any) -> _Layout:
    namespace(inputs, "inputs")
    namespace(gamma, "gamma")
    shape = tuple(inputs.shape)
    layout = _Layout(shape, _axes(axes, len(shape)), len(gamma.shape) < len(shape))
    if len(gamma.shape) not in (len(shape), len(layout.kept)):
        raise ValueError(
            f"gamma: expected {len(shape)} dimensions, as inputs has, or {len(layout.kept)}, those that are not averaged, got "
            f"{len(gamma.shape)}"
        )
    return layout


def batch_normalization_train(
    inputs: Any,
    gamma: Any,
    beta: Any,
    axes: Any = "per-activation",
    epsilon: float = 1e-4,
    running_average_factor: float = 0.1,
    running_mean: Any = None,
    running_var: Any = None,
) -> tuple[Any, ...]:
    """``numbadnn.batch_normalization_train`` over any axes: (out, mean, invstd[, new_running_mean, new_running_var]).

    ``axes``: 'per-activation', (0,); 'spatial', all but 1; or a tuple. gamma, beta and the running averages have the rank of
    inputs, with 1 on the axes averaged over, or lack those axes; with 1 elsewhere they hold for the whole of an axis. The
    statistics have as many dimensions as gamma. ValueError for an epsilon below 1e-5. Axes other than the two by name copy
    inputs into their order.

    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0], [3.0, 6.0]])
    >>> out, mean, invstd = batch_normalization_train(x, np.ones(2), np.zeros(2), axes=(1,))
    >>> mean
    array([1.5, 4.5])
    """
    check_epsilon(epsilon)
    layout = _layout(inputs, axes, gamma)
    given = {"gamma": gamma, "beta": beta, "running_mean": running_mean, "running_var": running_var}
    parameters = {name: layout.parameter(name, p) for name, p in given.items() if p is not None}
    out, *statistics = numbadnn.batch_normalization_train(
        layout.batch(inputs),
        **parameters,
        mode=layout.named or "per-activation",
        epsilon=epsilon,
        running_average_factor=running_average_factor,
    )
    return (layout.back(out), *map(layout.statistic, statistics))


def batch_normalization_test(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    var: Any,
    axes: Any = "per-activation",
    epsilon: float = 1e-4,
) -> Any:
    """``numbadnn.batch_normalization_test`` over any axes, given as in ``batch_normalization_train``.

    >>> import numpy as np
    >>> one = np.ones(1)
    >>> batch_normalization_test(np.array([[1.0, 5.0]]), one, one, one, 4 * one, axes=(1,), epsilon=1e-5).round(3)
    array([[1., 3.]])
    """
    check_epsilon(epsilon)
    layout = _layout(inputs, axes, gamma)
    given = {"gamma": gamma, "beta": beta, "mean": mean, "var": var}
    parameters = {name: layout.parameter(name, p) for name, p in given.items()}
    return layout.back(
        numbadnn.batch_normalization_test(
            layout.batch(inputs), **parameters, mode=layout.named or "per-activation", epsilon=epsilon
        )
    )
