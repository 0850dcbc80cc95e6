"""Maxima and sums over the threads that share a row, always in the same tree; every thread gets the result.

``over_lanes``: ``lanes`` neighbouring threads share a row (a power of two; above 32 it is the whole block), by shuffles
and, between warps, shared memory. ``over_parts``: a shared table holds ``parts`` partial results of each column.
Every thread of the block must call, whether or not its row exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels._cuda import cuda, device, i32
from numbadnn.kernels._ptx import ACCUMULATOR, shuffle_xor


def add(acc: str) -> Callable[..., Any]:
    """``add(a, b)``, rounded to the accumulator."""
    A = ACCUMULATOR[acc]

    @device
    def sum_of_two(a, b):  # type: ignore[no-untyped-def]
        return A(a + b)

    return sum_of_two


def over_lanes(acc: str, combine: Callable[..., Any], lanes: int, neutral: float) -> Callable[..., Any]:
    """``reduce(value, scratch) -> total``; ``scratch`` is a shared array of 32 used by this call alone."""
    A, swap = ACCUMULATOR[acc], shuffle_xor(acc)
    warps = lanes // 32
    levels = min(lanes, 32).bit_length() - 1

    @device
    def reduce(value, scratch):  # type: ignore[no-untyped-def]
        for level in range(levels):
            value = combine(value, swap(value, i32(1 << (levels - 1 - level))))
        if warps > 1:
            lane = i32(i32(cuda.threadIdx.x) & 31)
            if lane == 0:
                scratch[i32(cuda.threadIdx.x) >> 5] = value
            cuda.syncthreads()
            value = scratch[lane] if lane < warps else A(neutral)
            for level in range(5):
                value = combine(value, swap(value, i32(16 >> level)))
        return value

    return reduce


def over_parts(combine: Callable[..., Any], lanes: int, parts: int, each: int = 1) -> Callable[..., None]:
    """``reduce(table)``: table[e, lane] becomes the total over parts of table[e, part * lanes + lane], e below ``each``.

    The table is flat; thread t has written entry t of each of its ``each`` stretches, so that no two threads of a warp meet in
    a bank.
    """
    threads = lanes * parts

    @device
    def reduce(table):  # type: ignore[no-untyped-def]
        thread = i32(cuda.threadIdx.x)
        step = i32(parts // 2)
        while step > 0:
            cuda.syncthreads()
            if thread < step * lanes:
                for e in range(each):
                    mine = i32(e * threads + thread)
                    table[mine] = combine(table[mine], table[i32(mine + step * lanes)])
            step = i32(step // 2)
        cuda.syncthreads()

    return reduce
