"""What a lane of ``_unshared_inputs_rows`` multiplies of 16-bit types: products of tensor cores, 16 images and eight channels.

At a position and a tap of it: the filters are read as they lie, two of a pair by two reads; y's values as the lanes take them.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels._access import store
from numbadnn.kernels._bits import load_bits
from numbadnn.kernels._cuda import WORD, cuda, device, i32, i64, u32
from numbadnn.kernels._implicit_tiles import INT32
from numbadnn.kernels._implicit_tiles_halves import load_matrices
from numbadnn.kernels._implicit_tiles_words import funnel, permute, read_at, write_at
from numbadnn.kernels._mma import product
from numbadnn.kernels.unshared_inputs_rows import Parts
from numbadnn.kernels.unshared_inputs_rows_config import EIGHT, FRAGMENT, LANES, ROWS, RowsConfig

#: bytes of an element and of a sum
SIZE, ITEM = 2, 4


def _beside(config: RowsConfig) -> int:
    """How far the filters of neighbouring lanes are apart, 1 or 2; a lane's own pairs are 3 less that.

    A lane has four filters of 16: (lane & 1) * beside + (lane & 2) * 2, that one's pair, and both 8 further. Filters are four
    banks apart, channels half as many as they have taps: where that is whole eights, neighbouring lanes' must not be.
    """
    return 1 if config.taps[0] * config.taps[1] // 2 % 8 == 0 else 2


def _fill(config: RowsConfig) -> Callable[..., None]:
    """``fill(shared, tops, pitch, y, strides, N, K, places, wide)``: y's values as [position][16 filters][16 images][lane].

    A thread has four filters of all images of a lane, two lanes in turn, neighbours neighbouring positions; the loads of
    both stand before its stores.
    """
    half, write, threads, tiles = load_bits(SIZE), write_at("int32", 4), LANES * config.warps, config.tiles
    steps, lots = config.steps, -(-config.kept // EIGHT)
    at_once, each = 2, 4 * lots
    held_by, beside = at_once * each, _beside(config)
    pair = 3 - beside

    @device
    def fill(shared, tops, pitch, y, strides, N, K, places, wide):  # type: ignore[no-untyped-def]
        held, words = cuda.local.array(held_by, WORD), cuda.local.array(4, WORD)
        count = i32(places * steps * LANES)
        for begin in range(i32(cuda.threadIdx.x), count, at_once * threads):
            for j in range(at_once):
                i = min(i32(begin + j * threads), i32(count - 1))
                rest = i32(u32(i) // u32(places))
                place, lane, s = i32(i - rest * places), i32(rest % LANES), i32(rest // LANES)
                down = i32(u32(place) // u32(wide))
                source = y + (down * strides[2] + (place - down * wide) * strides[3]) * SIZE
                n, k = i32(lane >> 2), i32(s * ROWS + (lane & 1) * beside + (lane & 2) * 2)
                for f in range(4):
                    column = source + min(i32(k + f // 2 * 8 + f % 2 * pair), i32(K - 1)) * strides[1] * SIZE
                    for e in range(lots):
                        held[j * each + e * 4 + f] = half(column + min(i32(n + 8 * e), i32(N - 1)) * strides[0] * SIZE)
            for j in range(at_once):
                i = i32(begin + j * threads)
                if i < count:
                    rest = i32(u32(i) // u32(places))
                    place, lane, s = i32(i - rest * places), i32(rest % LANES), i32(rest // LANES)
                    n, k = i32(lane >> 2), i32(s * ROWS + (lane & 1) * beside + (lane & 2) * 2)
                    for f in range(4):
                        for e in range(lots):
                            if k + f // 2 * 8 + f % 2 * pair >= K or n + 8 * e >= N:
                                held[j * each + e * 4 + f] = u32(0)
                    to = i32(tops + place * pitch + s * (tiles * FRAGMENT) + lane * 16)
                    for m in range(tiles):
                        for e in range(4):  # two filters of image n, of n + 8, then the later two
                            at = j * each + (2 * m + e % 2) * 4 + e // 2 * 2
                            words[e] = u32(held[at] | (held[at + 1] << u32(16))) if 2 * m + e % 2 < lots else u32(0)
                        write(words, i32(0), shared, i32(to + m * FRAGMENT))

    return fill


def parts(dtype: str, config: RowsConfig) -> Parts:
    taps, flip, kept, tiles, columns = config.taps[1], config.flip, config.kept, config.tiles, config.columns
    ragged, beside, turned, of_filter = config.ragged, _beside(config), config.turned, config.of_filter
    read_turned = load_matrices(True)
    pair = 3 - beside
    of_column, a_words, lots_of_images = 4 * tiles, 4 * tiles, min(2, -(-kept // EIGHT))
    words = taps // 2 + 1  # that hold a row of taps, wherever in the first it begins
    held_by, read_one = 4 * words, read_at("int32", 1)
    read, multiply_add, store_one = read_at("int32", 4), product(dtype, ROWS), store("float32", "float32")

    @device
    def place(lot, pitch, have, of_channel):  # type: ignore[no-untyped-def]
        lane = i32(cuda.threadIdx.x % LANES)
        channel = min(i32(lot * EIGHT + (lane >> 2)), i32(have - 1))
        own_y = i32(lane * 16)
        if turned:  # the row of a matrix that the lane says: a filter, and 8 images
            k = i32((lane >> 1 & 1) * beside + (lane >> 2 & 1) * 4 + (lane & 1) * pair + (lane >> 4) * EIGHT)
            own_y = i32(k * of_filter + (lane >> 3 & 1) * 16)
        return i32(((lane & 1) * beside + (lane & 2) * 2) * pitch + channel * of_channel), own_y

    def multiply(first: int) -> Callable[..., None]:
        @device
        def run(total, shared, at_w, at_y, pitch, left, zeros):  # type: ignore[no-untyped-def]
            a, b, held = cuda.local.array(a_words, INT32), cuda.local.array(2, INT32), cuda.local.array(held_by, INT32)
            for m in range(tiles):
                if turned:
                    read_turned(a, i32(4 * m), shared, i32(at_y + m * 32))
                else:
                    read(a, i32(4 * m), shared, i32(at_y + m * FRAGMENT))
            odd = i32(at_w << 3 & 16)  # bits by which a row of taps begins within a word
            at_w = i32(at_w & ~3)
            k = i32(cuda.threadIdx.x % 2 * beside + cuda.threadIdx.x // 2 % 2 * 4)
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
    def write(total, space, lot, area, have):  # type: ignore[no-untyped-def]
        lane = i32(cuda.threadIdx.x % LANES)
        n, channel = i32(lane >> 2), i32(lot * EIGHT + 2 * (lane & 3))
        for c in range(2):
            if channel + c < have and n < kept:
                to = space + (i64((channel + c) * area) * kept + n) * ITEM
                for v in range(columns):
                    for m in range(tiles):
                        for e in range(lots_of_images):
                            store_one(to + (v * kept + m * 16 + e * 8) * ITEM, total[v * of_column + 4 * m + 2 * e + c])

    return Parts(_fill(config), place, multiply, write, of_column, tiles * FRAGMENT)
