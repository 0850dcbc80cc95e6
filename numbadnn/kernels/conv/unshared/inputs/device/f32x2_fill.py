"""Split y for ``device/f32x2.py`` into two float16 in shared memory, in the order in which lanes multiply.

    position, 16 filters:   [upper, lower half][16 images][lane][two pairs of filters][two images]
                            [two images] the inverses of their scales, each that of an image's 16 filters here, as bfloat16

A few warps do this, 16 filters after 16 of row after row of positions, into one of a few buffers; ``AHEAD`` steps of each are
under way: each thread copies what it will read itself, so the copies need neither registers nor barriers. A lane has two images
and four filters. Past the last image and filter there are zeros.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.device.f32x2_cut import marked
from numbadnn.kernels.conv.unshared.inputs.f32x2_config import (
    AHEAD,
    FILLERS,
    LANES,
    PARTS,
    PIECE,
    InputsF32x2Config,
)
from numbadnn.kernels.lang.async_copies import commit_async, copy_or_zero, sync_warp, wait_async_but
from numbadnn.kernels.lang.cuda import WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.hopper import barrier_arrive, barrier_wait
from numbadnn.kernels.lang.ptx import thread_here
from numbadnn.kernels.lang.scaled_halves import NOTHING, common_scale, extremes, halve_pair, widest
from numbadnn.kernels.lang.warp import largest_of_four
from numbadnn.kernels.lang.words import read_at, write_at

#: bytes of an element; filters that a lane has of a piece, images
SIZE, FILTERS, PAIR = 4, 4, 2


def filling(config: InputsF32x2Config) -> Callable[..., None]:
    """``fill(shared, raw, tops, y, strides, N, K, rows, spread, full)``: all rows of a block's positions, by a warp.

    ``raw``: where its copies go; ``tops``: where the buffers begin; ``y``: the first position's. ``full``:
    the barriers that say that a buffer is full; behind them are those that say it is empty.
    """
    positions, vec, tiles, chunks, first = config.positions, config.vec, config.tiles, config.chunks, config.padded + 1
    copy, wait, read_one = copy_or_zero(4 * vec), wait_async_but(AHEAD - 1), read_at("int32", 1)
    write, write_one, held = write_at("int32", 4), write_at("int32", 1), PAIR * FILTERS
    to_inverses, of_y, of_lane, of_item = PARTS * tiles * 512, config.of_y, positions * SIZE, config.raw_bytes

    @device
    def cut(words, got, j, spread):
        """words[j::2] = an image's upper float16 parts, two pairs of filters, and its lower ones; the inverse of their scale."""
        top, low = u32(NOTHING[0]), u32(NOTHING[1])
        for f in range(FILTERS):
            top, low = widest(got[j * FILTERS + f], top, low)
        most, least = extremes(top, low)
        scale, inverse, limit = common_scale(largest_of_four(most), largest_of_four(least), spread)
        for pair in range(2):
            x0, x1 = got[j * FILTERS + 2 * pair], got[j * FILTERS + 2 * pair + 1]
            halve_pair(words, i32(2 * pair + j), i32(4), x0, x1, scale)
            words[2 * pair + j] = marked(u32(words[2 * pair + j]), x0, x1, limit)
        return inverse

    @device
    def begin(shared, to, item, steps, y, strides, N, K, rows):
        """A step's copies, or none behind the last one: 16 images and filters of a row of positions."""
        lane = i32(thread_here() % LANES)
        m, rest = i32(item % tiles), i32(item // tiles)
        row = i32(u32(rest) // u32(steps))
        image, k = i32(PAIR * ((lane >> 2) * tiles + m)), i32((rest - row * steps) * PIECE + (lane & 3))
        if row < rows:
            for j in range(PAIR):
                for f in range(FILTERS):
                    n, filter_here = i32(image + j), i32(k + FILTERS * f)
                    there = n < N and filter_here < K
                    at = i64(n) * strides[0] + i64(filter_here) * strides[1] + i64(row) * strides[2]
                    source = y + (at if there else i64(0)) * SIZE
                    for e in range(0, positions, vec):
                        step = i64(e) * strides[3] * SIZE
                        start = i32(to + (j * FILTERS + f) * (LANES * of_lane) + e * SIZE)
                        copy(shared, start, source + (step if there else i64(0)), there)
        commit_async()

    @device
    def fill(shared, raw, tops, y, strides, N, K, rows, spread, full):
        got, words = cuda.local.array(held, WORD), cuda.local.array(8, WORD)
        line, one = cuda.local.array(4, WORD), cuda.local.array(1, WORD)
        thread = i32(thread_here())
        lane, own = i32(thread & 31), i32((thread >> 5) - first)
        steps = i32(u32(K + PIECE - 1) // u32(PIECE))
        item, here = own, i32(raw + lane * of_lane)
        for u in range(AHEAD):
            begin(shared, i32(here + u * of_item), i32(item + u * FILLERS), steps, y, strides, N, K, rows)
        slot, place, parity = i32(0), i32(0), i32(1)
        for chunk in range(rows * steps):
            barrier_wait(u32(full + 8 * (chunks + place)), u32(parity))
            while item < (chunk + 1) * tiles:
                wait()
                m = i32(item - chunk * tiles)
                image = i32(PAIR * ((lane >> 2) * tiles + m))
                for e in range(positions):
                    for i in range(held):
                        read_one(got, i32(i), shared, i32(here + slot * of_item + i * (LANES * of_lane) + e * SIZE))
                    inverse = u32(cut(words, got, 0, spread)) >> u32(16)
                    one[0] = u32(inverse | u32(cut(words, got, 1, spread)))
                    at = i32(tops + (place * positions + e) * of_y)
                    for half in range(PARTS):
                        for i in range(4):
                            line[i] = words[4 * half + i]
                        write(line, i32(0), shared, i32(at + (half * tiles + m) * 512 + lane * 16))
                    if lane & 3 == 0:
                        write_one(one, i32(0), shared, i32(at + to_inverses + image * 2))
                next_item = i32(item + AHEAD * FILLERS)
                begin(shared, i32(here + slot * of_item), next_item, steps, y, strides, N, K, rows)
                item, slot = i32(item + FILLERS), i32(0) if slot == AHEAD - 1 else i32(slot + 1)
            sync_warp()
            if lane == 0:
                barrier_arrive(u32(full + 8 * place))
            parity = i32(parity ^ 1) if place == chunks - 1 else parity
            place = i32(0) if place == chunks - 1 else i32(place + 1)

    return fill
