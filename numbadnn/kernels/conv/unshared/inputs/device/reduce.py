"""Reduce boxes of pixels to grad_inputs: each pixel is the sum of the boxes that hold it, in the order of their tiles.

The kernel starts before the one that writes the boxes has ended: all that does not depend on them is worked out by then.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64
from numbadnn.kernels.lang.epilogue import scaled
from numbadnn.kernels.lang.ptx import quotient, wait_for_previous
from numbadnn.problem import ITEMSIZE


@device
def reaching(at, count, move, length):
    """(first, last + 1) of what reaches ``length`` pixels each, and so ``at``; ``move`` is the reciprocal of how far apart."""
    low = i32(0)
    if at >= length:
        low = i32(quotient(i32(at - length), move) + 1)
    return low, min(count, i32(quotient(at, move) + 1))


def adding(acc: str, ahead: int, sums: int, read: Callable[..., None]) -> Callable[..., None]:
    """``add(total, got, at, apart, count, wide, right, down)``: ``total`` = the sum of ``count`` boxes in order.

    The loads of ``ahead`` boxes are under way at once; ``read(got, start, at, apart)`` loads ``sums`` numbers of a box. A row has
    ``wide`` boxes; the next one lies ``right`` further, and behind the last one of a row ``down`` besides.
    """
    A = ACCUMULATOR[acc]

    @device
    def add(total, got, at, apart, count, wide, right, down):
        for e in range(sums):
            total[e] = A(0)
        column = i32(0)
        wait_for_previous()
        while count > 0:
            for u in range(ahead):  # all loads, then all sums; the last one again past it, and not used
                read(got, i32(u * sums), at, apart)
                if u + 1 < count:
                    column = i32(column + 1)
                    at = at + right
                if column == wide:
                    column = i32(0)
                    at = at + down
            for u in range(ahead):
                if u < count:
                    for e in range(sums):
                        total[e] = A(total[e] + got[u * sums + e])
            count = i32(count - ahead)

    return add


def reduce(dtype: str, acc: str, width: int, parts: int, ahead: int) -> Callable[..., None]:
    """x[n, c, pixel] = the sum over the tiles whose boxes hold the pixel; a thread has ``parts`` vectors of images of one pixel.

    Those are ``apart`` images from each other, so that neighbours' loads are neighbours.
    """
    read_vector, store = load_vector(acc, width, acc), scaled(dtype, acc)
    A, size, item, sums = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], parts * width
    held = ahead * sums

    @device
    def read_box(got, start, at, apart):
        for j in range(parts):
            read_vector(got, i32(start + j * width), at + j * apart * item)

    add = adding(acc, ahead, sums, read_box)

    def kernel(
        space, x, first, N, slots, channels, image, tiles, moves, padding, box, by_vectors, by_width, by_height, by_down,
        by_right, x_strides, alpha, beta,
    ):  # fmt: skip
        total, got = cuda.local.array(sums, A), cuda.local.array(held, A)
        i = i32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
        apart, area = i32(slots // parts), i32(box[0] * box[1])
        vectors = i32(apart // width)
        rest = quotient(i, by_vectors)
        n0 = i32((i - rest * vectors) * width)
        line = quotient(rest, by_width)
        v = i32(rest - line * image[1])
        c = quotient(line, by_height)
        h = i32(line - c * image[0])
        top, left = i32(h + padding[0]), i32(v + padding[1])
        a0, a1 = reaching(top, tiles[0], by_down, box[0])
        b0, b1 = reaching(left, tiles[1], by_right, box[1])
        wide = i32(b1 - b0) if b1 > b0 and c < channels else i32(0)
        count = i32((a1 - a0) * wide) if a1 > a0 else i32(0)
        # where the pixel is in the first of these tiles' boxes, and how far from there in the next one
        right = i64(channels * area - moves[1]) * (slots * item)
        down = i64(tiles[1] * channels * area - moves[0] * box[1]) * (slots * item) - wide * right
        pixel = i32((top - a0 * moves[0]) * box[1] + left - b0 * moves[1])
        at = space + (((i64(a0 * tiles[1] + b0) * channels + c) * area + pixel) * slots + n0) * item
        target = x + (i64(first + n0) * x_strides[0] + c * x_strides[1] + h * x_strides[2] + v * x_strides[3]) * size
        images = i32(N - first - n0) if c < channels else i32(0)
        add(total, got, at, apart, count, wide, right, down)
        for j in range(parts):
            for e in range(width):
                if e < images:
                    store(target, total[j * width + e], alpha, beta)
                target = target + x_strides[0] * size
            images, target = i32(images - apart), target + (apart - width) * x_strides[0] * size

    return kernel
