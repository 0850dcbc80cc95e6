"""The images' gradient from the boxes of ``_unshared_inputs_split``: to each pixel those that hold it are added, in their order.

Strips of rows of positions follow each other, and blocks have as many columns each: what a block has of a strip is box number
strip + block, which begins with the first pixel that these columns reach. What is not finite is summed anew
(``_unshared_inputs_plain``). The kernel starts before the one that writes the boxes has ended.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels._access import load, load_vector, store
from numbadnn.kernels._cuda import cuda, device, f32, i32, i64
from numbadnn.kernels._ptx import quotient, wait_for_previous
from numbadnn.kernels._unshared_inputs_plain import mended
from numbadnn.kernels.unshared_inputs_split_config import COLLECTORS, LOT, PARTS

#: bytes of an element; loads of an access under way
SIZE, AHEAD = 4, 6


@device
def reaching(at, count, move, length):  # type: ignore[no-untyped-def]
    """(first, last + 1) of what reaches ``length`` pixels each, and so ``at``; ``move`` is the reciprocal of how far apart."""
    low = i32(0)
    if at >= length:
        low = i32(quotient(i32(at - length), move) + 1)
    return low, min(count, i32(quotient(at, move) + 1))


@device
def between(first, q0, q1, by_columns):  # type: ignore[no-untyped-def]
    """(first, last) of the blocks that have columns ``q0`` to ``q1`` - 1 of the strip that begins there."""
    return quotient(i32(first + q0), by_columns), quotient(max(i32(0), i32(first + q1 - 1)), by_columns)


def collect(images: int) -> Callable[..., None]:
    """A thread has ``PARTS`` lots of images of a pixel, ``apart`` images from each other: neighbours' loads are neighbours."""
    read_lot, read, write = (
        load_vector("float32", LOT, "float32"),
        load("float32", "float32"),
        store("float32", "float32"),
    )
    sums, apart, lots, mend = PARTS * LOT, images // PARTS, images // (PARTS * LOT), mended(LOT, PARTS)
    held = AHEAD * sums

    def kernel(  # type: ignore[no-untyped-def]
        space, x, y, w, N, K, C, groups, image, output, padding, taps, stride, tile, strips, box, flip, by_lots,
        by_width, by_height, by_down, by_right, by_columns, x_strides, y_steps, w_steps, alpha, beta,
    ):  # fmt: skip
        total, got = cuda.local.array(sums, f32), cuda.local.array(held, f32)
        i = i32(cuda.blockIdx.x * COLLECTORS + cuda.threadIdx.x)
        rest = quotient(i, by_lots)
        n0 = i32((i - rest * lots) * LOT)
        line = quotient(rest, by_width)
        v = i32(rest - line * image[1])
        c = quotient(line, by_height)
        h = i32(line - c * image[0])
        top, left = i32(h + padding[0]), i32(v + padding[1])
        there = c < C * groups
        a, a1 = reaching(top, strips, by_down, box[0])
        q0, q1 = reaching(left, output[1], by_right, taps[1])
        a1 = a1 if there and q1 > q0 else i32(0)
        for e in range(sums):
            total[e] = f32(0)
        b, b1 = between(i32(a * output[1]), q0, q1, by_columns)
        at = space + ((i64(c) * box[0] + top) * box[1] + left) * (images * SIZE) + n0 * SIZE
        of_box, of_row = (
            i64(C * groups) * (box[0] * box[1]) * (images * SIZE),
            i32(tile[0] * stride[0] * box[1] * images * SIZE),
        )
        of_column, source = i32(stride[1] * images * SIZE), at
        wait_for_previous()
        while a < a1:
            count = i32(0)
            for u in range(AHEAD):  # all loads, then all sums; the last one again past it, and not used
                if a < a1:
                    first = max(i32(0), i32(b * tile[1] - a * output[1]))  # of the box's columns of positions
                    source = at + (a + b) * of_box - i64(a) * of_row - i64(first) * of_column
                    count = i32(u + 1)
                for j in range(PARTS):
                    read_lot(got, i32(u * sums + j * LOT), source + j * apart * SIZE)
                b = i32(b + 1)
                if b > b1:
                    a = i32(a + 1)
                    b, b1 = between(i32(a * output[1]), q0, q1, by_columns)
            for u in range(AHEAD):
                if u < count:
                    for e in range(sums):
                        total[e] = f32(total[e] + got[u * sums + e])
        if there:
            mend(total, n0, N, apart, c, top, left, (y, w, K, C, taps, stride, output, flip, y_steps, w_steps))
        target = x + (i64(n0) * x_strides[0] + c * x_strides[1] + h * x_strides[2] + v * x_strides[3]) * SIZE
        kept = i32(N - n0) if there else i32(0)
        for j in range(PARTS):
            for e in range(LOT):
                if e < kept:
                    result = f32(alpha * total[j * LOT + e])
                    if beta != f32(0):
                        result = f32(result + beta * read(target))
                    write(target, result)
                target = target + x_strides[0] * SIZE
            kept, target = i32(kept - apart), target + (apart - LOT) * x_strides[0] * SIZE

    return kernel
