"""The steps of separable convolutions and of their gradients: two convolutions each, the second on what the first gave."""

from __future__ import annotations

from typing import Any

from numbadnn import dispatch, parameters
from numbadnn.arrays import View
from numbadnn.call.operands import check_apart, check_out, named_view, output_spec, result_dtype
from numbadnn.ops import conv_build as build

#: algo, precision, accuracy
How = tuple[Any, Any, Any]
#: border_mode, subsample, filter_flip, filter_dilation, num_channels
Params = tuple[Any, Any, Any, Any, Any]


def separable(
    axes: int,
    input: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    hints: tuple[Any, Any, Any],
    params: Params,
    how: How,
    backend: Any,
    out: Any,
    stream: Any,
) -> Any:
    """The depthwise convolution, then the pointwise one; ``hints``: the shapes of the three arrays, or None."""
    flip, channels = params[2], params[4]
    _check(axes, "", input, depthwise_filters, pointwise_filters, channels, backend, out)
    rest = (False, 1.0, 0.0, *how)
    middle = dispatch.call2(
        DEPTHWISE[axes][0], input, depthwise_filters, (*hints[:2], *params, *rest), backend, None, stream
    )
    second = (None, hints[2], *_mixing(axes, flip), *rest)
    return dispatch.call2(POINTWISE[axes][0], middle, pointwise_filters, second, backend, out, stream)


def _mixing(axes: int, flip: Any) -> tuple[Any, ...]:
    """The parameters of a pointwise convolution, from border_mode to num_groups."""
    ones = (1,) * axes
    return ("valid", ones, flip, ones, 1)


def grad_inputs(
    axes: int,
    arrays: tuple[Any, Any, Any],
    input_shape: Any,
    params: Params,
    how: How,
    backend: Any,
    out: Any,
    stream: Any,
) -> Any:
    """From (output_grad, depthwise_filters, pointwise_filters): the pointwise gradient, then the depthwise one."""
    output_grad, depthwise_filters, pointwise_filters = arrays
    if not isinstance(input_shape, (tuple, list)) or len(input_shape) != axes + 2:
        raise ValueError(f"input_shape: expected {axes + 2} numbers, (batch, channels, sizes), got {input_shape!r}")
    views = _check(
        axes, "_grad_wrt_inputs", None, depthwise_filters, pointwise_filters, params[4], backend, out, output_grad
    )
    middle = _middle_grad(
        axes, output_grad, views["output_grad"].shape, pointwise_filters, params[2], how, backend, stream
    )
    back = (input_shape, None, *params, False, 1.0, 0.0, *how)
    return dispatch.call2(DEPTHWISE[axes][1], middle, depthwise_filters, back, backend, out, stream)


def _middle_grad(
    axes: int,
    output_grad: Any,
    top: tuple[int, ...],
    pointwise_filters: Any,
    flip: Any,
    how: How,
    backend: Any,
    stream: Any,
) -> Any:
    """The gradient in what the depthwise convolution gave; ``top``: output_grad's shape, which not every array shows."""
    params = ((None, None, *top[2:]), None, *_mixing(axes, flip), False, 1.0, 0.0, *how)
    return dispatch.call2(POINTWISE[axes][1], output_grad, pointwise_filters, params, backend, None, stream)


