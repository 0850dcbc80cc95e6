"""Convolutions for PyTorch: one bilinear relation between image, filters and result, of which two give the third.

``torch.ops.numbadnn.conv``, ``conv_grad_input`` and ``conv_grad_weight`` compute each of the three from the other two, in one,
two or three axes, with filters shared or one for each place. Their gradients are these operators again: so gradients of
every order are numbadnn's. Transposed convolutions are the second of them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

import numbadnn
from numbadnn.shapes import window_count
from numbadnn.torch.arguments import fold_in, unfold
from numbadnn.torch.layout import empty
from numbadnn.torch.library import Function, compute, define, saved

HOW = "SymInt[] padding, SymInt[] stride, SymInt[] dilation, SymInt groups"
#: by spatial axes
_FORWARD = (None, numbadnn.conv1d, numbadnn.conv2d, numbadnn.conv3d)
_INPUT = (None, numbadnn.conv1d_grad_wrt_inputs, numbadnn.conv2d_grad_wrt_inputs, numbadnn.conv3d_grad_wrt_inputs)
_WEIGHT = (None, numbadnn.conv1d_grad_wrt_weights, numbadnn.conv2d_grad_wrt_weights, numbadnn.conv3d_grad_wrt_weights)


# ---- the operators ---------------------------------------------------------------------------------------------------


def _call(
    functions: Any, a: Any, b: Any, size: Any, padding: Any, stride: Any, dilation: Any, groups: int, unshared: bool, backend: Any
) -> Any:  # fmt: skip
    if type(padding) is not tuple:  # the dispatcher gives lists
        padding, stride, dilation = tuple(padding), tuple(stride), tuple(dilation)
    axes = len(stride)
    extra = (unshared,) if axes < 3 else ()
    return functions[axes](
        a, b, size, None, _pairs(padding), stride, False, dilation, groups, *extra, backend=backend
    )  # positional, as keywords cost


@functools.lru_cache(512)
def _pairs(padding: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(padding[::2], padding[1::2], strict=True))


def _forward(x: Any, w: Any, _: Any, padding: Any, stride: Any, dilation: Any, groups: int, backend: Any) -> Any:
    return _call(_FORWARD, x, w, None, padding, stride, dilation, groups, w.ndim > x.ndim, backend)


def _grad_input(
    g: Any, w: Any, _: Any, size: Any, padding: Any, stride: Any, dilation: Any, groups: int, backend: Any
) -> Any:
    return _call(_INPUT, g, w, tuple(size), padding, stride, dilation, groups, w.ndim > g.ndim, backend)


def _add_bias(result: Any, a: Any, b: Any, bias: Any) -> Any:
    return result if bias is None else result.add_(spread(bias, result.ndim))


def spread(bias: Any, ndim: int) -> Any:
    """A number for each channel, or for each place, so that it can be added to a result of ``ndim`` axes."""
    return bias if bias.ndim > 1 else bias.view(-1, *(1,) * (ndim - 2))


def _grad_weight(x: Any, g: Any, size: Any, padding: Any, stride: Any, dilation: Any, groups: int, backend: Any) -> Any:
    return _call(_WEIGHT, x, g, tuple(size), padding, stride, dilation, groups, len(size) > x.ndim, backend)


def result_sizes(x: Any, w: Any, padding: Any, stride: Any, dilation: Any) -> tuple[Any, ...]:
    """The spatial sizes of a convolution's result, from the shapes of image and filters."""
    axes = len(stride)
    return tuple(
        window_count(x[2 + i], w[len(w) - axes + i], padding[2 * i], padding[2 * i + 1], stride[i], dilation[i])
        for i in range(axes)
    )


def _fake_forward(x: Any, w: Any, bias: Any, padding: Any, stride: Any, dilation: Any, groups: Any) -> Any:
    return empty((x.shape[0], w.shape[0], *result_sizes(x.shape, w.shape, padding, stride, dilation)), x)


def _with_bias(fold: Any) -> Any:
    """A vmap rule of a convolution for one that adds a bias too, which may be mapped itself."""

    def rule(op: Any, size: int, dims: Any, a: Any, b: Any, bias: Any, *how: Any) -> Any:
        y = fold(op, size, dims, a, b, None, *how)
        if bias is None or dims[2] is None:
            return y if bias is None else y + spread(bias, y.ndim - 1)
        bias = bias.movedim(dims[2], 0)
        return y + (bias[:, None] if bias.ndim > 2 else bias.view(size, 1, -1, *(1,) * (y.ndim - 3)))

    return rule


@_with_bias
def _fold_forward(op: Any, size: int, dims: Any, x: Any, w: Any, _: None, padding: Any, stride: Any, dilation: Any, groups: Any, *how: Any) -> Any:  # fmt: skip  # noqa: E501
    rest = padding, stride, dilation
    if dims[1] is None:  # more images
        return unfold(op(fold_in(x, dims[0], 0, size), w, None, *rest, groups, *how), 0, size)
    if dims[0] is None and groups == 1:  # more filters
        return unfold(op(x, fold_in(w, dims[1], 0, size), None, *rest, groups, *how), 1, size)
    x, w = fold_in(x, dims[0], 1, size), fold_in(w, dims[1], 0, size)
    return unfold(op(x, w, None, *rest, groups * size, *how), 1, size)


