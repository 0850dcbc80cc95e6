"""Convolutions for PyTorch: one bilinear relation between image, filters and result, of which two give the third.

``torch.ops.numbadnn.conv``, ``conv_grad_input`` and ``conv_grad_weight`` compute each of the three from the other two, in one,
two or three axes, with filters shared or one for each place. Their gradients are these operators again: so gradients of
every order are numbadnn's. Transposed convolutions are the second of them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd import Function

import numbadnn
from numbadnn.shapes import window_count
from numbadnn.torch.arguments import fold_in, unfold
from numbadnn.torch.layout import empty
from numbadnn.torch.library import compute, define, saved

HOW = "SymInt[] padding, SymInt[] stride, SymInt[] dilation, SymInt groups"
#: by spatial axes; one axis is computed as an image of one row
_FORWARD = (None, numbadnn.conv2d, numbadnn.conv2d, numbadnn.conv3d)
_INPUT = (None, numbadnn.conv2d_grad_wrt_inputs, numbadnn.conv2d_grad_wrt_inputs, numbadnn.conv3d_grad_wrt_inputs)
_WEIGHT = (None, numbadnn.conv2d_grad_wrt_weights, numbadnn.conv2d_grad_wrt_weights, numbadnn.conv3d_grad_wrt_weights)


# ---- the operators ---------------------------------------------------------------------------------------------------


def _call(functions: Any, a: Any, b: Any, size: Any, how: Any, unshared: bool, backend: Any) -> Any:
    padding, stride, dilation, groups = how
    axes = len(stride)
    pairs, stride, dilation = _as_called(axes, tuple(padding), tuple(stride), tuple(dilation))
    if axes == 1:
        a, b, size = with_row(a), with_row(b), row_in(size)
    extra = (unshared,) if axes < 3 else ()
    found = functions[axes](
        a, b, size, None, pairs, stride, False, dilation, groups, *extra, backend=backend
    )  # positional, as keywords cost
    return found if axes > 1 else without_row(found)


@functools.lru_cache(512)
def _as_called(axes: int, padding: Any, stride: Any, dilation: Any) -> tuple[Any, Any, Any]:
    """Padding in pairs, strides and dilation; one axis as those of a row."""
    pairs = tuple(zip(padding[::2], padding[1::2], strict=True))
    return (((0, 0), *pairs), (1, *stride), (1, *dilation)) if axes == 1 else (pairs, stride, dilation)


def with_row(value: torch.Tensor) -> torch.Tensor:
    """(N, C, T) as (N, C, 1, T), (K, P, C, R) as (K, 1, P, C, 1, R)."""
    return value.unsqueeze(2) if value.ndim == 3 else value[:, None, :, :, None]


def row_in(size: Any) -> Any:
    if size is None:
        return None
    return (*size[:2], 1, size[2]) if len(size) == 3 else (size[0], 1, size[1], size[2], 1, size[3])


def without_row(value: torch.Tensor) -> torch.Tensor:
    return value.squeeze(2) if value.ndim == 4 else value[:, 0, :, :, 0]


def _forward(x: Any, w: Any, padding: Any, stride: Any, dilation: Any, groups: int, backend: Any) -> Any:
    return _call(_FORWARD, x, w, None, (padding, stride, dilation, groups), w.ndim > x.ndim, backend)


def _grad_input(g: Any, w: Any, size: Any, padding: Any, stride: Any, dilation: Any, groups: int, backend: Any) -> Any:
    return _call(_INPUT, g, w, tuple(size), (padding, stride, dilation, groups), w.ndim > g.ndim, backend)


def _grad_weight(x: Any, g: Any, size: Any, padding: Any, stride: Any, dilation: Any, groups: int, backend: Any) -> Any:
    return _call(_WEIGHT, x, g, tuple(size), (padding, stride, dilation, groups), len(size) > x.ndim, backend)


def result_sizes(x: Any, w: Any, padding: Any, stride: Any, dilation: Any) -> tuple[Any, ...]:
    """The spatial sizes of a convolution's result, from the shapes of image and filters."""
    axes = len(stride)
    return tuple(
        window_count(x[2 + i], w[len(w) - axes + i], padding[2 * i], padding[2 * i + 1], stride[i], dilation[i])
        for i in range(axes)
    )


def _fake_forward(x: Any, w: Any, padding: Any, stride: Any, dilation: Any, groups: Any) -> Any:
    return empty((x.shape[0], w.shape[0], *result_sizes(x.shape, w.shape, padding, stride, dilation)), x)


def _fold_forward(
    op: Any, size: int, dims: Any, x: Any, w: Any, padding: Any, stride: Any, dilation: Any, groups: Any, *how: Any
) -> Any:
    rest = padding, stride, dilation
    if dims[1] is None:  # more images
        return unfold(op(fold_in(x, dims[0], 0, size), w, *rest, groups, *how), 0, size)
    if dims[0] is None and groups == 1:  # more filters
        return unfold(op(x, fold_in(w, dims[1], 0, size), *rest, groups, *how), 1, size)
    x, w = fold_in(x, dims[0], 1, size), fold_in(w, dims[1], 0, size)
    return unfold(op(x, w, *rest, groups * size, *how), 1, size)


