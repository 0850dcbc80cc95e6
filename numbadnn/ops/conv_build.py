"""From the arguments of a convolution to its problem: every check that can fail, once per distinct call.

A builder gets the arrays' views and the parameters as the caller gave them; a warm call never comes here. The public functions
all hand over the same parameters in the same order (``Parameters``), so that one builder a direction serves one, two and
three axes, and the transposed functions, which only call their arguments otherwise. A line (``axes=1``) is an image of one
row: its problem is conv2d's, which sees (N, C, L) as (N, C, 1, L).
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numbadnn import config, dispatch, parameters, shapes
from numbadnn.arrays import View
from numbadnn.call.operands import input_spec, output_spec, result_dtype
from numbadnn.call.seen import Seen
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


#: images no larger than this, with a window that is larger, are filters in the images' place
WINDOW = 7


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
        self.stride = parameters.per_axis(names.subsample, p.subsample, axes)
        self.dilation = parameters.per_axis(names.dilation, p.filter_dilation, axes)
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
                + "; the images come first"
                * (filters[1] == image[1] and max(image[2:]) <= WINDOW < max(window))
            )
        return shape  # type: ignore[return-value]

    def request(self, op: str, x: Spec, w: Spec, y: Spec, p: Parameters) -> Request:
        rest = (self.flip, self.groups, self.alpha, self.beta)
        if len(self.stride) == 1:
            a, b, c = (ours("causal_conv1d", s) for s in (x, w, y))
            padding, stride, dilation = ((0, 0), *self.padding), (1, *self.stride), (1, *self.dilation)
            problem = ConvProblem(op, a, b, c, padding, stride, dilation, *rest)
            return request(problem, p)._replace(seen=_lines(op, x, w, y))
        return request(ConvProblem(op, x, w, y, self.padding, self.stride, self.dilation, *rest), p)


#: rank of an array of lines -> the axes of an image of one row: (N, C, L), and filters a position, (K, P, C, S)
ROWS = {3: ((0,), (1,), (), (2,)), 4: ((0,), (), (1,), (2,), (), (3,))}


def _lines(op: str, x: Spec, w: Spec, y: Spec) -> Seen:
    """How a problem of images of one row sees the caller's arrays."""
    specs, operation = {"x": x, "w": w, "y": y}, OPERATIONS[op]
    made = specs[operation.output]
    return Seen(tuple(ROWS[len(specs[n].shape)] for n in operation.inputs), (ROWS[len(made.shape)],), (made,))


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


def check_hint(
    name: str, hint: Any, shape: tuple[int, ...], whose: str = "the array's own shape", cure: str = ""
) -> None:
    """A shape hint may leave entries None; it never alters the result and must not contradict the array."""
    if hint is None:
        return
    listed = isinstance(hint, (tuple, list))
    if listed and any(isinstance(h, float) for h in hint):
        cure = "; a bias is no argument, it is added to the result: y + bias.reshape(1, -1, 1, ...)"
    elif not listed or len(hint) == len(shape) - 2:
        cure = "; border_mode, subsample and all else behind the arrays are given by name"
    if not listed or len(hint) != len(shape):
        raise ValueError(f"{name}: expected None or a tuple of length {len(shape)}, got {hint!r}{cure}")
    if any(h is not None and h != n for h, n in zip(hint, shape, strict=True)):
        raise ValueError(f"{name}: expected {whose} {shape} (None = any), got {tuple(hint)}{cure}")


#: what functions call filters
FILTERS = ("filters", "kern", "depthwise_filters")


def check_rank(name: str, view: View, rank: int) -> None:
    of = "pointwise" if name == "pointwise_filters" else "filters" if name in FILTERS else "batch"
    parameters.check_rank(name, view.shape, rank, of=of)


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


def forward(op: str, names: Names, axes: int = 0) -> Build:
    """A builder of (image, filters) with hints of their shapes."""
    axes = axes or OPERATIONS[op].axes

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


