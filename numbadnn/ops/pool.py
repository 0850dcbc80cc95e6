"""Pooling and its gradient over the last one, two or three axes: the public functions.

``problems/pool.py`` holds what they ask for. A line (N, C, L) is pooled as an image of one row, (N, C, 1, L).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from numbers import Number
from typing import Any, Never

import numpy as np

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.call.operands import output_spec
from numbadnn.call.seen import Axes, Seen, seen_spec
from numbadnn.dispatch import Request
from numbadnn.errors import warn
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Backend, PoolMode
from numbadnn.parameters import check_rank, whole
from numbadnn.problem import Spec
from numbadnn.problems.pool import PoolProblem, output_sizes

#: (N, C, L) as (N, C, 1, L)
ROW: Axes = ((0,), (1,), (), (2,))
#: what holds numbers in no order that its caller has given: no axes
UNORDERED = Set | Mapping


def _axes(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """A tuple of ``rank`` integers, else TypeError or ValueError."""
    if not hasattr(value, "__iter__") or isinstance(value, UNORDERED | str):
        mode = f"; a mode is mode={value!r}" if isinstance(value, str) else ""
        raise TypeError(f"{name}: expected {rank} integers, got {value!r}{mode}")
    try:
        numbers = [whole(v) for v in value]
    except TypeError:
        raise TypeError(f"{name}: expected integers, got {value!r}") from None
    if len(numbers) != rank:
        raise ValueError(f"{name}: expected {rank} integers, got {value!r}")
    return tuple(numbers)


def parameters(params: tuple[Any, ...], rank: int = 0) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
    """Window, stride, pad and mode with the defaults filled in; for ``rank`` axes one integer stands for all."""
    if rank:
        params = tuple((v,) * rank if isinstance(v, Number) else v for v in params)
    ws, stride, mode, pad = params
    if not hasattr(ws, "__len__") or isinstance(ws, str | UNORDERED):
        raise TypeError(f"ws: expected {'an integer, or 1, ' if rank else ''}2 or 3 integers, got {ws!r}")
    window = _axes("ws", ws, len(ws))
    rank = len(window)
    return (
        window,
        (1,) * rank if stride is None else _axes("stride", stride, rank),
        (0,) * rank if pad is None else _axes("pad", pad, rank),
        mode,
    )


def _check_rank(name: str, view: View, params: tuple[Any, ...]) -> None:
    """An image of 1 to 3 axes, where one number stands for all of them: it does not say how many there are."""
    if isinstance(params[0], Number) and not 3 <= len(view.shape) <= 5:
        check_rank(name, view.shape, 4, "(N, C, rows, columns)")


def _strides(shape: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...]) -> tuple[int, ...]:
    """Strides no longer than the padded image: longer ones mean the same single window, and would be lengths of tables."""
    return tuple(min(s, n + 2 * p) for s, n, p in zip(stride, shape[2:], pad, strict=True))


def _one(out_views: list[View], name: str) -> View | None:
    if len(out_views) > 1:
        raise ValueError(f"{name}: expected one array, got a tuple of {len(out_views)}")
    return out_views[0] if out_views else None


@dispatch.operation("img")
def _build_pool(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (img,) = views
    _check_rank("img", img, params)
    window, stride, pad, mode = parameters(params, len(img.shape) - 2)
    spatial = output_sizes("img", img.shape, window, stride, pad, mode, least=1)
    stride = _strides(img.shape, stride, pad)
    y = output_spec((*img.shape[:2], *spatial), img.dtype, img, _one(out_views, "out"))
    return _request("pool", {"x": img.spec(), "y": y}, window, stride, pad, mode)


def _request(
    op: str, specs: dict[str, Spec], window: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...], mode: str
) -> Request:
    """The problem of these operands, the last of which is computed; lines are seen as images of one row."""
    if len(window) > 1:
        return Request(PoolProblem.of(op, specs, window, stride, pad, mode))
    *inputs, made = specs.values()
    rows = {name: seen_spec(spec, ROW) for name, spec in specs.items()}
    problem = PoolProblem.of(op, rows, (1, *window), (1, *stride), (0, *pad), mode)
    return Request(problem, seen=Seen((ROW,) * len(inputs), (ROW,), (made,)))


@dispatch.operation("inp", "out", "out_grad", destination="result")
def _build_pool_grad(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    inp, out, out_grad = views
    _check_rank("inp", inp, params)
    window, stride, pad, mode = parameters(params, len(inp.shape) - 2)
    shape = (*inp.shape[:2], *output_sizes("inp", inp.shape, window, stride, pad, mode, least=1))
    for name, view in (("out", out), ("out_grad", out_grad)):
        if view.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {view.shape}")
        if view.dtype != inp.dtype:
            raise TypeError(f"{name}: expected inp's dtype {inp.dtype}, got {view.dtype}")
    stride = _strides(inp.shape, stride, pad)
    dx = output_spec(inp.shape, inp.dtype, inp, _one(out_views, "result"), "result")
    specs = {"x": inp.spec(), "y": out.spec(), "dy": out_grad.spec(), "dx": dx}
    return _request("pool_grad", specs, window, stride, pad, mode)


def mode_of(mode: Any) -> Any:
    """The mode, with a warning where it has its deprecated name."""
    if isinstance(mode, str) and mode == "average":
        warn("mode='average': say 'average_inc_pad'", DeprecationWarning)
        return "average_inc_pad"
    return mode


def _cold_parameters(ws: Any, stride: Any, mode: Any, pad: Any) -> tuple[Any, ...]:
    """What is iterated over as tuples, so that it can be part of a key; the warning that "average" asks for."""
    mode = mode_of(mode)
    kept = str | np.ndarray | UNORDERED
    axes = [tuple(v) if hasattr(v, "__iter__") and not isinstance(v, kept) else v for v in (ws, stride, pad)]
    return axes[0], axes[1], mode, axes[2]


#: types of parameters that go into a key as they are
_PLAIN = (tuple, int, type(None))


def pool(
    img: Any,
    ws: Any,
    stride: Any = None,
    mode: PoolMode = "max",
    pad: Any = None,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """The maximum, average or sum of each window of a line (N, C, length), an image (N, C, rows, columns) or a volume.

    ``ws``, ``stride`` (default: ones) and ``pad`` (default: zeros) have one number a spatial axis, or one for all; a volume is
    (N, C, depth, rows, columns), a line runs as an image of one row. Output size of an axis:
    ``(n + 2*pad - ws) // stride + 1``. Padding counts as -inf for max and max_deterministic, as 0 else;
    ``average_inc_pad`` divides by prod(ws), ``average_exc_pad`` by the number of elements inside the image; "average" is
    average_inc_pad, with a DeprecationWarning. A window that holds NaN gives NaN. Result: img's dtype (float16, bfloat16,
    float32, float64; 16-bit sums are kept in float32) and library. Source: docs/explanation/semantics.md#pooling.

    Raises ValueError for an unknown mode, a window, stride or pad of the wrong length or out of range (window and stride
    < 1, pad < 0, pad >= ws), a window larger than the padded image and an image of the wrong rank or with a spatial axis
    of size zero, TypeError for other dtypes and what are not integers. An empty batch gives an empty result.

    >>> import numpy as np, numbadnn
    >>> x = np.arange(16, dtype="float32").reshape(1, 1, 4, 4)
    >>> numbadnn.pool(x, (2, 2), (2, 2))[0, 0]
    array([[ 5.,  7.],
           [13., 15.]], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (ws, stride, mode, pad)
    plain = type(ws) in _PLAIN and type(stride) in _PLAIN and type(pad) in _PLAIN and type(mode) is str
    if not plain or mode == "average":
        params = _cold_parameters(*params)
    return dispatch.call1(_build_pool, img, params, backend, out, stream)


def pool_grad(
    inp: Any,
    out: Any,
    out_grad: Any,
    ws: Any,
    stride: Any = None,
    mode: PoolMode = "max",
    pad: Any = None,
    *,
    backend: Backend | None = None,
    result: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """The gradient of ``pool`` in its input: each window's out_grad, to its maximum or shared among its elements.

    ``inp`` is the image, ``out`` what ``pool`` gave for it, ``out_grad`` the gradient in that. For max the whole of it goes
    to the first maximum in the window (row-major; the first NaN, where there is one); for sum each element gets all of it,
    for the averages out_grad divided as in ``pool``. ``out`` must have its shape and dtype, its values are read by cuDNN
    alone. ``result`` is the destination. Result: inp's shape, dtype and library.
    Source: docs/explanation/semantics.md#pooling.

    Raises what ``pool`` raises, and ValueError or TypeError where out or out_grad do not have the output's shape and
    inp's dtype. An empty batch gives an empty gradient.

    >>> import numpy as np, numbadnn
    >>> x = np.ones((1, 1, 2, 4), "float32")
    >>> y = numbadnn.pool(x, (2, 2), (2, 2))
    >>> numbadnn.pool_grad(x, y, np.full_like(y, 3), (2, 2), (2, 2))[0, 0]
    array([[3., 0., 3., 0.],
           [0., 0., 0., 0.]], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (ws, stride, mode, pad)
    plain = type(ws) in _PLAIN and type(stride) in _PLAIN and type(pad) in _PLAIN and type(mode) is str
    if not plain or mode == "average":
        params = _cold_parameters(*params)
    return dispatch.call_any(_build_pool_grad, (inp, out, out_grad), params, backend, result, stream)
