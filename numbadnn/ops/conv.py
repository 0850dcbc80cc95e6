"""conv2d and its two gradients: the problem, and the public functions.

One ``ConvProblem`` describes all three directions: ``x`` (N, C, H, W), ``w`` (K, C/G, R, S) and ``y`` (N, K, P, Q) are
always the image, the filters and the output of the *forward* convolution; ``op`` says which of them is computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numbadnn import dispatch, shapes
from numbadnn.arrays import View
from numbadnn.dispatch import Request
from numbadnn.errors import NotSupportedError
from numbadnn.operands import input_spec, output_spec, result_dtype
from numbadnn.problem import Spec

#: operation -> (inputs in call order, output), as names of ConvProblem's operands
DIRECTIONS = {
    "conv2d": (("x", "w"), "y"),
    "conv2d_grad_wrt_inputs": (("y", "w"), "x"),
    "conv2d_grad_wrt_weights": (("x", "y"), "w"),
}


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """result = alpha * op + beta * result, with op one of DIRECTIONS; padding is ((top, bottom), (left, right)).

    ``flip`` True is convolution (the filter is rotated by 180 degrees), False is correlation.
    """

    op: str
    x: Spec
    w: Spec
    y: Spec
    padding: tuple[tuple[int, int], ...]
    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    flip: bool = True
    groups: int = 1
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def inputs(self) -> tuple[Spec, ...]:
        return tuple(getattr(self, name) for name in DIRECTIONS[self.op][0])

    @property
    def output(self) -> Spec:
        return getattr(self, DIRECTIONS[self.op][1])

    @property
    def outputs(self) -> tuple[Spec, ...]:
        return (self.output,)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the direct sum, taps that fall on padding included."""
        n, k, *out = self.y.shape
        _, c, *taps = self.w.shape
        return 2 * n * k * math.prod(out) * c * math.prod(taps)

    @property
    def bytes(self) -> int:
        """Each input read once, the output written once (and read once when beta is not 0)."""
        moved = sum(s.size * s.itemsize for s in (self.x, self.w, self.y))
        return moved + (self.output.size * self.output.itemsize if self.beta else 0)

    @property
    def symmetric(self) -> bool:
        return all(low == high for low, high in self.padding)

    def __str__(self) -> str:
        def pairs(values: tuple[int, ...]) -> str:
            return ",".join(map(str, values))

        pad = pairs(tuple(p for axis in self.padding for p in axis))
        return (
            f"{self.op} x={self.x} w={self.w} y={self.y} pad={pad} stride={pairs(self.stride)} "
            f"dilation={pairs(self.dilation)} flip={int(self.flip)} groups={self.groups} "
            f"alpha={self.alpha:g} beta={self.beta:g}"
        )

    @staticmethod
    def parse(text: str) -> ConvProblem:
        """The inverse of ``str``; left out: no padding, stride and dilation 1, flip 1, groups 1, alpha 1, beta 0, y packed.

        >>> str(ConvProblem.parse("conv2d x=float32:1x2x5x5 w=float32:3x2x3x3 pad=1,1,1,1")).split()[3]
        'y=float32:1x3x5x5'
        """
        op, *words = text.split()
        if op not in DIRECTIONS:
            raise ValueError(f"expected one of {', '.join(DIRECTIONS)}, got {op!r}")
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        known = {"x", "w", "y", "pad", "stride", "dilation", "flip", "groups", "alpha", "beta"}
        if len(fields) != len(words) or not {"x", "w"} <= set(fields) <= known:
            raise ValueError(
                f"expected '{op} x=SPEC w=SPEC [y=SPEC] [{'=.. '.join(sorted(known - set('xwy')))}=..]', got {text!r}"
            )
        x, w = Spec.parse(fields["x"]), Spec.parse(fields["w"])

        def numbers(name: str, default: str) -> tuple[int, ...]:
            return tuple(int(v) for v in fields.get(name, default).split(","))

        pad, stride, dilation = numbers("pad", "0,0,0,0"), numbers("stride", "1,1"), numbers("dilation", "1,1")
        padding = tuple(zip(pad[::2], pad[1::2], strict=True))
        shape = shapes.assert_conv_shape(shapes.get_conv_output_shape(x.shape, w.shape, padding, stride, dilation))
        y = Spec.parse(fields["y"]) if "y" in fields else Spec.of(x.dtype, shape, "nhwc" if x.is_channels_last else "")
        groups = int(fields.get("groups", "1"))
        _check_channels(x.shape, w.shape, groups, "x", "w")
        if y.shape != shape or {x.dtype, w.dtype, y.dtype} != {x.dtype}:
            raise ValueError(f"expected y of shape {shape} and one dtype for all operands, got {text!r}")
        alpha, beta = float(fields.get("alpha", "1")), float(fields.get("beta", "0"))
        flip = fields.get("flip", "1") == "1"
        return ConvProblem(op, x, w, y, padding, stride, dilation, flip, groups, alpha, beta)