def grad_inputs(op: str, names: Names, axes: int = 0) -> Build:
    """A builder of (top, filters); the image's shape comes first among the parameters and must be given."""
    axes = axes or OPERATIONS[op].axes

    @dispatch.operation(names.first, names.second)
    def build(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
        (top, filters), p = views, Parameters.of(params)
        check_rank(names.first, top, axes + 2)
        check_filter_rank(names.second, filters, axes, p.unshared)
        geometry = _Geometry(filters.shape[-axes:], p, names)
        if top.shape[1] != filters.shape[0]:
            order = f"; if its first two axes are the other way round: moveaxis({names.second}, 1, 0)"
            swapped = order if top.shape[1] == filters.shape[1] else ""
            raise ValueError(
                f"{names.first}: expected {filters.shape[0]} channels (one a filter), got {top.shape[1]}{swapped}"
            )
        given = p.hint
        if not isinstance(given, (tuple, list)) or len(given) != axes + 2 or None in given[2:]:
            along = zip(
                top.shape[2:], filters.shape[-axes:], geometry.stride, geometry.dilation, geometry.padding, strict=True
            )
            least = tuple((o - 1) * s + (k - 1) * d + 1 - low - high for o, k, s, d, (low, high) in along)
            raise ValueError(
                f"{names.image_shape}: expected (batch, channels, {names.axes}), the last {axes} integers, got {given!r}; "
                f"the least that fits is {(*top.shape[:1], filters.shape[-axes - 1] * geometry.groups, *least)}"
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


def grad_weights(op: str, names: Names, axes: int = 0) -> Build:
    """A builder of (image, top); the filters' shape comes first among the parameters and must be given."""
    axes = axes or OPERATIONS[op].axes

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
                f"got {given!r}; None stands for what the arrays say, as in "
                f"({', '.join(['None'] * (rank - axes))}{', 3' * axes})"
            )
        kernel = parameters.positive_ints(names.filter_shape, tuple(given[-axes:]), axes)
        geometry = _Geometry(kernel, p, names, names.filter_shape)
        if image.shape[1] % geometry.groups:
            raise ValueError(
                f"num_groups: expected a divisor of the {image.shape[1]} channels of {names.first}, got {geometry.groups}"
            )
        regions_of = top.shape[2:] if p.unshared else ()
        shape = (top.shape[1], *regions_of, image.shape[1] // geometry.groups, *kernel)
        last = parameters.channels_last(names.first, image.shape, (given[-axes - 1] or 0) * geometry.groups)
        check_hint(names.filter_shape, given, shape, f"by {names.first} and {names.second}", last)
        check_hint(names.image_shape, p.hint2, image.shape)
        check_channels(image.shape, shape, geometry.groups, axes, names.first, names.second)
        expected = (image.shape[0], *geometry.output_shape(image.shape, shape)[1:])
        if expected != top.shape:
            raise ValueError(f"{names.second}: expected shape {expected}, got {top.shape}")
        dtype = result_dtype(views)
        w = output_spec(shape, dtype, image, out_view(out_views, geometry.beta))
        return geometry.request(op, input_spec(image, dtype), w, input_spec(top, dtype), p)

    return build


# ---- the builders ----------------------------------------------------------------------------------------------------

ONE = Names(axes="length")
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

conv2d_transpose = grad_inputs("conv2d_grad_wrt_inputs", TWO._replace(**TRANSPOSED))
conv3d_transpose = grad_inputs("conv3d_grad_wrt_inputs", THREE._replace(**TRANSPOSED))

conv1d = forward("conv2d", ONE, 1)
conv1d_grad_wrt_inputs = grad_inputs("conv2d_grad_wrt_inputs", ONE._replace(**TOP), 1)
conv1d_grad_wrt_weights = grad_weights("conv2d_grad_wrt_weights", ONE._replace(second="output_grad"), 1)

# gradients of the transposed convolutions: the convolution itself, and its gradient in the filters with the two arrays exchanged
_BACK = {"first": "output_grad", "image_shape": "output_shape", "subsample": "input_dilation"}
_FILTERS = {"first": "output_grad", "second": "input", "image_shape": "output_shape", "subsample": "input_dilation"}
conv2d_transpose_grad_wrt_inputs = forward("conv2d", TWO._replace(**_BACK))
conv3d_transpose_grad_wrt_inputs = forward("conv3d", THREE._replace(**_BACK))
conv2d_transpose_grad_wrt_weights = grad_weights("conv2d_grad_wrt_weights", TWO._replace(**_FILTERS))
conv3d_transpose_grad_wrt_weights = grad_weights("conv3d_grad_wrt_weights", THREE._replace(**_FILTERS))
