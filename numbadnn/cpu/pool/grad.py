"""The gradient of pooling on strided memory: each element of the image gathers what the windows that reach it give.

Two steps, in the two shapes of loop of ``loops.py`` (``grad_rows.py``, ``grad_cells.py``). For a row of windows,
``windows`` keeps each one's share (dy, divided for averages) and, of a maximum, the place (``place_of``) of the element that
gets it. For a row of the image, ``elements`` then adds up, window by window in order, the shares each element gets, and
rounds once. The rows of windows are kept in a ring: as many as overlap one row of the image, for a few slices at a time. So x,
dy and dx pass through memory once, and no two threads write to one element, however the image is cut into bands of rows.

Names as in ``loops.py``; ``ds``: strides of dx. Loading this module imports Numba.
"""

from __future__ import annotations

from numba import njit

from numbadnn.cpu.lang.elements import accsize, itemsize
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import CHAIN, add, carry, element, load_acc, made_good, zeros
from numbadnn.cpu.pool.layout import Layout
from numbadnn.cpu.pool.lines import (
    fill_line,
    lowest,
    set_word,
    where_number,
    word,
)
from numbadnn.cpu.pool.loops import geometry, steps

#: rows of the image whose maxima are found before they are held against one another, where they are not kept for the next windows
ROWS = 4
#: so many windows of a row over one column are told apart without a list
NEAR = 5


@njit(nogil=True, inline="always")
def _layout(a):
    return Layout(
        a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16], a[17],
        a[18], a[19], a[20], a[21], a[22], a[23], a[24], a[25],
    )  # fmt: skip


@njit(nogil=True, inline="always")
def _band(index, size, n, pad):
    """Elements of an axis of n that are in a band of ``size``; cut so that windows that do not overlap are not cut."""
    return max(index * size - pad, 0), min((index + 1) * size - pad, n)


@njit(nogil=True, inline="always")
def place_of(geo, d, h):
    """The place of column 0 of row (d, h), no other's in any window: so many rows as a window has are told apart."""
    return (d % geo.kd * geo.kh + h % geo.kh) * geo.W


@inner
def _list_rows(rows, kept, planes, cap, slot, low, p0, p1):
    """List the addresses of the rows of windows p0 to p1 over a slice; ``planes``: its first and its last o."""
    count = 0
    for o in range(word(planes, 0), word(planes, 1) + 1):
        for p in range(p0, p1 + 1):
            set_word(rows, count, kept + ((o - low) * cap + p % cap) * slot)
            count += 1
    return count


def thread_of(windows, elements):
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
            done = first = word(lay.rows_over, 2 * h0)
            for h in range(h0, h1):
                p0, p1 = word(lay.rows_over, 2 * h), word(lay.rows_over, 2 * h + 1)
                for p in range(done, p1 + 1):
                    for o in range(low, high + 1):
                        at = kept + ((o - low) * lay.cap + p % lay.cap) * lay.slot
                        windows(image, upper, kind, geo, xs, ys, lay, o, p, first, at, rows, lines, m, like)
                done = max(done, p1 + 1)
                for d in range(d0, d1):
                    count = _list_rows(rows, kept, lay.planes_over + 16 * d, lay.cap, lay.slot, low, p0, p1)
                    row, place = target + (d * ds.d + h * ds.h) * size, place_of(geo, d, h)
                    elements(row, ds.w, kind, geo, lay, place, rows, count, lines, m, past, like)

    return thread


@njit(nogil=True, inline="always")
def share_of(at, half, largest, place, like):
    """The shares at address ``at``, half a slot after their places: of maxima only those of ``place``, one or a vector."""
    share = load_acc(at + half, like)
    return where_number(load_acc(at, like), place, share) if largest else share


@njit(nogil=True, inline="always")
def total_of(terms, count, offset, half, largest, place, like):
    """The sum of ``count`` shares at addresses ``terms``, ``offset`` bytes on."""
    total = zeros(like)
    for t in range(count):
        total = add(total, share_of(word(terms, t) + offset, half, largest, place, like))
    return total


@njit(nogil=True, inline="always")
def near_total_of(rows, count, offset, last, step, half, largest, place, like):
    """The sum of what ``last`` + 1 neighbours, NEAR at most, in each of ``count`` rows of windows give, from ``offset`` on.

    Without a loop over neighbours: LLVM would unroll that, and make ready for it at more than such sums cost.
    """
    total = zeros(like)
    for j in range(count):
        at = word(rows, j) + offset
        if last >= 0:
            total = add(total, share_of(at, half, largest, place, like))
        if last >= 1:
            total = add(total, share_of(at + step, half, largest, place, like))
        if last >= 2:
            total = add(total, share_of(at + 2 * step, half, largest, place, like))
        if last >= 3:
            total = add(total, share_of(at + 3 * step, half, largest, place, like))
        if last >= 4:
            total = add(total, share_of(at + 4 * step, half, largest, place, like))
    return total


@inner
def long_total_of(terms, count, offset, half, largest, place, like):
    """As ``total_of``, of more terms than a chain has: loops choose between the two outside, for speed."""
    total, missing = zeros(like), zeros(like)
    for first in range(0, count, CHAIN):
        part = total_of(terms + 8 * first, min(CHAIN, count - first), offset, half, largest, place, like)
        total, missing = carry(total, missing, part)
    return made_good(total, missing)
