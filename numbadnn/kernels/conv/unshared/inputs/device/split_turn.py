"""y for ``device/split.py``, cut into bfloat16: of a position and 16 filters what a warp's lanes take, as they take it.

    y  [image][filter][position]  ->  8 positions in shared memory  ->  space [group][position][16 filters][word][lane]

Of a number that is not the sum of its three words the first is NaN, and so is what sees it.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.inputs.split_config import LANES, PIECE, PIXELS, TURNERS, WORDS, SplitConfig
from numbadnn.kernels.lang.async_copies import sync_warp
from numbadnn.kernels.lang.cuda import ELEMENT, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.hopper import barrier_arrive
from numbadnn.kernels.lang.packed import load_where, store_words
from numbadnn.kernels.lang.ptx import let_next_start, quotient
from numbadnn.kernels.lang.split import LEFT
from numbadnn.kernels.lang.split import split_pair as cut
from numbadnn.kernels.lang.words import read_at, shared_address, write_at

#: bytes of an element; what says that a number could not be cut; loads of lanes under way where a block cuts
SIZE, NOT_A_PAIR, AHEAD = 4, 0x7FFF7FFF, 3


def _cut_tile(own: int) -> Callable[..., None]:
    """``run(top, first, a)``: ``a`` = the words of a product's images of a lane's four filters, [word][4].

    Of a filter there are ``own`` numbers, those of the two images begin at ``first``.
    """

    @device
    def run(top, first, a):
        for j in range(2):
            for h in range(2):
                at, to = first + 2 * h * own + j, i32(2 * h + j)
                left = cut(a, to, i32(4), top[at], top[at + own])
                a[to] = u32(NOT_A_PAIR) if left & u32(LEFT) else a[to]

    return run


def fill(config: SplitConfig) -> Callable[..., None]:
    """``run(shared, tops, pitch, y, strides, N, K, run, tile, output, by, asked)``: y's values of a block's positions, cut.

    Positions are ``pitch`` bytes from each other, those of a column neighbours; ``y``: the group's. A thread has what a lane
    takes of a position for a product, neighbours neighbouring columns. Once the first loads are under way the barrier ``asked``
    is told: what prefetches filters may go on, behind these loads in memory's queue. ``by``: reciprocals of how many positions,
    columns of them, and columns of y there are.
    """
    tiles, own, threads = config.tiles, 2 * config.tiles, LANES * config.warps
    one = load_where("float32", 1, "float32", 0.0)
    of_slot, write, cut_tile, held, words = config.of_y, write_at("int32", 4), _cut_tile(2), 8 * AHEAD, 4 * WORDS

    @device
    def where(i, positions, places, by):
        """(row and column of the position; product; lane; piece of filters)"""
        rest = quotient(i, by[0])
        row = quotient(i32(i - rest * positions), by[1])
        lane = i32(u32(rest) // u32(tiles))
        return (
            row,
            i32(i - rest * positions - row * places),
            i32(u32(rest) % u32(tiles)),
            i32(lane & 31),
            i32(lane >> 5),
        )

    @device
    def take(top, to, i, positions, y, strides, N, K, run, tile, output, by):
        row, column, m, lane, step = where(i, positions, tile[1], by)
        strip = quotient(i32(run[0] + column), by[2])
        p, q = i32(strip * tile[0] + row), i32(run[0] + column - strip * output[1])
        n, k = i32((lane >> 2) * own + 2 * m), i32(step * PIECE + 2 * (lane & 3))
        there = run[0] + column < run[1] and p < output[0]
        at = y + (i64(n) * strides[0] + i64(k) * strides[1] + i64(p) * strides[2] + i64(q) * strides[3]) * SIZE
        for f in range(4):
            further = f // 2 * 8 + f % 2
            for e in range(2):
                source = at + (further * strides[1] + e * strides[0]) * SIZE
                one(top, i32(to + f * 2 + e), source, there and k + further < K and n + e < N)

    @device
    def bring(shared, tops, pitch, y, strides, N, K, run, tile, output, by, asked):
        top, a, line = cuda.local.array(held, f32), cuda.local.array(words, WORD), cuda.local.array(4, WORD)
        positions, begin = i32(tile[0] * tile[1]), i32(cuda.threadIdx.x)
        count = i32(positions * ((K + PIECE - 1) // PIECE) * (LANES * tiles))
        first = begin
        while first < count or first == begin:
            for u in range(AHEAD):
                i = min(i32(first + u * threads), i32(count - 1))
                take(top, i32(8 * u), i, positions, y, strides, N, K, run, tile, output, by)
            if first == begin:
                sync_warp()
                if begin & 31 == 0:
                    barrier_arrive(u32(asked))
            for u in range(AHEAD):
                if first + u * threads < count:
                    row, column, m, lane, step = where(i32(first + u * threads), positions, tile[1], by)
                    cut_tile(top, i32(8 * u), a)
                    to = i32(tops + (column * tile[0] + row) * pitch + step * of_slot + m * 512 + lane * 16)
                    for word in range(WORDS):
                        for e in range(4):
                            line[e] = a[4 * word + e]
                        write(line, i32(0), shared, i32(to + word * (tiles * 512)))
            first = i32(first + AHEAD * threads)

    return bring


def turn(images: int) -> Callable[..., None]:
    """A block has ``PIXELS`` positions of a piece of filters: of all images, which a thread reads of one and a filter."""
    tiles, own, element, pitch = images // 16, images // 8, ELEMENT["float32"], images + 4
    of_pixel, read, one = PIECE * pitch + 4, read_at("float32", own), load_where("float32", 1, "float32", 0.0)
    write = store_words(4)
    once = images * PIXELS * PIECE // TURNERS
    room, held, words, fours = PIXELS * of_pixel, 4 * own, 4 * WORDS, write_at("float32", 4)
    cut_tile, warps, of_slot = _cut_tile(own), TURNERS // LANES, WORDS * tiles * 512

    def kernel(y, space, N, K, steps, pixels, wide, by_width, strides):
        let_next_start()
        shared, got = cuda.shared.array(room, element), cuda.local.array(once, f32)
        top, a, line = cuda.local.array(held, f32), cuda.local.array(words, WORD), cuda.local.array(4, WORD)
        thread, step, group = i32(cuda.threadIdx.x), i32(cuda.blockIdx.y), i32(cuda.blockIdx.z)
        start, begin = i32(cuda.blockIdx.x * PIXELS), i32(shared_address(shared))
        place, filters = i32(u32(thread) % u32(PIXELS)), i32(u32(thread) // u32(PIXELS) % u32(PIECE))
        n0, k = i32(u32(thread) // u32(PIXELS * PIECE) * u32(once)), i32(step * PIECE + filters)
        pixel = i32(start + place)
        row = quotient(pixel, by_width)
        at = y + (i64(n0) * strides[0] + i64(group * K + k) * strides[1] + i64(row) * strides[2]) * SIZE
        at = at + i64(pixel - row * wide) * strides[3] * SIZE
        have = i32(N - n0) if k < K and pixel < pixels else i32(0)
        for n in range(once):
            one(got, i32(n), at, n < have)
            at = at + strides[0] * SIZE
        for n in range(0, once, 4):
            fours(got, i32(n), shared, i32(begin + (place * of_pixel + filters * pitch + n0 + n) * SIZE))
        cuda.syncthreads()
        lane, warp = i32(thread & 31), i32(thread >> 5)
        for i in range(warp, min(i32(PIXELS), i32(pixels - start)), warps):
            at_y = i32(begin + (i * of_pixel + (lane & 3) * (2 * pitch) + (lane >> 2) * own) * SIZE)
            for f in range(4):
                read(top, i32(f * own), shared, i32(at_y + (f // 2 * 8 + f % 2) * (pitch * SIZE)))
            target = space + (i64(group * pixels + start + i) * steps + step) * of_slot + lane * 16
            for m in range(tiles):
                cut_tile(top, i32(2 * m), a)
                for word in range(WORDS):
                    for e in range(4):
                        line[e] = a[4 * word + e]
                    write(line, i32(0), target + (word * tiles + m) * 512)

    return kernel
