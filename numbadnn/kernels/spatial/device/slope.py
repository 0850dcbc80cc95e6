"""The gradient of the sampler in its grid: how the sample at a point changes with its position, summed over channels.

Four sums of ``dy * pixel`` over the channels, one for each pixel around the point, make both slopes. ``planes``: ``parts``
threads share a point's channels and meet in shared memory. ``finish``: the sums, called dots, are those that the gradient in
the image has left (``device/gather_channels.py``, ``device/gather_staged.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang import reduce as _reduce
from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.ptx import wait_for_previous
from numbadnn.kernels.spatial.device import point as _spatial_point
from numbadnn.kernels.spatial.gradients import FinishConfig, SlopeConfig
from numbadnn.problem import ITEMSIZE


def _finish(place: str, acc: str) -> Any:
    """Write both slopes of a point from its four sums, or what one gives that meets no pixel."""
    A, write = ACCUMULATOR[acc], store(place, acc)

    @device
    def finish(at, step, s00, s01, s10, s11, u, v, sound, nothing, half_width, half_height):
        right = A(A((A(1) - v) * A(s01 - s00)) + A(v * A(s11 - s10)))
        down = A(A((A(1) - u) * A(s10 - s00)) + A(u * A(s11 - s01)))
        write(at, A(right * half_width) if sound else nothing)
        write(at + step, A(down * half_height) if sound else nothing)

    return finish


def planes(dtype: str, place: str, acc: str, config: SlopeConfig) -> Callable[..., None]:
    """Any strides. A block: a tile of points by ``parts``; part k takes channels k, k + parts and so on."""
    A, size, grid_size = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[place]
    points, parts = config.columns * config.rows, config.share
    read, finish = load(dtype, acc), _finish(place, acc)
    position, cell, nothing = _spatial_point.position(place, acc), _spatial_point.cell(acc), _spatial_point.nothing(acc)
    locate = _spatial_point.tile(config.columns, config.rows)
    sum_of_parts = _reduce.over_parts(_reduce.add(acc), points, parts, 4)
    threads = points * parts
    table_size = 4 * threads if parts > 1 else 1

    def kernel(
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
            finish(at, ds[3] * grid_size, s00, s01, s10, s11, u, v, sound, nothing(px, py), half_width, half_height)

    return kernel


def finish(place: str, acc: str, config: FinishConfig) -> Callable[..., None]:
    """dgrid of a point a thread from its four dots; those of pixels outside were never written."""
    A, grid_size, dot_size = ACCUMULATOR[acc], ITEMSIZE[place], ITEMSIZE[acc]
    threads, read, write_slopes = config.threads, load(acc, acc), _finish(place, acc)
    position, cell, nothing = _spatial_point.position(place, acc), _spatial_point.cell(acc), _spatial_point.nothing(acc)

    def kernel(grid, dot, dgrid, total, points, out_width, height, width, half_width, half_height, gs, ds):
        dots = cuda.local.array(4, A)
        index = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if index < total:
            n = i64(u32(index) // u32(points))
            point = i64(index - n * points)
            row = i64(u32(point) // u32(out_width))
            column = i64(point - row * out_width)
            at = grid + (n * gs[0] + row * gs[1] + column * gs[2]) * grid_size
            px, py = position(at, gs[3] * grid_size, half_width, half_height)
            sound, j, i, u, v = cell(px, py, height, width)
            left_in, right_in, top_in, bottom_in = j >= 0, j + 1 < width, i >= 0, i + 1 < height
            wait_for_previous()
            for q in range(4):
                dots[q] = A(0)
                if sound and (right_in if q & 1 else left_in) and (bottom_in if q & 2 else top_in):
                    dots[q] = read(dot + ((4 * n + q) * points + point) * dot_size)
            at = dgrid + (n * ds[0] + row * ds[1] + column * ds[2]) * grid_size
            write_slopes(
                at, ds[3] * grid_size, dots[0], dots[1], dots[2], dots[3], u, v, sound, nothing(px, py),
                half_width, half_height,
            )  # fmt: skip

    return kernel
