"""The gradient of filters with few channels a group: products of a warp whose terms are the pixels of y.

                 16 positions             of each 16 positions a warp multiplies
              ________________
    filters   |              |  y        16 filters x 16 terms  by  16 terms x 16 columns, for each of its units: 32 bytes of
    of some   |______________|           x as they lie at a tap of a position, which are 16 channels of some groups, half a
    groups         .  |   |              group of 32, or four neighbouring pixels of an image of few channels, 8 bytes each
    columns   of x at  tap, tap, ...

A block brings tile after tile of both images into shared memory, all channels of its bundles of groups; pixels are rows there,
so both operands are read transposed. Groups of one bundle are multiplied all with all, and what has a filter of one with
channels of another is not written: products are cheap here, bytes are not. Terms that no result has are zeros on both sides,
so infinities stay where they are. What a share of the tiles gives is written as float32 sums, (share, filter, tap, channel),
which ``device/total.py`` adds in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.grouped.device.fill import column_slot, fill_image, write_at
from numbadnn.kernels.conv.grouped.device.weights_fill import gather_few, table_of
from numbadnn.kernels.conv.grouped.weights_config import UNIT, ZEROS, GroupedWeightsConfig
from numbadnn.kernels.conv.implicit.device.index import share
from numbadnn.kernels.lang.access import store, store_vector
from numbadnn.kernels.lang.async_copies import commit_async, wait_async_but
from numbadnn.kernels.lang.cuda import ELEMENT, HALF, INT32, SIMULATED, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.epilogue import scaled
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.words import read_at, shared_address

SIZE = 2


def _units(config: GroupedWeightsConfig) -> Callable[..., Any]:
    """``place(unit, line, slots, taps, dilation)``: (row of taps, its first column, offset in the image) of a unit."""
    few, halves, pitch, slot = config.few, config.halves, config.pitch, column_slot(config.across)

    @device
    def place(unit, line, slots, taps, dilation):
        if few:
            per_row = i32(u32(taps[1] + 3) // u32(4))
            r = i32(u32(unit) // u32(per_row))
            s = i32((unit - r * per_row) * 4)
            return r, s, i32((r * dilation[0] * line + s) * pitch)
        tap = i32(u32(unit) // u32(halves))
        r = i32(u32(tap) // u32(taps[1]))
        s = i32(tap - r * taps[1])
        at = i32((r * dilation[0] * line + slot(i32(s * dilation[1]), slots)) * pitch)
        return r, s, i32(at + (unit - tap * halves) * UNIT)

    return place


def _multiply(dtype: str, config: GroupedWeightsConfig) -> Callable[..., None]:
    """``multiply(sums, offsets, shared, halves, table, x_at, y_at, base, way, end, limits)``: ``limits`` rows, columns of a tile.

    A lane gives the address of 8 of the 16 channels of position lane % 16 of x; of y, of 8 filters of a position.
    """
    tall, each, ways, y_pitch = config.tall, config.each, config.ways, config.y_pitch
    a_words = 4 * tall
    look, load_a, multiply_add = read_at("int32", 2), load_matrices(True), product(dtype, 16)

    @device
    def multiply(sums, offsets, shared, halves, table, x_at, y_at, base, way, end, limits):
        a, b = cuda.local.array(a_words, INT32), cuda.local.array(4, INT32)
        where = cuda.local.array(2, INT32)
        lane = i32(cuda.threadIdx.x & 31)
        zeros = i32(base + (lane >> 4) * 16)
        x_start = i32(x_at + (lane >> 4) * 16)
        y_start = i32(y_at + ((lane & 7) + (lane >> 4) * 8) * y_pitch + ((lane >> 3) & 1) * 16)
        for m in range(i32(way * 16), end, 16 * ways):
            look(where, i32(0), shared, i32(table + 8 * (m + (lane & 15))))
            there = (where[1] >> 16) < limits[0] and (where[1] & 0xFFFF) < limits[1]
            start = i32(x_start + where[0]) if there else zeros
            kept = i32(-1) if there else i32(0)
            for i in range(tall):
                load_a(a, i32(4 * i), halves, i32(y_start + m * y_pitch + i * UNIT))
            for u in range(each):
                load_a(b, i32(0), halves, i32(start + (offsets[u] & kept)))
                for i in range(tall):
                    at = (u * tall + i) * 8
                    multiply_add(sums, i32(at), a, i32(4 * i), b, i32(0))
                    multiply_add(sums, i32(at + 4), a, i32(4 * i), b, i32(2))

    return multiply


def _put(dtype: str, config: GroupedWeightsConfig) -> Callable[..., None]:
    """``put(i, pair, target, first, half, s, tap_at, filters, columns, strides, alpha, beta)``: two neighbouring sums of a unit.

    ``i``: their number among the unit's; ``first``: filter of their bundle; ``target``: partial sums, or the filters themselves,
    where the unit's tap is ``tap_at``; ``s``: its column of ``columns``.
    """
    few, channels, results, direct = config.few, config.channels, config.results, config.direct
    write, write_two = store("float32", "float32"), store_vector("float32", 2, "float32")
    store_scaled = scaled(dtype, "float32")

    @device
    def put(i, pair, target, first, half, s, tap_at, filters, columns, strides, alpha, beta):
        lane = i32(cuda.threadIdx.x & 31)
        row = i32((i >> 2) * 16 + (i & 1) * 8 + (lane >> 2))
        column = i32(half * 16 + ((i >> 1) & 1) * 8 + (lane & 3) * 2)
        k = i32(first + row)
        if few:
            c, right = i32(column & 3), i32(column >> 2)
        else:
            c, right = i32(column - i32(u32(row) // u32(results)) * channels), i32(0)
        if k < filters and s + right < columns and c >= 0 and c < channels:
            if direct:
                at = target + (tap_at + k * strides[0] + c * strides[1] + right * strides[3]) * SIZE
                for e in range(2):
                    if c + e < channels:
                        store_scaled(at + e * strides[1] * SIZE, pair[e], alpha, beta)
            else:  # fewer than 2**31, and this is done by each share
                at = target + i64(i32(i32(tap_at) + k * i32(strides[0]) + c + right * i32(strides[3]))) * 4
                if few:
                    write(at, pair[0])
                    if c + 1 < channels:
                        write(at + 4, pair[1])
                else:
                    write_two(pair, i32(0), at)

    return put


@device
def following(n, i, j, blocks):
    """The tile after that of images n, row i and column j."""
    j = i32(j + 1)
    i = i32(i + 1) if j == blocks[1] else i
    j = i32(0) if j == blocks[1] else j
    n = i32(n + 1) if i == blocks[0] else n
    i = i32(0) if i == blocks[0] else i
    return n, i, j


def weights(dtype: str, config: GroupedWeightsConfig) -> Callable[..., None]:
    """partial[share, k, r, s, c] = sum over the positions of a share of the tiles of x at the tap times y."""
    few, across, stages, ways, parts = config.few, config.across, config.stages, config.ways, config.parts
    of_unit, of_way = 4 * config.tall, 32 * config.sums
    each, count, halves_each, m = config.each, config.sums, config.halves, config.m
    pitch, y_pitch, bundles, channels = config.pitch, config.y_pitch, config.bundles, config.channels_held
    begin_y, fill_y = fill_image(config.y_load, 1, y_pitch, config.threads, bundles * m)
    begin_x, fill_x = fill_image(config.load, across, pitch, config.threads, bundles * channels)
    gather = gather_few(config)
    look = read_at("int32", 1)
    table, find, multiply, put = table_of(config), _units(config), _multiply(dtype, config), _put(dtype, config)

    def kernel(
        x, y, partial, batch, images, blocks, tile, halo, image, output, tiles, splits, widths, capacity, bytes_of, stride,
        origin, dilation, taps, units, x_step, x_strides, y_step, y_strides, split_stride, strides, start, alpha, beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, WORD)
        halves = cuda.shared.array(0, HALF)  # the same memory
        words = cuda.shared.array(0, real)
        sums, offsets, pair = cuda.local.array(count, f32), cuda.local.array(each, INT32), cuda.local.array(2, f32)
        base = shared_address(shared)
        lane, warp = i32(cuda.threadIdx.x & 31), i32(cuda.threadIdx.x >> 5)
        number = i32(cuda.blockIdx.x)
        split = i32(u32(number) // u32(blocks[2]))
        bundle = i32((number - split * blocks[2]) * bundles)  # the block's first
        begin, end = share(tiles, split, splits)
        line = i32(halo[2] * across)
        x_bytes, y_bytes, image_bytes, apart = bytes_of
        in_table = i32(base + ZEROS)
        ring = i32(in_table + (8 * capacity + 4 * units + 127) // 128 * 128)
        for e in range(i32(cuda.threadIdx.x), ZEROS // 4, config_threads):
            shared[u32(e)] = u32(0)
        each_image = i32(tile[0] * tile[1])
        positions = i32(images * each_image)
        for stage in range(stages):  # rows of y that no tile has
            first = i32(ring + stage * (x_bytes + y_bytes) + x_bytes + positions * y_pitch)
            for e in range(i32(cuda.threadIdx.x), i32((capacity - positions) * (y_pitch // 4)), config_threads):
                write_at(shared, i32(first + 4 * e), u32(0))
        table(shared, in_table, capacity, images, tile, line, apart, stride, image_bytes)
        job = i32(u32(warp) // u32(ways))
        way = i32(warp - job * ways)
        mine = i32(u32(job) // u32(parts))
        first_unit = i32((job - mine * parts) * each)
        in_units = i32(in_table + 8 * capacity)
        for unit in range(i32(cuda.threadIdx.x), units, config_threads):
            r, s, at = find(i32(unit), line, halo[2], taps, dilation)
            write_at(shared, i32(in_units + 4 * unit), u32(at))
        cuda.syncthreads()
        for u in range(each):
            look(offsets, i32(u), shared, i32(in_units + 4 * min(first_unit + u, units - 1)))
        for i in range(count):
            sums[i] = f32(0)
        this_n = i32(u32(begin) // u32(blocks[0] * blocks[1]))
        rest = i32(begin - this_n * blocks[0] * blocks[1])
        this_i = i32(u32(rest) // u32(blocks[1]))
        this_j = i32(rest - this_i * blocks[1])
        next_n, next_i, next_j = this_n, this_i, this_j
        x_place, y_place = begin_x(halo[1]), begin_y(tile[1])
        limit = capacity if SIMULATED else positions  # the simulator's warps meet in every product
        for t in range(i32(begin - (stages - 1)), end):
            ahead = i32(t + (stages - 1))
            if ahead < end:
                n, i, j = next_n, next_i, next_j
                next_n, next_i, next_j = following(n, i, j, blocks)
                top, left = i32(i * tile[0]), i32(j * tile[1])
                stage = i32(u32(ahead - begin) % u32(stages))
                to = i32(ring + stage * (x_bytes + y_bytes))
                corner = (i32(top * stride[0] - origin[0]), i32(left * stride[1] - origin[1]))
                own = (tile[0], tile[1], tile[1])
                for image_of in range(images):
                    number = i32(n * images + image_of)
                    if images == 1 or number < batch:
                        here, at = x + i64(number) * x_step * SIZE, i32(to + image_of * image_bytes)
                        if few:
                            gather(shared, at, apart, here, corner, halo, image, x_strides)
                        else:
                            first = i32(bundle * channels)
                            fill_x(shared, at, here, first, widths[0], corner, halo, image, x_strides, x_place)
                    there = images == 1 or number < batch  # zeros of an image past the last
                    here = y + i64(number if there else 0) * y_step * SIZE
                    bounds = (output[0] if there else i32(0), output[1])
                    at = i32(to + x_bytes + image_of * each_image * y_pitch)
                    first = i32(bundle * m)
                    fill_y(shared, at, here, first, widths[1], (top, left), own, bounds, y_strides, y_place)
            commit_async()
            if t >= begin:
                wait()
                cuda.syncthreads()
                n, i, j = this_n, this_i, this_j
                this_n, this_i, this_j = following(n, i, j, blocks)
                limits = (i32(min(tile[0], output[0] - i * tile[0])), i32(min(tile[1], output[1] - j * tile[1])))
                if images > 1:  # each whole
                    limits = (i32(min(images, batch - n * images) * tile[0]), tile[1])
                stage = i32(u32(t - begin) % u32(stages))
                at = i32(ring + stage * (x_bytes + y_bytes))
                x_at = at if few else i32(at + mine * (channels * SIZE))
                y_at = i32(at + x_bytes + mine * (m * SIZE))
                multiply(sums, offsets, shared, halves, in_table, x_at, y_at, base, way, limit, limits)
                cuda.syncthreads()
        target = partial + i64(split) * split_stride + start
        first = i32((bundle + mine) * m)
        own = i32(ZEROS // 4 + job * ways * of_way + lane)
        for i in range(count):  # what the warps of a job have is added in their order, each pair of sums by one of them
            words[i32(own + way * of_way + 32 * i)] = sums[i]
        if ways > 1:
            cuda.syncthreads()
        for u in range(i32(min(each, units - first_unit))):
            unit = i32(first_unit + u)
            r, s, offset = find(unit, line, halo[2], taps, dilation)
            half = i32(0) if few else i32(u32(unit) % u32(halves_each))
            tap_at = r * strides[2] + s * strides[3]
            for i in range(way, of_unit, ways):
                pair[0], pair[1] = f32(0), f32(0)
                for w in range(ways):
                    at = i32(own + w * of_way + 64 * (u * of_unit + i))
                    pair[0] = f32(pair[0] + words[at])
                    pair[1] = f32(pair[1] + words[i32(at + 32)])
                put(i32(i), pair, target, first, half, s, tap_at, widths[1], taps[1], strides, alpha, beta)

    config_threads, wait, real = config.threads, wait_async_but(stages - 1), ELEMENT["float32"]
    return kernel
