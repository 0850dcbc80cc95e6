"""Batch normalization and its gradients from the definition, in float64: the oracle, with bounds for what it judges.

With mean and var (biased) over axis 0 (``spatial``: and all axes from 2 on), m values each, kept as axes of size 1

    train        out = (x - mean) * invstd * gamma + beta,   invstd = 1 / sqrt(var + epsilon)
                 running: old * (1 - f) + mean * f  and  old * (1 - f) + m / (m - 1) * var * f
    test         out = (x - mean) / sqrt(var + epsilon) * gamma + beta
    train_grad   dx = gamma * (c - mean(c)),   c = dy * invstd - (x - mean) * mean(dy * (x - mean)) * invstd**3
                 dgamma = sum(dy * (x - mean)) * invstd,   dbeta = sum(dy)
    test_grad    with s = sqrt(var + epsilon): dx = dy * gamma / s,  dgamma = sum(dy * (x - mean)) / s,  dbeta = sum(dy),
                 dmean = -dbeta * gamma / s,  dvar = -sum(dy * (x - mean)) * gamma / (2 * (var + epsilon) * s)

The mean and invstd that train_grad gets are used as they are, right or not: c need not have a mean of 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
#: of so many terms, the most roundings that one passes through
Depth = Callable[[float], float]


def _float64(name: str, value: Any) -> Float64:
    array = np.asarray(value)
    if array.dtype.kind in "bcOSUmM":
        raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}")
    return array.astype(np.float64)


def _axes(mode: str, x: Float64, **parameters: Float64) -> tuple[int, ...]:
    """The axes averaged over; ValueError where a parameter's shape does not follow from it."""
    if mode not in ("per-activation", "spatial"):
        raise ValueError(f"mode: expected per-activation or spatial, got {mode!r}")
    if x.ndim < 1:
        raise ValueError("inputs: expected at least 1 axis, got a scalar")
    axes = (0,) if mode == "per-activation" else (0, *range(2, x.ndim))
    shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    for name, parameter in parameters.items():
        if parameter.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {parameter.shape}")
    return axes


def _count(x: Float64, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[a] for a in axes)


def _moments(x: Float64, axes: tuple[int, ...]) -> tuple[Float64, Float64]:
    """Mean and biased variance, by two passes; the mean relative to one element, which loses nothing to a large one."""
    if _count(x, axes) == 0:
        shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
        return np.full(shape, np.nan), np.full(shape, np.nan)
    first = x[tuple(slice(0, 1) if a in axes else slice(None) for a in range(x.ndim))]
    with np.errstate(invalid="ignore"):
        rest = (x - first).mean(axis=axes, keepdims=True)
        mean, var = first + rest, np.square((x - first) - rest).mean(axis=axes, keepdims=True)
        return np.where(np.isnan(mean), x.mean(axis=axes, keepdims=True), mean), var  # infinite where the first is


def batch_normalization_train(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mode: str = "per-activation",
    epsilon: float = 1e-4,
    running_average_factor: float = 0.1,
    running_mean: Any = None,
    running_var: Any = None,
) -> tuple[Float64, ...]:
    """(out, mean, invstd), with running averages given also the new ones, in float64. The formulas open this module.

    ValueError for an unknown mode, wrong shapes, epsilon < 0, or running averages of one value.

    >>> out, mean, invstd = batch_normalization_train([[1.0], [3.0]], [[1.0]], [[0.0]], epsilon=0)
    >>> out.ravel(), mean.item(), invstd.item()
    (array([-1.,  1.]), 2.0, 1.0)
    """
    x, gamma, beta = (_float64(n, v) for n, v in (("inputs", inputs), ("gamma", gamma), ("beta", beta)))
    axes = _axes(mode, x, gamma=gamma, beta=beta)
    if epsilon < 0:
        raise ValueError(f"epsilon: expected a number >= 0, got {epsilon!r}")
    mean, var = _moments(x, axes)
    with np.errstate(divide="ignore", invalid="ignore"):  # a constant channel without epsilon
        invstd = 1 / np.sqrt(var + epsilon)
        out = (x - mean) * invstd * gamma + beta
    if running_mean is None:
        return out, mean, invstd
    old_mean, old_var = _float64("running_mean", running_mean), _float64("running_var", running_var)
    _axes(mode, x, running_mean=old_mean, running_var=old_var)
    m, f = _count(x, axes), running_average_factor
    if m < 2:
        raise ValueError(f"running_var: expected at least 2 values to average, got {m}")
    return out, mean, invstd, old_mean * (1 - f) + mean * f, old_var * (1 - f) + m / (m - 1) * var * f


