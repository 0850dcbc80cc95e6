"""The warp that prefetches filters of the gradient of an unshared convolution's images, ``device/asked.py``.

A copy is the faster the more its two ends have in common, up to their place within 128 bytes: filters begin in shared memory as
they do in memory, as far as banks allow.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.inputs.rows_sizes import LANES, RowsConfig
from numbadnn.kernels.lang.async_copies import copy_line, sync_warp
from numbadnn.kernels.lang.cuda import cuda, device, i32, i64, u32
from numbadnn.kernels.lang.hopper import barrier_expect, barrier_wait

#: pieces of whole rows of positions at once, more of which would keep y's values waiting
UNDER_WAY = 2


@device
def inside(position, count):
    return position >= 0 and position < count


def asking(size: int, config: RowsConfig) -> Callable[..., None]:
    """``ask(shared, w, full, rings, pitch, line, slot, K, rows, wide, first, count, strides)``: begin to copy all pieces.

    A lane has a filter, ``line`` bytes of each position. The barriers that say that a slot is empty follow those that say it
    is full.
    """
    depth, piece, deep, steps = config.depth, config.piece, config.deep, config.steps
    within, places, cut = config.within, config.places, config.cut

    @device
    def ask(shared, w, full, rings, pitch, line, slot, K, rows, wide, first, count, strides):
        lane = i32(cuda.threadIdx.x % LANES)
        beyond = i64(lane) * strides[0] * size  # the first filter
        barrier, to, parity = i32(full), i32(rings + lane * pitch), i32(1)
        last = i32(full + (depth - 1) * 8)
        for i in range(0, rows, deep):
            for q in range(wide):
                for s in range(steps):
                    left = min(i32(piece), i32(K - s * piece))
                    start = w + (i64(s * piece) * strides[0] + i * strides[1] + q * strides[2]) * size
                    for a in range(min(i32(deep), i32(rows - i))):
                        if not cut or inside(i32((i + a) * places + q - first), count):
                            barrier_wait(u32(barrier + 8 * depth), u32(parity))
                            if lane == 0:
                                barrier_expect(u32(barrier), u32(left * line))
                            sync_warp()
                            if lane < left:
                                copy_line(shared, i32(to + (start & within)), start + beyond, line, u32(barrier))
                            over = barrier == last
                            to = i32(to - (depth - 1) * slot) if over else i32(to + slot)
                            barrier = i32(full) if over else i32(barrier + 8)
                            parity = i32(parity ^ 1) if over else parity
                        start = start + strides[1] * size

    @device
    def ask_whole(shared, w, full, rings, pitch, line, slot, K, rows, wide, first, count, strides):
        lane, length = i32(cuda.threadIdx.x % LANES), i32(wide * line)
        beyond = i64(lane) * strides[0] * size
        for i in range(rows * steps):
            p = i32(i // steps)
            s = i32(i - p * steps)
            left, barrier = min(i32(piece), i32(K - s * piece)), u32(full + 8 * i)
            if i >= UNDER_WAY:
                barrier_wait(u32(full + 8 * (i - UNDER_WAY)), u32(0))
            if lane == 0:
                barrier_expect(barrier, u32(left * length))
            sync_warp()
            if lane < left:
                start = w + (i64(s * piece) * strides[0] + p * strides[1]) * size
                to = i32(rings + i * slot + lane * pitch + (start & within))
                copy_line(shared, to, start + beyond, length, barrier)

    return ask_whole if config.whole else ask
