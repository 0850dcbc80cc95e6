"""The gradient of pooling on strided memory: kernels, which gather what each element of the image is given.

Two steps, in the two shapes of loop of ``_pool.py``. For a row of windows, ``windows`` keeps each one's share (dy, divided for
averages) and, of a maximum, the number within the window of the element that gets it. For a row of the image, ``collect``
then adds up, window by window in order, the shares each element gets, and rounds once. The rows of windows are kept in a ring: as
many as overlap one row of the image, for a few slices at a time. So x, dy and dx pass through memory once, and no two
threads write to one element, however the image is cut into bands of rows.

Names as in ``_pool.py``; ``ds``: strides of dx. Loading this module imports Numba.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit, prange

from numbadnn.cpu._elements import accsize, itemsize, peek
from numbadnn.cpu._past import put, settle
from numbadnn.cpu._pool import extent, geometry, rows_counted, steps
from numbadnn.cpu._pool_lines import (
    add,
    divide,
    divide_line,
    fetch,
    fill_line,
    flush,
    larger,
    lowest,
    merge,
    number_of_larger,
    raised,
    set_word,
    split,
    where_number,
    word,
)
from numbadnn.cpu._typed import cut, inner
from numbadnn.cpu._vector import element, fill, four_of, lanes, load, load_acc, store_acc, zeros


class Layout(NamedTuple):
    """How a gradient is cut into jobs and scratch memory; ``columns`` to ``rows_over`` are addresses of tables."""

    images: int
    parts: int  #: of an image: channels, or strips of ``strip`` of the ``channels``
    strip: int
    channels: int
    slices: int  #: bands of ``deep`` slices
    deep: int
    bands: int  #: of ``tall`` rows
    tall: int
    ring: int  #: bytes of the ring of a thread, of ``cap`` rows of windows for each of some slices
    cap: int
    slot: int  #: bytes of a row of windows, half of them numbers and half shares, with room around that holds no share
    words: int  #: bytes of the lists of a thread
    held: int  #: bytes of a thread
    gap: int
    columns: int
    spans: int
    firsts: int
    phases: int
    planes_over: int
    rows_over: int
    front: int  #: bytes of a line of a row before the row's first column
    margin: int  #: bytes of a row of windows before the first's number, and before the first's share


@njit(nogil=True, inline="always")
def _layout(a):
    return Layout(
        a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16], a[17],
        a[18], a[19], a[20], a[21],
    )  # fmt: skip


@njit(nogil=True, inline="always")
def _band(index, size, n, pad):
    """Elements of an axis of n that are in a band of ``size``; cut so that windows that do not overlap are not cut."""
    return max(index * size - pad, 0), min((index + 1) * size - pad, n)


@inner
def _list_rows(rows, kept, lay, low, geo, d, h, p0, p1):
    """List the rows of windows over row (d, h): each one's address, and the number there of the window's first column."""
    count = 0
    for o in range(word(lay.planes_over, 2 * d), word(lay.planes_over, 2 * d + 1) + 1):
        for p in range(p0, p1 + 1):
            set_word(rows, 2 * count, kept + ((o - low) * lay.cap + p % lay.cap) * lay.slot)
            deep, tall = d - o * geo.sd + geo.pd, h - p * geo.sh + geo.ph
            set_word(rows, 2 * count + 1, (deep * geo.kh + tall) * geo.kw)
            count += 1
    return count


def _thread_of(windows, elements):
    """The jobs of a thread, by functions for a row of windows and a row of elements."""

    @inner
    def thread(tid, threads, x, dy, dx, dtype, kind, shape, strides, layout, past, memory):
        like = element(dtype)
        geo, xs, ys, ds = geometry(shape), steps(strides[0]), steps(strides[1]), steps(strides[2])
        lay, size, acc = _layout(layout), itemsize(like), accsize(like)
        kept = memory + tid * lay.held
        rows, lines = kept + lay.ring, kept + lay.ring + lay.words
        fill_line(kept, lay.ring // acc, zeros(like), like)
        fill_line(lines, (kept + lay.held - lines) // acc, lowest(True, like), like)
        total = lay.images * lay.parts * lay.slices * lay.bands
        for job in range(total * tid // threads, total * (tid + 1) // threads):
            h0, h1 = _band(job % lay.bands, lay.tall, geo.H, geo.ph)
            d0, d1 = _band(job // lay.bands % lay.slices, lay.deep, geo.D, geo.pd)
            part = job // (lay.bands * lay.slices)
            n, c = part // lay.parts, part % lay.parts * lay.strip
            m = min(lay.strip, lay.channels - c)
            image, upper = x + (n * xs.n + c * xs.c) * size, dy + (n * ys.n + c * ys.c) * size
            target = dx + (n * ds.n + c * ds.c) * size
            low, high = word(lay.planes_over, 2 * d0), word(lay.planes_over, 2 * d1 - 1)
            done = word(lay.rows_over, 2 * h0)
            for h in range(h0, h1):
                p0, p1 = word(lay.rows_over, 2 * h), word(lay.rows_over, 2 * h + 1)
                for p in range(done, p1 + 1):
                    for o in range(low, high + 1):
                        at = kept + ((o - low) * lay.cap + p % lay.cap) * lay.slot
                        windows(image, upper, kind, geo, xs, ys, lay, o, p, at, lines, m, like)
                done = max(done, p1 + 1)
                for d in range(d0, d1):
                    count = _list_rows(rows, kept, lay, low, geo, d, h, p0, p1)
                    row = target + (d * ds.d + h * ds.h) * size
                    elements(row, ds.w, kind, geo, lay, rows, count, lines, m, past, like)

    return thread


# ---- rows ------------------------------------------------------------------------------------------------------------


@inner
def _maxima_along(best, numbers, lines, columns, firsts, kw, n, number, start, like):
    """Let one row of the image challenge the maxima of n windows; ``number``: of the windows' first element in the row."""
    size = accsize(like)
    for i in range(0, n, lanes(like)):
        if start:
            most, which = lowest(True, like), raised(load_acc(firsts + i * size, like), number)
        else:
            most, which = load_acc(best + i * size, like), load_acc(numbers + i * size, like)
        for k in range(kw):
            value = load_acc(lines + (word(columns, k) + i) * size, like)
            which = number_of_larger(value, most, number + k, which)
            most = larger(value, most)
        store_acc(best + i * size, most, like)
        store_acc(numbers + i * size, which, like)


