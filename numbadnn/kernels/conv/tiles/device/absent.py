"""Recompute sums of ``device/tiles.py`` that are NaN in the images' gradient, from the terms that the tables name, one by one.

See ``conv/device/absent.py``. A tile multiplies zeros where a row meets no output, which are no terms. Where nothing is added to,
results are looked at once more when they are written, and the registers of sums are free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.conv.device.absent import any_nan, put_in
from numbadnn.kernels.conv.tiles.config import ENTRY, ImplicitTilesConfig
from numbadnn.kernels.conv.tiles.device.tables import LAST_BIT
from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.words import fetch_words
from numbadnn.problem import ITEMSIZE

INT32 = np.int32


def _place(config: ImplicitTilesConfig) -> Callable[..., Any]:
    """``place(i)``: row and column of a thread's i-th sum, from its first."""
    wide, chunk, warps = config.wide, config.chunk, config.warps
    high, apart = config.m * chunk // config.tall, config.n * chunk // wide

    @device
    def place(i):
        if warps:
            tile, e, pair = i32(u32(i) // u32(4)), i32((i >> 1) & 1), i32(i & 1)
            part = i32(u32(tile) // u32(wide // 8))
            return i32(part * 16 + e * 8), i32((tile - part * (wide // 8)) * 8 + pair)
        row = i32(u32(i) // u32(wide))
        column = i32(i - row * wide)
        part, run = i32(u32(row) // u32(chunk)), i32(u32(column) // u32(chunk))
        return i32(part * high + row - part * chunk), i32(run * apart + column - run * chunk)

    return place


def _add(dtype: str, acc: str, config: ImplicitTilesConfig) -> Callable[..., Any]:
    """``add(terms, offset, bits, at)``: a row's terms of a column. ``terms``: a, b, their table and how many blocks it has."""
    A, size, depth, read = ACCUMULATOR[acc], ITEMSIZE[dtype], config.k, load(dtype, acc)

    @device
    def add(terms, offset, bits, at):
        a, b, table, turns = terms
        some, others = cuda.local.array(4, INT32), cuda.local.array(4, INT32)
        total = A(0)
        for block in range(turns):
            for t in range(0, depth, 2):  # an entry has two
                entry = table + i64(block) * (depth * ENTRY) + i64(t) * 8
                fetch_words(some, i32(0), entry)
                fetch_words(others, i32(0), entry + depth * 8)
                for e in range(2):
                    if i32(bits & some[2 * e + 1]) == i32(0) and others[2 * e + 1] != 0:
                        x = read(a + i64(i32(offset + some[2 * e])) * size)
                        total = A(total + x * read(b + i64(i32(at + others[2 * e])) * size))
        return total

    return add


def mend_sums(dtype: str, acc: str, config: ImplicitTilesConfig) -> Callable[..., None]:
    """``mend(sums, terms, rows, corner, columns, step)``: all of a thread's sums, where they add to what is there.

    ``corner``: the row and column of the thread's first. A row that lacks no tap keeps its NaN.
    """
    every = sums_of(config)
    wrong, put, place, add = any_nan(every), put_in(acc, every), _place(config), _add(dtype, acc, config)

    @device
    def mend(sums, terms, rows, corner, columns, step):
        if wrong(sums, 0):
            words = cuda.local.array(4, INT32)
            for i in range(every):
                row, column = place(i32(i))
                fetch_words(words, i32(0), rows + i64(i32(corner[0] + row)) * ENTRY)
                column = i32(corner[1] + column)
                if words[1] != i32(LAST_BIT) and column < columns:
                    put(sums, 0, i32(i), add(terms, words[0], words[1], i32(column * step)))

    return mend


def mend_results(dtype: str, acc: str, config: ImplicitTilesConfig) -> Callable[..., None]:
    """``mend(terms, rows, target, corner, columns, row_step, steps, alpha)``: the same of what a thread's sums became."""
    split, every = config.splits > 1, sums_of(config)
    out = acc if split else dtype
    A, size, read, write = ACCUMULATOR[acc], ITEMSIZE[out], load(out, acc), store(out, acc)
    place, add = _place(config), _add(dtype, acc, config)

    @device
    def mend(terms, rows, target, corner, columns, row_step, steps, alpha):
        words = cuda.local.array(4, INT32)
        for i in range(every):
            row, column = place(i32(i))
            row, column = i32(corner[0] + row), i32(corner[1] + column)
            fetch_words(words, i32(0), rows + i64(row) * ENTRY)
            if words[1] != i32(LAST_BIT) and words[2] != i32(LAST_BIT) and column < columns:
                start = i32(row * row_step) if split else words[2]
                to = target + i64(i32(start + column * steps[1])) * size
                old = read(to)
                if old != old:
                    total = add(terms, words[0], words[1], i32(column * steps[0]))
                    write(to, total if split else A(alpha * total))

    return mend


def sums_of(config: ImplicitTilesConfig) -> int:
    """How many a thread has."""
    return config.tall * config.wide // (32 if config.warps else 1)
