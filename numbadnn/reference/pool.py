"""Pooling and its gradient from the definition, window by window, in float64: the oracle.

Output o of an axis sees the elements o*stride - pad ... o*stride - pad + ws - 1 of the image that exist. Of these it takes

    max, max_deterministic   the largest; NaN if there is one
    average_inc_pad          the sum / prod(ws)
    average_exc_pad          the sum / how many there are
    sum                      the sum

The gradient adds, for every window, its ``out_grad`` to the first element (row-major) that equals the maximum, a NaN counting
as the largest of numbers; or, for sum and averages, that divided in the same way to every element.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Index = tuple[int, ...]
Slices = tuple[slice, ...]

MODES = ("max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum")


def _float64(name: str, value: Any) -> Float64:
    array = np.asarray(value)
    if array.dtype.kind in "bcOSUmM":
        raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}")
    return array.astype(np.float64)


def _checked(shape: Index, ws: Any, stride: Any, mode: str, pad: Any) -> tuple[Index, Index, Index]:
    """Window, stride and pad, one number a spatial axis."""
    ws, stride, pad = (v if v is None or np.ndim(v) else (v,) * (len(shape) - 2) for v in (ws, stride, pad))
    window = tuple(map(int, ws))
    step = (1,) * len(window) if stride is None else tuple(map(int, stride))
    border = (0,) * len(window) if pad is None else tuple(map(int, pad))
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if not len(window) == len(step) == len(border) == len(shape) - 2:
        raise ValueError(f"ws: expected one number a spatial axis of {shape}, got ws {ws}, stride {stride}, pad {pad}")
    for n, w, s, p in zip(shape[2:], window, step, border, strict=True):
        if not (1 <= w <= n + 2 * p and s >= 1 and 0 <= p < w and n >= 1):
            raise ValueError(f"ws: expected 1 <= ws <= n + 2*pad, stride >= 1, 0 <= pad < ws, got {(n, w, s, p)}")
    return window, step, border


def pool_output_shape(shape: Index, ws: Any, stride: Any = None, pad: Any = None) -> Index:
    """The output's shape for an image of ``shape``: ``(n + 2*pad - ws) // stride + 1`` on each spatial axis.

    >>> pool_output_shape((1, 2, 5, 6), (3, 2), (2, 2), (1, 0))
    (1, 2, 3, 3)
    """
    window, step, border = _checked(shape, ws, stride, "max", pad)
    sizes = zip(shape[2:], window, step, border, strict=True)
    return (*shape[:2], *((n + 2 * p - w) // s + 1 for n, w, s, p in sizes))


def _windows(shape: Index, window: Index, stride: Index, pad: Index) -> Iterator[tuple[Index, Slices]]:
    """Each output index (spatial axes), and the slices of the image it sees."""
    outputs = pool_output_shape(shape, window, stride, pad)[2:]
    for index in itertools.product(*map(range, outputs)):
        starts = [o * s - p for o, s, p in zip(index, stride, pad, strict=True)]
        inside = zip(starts, window, shape[2:], strict=True)
        yield index, tuple(slice(max(a, 0), min(a + w, n)) for a, w, n in inside)


def _everywhere(spatial: Any) -> Any:
    """The same place in every channel of every image."""
    return (slice(None), slice(None), *spatial)


def _divisor(mode: str, window: Index, cells: int) -> int:
    return {"average_inc_pad": int(np.prod(window)), "average_exc_pad": cells}.get(mode, 1)


def pool(img: Any, ws: Any, stride: Any = None, mode: str = "max", pad: Any = None) -> Float64:
    """The maximum, average or sum of each window of ``img`` (N, C, spatial...), in float64; formulas above.

    ValueError for an unknown mode or a window, stride or pad that does not fit, TypeError for arrays that are not real.
    Source: the definition, docs/explanation/semantics.md#pooling.

    >>> pool([[[[1.0, 2.0], [3.0, 4.0]]]], (2, 2))
    array([[[[4.]]]])
    """
    x = _float64("img", img)
    window, step, border = _checked(x.shape, ws, stride, mode, pad)
    y = np.empty(pool_output_shape(x.shape, window, step, border))
    spatial = tuple(range(2, x.ndim))
    for index, slices in _windows(x.shape, window, step, border):
        seen = x[_everywhere(slices)]
        if mode.startswith("max"):
            value = seen.max(axis=spatial) if seen.size else 0.0  # NumPy's maximum is NaN if one is
        else:
            value = seen.sum(axis=spatial) / _divisor(mode, window, int(np.prod(seen.shape[2:])))
        y[_everywhere(index)] = value
    return y


def pool_grad(
    inp: Any, out: Any, out_grad: Any, ws: Any, stride: Any = None, mode: str = "max", pad: Any = None
) -> Float64:
    """The gradient of ``pool`` in ``inp`` from the gradient ``out_grad`` in its output, in float64; formulas above.

    ``out``, the forward output, only has its shape checked. Errors as in ``pool``.

    >>> pool_grad([[[[1.0, 1.0]]]], [[[[1.0]]]], [[[[3.0]]]], (1, 2))
    array([[[[3., 0.]]]])
    """
    x, dy = _float64("inp", inp), _float64("out_grad", out_grad)
    window, step, border = _checked(x.shape, ws, stride, mode, pad)
    expected = pool_output_shape(x.shape, window, step, border)
    if not np.shape(out) == dy.shape == expected:
        raise ValueError(f"out_grad: expected shape {expected}, got out {np.shape(out)}, out_grad {dy.shape}")
    dx = np.zeros(x.shape)
    n, c = x.shape[:2]
    images, channels = np.arange(n)[:, None], np.arange(c)[None, :]
    for index, slices in _windows(x.shape, window, step, border):
        seen = x[_everywhere(slices)]
        target = dx[_everywhere(slices)]
        share = dy[_everywhere(index)]
        if mode.startswith("max"):
            if seen.size:
                flat = seen.reshape(n, c, -1)
                # argmax takes the first of equals, and the first NaN before any number
                first = np.unravel_index(flat.argmax(axis=2), seen.shape[2:])
                place: Any = (images, channels, *first)
                target[place] += share
        else:
            cells = int(np.prod(seen.shape[2:]))
            target += (share / _divisor(mode, window, cells)).reshape(n, c, *[1] * len(window))
    return dx


# ---- bounds ----------------------------------------------------------------------------------------------------------


def pool_magnitude(img: Any, ws: Any, stride: Any = None, mode: str = "max", pad: Any = None) -> Float64:
    """The sum of absolute values that a sum or an average takes, divided as the average is; 0 for max, which is exact."""
    x = np.abs(_float64("img", img))
    return np.zeros_like(pool(x, ws, stride, mode, pad)) if mode.startswith("max") else pool(x, ws, stride, mode, pad)


def pool_grad_magnitude(
    inp: Any, out: Any, out_grad: Any, ws: Any, stride: Any = None, mode: str = "max", pad: Any = None
) -> Float64:
    """The sum of the absolute values of what each element of the gradient adds up."""
    return pool_grad(inp, out, np.abs(_float64("out_grad", out_grad)), ws, stride, mode, pad)
