"""Images turned: written once as [channel, row, column][image], and boxes of pixels copied from there to shared memory.

    x  [image][pixel]  ->  tile of 32 pixels in shared memory  ->  space [pixel][image], 0 past the images

What follows on the stream starts early, and has asked for filters when the last block here is done.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels._async_copies import copy_or_zero
from numbadnn.kernels._bits import load_bits
from numbadnn.kernels._cuda import cuda, device, i32, i64, u32
from numbadnn.kernels._implicit_tiles_words import shared_address
from numbadnn.kernels._packed import store_words
from numbadnn.kernels._ptx import WORD, let_next_start
from numbadnn.kernels.unshared_turned import PIXELS, THREADS


def turn(size: int, images: int) -> Callable[..., None]:
    """``turn(x, space, N, pixels, image, strides)``: 32 or 64 pixels of all images a block."""
    read, write, together = load_bits(size), store_words(4), 4 // size
    pixels_of, pitch = (
        PIXELS * together,
        images + 1,
    )  # odd: the images of a pixel and the pixels of an image meet all banks
    rows, each, table = images * pixels_of // THREADS, 16 // size, pixels_of * pitch

    def kernel(x, space, N, pixels, image, strides):  # type: ignore[no-untyped-def]
        tile, held, words = cuda.shared.array(table, WORD), cuda.local.array(rows, WORD), cuda.local.array(4, WORD)
        let_next_start()
        thread, start = i32(cuda.threadIdx.x), i32(cuda.blockIdx.x * pixels_of)
        place, first = i32(thread % pixels_of), i32(thread // pixels_of)
        pixel = min(i32(start + place), i32(pixels - 1))
        at = i64(pixel) * strides[3]
        if image[1] < pixels:  # otherwise rows and channels follow each other as pixels do
            line = i32(u32(pixel) // u32(image[1]))
            c = i32(u32(line) // u32(image[0]))
            at = i64(c) * strides[1] + i64(line - c * image[0]) * strides[2] + i64(pixel - line * image[1]) * strides[3]
        step, source = strides[0] * size, x + at * size
        for i in range(rows):
            held[i] = read(source + min(i32(first + i * (THREADS // pixels_of)), i32(N - 1)) * step)
        for i in range(rows):
            n = i32(first + i * (THREADS // pixels_of))
            tile[i32(place * pitch + n)] = held[i] if n < N else u32(0)
        cuda.syncthreads()
        for i in range(i32(thread * each), pixels_of * images, THREADS * each):
            at_tile = i32(u32(i) // u32(images) * pitch + u32(i) % u32(images))
            for e in range(4):
                words[e] = tile[i32(at_tile + e * together)]
                if together == 2:
                    words[e] = u32(words[e] | (u32(tile[i32(at_tile + 2 * e + 1)]) << u32(16)))
            if start + u32(i) // u32(images) < pixels:
                write(words, i32(0), space + (i64(start) * images + i) * size)

    return kernel


def copy_box(size: int, images: int, threads: int, cell: int) -> Callable[..., None]:
    """``fill(shared, start, plane, x, strides, box, corner, down, image)``: begin to copy a box, 0 outside the image.

    Channel, rows ``down`` apart, column of the box are a pixel; its 16 bytes of some images go ``plane`` words apart, those of
    the next pixel ``cell`` words further. A thread walks (channel, row, column) by additions.
    """
    pieces, copy = images * size // 16, copy_or_zero(16)
    across = threads // pieces

    @device
    def fill(shared, start, plane, x, strides, box, corner, down, image):  # type: ignore[no-untyped-def]
        thread = i32(cuda.threadIdx.x)
        first, piece = i32(thread // pieces), i32(thread % pieces)
        area, width = i32(box[1] * box[2]), i32(box[2])
        c = i32(u32(first) // u32(area))
        row = i32(u32(first - c * area) // u32(width))
        deep = i32(u32(across) // u32(area))  # what lies between two pixels of a thread
        below = i32(u32(across - deep * area) // u32(width))
        right = i32(across - deep * area - below * width)
        # in 32 bits, of which an iteration has few: bytes between channels, rows and columns, and what a carry adds
        to_c, to_h, to_v = i32(strides[1] * size), i32(strides[2] * down * size), i32(strides[3] * size)
        step = i32(deep * to_c + below * to_h + right * to_v)
        new_row, new_c = i32(to_h - width * to_v), i32(to_c - box[1] * to_h)
        column = i32(first - c * area - row * width)
        at = i32(c * to_c + row * to_h + column * to_v)
        at = i32(at + corner[0] * i32(strides[2] * size) + corner[1] * to_v + piece * 16)
        to = i32(i32(shared_address(shared)) + (start + first * cell + piece * plane) * 4)
        for _ in range(first, i32(box[0] * area), i32(across)):
            h, v = i32(corner[0] + row * down), i32(corner[1] + column)
            inside = h >= 0 and h < image[0] and v >= 0 and v < image[1]
            copy(shared, to, x + i64(at if inside else i32(0)), inside)
            to, column, at = i32(to + across * cell * 4), i32(column + right), i32(at + step)
            row = i32(row + below)
            over = column >= width
            row, column = i32(row + 1) if over else row, i32(column - width) if over else column
            at = i32(at + new_row) if over else at
            over = row >= box[1]
            row, at = i32(row - box[1]) if over else row, i32(at + new_c) if over else at

    return fill
