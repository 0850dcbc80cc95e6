"""Recompute results of ``device/f32x2.py`` that are not finite: float32 multiply-adds, one term after the other.

Numbers that cannot be cut (infinite, NaN, far below others), and sums out of range, make results that are neither. Slow, and
rarely taken.
"""

from __future__ import annotations

from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.cuda import device, f32, i32, i64

#: bytes of an element
SIZE = 4
_read = load("float32", "float32")


@device
def summed(again, n, group, k, p, q):
    """Of image ``n`` and filter ``k`` at a position. ``again``: see ``device/f32x2_store.py``."""
    x, w, C, image, taps, stride, padding, flip, x_strides, w_strides = again
    top, left = i32(p * stride[0] - padding[0]), i32(q * stride[1] - padding[1])
    at_x = x + (i64(n) * x_strides[0] + i64(group * C) * x_strides[1]) * SIZE
    at_w = w + (i64(k) * w_strides[0] + i64(p) * w_strides[1] + i64(q) * w_strides[2]) * SIZE
    area, total = i32(taps[0] * taps[1]), f32(0)
    if flip != 0:
        at_w = at_w + (area - 1) * SIZE
    step = i64(SIZE - 2 * SIZE * flip)
    for _ in range(C):
        tap = at_w
        for r in range(taps[0]):
            h = i32(top + r)
            line = at_x + i64(h) * x_strides[2] * SIZE
            for s in range(taps[1]):
                v, pixel = i32(left + s), f32(0)
                if h >= 0 and h < image[0] and v >= 0 and v < image[1]:
                    pixel = _read(line + i64(v) * x_strides[3] * SIZE)
                total = f32(total + _read(tap) * pixel)  # 0 of the padding makes NaN of an infinite filter
                tap = tap + step
        at_x, at_w = at_x + x_strides[1] * SIZE, at_w + area * SIZE
    return total
