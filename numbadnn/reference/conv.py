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

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Sizes = tuple[int, ...]


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


def _counts(name: str, value: Any, length: int, minimum: int) -> Sizes:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
        raise ValueError(f"{name}: expected {length} integers >= {minimum}, got {value!r}")
    return tuple(_count(name, v, minimum) for v in value)


def _padding(border_mode: Any, extent: Sizes) -> tuple[Sizes, ...]:
    """((top, bottom), (left, right)); ``extent`` are the sizes of the dilated filter."""
    if isinstance(border_mode, str):
        known = {
            "valid": (0,) * len(extent),
            "full": tuple(e - 1 for e in extent),
            "half": tuple(e // 2 for e in extent),
        }
        if border_mode not in known:
            raise ValueError(
                f"border_mode: expected one of {', '.join(known)}, a number or a tuple, got {border_mode!r}"
            )
        border_mode = known[border_mode]
    if not isinstance(border_mode, tuple):
        border_mode = (_count("border_mode", border_mode, 0),) * len(extent)
    if len(border_mode) != len(extent):
        raise ValueError(f"border_mode must be a tuple of length {len(extent)}, got {border_mode!r}")
    return tuple(_counts("border_mode", p if isinstance(p, tuple) else (p, p), 2, 0) for p in border_mode)


def _agree(name: str, hint: Any, shape: Sizes) -> None:
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
    image: Sizes
    taps: Sizes
    out: Sizes
    padding: tuple[Sizes, ...]
    stride: Sizes
    dilation: Sizes
    flip: bool
    unshared: bool

    @property
    def x_shape(self) -> Sizes:
        return (self.n, self.g * self.c, *self.image)

    @property
    def w_shape(self) -> Sizes:
        return (self.g * self.k, *(self.out if self.unshared else ()), self.c, *self.taps)

    @property
    def y_shape(self) -> Sizes:
        return (self.n, self.g * self.k, *self.out)

    @property
    def positions(self) -> int:
        return math.prod(self.out)


@dataclass(frozen=True)
class _Parameters:
    """What is asked for besides arrays, as the caller gave it."""

    border_mode: Any
    subsample: Any
    filter_flip: Any
    filter_dilation: Any
    num_groups: Any
    unshared: Any = False
    alpha: float = 1.0
    beta: float = 0.0
    out: Any = None


def _geometry(x_shape: Sizes, w_shape: Sizes, p: _Parameters) -> _Geometry:
    """Check that an image and filters of these shapes fit together, and size everything."""
    groups = p.num_groups
    if isinstance(groups, bool) or not isinstance(groups, int | np.integer) or groups < 1:
        raise ValueError(f"num_groups must have value greater than zero, got {groups!r}")
    axes = len(x_shape) - 2
    (n, channels, *image), filters, (c, *sizes) = x_shape, w_shape[0], w_shape[-axes - 1 :]
    stride = _counts("subsample", p.subsample, axes, 1)
    dilation = _counts("filter_dilation", p.filter_dilation, axes, 1)
    taps = _counts("filters' sizes", tuple(sizes), axes, 1)
    if c * groups != channels:
        raise ValueError(f"input: expected {c} channels of a filter * {groups} groups = {c * groups}, got {channels}")
    if filters % groups:
        raise ValueError(f"filters: expected a number divisible by num_groups = {groups}, got {filters}")
    extent = tuple((t - 1) * d + 1 for t, d in zip(taps, dilation, strict=True))
    padding = _padding(p.border_mode, extent)
    # the filter starts at 0, s, 2s, ... as long as its last tap is still on the padded image
    lengths = tuple(i + sum(pad) for i, pad in zip(image, padding, strict=True))
    out = tuple(len(range(0, m - e + 1, s)) for m, e, s in zip(lengths, extent, stride, strict=True))
    if 0 in out:
        raise ValueError(f"filters: expected to fit the padded image {lengths}, got a dilated size of {extent}")
    if p.unshared and w_shape[1 : axes + 1] != out:
        raise ValueError(f"filters: expected one filter for each output position {out}, got {w_shape[1 : axes + 1]}")
    g, flip, unshared = int(groups), bool(p.filter_flip), bool(p.unshared)
    return _Geometry(n, g, c, filters // g, tuple(image), taps, out, padding, stride, dilation, flip, unshared)


# ---- taps ------------------------------------------------------------------------------------------------------------


def _taps(geo: _Geometry) -> Iterator[tuple[Any, Any]]:
    """For each tap: the index of its weight in the filters, and of the cells of the padded image that it meets."""
    for tap in itertools.product(*map(range, geo.taps)):
        weight = tuple(n - 1 - t for n, t in zip(geo.taps, tap, strict=True)) if geo.flip else tap
        axes = zip(tap, geo.dilation, geo.stride, geo.out, strict=True)
        cells = tuple(slice(t * d, t * d + (q - 1) * s + 1, s) for t, d, s, q in axes)
        yield (..., *weight), (..., *cells)


def _inside(geo: _Geometry) -> Any:
    """Where the image stands in the padded image."""
    return (..., *(slice(low, low + n) for (low, _), n in zip(geo.padding, geo.image, strict=True)))


def _pad(x: Float64, geo: _Geometry) -> Float64:
    """(N, G, C, padded rows, padded columns)"""
    lengths = (low + n + high for (low, high), n in zip(geo.padding, geo.image, strict=True))
    padded = np.zeros((geo.n, geo.g, geo.c, *lengths))
    padded[_inside(geo)] = x.reshape(geo.n, geo.g, geo.c, *geo.image)
    return padded


def _flat(array: Float64, geo: _Geometry) -> Float64:
    """(N, G, channels, positions of the output)"""
    return array.reshape(*array.shape[:3], geo.positions)


def _grouped(w: Float64, geo: _Geometry) -> Float64:
    """(G, K, C, R, S), or unshared (G, K, P*Q, C, R, S)"""
    regions = (geo.positions,) if geo.unshared else ()
    return w.reshape(geo.g, geo.k, *regions, geo.c, *geo.taps)


def _finish(op: Float64, p: _Parameters) -> Float64:
    """alpha * op + beta * out; ``out`` is read only where beta is not 0, and never written."""
    if p.out is not None and np.shape(p.out) != op.shape:
        raise ValueError(f"out: expected shape {op.shape}, got {np.shape(p.out)}")
    if p.beta == 0:
        return p.alpha * op
    if p.out is None:
        raise ValueError(f"out: expected an array of shape {op.shape} because beta = {p.beta} is not 0, got None")
    return p.alpha * op + p.beta * _float64("out", p.out, op.ndim)


# ---- the three directions, over any number of axes -------------------------------------------------------------------


def _filter_rank(axes: int, p: _Parameters) -> int:
    return 2 * axes + 2 if p.unshared else axes + 2


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
