"""Softmax along memory, in one pass: a row lies in the registers of the threads that share it.

``lanes`` threads (up to a warp: several rows a block; more: the block is one row) hold ``vectors`` pieces of ``vec`` elements
each, read and written 16 bytes at a time. A row that starts or ends inside a 16-byte piece (``peel``) is cut at the
aligned boundaries and its ends are moved element by element (it has at least 2 * vec elements). Reads once, writes once:
the speed of a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from numbadnn.kernels.lang import reduce as _reduce
from numbadnn.kernels.lang.access import load, load_vector, store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, ELEMENT, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.ptx import exponential, log, maximum
from numbadnn.kernels.softmax.rows import RowsConfig
from numbadnn.problem import ITEMSIZE

INFINITY = float("inf")


def _pieces(dtype: str, acc: str, vec: int, peel: bool) -> Any:
    """(fetch, patch, put) for the ``vec`` elements of a row from ``first`` on, of which any number may be inside the row.

    ``fetch`` always reads a whole piece, at ``safe`` where ``first`` is not whole: no branch stands between the loads of
    a thread, so that all are under way at once. ``patch`` then sets what ``fetch`` could not read.
    """
    A, size = ACCUMULATOR[acc], ITEMSIZE[dtype]
    read, write = load(dtype, acc), store(dtype, acc)
    read_vector, write_vector = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc)

    @device
    def fetch(values, start, row, first, length, safe):
        whole = first >= 0 and first + vec <= length
        read_vector(values, i32(start), row + i64(first if whole else safe) * size)

    @device
    def patch(values, start, row, first, length, outside):
        if first < 0 or first + vec > length:
            for e in range(vec):
                at = i32(first + e)
                values[start + e] = A(outside)
                if peel and at >= 0 and at < length:
                    values[start + e] = read(row + i64(at) * size)

    @device
    def put(values, start, row, first, length):
        if first >= 0 and first + vec <= length:
            write_vector(values, i32(start), row + i64(first) * size)
        elif peel:
            for e in range(vec):
                at = i32(first + e)
                if at >= 0 and at < length:
                    write(row + i64(at) * size, values[start + e])

    return fetch, patch, put


def _locate(dtype: str, lanes: int, vec: int, peel: bool, nested: bool, threads: int) -> Any:
    """``(rows, inner) -> (whether the row exists, its outer and inner index, lane)``; the last row stands in for none."""
    rows_per_block = threads // lanes

    @device
    def locate(rows, inner):
        thread = i32(cuda.threadIdx.x)
        row = i32(i64(cuda.blockIdx.x) * rows_per_block + i32(u32(thread) // u32(lanes)))
        live = row < rows
        row = row if live else i32(rows - 1)
        outer = i32(u32(row) // u32(inner)) if nested else i32(0)
        return live, outer, i32(row - outer * inner), i32(thread & (lanes - 1))

    return locate


def softmax(dtype: str, acc: str, algo: str, config: RowsConfig) -> Callable[..., None]:
    """y = exp(x - max) / sum exp(x - max), or its logarithm, along rows of unit stride."""
    lanes, vectors, vec, peel, nested, threads, stash, _ = astuple(config)
    A, size, count, logarithm = ACCUMULATOR[acc], ITEMSIZE[dtype], vectors * vec, algo == "log"
    fetch, patch, put = _pieces(dtype, acc, vec, peel)
    locate, larger, exp = _locate(dtype, lanes, vec, peel, nested, threads), maximum(acc), exponential(dtype)
    maximum_of_row = _reduce.over_lanes(acc, larger, lanes, -INFINITY)
    sum_of_row = _reduce.over_lanes(acc, _reduce.add(acc), lanes, 0.0)

    def kernel(x, y, rows, length, inner, x_strides, y_strides):
        values = cuda.local.array(count, A)
        maxima = cuda.shared.array(32, A)
        sums = cuda.shared.array(32, A)
        live, outer, within, lane = locate(rows, inner)
        x_row = x + (outer * x_strides[0] + within * x_strides[1]) * size
        y_row = y + (outer * y_strides[0] + within * y_strides[1]) * size
        shift = i32(i32(x_row & 15) // size) if peel else i32(0)
        safe = i32((vec - shift) & (vec - 1))
        for i in range(vectors):
            fetch(values, i * vec, x_row, i32((lane + i * lanes) * vec - shift), length, safe)
        for i in range(vectors):
            patch(values, i * vec, x_row, i32((lane + i * lanes) * vec - shift), length, -INFINITY)
        largest = A(-INFINITY)
        for i in range(count):
            largest = larger(largest, values[i])
        largest = maximum_of_row(largest, maxima)
        total = A(0)
        for i in range(count):
            power = exp(A(values[i] - largest))
            total = A(total + power)
            values[i] = A(values[i] - largest) if logarithm else power
        total = sum_of_row(total, sums)
        scale = A(log(total)) if logarithm else A(A(1) / total)
        for i in range(count):
            values[i] = A(values[i] - scale) if logarithm else A(values[i] * scale)
        if live:
            for i in range(vectors):
                put(values, i * vec, y_row, i32((lane + i * lanes) * vec - shift), length)

    return kernel


def softmax_grad(dtype: str, acc: str, algo: str, config: RowsConfig) -> Callable[..., None]:
    """dx = y * (dy - sum dy * y), or dy - exp(y) * sum dy for the logarithm, along rows of unit stride.

    ``stash`` keeps dy in dynamic shared memory where registers do not hold two operands; each thread has a stretch of odd
    length there, so that neighbours use different banks.
    """
    lanes, vectors, vec, peel, nested, threads, stash, _ = astuple(config)
    A, size, count, logarithm = ACCUMULATOR[acc], ITEMSIZE[dtype], vectors * vec, algo == "log"
    fetch, patch, put = _pieces(dtype, acc, vec, peel)
    locate, exp = _locate(dtype, lanes, vec, peel, nested, threads), exponential(dtype)
    E = ELEMENT[acc]
    sum_of_row = _reduce.over_lanes(acc, _reduce.add(acc), lanes, 0.0)

    def kernel(dy, y, dx, rows, length, inner, dy_strides, y_strides, dx_strides):
        own = i32(i32(cuda.threadIdx.x) * (count + 1))
        slopes = cuda.shared.array(0, E)[own : own + count] if stash else cuda.local.array(count, A)
        values = cuda.local.array(count, A)
        sums = cuda.shared.array(32, A)
        live, outer, within, lane = locate(rows, inner)
        dy_row = dy + (outer * dy_strides[0] + within * dy_strides[1]) * size
        y_row = y + (outer * y_strides[0] + within * y_strides[1]) * size
        dx_row = dx + (outer * dx_strides[0] + within * dx_strides[1]) * size
        shift = i32(i32(y_row & 15) // size) if peel else i32(0)
        safe = i32((vec - shift) & (vec - 1))
        for i in range(vectors):
            first = i32((lane + i * lanes) * vec - shift)
            fetch(slopes, i * vec, dy_row, first, length, safe)
        if stash:
            cuda.syncthreads()  # so that dy leaves the registers before y needs them
        for i in range(vectors):
            first = i32((lane + i * lanes) * vec - shift)
            fetch(values, i * vec, y_row, first, length, safe)
        for i in range(vectors):
            first = i32((lane + i * lanes) * vec - shift)
            patch(slopes, i * vec, dy_row, first, length, 0.0)
            patch(values, i * vec, y_row, first, length, 0.0)
        total = A(0)
        for i in range(count):
            total = A(total + slopes[i]) if logarithm else A(total + slopes[i] * values[i])
        total = sum_of_row(total, sums)
        for i in range(count):
            if logarithm:
                slopes[i] = A(slopes[i] - exp(values[i]) * total)
            else:
                slopes[i] = A(values[i] * A(slopes[i] - total))
        if live:
            for i in range(vectors):
                put(slopes, i * vec, dx_row, i32((lane + i * lanes) * vec - shift), length)

    return kernel
