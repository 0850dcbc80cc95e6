"""How far rounding can carry the results of a recurrent network: the bounds of ``rnn``'s two operations.

Every sum of k products is off by at most d = gamma_k * sum |W||a|, a function by FUNCTION units of 1, a value that is
kept by its rounding: to first order the error of a result is sum_s c_s delta_s over all these, |delta_s| <= d_s, where
c_s is how the rest of the network carries error s on. Worst signs at every step would grow without limit, and nothing
real does: with signs independent of one another (Higham and Mary, 2019) Hoeffding's inequality gives

    P(|error| > DEVIATIONS * sigma) <= 2 exp(-DEVIATIONS^2 / 2),     sigma^2 = sum_s c_s^2 d_s^2,

3e-14 for 8. sigma is measured: ``samples`` runs of the very steps, in which each d_s is added with a random sign, deviate
from the exact run with just that variance. It is taken over the samples and, where that is larger, over the last axis
too; where that is short there are more samples, since the signs of two equal errors may cancel in all of a few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbadnn.reference.rnn import Exact, Float64, gradients, outputs

FUNCTION = 8.0
DEVIATIONS = 8.0
#: runs, and how many of an element and its neighbours there are at least
SAMPLES, ENOUGH = 6, 48


@dataclass(frozen=True)
class _Rounding:
    """``unit``: roundoff of sums, ``depth(k)``: the roundings that one of k terms passes through, each counted ``stretch``
    times; ``factor``: what a product is off by besides.

    ``store`` and ``tiny``: roundoff and smallest subnormal of what states, gates and their gradients are kept in;
    ``products``: roundoff of what each W a is kept in before it is added to others, 0 where it stays in the accumulator.
    """

    unit: float
    store: float = 0.0
    tiny: float = 0.0
    factor: float = 0.0
    stretch: float = 1.0
    products: float = 0.0
    depth: Callable[[float], float] = float

    def gamma(self, k: int) -> float:
        ku = self.stretch * self.depth(k) * self.unit
        if ku >= 1:
            raise ValueError(f"unit: expected sums shorter than {1 / self.unit:g}, got {k} terms")
        return ku / (1 - ku) + self.factor


class _Noisy(Exact):
    """The steps' arithmetic, and beside it the same with the largest local error added to everything, its sign random.

    All is one pass: the exact run and the samples lie one after the other in the batch, ``images`` rows each. How large
    an error is follows from the exact run, to first order the same for every sample.
    """

    def __init__(self, rounding: _Rounding, samples: int, images: int) -> None:
        self.r, self.samples, self.images, self.rng = rounding, samples, images, np.random.default_rng(0)
        self._magnitudes: dict[Any, Float64] = {}

    def off(self, a: Any, size: Any) -> Any:
        """Fresh values ``a`` with an error of ``size``, which is the exact run's, in each sample."""
        signs = self.rng.integers(0, 2, (self.samples, *size.shape), np.int8)
        signs += signs
        signs -= 1
        runs = np.ascontiguousarray(a).reshape(1 + self.samples, *size.shape)
        runs[1:] += size * signs
        return runs.reshape(a.shape)

    def _exact(self, a: Any) -> Any:
        return a[: self.images]

    def _magnitude(self, m: Float64) -> Float64:
        """|m| of a matrix that all steps multiply with; it is looked up by where it lies."""
        key = m.ctypes.data, m.shape, m.strides
        if key not in self._magnitudes:
            self._magnitudes[key] = np.abs(m)
        return self._magnitudes[key]

    def _apart(self, a: list[Any]) -> Float64:
        """(exact run and samples, time and batch, last axis) of a value over time."""
        runs, width = 1 + self.samples, a[0].shape[-1]
        rows = np.empty((runs, len(a), self.images, width))
        for t, value in enumerate(a):
            rows[:, t] = value.reshape(runs, self.images, width)
        return rows.reshape(runs, -1, width)

    def _size(self, terms: list[tuple[Any, Any]], biases: Any) -> tuple[int, Any]:
        k, size = len(biases), sum(np.abs(b) for b in biases)
        for a, m in terms:
            k += 1 if m is None else m.shape[1]
            a = np.abs(self._exact(a))
            size = size + (a if m is None else a @ self._magnitude(m).T)
        return k, size

    def affine(self, terms: list[tuple[Any, Any]], *biases: Float64) -> Any:
        k, size = self._size(terms, biases)
        found = self.off(super().affine(terms, *biases), self.r.gamma(k) * size)
        for a, m in terms if self.r.products else ():
            if m is not None:  # W a is kept; a that is added as it is was kept before
                kept = np.abs(self._exact(a) @ m.T)
                found = self.off(found, self.r.products * kept + np.where(kept == 0, 0.0, self.r.tiny))
        return found

    def sum(self, *parts: Any) -> Any:
        size = sum(np.abs(self._exact(p)) for p in parts)
        return self.off(super().sum(*parts), 2 * len(parts) * self.r.unit * size)

    def sigmoid(self, a: Any) -> Any:
        return self.off(super().sigmoid(a), np.full(self._exact(a).shape, FUNCTION * self.r.unit))

    def tanh(self, a: Any) -> Any:
        return self.off(super().tanh(a), np.full(self._exact(a).shape, FUNCTION * self.r.unit))

    def relu(self, terms: list[tuple[Any, Any]], *biases: Float64) -> tuple[Any, Any]:
        """Where a sum is as small as its error, which side of 0 it falls on is left to chance, but not to that of all samples."""
        k, size = self._size(terms, biases)
        h, slope = super().relu(terms, *biases)
        error = 4 * (self.r.gamma(k) + self.r.store) * size
        near = np.abs(Exact.affine(self, terms, *biases)) <= np.tile(error, (1 + self.samples, 1))
        near[: self.images] = False
        found = np.where(near & (h == h), self.rng.integers(0, 2, slope.shape), slope)
        runs, close = (v.reshape(1 + self.samples, self.images, -1) for v in (found, near))
        blind = (runs == runs[0]).all(
            axis=0
        )  # one of 64 where six samples are drawn: none would show what the other side gives
        runs[1::2] = np.where(blind & close[1::2], 1 - runs[0], runs[1::2])
        return h, found

    def stored(self, a: Any) -> Any:
        kept = self._exact(a)
        return self.off(
            a.copy(), (self.r.store + 4 * self.r.unit) * np.abs(kept) + np.where(kept == 0, 0.0, self.r.tiny)
        )

    def outer(self, gates: list[list[Any]], b: list[Any]) -> list[Any]:
        found, right = [], self._apart(b)
        for a in gates:
            left = self._apart(a).swapaxes(1, 2)
            size = np.abs(left[0]) @ np.abs(right[0])
            found.append(self.off(left @ right, self.r.gamma(left.shape[2]) * size))
        return found

    def total(self, a: list[Any]) -> Any:
        rows = self._apart(a)
        return self.off(rows.sum(axis=1), self.r.gamma(rows.shape[1]) * np.abs(rows[0]).sum(axis=0))


