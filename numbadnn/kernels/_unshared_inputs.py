"""The gradient of an unshared convolution's images: each filter read once, sums in boxes of pixels, and boxes added.

A block has a tile of output positions, some channels of a group and ``images`` images. For one position after another it sums
over the filters what each (channel, tap) receives, in registers, and adds that to a box of the image in shared memory, which
holds every pixel that the tile reaches. Boxes of neighbouring tiles overlap: they go to a workspace, [tile][channel][pixel]
[image], where a second kernel adds to each pixel those that hold it, in the order of the tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels._cuda import cuda, device, i32, i64, u32
from numbadnn.kernels._mma import write_shared
from numbadnn.kernels._packed import load_words, widen
from numbadnn.kernels._ptx import ACCUMULATOR, WORD, load, load_vector, store, store_vector
from numbadnn.kernels._unshared_kernels import look_at
from numbadnn.kernels.unshared_inputs import AHEAD, BoxesConfig, lot_of
from numbadnn.problem import ITEMSIZE


def _put(acc: str, count: int) -> Any:
    """``put(values, start, table, at)``: the opposite of ``look_at``."""
    span = min(count, 4)
    write: Any = write_shared(span) if acc == "float32" and span > 1 else None

    @device
    def put(values, start, table, at):  # type: ignore[no-untyped-def]
        for e in range(0, count, span):
            write(values, i32(start + e), table, i32(at + e))

    @device
    def put_one_by_one(values, start, table, at):  # type: ignore[no-untyped-def]
        for e in range(count):
            table[i32(at + e)] = values[start + e]

    return put if write else put_one_by_one


def _fill(dtype: str, acc: str, images: int) -> Any:
    """``fill(...)``: rows of y's values [place, filter][image] from the position ``corner`` on, 0 past the images."""
    read, size, zero = load(dtype, acc), ITEMSIZE[dtype], ACCUMULATOR[acc](0)

    @device
    def fill(table, rows, count, y, strides, first, n0, N, corner, wide, output):  # type: ignore[no-untyped-def]
        for i in range(i32(cuda.threadIdx.x), i32(rows * images), i32(cuda.blockDim.x)):
            row = i32(u32(i) // u32(images))
            n = i32(n0 + i - row * images)
            place = i32(u32(row) // u32(count))
            k = i32(first + row - place * count)
            down = i32(u32(place) // u32(wide))
            p = min(i32(corner[0] + down), i32(output[0] - 1))
            q = min(i32(corner[1] + place - down * wide), i32(output[1] - 1))
            at = i64(min(n, i32(N - 1))) * strides[0] + k * strides[1] + p * strides[2] + q * strides[3]
            value = read(y + at * size)
            table[i] = value if n < N else zero

    return fill


def _waiting(dtype: str, acc: str, vec: int, ahead: int) -> tuple[Any, Any, Any, int]:
    """(ask, expand, type, size): ``ahead`` pieces of filters under way, as words or, where they are none, as numbers."""
    words = vec * ITEMSIZE[dtype] // 4
    if not words:
        read_vector = load_vector(dtype, vec, acc)

        @device
        def ask_numbers(held, slot, address):  # type: ignore[no-untyped-def]
            read_vector(held, i32(slot * vec), address)

        @device
        def copy(weight, held, slot):  # type: ignore[no-untyped-def]
            for e in range(vec):
                weight[e] = held[slot * vec + e]

        return ask_numbers, copy, ACCUMULATOR[acc], ahead * vec
    once = min(words, 4)
    read, wide = load_words(once), widen(dtype, vec, acc)

    @device
    def ask(held, slot, address):  # type: ignore[no-untyped-def]
        for i in range(0, words, once):
            read(held, i32(slot * words + i), address + 4 * i)

    @device
    def expand(weight, held, slot):  # type: ignore[no-untyped-def]
        wide(weight, i32(0), held, i32(slot * words))

    return ask, expand, WORD, ahead * words


def boxes(dtype: str, acc: str, config: BoxesConfig) -> Callable[..., None]:
    """space[tile, channel, pixel of the tile's box, n] = sum over the tile's positions and over filters of y * w."""
    images, vec, ahead, depth, room, even = (
        *(config.images, config.vec, config.ahead, config.depth, config.terms, config.even),
    )
    lot, A, size, item = lot_of(images, acc), ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc]
    look, put = look_at(acc, images), _put(acc, images)
    look_at_lot, write_lot, fill = look_at(acc, lot), store_vector(acc, lot, acc), _fill(dtype, acc, images)
    # ``lot`` words after every ``vec`` pixels: neighbouring lanes then meet different banks
    shared, table_size, sums = config.cells // vec * (vec * images + lot), depth * images, vec * images
    lots, bits = images // lot, vec.bit_length() - 1

    ask, expand, kind, waiting = _waiting(dtype, acc, vec, ahead)

    @device
    def add_products(total, weight, top):  # type: ignore[no-untyped-def]
        for e in range(vec):
            for n in range(images):
                total[e * images + n] = A(total[e * images + n] + weight[e] * top[n])

    def kernel(  # type: ignore[no-untyped-def]
        y, w, space, chunks, slices, groups, first, N, K, C, channels, across, span, tile, output, taps, stride, dilation,
        flip, box, w_strides, y_strides,
    ):  # fmt: skip
        pixels = cuda.shared.array(shared, A)
        table = cuda.shared.array(table_size, A)
        spots = cuda.shared.array(room, WORD)  # where in the box a term's pixel is, for the tile's first position
        total, held, weight = cuda.local.array(sums, A), cuda.local.array(waiting, kind), cuda.local.array(vec, A)
        top, old = cuda.local.array(images, A), cuda.local.array(images, A)
        thread, threads = i32(cuda.threadIdx.x), i32(cuda.blockDim.x)
        block = i32(cuda.blockIdx.x)
        part = i32(u32(block) // u32(chunks))
        chunk = i32(block - part * chunks)
        n0 = i32(first + chunk * images)
        number = i32(u32(part) // u32(slices))
        c0 = i32((part - number * slices) * channels)
        which = i32(u32(number) // u32(groups))
        g = i32(number - which * groups)
        row = i32(u32(which) // u32(across))
        p0, q0 = i32(row * tile[0]), i32((which - row * across) * tile[1])
        area, per_channel = i32(box[0] * box[1]), i32(taps[0] * taps[1])
        have = min(channels, i32(C - c0))
        terms, used = i32(have * per_channel), i32(have * area)
        wide = min(tile[1], i32(output[1] - q0))
        stretch = i32(threads * vec)
        turns = i32(u32(terms + stretch - 1) // u32(stretch))
        tasks = i32(min(tile[0], i32(output[0] - p0)) * wide * turns)
        base = w + (i64(g * K) * w_strides[0] + p0 * w_strides[1] + q0 * w_strides[2] + c0 * per_channel) * size
        step = i64(w_strides[0] * size)
        for k0 in range(0, K, span):
            count = min(span, i32(K - k0))
            mine = base + (k0 * w_strides[0] + min(i32(thread * vec), i32(terms - vec))) * size
            for u in range(ahead):
                ask(held, u, mine + min(i32(u), i32(count - 1)) * step)
            if k0 == 0:
                for i in range(thread, i32(shared), threads):
                    pixels[i] = A(0)
                for m in range(thread, terms, threads):
                    line = i32(u32(m) // u32(taps[1]))
                    s = i32(m - line * taps[1])
                    c = i32(u32(line) // u32(taps[0]))
                    r = i32(line - c * taps[0])
                    if flip != 0:
                        r = i32(taps[0] - 1 - r)
                        s = i32(taps[1] - 1 - s)
                    spots[m] = u32(c * area + r * dilation[0] * box[1] + s * dilation[1])
            places = i32(u32(tasks) // u32(turns))
            fill(table, i32(places * count), count, y, y_strides, i32(g * K + k0), n0, N, (p0, q0), wide, output)
            cuda.syncthreads()
            place, turn = i32(0), i32(0)
            for task in range(tasks):
                j, start = i32(turn * stretch + thread * vec), i32(place * count * images)
                down = i32(u32(place) // u32(wide))
                shift = i32(down * stride[0] * box[1] + (place - down * wide) * stride[1])
                now = mine
                # what is next: other terms of this position, or another position
                last_turn = turn + 1 == turns
                turn = i32(0) if last_turn else i32(turn + 1)
                place = i32(place + 1) if last_turn else place
                down = i32(u32(place) // u32(wide))
                mine = base + k0 * w_strides[0] * size
                if task + 1 < tasks:
                    mine = mine + (down * w_strides[1] + i64(place - down * wide) * w_strides[2]) * size
                mine = mine + min(i32(turn * stretch + thread * vec), i32(terms - vec)) * size
                for i in range(sums):
                    total[i] = A(0)
                for k in range(0, count, ahead):
                    source = now + i64(k + ahead) * step if k + ahead < count else mine
                    left = i32(count - k - ahead) if k + ahead < count else count  # filters from there on
                    for u in range(ahead):
                        if even or k + u < count:
                            look(top, i32(0), table, i32(start + (k + u) * images))
                            expand(weight, held, u)
                            add_products(total, weight, top)
                        ask(held, u, source)
                        source = source + (
                            step if even or u + 1 < left else i64(0)
                        )  # the last ones again, and not used
                if j < terms:
                    for e in range(vec):  # the terms of one position are different pixels
                        cell = i32(i32(spots[i32(j + e)]) + shift)
                        at = i32(cell * images + (cell >> bits) * lot)
                        look(old, i32(0), pixels, at)
                        for n in range(images):
                            old[n] = A(old[n] + total[e * images + n])
                        put(old, i32(0), pixels, at)
                if last_turn:
                    cuda.syncthreads()
        slots = i32(chunks * images)
        target = space + (i64(number * C + c0) * area * slots + chunk * images) * item
        for i in range(thread, i32(used * lots), threads):
            cell = i32(u32(i) // u32(lots))
            n = i32((i - cell * lots) * lot)
            look_at_lot(old, i32(0), pixels, i32(cell * images + (cell >> bits) * lot + n))
            write_lot(old, i32(0), target + (i64(cell) * slots + n) * item)

    return kernel


def collect(dtype: str, acc: str, lot: int) -> Callable[..., None]:
    """x[n, c, pixel] = the sum over the tiles whose boxes hold the pixel; a thread has ``lot`` images of one pixel."""
    read_lot, read, write = load_vector(acc, lot, acc), load(dtype, acc), store(dtype, acc)
    A, size, item, held = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], AHEAD * lot

    @device
    def reaching(at, tiles, move, length):  # type: ignore[no-untyped-def]
        """(first, last + 1) of the tiles whose boxes hold ``at``."""
        low = i32(0)
        if at >= length:
            low = i32(u32(at - length) // u32(move) + 1)
        return low, min(tiles, i32(u32(at) // u32(move) + 1))

    def kernel(  # type: ignore[no-untyped-def]
        space, x, first, N, slots, channels, image, tiles, moves, padding, box, x_strides, alpha, beta
    ):  # fmt: skip
        total, got = cuda.local.array(lot, A), cuda.local.array(held, A)
        i = i32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
        lots, area = i32(slots // lot), i32(box[0] * box[1])
        rest = i32(u32(i) // u32(lots))
        n0 = i32((i - rest * lots) * lot)
        line = i32(u32(rest) // u32(image[1]))
        v = i32(rest - line * image[1])
        c = i32(u32(line) // u32(image[0]))
        h = i32(line - c * image[0])
        if c < channels:
            top, left = i32(h + padding[0]), i32(v + padding[1])
            a0, a1 = reaching(top, tiles[0], moves[0], box[0])
            b0, b1 = reaching(left, tiles[1], moves[1], box[1])
            for e in range(lot):
                total[e] = A(0)
            for a in range(a0, a1):
                for b in range(b0, b1, AHEAD):
                    for u in range(AHEAD):  # all loads, then all sums; past the last one it is read again and not used
                        column = min(i32(b + u), i32(b1 - 1))
                        pixel = i32((top - a * moves[0]) * box[1] + left - column * moves[1])
                        at = (i64((a * tiles[1] + column) * channels + c) * area + pixel) * slots + n0
                        read_lot(got, i32(u * lot), space + at * item)
                    for u in range(AHEAD):
                        if b + u < b1:
                            for e in range(lot):
                                total[e] = A(total[e] + got[u * lot + e])
            for e in range(lot):
                n = i32(first + n0 + e)
                if n < N:
                    target = x + (i64(n) * x_strides[0] + c * x_strides[1] + h * x_strides[2] + v * x_strides[3]) * size
                    result = A(alpha * total[e])
                    if beta != A(0):
                        result = A(result + beta * read(target))
                    write(target, result)

    return kernel
