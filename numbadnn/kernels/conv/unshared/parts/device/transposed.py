"""Transpose images to [channel, row, column][image], and copy boxes of their pixels to shared memory.

    x  [image][pixel]  ->  tile of pixels in shared memory  ->  space [pixel][image] or in cells, 0 past the images

What follows on the stream starts early, and has prefetched filters when the last block here is done.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.parts.transposed_config import PIXELS, THREADS
from numbadnn.kernels.lang.async_copies import copy_or_zero
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.packed import load_words, store_words
from numbadnn.kernels.lang.ptx import let_next_start
from numbadnn.kernels.lang.words import shared_address


def transpose(size: int, images: int, vec: int, cells: bool = False, lasting: bool = False) -> Callable[..., None]:
    """A tile of pixels of all images a block; from block ``blocks`` on those of a second array, which go behind the first's.

    ``vec`` neighbouring pixels of an image are one access. ``cells``: [eight images][pixel][image], of 16-bit types.
    ``lasting``: the L2 cache gives up last what is written.
    """
    read, write = load_bits(size) if vec == 1 else load_words(4), store_words(4, "last" if lasting else "")
    together = 4 // size
    pitch = images + 1  # odd: the images of a pixel and the pixels of an image meet all banks
    across, each, table = PIXELS // vec, 16 // size, PIXELS * pitch
    apart = THREADS // across
    rows, loaded = max(1, images // apart), 1 if vec == 1 else 4
    taken, writes = rows * loaded, -(-PIXELS * images // (THREADS * each))

    def kernel(x, y, space, N, blocks, pixels, pixels_of_y, image, image_of_y, strides, strides_of_y):
        tile, held = cuda.shared.array(table, WORD), cuda.local.array(taken, WORD)
        words = cuda.local.array(4, WORD)
        let_next_start()
        thread, block = i32(cuda.threadIdx.x), i32(cuda.blockIdx.x)
        tall, wide, (step_n, step_c, step_h, step_v) = image[0], image[1], strides
        if block >= blocks:
            x, block, space, pixels = y, i32(block - blocks), space + i64(pixels) * images * size, pixels_of_y
            tall, wide, (step_n, step_c, step_h, step_v) = image_of_y[0], image_of_y[1], strides_of_y
        place, first, start = i32(thread % across * vec), i32(thread // across), i32(block * PIXELS)
        pixel = min(i32(start + place), i32(pixels - vec))
        at = i64(pixel) * step_v
        if vec == 1 and wide < pixels:  # otherwise rows and channels follow each other as pixels do
            line = i32(u32(pixel) // u32(wide))
            c = i32(u32(line) // u32(tall))
            at = i64(c) * step_c + i64(line - c * tall) * step_h + i64(pixel - line * wide) * step_v
        source, step = x + (at + min(first, i32(N - 1)) * step_n) * size, i64(step_n) * (apart * size)
        for i in range(rows):  # sums of addresses: products of 64 bits would keep the multiprocessor busier than memory
            if vec == 1:
                held[i] = read(source)
            else:
                read(held, i32(i * loaded), source)
            source = source + (step if first + (i + 1) * apart < N else i64(0))
        for i in range(rows):
            for e in range(vec):
                word = held[i * loaded + e // (together if vec > 1 else 1)]
                if vec > 1 and together == 2:
                    word = u32(word >> u32(16)) if e % 2 else u32(word & u32(0xFFFF))
                if first + i * apart < images:
                    tile[i32((place + e) * pitch + first + i * apart)] = word if first + i * apart < N else u32(0)
        cuda.syncthreads()
        to = space + (i64(start) * images + thread * each) * size
        for r in range(writes):
            i = u32(thread * each + r * THREADS * each)
            place, first = i32(i // u32(images)), i32(i % u32(images))
            if cells:  # neighbours write neighbouring pixels
                place, first = i32(i // u32(each)) % PIXELS, i32(i // u32(PIXELS * each)) * each
                to = space + (i64(first // each) * pixels + start + place) * 16
            if (first < images if cells else place < PIXELS) and start + place < pixels:
                for e in range(4):
                    at = u32(place * pitch + first + e * together)
                    words[e] = tile[at]
                    if together == 2:
                        words[e] = u32(words[e] | (u32(tile[u32(at + u32(1))]) << u32(16)))
                write(words, i32(0), to)
            if not cells:
                to = to + THREADS * each * size

    return kernel


def copy_box(size: int, images: int, threads: int, cell: int, swapped: bool = False) -> Callable[..., None]:
    """``fill(shared, start, plane, x, strides, box, corner, image)``: begin to copy a box, 0 outside the image.

    A pixel's 16 bytes of some images go ``plane`` words apart, those of the next pixel ``cell`` words further. A thread walks
    (channel, row, column) by additions. ``swapped``: of an odd pixel of the box the last 16 images come first, so that
    16 images of two neighbours meet all banks.
    """
    pieces, copy = images * size // 16, copy_or_zero(16)
    exchange = (pieces - 1) & 4
    across = threads // pieces

    @device
    def fill(shared, start, plane, x, strides, box, corner, image):
        thread = i32(cuda.threadIdx.x)
        first, piece = i32(thread // pieces), i32(thread % pieces)
        area, width = i32(box[1] * box[2]), i32(box[2])
        c = i32(u32(first) // u32(area))
        row = i32(u32(first - c * area) // u32(width))
        deep = i32(u32(across) // u32(area))  # what lies between two pixels of a thread
        below = i32(u32(across - deep * area) // u32(width))
        right = i32(across - deep * area - below * width)
        # in 32 bits, of which an iteration has few: bytes between channels, rows and columns, and what a carry adds
        to_c, to_h, to_v = i32(strides[1] * size), i32(strides[2] * size), i32(strides[3] * size)
        step = i32(deep * to_c + below * to_h + right * to_v)
        new_row, new_c = i32(to_h - width * to_v), i32(to_c - box[1] * to_h)
        column = i32(first - c * area - row * width)
        at = i32(c * to_c + row * to_h + column * to_v)
        at = i32(at + corner[0] * to_h + corner[1] * to_v + piece * 16)
        to = i32(i32(shared_address(shared)) + (start + first * cell + piece * plane) * 4)
        for pixel in range(first, i32(box[0] * area), i32(across)):
            h, v = i32(corner[0] + row), i32(corner[1] + column)
            inside = h >= 0 and h < image[0] and v >= 0 and v < image[1]
            moved = i32(((piece ^ ((pixel * 4) & exchange)) - piece) * 16) if swapped else i32(0)
            copy(shared, i32(to + moved), x + i64(at if inside else i32(0)), inside)
            to, column, at = i32(to + across * cell * 4), i32(column + right), i32(at + step)
            row = i32(row + below)
            over = column >= width
            row, column = i32(row + 1) if over else row, i32(column - width) if over else column
            at = i32(at + new_row) if over else at
            over = row >= box[1]
            row, at = i32(row - box[1]) if over else row, i32(at + new_c) if over else at

    return fill
