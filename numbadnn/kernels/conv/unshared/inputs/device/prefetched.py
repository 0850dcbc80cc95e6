"""grad_inputs of an unshared convolution with sums in registers; one more warp only prefetches filters.

Blocks, warps, rows of pixels and groups of rows of positions are those of ``device/rows.py``. The prefetching warp copies
whole lines, up to ``depth`` pieces before they are multiplied; every other takes its rows of taps from there, or passes a piece
by. A piece is some filters of one position. Of many images y's values are transposed before (``parts/device/transposed.py``) and
copied as they are wanted. What a lane multiplies is in ``device/rows_single.py`` and ``.._f16``.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.inputs.device import rows_f16, rows_single
from numbadnn.kernels.conv.unshared.inputs.device.prefetch import prefetching
from numbadnn.kernels.conv.unshared.inputs.device.rows import (
    BARRIER,
    ITEM,
    PARITY,
    SLOT,
    TOP,
    ZERO_BYTES,
    ZEROS,
    box_of,
    leaving,
)
from numbadnn.kernels.conv.unshared.inputs.device.tile import block_of
from numbadnn.kernels.conv.unshared.inputs.rows_sizes import FEWER, LANES, RINGS, RowsConfig
from numbadnn.kernels.lang.async_copies import copy_line, sync_warp
from numbadnn.kernels.lang.cuda import ELEMENT, INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.hopper import (
    barrier_arrive,
    barrier_expect,
    barrier_init,
    barrier_wait,
    fence_barriers,
    set_registers,
)
from numbadnn.kernels.lang.ptx import let_next_start, wait_for_previous
from numbadnn.kernels.lang.words import shared_address
from numbadnn.problem import ITEMSIZE

#: what ``here`` holds besides what it does in ``device/rows.py``: where in memory, as far as it matters, the filters of the first
#: position of a group of rows begin
START = 4
#: what ``how`` holds: where the warp's filters are in a slot, from one filter to the next, a row of zeros; columns, filters; from
#: y's values of one column to the next, of one row, one piece; bytes of a slot, the last barrier; from where filters begin to one
#: row further, one column, one piece
OWN, PITCH, NOTHING, WIDE, FILTERS, TO_COLUMN, TO_ROW, TO_PIECE, SLOT_BYTES, LAST, DOWN, RIGHT, FURTHER = range(13)


def _multiply_rows(
    config: RowsConfig, size: int, multiply_from: Callable[[int], Callable[..., None]]
) -> Callable[..., None]:
    """``run(total, shared, here, how, now, r)``: multiply a group of ``now`` rows of positions; ``r``: the warp's tap."""
    (tall, taps), (down, right), flip = config.taps, config.stride, config.flip
    steps, piece, deep, even = config.steps, config.piece, config.deep, config.even
    within, leave = config.within, leaving(config.depth)

    @device
    def begin(here):
        barrier_wait(u32(here[BARRIER]), u32(here[PARITY]))

    @device
    def end(here, how):
        leave(here, how[LAST], how[SLOT_BYTES])

    def column(q):
        """The positions of one column: a loop over columns would leave the sums in memory."""
        multiply = multiply_from(q * right)

        @device
        def product(total, shared, here, how, r, s, a):
            tap = i32(r - a * down)
            if deep == 1 or (tap >= 0 and tap < i32(tall)):
                at_w = i32(how[OWN] + here[SLOT] + (tall - 1 - tap if flip else tap) * (taps * size))
                start = i32(here[START] + a * how[DOWN] + s * how[FURTHER])
                at_w = i32(at_w + (start + q * how[RIGHT] & within))
                at_y = i32(here[TOP] + q * how[TO_COLUMN] + a * how[TO_ROW] + s * how[TO_PIECE])
                multiply(total, shared, at_w, at_y, how[PITCH], i32(how[FILTERS] - s * piece), how[NOTHING])

        @device
        def run(total, shared, here, how, now, r):
            if even or q < how[WIDE]:
                for step in range(steps):
                    for row in range(now):
                        begin(here)
                        product(total, shared, here, how, r, i32(step), i32(row))
                        end(here, how)

        return run

    def from_column(q):
        first = column(q)
        if q + 1 == config.positions:
            return first
        rest = from_column(q + 1)

        @device
        def run(total, shared, here, how, now, r):
            first(total, shared, here, how, now, r)
            rest(total, shared, here, how, now, r)

        return run

    return from_column(0)


