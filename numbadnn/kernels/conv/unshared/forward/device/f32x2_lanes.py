"""The product that a lane of ``device/f32x2.py`` computes: 32 terms of 16 filters at a position, of 32 images.

    A  filters by terms      lane 4 g + t: terms 2 t, 2 t + 1, and both 8 further, of the filters of rows g and g + 8
    B  terms by images       those terms of image g of eight
    C  filters by images     rows g and g + 8, images 2 t and 2 t + 1 of each eight

A pixel's pieces of eight images, of one half, lie at i ^ key: the key counts terms, so that eight neighbouring ones, which a
matrix is loaded from, meet all banks, and of a lane it is always the same. Pieces of filters are exchanged by the copy engine.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.device.f32x2_cut import NUMBERS, ONE, SUMS, cut, cut_anew
from numbadnn.kernels.conv.unshared.forward.f32x2_config import PIECE, PIXEL, SLOT, F32x2Config, ring_at
from numbadnn.kernels.conv.unshared.parts.device.boxes import awaiting
from numbadnn.kernels.lang.async_copies import sync_warp
from numbadnn.kernels.lang.cuda import INT32, WORD, cuda, device, f32, i32, u32
from numbadnn.kernels.lang.hopper import barrier_arrive, barrier_wait
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.ptx import thread_here
from numbadnn.kernels.lang.scaled_halves import APART
from numbadnn.kernels.lang.warp import some_of_warp
from numbadnn.kernels.lang.words import read_at

_read_pair, _read_spot, _load_images = read_at("int32", 2), read_at("int32", 1), load_matrices(True)
_multiply_add = product("float16", 16)


@device
def key_of(c, row, column, taps, flip):
    """Of a pixel, or of a tap at the first position; the lowest three bits count."""
    inside = i32(column + taps[1] * row)
    return i32(c * (taps[0] * taps[1]) + inside - 2 * flip * inside)  # backwards where taps are


@device
def filters_row(lane):
    """Which filter is row ``lane // 4``: four that are read together have their pieces in other banks."""
    g = i32(lane >> 2)
    return i32(2 * g if g < 4 else 2 * g - 7)


@device
def filters_at(lane):
    """Where a lane's first numbers lie in a slot, whose pieces the copy engine has exchanged."""
    row, t = filters_row(lane), i32(lane & 3)
    return i32(row * 128 + ((t >> 1) ^ (row & 7)) * 16 + (t & 1) * 8)


@device
def look(x, shared, at):
    """A slot's numbers that a lane multiplies."""
    for h in range(2):
        for e in range(2):
            for r in range(2):
                _read_pair(x, i32(8 * h + 4 * e + 2 * r), shared, i32((at ^ (64 * h + 32 * e)) + 1024 * r))


@device
def multiply_slot(total, small, large, a, b, shared, spots, base, inverse):
    for i in range(SUMS):
        large[i] = f32(0)
    for h in range(2):
        _read_spot(b, i32(0), shared, i32(spots + 64 * h))
        spot = i32(b[0])
        for i in range(4):
            _load_images(b, i32(4 * i), shared, i32(spot + base[i]))
        for o in range(4):
            _multiply_add(large, i32(4 * o), a, i32(4 * h), b, i32(2 * o))
        for o in range(4):
            _multiply_add(small, i32(4 * o), a, i32(4 * h), b, i32(8 + 2 * o))
        for o in range(4):
            _multiply_add(small, i32(4 * o), a, i32(8 + 4 * h), b, i32(2 * o))
    for i in range(SUMS):
        total[i] = f32(total[i] + large[i] * inverse)


def multiplying(config: F32x2Config) -> Callable[..., tuple[int, int, int]]:
    """``multiply(total, shared, full, table, pixels, back, terms, box_terms, box, taps, ..., state)``: the sums of a warp.

    Of one tile. ``full``: the first barrier; ``table``: where in the boxes, from ``pixels`` on, each term is;
    ``box_terms``: the terms of a box; ``back``: the inverse of the images' scale; ``floor``: see ``cut``; ``origin``:
    channel, row and column of the first pixel, which keys are made of. ``state``: the next slot, the parity of its
    barrier, and of each box's; what they are afterwards.
    """
    columns, parts, splits, depth, warps = config.positions, config.parts, config.splits, config.depth, config.warps
    positions, rings_from, hop = config.tall * columns, ring_at(config), PIECE * splits
    await_boxes, leave_boxes = awaiting(config)

    @device
    def multiply(
        total, shared, full, table, pixels, back, terms, box_terms, box, taps, stride, flip, floor, spread, origin, state,
    ):  # fmt: skip
        small, large, base = cuda.local.array(SUMS, f32), cuda.local.array(SUMS, f32), cuda.local.array(4, INT32)
        numbers, a, b = cuda.local.array(NUMBERS, WORD), cuda.local.array(16, WORD), cuda.local.array(16, INT32)
        thread = i32(thread_here())
        warp, lane = i32(thread >> 5), i32(thread & 31)
        place, split = i32(warp % positions), i32(warp // positions // parts)
        down, right = i32(place // columns * stride[0]), i32(place % columns * stride[1])
        key = i32(key_of(origin[0], i32(origin[1] + down), i32(origin[2] + right), taps, flip) + lane)
        key = i32((key + flip * (1 - taps[0] * taps[1])) & 7)
        for i in range(4):
            base[i] = i32(pixels + (down * box[1] + right) * PIXEL + ((2 * i + (lane >> 4)) ^ key) * 16)
        for i in range(SUMS):
            total[i], small[i] = f32(0), f32(0)
        slot, parity, phases = state
        own, barrier = i32(table + (lane & 15) * 4), i32(full + warp * depth * 8)
        scale, inverse, from_slot = i32(ONE), f32(1), i32(full + rings_from + warp * (depth * SLOT) + filters_at(lane))
        have, left, coming, going = i32(0), i32(0), i32(0), i32(0)
        for m in range(i32(split * PIECE), terms, i32(hop)):
            barrier_wait(u32(barrier + slot * 8), u32(parity))
            look(numbers, shared, i32(from_slot + slot * SLOT))
            sync_warp()
            if lane == 0:
                barrier_arrive(u32(barrier + (warps * depth + slot) * 8))
            if some_of_warp(cut(a, numbers, scale, floor)) != 0:
                scale, inverse = cut_anew(a, numbers, total, small, scale, inverse, spread)
            have, phases, coming = await_boxes(full, have, min(i32(m + PIECE), terms), box_terms, phases, coming)
            multiply_slot(total, small, large, a, b, shared, i32(own + m * 4), base, inverse)
            left, going = leave_boxes(full, left, min(i32(m + hop), terms), box_terms, going)
            parity = i32(parity ^ 1) if slot == depth - 1 else parity
            slot = i32(0) if slot == depth - 1 else i32(slot + 1)
        # boxes that this warp did not look into as well
        have, phases, coming = await_boxes(full, have, terms, box_terms, phases, coming)
        left, going = leave_boxes(full, left, terms, box_terms, going)
        for i in range(SUMS):
            total[i] = f32((total[i] + small[i] * f32(inverse * f32(1 / APART))) * back)
        return slot, parity, phases

    return multiply
