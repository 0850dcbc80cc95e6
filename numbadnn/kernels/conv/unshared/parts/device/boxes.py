"""TMA boxes of a tile: some channels at a time, through a few buffers in shared memory.

Each buffer has two barriers, behind those of the warps' rings: one is signalled when its box has come, one by all warps that
multiply when they need it no longer. A tile's first box goes to the first buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.unshared.parts.tile import LANES
from numbadnn.kernels.lang.async_copies import copy_tile, sync_warp
from numbadnn.kernels.lang.cuda import cuda, device, i32, u32
from numbadnn.kernels.lang.hopper import barrier_arrive, barrier_expect, barrier_init, barrier_wait, fence_started
from numbadnn.kernels.lang.ptx import thread_here


def starting(config: Any) -> Callable[..., None]:
    """``start(full)``: all threads make the barriers from ``full`` on, of rings and of boxes; then the block is to meet."""
    rings, boxes, warps = 2 * config.warps * config.depth, config.boxes, config.warps
    each = -(-(rings + 2 * boxes) // (config.threads // LANES))

    @device
    def start(full):
        thread = i32(cuda.threadIdx.x)
        if thread % LANES < each:  # a warp's lanes begin theirs one after the other
            i = i32(thread // LANES * each + thread % LANES)
            if i < rings + 2 * boxes:
                barrier_init(u32(full + 8 * i), u32(1 if i < rings + boxes else warps))
                fence_started()

    return start


def prefetching_boxes(config: Any, axis: int) -> Callable[..., int]:
    """``prefetch(shared, images, full, to, pitch, size, C, channels, at, phases)``: all boxes of a tile, by one thread.

    ``full``: the first barrier; buffers are ``pitch`` bytes apart, a copy has ``size``; ``at``: where the first begins, whose
    ``axis`` counts channels. ``phases``: a bit of each buffer; what they are afterwards.
    """
    rings, boxes, copy = 2 * config.warps * config.depth, config.boxes, copy_tile(4)

    @device
    def prefetch(shared, images, full, to, pitch, size, C, channels, at, phases):
        place = i32(0)
        for c in range(i32(0), C, channels):
            barrier = u32(full + 8 * (rings + place))
            barrier_wait(u32(barrier + u32(8 * boxes)), u32(u32(phases >> place & 1) ^ u32(1)))
            barrier_expect(barrier, u32(size))
            row = i32(at[2] + c) if axis == 2 else at[2]
            last = i32(at[3] + c) if axis == 3 else at[3]
            copy(shared, i32(to + place * pitch), images, (at[0], at[1], row, last), barrier)
            phases = i32(phases ^ (1 << place))
            place = i32(place + 1) if place < boxes - 1 else i32(0)
        return phases

    return prefetch


def awaiting(config: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What the warps that multiply call, ``box_terms``: terms of a box.

    ``await_boxes(full, have, need, box_terms, phases, place)``: until the first ``need`` terms are there; ``have`` are.
    ``leave_boxes(full, left, done, box_terms, place)``: those whose terms all lie before ``done`` are not needed any
    longer; those before ``left`` are not already.
    """
    rings, boxes = 2 * config.warps * config.depth, config.boxes

    @device
    def await_boxes(full, have, need, box_terms, phases, place):
        while have < need:
            barrier_wait(u32(full + 8 * (rings + place)), u32(phases >> place & 1))
            phases, have = i32(phases ^ (1 << place)), i32(have + box_terms)
            place = i32(place + 1) if place < boxes - 1 else i32(0)
        return have, phases, place

    @device
    def leave_boxes(full, left, done, box_terms, place):
        while left + box_terms <= done:
            sync_warp()
            if thread_here() % LANES == 0:
                barrier_arrive(u32(full + 8 * (rings + boxes + place)))
            left = i32(left + box_terms)
            place = i32(place + 1) if place < boxes - 1 else i32(0)
        return left, place

    return await_boxes, leave_boxes
