"""From the arguments of a convolution to its problem: every check that can fail, once per distinct call.

A builder gets the arrays' views and the parameters as the caller gave them; a warm call never comes here. The public functions
all hand over the same parameters in the same order (``Parameters``), so that one builder a direction serves two and
three axes, and the transposed functions, which only call their arguments otherwise.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numbadnn import config, dispatch, parameters, shape_arguments, shapes
from numbadnn.arrays import View
from numbadnn.call.operands import input_spec, output_spec, result_dtype
from numbadnn.dispatch import Request
from numbadnn.problem import Spec
from numbadnn.problems.conv import OPERATIONS, ConvProblem, check_channels, check_regions, ours

Build = Callable[[list[View], list[View], tuple[Any, ...]], Request]


class Parameters(NamedTuple):
    """What stands behind the arrays, as the caller gave it; ``hints`` are shapes (of image, or of filters, first)."""

    hint: Any
    hint2: Any
    border_mode: Any
    subsample: Any
    filter_flip: Any
    filter_dilation: Any
    num_groups: Any
    unshared: Any
    alpha: Any
    beta: Any
    algo: Any
    precision: Any
    accuracy: Any = None

    @staticmethod
    def of(params: tuple[Any, ...]) -> Parameters:
        """The parameters, after the one that all else depends on is known to be a truth value."""
        p = Parameters(*params)
        return p._replace(unshared=truth("unshared", p.unshared))


class Names(NamedTuple):
    """What a function calls its arguments."""

    first: str = "input"
    second: str = "filters"
    image_shape: str = "input_shape"
    filter_shape: str = "filter_shape"
    subsample: str = "subsample"
    dilation: str = "filter_dilation"
    groups: str = "num_groups"
    axes: str = "rows, columns"


class _Geometry:
    """The checked parameters that all directions share."""

    def __init__(self, kernel: tuple[int, ...], p: Parameters, names: Names, window: str = "") -> None:
        """``window`` is the argument that says how large the filters are: that of the filters, unless it is another."""
        axes = len(kernel)
        self.window = window or names.second
        parameters.positive_ints(f"sizes of {self.window}", kernel, axes)
        self.stride = parameters.positive_ints(names.subsample, p.subsample, axes)
        self.dilation = parameters.positive_ints(names.dilation, p.filter_dilation, axes)
        self.padding = shapes.padding_pairs(p.border_mode, kernel, self.dilation)
        self.groups = groups_of(p.num_groups, names.groups)
        self.flip = truth("filter_flip", p.filter_flip)
        self.alpha, self.beta = _number("alpha", p.alpha), _number("beta", p.beta)

    def output_shape(self, image: tuple[int, ...], filters: tuple[int, ...]) -> tuple[int, ...]:
        shape = shapes.get_conv_output_shape(image, filters, self.padding, self.stride, self.dilation)
        if any(n is not None and n <= 0 for n in shape[2:]):
            kernel = filters[-len(self.stride) :]
            window = tuple((k - 1) * d + 1 for k, d in zip(kernel, self.dilation, strict=True))
            raise ValueError(
                f"{self.window}: expected a (dilated) window no larger than the padded image, got window {window} on image "
                f"{image[2:]} padded by {self.padding}"
            )
        return shape  # type: ignore[return-value]

    def request(self, op: str, x: Spec, w: Spec, y: Spec, p: Parameters) -> Request:
        problem = ConvProblem(
            op, x, w, y, self.padding, self.stride, self.dilation, self.flip, self.groups, self.alpha, self.beta
        )
        return request(problem, p)


_ALGO_OPTION = {"forward": "algo_fwd", "grad_inputs": "algo_bwd_data", "grad_weights": "algo_bwd_filter"}


def request(problem: ConvProblem, p: Parameters) -> Request:
    """The problem with the call's own algorithm, precision and accuracy."""
    option = _ALGO_OPTION[problem.direction]
    own = (named("algo", option, p.algo), named("precision", "precision", p.precision), option)
    return Request(problem, *own, named("accuracy", "accuracy", p.accuracy))


def groups_of(value: Any, name: str = "num_groups") -> int:
    try:
        return parameters.as_int(name, value, 1)
    except ValueError:
        raise ValueError(f"{name} must have value greater than zero: expected an integer >= 1, got {value!r}") from None


