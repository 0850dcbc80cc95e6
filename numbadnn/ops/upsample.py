"""bilinear_upsampling and its gradient: the problem, and the public functions.

A ratio is a reduced fraction p/q an axis. Every call becomes ``ratio=((p, q), (p, q))`` for rows and columns; an integer
ratio is p/1, so that one problem stands for all four spellings of the specification.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.dispatch import Request
from numbadnn.call.operands import output_spec
from numbadnn.parameters import LARGEST, whole
from numbadnn.problem import Spec, integers, operand

__all__ = [
    "PROBLEM",
    "UpsampleProblem",
    "bilinear_upsampling",
    "bilinear_upsampling_grad",
    "frac_bilinear_upsampling",
    "output_size",
    "source",
]

#: a reduced fraction for rows, one for columns
Ratio = tuple[tuple[int, int], tuple[int, int]]


def output_size(n: int, p: int, q: int) -> int:
    """ceil(n * p / q): how many samples an axis of n becomes.

    >>> output_size(3, 3, 2)
    5
    """
    return -(-n * p // q)


def source(o: int, n: int, p: int, q: int) -> tuple[int, int, int]:
    """(i, j, f): output o lies at f / p of the way from sample i to sample j; f = 0 where it needs only one.

    >>> [source(o, 2, 3, 1) for o in range(6)]
    [(0, 0, 0), (0, 0, 0), (0, 1, 1), (0, 1, 2), (1, 1, 0), (1, 1, 0)]
    """
    at = min(max(o * q - (p - 1) // 2, 0), (n - 1) * p)
    i, f = divmod(at, p)
    return i, i + (f > 0), f


@dataclass(frozen=True, slots=True)
class UpsampleProblem:
    """bilinear_upsampling: ``x`` -> ``y``; bilinear_upsampling_grad: ``y`` (the gradient of the output) -> ``x``.

    Both (N, C, rows, columns) of one dtype; ``ratio`` = ((p, q), (p, q)) for rows and columns, reduced.
    """

    op: str
    x: Spec
    y: Spec
    ratio: Ratio

    @property
    def inputs(self) -> tuple[Spec, ...]:
        return (self.x,) if self.op == "bilinear_upsampling" else (self.y,)

    @property
    def output(self) -> Spec:
        return self.y if self.op == "bilinear_upsampling" else self.x

    @property
    def outputs(self) -> tuple[Spec, ...]:
        return (self.output,)

    @property
    def keywords(self) -> dict[str, Any]:
        more = {} if self.op == "bilinear_upsampling" else {"input_shape": self.x.shape}
        return {**more, "frac_ratio": self.ratio}

    @property
    def flops(self) -> int:
        return 6 * self.y.size

    @property
    def bytes(self) -> int:
        return self.x.size * self.x.itemsize + self.y.size * self.y.itemsize

    def __str__(self) -> str:
        (a, b), (c, d) = self.ratio
        return f"{self.op} x={self.x} y={self.y} ratio={a}/{b},{c}/{d}"

    @staticmethod
    def parse(text: str) -> UpsampleProblem:
        """The inverse of ``str``; ``y`` left out is packed like ``x``, one ratio stands for both axes.

        >>> str(UpsampleProblem.parse("bilinear_upsampling x=float32:1x2x3x4 ratio=2"))
        'bilinear_upsampling x=float32:1x2x3x4 y=float32:1x2x6x8 ratio=2/1,2/1'
        """
        op, *words = text.split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        known = op in ("bilinear_upsampling", "bilinear_upsampling_grad") and len(fields) == len(words)
        if not known or not {"x", "ratio"} <= set(fields) <= {"x", "y", "ratio"}:
            raise ValueError(f"expected 'bilinear_upsampling[_grad] x=SPEC [y=SPEC] ratio=P[/Q][,P[/Q]]', got {text!r}")
        pairs = [integers("ratio", "/".join(f"{r}/1".split("/")[:2]), "/") for r in fields["ratio"].split(",")]
        ratio = _reduced(tuple(pairs) if len(pairs) > 1 else (pairs[0], pairs[0]), "ratio")
        forward = op == "bilinear_upsampling"
        x = operand(fields["x"], result=not forward)
        shape = output_shape(x.shape, ratio)
        y = operand(fields.get("y") or str(Spec.of(x.dtype, shape, x.layout)), result=forward)
        if (y.shape, y.dtype) != (shape, x.dtype):
            raise ValueError(f"expected y of {x.dtype} {shape}, got {text!r}")
        return UpsampleProblem(op, x, y, ratio)


PROBLEM = UpsampleProblem


def output_shape(shape: tuple[int, ...], ratio: Ratio) -> tuple[int, ...]:
    """The shape that an (N, C, rows, columns) image of this shape becomes."""
    return (*shape[:2], *(output_size(n, p, q) for n, (p, q) in zip(shape[2:], ratio, strict=True)))


# ---- checking --------------------------------------------------------------------------------------------------------


def _integer(name: str, value: Any) -> int:
    try:
        number = whole(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from None
    if number > LARGEST:
        raise ValueError(f"{name}: expected an integer of at most 2**40, got {value!r}")
    return number


def _reduced(ratio: Any, name: str) -> Ratio:
    """((p, q), (p, q)), each divided by its greatest common divisor."""
    pairs = []
    for pair in ratio:
        if len(pair) != 2:
            raise ValueError(f"{name}: expected (p, q) or ((p, q), (p, q)), got {ratio!r}")
        p, q = (_integer(name, v) for v in pair)
        if p < 1 or q < 1:
            raise ValueError(f"{name}: expected positive integers, got {ratio!r}")
        d = math.gcd(p, q)
        pairs.append((p // d, q // d))
    if len(pairs) != 2:
        raise ValueError(f"{name}: expected (p, q) or ((p, q), (p, q)), got {ratio!r}")
    return pairs[0], pairs[1]


def _ratio(ratio: Any, frac_ratio: Any) -> Ratio:
    """The ratio of a call from the two arguments that may state it."""
    if (ratio is None) == (frac_ratio is None):
        raise ValueError(f"ratio: expected either ratio or frac_ratio, got ratio={ratio!r}, frac_ratio={frac_ratio!r}")
    if frac_ratio is None:
        n = _integer("ratio", ratio)
        if n < 1:
            raise ValueError(f"ratio: expected a positive integer, got {ratio!r}")
        return (n, 1), (n, 1)
    if not isinstance(frac_ratio, tuple) or len(frac_ratio) != 2:
        raise ValueError(f"frac_ratio: expected a tuple (p, q) or ((p, q), (p, q)), got {frac_ratio!r}")
    nested = [isinstance(v, tuple) for v in frac_ratio]
    if any(nested) and not all(nested):
        raise ValueError(f"frac_ratio: expected a tuple (p, q) or ((p, q), (p, q)), got {frac_ratio!r}")
    return _reduced(frac_ratio if all(nested) else (frac_ratio, frac_ratio), "frac_ratio")


def _four(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 4:
        raise ValueError(f"{name}: expected 4 dimensions (N, C, rows, columns), got {len(shape)} (shape {shape})")


def _hint(name: str, hint: Any, actual: int) -> None:
    if hint is not None and _integer(name, hint) != actual:
        raise ValueError(f"{name}: expected {actual}, which is input's, or None, got {hint}")


def _one(out_views: list[View]) -> View | None:
    if len(out_views) > 1:
        raise ValueError(f"out: expected one array, got a tuple of {len(out_views)}")
    return out_views[0] if out_views else None


@dispatch.operation("input")
def _build(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (x,) = views
    ratio = _ratio(params[0], params[1])
    _four("input", x.shape)
    _hint("batch_size", params[2], x.shape[0])
    _hint("num_input_channels", params[3], x.shape[1])
    if (0 in x.shape[2:]) and x.shape[0] and x.shape[1]:
        raise ValueError(f"input: expected images of at least one pixel, got shape {x.shape}")
    y = output_spec(output_shape(x.shape, ratio), x.dtype, x, _one(out_views))
    return Request(UpsampleProblem("bilinear_upsampling", x.spec(), y, ratio))


@dispatch.operation("output_grad")
def _build_grad(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (dy,) = views
    ratio = _ratio(params[1], params[2])
    _four("output_grad", dy.shape)
    if not isinstance(params[0], tuple | list) or len(params[0]) != 4:
        raise ValueError(f"input_shape: expected 4 integers (N, C, rows, columns), got {params[0]!r}")
    asked = [d if d is None else _integer("input_shape", d) for d in params[0]]
    given = [size if d is None else d for d, size in zip(asked[:2], dy.shape[:2], strict=True)]
    shape = (*given, *(-1 if d is None else d for d in asked[2:]))
    if min(shape) < 0:
        raise ValueError(f"input_shape: expected sizes, None for the first two alone, got {params[0]!r}")
    if (0 in shape[2:]) and shape[0] and shape[1]:
        raise ValueError(f"input_shape: expected images of at least one pixel, got {params[0]!r}")
    if output_shape(shape, ratio) != dy.shape:
        raise ValueError(
            f"input_shape: {shape} would give an output of shape {output_shape(shape, ratio)}, but output_grad has "
            f"shape {dy.shape}"
        )
    dx = output_spec(shape, dy.dtype, dy, _one(out_views))
    return Request(UpsampleProblem("bilinear_upsampling_grad", dx, dy.spec(), ratio))


# ---- the public functions --------------------------------------------------------------------------------------------


def bilinear_upsampling(
    input: Any,
    ratio: Any = None,
    frac_ratio: Any = None,
    batch_size: Any = None,
    num_input_channels: Any = None,
    use_1D_kernel: bool = True,
    *,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Enlarge images (N, C, H, W) by an integer ``ratio``, or a fraction ``frac_ratio``, with bilinear interpolation.

    Along each axis of n samples, ``out[o] = x at the coordinate (o - (r - 1) // 2) / r``, held within [0, n - 1] and
    interpolated linearly: (N, C, r*H, r*W). ``frac_ratio`` = (p, q) or ((p, q) of rows, (p, q) of columns) is the ratio p,
    then every q-th sample: sizes ceil(n * p / q). ``batch_size`` and ``num_input_channels`` are hints; ``use_1D_kernel``
    never alters the result. Result: input's dtype, layout and library. Source: spec/semantics.md 1.3.

    Raises ValueError for both ratios or none, one that is not positive, a rank other than 4, an image without pixels
    or hints that contradict; TypeError for a ratio that is no integer and for other dtypes.

    >>> import numpy as np, numbadnn
    >>> numbadnn.bilinear_upsampling(np.array([[[[1.0, 2.0]]]]), ratio=2)[0, 0, 0]
    array([1. , 1.5, 2. , 2. ])
    """
    params = (ratio, frac_ratio, batch_size, num_input_channels)
    return dispatch.call1(_build, input, params, backend, out, stream)


