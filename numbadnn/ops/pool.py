"""Pooling and its gradient over the last two or three axes: the public functions.

``problems/pool.py`` holds what they ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.call.operands import output_spec
from numbadnn.dispatch import Request
from numbadnn.errors import warn
from numbadnn.parameters import whole
from numbadnn.problems.pool import PoolProblem, output_sizes

#: what holds numbers in no order that its caller has given: no axes
UNORDERED = Set | Mapping


def _axes(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """A tuple of ``rank`` integers, else TypeError or ValueError."""
    if not hasattr(value, "__iter__") or isinstance(value, UNORDERED):
        raise TypeError(f"{name}: expected {rank} integers, got {value!r}")
    try:
        numbers = [whole(v) for v in value]
    except TypeError:
        raise TypeError(f"{name}: expected integers, got {value!r}") from None
    if len(numbers) != rank:
        raise ValueError(f"{name}: expected {rank} integers, got {value!r}")
    return tuple(numbers)


def parameters(params: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
    """Window, stride, pad and mode with the defaults filled in."""
    ws, stride, mode, pad = params
    if not hasattr(ws, "__len__") or isinstance(ws, str | UNORDERED):
        raise TypeError(f"ws: expected 2 or 3 integers, got {ws!r}")
    window = _axes("ws", ws, len(ws))
    rank = len(window)
    return (
        window,
        (1,) * rank if stride is None else _axes("stride", stride, rank),
        (0,) * rank if pad is None else _axes("pad", pad, rank),
        mode,
    )


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
    window, stride, pad, mode = parameters(params)
    spatial = output_sizes("img", img.shape, window, stride, pad, mode)
    stride = _strides(img.shape, stride, pad)
    y = output_spec((*img.shape[:2], *spatial), img.dtype, img, _one(out_views, "out"))
    return Request(PoolProblem("pool", img.spec(), y, None, None, window, stride, pad, mode))


@dispatch.operation("inp", "out", "out_grad", destination="result")
def _build_pool_grad(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    inp, out, out_grad = views
    window, stride, pad, mode = parameters(params)
    shape = (*inp.shape[:2], *output_sizes("inp", inp.shape, window, stride, pad, mode))
    for name, view in (("out", out), ("out_grad", out_grad)):
        if view.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {view.shape}")
        if view.dtype != inp.dtype:
            raise TypeError(f"{name}: expected inp's dtype {inp.dtype}, got {view.dtype}")
    stride = _strides(inp.shape, stride, pad)
    dx = output_spec(inp.shape, inp.dtype, inp, _one(out_views, "result"), "result")
    return Request(PoolProblem("pool_grad", inp.spec(), out.spec(), out_grad.spec(), dx, window, stride, pad, mode))


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
_PLAIN = (tuple, type(None))


def pool(
    img: Any,
    ws: Any,
    stride: Any = None,
    mode: str = "max",
    pad: Any = None,
    *,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The maximum, average or sum of each window of an image (N, C, rows, columns) or (N, C, depth, rows, columns).

    ``ws``, ``stride`` (default: ones) and ``pad`` (default: zeros) have one number a spatial axis; output size of an axis:
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
    params = (ws, stride, mode, pad)
    plain = type(ws) is tuple and type(stride) in _PLAIN and type(pad) in _PLAIN and type(mode) is str
    if not plain or mode == "average":
        params = _cold_parameters(*params)
    return dispatch.call1(_build_pool, img, params, backend, out, stream)


def pool_grad(
    inp: Any,
    out: Any,
    out_grad: Any,
    ws: Any,
    stride: Any = None,
    mode: str = "max",
    pad: Any = None,
    *,
    backend: str | None = None,
    result: Any = None,
    stream: Any = None,
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
    params = (ws, stride, mode, pad)
    plain = type(ws) is tuple and type(stride) in _PLAIN and type(pad) in _PLAIN and type(mode) is str
    if not plain or mode == "average":
        params = _cold_parameters(*params)
    return dispatch.call_any(_build_pool_grad, (inp, out, out_grad), params, backend, result, stream)
