"""The builders of convolutions whose arrays are not as conv2d's: causal_conv1d and its gradients, conv3d on frames."""

from __future__ import annotations

from typing import Any

from numbadnn import dispatch, parameters, shape_arguments, shapes
from numbadnn.arrays import View
from numbadnn.call.operands import input_spec, output_spec, result_dtype
from numbadnn.dispatch import Request
from numbadnn.ops import conv_build
from numbadnn.ops.conv_build import (
    Build,
    Parameters,
    check_filter_rank,
    check_hint,
    check_rank,
    groups_of,
    out_view,
    request,
    truth,
)
from numbadnn.problems.conv import ConvProblem, check_channels, check_regions, ours


@dispatch.operation("input", "filters")
def causal(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    """causal_conv1d: an image of one row, padded on its left so that no output sees what comes after it."""
    (line, filters), p = views, Parameters.of(params)
    check_rank("input", line, 3)
    check_filter_rank("filters", filters, 1, p.unshared)
    (stride,) = parameters.per_axis("subsample", p.subsample, 1)
    (dilation,) = parameters.per_axis("filter_dilation", p.filter_dilation, 1)
    groups = groups_of(p.num_groups)
    check_channels(line.shape, filters.shape, groups, 1, "input", "filters")
    check_hint("input_shape", p.hint, line.shape)
    check_hint("filter_shape", p.hint2, filters.shape)
    past = (parameters.as_int("filters' last axis", filters.shape[-1], 1) - 1) * dilation
    shape = (*line.shape[:1], filters.shape[0], shapes.get_conv_shape_1axis(line.shape[2], 1, "valid", stride) or 0)
    if shape[2] <= 0:
        raise ValueError(f"input: expected at least one step of time, got shape {line.shape}")
    check_regions(filters.shape, shape, 1, "filters")
    dtype = result_dtype(views)
    y = output_spec(shape, dtype, line, out_view(out_views))
    x, w, y = (ours("causal_conv1d", s) for s in (input_spec(line, dtype), input_spec(filters, dtype), y))
    padding, flip = ((0, 0), (past, 0)), truth("filter_flip", p.filter_flip)
    problem = ConvProblem("causal_conv1d", x, w, y, padding, (1, stride), (1, dilation), flip, groups)
    return request(problem, p)


@dispatch.operation("signals", "filters")
def frames(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    """conv3d2d: conv3d on arrays with time before channels."""
    (signals, filters), p = views, Parameters.of(params)
    check_rank("signals", signals, 5)
    check_rank("filters", filters, 5)
    check_hint("signals_shape", p.hint, signals.shape)
    check_hint("filters_shape", p.hint2, filters.shape)
    if filters.shape[2] != signals.shape[2]:
        raise ValueError(f"filters: expected {signals.shape[2]} channels as signals has, got {filters.shape[2]}")
    kernel = parameters.positive_ints("sizes of filters", (filters.shape[1], *filters.shape[3:]), 3)
    padding = _frames_padding(p.border_mode, kernel)
    dtype = result_dtype(views)
    image = (signals.shape[0], signals.shape[2], signals.shape[1], *signals.shape[3:])
    inner = shapes.get_conv_output_shape(image, (filters.shape[0], image[1], *kernel), padding, (1, 1, 1))
    if any(n is None or n <= 0 for n in inner[2:]):
        raise ValueError(f"filters: expected sizes no larger than signals' {image[2:]}, got {kernel}")
    shape: Any = (inner[0], inner[2], inner[1], *inner[3:])
    y = output_spec(shape, dtype, signals, out_view(out_views))
    x, w, y = (ours("conv3d2d", s) for s in (input_spec(signals, dtype), input_spec(filters, dtype), y))
    return request(ConvProblem("conv3d2d", x, w, y, padding, (1, 1, 1), (1, 1, 1)), p)


def _frames_padding(border_mode: Any, kernel: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """A name, or a tuple of three (time, rows, columns); NotImplementedError for 'same', as the specification has it."""
    modes = (border_mode,) * 3 if isinstance(border_mode, str) else border_mode
    if isinstance(modes, tuple) and "same" in modes:
        raise NotImplementedError(f"border_mode: 'same' is not implemented, use 'half', got {border_mode!r}")
    if not isinstance(modes, tuple) or len(modes) != 3 or any(m not in shape_arguments.BORDER_NAMES for m in modes):
        raise ValueError(
            f"border_mode: expected one of {', '.join(shape_arguments.BORDER_NAMES)}, or a tuple of three of them (time, rows, "
            f"columns), got {border_mode!r}"
        )
    pairs = (shapes.padding_pairs(m, (k,)) for m, k in zip(modes, kernel, strict=True))
    return tuple(pair for (pair,) in pairs)


def _causal_gradient(inner: Build, *names: str) -> Build:
    """A builder of conv1d's gradient, padded as causal_conv1d is: so far before its beginning as its filters reach."""

    @dispatch.operation(*names)
    def build(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
        p = Parameters.of(params)
        (stride,) = parameters.per_axis("subsample", p.subsample, 1)
        (dilation,) = parameters.per_axis("filter_dilation", p.filter_dilation, 1)
        taps = p.hint if "filters" not in names else views[1].shape
        if not isinstance(taps, (tuple, list)) or not taps or taps[-1] is None:
            raise ValueError(f"filter_shape: expected (filters, channels, length), the last an integer, got {taps!r}")
        past = (parameters.as_int("filters' last axis", taps[-1], 1) - 1) * dilation
        padded = p._replace(border_mode=((past, 0),), subsample=stride, filter_dilation=dilation)
        return inner(views, out_views, tuple(padded))

    return build


causal_grad_wrt_inputs = _causal_gradient(conv_build.conv1d_grad_wrt_inputs, "output_grad", "filters")
causal_grad_wrt_weights = _causal_gradient(conv_build.conv1d_grad_wrt_weights, "input", "output_grad")
