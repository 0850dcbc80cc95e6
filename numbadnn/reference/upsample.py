"""Bilinear upsampling and its gradient from the closed form, in float64: the oracle, with the bound for what it judges.

Along an axis of n samples enlarged by p/q, output o lies at the coordinate

    t = min(max((o*q - (p - 1)//2) / p, 0), n - 1)

and is the linear interpolation of the two samples around it; a sample of weight 0 is not looked at, whatever it holds.
There are ceil(n*p/q) outputs. The gradient is the transposed map: what an output took of a sample, its gradient gives.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def _positive(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if number < 1:
        raise ValueError(f"{name}: expected a positive integer, got {value!r}")
    if number > 2**40:
        raise ValueError(f"{name}: expected an integer of at most 2**40, got {value!r}")
    return number


#: bfloat16 is a dtype of NumPy's where ml_dtypes is loaded
FLOATS = ("float16", "bfloat16", "float32", "float64")


def _kind(dtype: Any) -> Any:
    """One of the types of floating-point numbers, else TypeError."""
    try:
        kind = None if dtype is None else np.dtype(dtype)
    except TypeError:
        kind = None
    if kind is None or not kind.isnative or kind.name not in FLOATS:
        raise TypeError(f"dtype: expected one of {', '.join(FLOATS)}, got {dtype!r}")
    return kind


def bilinear_kernel_1D(ratio: Any, normalize: bool = True, *, dtype: str = "float32") -> NDArray[Any]:
    """The weights [1, 2 ... r, r - 1 ... 1] of linear interpolation by an integer ratio r, divided by r if ``normalize``.

    Shape (2*r - 1,), a NumPy array of ``dtype``. ValueError for a ratio below 1, TypeError for one that is no integer, and
    for a dtype that is none of floating-point numbers or a ``normalize`` that is no truth value.
    Source: docs/explanation/semantics.md#bilinear-upsampling.

    >>> bilinear_kernel_1D(2)
    array([0.5, 1. , 0.5], dtype=float32)
    """
    r, kind = _positive("ratio", ratio), _kind(dtype)
    if not isinstance(normalize, (bool, np.bool_, int)) or normalize not in (0, 1):
        raise TypeError(f"normalize: expected True or False, got {normalize!r}")
    weights = r - np.abs(np.arange(1 - r, r)).astype(np.float64)
    return (weights / r if normalize else weights).astype(kind)


def bilinear_kernel_2D(ratio: Any, normalize: bool = True, *, dtype: str = "float32") -> NDArray[Any]:
    """The outer product of two ``bilinear_kernel_1D``: of one ratio, or of a tuple (vertical, horizontal).

    Shape (2*r_v - 1, 2*r_h - 1), a NumPy array of ``dtype``. Errors as ``bilinear_kernel_1D``, and ValueError for a tuple
    of another length. Source: docs/explanation/semantics.md#bilinear-upsampling.

    >>> bilinear_kernel_2D(2, normalize=False)[1]
    array([2., 4., 2.], dtype=float32)
    """
    pair = ratio if isinstance(ratio, tuple) else (ratio, ratio)
    if len(pair) != 2:
        raise ValueError(f"ratio: expected an integer or (vertical, horizontal), got {ratio!r}")
    kind = _kind(dtype)
    rows, columns = (bilinear_kernel_1D(r, normalize, dtype="float64") for r in pair)
    return np.outer(rows, columns).astype(kind)


def _fractions(ratio: Any, frac_ratio: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """(p, q) of rows and of columns, reduced."""
    if (ratio is None) == (frac_ratio is None):
        raise ValueError("ratio: expected either ratio or frac_ratio")
    if frac_ratio is None:
        frac_ratio = (_positive("ratio", ratio), 1)
    pairs = frac_ratio if isinstance(frac_ratio[0], tuple) else (frac_ratio, frac_ratio)
    (a, b), (c, d) = ([_positive("frac_ratio", v) for v in pair] for pair in pairs)
    return (a // math.gcd(a, b), b // math.gcd(a, b)), (c // math.gcd(c, d), d // math.gcd(c, d))


def _taps(n: int, p: int, q: int) -> list[list[tuple[int, float]]]:
    """For each output the samples it is made of, with their weights (none of weight 0)."""
    taps = []
    for o in range(-(-n * p // q)):
        t = min(max(o * q - (p - 1) // 2, 0), (n - 1) * p)
        i, f = t // p, t % p
        taps.append([(i, (p - f) / p)] + ([(i + 1, f / p)] if f else []))
    return taps


def _expand(x: Float64, axis: int, pq: tuple[int, int]) -> Float64:
    x = np.moveaxis(x, axis, 0)
    y = [sum(w * x[i] for i, w in taps) for taps in _taps(x.shape[0], *pq)]
    return np.moveaxis(np.asarray(y, np.float64).reshape(len(y), *x.shape[1:]), 0, axis)


def _collect(y: Float64, axis: int, n: int, pq: tuple[int, int]) -> Float64:
    y = np.moveaxis(y, axis, 0)
    x = np.zeros((n, *y.shape[1:]))
    for o, taps in enumerate(_taps(n, *pq)):
        for i, w in taps:
            x[i] += w * y[o]
    return np.moveaxis(x, 0, axis)


def bilinear_upsampling(
    input: Any,
    ratio: Any = None,
    frac_ratio: Any = None,
    batch_size: Any = None,
    num_input_channels: Any = None,
    use_1D_kernel: bool = True,
) -> Float64:
    """Images (N, C, H, W) enlarged by an integer ``ratio`` or by ``frac_ratio``, (p, q) or one an axis, in float64.

    The formula opens this module; what follows ``frac_ratio`` never alters the result. ValueError for both ratios or none,
    or hints that contradict, TypeError for one that is no integer.
    Source: docs/explanation/semantics.md#bilinear-upsampling, checked there against Theano.

    >>> bilinear_upsampling([[[[1.0, 2.0]]]], ratio=2)[0, 0, 0]
    array([1. , 1.5, 2. , 2. ])
    """
    x = np.asarray(input, np.float64)
    hints = (("batch_size", batch_size), ("num_input_channels", num_input_channels))
    for (name, hint), size in zip(hints, x.shape, strict=False):
        if hint not in (None, size):
            raise ValueError(f"{name}: expected {size} or None, got {hint!r}")
    rows, columns = _fractions(ratio, frac_ratio)
    with np.errstate(invalid="ignore"):
        return np.ascontiguousarray(_expand(_expand(x, 2, rows), 3, columns))


def frac_bilinear_upsampling(input: Any, frac_ratio: Any) -> Float64:
    """``bilinear_upsampling`` by a fraction.

    >>> frac_bilinear_upsampling([[[[1.0, 2.0, 3.0]]]], ((1, 1), (3, 2))).shape
    (1, 1, 1, 5)
    """
    return bilinear_upsampling(input, frac_ratio=frac_ratio)


def bilinear_upsampling_grad(output_grad: Any, input_shape: Any, ratio: Any = None, frac_ratio: Any = None) -> Float64:
    """The gradient in the images (N, C, H, W) = ``input_shape`` from that in ``bilinear_upsampling``'s output, in float64.

    >>> bilinear_upsampling_grad([[[[1.0, 1.0, 1.0, 1.0]]]], (1, 1, 1, 2), frac_ratio=((1, 1), (2, 1)))[0, 0, 0]
    array([1.5, 2.5])
    """
    dy = np.asarray(output_grad, np.float64)
    rows, columns = _fractions(ratio, frac_ratio)
    with np.errstate(invalid="ignore"):
        part = _collect(dy, 3, input_shape[3], columns)
        return np.ascontiguousarray(_collect(part, 2, input_shape[2], rows))


# ---- bound -----------------------------------------------------------------------------------------------------------
# A weight is f/p, in the accumulator f * (1/p): off by 2u. Along one axis a result is a sum of L products: gamma_{d+3} of
# the sum of magnitudes, d = L in any order; along both axes the lengths add up. L is 2 forwards, else the most outputs of
# a sample.


def bilinear_upsampling_bound(
    operand: Any, unit: float, input_shape: Any = None, frac_ratio: Any = None, depth: Callable[[float], float] = float
) -> Float64:
    """The largest ``|computed - exact|`` of each element; with ``input_shape`` of the gradient, without it of the forward.

    ``operand`` is the input of either, ``unit`` the accumulator's unit roundoff, ``depth(L)`` the roundings that one of L
    terms passes through.
    """
    fractions = _fractions(None, frac_ratio)
    if input_shape is None:
        k, magnitude = 10.0, bilinear_upsampling(np.abs(np.asarray(operand, np.float64)), frac_ratio=frac_ratio)
    else:
        magnitude = bilinear_upsampling_grad(np.abs(np.asarray(operand, np.float64)), input_shape, None, frac_ratio)
        k = sum(3.0 + depth(_most(n, pq)) for n, pq in zip(input_shape[2:], fractions, strict=True))
    return k * unit / (1 - k * unit) * magnitude


def _most(n: int, pq: tuple[int, int]) -> int:
    """The most outputs that one sample takes part in."""
    counts = np.zeros(n, int)
    for taps in _taps(n, *pq):
        for i, _ in taps:
            counts[i] += 1
    return int(counts.max(initial=0))
