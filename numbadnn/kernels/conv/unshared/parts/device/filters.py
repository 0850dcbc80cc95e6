"""Filters of 16-bit types on their way to tensor cores: whole lines at a time, long before they are multiplied.

A warp has a ring of slots in shared memory, each for pieces of 64 neighbouring terms of 16 filters. What it asks for
by asynchronous copies holds no registers, and eight lanes together ask for 128 neighbouring bytes, where fragments of
products read from global memory would be scattered over four lines.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.async_copies import copy_or_zero_at
from numbadnn.kernels.lang.cuda import cuda, device, i32, i64

#: filters and terms of a piece, bytes of an element
ROWS, TERMS, SIZE = 16, 64, 2
#: words of a filter's piece in shared memory, so that eight filters meet all banks, and of 16 of them
PITCH, SLOT = TERMS // 2 + 4, ROWS * (TERMS // 2 + 4)


def copy_piece(vec: int) -> Callable[..., None]:
    """``copy(shared, slot, base, step, left, m, terms)``: begin to copy the terms from ``m`` on of filters ``step`` bytes apart.

    ``vec`` terms are one copy. 0 past the ``left`` filters and past the last term.
    """
    copy = copy_or_zero_at(vec * SIZE)

    @device
    def copy_all(shared, slot, base, step, left, m, terms):
        row, first = i32((cuda.threadIdx.x & 31) >> 3), i32((cuda.threadIdx.x & 7) * 8)
        for e in range(0, 8, vec):
            there = m + first + e < terms
            at = base + i64(row) * step + i64(min(i32(m + first + e), i32(terms - vec))) * SIZE
            to = i32(slot + row * PITCH + (first + e) // 2)
            for i in range(4):
                copy(shared, i32(to + 4 * i * PITCH), at, there and row + 4 * i < left)
                at = at + 4 * step

    return copy_all
