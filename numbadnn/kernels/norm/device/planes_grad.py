"""The gradient of batch normalization where neighbours in memory belong to one channel: walks as in ``device/planes.py``."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load, load_vector, store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, i32, i64, u32
from numbadnn.kernels.lang.ptx import let_next_start, wait_for_previous
from numbadnn.kernels.norm.device import parts as _norm_parts
from numbadnn.kernels.norm.device.parts import square_root
from numbadnn.kernels.norm.device.planes import chunk, walk
from numbadnn.kernels.norm.planes import PlanesConfig
from numbadnn.problem import ITEMSIZE


def sums(dtype: str, acc: str, parameter: str, config: PlanesConfig, fused: bool) -> Callable[..., None]:
    """workspace[0:3, part, channel] = sums of dy, dy * (x - mean), x - mean; ``fused``: and dx of given statistics."""
    vec, unroll, threads = config.vec, config.unroll, config.threads
    A, size, unit, held = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[parameter], vec * unroll
    read, write, (begin, step, place) = load(parameter, acc), store(acc, acc), walk(size, vec, threads)
    read_vector, write_vector = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc)
    add_parts, acc_size = _norm_parts.add_parts(acc, 1, threads, 3), ITEMSIZE[acc]
    table_size, chunk = 3 * threads, unroll * threads

    def kernel(x, dy, gamma, mean, var, dx, space, epsilon, channels, parts, vectors, inner, strides, c_strides):
        values = cuda.local.array(held, A)
        slopes = cuda.local.array(held, A)
        table = cuda.shared.array(table_size, A)
        thread, block = i32(cuda.threadIdx.x), i32(cuda.blockIdx.x)
        part = i32(u32(block) // u32(channels))
        channel = i32(block - part * channels)
        x_base, dy_base = x + channel * c_strides[0] * size, dy + channel * c_strides[1] * size
        dx_base = dx + channel * c_strides[2] * size
        own = i64(channel) * unit
        k, a = read(mean + own), A(0)
        if fused:
            a = A(read(gamma + own) / A(square_root(A(read(var + own) + epsilon))))
        j = i32(part * chunk + thread)
        s1, s2, s3 = A(0), A(0), A(0)
        let_next_start()
        over, rest = begin(i32(threads), inner)
        far, beyond = begin(i32((parts - 1) * chunk), inner)
        plane, at = begin(j, inner)
        while j < vectors - (unroll - 1) * threads:
            first, at_first = plane, at
            for u in range(unroll):
                read_vector(values, i32(u * vec), place(x_base, plane, at, strides[0]))
                read_vector(slopes, i32(u * vec), place(dy_base, plane, at, strides[1]))
                plane, at = step(plane, at, inner, over, rest)
            p1, p2, p3 = A(0), A(0), A(0)
            for i in range(held):
                d = A(values[i] - k)
                p1, p2, p3 = A(p1 + slopes[i]), A(p2 + slopes[i] * d), A(p3 + d)
                slopes[i] = A(slopes[i] * a)
            s1, s2, s3 = A(s1 + p1), A(s2 + p2), A(s3 + p3)
            if fused:
                for u in range(unroll):
                    write_vector(slopes, i32(u * vec), place(dx_base, first, at_first, strides[2]))
                    first, at_first = step(first, at_first, inner, over, rest)
            plane, at = step(plane, at, inner, far, beyond)
            j = i32(j + parts * chunk)
        if j < vectors:
            first, at_first = plane, at
            for u in range(unroll - 1):
                if j + u * threads < vectors:
                    read_vector(values, i32(u * vec), place(x_base, plane, at, strides[0]))
                    read_vector(slopes, i32(u * vec), place(dy_base, plane, at, strides[1]))
                plane, at = step(plane, at, inner, over, rest)
            for u in range(unroll - 1):
                if j + u * threads < vectors:
                    for i in range(vec):
                        d, g = A(values[u * vec + i] - k), slopes[u * vec + i]
                        s1, s2, s3 = A(s1 + g), A(s2 + g * d), A(s3 + d)
                        slopes[u * vec + i] = A(g * a)
                    if fused:
                        write_vector(slopes, i32(u * vec), place(dx_base, first, at_first, strides[2]))
                first, at_first = step(first, at_first, inner, over, rest)
        table[thread], table[i32(thread + threads)], table[i32(thread + 2 * threads)] = s1, s2, s3
        add_parts(table)
        if thread < 3:
            write(space + ((i64(thread) * parts + part) * channels + channel) * acc_size, table[i32(thread * threads)])

    return kernel


def backward(dtype: str, acc: str, parameter: str, config: PlanesConfig) -> Callable[..., None]:
    """dx = a * (dy + (b * (x - m) + c)) with the four rows of coefficients that the sums gave, backwards through memory."""
    vec, unroll, threads = config.vec, config.unroll, config.threads
    A, size, unit, held = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], vec * unroll
    read, (begin, step, place) = load(acc, acc), walk(size, vec, threads)
    read_vector, (_, put) = load_vector(dtype, vec, acc), chunk(dtype, acc, config)

    def kernel(x, dy, table, dx, channels, vectors, inner, strides, c_strides):
        values = cuda.local.array(held, A)
        slopes = cuda.local.array(held, A)
        block = i32(i32(cuda.gridDim.x) - 1 - i32(cuda.blockIdx.x))
        chunk = i32(u32(block) // u32(channels))
        channel = i32(block - chunk * channels)
        x_base, dy_base = x + channel * c_strides[0] * size, dy + channel * c_strides[1] * size
        dx_base = dx + channel * c_strides[2] * size
        j = i32(chunk * (unroll * threads) + i32(cuda.threadIdx.x))
        over, rest = begin(i32(threads), inner)
        first, at_first = begin(j, inner)
        plane, at, last = first, at_first, i32(u32(vectors) // u32(inner) - 1)
        for u in range(unroll):
            inside = plane if plane < last else last
            read_vector(values, i32(u * vec), place(x_base, inside, at, strides[0]))
            read_vector(slopes, i32(u * vec), place(dy_base, inside, at, strides[1]))
            plane, at = step(plane, at, inner, over, rest)
        wait_for_previous()
        row = i64(channels) * unit
        at_channel = table + i64(channel) * unit
        m, a = read(at_channel), read(at_channel + row)
        b, c = read(at_channel + 2 * row), read(at_channel + 3 * row)
        for i in range(held):
            slopes[i] = A(A(slopes[i] + A(A(values[i] - m) * b + c)) * a)
        put(slopes, dx_base, strides[2], first, at_first, last, inner, over, rest)

    return kernel
