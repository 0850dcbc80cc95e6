"""Recompute sums of grad_inputs that are not finite on tensor cores: float32 multiply-adds, one by one.

Numbers that cannot be cut into two float16 (infinite, NaN, too small), and parts of large ones, make sums NaN or infinite that
are neither. Here those few have their terms in the order of filters, rows and columns of taps, whatever else they are. Slow, and
rarely taken.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.cuda import cuda, device, f32, i32, i64
from numbadnn.kernels.lang.ptx import LOWEST


def mended(width: int, parts: int) -> Callable[..., None]:
    """``mend(total, n0, N, apart, c, top, left, again)``: ``parts`` vectors of images, ``apart`` images from each other,
    of a pixel.

    ``again``: y, w; filters of a group and their channels, taps, stride, positions, flip; bytes from one image, filter, row and
    column of positions to the next of y, and without images of w.
    """
    largest, read = -LOWEST["float32"], load("float32", "float32")

    @device
    def mend_vector(total, first, n0, N, c, top, left, again):
        y, w, K, C, taps, stride, output, flip, y_steps, w_steps = again
        finite = True
        for e in range(width):
            finite = finite and abs(total[first + e]) <= f32(largest)
        if not finite:
            fresh = cuda.local.array(width, f32)
            for e in range(width):
                fresh[e] = f32(0)
            group = i32(c // C)
            for k in range(i32(group * K), i32((group + 1) * K)):
                for tap in range(i32(taps[0] * taps[1])):
                    r = i32(tap // taps[1])
                    s = i32(tap - r * taps[1])
                    p, q = i32(i32(top - r) // stride[0]), i32(i32(left - s) // stride[1])
                    there = p * stride[0] + r == top and p >= 0 and p < output[0]
                    if there and q * stride[1] + s == left and q >= 0 and q < output[1]:
                        term = i32(taps[0] * taps[1] - 1 - tap) if flip != 0 else i32(tap)
                        at = w + k * w_steps[0] + p * w_steps[1] + q * w_steps[2]
                        weight = read(at + i64((c - group * C) * (taps[0] * taps[1]) + term) * 4)
                        at = y + k * y_steps[1] + p * y_steps[2] + q * y_steps[3]
                        for e in range(width):
                            seen = read(at + min(i32(n0 + e), i32(N - 1)) * y_steps[0])
                            fresh[e] = f32(fresh[e] + weight * seen)
            for e in range(width):
                total[first + e] = total[first + e] if abs(total[first + e]) <= f32(largest) else fresh[e]

    @device
    def mend(total, n0, N, apart, c, top, left, again):
        for j in range(parts):
            mend_vector(total, i32(j * width), i32(n0 + j * apart), N, c, top, left, again)

    return mend
