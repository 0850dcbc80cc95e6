"""Bilinear upsampling of NCHW images by whole ratios, and its gradient: rows of the larger image moved 16 bytes at a time.

Forwards a thread makes ``vec`` neighbouring columns of the result from the few samples under them, for ``strip`` pairs of
neighbouring source rows: the rows of the result between two source rows need the same samples. Backwards a thread makes
``vec`` neighbouring pixels of ``strip`` rows and walks down the rows of dy, each read once: a row gives to the pixels
above and below it. Sums are taken row by row downwards, whatever the strip is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.access import load, load_vector, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.upsample.layout import WholeConfig
from numbadnn.problem import ITEMSIZE


def locator(threads: int) -> Any:
    """``(total, vectors, inner, outer) -> (whether it exists, vector, inner, outer, image)`` of this thread.

    Of planes the strips are inside the channels; of channels last the columns are inside the strips.
    """

    @device
    def locate(total, vectors, inner, outer):
        index = i32(i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x)
        live = index < total
        rest = i32(u32(index) // u32(vectors))
        vector = i32(index - rest * vectors)
        plane = i32(u32(rest) // u32(inner))
        image = i32(u32(plane) // u32(outer))
        return live, vector, i32(rest - plane * inner), i32(plane - image * outer), image

    return locate


def forward(dtype: str, acc: str, config: WholeConfig) -> Callable[..., None]:
    """y from x: columns o = p*i + (p-1)//2 + f lie f/p of the way from sample i to sample i + 1, and rows likewise."""
    p, r, vec, strip, threads = config.columns, config.rows, config.vec, config.strip, config.threads
    A, size = ACCUMULATOR[acc], ITEMSIZE[dtype]
    read, put, locate = load(dtype, acc), store_vector(dtype, vec, acc), locator(threads)
    before, above = (p - 1) // 2, (r - 1) // 2
    aligned = vec % p == 0  # then every vector begins at the same phase
    samples = (vec - 1) // p + 3
    first_group = 1 if above else 0
    part, row_part = 1.0 / p, 1.0 / r

    @device
    def fetch(values, line, first, width, step):
        for s in range(samples):
            j = i32(min(max(i32(first + s), i32(0)), i32(width - 1)))
            values[s] = read(line + i64(j) * step)

    @device
    def widen(wide, values, phase):
        for e in range(vec):
            at = i32(e // p)
            over = i32(e % p + phase)
            shifted = over >= p
            a = values[at + 1] if shifted else values[at]
            b = values[at + 2] if shifted else values[at + 1]
            f = i32(over - p) if shifted else over
            both = cuda.fma(A(A(f) * A(part)), b, A(A(A(p - f) * A(part)) * a))
            wide[e] = a if f == 0 else both

    def kernel(x, y, total, vectors, strips, channels, height, width, out_height, xs, ys):
        values = cuda.local.array(samples, A)
        upper = cuda.local.array(vec, A)
        lower = cuda.local.array(vec, A)
        result = cuda.local.array(vec, A)
        live, vector, group, c, n = locate(total, vectors, strips, channels)
        if not live:
            return
        start = i32(vector * vec)
        # i32(-1) where the vector begins before the first sample's own output
        first = i32(i32(u32(i32(start - before + p)) // u32(p)) - 1)
        phase = i32((p - before) % p) if aligned else i32(start - before - first * p)
        step = xs[3] * size
        plane = x + (n * xs[0] + c * xs[1]) * size
        target = y + (n * ys[0] + c * ys[1] + start) * size
        g = i32(group * strip - first_group)
        fetch(values, plane + i64(max(g, i32(0))) * (xs[2] * size), first, width, step)
        widen(upper, values, phase)
        for s in range(strip):
            below = i32(min(i32(g + s + 1), i32(height - 1)))
            fetch(values, plane + i64(below) * (xs[2] * size), first, width, step)
            widen(lower, values, phase)
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
    """dx from dy: pixel i takes (p - |d|)/p of output p*i + (p-1)//2 + d for |d| < p; the first and last take all beyond them."""
    p, r, vec, strip, threads = config.columns, config.rows, config.vec, config.strip, config.threads
    A, size = ACCUMULATOR[acc], ITEMSIZE[dtype]
    read, read_vector, put = load(dtype, acc), load_vector(dtype, vec, acc), store_vector(dtype, vec, acc)
    locate = locator(threads)
    after, above = (p - 1) // 2, (r - 1) // 2  # ``after``: outputs right of the last whole vector that its pixels need
    left = p - 1 - after
    held = p * vec + p - 1
    part, row_part = 1.0 / p, 1.0 / r

    @device
    def gather(sums, values, line, k, width):
        """sums[e]: what pixel k + e takes of this row of dy, which begins at address ``line``."""
        for j in range(left):
            values[j] = read(line + i64(k * p - left + j) * size) if k > 0 else A(0)
        for v in range(p):
            read_vector(values, i32(left + v * vec), line + i64(k * p + v * vec) * size)
        for j in range(after):
            values[left + p * vec + j] = read(line + i64((k + vec) * p + j) * size) if k + vec < width else A(0)
        for e in range(vec):
            total = A(values[e * p + p - 1])
            for d in range(1, p):
                weight = A((p - d) * part)
                total = A(total + weight * values[e * p + p - 1 - d])
                total = A(total + weight * values[e * p + p - 1 + d])
            sums[e] = total
        if k == 0:
            for d in range(1, after + 1):
                sums[0] = A(sums[0] + A(d * part) * values[p - 1 - d])
        if k + vec == width:
            for d in range(1, left + 1):
                sums[vec - 1] = A(sums[vec - 1] + A(d * part) * values[(vec - 1) * p + p - 1 + d])

    def kernel(dy, dx, total, vectors, strips, channels, height, width, out_height, ys, xs):
        values = cuda.local.array(held, A)
        sums = cuda.local.array(vec, A)
        current = cuda.local.array(vec, A)
        following = cuda.local.array(vec, A)
        live, vector, group, c, n = locate(total, vectors, strips, channels)
        if not live:
            return
        k = i32(vector * vec)
        plane = dy + (n * ys[0] + c * ys[1]) * size
        target = dx + (n * xs[0] + c * xs[1] + k) * size
        for e in range(vec):
            current[e] = A(0)
            following[e] = A(0)
        for s in range(
            strip + 1
        ):  # the rows of dy from pixel row i on, up to the next; first those from the row before
            i = i32(group * strip + s - 1)
            for f in range(r):
                o = i32(i * r + above + f)
                if (s > 0 or f > 0) and o >= 0 and o < out_height:
                    gather(sums, values, plane + i64(o) * (ys[2] * size), k, width)
                    own = A(1) if i == height - 1 else A((r - f) * row_part)
                    other = A(1) if i < 0 else A(f * row_part)
                    for e in range(vec):
                        current[e] = A(current[e] + own * sums[e])
                        if f > 0:
                            following[e] = A(following[e] + other * sums[e])
            if s > 0 and i < height:
                put(current, i32(0), target + i64(i) * (xs[2] * size))
            for e in range(vec):
                current[e] = following[e]
                following[e] = A(0)

    return kernel
