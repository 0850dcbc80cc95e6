"""The convolutions and their gradients, as users call them.

Each hands the caller's arguments as they are, with its builder, to the dispatcher; they are looked at on a miss alone.
"""

from __future__ import annotations

from typing import Any, Never

from numbadnn import dispatch
from numbadnn.ops import conv_build as build
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Accuracy, Algo, Backend, Precision


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
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """2-D convolution of images with filters, as neural networks mean it.

    y[n,k,p,q] = sum over c,r,s of x[n, c, p*sh + r*dh - top, q*sw + s*dw - left] * w[k, c, R-1-r, S-1-s].

    input: (N, C, H, W); filters: (K, C/num_groups, R, S); result (N, K, P, Q), times ``alpha``, plus ``beta * out``, with
    P = floor((H + top + bottom - ((R-1)*dh + 1)) / sh) + 1. With ``filter_flip=False`` the filter is not rotated
    (cross-correlation). ``border_mode``: 'valid' (no padding), 'full' (dilated window - 1), 'half' (dilated window // 2),
    an integer, a pair, or a pair of (before, after) pairs. ``unshared=True``: a filter for each position of the output,
    (K, P, Q, C/num_groups, R, S). float16, bfloat16, float32, float64; mixed dtypes upcast. ``algo``, ``precision``
    and ``accuracy`` as the options algo_fwd, precision and accuracy.
    Source: docs/explanation/semantics.md#convolutions.

    Raises ValueError for shapes or parameters that do not fit, TypeError for other arrays (and for unshared filters that have
    not six axes), NotSupportedError when no implementation that the options admit can do it.

    >>> import numpy as np, numbadnn
    >>> x = np.arange(9, dtype="float32").reshape(1, 1, 3, 3)
    >>> numbadnn.conv2d(x, np.ones((1, 1, 2, 2), "float32"))[0, 0]
    array([[ 8., 12.],
           [20., 24.]], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        input_shape, filter_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha, beta, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv2d, input, filters, params, backend, out, stream)


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
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``conv2d`` with respect to its input, its exact adjoint: <conv2d(x), g> = <x, this(g)>.

    output_grad: (N, K, P, Q); filters: (K, C/num_groups, R, S), or unshared; input_shape: (N, C, H, W), the first two may be
    None; result (N, C, H, W), times ``alpha``, plus ``beta * out``. With a stride several H fit one P: pixels that no window
    reaches get 0. Other parameters, dtypes and errors as conv2d; ValueError where input_shape does not produce
    output_grad's shape. Source: docs/explanation/semantics.md#gradients.

    >>> import numpy as np, numbadnn
    >>> g, w = np.ones((1, 1, 1, 1), "float32"), np.arange(4, dtype="float32").reshape(1, 1, 2, 2)
    >>> numbadnn.conv2d_grad_wrt_inputs(g, w, (1, 1, 2, 2))[0, 0]
    array([[3., 2.],
           [1., 0.]], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        input_shape, filter_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha, beta, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv2d_grad_wrt_inputs, output_grad, filters, params, backend, out, stream)


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
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``conv2d`` with respect to its filters, its exact adjoint: <conv2d(x, w), g> = <w, this(x, g)>.

    input: (N, C, H, W); output_grad: (N, K, P, Q); filter_shape: (K, C/num_groups, R, S), all but the last two may be None;
    result of that shape (rotated like the filters when ``filter_flip``), times ``alpha``, plus ``beta * out``. Unshared,
    filter_shape and result are (K, P, Q, C/num_groups, R, S), and each filter's gradient sums over the images alone. Other
    parameters, dtypes and errors as conv2d. Source: docs/explanation/semantics.md#gradients.

    >>> import numpy as np, numbadnn
    >>> x, g = np.arange(4, dtype="float32").reshape(1, 1, 2, 2), np.ones((1, 1, 1, 1), "float32")
    >>> numbadnn.conv2d_grad_wrt_weights(x, g, (1, 1, 2, 2))[0, 0]
    array([[3., 2.],
           [1., 0.]], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        filter_shape, input_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha, beta, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv2d_grad_wrt_weights, input, output_grad, params, backend, out, stream)


def conv3d(
    input: Any,
    filters: Any,
    input_shape: Any = None,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """3-D convolution of volumes with filters: ``conv2d`` with a third spatial axis before the others.

    y[n,k,o,p,q] = sum over c,t,r,s of x[n, c, o*sd + t*dd - front, ...] * w[k, c, T-1-t, R-1-r, S-1-s].

    input: (N, C, D, H, W); filters: (K, C/num_groups, T, R, S); result (N, K, O, P, Q), times ``alpha``, plus
    ``beta * out``. Parameters, dtypes and errors as conv2d, with three entries where it has two; padding may differ between
    the sides here too (in the specification's source in two axes alone), and groups and dilation are free.
    Source: docs/explanation/semantics.md#convolutions.

    >>> import numpy as np, numbadnn
    >>> x = np.ones((1, 1, 3, 2, 2), "float32")
    >>> numbadnn.conv3d(x, np.ones((1, 1, 2, 2, 2), "float32")).ravel()
    array([8., 8.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        input_shape, filter_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, False, alpha, beta, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv3d, input, filters, params, backend, out, stream)


def conv3d_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    input_shape: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``conv3d`` with respect to its input, its exact adjoint: <conv3d(x), g> = <x, this(g)>.

    output_grad: (N, K, O, P, Q); filters: (K, C/num_groups, T, R, S); input_shape: (N, C, D, H, W), the first two may be
    None; result of that shape, times ``alpha``, plus ``beta * out``. The rest as conv2d_grad_wrt_inputs.
    Source: docs/explanation/semantics.md#gradients.

    >>> import numpy as np, numbadnn
    >>> g, w = np.ones((1, 1, 1, 1, 1), "float32"), np.arange(2, dtype="float32").reshape(1, 1, 2, 1, 1)
    >>> numbadnn.conv3d_grad_wrt_inputs(g, w, (1, 1, 2, 1, 1)).ravel()
    array([1., 0.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        input_shape, filter_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, False, alpha, beta, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv3d_grad_wrt_inputs, output_grad, filters, params, backend, out, stream)


def conv3d_grad_wrt_weights(
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    input_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``conv3d`` with respect to its filters, its exact adjoint: <conv3d(x, w), g> = <w, this(x, g)>.

    input: (N, C, D, H, W); output_grad: (N, K, O, P, Q); filter_shape: (K, C/num_groups, T, R, S), the first two may be
    None; result of that shape, times ``alpha``, plus ``beta * out``. The rest as conv2d_grad_wrt_weights.
    Source: docs/explanation/semantics.md#gradients.

    >>> import numpy as np, numbadnn
    >>> x, g = np.arange(2, dtype="float32").reshape(1, 1, 2, 1, 1), np.ones((1, 1, 1, 1, 1), "float32")
    >>> numbadnn.conv3d_grad_wrt_weights(x, g, (1, 1, 2, 1, 1)).ravel()
    array([1., 0.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        filter_shape, input_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, False, alpha, beta, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv3d_grad_wrt_weights, input, output_grad, params, backend, out, stream)
