"""y for ``_unshared_inputs_split``, cut into bfloat16: of a position and 16 filters what a warp's lanes take, as they take it.

    y  [image][filter][position]  ->  16 positions in shared memory  ->  space [group][position][16 filters][word][lane]

Of a number that is not the sum of its three words the first is NaN, and so is what sees it.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels._access import load
from numbadnn.kernels._cuda import ELEMENT, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels._implicit_tiles_words import read_at, shared_address, write_at
from numbadnn.kernels._packed import store_words
from numbadnn.kernels._ptx import let_next_start
from numbadnn.kernels._split import LEFT
from numbadnn.kernels._split import split_pair as cut
from numbadnn.kernels.unshared_inputs_split_config import (
    LANES,
    PIECE,
    PIXELS,
    TURNERS,
    WORDS,
    SplitConfig,
)

#: bytes of an element; what says that a number could not be cut
SIZE, NOT_A_PAIR = 4, 0x7FFF7FFF


def _cut_all(tiles: int) -> Callable[..., None]:
    """``run(top, a)``: ``a`` = the words of a lane's images of its four filters, [word][product of all images][4]."""
    own, of_word = 2 * tiles, 4 * tiles

    @device
    def run(top, a):  # type: ignore[no-untyped-def]
        for m in range(tiles):
            for j in range(2):
                for h in range(2):
                    at, to = 2 * h * own + 2 * m + j, i32(4 * m + 2 * h + j)
                    left = cut(a, to, i32(of_word), top[at], top[at + own])
                    a[to] = u32(NOT_A_PAIR) if left & u32(LEFT) else a[to]

    return run


def fill(config: SplitConfig) -> Callable[..., None]:
    """``run(shared, tops, pitch, y, strides, N, K, first, run, tall, output)``: y's values of a block's positions, cut.

    Positions are ``pitch`` bytes from each other, those of a column neighbours; ``y``: the group's. A thread has what a lane
    takes of a position, neighbours neighbouring columns.
    """
    tiles, own, threads, one = config.tiles, 2 * config.tiles, LANES * config.warps, load("float32", "float32")
    held, words, of_slot, write, cut_all = (
        4 * own,
        4 * tiles * WORDS,
        config.of_y,
        write_at("int32", 4),
        _cut_all(tiles),
    )

    @device
    def bring(shared, tops, pitch, y, strides, N, K, run, tall, output):  # type: ignore[no-untyped-def]
        top, a, line = cuda.local.array(held, f32), cuda.local.array(words, WORD), cuda.local.array(4, WORD)
        wide, steps = i32(run[1] - run[0]), i32((K + PIECE - 1) // PIECE)
        positions = i32(wide * tall)
        for i in range(i32(cuda.threadIdx.x), i32(positions * steps * LANES), threads):
            rest = i32(u32(i) // u32(positions))
            place, lane, step = i32(i - rest * positions), i32(rest % LANES), i32(rest // LANES)
            row = i32(u32(place) // u32(wide))
            column = i32(place - row * wide)
            strip = i32(u32(run[0] + column) // u32(output[1]))
            p, q = i32(strip * tall + row), i32(run[0] + column - strip * output[1])
            at = y + (i64(min(p, i32(output[0] - 1))) * strides[2] + i64(q) * strides[3]) * SIZE
            n, k = i32((lane >> 2) * own), i32(step * PIECE + 2 * (lane & 3))
            for f in range(4):
                further = f // 2 * 8 + f % 2
                from_filter = at + i64(min(i32(k + further), i32(K - 1))) * strides[1] * SIZE
                for e in range(own):
                    top[f * own + e] = one(from_filter + i64(min(i32(n + e), i32(N - 1))) * strides[0] * SIZE)
            for f in range(4):
                for e in range(own):
                    there = k + (f // 2 * 8 + f % 2) < K and n + e < N
                    top[f * own + e] = top[f * own + e] if there else f32(0)
            cut_all(top, a)
            to = i32(tops + (column * tall + row) * pitch + step * of_slot + lane * 16)
            for m in range(WORDS * tiles):
                for e in range(4):
                    line[e] = a[4 * m + e]
                write(line, i32(0), shared, i32(to + m * 512))

    return bring


def turn(images: int) -> Callable[..., None]:
    tiles, own, element, pitch = images // 16, images // 8, ELEMENT["float32"], images + 4
    of_pixel, read, one, write = PIECE * pitch + 4, read_at("float32", own), load("float32", "float32"), store_words(4)
    once = images * PIXELS * PIECE // TURNERS
    room, held, words, fours = PIXELS * of_pixel, 4 * own, 4 * tiles * WORDS, write_at("float32", 4)
    cut_all, warps, of_slot = _cut_all(tiles), TURNERS // LANES, WORDS * tiles * 512

    @device
    def position_of(pixel, wide, strides):  # type: ignore[no-untyped-def]
        row = i32(u32(pixel) // u32(wide))
        return i64(row) * strides[2] + i64(pixel - row * wide) * strides[3]

    def kernel(y, space, N, K, steps, pixels, wide, strides):  # type: ignore[no-untyped-def]
        let_next_start()
        shared, got = cuda.shared.array(room, element), cuda.local.array(once, f32)
        top, a, line = cuda.local.array(held, f32), cuda.local.array(words, WORD), cuda.local.array(4, WORD)
        thread, tiles_of_pixels = i32(cuda.threadIdx.x), i32((pixels + PIXELS - 1) // PIXELS)
        part = i32(u32(cuda.blockIdx.x) // u32(tiles_of_pixels))
        start = i32((cuda.blockIdx.x - part * tiles_of_pixels) * PIXELS)
        group = i32(u32(part) // u32(steps))
        step = i32(part - group * steps)
        begin = i32(shared_address(shared))
        place, filters = i32(thread % PIXELS), i32(thread // PIXELS % PIECE)
        n0 = i32(thread // (PIXELS * PIECE) * once)
        k = i32(step * PIECE + filters)
        there = k < K and start + place < pixels
        at = position_of(min(i32(start + place), i32(pixels - 1)), wide, strides)
        at = y + (at + i64(group * K + min(k, i32(K - 1))) * strides[1]) * SIZE
        for n in range(once):
            got[n] = one(at + i64(min(i32(n0 + n), i32(N - 1))) * strides[0] * SIZE)
        for n in range(once):
            got[n] = got[n] if there and n0 + n < N else f32(0)
        for n in range(0, once, 4):
            fours(got, i32(n), shared, i32(begin + (place * of_pixel + filters * pitch + n0 + n) * SIZE))
        cuda.syncthreads()
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        for i in range(warp, min(i32(PIXELS), i32(pixels - start)), warps):
            at_y = i32(begin + (i * of_pixel + (lane & 3) * (2 * pitch) + (lane >> 2) * own) * SIZE)
            for f in range(4):
                read(top, i32(f * own), shared, i32(at_y + (f // 2 * 8 + f % 2) * (pitch * SIZE)))
            cut_all(top, a)
            target = space + (i64(group * pixels + start + i) * steps + step) * of_slot + lane * 16
            for m in range(WORDS * tiles):
                for e in range(4):
                    line[e] = a[4 * m + e]
                write(line, i32(0), target + m * 512)

    return kernel
