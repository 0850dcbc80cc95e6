"""``theano.tensor.signal.pool``: pooling over the last two or three axes of an array of any rank, on any backend.

With ``ignore_border=False`` the last window of an axis may stick out of the image; it is then a smaller window, of what is
inside, by which averages divide. Each such edge is a pooling of its own. Source: docs/explanation/semantics.md#pooling.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numbadnn
from numbadnn.arrays.namespace import namespace
from numbadnn.errors import NotSupportedError, warn
from numbadnn.ops import pool as operation
from numbadnn.ops.conv_build import truth
from numbadnn.option_types import PoolMode
from numbadnn.problems.pool import MODES

__all__ = ["Pool", "max_pool_2d_same_size", "pool_2d", "pool_3d"]

Axes = tuple[int, ...]


def _one_of(name: str, value: Any, old: str, given: Any) -> Any:
    """The value under its name or its old one, with a DeprecationWarning; ValueError for both."""
    if given is None:
        return value
    if value is not None:
        raise ValueError(f"{name}: expected it or its old name {old!r}, got both")
    warn(f"{old!r} is the old name of {name!r}", DeprecationWarning)
    return given


def _parameters(ws: Any, stride: Any, pad: Any, ds: Any, st: Any, padding: Any, axes: int) -> tuple[Axes, Axes, Axes]:
    """Window, stride (default: the window) and pad (default: zeros), one number an axis."""
    ws, stride = _one_of("ws", ws, "ds", ds), _one_of("stride", stride, "st", st)
    if ws is None:
        raise ValueError(f"ws: expected {axes} integers, got None")
    window, stride, pad, _ = operation.parameters(
        (ws, ws if stride is None else stride, "max", _one_of("pad", pad, "padding", padding))
    )
    if len(window) != axes:
        raise ValueError(f"ws: expected {axes} integers, got {window}")
    return window, stride, pad


def _size(n: int, window: int, stride: int, pad: int, ignore_border: bool) -> int:
    n += 2 * pad
    if ignore_border:
        return max(0, (n - window) // stride + 1)
    return (n - 1) // stride + 1 if stride >= window else max(0, (n - 1 - window + stride) // stride) + 1


class Pool:
    """The op: ``Pool(ignore_border, mode, ndim)(x, ws, stride=None, pad=None)`` pools the last ``ndim`` axes."""

    def __init__(self, ignore_border: bool = False, mode: PoolMode = "max", ndim: int = 2, openmp: Any = None) -> None:
        self.ignore_border, self.mode, self.ndim = truth("ignore_border", ignore_border), mode, ndim

    def __call__(self, x: Any, ws: Any, stride: Any = None, pad: Any = None) -> Any:
        return _pool(x, *_parameters(ws, stride, pad, None, None, None, self.ndim), self.ignore_border, self.mode)

    @staticmethod
    def out_shape(
        imgshape: Any, ws: Any = None, ignore_border: bool = False, stride: Any = None, pad: Any = None, ndim: int = 2,
        ds: Any = None, st: Any = None, padding: Any = None,
    ) -> list[int]:  # fmt: skip
        """The shape of what pooling gives for an image of this shape: its last ``ndim`` entries become those of windows.

        >>> Pool.out_shape((5, 5), (2, 2)), Pool.out_shape((3, 1, 5, 5), (2, 2), ignore_border=True)
        ([3, 3], [3, 1, 2, 2])
        """
        if len(imgshape) < ndim:
            raise TypeError(f"imgshape: expected at least {ndim} entries, got {imgshape!r}")
        windows, strides, pads = _parameters(ws, stride, pad, ds, st, padding, ndim)
        sizes = [
            _size(n, w, s, p, ignore_border)
            for n, w, s, p in zip(imgshape[-ndim:], windows, strides, pads, strict=True)
        ]
        return [*imgshape[:-ndim], *sizes]


def _parts(n: int, window: int, stride: int, ignore_border: bool) -> list[tuple[slice, int]]:
    """Of an axis: what its whole windows see, and what the one that sticks out sees, with the window of each."""
    whole = max(0, (n - window) // stride + 1)
    parts = [(slice(None), window)] if whole or ignore_border else []
    if not ignore_border and whole < _size(n, window, stride, 0, False):
        parts.append((slice(whole * stride, None), n - whole * stride))
    return parts


def _pool(x: Any, window: Axes, stride: Axes, pad: Axes, ignore_border: bool, mode: Any) -> Any:
    xp, axes, shape = namespace(x, "input"), len(window), tuple(x.shape)
    if len(shape) < axes:
        raise ValueError(f"input: expected at least {axes} dimensions, got shape {shape}")
    if any(pad) and not ignore_border:
        raise NotSupportedError(
            f"pad: expected zeros with ignore_border=False, got {pad}; ignore_border=True takes padding"
        )
    sizes = Pool.out_shape(shape[-axes:], window, ignore_border, stride, pad, axes)
    batch = x if len(shape) == axes + 2 else x.reshape(math.prod(shape[:-axes]), 1, *shape[-axes:])
    # a window larger than the image: there is none
    if 0 in sizes and min(shape[-axes:]) > 0 and all(p < w for p, w in zip(pad, window, strict=True)):
        if mode not in MODES:
            raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
        return x[..., :0].reshape(*shape[:-axes], *sizes)
    found = {}
    parts = [_parts(*axis, ignore_border) for axis in zip(shape[-axes:], window, stride, strict=True)]
    for place in itertools.product(*map(range, map(len, parts))):
        seen, windows = zip(*(p[i] for p, i in zip(parts, place, strict=True)), strict=True)
        found[place] = numbadnn.pool(batch[(..., *seen)], windows, stride, mode, pad)
    for axis in reversed(range(axes)):  # the edges join what lies before them, the last axis first
        starts = [place for place in found if place[axis] == 0]
        found = {
            place: found[place]
            if len(parts[axis]) == 1
            else xp.concatenate([found[place], found[(*place[:axis], 1, *place[axis + 1 :])]], axis - axes)
            for place in starts
        }
    (result,) = found.values()
    return result.reshape(*shape[:-axes], *sizes)


def _pool_function(
    axes: int, input: Any, ws: Any, ignore_border: Any, stride: Any, pad: Any, mode: Any, ds: Any, st: Any, padding: Any
) -> Any:
    if ignore_border is None:
        warn(f"pool_{axes}d: ignore_border is not given and is False; cuDNN and dnn_pool know ignore_border=True alone")
        ignore_border = False
    # (0, 0) was the default of pad in one version of Theano and is told apart from no value in none
    return _pool(
        input, *_parameters(ws, stride, pad, ds, st, padding, axes), truth("ignore_border", ignore_border), mode
    )


def pool_2d(
    input: Any, ws: Any = None, ignore_border: Any = None, stride: Any = None, pad: Any = None, mode: PoolMode = "max",
    ds: Any = None, st: Any = None, padding: Any = None,
) -> Any:  # fmt: skip
    """The maximum, sum or average of each window of the last two axes of an array of rank 2 and more.

    ``ws``: the window, (rows, columns); ``stride``: its step, by default the window; ``pad``: elements that hold nothing, on
    both sides, with ``ignore_border=True`` alone. ``ds``, ``st`` and ``padding`` are their old names. With
    ``ignore_border=False`` (what None means, with a warning) the last window of an axis may hold fewer elements than the
    others. ``mode`` and dtypes as ``numbadnn.pool``; a window larger than the image gives size 0 with ``ignore_border=True``.

    >>> import numpy as np
    >>> pool_2d(np.arange(9.0).reshape(3, 3), (2, 2), ignore_border=False)
    array([[4., 5.],
           [7., 8.]])
    """
    return _pool_function(2, input, ws, ignore_border, stride, pad, mode, ds, st, padding)


def pool_3d(
    input: Any, ws: Any = None, ignore_border: Any = None, stride: Any = None, pad: Any = None, mode: PoolMode = "max",
    ds: Any = None, st: Any = None, padding: Any = None,
) -> Any:  # fmt: skip
    """``pool_2d`` over the last three axes of an array of rank 3 and more.

    >>> import numpy as np
    >>> pool_3d(np.arange(8.0).reshape(2, 2, 2), (2, 2, 2), ignore_border=True)
    array([[[7.]]])
    """
    return _pool_function(3, input, ws, ignore_border, stride, pad, mode, ds, st, padding)


def max_pool_2d_same_size(input: Any, patch_size: Any) -> Any:
    """An image (N, C, rows, columns) with all but the maximum of each patch set to 0; of equal maxima the first is kept.

    >>> import numpy as np
    >>> max_pool_2d_same_size(np.array([[[[1.0, 3.0, 2.0, 2.0]]]]), (1, 2))
    array([[[[0., 3., 2., 0.]]]])
    """
    maxima = numbadnn.pool(input, patch_size, patch_size)
    return numbadnn.pool_grad(input, maxima, maxima, patch_size, patch_size)
