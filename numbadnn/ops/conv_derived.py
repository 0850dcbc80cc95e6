"""What is made of convolutions: transposed, separable, causal, and conv3d on frames.

Each hands the caller's arguments as they are, with its builder, to the dispatcher; they are looked at on a miss alone.
"""

from __future__ import annotations

from typing import Any

from numbadnn import dispatch, parameters
from numbadnn.call.operands import check_apart, named_view
from numbadnn.ops import conv_build as build


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
    algo: str | None = None,
    precision: str | None = None,
    accuracy: str | None = None,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
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
    params = (
        output_shape, filter_shape, border_mode, input_dilation, filter_flip, filter_dilation, num_groups, unshared, 1.0, 0.0,
        algo, precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv2d_transpose, input, filters, params, backend, out, stream)


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
    algo: str | None = None,
    precision: str | None = None,
    accuracy: str | None = None,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
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
    params = (
        output_shape, filter_shape, border_mode, input_dilation, filter_flip, filter_dilation, num_groups, False, 1.0, 0.0, algo,
        precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.conv3d_transpose, input, filters, params, backend, out, stream)


def causal_conv1d(
    input: Any,
    filters: Any,
    filter_shape: Any = None,
    input_shape: Any = None,
    subsample: int = 1,
    filter_flip: bool = True,
    filter_dilation: int = 1,
    num_groups: int = 1,
    unshared: bool = False,
    *,
    algo: str | None = None,
    precision: str | None = None,
    accuracy: str | None = None,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
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
    params = (
        input_shape, filter_shape, None, subsample, filter_flip, filter_dilation, num_groups, unshared, 1.0, 0.0,
        algo, precision, accuracy,
    )  # fmt: skip
    return dispatch.call2(build.causal, input, filters, params, backend, out, stream)


def conv3d2d(
    signals: Any,
    filters: Any,
    signals_shape: Any = None,
    filters_shape: Any = None,
    border_mode: Any = "valid",
    *,
    algo: str | None = None,
    precision: str | None = None,
    accuracy: str | None = None,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """``conv3d`` of signals whose axis of time comes before the channels; all three axes of the filters are flipped.

    signals: (N, T, C, H, W); filters: (K, S, C, R, S'); result (N, T', K, H', W') as conv3d gives it on the same
    memory seen as (N, C, T, H, W). ``border_mode`` is 'valid', 'full' or 'half', or a tuple of three of them (time, rows,
    columns; Theano took two that agree for rows and columns). The shapes are hints. Dtypes and errors as conv3d.
    Source: docs/explanation/semantics.md#convolutions-of-frames.

    >>> import numpy as np, numbadnn
    >>> x, w = np.ones((1, 3, 2, 2, 2), "float32"), np.ones((1, 2, 2, 2, 2), "float32")
    >>> numbadnn.conv3d2d(x, w)[0, :, 0, 0, 0]
    array([16., 16.], dtype=float32)
    """
    params = (
        signals_shape, filters_shape, border_mode, None, True, None, 1, False, 1.0, 0.0, algo, precision, accuracy
    )  # fmt: skip
    return dispatch.call2(build.frames, signals, filters, params, backend, out, stream)


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
    algo: str | None = None,
    precision: str | None = None,
    accuracy: str | None = None,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
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
    params = border_mode, subsample, filter_flip, filter_dilation, num_channels
    hints = input_shape, depthwise_filter_shape, pointwise_filter_shape
    return _separable(
        2, input, depthwise_filters, pointwise_filters, hints, params, (algo, precision, accuracy), backend, out, stream
    )


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
    algo: str | None = None,
    precision: str | None = None,
    accuracy: str | None = None,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """``separable_conv2d`` of volumes: one more axis of depth before rows and columns, everywhere.

    input: (N, C, D, H, W); depthwise_filters: (C*M, 1, T, R, S); pointwise_filters: (K, C*M, 1, 1, 1).
    Source: docs/explanation/semantics.md#separable-convolutions.

    >>> import numpy as np, numbadnn
    >>> x, depthwise = np.ones((1, 2, 2, 2, 2), "float32"), np.ones((2, 1, 2, 2, 2), "float32")
    >>> numbadnn.separable_conv3d(x, depthwise, np.ones((1, 2, 1, 1, 1), "float32"), 2).ravel()
    array([16.], dtype=float32)
    """
    params = border_mode, subsample, filter_flip, filter_dilation, num_channels
    hints = input_shape, depthwise_filter_shape, pointwise_filter_shape
    return _separable(
        3, input, depthwise_filters, pointwise_filters, hints, params, (algo, precision, accuracy), backend, out, stream
    )


_BUILDS = {2: (build.depthwise2d, build.pointwise2d), 3: (build.depthwise3d, build.pointwise3d)}


def _separable(
    axes: int,
    input: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    hints: tuple[Any, Any, Any],
    params: tuple[Any, Any, Any, Any, Any],
    how: tuple[Any, Any, Any],
    backend: Any,
    out: Any,
    stream: Any,
) -> Any:
    """``params``: border_mode, subsample, filter_flip, filter_dilation, num_channels; ``how``: algo, precision, accuracy."""
    flip, channels = params[2], params[4]
    _check_separable(axes, input, depthwise_filters, pointwise_filters, channels, backend, out)
    depthwise, pointwise = _BUILDS[axes]
    rest = (False, 1.0, 0.0, *how)
    middle = dispatch.call2(depthwise, input, depthwise_filters, (*hints[:2], *params, *rest), backend, None, stream)
    ones = (1,) * axes
    second = (None, hints[2], "valid", ones, flip, ones, 1, *rest)
    return dispatch.call2(pointwise, middle, pointwise_filters, second, backend, out, stream)


def _check_separable(
    axes: int, input: Any, depthwise_filters: Any, pointwise_filters: Any, num_channels: Any, backend: Any, out: Any
) -> None:
    """What the two convolutions would not notice, as the second knows nothing of the first's operands, or too late."""
    if isinstance(backend, dispatch.Intercept):
        raise TypeError(f"separable_conv{axes}d is two convolutions: ask for the plan of each conv{axes}d by itself")
    image, filters = named_view(input, "input"), named_view(pointwise_filters, "pointwise_filters")
    depthwise = named_view(depthwise_filters, "depthwise_filters")
    named = (("input", image), ("depthwise_filters", depthwise), ("pointwise_filters", filters))
    for name, view in named:
        build.check_rank(name, view, axes + 2)
    if parameters.as_int("num_channels", num_channels, 1) != image.shape[1]:
        raise ValueError(f"num_channels: expected input's {image.shape[1]} channels, got {num_channels}")
    if out is not None:
        check_apart(out if isinstance(out, tuple) else (out,), [image, depthwise, filters])
    if set(filters.shape[2:]) != {1}:
        raise ValueError(f"pointwise_filters: expected sizes {(1,) * axes}, got {filters.shape[2:]}")
    if filters.shape[1] != depthwise.shape[0]:
        raise ValueError(
            f"pointwise_filters: expected {depthwise.shape[0]} channels, as many as depthwise_filters has filters, got "
            f"{filters.shape[1]}"
        )
