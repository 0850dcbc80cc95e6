"""grad_inputs of an unshared convolution with sums in registers: a warp computes a row of pixels.

A block has ``positions`` neighbouring outputs of each of some rows, and some channels of a group. A warp has some of these
channels, of one row of the pixels that the positions reach. Its sums, of all columns and images, stay in registers while the
block walks down its rows of positions:

    row of pixels    0  1  2  3  4  5     positions in row 0 reach rows 0 to 2, by taps 0 to 2;
    warp             0  1  2  0  1  2     those in row 1 rows 1 to 3: warp 0 goes on with row 3

Which sums a position and a tap of a row add to is known when the kernel is made. A warp whose row no later position reaches
writes it to the workspace, where the boxes of neighbouring blocks are added: ``device/reduce.py`` and, as tensor cores
leave them, ``device/rows_reduce.py``.

Where a quarter of a multiprocessor would have more of these warps than another, rows of positions are taken several at a time:
nine rows of taps are nine warps, but four rows of positions reach twelve rows of pixels, and each quarter adds to nine:

    quarter 0: rows of pixels 0, 4, 8, reached by 1 + 4 + 4 of the four; quarter 1: rows 1, 5, 9, reached by 2 + 4 + 3; ...

Filters come to shared memory by asynchronous copies that every warp begins some of, ``depth - 1`` pieces of them before they
are multiplied and whole lines at a time; every warp takes its rows of taps from there, or passes a piece by. What a lane
multiplies is in ``device/rows_single.py`` and ``.._f16``.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.inputs.device import rows_f16, rows_single
from numbadnn.kernels.conv.unshared.inputs.device.tile import block_of
from numbadnn.kernels.conv.unshared.inputs.rows_sizes import EIGHT, LANES, RINGS, RowsConfig
from numbadnn.kernels.gemm.device.tiles import INT64
from numbadnn.kernels.lang.async_copies import copy_if, sync_warp
from numbadnn.kernels.lang.cuda import ELEMENT, INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.hopper import barrier_arrive, barrier_follow, barrier_init, barrier_wait, fence_barriers
from numbadnn.kernels.lang.ptx import let_next_start
from numbadnn.kernels.lang.words import shared_address
from numbadnn.problem import ITEMSIZE

#: bytes of a sum; of a row of zeros; where in shared memory those begin
ITEM, ZERO_BYTES, ZEROS = 4, 64, 192
#: bytes of a copy; pieces of filters that are prefetched before y's values; of so few all but one are to be under way
COPY, EARLY, FEW = 16, 3, 3
#: what ``here`` begins with: bytes into the ring, where y's values are, a slot's barrier, the parity of the wait for it
SLOT, TOP, BARRIER, PARITY = 0, 1, 2, 3


def box_of(config: RowsConfig) -> tuple[Callable[..., int], int, int]:
    """``box(block, number, C, c0)``: how many channels' boxes lie before a block's, or vectors of channels' on tensor
    cores; bytes that one has for each pixel, and from a pixel to the next."""
    vectors = config.vectors

    @device
    def of_channels(block, number, C, c0):
        return i32(number * C + c0)

    @device
    def of_vectors(block, number, C, c0):
        return i32(block * vectors)

    if config.own:
        return of_channels, config.kept * ITEM, config.kept * ITEM
    return of_vectors, EIGHT * config.kept * ITEM, config.line


def leaving(depth: int) -> Callable[..., None]:
    """``leave(here, last, slot)``: a warp needs a slot no longer, and goes on to the next one of the ring.

    Slots are ``slot`` bytes apart; ``last``: the barrier of the last one.
    """

    @device
    def leave(here, last, slot):
        sync_warp()
        if cuda.threadIdx.x % LANES == 0:
            barrier_arrive(u32(here[BARRIER] + 8 * depth))
        over = here[BARRIER] == last
        here[SLOT] = i32(0) if over else i32(here[SLOT] + slot)
        here[BARRIER] = i32(here[BARRIER] - (depth - 1) * 8) if over else i32(here[BARRIER] + 8)
        here[PARITY] = i32(here[PARITY] ^ 1) if over else here[PARITY]

    return leave


def _prefetch_next(size: int, config: RowsConfig, again: bool) -> Callable[..., None]:
    """``prefetch(shared, walk, at, pitch, length, slot, last, K, wide, strides)``: begin to copy the next piece, if there is one.

    ``length`` bytes a filter. A warp has every ``warps``-th filter, a lane 16 bytes. ``at``: where its first bytes lie; ``walk``:
    rows of positions left, first filter, column, row in the group, where in the ring its first bytes go, the slot's barrier,
    and, where the slot was another's (``again``), parity of the wait for it to be empty; ``last``: the barrier of the ring's
    last slot.
    """
    depth, warps, turns, piece, deep = config.depth, config.warps, config.turns, config.piece, config.deep

    @device
    def prefetch(shared, walk, at, pitch, length, slot, last, K, wide, strides):
        if walk[0] > 0:
            lane, warp = i32(cuda.threadIdx.x % LANES), i32(cuda.threadIdx.x // LANES)
            left, source, to = min(i32(piece), i32(K - walk[1])), at[0], walk[4]
            if again:
                barrier_wait(u32(walk[5] + 8 * depth), u32(walk[6]))
            for j in range(0, piece, warps):
                for e in range(turns):
                    reach = e * (LANES * COPY)
                    wanted = i32(warp + j) < left and i32(lane * COPY + reach) < length
                    copy_if(wanted, shared, i32(to + reach), source + reach)
                source, to = source + strides[0] * (warps * size), i32(to + warps * pitch)
            barrier_follow(u32(walk[5]))
            walk[3], at[0] = i32(walk[3] + 1), at[0] + strides[1] * size
            if walk[3] == min(i32(deep), walk[0]):
                walk[1], at[0] = i32(walk[1] + piece), at[0] + (piece * strides[0] - walk[3] * strides[1]) * size
                walk[3] = i32(0)
                if walk[1] >= K:
                    at[0] = at[0] + (strides[2] - walk[1] * strides[0]) * size
                    walk[1], walk[2] = i32(0), i32(walk[2] + 1)
                    if walk[2] == wide:
                        walk[2], walk[0] = i32(0), i32(walk[0] - deep)
                        at[0] = at[0] + (deep * strides[1] - wide * strides[2]) * size
            over = walk[5] == last
            walk[4] = i32(walk[4] - (depth - 1) * slot) if over else i32(walk[4] + slot)
            walk[5] = i32(walk[5] - (depth - 1) * 8) if over else i32(walk[5] + 8)
            if again:
                walk[6] = i32(walk[6] ^ 1) if over else walk[6]

    return prefetch


def boxes(dtype: str, config: RowsConfig) -> Callable[..., None]:
    """space[tile, channel, pixel of the tile's box, n] = sum over the tile's positions and over filters of y * w."""
    lanes = (rows_single if dtype == "float32" else rows_f16).parts(dtype, config)
    fill, place, write = lanes.fill, lanes.place, lanes.write
    (tall, taps), positions, (down, right), depth = config.taps, config.positions, config.stride, config.depth
    flip = config.flip
    size, steps, columns, piece, deep = ITEMSIZE[dtype], config.steps, config.columns, config.piece, config.deep
    high = config.high
    of_piece, sums, element = lanes.of_piece, columns * lanes.sums, ELEMENT["float32"] if dtype == "float32" else WORD
    prefetch_first, prefetch, of_channel = (
        _prefetch_next(size, config, False),
        _prefetch_next(size, config, True),
        tall * taps * size,
    )
    leave = leaving(depth)
    slack, warps, threads, early = (2 if depth > FEW else 1), config.warps, config.threads, min(depth, EARLY)

    def row_from(q):
        """The positions of a group's rows from the ``q``-th column on: a loop over them would leave the sums in memory."""
        multiply = lanes.multiply(q * right * lanes.sums)

        @device
        def now(
            total, shared, walk, at, here, pitch, length, slot, last, K, wide, rows, strides, own, r, y_pitch, zeros
        ):
            if q < wide:
                for s in range(steps):
                    for a in range(rows):
                        if here[4] >= slack:  # what all have multiplied a while ago makes room
                            prefetch(shared, walk, at, pitch, length, slot, last, K, wide, strides)
                        here[4] = i32(here[4] + 1)
                        barrier_wait(u32(here[2]), u32(here[3]))
                        tap = i32(r - a * down)
                        if deep == 1 or (tap >= 0 and tap < i32(tall)):
                            at_w = i32(own + here[0] + (tall - 1 - tap if flip else tap) * (taps * size))
                            at_y = i32(here[1] + s * of_piece + a * wide * y_pitch)
                            multiply(total, shared, at_w, at_y, pitch, i32(K - s * piece), zeros)
                        leave(here, last, slot)
                here[1] = i32(here[1] + y_pitch)

        if q + 1 == positions:
            return now
        rest = row_from(q + 1)

        @device
        def then(
            total, shared, walk, at, here, pitch, length, slot, last, K, wide, rows, strides, own, r, y_pitch, zeros
        ):
            now(
                total, shared, walk, at, here, pitch, length, slot, last, K, wide, rows, strides, own, r, y_pitch, zeros
            )
            rest(
                total, shared, walk, at, here, pitch, length, slot, last, K, wide, rows, strides, own, r, y_pitch, zeros
            )

        return then

    multiply_row, (box, of_vector, of_pixel) = row_from(0), box_of(config)

    def kernel(
        y, w, space, slices, groups, N, K, C, channels, tiles_across, tile, output, pitch, y_pitch, box_rows,
        w_strides, y_strides,
    ):  # fmt: skip
        let_next_start()
        shared, total = cuda.shared.array(0, element), cuda.local.array(sums, f32)
        walk, here, at = cuda.local.array(7, INT32), cuda.local.array(5, INT32), cuda.local.array(1, INT64)
        lane, warp = i32(cuda.threadIdx.x % LANES), i32(cuda.threadIdx.x // LANES)
        number, part, group, p0, q0 = block_of(i32(cuda.blockIdx.x), slices, groups, tiles_across, tile)
        c0 = i32(part * channels)
        have, wide = min(channels, i32(C - c0)), min(i32(positions), i32(output[1] - q0))
        rows = min(tile[0], i32(output[0] - p0))
        length, slot = i32(have * of_channel), i32(piece * pitch)
        # barriers: one for each slot of the ring that is full, then one for each that is empty; zeros; the ring; y's values
        barriers = i32(shared_address(shared))
        zeros, rings = i32(barriers + ZEROS), i32(barriers + RINGS)
        last, tops = i32(barriers + (depth - 1) * 8), i32(rings + depth * slot)
        walk[0], walk[1], walk[2], walk[3] = rows, i32(0), i32(0), i32(0)
        walk[4] = i32(rings + warp * pitch + lane * COPY)
        walk[5], walk[6] = barriers, i32(0)
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
            prefetch_first(shared, walk, at, pitch, length, slot, last, K, wide, w_strides)
        at_y = i64(group * K) * y_strides[1] + p0 * y_strides[2] + q0 * y_strides[3]
        fill(shared, tops, y_pitch, y + at_y * size, y_strides, N, K, i32(rows * wide), wide)
        for _ in range(depth - early):
            prefetch_first(shared, walk, at, pitch, length, slot, last, K, wide, w_strides)
        for i in range(sums):
            total[i] = f32(0)
        cuda.syncthreads()
        r, unit = i32(warp % high), i32(warp // high)  # the warp's row of pixels, and which channels
        own, own_y = place(unit, pitch, have, of_channel)
        own, here[0], here[1] = i32(rings + own), i32(0), i32(tops + own_y)
        here[2], here[3], here[4] = barriers, i32(0), i32(0)
        line, area = r, i32(box_rows * columns)
        target = space + i64(box(i32(cuda.blockIdx.x), number, C, c0)) * (area * of_vector)
        for i in range(0, tile[0], deep):
            now = min(i32(deep), i32(rows - i))
            if now > 0:
                multiply_row(
                    total, shared, walk, at, here, pitch, length, slot, last, K, wide, now, w_strides, own, r, y_pitch, zeros
                )  # fmt: skip
                here[1] = i32(here[1] + (now - 1) * wide * y_pitch)
            r = i32(r - deep * down)
            done = r < 0 or i + deep >= tile[0]
            if done and line < box_rows:
                write(total, target + line * (columns * of_pixel), unit, area, have)
            for e in range(sums):  # without a branch, past which the sums would be exchanged
                total[e] = f32(0) if done else total[e]
            if r < 0:
                r, line = i32(r + high), i32(line + high)

    return kernel
