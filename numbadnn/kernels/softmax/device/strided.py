"""Softmax over any strides and rows of any length: the kernel for all that the one-pass kernels do not take.

A row (one index of the kept axes) belongs to one lane of a block; its ``parts`` threads walk it with steps of ``parts``, once
for the maximum, once for the sum, once to write. ``lanes`` is 1 where elements of a row lie together, so that the parts
read neighbours, and more where rows do. The second and third walk mostly find the row in the L2 cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from numbadnn.kernels.lang import reduce as _reduce
from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32, u64
from numbadnn.kernels.lang.long_sums import compensated
from numbadnn.kernels.lang.ptx import exponential, log, maximum
from numbadnn.kernels.softmax.strided import StridedConfig
from numbadnn.problem import ITEMSIZE

INFINITY = float("inf")


def _offset(rank: int, wide: bool) -> Any:
    """``(i, extents, strides) -> offset`` of element ``i`` in C order."""
    ix, ux = (i64, u64) if wide else (i32, u32)

    @device
    def offset(i, extents, strides):
        at, rest = ix(0), ix(i)
        for axis in range(rank):
            d = rank - 1 - axis
            outer = ix(ux(rest) // ux(extents[d]))
            at = ix(at + ix(rest - outer * extents[d]) * strides[d])
            rest = outer
        return i64(at)

    return offset


def softmax(dtype: str, acc: str, algo: str, config: StridedConfig) -> Callable[..., None]:
    """y = exp(x - max) / sum exp(x - max), or its logarithm."""
    kept, reduced, wide, lanes, parts, long = astuple(config)
    add, close = compensated(acc)
    A, size, logarithm, threads = ACCUMULATOR[acc], ITEMSIZE[dtype], algo == "log", lanes * parts
    read, write, exp, larger, ix = (
        load(dtype, acc),
        store(dtype, acc),
        exponential(dtype),
        maximum(acc),
        i64 if wide else i32,
    )
    row_at, at = _offset(kept, wide), _offset(reduced, wide)
    maximum_of_parts = _reduce.over_parts(larger, lanes, parts)
    sum_of_parts = _reduce.over_parts(_reduce.add(acc), lanes, parts)

    def kernel(x, y, rows, length, kept_n, reduced_n, x_kept, x_reduced, y_kept, y_reduced):
        maxima = cuda.shared.array(threads, A)
        sums = cuda.shared.array(threads, A)
        thread = i32(cuda.threadIdx.x)
        part = i32(u32(thread) // u32(lanes))
        lane = i32(thread - part * lanes)
        row = ix(i64(cuda.blockIdx.x) * lanes + lane)
        if row >= rows:
            length = ix(0)
        x_row = x + row_at(row, kept_n, x_kept) * size
        y_row = y + row_at(row, kept_n, y_kept) * size
        largest = A(-INFINITY)
        for j in range(ix(part), ix(length), ix(parts)):
            largest = larger(largest, read(x_row + at(j, reduced_n, x_reduced) * size))
        maxima[thread] = largest
        maximum_of_parts(maxima)
        largest = maxima[lane]
        total, lost = A(0), A(0)
        for j in range(ix(part), ix(length), ix(parts)):
            term = exp(A(read(x_row + at(j, reduced_n, x_reduced) * size) - largest))
            if long:
                total, lost = add(total, lost, term)
            else:
                total = A(total + term)
        sums[thread] = close(total, lost) if long else total
        sum_of_parts(sums)
        total = sums[lane]
        scale = A(log(total)) if logarithm else A(A(1) / total)
        for j in range(ix(part), ix(length), ix(parts)):
            shifted = A(read(x_row + at(j, reduced_n, x_reduced) * size) - largest)
            result = A(shifted - scale) if logarithm else A(exp(shifted) * scale)
            write(y_row + at(j, reduced_n, y_reduced) * size, result)

    return kernel


def softmax_grad(dtype: str, acc: str, algo: str, config: StridedConfig) -> Callable[..., None]:
    """dx = y * (dy - sum dy * y), or dy - exp(y) * sum dy for the logarithm."""
    kept, reduced, wide, lanes, parts, long = astuple(config)
    add, close = compensated(acc)
    A, size, logarithm, threads = ACCUMULATOR[acc], ITEMSIZE[dtype], algo == "log", lanes * parts
    read, write, exp, ix = load(dtype, acc), store(dtype, acc), exponential(dtype), i64 if wide else i32
    row_at, at = _offset(kept, wide), _offset(reduced, wide)
    sum_of_parts = _reduce.over_parts(_reduce.add(acc), lanes, parts)

    def kernel(dy, y, dx, rows, length, kept_n, reduced_n, dy_kept, dy_reduced, y_kept, y_reduced, dx_kept, dx_reduced):
        sums = cuda.shared.array(threads, A)
        thread = i32(cuda.threadIdx.x)
        part = i32(u32(thread) // u32(lanes))
        lane = i32(thread - part * lanes)
        row = ix(i64(cuda.blockIdx.x) * lanes + lane)
        if row >= rows:
            length = ix(0)
        dy_row = dy + row_at(row, kept_n, dy_kept) * size
        y_row = y + row_at(row, kept_n, y_kept) * size
        dx_row = dx + row_at(row, kept_n, dx_kept) * size
        total, lost = A(0), A(0)
        for j in range(ix(part), ix(length), ix(parts)):
            term = read(dy_row + at(j, reduced_n, dy_reduced) * size)
            if not logarithm:
                term = term * read(y_row + at(j, reduced_n, y_reduced) * size)
            if long:
                total, lost = add(total, lost, term)
            else:
                total = A(total + term)
        sums[thread] = close(total, lost) if long else total
        sum_of_parts(sums)
        total = sums[lane]
        for j in range(ix(part), ix(length), ix(parts)):
            slope = read(dy_row + at(j, reduced_n, dy_reduced) * size)
            value = read(y_row + at(j, reduced_n, y_reduced) * size)
            result = A(slope - exp(value) * total) if logarithm else A(value * A(slope - total))
            write(dx_row + at(j, reduced_n, dx_reduced) * size, result)

    return kernel
