"""Reduce the boxes of ``device/f32x2.py``: each pixel is the sum of the boxes that hold it, in a fixed order.

Strips of rows of positions follow each other, and blocks have as many columns each: what a block has of a strip is box number
strip + block, which begins with the first pixel that these columns reach. A block has 32 pixels, neighbours in x, of a few
channels. Where these pixels are in boxes is the same for all channels and images: it is worked out once, by a thread for each
pixel and some strips, while the kernel that writes the boxes has not ended.

    which [pixel][boxes]  ->  a thread: four images of a pixel  ->  sums [image][pixel] of a channel  ->  lines of x

What is not finite is summed anew (``device/plain.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.inputs.device.plain import mended
from numbadnn.kernels.conv.unshared.inputs.device.reduce import reaching
from numbadnn.kernels.conv.unshared.inputs.f32x2_config import AHEAD_OF_SUMS, LANES, LINE, REDUCED, WIDTH
from numbadnn.kernels.lang.access import forget, load, store
from numbadnn.kernels.lang.cuda import ELEMENT, INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.packed import load_where
from numbadnn.kernels.lang.ptx import LOWEST, block_here, quotient, thread_here, wait_for_previous
from numbadnn.kernels.lang.words import read_at, shared_address, write_at

#: bytes of an element; warps that look for boxes
SIZE, LOOKING = 4, 4
#: no box: below 0 as a signed number
NONE = 0xFFFFFFFF
#: results of a thread that may have to be summed anew: four of each channel
MOST_LOST = REDUCED * WIDTH


@device
def between(first, q0, q1, by_columns):
    """(first, last) of the blocks that have columns ``q0`` to ``q1`` - 1 of the strip that begins there."""
    return quotient(i32(first + q0), by_columns), quotient(max(i32(0), i32(first + q1 - 1)), by_columns)


def _look(images: int) -> Callable[..., None]:
    of_pixel = images * SIZE

    @device
    def look(which, own, most, turn, top, left, channels, tiling):
        """which[own + i] = bytes from the boxes' beginning to the pixel in the i-th that holds it; below 0: there is none.

        ``turn``: how many strips are others' before one is this warp's.
        """
        output, taps, stride, tile, strips, box, by = tiling
        a0, a1 = reaching(top, strips, by[0], box[0])
        q0, q1 = reaching(left, output[1], by[1], taps[1])
        a1 = a1 if q1 > q0 else a0
        found, last, of_box = own, turn == 0, i32(channels * box[0] * box[1])
        for a in range(a0, a1):
            b0, b1 = between(i32(a * output[1]), q0, q1, by[2])
            if turn == 0:
                row = i32(a * of_box + (top - a * tile[0] * stride[0]) * box[1] + left)
                for b in range(b0, i32(b1 + 1)):
                    first = max(i32(0), i32(b * tile[1] - a * output[1]))  # of the box's columns of positions
                    pixel = i32(row + b * of_box - first * stride[1])
                    which[u32(found + b - b0)] = i32(pixel * of_pixel)
            turn = i32(LOOKING - 1) if turn == 0 else i32(turn - 1)
            found = i32(found + b1 - b0 + 1)
        if last:
            for i in range(found, i32(own + most)):
                which[u32(i)] = u32(NONE)

    return look


def reduce(images: int, ahead: int) -> Callable[..., None]:
    element = ELEMENT["float32"]
    threads, vectors, mend, look = LANES * images // WIDTH, images // WIDTH, mended(1, 1), _look(images)
    read, write, offset = load("float32", "float32"), store("float32", "float32"), read_at("int32", 2)
    read_vector, store_sum, take = (
        load_where("float32", WIDTH, "float32", 0.0),
        write_at("float32", 1),
        read_at("float32", 1),
    )
    held, of_line, of_pixel, warps = ahead * WIDTH, (LANES + 1) * SIZE, images * SIZE, threads // LANES
    staged, of_channel = 2 * images * (LANES + 1), images * of_line
    largest, not_a_number = -LOWEST["float32"], float("nan")
    few = ahead == AHEAD_OF_SUMS[0]  # as many as a pixel is in at most

    @device
    def prefetch(got, at, which, own, source):
        for u in range(0, ahead, 2):  # all loads, then all sums
            offset(at, i32(0), which, i32(own + u * SIZE))
            for k in range(2):
                read_vector(got, i32((u + k) * WIDTH), source + i64(at[k]), at[k] >= 0)

    def kernel(
        space, x, y, w, N, K, C, groups, image, output, padding, taps, stride, tile, strips, box, flip, most, each, forgotten,
        by_width, by_down, by_right, by_columns, x_strides, y_steps, w_steps, alpha, beta,
    ):  # fmt: skip
        which, sums = cuda.shared.array(0, WORD), cuda.shared.array(0, element)  # the same memory
        total, got = cuda.local.array(WIDTH, f32), cuda.local.array(held, f32)
        at, one = cuda.local.array(2, INT32), cuda.local.array(1, f32)
        thread, pixels = i32(cuda.threadIdx.x), i32(image[0] * image[1])
        lane, warp = i32(thread & 31), i32(thread >> 5)
        first, c0 = i32(cuda.blockIdx.x * LANES), i32(cuda.blockIdx.y * each)
        channels, have = i32(C * groups), min(each, i32(C * groups - c0))
        mine = i32(first + lane)
        h = quotient(min(mine, i32(pixels - 1)), by_width)
        v = i32(min(mine, i32(pixels - 1)) - h * image[1])
        target = x + (i64(h) * x_strides[2] + i64(v) * x_strides[3]) * SIZE
        target = target + (i64(c0) * x_strides[1] + warp * x_strides[0]) * SIZE
        if warp < LOOKING:
            top, left, by = i32(h + padding[0]), i32(v + padding[1]), (by_down, by_right, by_columns)
            own = i32(staged + lane * most)
            look(which, own, most, warp, top, left, channels, (output, taps, stride, tile, strips, box, by))
        wait_for_previous()
        cuda.syncthreads()
        pixel, vector = i32(u32(thread) // u32(vectors)), i32(u32(thread) % u32(vectors))
        area, lost = i32(box[0] * box[1]), u32(0)
        own = i32(i32(shared_address(which)) + (staged + pixel * most) * SIZE)
        start = i32(shared_address(sums))
        begin, to = i32(start + warp * of_line + lane * SIZE), i32(start + vector * WIDTH * of_line + pixel * SIZE)
        source = space + i64(c0) * area * of_pixel + vector * (WIDTH * SIZE)
        if few:
            prefetch(got, at, which, own, source)
        for j in range(have):
            for e in range(WIDTH):
                total[e] = f32(0)
            for i in range(0, ahead if few else most, ahead):
                if not few:
                    prefetch(got, at, which, i32(own + i * SIZE), source)
                for u in range(ahead):
                    for e in range(WIDTH):
                        total[e] = f32(total[e] + got[u * WIDTH + e])
            buffer = i32((j & 1) * of_channel)  # some still write a channel's sums while others leave the next one's
            for e in range(WIDTH):
                one[0] = total[e]
                store_sum(one, i32(0), sums, i32(to + buffer + e * of_line))
            source = source + area * of_pixel
            if few and j + 1 < have:  # the next channel's are under way while this one's are written
                prefetch(got, at, which, own, source)
            cuda.syncthreads()
            if mine < pixels:
                at_x = target
                for n in range(warp, N, warps):
                    take(one, i32(0), sums, i32(begin + buffer + (n - warp) * of_line))
                    if abs(one[0]) <= f32(largest):
                        result = f32(alpha * one[0])
                        if beta != f32(0):
                            result = f32(result + beta * read(at_x))
                        write(at_x, result)
                    else:
                        lost = u32(lost | (u32(1) << u32(j * WIDTH + n // warps)))
                    at_x = at_x + warps * x_strides[0] * SIZE
            target = target + x_strides[1] * SIZE
        if forgotten != 0 and mine < pixels and space % LINE == 0:  # what has been read need not go to memory
            for i in range(warp, i32(most * have), warps):
                u = i32(u32(i) // u32(have))
                seen = which[u32(staged + lane * most + u)]
                if seen != u32(NONE):
                    forget(space + i64(seen) + i64(c0 + i - u * have) * area * of_pixel)
        again = (y, w, K, C, taps, stride, output, flip, y_steps, w_steps)
        for i in range(MOST_LOST if lost != 0 else 0):
            if lost >> u32(i) & u32(1):  # all from the start: what only this needs would hold registers all the time
                rest = i32(i32(block_here()) * LANES + i32(thread_here() % LANES))
                h = quotient(rest, by_width)
                top, left = i32(h + padding[0]), i32(rest - h * image[1] + padding[1])
                c, n = i32(i32(cuda.blockIdx.y) * each + i // WIDTH), i32(thread_here() // LANES + i % WIDTH * warps)
                one[0] = f32(not_a_number)
                mend(one, n, N, i32(0), c, top, left, again)
                rest = i32(i32(block_here()) * LANES + i32(thread_here() % LANES))
                h = quotient(rest, by_width)
                at_x = i64(n) * x_strides[0] + i64(c) * x_strides[1] + i64(h) * x_strides[2]
                at_x = x + (at_x + i64(rest - h * image[1]) * x_strides[3]) * SIZE
                result = f32(alpha * one[0])
                if beta != f32(0):
                    result = f32(result + beta * read(at_x))
                write(at_x, result)

    return kernel
