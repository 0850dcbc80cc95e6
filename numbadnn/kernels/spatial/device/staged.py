"""The sampler where neighbouring points lie near each other, by way of shared memory.

A block takes a tile of points and walks over channels; the box of the image around the points is copied some channels ahead
(``device/box.py``). What counts for nothing is read from a cell that holds 0: nothing is tested on the way. Where the box is
too large, pixels are read where they lie: slower, the same sums.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.async_copies import commit_async
from numbadnn.kernels.lang.cuda import ACCUMULATOR, WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.ptx import quotient
from numbadnn.kernels.spatial.device import point as _spatial_point
from numbadnn.kernels.spatial.device.box import FAR, address_of, box_of, element, stager, walking
from numbadnn.kernels.spatial.device.point import INTEGER, INTEGER64
from numbadnn.kernels.spatial.layout import StagedConfig
from numbadnn.problem import ITEMSIZE


def sampler(dtype: str, place: str, acc: str, config: StagedConfig) -> Callable[..., None]:
    """y from img and grid; rows of the image contiguous; up to ``config.channels`` channels a block, a multiple of ``group``."""
    A, size, grid_size = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[place]
    read, write, pixel = load(dtype, acc), store(dtype, acc), element(dtype, acc)
    position, cell, nothing = _spatial_point.position(place, acc), _spatial_point.cell(acc), _spatial_point.nothing(acc)
    columns, rows = config.columns, config.rows
    box, (plan, begin) = box_of(dtype, config, 1), stager(dtype, config, config.rounds, by_line=True)
    threads, vec, pieces = config.threads, config.vec, config.pieces
    tall_step, many, clears = threads // config.columns, config.many, -(-pieces // threads)
    four, most, stages, rounds = 4 * many, config.channels, config.stages, config.rounds
    group, nothing_at, zero = config.group, pieces * vec, pieces * vec * size  # of what lies behind each box
    box_bytes, slot = zero + 16, group * (zero + 16)
    flags = pieces + 1  # one more: what no point needs
    next_boxes = walking(config, begin, box_bytes)
    assert stages == 4, "turns are written out"

    @device
    def turn(s, k, count, target, into, copies, points):
        """The channels from k + s * group on, which lie in slot s; ``live``: how many of the thread's points there are."""
        next_y, row_step, live = into
        words = copies[0]
        offsets, weights, results = points
        left = i32(count - k - s * group)
        if left > 0:
            next_boxes(s, left, copies)
            for p in range(many):
                for q in range(group):
                    a = pixel(words, offsets[4 * p], i32(s * slot + q * box_bytes))
                    b = pixel(words, offsets[4 * p + 1], i32(s * slot + q * box_bytes))
                    d = pixel(words, offsets[4 * p + 2], i32(s * slot + q * box_bytes))
                    e = pixel(words, offsets[4 * p + 3], i32(s * slot + q * box_bytes))
                    upper = A(weights[4 * p] * a + weights[4 * p + 1] * b)
                    results[q] = A(A(upper + weights[4 * p + 2] * d) + weights[4 * p + 3] * e)
                if i32(p) < live:
                    to = target + p * row_step
                    for q in range(group):
                        write(to, results[q])
                        to += next_y
            target += group * next_y
        return target

    def kernel(
        img, grid, y, across, down, chunks, by_across, by_down, by_chunks, channels, height, width, out_height, out_width,
        half_width, half_height, xs, gs, ys,
    ):  # fmt: skip
        words = cuda.shared.array(0, WORD)
        table = cuda.shared.array(128, INTEGER)
        needed = cuda.shared.array(flags, INTEGER)
        sources, steps = cuda.local.array(rounds, INTEGER64), cuda.local.array(rounds, INTEGER64)
        places = cuda.local.array(rounds, INTEGER)
        js, rows_of = cuda.local.array(many, INTEGER), cuda.local.array(many, INTEGER)
        weights, offsets = cuda.local.array(four, A), cuda.local.array(four, INTEGER)
        results = cuda.local.array(group, A)
        thread, block = i32(cuda.threadIdx.x), i32(cuda.blockIdx.x)
        line = quotient(block, by_across)  # tiles count along a row of tiles, then down, then over chunks, then images
        stack = quotient(line, by_down)
        n = quotient(stack, by_chunks)
        column = i32((block - line * across) * columns + i32(u32(thread) % u32(columns)))
        row = i32((line - stack * down) * rows + i32(u32(thread) // u32(columns)))
        first = i32((stack - n * chunks) * most)
        count = i32(min(i32(channels - first), i32(most)))
        low_j, high_j, low_i, high_i = i32(FAR), i32(FAR), i32(FAR), i32(FAR)
        for p in range(many):
            at_column, at_row = (
                i32(min(column, i32(out_width - 1))),
                i32(min(i32(row + p * tall_step), i32(out_height - 1))),
            )
            at = grid + (n * gs[0] + at_row * gs[1] + at_column * gs[2]) * grid_size
            px, py = position(at, gs[3] * grid_size, half_width, half_height)
            sound, j, i, u, v = cell(px, py, height, width)
            left_in, right_in = sound and j >= 0, sound and i32(j + 1) < width
            top_in, bottom_in = i >= 0, i32(i + 1) < height
            start = nothing(px, py)
            js[p], rows_of[p] = j, i
            weights[4 * p] = A((A(1) - v) * (A(1) - u)) if left_in and top_in else A(0)
            weights[4 * p + 1] = A((A(1) - v) * u) if right_in and top_in else A(0)
            weights[4 * p + 2] = A(v * (A(1) - u)) if left_in and bottom_in else A(0)
            weights[4 * p + 3] = A(v * u) if right_in and bottom_in else A(0)
            for q in range(4):  # which are read: those of a weight
                offsets[4 * p + q] = 1 if weights[4 * p + q] != 0 else 0
            if start != start:
                weights[4 * p] = start
            if sound:
                low_j, high_j = max(low_j, i32(-j)), max(high_j, j)
                low_i, high_i = max(low_i, i32(-i)), max(high_i, i)
        for r in range(clears):
            if thread + r * threads < pieces:
                needed[thread + r * threads] = 0
        fits, left, top, wide, tall, pitch = box(low_j, high_j, low_i, high_i, table)
        image, next_x, next_y = img + (n * xs[0] + first * xs[1]) * size, xs[1] * size, ys[1] * size
        target = y + (n * ys[0] + first * ys[1] + row * ys[2] + column * ys[3]) * size
        row_step = tall_step * ys[2] * size
        live = (
            i32(u32(max(i32(out_height - row + tall_step - 1), i32(0))) // u32(tall_step))
            if column < out_width
            else i32(0)
        )
        if fits:
            start_of = address_of(words)
            for p in range(many):
                for q in range(4):
                    at = i32((rows_of[p] - top + (q >> 1)) * pitch + js[p] - left * vec + (q & 1))
                    at = at if offsets[4 * p + q] != 0 else i32(nothing_at)
                    needed[i32(u32(at) // u32(vec))] = 1
                    offsets[4 * p + q] = i32(start_of + at * size)
            cuda.syncthreads()
            if thread < stages * group:
                words[u32(thread * (box_bytes // 4) + zero // 4)] = 0
                words[u32(thread * (box_bytes // 4) + zero // 4 + 1)] = 0
            for r in range(rounds):
                steps[r] = next_x
            plan(sources, places, needed, i32(0), image, left, top, wide, tall, pitch, xs[2] * size)
            some = i32(-1)
            for r in range(rounds):
                some = max(some, places[r])
            for s in range(stages - 1):
                if s * group < count:
                    for q in range(group):
                        begin(words, i32(start_of + (s * slot + q * box_bytes)), sources, steps, places)
                commit_async()
            copies, points = (words, start_of, sources, steps, places, some), (offsets, weights, results)
            into = (next_y, row_step, live)
            k = i32(0)
            while k < count:  # each slot has its own instructions, whose constant its place is
                target = turn(0, k, count, target, into, copies, points)
                target = turn(1, k, count, target, into, copies, points)
                target = turn(2, k, count, target, into, copies, points)
                target = turn(3, k, count, target, into, copies, points)
                k = i32(k + 4 * group)
        else:
            for _ in range(count):
                for p in range(many):
                    line = image + (i64(rows_of[p]) * xs[2] + i64(js[p]) * xs[3]) * size
                    a = read(line) if offsets[4 * p] != 0 else A(0)
                    b = read(line + xs[3] * size) if offsets[4 * p + 1] != 0 else A(0)
                    d = read(line + xs[2] * size) if offsets[4 * p + 2] != 0 else A(0)
                    e = read(line + (xs[2] + xs[3]) * size) if offsets[4 * p + 3] != 0 else A(0)
                    upper = A(weights[4 * p] * a + weights[4 * p + 1] * b)
                    value = A(A(upper + weights[4 * p + 2] * d) + weights[4 * p + 3] * e)
                    if column < out_width and row + p * tall_step < out_height:
                        write(target + p * row_step, value)
                image += next_x
                target += next_y

    return kernel
