"""Planes of images laid out as reals, for ``filters.py``: lines of a pitch, with borders of zeros.

A line is of elements of one channel, or of vectors of neighbouring channels; channels that are neighbours in memory are turned
to lines of their own by squares. Lines are written by whole vectors, the last of a line before the first of the next.
Loading this module imports Numba.
"""

from __future__ import annotations

from numba import njit

from numbadnn.cpu.conv.micro import transpose
from numbadnn.cpu.conv.thin.filters_tile import all_finite, clear
from numbadnn.cpu.lang.elements import accsize, load1, poke
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import lanes, load, load_acc, store_acc, zeros
from numbadnn.cpu.pool.lines import evens, odds

#: a part of a function, not compiled for itself: each that is costs as much time again as what it calls
inlined = njit(inline="always", nogil=True, error_model="numpy", _nrt=False)


@inlined
def _lines(target, gap, base, first, shape, strides, like):
    """Lines of one channel. With a ``gap`` every second element goes to a line of its own, so many bytes behind."""
    vl, acc = lanes(like), accsize(like)
    _, pitch, begin, end, low, high = shape
    many = 2 * vl if gap else vl
    for v in range(
        (pitch + vl - 1) // vl - 1, -1, -1
    ):  # what a line's last vector has too many the next one's first overwrites
        left, right = min(max(low - v * many, 0), many), min(max(high - v * many, 0), many)
        mask, whole = (1 << right) - (1 << left), right - left == many
        for l in range(begin, end):
            line, row = target + (l * pitch + v * vl) * acc, first + l * strides[0] + v * vl * strides[1]
            if gap:
                if whole:
                    x, y = load(base, row, -1, zeros(like), like), load(base, row + vl, -1, zeros(like), like)
                else:
                    x, y = load(base, row, mask, zeros(like), like), load(base, row + vl, mask >> vl, zeros(like), like)
                store_acc(line, evens(x, y), like)
                store_acc(line + gap, odds(x, y), like)
            elif whole and strides[1] == 1:
                store_acc(line, load(base, row, -1, zeros(like), like), like)
            elif strides[1] == 1:
                store_acc(line, load(base, row, mask, zeros(like), like), like)
            else:
                store_acc(line, zeros(like), like)
                for i in range(left, right):
                    poke(line, i, load1(base, row + i * strides[1], like), like)


@inlined
def _lines_across(target, base, first, shape, strides, mask, like):
    """Lines whose elements are vectors of channels."""
    vl, size = lanes(like), lanes(like) * accsize(like)
    _, pitch, begin, end, low, high = shape
    whole = mask == (1 << vl) - 1
    for l in range(begin, end):
        line, row = target + l * pitch * size, first + l * strides[0]
        for i in range(pitch):
            value = zeros(like)
            if low <= i < high:
                if whole:
                    value = load(base, row + i * strides[1], -1, value, like)
                else:
                    value = load(base, row + i * strides[1], mask, value, like)
            store_acc(line + i * size, value, like)


@inlined
def _lines_turned(target, size, count, base, first, shape, strides, spare, like):
    """Lines of ``count`` channels that are neighbours in memory, by squares that are transposed."""
    vl, acc = lanes(like), accsize(like)
    _, pitch, begin, end, low, high = shape
    turned = spare + vl * vl * acc
    for c in range(0, count, vl):
        rows = min(vl, count - c)
        mask = (1 << rows) - 1
        for l in range(begin, end):
            for i in range(0, pitch, vl):
                source, line = first + c + l * strides[0], target + c * size + (l * pitch + i) * acc
                for j in range(vl):
                    value = zeros(like)
                    if low <= i + j < high:
                        value = load(base, source + (i + j) * strides[1], mask, value, like)
                    store_acc(spare + j * vl * acc, value, like)
                transpose(spare, vl, turned, vl, like)
                for j in range(rows):
                    store_acc(line + j * size, load_acc(turned + j * vl * acc, like), like)


@inner
def lay_planes(target, size, count, gap, base, first, step, shape, strides, groups, spare, like):
    """Planes, ``size`` bytes apart, of ``count`` channels that are ``step`` apart, or of vectors of the ``groups`` left.

    ``shape`` = (lines, pitch, first and last line in memory, first and last element); the rest is zero, and so is a vector
    and a pitch behind a plane. ``strides``: of a line and of an element. With a ``gap`` every second element goes to a
    plane of its own, so many bytes behind; first and last element then count both. Returns whether all is finite.
    """
    vl, acc = lanes(like), accsize(like)
    number, pitch, begin, end, low, high = shape
    line = pitch * vl * acc if groups else pitch * acc
    turned = step == 1 and strides[1] != 1 and count >= 4 and groups == 0 and gap == 0
    if turned:
        _lines_turned(target, size, count, base, first, shape, strides, spare, like)
    finite = True
    for c in range(count):
        here = target + c * size
        if groups:
            mask = (1 << min(vl, groups - c * vl)) - 1
            _lines_across(here, base, first + c * vl * step, shape, strides, mask, like)
        elif not turned:
            _lines(here, gap, base, first + c * step, shape, strides, like)
        for plane in range(here, here + gap + 1, max(gap, 1)):
            clear(plane, begin * line)
            clear(plane + end * line, (number - end) * line + (0 if groups else (pitch + vl) * acc))
            if not groups:
                finite = finite and all_finite(plane, (number * pitch + vl - 1) // vl, like)
    return finite
