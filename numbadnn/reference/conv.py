"""Two-dimensional convolution and its two gradients from the definition, in float64: the oracle.

The image is padded with zeros, then every filter tap (r, s) contributes one product of the filters' values at that
tap with the image as that tap sees it:

    y[n, k, p, q] = sum_{c, r, s} x[n, c, p*sh - top + r*dh, q*sw - left + s*dw] * w[k, c, r', s']

with (r', s') = (R-1-r, S-1-s) for true convolution (``filter_flip``) and (r, s) for correlation. The gradients run the
same taps backwards. Nothing is shared with the code this is compared with: padding and sizes are worked out here once
more. Arrays of any real type come in (ml_dtypes too), float64 comes out; nothing is written in place.

Dimension letters: N images, G groups, C and K channels and filters *of one group*, R S taps, P Q output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


# ---- arguments -------------------------------------------------------------------------------------------------------


def _float64(name: str, value: Any, rank: int) -> Float64:
    """A float64 copy of a real array of this rank."""
    array = np.asarray(value)
    if array.dtype.kind in "bcOSUmM":
        raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}")
    if array.ndim != rank:
        raise ValueError(f"{name}: expected {rank} axes, got shape {array.shape}")
    return array.astype(np.float64)


def _count(name: str, value: Any, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ValueError(f"{name}: expected an integer >= {minimum}, got {value!r}")
    return int(value)


def _two(name: str, value: Any, minimum: int) -> tuple[int, int]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise ValueError(f"{name}: expected two integers >= {minimum}, got {value!r}")
    return _count(name, value[0], minimum), _count(name, value[1], minimum)


def _padding(border_mode: Any, extent: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """((top, bottom), (left, right)); ``extent`` are the sizes of the dilated filter."""
    rows, cols = extent
    if isinstance(border_mode, str):
        known = {"valid": (0, 0), "full": (rows - 1, cols - 1), "half": (rows // 2, cols // 2)}
        if border_mode not in known:
            raise ValueError(
                f"border_mode: expected one of {', '.join(known)}, a number or a tuple, got {border_mode!r}"
            )
        border_mode = known[border_mode]
    if not isinstance(border_mode, tuple):
        border_mode = (_count("border_mode", border_mode, 0),) * 2
    if len(border_mode) != 2:
        raise ValueError(f"border_mode must be a tuple of length 2, got {border_mode!r}")
    top, left = (_two("border_mode", p if isinstance(p, tuple) else (p, p), 0) for p in border_mode)
    return top, left


def _agree(name: str, hint: Any, shape: tuple[int, ...]) -> None:
    """A hint says nothing new: each entry that is not None is the array's own."""
    if hint is not None and (
        len(hint) != len(shape) or any(h not in (None, n) for h, n in zip(hint, shape, strict=True))
    ):
        raise ValueError(f"{name}: expected {shape} or None entries, got {tuple(hint)}")


@dataclass(frozen=True)
class _Geometry:
    """Sizes of one convolution, all agreed; ``k`` and ``c`` are per group."""

    n: int
    g: int
    c: int
    k: int
    image: tuple[int, int]
    taps: tuple[int, int]
    out: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    flip: bool
    unshared: bool

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.n, self.g * self.c, *self.image)

    @property
    def w_shape(self) -> tuple[int, ...]:
        return (self.g * self.k, *(self.out if self.unshared else ()), self.c, *self.taps)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (self.n, self.g * self.k, *self.out)


def _geometry(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    border_mode: Any,
    subsample: Any,
    filter_flip: bool,
    filter_dilation: Any,
    num_groups: int,
    unshared: bool,
) -> _Geometry:
    """Check that an image and filters of these shapes fit together, and size everything."""
    if isinstance(num_groups, bool) or not isinstance(num_groups, int | np.integer) or num_groups < 1:
        raise ValueError(f"num_groups must have value greater than zero, got {num_groups!r}")
    (n, channels, *image), (filters, *_), (c, *taps) = x_shape, w_shape, w_shape[-3:]
    stride, dilation = _two("subsample", subsample, 1), _two("filter_dilation", filter_dilation, 1)
    rows, cols = _two("filters' sizes", tuple(taps), 1)
    if c * num_groups != channels:
        raise ValueError(
            f"input: expected {c} channels of a filter * {num_groups} groups = {c * num_groups}, got {channels}"
        )
    if filters % num_groups:
        raise ValueError(f"filters: expected a number divisible by num_groups = {num_groups}, got {filters}")
    extent = ((rows - 1) * dilation[0] + 1, (cols - 1) * dilation[1] + 1)
    padding = _padding(border_mode, extent)
    # the filter starts at 0, s, 2s, ... as long as its last tap is still on the padded image
    lengths = (image[0] + sum(padding[0]), image[1] + sum(padding[1]))
    out = tuple(len(range(0, m - e + 1, s)) for m, e, s in zip(lengths, extent, stride, strict=True))
    if 0 in out:
        raise ValueError(f"filters: expected to fit the padded image {lengths}, got a dilated size of {extent}")
    if unshared and w_shape[1:3] != out:
        raise ValueError(f"filters: expected one filter for each output position {out}, got {w_shape[1:3]}")
    g = int(num_groups)
    pq, hw = (out[0], out[1]), (image[0], image[1])
    return _Geometry(
        n, g, c, filters // g, hw, (rows, cols), pq, padding, stride, dilation, bool(filter_flip), bool(unshared)
    )


