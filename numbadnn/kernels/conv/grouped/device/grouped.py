"""Convolution of few channels a group in 16-bit types: products of a warp whose terms are the taps and channels of one group.

A block brings the part of an image that its results meet into shared memory once (``device/fill.py``), all channels of
some groups; each of its warps keeps the filters of one group in registers and multiplies them with 16 positions after the
other. The rows of a product are positions, so a lane reads where its position and its tap are: ldmatrix gives 8 channels of
one tap, groups of 4 channels are read tap by tap, one to a lane. Nothing of another group is read: terms that no tap has
are zeros on both sides, and infinities stay where they are. Zeros outside the image are terms forward, and none in the images'
gradient (``device/absent.py``). Results go through shared memory, to be written in long accesses.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.grouped.config import ZEROS, GroupedHalvesConfig
from numbadnn.kernels.conv.grouped.device.absent import mend_sums
from numbadnn.kernels.conv.grouped.device.fill import column_slot, fill_filters, fill_image, gather_image
from numbadnn.kernels.conv.grouped.device.put import add_old_results, keep_results, store_results, tables
from numbadnn.kernels.lang.async_copies import wait_async
from numbadnn.kernels.lang.cuda import HALF, INT32, SIMULATED, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.words import read_at, shared_address

SIZE = 2


def _offsets(config: GroupedHalvesConfig) -> Callable[..., None]:
    """``locate(offsets, slots, lows, counts, step)``: each step's piece of this lane, from its position on; -1: none."""
    steps, across, pitch, piece = config.steps, config.across, config.pitch, config.piece
    each, slot = config.capacity // piece, column_slot(config.across)

    @device
    def locate(offsets, slots, lows, counts, step):
        lane = i32(cuda.threadIdx.x & 31)
        for i in range(steps):
            number = i32(i * 2 + (lane >> 4)) if piece == 8 else i32(i * 4 + (lane & 3))
            tap = i32(u32(number) // u32(each))
            r = i32(u32(tap) // u32(max(counts[1], i32(1))))
            row = i32(lows[0] + r * step[0])
            column = i32(lows[1] + (tap - r * counts[1]) * step[1])
            at = i32((row * (slots * across) + slot(column, slots)) * pitch + (number - tap * each) * (piece * SIZE))
            offsets[i] = at if tap < counts[0] * counts[1] else i32(-1)

    return locate


def _take_filters(config: GroupedHalvesConfig) -> Callable[..., None]:
    """``take(b, shared, halves, at)``: the filters of a warp, of whose first group they begin at the address ``at``."""
    steps, every, narrow, pitch = config.steps, config.every, config.piece == 4, config.filter_pitch
    bunch, wide, apart, rows = config.bunch, config.wide, config.group_bytes, config.rows
    eight, term = config.eight_bytes, pitch if config.rows else 2
    read, load_b = read_at("int32", 2), load_matrices(rows)

    @device
    def take(b, shared, halves, at):
        lane = i32(cuda.threadIdx.x & 31)
        if narrow:
            start = i32(at + (lane >> 2) * pitch + (lane & 3) * 8)
        elif rows:
            start = i32(at + lane * pitch)
        else:
            start = i32(at + (lane & 7) * pitch + (lane >> 3) * 16)
        for group in range(bunch):
            for n in range(wide):
                here, to = i32(start + group * apart + n * eight), i32((group * wide + n) * every * 2)
                if narrow:
                    for step in range(steps):
                        read(b, i32(to + step * 2), shared, i32(here + step * 32))
                else:
                    for step in range(0, every, 2):
                        load_b(b, i32(to + step * 2), halves, i32(here + step * (16 * term)))

    return take


def _multiply(dtype: str, config: GroupedHalvesConfig) -> Callable[..., None]:
    """``multiply(total, b, offsets, shared, halves, zeros, low, high)``: 16 positions; ``low`` and ``high``: where they are.

    A lane gives the address of row lane % 16 (``low``) to ldmatrix, or reads rows lane // 4 and 8 more itself, of two groups of 4
    channels at a time.
    """
    steps, every, wide, bunch = config.steps, config.every, config.wide, config.bunch
    narrow, sums, apart = config.piece == 4, 4 * config.wide * config.bunch, 2 * config.capacity
    pair = 2 if narrow and bunch % 2 == 0 else 1
    words = 2 * pair
    read, load_a, multiply_add = read_at("int32", words), load_matrices(False), product(dtype, 16)
    # the steps before have a tap for every lane
    whole = 0 if config.phases else config.pieces * config.piece // 16

    @device
    def multiply(total, b, offsets, shared, halves, zeros, low, high):
        a = cuda.local.array(4, INT32)
        upper, lower = cuda.local.array(words, INT32), cuda.local.array(words, INT32)
        for i in range(sums):
            total[i] = f32(0)
        for step in range(steps):
            offset = offsets[step]
            at, beyond = i32(low + offset), i32(high + offset)
            if step >= whole:
                at = at if offset >= 0 else i32(zeros)
                beyond = beyond if offset >= 0 else i32(zeros)
            for group in range(0, bunch, pair):
                if narrow:
                    read(upper, i32(0), shared, i32(at + group * apart))
                    read(lower, i32(0), shared, i32(beyond + group * apart))
                else:
                    load_a(a, i32(0), halves, i32(at + group * apart))
                for e in range(pair):
                    if narrow:
                        a[0], a[1], a[2], a[3] = upper[2 * e], lower[2 * e], upper[2 * e + 1], lower[2 * e + 1]
                    for n in range(wide):
                        number = (group + e) * wide + n
                        multiply_add(total, i32(number * 4), a, i32(0), b, i32((number * every + step) * 2))

    return multiply


def convolve(dtype: str, config: GroupedHalvesConfig, inputs: bool) -> Callable[..., None]:
    """result[n,k,p,q] = sum over the taps of its phase and the channels of its group of source times w.

    ``inputs``: of the images' gradient.
    """
    channels, results, per_block, images = config.channels, config.results, config.groups, config.images
    pitch, capacity, across, parts, bunch, wide = (
        *(config.pitch, config.capacity, config.across, config.parts, config.bunch, config.wide),
    )
    ways, narrow, many = config.ways, config.piece == 4, config.phases
    group_bytes, eight_bytes = config.group_bytes, config.eight_bytes
    steps, sums, filters = config.steps, 4 * wide * bunch, 2 * wide * bunch * config.every
    filter_bytes, result_pitch, look = config.filter_bytes, config.result_pitch, read_at("int32", 1)
    sources, targets = tables(config)
    fill_w, locate, take = fill_filters(config), _offsets(config), _take_filters(config)
    begin, fill = fill_image(config.load, across, pitch, config.threads, config.groups * channels)
    if config.load == 1:
        fill = gather_image(config)
    multiply, mend, keep, add_old, put = (
        _multiply(dtype, config),
        mend_sums(dtype, config),
        keep_results(dtype, config),
        add_old_results(dtype, config),
        store_results(config),
    )

    def kernel(
        source, w, result, count, blocks, tile, halo, image, output, groups, down, apart, origin, top, left, tall, broad, step,
        starts_down, starts_along, w_strides, source_step, source_strides, result_step, result_strides, alpha, beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, WORD)
        halves = cuda.shared.array(0, HALF)  # the same memory
        b, offsets = cuda.local.array(filters, INT32), cuda.local.array(steps, INT32)
        total, place = cuda.local.array(sums, f32), cuda.local.array(1, INT32)
        base = shared_address(shared)
        lane, warp = i32(cuda.threadIdx.x & 31), i32(cuda.threadIdx.x >> 5)
        number = i32(cuda.blockIdx.x)
        rest = i32(u32(number) // u32(blocks[2]))
        bundle = i32((number - rest * blocks[2]) * per_block)  # the block's first group
        area = i32(u32(rest) // u32(blocks[1]))
        n = i32(u32(area) // u32(blocks[0]))
        first_image = i32(n * images)
        where = (i32((area - n * blocks[0]) * tile[0]), i32((rest - area * blocks[1]) * tile[1]))
        if cuda.threadIdx.x < 32:
            shared[u32(cuda.threadIdx.x)] = u32(0)
        corner = (i32(where[0] * down + origin[0]), i32(where[1] * across + origin[1]))
        first_channel, all_channels = i32(bundle * channels), i32(groups * channels)
        share, in_image = begin(halo[1]), i32(base + ZEROS)
        start = source + i64(first_image) * source_step * SIZE
        fill(shared, in_image, start, first_channel, all_channels, corner, halo, image, source_strides, share)
        line = i32(halo[2] * across)
        in_filters = i32(ZEROS + (halo[0] * line * pitch + 15) // 16 * 16)
        in_results = i32(in_filters + filter_bytes)
        positions = i32(tile[0] * tile[1])
        table_capacity = i32((positions + 16 * ways - 1) // (16 * ways) * (16 * ways))
        end = table_capacity if SIMULATED else positions  # the simulator's warps meet in every product
        in_sources = i32(base + in_results + positions * result_pitch)
        in_targets = i32(in_sources + 4 * table_capacity)
        sources(shared, in_sources, table_capacity, tile, line, down)
        job = i32(u32(warp) // u32(ways))
        group = i32(u32(job) // u32(parts))
        part = i32((job - group * parts) * wide)  # its first eight results
        way = i32(warp - job * ways)
        group = i32(group * bunch)
        k = i32(part * 8 + (lane & 3) * 2)
        first, wide_all = i32(bundle * results), i32(groups * results)
        for turn in range(images):
            n = i32(first_image + turn)
            if images > 1 and n >= count:
                break
            target = result + i64(n) * result_step * SIZE
            for phase in range(apart[0] * apart[1] if many else 1):
                lower, later = i32(0), i32(0)
                if many:
                    lower = i32(u32(phase) // u32(apart[1]))
                    later = i32(phase - lower * apart[1])
                places = (lower, later)
                counts = (tall[0] if lower == 0 else tall[1], broad[0] if later == 0 else broad[1])
                lows = (top[0] if lower == 0 else top[1], left[0] if later == 0 else left[1])
                first_tap = starts_down[0] if lower == 0 else starts_down[1]
                first_tap = i32(first_tap + (starts_along[0] if later == 0 else starts_along[1]))
                if many or turn == 0:
                    fill_w(shared, base, in_filters, w + i64(first_tap) * SIZE, bundle, groups, counts, w_strides)
                    targets(shared, in_targets, table_capacity, tile, where, output, apart, places, result_strides)
                    locate(offsets, halo[2], lows, counts, step)
                wait_async()
                cuda.syncthreads()
                if many or turn == 0:
                    take(b, shared, halves, i32(base + in_filters + group * group_bytes + part * eight_bytes))
                at = i32(base + ZEROS + group * (capacity * SIZE))
                to = i32(base + in_results + (group * results + k) * SIZE)
                for m in range(i32(way * 16), end, 16 * ways):
                    own = i32(m + (lane >> 2))
                    look(place, i32(0), shared, i32(in_sources + 4 * (own if narrow else i32(m + (lane & 15)))))
                    low = i32(at + place[0])
                    if narrow:
                        look(place, i32(0), shared, i32(in_sources + 4 * own + 32))
                    multiply(total, b, offsets, shared, halves, base, low, i32(at + place[0]))
                    if inputs:
                        mend(
                            total, own, k, i32(bundle + group), groups, tile, source + i64(n) * source_step * SIZE,
                            w + i64(first_tap) * SIZE, (i32(corner[0] + lows[0]), i32(corner[1] + lows[1])), counts, step,
                            (down, i32(across)), image, source_strides, w_strides,
                        )  # fmt: skip
                    scale = alpha
                    if beta != f32(0):
                        scale = f32(1)
                        mine = i32(first + group * results)
                        add_old(total, shared, in_targets, target, own, k, mine, wide_all, alpha, beta)
                    keep(total, shared, i32(to + own * result_pitch), own, k, positions, scale)
                cuda.syncthreads()
                if images > 1 and turn + 1 < images and n + 1 < count:  # on its way while these results are written
                    start = source + i64(n + 1) * source_step * SIZE
                    fill(
                        shared, in_image, start, first_channel, all_channels, corner, halo, image, source_strides, share
                    )
                put(shared, i32(base + in_results), in_targets, target, first, wide_all, positions)
                if many:
                    cuda.syncthreads()

    return kernel
