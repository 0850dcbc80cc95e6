"""Bilinear upsampling and its gradient where channels lie next to each other in memory (NHWC): kernels.

A pixel of the result is a weighted sum of pixels, all of whose channels are taken a vector at a time and summed in
registers: the result is written once and nothing is kept in between. Loading this module imports Numba.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.lang.elements import itemsize
from numbadnn.cpu.lang.past import put, settle
from numbadnn.cpu.lang.typed import cut, inner
from numbadnn.cpu.lang.vector import (
    CHAIN,
    carry,
    element,
    fill,
    four_of,
    lanes,
    load,
    made_good,
    multiply_add,
    scale,
    zeros,
)


@inner
def _blend(y, step, line, below, up, down, columns, weights, size, first, end, mask, past, like):
    """Channels ``first`` to ``end`` of a row of the result from those at ``line`` and ``below``; of weight 0 is not looked at.

    ``step``, ``size``: bytes from one pixel to the next, of the result and of x.
    """
    zero = zeros(like)
    for j in range(columns.shape[1]):
        a, b = line + columns[0, j] * size, line + columns[1, j] * size
        left, right, at = weights[0, j], weights[1, j], y + j * step
        for k in range(first, end, lanes(like)):
            if down == 0 and right == 0:
                total = load(a, k, mask, zero, like)
            elif down == 0 or right == 0:
                other = b if down == 0 else a + below
                wa, wb = (left, right) if down == 0 else (up, down)
                total = scale(wa, load(a, k, mask, zero, like))
                total = multiply_add(fill(wb, like), load(other, k, mask, zero, like), total)
            else:
                total = scale(up * left, load(a, k, mask, zero, like))
                total = multiply_add(fill(up * right, like), load(b, k, mask, zero, like), total)
                total = multiply_add(fill(down * left, like), load(a + below, k, mask, zero, like), total)
                total = multiply_add(fill(down * right, like), load(b + below, k, mask, zero, like), total)
            put(at, k, mask, total, past, like)


def forward(x, y, dtype, past, counts, xs, ys, rows, row_weights, columns, column_weights, threads):
    """y from x. ``counts``: images, channels; strides: image, row, column; ``rows``, ``columns``: both samples of each."""
    images, channels = counts
    height = rows.shape[1]
    for tid in prange(threads):
        like, four = element(dtype), four_of(dtype)
        size, (fours, whole, rest) = itemsize(like), cut(channels, four, like)
        step, width = ys[2] * size, xs[2] * size
        for job in range(images * height * tid // threads, images * height * (tid + 1) // threads):
            n, i = job // height, job % height
            line = x + (n * xs[0] + rows[0, i] * xs[1]) * size
            below = (rows[1, i] - rows[0, i]) * xs[1] * size
            up, down = row_weights[0, i], row_weights[1, i]
            at = y + (n * ys[0] + i * ys[1]) * size
            if fours > 0:
                _blend(at, step, line, below, up, down, columns, column_weights, width, 0, fours, -1, past, four)
            if fours < whole:
                _blend(at, step, line, below, up, down, columns, column_weights, width, fours, whole, -1, past, like)
            if whole < channels:
                _blend(
                    at, step, line, below, up, down, columns, column_weights, width, whole, channels, rest, False, like
                )
        if past:
            settle()


@inner
def _gather_long(dx, dy, first, end, mask, row_taps, column_taps, strides, tables, past, like):
    """Channels of one pixel: the sum over more rows and columns of dy than one chain adds."""
    rows, row_weights, columns, column_weights = tables
    zero = zeros(like)
    for k in range(first, end, lanes(like)):
        total, missing = zero, zero
        for r in range(row_taps[0], row_taps[1]):
            line, w = dy + rows[r] * strides[0], row_weights[r]
            for start in range(column_taps[0], column_taps[1], CHAIN):
                part = zero
                for c in range(start, min(start + CHAIN, column_taps[1])):
                    value = load(line + columns[c] * strides[1], k, mask, zero, like)
                    part = multiply_add(fill(w * column_weights[c], like), value, part)
                total, missing = carry(total, missing, part)
        put(dx, k, mask, made_good(total, missing), past, like)


@inner
def _gather(dx, step, dy, first, end, mask, row_taps, starts, strides, tables, past, like):
    """Channels ``first`` to ``end`` of a row of dx, ``step`` bytes a pixel: the sum over the rows and columns of dy of each."""
    rows, row_weights, columns, column_weights = tables
    zero = zeros(like)
    for j in range(len(starts) - 1):
        at, column_taps = dx + j * step, (starts[j], starts[j + 1])
        if (row_taps[1] - row_taps[0]) * (column_taps[1] - column_taps[0]) > CHAIN:
            _gather_long(at, dy, first, end, mask, row_taps, column_taps, strides, tables, past, like)
            continue
        for k in range(first, end, lanes(like)):
            total = zero
            for r in range(row_taps[0], row_taps[1]):
                line, w = dy + rows[r] * strides[0], row_weights[r]
                for c in range(column_taps[0], column_taps[1]):
                    value = load(line + columns[c] * strides[1], k, mask, zero, like)
                    total = multiply_add(fill(w * column_weights[c], like), value, total)
            put(at, k, mask, total, past, like)


def backward(
    dy, dx, dtype, past, counts, ys, xs, row_starts, rows, row_weights, column_starts, columns, column_weights, threads
):
    """dx from dy; counts and strides as in ``forward``. The outputs of sample i are ``starts[i]`` to ``starts[i + 1]``."""
    images, channels = counts
    height = len(row_starts) - 1
    for tid in prange(threads):
        like, four = element(dtype), four_of(dtype)
        size, (fours, whole, rest) = itemsize(like), cut(channels, four, like)
        strides, tables = (ys[1] * size, ys[2] * size), (rows, row_weights, columns, column_weights)
        step = xs[2] * size
        for job in range(images * height * tid // threads, images * height * (tid + 1) // threads):
            n, i = job // height, job % height
            source, at = dy + n * ys[0] * size, dx + (n * xs[0] + i * xs[1]) * size
            taps = row_starts[i], row_starts[i + 1]
            if fours > 0:
                _gather(at, step, source, 0, fours, -1, taps, column_starts, strides, tables, past, four)
            if fours < whole:
                _gather(at, step, source, fours, whole, -1, taps, column_starts, strides, tables, past, like)
            if whole < channels:
                _gather(at, step, source, whole, channels, rest, taps, column_starts, strides, tables, False, like)
        if past:
            settle()
