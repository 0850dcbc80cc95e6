"""The gradient of the sampler in its grid: how the sample at a point changes with its position, summed over channels.

Four sums of ``dy * pixel`` over the channels, one for each pixel around the point, make both slopes. ``planes``: ``parts``
threads share a point's channels and meet in shared memory. ``channels``: ``lanes`` neighbouring threads do, by shuffles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels import _reduce, _spatial_point
from numbadnn.kernels._cuda import cuda, device, i32, i64, u32
from numbadnn.kernels._packed import load_words, widen
from numbadnn.kernels._ptx import ACCUMULATOR, WORD, load, shuffle_xor, store
from numbadnn.kernels._spatial_point import INTEGER, INTEGER64
from numbadnn.kernels.spatial_layout import SlopeConfig
from numbadnn.problem import ITEMSIZE


def _finish(place: str, acc: str) -> Any:
    """Write both slopes of a point from its four sums; a NaN point gives NaN, another that meets no pixel 0."""
    A, write = ACCUMULATOR[acc], store(place, acc)

    @device
    def finish(at, step, s00, s01, s10, s11, u, v, sound, nan, half_width, half_height):  # type: ignore[no-untyped-def]
        right = A(A((A(1) - v) * A(s01 - s00)) + A(v * A(s11 - s10)))
        down = A(A((A(1) - u) * A(s10 - s00)) + A(u * A(s11 - s01)))
        nothing = A(0) if nan == nan else nan
        write(at, A(right * half_width) if sound else nothing)
        write(at + step, A(down * half_height) if sound else nothing)

    return finish


def _meet(acc: str, lanes: int) -> Any:
    """``meet(total, lane) -> sum``: lane l gets that of total[l * 4 // lanes] over ``lanes`` (4 and more) neighbouring threads.

    In each of the first two steps a thread gives half of its totals away and keeps the rest: 2 + 1 exchanges, then one a step.
    """
    A, swap = ACCUMULATOR[acc], shuffle_xor(acc)
    half, quarter = lanes // 2, lanes // 4
    levels = quarter.bit_length() - 1

    @device
    def meet(total, lane):  # type: ignore[no-untyped-def]
        high, right = (lane & half) != 0, (lane & quarter) != 0
        first = A((total[2] if high else total[0]) + swap(total[0] if high else total[2], i32(half)))
        second = A((total[3] if high else total[1]) + swap(total[1] if high else total[3], i32(half)))
        whole = A((second if right else first) + swap(first if right else second, i32(quarter)))
        for level in range(levels):
            whole = A(whole + swap(whole, i32(quarter >> (level + 1))))
        return whole

    return meet


def planes(dtype: str, place: str, acc: str, config: SlopeConfig) -> Callable[..., None]:
    """Any strides. A block: a tile of points by ``parts``; part k takes channels k, k + parts and so on."""
    A, size, grid_size = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[place]
    points, parts = config.columns * config.rows, config.share
    read, finish = load(dtype, acc), _finish(place, acc)
    position, cell = _spatial_point.position(place, acc), _spatial_point.cell(acc)
    locate = _spatial_point.tile(config.columns, config.rows)
    sum_of_parts = _reduce.over_parts(_reduce.add(acc), points, parts, 4)
    threads = points * parts
    table_size = 4 * threads if parts > 1 else 1

    def kernel(  # type: ignore[no-untyped-def]
        img, grid, dy, dgrid, across, down, channels, height, width, out_height, out_width, half_width, half_height,
        xs, gs, ys, ds,
    ):  # fmt: skip
        table = cuda.shared.array(table_size, A)
        held = cuda.local.array(20, A)
        thread = i32(cuda.threadIdx.x)
        part = i32(u32(thread) // u32(points))
        column, row, _, n = locate(i32(thread - part * points), i32(cuda.blockIdx.x), across, down, i32(1))
        live = column < out_width and row < out_height
        column, row = i32(min(column, i32(out_width - 1))), i32(min(row, i32(out_height - 1)))
        px, py = position(
            grid + (n * gs[0] + row * gs[1] + column * gs[2]) * grid_size, gs[3] * grid_size, half_width, half_height
        )
        sound, j, i, u, v = cell(px, py, height, width)
        left_in, right_in = sound and j >= 0, sound and j + 1 < width
        top_in, bottom_in = i >= 0, i + 1 < height
        s00, s01, s10, s11 = A(0), A(0), A(0), A(0)
        line = img + (n * xs[0] + part * xs[1] + i * xs[2] + j * xs[3]) * size
        slope = dy + (n * ys[0] + part * ys[1] + row * ys[2] + column * ys[3]) * size
        right, below, next_x, next_y = xs[3] * size, xs[2] * size, parts * xs[1] * size, parts * ys[1] * size
        if left_in and right_in and top_in and bottom_in:
            mine = i32(u32(i32(channels - part + parts - 1)) // u32(parts))
            for _ in range(i32(u32(mine) // u32(4))):  # all loads of four channels are under way at once
                for q in range(4):
                    held[5 * q] = read(slope + q * next_y)
                    held[5 * q + 1] = read(line + q * next_x)
                    held[5 * q + 2] = read(line + q * next_x + right)
                    held[5 * q + 3] = read(line + q * next_x + below)
                    held[5 * q + 4] = read(line + q * next_x + below + right)
                for q in range(4):
                    s00 = A(s00 + held[5 * q] * held[5 * q + 1])
                    s01 = A(s01 + held[5 * q] * held[5 * q + 2])
                    s10 = A(s10 + held[5 * q] * held[5 * q + 3])
                    s11 = A(s11 + held[5 * q] * held[5 * q + 4])
                line += 4 * next_x
                slope += 4 * next_y
            for _ in range(i32(u32(mine) % u32(4))):
                d = read(slope)
                s00 = A(s00 + d * read(line))
                s01 = A(s01 + d * read(line + right))
                s10 = A(s10 + d * read(line + below))
                s11 = A(s11 + d * read(line + below + right))
                line += next_x
                slope += next_y
        elif sound:
            for _ in range(part, channels, parts):
                d = read(slope)
                if left_in and top_in:
                    s00 = A(s00 + d * read(line))
                if right_in and top_in:
                    s01 = A(s01 + d * read(line + right))
                if left_in and bottom_in:
                    s10 = A(s10 + d * read(line + below))
                if right_in and bottom_in:
                    s11 = A(s11 + d * read(line + below + right))
                line += next_x
                slope += next_y
        if parts > 1:
            table[thread] = s00
            table[threads + thread] = s01
            table[2 * threads + thread] = s10
            table[3 * threads + thread] = s11
            sum_of_parts(table)
            s00, s01 = table[thread], table[threads + thread]
            s10, s11 = table[2 * threads + thread], table[3 * threads + thread]
        if live and part == 0:
            at = dgrid + (n * ds[0] + row * ds[1] + column * ds[2]) * grid_size
            finish(at, ds[3] * grid_size, s00, s01, s10, s11, u, v, sound, A(px + py), half_width, half_height)

    return kernel


def channels(dtype: str, place: str, acc: str, config: SlopeConfig) -> Callable[..., None]:
    """NHWC: ``lanes`` threads a point, each with every ``lanes``-th vector of its channels; a tile of one point a thread.

    First a thread a point puts its pixels in shared memory; then the block takes up threads/lanes points at a time and leaves
    their sums there; last a thread a point writes its slopes. All loads are made, those of pixels outside at the image's
    border, so that no branch stands between them; what was summed of those is dropped.
    """
    A, size, grid_size = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[place]
    lanes, vec, points, nbytes = config.share, config.vec, config.columns * config.rows, config.vec * size
    at_once = config.threads // config.share
    rounds = points // at_once
    words = vec * size // 4
    fetch, convert, finish = load_words(words), widen(dtype, vec, acc), _finish(place, acc)
    position, cell = _spatial_point.position(place, acc), _spatial_point.cell(acc)
    locate = _spatial_point.tile(config.columns, config.rows)
    five = 5 * words
    sum_of_lanes = _reduce.over_lanes(acc, _reduce.add(acc), lanes, 0.0)
    each, meet = max(lanes // 4, 1), _meet(acc, max(lanes, 4))

    def kernel(  # type: ignore[no-untyped-def]
        img, grid, dy, dgrid, across, down, vectors, height, width, out_height, out_width, half_width, half_height,
        xs, gs, ys, ds,
    ):  # fmt: skip
        places = cuda.shared.array((5, points), INTEGER64)
        inside = cuda.shared.array((4, points), INTEGER)
        sums = cuda.shared.array((4, points), A)
        scratch = cuda.shared.array(32, A)
        raw = cuda.local.array(five, WORD)
        slopes = cuda.local.array(vec, A)
        values = cuda.local.array(vec, A)
        total = cuda.local.array(4, A)
        thread = i32(cuda.threadIdx.x)
        column, row, _, n = locate(i32(thread & (points - 1)), i32(cuda.blockIdx.x), across, down, i32(1))
        live = column < out_width and row < out_height
        column, row = i32(min(column, i32(out_width - 1))), i32(min(row, i32(out_height - 1)))
        px, py = position(
            grid + (n * gs[0] + row * gs[1] + column * gs[2]) * grid_size, gs[3] * grid_size, half_width, half_height
        )
        sound, j, i, u, v = cell(px, py, height, width)
        if thread < points:
            left, right = i64(max(j, i32(0))) * xs[3], i64(min(i32(j + 1), i32(width - 1))) * xs[3]
            top, bottom = i64(max(i, i32(0))) * xs[2], i64(min(i32(i + 1), i32(height - 1))) * xs[2]
            left_in, right_in = sound and live and j >= 0, sound and live and j + 1 < width
            image = img + n * xs[0] * size
            places[0, thread] = image + (top + left) * size
            places[1, thread] = image + (top + right) * size
            places[2, thread] = image + (bottom + left) * size
            places[3, thread] = image + (bottom + right) * size
            places[4, thread] = dy + (n * ys[0] + row * ys[2] + column * ys[3]) * size
            inside[0, thread] = 1 if left_in and i >= 0 else 0
            inside[1, thread] = 1 if right_in and i >= 0 else 0
            inside[2, thread] = 1 if left_in and i + 1 < height else 0
            inside[3, thread] = 1 if right_in and i + 1 < height else 0
        cuda.syncthreads()
        lane = i32(thread & (lanes - 1))
        for r in range(rounds):
            point = u32(r * at_once + i32(u32(thread) // u32(lanes)))
            for q in range(4):
                total[q] = A(0)
            for k in range(lane, vectors, lanes):
                for q in range(5):
                    fetch(raw, i32(q * words), places[q, point] + i64(k) * nbytes)
                convert(slopes, i32(0), raw, i32(4 * words))
                for q in range(4):
                    convert(values, i32(0), raw, i32(q * words))
                    for e in range(vec):
                        total[q] = A(total[q] + slopes[e] * values[e])
            for q in range(4):
                if inside[q, point] == 0:
                    total[q] = A(0)
            if lanes >= 4:
                whole = meet(total, lane)
                if lane & (each - 1) == 0:
                    sums[u32(lane) // u32(each), point] = whole
            else:
                for q in range(4):
                    whole = sum_of_lanes(total[q], scratch)
                    if lane == 0:
                        sums[q, point] = whole
        cuda.syncthreads()
        if live and thread < points:
            at = dgrid + (n * ds[0] + row * ds[1] + column * ds[2]) * grid_size
            s00, s01, s10, s11 = sums[0, thread], sums[1, thread], sums[2, thread], sums[3, thread]
            finish(at, ds[3] * grid_size, s00, s01, s10, s11, u, v, sound, A(px + py), half_width, half_height)

    return kernel
