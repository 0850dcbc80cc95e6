"""Images cut before ``_unshared_twofold``: their scale, and then [channel, row, column][half][image], 128 bytes a pixel.

    largest   some of x  ->  the greatest number of each block's share
    turn      x  ->  halves of 64 pixels in shared memory  ->  space

Of large images the scale is that of lines all over them: to read all before all is read again took a tenth of the whole time. A
number that is too large for it is infinite in halves, and what sees it no finite result, which is summed anew.

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
from numbadnn.kernels._scaled_halves import common_scale
from numbadnn.kernels._unshared_twofold_cut import EIGHT, HEADROOM, ONE, cut_images, usual
from numbadnn.kernels._unshared_twofold_lanes import key_of
from numbadnn.kernels._warp import largest_of_warp
from numbadnn.kernels.unshared_twofold import INVERSE, LANES, PIXEL, SEARCHERS, SHARES, TURNED_PIXELS, TURNERS

#: bytes of an element; that there may be a number as small as can be, as ``extremes`` says it
SIZE, LEAST = 4, 0x7FFFFFFE


def largest_of_block(warps: int) -> Callable[..., int]:
    """``agree(shared, told, top)``: the greatest of all threads of ``warps``, which ``told`` words on tell each other."""
    meet = meet_of(LANES * warps)

    @device
    def agree(shared, told, top):  # type: ignore[no-untyped-def]
        thread, top = i32(cuda.threadIdx.x), largest_of_warp(top)
        if thread & (LANES - 1) == 0:
            shared[i32(told + (thread >> 5))] = u32(top)
        meet(i32(1))
        for i in range(warps):
            top = max(top, i32(shared[i32(told + i)]))
        return top

    return agree


def largest(vec: int) -> Callable[..., None]:
    """Of every ``every``-th line of a warp; ``vec`` numbers of an access; x is dense."""
    read, read_one, write = load_words(4), load_bits(SIZE), store_bits(SIZE)
    warps = SEARCHERS // LANES
    agree = largest_of_block(warps)

    def kernel(x, space, count, every):  # type: ignore[no-untyped-def]
        let_next_start()
        shared, got = cuda.shared.array(warps, WORD), cuda.local.array(vec, WORD)
        lane, line = i32(cuda.threadIdx.x % LANES), i32((cuda.blockIdx.x * SEARCHERS + cuda.threadIdx.x) // LANES)
        i, top = i32(line * every * LANES + lane), u32(0)
        if i < count:
            if vec > 1:
                read(got, i32(0), x + i64(i) * (vec * SIZE))
            else:
                got[0] = read_one(x + i64(i) * SIZE)
            for e in range(vec):
                top = max(top, u32(usual(got[e]) << u32(1)))
        most = agree(shared, i32(0), i32(top >> u32(1)))
        if cuda.threadIdx.x == 0:
            write(space + i64(cuda.blockIdx.x) * SIZE, u32(most))

    return kernel


def turn() -> Callable[..., None]:
    """Blocks stay: while one's pixels are written, the next ones are under way."""
    read, write, warps = load_bits(SIZE), store_words(4), TURNERS // LANES
    agree, put, take, tell = largest_of_block(warps), write_at("int32", 4), read_at("int32", 4), store_bits(SIZE)
    turns, room = TURNED_PIXELS * PIXEL // (16 * TURNERS), TURNED_PIXELS * PIXEL // SIZE + warps

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
        top = i32(0)
        for i in range(thread, SHARES, TURNERS):
            top = max(top, i32(read(space + i64(i) * SIZE)))
        top = agree(shared, i32(TURNED_PIXELS * PIXEL // SIZE), top)
        top = i32((top if top > 0 else i32(ONE)) + HEADROOM)  # others may be larger: that many times, and they fit
        scale, inverse, limit = common_scale(top, i32(LEAST), spread)
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
