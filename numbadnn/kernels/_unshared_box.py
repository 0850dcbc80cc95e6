"""Unshared convolutions with sums in float32, several positions a block: what they see is read once for all of them.

A block has some neighbouring positions of a row and ``channels`` channels of a group at a time. The box of pixels that these see
lies in shared memory, [channel, row of taps, column][image], so that one access gives four images; a term (channel, tap) is a
place in it, and at the next position the place ``stride`` columns further. Filters are read or written straight from registers.

``forward``: eight lanes go along the terms of a filter, four at a time, and ask for the next ones before they multiply; each has
``filters`` x 8 sums. The four eights of a warp have different filters, or different images where these are more. ``weights``: a
thread has four terms of all images, and writes one filter after another.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numbadnn.kernels._cuda import cuda, device, f32, i32, i64, u32
from numbadnn.kernels._packed import load_words, widen
from numbadnn.kernels._ptx import ELEMENT, WORD, load, load_shared, load_vector, store, store_vector
from numbadnn.kernels._unshared_halves import _look_at_words
from numbadnn.kernels._unshared_kernels import _fold
from numbadnn.kernels.unshared_box import EIGHT, LANES, ROWS, BoxConfig
from numbadnn.problem import ITEMSIZE


def _fill_box(dtype: str, config: BoxConfig, once: int) -> Callable[..., None]:
    """``fill(shared, start, x, strides, N, box, corner, down, image)``: 0 outside the image and past the images.

    A thread asks for ``once`` elements before it stores them: for all that the compiler knows a store might change the next.
    """
    read, size, threads, images, cell = (
        load(dtype, "float32"),
        ITEMSIZE[dtype],
        config.threads,
        config.images,
        config.cell,
    )
    batch = min(once, images)
    cells = once // batch

    @device
    def fill(shared, start, x, strides, N, box, corner, down, image):  # type: ignore[no-untyped-def]
        held, inside = cuda.local.array(once, f32), cuda.local.array(cells, np.bool_)
        number = i32(box[0] * box[1] * box[2])
        for i0 in range(i32(cuda.threadIdx.x), number, i32(threads * cells)):
            for first in range(0, images, batch):
                for u in range(cells):
                    i = min(i32(i0 + u * threads), i32(number - 1))
                    line = i32(u32(i) // u32(box[2]))
                    c = i32(u32(line) // u32(box[1]))
                    h, v = i32(corner[0] + (line - c * box[1]) * down), i32(corner[1] + i - line * box[2])
                    inside[u] = h >= 0 and h < image[0] and v >= 0 and v < image[1]
                    at = i64(c) * strides[1] + i64(h) * strides[2] + i64(v) * strides[3]
                    pixel = x + (at if inside[u] else i64(0)) * size
                    for n in range(batch):
                        held[u * batch + n] = read(pixel + min(i32(first + n), i32(N - 1)) * strides[0] * size)
                for u in range(cells):
                    i = i32(i0 + u * threads)
                    if i < number:
                        for n in range(batch):
                            value = held[u * batch + n] if inside[u] and first + n < N else f32(0)
                            shared[i32(start + i * cell + first + n)] = value

    return fill


def _spots(config: BoxConfig) -> Callable[..., None]:
    """``fill(table, room, terms, taps, apart, wide, flip)``: where in the box each term is; past the end where the first is."""
    threads, cell = config.threads, config.cell

    @device
    def fill(table, room, terms, taps, apart, wide, flip):  # type: ignore[no-untyped-def]
        for m in range(i32(cuda.threadIdx.x), room, threads):
            line = i32(u32(m) // u32(taps[1]))
            s = i32(m - line * taps[1])
            c = i32(u32(line) // u32(taps[0]))
            r = i32(line - c * taps[0])
            if flip != 0:
                r = i32(taps[0] - 1 - r)
                s = i32(taps[1] - 1 - s)
            at = i32(((c * taps[0] + r) * wide + s * apart) * cell)
            table[m] = u32(at if m < terms else i32(0))

    return fill


def _ask(dtype: str, config: BoxConfig) -> Callable[..., None]:
    """``ask(held, slot, base, rows, m, terms)``: four terms of each filter from term ``m`` on, as they lie in memory."""
    filters, vec, size = config.filters, config.vec, ITEMSIZE[dtype]
    words, read = 4 * size // 4, load_words(vec * size // 4)

    @device
    def ask(held, slot, base, rows, m, terms):  # type: ignore[no-untyped-def]
        for f in range(filters):
            for e in range(0, 4, vec):
                at = i64(rows[f]) + min(i32(m + e), i32(terms - vec))
                read(held, i32(slot + f * words + e * size // 4), base + at * size)

    return ask


def forward(dtype: str, config: BoxConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    filters, places, parts, ahead, cell, whole, groups_of_images = (
        *(config.filters, config.places, config.parts, config.ahead, config.cell, config.whole, config.images // 8),
    )
    size, read, write = ITEMSIZE[dtype], load(dtype, "float32"), store(dtype, "float32")
    fill_box, fill_spots, ask, expand = (
        _fill_box(dtype, config, 4),
        _spots(config),
        _ask(dtype, config),
        widen(dtype, 4, "float32"),
    )
    look_at_spots, look_at_images = _look_at_words(4), load_shared("float32", 4, "float32")
    fold4, fold2, fold1 = (_fold("float32", 4 >> i, filters * 8 >> 1 + i) for i in range(3))
    words, across = size, config.across
    sums, waiting = filters * 8, ahead * filters * size
    left, step, vec, element = filters, 4 * EIGHT, config.vec, ELEMENT["float32"]

    def kernel(  # type: ignore[no-untyped-def]
        x, w, y, blocks, groups, N, K, C, channels, Q, room, image, taps, padding, stride, dilation, flip, wide,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        table = cuda.shared.array(0, WORD)
        shared = cuda.shared.array(0, element)  # the same memory
        total, held = cuda.local.array(sums, f32), cuda.local.array(waiting, WORD)
        spots, weight = cuda.local.array(4, WORD), cuda.local.array(4, f32)
        seen, rows = cuda.local.array(8, f32), cuda.local.array(filters, np.int64)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        row = i32(u32(cuda.blockIdx.x) // u32(blocks))
        q0 = i32((i32(cuda.blockIdx.x) - row * blocks) * places)
        p = i32(u32(row) // u32(groups))
        group = i32(row - p * groups)
        count = min(i32(places), i32(Q - q0))
        area = i32(taps[0] * taps[1])
        corner = (i32(p * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        place, part = i32(warp % places), i32(warp // places)  # parts have different filters
        eighth, own_lane = i32(lane // EIGHT), i32(lane % EIGHT)
        own_images, own_filters = i32(eighth % groups_of_images), i32(eighth // groups_of_images)
        own = i32(room + place * stride[1] * cell + own_images * 8)
        q = min(i32(q0 + place), i32(Q - 1))
        base = w + (i64(group * K) * w_strides[0] + p * w_strides[1] + q * w_strides[2]) * size
        for turn in range(i32((K + across * parts - 1) // (across * parts))):
            k0 = i32((turn * parts + part) * across + own_filters * filters)
            for f in range(filters):
                rows[f] = i64(min(i32(k0 + f), i32(K - 1))) * w_strides[0]
            for i in range(sums):
                total[i] = f32(0)
            for c0 in range(0, 1 if whole else C, channels):
                have = min(channels, i32(C - c0))
                terms = i32(have * area)
                start = base + i64(c0 * area) * size
                for i in range(ahead):
                    ask(held, i32(i * filters * words), start, rows, i32(i * step + own_lane * 4), terms)
                if not whole or turn == 0:
                    cuda.syncthreads()
                    fill_spots(table, room, terms, taps, dilation[1], wide, flip)
                    first = x + i64(group * C + c0) * x_strides[1] * size
                    fill_box(shared, room, first, x_strides, N, (have, taps[0], wide), corner, dilation[0], image)
                    cuda.syncthreads()
                for m0 in range(i32(own_lane * 4), i32(terms + own_lane * 4), i32(ahead * step)):
                    for i in range(ahead):
                        m = i32(m0 + i * step)
                        if m < terms:
                            look_at_spots(spots, i32(0), table, m)
                            for e in range(4):
                                if vec == 4 or m + e < terms:
                                    at = i32(own + i32(spots[e]))
                                    look_at_images(seen, i32(0), table, at)
                                    look_at_images(seen, i32(4), table, i32(at + 4))
                                    for f in range(filters):
                                        expand(weight, i32(0), held, i32((i * filters + f) * words))
                                        for n in range(8):
                                            total[n * filters + f] = f32(total[n * filters + f] + seen[n] * weight[e])
                        ask(held, i32(i * filters * words), start, rows, i32(m + ahead * step), terms)
            fold4(total, lane)
            fold2(total, lane)
            fold1(total, lane)
            for i in range(left):  # lane l of eight has image l
                n, k = i32(own_images * 8 + own_lane), i32(k0 + i)
                if n < N and k < K and place < count:
                    at = i64(n) * y_strides[0] + (group * K + k) * y_strides[1] + p * y_strides[2] + q * y_strides[3]
                    target = y + at * size
                    result = f32(alpha * total[i])
                    if beta != f32(0):
                        result = f32(result + beta * read(target))
                    write(target, result)

    return kernel


def _fill_tops(dtype: str, config: BoxConfig) -> Callable[..., None]:
    """``fill(shared, start, y, strides, N, K, count)``: [position][filter][image] from ``y`` on, 0 past filters and images."""
    read, size, threads, images, places = (
        load(dtype, "float32"),
        ITEMSIZE[dtype],
        config.threads,
        config.images,
        config.places,
    )
    number = places * ROWS * images
    batch = max(1, min(8, number // threads))

    @device
    def fill(shared, start, y, strides, N, K, count):  # type: ignore[no-untyped-def]
        held = cuda.local.array(batch, f32)
        for i0 in range(i32(cuda.threadIdx.x), number, threads * batch):
            for u in range(batch):
                i = min(i32(i0 + u * threads), i32(number - 1))
                rest = i32(u32(i) // u32(places))
                place, n, k = (
                    min(i32(i - rest * places), i32(count - 1)),
                    i32(u32(rest) % u32(images)),
                    i32(u32(rest) // u32(images)),
                )
                at = min(n, i32(N - 1)) * strides[0] + min(k, i32(K - 1)) * strides[1] + place * strides[3]
                held[u] = read(y + at * size)
            for u in range(batch):
                i = i32(i0 + u * threads)
                rest = i32(u32(i) // u32(places))
                place, n, k = i32(i - rest * places), i32(u32(rest) % u32(images)), i32(u32(rest) // u32(images))
                if i < number:
                    shared[i32(start + (place * ROWS + k) * images + n)] = held[u] if n < N and k < K else f32(0)

    return fill


def weights(dtype: str, config: BoxConfig) -> Callable[..., None]:
    """w[k,p,q,term] = sum over images n of y[n,k,p,q] * what the term sees in image n at (p,q)."""
    filters, places, cell, images, vec, threads = (
        *(config.filters, config.places, config.cell, config.images, config.vec, config.threads),
    )
    size, groups_of_images, rows = ITEMSIZE[dtype], config.images // 8, ROWS
    read, write = load_vector(dtype, vec, "float32"), store_vector(dtype, vec, "float32")
    fill_box, fill_spots, fill_tops = _fill_box(dtype, config, 8), _spots(config), _fill_tops(dtype, config)
    look_at_spots, look_at_images = _look_at_words(4), load_shared("float32", 4, "float32")
    sums, element = filters * 4, ELEMENT["float32"]

    @device
    def look(seen, table, own, spots, first):  # type: ignore[no-untyped-def]
        for e in range(4):
            at = i32(own + i32(spots[e]) + first)
            look_at_images(seen, i32(e * 8), table, at)
            look_at_images(seen, i32(e * 8 + 4), table, i32(at + 4))

    def kernel(  # type: ignore[no-untyped-def]
        x, y, w, slices, blocks, groups, N, K, C, channels, Q, room, image, taps, padding, stride, dilation, flip, wide,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        table = cuda.shared.array(0, WORD)
        shared = cuda.shared.array(0, element)  # the same memory
        total, spots = cuda.local.array(sums, f32), cuda.local.array(4, WORD)
        seen, top, old = cuda.local.array(32, f32), cuda.local.array(8, f32), cuda.local.array(vec, f32)
        thread = i32(cuda.threadIdx.x)
        rest = i32(u32(cuda.blockIdx.x) // u32(slices))
        c0 = i32((i32(cuda.blockIdx.x) - rest * slices) * channels)
        row = i32(u32(rest) // u32(blocks))
        q0 = i32((rest - row * blocks) * places)
        p = i32(u32(row) // u32(groups))
        group = i32(row - p * groups)
        have, count = min(channels, i32(C - c0)), min(i32(places), i32(Q - q0))
        area = i32(taps[0] * taps[1])
        terms = i32(have * area)
        corner = (i32(p * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        fill_spots(table, room, terms, taps, dilation[1], wide, flip)
        first = x + i64(group * C + c0) * x_strides[1] * size
        fill_box(shared, room, first, x_strides, N, (have, taps[0], wide), corner, dilation[0], image)
        tops = i32(room + channels * taps[0] * wide * cell)
        quads = i32((terms + 3) // 4)
        for k0 in range(0, K, rows):
            at_y = i64(group * K + k0) * y_strides[1] + p * y_strides[2] + q0 * y_strides[3]
            fill_tops(shared, tops, y + at_y * size, y_strides, N, i32(K - k0), count)
            cuda.syncthreads()
            for task in range(thread, i32(count * quads), threads):
                place = i32(u32(task) // u32(quads))
                m = i32((task - place * quads) * 4)
                own = i32(room + place * stride[1] * cell)
                look_at_spots(spots, i32(0), table, m)
                base = (
                    w
                    + (
                        i64(group * K + k0) * w_strides[0]
                        + p * w_strides[1]
                        + (q0 + place) * w_strides[2]
                        + c0 * area
                        + m
                    )
                    * size
                )
                if groups_of_images == 1:
                    look(seen, table, own, spots, i32(0))
                for f0 in range(0, min(i32(rows), i32(K - k0)), filters):
                    for i in range(sums):
                        total[i] = f32(0)
                    for part in range(groups_of_images):
                        if groups_of_images > 1:
                            look(seen, table, own, spots, i32(part * 8))
                        for f in range(filters):
                            at = i32(tops + (place * rows + f0 + f) * images + part * 8)
                            look_at_images(top, i32(0), table, at)
                            look_at_images(top, i32(4), table, i32(at + 4))
                            for n in range(8):
                                for e in range(4):
                                    total[f * 4 + e] = f32(total[f * 4 + e] + seen[e * 8 + n] * top[n])
                    for f in range(filters):
                        for e in range(0, 4, vec):
                            if k0 + f0 + f < K and m + e < terms:
                                target = base + (i64(f0 + f) * w_strides[0] + e) * size
                                for i in range(vec):
                                    total[f * 4 + e + i] = f32(alpha * total[f * 4 + e + i])
                                if beta != f32(0):
                                    read(old, i32(0), target)
                                    for i in range(vec):
                                        total[f * 4 + e + i] = f32(total[f * 4 + e + i] + beta * old[i])
                                write(total, i32(f * 4 + e), target)
            cuda.syncthreads()

    return kernel
