"""Batch normalization where neighbours in memory are channels (NHWC, per-activation): a thread takes a few, row by row.

Blocks are (group of channels, some batches of rows), groups next to each other: every ``parts``-th batch where they reduce, so
that all together walk memory from end to end, neighbouring *batches* where they write. The walk that writes goes backwards and
finds in the L2 cache what was read last. Workspace: see ``device/finish.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.access import load, load_vector, store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.ptx import let_next_start, wait_for_previous
from numbadnn.kernels.norm.columns import ColumnsConfig
from numbadnn.kernels.norm.device import parts as _norm_parts
from numbadnn.kernels.norm.device.parts import square_root
from numbadnn.problem import ITEMSIZE


def locator(config: ColumnsConfig) -> Any:
    """``locate(block, groups, channels) -> (first channel, whether it exists, row thread, stretch)`` of this thread.

    The last vector of channels stands in for one that does not exist: its loads are harmless and it writes nothing.
    """
    vec, lanes = config.vec, config.lanes

    @device
    def locate(block, groups, channels):
        thread = i32(cuda.threadIdx.x)
        stretch = i32(u32(block) // u32(groups))
        mine = i32(u32(thread) // u32(lanes))
        first = i32((i32(block - stretch * groups) * lanes + i32(thread - mine * lanes)) * vec)
        live = first < channels
        return first if live else i32(channels - vec), live, mine, stretch

    return locate


def row_reader(acc: str, vec: int) -> Any:
    """``fetch(values, start, address)``: ``vec`` numbers of the accumulator's type, in as wide accesses as there are."""
    unit = ITEMSIZE[acc]
    piece = min(vec, 16 // unit)
    read, pieces = load_vector(acc, piece, acc), vec // piece

    @device
    def fetch(values, address):
        for i in range(pieces):
            read(values, i32(i * piece), address + i64(i) * (piece * unit))

    return fetch


def stats(dtype: str, acc: str, parameter: str, config: ColumnsConfig) -> Callable[..., None]:
    """workspace[0:3, part, channel] = count, mean and M2 of a part, relative to workspace[3 * parts, channel], its origin.

    A part whose M2 is lost is walked once more, with its deviations multiplied; see ``device/finish.py``.
    """
    vec, unroll, lanes, rows = config.vec, config.unroll, config.lanes, config.rows
    A, size, unit, held, threads = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], vec * unroll, lanes * rows
    read_vector, write, locate = load_vector(dtype, vec, acc), store(acc, acc), locator(config)
    join_parts, table_size, share = _norm_parts.join_parts(acc, lanes, rows, vec), vec * threads, 1.0 / unroll
    batch, scale_of = unroll * rows, _norm_parts.scaler(acc)

    @device
    def again(counts, means, squares, scale, origin, base, thread, lane, first, step, count, stride):
        """The joined means and M2 of the rows first, ... of every ``step``: of channels whose scale is not 1."""
        values, mean, m2 = cuda.local.array(vec, A), cuda.local.array(vec, A), cuda.local.array(vec, A)
        kept, n = cuda.local.array(vec, A), A(0)
        for e in range(vec):
            kept[e] = means[i32(e * threads + lane)]
            mean[e], m2[e] = A(0), A(0)
        cuda.syncthreads()
        for start in range(first, count, step):
            for r in range(start, min(i32(start + batch), count), i32(rows)):
                read_vector(values, i32(0), base + i64(r) * stride * size)
                n = A(n + A(1))
                for e in range(vec):
                    v = A(A(values[e] * scale[e]) - A(origin[e] * scale[e]))
                    delta = A(v - mean[e])
                    mean[e] = A(mean[e] + delta / n)
                    m2[e] = A(m2[e] + delta * A(v - mean[e]))
        counts[thread] = n
        for e in range(vec):
            means[i32(e * threads + thread)] = mean[e]
            squares[i32(e * threads + thread)] = m2[e]
        join_parts(counts, means, squares)
        if thread == lane:
            for e in range(vec):
                if scale[e] == A(1):
                    means[i32(e * threads + lane)] = kept[e]

    def kernel(x, space, epsilon, channels, groups, parts, count, stride):
        values = cuda.local.array(held, A)
        origin, mean, m2 = cuda.local.array(vec, A), cuda.local.array(vec, A), cuda.local.array(vec, A)
        scale, found = cuda.local.array(vec, A), cuda.local.array(vec, A)
        counts = cuda.shared.array(threads, A)
        means = cuda.shared.array(table_size, A)
        squares = cuda.shared.array(table_size, A)
        first, live, mine, part = locate(i32(cuda.blockIdx.x), groups, channels)
        base, thread = x + i64(first) * size, i32(cuda.threadIdx.x)
        read_vector(origin, i32(0), base)
        let_next_start()
        r = i32(part * batch + mine)
        n, at_row, row = A(0), i64(base + i64(r) * stride * size), i64(rows * stride * size)
        for e in range(vec):
            mean[e] = A(0)
            m2[e] = A(0)
        while r < count - (unroll - 1) * rows:
            for u in range(unroll):
                read_vector(values, i32(u * vec), at_row + u * row)
            total = A(n + A(unroll))
            part_share = A(A(unroll) / total)
            weight = A(n * part_share)
            for e in range(vec):
                s, around = A(0), A(0)
                for u in range(unroll):
                    values[u * vec + e] = A(values[u * vec + e] - origin[e])
                    s = A(s + values[u * vec + e])
                centre = A(s * A(share))
                for u in range(unroll):
                    d = A(values[u * vec + e] - centre)
                    around = A(around + d * d)
                delta = A(centre - mean[e])
                mean[e] = A(mean[e] + delta * part_share)
                m2[e] = A(A(m2[e] + around) + A(delta * delta) * weight)
            n = total
            r = i32(r + parts * batch)
            at_row = i64(at_row + i64(parts * unroll) * row)
        if r < count:
            for u in range(unroll - 1):
                if r + u * rows < count:
                    read_vector(values, i32(u * vec), at_row + u * row)
            for u in range(unroll - 1):
                if r + u * rows < count:
                    n = A(n + A(1))
                    inverse = A(A(1) / n)
                    for e in range(vec):
                        v = A(values[u * vec + e] - origin[e])
                        delta = A(v - mean[e])
                        mean[e] = A(mean[e] + delta * inverse)
                        m2[e] = A(m2[e] + delta * A(v - mean[e]))
        counts[thread] = n
        for e in range(vec):
            means[i32(e * threads + thread)] = mean[e]
            squares[i32(e * threads + thread)] = m2[e]
        join_parts(counts, means, squares)
        lane, lost = i32(thread - mine * lanes), i32(0)
        for e in range(vec):
            found[e] = squares[i32(e * threads + lane)]
            scale[e] = scale_of(counts[lane], found[e], epsilon)
            lost = i32(1) if scale[e] != A(1) else lost
        if cuda.syncthreads_or(lost) != 0:
            r = i32(part * batch + mine)
            again(counts, means, squares, scale, origin, base, thread, lane, r, i32(parts * batch), count, stride)
        if mine == 0 and live:
            step = i64(parts) * channels * unit
            for e in range(vec):
                at = space + (i64(part) * channels + first + e) * unit
                write(at, counts[thread])
                write(at + step, A(means[i32(e * threads + thread)] / scale[e]))
                write(at + 2 * step, found[e])
                if scale[e] != A(1):
                    around = A(squares[i32(e * threads + thread)] / counts[thread])
                    root = A(A(square_root(around)) / scale[e])
                    write(at + 3 * step + 5 * (i64(channels) * unit), root)
                if part == 0:
                    write(at + 3 * step, origin[e])

    return kernel


