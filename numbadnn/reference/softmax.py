"""Softmax, log-softmax and their gradients from the definition, in float64: the oracle, with bounds for what it judges.

Over the cells of one row (``channel``: axis 1 at every other index; ``instance``: all axes but the first)

    fast, accurate   y = exp(x - max) / sum exp(x - max)
    log              y = x - max - log(sum exp(x - max))

and, with ``sm`` the forward *output*,

    fast, accurate   dx = sm * (dy - sum(dy * sm))
    log              dx = dy - exp(sm) * sum(dy)

``fast`` differs from ``accurate`` in what an implementation may do, not in its value. A row that holds NaN or +inf is
all NaN, and so is a row of nothing but -inf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

ALGOS = ("fast", "accurate", "log")


def _float64(name: str, value: Any, least: int = 2) -> Float64:
    """A float64 copy of a real array of at least ``least`` axes."""
    array = np.asarray(value)
    if array.dtype.kind in "bcOSUmM":
        raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}")
    if array.ndim < least:
        raise ValueError(f"{name}: expected at least {least} axes, got shape {array.shape}")
    return array.astype(np.float64)


def _axes(algo: str, mode: str, rank: int, axis: int | None = None) -> tuple[int, ...]:
    """The axes one row spans; ``axis`` beside mode channel is that one."""
    if algo not in ALGOS:
        raise ValueError(f"algo: expected one of {', '.join(ALGOS)}, got {algo!r}")
    if mode not in ("channel", "instance"):
        raise ValueError(f"mode: expected channel or instance, got {mode!r}")
    if axis is not None:
        if mode != "channel" or not -rank <= axis < rank:
            raise ValueError(f"axis: expected one of {rank} axes and mode channel, got {axis} and {mode}")
        return (axis,)
    return (1,) if mode == "channel" else tuple(range(1, rank))


def _pair(dy: Any, sm: Any, least: int = 2) -> tuple[Float64, Float64]:
    grad, out = _float64("dy", dy, least), _float64("sm", sm, least)
    if grad.shape != out.shape:
        raise ValueError(f"dy: expected the shape of sm, {out.shape}, got {grad.shape}")
    return grad, out


def softmax(x: Any, algo: str = "accurate", mode: str = "channel", axis: int | None = None) -> Float64:
    """Softmax (``log``: its logarithm) of ``x`` (N, C, ...) over axis 1 (``instance``: all axes but 0), or ``axis``.

    The formulas open this module. ValueError for fewer than two axes or an unknown algo or mode, TypeError for arrays
    that are not real. A shape with a zero gives that shape. Source: the definition; cuDNN for the names of the modes.

    >>> softmax([[0.0, 0.0, 0.0, 0.0]])
    array([[0.25, 0.25, 0.25, 0.25]])
    """
    x = _float64("x", x, 2 if axis is None else 1)
    axes = _axes(algo, mode, x.ndim, axis)
    if x.size == 0:
        return x
    with np.errstate(invalid="ignore", divide="ignore"):  # inf - inf is the NaN the definition asks for
        shifted = x - x.max(axis=axes, keepdims=True)
        powers = np.exp(shifted)
        total = powers.sum(axis=axes, keepdims=True)
        return shifted - np.log(total) if algo == "log" else powers / total


def softmax_grad(dy: Any, sm: Any, algo: str = "accurate", mode: str = "channel", axis: int | None = None) -> Float64:
    """The gradient in softmax's input from the gradient ``dy`` in its output and the output ``sm``, in float64.

    Both of one shape (N, C, ...); for ``log``, ``sm`` is the log-softmax. The formulas open this module; errors as in
    ``softmax``.

    >>> softmax_grad([[1.0, 0.0]], [[0.5, 0.5]])
    array([[ 0.25, -0.25]])
    """
    dy, sm = _pair(dy, sm, 2 if axis is None else 1)
    axes = _axes(algo, mode, sm.ndim, axis)
    with np.errstate(invalid="ignore"):
        if algo == "log":
            return dy - np.exp(sm) * dy.sum(axis=axes, keepdims=True)
        return sm * (dy - (dy * sm).sum(axis=axes, keepdims=True))


# ---- bounds ----------------------------------------------------------------------------------------------------------
# Standard error analysis to first order: every addition, product and quotient is off by a factor within 1 +- u, exp and
# log by EXP_UNITS*u of their value, and an argument off by a shifts exp by the factor 1 + a. EXP_UNITS covers 4 ulp,
# more than the exp of any library in use; a device's exp through exp2 rounds x*log2(e) too, hence the 2 at |x|.

EXP_UNITS = 8.0


def _length(x: Float64, axes: tuple[int, ...]) -> int:
    return int(np.prod([x.shape[a] for a in axes]))


def _gamma(k: float, unit: float) -> float:
    if k * unit >= 1:
        raise ValueError(f"unit: expected a row length times unit below 1, got {k} * {unit}")
    return k * unit / (1 - k * unit)


def softmax_bound(
    x: Any,
    algo: str,
    mode: str,
    unit: float,
    out_unit: float,
    tiny: float = 0.0,
    depth: Callable[[float], float] = float,
) -> Float64:
    """The largest ``|computed - exact|`` of each element of ``softmax`` on exact inputs ``x``.

    ``depth(n)``: the roundings that one of n terms of a sum passes through; n in any order of summation.

    ``unit`` and ``out_unit`` are unit roundoffs (2^-24 for float32) of the accumulator and of the output; ``tiny`` is
    the smallest normal number of the coarser of the two, for results that underflow. With d = x - max (for ``fast``,
    which may not subtract, the larger of ``|d|`` and ``|x|``), p = softmax(x), n the depth of a row's sum, the numerator is off
    by the factor ``a_i = 2|d_i|u + 8u``, the sum by gamma_n + sum p_j a_j =: b, so y by (a_i + b + 2u) * y, and the logarithm
    by ``u*(|d_i| + |y_i| + 8*max(1, |log sum|)) + b``.
    """
    x = _float64("x", x)
    axes = _axes(algo, mode, x.ndim)
    if x.size == 0:
        return x
    n, p = depth(_length(x, axes)), softmax(x, "accurate", mode)
    with np.errstate(invalid="ignore"):
        d = np.abs(x - x.max(axis=axes, keepdims=True))
    if algo == "fast":
        d = np.maximum(d, np.abs(x))
    # a cell of -inf has p = 0 exactly: it adds nothing to the sum and is itself exact
    d = np.where(np.isneginf(x), 0.0, d)
    a = (2 * d + EXP_UNITS) * unit
    b = _gamma(n, unit) + (p * a).sum(axis=axes, keepdims=True)
    if algo == "log":
        y = softmax(x, "log", mode)
        y = np.where(np.isneginf(y), 0.0, y)
        log_total = np.abs(y) + d  # |log sum| <= |y| + |d|
        return unit * (d + np.abs(y) + EXP_UNITS * np.maximum(1, log_total)) + b + out_unit * np.abs(y) + tiny
    return (a + b + 2 * unit + out_unit) * p + tiny


def softmax_grad_bound(
    dy: Any,
    sm: Any,
    algo: str,
    mode: str,
    unit: float,
    out_unit: float,
    tiny: float = 0.0,
    depth: Callable[[float], float] = float,
) -> Float64:
    """The largest ``|computed - exact|`` of each element of ``softmax_grad`` on exact inputs; see ``softmax_bound``.

    fast, accurate: ``(gamma_{n+1} * sum|dy*sm| + u*|dy - t|) * |sm| + u*|dx|`` with t = sum(dy*sm). log: exp(sm) times
    ``gamma_n * sum|dy| + (2|sm| + 9)*u*|sum dy|``, and ``u*|dx|``. Rounding to the output adds ``out_unit*|dx|``.
    """
    dy, sm = _pair(dy, sm)
    axes = _axes(algo, mode, sm.ndim)
    n, dx = depth(_length(sm, axes)), np.abs(softmax_grad(dy, sm, algo, mode))
    if algo == "log":
        total, size = (v.sum(axis=axes, keepdims=True) for v in (dy, np.abs(dy)))
        finite = np.where(np.isneginf(sm), 0.0, np.abs(sm))
        error = np.exp(sm) * (_gamma(n, unit) * size + (2 * finite + EXP_UNITS + 1) * unit * np.abs(total))
    else:
        product = dy * sm
        total, size = (v.sum(axis=axes, keepdims=True) for v in (product, np.abs(product)))
        error = np.abs(sm) * (_gamma(n + 1, unit) * size + unit * np.abs(dy - total))
    return error + (unit + out_unit) * dx + tiny
