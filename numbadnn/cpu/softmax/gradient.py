"""The gradient of softmax, dx = y * (dy - sum of dy * y), where neighbours lie side by side: no scratch for what is read.

As in ``loops.py``, whose sums these are to the bit: ``rows`` sum over neighbours, ``columns`` for each of a strip of them.
Blocks are widened in registers (``lang/blocks.py``), so that elements of 16 bits cost no pass of their own. Loading this module
imports Numba.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.lang.blocks import adder, applier
from numbadnn.cpu.lang.lines import line_dot, view
from numbadnn.cpu.lang.parallel import LINE, LONG
from numbadnn.cpu.lang.past import settle
from numbadnn.cpu.lang.typed import inner, offset_of
from numbadnn.cpu.lang.vector import carry, made_good, prefetch_line

#: terms of a column that are summed before they join the total
BLOCK = 64
#: elements of the longest row for which memory is asked ahead
NEXT = 2048


def _product(b, y, dy):
    return (b.fmul(dy(), y()),)


def _gradient(b, y, dy, total):
    return b.fmul(y(), b.fsub(dy(), total))


_add_products, _apply = adder(_product), applier(_gradient)


@inner
def _at(base, index, shape, strides, first, stored):
    """The address of element ``first`` + that of an index into the axes ``shape``."""
    return base + (first + offset_of(index, shape, strides)) * stored.itemsize


def rows(dy, y, dx, count, shape, strides, length, like, stored, past, threads):
    """``count`` sums over ``length`` neighbours each. While the results of a row are made, memory is asked for the next one.

    What lies in the caches, and short rows, the processor foresees; longer ones would push out the row that is worked on.
    """
    far = past and length * stored.itemsize >= LONG and length <= NEXT
    for tid in prange(threads):
        for i in range(count * tid // threads, count * (tid + 1) // threads):
            t, u = _at(dy, i, shape, strides[0], 0, stored), _at(y, i, shape, strides[1], 0, stored)
            total = like.dtype.type(line_dot(view(t, 0, length, stored), view(u, 0, length, stored), length))
            if far:
                later = min(i + 1, count - 1)
                t2, u2 = _at(dy, later, shape, strides[0], 0, stored), _at(y, later, shape, strides[1], 0, stored)
                for j in range(0, length, LINE // stored.itemsize):
                    prefetch_line(t2, j, stored)
                    prefetch_line(u2, j, stored)
            _apply(_at(dx, i, shape, strides[2], 0, stored), u, t, (total,), length, stored, past)
        if past:
            settle()


def columns(dy, y, dx, count, shape, strides, length, red_shape, red, width, wide, lines, like, stored, past, threads):
    """``count`` x ``width`` sums over ``length`` indices of the axes red_shape, ``wide`` neighbours together."""
    strips = (width + wide - 1) // wide
    for tid in prange(threads):
        part, total = view(lines, 3 * tid * wide, wide, like), view(lines, (3 * tid + 1) * wide, wide, like)
        low = view(lines, (3 * tid + 2) * wide, wide, like)
        for job in range(count * strips * tid // threads, count * strips * (tid + 1) // threads):
            o, j = job // strips, job % strips * wide
            starts = (
                j + offset_of(o, shape, strides[0]),
                j + offset_of(o, shape, strides[1]),
                j + offset_of(o, shape, strides[2]),
            )
            n = min(wide, width - j)
            for e in range(n):
                part[e], total[e], low[e] = 0.0, 0.0, 0.0
            for i in range(length):
                t = _at(dy, i, red_shape, red[0], starts[0], stored)
                u = _at(y, i, red_shape, red[1], starts[1], stored)
                _add_products(u, t, (), (part,), n, stored)
                if i % BLOCK == BLOCK - 1 or i == length - 1:
                    for e in range(n):
                        total[e], low[e] = carry(total[e], low[e], part[e])
                        part[e] = 0.0
            for e in range(n):
                total[e] = made_good(total[e], low[e])
            for i in range(length):
                t = _at(dy, i, red_shape, red[0], starts[0], stored)
                u = _at(y, i, red_shape, red[1], starts[1], stored)
                _apply(_at(dx, i, red_shape, red[2], starts[2], stored), u, t, (total,), n, stored, past)
        if past:
            settle()