@njit(nogil=True, inline="always")
def _row_of_windows(x, dy, kind, geo, xs, ys, lay, o, p, at, lines, m, like):
    """Numbers and shares of the windows (o, p, :) of one channel, at address ``at``."""
    size, numbers = itemsize(like), at + lay.margin
    shares, parts = numbers + lay.slot // 2, lines + 2 * lay.gap * accsize(like)
    do, d0, d1 = extent(o, geo.D, geo.kd, geo.sd, geo.pd)
    ho, h0, h1 = extent(p, geo.H, geo.kh, geo.sh, geo.ph)
    fetch(shares, geo.Q, dy + (o * ys.d + p * ys.h) * size, ys.w, like)
    if kind >= 2:
        divide_line(shares, geo.Q, lay.spans, rows_counted(kind, geo, (d1 - d0) * (h1 - h0)), like)
    if kind == 0:
        for d in range(d0, d1):
            for h in range(h0, h1):
                row, number = x + (d * xs.d + h * xs.h) * size, ((d - do) * geo.kh + h - ho) * geo.kw
                split(parts + lay.front, lay.gap, min(geo.kw, geo.sw), geo.W, geo.sw, geo.pw, row, xs.w, like)
                start = (d == d0) & (h == h0)
                _maxima_along(lines, numbers, parts, lay.columns, lay.firsts, geo.kw, geo.Q, number, start, like)