@_with_bias
def _fold_input(op: Any, size: int, dims: Any, g: Any, w: Any, _: None, shape: Any, padding: Any, stride: Any, dilation: Any, groups: Any, *how: Any) -> Any:  # fmt: skip  # noqa: E501
    rest, (n, c, *spatial) = (padding, stride, dilation), shape
    if dims[1] is None:
        return unfold(op(fold_in(g, dims[0], 0, size), w, None, (n * size, c, *spatial), *rest, groups, *how), 0, size)
    g, w = fold_in(g, dims[0], 1, size), fold_in(w, dims[1], 0, size)
    return unfold(op(g, w, None, (n, c * size, *spatial), *rest, groups * size, *how), 1, size)


def _fold_weight(op: Any, size: int, dims: Any, x: Any, g: Any, shape: Any, padding: Any, stride: Any, dilation: Any, groups: Any, *how: Any) -> Any:  # fmt: skip  # noqa: E501
    rest, (k, *others) = (padding, stride, dilation), shape
    if dims[0] is None and groups == 1:
        return unfold(op(x, fold_in(g, dims[1], 1, size), (k * size, *others), *rest, 1, *how), 0, size)
    x, g = fold_in(x, dims[0], 1, size), fold_in(g, dims[1], 1, size)
    return unfold(op(x, g, (k * size, *others), *rest, groups * size, *how), 0, size)


CONV = define(
    "conv",
    f"Tensor input, Tensor weight, Tensor? bias, {HOW}",
    "Tensor",
    _forward,
    _fake_forward,
    _fold_forward,
    _add_bias,
    remembers=True,
)
CONV_GRAD_INPUT = define(
    "conv_grad_input",
    f"Tensor grad, Tensor weight, Tensor? bias, SymInt[] size, {HOW}",
    "Tensor",
    _grad_input,
    lambda g, w, bias, size, *how: empty(size, g),
    _fold_input,
    _add_bias,
    remembers=True,
)
CONV_GRAD_WEIGHT = define(
    "conv_grad_weight",
    f"Tensor input, Tensor grad, SymInt[] size, {HOW}",
    "Tensor",
    _grad_weight,
    lambda x, g, size, *how: empty(size, x),
    _fold_weight,
    remembers=True,
)


# ---- gradients -------------------------------------------------------------------------------------------------------


@CONV.differentiated
class Conv(Function):
    """The result of a convolution."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, bias: Any, how: Any, launch: Any = None) -> Any:
        keep(ctx, x, w, bias, how)
        return CONV((x, w, bias), how, launch)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x, w), needed = saved(ctx), ctx.needs_input_grad
        first, second, places, how = ctx.how
        gx = input_of(g, w, None, first, how) if needed[0] else None
        gw = weight_of(x, g, second, how) if needed[1] else None
        gb = _summed(g, places) if needed[2] else None
        return gx, gw, gb, None, None


@CONV_GRAD_INPUT.differentiated
class ConvGradInput(Function):
    """The image's gradient, or a transposed convolution."""

    @staticmethod
    def forward(ctx: Any, g: Any, w: Any, bias: Any, how: Any, launch: Any = None) -> Any:
        keep(ctx, g, w, bias, how[1:])
        return CONV_GRAD_INPUT((g, w, bias), how, launch)

    @staticmethod
    def backward(ctx: Any, h: Any) -> Any:
        (g, w), needed = saved(ctx), ctx.needs_input_grad
        _, second, places, how = ctx.how
        gg = result_of(h, w, None, how) if needed[0] else None
        gw = weight_of(h, g, second, how) if needed[1] else None
        gb = _summed(h, places) if needed[2] else None
        return gg, gw, gb, None, None


@CONV_GRAD_WEIGHT.differentiated
class ConvGradWeight(Function):
    """The filters' gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, g: Any, how: Any) -> Any:
        keep(ctx, x, g, None, how[1:])
        return CONV_GRAD_WEIGHT((x, g), how)

    @staticmethod
    def backward(ctx: Any, h: Any) -> Any:
        (x, g), needed = saved(ctx), ctx.needs_input_grad
        first, _, _, how = ctx.how
        gx = input_of(g, h, None, first, how) if needed[0] else None
        gg = result_of(x, h, None, how) if needed[1] else None
        return gx, gg, None


def keep(ctx: Any, a: torch.Tensor, b: torch.Tensor, bias: Any, how: Any) -> None:
    """For the gradients of ``a`` and ``b``: each is kept where the other's gradient is wanted."""
    needed = ctx.needs_input_grad
    ctx.save_for_backward(a if needed[1] else None, b if needed[0] else None)
    ctx.how = a.shape, b.shape, bias is not None and bias.ndim > 1, how


def _summed(g: Any, places: bool) -> Any:
    """The gradient of a bias."""
    return g.sum(0) if places else g.sum((0, *range(2, g.ndim)))


def result_of(x: Any, w: Any, bias: Any, how: Any) -> Any:
    """y from x and w."""
    if bias is None or _fused():
        return compute(CONV, (x, w, bias), how)
    y = compute(CONV, (x, w, None), how)
    return y + spread(bias, y.ndim)


def input_of(g: Any, w: Any, bias: Any, size: Any, how: Any) -> Any:
    """The image that y's gradient g and w give."""
    if bias is None or _fused():
        return compute(CONV_GRAD_INPUT, (g, w, bias), (size, *how))
    x = compute(CONV_GRAD_INPUT, (g, w, None), (size, *how))
    return x + spread(bias, x.ndim)


def _fused() -> bool:
    """Whether an operator adds the bias, which takes fewer steps; a compiler joins the addition with what comes after it."""
    return not torch.compiler.is_compiling()


def weight_of(x: Any, g: Any, size: Any, how: Any) -> Any:
    """The filters that x and y's gradient g give."""
    return compute(CONV_GRAD_WEIGHT, (x, g), (size, *how))
