"""1-D convolution on plain threads: a thread computes several 16-byte chunks, a block apart, for several filters.

What the taps see of a channel is read in pieces that begin at multiples of their length, so that one lies wholly before the
line's beginning or wholly behind it: one for each tap where the dilation is a multiple of a piece, else, with taps and dilation
frozen, neighbours that hold it all. The next turn's pieces are read while those at hand are multiplied; a turn is a channel,
or one tap of it where the number of taps is not frozen. The filters of a block lie in shared memory, tap by tap. Blocks in the
midst of a line do not look for its ends. Terms are added in the order of channels, then taps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.line.channels import THREADS
from numbadnn.kernels.conv.line.dense import DenseConfig
from numbadnn.kernels.lang.access import load, load_shared, load_vector, prefetch, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.words import in_turn
from numbadnn.problem import ITEMSIZE

#: elements of the filters that a thread reads before it stores them, at most
TOGETHER = 8
#: channels from the one that is read to the one that is brought to the L2 cache
FAR = 3


def _fill(dtype: str, acc: str, filters: int, capacity: int) -> Callable[..., None]:
    """``fill(table, w, thread, terms, S, most, strides)``: table[m * filters + f] = term m of filter f, or of the last."""
    A, size, read, rows = ACCUMULATOR[acc], ITEMSIZE[dtype], load(dtype, acc), THREADS // filters
    together = min(TOGETHER, capacity // THREADS)

    @device
    def fill(table, w, thread, terms, S, most, strides):
        got = cuda.local.array(together, A)
        own = i32(u32(thread) // u32(filters))
        f = i32(thread - own * filters)
        row = w + min(f, most) * strides[0] * size
        for start in range(own, terms, i32(together * rows)):
            for j in range(together):
                m = i32(min(i32(start + j * rows), i32(terms - 1)))
                c = i32(u32(m) // u32(S))
                got[j] = read(row + (c * strides[1] + i32(m - c * S) * strides[2]) * size)
            for j in range(together):
                if start + j * rows < terms:
                    table[i32((start + j * rows) * filters + f)] = got[j]

    return fill


def _look(dtype: str, acc: str, config: DenseConfig, careful: bool) -> Callable[..., None]:
    """``look(values, line, first, last, gap)``: the pieces ``gap`` apart up to ``first``, and those a block further."""
    A, size, vec, pieces, looks = ACCUMULATOR[acc], ITEMSIZE[dtype], config.vec, config.pieces, config.looks
    read_vector, hop = load_vector(dtype, vec, acc), THREADS * vec

    @device
    def look(values, line, first, last, gap):
        for j in range(looks):
            back = i32(first - (looks - 1 - j) * gap)
            for p in range(pieces):
                read_vector(values, i32((p * looks + j) * vec), line + i64(back) * size + p * hop * size)

    @device
    def look_carefully(values, line, first, last, gap):
        for j in range(looks):
            for p in range(pieces):
                at, to = i32(first - (looks - 1 - j) * gap + p * hop), (p * looks + j) * vec
                inside = at >= 0 and at <= last
                read_vector(values, i32(to), line + i64(at if inside else i32(0)) * size)
                for e in range(vec):
                    values[to + e] = values[to + e] if inside else A(0)

    return look_carefully if careful else look


def _multiply(acc: str, config: DenseConfig) -> Callable[..., None]:
    """``multiply(total, elements, table, at)``: a turn's products; its factors lie in table[at:]."""
    A, vec, pieces, looks, filters = ACCUMULATOR[acc], config.vec, config.pieces, config.looks, config.filters
    taps, shift, pace = max(config.taps, 1), config.shift, config.dilation or config.vec
    read_all: Any = load_shared("float32", filters, "float32") if acc == "float32" and filters > 1 else None
    whole = looks * vec

    @device
    def factors(factor, table, at):
        read_all(factor, i32(0), table, at)

    @device
    def factors_one_by_one(factor, table, at):
        for f in range(filters):
            factor[f] = table[i32(at + f)]

    fetch = factors if read_all else factors_one_by_one

    def tap(s: int) -> Callable[..., None]:
        first, row = shift + s * pace, s * filters

        @device
        def multiply_tap(total, elements, table, at):
            factor = cuda.local.array(filters, A)
            fetch(factor, table, i32(at + row))
            for f in range(filters):
                for p in range(pieces):
                    for v in range(vec):
                        o = (f * pieces + p) * vec + v
                        total[o] = A(total[o] + elements[p * whole + first + v] * factor[f])

        return multiply_tap

    return in_turn([tap(s) for s in range(taps)])


