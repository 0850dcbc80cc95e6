"""Convolutions of lines (N, C, L): conv1d, causal_conv1d and the gradients of both.

Each hands the caller's arguments as they are, with its builder, to the dispatcher; they are looked at on a miss alone.
"""

from __future__ import annotations

from typing import Any, Never

from numbadnn import dispatch
from numbadnn.ops import conv_arranged as arranged
from numbadnn.ops import conv_build as build
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Accuracy, Algo, Backend, Precision


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
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """1-D convolution of lines with filters: ``conv2d`` with one spatial axis.

    y[n,k,q] = sum over c,s of x[n, c, q*subsample + s*filter_dilation - left] * w[k, c, S-1-s].

    input: (N, C, L); filters: (K, C/num_groups, S); result (N, K, Q), times ``alpha``, plus ``beta * out``, with
    Q = floor((L + left + right - ((S-1)*filter_dilation + 1)) / subsample) + 1. ``border_mode``: 'valid', 'full', 'half', an
    integer, or ((left, right),). ``unshared=True``: a filter for each position of the output, (K, Q, C/num_groups, S). It runs
    as the conv2d of images of one row, (N, C, 1, L), which no array is copied for; ``explain`` and ``last_call`` show that
    problem. Other parameters, dtypes and errors as conv2d.
    Source: docs/explanation/semantics.md#convolutions-of-lines.

    >>> import numpy as np, numbadnn
    >>> x, w = np.arange(5, dtype="float32").reshape(1, 1, 5), np.array([[[1, 0, -1]]], "float32")
    >>> numbadnn.conv1d(x, w).ravel(), numbadnn.conv1d(x, w, border_mode=((2, 0),), subsample=2).ravel()
    (array([2., 2., 2.], dtype=float32), array([0., 2., 2.], dtype=float32))
    """
    if unknown:
        refuse(unknown)
    params = (
        input_shape, filter_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha, beta, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv1d, input, filters, params, backend, out, stream)


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
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``conv1d`` with respect to its input, its exact adjoint: <conv1d(x), g> = <x, this(g)>.

    output_grad: (N, K, Q); filters: (K, C/num_groups, S), or unshared; input_shape: (N, C, L), the first two may be None;
    result (N, C, L), times ``alpha``, plus ``beta * out``. The rest as conv2d_grad_wrt_inputs.
    Source: docs/explanation/semantics.md#convolutions-of-lines.

    >>> import numpy as np, numbadnn
    >>> g, w = np.ones((1, 1, 1), "float32"), np.arange(3, dtype="float32").reshape(1, 1, 3)
    >>> numbadnn.conv1d_grad_wrt_inputs(g, w, (1, 1, 3)).ravel()
    array([2., 1., 0.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        input_shape, filter_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha, beta, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv1d_grad_wrt_inputs, output_grad, filters, params, backend, out, stream)


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
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``conv1d`` with respect to its filters, its exact adjoint: <conv1d(x, w), g> = <w, this(x, g)>.

    input: (N, C, L); output_grad: (N, K, Q); filter_shape: (K, C/num_groups, S), all but the last may be None, unshared
    (K, Q, C/num_groups, S); result of that shape, times ``alpha``, plus ``beta * out``. The rest as conv2d_grad_wrt_weights.
    Source: docs/explanation/semantics.md#convolutions-of-lines.

    >>> import numpy as np, numbadnn
    >>> x, g = np.arange(3, dtype="float32").reshape(1, 1, 3), np.ones((1, 1, 1), "float32")
    >>> numbadnn.conv1d_grad_wrt_weights(x, g, (1, 1, 3)).ravel()
    array([2., 1., 0.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        filter_shape, input_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha, beta, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv1d_grad_wrt_weights, input, output_grad, params, backend, out, stream)


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
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Convolution in time that sees nothing of the future: each output sums the input at its own time and before.

    y[n,k,t] = sum over c,j of w[k,c,j] * x[n, c, t*subsample - filter_dilation*j], x being 0 before its beginning.

    input: (N, C, T); filters: (K, C/num_groups, S); result (N, K, (T-1)//subsample + 1). With ``filter_flip=False`` the
    filter's last entry meets the present, not its first. ``unshared=True``: a filter for each output, (K, T', C/num_groups, S);
    in Theano that could never work. The document says "till t-1", its code and this include t. Other parameters, dtypes
    and errors as conv2d; ValueError for arrays that have not three axes.
    Source: docs/explanation/semantics.md#causal-convolutions.

    >>> import numpy as np, numbadnn
    >>> x, w = np.arange(1, 6, dtype="float32").reshape(1, 1, 5), np.array([[[1, 10, 100]]], "float32")
    >>> numbadnn.causal_conv1d(x, w).ravel()
    array([  1.,  12., 123., 234., 345.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        input_shape, filter_shape, None, subsample, filter_flip, filter_dilation, num_groups, unshared, 1.0, 0.0,
        algo, precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(arranged.causal, input, filters, params, backend, out, stream)


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
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``causal_conv1d`` with respect to its input, its exact adjoint.

    dx[n,c,t] = sum over k,j of w[k,c,j] * g[n, k, (t + filter_dilation*j) / subsample], where that is an output's number.

    output_grad: (N, K, T'); filters: (K, C/num_groups, S), unshared (K, T', C/num_groups, S); input_shape: (N, C, T), the
    first two may be None; result of that shape. The rest as conv1d_grad_wrt_inputs.
    Source: docs/explanation/semantics.md#causal-convolutions.

    >>> import numpy as np, numbadnn
    >>> g, w = np.array([[[0, 0, 1]]], "float32"), np.array([[[1, 10]]], "float32")
    >>> numbadnn.causal_conv1d_grad_wrt_inputs(g, w, (1, 1, 3)).ravel()
    array([ 0., 10.,  1.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        input_shape, filter_shape, None, subsample, filter_flip, filter_dilation, num_groups, unshared, 1.0, 0.0, algo, precision,
        accuracy,
    )  # fmt: skip
    return dispatch.call2(arranged.causal_grad_wrt_inputs, output_grad, filters, params, backend, out, stream)


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
    *,
    algo: Algo | None = None,
    precision: Precision | None = None,
    accuracy: Accuracy | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``causal_conv1d`` with respect to its filters, its exact adjoint.

    dw[k,c,j] = sum over n,t of g[n,k,t] * x[n, c, t*subsample - filter_dilation*j], x being 0 before its beginning.

    input: (N, C, T); output_grad: (N, K, T'); filter_shape: (K, C/num_groups, S), all but the last may be None, unshared
    (K, T', C/num_groups, S); result of that shape. The rest as conv1d_grad_wrt_weights.
    Source: docs/explanation/semantics.md#causal-convolutions.

    >>> import numpy as np, numbadnn
    >>> x, g = np.array([[[1, 2, 3]]], "float32"), np.array([[[0, 0, 1]]], "float32")
    >>> numbadnn.causal_conv1d_grad_wrt_weights(x, g, (1, 1, 2)).ravel()
    array([3., 2.], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (
        filter_shape, input_shape, None, subsample, filter_flip, filter_dilation, num_groups, unshared, 1.0, 0.0, algo, precision,
        accuracy,
    )  # fmt: skip
    return dispatch.call2(arranged.causal_grad_wrt_weights, input, output_grad, params, backend, out, stream)
