"""conv3d and what is made of convolutions, from the definition of ``reference/conv.py``, in float64."""

from __future__ import annotations

from typing import Any

from numbadnn.reference.conv import _forward, _grad_inputs, _grad_weights, conv2d
from numbadnn.reference.conv_geometry import Float64, _agree, _float64, _Parameters

ONES = (1, 1, 1)


def conv3d(
    input: Any,
    filters: Any,
    input_shape: Any = None,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = ONES,
    filter_flip: bool = True,
    filter_dilation: Any = ONES,
    num_groups: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Float64:
    """``conv2d`` with three spatial axes: (N, C, D, H, W) and (F, C/g, T, R, S) giving (N, F, O, P, Q).

    >>> conv3d([[[[[1.0]], [[2.0]], [[3.0]]]]], [[[[[1.0]], [[10.0]]]]]).ravel()
    array([12., 23.])
    """
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_groups, False, alpha, beta, out)
    return _forward(3, input, filters, (input_shape, filter_shape), p)


def conv3d_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    input_shape: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = ONES,
    filter_flip: bool = True,
    filter_dilation: Any = ONES,
    num_groups: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Float64:
    """The adjoint of ``conv3d`` in its input.

    >>> conv3d_grad_wrt_inputs([[[[[1.0, 1.0]]]]], [[[[[1.0, 10.0]]]]], (1, 1, 1, 1, 3)).ravel()
    array([10., 11.,  1.])
    """
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_groups, False, alpha, beta, out)
    return _grad_inputs(3, output_grad, filters, input_shape, filter_shape, p)


def conv3d_grad_wrt_weights(
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    input_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = ONES,
    filter_flip: bool = True,
    filter_dilation: Any = ONES,
    num_groups: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Float64:
    """The adjoint of ``conv3d`` in its filters.

    >>> conv3d_grad_wrt_weights([[[[[1.0, 2.0, 3.0]]]]], [[[[[1.0, 1.0]]]]], (1, 1, 1, 1, 2)).ravel()
    array([5., 3.])
    """
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_groups, False, alpha, beta, out)
    return _grad_weights(3, input, output_grad, filter_shape, input_shape, p)


def conv2d_transpose(
    input: Any,
    filters: Any,
    output_shape: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    input_dilation: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
) -> Float64:
    """``conv2d_grad_wrt_inputs`` of the convolution whose subsample is ``input_dilation``; filters have input channels first.

    >>> conv2d_transpose([[[[1.0, 1.0]]]], [[[[1.0, 10.0]]]], (1, 1, 1, 3), filter_flip=False)
    array([[[[ 1., 11., 10.]]]])
    """
    p = _Parameters(border_mode, input_dilation, filter_flip, filter_dilation, num_groups, unshared)
    return _grad_inputs(2, input, filters, output_shape, filter_shape, p)


def conv3d_transpose(
    input: Any,
    filters: Any,
    output_shape: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    input_dilation: Any = ONES,
    filter_flip: bool = True,
    filter_dilation: Any = ONES,
    num_groups: int = 1,
) -> Float64:
    """``conv3d_grad_wrt_inputs`` of the convolution whose subsample is ``input_dilation``; filters have input channels first.

    >>> conv3d_transpose([[[[[1.0, 1.0]]]]], [[[[[1.0, 10.0]]]]], (1, 1, 1, 1, 3)).ravel()
    array([10., 11.,  1.])
    """
    p = _Parameters(border_mode, input_dilation, filter_flip, filter_dilation, num_groups, False)
    return _grad_inputs(3, input, filters, output_shape, filter_shape, p)


def conv3d2d(
    signals: Any,
    filters: Any,
    signals_shape: Any = None,
    filters_shape: Any = None,
    border_mode: Any = "valid",
) -> Float64:
    """``conv3d`` of (N, T, C, H, W) and (F, S, C, R, S') giving (N, T', F, H', W'); a border mode, or one for each axis.

    >>> conv3d2d([[[[[1.0]]], [[[2.0]]], [[[3.0]]]]], [[[[[1.0]]], [[[10.0]]]]]).ravel()
    array([12., 23.])
    """
    x, w = _float64("signals", signals, 5), _float64("filters", filters, 5)
    _agree("signals_shape", signals_shape, x.shape)
    _agree("filters_shape", filters_shape, w.shape)
    modes = (border_mode,) * 3 if isinstance(border_mode, str) else border_mode
    sizes = (w.shape[1], *w.shape[3:])
    known = [{"valid": 0, "full": k - 1, "half": k // 2} for k in sizes]
    padding = tuple(k[m] for k, m in zip(known, modes, strict=True))
    p = _Parameters(padding, ONES, True, ONES, 1)
    return _forward(3, x.swapaxes(1, 2), w.swapaxes(1, 2), (None, None), p).swapaxes(1, 2)


def separable_conv2d(
    input: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    num_channels: int,
    input_shape: Any = None,
    depthwise_filter_shape: Any = None,
    pointwise_filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
) -> Float64:
    """``conv2d`` with a group for each channel, then ``conv2d`` with filters of size 1.

    >>> separable_conv2d([[[[1.0]], [[2.0]]]], [[[[3.0]]], [[[4.0]]]], [[[[1.0]], [[1.0]]]], 2).ravel()
    array([11.])
    """
    args = (border_mode, subsample, filter_flip, filter_dilation, num_channels)
    middle = conv2d(input, depthwise_filters, input_shape, depthwise_filter_shape, *args)
    return conv2d(middle, pointwise_filters, None, pointwise_filter_shape)


def separable_conv3d(
    input: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    num_channels: int,
    input_shape: Any = None,
    depthwise_filter_shape: Any = None,
    pointwise_filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = ONES,
    filter_flip: bool = True,
    filter_dilation: Any = ONES,
) -> Float64:
    """``conv3d`` with a group for each channel, then ``conv3d`` with filters of size 1.

    >>> separable_conv3d([[[[[1.0]]], [[[2.0]]]]], [[[[[3.0]]]], [[[[4.0]]]]], [[[[[1.0]]], [[[1.0]]]]], 2).ravel()
    array([11.])
    """
    args = (border_mode, subsample, filter_flip, filter_dilation, num_channels)
    middle = conv3d(input, depthwise_filters, input_shape, depthwise_filter_shape, *args)
    return conv3d(middle, pointwise_filters, None, pointwise_filter_shape)