def walk(dtype: str, acc: str, config: ColumnsConfig, backwards: bool) -> Any:
    """(block, row): the block that stands in for this one, and ``row(stretch, mine, batch, batches)``, a thread's first row."""
    unroll, rows = config.unroll, config.rows

    @device
    def block_of():
        return i32(i32(cuda.gridDim.x) - 1 - i32(cuda.blockIdx.x)) if backwards else i32(cuda.blockIdx.x)

    @device
    def row_of(stretch, mine, batch, batches):
        return i32((i32(stretch * batches) + batch) * (unroll * rows) + mine)

    return block_of, row_of


def apply(dtype: str, acc: str, parameter: str, config: ColumnsConfig) -> Callable[..., None]:
    """y = ((x - k) - r) * a + b with the four rows of coefficients that a training pass left, backwards through memory."""
    vec, unroll, rows = config.vec, config.unroll, config.rows
    A, size, unit, held = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], vec * unroll
    read_vector, write_vector = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc)
    locate, fetch, (block_of, row_of) = locator(config), row_reader(acc, vec), walk(dtype, acc, config, True)

    def kernel(x, table, y, channels, groups, batches, count, strides):
        values = cuda.local.array(held, A)
        k, r = cuda.local.array(vec, A), cuda.local.array(vec, A)
        a, b = cuda.local.array(vec, A), cuda.local.array(vec, A)
        first, live, mine, stretch = locate(block_of(), groups, channels)
        x_base, y_base = x + i64(first) * size, y + i64(first) * size
        at, row = table + i64(first) * unit, i64(channels) * unit
        for batch in range(batches):
            j = row_of(stretch, mine, batch, batches)
            for u in range(unroll):
                at_row = i32(min(i32(j + u * rows), i32(count - 1)))
                read_vector(values, i32(u * vec), x_base + i64(at_row) * strides[0] * size)
            if batch == 0:
                wait_for_previous()
                fetch(k, at)
                fetch(r, at + row)
                fetch(a, at + 2 * row)
                fetch(b, at + 3 * row)
            for i in range(held):
                e = i & (vec - 1)
                values[i] = A(A(A(values[i] - k[e]) - r[e]) * a[e] + b[e])
            for u in range(unroll):
                if live and j + u * rows < count:
                    write_vector(values, i32(u * vec), y_base + i64(i32(j + u * rows)) * strides[1] * size)

    return kernel


