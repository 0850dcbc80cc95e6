"""Maxima and sums over the threads that share a row, always in the same tree; every thread gets the result.

``over_lanes``: ``lanes`` neighbouring threads share a row (a power of two; above 32 it is the whole block), by shuffles
and, between warps, shared memory. ``over_parts``: a shared table holds ``parts`` partial results of each column.
``over_warps``: the threads of a column are ``lanes`` apart; those of a warp have agreed, and its warps meet in a table.
Every thread of the block must call, whether or not its row exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, u32
from numbadnn.kernels.lang.warp import shuffle_xor


def add(acc: str) -> Callable[..., Any]:
    """``add(a, b)``, rounded to the accumulator."""
    A = ACCUMULATOR[acc]

    @device
    def sum_of_two(a, b):
        return A(a + b)

    return sum_of_two


def over_lanes(acc: str, combine: Callable[..., Any], lanes: int, neutral: float) -> Callable[..., Any]:
    """``reduce(value, scratch) -> total``; ``scratch`` is a shared array of 32 used by this call alone."""
    A, swap = ACCUMULATOR[acc], shuffle_xor(acc)
    warps = lanes // 32
    levels = min(lanes, 32).bit_length() - 1

    @device
    def reduce(value, scratch):
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
    def reduce(table):
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


def over_warp(acc: str, combine: Callable[..., Any], lanes: int) -> Callable[..., Any]:
    """``reduce(value) -> total`` over the threads of a warp that are a multiple of ``lanes`` (a power of two) apart."""
    swap = shuffle_xor(acc)
    masks = tuple(16 >> i for i in range(5) if 16 >> i >= lanes)
    levels = len(masks)

    @device
    def reduce(value):
        for level in range(levels):
            value = combine(value, swap(value, i32(16 >> level)))
        return value

    return reduce


def meeting(threads: int, columns: int) -> tuple[int, int, int]:
    """For ``over_warps``: (elements from one warp's stretch of a table to the next, where the results begin, all elements).

    The threads of a warp read ``warps`` stretches at 32 / warps neighbouring columns: the stretches are that much longer
    than they need be, so that no two meet in a bank.
    """
    warps = threads // 32
    stretch = columns + 32 // warps
    return stretch, warps * stretch, warps * stretch + columns


def over_warps(acc: str, threads: int, lanes: int, each: int, relative_to: Any = None) -> Callable[..., None]:
    """Totals over all warps of each of ``lanes * each`` columns; a warp's lane l has those of columns l * each on.

    ``meet(largest, total, maxima, sums)``: local arrays of ``each``, shared tables as ``meeting`` says, which may be used
    again at once. The results are the sums of the warps' totals. With ``relative_to`` = (larger, exp, last) a total is
    relative to its warp's ``largest``: the results in ``maxima`` are the largest of these, each total counts times
    exp(largest - that maximum), and the results in ``sums`` are last(sum).
    """
    A, columns, warps = ACCUMULATOR[acc], lanes * each, threads // 32
    stretch, results, _ = meeting(threads, columns)
    rounds = -(-columns // 32)  # the block takes up 32 columns at a time: ``warps`` threads a column
    relative = relative_to is not None
    larger, exp, last = relative_to or (add(acc),) * 3  # unused then
    maximum_of_column, sum_of_column = over_lanes(acc, larger, warps, 0.0), over_lanes(acc, add(acc), warps, 0.0)

    @device
    def meet(largest, total, maxima, sums):
        thread = i32(cuda.threadIdx.x)
        warp, lane = i32(thread >> 5), i32(thread & 31)
        if lane < lanes:
            for e in range(each):
                at = i32(warp * stretch + lane * each + e)
                sums[at] = total[e]
                if relative:
                    maxima[at] = largest[e]
        cuda.syncthreads()
        entry = i32(thread & (warps - 1))
        first = i32(u32(thread) // u32(warps))
        for r in range(rounds):
            column = i32(first + r * 32)
            at = i32(entry * stretch + (column if column < columns else i32(columns - 1)))
            part = sums[at]
            if relative:
                own = maxima[at]
                most = maximum_of_column(own, maxima)
                part = A(part * exp(A(own - most)))
                if entry == 0 and column < columns:
                    maxima[i32(results + column)] = most
            part = sum_of_column(part, sums)
            if relative:
                part = last(part)
            if entry == 0 and column < columns:
                sums[i32(results + column)] = part
        cuda.syncthreads()

    return meet