def _fold_input(op: Any, size: int, dims: Any, g: Any, w: Any, shape: Any, padding: Any, stride: Any, dilation: Any, groups: Any, *how: Any) -> Any:  # fmt: skip  # noqa: E501
    rest, (n, c, *spatial) = (padding, stride, dilation), shape
    if dims[1] is None:
        return unfold(op(fold_in(g, dims[0], 0, size), w, (n * size, c, *spatial), *rest, groups, *how), 0, size)
    g, w = fold_in(g, dims[0], 1, size), fold_in(w, dims[1], 0, size)
    return unfold(op(g, w, (n, c * size, *spatial), *rest, groups * size, *how), 1, size)


def _fold_weight(op: Any, size: int, dims: Any, x: Any, g: Any, shape: Any, padding: Any, stride: Any, dilation: Any, groups: Any, *how: Any) -> Any:  # fmt: skip  # noqa: E501
    rest, (k, *others) = (padding, stride, dilation), shape
    if dims[0] is None and groups == 1:
        return unfold(op(x, fold_in(g, dims[1], 1, size), (k * size, *others), *rest, 1, *how), 0, size)
    x, g = fold_in(x, dims[0], 1, size), fold_in(g, dims[1], 1, size)
    return unfold(op(x, g, (k * size, *others), *rest, groups * size, *how), 0, size)


CONV = define("conv", f"Tensor input, Tensor weight, {HOW}", "Tensor", _forward, _fake_forward, _fold_forward)
CONV_GRAD_INPUT = define(
    "conv_grad_input",
    f"Tensor grad, Tensor weight, SymInt[] size, {HOW}",
    "Tensor",
    _grad_input,
    lambda g, w, size, *how: empty(size, g),
    _fold_input,
)
CONV_GRAD_WEIGHT = define(
    "conv_grad_weight",
    f"Tensor input, Tensor grad, SymInt[] size, {HOW}",
    "Tensor",
    _grad_weight,
    lambda x, g, size, *how: empty(size, x),
    _fold_weight,
)


# ---- gradients -------------------------------------------------------------------------------------------------------


@CONV.differentiated
class Conv(Function):
    """The result of a convolution."""

    @staticmethod
    def forward(
        x: Any, w: Any, padding: Any, stride: Any, dilation: Any, groups: Any, backend: Any, options: Any
    ) -> Any:
        return CONV(x, w, padding, stride, dilation, groups, backend, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, *how = inputs
        keep(ctx, x, w, how)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, w = saved(ctx)
        gx = input_of(g, w, ctx.first, *ctx.how) if ctx.needs_input_grad[0] else None
        gw = weight_of(x, g, ctx.second, *ctx.how) if ctx.needs_input_grad[1] else None
        return gx, gw, None, None, None, None, None, None


@CONV_GRAD_INPUT.differentiated
class ConvGradInput(Function):
    """The image's gradient, or a transposed convolution."""

    @staticmethod
    def forward(
        g: Any, w: Any, size: Any, padding: Any, stride: Any, dilation: Any, groups: Any, backend: Any, options: Any
    ) -> Any:
        return CONV_GRAD_INPUT(g, w, size, padding, stride, dilation, groups, backend, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        g, w, ctx.size, *how = inputs
        keep(ctx, g, w, how)

    @staticmethod
    def backward(ctx: Any, h: Any) -> Any:
        g, w = saved(ctx)
        gg = result_of(h, w, *ctx.how) if ctx.needs_input_grad[0] else None
        gw = weight_of(h, g, ctx.second, *ctx.how) if ctx.needs_input_grad[1] else None
        return gg, gw, None, None, None, None, None, None, None


@CONV_GRAD_WEIGHT.differentiated
class ConvGradWeight(Function):
    """The filters' gradient."""

    @staticmethod
    def forward(
        x: Any, g: Any, size: Any, padding: Any, stride: Any, dilation: Any, groups: Any, backend: Any, options: Any
    ) -> Any:
        return CONV_GRAD_WEIGHT(x, g, size, padding, stride, dilation, groups, backend, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, g, ctx.size, *how = inputs
        keep(ctx, x, g, how)

    @staticmethod
    def backward(ctx: Any, h: Any) -> Any:
        x, g = saved(ctx)
        gx = input_of(g, h, ctx.first, *ctx.how) if ctx.needs_input_grad[0] else None
        gg = result_of(x, h, *ctx.how) if ctx.needs_input_grad[1] else None
        return gx, gg, None, None, None, None, None, None, None


def keep(ctx: Any, a: torch.Tensor, b: torch.Tensor, how: Any) -> None:
    """For the gradients of ``a`` and ``b``: each is kept where the other's gradient is wanted."""
    ctx.save_for_backward(a if ctx.needs_input_grad[1] else None, b if ctx.needs_input_grad[0] else None)
    ctx.first, ctx.second, ctx.how = a.shape, b.shape, how


def result_of(x: Any, w: Any, *how: Any) -> Any:
    """y from x and w."""
    return compute(CONV, (x, w), x, w, *how)


def input_of(g: Any, w: Any, size: Any, *how: Any) -> Any:
    """The image that y's gradient g and w give."""
    return compute(CONV_GRAD_INPUT, (g, w), g, w, size, *how)


def weight_of(x: Any, g: Any, size: Any, *how: Any) -> Any:
    """The filters that x and y's gradient g give."""
    return compute(CONV_GRAD_WEIGHT, (x, g), x, g, size, *how)
