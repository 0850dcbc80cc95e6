"""The gradient of an unshared convolution's images of 16-bit types, a tile of pixels a block, which no other block adds to.

A filter's taps reach as many pixels as it has, so tiles of pixels see positions in common, and read their filters more than once:
from the L2 cache, where neighbours are when they ask for them. In turn nothing lies between two kernels, and sums stay where they
are until they are rounded. A block walks through the rows of positions that reach its pixels, every second row of tiles upwards,
so that both sides of an edge read the filters there at the same time. A warp has a row of the pixels and eight channels:

    row of pixels    0  1  2  3  4  5      positions of a row reach three of them;
    warp             0  1  2  0  1  2      when a row of pixels is done, its warp writes it and goes on with row 3

    filters    through a ring, a slot for all of a position and the block's channels: one copy of a tensor's tile
    y          turned before (``unshared_turned``), a row of positions at a time, a line of each filter

Warps that ask for these do nothing else. What a lane multiplies is in ``device/rows_halves.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.inputs.device import rows_halves as _unshared_inputs_rows_halves
from numbadnn.kernels.conv.unshared.inputs.pixels_config import EIGHT, LANES, ROWS, SIZE, Y_ROWS, PixelsConfig, ring_at
from numbadnn.kernels.conv.unshared.inputs.rows_config import Parts
from numbadnn.kernels.lang.access import load_vector, store_vector
from numbadnn.kernels.lang.async_copies import copy_if, copy_tile, sync_warp
from numbadnn.kernels.lang.cuda import INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.hopper import (
    barrier_arrive,
    barrier_expect,
    barrier_follow,
    barrier_init,
    barrier_wait,
    fence_started,
    map_address,
    prefetch_map,
)
from numbadnn.kernels.lang.ptx import wait_for_previous
from numbadnn.kernels.lang.words import shared_address

#: what ``here`` holds: the next slot, the parity of the wait for it, the next place of a row of y, and of that one
SLOT, PARITY, PLACE, Y_PARITY = range(4)


@device
def _row(i, walk):
    """The ``i``-th row of positions of (first, how many, whether upwards)."""
    return i32(walk[0] + (walk[1] - 1 - i if walk[2] else i))


@device
def _next(place, parity, places):
    over = place == places - 1
    return i32(0) if over else i32(place + 1), i32(parity ^ 1) if over else parity


def _multiplying(lanes: Parts, config: PixelsConfig) -> Callable[..., None]:
    """``run(total, shared, here, full, own, own_y, low, high, active)``: a row of positions, of which those in between are there.

    ``own``: where the warp's filters and row of taps begin in a slot; ``active``: whether the row reaches the warp's pixels.
    """
    depth, slot_bytes, pitch, steps = config.depth, config.slot, config.pitch, config.steps
    positions, cell, of_piece, sums = config.positions, config.kept * SIZE, ROWS * config.lanes.of_filter, lanes.sums
    nothing = i32(0)

    def column(j):
        multiply = lanes.multiply(j * sums)

        @device
        def run(total, shared, here, full, own, own_y, low, high, active):
            if j >= low and j < high:
                slot = here[SLOT]
                barrier_wait(u32(full + 8 * slot), u32(here[PARITY]))
                if active:
                    for s in range(steps):
                        at_w = i32(own + slot * slot_bytes + s * (ROWS * pitch))
                        multiply(
                            total, shared, at_w, i32(own_y + j * cell + s * of_piece), i32(pitch), i32(ROWS), nothing
                        )
                sync_warp()
                if cuda.threadIdx.x % LANES == 0:
                    barrier_arrive(u32(full + 8 * (depth + slot)))
                here[SLOT], here[PARITY] = _next(slot, here[PARITY], depth)

        return run

    def from_column(j):
        first = column(j)
        if j + 1 == positions:
            return first
        rest = from_column(j + 1)

        @device
        def run(total, shared, here, full, own, own_y, low, high, active):
            first(total, shared, here, full, own, own_y, low, high, active)
            rest(total, shared, here, full, own, own_y, low, high, active)

        return run

    return from_column(0)


def _writing(dtype: str, config: PixelsConfig) -> Callable[..., None]:
    """``write(total, x, lot, N, strides, alpha, beta)``: a row of the tile's pixels, from ``x`` on, each image's at once."""
    tiles, wide, skip, sums = config.kept // 16, config.wide, config.taps[1] - 1, config.of_pixel
    read, given_up = load_vector(dtype, wide, "float32"), "last" if config.lasting else ""
    write = store_vector(dtype, wide, "float32", given_up)

    @device
    def put(total, x, lot, N, strides, alpha, beta):
        result, old = cuda.local.array(wide, f32), cuda.local.array(wide, f32)
        lane = i32(cuda.threadIdx.x % LANES)
        for m in range(tiles):
            for v in range(4):
                n, c = i32(16 * m + (lane >> 2) + v // 2 * EIGHT), i32(lot * EIGHT + 2 * (lane & 3) + v % 2)
                at = x + (i64(n) * strides[0] + i64(c) * strides[1]) * SIZE
                if n < N:
                    for e in range(wide):
                        result[e] = f32(alpha * total[(skip + e) * sums + 4 * m + v])
                    if beta != f32(0):
                        read(old, i32(0), at)
                        for e in range(wide):
                            result[e] = f32(result[e] + beta * old[e])
                    write(result, i32(0), at)

    return put


def _asking(config: PixelsConfig) -> Callable[..., None]:
    """``ask(shared, filters, full, first, walk, size, columns)``: by one thread, a copy for each position.

    ``first`` term and filter; ``size``: of y; ``columns``: the first, and which of those from it on are there.
    """
    depth, slot_bytes, rings, copy = config.depth, config.slot, ring_at(config), copy_tile(3)
    each = config.steps * ROWS * config.pitch

    @device
    def ask(shared, filters, full, first, walk, size, columns):
        prefetch_map(filters)
        slot, parity = i32(0), i32(1)
        for i in range(walk[1]):
            p = _row(i, walk)
            if p >= 0 and p < size[0]:
                for j in range(columns[1], columns[2]):
                    barrier = i32(full + 8 * slot)
                    barrier_wait(u32(barrier + 8 * depth), u32(parity))
                    barrier_expect(u32(barrier), u32(each))
                    at = (first[0], first[1], i32(p * size[1] + columns[0] + j))
                    copy(shared, i32(full + rings + slot * slot_bytes), filters, at, u32(barrier))
                    slot, parity = _next(slot, parity, depth)

    return ask


def _bringing(config: PixelsConfig) -> Callable[..., None]:
    """``bring(shared, y, full, tops, walk, size, columns)``: y's rows, by one warp, from ``y`` on, where the group begins.

    A few bytes of each filter at a time, which took the copy engine longer than it had.
    """
    cell, of_filter, y_bytes, filters = config.kept * SIZE, config.lanes.of_filter, config.y_row, config.steps * ROWS
    each = -(-config.positions * cell // (16 * LANES))

    @device
    def bring(shared, y, full, tops, walk, size, columns):
        lane = i32(cuda.threadIdx.x % LANES)
        place, parity, apart = i32(0), i32(1), i64(size[0]) * size[1] * cell
        for i in range(walk[1]):
            p = _row(i, walk)
            if p >= 0 and p < size[0]:
                barrier = i32(full + 8 * place)
                barrier_wait(u32(barrier + 8 * Y_ROWS), u32(parity))
                source = y + (i64(p) * size[1] + columns[0]) * cell + lane * 16
                to = i32(tops + place * y_bytes + lane * 16)
                for _ in range(filters):
                    for e in range(each):
                        at = i32((lane + LANES * e) * 16)
                        wanted = i32(at >= columns[1] * cell and at < columns[2] * cell)
                        copy_if(wanted, shared, i32(to + 16 * LANES * e), source + 16 * LANES * e)
                    source, to = source + apart, i32(to + of_filter)
                barrier_follow(u32(barrier))
                place, parity = _next(place, parity, Y_ROWS)

    return bring


def gradient(dtype: str, config: PixelsConfig) -> Callable[..., None]:
    """x[n,c,pixel] = sum over the positions that reach it and over filters of y * w."""
    lanes = _unshared_inputs_rows_halves.parts(dtype, config.lanes)
    place, multiply, write = lanes.place, _multiplying(lanes, config), _writing(dtype, config)
    ask, bring = _asking(config), _bringing(config)
    (tall_taps, taps), wide, positions, flip = config.taps, config.wide, config.positions, config.flip
    warps, depth, channels, cell = config.warps, config.depth, config.channels, config.kept * SIZE
    rings, pitch, y_bytes, filters = ring_at(config), config.pitch, config.y_row, config.steps * ROWS
    sums, w_of, area, behind = config.sums, map_address(0), tall_taps * taps, ring_at(config) + depth * config.slot

    def kernel(
        w_map, y, x, across, slices, groups, N, C, output, image, padding, tall, x_strides, alpha, beta,
    ):  # fmt: skip
        shared, total, here = cuda.shared.array(0, WORD), cuda.local.array(sums, f32), cuda.local.array(4, INT32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        # barriers: of each slot that it is full, and that it is empty; of y's rows; the ring; y's rows
        full = i32((i32(shared_address(shared)) + 127) & -128)
        y_full, ring, tops = i32(full + 16 * depth), i32(full + rings), i32(full + behind)
        if warp == warps and lane == 0:
            for i in range(depth):
                barrier_init(u32(full + 8 * i), u32(1))
                barrier_init(u32(full + 8 * (depth + i)), u32(warps))
            for i in range(Y_ROWS):
                barrier_init(u32(y_full + 8 * i), u32(LANES))
                barrier_init(u32(y_full + 8 * (Y_ROWS + i)), u32(warps))
            fence_started()
        index = i32(cuda.blockIdx.x)
        number = i32(u32(index) // u32(slices))
        c0, which = i32((index - number * slices) * channels), i32(u32(number) // u32(groups))
        group, down = i32(number - which * groups), i32(u32(which) // u32(across))
        h0, v0 = i32(down * tall), i32((which - down * across) * wide)
        rows, up = min(tall, i32(image[0] - h0)), i32(down & 1)
        # of positions that reach the tile: the first row, how many, and whether it ends with that; columns
        walk = (i32(h0 + padding[0] - (tall_taps - 1)), i32(rows + tall_taps - 1), up)
        q0 = i32(v0 + padding[1] - (taps - 1))
        low, high = max(i32(0), i32(-q0)), min(i32(positions), i32(output[1] - q0))
        cuda.syncthreads()
        if warp == warps:
            if lane == 0:
                ask(shared, w_of(w_map), full, (i32(c0 * area), i32(group * filters)), walk, output, (q0, low, high))
        elif warp > warps:
            wait_for_previous()
            first = y + i64(group * filters) * output[0] * output[1] * cell
            bring(shared, first, y_full, tops, walk, output, (q0, low, high))
        else:
            for e in range(sums):
                total[e] = f32(0)
            r, lot = i32(warp % tall_taps), i32(warp // tall_taps)
            own, own_y = place(lot, i32(pitch), i32(channels), i32(area * SIZE))
            for e in range(4):
                here[e] = i32(0)
            for i in range(walk[1]):
                p = _row(i, walk)
                if p >= 0 and p < output[0]:
                    barrier = i32(y_full + 8 * here[PLACE])
                    barrier_wait(u32(barrier), u32(here[Y_PARITY]))
                    tap = i32(i - r if up != flip else r + tall_taps - 1 - i)  # where it is in a filter
                    at_w, at_y = i32(ring + own + tap * (taps * SIZE)), i32(tops + here[PLACE] * y_bytes + own_y)
                    multiply(total, shared, here, full, at_w, at_y, low, high, i >= r and r < rows)
                    sync_warp()
                    if lane == 0:
                        barrier_arrive(u32(barrier + 8 * Y_ROWS))
                    here[PLACE], here[Y_PARITY] = _next(here[PLACE], here[Y_PARITY], Y_ROWS)
                done = i == r + tall_taps - 1
                if done and r < rows:
                    h = i32(h0 + (rows - 1 - r if up else r))
                    to = i64(group * C + c0) * x_strides[1] + i64(h) * x_strides[2] + i64(v0) * x_strides[3]
                    write(total, x + to * SIZE, lot, N, x_strides, alpha, beta)
                for e in range(sums):  # without a branch, past which the sums would change places
                    total[e] = f32(0) if done else total[e]
                r = i32(r + tall_taps) if done else r

    return kernel
