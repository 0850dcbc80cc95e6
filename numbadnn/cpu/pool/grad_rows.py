"""The gradient of pooling along rows of columns at any step: a vector of windows, or of elements, at a time (``grad.py``).

Rows of the image are taken apart into lines (``lines.py``). The maxima that windows have in one row of the image are found
once, for all rows of windows over it. The sums of two phases of columns are put together again where neighbours in memory are
every second column's.
"""

from __future__ import annotations

from numba import njit, prange

from numbadnn.cpu.lang.elements import accsize, itemsize
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import CHAIN, lanes, load_acc, store, store_acc
from numbadnn.cpu.pool.grad import NEAR, long_total_of, near_total_of, place_of, thread_of
from numbadnn.cpu.pool.lines import (
    divide_line,
    fetch,
    flush,
    high_pairs,
    larger,
    low_pairs,
    number_of_larger,
    raised,
    set_word,
    split,
    word,
)
from numbadnn.cpu.pool.loops import extent, rows_counted


@inner
def _maxima_of_row(maxima, line, columns, firsts, lefts, gap, kw, n, place, like):
    """The maxima that n windows have in one row of the image, and where; ``line``: its lines, ``place``: of its first column."""
    size, L = accsize(like), lanes(like)
    for i in range(0, n, L):
        at = line + i * size
        most, which = load_acc(at + word(columns, 0) * size, like), load_acc(firsts + i * size, like)
        for k in range(1, kw):
            value = load_acc(at + word(columns, k) * size, like)
            which = number_of_larger(value, most, k, which)
            most = larger(value, most)
        store_acc(maxima + i * size, most, like)
        store_acc(maxima + (gap + i) * size, raised(raised(which, load_acc(lefts + i * size, like)), place), like)


@inner
def _join_rows(best, places, rows, count, gap, n, start, like):
    """Let the maxima of ``count`` rows, listed in ``rows``, challenge those of n windows."""
    size, L = accsize(like), lanes(like)
    for i in range(0, n, L):
        at, first = word(rows, 0) + i * size, 1
        most, which = load_acc(at, like), load_acc(at + gap * size, like)
        if not start:
            most, which, first = load_acc(best + i * size, like), load_acc(places + i * size, like), 0
        for j in range(first, count):
            at = word(rows, j) + i * size
            value = load_acc(at, like)
            which = number_of_larger(value, most, load_acc(at + gap * size, like), which)
            most = larger(value, most)
        store_acc(best + i * size, most, like)
        store_acc(places + i * size, which, like)


@njit(nogil=True, inline="always")
def _row_of_windows(x, dy, kind, geo, xs, ys, lay, o, p, first, at, rows, lines, m, like):
    """Places and shares of the windows (o, p, :) of one channel, at address ``at``; ``first``: the first p of this job."""
    size, places, line = itemsize(like), at + lay.margin, lay.gap * accsize(like)
    shares = places + lay.slot // 2
    do, d0, d1 = extent(o, geo.D, geo.kd, geo.sd, geo.pd)
    ho, h0, h1 = extent(p, geo.H, geo.kh, geo.sh, geo.ph)
    fetch(shares, geo.Q, dy + (o * ys.d + p * ys.h) * size, ys.w, like)
    if kind >= 2:
        divide_line(shares, geo.Q, lay.spans, rows_counted(kind, (d1 - d0) * (h1 - h0)), like)
    if kind == 0:
        phases, count, start = min(geo.kw, geo.sw), 0, True
        known = min(ho - geo.sh + geo.kh, geo.H) if lay.reuses and p > first else h0  # rows before it are there
        for d in range(d0, d1):
            for h in range(h0, h1):
                maxima = lines + lay.maxima + (h % geo.kh if lay.reuses else count) * 2 * line
                if h >= known:
                    parts, row = lines + 2 * line, x + (d * xs.d + h * xs.h) * size
                    split(parts + lay.front, lay.gap, phases, geo.W, geo.sw, geo.pw, row, xs.w, like)
                    place = place_of(geo, d, h)
                    _maxima_of_row(
                        maxima, parts, lay.columns, lay.firsts, lay.lefts, lay.gap, geo.kw, geo.Q, place, like
                    )
                set_word(rows, count, maxima)
                count += 1
                if count == lay.taken or (d == d1 - 1 and h == h1 - 1):
                    _join_rows(lines, places, rows, count, lay.gap, geo.Q, start, like)
                    count, start = 0, False