def _check_channels(image: tuple[int, ...], filters: tuple[int, ...], groups: int, x_name: str, w_name: str) -> None:
    """Channels, filters and groups fit together, else ValueError."""
    c, k = image[1], filters[0]
    if c % groups:
        raise ValueError(f"num_groups: expected a divisor of the {c} channels of {x_name}, got {groups}")
    if k % groups:
        raise ValueError(f"num_groups: expected a divisor of the {k} filters of {w_name}, got {groups}")
    if filters[1] != c // groups:
        raise ValueError(
            f"{w_name}: expected {c // groups} channels ({c} channels of {x_name} in {groups} groups), got {filters[1]}"
        )


def _check_hint(name: str, hint: Any, shape: tuple[int, ...]) -> None:
    """A shape hint may leave entries None; it never alters the result and must not contradict the array."""
    if hint is None:
        return
    if not isinstance(hint, (tuple, list)) or len(hint) != len(shape):
        raise ValueError(f"{name}: expected None or a tuple of length {len(shape)}, got {hint!r}")
    if any(h is not None and h != n for h, n in zip(hint, shape, strict=True)):
        raise ValueError(f"{name}: expected the array's own shape {shape} (None = any), got {tuple(hint)}")


def _check_rank(name: str, view: View) -> None:
    if len(view.shape) != 4:
        raise ValueError(f"{name}: expected 4 dimensions, got {len(view.shape)} (shape {view.shape})")


class _Geometry:
    """The checked parameters that all three directions share."""

    def __init__(self, kernel: tuple[int, ...], params: tuple[Any, ...]) -> None:
        border_mode, subsample, flip, dilation, groups, unshared, self.alpha, self.beta, self.algo, self.precision = (
            params
        )
        if unshared:
            raise NotSupportedError("unshared convolution is not available in this version")
        self.stride = shapes.positive_ints("subsample", subsample, 2)
        self.dilation = shapes.positive_ints("filter_dilation", dilation, 2)
        self.padding = shapes.padding_pairs(border_mode, kernel, self.dilation)
        if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
            raise ValueError(f"num_groups must have value greater than zero: expected an integer >= 1, got {groups!r}")
        self.groups = groups
        self.flip = bool(flip)
        self.alpha, self.beta = _number("alpha", self.alpha), _number("beta", self.beta)

    def output_shape(self, image: tuple[int, ...], filters: tuple[int, ...]) -> tuple[int, ...]:
        shape = shapes.get_conv_output_shape(image, filters, self.padding, self.stride, self.dilation)
        if any(n is not None and n <= 0 for n in shape[2:]):
            window = tuple((k - 1) * d + 1 for k, d in zip(filters[2:], self.dilation, strict=True))
            raise ValueError(
                f"filters: expected a (dilated) window no larger than the padded image, got window {window} on image "
                f"{image[2:]} padded by {self.padding}"
            )
        return shape  # type: ignore[return-value]

    def request(self, op: str, x: Spec, w: Spec, y: Spec, algo_option: str) -> Request:
        problem = ConvProblem(
            op, x, w, y, self.padding, self.stride, self.dilation, self.flip, self.groups, self.alpha, self.beta
        )
        return Request(
            problem,
            _named("algo", algo_option, self.algo),
            _named("precision", "precision", self.precision),
            algo_option,
        )