def frac_bilinear_upsampling(
    input: Any, frac_ratio: Any, *, backend: str | None = None, out: Any = None, stream: Any = None
) -> Any:
    """``bilinear_upsampling`` by a fraction (p, q), or ((p, q), (p, q)) for rows and columns; q > p makes images smaller.

    The same shapes, dtypes and errors. Source: spec/semantics.md 1.3.

    >>> import numpy as np, numbadnn
    >>> numbadnn.frac_bilinear_upsampling(np.zeros((1, 1, 3, 4)), (3, 2)).shape
    (1, 1, 5, 6)
    """
    return dispatch.call1(_build, input, (None, frac_ratio, None, None), backend, out, stream)


def bilinear_upsampling_grad(
    output_grad: Any,
    input_shape: Any,
    ratio: Any = None,
    frac_ratio: Any = None,
    *,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of ``bilinear_upsampling`` in its input: each pixel gathers, in a fixed order, what it gave to the output.

    ``dx[i] = sum over o of weight(o, i) * dy[o]`` along both axes, ``weight`` as in the forward call. ``output_grad`` has
    the output's shape, ``input_shape`` = (N, C, H, W) is the result's (None stands for output_grad's N or C). Errors as
    the forward function, and ValueError where the shapes do not fit. Source: spec/semantics.md 1.3.

    >>> import numpy as np, numbadnn
    >>> numbadnn.bilinear_upsampling_grad(np.ones((1, 1, 1, 4)), (1, 1, 1, 2), frac_ratio=((1, 1), (2, 1)))[0, 0, 0]
    array([1.5, 2.5])
    """
    params = (input_shape if type(input_shape) is tuple else _shape(input_shape), ratio, frac_ratio)
    return dispatch.call1(_build_grad, output_grad, params, backend, out, stream)


def _shape(value: Any) -> Any:
    try:
        return tuple(value)
    except TypeError:
        raise ValueError(f"input_shape: expected 4 integers (N, C, rows, columns), got {value!r}") from None
