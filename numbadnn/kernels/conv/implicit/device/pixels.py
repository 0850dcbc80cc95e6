"""Implicit GEMM on Hopper: rows are pixels, columns output channels, terms the taps and channels of the input.

                terms: tap after tap, 64 channels at a time             columns
                 ________________                                     ____________
     128 or 256 |  |  |  |  |  |  |  by TMA, im2col mode:    64 terms |____________|  by TMA, boxes of the filters
     pixels     |  |  |  |  |  |  |  no matrix is written             |____________|

One warp begins copies of the next stretch of both into a ring of ``stages`` in shared memory; two groups of 128 threads
multiply it with wgmma, each half of the pixels, their sums in registers. A stage has two barriers: full (its bytes have
arrived), empty (both groups are done with it). A block stays on its multiprocessor and takes one tile after another;
neighbouring blocks have the same pixels. With ``splits`` the terms of a tile are shared out, and what is written are
float32 sums, for another kernel to add. Filters that fit beside the ring (``resident``: in so many boxes) are copied
once, and stay: a block then has one column of tiles. Pixels and taps are walked as ``walk.py`` says; where every
pixel is read by one tap (``plain``) there is nothing to walk, and they are copied as rows of a matrix. Where a tile has few
steps, two smaller blocks share a multiprocessor, and one multiplies while the other writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.implicit.device.absent import mend_sums
from numbadnn.kernels.conv.implicit.device.index import divided, located, share, taps_met
from numbadnn.kernels.conv.implicit.device.put import write_of
from numbadnn.kernels.conv.implicit.pixels_config import COPIES, ROW, buffer_bytes, filter_bytes
from numbadnn.kernels.gemm.device.wgmma import _descriptor
from numbadnn.kernels.lang import hopper
from numbadnn.kernels.lang.cuda import cuda, device, f32, i32, u32
from numbadnn.kernels.lang.pipeline import consumer, ring_of
from numbadnn.problem import ITEMSIZE

#: registers of a thread that copies and of one that multiplies; what ptxas gives it beyond them is an illegal instruction
FEWER, MORE = 88, 208


def _place(axes: int, phases: bool, shares: bool) -> Callable[..., Any]:
    """``place(tile, tiles, spread) -> (split, group, phase back, phase down, phase right, row, column)``."""
    digits = located(axes)

    @device
    def place(tile, tiles, spread):
        rest, column = divided(tile, tiles[1])
        rest, row = divided(rest, tiles[0])
        back = i32(0)
        down = i32(0)
        right = i32(0)
        if phases:
            rest, back, down, right = digits(rest, spread)
        split = i32(0)
        group = rest
        if shares:
            split, group = divided(rest, tiles[2])
        return split, group, back, down, right, row, column

    return place


@device
def _same(out):
    return out


def pixels(dtype: str, axes: int, config: Any, mends: bool = False) -> Callable[..., None]:
    """target = alpha * (sum over taps and channels of source * filters) + beta * target; or partial sums.

    ``mends``: a tap that meets nothing is no term, though the filter's infinity times zero is NaN (``absent.py``).
    """
    m, n, stages = config.m, config.n, config.stages
    by_rows, phases, double, plain = config.by_rows, config.phases, config.m == 256, config.plain
    shares, alone = config.splits > 1, config.blocks == 1
    out = "float32" if shares else dtype
    terms, every = ROW // ITEMSIZE[dtype], n // 2
    resident, stays = config.resident, config.resident > 0
    image_bytes, n_bytes = m * ROW, filter_bytes(n, by_rows)
    bytes_of_stage = image_bytes + (0 if stays else n_bytes)
    ring, each = bytes_of_stage * stages, m // 2
    of_group = buffer_bytes(config) // 2
    filters_at = ring + 2 * of_group
    after_ring = filters_at + resident * n_bytes
    a_half, b_half = _descriptor(True), _descriptor(by_rows)
    b_step = 2 if by_rows else 16 * ROW >> 4
    place, write, copies = _place(axes, phases, shares), write_of(config, axes, out), config.store == COPIES
    deep, position, met = axes == 3, located(axes), taps_met(axes)
    multiply = hopper.wgmma(dtype, n, True, by_rows)
    copy_pixels, copy_voxels, copy_box = hopper.copy_pixels, hopper.copy_voxels, hopper.copy_box
    image_map_of, filter_map_of = hopper.map_address(0), hopper.map_address(1)
    out_of = hopper.map_address(2) if copies else _same
    tail_of = hopper.map_address(3) if copies and n % 64 else _same
    init, expect, wait = hopper.barrier_init, hopper.barrier_expect, hopper.barrier_wait
    start, fence = hopper.shared_start, hopper.fence_barriers
    fewer, more = hopper.set_registers(FEWER, False), hopper.set_registers(MORE, True)
    (begin_ring, following), kept = ring_of(stages), (filters_at, n_bytes) if stays else None
    again = 64 * ROW >> 4 if double else 0
    consume = consumer(
        multiply, stages, bytes_of_stage, (a_half, b_half), image_bytes, (ROW // 32, 2, b_step), ROW, again, kept
    )  # fmt: skip
    wait_boxes, prefetch = hopper.wait_boxes(0), hopper.prefetch_map
    mend, image_of, filters_of = mend_sums(dtype, axes, n, by_rows), hopper.map_target(0), hopper.map_target(1)

    @device
    def feed_filters(target, map_w, term, column, group, tap, depth, width, full):
        if by_rows:
            copy_box(target, map_w, term, i32(group * width + column), tap, full)
        else:
            for i in range(-(-n // 64)):
                at = u32(target + u32(i * 64 * ROW))
                copy_box(at, map_w, i32(column + i * 64), i32(group * depth + term), tap, full)

    def kernel(
        map_x, map_w, out_at, tail_at, tiles, count, splits, images, depth, width, positions, move, lower, taps, base, slope,
        spread, hop, tap_start, tap_step, strides, split_stride, extents, sizes, steps, filter_steps, alpha, beta,
    ):  # fmt: skip
        thread = i32(cuda.threadIdx.x)
        if thread == 256:
            prefetch(image_map_of(map_x))
            prefetch(filter_map_of(map_w))
        group_of_threads = i32(thread >> 7)
        ring_at = u32((start() + u32(1023)) & u32(0xFFFFFC00))
        full = u32(ring_at + u32(after_ring))
        empty = u32(full + u32(8 * stages))
        there_are_filters = u32(empty + u32(8 * stages))
        if thread == 0:
            init(there_are_filters, u32(1))
            begin_ring(full, empty)
            fence()
        cuda.syncthreads()
        chunks = i32(u32(depth + terms - 1) // u32(terms))
        stage = u32(0)
        phase = u32(0)
        first_t = first_r = first_s = i32(0)
        count_t = count_r = count_s = i32(1)
        if not plain:
            first_t, count_t, first_r, count_r, first_s, count_s = met(
                i32(0), i32(0), i32(0), taps, base, slope, spread, hop
            )
        if group_of_threads == 2:
            if alone:
                fewer()
            if thread == 256:
                image_map = image_map_of(map_x)
                filter_map = filter_map_of(map_w)
                if stays:
                    fixed = i32(u32(cuda.blockIdx.x) % u32(tiles[1]))
                    expect(there_are_filters, u32(resident * n_bytes))
                    for i in range(resident):
                        tap, chunk = divided(i32(i), chunks)
                        feed_filters(
                            u32(ring_at + u32(filters_at + i * n_bytes)), filter_map, i32(chunk * terms), i32(fixed * n), i32(0),
                            i32(tap_start + tap * tap_step), depth, width, there_are_filters,
                        )  # fmt: skip
                for tile in range(i32(cuda.blockIdx.x), count, i32(cuda.gridDim.x)):
                    split, group, back, down, right, row, column = place(tile, tiles, spread)
                    image, z, y, x = position(i32(row * m), positions)
                    x = i32(x * move[-1] + lower[-1])
                    y = i32(y * move[-2] + lower[-2])
                    if phases:
                        first_t, count_t, first_r, count_r, first_s, count_s = met(
                            back, down, right, taps, base, slope, spread, hop
                        )
                    begin = i32(0)
                    end = i32(count_t * count_r * count_s * chunks)
                    if shares:
                        begin, end = share(end, split, splits)
                    at_tap, chunk = divided(begin, chunks)
                    i_r, i_s = divided(at_tap, max(count_s, i32(1)))
                    i_t = i32(0)
                    if deep:
                        z = i32(z * move[0] + lower[0])
                        i_t, i_r = divided(i_r, max(count_r, i32(1)))
                    for _step in range(begin, end):
                        wait(u32(empty + stage * u32(8)), u32(phase ^ u32(1)))
                        bar = u32(full + stage * u32(8))
                        expect(bar, u32(bytes_of_stage))
                        target = u32(ring_at + stage * u32(bytes_of_stage))
                        r = i32(first_r + i_r * hop[-2])
                        s = i32(first_s + i_s * hop[-1])
                        off_r = i32(base[-2] + r * slope[-2])
                        off_s = i32(base[-1] + s * slope[-1])
                        if phases:
                            off_r = i32(u32(off_r + down) // u32(spread[-2]))
                            off_s = i32(u32(off_s + right) // u32(spread[-1]))
                        if deep:
                            t = i32(first_t + i_t * hop[0])
                            off_t = i32(base[0] + t * slope[0])
                            if phases:
                                off_t = i32(u32(off_t + back) // u32(spread[0]))
                            r = i32(t * taps[-2] + r)
                        tap = i32(tap_start + (r * taps[-1] + s) * tap_step)
                        term = i32(chunk * terms)
                        if plain:
                            copy_box(target, image_map, i32(group * depth + term), i32(row * m), i32(0), bar)
                        elif deep:
                            copy_voxels(
                                target, image_map, i32(group * depth + term), x, y, z, image, bar, off_s, off_r, off_t
                            )  # fmt: skip
                        else:
                            copy_pixels(target, image_map, i32(group * depth + term), x, y, image, bar, off_s, off_r)
                        if not stays:
                            feed_filters(
                                u32(target + u32(image_bytes)), filter_map, term, i32(column * n), group, tap, depth,
                                width, bar,
                            )  # fmt: skip
                        chunk = i32(chunk + 1)
                        if chunk == chunks:
                            chunk = i32(0)
                            i_s = i32(i_s + 1)
                            if i_s == count_s:
                                i_s = i32(0)
                                i_r = i32(i_r + 1)
                                if deep and i_r == count_r:
                                    i_r = i32(0)
                                    i_t = i32(i_t + 1)
                        stage, phase = following(stage, phase)
        else:
            if alone:
                more()
            mine = i32(group_of_threads * each)
            buffers = u32(ring_at + u32(ring) + u32(group_of_threads * of_group))
            there = out_of(out_at)
            tail = tail_of(tail_at)
            turn = i32(0)
            sums = cuda.local.array(every, f32)
            others = cuda.local.array(every, f32)
            if stays:
                wait(there_are_filters, u32(0))
            for tile in range(i32(cuda.blockIdx.x), count, i32(cuda.gridDim.x)):
                split, group, back, down, right, row, column = place(tile, tiles, spread)
                if phases:
                    first_t, count_t, first_r, count_r, first_s, count_s = met(
                        back, down, right, taps, base, slope, spread, hop
                    )
                begin = i32(0)
                end = i32(count_t * count_r * count_s * chunks)
                if shares:
                    begin, end = share(end, split, splits)
                for i in range(every):
                    sums[i] = f32(0)
                    if double:
                        others[i] = f32(0)
                stage, phase = consume(sums, others, ring_at, mine, full, empty, stage, phase, begin, end, thread)
                if mends:
                    mend(
                        sums, (image_of(map_x), filters_of(map_w)), i32(row * m + mine), i32(column * n), group, (begin, end),
                        (back, down, right), (first_t, first_r, first_s), (count_t, count_r, count_s), images, depth, width,
                        positions, lower, taps, base, slope, spread, hop, tap_start, tap_step, sizes, steps, filter_steps,
                    )  # fmt: skip
                write(
                    sums, there, tail, buffers, turn, i32(row * m + mine), i32(column * n), group, split, back, down, right,
                    positions, strides, split_stride, spread, extents, images, width, alpha, beta,
                )  # fmt: skip
                turn = i32(turn + -(-n // 64))
                if double:
                    if mends:
                        mend(
                            others, (image_of(map_x), filters_of(map_w)), i32(row * m + mine + 64), i32(column * n), group,
                            (begin, end), (back, down, right), (first_t, first_r, first_s), (count_t, count_r, count_s), images,
                            depth, width, positions, lower, taps, base, slope, spread, hop, tap_start, tap_step, sizes, steps,
                            filter_steps,
                        )  # fmt: skip
                    write(
                        others, there, tail, buffers, turn, i32(row * m + mine + 64), i32(column * n), group, split, back, down,
                        right, positions, strides, split_stride, spread, extents, images, width, alpha, beta,
                    )  # fmt: skip
                    turn = i32(turn + -(-n // 64))
            if copies and (thread & 127) == 0:
                wait_boxes()

    return kernel
