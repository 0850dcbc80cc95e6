"""Pooling of anything: any strides, any window, an element a thread. The kernels for what the tiles do not take.

Every array is rank 5 (images, channels, depth, rows, columns). The gradient of a maximum takes two steps: the number of each
window's first maximum is written down, then each element of the image asks the windows that see it. So that work grows
with the window and not with its square; gather form, one order of summation. Sums of very many terms are compensated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32, u64
from numbadnn.kernels.lang.long_sums import compensated
from numbadnn.kernels.pool.strided import StridedConfig
from numbadnn.problem import ITEMSIZE

INFINITY = float("inf")


def _unravel(config: StridedConfig) -> Any:
    """``(i, extents) -> five indices``: columns fastest, or channels where they are last in memory."""
    ix, ux, channels_last = (i64, u64, config.channels_last) if config.wide else (i32, u32, config.channels_last)

    @device
    def split(rest, n):
        outer = ix(ux(rest) // ux(n))
        return outer, ix(rest - outer * n)

    @device
    def unravel(i, n):
        rest, c = ix(i), ix(0)
        if channels_last:
            rest, c = split(rest, n[1])
        rest, w = split(rest, n[4])
        rest, h = split(rest, n[3])
        rest, d = split(rest, n[2])
        if not channels_last:
            rest, c = split(rest, n[1])
        return rest, c, d, h, w

    return unravel


def _window(config: StridedConfig) -> Any:
    """``(o, window, stride, pad, n) -> (first, end, start)`` of a window inside the image; ``start`` may lie before it."""
    ix = i64 if config.wide else i32

    @device
    def window(o, size, stride, pad, n):
        start = ix(ix(o) * stride - pad)
        end = ix(start + size)
        return ix(start if start > 0 else ix(0)), ix(end if end < n else ix(n)), start

    return window


def _windows_of(config: StridedConfig) -> Any:
    """``(h, window, stride, pad, outputs) -> (first, end)`` of the windows that see element h of an axis."""
    ix, ux = (i64, u64) if config.wide else (i32, u32)

    @device
    def windows_of(h, size, stride, pad, outputs):
        padded = ix(h + pad)
        first = ix(ux(padded - size + stride) // ux(stride)) if padded >= size else ix(0)
        end = ix(ix(ux(padded) // ux(stride)) + 1)
        return first, ix(end if end < outputs else ix(outputs))

    return windows_of


def pool(dtype: str, acc: str, config: StridedConfig) -> Callable[..., None]:
    """y from x; ``config.choose``: the number of each window's first maximum instead, packed, as a float."""
    A, size, threads, kind, choose = (
        ACCUMULATOR[acc],
        ITEMSIZE[dtype],
        config.threads,
        config.kind,
        config.op == "choose",
    )
    read, write, put = load(dtype, acc), store(dtype, acc), store(config.index, config.index)
    unravel, window = _unravel(config), _window(config)
    N, number_size = ACCUMULATOR[config.index], ITEMSIZE[config.index]
    (add, close), long = compensated(acc), config.long

    def kernel(x, y, count, n, y_n, ws, stride, pad, x_s, y_s):
        i = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i >= count:
            return
        image, c, o, p, q = unravel(i, y_n)
        d0, d1, d_start = window(o, ws[0], stride[0], pad[0], n[0])
        h0, h1, h_start = window(p, ws[1], stride[1], pad[1], n[1])
        w0, w1, w_start = window(q, ws[2], stride[2], pad[2], n[2])
        total, found, lost = A(-INFINITY) if kind == "max" else A(0), i64(-1), A(0)
        base = x + (i64(image) * x_s[0] + i64(c) * x_s[1]) * size
        for d in range(d0, d1):
            for h in range(h0, h1):
                line = base + (i64(d) * x_s[2] + i64(h) * x_s[3]) * size
                for w in range(w0, w1):
                    value = read(line + i64(w) * x_s[4] * size)
                    if kind == "max":
                        if found < 0 or value > total or (value != value and total == total):
                            total = value
                            found = i64(((i64(d) - d_start) * ws[1] + (h - h_start)) * ws[2] + (w - w_start))
                    elif long:
                        total, lost = add(total, lost, value)
                    else:
                        total = A(total + value)
        if long:
            total = close(total, lost)
        if kind == "average_inc":
            total = A(total / A(ws[0] * ws[1] * ws[2]))
        if kind == "average_exc":
            total = A(total / A((d1 - d0) * (h1 - h0) * (w1 - w0)))
        if choose:
            at = (((i64(image) * y_n[1] + c) * y_n[2] + o) * y_n[3] + p) * y_n[4] + q
            put(y + at * number_size, N(found))
        else:
            at = i64(image) * y_s[0] + i64(c) * y_s[1] + i64(o) * y_s[2] + i64(p) * y_s[3] + i64(q) * y_s[4]
            write(y + at * size, total)

    return kernel


