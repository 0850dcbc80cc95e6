"""The gradients of ``device/kernels.py`` and ``device/weights.py`` where results are NaN: see ``conv/device/absent.py``.

Where results of the images' gradient do not add to what is there, a thread looks at its strip once more when it has no sums to
hold any more: registers for this among its sums would leave a multiprocessor fewer threads. A tap of the filters' gradient is
looked at by the kernel that adds its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.depthwise.config import DepthwiseConfig
from numbadnn.kernels.conv.device.absent import any_nan, put_in
from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, device, i32, i64, u32
from numbadnn.problem import ITEMSIZE


def _add(dtype: str, acc: str, config: DepthwiseConfig) -> Callable[..., Any]:
    """``add(anew, c, row, column)``: the sum of channel c; row and column are counted from where tap 0 meets y first.

    ``anew``: where the thread's first channel begins in y and in the filters, y's rows and columns, filters of a channel, and
    strides of y's planes, rows and columns and of filters.
    """
    (R, S), (down, across), A, size = config.taps, config.stride, ACCUMULATOR[acc], ITEMSIZE[dtype]
    read = load(dtype, acc)

    @device
    def add(anew, c, row, column):
        y, w, output, multiplier, y_plane, y_strides, w_strides = anew
        total = A(0)
        for m in range(multiplier):
            k = i64(i32(c * multiplier + m))
            for r in range(R):
                for s in range(S):
                    p, q = i32((row - r) // down), i32((column - s) // across)
                    there = row >= r and p * down + r == row and p < output[0]
                    if there and column >= s and q * across + s == column and q < output[1]:
                        tap = read(w + (k * w_strides[0] + i64(i32(r * w_strides[1] + s * w_strides[2]))) * size)
                        slope = read(y + (k * y_plane + i64(i32(p * y_strides[0] + q * y_strides[1]))) * size)
                        total = A(total + slope * tap)
        return total

    return add


def mend_sums(dtype: str, acc: str, config: DepthwiseConfig) -> Callable[..., None]:
    """``mend(sums, first, anew, h, w0, top, extent)``: those of a row that are NaN."""
    tile, left = config.tile, config.left
    channels, count = tile.channels, tile.columns * tile.channels
    wrong, put, add = any_nan(count), put_in(acc, count), _add(dtype, acc, config)

    @device
    def mend(sums, first, anew, h, w0, top, extent):
        if wrong(sums, first):
            for i in range(count):
                column = i32(u32(i) // u32(channels))
                if w0 + column < extent:
                    value = add(anew, i32(i - column * channels), i32(h + top), i32(w0 + column + left))
                    put(sums, first, i32(i), value)

    return mend


def mend_strip(dtype: str, acc: str, config: DepthwiseConfig) -> Callable[..., None]:
    """``mend(x, x_plane, x_strides, anew, begin, end, w0, top, extent, alpha)``: rows begin to end of what was written at x."""
    tile, left, A, size = config.tile, config.left, ACCUMULATOR[acc], ITEMSIZE[dtype]
    columns, channels = tile.columns, tile.channels
    read, write, add = load(dtype, acc), store(dtype, acc), _add(dtype, acc, config)

    @device
    def mend(x, x_plane, x_strides, anew, begin, end, w0, top, extent, alpha):
        for h in range(begin, end):
            for w in range(w0, min(i32(w0 + columns), extent)):
                for c in range(channels):
                    to = x + (i64(c) * x_plane + i64(i32(h * x_strides[0] + w * x_strides[1]))) * size
                    old = read(to)
                    if old != old:
                        write(to, A(alpha * add(anew, i32(c), i32(h + top), i32(w + left))))

    return mend


#: terms of a tap that are added before their sum is added to others
STRETCH = 64


def add_tap(dtype: str, acc: str, parts: int) -> Callable[..., Any]:
    """``add(part, x, y, r, s, sizes, corner, stride, x_strides, y_strides)``: a part of a tap's sum over all positions.

    x and y: where the tap's channel begins; ``sizes``: rows and columns of x, then images, rows and columns of y; strides of
    images, rows and columns. Padding is a term. A sum that is NaN stays so: its other terms are left out.
    """
    A, size, read = ACCUMULATOR[acc], ITEMSIZE[dtype], load(dtype, acc)

    @device
    def add(part, x, y, r, s, sizes, corner, stride, x_strides, y_strides):
        H, W, N, P, Q = sizes
        total, first, positions = A(0), i64(part * STRETCH), i64(i32(N * P)) * Q
        while first < positions and total == total:
            some = A(0)
            for i in range(i32(min(i64(STRETCH), positions - first))):
                at = u32(first + i)
                line = i32(at // u32(Q))
                n, q = i32(u32(line) // u32(P)), i32(at - u32(line) * u32(Q))
                p = i32(line - n * P)
                h, w = i32(p * stride[0] - corner[0] + r), i32(q * stride[1] - corner[1] + s)
                inside = h >= 0 and h < H and w >= 0 and w < W
                place = i64(n) * x_strides[0] + i64(i32(h * x_strides[1] + w * x_strides[2])) if inside else i64(0)
                value = read(x + place * size)
                slope = read(y + (i64(n) * y_strides[0] + i64(i32(p * y_strides[1] + q * y_strides[2]))) * size)
                some = A(some + (value if inside else A(0)) * slope)
            total = A(total + some)
            first += parts * STRETCH
        return total

    return add
