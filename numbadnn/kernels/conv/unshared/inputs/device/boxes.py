"""grad_inputs of an unshared convolution: each filter is read once, sums go to boxes of pixels.

A block has a tile of output positions, some channels of a group and ``images`` images. For one position after another it sums
over the filters what each (channel, tap) receives, in registers, while the next filters are under way, and adds that to a box
of the image in shared memory, which holds every pixel that the tile reaches. A warp has some of the channels alone, and waits
for no other. Boxes of neighbouring tiles overlap: they go to a workspace, [tile][channel][pixel][image], where
``device/reduce.py`` adds to each pixel those that hold it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.unshared.forward.device.plain import look_at
from numbadnn.kernels.conv.unshared.inputs.boxes_config import LANES, BoxesConfig, vector_width
from numbadnn.kernels.conv.unshared.inputs.device.tile import NONE, block_of, pixel_at, tap_of, terms_of
from numbadnn.kernels.lang.access import load, load_vector, store_vector
from numbadnn.kernels.lang.async_copies import sync_warp
from numbadnn.kernels.lang.cuda import ACCUMULATOR, WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.mma import write_shared
from numbadnn.kernels.lang.packed import load_words, widen
from numbadnn.kernels.lang.ptx import let_next_start
from numbadnn.problem import ITEMSIZE


def _store(acc: str, count: int) -> Any:
    """``store(values, start, table, at)``: the opposite of ``look_at``."""
    span = min(count, 4)
    write: Any = write_shared(span) if acc == "float32" and span > 1 else None

    @device
    def store(values, start, table, at):
        for e in range(0, count, span):
            write(values, i32(start + e), table, i32(at + e))

    @device
    def store_one_by_one(values, start, table, at):
        for e in range(count):
            table[i32(at + e)] = values[start + e]

    return store if write else store_one_by_one


def _fill(dtype: str, acc: str, images: int) -> Any:
    """``fill(...)``: rows of y's values [position, filter][image] of ``positions`` output positions, 0 past the images.

    A thread has all images of a filter at one position, neighbours neighbouring positions; its loads stand before its stores.
    """
    read, size, zero, A = load(dtype, acc), ITEMSIZE[dtype], ACCUMULATOR[acc](0), ACCUMULATOR[acc]
    store = _store(acc, images)

    @device
    def fill(table, positions, count, y, strides, n0, N, wide):
        held = cuda.local.array(images, A)
        for i in range(i32(cuda.threadIdx.x), i32(positions * count), i32(cuda.blockDim.x)):
            k = i32(u32(i) // u32(positions))
            place = i32(i - k * positions)
            down = i32(u32(place) // u32(wide))
            source = k * strides[1] + down * strides[2] + (place - down * wide) * strides[3]
            source = y + (source + n0 * strides[0]) * size
            for n in range(images):
                held[n] = read(source) if n0 + n < N else zero
                source = source + (strides[0] * size if n0 + n + 1 < N else i64(0))
            store(held, i32(0), table, i32((place * count + k) * images))

    return fill


def _waiting(dtype: str, acc: str, vec: int, ahead: int) -> tuple[Any, Any, Any, int]:
    """(prefetch, expand, type, size): ``ahead`` pieces of filters under way, as words or, where they are none, as numbers."""
    words = vec * ITEMSIZE[dtype] // 4
    if not words:
        read_vector = load_vector(dtype, vec, acc)

        @device
        def prefetch_numbers(held, slot, address):
            read_vector(held, i32(slot * vec), address)

        @device
        def copy(weight, held, slot):
            for e in range(vec):
                weight[e] = held[slot * vec + e]

        return prefetch_numbers, copy, ACCUMULATOR[acc], ahead * vec
    once = min(words, 4)
    read, wide = load_words(once), widen(dtype, vec, acc)

    @device
    def prefetch(held, slot, address):
        for i in range(0, words, once):
            read(held, i32(slot * words + i), address + 4 * i)

    @device
    def expand(weight, held, slot):
        wide(weight, i32(0), held, i32(slot * words))

    return prefetch, expand, WORD, ahead * words


def boxes(dtype: str, acc: str, config: BoxesConfig) -> Callable[..., None]:
    """space[tile, channel, pixel of the tile's box, n] = sum over the tile's positions and over filters of y * w."""
    images, vec, ahead, depth, capacity = config.images, config.vec, config.ahead, config.depth, config.terms
    even = config.even
    width, A, size, item = vector_width(images, acc), ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc]
    look, store, clear = look_at(acc, images), _store(acc, images), _store(acc, 4)
    look_at_vector, write_vector, fill = look_at(acc, width), store_vector(acc, width, acc), _fill(dtype, acc, images)
    # ``width`` words after every ``vec`` pixels: neighbouring lanes then meet different banks
    shared, table_size, sums = config.cells // vec * (vec * images + width), depth * images, vec * images
    vectors, bits = images // width, vec.bit_length() - 1

    prefetch, expand, kind, waiting = _waiting(dtype, acc, vec, ahead)

    @device
    def add_products(total, weight, top):
        for e in range(vec):
            for n in range(images):
                total[e * images + n] = A(total[e * images + n] + weight[e] * top[n])

    def kernel(
        y, w, space, chunks, slices, groups, first, N, K, C, channels, own, turns, across, span, tile, output, taps, stride,
        dilation, flip, box, w_strides, y_strides,
    ):  # fmt: skip
        let_next_start()
        pixels = cuda.shared.array(shared, A)
        table = cuda.shared.array(table_size, A)
        spots = cuda.shared.array(capacity, WORD)  # where in the box a term's pixel is, for the tile's first position
        total, held, weight = cuda.local.array(sums, A), cuda.local.array(waiting, kind), cuda.local.array(vec, A)
        top, old, zeros = cuda.local.array(images, A), cuda.local.array(images, A), cuda.local.array(4, A)
        thread, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        index = i32(u32(cuda.blockIdx.x) // u32(chunks))
        chunk = i32(cuda.blockIdx.x - index * chunks)
        n0 = i32(first + chunk * images)
        number, part, g, p0, q0 = block_of(index, slices, groups, across, tile)
        c0 = i32(part * channels)
        area, per_channel = i32(box[0] * box[1]), i32(taps[0] * taps[1])
        have = min(channels, i32(C - c0))
        mine, low, end = terms_of(warp, own, have, c0, per_channel)
        used = i32(have * area)
        start, last = i32(low // vec * vec), i32((end - 1) // vec * vec)  # whole loads
        wide = min(tile[1], i32(output[1] - q0))
        positions = i32(min(tile[0], i32(output[0] - p0)) * wide)
        stretch = i32(LANES * vec)
        spot = i32(warp * turns * stretch)  # of this warp's first term
        base = w + (i64(g * K) * w_strides[0] + p0 * w_strides[1] + q0 * w_strides[2]) * size
        step = i64(w_strides[0] * size)
        count, at = min(span, K), base + min(i32(start + lane * vec), last) * size
        for u in range(ahead):
            prefetch(held, u, at)
            at = at + (step if u + 1 < count else i64(0))
        for i in range(4):
            zeros[i] = A(0)
        for i in range(i32(4 * thread), i32(shared), i32(4 * threads)):
            clear(zeros, i32(0), pixels, i32(i))
        for turn in range(turns):
            j = i32(turn * stretch + lane * vec)
            c, r, s = tap_of(i32(start + j), taps)
            for e in range(vec):
                m = i32(start + j + e)
                pixel = pixel_at(i32(c - c0), r, s, area, taps, dilation, box[1], flip)
                spots[i32(spot + j + e)] = u32(pixel if m >= low and m < end else i32(NONE))
                s = i32(s + 1)
                r = i32(r + 1) if s == taps[1] else r
                s = i32(0) if s == taps[1] else s
                c = i32(c + 1) if r == taps[0] else c
                r = i32(0) if r == taps[0] else r
        for k0 in range(0, K, span):
            count = min(span, i32(K - k0))
            coming = min(span, i32(K - k0 - count))  # filters of the next pass
            at_y = i64(g * K + k0) * y_strides[1] + p0 * y_strides[2] + q0 * y_strides[3]
            fill(table, positions, count, y + at_y * size, y_strides, n0, N, wide)
            cuda.syncthreads()
            here = base + k0 * w_strides[0] * size
            column, shift, row_of_y = i32(0), i32(0), i32(0)
            for place in range(positions):
                column, beyond = i32(column + 1), here + w_strides[2] * size
                if column == wide:
                    column, beyond = i32(0), beyond + (w_strides[1] - wide * w_strides[2]) * size
                if i32(place + 1) == positions:
                    beyond = here if coming == 0 else base + (k0 + count) * w_strides[0] * size
                for turn in range(turns):
                    j = i32(turn * stretch + lane * vec)
                    # what is next: other terms of this position, another position, other filters
                    coming_turn = i32(turn + 1) if i32(turn + 1) < turns else i32(0)
                    after = here if coming_turn > 0 else beyond
                    filters = coming if coming_turn == 0 and place + 1 == positions else count
                    now = here + min(i32(start + j), last) * size
                    after = after + min(i32(start + coming_turn * stretch + lane * vec), last) * size
                    for i in range(sums):
                        total[i] = A(0)
                    for k in range(0, count, ahead):
                        more = k + ahead < count
                        at = now + i64(k + ahead) * step if more else after
                        left = i32(count - k - ahead) if more else filters  # filters from there on
                        hop = step if left > 0 else i64(0)  # behind the last one it is loaded again, and not used
                        for u in range(ahead):
                            if even or k + u < count:
                                look(top, i32(0), table, i32(row_of_y + (k + u) * images))
                                expand(weight, held, u)
                                add_products(total, weight, top)
                            prefetch(held, u, at)
                            at = at + (hop if even or u + 1 < left else i64(0))
                    for e in range(vec):  # the terms of one position are different pixels
                        pixel = i32(spots[i32(spot + j + e)])
                        if pixel != NONE:
                            cell = i32(pixel + shift)
                            at_pixel = i32(cell * images + (cell >> bits) * width)
                            look(old, i32(0), pixels, at_pixel)
                            for n in range(images):
                                old[n] = A(old[n] + total[e * images + n])
                            store(old, i32(0), pixels, at_pixel)
                sync_warp()
                shift, row_of_y, here = i32(shift + stride[1]), i32(row_of_y + count * images), beyond
                if column == 0:
                    shift = i32(shift + stride[0] * box[1] - wide * stride[1])
            cuda.syncthreads()
        slots = i32(chunks * images)
        target = space + (i64(number * C + c0) * area * slots + chunk * images) * item
        for i in range(thread, i32(used * vectors), threads):
            cell = i32(u32(i) // u32(vectors))
            n = i32((i - cell * vectors) * width)
            look_at_vector(old, i32(0), pixels, i32(cell * images + (cell >> bits) * width + n))
            write_vector(old, i32(0), target + (i64(cell) * slots + n) * item)

    return kernel
