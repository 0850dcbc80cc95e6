"""What the products in tiles share: which tile a block has, which part of it a warp, and how a part of a row is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.access import load, store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.problem import ITEMSIZE


def tile_place(m: int, n: int, raster: int) -> Callable[..., Any]:
    """``place(sizes) -> (first row, first column)`` of the block: tiles count down ``raster`` rows of them, then across."""

    @device
    def place(sizes):
        rows = i32(u32(sizes[0] + m - 1) // u32(m))
        columns = i32(u32(sizes[1] + n - 1) // u32(n))
        tile = i32(cuda.blockIdx.x)
        band = i32(u32(tile) // u32(raster * columns))
        rest = i32(tile - band * (raster * columns))
        high = i32(min(raster, rows - band * raster))
        across = i32(u32(rest) // u32(high))
        return i32((band * raster + rest - across * high) * m), i32(across * n)

    return place


def warp_place(config: Any) -> Callable[..., Any]:
    """``place() -> (first row, first column, lane // 4, lane % 4)`` of a warp in the tile."""
    tall, wide, across = config.tall, config.wide, config.n // config.wide

    @device
    def place():
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread & 31), i32(thread >> 5)
        high = i32(u32(warp) // u32(across))
        return i32(high * tall), i32((warp - high * across) * wide), i32(lane >> 2), i32(lane & 3)

    return place


def store_run(out: str, acc: str, run: int, width: int) -> Callable[..., None]:
    """``put(sums, start, c, row, column, sizes, strides, alpha, beta)``: ``run`` neighbouring columns of a row of C."""
    A, size = ACCUMULATOR[acc], ITEMSIZE[out]
    vector = min(run, width)
    read, write, write_vector = load(out, acc), store(out, acc), store_vector(out, vector, acc)

    @device
    def put(sums, start, c, row, column, sizes, strides, alpha, beta):
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
