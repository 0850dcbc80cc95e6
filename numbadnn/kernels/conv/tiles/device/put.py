"""The epilogue of ``device/tiles.py``: sums are written to the result, or as partial sums that ``total`` adds.

A row's place in the result is the third number of its table entry. A thread writes some neighbours at a time, along
rows of the product or along its columns, whichever follow each other in memory. Where rows do, but not in vectors that
are aligned (every second pixel), a thread's own would be so many single accesses far apart: there the
sums go through shared memory, so that neighbouring threads write neighbouring rows (``_spread``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.conv.tiles.config import ENTRY, TOTAL_THREADS, ImplicitTilesConfig
from numbadnn.kernels.conv.tiles.device.tables import LAST_BIT
from numbadnn.kernels.lang import reduce as _reduce
from numbadnn.kernels.lang.access import load, store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.words import fetch_words, write_at
from numbadnn.problem import ITEMSIZE

INT32 = np.int32


def _finish(dtype: str, acc: str) -> Callable[..., Any]:
    """``finish(value, target, alpha, beta)``: what is to be written."""
    A, read = ACCUMULATOR[acc], load(dtype, acc)

    @device
    def finish(value, target, alpha, beta):
        value = A(alpha * value)
        if beta != A(0):
            value = A(value + beta * read(target))
        return value

    return finish


def _put(out: str, acc: str, config: ImplicitTilesConfig) -> Callable[..., None]:
    """``put(sums, part, shared, base, rows, target, corner, place, columns, row_step, step, alpha, beta)``: a part of its rows.

    ``corner`` and ``place``: row and column of the tile, and of the thread's first in it. A part is ``chunk`` rows that lie
    together, with warps two of sixteen; ``config.put`` is how many elements an access has, along rows of the result where
    ``config.along_rows``.
    """
    warps, wide, chunk, split = config.warps, config.wide, config.chunk, config.splits > 1
    along_rows = config.along_rows and not warps
    group, run = (2, 2) if warps else (chunk, chunk)  # rows of a part, columns that lie together
    between, high = (8, 16) if warps else (1, config.m * chunk // config.tall)  # rows and parts
    apart, held = (8, wide // 4) if warps else (config.n * chunk // wide, wide)  # runs of columns; columns of a thread
    vector = group if along_rows else min(config.put, run)
    outer, inner = (1, held) if along_rows else (group, held // vector)
    A, size, finish = ACCUMULATOR[acc], ITEMSIZE[out], _finish(out, acc)
    write, write_vector = store(out, acc), store_vector(out, vector, acc)

    @device
    def put(sums, part, shared, base, rows, target, corner, place, columns, row_step, step, alpha, beta):
        words = cuda.local.array(4, INT32)
        values = cuda.local.array(vector, A)
        row, column = i32(corner[0] + place[0]), i32(corner[1] + place[1])
        for e in range(outer):
            r = i32(row + part * high + e * between)
            if split:
                start = i32(r * row_step)
            else:
                fetch_words(words, i32(0), rows + i64(r) * ENTRY)
                start = words[2]
            for i in range(inner):
                j = i if along_rows else i * vector
                c = i32(column + (j // run) * apart + j % run)
                if split or (start != i32(LAST_BIT) and c < columns):
                    to = target + i64(i32(start + c * step)) * size
                    for v in range(vector):
                        if warps:
                            at = (part * (wide // 8) + j // 2) * 4 + e * 2 + j % 2 + v
                        else:
                            at = (part * chunk + v) * wide + j if along_rows else (part * chunk + e) * wide + j + v
                        values[v] = sums[at] if split else finish(sums[at], to + v * size, alpha, beta)
                    if vector > 1:
                        write_vector(values, i32(0), to)
                    else:
                        write(to, values[0])

    return put


def _spread(out: str, acc: str, config: ImplicitTilesConfig) -> Callable[..., None]:
    """As ``_put``, by way of shared memory: threads follow each other along rows of the result.

    A part lies there as [column][row], rows in fours that are exchanged by column: else all columns would share banks.
    """
    threads, wide, chunk, n = config.threads, config.wide, config.chunk, config.n
    high = config.m * chunk // config.tall  # rows of a part
    apart, mask = n * chunk // wide, min(8, high // chunk) - 1
    together = threads // high  # columns that are written at a time
    turns = n // together
    A, size, finish = ACCUMULATOR[acc], ITEMSIZE[out], _finish(out, acc)
    write, keep = store(out, acc), write_at(acc, chunk)

    @device
    def put(sums, part, shared, base, rows, target, corner, place, columns, row_step, step, alpha, beta):
        words = cuda.local.array(4, INT32)
        values = cuda.local.array(chunk, A)
        cuda.syncthreads()
        four = i32(u32(place[0]) // u32(chunk))
        for j in range(wide):
            c = i32(place[1] + (j // chunk) * apart + j % chunk)
            for v in range(chunk):
                values[v] = sums[(part * chunk + v) * wide + j]
            at = i32(c * high + i32(four ^ (i32(u32(c) // u32(chunk)) & mask)) * chunk)
            keep(values, i32(0), shared, i32(base + at * size))
        cuda.syncthreads()
        thread = i32(cuda.threadIdx.x)
        first = i32(u32(thread) // u32(high))
        r = i32(thread - first * high)
        four, inside = i32(u32(r) // u32(chunk)), i32(r % chunk)
        fetch_words(words, i32(0), rows + i64(i32(corner[0] + part * high + r)) * ENTRY)
        start = words[2]
        for turn in range(turns):
            c = i32(first + turn * together)
            column = i32(corner[1] + c)
            if start != i32(LAST_BIT) and column < columns:
                at = i32(c * high + i32(four ^ (i32(u32(c) // u32(chunk)) & mask)) * chunk + inside)
                to = target + i64(i32(start + column * step)) * size
                write(to, finish(shared[at], to, alpha, beta))

    return put


def store_tile(out: str, acc: str, config: ImplicitTilesConfig) -> Callable[..., None]:
    """``store_all(sums, shared, base, rows, target, corner, place, columns, row_step, step, alpha, beta)``: a thread's sums.

    Written out, because a loop over so much code would not be unrolled, and the sums would lie in memory.
    """
    spreads = config.along_rows and config.put == 1 and config.splits == 1 and not config.warps
    put = (_spread if spreads else _put)(out, acc, config)
    parts = config.tall // 16 if config.warps else config.tall // config.chunk

    @device
    def store_all(sums, shared, base, rows, target, corner, place, columns, row_step, step, alpha, beta):
        put(sums, 0, shared, base, rows, target, corner, place, columns, row_step, step, alpha, beta)
        if parts > 1:
            put(sums, 1, shared, base, rows, target, corner, place, columns, row_step, step, alpha, beta)
        if parts > 2:
            put(sums, 2, shared, base, rows, target, corner, place, columns, row_step, step, alpha, beta)
            put(sums, 3, shared, base, rows, target, corner, place, columns, row_step, step, alpha, beta)

    return store_all


def total(dtype: str, acc: str, along_rows: bool, share: int) -> Callable[..., None]:
    """out[row, column] = alpha * (the sum of all splits) + beta * out; a group a blockIdx.y.

    The partial sums lie as ``row * row_step + column * column_step``, neighbours as ``along_rows`` says, ``each`` apart.
    ``share`` threads have every so-manieth split of an element and add them in order, then their sums are added in a tree.
    """
    A, acc_size, size = ACCUMULATOR[acc], ITEMSIZE[acc], ITEMSIZE[dtype]
    read, write, finish = load(acc, acc), store(dtype, acc), _finish(dtype, acc)
    together, lanes = 8, TOTAL_THREADS // share
    add_up = _reduce.over_parts(_reduce.add(acc), lanes, share)

    def kernel(
        partial, target, rows, row_count, columns, splits, row_step, column_step, each, step, group_step, alpha, beta
    ):
        table = cuda.shared.array(TOTAL_THREADS, A)
        thread = i32(cuda.threadIdx.x)
        part = i32(u32(thread) // u32(lanes))
        number = i32(i64(cuda.blockIdx.x) * lanes + (thread - part * lanes))
        extent = row_count if along_rows else columns
        high = i32(u32(number) // u32(extent))
        low = i32(number - high * extent)
        row, column = (low, high) if along_rows else (high, low)
        live = row < row_count and column < columns
        words = cuda.local.array(4, INT32)
        fetch_words(words, i32(0), rows + i64(row if live else i32(0)) * ENTRY)
        live = live and words[2] != i32(LAST_BIT)
        group = i64(cuda.blockIdx.y)
        source = partial + (group * splits * each + i64(row) * row_step + i64(column) * column_step) * acc_size
        value = A(0)
        held = cuda.local.array(together, A)
        apart = each * acc_size
        for first in range(part, splits if live else i32(0), i32(together * share)):
            for e in range(together):
                split = i32(first + e * share)
                held[e] = read(source + i64(split) * apart) if split < splits else A(0)
            for e in range(together):
                value = A(value + held[e])
        if share > 1:
            table[thread] = value
            add_up(table)
            value = table[thread]
        if live and part == 0:
            to = target + (group * group_step + i64(words[2]) + i64(column) * step) * size
            write(to, finish(value, to, alpha, beta))

    return kernel


def clear(dtype: str, acc: str, vector: int) -> Callable[..., None]:
    """out[i] = 0 for all i < count, ``vector`` at a time."""
    A, size = ACCUMULATOR[acc], ITEMSIZE[dtype]
    write, write_vector = store(dtype, acc), store_vector(dtype, vector, acc)

    def kernel(target, count):
        zeros = cuda.local.array(vector, A)
        for v in range(vector):
            zeros[v] = A(0)
        first = (i64(cuda.blockIdx.x) * TOTAL_THREADS + cuda.threadIdx.x) * vector
        if first + vector <= count:
            write_vector(zeros, i32(0), target + first * size)
        else:
            for v in range(vector):
                if first + v < count:
                    write(target + (first + v) * size, A(0))

    return kernel
