"""The gradient of pooling where channels are neighbours: a vector of channels at a time (``grad.py``)."""

from __future__ import annotations

from numba import njit, prange

from numbadnn.cpu.lang.elements import accsize, itemsize, peek
from numbadnn.cpu.lang.past import put, settle
from numbadnn.cpu.lang.typed import cut, inner
from numbadnn.cpu.lang.vector import CHAIN, add, fill, four_of, has_nan, lanes, load, load_acc, store_acc, zeros
from numbadnn.cpu.pool.grad import NEAR, long_total_of, near_total_of, thread_of
from numbadnn.cpu.pool.lines import (
    divide,
    fetch,
    greater,
    larger,
    lowest,
    number_of_greater,
    number_of_larger,
    raised,
    set_word,
    word,
)
from numbadnn.cpu.pool.loops import extent, rows_counted


@inner
def _first_maximum_of(cell, xs, first, deep, tall, wide, geo, mask, like):
    """As ``maximum_of``, where NaN is among the elements."""
    size, most = itemsize(like), lowest(True, like)
    d0, h0, w0 = first
    which = raised(zeros(like), (d0 * geo.kh + h0) * geo.W + w0)
    for d in range(deep):
        slices = (d0 + d if d0 + d < geo.kd else d0 + d - geo.kd) * geo.kh  # no division: this is done for each vector
        for h in range(tall):
            rows = slices + (h0 + h if h0 + h < geo.kh else h0 + h - geo.kh)
            at, row = cell + (d * xs.d + h * xs.h) * size, rows * geo.W + w0
            best, place = lowest(True, like), raised(zeros(like), row)
            for w in range(wide):
                value = load(at, 0, mask, zeros(like), like)
                place = number_of_larger(value, best, row + w, place)
                best = larger(value, best)
                at += xs.w * size
            which = number_of_larger(best, most, place, which)
            most = larger(best, most)
    return which


@njit(nogil=True, inline="always")
def maximum_of(cell, xs, first, deep, tall, wide, geo, mask, like):
    """The place (``grad.place_of``) of the maximum, for a vector of channels.

    ``first``: of the first element, at address ``cell``, its slice and row, modulo the window's, and its column. A row's maximum
    is found by itself, so that rows need not wait for one another, and as if there were no NaN. It is done anew where the sum of
    the elements is NaN: one of them is, or infinities meet.
    """
    size, most, both = itemsize(like), lowest(True, like), zeros(like)
    d0, h0, w0 = first
    which = raised(zeros(like), (d0 * geo.kh + h0) * geo.W + w0)
    for d in range(deep):
        slices = (d0 + d if d0 + d < geo.kd else d0 + d - geo.kd) * geo.kh  # no division: this is done for each vector
        for h in range(tall):
            rows = slices + (h0 + h if h0 + h < geo.kh else h0 + h - geo.kh)
            at, row = cell + (d * xs.d + h * xs.h) * size, rows * geo.W + w0
            best, place = lowest(True, like), raised(zeros(like), row)
            for w in range(wide):
                value = load(at, 0, mask, zeros(like), like)
                place = number_of_greater(value, best, row + w, place)
                best, both = greater(value, best), add(both, value)
                at += xs.w * size
            which = number_of_greater(best, most, place, which)
            most = greater(best, most)
    if has_nan(both):
        which = _first_maximum_of(cell, xs, first, deep, tall, wide, geo, mask, like)
    return which


@njit(nogil=True, inline="always")
def _places(cell, places, start, end, xs, first, deep, tall, wide, geo, mask, like):
    """At address ``places``, where the maximum is, for the channels ``start`` to ``end``, a vector at a time."""
    for i in range(start, end, lanes(like)):
        which = maximum_of(cell + i * itemsize(like), xs, first, deep, tall, wide, geo, mask, like)
        store_acc(places + i * accsize(like), which, like)


