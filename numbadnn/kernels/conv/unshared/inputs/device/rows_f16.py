"""The product that a lane of ``device/rows.py`` computes for 16-bit types: tensor cores, 16 images, eight channels.

At a position and a tap of it: the filters are read as they lie, two of a pair by two reads; y's values as the lanes take them.
Sums leave as the lanes have them: ``device/rows_reduce.py`` says where they lie.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.inputs.rows_config import Parts
from numbadnn.kernels.conv.unshared.inputs.rows_sizes import EIGHT, FRAGMENT, LANES, NEAR, ROWS, RowsConfig
from numbadnn.kernels.lang.access import store_vector
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import INT32, WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.words import funnel, permute, read_at, write_at

#: bytes of an element and of a sum
SIZE, ITEM = 2, 4


@device
def _filter_of(lane, pair):
    """The first of a lane's four filters of 16; the others are its ``pair``, 1, 2 or 4 further, and both 8 further."""
    low, high = (1 if pair != 1 else 2), (4 if pair != 4 else 2)
    return i32((lane & 1) * low + (lane >> 1 & 1) * high)


def _fill(config: RowsConfig) -> Callable[..., None]:
    """``fill(shared, tops, pitch, y, strides, N, K, positions, wide)``: y's values as [position][16 filters][16 images][lane].

    A thread has four filters of all images of a lane, two lanes in turn, neighbours neighbouring positions; the loads of
    both stand before its stores.
    """
    half, write, threads, tiles = load_bits(SIZE), write_at("int32", 4), LANES * config.warps, config.tiles
    steps, vectors = config.steps, -(-config.kept // EIGHT)
    at_once, each = 2, 4 * vectors
    held_by, pair = at_once * each, config.pair

    @device
    def fill(shared, tops, pitch, y, strides, N, K, positions, wide):
        held, words = cuda.local.array(held_by, WORD), cuda.local.array(4, WORD)
        count = i32(positions * steps * LANES)
        for begin in range(i32(cuda.threadIdx.x), count, at_once * threads):
            for j in range(at_once):
                i = min(i32(begin + j * threads), i32(count - 1))
                rest = i32(u32(i) // u32(positions))
                place, lane, s = i32(i - rest * positions), i32(rest % LANES), i32(rest // LANES)
                down = i32(u32(place) // u32(wide))
                source = y + (down * strides[2] + (place - down * wide) * strides[3]) * SIZE
                n, k = i32(lane >> 2), i32(s * ROWS + _filter_of(lane, pair))
                for f in range(4):
                    column = source + min(i32(k + f // 2 * 8 + f % 2 * pair), i32(K - 1)) * strides[1] * SIZE
                    for e in range(vectors):
                        held[j * each + e * 4 + f] = half(column + min(i32(n + 8 * e), i32(N - 1)) * strides[0] * SIZE)
            for j in range(at_once):
                i = i32(begin + j * threads)
                if i < count:
                    rest = i32(u32(i) // u32(positions))
                    place, lane, s = i32(i - rest * positions), i32(rest % LANES), i32(rest // LANES)
                    n, k = i32(lane >> 2), i32(s * ROWS + _filter_of(lane, pair))
                    for f in range(4):
                        for e in range(vectors):
                            if k + f // 2 * 8 + f % 2 * pair >= K or n + 8 * e >= N:
                                held[j * each + e * 4 + f] = u32(0)
                    to = i32(tops + place * pitch + s * (tiles * FRAGMENT) + lane * 16)
                    for m in range(tiles):
                        for e in range(4):  # two filters of image n, of n + 8, then the later two
                            at = j * each + (2 * m + e % 2) * 4 + e // 2 * 2
                            words[e] = u32(held[at] | (held[at + 1] << u32(16))) if 2 * m + e % 2 < vectors else u32(0)
                        write(words, i32(0), shared, i32(to + m * FRAGMENT))

    return fill


def parts(dtype: str, config: RowsConfig) -> Parts:
    taps, flip, kept, tiles, columns = config.taps[1], config.flip, config.kept, config.tiles, config.columns
    ragged, pair, transposed, of_filter = config.ragged, config.pair, config.transposed, config.of_filter
    read_transposed, low, high = load_matrices(True), 1 if config.pair != 1 else 2, 4 if config.pair != 4 else 2
    of_column, a_words, vec = 4 * tiles, 4 * tiles, 4 if kept > EIGHT else 2
    line, together, apart = config.line, 2 if kept > EIGHT else 4, 4 // NEAR
    planes = max(1, kept // 4) * apart
    words = taps // 2 + 1  # that hold a row of taps, wherever in the first it begins
    held_by, read_one = 4 * words, read_at("int32", 1)
    read, multiply_add, store_lane = read_at("int32", 4), product(dtype, ROWS), store_vector("float32", vec, "float32")

    @device
    def place(unit, pitch, have, of_channel):
        lane = i32(cuda.threadIdx.x % LANES)
        channel = min(i32(unit * EIGHT + (lane >> 2)), i32(have - 1))
        own_y = i32(lane * 16)
        if transposed:  # the row of a matrix that the lane says: a filter, and 8 images
            k = i32((lane >> 1 & 1) * low + (lane >> 2 & 1) * high + (lane & 1) * pair + (lane >> 4) * EIGHT)
            own_y = i32(k * of_filter + (lane >> 3 & 1) * 16)
        return i32(_filter_of(lane, pair) * pitch + channel * of_channel), own_y

    def multiply(first: int) -> Callable[..., None]:
        @device
        def run(total, shared, at_w, at_y, pitch, left, zeros):
            a, b, held = cuda.local.array(a_words, INT32), cuda.local.array(2, INT32), cuda.local.array(held_by, INT32)
            for m in range(tiles):
                if transposed:
                    read_transposed(a, i32(4 * m), shared, i32(at_y + m * 32))
                else:
                    read(a, i32(4 * m), shared, i32(at_y + m * FRAGMENT))
            odd = i32(at_w << 3 & 16)  # bits by which a row of taps begins within a word
            at_w = i32(at_w & ~3)
            k = _filter_of(i32(cuda.threadIdx.x % LANES), pair)
            for f in range(4):
                further = i32(f // 2 * EIGHT + f % 2 * pair)
                line = i32(at_w + further * pitch)
                if ragged:  # what lies in the ring past the last filter is no number of ours, and may be NaN
                    line = line if k + further < left else zeros
                for e in range(words):
                    read_one(held, i32(f * words + e), shared, i32(line + 4 * e))
            for f in range(4):
                for e in range(words):
                    at = f * words + e
                    held[at] = funnel(held[at], held[at + 1 if e + 1 < words else at], odd)
            for e in range(taps):
                t = taps - 1 - e if flip else e
                both = i32(0x7632 if t % 2 else 0x5410)  # the upper or the lower halves
                b[0] = permute(held[t // 2], held[words + t // 2], both)
                b[1] = permute(held[2 * words + t // 2], held[3 * words + t // 2], both)
                for m in range(tiles):
                    multiply_add(total, i32(first + e * of_column + 4 * m), a, i32(4 * m), b, i32(0))

        return run

    @device
    def write(total, space, unit, area, have):
        lane = i32(cuda.threadIdx.x % LANES)
        if lane < 4 * kept:
            g, t = i32(lane >> 2), i32(lane & 3)
            plane, at = i32(g // together * apart + t // NEAR), i32(t % NEAR * 16)
            if kept > EIGHT:  # an image of each half, and the one eight further
                at = i32(at + g % 2 * (16 * NEAR))
            elif kept > 1:  # two images of each half
                at = i32(at + g % 4 // 2 * (16 * NEAR) + g % 2 * 8)
            else:
                at = i32(t % NEAR * 8)
            to = space + i64(unit * planes + plane) * (area * line) + at
            for m in range(tiles):
                for v in range(columns):
                    store_lane(total, i32(v * of_column + 4 * m), to + v * line)
                to = to + i64(4 * apart * area) * line

    return Parts(_fill(config), place, multiply, write, of_column, tiles * FRAGMENT)
