"""The products of ``device/tiles.py``: each thread or warp multiplies its part of a pair of tiles in shared memory.

Tiles lie as [term][row] and [term][column], or as [row][term] where terms were read in vectors.
``multiply(sums, shared, a_at, b_at)`` takes their addresses; all it reads lies at constants from a thread's own place,
and is read before it is needed. Terms are added in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.tiles.config import ImplicitTilesConfig, Reading
from numbadnn.kernels.gemm.device.parts import warp_place
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, u32
from numbadnn.kernels.lang.mma import product, round_tf32
from numbadnn.kernels.lang.words import read_at
from numbadnn.problem import ITEMSIZE


def by_threads(acc: str, config: ImplicitTilesConfig) -> Callable[..., None]:
    """``multiply(sums, shared, a_at, b_at)``: one pair of tiles, by fused multiply-adds; rows in groups of ``chunk``.

    The next term's values are read while those of one are multiplied; after the last term some of these tiles again,
    which nobody writes now.
    """
    A, chunk, m, n, depth = ACCUMULATOR[acc], config.chunk, config.m, config.n, config.k
    tall, wide, size = config.tall, config.wide, ITEMSIZE[acc]
    a_pitch, b_pitch = (m + config.padding) * size, (n + config.padding) * size
    a_apart, b_apart = m * chunk // tall * size, n * chunk // wide * size
    place, read = thread_place(config), read_at(acc, chunk)

    @device
    def take(a, b, shared, a_at, b_at):
        for i in range(tall // chunk):
            read(a, i32(i * chunk), shared, i32(a_at + i * a_apart))
        for j in range(wide // chunk):
            read(b, i32(j * chunk), shared, i32(b_at + j * b_apart))

    @device
    def add(sums, a, b):
        for i in range(tall):
            for j in range(wide):
                sums[i * wide + j] = A(sums[i * wide + j] + a[i] * b[j])

    @device
    def multiply(sums, shared, a_at, b_at):
        a = cuda.local.array(tall, A)
        b = cuda.local.array(wide, A)
        next_a = cuda.local.array(tall, A)
        next_b = cuda.local.array(wide, A)
        row, column = place()
        a_at, b_at = i32(a_at + row * (chunk * size)), i32(b_at + column * (chunk * size))
        take(a, b, shared, a_at, b_at)
        for step in range(depth // 4):
            take(next_a, next_b, shared, i32(a_at + a_pitch), i32(b_at + b_pitch))
            add(sums, a, b)
            take(a, b, shared, i32(a_at + 2 * a_pitch), i32(b_at + 2 * b_pitch))
            add(sums, next_a, next_b)
            take(next_a, next_b, shared, i32(a_at + 3 * a_pitch), i32(b_at + 3 * b_pitch))
            add(sums, a, b)
            if step + 1 < depth // 4:
                a_at, b_at = i32(a_at + 4 * a_pitch), i32(b_at + 4 * b_pitch)
            take(a, b, shared, a_at, b_at)
            add(sums, next_a, next_b)

    return multiply


def thread_place(config: ImplicitTilesConfig) -> Callable[..., Any]:
    """``place() -> (row, column)`` of a thread among those of the tile: a warp is 4 x 8 of them."""
    across = config.n // config.wide // 8  # warps side by side

    @device
    def place():
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread & 31), i32(thread >> 5)
        high = i32(u32(warp) // u32(across))
        return i32(high * 4 + (lane >> 3)), i32((warp - high * across) * 8 + (lane & 7))

    return place


def steps(config: ImplicitTilesConfig, reading: Reading, extent: int, size: int) -> tuple[int, int]:
    """Bytes from a term to the next, and from a row or column to the next, of a tile in shared memory."""
    if reading.along_terms and reading.vector > 1:
        return size, (config.k + config.row_padding) * size
    return (extent + config.padding) * size, size


def by_warps(acc: str, config: ImplicitTilesConfig, rounds: bool) -> Callable[..., None]:
    """The same by tensor-core instructions of 16 x 8 x ``terms``; ``rounds``: float32 is rounded to TF32 on the way."""
    A, m, n, depth, tall, wide = ACCUMULATOR[acc], config.m, config.n, config.k, config.tall, config.wide
    size = ITEMSIZE[acc]
    a_term, a_unit = steps(config, config.a, m, size)
    b_term, b_unit = steps(config, config.b, n, size)
    terms = max(config.terms, 8)
    a_each, b_each = terms // 2, terms // 4
    a_held, b_held = tall // 16 * a_each, wide // 8 * b_each
    place, read = warp_place(config), read_at(acc, 1)
    multiply_add = product("float64" if acc == "float64" else "tf32", terms, config.terms >= 8)

    @device
    def multiply(sums, shared, a_at, b_at):
        a = cuda.local.array(a_held, A)
        b = cuda.local.array(b_held, A)
        row, column, g, t = place()
        a_at, b_at = i32(a_at + t * a_term + (row + g) * a_unit), i32(b_at + t * b_term + (column + g) * b_unit)
        for step in range(depth // terms):
            for i in range(tall // 16):
                for e in range(a_each):
                    at = (step * terms + (e >> 1) * 4) * a_term + (i * 16 + (e & 1) * 8) * a_unit
                    read(a, i32(i * a_each + e), shared, i32(a_at + at))
            for j in range(wide // 8):
                for e in range(b_each):
                    read(b, i32(j * b_each + e), shared, i32(b_at + (step * terms + e * 4) * b_term + j * (8 * b_unit)))
            if rounds:
                for i in range(a_held):
                    a[i] = round_tf32(a[i])
                for i in range(b_held):
                    b[i] = round_tf32(b[i])
            for i in range(tall // 16):
                for j in range(wide // 8):
                    multiply_add(sums, i32((i * (wide // 8) + j) * 4), a, i32(i * a_each), b, i32(j * b_each))

    return multiply