def batch_normalization_test(
    inputs: Any, gamma: Any, beta: Any, mean: Any, var: Any, mode: str = "per-activation", epsilon: float = 1e-4
) -> Float64:
    """The normalised inputs with given statistics, in float64. The formulas open this module.

    >>> batch_normalization_test([1.0, 5.0], [1.0], [1.0], [1.0], [4.0], epsilon=0)
    array([1., 3.])
    """
    x, gamma, beta, mean, var = (_float64("inputs", v) for v in (inputs, gamma, beta, mean, var))
    _axes(mode, x, gamma=gamma, beta=beta, mean=mean, var=var)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (x - mean) / np.sqrt(var + epsilon) * gamma + beta


def _gradient_operands(
    inputs: Any, dy: Any, gamma: Any, mean: Any, spread: Any, mode: str
) -> tuple[Float64, Float64, Float64, Float64, tuple[int, ...]]:
    """(x - mean, dy, gamma, spread, axes); ``spread`` is invstd or var."""
    x, dy, gamma, mean, spread = (_float64("inputs", v) for v in (inputs, dy, gamma, mean, spread))
    if dy.shape != x.shape:
        raise ValueError(f"dy: expected the shape of the inputs, {x.shape}, got {dy.shape}")
    axes = _axes(mode, x, gamma=gamma, mean=mean, spread=spread)
    return x - mean, dy, gamma, spread, axes


def batch_normalization_train_grad(
    inputs: Any, dy: Any, gamma: Any, mean: Any, invstd: Any, mode: str = "per-activation", epsilon: float = 1e-4
) -> tuple[Float64, Float64, Float64]:
    """(dinputs, dgamma, dbeta) in float64; ``epsilon`` is in invstd. The formulas open this module.

    >>> batch_normalization_train_grad([1.0, 3.0], [1.0, 0.0], [1.0], [2.0], [1.0])[0]
    array([0., 0.])
    """
    d, dy, gamma, invstd, axes = _gradient_operands(inputs, dy, gamma, mean, invstd, mode)
    product = (dy * d).sum(axis=axes, keepdims=True)
    n = max(_count(dy, axes), 1)
    c = dy * invstd - d * (product / n) * invstd**3
    return gamma * (c - c.sum(axis=axes, keepdims=True) / n), product * invstd, dy.sum(axis=axes, keepdims=True)


def batch_normalization_test_grad(
    inputs: Any, dy: Any, gamma: Any, mean: Any, var: Any, mode: str = "per-activation", epsilon: float = 1e-4
) -> tuple[Float64, Float64, Float64, Float64, Float64]:
    """(dinputs, dgamma, dbeta, dmean, dvar) in float64. The formulas open this module.

    >>> batch_normalization_test_grad([1.0, 3.0], [1.0, 1.0], [1.0], [1.0], [1.0], epsilon=0)[4]
    array([-1.])
    """
    d, dy, gamma, var, axes = _gradient_operands(inputs, dy, gamma, mean, var, mode)
    product, total = (v.sum(axis=axes, keepdims=True) for v in (dy * d, dy))
    s = np.sqrt(var + epsilon)
    return dy * gamma / s, product / s, total, -total * gamma / s, -product * gamma / (2 * (var + epsilon) * s)


