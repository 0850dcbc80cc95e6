"""Both gradients of the sampler for NHWC in one pass over image and dy.

Each pixel sums ``weight * dy`` over the records of the four cells around it: the gradient in the image. With the same vectors
of dy under way it sums ``pixel * dy`` over channels for each record: what the gradient in the grid needs of this pixel, one
dot a point and pixel, of which ``slope.finish`` makes slopes. So image and dy come from memory once.

    records of a pixel    r0  r1  r2  r3     (offset of dy, weight, place of the dot), noted in shared memory
    lane l of ``share``   channels l * vec ... of the pixel and of each record's dy:
                          dimg += weight[r] * dy[r],   dot[r] += pixel . dy[r]
    then the lanes meet: each gets the whole of some dots
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.access import store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.long_sums import compensated
from numbadnn.kernels.lang.packed import load_words, widen
from numbadnn.kernels.lang.ptx import let_next_start, wait_for_previous
from numbadnn.kernels.lang.warp import shuffle_xor
from numbadnn.kernels.spatial.device import point as _spatial_point
from numbadnn.kernels.spatial.device.gather import (
    dot_place,
    offset_by_point,
    records_of,
    records_of_pixel,
    starts_of_pixel,
    weight_by_side,
)
from numbadnn.kernels.spatial.device.point import INTEGER
from numbadnn.kernels.spatial.gradients import HELD, SharedGatherConfig
from numbadnn.problem import ITEMSIZE

#: records of a pixel that are fetched at once; further ones in pairs
BATCH = 4


def _meet(acc: str, lanes: int) -> Any:
    """``meet(dots, lane)``: of the totals over ``lanes`` neighbouring threads, lane l gets those from l * HELD // lanes on.

    While a thread has several dots it gives half of them away in a step and keeps the rest; then one exchange a step.
    """
    A, swap = ACCUMULATOR[acc], shuffle_xor(acc)
    levels = lanes.bit_length() - 1
    halvings = min(levels, HELD.bit_length() - 1)

    @device
    def meet(dots, lane):
        for level in range(halvings):
            far, half = lanes >> (level + 1), HELD >> (level + 1)
            high = (lane & far) != 0
            for e in range(HELD // 2):
                if e < half:
                    kept, given = (dots[half + e], dots[e]) if high else (dots[e], dots[half + e])
                    dots[e] = A(kept + swap(given, i32(far)))
        for level in range(halvings, levels):
            dots[0] = A(dots[0] + swap(dots[0], i32(lanes >> (level + 1))))

    return meet


def channels(dtype: str, acc: str, config: SharedGatherConfig) -> Callable[..., None]:
    """dimg and dots; ``config.share`` threads a pixel, ``config.channels`` neighbouring channels in one access.

    First a thread a pixel notes the first ``HELD`` of its records in shared memory, then some of no weight up to whole
    batches. What a pixel has beyond those is read where it lies; it may be very many, so that their sum is compensated.
    """
    A, R, size, record_size = ACCUMULATOR[acc], ACCUMULATOR[config.record], ITEMSIZE[dtype], 4 * ITEMSIZE[config.record]
    vec, threads, pixels, columns = config.channels, config.threads, config.columns * config.rows, config.columns
    share, dot_size = config.share, ITEMSIZE[acc]
    at_once = threads // share
    rounds = -(-pixels // at_once)
    words, nbytes, shift = vec * size // 4, vec * size, vec.bit_length() - 1
    read, convert, put = load_words(words), widen(dtype, vec, acc), store_vector(dtype, vec, acc)
    write, integer = store(acc, acc), _spatial_point.read_integer()
    locate, fetch, weight_of = _spatial_point.tile(columns, config.rows), records_of(acc, config), weight_by_side(acc)
    find, look, offset_of = starts_of_pixel(), records_of_pixel(acc, HELD, config), offset_by_point(config)
    place_of, meet = dot_place(), _meet(acc, share)
    swap, levels, (add, close) = shuffle_xor(acc), share.bit_length() - 1, compensated(acc)
    capacity, held_words = HELD * pixels, BATCH * words
    each, alone = max(HELD // share, 1), max(share // HELD, 1)  # dots a lane gets, and lanes that get the same

    def batch_of(count: int):  # type: ignore[no-untyped-def]
        @device
        def batch(first, noted, pixel, line, offsets, weights, raw, values, own, sums, dots):
            """The records from ``first`` on: all loads are under way before one is looked at."""
            if first < noted:
                at = u32(first * pixels + pixel)
                for q in range(count):
                    read(raw, i32(q * words), line + i64(offsets[u32(at + q * pixels)]) * nbytes)
                for q in range(count):
                    weight = weights[u32(at + q * pixels)]
                    convert(values, i32(0), raw, i32(q * words))
                    for e in range(vec):
                        dots[first + q] = A(dots[first + q] + values[e] * own[e])
                    if weight != 0:
                        for e in range(vec):
                            sums[e] = A(sums[e] + weight * values[e])

        return batch

    batch, pair = batch_of(BATCH), batch_of(2)

    @device
    def beyond(k, entry, next_entry, record, records, out_width, ys, points):
        """Of a record that is not noted: its offset in elements, its weight, and where its dot belongs."""
        upper = i32(integer(entry + 8) - integer(entry))
        below = k >= upper
        entry += next_entry if below else i64(0)
        where = i32(integer(entry) + k - (upper if below else i32(0)))
        left = where < integer(entry + 4)
        offset = fetch(record, records + i64(where) * record_size, out_width, ys)
        return offset, weight_of(record, left, below), place_of(record, left, below, points)

    def kernel(
        img, dy, dimg, work, dot, parts, across, down, vectors, height, width, out_height, out_width, xs, ys, ds
    ):
        offsets = cuda.shared.array(capacity, INTEGER)
        places = cuda.shared.array(capacity, WORD)
        weights = cuda.shared.array(capacity, A)
        counts = cuda.shared.array(pixels, INTEGER)
        most = cuda.shared.array(1, INTEGER)
        record = cuda.local.array(4, R)
        starts, pairs = cuda.local.array(6, INTEGER), cuda.local.array(HELD, INTEGER)
        noted_weights, dot_places = cuda.local.array(HELD, A), cuda.local.array(HELD, WORD)
        lines, numbers = cuda.local.array(HELD, INTEGER), cuda.local.array(HELD, INTEGER)
        sums, own, lost = cuda.local.array(vec, A), cuda.local.array(vec, A), cuda.local.array(vec, A)
        values, dots = cuda.local.array(vec, A), cuda.local.array(HELD, A)
        raw = cuda.local.array(held_words, WORD)
        records, points = work + parts[3], i64(out_height) * out_width
        thread = i32(cuda.threadIdx.x)
        left_column, top_row, _, n = locate(i32(0), i32(cuda.blockIdx.x), across, down, i32(1))
        first_entry, next_entry = work + parts[0] + i64(n) * (height + 1) * (width + 2) * 4, i64(width + 2) * 4
        if thread == 0:
            most[0] = 0
        let_next_start()
        wait_for_previous()
        cuda.syncthreads()
        if thread < pixels:
            row = i32(top_row + i32(u32(thread) // u32(columns)))
            column = i32(left_column + i32(u32(thread) % u32(columns)))
            live = column < width and row < height
            entry = first_entry + (row * i64(width + 2) + column) * 4
            count = i32(0)
            if live:
                count = find(starts, i32(0), entry, next_entry)
                look(
                    record, noted_weights, numbers, lines, dot_places, pairs, starts, i32(0), i32(0), count, records, points
                )  # fmt: skip
            counts[thread] = count
            if count > HELD:
                cuda.atomic.max(most, 0, count)
            for k in range(HELD):
                if k < count:
                    at = i32(k * pixels + thread)
                    offsets[at] = i32(offset_of(numbers[k], out_width, ys) >> shift)
                    weights[at] = noted_weights[k]
                    places[at] = dot_places[k]
            for k in range(count, min(max(i32(count + (count & 1)), i32(BATCH)), i32(HELD))):
                offsets[k * pixels + thread] = offsets[thread]
                weights[k * pixels + thread] = A(0)
        cuda.syncthreads()
        image, slopes, target = img + n * xs[0] * size, dy + n * ys[0] * size, dimg + n * ds[0] * size
        dot += i64(n) * out_height * out_width * (4 * dot_size)
        lane, group = i32(thread & (share - 1)), i32(u32(thread) // u32(share))
        for r in range(rounds):
            pixel = i32(r * at_once + group)
            row = i32(top_row + i32(u32(pixel) // u32(columns)))
            column = i32(left_column + i32(u32(pixel) % u32(columns)))
            live = pixel < pixels and column < width and row < height
            count = counts[u32(pixel)] if live else i32(0)
            noted = i32(min(count, i32(HELD)))
            for e in range(HELD):
                dots[e] = A(0)
            mine, to = image + (row * xs[2] + column * xs[3]) * size, target + (row * ds[2] + column * ds[3]) * size
            if live:
                for k in range(lane, vectors, i32(share)):
                    line = slopes + i64(k) * nbytes
                    read(raw, i32(0), mine + i64(k) * nbytes)
                    convert(own, i32(0), raw, i32(0))
                    for e in range(vec):
                        sums[e] = A(0)
                    batch(0, noted, pixel, line, offsets, weights, raw, values, own, sums, dots)
                    pair(4, noted, pixel, line, offsets, weights, raw, values, own, sums, dots)
                    pair(6, noted, pixel, line, offsets, weights, raw, values, own, sums, dots)
                    for e in range(vec):
                        lost[e] = A(0)
                    for far in range(noted, count):
                        offset, weight, _ = beyond(
                            far,
                            first_entry + (row * i64(width + 2) + column) * 4,
                            next_entry,
                            record,
                            records,
                            out_width,
                            ys,
                            points,
                        )
                        if weight != 0:
                            read(raw, i32(0), line + offset * size)
                            convert(values, i32(0), raw, i32(0))
                            for e in range(vec):
                                sums[e], lost[e] = add(sums[e], lost[e], weight * values[e])
                    for e in range(vec):
                        sums[e] = close(sums[e], lost[e])
                    put(sums, i32(0), to + i64(k) * nbytes)
            meet(dots, lane)
            if lane & (alone - 1) == 0:
                for e in range(each):
                    which = i32(i32(u32(lane) // u32(alone)) * each + e)
                    if which < noted:
                        write(dot + i64(places[u32(which * pixels + pixel)]) * dot_size, dots[e])
        for r in range(rounds if most[0] > HELD else 0):
            pixel = i32(r * at_once + group)
            row = i32(top_row + i32(u32(pixel) // u32(columns)))
            column = i32(left_column + i32(u32(pixel) % u32(columns)))
            live = pixel < pixels and column < width and row < height
            count = counts[u32(pixel)] if live else i32(0)
            entry = first_entry + (row * i64(width + 2) + column) * 4
            for far in range(i32(HELD), most[0]):  # all threads of a warp: they meet
                total, place = A(0), i64(0)
                if far < count:
                    offset, _, place = beyond(far, entry, next_entry, record, records, out_width, ys, points)
                    line, mine = slopes + offset * size, image + (row * xs[2] + column * xs[3]) * size
                    for k in range(lane, vectors, i32(share)):
                        read(raw, i32(0), line + i64(k) * nbytes)
                        convert(values, i32(0), raw, i32(0))
                        read(raw, i32(0), mine + i64(k) * nbytes)
                        convert(own, i32(0), raw, i32(0))
                        for e in range(vec):
                            total = A(total + values[e] * own[e])
                for level in range(levels):
                    total = A(total + swap(total, i32(share >> (level + 1))))
                if far < count and lane == 0:
                    write(dot + place * dot_size, total)

    return kernel
