"""The gradient of a maximum over windows that do not overlap and need no padding: found and given in one pass.

Each element is in one window, so that the vector of windows (``pairs``: along a row, two columns each) or of channels
(``cells``) that looks for its maxima has them in registers when it writes the gradient of the very elements that it read:
what ``grad.py`` keeps in a ring between its two steps is not needed. What no window reaches is 0. Names as there.
"""

from __future__ import annotations

from numba import njit, prange

from numbadnn.cpu.lang.elements import itemsize
from numbadnn.cpu.lang.past import put, settle
from numbadnn.cpu.lang.typed import cut, inner
from numbadnn.cpu.lang.vector import element, four_of, lanes, load, prefetch_line, store, zeros
from numbadnn.cpu.pool.grad_cells import maximum_of
from numbadnn.cpu.pool.lines import evens, high_pairs, larger, low_pairs, lowest, number_of_larger, odds, where_number
from numbadnn.cpu.pool.loops import geometry, steps

#: so many elements ahead memory is asked for: the processor's own foresight ends with a page, and rows of a window alternate
AHEAD = 512


@njit(nogil=True, inline="always")
def _first(count):
    """A mask of the first ``count`` lanes, none where that is below 0."""
    return (1 << max(count, 0)) - 1


@inner
def _clear(base, n, step, like):
    """n elements, ``step`` apart, become 0."""
    L = lanes(like)
    if step == 1:
        for i in range(0, n, L):
            store(base, i, _first(min(n - i, L)), zeros(like), like)
    else:
        for i in range(n):
            store(base + i * step * itemsize(like), 0, 1, zeros(like), like)


# ---- pairs of columns ------------------------------------------------------------------------------------------------


@njit(nogil=True, inline="always")
def _pairs_of_windows(x, dy, dx, geo, xs, ds, first, low, high, mask, like):
    """A vector of windows from number ``first`` of their row on; x, dy and dx: where that begins. Masks: of the two vectors of
    columns, and of the windows."""
    size, L = itemsize(like), lanes(like)
    most, which = lowest(True, like), zeros(like)
    for d in range(geo.kd):
        for h in range(geo.kh):
            row, number = x + (d * xs.d + h * xs.h) * size, (d * geo.kh + h) * 2
            a, b = load(row, 2 * first, low, zeros(like), like), load(row, 2 * first + L, high, zeros(like), like)
            there = dx + (d * ds.d + h * ds.h) * size
            for v in range(2):
                prefetch_line(row, 2 * first + AHEAD + v * L, like)
                prefetch_line(there, 2 * first + AHEAD + v * L, like)
            even, odd = evens(a, b), odds(a, b)
            which = number_of_larger(even, most, number, which)
            most = larger(even, most)
            which = number_of_larger(odd, most, number + 1, which)
            most = larger(odd, most)
    share = load(dy, first, mask, zeros(like), like)
    for d in range(geo.kd):
        for h in range(geo.kh):
            row, number = dx + (d * ds.d + h * ds.h) * size, (d * geo.kh + h) * 2
            even, odd = where_number(which, number, share), where_number(which, number + 1, share)
            store(row, 2 * first, low, low_pairs(even, odd), like)
            store(row, 2 * first + L, high, high_pairs(even, odd), like)


@njit(nogil=True, inline="always")
def _pairs_of_row(x, dy, dx, geo, xs, ys, ds, m, past, like):
    """A row of windows of one channel."""
    L = lanes(like)
    if geo.Q < L:
        low, high = _first(min(2 * geo.Q, L)), _first(2 * geo.Q - L)
        _pairs_of_windows(x, dy, dx, geo, xs, ds, 0, low, high, _first(geo.Q), like)
    else:
        for i in range(0, geo.Q, L):
            first = min(i, geo.Q - L)  # the last vector overlaps the one before
            _pairs_of_windows(x, dy, dx, geo, xs, ds, first, -1, -1, -1, like)


# ---- cells -----------------------------------------------------------------------------------------------------------


