"""The matrix product of 16-bit types in any layout: tiles of A and B in shared memory, a tile of C in registers.

While one pair of tiles is multiplied the next is on its way from global memory to registers. Shared memory holds both
operands in float32, as [k][m] and [k][n], two buffers of each. TF32 holds 16-bit numbers exactly, so warps multiply by
tensor-core instructions of it. Terms are added in the order of k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.gemm.device.parts import store_run, tile_place, warp_place
from numbadnn.kernels.gemm.problem import Operand, TilesConfig
from numbadnn.kernels.lang.access import load_vector
from numbadnn.kernels.lang.cuda import ELEMENT, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.mma import product, write_shared
from numbadnn.problem import ITEMSIZE

INT64 = np.int64
#: neighbours that a thread moves together: 16 bytes of shared memory
CHUNK = 4
#: of one instruction, and the numbers of A and of B that a thread gives to it
TERMS, A_EACH, B_EACH = 8, 4, 2


def _stage(dtype: str, config: TilesConfig, operand: Operand, extent: int) -> Any:
    """(locate, fetch, keep): a thread's share of a tile of ``extent`` rows to registers, and on to shared memory.

    ``locate(places, source, first, rows, strides)``: the addresses of its runs of ``CHUNK`` elements at term 0; rows
    that do not exist are read as others that do, because what they give is not written. ``fetch(values, source, places,
    begin, terms, step)`` reads pieces of ``operand.vector`` elements from term ``begin`` on, zeros past the last;
    ``keep(values, shared, at)`` writes.
    """
    size, depth, threads = ITEMSIZE[dtype], config.k, config.threads
    vector, along_k, pitch = operand.vector, operand.along_k, extent + config.padding
    count, across = extent * depth // (CHUNK * threads), extent if along_k else extent // CHUNK
    pieces = CHUNK // vector
    read, write = load_vector(dtype, vector, "float32"), write_shared(CHUNK)

    @device
    def place(i):
        number = i32(i32(cuda.threadIdx.x) + i * threads)
        outer = i32(u32(number) // u32(across))
        inner = i32(number - outer * across)
        return outer, inner

    @device
    def locate(places, source, first, rows, strides):
        for i in range(count):
            outer, inner = place(i)
            term = i32(outer * CHUNK if along_k else outer)
            for piece in range(1 if along_k else pieces):
                row = i32(first + inner if along_k else first + inner * CHUNK + piece * vector)
                row = row if row < rows else i32(0)
                places[i * pieces + piece] = source + (i64(row) * strides[0] + i64(term) * strides[1]) * size

    @device
    def fetch(values, source, places, begin, terms, step):
        offset = i64(begin) * step
        whole = begin + depth <= terms
        for i in range(count):
            outer, inner = place(i)
            for piece in range(pieces):
                j = i * CHUNK + piece * vector
                term = i32(begin + outer * CHUNK + piece * vector if along_k else begin + outer)
                inside = whole or term < terms
                at = (
                    places[i * pieces] + offset + piece * vector * step
                    if along_k
                    else places[i * pieces + piece] + offset
                )
                read(values, i32(j), at if inside else source)
                for e in range(vector):
                    values[j + e] = values[j + e] if inside else f32(0)

    @device
    def keep(values, shared, at):
        for i in range(count):
            outer, inner = place(i)
            if along_k:
                for e in range(CHUNK):
                    shared[i32(at + (outer * CHUNK + e) * pitch + inner)] = values[i * CHUNK + e]
            else:
                write(values, i32(i * CHUNK), shared, i32(at + outer * pitch + inner * CHUNK))

    return locate, fetch, keep


def _multiplier(config: TilesConfig) -> Callable[..., None]:
    """``multiply(sums, shared, a_at, b_at)``: one pair of tiles, by instructions of 16 x 8 x ``TERMS``."""
    depth, tall, wide = config.k, config.tall, config.wide
    a_pitch, b_pitch = config.m + config.padding, config.n + config.padding
    a_held, b_held = tall // 16 * A_EACH, wide // 8 * B_EACH
    place, multiply_add = warp_place(config), product("tf32", TERMS)

    @device
    def multiply(sums, shared, a_at, b_at):
        a = cuda.local.array(a_held, f32)
        b = cuda.local.array(b_held, f32)
        row, column, g, t = place()
        for step in range(depth // TERMS):
            for i in range(tall // 16):
                for e in range(A_EACH):
                    k = step * TERMS + (e >> 1) * 4 + t
                    a[i * A_EACH + e] = shared[i32(a_at + k * a_pitch + row + g + i * 16 + (e & 1) * 8)]
            for j in range(wide // 8):
                for e in range(B_EACH):
                    k = step * TERMS + e * 4 + t
                    b[j * B_EACH + e] = shared[i32(b_at + k * b_pitch + column + g + j * 8)]
            for i in range(tall // 16):
                for j in range(wide // 8):
                    at = i32((i * (wide // 8) + j) * 4)
                    multiply_add(sums, at, a, i32(i * A_EACH), b, i32(j * B_EACH))

    return multiply


def _store_tile(out: str, config: TilesConfig) -> Callable[..., None]:
    """``store_tile(sums, c, row, column, sizes, strides, alpha, beta)``: what a thread holds, from its first element on.

    In up to four parts, written out: a loop over so much code is not unrolled, and then the sums would lie in memory.
    """
    rows, count, put = config.tall // 8, config.wide // 8, store_run(out, "float32", 2, config.store)
    parts = min(4, rows)
    each = rows // parts

    @device
    def store_part(sums, part, c, row, column, sizes, strides, alpha, beta):
        for e in range(each):
            i = part * each + e
            r = i32(row + (i // 2) * 16 + (i % 2) * 8)
            for j in range(count):
                at = ((i // 2) * count + j) * 4 + (i % 2) * 2
                put(sums, at, c, r, i32(column + j * 8), sizes, strides, alpha, beta)

    @device
    def store_tile(sums, c, row, column, sizes, strides, alpha, beta):
        store_part(sums, 0, c, row, column, sizes, strides, alpha, beta)
        store_part(sums, 1, c, row, column, sizes, strides, alpha, beta)
        if parts > 2:
            store_part(sums, 2, c, row, column, sizes, strides, alpha, beta)
            store_part(sums, 3, c, row, column, sizes, strides, alpha, beta)

    return store_tile


def gemm(dtype: str, out: str, config: TilesConfig) -> Callable[..., None]:
    """c[m,n] = alpha * sum over k of a[m,k] * b[k,n] + beta * c[m,n], for each matrix of a batch; any strides."""
    E, m, n, depth = ELEMENT["float32"], config.m, config.n, config.k
    locate_a, fetch_a, keep_a = _stage(dtype, config, config.a, m)
    locate_b, fetch_b, keep_b = _stage(dtype, config, config.b, n)
    multiply, store_tile, place = _multiplier(config), _store_tile(out, config), warp_place(config)
    a_tile, b_tile = depth * (m + config.padding), depth * (n + config.padding)
    a_held, b_held = m * depth // config.threads, n * depth // config.threads
    a_places, b_places = a_held // config.a.vector, b_held // config.b.vector
    size, out_size, place_of_tile = ITEMSIZE[dtype], ITEMSIZE[out], tile_place(m, n, config.raster)
    every = config.tall * config.wide // 32

    def kernel(
        a, b, c, sizes, a_strides, b_strides, c_strides, batch_strides, alpha, beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, E)
        first_row, first_column = place_of_tile(sizes)
        batch = i64(cuda.blockIdx.y)
        a += batch * batch_strides[0] * size
        b += batch * batch_strides[1] * size
        c += batch * batch_strides[2] * out_size
        sums = cuda.local.array(every, f32)
        held_a = cuda.local.array(a_held, f32)
        held_b = cuda.local.array(b_held, f32)
        for i in range(every):
            sums[i] = f32(0)
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
        row, column, g, t = place()
        row, column = i32(row + g), i32(column + 2 * t)
        store_tile(sums, c, i32(first_row + row), i32(first_column + column), sizes, c_strides, alpha, beta)

    return kernel
