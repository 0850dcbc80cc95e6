"""Separable convolutions, each channel with filters of its own and then 1x1 filters that mix, and their gradients."""

from __future__ import annotations

from typing import Any, Never

from numbadnn.ops.conv_separable_steps import grad_inputs, grad_weights, separable
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Accuracy, Algo, Backend, Precision


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
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Each channel with filters of its own, then 1x1 filters that mix the results.

    conv2d(conv2d(input, depthwise_filters, num_groups=num_channels, ...), pointwise_filters).

    input: (N, C, H, W) with C = num_channels; depthwise_filters: (C*M, 1, R, S); pointwise_filters: (K, C*M, 1, 1); result
    (N, K, P, Q). border_mode, subsample and filter_dilation belong to the first convolution. The shapes are hints. Dtypes
    and errors as conv2d; ValueError where num_channels is not the number of channels, or pointwise filters are no 1x1 ones.
    ``explain`` and ``plan`` are asked for each convolution by itself.
    Source: docs/explanation/semantics.md#separable-convolutions.

    >>> import numpy as np, numbadnn
    >>> x, depthwise = np.ones((1, 2, 3, 3), "float32"), np.ones((2, 1, 2, 2), "float32")
    >>> numbadnn.separable_conv2d(x, depthwise, np.ones((1, 2, 1, 1), "float32"), 2)[0, 0]
    array([[8., 8.],
           [8., 8.]], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = border_mode, subsample, filter_flip, filter_dilation, num_channels
    hints = input_shape, depthwise_filter_shape, pointwise_filter_shape
    return separable(
        2, input, depthwise_filters, pointwise_filters, hints, params, (algo, precision, accuracy), backend, out, stream
    )


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
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``separable_conv2d`` with respect to its input, its exact adjoint.

    output_grad: (N, K, P, Q); filters as in the forward call; input_shape: (N, C, H, W), the first two may be None; result of
    that shape. The pointwise gradient comes first, then the depthwise one. Dtypes and errors as conv2d_grad_wrt_inputs.
    Source: docs/explanation/semantics.md#separable-convolutions.

    >>> import numpy as np, numbadnn
    >>> g, w, mix = np.ones((1, 1, 1, 1), "float32"), np.ones((2, 1, 1, 2), "float32"), np.ones((1, 2, 1, 1), "float32")
    >>> numbadnn.separable_conv2d_grad_wrt_inputs(g, w, mix, 2, (1, 2, 1, 2)).ravel()
    array([1., 1., 1., 1.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    arrays, how = (output_grad, depthwise_filters, pointwise_filters), (algo, precision, accuracy)
    params = (border_mode, subsample, filter_flip, filter_dilation, num_channels)
    return grad_inputs(2, arrays, input_shape, params, how, backend, out, stream)


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
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradients of ``separable_conv2d`` with respect to both filters: (depthwise, pointwise), each of its filters' shape.

    input: (N, C, H, W); output_grad: (N, K, P, Q); filters as in the forward call, whose first convolution is
    computed again. ``out`` is a tuple of two. Dtypes and errors as conv2d_grad_wrt_weights.
    Source: docs/explanation/semantics.md#separable-convolutions.

    >>> import numpy as np, numbadnn
    >>> x, g = np.ones((1, 2, 1, 2), "float32"), np.ones((1, 1, 1, 1), "float32")
    >>> w, mix = np.ones((2, 1, 1, 2), "float32"), np.ones((1, 2, 1, 1), "float32")
    >>> [d.ravel().tolist() for d in numbadnn.separable_conv2d_grad_wrt_weights(x, w, mix, g, 2)]
    [[1.0, 1.0, 1.0, 1.0], [2.0, 2.0]]
    """
    if unknown:
        refuse(unknown)
    arrays, how = (input, depthwise_filters, pointwise_filters, output_grad), (algo, precision, accuracy)
    params = (border_mode, subsample, filter_flip, filter_dilation, num_channels)
    return grad_weights(2, arrays, params, how, backend, out, stream)


def separable_conv3d(
    input: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    num_channels: int,
    input_shape: Any = None,
    depthwise_filter_shape: Any = None,
    pointwise_filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """``separable_conv2d`` of volumes: one more axis of depth before rows and columns, everywhere.

    input: (N, C, D, H, W); depthwise_filters: (C*M, 1, T, R, S); pointwise_filters: (K, C*M, 1, 1, 1).
    Source: docs/explanation/semantics.md#separable-convolutions.

    >>> import numpy as np, numbadnn
    >>> x, depthwise = np.ones((1, 2, 2, 2, 2), "float32"), np.ones((2, 1, 2, 2, 2), "float32")
    >>> numbadnn.separable_conv3d(x, depthwise, np.ones((1, 2, 1, 1, 1), "float32"), 2).ravel()
    array([16.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = border_mode, subsample, filter_flip, filter_dilation, num_channels
    hints = input_shape, depthwise_filter_shape, pointwise_filter_shape
    return separable(
        3, input, depthwise_filters, pointwise_filters, hints, params, (algo, precision, accuracy), backend, out, stream
    )


def separable_conv3d_grad_wrt_inputs(
    output_grad: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    num_channels: int,
    input_shape: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``separable_conv3d`` with respect to its input, its exact adjoint.

    output_grad: (N, K, O, P, Q); filters as in the forward call; input_shape: (N, C, D, H, W), the first two may be None; result
    of that shape. The pointwise gradient comes first, then the depthwise one. Dtypes and errors as conv3d_grad_wrt_inputs.
    Source: docs/explanation/semantics.md#separable-convolutions.

    >>> import numpy as np, numbadnn
    >>> g, w, mix = np.ones((1, 1, 1, 1, 1), "float32"), np.ones((2, 1, 1, 1, 2), "float32"), np.ones((1, 2, 1, 1, 1), "float32")
    >>> numbadnn.separable_conv3d_grad_wrt_inputs(g, w, mix, 2, (1, 2, 1, 1, 2)).ravel()
    array([1., 1., 1., 1.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    arrays, how = (output_grad, depthwise_filters, pointwise_filters), (algo, precision, accuracy)
    params = (border_mode, subsample, filter_flip, filter_dilation, num_channels)
    return grad_inputs(3, arrays, input_shape, params, how, backend, out, stream)


def separable_conv3d_grad_wrt_weights(
    input: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    output_grad: Any,
    num_channels: int,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradients of ``separable_conv3d`` with respect to both filters: (depthwise, pointwise), each of its filters' shape.

    input: (N, C, D, H, W); output_grad: (N, K, O, P, Q); filters as in the forward call, whose first convolution is
    computed again. ``out`` is a tuple of two. Dtypes and errors as conv3d_grad_wrt_weights.
    Source: docs/explanation/semantics.md#separable-convolutions.

    >>> import numpy as np, numbadnn
    >>> x, g = np.ones((1, 2, 1, 1, 2), "float32"), np.ones((1, 1, 1, 1, 1), "float32")
    >>> w, mix = np.ones((2, 1, 1, 1, 2), "float32"), np.ones((1, 2, 1, 1, 1), "float32")
    >>> [d.ravel().tolist() for d in numbadnn.separable_conv3d_grad_wrt_weights(x, w, mix, g, 2)]
    [[1.0, 1.0, 1.0, 1.0], [2.0, 2.0]]
    """
    if unknown:
        refuse(unknown)
    arrays, how = (input, depthwise_filters, pointwise_filters, output_grad), (algo, precision, accuracy)
    params = (border_mode, subsample, filter_flip, filter_dilation, num_channels)
    return grad_weights(3, arrays, params, how, backend, out, stream)
