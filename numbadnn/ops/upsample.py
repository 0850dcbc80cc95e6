"""bilinear_upsampling and its gradient: the public functions.

``problems/upsample.py`` holds what they ask for.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Never

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.call.operands import output_spec
from numbadnn.dispatch import Request
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Backend
from numbadnn.parameters import check_rank
from numbadnn.problems.upsample import (
    PROBLEM,
    Ratio,
    UpsampleProblem,
    integer,
    output_shape,
    output_size,
    reduced,
    source,
)

__all__ = [
    "PROBLEM",
    "UpsampleProblem",
    "bilinear_upsampling",
    "bilinear_upsampling_grad",
    "frac_bilinear_upsampling",
    "output_size",
    "source",
]


# ---- checking --------------------------------------------------------------------------------------------------------


def _ratio(ratio: Any, frac_ratio: Any) -> Ratio:
    """The ratio of a call from the two arguments that may state it."""
    if (ratio is None) == (frac_ratio is None):
        raise ValueError(f"ratio: expected either ratio or frac_ratio, got ratio={ratio!r}, frac_ratio={frac_ratio!r}")
    if frac_ratio is None:
        try:
            n = integer("ratio", ratio)
        except TypeError as error:
            raise TypeError(f"{error}{_as_fraction(ratio)}") from None
        if n < 1:
            raise ValueError(f"ratio: expected a positive integer, got {ratio!r}")
        return (n, 1), (n, 1)
    if not isinstance(frac_ratio, tuple) or len(frac_ratio) != 2:
        raise ValueError(f"frac_ratio: expected a tuple (p, q) or ((p, q), (p, q)), got {frac_ratio!r}")
    nested = [isinstance(v, tuple) for v in frac_ratio]
    if any(nested) and not all(nested):
        raise ValueError(f"frac_ratio: expected a tuple (p, q) or ((p, q), (p, q)), got {frac_ratio!r}")
    return reduced(frac_ratio if all(nested) else (frac_ratio, frac_ratio), "frac_ratio")


def _as_fraction(ratio: Any) -> str:
    """How a ratio that is no integer, or one for each axis, is written ("" = it is neither)."""
    try:
        parts = [Fraction(r).limit_denominator(1000) for r in (ratio if isinstance(ratio, (tuple, list)) else (ratio,))]
    except (TypeError, ValueError, OverflowError):
        return ""
    pairs = [(part.numerator, part.denominator) for part in parts]
    return f"; frac_ratio={pairs[0] if len(pairs) == 1 else tuple(pairs)} says it" if len(pairs) in (1, 2) else ""


def _hint(name: str, hint: Any, actual: int) -> None:
    if hint is not None and integer(name, hint) != actual:
        raise ValueError(f"{name}: expected {actual}, which is input's, or None, got {hint}")


def _one(out_views: list[View]) -> View | None:
    if len(out_views) > 1:
        raise ValueError(f"out: expected one array, got a tuple of {len(out_views)}")
    return out_views[0] if out_views else None


@dispatch.operation("input")
def _build(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (x,) = views
    ratio = _ratio(params[0], params[1])
    check_rank("input", x.shape, 4, "(N, C, rows, columns)")
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
    check_rank("output_grad", dy.shape, 4, "(N, C, rows, columns)")
    if not isinstance(params[0], tuple | list) or len(params[0]) != 4:
        raise ValueError(f"input_shape: expected 4 integers (N, C, rows, columns), got {params[0]!r}")
    asked = [d if d is None else integer("input_shape", d) for d in params[0]]
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
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Enlarge images (N, C, H, W) by an integer ``ratio``, or a fraction ``frac_ratio``, with bilinear interpolation.

    Along each axis of n samples, ``out[o] = x at the coordinate (o - (r - 1) // 2) / r``, held within [0, n - 1] and
    interpolated linearly: (N, C, r*H, r*W). ``frac_ratio`` = (p, q) or ((p, q) of rows, (p, q) of columns) is the ratio p,
    then every q-th sample: sizes ceil(n * p / q). ``batch_size`` and ``num_input_channels`` are hints; ``use_1D_kernel``
    never alters the result. Result: input's dtype, layout and library.
    Source: docs/explanation/semantics.md#bilinear-upsampling.

    Raises ValueError for both ratios or none, one that is not positive, a rank other than 4, an image without pixels
    or hints that contradict; TypeError for a ratio that is no integer and for other dtypes.

    >>> import numpy as np, numbadnn
    >>> numbadnn.bilinear_upsampling(np.array([[[[1.0, 2.0]]]]), ratio=2)[0, 0, 0]
    array([1. , 1.5, 2. , 2. ])
    """
    if unknown:
        refuse(unknown)
    params = (ratio, frac_ratio, batch_size, num_input_channels)
    return dispatch.call1(_build, input, params, backend, out, stream)


def frac_bilinear_upsampling(
    input: Any,
    frac_ratio: Any,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """``bilinear_upsampling`` by a fraction (p, q), or ((p, q), (p, q)) for rows and columns; q > p makes images smaller.

    The same shapes, dtypes and errors. Source: docs/explanation/semantics.md#bilinear-upsampling.

    >>> import numpy as np, numbadnn
    >>> numbadnn.frac_bilinear_upsampling(np.zeros((1, 1, 3, 4)), (3, 2)).shape
    (1, 1, 5, 6)
    """
    if unknown:
        refuse(unknown)
    return dispatch.call1(_build, input, (None, frac_ratio, None, None), backend, out, stream)


def bilinear_upsampling_grad(
    output_grad: Any,
    input_shape: Any,
    ratio: Any = None,
    frac_ratio: Any = None,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``bilinear_upsampling`` in its input: each pixel gathers, in a fixed order, what it gave to the output.

    ``dx[i] = sum over o of weight(o, i) * dy[o]`` along both axes, ``weight`` as in the forward call. ``output_grad`` has
    the output's shape, ``input_shape`` = (N, C, H, W) is the result's (None stands for output_grad's N or C). Errors as
    the forward function, and ValueError where the shapes do not fit.
    Source: docs/explanation/semantics.md#bilinear-upsampling.

    >>> import numpy as np, numbadnn
    >>> numbadnn.bilinear_upsampling_grad(np.ones((1, 1, 1, 4)), (1, 1, 1, 2), frac_ratio=((1, 1), (2, 1)))[0, 0, 0]
    array([1.5, 2.5])
    """
    if unknown:
        refuse(unknown)
    params = (input_shape if type(input_shape) is tuple else _shape(input_shape), ratio, frac_ratio)
    return dispatch.call1(_build_grad, output_grad, params, backend, out, stream)


def _shape(value: Any) -> Any:
    try:
        return tuple(value)
    except TypeError:
        raise ValueError(f"input_shape: expected 4 integers (N, C, rows, columns), got {value!r}") from None