@njit(nogil=True, inline="always")
def _cells_of_window(x, dy, dx, geo, xs, ds, first, end, mask, past, like):
    """One window of channels ``first`` to ``end``, a vector at a time; x, dy and dx: where the window and its gradient are."""
    size = itemsize(like)
    for c in range(first, end, lanes(like)):
        which = maximum_of(x + c * size, xs, (0, 0, 0), geo.kd, geo.kh, geo.kw, geo, mask, like)
        share = load(dy, c, mask, zeros(like), like)
        for d in range(geo.kd):
            for h in range(geo.kh):
                at, number = dx + (d * ds.d + h * ds.h) * size, (d * geo.kh + h) * geo.W
                for w in range(geo.kw):
                    put(at, c, mask, where_number(which, number + w, share), past, like)
                    at += ds.w * size


@njit(nogil=True, inline="always")
def _cells_of_row(x, dy, dx, geo, xs, ys, ds, m, past, like):
    """A row of windows of m channels."""
    size, four = itemsize(like), four_of(like)
    fours, whole, rest = cut(m, four, like)
    for q in range(geo.Q):
        image, upper, target = x + q * geo.kw * xs.w * size, dy + q * ys.w * size, dx + q * geo.kw * ds.w * size
        _cells_of_window(image, upper, target, geo, xs, ds, 0, fours, -1, past, four)
        _cells_of_window(image, upper, target, geo, xs, ds, fours, whole, -1, past, like)
        _cells_of_window(image, upper, target, geo, xs, ds, whole, m, rest, False, like)


# ---- both ------------------------------------------------------------------------------------------------------------


@inner
def _clear_pixels(row, n, step, m, like):
    """n positions of one channel."""
    _clear(row, n, step, like)


@inner
def _clear_cells(row, n, step, m, like):
    """n positions of m channels."""
    for w in range(n):
        _clear(row + w * step * itemsize(like), m, 1, like)


def _thread_of(windows, clear, together):
    """The jobs of a thread, a row of windows each; ``together``: of all channels, which are neighbours."""

    @inner
    def clear_rest(dx, geo, ds, o, p, m, like):
        """What no window reaches beside, below and behind window row (o, p); dx: where the channel begins."""
        size = itemsize(like)
        d1 = geo.D if o == geo.O - 1 else (o + 1) * geo.kd
        h1 = geo.H if p == geo.P - 1 else (p + 1) * geo.kh
        for d in range(o * geo.kd, d1):
            for h in range(p * geo.kh, h1):
                inside = (d < (o + 1) * geo.kd) & (h < (p + 1) * geo.kh)
                start = geo.Q * geo.kw if inside else 0
                clear(dx + (d * ds.d + h * ds.h + start * ds.w) * size, geo.W - start, ds.w, m, like)

    @inner
    def thread(tid, threads, x, dy, dx, dtype, shape, strides, count, channels, past):
        like = element(dtype)
        geo, xs, ys, ds, size = geometry(shape), steps(strides[0]), steps(strides[1]), steps(strides[2]), itemsize(like)
        exact = (geo.Q * geo.kw == geo.W) & (geo.P * geo.kh == geo.H) & (geo.O * geo.kd == geo.D)
        parts = 1 if together else channels
        for job in range(count * tid // threads, count * (tid + 1) // threads):
            p, o, part = job % geo.P, job // geo.P % geo.O, job // (geo.P * geo.O)
            n, c = part // parts, part % parts
            d, h = o * geo.kd, p * geo.kh
            image = x + (n * xs.n + c * xs.c + d * xs.d + h * xs.h) * size
            upper = dy + (n * ys.n + c * ys.c + o * ys.d + p * ys.h) * size
            channel = dx + (n * ds.n + c * ds.c) * size
            windows(image, upper, channel + (d * ds.d + h * ds.h) * size, geo, xs, ys, ds, channels, past, like)
            if not exact:
                clear_rest(channel, geo, ds, o, p, channels, like)

    return thread


_pairs_of_thread = _thread_of(_pairs_of_row, _clear_pixels, False)
_cells_of_thread = _thread_of(_cells_of_row, _clear_cells, True)


def pairs_disjoint(x, dy, dx, like, shape, strides, count, channels, past, threads):
    """Columns are neighbours, two of them a window."""
    for tid in prange(threads):
        _pairs_of_thread(tid, threads, x, dy, dx, like, shape, strides, count, channels, past)


def cells_disjoint(x, dy, dx, like, shape, strides, count, channels, past, threads):
    """Channels are neighbours."""
    for tid in prange(threads):
        _cells_of_thread(tid, threads, x, dy, dx, like, shape, strides, count, channels, past)
        if past:
            settle()
