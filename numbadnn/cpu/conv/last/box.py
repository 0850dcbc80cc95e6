"""The part of a channels-last image that some lines of outputs see, copied with its padding, and where each pixel lies in it.

A box is [slice][row][column][channel], for each image that lines belong to one. Loading this module imports Numba.
"""

from __future__ import annotations

from numbadnn.cpu.lang.elements import accsize, itemsize
from numbadnn.cpu.lang.runs import read_run
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import lanes, store_acc, zeros


@inner
def zero_run(target, n, like):
    """n accumulators; those up to the next whole vector may be written as well."""
    for i in range(0, n, lanes(like)):
        store_acc(target + i * accsize(like), zeros(like), like)


@inner
def _lay_row(target, image, h, low, wide, geo, layout, like):
    """A row of a box: ``wide`` columns from ``low`` on, 0 outside the image; ``image`` is the slice's first element."""
    C, acc = layout.channels, accsize(like)
    first, last = min(max(0, -low), wide), min(wide, geo.W - low)
    if h < 0 or h >= geo.H or last <= first:
        zero_run(target, wide * C, like)
        return
    zero_run(target, first * C, like)
    at = h * geo.src_h + (low + first) * geo.src_w
    if layout.whole:
        read_run(target + first * C * acc, image, at, (last - first) * C, 1, like)
    else:
        for i in range(first, last):
            read_run(target + i * C * acc, image, at, C, 1, like)
            at += geo.src_w
    zero_run(target + last * C * acc, (wide - last) * C, like)


@inner
def lay_box(box, source, place, lines, columns, phase, seen, lows, geo, layout, like):
    """The boxes (``plan.Sight``) that some columns of lines see, and where each pixel lies in each of them."""
    for k in range(seen[1]):
        at = box + k * seen[2] * layout.channels * accsize(like)
        _lay_one(at, source, place, lines, columns, phase, seen, lows[seen[0] + k], geo, layout, like)


@inner
def _lay_one(box, source, place, lines, columns, phase, seen, first, geo, layout, like):
    """The rows that some columns of lines see from ``first`` on, each image's slice by itself."""
    O, P = phase[0], phase[1]
    C, acc, item = layout.channels, accsize(like), itemsize(like)
    line, pixel, at, row = lines[0], 0, 0, seen[5] * C
    low = first[2] + columns[0] * geo.step_w
    while line < lines[1]:
        slices, p = divmod(line, P)
        n, o = divmod(slices, O)
        count = min(P - p, lines[1] - line)
        rows = (count - 1) * geo.step_h + seen[4]
        for d in range(seen[3]):
            depth = o * geo.step_d + first[0] + d
            image = source + (n * geo.src_n + depth * geo.src_d) * item
            for r in range(rows):
                h = p * geo.step_h + first[1] + r if 0 <= depth < geo.D else -1
                _lay_row(box + (at + (d * seen[6] + r) * row) * acc, image, h, low, seen[5], geo, layout, like)
        for i in range(count):
            for q in range(columns[1] - columns[0]):
                place[pixel] = (at + i * geo.step_h * row + q * geo.step_w * C) * acc
                pixel += 1
        at += seen[3] * seen[6] * row
        line += count


@inner
def places_of(place, lines, columns, phase, strides, size):
    """Where some columns of lines lie, in bytes; ``strides``: of image, slice, row and column. How many pixels they are."""
    pixel = 0
    for line in range(lines[0], lines[1]):
        slices, p = divmod(line, phase[1])
        n, o = divmod(slices, phase[0])
        at = (n * strides[0] + o * strides[1] + p * strides[2]) * size
        for q in range(columns[0], columns[1]):
            place[pixel] = at + q * strides[3] * size
            pixel += 1
    return pixel