@inner
def _give(line, numbers, shares, n, number, start, largest, like):
    """line[:n] += the shares, of a maximum only those whose number is ``number``; or = at the ``start``."""
    size = accsize(like)
    for i in range(0, n, lanes(like)):
        share = load_acc(shares + i * size, like)
        if largest:
            share = where_number(load_acc(numbers + i * size, like), number, share)
        store_acc(line + i * size, share if start else add(load_acc(line + i * size, like), share), like)


@inner
def _phase(line, phase, stride, rows, count, half, kind, like):
    """line[i] = the gradient of column i*stride + s; ``phase``: four words for s."""
    n, k, shift, start = word(phase, 0), word(phase, 1), word(phase, 2), True
    for j in range(count):
        for t in range(word(phase, 3), -1, -1):
            at, number = word(rows, 2 * j) + (shift - t) * accsize(like), word(rows, 2 * j + 1) + k + t * stride
            _give(line, at, at + half, n, number, start, kind == 0, like)
            start = False
    if start:
        fill_line(line, n, zeros(like), like)


@njit(nogil=True, inline="always")
def _row_of_elements(row, step, kind, geo, lay, rows, count, lines, m, past, like):
    """The gradient of one row of one channel, stored at address ``row``."""
    if geo.sw == 2 and step == 1:
        odd = lines + lay.gap * accsize(like)
        _phase(lines, lay.phases, 2, rows, count, lay.slot // 2, kind, like)
        _phase(odd, lay.phases + 32, 2, rows, count, lay.slot // 2, kind, like)
        merge(lines, odd, geo.W, row, like)
    else:
        for s in range(min(geo.sw, geo.W)):
            phase = lay.phases + 32 * s
            _phase(lines, phase, geo.sw, rows, count, lay.slot // 2, kind, like)
            flush(lines, word(phase, 0), row + s * step * itemsize(like), geo.sw * step, like)


_rows_of_thread = _thread_of(_row_of_windows, _row_of_elements)


def rows_grad(x, dy, dx, like, kind, shape, strides, layout, past, memory, threads):
    """Columns at any step; ``layout``: a ``Layout`` as an array."""
    for tid in prange(threads):
        _rows_of_thread(tid, threads, x, dy, dx, like, kind, shape, strides, layout, past, memory)


# ---- cells -----------------------------------------------------------------------------------------------------------


@njit(nogil=True, inline="always")
def maximum_of(cell, xs, deep, tall, wide, number, geo, mask, like):
    """Which element is the maximum, for a vector of channels; ``number``: of the first, at address ``cell``."""
    size, most = itemsize(like), lowest(True, like)
    which = raised(zeros(like), number)
    for d in range(deep):
        for h in range(tall):
            at, row = cell + (d * xs.d + h * xs.h) * size, number + (d * geo.kh + h) * geo.kw
            for w in range(wide):
                value = load(at, 0, mask, zeros(like), like)
                which = number_of_larger(value, most, row + w, which)
                most = larger(value, most)
                at += xs.w * size
    return which


@njit(nogil=True, inline="always")
def _numbers(cell, numbers, first, end, xs, deep, tall, wide, number, geo, mask, like):
    """At address ``numbers``, which element is the maximum, for the channels ``first`` to ``end``, a vector at a time."""
    for i in range(first, end, lanes(like)):
        which = maximum_of(cell + i * itemsize(like), xs, deep, tall, wide, number, geo, mask, like)
        store_acc(numbers + i * accsize(like), which, like)


@inner
def _cells_of_windows(x, dy, kind, geo, xs, ys, lay, o, p, at, lines, m, like):
    """Numbers and shares of the windows (o, p, :) of m channels, at address ``at``."""
    size, acc, four = itemsize(like), accsize(like), four_of(like)
    do, d0, d1 = extent(o, geo.D, geo.kd, geo.sd, geo.pd)
    ho, h0, h1 = extent(p, geo.H, geo.kh, geo.sh, geo.ph)
    deep, tall = d1 - d0, h1 - h0
    base, factor = x + (d0 * xs.d + h0 * xs.h) * size, rows_counted(kind, geo, deep * tall)
    fours, whole, rest = cut(m, four, like)
    for q in range(geo.Q):
        numbers = at + q * lay.strip * acc
        shares = numbers + lay.slot // 2
        wo, w0, w1 = extent(q, geo.W, geo.kw, geo.sw, geo.pw)
        fetch(shares, m, dy + (o * ys.d + p * ys.h + q * ys.w) * size, ys.c, like)
        if kind >= 2:
            divisor = fill(peek(lay.spans, q, like) * factor, like)
            for i in range(0, m, lanes(like)):
                store_acc(shares + i * acc, divide(load_acc(shares + i * acc, like), divisor), like)
        if kind == 0:
            number, cell, wide = ((d0 - do) * geo.kh + h0 - ho) * geo.kw + w0 - wo, base + w0 * xs.w * size, w1 - w0
            _numbers(cell, numbers, 0, fours, xs, deep, tall, wide, number, geo, -1, four)
            _numbers(cell, numbers, fours, whole, xs, deep, tall, wide, number, geo, -1, like)
            _numbers(cell, numbers, whole, m, xs, deep, tall, wide, number, geo, rest, like)


@njit(nogil=True, inline="always")
def _given(row, first, end, terms, count, half, mask, largest, past, like):
    """At address ``row``, the sums of ``count`` shares for the channels ``first`` to ``end``, a vector at a time.

    Shares lie half a slot after the numbers; of maxima only those count whose number is asked for.
    """
    for i in range(first, end, lanes(like)):
        total, offset = zeros(like), i * accsize(like)
        if largest:
            for t in range(count):
                numbers = load_acc(word(terms, 2 * t) + offset, like)
                share = load_acc(word(terms, 2 * t) + half + offset, like)
                total = add(total, where_number(numbers, word(terms, 2 * t + 1), share))
        else:
            for t in range(count):
                total = add(total, load_acc(word(terms, 2 * t) + half + offset, like))
        put(row, i, mask, total, past, like)


@inner
def _cells_of_elements(row, step, kind, geo, lay, rows, count, lines, m, past, like):
    """The gradient of a row of elements of m channels, stored at address ``row``."""
    four, half, terms = four_of(like), lay.slot // 2, rows + 16 * count
    fours, whole, rest = cut(m, four, like)
    q0, q1 = 0, 0  # windows q0 ... q1 - 1 hold the element
    for w in range(geo.W):
        while q1 < geo.Q and q1 * geo.sw - geo.pw <= w:
            q1 += 1
        while q0 < q1 and q0 * geo.sw - geo.pw + geo.kw <= w:
            q0 += 1
        found = 0
        for j in range(count):
            for q in range(q0, q1):
                set_word(terms, 2 * found, word(rows, 2 * j) + q * lay.strip * accsize(like))
                set_word(terms, 2 * found + 1, word(rows, 2 * j + 1) + w + geo.pw - q * geo.sw)
                found += 1
        _given(row, 0, fours, terms, found, half, -1, kind == 0, past, four)
        _given(row, fours, whole, terms, found, half, -1, kind == 0, past, like)
        _given(row, whole, m, terms, found, half, rest, kind == 0, False, like)
        row += step * itemsize(like)


_cells_of_thread = _thread_of(_cells_of_windows, _cells_of_elements)


def cells_grad(x, dy, dx, like, kind, shape, strides, layout, past, memory, threads):
    """The channels of x and of dx are neighbours; ``layout``: a ``Layout`` as an array."""
    for tid in prange(threads):
        _cells_of_thread(tid, threads, x, dy, dx, like, kind, shape, strides, layout, past, memory)
        if past:
            settle()