# ---- bounds ----------------------------------------------------------------------------------------------------------
# Standard error analysis to first order, products of small errors kept where they may matter. u is the unit of the
# accumulator, gamma(k) = k*u / (1 - k*u). Sums are taken in blocks, by threads or by lanes, so that no chain of additions is
# longer than k = min(m, 64 + 4 sqrt m), or than the implementation declares (``depth(m)``): one that adds 10^6 numbers one after
# the other is not good enough.
#
# Means are sums, or Chan's updates mean += (other - mean) * share, whose five roundings are each at most 2u max|x| * share
# or u max|x|: gamma(6k) * X either way, X = max|x| of the channel. The variance comes from two passes around a mean that is off
# by e (V + e^2), or from Chan's M2 += d^2 * w, w <= half the smaller count: with d off by 2e and sum w <= m log2 m / 2 (a
# balanced tree; a chain has less), Cauchy and Schwarz give an error of 2e sqrt(V L) + e^2 L, L = 1 + log2 m, which covers the
# former. Squares, sums and the division add gamma(2k + 8) * V. E[x^2] - E[x]^2 would add u X^2, and is caught by that.


def chain(m: float) -> float:
    """The longest chain of additions in a sum of m terms, whatever an implementation declares."""
    return min(float(m), 64 + 4 * math.sqrt(m))


def _gamma(k: float, unit: float) -> float:
    if k * unit >= 1:
        raise ValueError(f"unit: expected a sum length times unit below 1, got {k} * {unit}")
    return k * unit / (1 - k * unit)


