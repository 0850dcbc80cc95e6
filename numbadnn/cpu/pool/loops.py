"""Pooling on strided memory: kernels. Sums are kept in float32, for float64 data in float64.

Two shapes of loop. ``cells``: channels are neighbours; a window is reduced for a vector of channels at once. ``rows``:
anything else, best where columns are neighbours; each row of the image is split into lines (``lines.py``), in which
an element of all windows along it is a run, and a vector of windows is reduced at once.

``kind``: 0 maximum, 1 sum, 2 average over the whole window, 3 over what is inside the image. ``shape`` holds the numbers
of a ``Geometry``, ``strides`` a row of ``Steps`` for each array. A divisor is ``spans[q]``, the columns that count in
window q (an average with padding: all of the window), times ``rows_counted``. Loading this module imports Numba.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit, prange

from numbadnn.cpu.lang.elements import accsize, itemsize, peek
from numbadnn.cpu.lang.past import put, settle
from numbadnn.cpu.lang.typed import cut, inner
from numbadnn.cpu.lang.vector import (
    CHAIN,
    add,
    carry,
    element,
    fill,
    four_of,
    has_nan,
    lanes,
    load,
    load_acc,
    made_good,
    store_acc,
    zeros,
)
from numbadnn.cpu.pool.lines import (
    divide,
    divide_line,
    fill_line,
    flush,
    greater,
    larger,
    lowest,
    split,
    word,
)


class Geometry(NamedTuple):
    """Image and output extents, window, stride and pad, for the axes of depth, rows and columns."""

    D: int
    H: int
    W: int
    O: int
    P: int
    Q: int
    kd: int
    kh: int
    kw: int
    sd: int
    sh: int
    sw: int
    pd: int
    ph: int
    pw: int


class Steps(NamedTuple):
    """Element strides of N, C, D, H, W."""

    n: int
    c: int
    d: int
    h: int
    w: int


@njit(nogil=True, inline="always")
def geometry(g):
    """An array's 15 numbers by name; plain values, where arrays passed on would be counted, atomically, at each call."""
    return Geometry(g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8], g[9], g[10], g[11], g[12], g[13], g[14])


@njit(nogil=True, inline="always")
def steps(s):
    return Steps(s[0], s[1], s[2], s[3], s[4])


@njit(nogil=True, inline="always")
def extent(o, n, window, stride, pad):
    """Where window ``o`` begins on an axis of n elements, then the range of its elements that are inside the image."""
    start = o * stride - pad
    return start, max(start, 0), min(start + window, n)


@njit(nogil=True, inline="always")
def rows_counted(kind, inside):
    """How many rows of a window an average counts, beside those that ``spans`` has; ``inside`` are inside the image."""
    return inside if kind == 3 else 1


@inner
def _join(best, lines, columns, kw, n, start, largest, like):
    """best[q] = the windows' elements in one row joined to best[q], or to nothing at the ``start``."""
    size = accsize(like)
    for i in range(0, n, lanes(like)):
        total = lowest(largest, like) if start else load_acc(best + i * size, like)
        if largest:
            for k in range(kw):
                total = larger(load_acc(lines + (word(columns, k) + i) * size, like), total)
        else:
            for k in range(kw):
                total = add(total, load_acc(lines + (word(columns, k) + i) * size, like))
        store_acc(best + i * size, total, like)


@inner
def _join_long(best, low, lines, columns, kw, n, start, like):
    """As ``_join`` for a sum of many terms; ``low``: what the additions have lost."""
    size = accsize(like)
    for i in range(0, n, lanes(like)):
        total, missing = zeros(like), zeros(like)
        if not start:
            total, missing = load_acc(best + i * size, like), load_acc(low + i * size, like)
        for first in range(0, kw, CHAIN):
            part = zeros(like)
            for k in range(first, min(first + CHAIN, kw)):
                part = add(part, load_acc(lines + (word(columns, k) + i) * size, like))
            total, missing = carry(total, missing, part)
        store_acc(best + i * size, total, like)
        store_acc(low + i * size, missing, like)


@inner
def _make_good(best, low, n, like):
    """Add to n sums what they lost."""
    for i in range(0, n, lanes(like)):
        at = i * accsize(like)
        store_acc(best + at, made_good(load_acc(best + at, like), load_acc(low + at, like)), like)