# ---- taps ------------------------------------------------------------------------------------------------------------


def _taps(geo: _Geometry) -> Iterator[tuple[tuple[int, int], tuple[slice, slice]]]:
    """For each tap: where its weight stands in the filter, and which cells of the padded image it meets."""
    (rows, cols), (p, q), (sh, sw), (dh, dw) = geo.taps, geo.out, geo.stride, geo.dilation
    for r in range(rows):
        for s in range(cols):
            weight = (rows - 1 - r, cols - 1 - s) if geo.flip else (r, s)
            cells = slice(r * dh, r * dh + (p - 1) * sh + 1, sh), slice(s * dw, s * dw + (q - 1) * sw + 1, sw)
            yield weight, cells


def _pad(x: Float64, geo: _Geometry) -> Float64:
    """(N, G, C, padded rows, padded columns)"""
    (top, bottom), (left, right) = geo.padding
    h, w = geo.image
    padded = np.zeros((geo.n, geo.g, geo.c, top + h + bottom, left + w + right))
    padded[..., top : top + h, left : left + w] = x.reshape(geo.n, geo.g, geo.c, h, w)
    return padded


def _grouped(w: Float64, geo: _Geometry) -> Float64:
    """(G, K, C, R, S), or unshared (G, K, P, Q, C, R, S)"""
    return w.reshape(geo.g, geo.k, *w.shape[1:])