def _inverse_root_error(var: Float64, e: Float64 | float, epsilon: float, unit: float) -> tuple[Float64, Float64]:
    """(largest error, largest value) of 1 / sqrt(var + epsilon) where var is off by e; sum, root and quotient round."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = 1 / np.sqrt(var + epsilon)
        most = 1 / np.sqrt(np.maximum(var - e, 0) + epsilon) * (1 + 3 * unit)
        return most - exact + 3 * unit * exact, most


def train_bound(
    inputs: Any,
    gamma: Any,
    beta: Any,
    running_mean: Any,
    running_var: Any,
    mode: str,
    epsilon: float,
    factor: float,
    unit: float,
    tiny: float,
    depth: Depth = chain,
) -> tuple[Float64, ...]:
    """The largest ``|computed - exact|`` of each result of ``batch_normalization_train`` before it is rounded to its dtype.

    out: |gamma| times the error of x - mean (the mean's and one rounding) times the largest invstd, plus |x - mean| times
    invstd's error, plus four roundings of |(x - mean) invstd gamma| + |beta|.
    """
    x, gamma, beta = (_float64("inputs", v) for v in (inputs, gamma, beta))
    axes = _axes(mode, x)
    m = _count(x, axes)
    mean, var = _moments(x, axes)
    k, levels = min(chain(m), depth(m)), 1 + math.log2(m)
    e_mean = _gamma(6 * k, unit) * np.abs(x).max(axis=axes, keepdims=True) + tiny
    e_var = _gamma(2 * k + 8, unit) * var + 2 * e_mean * np.sqrt(var * levels) + e_mean**2 * levels + tiny
    e_invstd, most = _inverse_root_error(var, e_var, epsilon, unit)
    d = np.abs(x - mean)
    e_d = e_mean + unit * (d + e_mean)
    with np.errstate(invalid="ignore"):  # no bound where invstd has none
        out = np.abs(gamma) * (e_d * most + d * e_invstd)
        out += _gamma(4, unit) * (np.abs(gamma) * (d + e_d) * most + np.abs(beta)) + tiny
    out = np.where(np.isnan(out), np.inf, out)
    if running_mean is None:
        return out, e_mean, e_invstd
    old_mean, old_var = (np.abs(_float64("running", v)) for v in (running_mean, running_var))
    unbiased = m / (m - 1)
    new_mean = factor * e_mean + _gamma(5, unit) * (old_mean + factor * (np.abs(mean) + e_mean)) + tiny
    new_var = factor * unbiased * e_var + _gamma(7, unit) * (old_var + factor * unbiased * (var + e_var)) + tiny
    return out, e_mean, e_invstd, new_mean, new_var


def inference_bound(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    var: Any,
    mode: str,
    epsilon: float,
    unit: float,
    tiny: float,
    depth: Depth = chain,
) -> tuple[Float64]:
    """As ``train_bound`` for given statistics: eight roundings of |(x - mean) / s * gamma| + |beta|."""
    x, gamma, beta, mean, var = (_float64("inputs", v) for v in (inputs, gamma, beta, mean, var))
    product = np.abs((x - mean) * gamma) / np.sqrt(var + epsilon)
    return (_gamma(8, unit) * (product + np.abs(beta)) + tiny,)


def _sum_errors(
    d: Float64, dy: Float64, axes: tuple[int, ...], unit: float, tiny: float, depth: Depth
) -> list[Float64]:
    """Errors of sum(dy), sum(dy * d) and sum(d), where d = x - mean is rounded once."""
    m = _count(dy, axes)
    k = min(chain(m), depth(m))
    sizes = (np.abs(v).sum(axis=axes, keepdims=True) for v in (dy, dy * d, d))
    return [_gamma(k + extra, unit) * size + tiny for extra, size in zip((0, 2, 1), sizes, strict=True)]


def train_grad_bound(
    inputs: Any,
    dy: Any,
    gamma: Any,
    mean: Any,
    invstd: Any,
    mode: str,
    unit: float,
    tiny: float,
    depth: Depth = chain,
    given_mean: bool = False,
) -> tuple[Float64, Float64, Float64]:
    """As ``train_bound`` for its gradient.

    With the sums S1 of dy, S2 of dy*d and S3 of d = x - mean, off by e1, e2 and e3, dx is gamma*i * (p - q*t) for p = dy - S1/m,
    q = d - S3/m, t = S2/m * i^2. The errors of these are e1/m, e3/m and e2/m * i^2, and twelve roundings of each term as it
    stands when all is multiplied out, which is how an implementation may compute it.

    With ``given_mean`` it holds for one that takes the mean for exact, so that S3 is 0 and q is d: q is then off by |S3|/m.
    """
    d, dy, gamma, i, axes = _gradient_operands(inputs, dy, gamma, mean, invstd, mode)
    m = _count(dy, axes)
    e1, e2, e3 = _sum_errors(d, dy, axes, unit, tiny, depth)
    s1, s2, s3 = (v.sum(axis=axes, keepdims=True) for v in (dy, dy * d, d))
    q, t, e_t = np.abs(d - s3 / m), np.abs(s2) / m * i * i, e2 / m * i * i
    terms = np.abs(dy) + np.abs(s1) / m + (np.abs(d) + np.abs(s3) / m) * (t + e_t)
    e_q = np.abs(s3) / m if given_mean else e3 / m
    dx = np.abs(gamma * i) * (e1 / m + e_q * (t + e_t) + q * e_t + _gamma(12, unit) * terms) + tiny
    return dx, np.abs(i) * e2 + _gamma(2, unit) * np.abs(s2 * i) + tiny, e1


def inference_grad_bound(
    inputs: Any,
    dy: Any,
    gamma: Any,
    mean: Any,
    var: Any,
    mode: str,
    epsilon: float,
    unit: float,
    tiny: float,
    depth: Depth = chain,
) -> tuple[Float64, Float64, Float64, Float64, Float64]:
    """As ``train_bound`` for the gradient of ``batch_normalization_test``: the sums' errors, and eight roundings."""
    d, dy, gamma, var, axes = _gradient_operands(inputs, dy, gamma, mean, var, mode)
    e1, e2, _ = _sum_errors(d, dy, axes, unit, tiny, depth)
    s, few = np.sqrt(var + epsilon), _gamma(8, unit)
    s1, s2 = (np.abs(v.sum(axis=axes, keepdims=True)) for v in (dy, dy * d))
    g, cube = np.abs(gamma), 2 * (var + epsilon) * s
    return (
        few * np.abs(dy * gamma) / s + tiny,
        e2 / s + few * s2 / s + tiny,
        e1,
        e1 * g / s + few * s1 * g / s + tiny,
        e2 * g / cube + few * s2 * g / cube + tiny,
    )
