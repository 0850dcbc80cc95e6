"""The matrix product for every type and layout: tiles of A and B in shared memory, a tile of C in registers.

While one pair of tiles is multiplied the next is on its way from global memory to registers. Shared memory holds both
operands as [k][m] and [k][n] in the accumulator's type, two buffers of each. Either each thread multiplies ``m`` x
``n`` elements by fused multiply-adds (``fma``), or each warp does by tensor-core instructions (TF32, float64). Terms
are added in the order of k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels._cuda import cuda, device, i32, i64, u32
from numbadnn.kernels._mma import product, read_shared, round_tf32, write_shared
from numbadnn.kernels._ptx import ACCUMULATOR, ELEMENT, load, load_vector, store, store_vector
from numbadnn.kernels.gemm import Operand, TilesConfig
from numbadnn.problem import ITEMSIZE

INT64 = np.int64


def _stage(dtype: str, acc: str, config: TilesConfig, operand: Operand, extent: int, rounds: bool) -> Any:
    """(locate, fetch, keep): a thread's share of a tile of ``extent`` rows to registers, and on to shared memory.

    ``locate(places, source, first, rows, strides)``: the addresses of its runs of ``chunk`` elements at term 0; rows
    that do not exist are read as others that do, because what they give is not written. ``fetch(values, source, places,
    begin, terms, step)`` reads pieces of ``operand.vector`` elements from term ``begin`` on, zeros past the last;
    ``keep(values, shared, at)`` writes.
    """
    A, size, chunk, depth, threads = ACCUMULATOR[acc], ITEMSIZE[dtype], config.chunk, config.k, config.threads
    vector, along_k, pitch = operand.vector, operand.along_k, extent + config.padding
    count, across = extent * depth // (chunk * threads), extent if along_k else extent // chunk
    pieces = chunk // vector
    read, write = load_vector(dtype, vector, acc), write_shared(acc, chunk)

    @device
    def place(i):  # type: ignore[no-untyped-def]
        number = i32(i32(cuda.threadIdx.x) + i * threads)
        outer = i32(u32(number) // u32(across))
        inner = i32(number - outer * across)
        return outer, inner

    @device
    def locate(places, source, first, rows, strides):  # type: ignore[no-untyped-def]
        for i in range(count):
            outer, inner = place(i)
            term = i32(outer * chunk if along_k else outer)
            for piece in range(1 if along_k else pieces):
                row = i32(first + inner if along_k else first + inner * chunk + piece * vector)
                row = row if row < rows else i32(0)
                places[i * pieces + piece] = source + (i64(row) * strides[0] + i64(term) * strides[1]) * size

    @device
    def fetch(values, source, places, begin, terms, step):  # type: ignore[no-untyped-def]
        offset = i64(begin) * step
        whole = begin + depth <= terms
        for i in range(count):
            outer, inner = place(i)
            for piece in range(pieces):
                j = i * chunk + piece * vector
                term = i32(begin + outer * chunk + piece * vector if along_k else begin + outer)
                inside = whole or term < terms
                at = (
                    places[i * pieces] + offset + piece * vector * step
                    if along_k
                    else places[i * pieces + piece] + offset
                )
                read(values, i32(j), at if inside else source)
                for e in range(vector):
                    values[j + e] = values[j + e] if inside else A(0)

    @device
    def keep(values, shared, at):  # type: ignore[no-untyped-def]
        for i in range(count):
            outer, inner = place(i)
            if rounds:
                for e in range(chunk):
                    values[i * chunk + e] = round_tf32(values[i * chunk + e])
            if along_k:
                for e in range(chunk):
                    shared[i32(at + (outer * chunk + e) * pitch + inner)] = values[i * chunk + e]
            else:
                write(values, i32(i * chunk), shared, i32(at + outer * pitch + inner * chunk))

    return locate, fetch, keep


def _by_threads(acc: str, config: TilesConfig) -> Callable[..., None]:
    """``multiply(sums, shared, a_at, b_at)``: one pair of tiles, by fused multiply-adds; rows in groups of ``chunk``."""
    A, chunk, m, n, depth = ACCUMULATOR[acc], config.chunk, config.m, config.n, config.k
    tall, wide = config.tall, config.wide
    a_pitch, b_pitch = m + config.padding, n + config.padding
    a_apart, b_apart = m * chunk // tall, n * chunk // wide
    place, read = _thread_place(config), read_shared(acc, chunk)

    @device
    def multiply(sums, shared, a_at, b_at):  # type: ignore[no-untyped-def]
        a = cuda.local.array(tall, A)
        b = cuda.local.array(wide, A)
        row, column = place()
        for k in range(depth):
            for i in range(tall // chunk):
                read(a, i32(i * chunk), shared, i32(a_at + k * a_pitch + row * chunk + i * a_apart))
            for j in range(wide // chunk):
                read(b, i32(j * chunk), shared, i32(b_at + k * b_pitch + column * chunk + j * b_apart))
            for i in range(tall):
                for j in range(wide):
                    sums[i * wide + j] = A(sums[i * wide + j] + a[i] * b[j])

    return multiply


def _thread_place(config: TilesConfig) -> Callable[..., Any]:
    """``place() -> (row, column)`` of a thread among those of the tile: a warp is 4 x 8 of them."""
    across = config.n // config.wide // 8  # warps side by side

    @device
    def place():  # type: ignore[no-untyped-def]
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread & 31), i32(thread >> 5)
        high = i32(u32(warp) // u32(across))
        return i32(high * 4 + (lane >> 3)), i32((warp - high * across) * 8 + (lane & 7))

    return place


def _by_warps(acc: str, config: TilesConfig) -> Callable[..., None]:
    """``multiply(sums, shared, a_at, b_at)``: one pair of tiles, by tensor-core instructions of 16 x 8 x ``terms``."""
    A, m, n, depth, tall, wide = ACCUMULATOR[acc], config.m, config.n, config.k, config.tall, config.wide
    a_pitch, b_pitch = m + config.padding, n + config.padding
    terms = max(config.terms, 8)
    a_held, b_held = tall // 16 * (terms // 2), wide // 8 * (terms // 4)
    place, multiply_add = (
        _warp_place(config),
        product("float64" if acc == "float64" else "tf32", terms, config.terms >= 8),
    )

    @device
    def multiply(sums, shared, a_at, b_at):  # type: ignore[no-untyped-def]
        a = cuda.local.array(a_held, A)
        b = cuda.local.array(b_held, A)
        row, column, g, t = place()
        for step in range(depth // terms):
            for i in range(tall // 16):
                for e in range(terms // 2):
                    k = step * terms + (e >> 1) * 4 + t
                    a[i * (terms // 2) + e] = shared[i32(a_at + k * a_pitch + row + g + i * 16 + (e & 1) * 8)]
            for j in range(wide // 8):
                for e in range(terms // 4):
                    k = step * terms + e * 4 + t
                    b[j * (terms // 4) + e] = shared[i32(b_at + k * b_pitch + column + g + j * 8)]
            for i in range(tall // 16):
                for j in range(wide // 8):
                    at = i32((i * (wide // 8) + j) * 4)
                    multiply_add(sums, at, a, i32(i * (terms // 2)), b, i32(j * (terms // 4)))

    return multiply


def _warp_place(config: TilesConfig) -> Callable[..., Any]:
    """``place() -> (first row, first column, lane // 4, lane % 4)`` of a warp in the tile."""
    tall, wide, across = config.tall, config.wide, config.n // config.wide

    @device
    def place():  # type: ignore[no-untyped-def]
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread & 31), i32(thread >> 5)
        high = i32(u32(warp) // u32(across))
        return i32(high * tall), i32((warp - high * across) * wide), i32(lane >> 2), i32(lane & 3)

    return place


def _put(out: str, acc: str, config: TilesConfig, run: int) -> Callable[..., None]:
    """``put(sums, start, c, row, column, sizes, strides, alpha, beta)``: ``run`` neighbouring columns of a row of C."""
    A, size, vector = ACCUMULATOR[acc], ITEMSIZE[out], min(config.store, run)
    read, write, write_vector = load(out, acc), store(out, acc), store_vector(out, vector, acc)

    @device
    def put(sums, start, c, row, column, sizes, strides, alpha, beta):  # type: ignore[no-untyped-def]
        for piece in range(run // vector):
            first = start + piece * vector
            j = i32(column + piece * vector)
            if row < sizes[0] and j < sizes[1]:
                target = c + (i64(row) * strides[0] + i64(j) * strides[1]) * size
                for e in range(vector):
                    sums[first + e] = A(alpha * sums[first + e])
                if beta != A(0):
                    for e in range(vector):
                        sums[first + e] = A(sums[first + e] + beta * read(target + e * size))
                if vector > 1:
                    write_vector(sums, i32(first), target)
                else:
                    write(target, sums[first])

    return put


def _put_tile(put: Callable[..., None], config: TilesConfig) -> Callable[..., None]:
    """``put_tile(sums, c, row, column, sizes, strides, alpha, beta)``: what a thread holds, from its first element on.

    In up to eight parts, written out: a loop over so much code is not unrolled, and then the sums would lie in memory.
    """
    wide, chunk, warps = config.wide, config.chunk, config.warps
    group = 1 if warps else chunk  # rows of neighbours
    rows, count = (config.tall // 8, wide // 8) if warps else (config.tall, wide // chunk)
    a_apart, b_apart = (8, 8) if warps else (config.m * chunk // config.tall, config.n * chunk // wide)
    parts = 8 if rows > 8 else min(4, rows)
    each = rows // parts

    @device
    def put_part(sums, part, c, row, column, sizes, strides, alpha, beta):  # type: ignore[no-untyped-def]
        for e in range(each):
            i = part * each + e
            r = i32(row + (i // group) * a_apart + i % group)
            for j in range(count):
                at = ((i // 2) * count + j) * 4 + (i % 2) * 2 if warps else i * wide + j * chunk
                put(sums, at, c, r, i32(column + j * b_apart), sizes, strides, alpha, beta)

    @device
    def put_tile(sums, c, row, column, sizes, strides, alpha, beta):  # type: ignore[no-untyped-def]
        put_part(sums, 0, c, row, column, sizes, strides, alpha, beta)
        put_part(sums, 1, c, row, column, sizes, strides, alpha, beta)
        if parts > 2:
            put_part(sums, 2, c, row, column, sizes, strides, alpha, beta)
            put_part(sums, 3, c, row, column, sizes, strides, alpha, beta)
        if parts > 4:
            put_part(sums, 4, c, row, column, sizes, strides, alpha, beta)
            put_part(sums, 5, c, row, column, sizes, strides, alpha, beta)
            put_part(sums, 6, c, row, column, sizes, strides, alpha, beta)
            put_part(sums, 7, c, row, column, sizes, strides, alpha, beta)

    return put_tile


def gemm(dtype: str, out: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """c[m,n] = alpha * sum over k of a[m,k] * b[k,n] + beta * c[m,n], for each matrix of a batch; any strides."""
    A, E, m, n, depth = ACCUMULATOR[acc], ELEMENT[acc], config.m, config.n, config.k
    rounds = config.warps and acc == "float32" and dtype == "float32"
    locate_a, fetch_a, keep_a = _stage(dtype, acc, config, config.a, m, rounds)
    locate_b, fetch_b, keep_b = _stage(dtype, acc, config, config.b, n, rounds)
    multiply = _by_warps(acc, config) if config.warps else _by_threads(acc, config)
    tall, wide, chunk = config.tall, config.wide, config.chunk
    run = 2 if config.warps else chunk
    put_tile = _put_tile(_put(out, acc, config, run), config)
    thread_place, warp_place = _thread_place(config), _warp_place(config)
    a_tile, b_tile = depth * (m + config.padding), depth * (n + config.padding)
    a_held, b_held = m * depth // config.threads, n * depth // config.threads
    a_places, b_places = a_held // config.a.vector, b_held // config.b.vector
    by_warps, size, out_size = config.warps, ITEMSIZE[dtype], ITEMSIZE[out]
    every = tall * wide // 32 if by_warps else tall * wide
    raster = config.raster

    def kernel(  # type: ignore[no-untyped-def]
        a, b, c, sizes, a_strides, b_strides, c_strides, batch_strides, alpha, beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, E)
        rows = i32(u32(sizes[0] + m - 1) // u32(m))
        columns = i32(u32(sizes[1] + n - 1) // u32(n))
        tile = i32(cuda.blockIdx.x)
        band = i32(u32(tile) // u32(raster * columns))
        rest = i32(tile - band * (raster * columns))
        high = i32(min(raster, rows - band * raster))
        across = i32(u32(rest) // u32(high))
        first_row = i32((band * raster + rest - across * high) * m)
        first_column = i32(across * n)
        batch = i64(cuda.blockIdx.y)
        a += batch * batch_strides[0] * size
        b += batch * batch_strides[1] * size
        c += batch * batch_strides[2] * out_size
        sums = cuda.local.array(every, A)
        held_a = cuda.local.array(a_held, A)
        held_b = cuda.local.array(b_held, A)
        for i in range(every):
            sums[i] = A(0)
        places_a = cuda.local.array(a_places, INT64)
        places_b = cuda.local.array(b_places, INT64)
        locate_a(places_a, a, first_row, sizes[0], a_strides)
        locate_b(places_b, b, first_column, sizes[1], b_strides)
        a_step, b_step = a_strides[1] * size, b_strides[1] * size
        fetch_a(held_a, a, places_a, i32(0), sizes[2], a_step)
        fetch_b(held_b, b, places_b, i32(0), sizes[2], b_step)
        keep_a(held_a, shared, i32(0))
        keep_b(held_b, shared, i32(2 * a_tile))
        cuda.syncthreads()
        side = i32(0)
        for begin in range(i32(0), sizes[2], i32(depth)):
            fetch_a(held_a, a, places_a, i32(begin + depth), sizes[2], a_step)
            fetch_b(held_b, b, places_b, i32(begin + depth), sizes[2], b_step)
            multiply(sums, shared, i32(side * a_tile), i32(2 * a_tile + side * b_tile))
            side = i32(1 - side)
            keep_a(held_a, shared, i32(side * a_tile))
            keep_b(held_b, shared, i32(2 * a_tile + side * b_tile))
            cuda.syncthreads()
        if by_warps:
            row, column, g, t = warp_place()
            row, column = i32(row + g), i32(column + 2 * t)
        else:
            row, column = thread_place()
            row, column = i32(row * chunk), i32(column * chunk)
        put_tile(sums, c, i32(first_row + row), i32(first_column + column), sizes, c_strides, alpha, beta)

    return kernel
