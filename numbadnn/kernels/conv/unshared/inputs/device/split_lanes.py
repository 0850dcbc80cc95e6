"""What a lane of ``device/split.py`` multiplies: 16 filters at a position and a row of its taps, eight channels.

    A  images by filters     lane 4 g + t: ``own`` images from ``own`` g on, of filters 2 t, 2 t + 1 and both 8 further
    B  filters by channels   those filters' taps of channel g
    C  images by channels    lane 4 g + t: those images of channels 2 t and 2 t + 1, for each tap of the row another

y's values lie in shared memory cut into bfloat16 (``lang/split.py``), as lanes take them; filters as they are, cut in
registers. A tap's 16 products are summed by themselves, the least first, and then added, rounded, to the column's
total.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from numbadnn.kernels.conv.unshared.inputs.split_config import EIGHT, LANES, WORDS, SplitConfig
from numbadnn.kernels.lang.access import store_vector
from numbadnn.kernels.lang.cuda import INT32, WORD, cuda, device, f32, i32, u32
from numbadnn.kernels.lang.split import LEFT, multiply_split
from numbadnn.kernels.lang.split import split_pair as cut
from numbadnn.kernels.lang.words import read_at

#: bytes of an element; words that a number is cut into; filters that a lane has of a piece
SIZE, FILTERS = 4, 4


class Lanes(NamedTuple):
    """``place(lot, pitch, have, of_channel)``: where a lane begins in a piece's filters and in y's values.

    ``multiply(total, shared, at_w, at_y, pitch, count) -> bits``: adds to all columns what a row of taps of ``count`` filters,
    up to 16, gives; what was left of those it cut. ``put(total, v, to, channels, area, poison)``: writes a column's sums.
    """

    place: Callable[..., tuple[int, int]]
    multiply: Callable[..., int]
    put: Callable[..., None]


def lanes_of(config: SplitConfig) -> Lanes:
    taps, flip, tiles, own, ragged = config.taps[1], config.flip, config.tiles, 2 * config.tiles, config.ragged
    of_column = config.of_column
    words, of_a = 2 * WORDS, 4 * tiles * WORDS
    read, read_one, multiply_add = read_at("int32", 4), read_at("float32", 1), multiply_split(0, 4 * tiles, 2)
    store, images = store_vector("float32", own, "float32"), config.images

    @device
    def place(lot, pitch, have, of_channel):
        lane = i32(cuda.threadIdx.x % LANES)
        channel, k = min(i32(lot * EIGHT + (lane >> 2)), i32(have - 1)), i32(2 * (lane & 3))
        return i32(k * pitch + channel * of_channel), i32(lane * 16)

    def from_tap(e):
        """The taps from ``e`` on: a loop over them would leave the sums in memory."""
        at = (taps - 1 - e if flip else e) * SIZE

        @device
        def one(total, a, shared, lines, left):
            w, b, part = cuda.local.array(FILTERS, f32), cuda.local.array(words, WORD), cuda.local.array(of_column, f32)
            for f in range(FILTERS):
                read_one(w, i32(f), shared, i32(lines[f] + at))
            left = u32(left | cut(b, i32(0), i32(2), w[0], w[1]) | cut(b, i32(1), i32(2), w[2], w[3]))
            for i in range(of_column):
                part[i] = f32(0)
            for m in range(tiles):
                multiply_add(part, i32(4 * m), a, i32(4 * m), b, i32(0))
            for i in range(of_column):
                total[e * of_column + i] = f32(total[e * of_column + i] + part[i])
            return left

        if e + 1 == taps:
            return one
        rest = from_tap(e + 1)

        @device
        def run(total, a, shared, lines, left):
            return rest(total, a, shared, lines, one(total, a, shared, lines, left))

        return run

    multiply_taps = from_tap(0)

    @device
    def multiply(total, shared, at_w, at_y, pitch, count):
        a, k = cuda.local.array(of_a, INT32), i32(2 * (cuda.threadIdx.x & 3))
        for m in range(WORDS * tiles):
            read(a, i32(4 * m), shared, i32(at_y + m * 512))
        first, second, third, fourth = i32(0), i32(1), i32(EIGHT), i32(EIGHT + 1)
        if ragged:  # past the last filter there is no number of ours: it is the last one's, times 0
            last = i32(count - 1 - k)
            first, second, third, fourth = min(first, last), min(second, last), min(third, last), min(fourth, last)
        lines = (
            i32(at_w + first * pitch),
            i32(at_w + second * pitch),
            i32(at_w + third * pitch),
            i32(at_w + fourth * pitch),
        )
        return u32(multiply_taps(total, a, shared, lines, u32(0)) & u32(LEFT))

    @device
    def put(total, v, to, channels, area, poison):
        held = cuda.local.array(own, f32)
        for c in range(2):
            for n in range(own):
                held[n] = f32(total[v * of_column + 2 * n + c] + poison)
            if c < channels:
                store(held, i32(0), to + c * area * (images * SIZE))

    return Lanes(place, multiply, put)