def truth(name: str, value: Any) -> bool:
    """As a key it must mean what it means here: what equals True or False is that."""
    if not isinstance(value, (numbers.Number, np.bool_)) or value not in (0, 1):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def check_hint(name: str, hint: Any, shape: tuple[int, ...], whose: str = "the array's own shape") -> None:
    """A shape hint may leave entries None; it never alters the result and must not contradict the array."""
    if hint is None:
        return
    if not isinstance(hint, (tuple, list)) or len(hint) != len(shape):
        raise ValueError(f"{name}: expected None or a tuple of length {len(shape)}, got {hint!r}")
    if any(h is not None and h != n for h, n in zip(hint, shape, strict=True)):
        raise ValueError(f"{name}: expected {whose} {shape} (None = any), got {tuple(hint)}")


def check_rank(name: str, view: View, rank: int) -> None:
    if len(view.shape) != rank:
        raise ValueError(f"{name}: expected {rank} dimensions, got {len(view.shape)} (shape {view.shape})")


def check_filter_rank(name: str, view: View, axes: int, unshared: Any) -> None:
    """Filters have axes + 2 dimensions, unshared ones axes more; ValueError, and TypeError for the latter, as specified."""
    if unshared and len(view.shape) != 2 * axes + 2:
        raise TypeError(
            f"{name}: expected {2 * axes + 2} dimensions because unshared=True (filters, output position, channels, "
            f"sizes), got {len(view.shape)} (shape {view.shape})"
        )
    if not unshared:
        check_rank(name, view, axes + 2)


def named(argument: str, option: str, value: Any) -> Any:
    """A call's own value of an option: None, or one of the option's values, else ValueError."""
    if value is not None:
        config.parse(option, value, argument)
    return value


def _number(name: str, value: Any) -> float:
    try:
        return parameters.real(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name}: expected a number, got {value!r}") from None


def out_view(out_views: list[View], beta: float = 0.0) -> View | None:
    if beta and not out_views:
        raise ValueError(f"out: required when beta is not 0 (beta={beta:g}), got None")
    if len(out_views) > 1:
        raise ValueError(f"out: expected one array, got a tuple of {len(out_views)}")
    return out_views[0] if out_views else None


# ---- one builder a direction -----------------------------------------------------------------------------------------


