"""The sampler and its gradient in the grid where neighbouring points lie near each other, by way of shared memory.

A block takes a tile of points and walks over channels; the box of the image around the points is copied some channels ahead
(``_spatial_box``). What counts for nothing is read from a cell that holds 0: nothing is tested on the way. Where the box is
too large, pixels are read where they lie: slower, the same sums.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels import _spatial_point
from numbadnn.kernels._async_copies import commit_async, wait_async_but
from numbadnn.kernels._cuda import cuda, device, f32, i32, i64, u32
from numbadnn.kernels._ptx import ACCUMULATOR, WORD, load, store
from numbadnn.kernels._spatial_box import FAR, address_of, box_of, element, stager
from numbadnn.kernels._spatial_point import INTEGER, INTEGER64
from numbadnn.kernels.spatial_layout import StagedConfig
from numbadnn.problem import ITEMSIZE


def sampler(dtype: str, place: str, acc: str, config: StagedConfig) -> Callable[..., None]:
    """y from img and grid; rows of the image contiguous; ``config.channels`` channels a block."""
    A, size, grid_size = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[place]
    read, write, pixel = load(dtype, acc), store(dtype, acc), element(dtype, acc)
    position, cell = _spatial_point.position(place, acc), _spatial_point.cell(acc)
    locate = _spatial_point.tile(config.columns, config.rows)
    box, (plan, begin) = box_of(dtype, config, 1), stager(dtype, config)
    warps, many, vec = config.threads // 32, config.rows * 32 // config.threads, config.vec
    four, most, stages, rounds = 4 * many, config.channels, config.stages, config.rounds
    group, zero = config.group, config.pieces * vec * size  # zero: what lies behind each box
    box_bytes, slot = zero + 16, group * (zero + 16)
    all_words = stages * slot // 4
    wait = wait_async_but(stages - 2)
    assert stages == 4, "turns are written out"

    @device
    def turn(  # type: ignore[no-untyped-def]
        s, k, count, next_x, next_y, line, target, row_step, live, words, start_of, pieces, there, offsets, weights
    ):
        """The channels from k + s * group on, which lie in slot s; ``live``: how many of the thread's points there are."""
        left = i32(count - k - s * group)
        if left > 0:
            wait()
            cuda.syncthreads()
            for q in range(group):
                if left > (stages - 1) * group + q:
                    ahead = i32(start_of + ((s + stages - 1) % stages * slot + q * box_bytes))
                    begin(words, ahead, line + q * next_x, pieces, there)
            commit_async()
            for q in range(group):
                for p in range(many):
                    a = pixel(words, i32(offsets[4 * p] + (s * slot + q * box_bytes)))
                    b = pixel(words, i32(offsets[4 * p + 1] + (s * slot + q * box_bytes)))
                    d = pixel(words, i32(offsets[4 * p + 2] + (s * slot + q * box_bytes)))
                    e = pixel(words, i32(offsets[4 * p + 3] + (s * slot + q * box_bytes)))
                    upper = A(weights[4 * p] * a + weights[4 * p + 1] * b)
                    lower = A(weights[4 * p + 2] * d + weights[4 * p + 3] * e)
                    if i32(p) < live and (group == 1 or q < left):
                        write(target + p * row_step, A(upper + lower))
                target += next_y
        return line + group * next_x, target

    def kernel(  # type: ignore[no-untyped-def]
        img, grid, y, across, down, chunks, channels, height, width, out_height, out_width, half_width, half_height,
        xs, gs, ys,
    ):  # fmt: skip
        words = cuda.shared.array(all_words, WORD)
        s0, s1 = cuda.shared.array(32, f32), cuda.shared.array(32, f32)
        s2, s3 = cuda.shared.array(32, f32), cuda.shared.array(32, f32)
        pieces, there = cuda.local.array(rounds, INTEGER64), cuda.local.array(rounds, INTEGER)
        js, rows_of = cuda.local.array(many, INTEGER), cuda.local.array(many, INTEGER)
        weights, offsets = cuda.local.array(four, A), cuda.local.array(four, INTEGER)
        thread = i32(cuda.threadIdx.x)
        column, row, chunk, n = locate(thread, i32(cuda.blockIdx.x), across, down, chunks)
        low_j, high_j, low_i, high_i = f32(FAR), f32(FAR), f32(FAR), f32(FAR)
        for p in range(many):
            at_column, at_row = (
                i32(min(column, i32(out_width - 1))),
                i32(min(i32(row + p * warps), i32(out_height - 1))),
            )
            at = grid + (n * gs[0] + at_row * gs[1] + at_column * gs[2]) * grid_size
            px, py = position(at, gs[3] * grid_size, half_width, half_height)
            sound, j, i, u, v = cell(px, py, height, width)
            left_in, right_in, top_in, bottom_in = sound and j >= 0, sound and j + 1 < width, i >= 0, i + 1 < height
            start = A(px + py)
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
                low_j, high_j = max(low_j, f32(-j)), max(high_j, f32(j))
                low_i, high_i = max(low_i, f32(-i)), max(high_i, f32(i))
        fits, left, top, wide, tall, pitch = box(low_j, high_j, low_i, high_i, s0, s1, s2, s3)
        c = i32(chunk * most)
        count = i32(min(i32(channels - c), i32(most)))
        image, next_x, next_y = img + (n * xs[0] + c * xs[1]) * size, xs[1] * size, ys[1] * size
        target = y + (n * ys[0] + c * ys[1] + row * ys[2] + column * ys[3]) * size
        row_step = warps * ys[2] * size
        live = i32(u32(max(i32(out_height - row + warps - 1), i32(0))) // u32(warps)) if column < out_width else i32(0)
        if fits:
            start_of = address_of(words)
            for p in range(many):
                for q in range(4):
                    at = i32((rows_of[p] - top + (q >> 1)) * pitch + js[p] - left * vec + (q & 1))
                    offsets[4 * p + q] = i32(start_of + (i32(at * size) if offsets[4 * p + q] != 0 else i32(zero)))
            if thread < stages * group:
                words[(thread * box_bytes + zero) // 4] = 0
                words[(thread * box_bytes + zero) // 4 + 1] = 0
            plan(pieces, there, left, top, wide, tall, pitch, xs[2] * size, width, height)
            for s in range(stages - 1):
                for q in range(group):
                    if s * group + q < count:
                        to = i32(start_of + (s * slot + q * box_bytes))
                        begin(words, to, image + (s * group + q) * next_x, pieces, there)
                commit_async()
            line = image + (stages - 1) * group * next_x
            for k in range(
                0, count, 4 * group
            ):  # each slot has its own instructions: its place is a constant of theirs
                # fmt: off
                line, target = turn(
                    0, k, count, next_x, next_y, line, target, row_step, live,
                    words, start_of, pieces, there, offsets, weights,
                )
                line, target = turn(
                    1, k, count, next_x, next_y, line, target, row_step, live,
                    words, start_of, pieces, there, offsets, weights,
                )
                line, target = turn(
                    2, k, count, next_x, next_y, line, target, row_step, live,
                    words, start_of, pieces, there, offsets, weights,
                )
                line, target = turn(
                    3, k, count, next_x, next_y, line, target, row_step, live,
                    words, start_of, pieces, there, offsets, weights,
                )
                # fmt: on
        else:
            for _ in range(count):
                for p in range(many):
                    line = image + (i64(rows_of[p]) * xs[2] + i64(js[p]) * xs[3]) * size
                    a = read(line) if offsets[4 * p] != 0 else A(0)
                    b = read(line + xs[3] * size) if offsets[4 * p + 1] != 0 else A(0)
                    d = read(line + xs[2] * size) if offsets[4 * p + 2] != 0 else A(0)
                    e = read(line + (xs[2] + xs[3]) * size) if offsets[4 * p + 3] != 0 else A(0)
                    upper = A(weights[4 * p] * a + weights[4 * p + 1] * b)
                    lower = A(weights[4 * p + 2] * d + weights[4 * p + 3] * e)
                    if column < out_width and row + p * warps < out_height:
                        write(target + p * row_step, A(upper + lower))
                image += next_x
                target += next_y

    return kernel


def slope(dtype: str, place: str, acc: str, config: StagedConfig) -> Callable[..., None]:
    """dgrid from img, grid and dy, rows of img and dy contiguous; a block takes all channels of its points."""
    A, size, grid_size = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[place]
    read, write, pixel = load(dtype, acc), store(place, acc), element(dtype, acc)
    position, cell = _spatial_point.position(place, acc), _spatial_point.cell(acc)
    locate = _spatial_point.tile(config.columns, config.rows)
    box, (plan, begin) = box_of(dtype, config, 1), stager(dtype, config)
    plan_dy, begin_dy = stager(dtype, config.of_points)
    warps, many, vec = config.threads // 32, config.rows * 32 // config.threads, config.vec
    four, stages, rounds, rounds_dy = 4 * many, config.stages, config.rounds, config.of_points.rounds
    group, room = config.group, config.pieces * vec * size
    box_bytes = room + config.of_points.pieces * vec * size
    slot = group * box_bytes
    all_words, most_place = stages * slot // 4, config.pieces * vec - 1
    wait = wait_async_but(stages - 2)
    assert stages == 4, "turns are written out"

    @device
    def turn(  # type: ignore[no-untyped-def]
        s, k, count, next_x, next_y, line, line_dy, step, own_dy,
        words, start_of, pieces, there, pieces_dy, there_dy, rows_of, sums,
    ):  # fmt: skip
        """The channels from k + s * group on, which lie in slot s."""
        left = i32(count - k - s * group)
        if left > 0:
            wait()
            cuda.syncthreads()
            for q in range(group):
                if left > (stages - 1) * group + q:
                    ahead = i32(start_of + ((s + stages - 1) % stages * slot + q * box_bytes))
                    begin(words, ahead, line + q * next_x, pieces, there)
                    begin_dy(words, i32(ahead + room), line_dy + q * next_y, pieces_dy, there_dy)
            commit_async()
            for q in range(group):
                if group == 1 or q < left:
                    here = s * slot + q * box_bytes
                    for p in range(many):
                        d = pixel(words, i32(own_dy + (here + p * (warps * 32 * size))))
                        at, below = rows_of[p], i32(rows_of[p] + step)
                        sums[4 * p] = A(sums[4 * p] + d * pixel(words, i32(at + here)))
                        sums[4 * p + 1] = A(sums[4 * p + 1] + d * pixel(words, i32(at + (here + size))))
                        sums[4 * p + 2] = A(sums[4 * p + 2] + d * pixel(words, i32(below + here)))
                        sums[4 * p + 3] = A(sums[4 * p + 3] + d * pixel(words, i32(below + (here + size))))
        return line + group * next_x, line_dy + group * next_y

    def kernel(  # type: ignore[no-untyped-def]
        img, grid, dy, dgrid, across, down, channels, height, width, out_height, out_width, half_width, half_height,
        xs, gs, ys, ds,
    ):  # fmt: skip
        words = cuda.shared.array(all_words, WORD)
        s0, s1 = cuda.shared.array(32, f32), cuda.shared.array(32, f32)
        s2, s3 = cuda.shared.array(32, f32), cuda.shared.array(32, f32)
        pieces, there = cuda.local.array(rounds, INTEGER64), cuda.local.array(rounds, INTEGER)
        pieces_dy, there_dy = cuda.local.array(rounds_dy, INTEGER64), cuda.local.array(rounds_dy, INTEGER)
        js, rows_of = cuda.local.array(many, INTEGER), cuda.local.array(many, INTEGER)
        sums = cuda.local.array(four, A)
        thread = i32(cuda.threadIdx.x)
        column, row, _, n = locate(thread, i32(cuda.blockIdx.x), across, down, i32(1))
        low_j, high_j, low_i, high_i = f32(FAR), f32(FAR), f32(FAR), f32(FAR)
        at_column = i32(min(column, i32(out_width - 1)))
        for p in range(many):
            at_row = i32(min(i32(row + p * warps), i32(out_height - 1)))
            at = grid + (n * gs[0] + at_row * gs[1] + at_column * gs[2]) * grid_size
            px, py = position(at, gs[3] * grid_size, half_width, half_height)
            sound, j, i, _, _ = cell(px, py, height, width)
            js[p], rows_of[p] = j, i
            for q in range(4):
                sums[4 * p + q] = A(0)
            if sound:
                low_j, high_j = max(low_j, f32(-j)), max(high_j, f32(j))
                low_i, high_i = max(low_i, f32(-i)), max(high_i, f32(i))
        fits, left, top, wide, tall, pitch = box(low_j, high_j, low_i, high_i, s0, s1, s2, s3)
        image, next_x, next_y = img + n * xs[0] * size, xs[1] * size, ys[1] * size
        own = dy + n * ys[0] * size
        if fits:
            start_of = address_of(words)
            for p in range(many):  # a point that is not sound has any place
                at = i32((rows_of[p] - top) * pitch + js[p] - left * vec)
                rows_of[p] = i32(start_of + (i32(at * size) if at >= 0 and at + pitch < most_place else i32(0)))
            plan(pieces, there, left, top, wide, tall, pitch, xs[2] * size, width, height)
            warp = i32(thread >> 5)
            columns_dy = i32(i32(column - i32(thread & 31)) // vec)
            plan_dy(
                pieces_dy, there_dy, columns_dy, i32(row - warp), i32(32 // vec), i32(many * warps), i32(32), ys[2] * size,
                out_width, out_height,
            )  # fmt: skip
            for s in range(stages - 1):
                for q in range(group):
                    if s * group + q < channels:
                        to = i32(start_of + (s * slot + q * box_bytes))
                        begin(words, to, image + (s * group + q) * next_x, pieces, there)
                        begin_dy(words, i32(to + room), own + (s * group + q) * next_y, pieces_dy, there_dy)
                commit_async()
            own_dy, step = i32(start_of + room + thread * size), i32(pitch * size)
            line, line_dy = image + (stages - 1) * group * next_x, own + (stages - 1) * group * next_y
            for k in range(0, channels, 4 * group):  # as in the sampler
                # fmt: off
                line, line_dy = turn(
                    0, k, channels, next_x, next_y, line, line_dy, step, own_dy,
                    words, start_of, pieces, there, pieces_dy, there_dy, rows_of, sums,
                )
                line, line_dy = turn(
                    1, k, channels, next_x, next_y, line, line_dy, step, own_dy,
                    words, start_of, pieces, there, pieces_dy, there_dy, rows_of, sums,
                )
                line, line_dy = turn(
                    2, k, channels, next_x, next_y, line, line_dy, step, own_dy,
                    words, start_of, pieces, there, pieces_dy, there_dy, rows_of, sums,
                )
                line, line_dy = turn(
                    3, k, channels, next_x, next_y, line, line_dy, step, own_dy,
                    words, start_of, pieces, there, pieces_dy, there_dy, rows_of, sums,
                )
                # fmt: on
        else:
            own += at_column * ys[3] * size
            for _ in range(channels):
                for p in range(many):
                    d = read(own + i32(min(i32(row + p * warps), i32(out_height - 1))) * ys[2] * size)
                    for q in range(4):
                        i, j = i32(rows_of[p] + (q >> 1)), i32(js[p] + (q & 1))
                        if i >= 0 and i < height and j >= 0 and j < width:
                            value = read(image + (i64(i) * xs[2] + i64(j) * xs[3]) * size)
                            sums[4 * p + q] = A(sums[4 * p + q] + d * value)
                image += next_x
                own += next_y
        for p in range(many):
            if column < out_width and row + p * warps < out_height:
                at = grid + (n * gs[0] + (row + p * warps) * gs[1] + column * gs[2]) * grid_size
                px, py = position(at, gs[3] * grid_size, half_width, half_height)
                sound, _, _, u, v = cell(px, py, height, width)
                t00, t01, t10, t11 = sums[4 * p], sums[4 * p + 1], sums[4 * p + 2], sums[4 * p + 3]
                right_slope = A(A((A(1) - v) * A(t01 - t00)) + A(v * A(t11 - t10)))
                down_slope = A(A((A(1) - u) * A(t10 - t00)) + A(u * A(t11 - t01)))
                nan = A(px + py)
                nothing = A(0) if nan == nan else nan
                at = dgrid + (n * ds[0] + (row + p * warps) * ds[1] + column * ds[2]) * grid_size
                write(at, A(right_slope * half_width) if sound else nothing)
                write(at + ds[3] * grid_size, A(down_slope * half_height) if sound else nothing)

    return kernel
