"""The product that a lane of ``device/f32x2.py`` computes: 16 filters at a position, a column of taps, vectors of 8 channels.

    A  images by filters     lane 4 g + t: ``own`` images from ``own`` g on, of filters t, t + 4, t + 8 and t + 12
    B  filters by channels   those filters' taps of channel g
    C  images by channels    lane 4 g + t: those images of channels 2 t and 2 t + 1, for each tap of the column another

Which filters are a lane's is the same in A and B, and all the same to the sums: these meet all banks of shared memory.

Both are two float16 of a common scale (``lang/scaled_halves.py``): of y, in shared memory as lanes take them, an
image's 16 filters at a position have one; of filters, cut in registers, what a warp keeps as long as it fits. A tap's
16 products are summed by themselves, the least first, and then added, rounded, to the total.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from numbadnn.kernels.conv.unshared.forward.device.f32x2_cut import as_float, cutting
from numbadnn.kernels.conv.unshared.inputs.f32x2_config import EIGHT, LANES, PARTS, InputsF32x2Config
from numbadnn.kernels.lang.access import store_vector
from numbadnn.kernels.lang.cuda import INT32, WORD, cuda, device, f32, i32
from numbadnn.kernels.lang.mma import product
from numbadnn.kernels.lang.scaled_halves import APART
from numbadnn.kernels.lang.warp import some_of_warp
from numbadnn.kernels.lang.words import read_at

#: bytes of an element; filters that a lane has of a piece; taps that are cut together, at most
SIZE, FILTERS, TOGETHER = 4, 4, 4


class Lanes(NamedTuple):
    """``place(unit, pitch, have, of_channel)``: where a lane begins in a piece's filters, for each vector of channels.

    ``multiply(total, shared, at_w, shift, at_y, pitch, count, state, floor, spread) -> state``: adds to all rows what a column
    of taps of ``count`` filters, up to 16, gives; ``state``: the warp's scale of filters, and its inverse.
    ``store_row(total, v, to, have, area)``: writes a row's sums, of ``have`` channels from the lane's first on.
    """

    place: Callable[..., tuple[int, int]]
    multiply: Callable[..., tuple[int, float]]
    store_row: Callable[..., None]


def _pieces(taps: int) -> list[tuple[int, int]]:
    """(first, count) of the taps that are cut together.

    >>> _pieces(9), _pieces(5)
    ([(0, 3), (3, 3), (6, 3)], [(0, 3), (3, 2)])
    """
    parts = -(-taps // TOGETHER)
    starts = [-(-taps * i // parts) for i in range(parts + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(starts)]


def lanes_of(config: InputsF32x2Config) -> Lanes:
    (taps, wide), flip, tiles, vectors, own = config.taps, config.flip, config.tiles, config.vectors, 2 * config.tiles
    of_vector = config.of_vector
    read, read_one, multiply_add = read_at("int32", 4), read_at("int32", 1), product("float16", 16)
    read_inverses, of_a, ragged, images = read_at("int32", tiles), 4 * PARTS * tiles, config.ragged, config.images
    store, to_inverses = store_vector("float32", own, "float32"), PARTS * tiles * 512

    @device
    def place(unit, pitch, have, of_channel):
        lane = i32(cuda.threadIdx.x % LANES)
        channel, at = i32(unit * (vectors * EIGHT) + (lane >> 2)), i32((lane & 3) * pitch)
        first = i32(at + min(channel, i32(have - 1)) * of_channel)
        return first, i32(at + min(i32(channel + EIGHT * (vectors - 1)), i32(have - 1)) * of_channel)

    def from_tap(start: int, e: int, count: int) -> Callable[..., None]:
        """Taps from the e-th on of ``count`` cut together: a loop over them would leave the sums in memory."""

        @device
        def one(total, a, b, by):
            part = cuda.local.array(of_vector, f32)
            for i in range(of_vector):
                part[i] = f32(0)
            for m in range(tiles):
                multiply_add(part, i32(4 * m), a, i32(4 * m), b, i32(2 * (count + e)))
            for m in range(tiles):
                multiply_add(part, i32(4 * m), a, i32(4 * (tiles + m)), b, i32(2 * e))
            for i in range(of_vector):
                part[i] = f32(part[i] * f32(1 / APART))
            for m in range(tiles):
                multiply_add(part, i32(4 * m), a, i32(4 * m), b, i32(2 * e))
            for i in range(of_vector):
                total[start + i] = f32(total[start + i] + part[i] * by[i // 2])

        if e + 1 == count:
            return one
        rest = from_tap(start + vectors * of_vector, e + 1, count)

        @device
        def run(total, a, b, by):
            one(total, a, b, by)
            rest(total, a, b, by)

        return run

    def from_piece(pieces: list[tuple[int, int, int]]) -> Callable[..., tuple[int, float]]:
        """What vectors of channels and taps cut together give, one after the other."""
        vector, first, count = pieces[0]
        numbers = FILTERS * count
        (cut, choose, cut_within), multiply_taps = (
            cutting(numbers),
            from_tap((first * vectors + vector) * of_vector, 0, count),
        )

        @device
        def one(total, a, back, shared, at_w, shift, lines, scale, inverse, floor, spread):
            x, b, by = cuda.local.array(numbers, WORD), cuda.local.array(numbers, WORD), cuda.local.array(own, f32)
            start = i32(at_w[vector] + shift)
            for e in range(count):
                at = (taps - 1 - first - e if flip else first + e) * (wide * SIZE)
                for f in range(FILTERS):
                    read_one(x, i32(e * FILTERS + f), shared, i32(start + lines[f] + at))
            if some_of_warp(cut(b, x, scale, floor)) != 0:
                scale, inverse, limit = choose(x, scale, inverse, spread)
                cut_within(b, x, scale, limit)
            for n in range(own):
                by[n] = f32(back[n] * inverse)
            multiply_taps(total, a, b, by)
            return scale, inverse

        if len(pieces) == 1:
            return one
        rest = from_piece(pieces[1:])

        @device
        def run(total, a, back, shared, at_w, shift, lines, scale, inverse, floor, spread):
            scale, inverse = one(total, a, back, shared, at_w, shift, lines, scale, inverse, floor, spread)
            return rest(total, a, back, shared, at_w, shift, lines, scale, inverse, floor, spread)

        return run

    multiply_all = from_piece([(vector, *piece) for vector in range(vectors) for piece in _pieces(taps)])

    @device
    def multiply(total, shared, at_w, shift, at_y, pitch, count, state, floor, spread):
        a, got, back = cuda.local.array(of_a, INT32), cuda.local.array(tiles, INT32), cuda.local.array(own, f32)
        lane = i32(cuda.threadIdx.x % LANES)
        for m in range(PARTS * tiles):
            read(a, i32(4 * m), shared, i32(at_y + m * 512 + lane * 16))
        read_inverses(got, i32(0), shared, i32(at_y + to_inverses + (lane >> 2) * (tiles * SIZE)))
        for m in range(tiles):
            back[2 * m], back[2 * m + 1] = as_float(i32(got[m] << 16)), as_float(i32(got[m] & ~0xFFFF))
        first, second, third, fourth = i32(0), i32(4), i32(8), i32(12)
        if ragged:  # past the last filter there is no number of ours: it is the last one's, times 0
            last = i32(count - 1 - (lane & 3))
            first, second, third, fourth = min(first, last), min(second, last), min(third, last), min(fourth, last)
        lines = (i32(first * pitch), i32(second * pitch), i32(third * pitch), i32(fourth * pitch))
        return multiply_all(total, a, back, shared, at_w, shift, lines, state[0], state[1], floor, spread)

    @device
    def store_row(total, v, to, have, area):
        held = cuda.local.array(own, f32)
        for vector in range(vectors):
            for c in range(2):
                for n in range(own):
                    held[n] = f32(total[(v * vectors + vector) * of_vector + 2 * n + c])
                if vector * EIGHT + c < have:
                    store(held, i32(0), to + (vector * EIGHT + c) * area * (images * SIZE))

    return Lanes(place, multiply, store_row)
