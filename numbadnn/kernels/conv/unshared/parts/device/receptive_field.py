"""Copy the receptive field of a block to shared memory, 16-bit, in the layout of tensor cores.

A block has some neighbouring positions, and some channels at a time. The box of pixels that these see lies in shared memory as
rows of 8 images, [8 images][channel, row, column][image]: 16 bytes, what ldmatrix takes as a row of a matrix. A term (channel,
tap) is a pixel of the box, and at another position the pixel as many rows and columns further. A table has these pixels, for
lanes that name the rows of four matrices. Where the terms are what is written, 32 of them stand in the order

    matrix i, row 2t + e    is term    8t + 2i + e          a lane of the product then has the 8 neighbouring terms from 8t on
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numbadnn.kernels.conv.unshared.inputs.device.tile import moved_on, pixel_at, pixel_of, tap_of
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.mma import write_shared

#: bytes of an element; images of a row of the box, and its words
SIZE, EIGHT, ROW = 2, 8, 4
#: no pixel of a box
NONE = u32(0x7FFFFFFF)


def first_position(tall: int, positions: int) -> Callable[..., tuple[int, int, int]]:
    """``first(index, across, groups)``: the group of a block, and row and column of the first of its positions."""

    @device
    def first(index, across, groups):
        line = i32(u32(index) // u32(across))
        row = i32(u32(line) // u32(groups))
        return i32(line - row * groups), i32(row * tall), i32((index - line * across) * positions)

    return first


#: ``write_row(words, start, shared, at)``: four words to the shared words[at:], one access
write_row = write_shared(ROW)


def _gather(cells: int, rows: int, full: bool) -> Callable[..., None]:
    """``gather(held, from, kept, to, shared, first, plane, step, N)``: so many rows of images of so many pixels.

    All loads, then all stores: for all that the compiler knows a store might change what is loaded. ``full``: there are all of
    these images.
    """
    half = load_bits(SIZE)

    @device
    def gather(held, begin, kept, to, shared, first, plane, step, N):
        for u in range(cells):
            at = begin[u] + i64(min(i32(EIGHT * first), i32(N - 1))) * step
            for n in range(rows * EIGHT):
                held[u * rows * EIGHT + n] = half(at)
                at = at + (step if full or EIGHT * first + n + 1 < N else i64(0))
        for u in range(cells):
            for r in range(rows):
                for n in range(ROW):
                    i, image = (u * rows + r) * EIGHT + 2 * n, i32(EIGHT * (first + r) + 2 * n)
                    word = u32((held[i] | (held[i + 1] << u32(16))) & kept[u])
                    if not full:
                        word = u32(
                            word & (u32(0xFFFF) if image < N else u32(0))
                            | word & (u32(0xFFFF0000) if image + 1 < N else u32(0))
                        )
                    held[(u * rows + r) * ROW + n] = word
                if to[u] >= 0:
                    write_row(held, i32((u * rows + r) * ROW), shared, i32(to[u] + (first + r) * plane))

    return gather


def fill_field(images: int, threads: int) -> Callable[..., None]:
    """``fill(shared, start, plane, x, strides, N, box, corner, image)``: the box, 0 outside the image and past the images.

    A thread walks (channel, row, column) by additions.
    """
    planes = images // EIGHT
    cells, rows = (2, 1) if planes == 1 else (1, 2)
    gather_all, gather_some, waiting = _gather(cells, rows, True), _gather(cells, rows, False), cells * rows * EIGHT

    @device
    def fill(shared, start, plane, x, strides, N, box, corner, image):
        held, kept = cuda.local.array(waiting, WORD), cuda.local.array(cells, WORD)
        begin, to = cuda.local.array(cells, np.int64), cuda.local.array(cells, np.int32)
        thread, area = i32(cuda.threadIdx.x), i32(box[1] * box[2])
        number, step = i32(box[0] * area), i64(strides[0] * SIZE)
        c, row, column = pixel_of(thread, box[1], box[2])
        apart = pixel_of(i32(threads), box[1], box[2])  # two pixels of a thread
        for i0 in range(thread, number, i32(cells * threads)):
            for u in range(cells):
                i = i32(i0 + u * threads)
                h, v = i32(corner[0] + row), i32(corner[1] + column)
                inside = i < number and h >= 0 and h < image[0] and v >= 0 and v < image[1]
                at = i64(c) * strides[1] + i64(h) * strides[2] + i64(v) * strides[3]
                begin[u] = x + (at if inside else i64(0)) * SIZE
                kept[u] = u32(0xFFFFFFFF) if inside else u32(0)
                to[u] = i32(start + i * ROW) if i < number else i32(-1)
                c, row, column = moved_on(c, row, column, apart, box[1], box[2])
            for first in range(0, planes, rows):
                if EIGHT * (first + rows) <= N:
                    gather_all(held, begin, kept, to, shared, i32(first), plane, step, N)
                else:
                    gather_some(held, begin, kept, to, shared, i32(first), plane, step, N)

    return fill


def fill_spots(threads: int) -> Callable[..., None]:
    """``fill(table, capacity, terms, taps, dilation, box, flip)``: bytes from the box's start; ``NONE`` past the end.

    In the order for terms that are written.
    """

    @device
    def fill(table, capacity, terms, taps, dilation, box, flip):
        for i in range(i32(cuda.threadIdx.x), capacity, threads):
            lane = i32(i & 31)
            m = i32(i - lane + ((lane >> 1) & 3) * 8 + (lane >> 3) * 2 + (lane & 1))
            c, r, s = tap_of(m, taps)
            at = pixel_at(c, r, s, i32(box[1] * box[2]), taps, dilation, box[2], flip)
            table[i] = u32(i32(at * (4 * ROW))) if m < terms else NONE

    return fill