def forward(op: str, names: Names) -> Build:
    """A builder of (image, filters) with hints of their shapes."""
    axes = OPERATIONS[op].axes

    @dispatch.operation(names.first, names.second)
    def build(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
        (image, filters), p = views, Parameters.of(params)
        check_rank(names.first, image, axes + 2)
        check_filter_rank(names.second, filters, axes, p.unshared)
        geometry = _Geometry(filters.shape[-axes:], p, names)
        check_channels(image.shape, filters.shape, geometry.groups, axes, names.first, names.second, names.groups)
        check_hint(names.image_shape, p.hint, image.shape)
        check_hint(names.filter_shape, p.hint2, filters.shape)
        dtype = result_dtype(views)
        shape = geometry.output_shape(image.shape, filters.shape)
        check_regions(filters.shape, shape, axes, names.second)
        y = output_spec(shape, dtype, image, out_view(out_views, geometry.beta))
        return geometry.request(op, input_spec(image, dtype), input_spec(filters, dtype), y, p)

    return build


def grad_inputs(op: str, names: Names) -> Build:
    """A builder of (top, filters); the image's shape comes first among the parameters and must be given."""
    axes = OPERATIONS[op].axes

    @dispatch.operation(names.first, names.second)
    def build(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
        (top, filters), p = views, Parameters.of(params)
        check_rank(names.first, top, axes + 2)
        check_filter_rank(names.second, filters, axes, p.unshared)
        geometry = _Geometry(filters.shape[-axes:], p, names)
        if top.shape[1] != filters.shape[0]:
            raise ValueError(f"{names.first}: expected {filters.shape[0]} channels (one a filter), got {top.shape[1]}")
        given = p.hint
        if not isinstance(given, (tuple, list)) or len(given) != axes + 2 or None in given[2:]:
            raise ValueError(
                f"{names.image_shape}: expected (batch, channels, {names.axes}), the last {axes} integers, got {given!r}"
            )
        sizes = (parameters.as_int(names.image_shape, n, 0) for n in given[2:])
        shape = (top.shape[0], filters.shape[-axes - 1] * geometry.groups, *sizes)
        check_hint(names.image_shape, given, shape, f"by {names.first} and {names.second}")
        check_hint(names.filter_shape, p.hint2, filters.shape)
        check_channels(shape, filters.shape, geometry.groups, axes, names.image_shape, names.second)
        expected = geometry.output_shape(shape, filters.shape)
        if expected != top.shape:
            given_name = names.first if names.image_shape == "output_shape" else "topgrad"  # the specification's words
            raise ValueError(
                f"invalid {names.image_shape} for gradInputs: the given {names.image_shape} would produce an output of "
                f"shape {expected}, but the given {given_name} has shape {top.shape}"
            )
        check_regions(filters.shape, expected, axes, names.second)
        dtype = result_dtype(views)
        x = output_spec(shape, dtype, top, out_view(out_views, geometry.beta))
        return geometry.request(op, x, input_spec(filters, dtype), input_spec(top, dtype), p)

    return build


def grad_weights(op: str, names: Names) -> Build:
    """A builder of (image, top); the filters' shape comes first among the parameters and must be given."""
    axes = OPERATIONS[op].axes

    @dispatch.operation(names.first, names.second)
    def build(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
        (image, top), p = views, Parameters.of(params)
        check_rank(names.first, image, axes + 2)
        check_rank(names.second, top, axes + 2)
        given, rank = p.hint, 2 * axes + 2 if p.unshared else axes + 2
        if not isinstance(given, (tuple, list)) or len(given) != rank or None in given[-axes:]:
            regions = f" {names.axes} of the output," if p.unshared else ""
            raise ValueError(
                f"{names.filter_shape}: expected (filters,{regions} channels, {names.axes}), the last {axes} integers, "
                f"got {given!r}"
            )
        kernel = parameters.positive_ints(names.filter_shape, tuple(given[-axes:]), axes)
        geometry = _Geometry(kernel, p, names, names.filter_shape)
        if image.shape[1] % geometry.groups:
            raise ValueError(
                f"num_groups: expected a divisor of the {image.shape[1]} channels of {names.first}, got {geometry.groups}"
            )
        regions_of = top.shape[2:] if p.unshared else ()
        shape = (top.shape[1], *regions_of, image.shape[1] // geometry.groups, *kernel)
        check_hint(names.filter_shape, given, shape, f"by {names.first} and {names.second}")
        check_hint(names.image_shape, p.hint2, image.shape)
        check_channels(image.shape, shape, geometry.groups, axes, names.first, names.second)
        expected = (image.shape[0], *geometry.output_shape(image.shape, shape)[1:])
        if expected != top.shape:
            raise ValueError(f"{names.second}: expected shape {expected}, got {top.shape}")
        dtype = result_dtype(views)
        w = output_spec(shape, dtype, image, out_view(out_views, geometry.beta))
        return geometry.request(op, input_spec(image, dtype), w, input_spec(top, dtype), p)

    return build


# ---- arrays in other axes --------------------------------------------------------------------------------------------


@dispatch.operation("input", "filters")
def causal(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    """causal_conv1d: an image of one row, padded on its left so that no output sees what comes after it."""
    (line, filters), p = views, Parameters.of(params)
    check_rank("input", line, 3)
    check_filter_rank("filters", filters, 1, p.unshared)
    stride = parameters.as_int("subsample", p.subsample, 1)
    dilation = parameters.as_int("filter_dilation", p.filter_dilation, 1)
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


TWO = Names()
THREE = Names(axes="depth, rows, columns")
TOP = {"first": "output_grad"}
TRANSPOSED = {"image_shape": "output_shape", "subsample": "input_dilation"}

conv2d = forward("conv2d", TWO)
conv2d_grad_wrt_inputs = grad_inputs("conv2d_grad_wrt_inputs", TWO._replace(**TOP))
conv2d_grad_wrt_weights = grad_weights("conv2d_grad_wrt_weights", TWO._replace(second="output_grad"))
conv3d = forward("conv3d", THREE)
conv3d_grad_wrt_inputs = grad_inputs("conv3d_grad_wrt_inputs", THREE._replace(**TOP))
conv3d_grad_wrt_weights = grad_weights("conv3d_grad_wrt_weights", THREE._replace(second="output_grad"))
DEPTHWISE = {"second": "depthwise_filters", "filter_shape": "depthwise_filter_shape", "groups": "num_channels"}
POINTWISE = {"second": "pointwise_filters", "filter_shape": "pointwise_filter_shape"}

depthwise2d, depthwise3d = (forward(f"conv{n}d", names._replace(**DEPTHWISE)) for n, names in ((2, TWO), (3, THREE)))
pointwise2d, pointwise3d = (forward(f"conv{n}d", names._replace(**POINTWISE)) for n, names in ((2, TWO), (3, THREE)))
conv2d_transpose = grad_inputs("conv2d_grad_wrt_inputs", TWO._replace(**TRANSPOSED))
conv3d_transpose = grad_inputs("conv3d_grad_wrt_inputs", THREE._replace(**TRANSPOSED))
