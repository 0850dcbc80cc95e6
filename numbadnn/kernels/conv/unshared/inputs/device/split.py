"""The gradient of an unshared convolution's images in float32 on tensor cores, a row of pixels a warp, from left to right.

A block has ``places`` columns of some rows of positions, and some channels of a group; a warp has eight of these channels, of
one row of the pixels that the positions reach. It adds to as many columns of pixels as a filter has, which stay in registers,

    pixels       0  1  2  3  4  5      positions of column 0 reach columns 0 to 2; when their rows are done,
                [.  .  .]              column 0 is written and the sums move on by a column
                   [.  .  .]

Filters come to shared memory through a ring, 16 of one position a slot; three warps do nothing but prefetch them, others take
their rows of taps from a slot, or pass it by. y's values are cut into bfloat16 before (``device/split_turn.py``) and come
through the ring as well, prefetched by one more warp; of few positions the block cuts them itself. A column that saw a number
which cannot be cut is written as NaN: ``device/split_collect.py`` adds the boxes, and sums anew what is not finite.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.inputs.device.split_lanes import lanes_of
from numbadnn.kernels.conv.unshared.inputs.device.split_turn import fill
from numbadnn.kernels.conv.unshared.inputs.split_config import EIGHT, FEWER, LANES, PIECE, RINGS, SplitConfig
from numbadnn.kernels.lang.async_copies import copy_line, sync_warp
from numbadnn.kernels.lang.cuda import INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.hopper import (
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    fence_barriers,
    set_registers,
)
from numbadnn.kernels.lang.ptx import block_here, let_next_start, thread_here, wait_for_previous
from numbadnn.kernels.lang.warp import some_of_warp
from numbadnn.kernels.lang.words import shared_address

#: bytes of an element
SIZE = 4
#: warps that prefetch filters
ASKERS = 3
#: what ``here`` holds: where the slot is, its barrier, the parity of the wait for it to be full; where a column's y's values are
SLOT, BARRIER, PARITY, TOP = 0, 1, 2, 3


@device
def _filters_at(w, steps, k, p, q, output, K):
    return w + i64(k) * steps[0] + i64(p) * steps[1] + i64(q) * steps[2]


@device
def _values_at(y, steps, k, p, q, output, K):
    return y + i64((p * output[1] + q) * K + k) * steps[0]


def _ask(depth: int, piece: int, askers: int, pause: bool, where: Callable[..., int]) -> Callable[..., None]:
    """``ask(shared, source, steps, length, pitch, to, full, slot, count, run, output, tall, own, there)``: begin all copies.

    Of a slot ``piece`` of ``count`` lines, of which a warp has every ``askers``-th from its ``own`` on; a lane has one, whose
    ``length`` bytes go ``pitch`` bytes from the one before, from ``where``. ``run``: first column of the block, last one + 1.
    ``pause``: until the kernel before has ended. ``there``: a barrier that is waited for before, or 0: behind a whole ring of
    filters y's values would wait in memory's queue.
    """

    @device
    def ask(shared, source, steps, length, pitch, to, full, slot, count, run, output, tall, own, there):
        lane = i32(cuda.threadIdx.x % LANES)
        line = i32(own + askers * lane)
        barrier, parity, to = i32(full), i32(1), i32(to + line * pitch)
        if pause:
            wait_for_previous()
        if there != 0:
            barrier_wait(u32(there), u32(0))
        column, k, a = run[0], i32(0), i32(0)
        while column < run[1]:  # one loop, which the compiler does not unroll: that would need more registers
            strip = i32(u32(column) // u32(output[1]))
            p, q = i32(strip * tall + a), i32(column - strip * output[1])
            lines = min(i32(piece), i32(count - k))
            barrier_wait(u32(barrier + 8 * depth), u32(parity))
            if lane == 0:
                barrier_expect(u32(barrier), u32(i32(u32(lines - own + askers - 1) // u32(askers)) * length))
            sync_warp()
            if line < lines:
                copy_line(shared, to, where(source, steps, i32(k + line), p, q, output, count), length, u32(barrier))
            over = barrier == i32(full + (depth - 1) * 8)
            to = i32(to - (depth - 1) * slot) if over else i32(to + slot)
            barrier = i32(barrier - (depth - 1) * 8) if over else i32(barrier + 8)
            parity, a = i32(parity ^ 1) if over else parity, i32(a + 1)
            if a == tall or p + 1 == output[0]:
                a, k = i32(0), i32(k + piece)
                if k >= count:
                    k, column = i32(0), i32(column + 1)

    return ask


@device
def share_of(slices, groups, C, channels, tile, output):
    """A block's number, group, first channel, channels, and (first column of positions, last one + 1)."""
    index = i32(block_here())
    number = i32(u32(index) // u32(slices))
    block, strips = i32(u32(number) // u32(groups)), i32(u32(output[0] + tile[0] - 1) // u32(tile[0]))
    c0, begin = i32((index - number * slices) * channels), i32(block * tile[1])
    run = (begin, min(i32(begin + tile[1]), i32(strips * output[1])))
    return block, i32(number - block * groups), c0, min(channels, i32(C - c0)), run


def boxes(config: SplitConfig) -> Callable[..., None]:
    """space[tile, channel, pixel of the tile's box, image] = sum over the tile's positions and over filters of y * w."""
    (tall, taps), (down, right), flip, depth = config.taps, config.stride, config.flip, config.depth
    images, of_column, warps = config.images, config.of_column, config.warps
    lanes, ask_filters = lanes_of(config), _ask(depth, PIECE, ASKERS, False, _filters_at)
    ask_y, sums = _ask(depth, 1, 1, True, _values_at), taps * of_column
    place, multiply, put = lanes.place, lanes.multiply, lanes.put
    fewer, more, of_y = set_registers(FEWER, False), set_registers(config.registers, True), config.of_y
    of_channel, of_pixel = tall * taps * SIZE, images * SIZE
    filled, bring, of_y_in_slot = config.filled, fill(config), 0 if config.filled else config.of_y
    kept, padded = (taps - right) * of_column, config.padded
    reach, not_a_number = (1 << taps) - 1, float("nan")

    @device
    def multiply_column(total, shared, here, own, own_y, pitch, y_pitch, slot, last, r, K, rows):
        """All rows of positions of a column; whether a number could not be cut."""
        lost = u32(0)
        for k in range(0, K, PIECE):
            for a in range(rows):
                barrier_wait(u32(here[BARRIER]), u32(here[PARITY]))
                tap = i32(r - a * down)
                if tap >= 0 and tap < i32(tall):
                    at_w = i32(here[SLOT] + own + (tall - 1 - tap if flip else tap) * (taps * SIZE))
                    at_y = (
                        i32(here[TOP] + own_y + a * y_pitch + k // PIECE * of_y) if filled else i32(here[SLOT] + own_y)
                    )
                    lost = u32(lost | multiply(total, shared, at_w, at_y, pitch, i32(K - k)))
                sync_warp()
                if cuda.threadIdx.x % LANES == 0:
                    barrier_arrive(u32(here[BARRIER] + 8 * depth))
                over = here[BARRIER] == last
                here[SLOT] = i32(here[SLOT] - (depth - 1) * slot) if over else i32(here[SLOT] + slot)
                here[BARRIER] = i32(here[BARRIER] - (depth - 1) * 8) if over else i32(here[BARRIER] + 8)
                here[PARITY] = i32(here[PARITY] ^ 1) if over else here[PARITY]
        return lost

    def kernel(
        y, w, space, slices, groups, N, K, C, channels, tile, output, pitch, y_pitch, box, by_positions, by_places,
        by_across, w_steps, y_strides,
    ):  # fmt: skip
        let_next_start()
        shared, total = cuda.shared.array(0, WORD), cuda.local.array(sums, f32)
        here = cuda.local.array(4, INT32)
        thread = i32(cuda.threadIdx.x)
        # barriers: one for each slot of the ring that is full, then one for each that is empty; y's values are there; they have
        # been prefetched; the ring
        full = i32(shared_address(shared))
        if thread < depth:
            barrier_init(u32(full + 8 * thread), u32(ASKERS if filled else ASKERS + 1))
            barrier_init(u32(full + 8 * (depth + thread)), u32(warps))
            fence_barriers()
        if thread == depth:
            barrier_init(u32(full + 16 * depth), u32(warps))
            barrier_init(u32(full + 16 * depth + 8), u32(warps))
            fence_barriers()
        cuda.syncthreads()
        ring, slot = i32(full + RINGS), i32(PIECE * pitch + of_y_in_slot)
        if thread >= LANES * padded:
            fewer()
            warp = i32(thread_here() // LANES)
            block, group, c0, have, run = share_of(slices, groups, C, channels, tile, output)
            if warp < padded + ASKERS:
                at, length = w + i64(group * K) * w_steps[0] + c0 * of_channel, i32(have * of_channel)
                there = i32(full + 16 * depth + 8) if filled else i32(0)
                own = i32(warp - padded)
                ask_filters(shared, at, w_steps, length, pitch, ring, full, slot, K, run, output, tile[0], own, there)
            if warp == padded + ASKERS and not filled:
                steps, to = i32((K + PIECE - 1) // PIECE), i32(ring + PIECE * pitch)
                at = y + i64(group * output[0] * output[1]) * (steps * of_y)
                ask_y(
                    shared,
                    at,
                    (i64(of_y),),
                    i32(of_y),
                    i32(0),
                    to,
                    full,
                    slot,
                    steps,
                    run,
                    output,
                    tile[0],
                    i32(0),
                    i32(0),
                )
        else:
            more()
            lane, warp = i32(thread_here() % LANES), i32(thread_here() // LANES)
            if warp < warps:
                block, group, c0, have, run = share_of(slices, groups, C, channels, tile, output)
                begin, last = run[0], i32(full + (depth - 1) * 8)
                for i in range(sums):
                    total[i] = f32(0)
                lot = i32(u32(warp) // u32(box[0]))
                r = i32(warp - lot * box[0])  # the warp's row of pixels, and which channels
                own, own_y = place(lot, pitch, have, of_channel)
                tops = i32(ring + depth * slot)
                own_y = own_y if filled else i32(own_y + PIECE * pitch)
                here[SLOT], here[BARRIER], here[PARITY], here[TOP] = ring, full, i32(0), tops
                if filled:
                    top = y + i64(group * K) * y_strides[1] * SIZE
                    by, asked = (by_positions, by_places, by_across), i32(full + 16 * depth + 8)
                    bring(shared, tops, y_pitch, top, y_strides, N, K, run, tile, output, by, asked)
                    sync_warp()
                    if lane == 0:
                        barrier_arrive(u32(full + 16 * depth))
                    barrier_wait(u32(full + 16 * depth), u32(0))
                channel, area = i32(lot * EIGHT + 2 * (lane & 3)), i32(box[0] * box[1])
                mine = i32(have - channel)
                first = (
                    space + (i64(c0 + channel) * area + r * box[1]) * of_pixel + (lane >> 2) * (of_column // 2 * SIZE)
                )
                while begin < run[1]:  # what is left of a row's columns, then of the next
                    strip = i32(u32(begin) // u32(output[1]))
                    end = min(run[1], i32((strip + 1) * output[1]))
                    rows = min(tile[0], i32(output[0] - strip * tile[0]))
                    to = first + i64(((strip + block) * groups + group) * C) * area * of_pixel
                    lost = u32(0)  # of each column a bit: that it saw what cannot be cut
                    for _ in range(begin, end):
                        found = multiply_column(total, shared, here, own, own_y, pitch, y_pitch, slot, last, r, K, rows)
                        here[TOP] = i32(here[TOP] + tile[0] * y_pitch)
                        lost = u32(lost | u32(reach)) if found != 0 else lost
                        seen = some_of_warp(lost)
                        for v in range(right):
                            put(total, v, to, mine, area, f32(not_a_number if seen >> u32(v) & u32(1) else 0.0))
                            to = to + of_pixel
                        for i in range(kept):
                            total[i] = total[right * of_column + i]
                        for i in range(right * of_column):
                            total[kept + i] = f32(0)
                        lost = u32(lost >> u32(right))
                    seen = some_of_warp(lost)
                    for v in range(taps - right):
                        put(total, v, to, mine, area, f32(not_a_number if seen >> u32(v) & u32(1) else 0.0))
                        to = to + of_pixel
                    for i in range(sums):
                        total[i] = f32(0)
                    begin = end

    return kernel
