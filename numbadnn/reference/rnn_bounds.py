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
    """The steps' arithmetic with the largest local error added to everything, its sign random.

    All samples are taken in one pass: they lie side by side in the batch, sample by sample.
    """

    def __init__(self, rounding: _Rounding, samples: int) -> None:
        self.r, self.samples, self.rng = rounding, samples, np.random.default_rng(0)

    def noise(self, size: Any) -> Any:
        return size * (2.0 * self.rng.integers(0, 2, np.shape(size), np.int8) - 1.0)

    def _apart(self, a: list[Any]) -> Float64:
        """(sample, time and batch, last axis) of a value over time."""
        width = a[0].shape[-1]
        rows = np.stack(a).reshape(len(a), self.samples, -1, width).swapaxes(0, 1)
        return rows.reshape(self.samples, -1, width)

    def _size(self, terms: list[tuple[Any, Any]], biases: Any) -> tuple[int, Any]:
        k, size = len(biases), sum(np.abs(b) for b in biases)
        for a, m in terms:
            k += 1 if m is None else m.shape[1]
            size = size + (np.abs(a) if m is None else np.abs(a) @ np.abs(m).T)
        return k, size

    def affine(self, terms: list[tuple[Any, Any]], *biases: Float64) -> Any:
        k, size = self._size(terms, biases)
        found = super().affine(terms, *biases) + self.noise(self.r.gamma(k) * size)
        return found + sum(map(self._kept, terms)) if self.r.products else found

    def _kept(self, term: tuple[Any, Any]) -> Any:
        """What W a is off by once it is kept; a that is added as it is was kept before."""
        a, m = term
        if m is None:
            return 0.0
        size = np.abs(a @ m.T)
        return self.noise(self.r.products * size + np.where(size == 0, 0.0, self.r.tiny))

    def sum(self, *parts: Any) -> Any:
        return super().sum(*parts) + self.noise(2 * len(parts) * self.r.unit * sum(np.abs(p) for p in parts))

    def sigmoid(self, a: Any) -> Any:
        return super().sigmoid(a) + self.noise(np.full(a.shape, FUNCTION * self.r.unit))

    def tanh(self, a: Any) -> Any:
        return super().tanh(a) + self.noise(np.full(a.shape, FUNCTION * self.r.unit))

    def relu(self, terms: list[tuple[Any, Any]], *biases: Float64) -> tuple[Any, Any]:
        """Where a sum is as small as its error, which side of 0 it falls on is left to chance."""
        k, size = self._size(terms, biases)
        h, slope = super().relu(terms, *biases)
        near = np.abs(Exact.affine(self, terms, *biases)) <= 4 * (self.r.gamma(k) + self.r.store) * size
        return h, np.where(near & (h == h), self.rng.integers(0, 2, slope.shape), slope)

    def stored(self, a: Any) -> Any:
        return a + self.noise((self.r.store + 4 * self.r.unit) * np.abs(a) + np.where(a == 0, 0.0, self.r.tiny))

    def outer(self, a: list[Any], b: list[Any]) -> Any:
        left, right = self._apart(a).swapaxes(1, 2), self._apart(b)
        return left @ right + self.noise(self.r.gamma(left.shape[2]) * (np.abs(left) @ np.abs(right)))

    def total(self, a: list[Any]) -> Any:
        rows = self._apart(a)
        return rows.sum(axis=1) + self.noise(self.r.gamma(rows.shape[1]) * np.abs(rows).sum(axis=1))


def _deviation(exact: Float64, samples: Float64) -> Float64:
    """``samples`` has one axis more, the first."""
    variance = np.mean((samples - exact) ** 2, axis=0)
    return DEVIATIONS * np.sqrt(np.maximum(variance, variance.mean(axis=-1, keepdims=True)))


def _side_by_side(arrays: tuple[Any, ...], lengths: Any, samples: int) -> tuple[tuple[Any, ...], Any]:
    """w as it is, everything else with as many copies of the batch as there are samples."""
    w, *rest = arrays
    copies = [None if a is None else np.tile(np.asarray(a), (1, samples, 1)) for a in rest]
    return (w, *copies), None if lengths is None else np.tile(lengths, samples)


def _apart(a: Float64, samples: int) -> Float64:
    """(sample, ..) of a result whose second axis is the batch."""
    return np.moveaxis(a.reshape(a.shape[0], samples, -1, a.shape[2]), 1, 0)


def rnn_forward_bound(
    *arrays: Any, rounding: dict[str, Any], lengths: Any = None, **network: Any
) -> tuple[Float64, ...]:
    """The largest ``|computed - exact|`` of each result of ``rnn_forward``, as derived above.

    ``rounding`` holds the fields of ``_Rounding``; the bounds include the rounding of y, hy, cy to what they are kept
    in.
    """
    exact = outputs(Exact(), _network(**network), lengths, *arrays)
    samples = _samples(**network)
    many, ends = _side_by_side(arrays, lengths, samples)
    noisy = outputs(_Noisy(_Rounding(**rounding), samples), _network(**network), ends, *many)
    return tuple(_deviation(e, _apart(n, samples)) for e, n in zip(exact, noisy, strict=True))


def rnn_backward_bound(
    *arrays: Any, given: Any, rounding: dict[str, Any], lengths: Any = None, **network: Any
) -> tuple[Float64, ...]:
    """The same for ``rnn_backward``; the last axis of dw is that of each matrix and bias vector in it."""
    exact_dw, *exact = gradients(Exact(), _network(**network), lengths, given, *arrays)
    samples = _samples(**network)
    many, ends = _side_by_side(arrays, lengths, samples)
    noisy_dw, *noisy = gradients(_Noisy(_Rounding(**rounding), samples), _network(**network), ends, given, *many)
    dw = [_deviation(e, n).ravel() for e, n in zip(exact_dw, noisy_dw, strict=True)]
    rest = [_deviation(e, _apart(n, samples)) for e, n in zip(exact, noisy, strict=True)]
    return (np.concatenate(dw), *rest)


def _network(
    hidden_size: int, num_layers: int, rnn_mode: str, input_mode: str = "linear", direction_mode: str = "unidirectional"
) -> tuple[Any, ...]:
    return hidden_size, num_layers, rnn_mode, input_mode, direction_mode


def _samples(hidden_size: int, **network: Any) -> int:
    """Runs that give enough of an element and its neighbours."""
    return max(SAMPLES, -(-ENOUGH // hidden_size))