@inner
def _rows_of_thread(
    tid, threads, x, y, dtype, kind, channels, count, shape, strides, columns, spans, gap, memory, held
):
    like = element(dtype)
    geo, xs, ys = geometry(shape), steps(strides[0]), steps(strides[1])
    best = memory + tid * held
    low = best + gap * accsize(like)
    lines, size, front = low + gap * accsize(like), itemsize(like), (geo.pw + geo.sw - 1) // geo.sw * accsize(like)
    long = kind != 0 and geo.kd * geo.kh * geo.kw > CHAIN
    fill_line(lines, min(geo.kw, geo.sw) * gap, lowest(kind == 0, like), like)
    for job in range(count * tid // threads, count * (tid + 1) // threads):
        p, o, c, n = (
            job % geo.P,
            job // geo.P % geo.O,
            job // (geo.P * geo.O) % channels,
            job // (geo.P * geo.O * channels),
        )
        _, d0, d1 = extent(o, geo.D, geo.kd, geo.sd, geo.pd)
        _, h0, h1 = extent(p, geo.H, geo.kh, geo.sh, geo.ph)
        base = x + (n * xs.n + c * xs.c) * size
        for d in range(d0, d1):
            for h in range(h0, h1):
                row = base + (d * xs.d + h * xs.h) * size
                split(lines + front, gap, min(geo.kw, geo.sw), geo.W, geo.sw, geo.pw, row, xs.w, like)
                start = (d == d0) & (h == h0)
                if long:
                    _join_long(best, low, lines, columns, geo.kw, geo.Q, start, like)
                else:
                    _join(best, lines, columns, geo.kw, geo.Q, start, kind == 0, like)
        if long:
            _make_good(best, low, geo.Q, like)
        if kind >= 2:
            divide_line(best, geo.Q, spans, rows_counted(kind, (d1 - d0) * (h1 - h0)), like)
        flush(best, geo.Q, y + (n * ys.n + c * ys.c + o * ys.d + p * ys.h) * size, ys.w, like)


def rows(x, y, like, kind, channels, count, shape, strides, columns, spans, gap, memory, held, threads):
    """``count`` rows of output, columns at any step; ``columns``: where in the lines each element of window 0 is."""
    for tid in prange(threads):
        _rows_of_thread(
            tid, threads, x, y, like, kind, channels, count, shape, strides, columns, spans, gap, memory, held
        )


@inner
def _sum_long(cell, xs, deep, tall, wide, mask, like):
    """The sum of a window of many elements, for a vector of channels: a chain along each row."""
    size, total, missing = itemsize(like), zeros(like), zeros(like)
    for d in range(deep):
        for h in range(tall):
            at = cell + (d * xs.d + h * xs.h) * size
            for first in range(0, wide, CHAIN):
                part = zeros(like)
                for _ in range(first, min(first + CHAIN, wide)):
                    part = add(part, load(at, 0, mask, zeros(like), like))
                    at += xs.w * size
                total, missing = carry(total, missing, part)
    return made_good(total, missing)


@inner
def _reduce(cell, xs, deep, tall, wide, mask, largest, like):
    """A window of deep x tall x wide elements from address ``cell`` on, for a vector of channels."""
    size, total = itemsize(like), lowest(largest, like)
    if largest:  # as if there were no NaN: their sum is NaN where one is, and where infinities meet
        both = zeros(like)
        for d in range(deep):
            for h in range(tall):
                at = cell + (d * xs.d + h * xs.h) * size
                for _ in range(wide):
                    value = load(at, 0, mask, zeros(like), like)
                    total, both = greater(value, total), add(both, value)
                    at += xs.w * size
        if not has_nan(both):
            return total
        total = lowest(largest, like)
    elif deep * tall * wide > CHAIN:
        return _sum_long(cell, xs, deep, tall, wide, mask, like)
    for d in range(deep):
        for h in range(tall):
            at = cell + (d * xs.d + h * xs.h) * size
            for _ in range(wide):
                value = load(at, 0, mask, zeros(like), like)
                total = larger(value, total) if largest else add(total, value)
                at += xs.w * size
    return total


@njit(nogil=True, inline="always")
def _channels(cell, at, first, end, xs, deep, tall, wide, mask, divisor, kind, past, like):
    """A window's result at address ``at`` for the channels ``first`` to ``end``, a vector at a time."""
    for i in range(first, end, lanes(like)):
        total = _reduce(cell + i * itemsize(like), xs, deep, tall, wide, mask, kind == 0, like)
        put(at, i, mask, divide(total, fill(divisor, like)) if kind >= 2 else total, past, like)


@inner
def _cells_of_thread(tid, threads, x, y, dtype, kind, channels, count, shape, strides, spans, past):
    like, four = element(dtype), four_of(dtype)
    geo, xs, ys = geometry(shape), steps(strides[0]), steps(strides[1])
    size, (fours, whole, rest) = itemsize(like), cut(channels, four, like)
    for job in range(count * tid // threads, count * (tid + 1) // threads):
        p, o, n = job % geo.P, job // geo.P % geo.O, job // (geo.P * geo.O)
        _, d0, d1 = extent(o, geo.D, geo.kd, geo.sd, geo.pd)
        _, h0, h1 = extent(p, geo.H, geo.kh, geo.sh, geo.ph)
        deep, tall = d1 - d0, h1 - h0
        base = x + (n * xs.n + d0 * xs.d + h0 * xs.h) * size
        row = y + (n * ys.n + o * ys.d + p * ys.h) * size
        factor = rows_counted(kind, deep * tall)
        for q in range(geo.Q):
            _, w0, w1 = extent(q, geo.W, geo.kw, geo.sw, geo.pw)
            cell, at, wide = base + w0 * xs.w * size, row + q * ys.w * size, w1 - w0
            divisor = peek(spans, q, like) * factor
            _channels(cell, at, 0, fours, xs, deep, tall, wide, -1, divisor, kind, past, four)
            _channels(cell, at, fours, whole, xs, deep, tall, wide, -1, divisor, kind, past, like)
            _channels(cell, at, whole, channels, xs, deep, tall, wide, rest, divisor, kind, False, like)


def cells(x, y, like, kind, channels, count, shape, strides, spans, past, threads):
    """``count`` rows of output; the channels of x and of y are neighbours."""
    for tid in prange(threads):
        _cells_of_thread(tid, threads, x, y, like, kind, channels, count, shape, strides, spans, past)
        if past:
            settle()
