"""The gradient of an unshared convolution's images with sums in registers, a row of pixels a warp.

A block has ``places`` neighbouring positions of some rows, and some channels of a group; a warp has some of these channels, of
one row of the pixels that the positions reach. Its sums, of all columns and images, stay in registers while the block walks
down its rows of positions:

    row of pixels    0  1  2  3  4  5     positions in row 0 reach rows 0 to 2, by taps 0 to 2;
    warp             0  1  2  0  1  2     those in row 1 rows 1 to 3: warp 0 goes on with row 3

Which sums a position and a tap of a row add to is known when the kernel is made. A warp whose row no later position reaches
writes it to the workspace, where ``_unshared_inputs_collect`` adds the boxes of neighbouring blocks. Filters come to shared
memory by asynchronous copies, ``depth - 1`` pieces of them before they are multiplied and whole lines at a time; every warp
takes its rows of taps from there. What a lane multiplies is in ``_unshared_inputs_rows_single`` and ``.._halves``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels import _unshared_inputs_rows_halves, _unshared_inputs_rows_single
from numbadnn.kernels._async_copies import copy_if, sync_warp
from numbadnn.kernels._cuda import SIMULATED, cuda, device, f32, i32, i64, u32
from numbadnn.kernels._gemm_tiles import INT64
from numbadnn.kernels._hopper import barrier_arrive, barrier_follow, barrier_init, barrier_wait, fence_barriers
from numbadnn.kernels._implicit_tiles import INT32
from numbadnn.kernels._implicit_tiles_words import shared_address
from numbadnn.kernels._ptx import ELEMENT, WORD, let_next_start
from numbadnn.kernels._unshared_inputs_tile import block_of
from numbadnn.kernels.unshared_inputs_rows import LANES, ROWS, RowsConfig
from numbadnn.problem import ITEMSIZE

#: the simulator has no warps: there all threads wait for each other
meet: Any = (lambda: cuda.syncthreads()) if SIMULATED else sync_warp
#: bytes of a sum; of a row of zeros; where in shared memory those and the ring begin
ITEM, ZERO_BYTES, ZEROS, RINGS = 4, 64, 192, 256
#: bytes of a copy; pieces of filters that are asked for before y's values
COPY, EARLY = 16, 3


def _ask_next(size: int, config: RowsConfig) -> Callable[..., None]:
    """``ask(shared, walk, at, pitch, length, slot, last, K, wide, strides)``: begin to copy the next piece, if there is one.

    A warp has every ``warps``-th filter of it, ``length`` bytes each. ``at``: where a thread's first 16 bytes lie; ``walk``: rows
    of positions left, first filter, column, where in the ring the 16 bytes go, barriers of the slot, parity of the wait for it
    to be empty; ``last``: the barrier of the ring's last slot.
    """
    depth, warps, turns = config.depth, config.warps, config.turns

    @device
    def ask(shared, walk, at, pitch, length, slot, last, K, wide, strides):  # type: ignore[no-untyped-def]
        if walk[0] > 0:
            lane, warp = i32(cuda.threadIdx.x % LANES), i32(cuda.threadIdx.x // LANES)
            left, source, to = min(i32(ROWS), i32(K - walk[1])), at[0], walk[3]
            for j in range(0, ROWS, warps):
                for e in range(turns):
                    reach = e * (LANES * COPY)
                    wanted = warp + j < left and lane * COPY + reach < length
                    copy_if(wanted, shared, i32(to + reach), source + reach)
                source, to = source + strides[0] * (warps * size), i32(to + warps * pitch)
            barrier_follow(u32(walk[4]))
            walk[1] = i32(walk[1] + ROWS)
            at[0] = at[0] + strides[0] * (ROWS * size)
            if walk[1] >= K:
                at[0] = at[0] + (strides[2] - walk[1] * strides[0]) * size
                walk[1] = i32(0)
                walk[2] = i32(walk[2] + 1)
                if walk[2] == wide:
                    walk[2], walk[0] = i32(0), i32(walk[0] - 1)
                    at[0] = at[0] + (strides[1] - wide * strides[2]) * size
            over = walk[4] == last
            walk[3] = i32(walk[3] - (depth - 1) * slot) if over else i32(walk[3] + slot)
            walk[4] = i32(walk[4] - (depth - 1) * 8) if over else i32(walk[4] + 8)
            walk[5] = i32(walk[5] ^ 1) if over else walk[5]

    return ask


def boxes(dtype: str, config: RowsConfig) -> Callable[..., None]:
    """space[tile, channel, pixel of the tile's box, n] = sum over the tile's positions and over filters of y * w."""
    lanes = (_unshared_inputs_rows_single if dtype == "float32" else _unshared_inputs_rows_halves).parts(dtype, config)
    fill, place, write = lanes.fill, lanes.place, lanes.write
    (tall, taps), places, right, depth, flip, kept = (
        *(config.taps, config.places, config.right, config.depth, config.flip, config.kept),
    )
    size, steps, columns = ITEMSIZE[dtype], config.steps, config.columns
    of_piece, sums, element = lanes.of_piece, columns * lanes.sums, ELEMENT["float32"] if dtype == "float32" else WORD
    ask, of_channel, slack, warps = _ask_next(size, config), tall * taps * size, min(2, depth - 1), config.warps
    threads, early = config.threads, min(depth, EARLY)

    def row_from(q):  # type: ignore[no-untyped-def]
        """The positions of a row from the ``q``-th on: a loop over them would leave the sums in memory."""
        multiply = lanes.multiply(q * right * lanes.sums)

        @device
        def now(total, shared, walk, at, here, pitch, length, slot, last, K, wide, strides, own, y_pitch, zeros):  # type: ignore[no-untyped-def]
            if q < wide:
                for s in range(steps):
                    if here[4] >= slack and walk[0] > 0:  # what all have multiplied a while ago makes room
                        barrier_wait(u32(walk[4] + 8 * depth), u32(walk[5]))
                        ask(shared, walk, at, pitch, length, slot, last, K, wide, strides)
                    here[4] = i32(here[4] + 1)
                    barrier_wait(u32(here[2]), u32(here[3]))
                    at_w, at_y = i32(own + here[0]), i32(here[1] + s * of_piece)
                    multiply(total, shared, at_w, at_y, pitch, i32(K - s * ROWS), zeros)
                    meet()
                    if cuda.threadIdx.x % LANES == 0:
                        barrier_arrive(u32(here[2] + 8 * depth))
                    over = here[2] == last
                    here[0] = i32(0) if over else i32(here[0] + slot)
                    here[2] = i32(here[2] - (depth - 1) * 8) if over else i32(here[2] + 8)
                    here[3] = i32(here[3] ^ 1) if over else here[3]
                here[1] = i32(here[1] + y_pitch)

        if q + 1 == places:
            return now
        rest = row_from(q + 1)

        @device
        def then(total, shared, walk, at, here, pitch, length, slot, last, K, wide, strides, own, y_pitch, zeros):  # type: ignore[no-untyped-def]
            now(total, shared, walk, at, here, pitch, length, slot, last, K, wide, strides, own, y_pitch, zeros)
            rest(total, shared, walk, at, here, pitch, length, slot, last, K, wide, strides, own, y_pitch, zeros)

        return then

    multiply_row = row_from(0)

    def kernel(  # type: ignore[no-untyped-def]
        y, w, space, slices, groups, N, K, C, channels, tiles_across, tile, output, down, pitch, y_pitch, box_rows,
        w_strides, y_strides,
    ):  # fmt: skip
        let_next_start()
        shared, total = cuda.shared.array(0, element), cuda.local.array(sums, f32)
        walk, here, at = cuda.local.array(6, INT32), cuda.local.array(5, INT32), cuda.local.array(1, INT64)
        lane, warp = i32(cuda.threadIdx.x % LANES), i32(cuda.threadIdx.x // LANES)
        number, part, group, p0, q0 = block_of(i32(cuda.blockIdx.x), slices, groups, tiles_across, tile)
        c0 = i32(part * channels)
        have, wide = min(channels, i32(C - c0)), min(i32(places), i32(output[1] - q0))
        rows = min(tile[0], i32(output[0] - p0))
        length, slot = i32(have * of_channel), i32(ROWS * pitch)
        # barriers: one for each slot of the ring that is full, then one for each that is empty; zeros; the ring; y's values
        barriers = i32(shared_address(shared))
        zeros, rings = i32(barriers + ZEROS), i32(barriers + RINGS)
        last, tops = i32(barriers + (depth - 1) * 8), i32(rings + depth * slot)
        walk[0], walk[1], walk[2], walk[3], walk[4], walk[5] = rows, i32(0), i32(0), rings, barriers, i32(0)
        walk[3] = i32(rings + warp * pitch + lane * COPY)
        at[0] = w + (i64(group * K + warp) * w_strides[0] + p0 * w_strides[1] + q0 * w_strides[2]) * size
        at[0] = at[0] + c0 * of_channel + lane * COPY
        if cuda.threadIdx.x == 0:
            for i in range(depth):
                barrier_init(u32(barriers + 8 * i), u32(threads))
                barrier_init(u32(barriers + 8 * (depth + i)), u32(warps))
            fence_barriers()
        if cuda.threadIdx.x < ZERO_BYTES // ITEM:
            shared[i32(ZEROS // ITEM + cuda.threadIdx.x)] = 0
        cuda.syncthreads()
        for _ in range(early):
            ask(shared, walk, at, pitch, length, slot, last, K, wide, w_strides)
        at_y = i64(group * K) * y_strides[1] + p0 * y_strides[2] + q0 * y_strides[3]
        fill(shared, tops, y_pitch, y + at_y * size, y_strides, N, K, i32(rows * wide), wide)
        for _ in range(depth - early):
            ask(shared, walk, at, pitch, length, slot, last, K, wide, w_strides)
        walk[5] = i32(0)  # nothing of these had to be empty
        for i in range(sums):
            total[i] = f32(0)
        cuda.syncthreads()
        r, lot = (
            i32(warp % tall),
            i32(warp // tall),
        )  # the tap that reaches the warp's row of pixels, and which channels
        own, own_y = place(lot, pitch, have, of_channel)
        own, here[0], here[1] = i32(rings + own), i32(0), i32(tops + own_y)
        here[2], here[3], here[4] = barriers, i32(0), i32(0)
        line, area = r, i32(box_rows * columns)
        target = space + i64(number * C + c0) * (area * kept * ITEM)
        for i in range(tile[0]):
            if i < rows:
                tap = i32(own + (tall - 1 - r if flip else r) * (taps * size))
                multiply_row(
                    total, shared, walk, at, here, pitch, length, slot, last, K, wide, w_strides, tap, y_pitch, zeros
                )  # fmt: skip
            r = i32(r - down)
            done = r < 0 or i + 1 == tile[0]
            if done:
                write(total, target + line * (columns * kept * ITEM), lot, area, have)
            for e in range(sums):  # without a branch, past which the sums would change places
                total[e] = f32(0) if done else total[e]
            if r < 0:
                r, line = i32(r + tall), i32(line + tall)

    return kernel
