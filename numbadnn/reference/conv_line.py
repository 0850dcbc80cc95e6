"""Convolutions with one spatial axis, plain and causal, and their gradients, from the definition of ``reference/conv.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.reference.conv import _forward, _grad_inputs, _grad_weights
from numbadnn.reference.conv_geometry import Float64, _counts, _Parameters


def conv1d(
    input: Any,
    filters: Any,
    input_shape: Any = None,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = 1,
    filter_flip: bool = True,
    filter_dilation: Any = 1,
    num_groups: int = 1,
    unshared: bool = False,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Float64:
    """(N, C, L) and (F, C/g, S) giving (N, F, Q); unshared filters are (F, Q, C/g, S).

    >>> conv1d([[[1.0, 2.0, 3.0]]], [[[1.0, 10.0]]]).ravel()
    array([12., 23.])
    """
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha, beta, out)
    return _forward(1, input, filters, (input_shape, filter_shape), p)


def conv1d_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    input_shape: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = 1,
    filter_flip: bool = True,
    filter_dilation: Any = 1,
    num_groups: int = 1,
    unshared: bool = False,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Float64:
    """The adjoint of ``conv1d`` in its input.

    >>> conv1d_grad_wrt_inputs([[[1.0, 1.0]]], [[[1.0, 10.0]]], (1, 1, 3)).ravel()
    array([10., 11.,  1.])
    """
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha, beta, out)
    return _grad_inputs(1, output_grad, filters, input_shape, filter_shape, p)


def conv1d_grad_wrt_weights(
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    input_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = 1,
    filter_flip: bool = True,
    filter_dilation: Any = 1,
    num_groups: int = 1,
    unshared: bool = False,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Float64:
    """The adjoint of ``conv1d`` in its filters.

    >>> conv1d_grad_wrt_weights([[[1.0, 2.0, 3.0]]], [[[1.0, 1.0]]], (1, 1, 2)).ravel()
    array([5., 3.])
    """
    p = _Parameters(border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha, beta, out)
    return _grad_weights(1, input, output_grad, filter_shape, input_shape, p)


def _past(taps: int, subsample: Any, flip: Any, dilation: Any, groups: Any, unshared: Any) -> _Parameters:
    """The parameters of a causal convolution: as far padded before its beginning as the filters reach."""
    (step,) = _counts("filter_dilation", dilation, 1, 1)
    return _Parameters((((taps - 1) * step, 0),), subsample, flip, dilation, groups, unshared)


def causal_conv1d(
    input: Any,
    filters: Any,
    filter_shape: Any = None,
    input_shape: Any = None,
    subsample: Any = 1,
    filter_flip: bool = True,
    filter_dilation: Any = 1,
    num_groups: int = 1,
    unshared: bool = False,
) -> Float64:
    """(N, C, T) and (F, C/g, S) giving (N, F, T'), one axis padded on its left alone; unshared filters are (F, T', C/g, S).

    >>> causal_conv1d([[[1.0, 2.0, 3.0, 4.0, 5.0]]], [[[1.0, 10.0, 100.0]]])
    array([[[  1.,  12., 123., 234., 345.]]])
    """
    p = _past(np.shape(filters)[-1], subsample, filter_flip, filter_dilation, num_groups, unshared)
    return _forward(1, input, filters, (input_shape, filter_shape), p)


def causal_conv1d_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    input_shape: Any,
    filter_shape: Any = None,
    subsample: Any = 1,
    filter_flip: bool = True,
    filter_dilation: Any = 1,
    num_groups: int = 1,
    unshared: bool = False,
) -> Float64:
    """The adjoint of ``causal_conv1d`` in its input.

    >>> causal_conv1d_grad_wrt_inputs([[[0.0, 0.0, 1.0]]], [[[1.0, 10.0]]], (1, 1, 3)).ravel()
    array([ 0., 10.,  1.])
    """
    p = _past(np.shape(filters)[-1], subsample, filter_flip, filter_dilation, num_groups, unshared)
    return _grad_inputs(1, output_grad, filters, input_shape, filter_shape, p)


def causal_conv1d_grad_wrt_weights(
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    input_shape: Any = None,
    subsample: Any = 1,
    filter_flip: bool = True,
    filter_dilation: Any = 1,
    num_groups: int = 1,
    unshared: bool = False,
) -> Float64:
    """The adjoint of ``causal_conv1d`` in its filters.

    >>> causal_conv1d_grad_wrt_weights([[[1.0, 2.0, 3.0]]], [[[0.0, 0.0, 1.0]]], (1, 1, 2)).ravel()
    array([3., 2.])
    """
    p = _past(filter_shape[-1], subsample, filter_flip, filter_dilation, num_groups, unshared)
    return _grad_weights(1, input, output_grad, filter_shape, input_shape, p)
