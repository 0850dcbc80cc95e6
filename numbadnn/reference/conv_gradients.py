"""Gradients of transposed and separable convolutions, from the definition of ``reference/conv.py``, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.reference.conv import _forward, _grad_inputs, _grad_weights
from numbadnn.reference.conv_geometry import Float64, _Parameters

ONES = (1, 1, 1)


def conv2d_transpose_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    input_dilation: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
) -> Float64:
    """The adjoint of ``conv2d_transpose`` in its input: the forward convolution.

    >>> conv2d_transpose_grad_wrt_inputs([[[[1.0, 2.0, 3.0]]]], [[[[1.0, 10.0]]]]).ravel()
    array([12., 23.])
    """
    p = _Parameters(border_mode, input_dilation, filter_flip, filter_dilation, num_groups, unshared)
    return _forward(2, output_grad, filters, (None, filter_shape), p)


def conv2d_transpose_grad_wrt_weights(
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    border_mode: Any = "valid",
    input_dilation: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
) -> Float64:
    """The adjoint of ``conv2d_transpose`` in its filters.

    >>> conv2d_transpose_grad_wrt_weights([[[[1.0, 1.0]]]], [[[[1.0, 2.0, 3.0]]]], (1, 1, 1, 2)).ravel()
    array([5., 3.])
    """
    p = _Parameters(border_mode, input_dilation, filter_flip, filter_dilation, num_groups, unshared)
    return _grad_weights(2, output_grad, input, filter_shape, None, p)


def conv3d_transpose_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    input_dilation: Any = ONES,
    filter_flip: bool = True,
    filter_dilation: Any = ONES,
    num_groups: int = 1,
) -> Float64:
    """The adjoint of ``conv3d_transpose`` in its input: the forward convolution.

    >>> conv3d_transpose_grad_wrt_inputs([[[[[1.0, 2.0, 3.0]]]]], [[[[[1.0, 10.0]]]]]).ravel()
    array([12., 23.])
    """
    p = _Parameters(border_mode, input_dilation, filter_flip, filter_dilation, num_groups, False)
    return _forward(3, output_grad, filters, (None, filter_shape), p)


def conv3d_transpose_grad_wrt_weights(
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    border_mode: Any = "valid",
    input_dilation: Any = ONES,
    filter_flip: bool = True,
    filter_dilation: Any = ONES,
    num_groups: int = 1,
) -> Float64:
    """The adjoint of ``conv3d_transpose`` in its filters.

    >>> conv3d_transpose_grad_wrt_weights([[[[[1.0, 1.0]]]]], [[[[[1.0, 2.0, 3.0]]]]], (1, 1, 1, 1, 2)).ravel()
    array([5., 3.])
    """
    p = _Parameters(border_mode, input_dilation, filter_flip, filter_dilation, num_groups, False)
    return _grad_weights(3, output_grad, input, filter_shape, None, p)


def _mixing(axes: int) -> _Parameters:
    """The parameters of a pointwise convolution."""
    return _Parameters("valid", (1,) * axes, True, (1,) * axes, 1)


def _middle(axes: int, output_grad: Any, pointwise_filters: Any) -> Float64:
    """The gradient in what the depthwise convolution gave."""
    grad, filters = np.asarray(output_grad), np.asarray(pointwise_filters)
    shape = (grad.shape[0], filters.shape[1], *grad.shape[2:])
    return _grad_inputs(axes, grad, filters, shape, None, _mixing(axes))


def _both(
    axes: int, input: Any, depthwise_filters: Any, pointwise_filters: Any, output_grad: Any, p: _Parameters
) -> tuple[Float64, Float64]:
    middle = _forward(axes, input, depthwise_filters, (None, None), p)
    pointwise = _grad_weights(axes, middle, output_grad, np.shape(pointwise_filters), None, _mixing(axes))
    grad = _middle(axes, output_grad, pointwise_filters)
    return _grad_weights(axes, input, grad, np.shape(depthwise_filters), None, p), pointwise


def separable_conv2d_grad_wrt_inputs(
    output_grad: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    num_channels: int,
    input_shape: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
) -> Float64:
    """The adjoint of ``separable_conv2d`` in its input."""
    middle = _middle(2, output_grad, pointwise_filters)
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_channels)
    return _grad_inputs(2, middle, depthwise_filters, input_shape, None, p)


def separable_conv2d_grad_wrt_weights(
    input: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    output_grad: Any,
    num_channels: int,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
) -> tuple[Float64, Float64]:
    """The adjoints of ``separable_conv2d`` in the depthwise and in the pointwise filters."""
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_channels)
    return _both(2, input, depthwise_filters, pointwise_filters, output_grad, p)


def separable_conv3d_grad_wrt_inputs(
    output_grad: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    num_channels: int,
    input_shape: Any,
    border_mode: Any = "valid",
    subsample: Any = ONES,
    filter_flip: bool = True,
    filter_dilation: Any = ONES,
) -> Float64:
    """The adjoint of ``separable_conv3d`` in its input."""
    middle = _middle(3, output_grad, pointwise_filters)
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_channels)
    return _grad_inputs(3, middle, depthwise_filters, input_shape, None, p)


def separable_conv3d_grad_wrt_weights(
    input: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    output_grad: Any,
    num_channels: int,
    border_mode: Any = "valid",
    subsample: Any = ONES,
    filter_flip: bool = True,
    filter_dilation: Any = ONES,
) -> tuple[Float64, Float64]:
    """The adjoints of ``separable_conv3d`` in the depthwise and in the pointwise filters."""
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_channels)
    return _both(3, input, depthwise_filters, pointwise_filters, output_grad, p)
