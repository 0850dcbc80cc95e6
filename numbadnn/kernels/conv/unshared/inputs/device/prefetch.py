"""The warp of ``device/prefetched.py`` that prefetches filters.

A copy is the faster the more its two ends have in common, up to their place within 128 bytes: filters begin in shared memory as
they do in memory, as far as banks allow.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.inputs.rows_sizes import LANES, RowsConfig
from numbadnn.kernels.lang.async_copies import copy_line, sync_warp
from numbadnn.kernels.lang.cuda import cuda, device, i32, i64, u32
from numbadnn.kernels.lang.hopper import barrier_expect, barrier_wait


def prefetching(size: int, config: RowsConfig) -> Callable[..., None]:
    """``prefetch(shared, w, full, rings, pitch, line, slot, K, rows, wide, strides)``: begin to copy all pieces.

    A lane has a filter, ``line`` bytes of each position. The barriers that say that a slot is empty follow those that say it
    is full.
    """
    depth, piece, deep, steps = config.depth, config.piece, config.deep, config.steps
    within = config.within

    @device
    def prefetch(shared, w, full, rings, pitch, line, slot, K, rows, wide, strides):
        lane = i32(cuda.threadIdx.x % LANES)
        beyond = i64(lane) * strides[0] * size  # the first filter
        barrier, to, parity = i32(full), i32(rings + lane * pitch), i32(1)
        last = i32(full + (depth - 1) * 8)
        for i in range(0, rows, deep):
            for q in range(wide):
                for s in range(steps):
                    left = min(i32(piece), i32(K - s * piece))
                    start = w + (i64(s * piece) * strides[0] + i * strides[1] + q * strides[2]) * size
                    for _ in range(min(i32(deep), i32(rows - i))):
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

    return prefetch
