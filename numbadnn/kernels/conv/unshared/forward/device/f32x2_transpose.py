"""Split images into two float16 before ``device/f32x2.py``: [channel, row, column][part][image], 128 bytes a pixel.

    x  ->  float16 parts of 64 pixels in shared memory  ->  space

The scale is that of some numbers all over the images, the same for every block: to look at all of them first took a tenth of the
whole time. A number that is too large for it is infinite in float16, and what sees it no finite result, which is summed anew.

What follows starts early, and has prefetched filters when the last block here is done.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.device.f32x2_cut import EIGHT, ONE, cut_images, usual
from numbadnn.kernels.conv.unshared.forward.device.f32x2_lanes import key_of
from numbadnn.kernels.conv.unshared.forward.f32x2_config import (
    INVERSE,
    LANES,
    LOOKS,
    PIXEL,
    TRANSPOSED_PIXELS,
    TRANSPOSERS,
)
from numbadnn.kernels.lang.async_copies import meet_of
from numbadnn.kernels.lang.bits import load_bits, store_bits
from numbadnn.kernels.lang.cuda import WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.packed import load_words, store_words
from numbadnn.kernels.lang.ptx import let_next_start, quotient
from numbadnn.kernels.lang.scaled_halves import common_scale
from numbadnn.kernels.lang.warp import largest_of_warp
from numbadnn.kernels.lang.words import read_at, shared_address, write_at

#: bytes of an element; that there may be a number as small as can be, as ``extremes`` says it
SIZE, LEAST = 4, 0x7FFFFFFE
#: how much larger than those that were looked at others may be, and have room
HEADROOM = 4 << 23


def largest_of_block(warps: int) -> Callable[..., int]:
    """``agree(shared, maxima, top)``: the greatest of all threads of ``warps``, which ``maxima`` words on tell each other."""
    meet = meet_of(LANES * warps)

    @device
    def agree(shared, maxima, top):
        thread, top = i32(cuda.threadIdx.x), largest_of_warp(top)
        if thread & (LANES - 1) == 0:
            shared[i32(maxima + (thread >> 5))] = u32(top)
        meet(i32(1))
        for i in range(warps):
            top = max(top, i32(shared[i32(maxima + i)]))
        return top

    return agree


def _looking(vec: int) -> Callable[..., int]:
    """``look(x, count, every)``: the greatest of a thread's share of some numbers; x is dense, ``vec`` of it an access.

    Four neighbours' accesses follow each other, ``every`` times as many lie between theirs and the next ones'.
    """
    read, read_one, held = load_words(4), load_bits(SIZE), LOOKS * vec

    @device
    def look(x, count, every):
        got, top = cuda.local.array(held, WORD), u32(0)
        for u in range(LOOKS):
            i = i32(cuda.threadIdx.x + u * TRANSPOSERS)
            at = x + i64(min(i32((i & ~3) * every + (i & 3)), i32(count - 1))) * (vec * SIZE)
            if vec > 1:
                read(got, i32(u * vec), at)
            else:
                got[u] = read_one(at)
        for e in range(held):
            top = max(top, u32(usual(got[e]) << u32(1)))
        return i32(top >> u32(1))

    return look


def transpose(vec: int) -> Callable[..., None]:
    """Blocks stay: while one's pixels are written, the next ones are under way."""
    read, write, warps, look = load_bits(SIZE), store_words(4), TRANSPOSERS // LANES, _looking(vec)
    agree, store, take, store_word = (
        largest_of_block(warps),
        write_at("int32", 4),
        read_at("int32", 4),
        store_bits(SIZE),
    )
    turns, capacity = TRANSPOSED_PIXELS * PIXEL // (16 * TRANSPOSERS), TRANSPOSED_PIXELS * PIXEL // SIZE + warps

    @device
    def prefetch(got, x, N, n0, pixel, by_height, by_width, image, taps, flip, strides):
        """Eight images of a pixel, and its key."""
        rest = quotient(pixel, by_width)
        v = i32(pixel - rest * image[1])
        c = quotient(rest, by_height)
        h = i32(rest - c * image[0])
        at = i64(c) * strides[1] + i64(h) * strides[2] + i64(v) * strides[3]
        for e in range(EIGHT):
            got[e] = read(x + (at + i64(min(i32(n0 + e), i32(N - 1))) * strides[0]) * SIZE)
        return i32(key_of(c, h, v, taps, flip) & 7)

    def kernel(x, space, transposed, count, every, N, pixels, by_height, by_width, image, taps, flip, spread, strides):
        let_next_start()
        shared, got = cuda.shared.array(capacity, WORD), cuda.local.array(EIGHT, WORD)
        words, line = cuda.local.array(EIGHT, WORD), cuda.local.array(4, WORD)
        thread, begin = i32(cuda.threadIdx.x), i32(shared_address(shared))
        place, vector = i32(thread % TRANSPOSED_PIXELS), i32(thread // TRANSPOSED_PIXELS)
        n0, start, hop = (
            i32(vector * EIGHT),
            i32(cuda.blockIdx.x * TRANSPOSED_PIXELS),
            i32(cuda.gridDim.x * TRANSPOSED_PIXELS),
        )
        first = min(i32(start + place), i32(pixels - 1))
        key = prefetch(got, x, N, n0, first, by_height, by_width, image, taps, flip, strides)
        top = agree(shared, i32(TRANSPOSED_PIXELS * PIXEL // SIZE), look(x, count, every))
        top = i32((top if top > 0 else i32(ONE)) + HEADROOM)
        scale, inverse, limit = common_scale(top, i32(LEAST), spread)
        if start == 0 and thread == 0:
            store_word(space + INVERSE, u32(inverse))
        while start < pixels:
            for e in range(EIGHT):
                got[e] = got[e] if n0 + e < N else u32(0)
            cut_images(words, got, i32(0), scale, limit)
            to = i32(begin + place * PIXEL)
            for half in range(2):
                for e in range(4):
                    line[e] = words[4 * half + e]
                store(line, i32(0), shared, i32(to + ((vector + 4 * half) ^ key) * 16))
            if start + hop < pixels:
                pixel = min(i32(start + hop + place), i32(pixels - 1))
                key = prefetch(got, x, N, n0, pixel, by_height, by_width, image, taps, flip, strides)
            cuda.syncthreads()
            for r in range(turns):
                own = i32((thread + r * TRANSPOSERS) * 16)
                if start + own // PIXEL < pixels:
                    take(line, i32(0), shared, i32(begin + own))
                    write(line, i32(0), transposed + i64(start) * PIXEL + own)
            cuda.syncthreads()
            start = i32(start + hop)

    return kernel
