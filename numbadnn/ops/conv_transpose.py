"""Transposed convolutions, which upsample, and their gradients.

Each hands the caller's arguments as they are, with its builder, to the dispatcher; they are looked at on a miss alone.
"""

from __future__ import annotations

from typing import Any, Never

from numbadnn import dispatch
from numbadnn.ops import conv_build as build
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Accuracy, Algo, Backend, Precision


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
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Transposed convolution: the gradient of a ``conv2d`` with respect to its input, used forwards to upsample.

    out[n, c, i*sh + r*dh - top, j*sw + s*dw - left] += x[n, k, i, j] * w[k, c, R-1-r, S-1-s] over all k, i, j, r, s.

    input: (N, K, P, Q); filters: (K, C/num_groups, R, S), *input* channels first; output_shape: (N, C, H, W), the first two may
    be None; result (N, C, H, W). ``input_dilation`` is the subsample of the convolution this is the gradient of: so far lie
    the input's pixels apart in the output. ``border_mode`` is that convolution's too and crops. With ``filter_flip=False`` it
    is PyTorch's conv_transpose2d. Other parameters, dtypes and errors as conv2d; ValueError where output_shape does not fit.
    Source: docs/explanation/semantics.md#transposed-convolutions.

    >>> import numpy as np, numbadnn
    >>> x, w = np.ones((1, 1, 2, 2), "float32"), np.ones((1, 1, 2, 2), "float32")
    >>> numbadnn.conv2d_transpose(x, w, (1, 1, 3, 3))[0, 0]
    array([[1., 2., 1.],
           [2., 4., 2.],
           [1., 2., 1.]], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        output_shape, filter_shape, border_mode, input_dilation, filter_flip, filter_dilation, num_groups, unshared, 1.0, 0.0,
        algo, precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv2d_transpose, input, filters, params, backend, out, stream)


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
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``conv2d_transpose`` with respect to its input, its exact adjoint: the convolution itself.

    output_grad: (N, C, H, W); filters: (K, C/num_groups, R, S), as in the forward call; result (N, K, P, Q). It is
    ``conv2d(output_grad, filters, subsample=input_dilation)``. Other parameters, dtypes and errors as conv2d.
    Source: docs/explanation/semantics.md#transposed-convolutions.

    >>> import numpy as np, numbadnn
    >>> g, w = np.ones((1, 1, 3, 3), "float32"), np.ones((1, 1, 2, 2), "float32")
    >>> numbadnn.conv2d_transpose_grad_wrt_inputs(g, w).ravel()
    array([4., 4., 4., 4.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        None, filter_shape, border_mode, input_dilation, filter_flip, filter_dilation, num_groups, unshared, 1.0, 0.0, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv2d_transpose_grad_wrt_inputs, output_grad, filters, params, backend, out, stream)


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
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``conv2d_transpose`` with respect to its filters, its exact adjoint.

    input: (N, K, P, Q); output_grad: (N, C, H, W); filter_shape: (K, C/num_groups, R, S), all but the sizes may be None;
    result of that shape. It is ``conv2d_grad_wrt_weights`` of the two arrays exchanged. Other parameters, dtypes and errors as
    conv2d_grad_wrt_weights.
    Source: docs/explanation/semantics.md#transposed-convolutions.

    >>> import numpy as np, numbadnn
    >>> x, g = np.ones((1, 1, 2, 2), "float32"), np.ones((1, 1, 3, 3), "float32")
    >>> numbadnn.conv2d_transpose_grad_wrt_weights(x, g, (1, 1, 2, 2)).ravel()
    array([4., 4., 4., 4.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        filter_shape, None, border_mode, input_dilation, filter_flip, filter_dilation, num_groups, unshared, 1.0, 0.0, algo,
        precision, accuracy,
    )  # fmt: skip
    weights = build.conv2d_transpose_grad_wrt_weights
    return dispatch.call2_reversed(weights, input, output_grad, params, backend, out, stream)


def conv3d_transpose(
    input: Any,
    filters: Any,
    output_shape: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    input_dilation: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Transposed convolution of volumes: the gradient of a ``conv3d`` with respect to its input, used forwards.

    input: (N, K, O, P, Q); filters: (K, C/num_groups, T, R, S), *input* channels first; output_shape: (N, C, D, H, W), the
    first two may be None; result of that shape. The rest as conv2d_transpose.
    Source: docs/explanation/semantics.md#transposed-convolutions.

    >>> import numpy as np, numbadnn
    >>> x, w = np.ones((1, 1, 2, 1, 1), "float32"), np.ones((1, 1, 2, 1, 1), "float32")
    >>> numbadnn.conv3d_transpose(x, w, (1, 1, 3, 1, 1)).ravel()
    array([1., 2., 1.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        output_shape, filter_shape, border_mode, input_dilation, filter_flip, filter_dilation, num_groups, False, 1.0, 0.0, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv3d_transpose, input, filters, params, backend, out, stream)


def conv3d_transpose_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    input_dilation: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``conv3d_transpose`` with respect to its input, its exact adjoint: the convolution itself.

    output_grad: (N, C, D, H, W); filters: (K, C/num_groups, T, R, S), as in the forward call; result (N, K, O, P, Q). It is
    ``conv3d(output_grad, filters, subsample=input_dilation)``. Other parameters, dtypes and errors as conv3d.
    Source: docs/explanation/semantics.md#transposed-convolutions.

    >>> import numpy as np, numbadnn
    >>> g, w = np.ones((1, 1, 3, 1, 1), "float32"), np.ones((1, 1, 2, 1, 1), "float32")
    >>> numbadnn.conv3d_transpose_grad_wrt_inputs(g, w).ravel()
    array([2., 2.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        None, filter_shape, border_mode, input_dilation, filter_flip, filter_dilation, num_groups, False, 1.0, 0.0, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv3d_transpose_grad_wrt_inputs, output_grad, filters, params, backend, out, stream)


def conv3d_transpose_grad_wrt_weights(
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    border_mode: Any = "valid",
    input_dilation: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``conv3d_transpose`` with respect to its filters, its exact adjoint.

    input: (N, K, O, P, Q); output_grad: (N, C, D, H, W); filter_shape: (K, C/num_groups, T, R, S), all but the sizes may be None;
    result of that shape. It is ``conv3d_grad_wrt_weights`` of the two arrays exchanged. Other parameters, dtypes and errors as
    conv3d_grad_wrt_weights.
    Source: docs/explanation/semantics.md#transposed-convolutions.

    >>> import numpy as np, numbadnn
    >>> x, g = np.ones((1, 1, 2, 1, 1), "float32"), np.ones((1, 1, 3, 1, 1), "float32")
    >>> numbadnn.conv3d_transpose_grad_wrt_weights(x, g, (1, 1, 2, 1, 1)).ravel()
    array([2., 2.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        filter_shape, None, border_mode, input_dilation, filter_flip, filter_dilation, num_groups, False, 1.0, 0.0, algo,
        precision, accuracy,
    )  # fmt: skip
    weights = build.conv3d_transpose_grad_wrt_weights
    return dispatch.call2_reversed(weights, input, output_grad, params, backend, out, stream)