@inner
def _cells_of_windows(x, dy, kind, geo, xs, ys, lay, o, p, first, at, rows, lines, m, like):
    """Places and shares of the windows (o, p, :) of m channels, at address ``at``."""
    size, acc, four = itemsize(like), accsize(like), four_of(like)
    do, d0, d1 = extent(o, geo.D, geo.kd, geo.sd, geo.pd)
    ho, h0, h1 = extent(p, geo.H, geo.kh, geo.sh, geo.ph)
    deep, tall = d1 - d0, h1 - h0
    base, factor = x + (d0 * xs.d + h0 * xs.h) * size, rows_counted(kind, deep * tall)
    slice0, row0 = d0 % geo.kd, h0 % geo.kh
    fours, whole, rest = cut(m, four, like)
    for q in range(geo.Q):
        places = at + q * lay.strip * acc
        shares = places + lay.slot // 2
        wo, w0, w1 = extent(q, geo.W, geo.kw, geo.sw, geo.pw)
        fetch(shares, m, dy + (o * ys.d + p * ys.h + q * ys.w) * size, ys.c, like)
        if kind >= 2:
            divisor = fill(peek(lay.spans, q, like) * factor, like)
            for i in range(0, m, lanes(like)):
                store_acc(shares + i * acc, divide(load_acc(shares + i * acc, like), divisor), like)
        if kind == 0:
            begin, cell, wide = (slice0, row0, w0), base + w0 * xs.w * size, w1 - w0
            _places(cell, places, 0, fours, xs, begin, deep, tall, wide, geo, -1, four)
            _places(cell, places, fours, whole, xs, begin, deep, tall, wide, geo, -1, like)
            _places(cell, places, whole, m, xs, begin, deep, tall, wide, geo, rest, like)


@njit(nogil=True, inline="always")
def _given(row, first, end, rows, windows, half, mask, largest, place, past, like):
    """At address ``row``, the sums of shares for the channels ``first`` to ``end``, a vector at a time.

    ``windows``: how many rows of windows ``rows`` lists, the bytes to the first window of each, how many
    follow that, and the bytes from one to the next.
    """
    count, offset, last, step = windows
    for i in range(first, end, lanes(like)):
        total = near_total_of(rows, count, offset + i * accsize(like), last, step, half, largest, place, like)
        put(row, i, mask, total, past, like)


@njit(nogil=True, inline="always")
def _given_by_many(row, first, end, terms, count, half, mask, largest, place, past, like):
    """The same of any terms; ``terms`` lists each."""
    for i in range(first, end, lanes(like)):
        put(row, i, mask, long_total_of(terms, count, i * accsize(like), half, largest, place, like), past, like)


@inner
def _cells_of_elements(row, step, kind, geo, lay, place, rows, count, lines, m, past, like):
    """The gradient of a row of elements of m channels, stored at address ``row``; ``place``: of its first column."""
    four, half, terms = four_of(like), lay.slot // 2, rows + 8 * count
    fours, whole, rest = cut(m, four, like)
    size = lay.strip * accsize(like)
    q0, q1 = 0, 0  # windows q0 ... q1 - 1 hold the element
    for w in range(geo.W):
        while q1 < geo.Q and q1 * geo.sw - geo.pw <= w:
            q1 += 1
        while q0 < q1 and q0 * geo.sw - geo.pw + geo.kw <= w:
            q0 += 1
        found = count * (q1 - q0)
        if q1 - q0 > NEAR or found > CHAIN:
            for j in range(count):
                for q in range(q0, q1):
                    set_word(terms, j * (q1 - q0) + q - q0, word(rows, j) + q * size)
            _given_by_many(row, 0, fours, terms, found, half, -1, kind == 0, place + w, past, four)
            _given_by_many(row, fours, whole, terms, found, half, -1, kind == 0, place + w, past, like)
            _given_by_many(row, whole, m, terms, found, half, rest, kind == 0, place + w, False, like)
        else:
            windows = (count, q0 * size, q1 - q0 - 1, size)
            _given(row, 0, fours, rows, windows, half, -1, kind == 0, place + w, past, four)
            _given(row, fours, whole, rows, windows, half, -1, kind == 0, place + w, past, like)
            _given(row, whole, m, rows, windows, half, rest, kind == 0, place + w, False, like)
        row += step * itemsize(like)


_cells_of_thread = thread_of(_cells_of_windows, _cells_of_elements)


def cells_grad(x, dy, dx, like, kind, shape, strides, layout, past, memory, threads):
    """The channels of x and of dx are neighbours; ``layout``: a ``Layout`` as an array."""
    for tid in prange(threads):
        _cells_of_thread(tid, threads, x, dy, dx, like, kind, shape, strides, layout, past, memory)
        if past:
            settle()