def boxes(dtype: str, config: RowsConfig) -> Callable[..., None]:
    """space[tile, channel, pixel of the tile's box, n] = sum over the tile's positions and over filters of y * w."""
    lanes = (rows_single if dtype == "float32" else rows_f16).parts(dtype, config)
    fill, place, write = lanes.fill, lanes.place, lanes.write
    size, (tall, taps), positions, down = ITEMSIZE[dtype], config.taps, config.positions, config.stride[0]
    depth, kept, columns, piece, deep = config.depth, config.kept, config.columns, config.piece, config.deep
    high = config.high
    sums, element = columns * lanes.sums, ELEMENT["float32"] if dtype == "float32" else WORD
    of_piece, of_channel, warps, transposed = lanes.of_piece, tall * taps * size, config.warps, config.transposed
    (box, of_vector, of_pixel), slack = box_of(config), config.align if config.within else 0
    prefetch, threads, split = prefetching(size, config), LANES * warps, config.split
    fewer, more = set_registers(FEWER, False), set_registers(config.registers, True)
    multiply_rows = _multiply_rows(config, size, lambda column: lanes.multiply(column * lanes.sums))

    def kernel(
        y, w, space, slices, groups, N, K, C, channels, tiles_across, tile, output, pitch, y_pitch, box_rows,
        w_strides, y_strides,
    ):  # fmt: skip
        let_next_start()
        shared, total = cuda.shared.array(0, element), cuda.local.array(sums, f32)
        here, how = cuda.local.array(5, INT32), cuda.local.array(13, INT32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        # barriers: one for each slot of the ring that is full, then one for each that is empty, and that y's values are there;
        # zeros; the ring; y's values
        full = i32(shared_address(shared))
        there, rings = i32(full + 16 * depth), i32(full + RINGS)
        number, part, group, p0, q0 = block_of(i32(cuda.blockIdx.x), slices, groups, tiles_across, tile)
        c0 = i32(part * channels)
        have, wide = min(channels, i32(C - c0)), min(i32(positions), i32(output[1] - q0))
        rows, slot = min(tile[0], i32(output[0] - p0)), i32(piece * pitch + slack)
        w = w + (i64(group * K) * w_strides[0] + p0 * w_strides[1] + q0 * w_strides[2]) * size + c0 * of_channel
        tops = i32(rings + depth * slot)
        if warp == warps:
            if lane < depth:
                barrier_init(u32(full + 8 * lane), u32(1))
                barrier_init(u32(full + 8 * (depth + lane)), u32(warps))
            if lane == depth:
                barrier_init(u32(there), u32(1 if transposed else warps))
            fence_barriers()
            sync_warp()
        if thread < ZERO_BYTES // ITEM:
            shared[i32(ZEROS // ITEM + thread)] = 0
        cuda.syncthreads()
        if warp >= warps:
            if split:
                fewer()
            if warp == warps:
                prefetch(shared, w, full, rings, pitch, i32(have * of_channel), slot, K, rows, wide, w_strides)
        else:
            if split:
                more()
            top = y + (i64(group * K) * y_strides[1] + p0 * y_strides[2] + q0 * y_strides[3]) * size
            if transposed:
                wait_for_previous()
                across = i32(wide * kept * size)
                if thread == 0:
                    barrier_expect(u32(there), u32(rows * K * across))
                for i in range(
                    i32(lane * warps + warp), i32(rows * K), threads
                ):  # a few each warp, which begins one by one
                    p = i32(u32(i) // u32(K))
                    source = top + (i64(i - p * K) * y_strides[1] + p * y_strides[2]) * size
                    copy_line(shared, i32(tops + i * y_pitch), source, across, u32(there))
            else:
                fill(shared, tops, y_pitch, top, y_strides, N, K, i32(rows * wide), wide)
                sync_warp()
                if lane == 0:
                    barrier_arrive(u32(there))
            for i in range(sums):
                total[i] = f32(0)
            r, unit = i32(warp % high), i32(warp // high)  # the warp's row of pixels, and which channels
            own, own_y = place(unit, pitch, have, of_channel)
            here[SLOT], here[TOP], here[BARRIER], here[PARITY] = i32(0), i32(tops + own_y), full, i32(0)
            how[OWN], how[PITCH], how[NOTHING] = i32(rings + own), pitch, i32(full + ZEROS)
            how[WIDE], how[FILTERS], how[SLOT_BYTES], how[LAST] = wide, K, slot, i32(full + (depth - 1) * 8)
            here[START] = i32(w & 127)
            how[DOWN], how[RIGHT] = i32(w_strides[1] * size & 127), i32(w_strides[2] * size & 127)
            how[FURTHER] = i32(piece * w_strides[0] * size & 127)
            how[TO_COLUMN] = i32(kept * size) if transposed else y_pitch
            how[TO_ROW] = i32(K * y_pitch) if transposed else i32(wide * y_pitch)
            how[TO_PIECE] = i32(piece * y_pitch) if transposed else i32(of_piece)
            line, area = r, i32(box_rows * columns)
            target = space + i64(box(i32(cuda.blockIdx.x), number, C, c0)) * (area * of_vector)
            barrier_wait(u32(there), u32(0))
            for i in range(0, tile[0], deep):
                now = min(i32(deep), i32(rows - i))
                if now > 0:
                    multiply_rows(total, shared, here, how, now, r)
                    here[TOP] = i32(here[TOP] + now * how[TO_ROW])
                    here[START] = i32(here[START] + now * how[DOWN])
                r = i32(r - deep * down)
                done = r < 0 or i + deep >= tile[0]
                if done and line < box_rows:
                    write(total, target + line * (columns * of_pixel), unit, area, have)
                for e in range(sums):  # without a branch, past which the sums would be exchanged
                    total[e] = f32(0) if done else total[e]
                if r < 0:
                    r, line = i32(r + high), i32(line + high)

    return kernel