def _named(argument: str, option: str, value: Any) -> Any:
    """A call's own value of an option: None, or one of the option's values."""
    from numbadnn.config import OPTIONS

    if value is not None:
        try:
            OPTIONS[option].parse(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{argument}: {error}, got {value!r}") from None
    return value


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected a number, got {value!r}") from None


def _out_view(out_views: list[View], beta: float) -> View | None:
    if beta and not out_views:
        raise ValueError(f"out: required when beta is not 0 (beta={beta:g}), got None")
    if len(out_views) > 1:
        raise ValueError(f"out: expected one array, got a tuple of {len(out_views)}")
    return out_views[0] if out_views else None


@dispatch.operation("input", "filters")
def _build_forward(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    image, filters = views
    input_shape, filter_shape, *rest = params
    _check_rank("input", image)
    _check_rank("filters", filters)
    geometry = _Geometry(filters.shape[2:], tuple(rest))
    _check_channels(image.shape, filters.shape, geometry.groups, "input", "filters")
    _check_hint("input_shape", input_shape, image.shape)
    _check_hint("filter_shape", filter_shape, filters.shape)
    dtype = result_dtype(views)
    shape = geometry.output_shape(image.shape, filters.shape)
    y = output_spec(shape, dtype, image, _out_view(out_views, geometry.beta))
    return geometry.request("conv2d", input_spec(image, dtype), input_spec(filters, dtype), y, "algo_fwd")


@dispatch.operation("output_grad", "filters")
def _build_grad_inputs(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    top, filters = views
    input_shape, filter_shape, *rest = params
    _check_rank("output_grad", top)
    _check_rank("filters", filters)
    geometry = _Geometry(filters.shape[2:], tuple(rest))
    if top.shape[1] != filters.shape[0]:
        raise ValueError(f"output_grad: expected {filters.shape[0]} channels (one a filter), got {top.shape[1]}")
    if not isinstance(input_shape, (tuple, list)) or len(input_shape) != 4 or None in input_shape[2:]:
        raise ValueError(
            f"input_shape: expected (batch, channels, rows, columns), the last two integers, got {input_shape!r}"
        )
    shape = (
        top.shape[0],
        filters.shape[1] * geometry.groups,
        *(shapes.as_int("input_shape", n, 0) for n in input_shape[2:]),
    )
    _check_hint("input_shape", input_shape, shape)
    _check_hint("filter_shape", filter_shape, filters.shape)
    _check_channels(shape, filters.shape, geometry.groups, "input_shape", "filters")
    expected = geometry.output_shape(shape, filters.shape)
    if expected != top.shape:
        raise ValueError(
            f"invalid input_shape for gradInputs: the given input_shape would produce an output of shape {expected}, "
            f"but the given topgrad has shape {top.shape}"
        )
    dtype = result_dtype(views)
    x = output_spec(shape, dtype, top, _out_view(out_views, geometry.beta))
    return geometry.request(
        "conv2d_grad_wrt_inputs", x, input_spec(filters, dtype), input_spec(top, dtype), "algo_bwd_data"
    )


@dispatch.operation("input", "output_grad")
def _build_grad_weights(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    image, top = views
    filter_shape, input_shape, *rest = params
    _check_rank("input", image)
    _check_rank("output_grad", top)
    if not isinstance(filter_shape, (tuple, list)) or len(filter_shape) != 4 or None in filter_shape[2:]:
        raise ValueError(
            f"filter_shape: expected (filters, channels, rows, columns), the last two integers, got {filter_shape!r}"
        )
    kernel = shapes.positive_ints("filter_shape", tuple(filter_shape[2:]), 2)
    geometry = _Geometry(kernel, tuple(rest))
    if image.shape[1] % geometry.groups:
        raise ValueError(
            f"num_groups: expected a divisor of the {image.shape[1]} channels of input, got {geometry.groups}"
        )
    shape = (top.shape[1], image.shape[1] // geometry.groups, *kernel)
    _check_hint("filter_shape", filter_shape, shape)
    _check_hint("input_shape", input_shape, image.shape)
    _check_channels(image.shape, shape, geometry.groups, "input", "output_grad")
    expected = (image.shape[0], *geometry.output_shape(image.shape, shape)[1:])
    if expected != top.shape:
        raise ValueError(f"output_grad: expected shape {expected}, got {top.shape}")
    dtype = result_dtype(views)
    w = output_spec(shape, dtype, image, _out_view(out_views, geometry.beta))
    return geometry.request(
        "conv2d_grad_wrt_weights", input_spec(image, dtype), w, input_spec(top, dtype), "algo_bwd_filter"
    )


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
    algo: str | None = None,
    precision: str | None = None,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """2-D convolution of images with filters, as neural networks mean it.

    y[n,k,p,q] = sum over c,r,s of x[n, c, p*sh + r*dh - top, q*sw + s*dw - left] * w[k, c, R-1-r, S-1-s].

    input: (N, C, H, W); filters: (K, C/num_groups, R, S); result (N, K, P, Q), times ``alpha``, plus ``beta * out``, with
    P = floor((H + top + bottom - ((R-1)*dh + 1)) / sh) + 1. With ``filter_flip=False`` the filter is not rotated
    (cross-correlation). ``border_mode``: 'valid' (no padding), 'full' (dilated window - 1), 'half' (dilated window // 2),
    an integer, a pair, or a pair of (before, after) pairs. float16, bfloat16, float32, float64; mixed dtypes upcast.
    ``algo`` and ``precision`` as the options algo_fwd and precision. Source: spec/semantics.md 1.2, 1.3.

    Raises ValueError for shapes or parameters that do not fit, TypeError for other arrays, NotSupportedError when no
    implementation that the options admit can do it.

    >>> import numpy as np, numbadnn
    >>> x = np.arange(9, dtype="float32").reshape(1, 1, 3, 3)
    >>> numbadnn.conv2d(x, np.ones((1, 1, 2, 2), "float32"))[0, 0]
    array([[ 8., 12.],
           [20., 24.]], dtype=float32)
    """
    params = (
        input_shape, filter_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha,
        beta, algo, precision,
    )  # fmt: skip
    return dispatch.call2(_build_forward, input, filters, params, backend, out, stream)


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
    algo: str | None = None,
    precision: str | None = None,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of ``conv2d`` with respect to its input, its exact adjoint: <conv2d(x), g> = <x, this(g)>.

    output_grad: (N, K, P, Q); filters: (K, C/num_groups, R, S); input_shape: (N, C, H, W), the first two may be None;
    result (N, C, H, W), times ``alpha``, plus ``beta * out``. With a stride several H fit one P: pixels that no window
    reaches get 0. Other parameters, dtypes and errors as conv2d; ValueError where input_shape does not produce
    output_grad's shape. Source: spec/semantics.md 1.3.

    >>> import numpy as np, numbadnn
    >>> g, w = np.ones((1, 1, 1, 1), "float32"), np.arange(4, dtype="float32").reshape(1, 1, 2, 2)
    >>> numbadnn.conv2d_grad_wrt_inputs(g, w, (1, 1, 2, 2))[0, 0]
    array([[3., 2.],
           [1., 0.]], dtype=float32)
    """
    params = (
        input_shape, filter_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha,
        beta, algo, precision,
    )  # fmt: skip
    return dispatch.call2(_build_grad_inputs, output_grad, filters, params, backend, out, stream)


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
    algo: str | None = None,
    precision: str | None = None,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of ``conv2d`` with respect to its filters, its exact adjoint: <conv2d(x, w), g> = <w, this(x, g)>.

    input: (N, C, H, W); output_grad: (N, K, P, Q); filter_shape: (K, C/num_groups, R, S), the first two may be None;
    result of that shape (rotated like the filters when ``filter_flip``), times ``alpha``, plus ``beta * out``. Other
    parameters, dtypes and errors as conv2d. Source: spec/semantics.md 1.3.

    >>> import numpy as np, numbadnn
    >>> x, g = np.arange(4, dtype="float32").reshape(1, 1, 2, 2), np.ones((1, 1, 1, 1), "float32")
    >>> numbadnn.conv2d_grad_wrt_weights(x, g, (1, 1, 2, 2))[0, 0]
    array([[3., 2.],
           [1., 0.]], dtype=float32)
    """
    params = (
        filter_shape, input_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared, alpha,
        beta, algo, precision,
    )  # fmt: skip
    return dispatch.call2(_build_grad_weights, input, output_grad, params, backend, out, stream)
