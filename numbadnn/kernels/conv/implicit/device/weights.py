"""Implicit GEMM for the gradient with respect to the filters: rows are taps and channels, columns filters, terms the pixels of y.

                terms: 64 or 128 pixels at a time     columns: filters
                 ________________                       ____________
    2 or 4       |  |  |  |  |  |  |  x by TMA,  pixels |____________|  y by TMA, the same pixels
    chunks of 64 |  |  |  |  |  |  |  im2col mode,      |____________|
    channels     each chunk at its own tap

Pixels are what both operands have in rows of memory, so wgmma reads both transposed. Blocks, rings and barriers are as in
``device/pixels.py``. The pixels are shared out among ``splits``; what is written are float32 sums,
(split, group, tap, channel in chunks of 64, filter), which ``total`` adds in the order of the splits and writes as filters.
Where nothing is shared out the sums are the filters: they are transposed in shared memory, and the copy engine writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.implicit.device.index import divided, located, share
from numbadnn.kernels.conv.implicit.device.pixels import FEWER, MORE
from numbadnn.kernels.conv.implicit.device.put import by_threads, by_transposed_copies
from numbadnn.kernels.conv.implicit.pixels_config import ROW
from numbadnn.kernels.conv.implicit.weights_config import BUFFERS, WIDE, stage_bytes
from numbadnn.kernels.lang import hopper
from numbadnn.kernels.lang.access import load, load_vector, store, store_vector
from numbadnn.kernels.lang.cuda import ELEMENT, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.pipeline import consumer, ring_of
from numbadnn.problem import ITEMSIZE

AHEAD = 4  # splits that a thread of it fetches at once


@device
def _same(out):
    return out


def weights(dtype: str, axes: int, config: Any) -> Callable[..., None]:
    """partial[split, group, tap, channel, filter] = alpha * sum over a share of the pixels of x at the tap times y.

    That alpha is applied here, not later, has a reason: were the sums stored as they are, ptxas would serialise wgmma.
    """
    m, n, stages, double = config.m, config.n, config.stages, config.m == 256
    terms, y_boxes, every, chunks_each = config.terms, config.y_boxes, n // 2, m // 64
    bytes_of_stage, box_bytes = stage_bytes(m, n, terms), terms * ROW
    deep, position = axes == 3, located(axes)
    each, word = 1 + axes, hopper.WORD  # of a chunk: its channel, and how far off its tap reads
    words_of_all = each * chunks_each
    ring, image_bytes = bytes_of_stage * stages, chunks_each * box_bytes
    # the constant half of a matrix descriptor: swizzle, byte distances of 8 pixels and of 64 channels
    half, k_step = 1 << 62 | (8 * ROW >> 4) << 32 | (box_bytes >> 4) << 16, 16 * ROW >> 4
    direct, after_ring = config.direct, ring + (BUFFERS if config.direct else 0)
    put, put_transposed = by_threads(n, 2, "float32"), by_transposed_copies(n, dtype)
    out_of = hopper.map_address(2) if direct else _same
    wait_boxes = hopper.wait_boxes(0)
    multiply = hopper.wgmma(dtype, n, False, False)
    copy_pixels, copy_voxels, copy_box = hopper.copy_pixels, hopper.copy_voxels, hopper.copy_box
    x_map_of, y_map_of = hopper.map_address(0), hopper.map_address(1)
    expect, wait = hopper.barrier_expect, hopper.barrier_wait
    start, fence = hopper.shared_start, hopper.fence_barriers
    fewer, more = hopper.set_registers(FEWER, False), hopper.set_registers(MORE, True)
    begin_ring, following = ring_of(stages)
    again = box_bytes >> 4 if double else 0
    consume = consumer(
        multiply, stages, bytes_of_stage, (half, half), image_bytes, (terms // 16, k_step, k_step), 1, again
    )  # fmt: skip

    @device
    def place(tile, tiles):
        """(split, group, row, column)."""
        rest, column = divided(tile, tiles[1])
        rest, row = divided(rest, tiles[0])
        split, group = divided(rest, tiles[2])
        return split, group, row, column

    @device
    def find_chunks(places, first, group, chunks, depth, taps, dilation):
        """Channel and reach of each chunk of a row of tiles; past the last it is read again, and its sums are not written."""
        last = chunks * taps[-2] * taps[-1] - 1
        if deep:
            last = chunks * taps[0] * taps[-2] * taps[-1] - 1
        for i in range(chunks_each):
            tap, chunk = divided(i32(min(first + i, last)), chunks)
            r, s = divided(tap, taps[-1])
            if deep:
                t, r = divided(r, taps[-2])
                places[each * i + 3] = i32(t * dilation[0])
            places[each * i] = i32(group * depth + chunk * 64)
            places[each * i + 1] = i32(s * dilation[-1])
            places[each * i + 2] = i32(r * dilation[-2])

    @device
    def feed_image(target, x_map, places, x, y, z, image, full):
        for i in range(chunks_each):
            at = u32(target + u32(i * box_bytes))
            channel, right, down = places[each * i], places[each * i + 1], places[each * i + 2]
            if deep:
                copy_voxels(at, x_map, channel, x, y, z, image, full, right, down, places[each * i + 3])
            else:
                copy_pixels(at, x_map, channel, x, y, image, full, right, down)

    @device
    def feed_filters(target, y_map, first, pixel, q, p, o, image, full):
        none = i32(0)
        for i in range(n // 64):
            at = u32(target + u32(i * box_bytes))
            if y_boxes:
                copy_box(at, y_map, i32(first + i * 64), pixel, none, full)
            elif deep:
                copy_voxels(at, y_map, i32(first + i * 64), q, p, o, image, full, none, none, none)
            else:
                copy_pixels(at, y_map, i32(first + i * 64), q, p, image, full, none, none)

    @device
    def store_direct(sums, out_map, buffers, turn, row, rows, chunks, column, width, group, tap_start, tap_step, alpha):
        tap, chunk = divided(i32(u32(row) >> u32(6)), chunks)
        tap = i32(tap_start + tap * tap_step)
        first = i32(group * width)
        put_transposed(sums, out_map, buffers, turn, row < rows, i32(chunk * 64), column, width, first, tap, alpha)

    def kernel(
        map_x, map_y, out, tiles, count, splits, steps, chunks, rows, depth, width, positions, move, lower, taps, dilation,
        split_stride, tap_start, tap_step, alpha,
    ):  # fmt: skip
        thread = i32(cuda.threadIdx.x)
        group_of_threads = i32(thread >> 7)
        ring_at = u32((start() + u32(1023)) & u32(0xFFFFFC00))
        full = u32(ring_at + u32(after_ring))
        empty = u32(full + u32(8 * stages))
        if thread == 0:
            begin_ring(full, empty)
            fence()
        cuda.syncthreads()
        stage = u32(0)
        phase = u32(0)
        if group_of_threads == 0:
            fewer()
            if thread == 0:
                x_map = x_map_of(map_x)
                y_map = y_map_of(map_y)
                places = cuda.local.array(words_of_all, word)
                for tile in range(i32(cuda.blockIdx.x), count, i32(cuda.gridDim.x)):
                    split, group, row, column = place(tile, tiles)
                    begin, end = share(steps, split, splits)
                    find_chunks(places, i32(row * chunks_each), group, chunks, depth, taps, dilation)
                    first = i32(group * width + column * n)
                    for step in range(begin, end):
                        image, o, p, q = position(i32(step * terms), positions)
                        wait(u32(empty + stage * u32(8)), u32(phase ^ u32(1)))
                        bar = u32(full + stage * u32(8))
                        expect(bar, u32(bytes_of_stage))
                        target = u32(ring_at + stage * u32(bytes_of_stage))
                        x = i32(q * move[-1] + lower[-1])
                        y = i32(p * move[-2] + lower[-2])
                        z = i32(o * move[0] + lower[0])
                        feed_image(target, x_map, places, x, y, z, image, bar)
                        feed_filters(
                            u32(target + u32(image_bytes)), y_map, first, i32(step * terms), q, p, o, image, bar
                        )  # fmt: skip
                        stage, phase = following(stage, phase)
        else:
            more()
            lane = i32(thread & 31)
            warp = i32((thread >> 5) & 3)
            mine = i32((group_of_threads - 1) * (m // 2))
            my_chunks = u32((group_of_threads - 1) * (chunks_each // 2 * box_bytes))
            sums = cuda.local.array(every, f32)
            others = cuda.local.array(every, f32)
            buffers = u32(ring_at + u32(ring) + u32((group_of_threads - 1) * (BUFFERS // 2)))
            there = out_of(out)
            turn = i32(0)
            for tile in range(i32(cuda.blockIdx.x), count, i32(cuda.gridDim.x)):
                split, group, row, column = place(tile, tiles)
                begin, end = share(steps, split, splits)
                for i in range(every):
                    sums[i] = f32(0)
                    if double:
                        others[i] = f32(0)
                stage, phase = consume(sums, others, ring_at, my_chunks, full, empty, stage, phase, begin, end, thread)
                if direct:
                    store_direct(
                        sums, there, buffers, turn, i32(row * m + mine), rows, chunks, i32(column * n), width, group, tap_start,
                        tap_step, alpha,
                    )  # fmt: skip
                    turn = i32(turn + n // 64)
                    if double:
                        store_direct(
                            others, there, buffers, turn, i32(row * m + mine + 64), rows, chunks, i32(column * n), width, group,
                            tap_start, tap_step, alpha,
                        )  # fmt: skip
                        turn = i32(turn + n // 64)
                else:
                    here = i32(row * m + mine + warp * 16 + (lane >> 2))
                    across = i32(column * n + (lane & 3) * 2)
                    first_row = out + i64(split) * split_stride + (i64(group) * rows * width + across) * 4
                    pitch = i64(width) * 4
                    put(
                        sums, first_row + here * pitch, first_row + (here + 8) * pitch, here < rows, here + 8 < rows, across,
                        width, i64(4), alpha, f32(0),
                    )  # fmt: skip
                    if double:
                        here = i32(here + 64)
                        put(
                            others, first_row + here * pitch, first_row + (here + 8) * pitch, here < rows, here + 8 < rows,
                            across, width, i64(4), alpha, f32(0),
                        )  # fmt: skip
            if direct and (thread & 127) == 0:
                wait_boxes()

    return kernel


def total(dtype: str, axes: int, high: int, lanes: int, vector: bool) -> Callable[..., None]:
    """w[filter, channel, tap] = (sum over splits of partial) + beta * w, ``high`` channels of a tap by WIDE filters a block.

    Each element has ``lanes`` threads, which share its splits and are added in order. The tile is transposed in shared memory:
    reads run along filters, writes along channels, eight at a time where ``vector``.
    """
    size, wide, eights, deep = ITEMSIZE[dtype], WIDE, high // 8, axes == 3
    read, write, old = load_vector("float32", 4, "float32"), store(dtype, "float32"), load(dtype, "float32")
    write_eight = store_vector(dtype, 8, "float32") if vector else write
    pitch, element, threads, pieces, under_way = high + 2, ELEMENT["float32"], high * wide // 4, wide // 4, 4 * AHEAD

    @device
    def put(values, target, c, depth, step, beta):
        """Eight channels of a filter."""
        for e in range(8):
            if beta != f32(0) and c + e < depth:
                values[e] = f32(values[e] + beta * old(target + e * step))
        if vector:
            write_eight(values, i32(0), target)
        else:
            for e in range(8):
                if c + e < depth:
                    write(target + e * step, values[e])

    def kernel(
        partial, w, splits, split_stride, rows, chunks, depth, width, taps, tap_start, tap_step, strides, beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, element)
        thread = i32(cuda.threadIdx.x)
        lane, place = divided(thread, i32(threads))
        row, piece = divided(place, i32(pieces))
        column = i32(piece * 4)
        group = i32(cuda.blockIdx.z)
        first_k = i32(cuda.blockIdx.x * wide)
        values = cuda.local.array(8, f32)
        some = cuda.local.array(under_way, f32)
        for e in range(8):
            values[e] = f32(0)
        if first_k + column < width:
            at = partial + (i64(group * i64(rows) + cuda.blockIdx.y * high + row) * width + first_k + column) * 4
            for first in range(lane, splits, i32(AHEAD * lanes)):
                for i in range(AHEAD):  # all of them under way before the first is needed
                    split = i32(first + i * lanes)
                    read(some, i32(i * 4), at + (split if split < splits else first) * split_stride)
                for i in range(AHEAD):
                    if first + i * lanes < splits:
                        for e in range(4):
                            values[e] = f32(values[e] + some[i * 4 + e])
        for e in range(4):
            shared[i32((lane * wide + column + e) * pitch + row)] = values[e]
        cuda.syncthreads()
        if thread < wide * eights:
            across, down = divided(thread, i32(eights))
            down = i32(down * 8)
            for e in range(8):
                values[e] = f32(0)
                for i in range(lanes):
                    values[e] = f32(values[e] + shared[i32((i * wide + across) * pitch + down + e)])
            tap, part = divided(i32(cuda.blockIdx.y), i32(chunks * (64 // high)))
            c = i32(part * high + down)
            k = i32(first_k + across)
            if c < depth and k < width:
                r, s = divided(i32(tap_start + tap * tap_step), taps[-1])
                t = i32(0)
                if deep:
                    t, r = divided(r, taps[-2])
                offset = (group * width + k) * strides[0] + c * strides[1] + r * strides[-2] + s * strides[-1]
                if deep:
                    offset += t * strides[2]
                put(values, w + offset * size, c, depth, strides[1] * size, beta)

    return kernel
