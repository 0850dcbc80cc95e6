"""What the kernels of batch normalization share: (count, mean, M2) of numbers, joined; tables of them in shared memory.

M2 is the sum of squares around the mean; where the type does not hold it, the root of M2 / count serves. Numbers are taken
relative to the first of their channel, so that a large mean loses nothing; a thread takes a batch by two passes over its
registers and joins it to what it has (Chan, Golub and LeVeque 1979). Threads then join theirs in a tree, always the same.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, cuda, device, i32
from numbadnn.kernels.lang.reduce import over_parts

square_root: Any = np.sqrt if SIMULATED else math.sqrt


class Range(NamedTuple):
    """What squares of deviations a type holds, as powers of two.

    Averages of squares below ``least`` lose bits, M2 above ``most`` may be infinite. There deviations are multiplied by ``grow``
    or ``shrink``: then 2**31 squares are no sum too large, and those that count are not lost.
    """

    least: float
    most: float
    shrink: float
    grow: float


RANGE = {
    "float32": Range(2.0**-100, 2.0**127, 2.0**-80, 2.0**90),
    "float64": Range(2.0**-900, 2.0**1022, 2.0**-600, 2.0**600),
}


def join(acc: str) -> Any:
    """``join(n, mean, m2, more, centre, around) -> (n, mean, m2)`` of both; either may be of no numbers."""
    A = ACCUMULATOR[acc]

    @device
    def joined(n, mean, m2, more, centre, around):
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
    def reduce(counts, means, squares):
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
    A = ACCUMULATOR[acc]

    @device
    def add(a, b):
        return A(a + b)

    return over_parts(add, lanes, parts, each)


def batch(acc: str, count: int) -> Any:
    """``batch(values, start, origin) -> (mean, M2)`` of values[start : start + count] relative to ``origin``; changes them."""
    A, share = ACCUMULATOR[acc], 1.0 / count

    @device
    def moments(values, start, origin):
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


def scaler(acc: str) -> Any:
    """``scale_of(n, m2, epsilon)``: what deviations are to be multiplied by where M2 is lost, 1 where it is right."""
    A, limits = ACCUMULATOR[acc], RANGE[acc]
    least, most, shrink, grow = A(limits.least), A(limits.most), A(limits.shrink), A(limits.grow)

    @device
    def scale_of(n, m2, epsilon):
        scale = A(1)
        if not m2 <= most:
            scale = shrink
        elif epsilon < least and m2 < A(n * least):
            scale = grow
        return scale

    return scale_of


def inverse_deviation(acc: str) -> Any:
    """``finish(mean, m2, at, row, step, parts, averaged, epsilon) -> (mean, variance, 1 / sqrt(variance + epsilon))``.

    ``mean`` and ``m2`` are the join of a channel's parts, which lie ``row`` apart in the workspace from ``at`` on. Where M2 is
    lost they are joined once more, of deviations that are multiplied by a power of two.
    """
    A, read, both, scale_of = ACCUMULATOR[acc], load(acc, acc), join(acc), scaler(acc)

    @device
    def finish(mean, m2, at, row, step, parts, averaged, epsilon):
        scale = scale_of(averaged, m2, epsilon)
        if scale != A(1):
            n, mean, m2, part = A(0), A(0), A(0), at
            for _ in range(parts):
                count, around = read(part), read(part + 2 * step)
                if scale_of(count, around, epsilon) != A(1):  # then the part has left the root
                    root = A(read(part + 3 * step + 5 * row) * scale)
                else:
                    root = A(A(square_root(A(around / count))) * scale)
                n, mean, m2 = both(n, mean, m2, count, A(read(part + step) * scale), A(A(root * root) * count))
                part = part + row
            mean = A(mean / scale)
        var = A(m2 / averaged)
        inverse = A(A(1) / A(square_root(A(var + A(A(epsilon * scale) * scale)))))
        return mean, A(A(var / scale) / scale), A(inverse * scale)

    return finish
