"""The matrix product of numbers that need no conversion: asynchronous copies bring tiles of A and B to shared memory.

Float32 by fused multiply-adds or TF32, float64 by tensor cores. A ring of ``stages`` pairs of tiles is filled by asynchronous
copies (16 bytes each, or single numbers where sizes or strides are odd) while the oldest pair is multiplied
(``device/inner.py``); a block waits once a pair. What does not exist is filled with zeros. Terms are added in the order of k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.gemm.device import inner as _gemm_inner
from numbadnn.kernels.gemm.device.parts import store_run, tile_place
from numbadnn.kernels.gemm.problem import AsyncConfig, Operand, Tile
from numbadnn.kernels.lang.async_copies import commit_async, copy_or_zero_at, wait_async_but
from numbadnn.kernels.lang.cuda import ACCUMULATOR, ELEMENT, cuda, device, i32, i64, u32
from numbadnn.problem import ITEMSIZE


def _stage(dtype: str, config: AsyncConfig, operand: Operand, tile: Tile, extent: int) -> Any:
    """``(locate, fetch)``: a thread's share of the copies of a tile."""
    size, vector, depth, threads = ITEMSIZE[dtype], operand.vector, config.k, config.threads
    along_k, pitch = operand.along_k, tile.pitch
    line = (depth if along_k else extent) // vector  # copies of one row, or of one term
    lines = threads // line if line <= threads else 1
    pieces = 1 if line <= threads else line // threads  # of one line
    rounds = (extent if along_k else depth) // lines
    copy = copy_or_zero_at(size * vector)

    @device
    def place():
        thread = i32(cuda.threadIdx.x)
        if pieces > 1:
            return i32(0), i32(thread * vector)
        outer = i32(u32(thread) // u32(line))
        return outer, i32((thread - outer * line) * vector)

    @device
    def locate(source, first, strides):
        outer, inner = place()
        row, k = (outer, inner) if along_k else (inner, outer)
        return source + (i64(first + row) * strides[0] + i64(k) * strides[1]) * size

    @device
    def fetch(shared, at, source, start, first, rows, begin, terms, strides):
        outer, inner = place()
        here = start + i64(begin) * strides[1] * size
        step = (strides[0] if along_k else strides[1]) * (lines * size)
        next_piece = (strides[1] if along_k else strides[0]) * (threads * vector * size)
        for i in range(rounds):
            for piece in range(pieces):
                out = i32(outer + i * lines)
                inn = i32(inner + piece * threads * vector)
                row = i32(first + (out if along_k else inn))
                k = i32(begin + (inn if along_k else out))
                inside = row < rows and k < terms
                copy(shared, i32(at + out * pitch + inn), here + piece * next_piece if inside else source, inside)
            here = here + step

    return locate, fetch


def _own(config: AsyncConfig, a: Tile, b: Tile) -> Callable[..., Any]:
    """``own() -> (row, column, term)``: a thread's first row and column, and the first term that it reads."""
    tall, wide, warps = config.tall, config.wide, config.warps
    across = config.n // wide if warps else config.n // wide // 8
    a_run, b_run = a.run, b.run

    @device
    def own():
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread & 31), i32(thread >> 5)
        high = i32(u32(warp) // u32(across))
        low = i32(warp - high * across)
        if warps:
            return i32(high * tall + (lane >> 2)), i32(low * wide + (lane >> 2)), i32(lane & 3)
        return i32((high * 4 + (lane >> 3)) * a_run), i32((low * 8 + (lane & 7)) * b_run), i32(0)

    return own


def _store_tile(config: AsyncConfig, a: Tile, b: Tile, out: str, acc: str) -> Callable[..., None]:
    """``store_tile(sums, c, row, column, sizes, strides, alpha, beta)``: what a thread holds, from its first element on.

    In up to eight parts, written out: a loop over so much code is not unrolled, and then the sums would lie in memory.
    """
    tall, wide, warps = config.tall, config.wide, config.warps
    run = 2 if warps else b.run
    put = store_run(out, acc, run, config.store)
    rows, count = (tall // 8, wide // 8) if warps else (tall, wide // run)
    a_run, a_apart, b_apart = (1, 8, 8) if warps else (a.run, a.apart, b.apart)
    parts = max(1, min(8, rows, tall * wide // (512 if warps else 16)))
    each = rows // parts

    @device
    def store_part(sums, part, c, row, column, sizes, strides, alpha, beta):
        for e in range(each):
            i = part * each + e
            r = i32(row + (i // a_run) * a_apart + i % a_run)
            for j in range(count):
                at = ((i // 2) * count + j) * 4 + (i % 2) * 2 if warps else i * wide + j * run
                put(sums, at, c, r, i32(column + j * b_apart), sizes, strides, alpha, beta)

    @device
    def store_tile(sums, c, row, column, sizes, strides, alpha, beta):
        store_part(sums, 0, c, row, column, sizes, strides, alpha, beta)
        if parts > 1:
            store_part(sums, 1, c, row, column, sizes, strides, alpha, beta)
        if parts > 2:
            store_part(sums, 2, c, row, column, sizes, strides, alpha, beta)
            store_part(sums, 3, c, row, column, sizes, strides, alpha, beta)
        if parts > 4:
            store_part(sums, 4, c, row, column, sizes, strides, alpha, beta)
            store_part(sums, 5, c, row, column, sizes, strides, alpha, beta)
            store_part(sums, 6, c, row, column, sizes, strides, alpha, beta)
            store_part(sums, 7, c, row, column, sizes, strides, alpha, beta)

    return store_tile


def gemm(dtype: str, config: AsyncConfig) -> Callable[..., None]:
    """c[m,n] = alpha * sum over k of a[m,k] * b[k,n] + beta * c[m,n], for each matrix of a batch; any strides."""
    A, E, m, n, depth, stages = ACCUMULATOR[dtype], ELEMENT[dtype], config.m, config.n, config.k, config.stages
    a, b = config.tiles(ITEMSIZE[dtype])
    locate_a, fetch_a = _stage(dtype, config, config.a, a, m)
    locate_b, fetch_b = _stage(dtype, config, config.b, b, n)
    a_size, b_size = a.numbers(m, depth), b.numbers(n, depth)
    stage = a_size + b_size
    if config.warps:
        kind = "tf32" if dtype == "float32" else "float64"
        multiply = _gemm_inner.by_warps(
            kind, config.tall, config.wide, depth, max(config.terms, 8), config.terms >= 8, a, b
        )
    else:
        multiply = _gemm_inner.by_threads(dtype, config.tall, config.wide, depth, a, b)
    own, store_tile = _own(config, a, b), _store_tile(config, a, b, dtype, dtype)
    a_row, a_k = (a.pitch, 1) if a.along_k else (1, a.pitch)
    b_row, b_k = (b.pitch, 1) if b.along_k else (1, b.pitch)
    every, size, warps, place_of_tile = config.sums, ITEMSIZE[dtype], config.warps, tile_place(m, n, config.raster)
    wait = wait_async_but(stages - 2)

    def kernel(
        a, b, c, sizes, a_strides, b_strides, c_strides, batch_strides, alpha, beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, E)
        first_row, first_column = place_of_tile(sizes)
        batch = i64(cuda.blockIdx.y)
        a += batch * batch_strides[0] * size
        b += batch * batch_strides[1] * size
        c += batch * batch_strides[2] * size
        row, column, term = own()
        a_own, b_own = i32(row * a_row + term * a_k), i32(a_size + column * b_row + term * b_k)
        sums = cuda.local.array(every, A)
        for i in range(every):
            sums[i] = A(0)
        a_start = locate_a(a, first_row, a_strides)
        b_start = locate_b(b, first_column, b_strides)
        for s in range(stages - 1):
            fetch_a(shared, i32(s * stage), a, a_start, first_row, sizes[0], i32(s * depth), sizes[2], a_strides)
            fetch_b(
                shared, i32(s * stage + a_size), b, b_start, first_column, sizes[1], i32(s * depth), sizes[2], b_strides
            )
            commit_async()
        oldest, newest = i32(0), i32((stages - 1) * stage)
        for begin in range(i32(0), sizes[2], i32(depth)):
            wait()
            cuda.syncthreads()
            ahead = i32(begin + (stages - 1) * depth)
            fetch_a(shared, newest, a, a_start, first_row, sizes[0], ahead, sizes[2], a_strides)
            fetch_b(shared, i32(newest + a_size), b, b_start, first_column, sizes[1], ahead, sizes[2], b_strides)
            commit_async()
            multiply(sums, shared, i32(oldest + a_own), i32(oldest + b_own))
            newest = oldest
            oldest = i32(oldest + stage)
            if oldest == stages * stage:
                oldest = i32(0)
        if warps:
            column = i32(column - (i32(cuda.threadIdx.x & 31) >> 2) + 2 * term)
        store_tile(sums, c, i32(first_row + row), i32(first_column + column), sizes, c_strides, alpha, beta)

    return kernel
