"""Batch normalization where neighbours in memory belong to one channel (NCHW): elements are taken in 16-byte vectors.

The vectors of a channel are numbered across its planes, in *chunks* of as many as a block has under way: one a block where it
writes, every ``parts``-th where it reduces. Blocks next to each other take different channels of the same images, so that all
together walk memory from end to end; the walk that writes goes backwards and finds in the L2 cache what was read last.
Workspace: see ``device/finish.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.access import load, load_vector, store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.ptx import let_next_start, wait_for_previous
from numbadnn.kernels.norm.device import parts as _norm_parts
from numbadnn.kernels.norm.device.parts import square_root
from numbadnn.kernels.norm.planes import PlanesConfig
from numbadnn.problem import ITEMSIZE


def walk(size: int, vec: int, threads: int) -> Any:
    """(begin, step, place) of a walk over a channel's vectors, ``inner`` of them a plane, with steps of ``threads``.

    ``begin(j, inner) -> (plane, at)`` of vector j, ``step(plane, at, inner, over, rest)`` of the one ``threads`` further on,
    where threads = over * inner + rest: additions, no division. ``place(base, plane, at, stride)`` is its address.
    """

    @device
    def begin(j, inner):
        plane = i32(u32(j) // u32(inner))
        return plane, i32(j - plane * inner)

    @device
    def step(plane, at, inner, over, rest):
        at = i32(at + rest)
        carry = at >= inner
        return i32(plane + over + (1 if carry else 0)), i32(at - inner) if carry else at

    @device
    def place(base, plane, at, stride):
        return base + (plane * stride + i64(at) * vec) * size

    return begin, step, place


def chunk(dtype: str, acc: str, config: PlanesConfig) -> tuple[Any, Any]:
    """``fetch`` and ``put(values, base, stride, plane, at, last, inner, over, rest)``: the vectors that a block has under way.

    The thread's first is at (plane, at); those past the plane ``last`` are read from it, and not written.
    """
    vec, unroll, (_, step, place) = config.vec, config.unroll, walk(ITEMSIZE[dtype], config.vec, config.threads)
    read_vector, write_vector = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc)

    @device
    def fetch(values, base, stride, plane, at, last, inner, over, rest):
        for u in range(unroll):
            read_vector(values, i32(u * vec), place(base, plane if plane < last else last, at, stride))
            plane, at = step(plane, at, inner, over, rest)

    @device
    def put(values, base, stride, plane, at, last, inner, over, rest):
        for u in range(unroll):
            if plane <= last:
                write_vector(values, i32(u * vec), place(base, plane, at, stride))
            plane, at = step(plane, at, inner, over, rest)

    return fetch, put


def stats(dtype: str, acc: str, parameter: str, config: PlanesConfig) -> Callable[..., None]:
    """workspace[0:3, part, channel] = count, mean and M2 of a part, relative to workspace[3 * parts, channel], its origin.

    A part whose M2 is lost is walked once more, with its deviations multiplied; see ``device/finish.py``.
    """
    vec, unroll, threads = config.vec, config.unroll, config.threads
    A, size, unit, held = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], vec * unroll
    read, read_vector, write = load(dtype, acc), load_vector(dtype, vec, acc), store(acc, acc)
    begin, step, place = walk(size, vec, threads)
    many, one, both = _norm_parts.batch(acc, held), _norm_parts.batch(acc, vec), _norm_parts.join(acc)
    join_parts, chunk = _norm_parts.join_parts(acc, 1, threads), unroll * threads
    scale_of = _norm_parts.scaler(acc)

    def kernel(x, space, epsilon, channels, parts, vectors, inner, stride, c_stride):
        values = cuda.local.array(held, A)
        counts = cuda.shared.array(threads, A)
        means = cuda.shared.array(threads, A)
        squares = cuda.shared.array(threads, A)
        thread, block = i32(cuda.threadIdx.x), i32(cuda.blockIdx.x)
        part = i32(u32(block) // u32(channels))
        channel = i32(block - part * channels)
        base = x + channel * c_stride * size
        origin = read(base)
        j = i32(part * chunk + thread)
        n, mean, m2 = A(0), A(0), A(0)
        let_next_start()
        over, rest = begin(i32(threads), inner)
        far, beyond = begin(i32((parts - 1) * chunk), inner)
        plane, at = begin(j, inner)
        while j < vectors - (unroll - 1) * threads:
            for u in range(unroll):
                read_vector(values, i32(u * vec), place(base, plane, at, stride))
                plane, at = step(plane, at, inner, over, rest)
            centre, around = many(values, 0, origin)
            n, mean, m2 = both(n, mean, m2, A(held), centre, around)
            plane, at = step(plane, at, inner, far, beyond)
            j = i32(j + parts * chunk)
        if j < vectors:
            for u in range(unroll - 1):
                if j + u * threads < vectors:
                    read_vector(values, i32(u * vec), place(base, plane, at, stride))
                plane, at = step(plane, at, inner, over, rest)
            for u in range(unroll - 1):
                if j + u * threads < vectors:
                    centre, around = one(values, u * vec, origin)
                    n, mean, m2 = both(n, mean, m2, A(vec), centre, around)
        counts[thread], means[thread], squares[thread] = n, mean, m2
        join_parts(counts, means, squares)
        found = squares[0]
        scale = scale_of(counts[0], found, epsilon)
        if scale != A(1):
            cuda.syncthreads()  # all have seen that
            n, mean, m2 = A(0), A(0), A(0)
            for first in range(i32(part * chunk + thread), vectors, i32(parts * chunk)):
                for j in range(first, min(i32(first + chunk), vectors), i32(threads)):
                    plane, at = begin(j, inner)
                    read_vector(values, i32(0), place(base, plane, at, stride))
                    for i in range(vec):
                        values[i] = A(values[i] * scale)
                    centre, around = one(values, 0, A(origin * scale))
                    n, mean, m2 = both(n, mean, m2, A(vec), centre, around)
            counts[thread], means[thread], squares[thread] = n, mean, m2
            join_parts(counts, means, squares)
        if thread == 0:
            target, table = space + (i64(part) * channels + channel) * unit, i64(parts) * channels * unit
            write(target, counts[0])
            write(target + table, A(means[0] / scale))
            write(target + 2 * table, found)
            if scale != A(1):
                root = A(A(square_root(A(squares[0] / counts[0]))) / scale)
                write(target + 3 * table + 5 * (i64(channels) * unit), root)
            if part == 0:
                write(target + 3 * table, origin)

    return kernel


def apply(dtype: str, acc: str, parameter: str, config: PlanesConfig) -> Callable[..., None]:
    """y = ((x - k) - r) * a + b with the four rows of coefficients that a training pass left, backwards through memory."""
    vec, unroll, threads = config.vec, config.unroll, config.threads
    A, size, unit, held = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], vec * unroll
    read, (begin, _, _), (fetch, put) = load(acc, acc), walk(size, vec, threads), chunk(dtype, acc, config)

    def kernel(x, table, y, channels, vectors, inner, x_stride, x_channel, y_stride, y_channel):
        values = cuda.local.array(held, A)
        block = i32(i32(cuda.gridDim.x) - 1 - i32(cuda.blockIdx.x))
        number = i32(u32(block) // u32(channels))
        channel = i32(block - number * channels)
        x_base, y_base = x + channel * x_channel * size, y + channel * y_channel * size
        j = i32(number * (unroll * threads) + i32(cuda.threadIdx.x))
        over, rest = begin(i32(threads), inner)
        plane, at = begin(j, inner)
        last = i32(u32(vectors) // u32(inner) - 1)
        fetch(values, x_base, x_stride, plane, at, last, inner, over, rest)
        wait_for_previous()
        row = i64(channels) * unit
        at_channel = table + i64(channel) * unit
        k, r = read(at_channel), read(at_channel + row)
        a, b = read(at_channel + 2 * row), read(at_channel + 3 * row)
        for i in range(held):
            values[i] = A(A(A(values[i] - k) - r) * a + b)
        put(values, y_base, y_stride, plane, at, last, inner, over, rest)

    return kernel


def join_apply(dtype: str, acc: str, parameter: str, config: PlanesConfig, running: bool) -> Callable[..., None]:
    """As ``apply``, but every thread joins its channel's few parts itself while its elements are on the way.

    That saves the launch of ``device/finish.py``'s kernel; the first thread of a channel writes the statistics.
    """
    vec, unroll, threads = config.vec, config.unroll, config.threads
    A, size, unit, held = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], vec * unroll
    read_part, (begin, _, _), (fetch, put) = load(acc, acc), walk(size, vec, threads), chunk(dtype, acc, config)
    read, write, own_size = load(parameter, acc), store(parameter, acc), ITEMSIZE[parameter]
    both, inverse_deviation = _norm_parts.join(acc), _norm_parts.inverse_deviation(acc)

    def kernel(
        x, space, gamma, beta, old_mean, old_var, y, mean, invstd, new_mean, new_var,
        averaged, epsilon, kept_share, mean_share, var_share,
        channels, parts, vectors, inner, x_stride, x_channel, y_stride, y_channel,
    ):  # fmt: skip
        values = cuda.local.array(held, A)
        block = i32(i32(cuda.gridDim.x) - 1 - i32(cuda.blockIdx.x))
        number = i32(u32(block) // u32(channels))
        channel = i32(block - number * channels)
        x_base, y_base = x + channel * x_channel * size, y + channel * y_channel * size
        j = i32(number * (unroll * threads) + i32(cuda.threadIdx.x))
        over, rest = begin(i32(threads), inner)
        plane, at = begin(j, inner)
        last = i32(u32(vectors) // u32(inner) - 1)
        fetch(values, x_base, x_stride, plane, at, last, inner, over, rest)
        wait_for_previous()
        row, own = i64(channels) * unit, i64(channel) * own_size
        table, of_part = i64(parts) * row, space + i64(channel) * unit
        k = read_part(of_part + 3 * table)
        n, r, m2 = A(0), A(0), A(0)
        for _ in range(parts):
            n, r, m2 = both(n, r, m2, read_part(of_part), read_part(of_part + table), read_part(of_part + 2 * table))
            of_part = of_part + row
        at_channel = space + i64(channel) * unit
        r, var, inverse = inverse_deviation(r, m2, at_channel, row, table, parts, averaged, epsilon)
        a, b = A(read(gamma + own) * inverse), read(beta + own)
        if number == 0 and cuda.threadIdx.x == 0:
            write(mean + own, A(k + r))
            write(invstd + own, inverse)
            if running:
                write(new_mean + own, A(A(read(old_mean + own) * kept_share) + A(A(k + r) * mean_share)))
                write(new_var + own, A(A(read(old_var + own) * kept_share) + A(var * var_share)))
        for i in range(held):
            values[i] = A(A(A(values[i] - k) - r) * a + b)
        put(values, y_base, y_stride, plane, at, last, inner, over, rest)

    return kernel


def infer(dtype: str, acc: str, parameter: str, config: PlanesConfig) -> Callable[..., None]:
    """y = (x - mean) * gamma / sqrt(var + epsilon) + beta."""
    vec, unroll, threads = config.vec, config.unroll, config.threads
    A, size, unit, held = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[parameter], vec * unroll
    read, (begin, _, _), (fetch, put) = load(parameter, acc), walk(size, vec, threads), chunk(dtype, acc, config)

    def kernel(
        x, gamma, beta, mean, var, y, epsilon, channels, vectors, inner, x_stride, x_channel, y_stride, y_channel
    ):
        values = cuda.local.array(held, A)
        block = i32(cuda.blockIdx.x)
        number = i32(u32(block) // u32(channels))
        channel = i32(block - number * channels)
        x_base, y_base = x + channel * x_channel * size, y + channel * y_channel * size
        j = i32(number * (unroll * threads) + i32(cuda.threadIdx.x))
        over, rest = begin(i32(threads), inner)
        plane, at = begin(j, inner)
        last = i32(u32(vectors) // u32(inner) - 1)
        fetch(values, x_base, x_stride, plane, at, last, inner, over, rest)
        own = i64(channel) * unit
        a = A(read(gamma + own) / A(square_root(A(read(var + own) + epsilon))))
        k, b = read(mean + own), read(beta + own)
        for i in range(held):
            values[i] = A(A(values[i] - k) * a + b)
        put(values, y_base, y_stride, plane, at, last, inner, over, rest)

    return kernel
