"""Bilinear upsampling by any ratio and its gradient on any strides: one thread a result, everything known at run time.

``last`` says which axis neighbouring threads walk along: columns, or channels. ``wide``: indices of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32, u64
from numbadnn.kernels.upsample.layout import GeneralConfig
from numbadnn.problem import ITEMSIZE


def _index(config: GeneralConfig) -> tuple[Any, Any]:
    """The index type, and ``(total, shape) -> (whether it exists, n, c, row, column)`` of this thread's result."""
    ix, ux = (i64, u64) if config.wide else (i32, u32)
    threads, channels_last = config.threads, config.channels_last

    @device
    def locate(total, shape):
        index = ix(i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x)
        live = index < ix(total)
        inner = ix(shape[1]) if channels_last else ix(shape[3])
        rest = ix(ux(index) // ux(inner))
        a = ix(index - rest * inner)
        middle = ix(shape[3]) if channels_last else ix(shape[2])
        outer = ix(ux(rest) // ux(middle))
        b = ix(rest - outer * middle)
        slow = ix(shape[2]) if channels_last else ix(shape[1])
        n = ix(ux(outer) // ux(slow))
        c = ix(outer - n * slow)
        if channels_last:
            return live, i64(n), i64(a), i64(c), i64(b)
        return live, i64(n), i64(c), i64(b), i64(a)

    return ix, locate


def forward(dtype: str, acc: str, config: GeneralConfig) -> Callable[..., None]:
    """y from x; ``ratio`` = (p, q) of rows, (p, q) of columns; shape and strides are y's, then x's."""
    A, size = ACCUMULATOR[acc], ITEMSIZE[dtype]
    read, write = load(dtype, acc), store(dtype, acc)
    _, locate = _index(config)

    @device
    def source(o, n, p, q):
        """The sample before output o, how far on the next one is (0 at an edge), and how many p-ths of the way o lies."""
        at = i64(o) * q - i32(p - 1) // 2
        i = i64(at // p)
        first, second = min(max(i, i64(0)), i64(n - 1)), min(max(i64(i + 1), i64(0)), i64(n - 1))
        return i64(first), i64(second - first), i32(at - i * p)

    @device
    def between(a, b, f, p):
        part = A(A(1) / A(p))
        return cuda.fma(A(A(f) * part), b, A(A(A(p - f) * part) * a)) if f > 0 else a

    def kernel(x, y, total, shape, rows, columns, ratio, xs, ys):
        live, n, c, i, j = locate(total, shape)
        if not live:
            return
        row, down, f = source(i, rows, ratio[0], ratio[1])
        column, right, g = source(j, columns, ratio[2], ratio[3])
        line, beside = x + (n * xs[0] + c * xs[1] + row * xs[2] + column * xs[3]) * size, right * xs[3] * size
        below = line + down * xs[2] * size
        value = between(read(line), read(line + beside), g, ratio[2])
        under = between(read(below), read(below + beside), g, ratio[2])
        write(y + (n * ys[0] + c * ys[1] + i * ys[2] + j * ys[3]) * size, between(value, under, f, ratio[0]))

    return kernel


def backward(dtype: str, acc: str, config: GeneralConfig) -> Callable[..., None]:
    """dx from dy: a pixel gathers over the outputs whose position is less than one pixel away. Shape and strides: dx's last."""
    A, size = ACCUMULATOR[acc], ITEMSIZE[dtype]
    read, write = load(dtype, acc), store(dtype, acc)
    _, locate = _index(config)

    @device
    def reach(i, n, outputs, p, q):
        """The first output of pixel i and the one after its last."""
        shift = i64(i32(p - 1) // 2)
        first = i64((max(i64(i - 1) * p + 1 + shift, i64(0)) + q - 1) // q)
        last = i64((i64(i + 1) * p - 1 + shift) // q) + 1
        first = i64(0) if i == 0 else first
        last = i64(outputs) if i == n - 1 else i64(min(last, i64(outputs)))
        return first, last

    @device
    def weight(o, i, n, p, q):
        at = i64(o) * q - i32(p - 1) // 2
        at = i64(min(max(at, i64(0)), i64(n - 1) * p))
        return A(A(p - abs(at - i * p)) * A(A(1) / A(p)))

    def kernel(dy, dx, total, shape, rows, columns, ratio, ys, xs):
        live, n, c, i, j = locate(total, shape)
        if not live:
            return
        image = dy + (n * ys[0] + c * ys[1]) * size
        top, bottom = reach(i, shape[2], rows, ratio[0], ratio[1])
        left, right = reach(j, shape[3], columns, ratio[2], ratio[3])
        total_sum = A(0)
        for o in range(top, bottom):
            line = image + o * ys[2] * size
            part = A(0)
            for k in range(left, right):
                part = A(part + weight(k, j, shape[3], ratio[2], ratio[3]) * read(line + k * ys[3] * size))
            total_sum = A(total_sum + weight(o, i, shape[2], ratio[0], ratio[1]) * part)
        write(dx + (n * xs[0] + c * xs[1] + i * xs[2] + j * xs[3]) * size, total_sum)

    return kernel
