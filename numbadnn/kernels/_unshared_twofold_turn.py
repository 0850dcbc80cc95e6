"""Images cut before ``_unshared_twofold``: their scale, and then [channel, row, column][half][image], 128 bytes a pixel.

    largest   x  ->  greatest and least number of each block's share
    turn      x  ->  halves of 64 pixels in shared memory  ->  space

Each starts while the one before it runs; what follows has asked for filters when the last block here is done.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels._async_copies import meet_of
from numbadnn.kernels._bits import load_bits, store_bits
from numbadnn.kernels._cuda import WORD, cuda, device, i32, i64, u32
from numbadnn.kernels._implicit_tiles_words import read_at, shared_address, write_at
from numbadnn.kernels._packed import load_words, store_words
from numbadnn.kernels._ptx import let_next_start, quotient, wait_for_previous
from numbadnn.kernels._scaled_halves import NOTHING, common_scale, extremes, widest
from numbadnn.kernels._unshared_twofold_cut import EIGHT, cut_images, usual
from numbadnn.kernels._unshared_twofold_lanes import key_of
from numbadnn.kernels._warp import largest_of_warp
from numbadnn.kernels.unshared_twofold import INVERSE, LANES, PIXEL, SEARCHERS, SHARES, TURNED_PIXELS, TURNERS

#: bytes of an element; accesses of a thread under way
SIZE, AHEAD = 4, 4


def largest_of_block(warps: int) -> Callable[..., tuple[int, int]]:
    """``agree(shared, told, top, low)``: the greatest of all threads of ``warps``, which ``told`` words on tell each other."""
    meet = meet_of(LANES * warps)

    @device
    def agree(shared, told, top, low):  # type: ignore[no-untyped-def]
        thread, top, low = i32(cuda.threadIdx.x), largest_of_warp(top), largest_of_warp(low)
        if thread & (LANES - 1) == 0:
            shared[i32(told + 2 * (thread >> 5))] = u32(top)
            shared[i32(told + 2 * (thread >> 5) + 1)] = u32(low)
        meet(i32(1))
        for i in range(warps):
            top, low = max(top, i32(shared[i32(told + 2 * i)])), max(low, i32(shared[i32(told + 2 * i + 1)]))
        return top, low

    return agree


def largest(vec: int) -> Callable[..., None]:
    """``vec`` numbers of an access; x is dense."""
    read, read_one, write, held = load_words(4), load_bits(SIZE), store_bits(SIZE), AHEAD * vec
    warps, hop = SEARCHERS // LANES, SHARES * SEARCHERS
    agree, room = largest_of_block(warps), 2 * warps

    def kernel(x, space, count):  # type: ignore[no-untyped-def]
        let_next_start()
        shared, got = cuda.shared.array(room, WORD), cuda.local.array(held, WORD)
        top, low = u32(NOTHING[0]), u32(NOTHING[1])
        for i in range(i32(cuda.blockIdx.x * SEARCHERS + cuda.threadIdx.x), count, i32(AHEAD * hop)):
            for u in range(AHEAD):
                at = x + i64(min(i32(i + u * hop), i32(count - 1))) * (vec * SIZE)
                if vec > 1:
                    read(got, i32(u * vec), at)
                else:
                    got[u] = read_one(at)
            for e in range(held):
                top, low = widest(usual(got[e]), top, low)
        first, second = extremes(top, low)
        first, second = agree(shared, i32(0), first, second)
        if cuda.threadIdx.x == 0:
            write(space + i64(cuda.blockIdx.x) * (2 * SIZE), u32(first))
            write(space + i64(cuda.blockIdx.x) * (2 * SIZE) + SIZE, u32(second))

    return kernel


def turn() -> Callable[..., None]:
    """Blocks stay: while one's pixels are written, the next ones are under way."""
    read, write, warps = load_bits(SIZE), store_words(4), TURNERS // LANES
    agree, put, take, tell = largest_of_block(warps), write_at("int32", 4), read_at("int32", 4), store_bits(SIZE)
    turns, room = TURNED_PIXELS * PIXEL // (16 * TURNERS), TURNED_PIXELS * PIXEL // SIZE + 2 * warps

    @device
    def ask(got, x, N, n0, pixel, by_height, by_width, image, taps, flip, strides):  # type: ignore[no-untyped-def]
        """Eight images of a pixel, and its key."""
        rest = quotient(pixel, by_width)
        v = i32(pixel - rest * image[1])
        c = quotient(rest, by_height)
        h = i32(rest - c * image[0])
        at = i64(c) * strides[1] + i64(h) * strides[2] + i64(v) * strides[3]
        for e in range(EIGHT):
            got[e] = read(x + (at + i64(min(i32(n0 + e), i32(N - 1))) * strides[0]) * SIZE)
        return i32(key_of(c, h, v, taps, flip) & 7)

    def kernel(x, space, turned, N, pixels, by_height, by_width, image, taps, flip, spread, strides):  # type: ignore[no-untyped-def]
        let_next_start()
        shared, got = cuda.shared.array(room, WORD), cuda.local.array(EIGHT, WORD)
        words, line = cuda.local.array(EIGHT, WORD), cuda.local.array(4, WORD)
        thread, begin = i32(cuda.threadIdx.x), i32(shared_address(shared))
        place, lot = i32(thread % TURNED_PIXELS), i32(thread // TURNED_PIXELS)
        n0, start, hop = i32(lot * EIGHT), i32(cuda.blockIdx.x * TURNED_PIXELS), i32(cuda.gridDim.x * TURNED_PIXELS)
        first = min(i32(start + place), i32(pixels - 1))
        key = ask(got, x, N, n0, first, by_height, by_width, image, taps, flip, strides)
        wait_for_previous()
        top, low = i32(0), i32(0)
        for i in range(thread, SHARES, TURNERS):
            top = max(top, i32(read(space + i64(i) * (2 * SIZE))))
            low = max(low, i32(read(space + i64(i) * (2 * SIZE) + SIZE)))
        top, low = agree(shared, i32(TURNED_PIXELS * PIXEL // SIZE), top, low)
        scale, inverse, limit = common_scale(top, low, spread)
        if start == 0 and thread == 0:
            tell(space + INVERSE, u32(inverse))
        while start < pixels:
            for e in range(EIGHT):
                got[e] = got[e] if n0 + e < N else u32(0)
            cut_images(words, got, i32(0), scale, limit)
            to = i32(begin + place * PIXEL)
            for half in range(2):
                for e in range(4):
                    line[e] = words[4 * half + e]
                put(line, i32(0), shared, i32(to + ((lot + 4 * half) ^ key) * 16))
            if start + hop < pixels:
                pixel = min(i32(start + hop + place), i32(pixels - 1))
                key = ask(got, x, N, n0, pixel, by_height, by_width, image, taps, flip, strides)
            cuda.syncthreads()
            for r in range(turns):
                own = i32((thread + r * TURNERS) * 16)
                if start + own // PIXEL < pixels:
                    take(line, i32(0), shared, i32(begin + own))
                    write(line, i32(0), turned + i64(start) * PIXEL + own)
            cuda.syncthreads()
            start = i32(start + hop)

    return kernel