@inner
def _phase(line, phase, rows, count, half, largest, lefts, place, like):
    """line[...] = the gradient of every so many columns, of which the words at ``phase`` tell; how many."""
    n, last, size, L = word(phase, 0), word(phase, 3), accsize(like), lanes(like)
    start, terms, found = (word(phase, 2) - last) * size, rows + 8 * count, count * (last + 1)
    if last < NEAR and found <= CHAIN:
        for i in range(0, n, L):
            at = raised(load_acc(lefts + i * size, like), place)
            store_acc(
                line + i * size, near_total_of(rows, count, start + i * size, last, size, half, largest, at, like), like
            )
        return n
    for j in range(count):
        for t in range(last + 1):
            set_word(terms, j * (last + 1) + t, word(rows, j) + start + t * size)
    for i in range(0, n, L):
        at = raised(load_acc(lefts + i * size, like), place)
        store_acc(line + i * size, long_total_of(terms, found, i * size, half, largest, at, like), like)
    return n


@inner
def _pairs(row, n, rows, count, phases, half, largest, lefts, place, like):
    """The gradient of n columns, every second of which is given by the same windows, or by one more."""
    L, size = lanes(like), accsize(like)
    last, more = word(phases, 3), word(phases, 7)
    evens, odds = (word(phases, 2) - last) * size, (word(phases, 6) - more) * size
    for i in range(0, n // 2, L):
        first = min(i, n // 2 - L)
        at = raised(load_acc(lefts + first * size, like), place)
        a = near_total_of(rows, count, evens + first * size, last, size, half, largest, at, like)
        b = near_total_of(rows, count, odds + first * size, more, size, half, largest, raised(at, 1), like)
        store(row, 2 * first, -1, low_pairs(a, b), like)
        store(row, 2 * first + L, -1, high_pairs(a, b), like)


@njit(nogil=True, inline="always")
def _row_of_elements(row, step, kind, geo, lay, place, rows, count, lines, m, past, like):
    """The gradient of one row of one channel, stored at address ``row``; ``place``: of its first column."""
    half, largest, place = lay.slot // 2, kind == 0, place + geo.pw
    few = geo.kw <= 2 * NEAR and count * NEAR <= CHAIN
    if few and geo.sw == 2 and step == 1 and 2 * lanes(like) <= geo.W:
        last = geo.W // 2
        _pairs(row, 2 * last, rows, count, lay.phases, half, largest, lay.lefts, place, like)
        if geo.W % 2 == 1:
            _phase(lines, lay.phases, rows, count, half, largest, lay.lefts, place, like)
            flush(lines + last * accsize(like), 1, row + 2 * last * itemsize(like), 1, like)
    else:
        for s in range(min(geo.sw, geo.W)):
            n = _phase(lines, lay.phases + 32 * s, rows, count, half, largest, lay.lefts, place + s, like)
            flush(lines, n, row + s * step * itemsize(like), geo.sw * step, like)


_rows_of_thread = thread_of(_row_of_windows, _row_of_elements)


def rows_grad(x, dy, dx, like, kind, shape, strides, layout, past, memory, threads):
    """Columns at any step; ``layout``: a ``Layout`` as an array."""
    for tid in prange(threads):
        _rows_of_thread(tid, threads, x, dy, dx, like, kind, shape, strides, layout, past, memory)
