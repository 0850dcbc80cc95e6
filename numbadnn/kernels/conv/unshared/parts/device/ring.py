"""Filters on their way to a warp's products: a ring of slots in shared memory, prefetched long before they are multiplied.

A slot has 128 bytes of each of a warp's filters, one below the other; eight lanes prefetch a filter's, 16 bytes each.
Asynchronous copies hold no registers, so a multiprocessor has all the bytes under way that memory needs to be busy:

    slot    row k: piece 0 ... piece 7 of filter k      piece i lies at i ^ (8 / apart * (k mod apart))

so that ``apart`` neighbouring filters' pieces, which the lanes of a product read together, meet all banks. Blocks stay on their
multiprocessors and take one tile of positions after another; while one's last channels are multiplied, the next one's first are
on their way.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.box_many_config import PIECE
from numbadnn.kernels.lang.async_copies import copy_or_zero
from numbadnn.kernels.lang.cuda import cuda, device, i32


def ask_for(rows: int, apart: int, vec: int) -> tuple[Callable[..., tuple[int, int]], Callable[..., None]]:
    """``own()``: a lane's first filter of a slot, and where in the slot, in bytes, its piece of that one lies.

    ``ask(shared, to, start, step, left, terms)``: begin to copy the lane's pieces of every fourth filter, four of them ``step``
    bytes apart, the first from ``start`` to ``to``. ``vec`` terms are one copy. 0 past the ``left`` filters and the ``terms``.
    What does not change from slot to slot is an argument: the loop has few instructions to spare.
    """
    copy = copy_or_zero(vec * 4)

    @device
    def own():
        row, piece = i32((cuda.threadIdx.x & 31) >> 3), i32(cuda.threadIdx.x & 7)
        return row, i32((row * PIECE + (piece ^ ((row & (apart - 1)) * (8 // apart))) * 4) * 4)

    @device
    def ask(shared, to, start, step, left, terms):
        for r in range(0, rows, 4):
            at = i32((to ^ (r & (apart - 1)) * (8 // apart) * 16) + r * PIECE * 4)
            for e in range(0, 4, vec):
                copy(shared, i32(at + e * 4), start + e * 4, i32(e) < terms and i32(r) < left)
            start = start + step

    return own, ask


@device
def after(tile, k, c, step, C, turn, K):
    """What a block does after filters from ``k`` on of channels from ``c`` on: the next channels, filters, or its next tile."""
    c = i32(c + step)
    k = i32(k + turn) if c >= C else k
    c = i32(0) if c >= C else c
    tile = i32(tile + i32(cuda.gridDim.x)) if k >= K else tile
    return tile, i32(0) if k >= K else k, c
