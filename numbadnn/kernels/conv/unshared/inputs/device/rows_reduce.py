"""Reduce the boxes of tensor cores to grad_inputs: each pixel is the sum of the boxes that hold it.

A box is [vector of eight channels][plane][pixel][half][t], and what lies together are sums of channels 2t and 2t + 1 and of two
images: lanes of tensor cores have t = lane % 4 and the images g = lane // 4 and g + 8. A plane are two t, and four images or,
where there are 16 and more, g = 2i and 2i + 1, one in each half, and those eight further. A thread has a t of both halves:

    thread    0   1  |  2   3  | ...  | 30  31     reads, with its neighbours, 64 bytes of pixels that follow each other,
    pixel     0   0  |  1   1  | ...  | 15  15     and writes neighbouring pixels of its channels, 32 bytes of each
    t         0   1  |  0   1  | ...  |  0   1

The tiles of a strip of columns have ``count`` positions each, row after row, and may begin within a row. The kernel starts before
the one that writes the boxes has ended: all that does not depend on them is worked out by then.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.inputs.device.reduce import adding, reaching
from numbadnn.kernels.conv.unshared.inputs.rows_sizes import EIGHT, NEAR
from numbadnn.kernels.lang.access import load, load_vector, store
from numbadnn.kernels.lang.cuda import cuda, device, f32, i32, i64
from numbadnn.kernels.lang.ptx import quotient
from numbadnn.problem import ITEMSIZE

#: bytes of a sum
ITEM = 4


@device
def _tiles(at, number, count, columns, by_count, by_down, length):
    """(first, last + 1) of a strip's tiles that hold a row of pixels, each ``length`` of them."""
    first = i32(0)
    if at >= length:  # the first one that begins in this row of positions, or later
        first = quotient(i32((quotient(i32(at - length), by_down) + 1) * columns + count - 1), by_count)
    return first, min(number, i32(quotient(i32((quotient(at, by_down) + 1) * columns - 1), by_count) + 1))


def reduce(dtype: str, kept: int, ahead: int) -> Callable[..., None]:
    """x[n, c, pixel] = the sum over the tiles whose boxes hold the pixel, the first tile's first; ``ahead`` boxes under way."""
    vec, halves = 4 if kept > 1 else 2, 2 if kept >= 4 else 1
    apart, sums, line = 4 // NEAR, vec * halves, 2 * NEAR * min(kept, 4) * ITEM
    planes = max(1, kept // 4) * apart
    paired = kept > EIGHT
    read_lane, read, write = load_vector("float32", vec, "float32"), load(dtype, "float32"), store(dtype, "float32")
    size, held = ITEMSIZE[dtype], ahead * sums

    @device
    def read_box(got, start, at, apart):
        for half in range(halves):
            read_lane(got, i32(start + half * vec), at + half * apart)

    add = adding("float32", ahead, sums, read_box)

    def kernel(
        space, x, N, C, channels, slices, vectors, units, positions, columns, stride, image, tiles, padding, box, by_width,
        by_height, by_vectors, by_slices, by_positions, by_columns, by_down, by_right, x_strides, alpha, beta,
    ):  # fmt: skip
        total, got = cuda.local.array(sums, f32), cuda.local.array(held, f32)
        i = i32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
        rest, area = i32(i // NEAR), i32(box[0] * box[1])
        row = quotient(rest, by_width)
        v = i32(rest - row * image[1])
        of_unit = quotient(row, by_height)
        h = i32(row - of_unit * image[0])
        unit = i32(of_unit // planes)
        plane = i32(of_unit - unit * planes)
        part = quotient(unit, by_vectors)
        group = quotient(part, by_slices)
        c0 = i32((part - group * slices) * channels)
        t = i32(plane % apart * NEAR + i % NEAR)
        c = i32(c0 + (unit - part * vectors) * EIGHT + 2 * t)
        have = i32(min(C, i32(c0 + channels)) - c) if unit < units else i32(0)  # channels from the first on
        top, left = i32(h + padding[0]), i32(v + padding[1])
        a0, a1 = _tiles(top, tiles[0], positions, columns, by_positions, by_down, box[0])
        b0, b1 = reaching(left, tiles[1], by_right, box[1])
        wide = i32(b1 - b0) if b1 > b0 and have > 0 else i32(0)
        count = i32((a1 - a0) * wide) if a1 > a0 else i32(0)
        # the first row of positions of the first of these tiles and, where they are no whole rows, of the only other one
        first = quotient(i32(a0 * positions), by_columns)
        lower = i32(quotient(i32((a0 + 1) * positions), by_columns) - first)
        # where the pixel is in the first of these boxes, and how far from there in the next one
        right = i64(units * planes * area - columns * stride[1]) * line
        down = i64(tiles[1] * units * planes * area - lower * stride[0] * box[1]) * line - wide * right
        pixel = i32((top - first * stride[0]) * box[1] + left - b0 * columns * stride[1])
        at = (
            space
            + (i64(((a0 * tiles[1] + b0) * units + unit) * planes + plane) * area + pixel) * line
            + t % NEAR * (vec * ITEM)
        )
        n = i32(plane // apart)  # of planes of images
        n = i32(n // 4 * 16 + n % 4 * 2) if paired else i32(4 * n)
        target = (
            x + (i64(n) * x_strides[0] + (group * C + c) * x_strides[1] + h * x_strides[2] + v * x_strides[3]) * size
        )
        add(total, got, at, i32(NEAR * vec * ITEM), count, wide, right, down)
        for e in range(sums):
            half, other = e // vec, e % vec // 2
            later = half + other * EIGHT if paired else 2 * half + other
            further = later * x_strides[0] + e % 2 * x_strides[1]
            if n + later < N and e % 2 < have:
                result = f32(alpha * total[e])
                if beta != f32(0):
                    result = f32(result + beta * read(target + further * size))
                write(target + further * size, result)

    return kernel