def _walk(dtype: str, acc: str, config: DenseConfig, careful: bool) -> Callable[..., None]:
    """All turns; ``ahead`` is what the first sees. What comes ``FAR`` channels later is brought to the L2 cache meanwhile."""
    A, size, filters, taps, hop = ACCUMULATOR[acc], ITEMSIZE[dtype], config.filters, config.taps, THREADS * config.vec
    look, multiply, pieces = _look(dtype, acc, config, careful), _multiply(acc, config), config.pieces
    count, factors = pieces * config.looks * config.vec, max(taps, 1) * filters

    @device
    def bring(later, first, last):
        for p in range(pieces):
            if not careful or first + p * hop <= last:
                prefetch(later + p * hop * size)

    @device
    def walk(total, ahead, table, line, first, last, gap, turns, S, channel):
        elements = cuda.local.array(count, A)
        tap, left, at = i32(0), i32(turns), i32(0)
        later = line + i64(first) * size + (FAR - 1) * channel
        while left > 0:
            for j in range(count):
                elements[j] = ahead[j]
            left = i32(left - 1)
            if taps > 0:
                line = line + (channel if left > 0 else i64(0))  # in the end the last is read again
                later = later + channel
                if left >= FAR:
                    bring(later, first, last)
                look(ahead, line, first, last, gap)
            else:
                tap = i32(tap + 1)
                if tap == S:
                    tap = i32(0)
                    line = line + channel
                if left > 0:
                    look(ahead, line, i32(first + tap * gap), last, gap)
            multiply(total, elements, table, at)
            at = i32(at + factors)

    @device
    def walk_by_two(total, ahead, table, line, first, last, gap, turns, S, channel):
        other = cuda.local.array(count, A)
        left, at, later = i32(turns), i32(0), line + i64(first) * size + (FAR - 1) * channel
        while left > 0:  # two channels: what is read and what is multiplied change places without being moved
            left, later = i32(left - 1), later + channel
            line = line + (channel if left > 0 else i64(0))  # in the end the last is read again
            if left >= FAR:
                bring(later, first, last)
            look(other, line, first, last, gap)
            multiply(total, ahead, table, at)
            at = i32(at + factors)
            if left > 0:
                left, later = i32(left - 1), later + channel
                line = line + (channel if left > 0 else i64(0))
                if left >= FAR:
                    bring(later, first, last)
                look(ahead, line, first, last, gap)
                multiply(total, other, table, at)
                at = i32(at + factors)

    # with one piece what is not moved counts; with more, the longer loop is the slower one
    return walk_by_two if taps > 0 and pieces == 1 else walk


def forward(dtype: str, acc: str, config: DenseConfig) -> Callable[..., None]:
    """y[n,k,t] = sum over c,s of x[n, g*C+c, t - past + s*dilation] * w[k,c,s]; past = (S-1) * dilation."""
    A, size, vec, pieces, filters, capacity = (
        *(ACCUMULATOR[acc], ITEMSIZE[dtype], config.vec, config.pieces),
        *(config.filters, config.capacity),
    )
    write, span, hop = store_vector(dtype, vec, acc), THREADS * vec * pieces, THREADS * vec
    fill = _fill(dtype, acc, filters, capacity)
    start, start_carefully = _look(dtype, acc, config, False), _look(dtype, acc, config, True)
    walk, walk_carefully = _walk(dtype, acc, config, False), _walk(dtype, acc, config, True)
    sums, count, taps = vec * pieces * filters, pieces * config.looks * vec, config.taps
    window = vec if config.dilation > 0 else 0  # pieces are neighbours

    def kernel(
        x, w, y, blocks_of_filters, tiles, groups, K, C, S, Q, past, dilation, x_strides, w_start, w_strides, y_strides,
    ):  # fmt: skip
        table = cuda.shared.array(capacity, A)
        total, ahead = cuda.local.array(sums, A), cuda.local.array(count, A)
        a = i32(u32(cuda.blockIdx.x) // u32(blocks_of_filters))
        k0 = i32((i32(cuda.blockIdx.x) - a * blocks_of_filters) * filters)
        b = i32(u32(a) // u32(tiles))
        tile = i32(a - b * tiles)
        n = i32(u32(b) // u32(groups))
        g = i32(b - n * groups)
        thread = i32(cuda.threadIdx.x)
        number = i32(taps) if taps > 0 else i32(S)
        first, last = i32(tile * span + thread * vec), i32(Q - vec)
        gap = i32(window) if window > 0 else i32(dilation)
        begin = first if taps > 0 else i32(first - past)
        line = x + (i64(n) * x_strides[0] + i64(g * C) * x_strides[1]) * size
        inner = tile * span >= past + vec and tile * span + span <= Q
        if inner:
            start(ahead, line, begin, last, gap)
        else:
            start_carefully(ahead, line, begin, last, gap)
        if taps > 0:
            for c in range(1, min(i32(FAR), i32(C))):
                if first <= last:
                    prefetch(line + (c * x_strides[1] + i64(first)) * size)
        fill(
            table, w + (w_start + i64(g * K + k0) * w_strides[0]) * size, thread, i32(C * number), number,
            i32(K - 1 - k0), w_strides,
        )  # fmt: skip
        for i in range(sums):
            total[i] = A(0)
        cuda.syncthreads()
        turns = i32(C) if taps > 0 else i32(C * S)
        if inner:
            walk(total, ahead, table, line, begin, last, gap, turns, number, x_strides[1] * size)
        else:
            walk_carefully(total, ahead, table, line, begin, last, gap, turns, number, x_strides[1] * size)
        target = y + (i64(n) * y_strides[0] + i64(g * K + k0) * y_strides[1] + first) * size
        for f in range(filters):
            if k0 + f < K:
                for p in range(pieces):
                    if first + p * hop < Q:
                        write(total, i32((f * pieces + p) * vec), target + p * hop * size)
            target = target + y_strides[1] * size

    return kernel
