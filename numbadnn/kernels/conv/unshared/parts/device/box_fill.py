"""Copy the receptive field of a block to shared memory as float32, and tabulate where each term lies in it.

The box lies in shared memory, [channel, row of taps, column][image], so that one access gives four images; a term (channel, tap)
is an offset in it, and at the next position the offset ``stride`` columns further.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numbadnn.kernels.conv.unshared.forward.box_config import BoxConfig
from numbadnn.kernels.conv.unshared.inputs.device.tile import moved_on, pixel_at, pixel_of, tap_of
from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.async_copies import copy_or_zero_at
from numbadnn.kernels.lang.cuda import cuda, device, f32, i32, i64, u32
from numbadnn.problem import ITEMSIZE


def fill_box(dtype: str, config: BoxConfig, once: int) -> Callable[..., None]:
    """``fill(shared, start, x, strides, N, box, corner, down, image)``: 0 outside the image and past the images.

    Of float32 it only begins: ``wait_async`` waits for it. Of other types a thread has ``once`` loads under way.
    """
    return _copy_box(config) if dtype == "float32" else _gather_box(dtype, config, once)


def _gather_box(dtype: str, config: BoxConfig, once: int) -> Callable[..., None]:
    """All loads, then all stores: for all that the compiler knows a store might change what is loaded."""
    read, size, threads, images = load(dtype, "float32"), ITEMSIZE[dtype], config.threads, config.images
    cell = config.cell
    batch = min(once, images)
    cells = once // batch

    @device
    def fill(shared, start, x, strides, N, box, corner, down, image):
        held, inside = cuda.local.array(once, f32), cuda.local.array(cells, np.bool_)
        number = i32(box[0] * box[1] * box[2])
        for i0 in range(i32(cuda.threadIdx.x), number, i32(threads * cells)):
            for first in range(0, images, batch):
                for u in range(cells):
                    i = min(i32(i0 + u * threads), i32(number - 1))
                    line = i32(u32(i) // u32(box[2]))
                    c = i32(u32(line) // u32(box[1]))
                    h, v = i32(corner[0] + (line - c * box[1]) * down), i32(corner[1] + i - line * box[2])
                    inside[u] = h >= 0 and h < image[0] and v >= 0 and v < image[1]
                    at = i64(c) * strides[1] + i64(h) * strides[2] + i64(v) * strides[3]
                    pixel = x + (at if inside[u] else i64(0)) * size
                    for n in range(batch):
                        held[u * batch + n] = read(pixel + min(i32(first + n), i32(N - 1)) * strides[0] * size)
                for u in range(cells):
                    i = i32(i0 + u * threads)
                    if i < number:
                        for n in range(batch):
                            value = held[u * batch + n] if inside[u] and first + n < N else f32(0)
                            shared[i32(start + i * cell + first + n)] = value

    return fill


def _copy_box(config: BoxConfig) -> Callable[..., None]:
    """A copy of 4 bytes turns as it goes. Eight neighbouring pixels of four images meet all banks."""
    quarter, images, cell, copy = config.threads // 4, config.images, config.cell, copy_or_zero_at(4)

    @device
    def fill(shared, start, x, strides, N, box, corner, down, image):
        thread, own = i32(cuda.threadIdx.x >> 2), i32(cuda.threadIdx.x & 3)
        area, step, four = i32(box[1] * box[2]), i64(strides[0] * 4), i64(strides[0] * 16)
        c, row, column = pixel_of(thread, box[1], box[2])
        apart = pixel_of(i32(quarter), box[1], box[2])  # two pixels of a thread
        to = i32(start + thread * cell + own)
        for _ in range(thread, i32(box[0] * area), quarter):
            h, v = i32(corner[0] + row * down), i32(corner[1] + column)
            inside = h >= 0 and h < image[0] and v >= 0 and v < image[1]
            at = i64(c) * strides[1] + i64(h) * strides[2] + i64(v) * strides[3]
            pixel = x + (at if inside else i64(0)) * 4 + own * step
            for n in range(0, images, 4):
                copy(shared, i32(to + n), pixel, inside and own + n < N)
                pixel = pixel + four
            to = i32(to + quarter * cell)
            c, row, column = moved_on(c, row, column, apart, box[1], box[2])

    return fill


def spots_of(threads: int, cell: int) -> Callable[..., None]:
    """``fill(table, capacity, terms, taps, dilation, box, flip, past)``: where in the box each term is, ``past`` behind
    the last one.

    ``dilation``: rows and columns of the box between taps; ``box``: its rows and columns; a pixel has ``cell`` words.
    """

    @device
    def fill(table, capacity, terms, taps, dilation, box, flip, past):
        for m in range(i32(cuda.threadIdx.x), capacity, threads):
            c, r, s = tap_of(i32(m), taps)
            at = pixel_at(c, r, s, i32(box[0] * box[1]), taps, dilation, box[1], flip)
            table[m] = u32(i32(at * cell) if m < terms else past)

    return fill
