"""The gradient of batch normalization where neighbours in memory are channels: rows and threads as in ``device/columns.py``."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load, load_vector, store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, i32, i64
from numbadnn.kernels.lang.ptx import let_next_start, wait_for_previous
from numbadnn.kernels.norm.columns import ColumnsConfig
from numbadnn.kernels.norm.device import parts as _norm_parts
from numbadnn.kernels.norm.device.columns import locator, row_reader, walk
from numbadnn.kernels.norm.device.parts import square_root
from numbadnn.problem import ITEMSIZE


def sums(dtype: str, acc: str, parameter: str, config: ColumnsConfig, fused: bool) -> Callable[..., None]:
    """workspace[0:3, part, channel] = sums of dy, dy * (x - mean), x - mean; ``fused``: and dx of given statistics."""
    vec, unroll, lanes, rows = config.vec, config.unroll, config.lanes, config.rows
    A, size, unit, held, threads = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[parameter], vec * unroll, lanes * rows
    read_vector, write_vector = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc)
    read, write, locate, acc_size = load(parameter, acc), store(acc, acc), locator(config), ITEMSIZE[acc]
    add_parts, table_size, batch = _norm_parts.add_parts(acc, lanes, rows, vec), vec * threads, unroll * rows

    def kernel(x, dy, gamma, mean, var, dx, space, epsilon, channels, groups, parts, count, strides):
        values = cuda.local.array(held, A)
        slopes = cuda.local.array(held, A)
        k, a = cuda.local.array(vec, A), cuda.local.array(vec, A)
        s = cuda.local.array((3, vec), A)
        table = cuda.shared.array(table_size, A)
        first, live, mine, part = locate(i32(cuda.blockIdx.x), groups, channels)
        x_base, dy_base, dx_base = x + i64(first) * size, dy + i64(first) * size, dx + i64(first) * size
        thread = i32(cuda.threadIdx.x)
        for e in range(vec):
            own = i64(i32(first + e)) * unit
            k[e] = read(mean + own)
            a[e] = A(0)
            if fused:
                a[e] = A(read(gamma + own) / A(square_root(A(read(var + own) + epsilon))))
            for i in range(3):
                s[i, e] = A(0)
        let_next_start()
        r = i32(part * batch + mine)
        while r < count - (unroll - 1) * rows:
            for u in range(unroll):
                at = i64(i32(r + u * rows))
                read_vector(values, i32(u * vec), x_base + at * strides[0] * size)
                read_vector(slopes, i32(u * vec), dy_base + at * strides[1] * size)
            for e in range(vec):
                p1, p2, p3 = A(0), A(0), A(0)
                for u in range(unroll):
                    d, g = A(values[u * vec + e] - k[e]), slopes[u * vec + e]
                    p1, p2, p3 = A(p1 + g), A(p2 + g * d), A(p3 + d)
                    slopes[u * vec + e] = A(g * a[e])
                s[0, e] = A(s[0, e] + p1)
                s[1, e] = A(s[1, e] + p2)
                s[2, e] = A(s[2, e] + p3)
            if fused and live:
                for u in range(unroll):
                    write_vector(slopes, i32(u * vec), dx_base + i64(i32(r + u * rows)) * strides[2] * size)
            r = i32(r + parts * batch)
        if r < count:
            for u in range(unroll - 1):
                at = i64(i32(min(i32(r + u * rows), i32(count - 1))))
                read_vector(values, i32(u * vec), x_base + at * strides[0] * size)
                read_vector(slopes, i32(u * vec), dy_base + at * strides[1] * size)
            for u in range(unroll - 1):
                if r + u * rows < count:
                    for e in range(vec):
                        d, g = A(values[u * vec + e] - k[e]), slopes[u * vec + e]
                        s[0, e] = A(s[0, e] + g)
                        s[1, e] = A(s[1, e] + g * d)
                        s[2, e] = A(s[2, e] + d)
                        slopes[u * vec + e] = A(g * a[e])
                    if fused and live:
                        write_vector(slopes, i32(u * vec), dx_base + i64(i32(r + u * rows)) * strides[2] * size)
        for i in range(3):
            cuda.syncthreads()
            for e in range(vec):
                table[i32(e * threads + thread)] = s[i, e]
            add_parts(table)
            if mine == 0 and live:
                for e in range(vec):
                    at = space + ((i64(i) * parts + part) * channels + first + e) * acc_size
                    write(at, table[i32(e * threads + thread)])

    return kernel


def backward(dtype: str, acc: str, parameter: str, config: ColumnsConfig) -> Callable[..., None]:
    """dx = a * (dy + (b * (x - m) + c)) with the four rows of coefficients that the sums gave, backwards through memory."""
    vec, unroll, rows = config.vec, config.unroll, config.rows
    A, size, unit, held = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], vec * unroll
    read_vector, write_vector = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc)
    locate, fetch, (block_of, row_of) = locator(config), row_reader(acc, vec), walk(dtype, acc, config, True)

    def kernel(x, dy, table, dx, channels, groups, batches, count, strides):
        values = cuda.local.array(held, A)
        slopes = cuda.local.array(held, A)
        m, a = cuda.local.array(vec, A), cuda.local.array(vec, A)
        b, c = cuda.local.array(vec, A), cuda.local.array(vec, A)
        first, live, mine, stretch = locate(block_of(), groups, channels)
        x_base, dy_base, dx_base = x + i64(first) * size, dy + i64(first) * size, dx + i64(first) * size
        at, row = table + i64(first) * unit, i64(channels) * unit
        for batch in range(batches):
            j = row_of(stretch, mine, batch, batches)
            for u in range(unroll):
                at_row = i64(i32(min(i32(j + u * rows), i32(count - 1))))
                read_vector(values, i32(u * vec), x_base + at_row * strides[0] * size)
                read_vector(slopes, i32(u * vec), dy_base + at_row * strides[1] * size)
            if batch == 0:
                wait_for_previous()
                fetch(m, at)
                fetch(a, at + row)
                fetch(b, at + 2 * row)
                fetch(c, at + 3 * row)
            for i in range(held):
                e = i & (vec - 1)
                slopes[i] = A(A(slopes[i] + A(A(values[i] - m[e]) * b[e] + c[e])) * a[e])
            for u in range(unroll):
                if live and j + u * rows < count:
                    write_vector(slopes, i32(u * vec), dx_base + i64(i32(j + u * rows)) * strides[2] * size)

    return kernel