def _finish(op: Float64, alpha: float, beta: float, out: Any) -> Float64:
    """alpha * op + beta * out; ``out`` is read only where beta is not 0, and never written."""
    if out is not None and np.shape(out) != op.shape:
        raise ValueError(f"out: expected shape {op.shape}, got {np.shape(out)}")
    if beta == 0:
        return alpha * op
    if out is None:
        raise ValueError(f"out: expected an array of shape {op.shape} because beta = {beta} is not 0, got None")
    return alpha * op + beta * _float64("out", out, op.ndim)


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
    x, w = _float64("input", input, 4), _float64("filters", filters, 6 if unshared else 4)
    _agree("input_shape", input_shape, x.shape)
    _agree("filter_shape", filter_shape, w.shape)
    geo = _geometry(x.shape, w.shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared)
    padded, w = _pad(x, geo), _grouped(w, geo)
    y = np.zeros((geo.n, geo.g, geo.k, *geo.out))
    for (r, s), (rows, cols) in _taps(geo):
        seen, weight = padded[..., rows, cols], w[..., r, s]
        if unshared:
            y += np.einsum("gkpqc,ngcpq->ngkpq", weight, seen)
        else:  # (G, K, C) @ (N, G, C, P*Q)
            y += (weight @ seen.reshape(geo.n, geo.g, geo.c, geo.out[0] * geo.out[1])).reshape(y.shape)
    return _finish(y.reshape(geo.y_shape), alpha, beta, out)


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
    dy, w = _float64("output_grad", output_grad, 4), _float64("filters", filters, 6 if unshared else 4)
    _agree("filter_shape", filter_shape, w.shape)
    if not isinstance(input_shape, tuple | list) or len(input_shape) != 4 or None in input_shape[2:]:
        raise ValueError(f"input_shape: expected (N or None, C or None, H, W), got {input_shape!r}")
    image = _two("input_shape", tuple(input_shape[2:]), 0)
    x_shape = (dy.shape[0], w.shape[-3] * _count("num_groups", num_groups, 1), *image)
    _agree("input_shape", input_shape, x_shape)
    geo = _geometry(x_shape, w.shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared)
    if geo.y_shape != dy.shape:
        raise ValueError(
            "invalid input_shape for gradInputs: the given input_shape would produce an output of shape "
            f"{geo.y_shape}, but the given topgrad has shape {dy.shape}"
        )
    w = _grouped(w, geo)
    padded = _pad(np.zeros(x_shape), geo)
    p, q = geo.out
    for (r, s), (rows, cols) in _taps(geo):
        weight = w[..., r, s]
        if unshared:
            padded[..., rows, cols] += np.einsum("gkpqc,ngkpq->ngcpq", weight, dy.reshape(geo.n, geo.g, geo.k, p, q))
        else:  # (G, C, K) @ (N, G, K, P*Q)
            part = weight.swapaxes(1, 2) @ dy.reshape(geo.n, geo.g, geo.k, p * q)
            padded[..., rows, cols] += part.reshape(geo.n, geo.g, geo.c, p, q)
    (top, _), (left, _) = geo.padding
    dx = padded[..., top : top + image[0], left : left + image[1]]
    return _finish(dx.reshape(x_shape), alpha, beta, out)


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
    x, dy = _float64("input", input, 4), _float64("output_grad", output_grad, 4)
    _agree("input_shape", input_shape, x.shape)
    rank = 6 if unshared else 4
    if not isinstance(filter_shape, tuple | list) or len(filter_shape) != rank or None in filter_shape[-2:]:
        raise ValueError(f"filter_shape: expected {rank} entries, the last two integers, got {filter_shape!r}")
    groups = _count("num_groups", num_groups, 1)
    if x.shape[1] % groups:
        raise ValueError(f"input: expected a number of channels divisible by num_groups = {groups}, got {x.shape[1]}")
    taps = _two("filter_shape", tuple(filter_shape[-2:]), 1)
    w_shape = (dy.shape[1], *(dy.shape[2:] if unshared else ()), x.shape[1] // groups, *taps)
    _agree("filter_shape", filter_shape, w_shape)
    geo = _geometry(x.shape, w_shape, border_mode, subsample, filter_flip, filter_dilation, groups, unshared)
    if geo.y_shape != dy.shape:
        raise ValueError(f"output_grad: expected shape {geo.y_shape}, got {dy.shape}")
    p, q = geo.out
    padded, dy = _pad(x, geo), dy.reshape(geo.n, geo.g, geo.k, p, q)
    dw = np.zeros((geo.g, geo.k, *w_shape[1:]))
    for (r, s), (rows, cols) in _taps(geo):
        seen = padded[..., rows, cols]
        if unshared:
            dw[..., r, s] = np.einsum("ngkpq,ngcpq->gkpqc", dy, seen)
        else:  # (N, G, K, P*Q) @ (N, G, P*Q, C), summed over the images
            images = dy.reshape(*dy.shape[:3], p * q) @ seen.reshape(*seen.shape[:3], p * q).swapaxes(2, 3)
            dw[..., r, s] = images.sum(axis=0)
    return _finish(dw.reshape(w_shape), alpha, beta, out)


# ---- what a bound on the error needs ---------------------------------------------------------------------------------


def _magnitude(op: Any, first: Any, second: Any, *args: Any, **kwargs: Any) -> Float64:
    for name in {"alpha", "beta"} & kwargs.keys():
        kwargs[name] = abs(kwargs[name])
    if kwargs.get("out") is not None:
        kwargs["out"] = np.abs(np.asarray(kwargs["out"]).astype(np.float64))
    a, b = (np.abs(np.asarray(v).astype(np.float64)) for v in (first, second))
    return op(a, b, *args, **kwargs)


def conv2d_magnitude(input: Any, filters: Any, *args: Any, **kwargs: Any) -> Float64:
    """``|alpha| * sum |x||w| + |beta||out|`` of each element of ``conv2d`` with the same arguments.

    A sum of k products computed in any order with unit roundoff u is off by at most ``k*u / (1 - k*u)`` of this.
    """
    return _magnitude(conv2d, input, filters, *args, **kwargs)


def conv2d_grad_wrt_inputs_magnitude(output_grad: Any, filters: Any, *args: Any, **kwargs: Any) -> Float64:
    """``conv2d_magnitude`` for ``conv2d_grad_wrt_inputs``."""
    return _magnitude(conv2d_grad_wrt_inputs, output_grad, filters, *args, **kwargs)


def conv2d_grad_wrt_weights_magnitude(input: Any, output_grad: Any, *args: Any, **kwargs: Any) -> Float64:
    """``conv2d_magnitude`` for ``conv2d_grad_wrt_weights``."""
    return _magnitude(conv2d_grad_wrt_weights, input, output_grad, *args, **kwargs)


def conv2d_reduction_length(
    op: str, filter_shape: tuple[int, ...], output_shape: tuple[int, ...], num_groups: int = 1
) -> int:
    """The most products any element of ``op`` sums; ``output_shape`` is the forward convolution's (N, F, P, Q).

    conv2d: C/g * R * S. conv2d_grad_wrt_inputs: F/g * R * S. conv2d_grad_wrt_weights: N * P * Q, unshared (six entries
    in ``filter_shape``) N.

    >>> conv2d_reduction_length("conv2d", (8, 4, 3, 3), (2, 8, 5, 5), num_groups=2)
    36
    """
    filters, *regions, channels, rows, cols = filter_shape
    batch, _, p, q = output_shape
    lengths = {
        "conv2d": channels * rows * cols,
        "conv2d_grad_wrt_inputs": filters // num_groups * rows * cols,
        "conv2d_grad_wrt_weights": batch if regions else batch * p * q,
    }
    if op not in lengths:
        raise ValueError(f"op: expected one of {', '.join(lengths)}, got {op!r}")
    return lengths[op]
