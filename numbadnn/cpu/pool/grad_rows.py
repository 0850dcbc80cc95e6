"""The gradient of pooling along rows of columns at any step: a vector of windows, or of elements, at a time (``grad.py``).

Rows of the image are taken apart into lines (``lines.py``); the sums of two phases of columns are put together again where
neighbours in memory are every second column's.
"""

from __future__ import annotations

from numba import njit, prange

from numbadnn.cpu.lang.elements import accsize, itemsize
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import CHAIN, lanes, load_acc, store, store_acc
from numbadnn.cpu.pool.grad import ROWS, long_total_of, thread_of, total_of
from numbadnn.cpu.pool.lines import (
    divide_line,
    fetch,
    flush,
    high_pairs,
    larger,
    low_pairs,
    lowest,
    number_of_larger,
    raised,
    set_word,
    split,
    word,
)
from numbadnn.cpu.pool.loops import extent, rows_counted


@inner
def _maxima_along(best, numbers, rows, count, columns, firsts, kw, n, start, like):
    """Let ``count`` rows of the image challenge the maxima of n windows.

    ``rows``: each one's lines, and the number of the windows' first element in it.
    """
    size = accsize(like)
    for i in range(0, n, lanes(like)):
        if start:
            most, which = lowest(True, like), raised(load_acc(firsts + i * size, like), word(rows, 1))
        else:
            most, which = load_acc(best + i * size, like), load_acc(numbers + i * size, like)
        for j in range(count):
            line, number = word(rows, 2 * j) + i * size, word(rows, 2 * j + 1)
            for k in range(kw):
                value = load_acc(line + word(columns, k) * size, like)
                which = number_of_larger(value, most, number + k, which)
                most = larger(value, most)
        store_acc(best + i * size, most, like)
        store_acc(numbers + i * size, which, like)


@njit(nogil=True, inline="always")
def _row_of_windows(x, dy, kind, geo, xs, ys, lay, o, p, at, rows, lines, m, like):
    """Numbers and shares of the windows (o, p, :) of one channel, at address ``at``."""
    size, numbers = itemsize(like), at + lay.margin
    shares, parts = numbers + lay.slot // 2, lines + 2 * lay.gap * accsize(like)
    do, d0, d1 = extent(o, geo.D, geo.kd, geo.sd, geo.pd)
    ho, h0, h1 = extent(p, geo.H, geo.kh, geo.sh, geo.ph)
    fetch(shares, geo.Q, dy + (o * ys.d + p * ys.h) * size, ys.w, like)
    if kind >= 2:
        divide_line(shares, geo.Q, lay.spans, rows_counted(kind, (d1 - d0) * (h1 - h0)), like)
    if kind == 0:
        phases, count, start = min(geo.kw, geo.sw), 0, True
        for d in range(d0, d1):
            for h in range(h0, h1):
                taken = parts + count * phases * lay.gap * accsize(like)
                row = x + (d * xs.d + h * xs.h) * size
                split(taken + lay.front, lay.gap, phases, geo.W, geo.sw, geo.pw, row, xs.w, like)
                set_word(rows, 2 * count, taken)
                set_word(rows, 2 * count + 1, ((d - do) * geo.kh + h - ho) * geo.kw)
                count += 1
                if count == ROWS or (d == d1 - 1 and h == h1 - 1):
                    _maxima_along(lines, numbers, rows, count, lay.columns, lay.firsts, geo.kw, geo.Q, start, like)
                    count, start = 0, False


@njit(nogil=True, inline="always")
def _terms_of(terms, phase, stride, rows, count, like):
    """List what is added to columns s, s + stride, ...; ``phase``: four words for s."""
    k, shift, last, found = word(phase, 1), word(phase, 2), word(phase, 3), 0
    for j in range(count):
        for t in range(last, -1, -1):
            set_word(terms, 2 * found, word(rows, 2 * j) + (shift - t) * accsize(like))
            set_word(terms, 2 * found + 1, word(rows, 2 * j + 1) + k + t * stride)
            found += 1
    return found


@inner
def _phase(line, terms, count, n, half, largest, like):
    """line[:n] = the gradient of every so many columns."""
    if count > CHAIN:
        for i in range(0, n, lanes(like)):
            offset = i * accsize(like)
            store_acc(line + offset, long_total_of(terms, count, offset, half, largest, like), like)
        return
    for i in range(0, n, lanes(like)):
        offset = i * accsize(like)
        store_acc(line + offset, total_of(terms, count, offset, half, largest, like), like)


@inner
def _pairs(row, n, even, evens, odd, odds, half, largest, like):
    """The gradient of n columns, of which every second is given ``evens`` terms, the others ``odds``."""
    L = lanes(like)
    for i in range(0, n // 2, L):
        first = min(i, n // 2 - L)
        a = total_of(even, evens, first * accsize(like), half, largest, like)
        b = total_of(odd, odds, first * accsize(like), half, largest, like)
        store(row, 2 * first, -1, low_pairs(a, b), like)
        store(row, 2 * first + L, -1, high_pairs(a, b), like)


@njit(nogil=True, inline="always")
def _row_of_elements(row, step, kind, geo, lay, rows, count, lines, m, past, like):
    """The gradient of one row of one channel, stored at address ``row``."""
    half, largest, terms = lay.slot // 2, kind == 0, rows + 16 * count
    few = count * ((geo.kw + 1) // 2) <= CHAIN  # terms of a column
    if few and geo.sw == 2 and step == 1 and 2 * lanes(like) <= geo.W:
        evens = _terms_of(terms, lay.phases, 2, rows, count, like)
        odd, last = terms + 16 * evens, geo.W // 2
        odds = _terms_of(odd, lay.phases + 32, 2, rows, count, like)
        _pairs(row, 2 * last, terms, evens, odd, odds, half, largest, like)
        if geo.W % 2 == 1:  # of the vector that holds the last column, that one
            first = last // lanes(like) * lanes(like)
            total = total_of(terms, evens, first * accsize(like), half, largest, like)
            store_acc(lines, total, like)
            flush(lines + (last - first) * accsize(like), 1, row + 2 * last * itemsize(like), 1, like)
    else:
        for s in range(min(geo.sw, geo.W)):
            phase = lay.phases + 32 * s
            found = _terms_of(terms, phase, geo.sw, rows, count, like)
            _phase(lines, terms, found, word(phase, 0), half, largest, like)
            flush(lines, word(phase, 0), row + s * step * itemsize(like), geo.sw * step, like)


_rows_of_thread = thread_of(_row_of_windows, _row_of_elements)


def rows_grad(x, dy, dx, like, kind, shape, strides, layout, past, memory, threads):
    """Columns at any step; ``layout``: a ``Layout`` as an array."""
    for tid in prange(threads):
        _rows_of_thread(tid, threads, x, dy, dx, like, kind, shape, strides, layout, past, memory)
