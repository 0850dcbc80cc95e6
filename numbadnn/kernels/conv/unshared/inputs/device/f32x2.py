"""grad_inputs of a float32 unshared convolution on tensor cores: a warp computes a column of pixels from top to bottom.

A block has ``positions`` neighbouring outputs of each of some rows, and some channels of a group. A warp has some of these
channels, of one column of the pixels that the positions reach. It adds to as many rows of pixels as a filter has, which stay
in registers: when a row of positions is done, the first of them is written and the sums move on by a row. Columns that more
positions reach are given out first, so that every quarter of a multiprocessor has as much to do.

    filters    through a ring, 16 of one position a slot, prefetched by a warp that does nothing else
    y          cut into two float16 by other such warps, of 16 filters and a row at a time (``device/f32x2_fill.py``)

so that memory is never idle. Numbers that cannot be cut are NaN: ``device/f32x2_reduce.py`` adds the boxes, and sums anew
what is not finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.unshared.forward.device.f32x2_cut import ONE
from numbadnn.kernels.conv.unshared.inputs.device.f32x2_fill import filling
from numbadnn.kernels.conv.unshared.inputs.device.f32x2_lanes import lanes_of
from numbadnn.kernels.conv.unshared.inputs.f32x2_config import (
    AHEAD,
    EIGHT,
    FEWER,
    FILLERS,
    LANES,
    PIECE,
    RINGS,
    InputsF32x2Config,
)
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
from numbadnn.kernels.lang.ptx import block_here, let_next_start, thread_here
from numbadnn.kernels.lang.words import shared_address

#: bytes of an element
SIZE = 4
#: what ``here`` holds: where the slot is, its barrier, the parity of the wait for it to be full
SLOT, BARRIER, PARITY = 0, 1, 2


@device
def share_of(slices, groups, C, channels, tile, output):
    """A block's number, group, first channel, channels, and (first column of positions, last one + 1)."""
    index = i32(block_here())
    number = i32(u32(index) // u32(slices))
    block, strips = i32(u32(number) // u32(groups)), i32(u32(output[0] + tile[0] - 1) // u32(tile[0]))
    c0, begin = i32((index - number * slices) * channels), i32(block * tile[1])
    run = (begin, min(i32(begin + tile[1]), i32(strips * output[1])))
    return block, i32(number - block * groups), c0, min(channels, i32(C - c0)), run


@device
def from_the_middle(i, count):
    """The i-th of ``count`` columns in the order of how many positions reach them."""
    return i32(i32((count - 1) // 2) + i32((i + 1) // 2) * (2 * (i & 1) - 1))


def _prefetching(config: InputsF32x2Config) -> Callable[..., None]:
    """``prefetch(shared, w, steps, length, pitch, ring, full, K, rows)``: begin all copies; a lane has a filter of a slot."""
    depth, positions = config.depth, config.positions

    @device
    def prefetch(shared, w, steps, length, pitch, ring, full, K, rows):
        lane, slot, parity = i32(thread_here() % LANES), i32(0), i32(1)
        for p in range(rows):
            for k in range(0, K, PIECE):
                lines = min(i32(PIECE), i32(K - k))
                source = w + i64(k + lane) * steps[0] + i64(p) * steps[1]
                for _ in range(positions):
                    barrier = u32(full + 8 * slot)
                    barrier_wait(u32(barrier + u32(8 * depth)), u32(parity))
                    if lane == 0:
                        barrier_expect(barrier, u32(lines * length))
                    sync_warp()
                    if lane < lines:
                        copy_line(shared, i32(ring + (slot * PIECE + lane) * pitch), source, length, barrier)
                    source = source + steps[2]
                    parity = i32(parity ^ 1) if slot == depth - 1 else parity
                    slot = i32(0) if slot == depth - 1 else i32(slot + 1)

    return prefetch


def _multiplying(config: InputsF32x2Config) -> tuple[Callable[..., Any], ...]:
    """(``place``, ``multiply_piece``, ``store_row``): two of ``Lanes``, and 16 filters of a row of a block's positions."""
    wide, right, flip, depth, positions = config.taps[1], config.stride[1], config.flip, config.depth, config.positions
    of_y = config.of_y
    place, multiply, store_row = lanes_of(config)

    @device
    def multiply_piece(total, shared, here, own, top, pitch, last, v, count, state, floor, spread):
        scale, inverse = state
        for a in range(positions):
            barrier_wait(u32(here[BARRIER]), u32(here[PARITY]))
            tap = i32(v - a * right)
            if tap >= 0 and tap < i32(wide):
                shift = i32(here[SLOT] + (wide - 1 - tap if flip else tap) * SIZE)
                at_y = i32(top + a * of_y)
                scale, inverse = multiply(
                    total, shared, own, shift, at_y, pitch, count, (scale, inverse), floor, spread
                )
            sync_warp()
            if thread_here() % LANES == 0:
                barrier_arrive(u32(here[BARRIER] + 8 * depth))
            over = here[BARRIER] == last
            here[SLOT] = i32(here[SLOT] - (depth - 1) * PIECE * pitch) if over else i32(here[SLOT] + PIECE * pitch)
            here[BARRIER] = i32(here[BARRIER] - (depth - 1) * 8) if over else i32(here[BARRIER] + 8)
            here[PARITY] = i32(here[PARITY] ^ 1) if over else here[PARITY]
        return scale, inverse

    return place, multiply_piece, store_row


def boxes(config: InputsF32x2Config) -> Callable[..., None]:
    """space[tile, channel, pixel of the tile's box, image] = sum over the tile's positions and over filters of y * w."""
    (tall, wide), down, depth, chunks, vectors = (
        config.taps,
        config.stride[0],
        config.depth,
        config.chunks,
        config.vectors,
    )
    warps, padded = config.warps, config.padded
    (place, multiply_piece, store_row), prefetch, fill = _multiplying(config), _prefetching(config), filling(config)
    fewer, more, of_channel = set_registers(FEWER, False), set_registers(config.registers, True), tall * wide * SIZE
    of_row, of_pixel, of_raw = vectors * config.of_vector, config.images * SIZE, AHEAD * config.raw_bytes
    sums, kept, barriers = tall * of_row, (tall - down) * of_row, 2 * (depth + chunks)
    of_chunk = config.positions * config.of_y

    @device
    def start_barriers(full):
        """Of each slot of the ring: it is full, it is empty; of each place for y's values the same."""
        i = i32(cuda.threadIdx.x)
        if i < barriers:
            rows, other = i >= 2 * depth, i32(i - 2 * depth)
            filled = i32(FILLERS if rows else 1)
            count = filled if (other < chunks if rows else i < depth) else i32(warps)
            barrier_init(u32(full + 8 * i), u32(count))
            fence_barriers()

    def kernel(
        y, w, space, slices, groups, N, K, C, channels, tile, output, pitch, box, floor, spread, w_steps, y_strides,
    ):  # fmt: skip
        let_next_start()
        shared, total = cuda.shared.array(0, WORD), cuda.local.array(sums, f32)
        here, full = cuda.local.array(3, INT32), i32(shared_address(shared))
        start_barriers(full)
        cuda.syncthreads()
        ring, rows_full = i32(full + RINGS), i32(full + 16 * depth)
        tops = i32(ring + depth * PIECE * pitch)
        block, group, c0, have, run = share_of(slices, groups, C, channels, tile, output)
        strip = i32(u32(run[0]) // u32(output[1]))
        p0, q0 = i32(strip * tile[0]), i32(run[0] - strip * output[1])
        rows = min(tile[0], i32(output[0] - p0))
        if cuda.threadIdx.x >= LANES * padded:
            fewer()
            own = i32(thread_here() // LANES - padded)
            if own == 0:
                at = w + i64(group * K) * w_steps[0] + i64(p0) * w_steps[1] + i64(q0) * w_steps[2] + c0 * of_channel
                prefetch(shared, at, w_steps, i32(have * of_channel), pitch, ring, full, K, rows)
            elif own <= FILLERS:
                at = i64(group * K) * y_strides[1] + i64(p0) * y_strides[2] + i64(q0) * y_strides[3]
                raw = i32(tops + chunks * of_chunk + (own - 1) * of_raw)
                fill(shared, raw, tops, y + at * SIZE, y_strides, N, K, rows, spread, rows_full)
        else:
            more()
            lane, warp = i32(thread_here() % LANES), i32(thread_here() // LANES)
            if warp < warps:
                units, area = i32(warps // box[1]), i32(box[0] * box[1])
                unit, v = i32(warp % units), from_the_middle(i32(warp // units), box[1])
                own, last = place(unit, pitch, have, of_channel), i32(full + (depth - 1) * 8)
                here[SLOT], here[BARRIER], here[PARITY] = ring, full, i32(0)
                for i in range(sums):
                    total[i] = f32(0)
                channel = i32(unit * (vectors * EIGHT) + 2 * (lane & 3))
                number = i64(((strip + block) * groups + group) * C + c0 + channel)
                to = space + (number * area + v) * of_pixel + (lane >> 2) * (of_pixel // EIGHT)
                mine, below = i32(have - channel), i32(box[1] * of_pixel)
                scale, inverse, chunk, parity = i32(ONE), f32(1), i32(0), i32(0)
                for row in range(tile[0]):
                    for k in range(0, K if row < rows else 0, PIECE):
                        barrier_wait(u32(rows_full + 8 * chunk), u32(parity))
                        top, count, state = i32(tops + chunk * of_chunk), i32(K - k), (scale, inverse)
                        scale, inverse = multiply_piece(
                            total, shared, here, own, top, pitch, last, v, count, state, floor, spread
                        )
                        if lane == 0:  # behind what the warp last met for
                            barrier_arrive(u32(rows_full + 8 * (chunks + chunk)))
                        parity = i32(parity ^ 1) if chunk == chunks - 1 else parity
                        chunk = i32(0) if chunk == chunks - 1 else i32(chunk + 1)
                    for r in range(down):
                        store_row(total, r, to, mine, area)
                        to = to + below
                    for i in range(kept):
                        total[i] = total[down * of_row + i]
                    for i in range(down * of_row):
                        total[kept + i] = f32(0)
                for r in range(tall - down):
                    store_row(total, r, to, mine, area)
                    to = to + below

    return kernel
