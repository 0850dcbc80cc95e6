"""The matrix product on Hopper's tensor cores: one warp feeds shared memory by TMA, eight warps multiply it with wgmma.

A block stays on its multiprocessor and takes one tile of C (128 x ``n``) after another. Of its three groups of 128
threads the first begins copies of 128 x 64 and n x 64 stretches of A and B into a ring of ``stages``; the other two
hold 64 x n of the tile each in registers. A stage has two barriers: full (its bytes have arrived) and empty (both
groups are done with it). Terms are added in the order of k, whatever the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.gemm.problem import K, M, WgmmaConfig, depth, stage_bytes
from numbadnn.kernels.lang import hopper
from numbadnn.kernels.lang.access import load, store, store_vector
from numbadnn.kernels.lang.cuda import cuda, device, f32, i32, u32
from numbadnn.kernels.lang.pipeline import consumer, ring_of
from numbadnn.problem import ITEMSIZE

RASTER = (
    16  # tiles of C are taken in columns of so many rows of tiles, so that neighbours share A and B in the L2 cache
)
_SWIZZLE = 1 << 62


def _descriptor(by_rows: bool) -> int:
    """The constant half of a matrix descriptor: byte distances of what wgmma takes 8 rows, or 64 columns, at a time."""
    stride, leading = 8 * 128, (16 if by_rows else K * 128)
    return _SWIZZLE | (stride >> 4) << 32 | (leading >> 4) << 16


def _place(n: int) -> Callable[..., Any]:
    """``place(tile, rows, columns) -> (batch, tile row, tile column)``."""

    @device
    def place(tile, rows, columns):
        batch = i32(u32(tile) // u32(rows * columns))
        tile = i32(tile - batch * (rows * columns))
        band = i32(u32(tile) // u32(RASTER * columns))
        rest = i32(tile - band * (RASTER * columns))
        high = i32(min(RASTER, rows - band * RASTER))
        column = i32(u32(rest) // u32(high))
        return batch, i32(band * RASTER + rest - column * high), column

    return place


def _feed(config: WgmmaConfig) -> Callable[..., Any]:
    """``feed(target, map_a, map_b, row, column, k, batch_a, batch_b, full)``: begin the copies of one stage."""
    n, a_by_rows, b_by_rows, copy_box = config.n, config.a_by_rows, config.b_by_rows, hopper.copy_box
    a_bytes = M * K * 2

    @device
    def feed(target, map_a, map_b, row, column, k, batch_a, batch_b, full):
        if a_by_rows:
            copy_box(target, map_a, k, row, batch_a, full)
        else:
            for i in range(M // 64):
                copy_box(u32(target + u32(i * 64 * K * 2)), map_a, i32(row + i * 64), k, batch_a, full)
        if b_by_rows:
            copy_box(u32(target + u32(a_bytes)), map_b, k, column, batch_b, full)
        else:
            for i in range(n // 64):
                at = u32(target + u32(a_bytes + i * 64 * K * 2))
                copy_box(at, map_b, i32(column + i * 64), k, batch_b, full)

    return feed


def _put(config: WgmmaConfig, out: str) -> Callable[..., None]:
    """``put(sums, c, row, column, rows, columns, strides, alpha, beta)``: a thread's part of a tile to memory.

    ``row`` and ``column`` are those of the first of its sums.
    """
    # a loop of more is not unrolled, and then the sums would lie in memory
    wide, part = config.n > 128, min(config.n // 32, 4)
    size, store_quarter = ITEMSIZE[out], (_store_wide if config.store == 8 else _store_narrow)(config, out)

    @device
    def store_part(sums, start, upper, lower, row, column, rows, columns, step, alpha, beta):
        for q in range(part):
            at = start + q
            store_quarter(
                sums, 16 * at, upper + 32 * at * step, row < rows, column + 32 * at, columns, step, alpha, beta
            )
            store_quarter(
                sums, 16 * at + 2, lower + 32 * at * step, row + 8 < rows, column + 32 * at, columns, step, alpha, beta
            )

    @device
    def put(sums, c, row, column, rows, columns, strides, alpha, beta):
        step = strides[1] * size
        upper = c + (row * strides[0] + column * strides[1]) * size
        lower = upper + 8 * strides[0] * size
        store_part(sums, 0, upper, lower, row, column, rows, columns, step, alpha, beta)
        if wide:
            store_part(sums, 4, upper, lower, row, column, rows, columns, step, alpha, beta)

    return put


def _scaled(config: WgmmaConfig, out: str) -> Callable[..., None]:
    """``scale(sums, start, target, live, column, columns, step, alpha, beta)``: two neighbours become what is to be written."""
    read = load(out, "float32")

    @device
    def scale(sums, start, target, live, column, columns, step, alpha, beta):
        for e in range(2):
            sums[start + e] = f32(alpha * sums[start + e])
            if beta != f32(0) and live and column + e < columns:
                sums[start + e] = f32(sums[start + e] + beta * read(target + e * step))

    return scale


def _store_narrow(config: WgmmaConfig, out: str) -> Callable[..., None]:
    """Four pieces of a row, two numbers each, written as pairs or one by one."""
    pairs, scale = config.store == 2, _scaled(config, out)
    write, write_pair = store(out, "float32"), store_vector(out, 2, "float32")

    @device
    def store_quarter(sums, start, target, live, column, columns, step, alpha, beta):
        for j in range(4):
            at = start + 4 * j
            there = target + 8 * j * step
            scale(sums, at, there, live, column + 8 * j, columns, step, alpha, beta)
            if live and column + 8 * j < columns:
                if pairs:
                    write_pair(sums, i32(at), there)
                else:
                    write(there, sums[at])
                    if column + 8 * j + 1 < columns:
                        write(there + step, sums[at + 1])

    return store_quarter


def _store_wide(config: WgmmaConfig, out: str) -> Callable[..., None]:
    """Four pieces of a row, 16-bit: the four threads that share them exchange, so that each writes 16 bytes of one.

    A 4 x 4 transposition in two steps: after both, thread q has the pieces' q-th from all four.
    """
    scale, pack, exchange, store_words = _scaled(config, out), hopper.pack(out), hopper.exchange, hopper.store_words

    @device
    def store_quarter(sums, start, target, live, column, columns, step, alpha, beta):
        for j in range(4):
            scale(sums, start + 4 * j, target + 8 * j * step, live, column + 8 * j, columns, step, alpha, beta)
        w0 = pack(sums[start], sums[start + 1])
        w1 = pack(sums[start + 4], sums[start + 5])
        w2 = pack(sums[start + 8], sums[start + 9])
        w3 = pack(sums[start + 12], sums[start + 13])
        q = i32(i32(cuda.threadIdx.x) & 3)
        odd = (q & 1) != 0
        x = exchange(w0 if odd else w1, i32(1))
        y = exchange(w2 if odd else w3, i32(1))
        a0 = x if odd else w0
        a1 = w1 if odd else x
        b0 = y if odd else w2
        b1 = w3 if odd else y
        high = q >= 2
        x = exchange(a0 if high else b0, i32(2))
        y = exchange(a1 if high else b1, i32(2))
        # the thread's columns began 2 * q into the first piece; now it has the whole q-th
        if live and column + 6 * q < columns:
            there = target + 6 * q * step
            store_words(there, x if high else a0, y if high else a1, b0 if high else x, b1 if high else y)

    return store_quarter


def gemm(dtype: str, out: str, config: WgmmaConfig) -> Callable[..., None]:
    """c[m,n] = alpha * sum over k of a[m,k] * b[k,n] + beta * c[m,n], for each matrix of a batch; both inputs by TMA."""
    n, stages = config.n, config.stages
    size, every, a_bytes, terms = ITEMSIZE[out], n // 2, M * K * 2, depth(dtype)
    bytes_of_stage, ring = stage_bytes(n), stage_bytes(n) * stages
    a_half, b_half = _descriptor(config.a_by_rows), _descriptor(config.b_by_rows)
    # how far the terms of one instruction (32 bytes) are in a stage, in units of 16 bytes
    a_step, b_step = (2 if by_rows else 16 * 128 >> 4 for by_rows in (config.a_by_rows, config.b_by_rows))
    place, feed, put = _place(n), _feed(config), _put(config, out)
    multiply = hopper.wgmma(dtype, n, config.a_by_rows, config.b_by_rows)
    map_a_of, map_b_of = hopper.map_address(0), hopper.map_address(1)
    expect, wait = hopper.barrier_expect, hopper.barrier_wait
    start, fence = hopper.shared_start, hopper.fence_barriers
    fewer, more = hopper.set_registers(40, False), hopper.set_registers(232, True)
    (begin_ring, following), halves = ring_of(stages), (a_half, b_half)
    consume = consumer(multiply, stages, bytes_of_stage, halves, a_bytes, (4, a_step, b_step), 128)

    def kernel(
        map_a, map_b, c, sizes, batches, moves, c_strides, c_batch, alpha, beta,
    ):  # fmt: skip
        thread = i32(cuda.threadIdx.x)
        group = i32(thread >> 7)
        base = u32((start() + u32(1023)) & u32(0xFFFFFC00))
        full = u32(base + u32(ring))
        empty = u32(full + u32(8 * stages))
        if thread == 0:
            begin_ring(full, empty)
            fence()
        cuda.syncthreads()
        rows = i32(u32(sizes[0] + M - 1) // u32(M))
        columns = i32(u32(sizes[1] + n - 1) // u32(n))
        steps = i32(u32(sizes[2] + terms - 1) // u32(terms))
        tiles = i32(rows * columns * batches)
        stage = u32(0)
        phase = u32(0)
        if group == 0:
            fewer()
            if thread == 0:
                a_map = map_a_of(map_a)
                b_map = map_b_of(map_b)
                for tile in range(i32(cuda.blockIdx.x), tiles, i32(cuda.gridDim.x)):
                    batch, row, column = place(tile, rows, columns)
                    for step in range(steps):
                        wait(u32(empty + stage * u32(8)), u32(phase ^ u32(1)))
                        bar = u32(full + stage * u32(8))
                        expect(bar, u32(bytes_of_stage))
                        target = u32(base + stage * u32(bytes_of_stage))
                        feed(
                            target, a_map, b_map, i32(row * M), i32(column * n), i32(step * terms),
                            i32(batch * moves[0]), i32(batch * moves[1]), bar,
                        )  # fmt: skip
                        stage, phase = following(stage, phase)
        else:
            more()
            lane = i32(thread & 31)
            warp = i32((thread >> 5) & 3)
            first = i32((group - 1) * 64)
            sums = cuda.local.array(every, f32)
            for tile in range(i32(cuda.blockIdx.x), tiles, i32(cuda.gridDim.x)):
                batch, row, column = place(tile, rows, columns)
                for i in range(every):
                    sums[i] = f32(0)
                stage, phase = consume(sums, sums, base, first, full, empty, stage, phase, i32(0), steps, thread)
                here = i32(row * M + first + warp * 16 + (lane >> 2))
                across = i32(column * n + (lane & 3) * 2)
                put(sums, c + batch * c_batch * size, here, across, sizes[0], sizes[1], c_strides, alpha, beta)

    return kernel