def _deviation(runs: Float64) -> Float64:
    """``runs``: the exact one, and the samples."""
    variance = np.mean((runs[1:] - runs[0]) ** 2, axis=0)
    return DEVIATIONS * np.sqrt(np.maximum(variance, variance.mean(axis=-1, keepdims=True)))


def _side_by_side(arrays: tuple[Any, ...], lengths: Any, runs: int) -> tuple[tuple[Any, ...], Any]:
    """w as it is, everything else with as many copies of the batch as there are runs."""
    w, *rest = arrays
    copies = [None if a is None else np.tile(np.asarray(a), (1, runs, 1)) for a in rest]
    return (w, *copies), None if lengths is None else np.tile(lengths, runs)


def _apart(a: Float64, runs: int) -> Float64:
    """(run, ..) of a result whose second axis is the batch."""
    return np.moveaxis(a.reshape(a.shape[0], runs, -1, a.shape[2]), 1, 0)


def rnn_forward_bound(
    *arrays: Any, rounding: dict[str, Any], lengths: Any = None, **network: Any
) -> tuple[Float64, ...]:
    """The largest ``|computed - exact|`` of each result of ``rnn_forward``, as derived above.

    ``rounding`` holds the fields of ``_Rounding``; the bounds include the rounding of y, hy, cy to what they are kept
    in.
    """
    samples, images = _samples(**network), np.shape(arrays[1])[1]
    many, ends = _side_by_side(arrays, lengths, 1 + samples)
    found = outputs(_Noisy(_Rounding(**rounding), samples, images), _network(**network), ends, *many)
    return tuple(_deviation(_apart(a, 1 + samples)) for a in found)


def rnn_backward_bound(
    *arrays: Any, given: Any, rounding: dict[str, Any], lengths: Any = None, **network: Any
) -> tuple[Float64, ...]:
    """The same for ``rnn_backward``; the last axis of dw is that of each matrix and bias vector in it."""
    samples, images = _samples(**network), np.shape(arrays[1])[1]
    many, ends = _side_by_side(arrays, lengths, 1 + samples)
    dw, *rest = gradients(_Noisy(_Rounding(**rounding), samples, images), _network(**network), ends, given, *many)
    return (np.concatenate([_deviation(d).ravel() for d in dw]), *(_deviation(_apart(a, 1 + samples)) for a in rest))


def _network(
    hidden_size: int, num_layers: int, rnn_mode: str, input_mode: str = "linear", direction_mode: str = "unidirectional"
) -> tuple[Any, ...]:
    return hidden_size, num_layers, rnn_mode, input_mode, direction_mode


def _samples(hidden_size: int, **network: Any) -> int:
    """Runs that give enough of an element and its neighbours."""
    return max(SAMPLES, -(-ENOUGH // hidden_size))
