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


def boxes(dtype: str, acc: str, config: BoxesConfig) -> Callable[..., None]:
    """space[tile, channel, pixel of the tile's box, n] = sum over the tile's positions and over filters of y * w."""
    images, vec, ahead, depth, room = config.images, config.vec, config.ahead, config.depth, config.terms
    lot, A, size, item = lot_of(images, acc), ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc]
    read_weights, look, put = load_vector(dtype, vec, acc), look_at(acc, images), _put(acc, images)
    look_at_lot, write_lot, fill = look_at(acc, lot), store_vector(acc, lot, acc), _fill(dtype, acc, images)
    # ``lot`` words after every ``vec`` pixels: neighbouring lanes then meet different banks
    shared, table_size, sums, held = (
        config.cells // vec * (vec * images + lot),
        depth * images,
        vec * images,
        ahead * vec,
    )
    lots, bits = images // lot, vec.bit_length() - 1

    @device
    def add_products(total, weight, at, top):  # type: ignore[no-untyped-def]
        for e in range(vec):
            for n in range(images):
                total[e * images + n] = A(total[e * images + n] + weight[at + e] * top[n])

    def kernel(  # type: ignore[no-untyped-def]
        y, w, space, chunks, slices, groups, first, N, K, C, channels, across, tile, output, taps, stride, dilation, flip,
        box, w_strides, y_strides,
    ):  # fmt: skip
        pixels = cuda.shared.array(shared, A)
        table = cuda.shared.array(table_size, A)
        spots = cuda.shared.array(room, WORD)  # where in the box a term's pixel is, for the tile's first position
        total, weight = cuda.local.array(sums, A), cuda.local.array(held, A)
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
        corner = (i32(row * tile[0]), i32((which - row * across) * tile[1]))
        area, per_channel = i32(box[0] * box[1]), i32(taps[0] * taps[1])
        have = min(channels, i32(C - c0))
        terms, used = i32(have * per_channel), i32(have * area)
        places = i32(tile[0] * tile[1])
        whole = places * K <= depth
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
        if whole:
            fill(table, i32(places * K), K, y, y_strides, i32(g * K), n0, N, corner, tile[1], output)
        cuda.syncthreads()
        for place in range(places):
            down = i32(u32(place) // u32(tile[1]))
            right = i32(place - down * tile[1])
            p, q = i32(corner[0] + down), i32(corner[1] + right)
            if p < output[0] and q < output[1]:
                shift = i32(down * stride[0] * box[1] + right * stride[1])
                base = w + (i64(g * K) * w_strides[0] + p * w_strides[1] + q * w_strides[2] + c0 * per_channel) * size
                for j0 in range(0, terms, i32(threads * vec)):
                    j = i32(j0 + thread * vec)
                    mine = base + i64(min(j, i32(terms - vec))) * size
                    for i in range(sums):
                        total[i] = A(0)
                    for k0 in range(0, K, depth):
                        count = min(i32(depth), i32(K - k0))
                        start = i32(place * K * images) if whole else i32(0)
                        if not whole:
                            cuda.syncthreads()
                            fill(table, count, count, y, y_strides, i32(g * K + k0), n0, N, (p, q), i32(1), output)
                            cuda.syncthreads()
                        full = i32(count - count % ahead)
                        for k in range(0, full, ahead):
                            for u in range(ahead):
                                read_weights(weight, i32(u * vec), mine + (k0 + k + u) * w_strides[0] * size)
                            for u in range(ahead):
                                look(top, i32(0), table, i32(start + (k + u) * images))
                                add_products(total, weight, u * vec, top)
                        for k in range(full, count):
                            read_weights(weight, i32(0), mine + (k0 + k) * w_strides[0] * size)
                            look(top, i32(0), table, i32(start + k * images))
                            add_products(total, weight, 0, top)
                    if j < terms:
                        for e in range(vec):  # the terms of one position are different pixels
                            cell = i32(i32(spots[i32(j + e)]) + shift)
                            at = i32(cell * images + (cell >> bits) * lot)
                            look(old, i32(0), pixels, at)
                            for n in range(images):
                                old[n] = A(old[n] + total[e * images + n])
                            put(old, i32(0), pixels, at)
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
            wide = max(i32(b1 - b0), i32(0))
            count = i32(max(i32(a1 - a0), i32(0)) * wide)
            for e in range(lot):
                total[e] = A(0)
            for t in range(0, count, AHEAD):
                for u in range(AHEAD):  # all loads, then all sums; past the last one it is read again and not used
                    turn = min(i32(t + u), i32(count - 1))
                    down = i32(u32(turn) // u32(wide))
                    a, b = i32(a0 + down), i32(b0 + turn - down * wide)
                    pixel = i32((top - a * moves[0]) * box[1] + left - b * moves[1])
                    at = (i64((a * tiles[1] + b) * channels + c) * area + pixel) * slots + n0
                    read_lot(got, i32(u * lot), space + at * item)
                for u in range(AHEAD):
                    if t + u < count:
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
