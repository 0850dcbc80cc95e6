"""Bilinear upsampling of NHWC images by whole ratios, and its gradient: ``vec`` channels a thread, 16 bytes at a time.

Forwards a thread makes one column of the result between ``strip`` + 1 rows of samples, so that what neighbouring threads write
lies side by side. Backwards it makes one column of ``strip`` pixels, and walks down the rows of dy: each gives to the pixels
above and below it.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load_vector, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.packed import load_words, widen
from numbadnn.kernels.upsample.device.planes import locator
from numbadnn.kernels.upsample.layout import WholeConfig
from numbadnn.problem import ITEMSIZE

#: loads of a thread of the gradient that are under way at once, at most
AT_ONCE = 8


def forward(dtype: str, acc: str, config: WholeConfig) -> Callable[..., None]:
    """y from x, as in ``device/planes.py``."""
    p, r, vec, strip, threads = config.columns, config.rows, config.vec, config.strip, config.threads
    A, size = ACCUMULATOR[acc], ITEMSIZE[dtype]
    fetch, put, locate = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc), locator(threads)
    before, above = (p - 1) // 2, (r - 1) // 2
    first_row = 1 if above else 0
    part, row_part = 1.0 / p, 1.0 / r

    @device
    def across(row, right, line, j, phase, width, step):
        fetch(row, i32(0), line + i64(max(j, i32(0))) * step)
        fetch(right, i32(0), line + i64(min(i32(j + 1), i32(width - 1))) * step)
        own, other = A(A(p - phase) * A(part)), A(A(phase) * A(part))
        for e in range(vec):
            both = cuda.fma(other, right[e], A(own * row[e]))
            row[e] = row[e] if phase == 0 else both

    def kernel(x, y, total, vectors, columns, strips, height, width, out_height, out_width, xs, ys):
        right = cuda.local.array(vec, A)
        upper = cuda.local.array(vec, A)
        lower = cuda.local.array(vec, A)
        result = cuda.local.array(vec, A)
        live, vector, column, group, n = locate(total, vectors, columns, strips)
        if not live:
            return
        # i32(-1) where the column lies before the first sample's own
        j = i32(i32(u32(column + p - before) // u32(p)) - 1)
        phase, g = i32(column - before - j * p), i32(group * strip - first_row)
        image = x + (n * xs[0] + vector * i64(vec)) * size
        target = y + (n * ys[0] + vector * i64(vec) + column * ys[3]) * size
        step = xs[3] * size
        across(upper, right, image + i64(max(g, i32(0))) * (xs[2] * size), j, phase, width, step)
        for s in range(strip):
            below = i32(min(i32(g + s + 1), i32(height - 1)))
            across(lower, right, image + i64(below) * (xs[2] * size), j, phase, width, step)
            for f in range(r):
                o = i32((g + s) * r + above + f)
                if o >= 0 and o < out_height:
                    for e in range(vec):
                        both = cuda.fma(A(f * row_part), lower[e], A(A((r - f) * row_part) * upper[e]))
                        result[e] = upper[e] if f == 0 else both
                    put(result, i32(0), target + i64(o) * (ys[2] * size))
            for e in range(vec):
                upper[e] = lower[e]

    return kernel


def backward(dtype: str, acc: str, config: WholeConfig) -> Callable[..., None]:
    """dx from dy, as in ``device/planes.py``.

    The taps of a row are the same columns all the way down, so that their weights are worked out once; one outside is 0 without
    being read.
    """
    p, r, vec, strip, threads = config.columns, config.rows, config.vec, config.strip, config.threads
    A, size = ACCUMULATOR[acc], ITEMSIZE[dtype]
    words = vec * size // 4
    fetch, convert, put, locate = (
        load_words(words),
        widen(dtype, vec, acc),
        store_vector(dtype, vec, acc),
        locator(threads),
    )
    before, above = (p - 1) // 2, (r - 1) // 2
    part, row_part, taps = 1.0 / p, 1.0 / r, 2 * p - 1
    together = max(1, min(r, AT_ONCE // taps))
    rounds, held = -(-r // together), together * taps * words

    def kernel(dy, dx, total, vectors, columns, strips, height, width, out_height, out_width, ys, xs):
        raw = cuda.local.array(held, WORD)
        weights = cuda.local.array(taps, A)
        values = cuda.local.array(vec, A)
        sums = cuda.local.array(vec, A)
        current = cuda.local.array(vec, A)
        following = cuda.local.array(vec, A)
        live, vector, j, group, n = locate(total, vectors, columns, strips)
        if not live:
            return
        column, step = i32(j * p + before - (p - 1)), ys[3] * size
        image = dy + (n * ys[0] + vector * i64(vec) + column * ys[3]) * size
        target = dx + (n * xs[0] + vector * i64(vec) + j * xs[3]) * size
        for k in range(taps):
            d = k - (p - 1)
            beyond = (j == 0 and d < 0) or (j == width - 1 and d > 0)
            inside = column + k >= 0 and column + k < out_width
            weights[k] = (A(1) if beyond else A((p - abs(d)) * part)) if inside else A(0)
        for e in range(vec):
            current[e] = A(0)
            following[e] = A(0)
        for s in range(strip + 1):
            i = i32(group * strip + s - 1)
            for g in range(rounds):
                for f in range(together):
                    o = i32(i * r + above + g * together + f)
                    row_inside = (s > 0 or g * together + f > 0) and g * together + f < r and o >= 0 and o < out_height
                    line = image + i64(o) * (ys[2] * size)
                    for k in range(taps):
                        at = i32((f * taps + k) * words)
                        for w in range(words):
                            raw[at + w] = 0
                        if row_inside and column + k >= 0 and column + k < out_width:
                            fetch(raw, at, line + k * step)
                for f in range(together):
                    if g * together + f < r:
                        for e in range(vec):
                            sums[e] = A(0)
                        for k in range(taps):
                            convert(values, i32(0), raw, i32((f * taps + k) * words))
                            for e in range(vec):
                                sums[e] = A(sums[e] + weights[k] * values[e])
                        own = A(1) if i == height - 1 else A((r - (g * together + f)) * row_part)
                        other = A(1) if i < 0 else A((g * together + f) * row_part)
                        for e in range(vec):
                            current[e] = A(current[e] + own * sums[e])
                            if g * together + f > 0:
                                following[e] = A(following[e] + other * sums[e])
            if s > 0 and i < height:
                put(current, i32(0), target + i64(i) * (xs[2] * size))
            for e in range(vec):
                current[e] = following[e]
                following[e] = A(0)

    return kernel
