"""Convolution over any number of spatial axes and its two gradients from the definition, in float64: the oracle.

The image is padded with zeros, then every filter tap (r, s) contributes one product of the filters' values at that
tap with the image as that tap sees it:

    y[n, k, p, q] = sum_{c, r, s} x[n, c, p*sh - top + r*dh, q*sw - left + s*dw] * w[k, c, r', s']

with (r', s') = (R-1-r, S-1-s) for true convolution (``filter_flip``) and (r, s) for correlation; volumes have one axis
more, lines one less. The gradients run the same taps backwards. Nothing is shared with the code this is compared with:
padding and sizes are worked out here once more. Arrays of any real type come in (ml_dtypes too), float64 comes out;
nothing is written in place.

Dimension letters: N images, G groups, C and K channels and filters *of one group*, R S taps, P Q output.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.reference.conv_geometry import (
    Float64,
    Sizes,
    _agree,
    _count,
    _counts,
    _filter_rank,
    _finish,
    _flat,
    _float64,
    _geometry,
    _grouped,
    _inside,
    _pad,
    _Parameters,
    _taps,
)

# ---- arguments -------------------------------------------------------------------------------------------------------


# ---- taps ------------------------------------------------------------------------------------------------------------


# ---- the three directions, over any number of axes -------------------------------------------------------------------


def _forward(axes: int, input: Any, filters: Any, hints: tuple[Any, Any], p: _Parameters) -> Float64:
    x, w = _float64("input", input, axes + 2), _float64("filters", filters, _filter_rank(axes, p))
    _agree("input_shape", hints[0], x.shape)
    _agree("filter_shape", hints[1], w.shape)
    geo = _geometry(x.shape, w.shape, p)
    padded, w = _pad(x, geo), _grouped(w, geo)
    y = np.zeros((geo.n, geo.g, geo.k, geo.positions))
    for tap, cells in _taps(geo):
        seen, weight = _flat(padded[cells], geo), w[tap]
        if geo.unshared:
            y += np.einsum("gkpc,ngcp->ngkp", weight, seen)
        else:  # (G, K, C) @ (N, G, C, P*Q)
            y += weight @ seen
    return _finish(y.reshape(geo.y_shape), p)


def _grad_inputs(
    axes: int, output_grad: Any, filters: Any, input_shape: Any, filter_shape: Any, p: _Parameters
) -> Float64:
    dy, w = _float64("output_grad", output_grad, axes + 2), _float64("filters", filters, _filter_rank(axes, p))
    _agree("filter_shape", filter_shape, w.shape)
    if not isinstance(input_shape, tuple | list) or len(input_shape) != axes + 2 or None in input_shape[2:]:
        raise ValueError(f"input_shape: expected (N or None, C or None, {axes} sizes), got {input_shape!r}")
    image = _counts("input_shape", tuple(input_shape[2:]), axes, 0)
    x_shape = (dy.shape[0], w.shape[-axes - 1] * _count("num_groups", p.num_groups, 1), *image)
    _agree("input_shape", input_shape, x_shape)
    geo = _geometry(x_shape, w.shape, p)
    if geo.y_shape != dy.shape:
        raise ValueError(
            "invalid input_shape for gradInputs: the given input_shape would produce an output of shape "
            f"{geo.y_shape}, but the given topgrad has shape {dy.shape}"
        )
    w, padded = _grouped(w, geo), _pad(np.zeros(x_shape), geo)
    dy = dy.reshape(geo.n, geo.g, geo.k, geo.positions)
    for tap, cells in _taps(geo):
        weight = w[tap]
        if geo.unshared:
            part = np.einsum("gkpc,ngkp->ngcp", weight, dy)
        else:  # (G, C, K) @ (N, G, K, P*Q)
            part = weight.swapaxes(1, 2) @ dy
        padded[cells] += part.reshape(geo.n, geo.g, geo.c, *geo.out)
    return _finish(padded[_inside(geo)].reshape(x_shape), p)


def _grad_weights(
    axes: int, input: Any, output_grad: Any, filter_shape: Any, input_shape: Any, p: _Parameters
) -> Float64:
    x, dy = _float64("input", input, axes + 2), _float64("output_grad", output_grad, axes + 2)
    _agree("input_shape", input_shape, x.shape)
    rank = _filter_rank(axes, p)
    if not isinstance(filter_shape, tuple | list) or len(filter_shape) != rank or None in filter_shape[-axes:]:
        raise ValueError(f"filter_shape: expected {rank} entries, the last {axes} integers, got {filter_shape!r}")
    groups = _count("num_groups", p.num_groups, 1)
    if x.shape[1] % groups:
        raise ValueError(f"input: expected a number of channels divisible by num_groups = {groups}, got {x.shape[1]}")
    taps = _counts("filter_shape", tuple(filter_shape[-axes:]), axes, 1)
    w_shape = (dy.shape[1], *(dy.shape[2:] if p.unshared else ()), x.shape[1] // groups, *taps)
    _agree("filter_shape", filter_shape, w_shape)
    geo = _geometry(x.shape, w_shape, p)
    if geo.y_shape != dy.shape:
        raise ValueError(f"output_grad: expected shape {geo.y_shape}, got {dy.shape}")
    padded, dy = _pad(x, geo), dy.reshape(geo.n, geo.g, geo.k, geo.positions)
    dw = np.zeros((geo.g, geo.k, *((geo.positions,) if geo.unshared else ()), geo.c, *geo.taps))
    for tap, cells in _taps(geo):
        seen = _flat(padded[cells], geo)
        if geo.unshared:
            dw[tap] = np.einsum("ngkp,ngcp->gkpc", dy, seen)
        else:  # (N, G, K, P*Q) @ (N, G, P*Q, C), summed over the images
            dw[tap] = (dy @ seen.swapaxes(2, 3)).sum(axis=0)
    return _finish(dw.reshape(w_shape), p)


# ---- operations ------------------------------------------------------------------------------------------------------


def conv2d(
    input: Any,
    filters: Any,
    input_shape: Any = None,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Float64:
    """``alpha * conv(input, filters) + beta * out``, (N, C, H, W) and (F, C/g, R, S) giving (N, F, P, Q).

    ``P = floor((H + top + bottom - ((R-1)*dh + 1)) / sh) + 1``. Unshared filters are (F, P, Q, C/g, R, S), one for each
    position. ``input_shape`` and ``filter_shape`` only assert. Raises ValueError where shapes or parameters do not fit,
    TypeError for arrays that are not real numbers. Source: the definition, with the conventions of Theano's ``conv2d``.

    >>> conv2d([[[[1.0, 2.0, 3.0]]]], [[[[1.0, 10.0]]]])
    array([[[[12., 23.]]]])
    """
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha, beta, out)
    return _forward(2, input, filters, (input_shape, filter_shape), p)


def conv2d_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    input_shape: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Float64:
    """The adjoint of ``conv2d`` in its input: (N, F, P, Q) and (F, C/g, R, S) giving ``input_shape`` (N, C, H, W).

    ``dx[n, c, i, j]`` sums ``dy[n, k, p, q] * w[k, c, r', s']`` over all (k, p, q, r, s) with
    ``p*sh - top + r*dh == i`` and ``q*sw - left + s*dw == j``. Cells of the image that no tap met get 0. N and C may be
    None. Errors as in ``conv2d``.

    >>> conv2d_grad_wrt_inputs([[[[1.0, 1.0]]]], [[[[1.0, 10.0]]]], (1, 1, 1, 3))
    array([[[[10., 11.,  1.]]]])
    """
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha, beta, out)
    return _grad_inputs(2, output_grad, filters, input_shape, filter_shape, p)


def conv2d_grad_wrt_weights(
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    input_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Float64:
    """The adjoint of ``conv2d`` in its filters: (N, C, H, W) and (N, F, P, Q) giving ``filter_shape`` (F, C/g, R, S).

    ``dw[k, c, r', s'] = sum_{n, p, q} dy[n, k, p, q] * x[n, c, p*sh - top + r*dh, q*sw - left + s*dw]``; unshared, the
    sum is over n alone and the result (F, P, Q, C/g, R, S). All but R and S may be None. Errors as in ``conv2d``.

    >>> conv2d_grad_wrt_weights([[[[1.0, 2.0, 3.0]]]], [[[[1.0, 1.0]]]], (1, 1, 1, 2))
    array([[[[5., 3.]]]])
    """
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha, beta, out)
    return _grad_weights(2, input, output_grad, filter_shape, input_shape, p)


# ---- what a bound on the error needs ---------------------------------------------------------------------------------


def conv_magnitude(op: Any, first: Any, second: Any, /, *args: Any, **kwargs: Any) -> Float64:
    """``|alpha| * sum |x||w| + |beta||out|`` of each element of a convolution or gradient ``op`` with the same arguments.

    A sum of k products computed in any order with unit roundoff u is off by at most ``k*u / (1 - k*u)`` of this.

    >>> conv_magnitude(conv2d, [[[[1.0, -2.0]]]], [[[[1.0, 1.0]]]])
    array([[[[3.]]]])
    """
    for name in {"alpha", "beta"} & kwargs.keys():
        kwargs[name] = abs(kwargs[name])
    if kwargs.get("out") is not None:
        kwargs["out"] = np.abs(np.asarray(kwargs["out"]).astype(np.float64))
    a, b = (np.abs(np.asarray(v).astype(np.float64)) for v in (first, second))
    return op(a, b, *args, **kwargs)


def conv2d_magnitude(input: Any, filters: Any, *args: Any, **kwargs: Any) -> Float64:
    """``conv_magnitude`` of ``conv2d``."""
    return conv_magnitude(conv2d, input, filters, *args, **kwargs)


def conv2d_grad_wrt_inputs_magnitude(output_grad: Any, filters: Any, *args: Any, **kwargs: Any) -> Float64:
    """``conv_magnitude`` of ``conv2d_grad_wrt_inputs``."""
    return conv_magnitude(conv2d_grad_wrt_inputs, output_grad, filters, *args, **kwargs)


def conv2d_grad_wrt_weights_magnitude(input: Any, output_grad: Any, *args: Any, **kwargs: Any) -> Float64:
    """``conv_magnitude`` of ``conv2d_grad_wrt_weights``."""
    return conv_magnitude(conv2d_grad_wrt_weights, input, output_grad, *args, **kwargs)


def conv2d_reduction_length(op: str, filter_shape: Sizes, output_shape: Sizes, num_groups: int = 1) -> int:
    """The most products any element of ``op`` sums; ``output_shape`` is the forward convolution's (N, F, P, Q).

    Forward (conv2d, conv3d): C/g * R * S. With respect to the inputs: F/g * R * S. With respect to the weights:
    N * P * Q, unshared (two entries more in ``filter_shape``) N.

    >>> conv2d_reduction_length("conv2d", (8, 4, 3, 3), (2, 8, 5, 5), num_groups=2)
    36
    """
    axes = len(output_shape) - 2
    channels, *taps = filter_shape[-axes - 1 :]
    unshared = len(filter_shape) > axes + 2
    lengths = {
        f"conv{axes}d": channels * math.prod(taps),
        f"conv{axes}d_grad_wrt_inputs": filter_shape[0] // num_groups * math.prod(taps),
        f"conv{axes}d_grad_wrt_weights": output_shape[0] * (1 if unshared else math.prod(output_shape[2:])),
    }
    if op not in lengths:
        raise ValueError(f"op: expected one of {', '.join(lengths)}, got {op!r}")
    return lengths[op]