def infer(dtype: str, acc: str, parameter: str, config: ColumnsConfig) -> Callable[..., None]:
    """y = (x - mean) * gamma / sqrt(var + epsilon) + beta."""
    vec, unroll, rows = config.vec, config.unroll, config.rows
    A, size, unit, held = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[parameter], vec * unroll
    read_vector, write_vector = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc)
    read, locate, (block_of, row_of) = load(parameter, acc), locator(config), walk(dtype, acc, config, False)

    def kernel(x, gamma, beta, mean, var, y, epsilon, channels, groups, batches, count, strides):
        values = cuda.local.array(held, A)
        k, a, b = cuda.local.array(vec, A), cuda.local.array(vec, A), cuda.local.array(vec, A)
        first, live, mine, stretch = locate(block_of(), groups, channels)
        x_base, y_base = x + i64(first) * size, y + i64(first) * size
        for e in range(vec):
            own = i64(i32(first + e)) * unit
            k[e] = read(mean + own)
            b[e] = read(beta + own)
            a[e] = A(read(gamma + own) / A(square_root(A(read(var + own) + epsilon))))
        for batch in range(batches):
            j = row_of(stretch, mine, batch, batches)
            for u in range(unroll):
                at_row = i32(min(i32(j + u * rows), i32(count - 1)))
                read_vector(values, i32(u * vec), x_base + i64(at_row) * strides[0] * size)
            for i in range(held):
                e = i & (vec - 1)
                values[i] = A(A(values[i] - k[e]) * a[e] + b[e])
            for u in range(unroll):
                if live and j + u * rows < count:
                    write_vector(values, i32(u * vec), y_base + i64(i32(j + u * rows)) * strides[1] * size)

    return kernel