def pool_grad(dtype: str, acc: str, config: StridedConfig) -> Callable[..., None]:
    """dx from dy, and for a maximum from the numbers that ``choose`` wrote: what the windows give that see an element."""
    A, size, ix, threads, kind = (
        ACCUMULATOR[acc],
        ITEMSIZE[dtype],
        i64 if config.wide else i32,
        config.threads,
        config.kind,
    )
    read, write, number = load(dtype, acc), store(dtype, acc), load(config.index, config.index)
    unravel, windows_of, window = _unravel(config), _windows_of(config), _window(config)
    number_size, N = ITEMSIZE[config.index], ACCUMULATOR[config.index]
    (add, close), long = compensated(acc), config.long

    def kernel(numbers, dy, dx, count, x_n, n_out, ws, stride, pad, dy_s, dx_s):
        i = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if i >= count:
            return
        image, c, d, h, w = unravel(i, x_n)
        o0, o1 = windows_of(d, ws[0], stride[0], pad[0], n_out[0])
        p0, p1 = windows_of(h, ws[1], stride[1], pad[1], n_out[1])
        q0, q1 = windows_of(w, ws[2], stride[2], pad[2], n_out[2])
        total, lost = A(0), A(0)
        base = dy + (i64(image) * dy_s[0] + i64(c) * dy_s[1]) * size
        for o in range(o0, o1):
            d_first, d_end, d_start = window(o, ws[0], stride[0], pad[0], x_n[2])
            for p in range(p0, p1):
                h_first, h_end, h_start = window(p, ws[1], stride[1], pad[1], x_n[3])
                line = base + (i64(o) * dy_s[2] + i64(p) * dy_s[3]) * size
                at = (((i64(image) * x_n[1] + c) * n_out[0] + o) * n_out[1] + p) * n_out[2]
                for q in range(q0, q1):
                    w_first, w_end, w_start = window(q, ws[2], stride[2], pad[2], x_n[4])
                    share = read(line + i64(q) * dy_s[4] * size)
                    gives = True
                    if kind == "max":
                        own = ((i64(d) - d_start) * ws[1] + (h - h_start)) * ws[2] + (w - w_start)
                        gives = number(numbers + (at + q) * number_size) == N(own)
                    elif kind == "average_inc":
                        share = A(share / A(ws[0] * ws[1] * ws[2]))
                    elif kind == "average_exc":
                        cells = ix((d_end - d_first) * (h_end - h_first) * (w_end - w_first))
                        share = A(share / A(cells))
                    if gives:
                        if long:
                            total, lost = add(total, lost, share)
                        else:
                            total = A(total + share)
        if long:
            total = close(total, lost)
        at = i64(image) * dx_s[0] + i64(c) * dx_s[1] + i64(d) * dx_s[2] + i64(h) * dx_s[3] + i64(w) * dx_s[4]
        write(dx + at * size, total)

    return kernel
