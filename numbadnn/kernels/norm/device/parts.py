"""What the kernels of batch normalization share: (count, mean, M2) of numbers, joined; tables of them in shared memory.

M2 is the sum of squares around the mean. Numbers are taken relative to the first of their channel, so that a large mean loses
nothing; a thread takes a batch by two passes over its registers and joins it to what it has (Chan, Golub and LeVeque
1979). Threads then join theirs in a tree, always the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, cuda, device, i32

square_root: Any = np.sqrt if SIMULATED else math.sqrt


def join(acc: str) -> Any:
    """``join(n, mean, m2, more, centre, around) -> (n, mean, m2)`` of both; either may be of no numbers."""
    A = ACCUMULATOR[acc]

    @device
    def joined(n, mean, m2, more, centre, around):  # type: ignore[no-untyped-def]
        total = A(n + more)
        share = A(more / total) if total > A(0) else A(0)
        delta = A(centre - mean)
        return total, A(mean + delta * share), A(A(m2 + around) + A(delta * delta) * A(n * share))

    return joined


def join_parts(acc: str, lanes: int, parts: int, each: int = 1) -> Any:
    """``join_parts(counts, means, squares)``: entry [e, lane] becomes the join over parts of entries [e, part * lanes + lane].

    Tables are flat, thread t has written entry t of each of the ``each`` stretches; counts are the same for all e and have one.
    """
    A, threads, both = ACCUMULATOR[acc], lanes * parts, join(acc)

    @device
    def reduce(counts, means, squares):  # type: ignore[no-untyped-def]
        thread = i32(cuda.threadIdx.x)
        step = i32(parts // 2)
        while step > 0:
            cuda.syncthreads()
            if thread < step * lanes:
                other = i32(thread + step * lanes)
                n, more, total = counts[thread], counts[other], A(0)
                for e in range(each):
                    a, b = i32(e * threads + thread), i32(e * threads + other)
                    total, mean, m2 = both(n, means[a], squares[a], more, means[b], squares[b])
                    means[a] = mean
                    squares[a] = m2
                counts[thread] = total
            step = i32(step // 2)
        cuda.syncthreads()

    return reduce


def add_parts(acc: str, lanes: int, parts: int, each: int) -> Any:
    """``add_parts(table)``: entry [e, lane] becomes the sum over parts of entries [e, part * lanes + lane]."""
    A, threads = ACCUMULATOR[acc], lanes * parts

    @device
    def reduce(table):  # type: ignore[no-untyped-def]
        thread = i32(cuda.threadIdx.x)
        step = i32(parts // 2)
        while step > 0:
            cuda.syncthreads()
            if thread < step * lanes:
                for e in range(each):
                    mine = i32(e * threads + thread)
                    table[mine] = A(table[mine] + table[i32(mine + step * lanes)])
            step = i32(step // 2)
        cuda.syncthreads()

    return reduce


def batch(acc: str, count: int) -> Any:
    """``batch(values, start, origin) -> (mean, M2)`` of values[start : start + count] relative to ``origin``; changes them."""
    A, share = ACCUMULATOR[acc], 1.0 / count

    @device
    def moments(values, start, origin):  # type: ignore[no-untyped-def]
        total = A(0)
        for i in range(count):
            values[start + i] = A(values[start + i] - origin)
            total = A(total + values[start + i])
        centre, m2 = A(total * A(share)), A(0)
        for i in range(count):
            d = A(values[start + i] - centre)
            m2 = A(m2 + d * d)
        return centre, m2

    return moments
