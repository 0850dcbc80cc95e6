"""Convolution along a line, each channel by itself: a thread reads whole pieces of 16 bytes and writes whole pieces.

Every piece begins at a multiple of its length, so one lies wholly before the line's beginning or wholly behind it. With a
dilation that is a multiple of a piece each tap is a piece of its own, ``pieces`` of them as far apart as the block is wide.
Otherwise taps and dilation are frozen, a thread's pieces are neighbours, and what they see stays in registers, read once.
Terms are added in the order of the taps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels._cuda import cuda, device, i32, i64, u32
from numbadnn.kernels._ptx import ACCUMULATOR, load, load_vector, store_vector
from numbadnn.kernels.line import THREADS, ChannelConfig
from numbadnn.problem import ITEMSIZE


def _apart(dtype: str, acc: str, config: ChannelConfig) -> Callable[..., None]:
    """``add(total, line, first, w, S, past, dilation, tap)``: the sums of a thread whose pieces lie a block apart."""
    A, size, vec, pieces = ACCUMULATOR[acc], ITEMSIZE[dtype], config.vec, config.pieces
    read, read_vector, hop = load(dtype, acc), load_vector(dtype, config.vec, acc), THREADS * config.vec
    count = vec * pieces

    @device
    def add(total, line, first, last, w, S, past, dilation, tap):  # type: ignore[no-untyped-def]
        seen = cuda.local.array(count, A)
        for s in range(S):
            back = i32(first - past + s * dilation)
            factor = read(w + s * tap)
            for i in range(pieces):
                at = i32(back + i * hop)
                inside = at >= 0 and at <= last
                read_vector(seen, i32(i * vec), line + i64(at if inside else i32(0)) * size)
                for e in range(vec):
                    value = seen[i * vec + e] if inside else A(0)
                    total[i * vec + e] = A(total[i * vec + e] + value * factor)

    return add


def _window(dtype: str, acc: str, config: ChannelConfig) -> Callable[..., None]:
    """The same for a thread whose pieces are neighbours: ``window`` is all that they see."""
    A, size, vec, taps, dilation = ACCUMULATOR[acc], ITEMSIZE[dtype], config.vec, config.taps, config.dilation
    read, read_vector, span = load(dtype, acc), load_vector(dtype, config.vec, acc), config.vec * config.pieces
    behind = (taps - 1) * dilation
    before = -(-behind // vec)  # pieces
    count = (before + config.pieces) * vec
    shift = before * vec - behind

    @device
    def add(total, line, first, last, w, S, past, step, tap):  # type: ignore[no-untyped-def]
        window = cuda.local.array(count, A)
        for i in range(count // vec):
            at = i32(first + (i - before) * vec)
            inside = at >= 0 and at <= last
            read_vector(window, i32(i * vec), line + i64(at if inside else i32(0)) * size)
            for e in range(vec):
                window[i * vec + e] = window[i * vec + e] if inside else A(0)
        for s in range(taps):
            factor = read(w + s * tap)
            for v in range(span):
                total[v] = A(total[v] + window[shift + v + s * dilation] * factor)

    return add


def forward(dtype: str, acc: str, config: ChannelConfig) -> Callable[..., None]:
    """y[n,k,t] = sum over s of x[n, k // multiplier, t - past + s*dilation] * w[k,0,s]."""
    A, size, vec, pieces, frozen = ACCUMULATOR[acc], ITEMSIZE[dtype], config.vec, config.pieces, config.taps > 0
    add: Any = (_window if frozen else _apart)(dtype, acc, config)
    write, span = store_vector(dtype, vec, acc), vec * pieces
    own, hop = (span, vec) if frozen else (vec, THREADS * vec)  # from thread to thread, from piece to piece

    def kernel(  # type: ignore[no-untyped-def]
        x, w, y, tiles, multiplier, K, S, Q, past, dilation, x_strides, w_start, w_strides, y_strides,
    ):  # fmt: skip
        block = i32(cuda.blockIdx.x)
        row = i32(u32(block) // u32(tiles))
        n = i32(u32(row) // u32(K))
        k = i32(row - n * K)
        first = i32((block - row * tiles) * (THREADS * span) + i32(cuda.threadIdx.x) * own)
        total = cuda.local.array(span, A)
        for i in range(span):
            total[i] = A(0)
        line = x + (i64(n) * x_strides[0] + i64(u32(k) // u32(multiplier)) * x_strides[1]) * size
        taps = w + (w_start + i64(k) * w_strides[0]) * size
        add(total, line, first, i32(Q - vec), taps, S, past, dilation, w_strides[1] * size)
        target = y + (i64(n) * y_strides[0] + i64(k) * y_strides[1] + first) * size
        for i in range(pieces):
            if first + i * hop < Q:
                write(total, i32(i * vec), target + i64(i * hop * size))

    return kernel
