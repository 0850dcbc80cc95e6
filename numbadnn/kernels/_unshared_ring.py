"""Filters on their way to a warp's products: a ring of slots in shared memory, asked for long before they are multiplied.

A slot has 128 bytes of each of a warp's filters, one below the other; eight lanes ask for a filter's, 16 bytes each. Asynchronous
copies hold no registers, so a multiprocessor has all the bytes under way that memory needs to be busy:

    slot    row k: piece 0 ... piece 7 of filter k      piece i lies at i ^ (8 / apart * (k mod apart))

so that ``apart`` neighbouring filters' pieces, which the lanes of a product read together, meet all banks. Blocks stay on their
multiprocessors and take one tile of positions after another; while one's last channels are multiplied, the next one's first are
on their way.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels._async_copies import copy_or_zero_at
from numbadnn.kernels._cuda import cuda, device, i32, i64
from numbadnn.kernels.unshared_box_many import PIECE


def ask_for(rows: int, apart: int, vec: int) -> Callable[..., None]:
    """``ask(shared, slot, start, step, left, m, terms)``: begin to copy 128 bytes of terms, from ``m`` on, of filters
    that are ``step`` bytes apart, the first of them at ``start``.

    ``vec`` terms are one copy. 0 past the ``left`` filters and past the last term.
    """
    copy = copy_or_zero_at(vec * 4)

    @device
    def ask(shared, slot, start, step, left, m, terms):  # type: ignore[no-untyped-def]
        row, piece = i32((cuda.threadIdx.x & 31) >> 3), i32(cuda.threadIdx.x & 7)
        first = i32(m + piece * 4)
        at = start + i64(row) * step + i64(first) * 4
        for r in range(0, rows, 4):
            to = i32(slot + (row + r) * PIECE + (piece ^ (((row + r) & (apart - 1)) * (8 // apart))) * 4)
            for e in range(0, 4, vec):
                copy(shared, i32(to + e), at + e * 4, first + e < terms and row + r < left)
            at = at + 4 * step

    return ask


@device
def after(tile, k, c, step, C, turn, K):  # type: ignore[no-untyped-def]
    """What a block does after filters from ``k`` on of channels from ``c`` on: the next channels, filters, or its next tile."""
    c = i32(c + step)
    k = i32(k + turn) if c >= C else k
    c = i32(0) if c >= C else c
    tile = i32(tile + i32(cuda.gridDim.x)) if k >= K else tile
    return tile, i32(0) if k >= K else k, c