def grad_weights(
    axes: int, arrays: tuple[Any, Any, Any, Any], params: Params, how: How, backend: Any, out: Any, stream: Any
) -> Any:
    """From (input, depthwise_filters, pointwise_filters, output_grad): the gradients in both filters."""
    image, depthwise_filters, pointwise_filters, output_grad = arrays
    if out is not None and (not isinstance(out, tuple) or len(out) != 2):
        got = f"{len(out)} in a tuple" if isinstance(out, tuple) else type(out).__name__
        raise ValueError(
            f"out: expected a tuple of two arrays, of depthwise_filters' and pointwise_filters' gradient, got {got}"
        )
    views = _check(
        axes, "_grad_wrt_weights", image, depthwise_filters, pointwise_filters, params[4], backend, out, output_grad
    )
    if out is not None:
        _check_outs(out, views)
    depthwise, top = views["depthwise_filters"].shape, views["output_grad"].shape
    first, second = out or (None, None)
    rest = (False, 1.0, 0.0, *how)
    forward = (None, None, *params, *rest)
    middle = dispatch.call2(DEPTHWISE[axes][0], image, depthwise_filters, forward, backend, None, stream)
    mixed = (views["pointwise_filters"].shape, None, *_mixing(axes, params[2]), *rest)
    pointwise = dispatch.call2(POINTWISE[axes][2], middle, output_grad, mixed, backend, second, stream)
    grad = _middle_grad(axes, output_grad, top, pointwise_filters, params[2], how, backend, stream)
    back = (depthwise, None, *params, *rest)
    return dispatch.call2(DEPTHWISE[axes][2], image, grad, back, backend, first, stream), pointwise


def _check_outs(outs: tuple[Any, ...], views: dict[str, View]) -> None:
    """Two calls write, the second after the first has: what it would refuse is refused before."""
    image, depthwise, pointwise, top = views.values()
    for view, filters, others in zip(
        check_out(outs, [image]),
        (depthwise, pointwise),
        ([image, top, pointwise], [image, depthwise, top]),
        strict=True,
    ):
        output_spec(filters.shape, result_dtype(others), filters, view)


def _check(
    axes: int,
    what: str,
    input: Any,
    depthwise_filters: Any,
    pointwise_filters: Any,
    num_channels: Any,
    backend: Any,
    out: Any,
    output_grad: Any = None,
) -> dict[str, View]:
    """The arrays' views, after what the convolutions would not notice, as the last knows nothing of the first's operands, or
    too late."""
    if isinstance(backend, dispatch.Intercept):
        raise TypeError(
            f"separable_conv{axes}d{what} is several convolutions: ask for the plan of each conv{axes}d{what} by itself"
        )
    given = (
        ("input", input), ("depthwise_filters", depthwise_filters), ("pointwise_filters", pointwise_filters),
        ("output_grad", output_grad),
    )  # fmt: skip
    views = {name: named_view(array, name) for name, array in given if array is not None}
    for name, view in views.items():
        build.check_rank(name, view, axes + 2)
    depthwise, filters = views["depthwise_filters"], views["pointwise_filters"]
    channels = parameters.as_int("num_channels", num_channels, 1)
    if input is not None and channels != views["input"].shape[1]:
        raise ValueError(f"num_channels: expected input's {views['input'].shape[1]} channels, got {num_channels}")
    if out is not None:
        check_apart(out if isinstance(out, tuple) else (out,), list(views.values()))
    if set(filters.shape[2:]) != {1}:
        raise ValueError(f"pointwise_filters: expected sizes {(1,) * axes}, got {filters.shape[2:]}")
    if filters.shape[1] != depthwise.shape[0]:
        raise ValueError(
            f"pointwise_filters: expected {depthwise.shape[0]} channels, as many as depthwise_filters has filters, got "
            f"{filters.shape[1]}"
        )
    return views


_NAMES = {2: build.TWO, 3: build.THREE}
_TOP = {"second": "output_grad"}


def _three(axes: int, names: dict[str, str]) -> tuple[build.Build, build.Build, build.Build]:
    """The builders of the convolution and of its gradients in the input and in the filters."""
    ours = _NAMES[axes]._replace(**names)
    back = (f"conv{axes}d", f"conv{axes}d_grad_wrt_inputs", f"conv{axes}d_grad_wrt_weights")
    forward, inputs, weights = back
    return (
        build.forward(forward, ours),
        build.grad_inputs(inputs, ours._replace(first="output_grad")),
        build.grad_weights(weights, ours._replace(**_TOP)),
    )


DEPTHWISE = {axes: _three(axes, build.DEPTHWISE) for axes in _NAMES}
POINTWISE = {axes: _three(axes, build.POINTWISE) for axes in _NAMES}
