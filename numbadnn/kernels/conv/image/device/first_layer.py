"""The convolution of a network's first layer: a pixel has four channels in shared memory, and ldmatrix reads two pixels at once.

    shared   [row][pixel][4] of the image; the same once more with each even pixel zero where windows begin at an odd one,
             with each odd one zero where they end at an even one: what no window meets is multiplied by nothing
    a        rows: 16 neighbouring positions, a stride of two apart: 16 bytes; columns: two pairs of a window, 16 terms
    b        in registers: 32 filters' terms of a warp, from the first tile of its block to the last; by way of shared memory

A column of b is such a filter that a lane's sums are eight neighbouring results, which it writes at once. A block takes one
tile after the other; others on the same multiprocessor multiply while it brings the next.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numbadnn.kernels.conv.image.first_layer_config import EIGHTS, RESULTS, ZEROS, FirstLayerConfig
from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import HALF, INT32, SIMULATED, WORD, cuda, device, f32, i32, i64, types, u32, u64
from numbadnn.kernels.lang.hopper import pack, store_words
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.words import in_turn, shared_address, write_at

SIZE = 2
#: groups of four pixels that a thread asks memory for at a time
TOGETHER = 3


def _filters(config: FirstLayerConfig) -> tuple[Callable[..., None], Callable[..., None]]:
    """``place(shared, base, w, strides)``: all filters into shared memory, [result][step][two pairs of pixels]; zeros where
    there is no tap. ``take(b, halves, at)``: the terms of a warp, whose first result lies at ``at``.
    """
    (R, S), C, chunks, front, every = config.taps, config.channels, config.chunks, config.front, config.every
    pitch, pixels, threads = config.filter_pitch, config.every * 4, config.threads
    count = config.parts * RESULTS * pixels
    half, write, load_b = load_bits(SIZE), write_at("int32", 2), load_matrices(False)

    @device
    def place(shared, base, w, strides):
        words = cuda.local.array(2, WORD)
        for e in range(i32(cuda.threadIdx.x), count, threads):
            result = i32(u32(e) // u32(pixels))
            pixel = i32(e - result * pixels)
            r = i32(u32(pixel >> 1) // u32(chunks))
            s = i32(pixel - r * (2 * chunks) - front)
            there = r < R and s >= 0 and s < S
            at = w + i64(i32(result * strides[0] + r * strides[2] + s * strides[3]) if there else i32(0)) * SIZE
            low, high = i64(half(at)), i64(0)
            if C > 1:
                low = i64(low | (i64(half(at + i64(strides[1]) * SIZE)) << 16))
            if C > 2:
                high = i64(half(at + i64(strides[1]) * (2 * SIZE)))
            if C > 3:
                high = i64(high | (i64(half(at + i64(strides[1]) * (3 * SIZE))) << 16))
            words[0], words[1] = u32(low if there else i64(0)), u32(high if there else i64(0))
            write(words, i32(0), shared, i32(base + result * pitch + pixel * 8))

    @device
    def take(b, halves, at):
        lane = i32(cuda.threadIdx.x & 31)
        mine = i32(at + (((lane >> 1) & 3) * 8 + (lane & 1)) * pitch + (lane >> 3) * 16)
        for n in range(EIGHTS):
            for step in range(0, every, 2):
                load_b(b, i32((n * every + step) * 2), halves, i32(mine + n * (2 * pitch) + step * 32))

    return place, take


def _fill(config: FirstLayerConfig) -> Callable[..., None]:
    """``fill(shared, base, image, corner, size, line)``: the rows and columns of a tile, from ``corner`` of an image on."""
    C, threads, fours = config.channels, config.threads, config.fours
    groups, plane, front, tail = config.rows_read * config.fours, config.plane, config.front > 0, config.tail
    turns, last = -(-groups // (threads * TOGETHER)), config.plane * (1 + (config.front > 0))
    eight, write = load_bits(8), write_at("int32", 4)
    wide = np.dtype("uint64") if SIMULATED else types.uint64
    held_count = TOGETHER * C

    @device
    def term(held, at):
        return i64((u64(held[at // 4]) >> u64(16 * (at % 4))) & u64(0xFFFF))

    @device
    def fill(shared, base, image, corner, size, line):
        held = cuda.local.array(held_count, wide)
        words = cuda.local.array(8, WORD)
        for turn in range(turns):
            first = i32(i32(cuda.threadIdx.x) + turn * (threads * TOGETHER))
            for j in range(TOGETHER):
                e = i32(first + j * threads)
                row = i32(u32(e) // u32(fours))
                h, v = i32(corner[0] + row), i32(corner[1] + (e - row * fours) * 4)
                there = e < groups and h >= 0 and h < size[0] and v >= 0 and v < size[1]
                at = image + i64(i32(h * line + v * C) if there else i32(0)) * SIZE
                for k in range(C):
                    bits = eight(at + 8 * k)
                    held[j * C + k] = bits if there else u64(0)
            for j in range(TOGETHER):
                e = i32(first + j * threads)
                if e < groups:
                    for p in range(4):
                        at = j * 4 * C + p * C
                        low, high = term(held, at), i64(0)
                        if C > 1:
                            low = i64(low | (term(held, at + 1) << 16))
                        if C > 2:
                            high = term(held, at + 2)
                        if C > 3:
                            high = i64(high | (term(held, at + 3) << 16))
                        words[2 * p] = u32(low)
                        words[2 * p + 1] = u32(high)
                    to = i32(base + e * 32)
                    write(words, i32(0), shared, to)
                    write(words, i32(4), shared, i32(to + 16))
                    if front:
                        odd(shared, words, i32(to + plane))
                    if tail:
                        even(shared, words, i32(to + last))

    @device
    def odd(shared, words, to):
        some = cuda.local.array(4, WORD)
        for i in range(2):
            some[0], some[1], some[2], some[3] = u32(0), u32(0), words[4 * i + 2], words[4 * i + 3]
            write(some, i32(0), shared, i32(to + 16 * i))

    @device
    def even(shared, words, to):
        some = cuda.local.array(4, WORD)
        for i in range(2):
            some[0], some[1], some[2], some[3] = words[4 * i], words[4 * i + 1], u32(0), u32(0)
            write(some, i32(0), shared, i32(to + 16 * i))

    return fill


def _multiply(dtype: str, config: FirstLayerConfig) -> Callable[..., None]:
    """``multiply(total, b, halves, places)``: 16 positions; ``places``: the first pair of the window of row lane % 16, the zeros,
    and whether the lane is of the upper half, which reads the second pair of a step.
    """
    R, chunks, pitch, plane, every = config.taps[0], config.chunks, config.pitch, config.plane, config.every
    load_a, multiply_add = load_matrices(False), product(dtype, 16)

    def offset(chunk: int) -> int:
        r, j = divmod(chunk, chunks)
        odd = plane * config.front if j == 0 else 0
        even = plane * (1 + config.front) if config.tail and j == chunks - 1 else 0
        return r * pitch + j * 16 + odd + even

    def of(step: int) -> Callable[..., None]:
        lower, apart = offset(2 * step), offset(2 * step + 1) - offset(2 * step)
        alone = 2 * step + 1 == R * chunks

        @device
        def multiply(total, b, halves, places):
            a = cuda.local.array(4, INT32)
            at, zeros, upper = places
            place = i32(at + lower)
            if alone:
                place = i32(zeros) if upper else place
            else:
                place = i32(place + (i32(apart) if upper else i32(0)))
            load_a(a, i32(0), halves, place)
            for n in range(EIGHTS):
                multiply_add(total, i32(n * 4), a, i32(0), b, i32((n * every + step) * 2))

        return multiply

    return in_turn([of(step) for step in range(config.steps)])


def convolve(dtype: str, config: FirstLayerConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over c,r,s of x[n, c, p * down - top + r, q * across - left + s] * w[k,c,r,s]."""
    parts, rows, columns = config.parts, config.rows, config.columns
    ways, across, pitch, skip = config.warps // config.parts, columns // 16, config.pitch, config.skip
    down, along = config.stride
    products, filters, sums = rows * across, 2 * EIGHTS * config.every, 4 * EIGHTS
    (place, take), fill, multiply = _filters(config), _fill(config), _multiply(dtype, config)
    filter_pitch, packed, old = config.filter_pitch, pack(dtype), load(dtype, "float32")

    def kernel(
        x, w, y, count, tiles, image, output, top, left, w_start, w_strides, x_step, x_line, y_step, y_strides, alpha, beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, WORD)
        halves = cuda.shared.array(0, HALF)  # the same memory
        b, total = cuda.local.array(filters, WORD), cuda.local.array(sums, f32)
        base = shared_address(shared)
        lane, warp = i32(cuda.threadIdx.x & 31), i32(cuda.threadIdx.x >> 5)
        way = i32(u32(warp) // u32(parts))
        first = i32((warp - way * parts) * RESULTS)  # result
        if cuda.threadIdx.x < ZEROS // 4:
            shared[u32(cuda.threadIdx.x)] = u32(0)
        place(shared, i32(base + ZEROS), w + i64(w_start) * SIZE, w_strides)
        cuda.syncthreads()
        take(b, halves, i32(base + ZEROS + first * filter_pitch))
        upper = lane >= 16
        in_image = i32(base + ZEROS + skip * 8 + (lane & 15) * (along * 8))
        for tile in range(i32(cuda.blockIdx.x), count, i32(cuda.gridDim.x)):
            line = i32(u32(tile) // u32(tiles[1]))
            n = i32(u32(line) // u32(tiles[0]))
            p, q = i32((line - n * tiles[0]) * rows), i32((tile - line * tiles[1]) * columns)
            cuda.syncthreads()
            corner = (i32(p * down - top), i32(q * along - left))
            fill(shared, i32(base + ZEROS), x + i64(n) * x_step * SIZE, corner, image, x_line)
            cuda.syncthreads()
            target = y + (i64(n) * y_step + first + (lane & 3) * 8) * SIZE
            for m in range(way, products, ways):
                row = i32(u32(m) // u32(across))
                column = i32((m - row * across) * 16)
                for i in range(sums):
                    total[i] = f32(0)
                multiply(total, b, halves, (i32(in_image + row * (down * pitch) + column * (along * 8)), base, upper))
                for half in range(2):
                    h, v = i32(p + row), i32(q + column + (lane >> 2) + 8 * half)
                    if h < output[0] and v < output[1]:
                        at = target + i64(i32(h * y_strides[0] + v * y_strides[1])) * SIZE
                        for i in range(EIGHTS):
                            for e in range(2):
                                slot = i * 4 + half * 2 + e
                                total[slot] = f32(alpha * total[slot])
                                if beta != f32(0):
                                    total[slot] = f32(total[slot] + beta * old(at + (i * 2 + e) * SIZE))
                        store_words(
                            at,
                            packed(total[half * 2], total[half * 2 + 1]),
                            packed(total[4 + half * 2], total[5 + half * 2]),
                            packed(total[8 + half * 2], total[9 + half * 2]),
                            packed(total[12 + half * 2], total[13 + half * 2]),
                        )

    return kernel
