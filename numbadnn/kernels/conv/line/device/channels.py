"""1-D convolution with one channel a group: a thread reads and writes whole 16-byte chunks.

Every piece begins at a multiple of its length, so one lies wholly before the line's beginning or wholly behind it. With a
dilation that is a multiple of a piece each tap is a piece of its own, ``pieces`` of them as far apart as the block is wide.
Otherwise taps and dilation are frozen, and what a piece sees, or pieces that are neighbours, stays in registers, read once.
Terms are added in the order of the taps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.line.channels import THREADS, ChannelConfig
from numbadnn.kernels.lang.access import load, load_shared, load_vector, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.words import in_turn
from numbadnn.problem import ITEMSIZE

#: taps that a thread multiplies with at once; more than these a block reads once, into shared memory
FEW_TAPS = 4


def _apart(dtype: str, acc: str, config: ChannelConfig) -> Callable[..., None]:
    """``add(total, line, first, w, S, past, dilation, tap)``: the sums of a thread whose pieces lie a block apart."""
    A, size, vec, pieces = ACCUMULATOR[acc], ITEMSIZE[dtype], config.vec, config.pieces
    read, read_vector, hop = load(dtype, acc), load_vector(dtype, config.vec, acc), THREADS * config.vec
    count = vec * pieces

    @device
    def add(total, line, first, last, w, S, past, dilation, tap):
        elements = cuda.local.array(count, A)
        for s in range(S):
            back = i32(first - past + s * dilation)
            factor = read(w + s * tap)
            for i in range(pieces):
                at = i32(back + i * hop)
                inside = at >= 0 and at <= last
                read_vector(elements, i32(i * vec), line + i64(at if inside else i32(0)) * size)
                for e in range(vec):
                    value = elements[i * vec + e] if inside else A(0)
                    total[i * vec + e] = A(total[i * vec + e] + value * factor)

    return add


def _windows(dtype: str, acc: str, config: ChannelConfig) -> Callable[..., None]:
    """The same where taps and dilation are frozen: ``window`` is all that pieces see, one for each or, of neighbours, for all."""
    A, size, vec, taps, dilation = ACCUMULATOR[acc], ITEMSIZE[dtype], config.vec, config.taps, config.dilation
    pieces, read, read_vector = config.pieces, load(dtype, acc), load_vector(dtype, vec, acc)
    behind = (taps - 1) * dilation
    before = -(-behind // vec)  # pieces
    shift = before * vec - behind
    windows, wide = (1, before + pieces) if config.near else (pieces, before + 1)
    hop = THREADS * vec  # from window to window
    stretch, reach = (vec, (pieces - 1) * vec) if config.near else (wide * vec, (pieces - 1) * hop)
    count = windows * wide * vec
    shared, rounded = taps > FEW_TAPS, -(-taps // FEW_TAPS) * FEW_TAPS
    read_some: Any = load_shared("float32", FEW_TAPS, "float32") if acc == "float32" else None

    def carefully(i: int) -> Callable[..., None]:
        @device
        def look_carefully(window, line, first, last):
            for p in range(windows):
                at, to = i32(first + (i - before) * vec + p * hop), (p * wide + i) * vec
                inside = at >= 0 and at <= last
                read_vector(window, i32(to), line + i64(at if inside else i32(0)) * size)
                for e in range(vec):
                    window[to + e] = window[to + e] if inside else A(0)

        return look_carefully

    look_at_all = in_turn([carefully(i) for i in range(wide)])

    @device
    def look(window, line, first, last):
        if first >= before * vec and first + reach <= last:
            start = line + i64(first) * size
            for i in range(wide):
                for p in range(windows):
                    read_vector(window, i32((p * wide + i) * vec), start + ((i - before) * vec + p * hop) * size)
        else:
            look_at_all(window, line, first, last)

    @device
    def multiply(total, window, s, factor):
        for p in range(pieces):
            for v in range(vec):
                elements = window[p * stretch + shift + v + s * dilation]
                total[p * vec + v] = A(total[p * vec + v] + elements * factor)

    @device
    def fetch(factor, table, at):
        read_some(factor, i32(0), table, i32(at))

    @device
    def fetch_one_by_one(factor, table, at):
        for s in range(FEW_TAPS):
            factor[s] = table[at + s]

    read_factors = fetch if read_some else fetch_one_by_one

    def some(s0: int) -> Callable[..., None]:
        number = min(FEW_TAPS, taps - s0)

        @device
        def multiply_some(window, total, table, unused):
            factor = cuda.local.array(FEW_TAPS, A)
            read_factors(factor, table, s0)
            for s in range(number):
                multiply(total, window, s0 + s, factor[s])

        return multiply_some

    multiply_all = in_turn([some(s0) for s0 in range(0, taps, FEW_TAPS)])

    @device
    def add(total, line, first, last, w, S, past, step, tap):
        window = cuda.local.array(count, A)
        look(window, line, first, last)
        for s in range(taps):
            multiply(total, window, s, read(w + s * tap))

    @device
    def add_shared(total, line, first, last, w, S, past, step, tap):
        table, window = cuda.shared.array(rounded, A), cuda.local.array(count, A)
        thread = i32(cuda.threadIdx.x)
        look(window, line, first, last)
        if thread < rounded:
            table[thread] = read(w + min(thread, taps - 1) * tap)
        cuda.syncthreads()
        multiply_all(window, total, table, 0)

    return add_shared if shared else add


def forward(dtype: str, acc: str, config: ChannelConfig) -> Callable[..., None]:
    """y[n,k,t] = sum over s of x[n, k // multiplier, t - past + s*dilation] * w[k,0,s]."""
    A, size, vec, pieces, frozen = ACCUMULATOR[acc], ITEMSIZE[dtype], config.vec, config.pieces, config.taps > 0
    add: Any = (_windows if frozen else _apart)(dtype, acc, config)
    write, span = store_vector(dtype, vec, acc), vec * pieces
    own, hop = (span, vec) if config.near else (vec, THREADS * vec)  # from thread to thread, from piece to piece

    def kernel(
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
