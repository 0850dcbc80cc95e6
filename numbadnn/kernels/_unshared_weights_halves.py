"""The gradient of a filter for each position, of 16-bit types, on tensor cores: sums over images, each filter written once.

A block has some neighbouring positions of a row and some channels of a group. The box of pixels that these see lies in shared
memory once, as words of two images, [channel, row of taps, column][pair of images]; a term (channel, tap) is a place in it, and
what it is at the next position lies ``stride`` columns further. A warp has one position: what came of it, filters times images,
stays in registers, and 32 terms at a time pass. The columns of a product are chosen so that a lane has 8 neighbouring terms.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numbadnn.kernels._bits import load_bits
from numbadnn.kernels._cuda import cuda, device, f32, i32, i64, u32
from numbadnn.kernels._mma import product
from numbadnn.kernels._ptx import WORD, load_vector, store_vector
from numbadnn.kernels._unshared_halves import _look_at_words
from numbadnn.kernels.unshared_weights_halves import LANES, TILE, WeightsHalvesConfig

#: bytes of an element
SIZE = 2


def fill_box(images: int, cell: int, threads: int, once: int) -> Callable[..., None]:
    """``fill(shared, start, x, strides, N, box, corner, down, image)``: 0 outside the image and past the images.

    A thread asks for ``once`` elements before it stores them: for all that the compiler knows a store might change the next.
    """
    half, pairs = load_bits(SIZE), images // 2
    batch = min(once // 2, pairs)
    cells = once // 2 // batch
    waiting = 2 * batch * cells

    @device
    def fill(shared, start, x, strides, N, box, corner, down, image):  # type: ignore[no-untyped-def]
        held, inside = cuda.local.array(waiting, WORD), cuda.local.array(cells, np.bool_)
        number = i32(box[0] * box[1] * box[2])
        for i0 in range(i32(cuda.threadIdx.x), number, i32(threads * cells)):
            for first in range(0, pairs, batch):
                for u in range(cells):
                    i = min(i32(i0 + u * threads), i32(number - 1))
                    line = i32(u32(i) // u32(box[2]))
                    c = i32(u32(line) // u32(box[1]))
                    h, v = i32(corner[0] + (line - c * box[1]) * down), i32(corner[1] + i - line * box[2])
                    inside[u] = h >= 0 and h < image[0] and v >= 0 and v < image[1]
                    at = i64(c) * strides[1] + i64(h) * strides[2] + i64(v) * strides[3]
                    pixel = x + (at if inside[u] else i64(0)) * SIZE
                    for n in range(2 * batch):
                        step = min(i32(2 * first + n), i32(N - 1)) * strides[0]
                        held[u * 2 * batch + n] = half(pixel + step * SIZE)
                for u in range(cells):
                    i = i32(i0 + u * threads)
                    if i < number:
                        for n in range(batch):
                            at_pair = u * 2 * batch + 2 * n
                            low = held[at_pair] if inside[u] and 2 * (first + n) < N else u32(0)
                            high = held[at_pair + 1] if inside[u] and 2 * (first + n) + 1 < N else u32(0)
                            shared[i32(start + i * cell + first + n)] = u32(low | (high << u32(16)))

    return fill


def _fill_tops(config: WeightsHalvesConfig) -> Callable[..., None]:
    """``fill(shared, start, y, strides, N, K, count)``: words of two images [position][filter][pair] from ``y`` on."""
    half, threads, pairs, cell, rows = load_bits(SIZE), config.threads, config.images // 2, config.cell, config.filters
    places, number, batch = (
        config.places,
        config.places * config.filters * pairs,
        min(8, config.places * config.filters * pairs // config.threads),
    )
    batch = max(1, batch)
    waiting = 2 * batch

    @device
    def fill(shared, start, y, strides, N, K, count):  # type: ignore[no-untyped-def]
        held = cuda.local.array(waiting, WORD)
        for i0 in range(i32(cuda.threadIdx.x), number, threads * batch):
            for u in range(batch):
                i = min(i32(i0 + u * threads), i32(number - 1))
                rest = i32(u32(i) // u32(places))
                place, pair, k = i32(i - rest * places), i32(u32(rest) % u32(pairs)), i32(u32(rest) // u32(pairs))
                at = y + (min(k, i32(K - 1)) * strides[1] + min(place, i32(count - 1)) * strides[3]) * SIZE
                held[2 * u] = half(at + min(i32(2 * pair), i32(N - 1)) * strides[0] * SIZE)
                held[2 * u + 1] = half(at + min(i32(2 * pair + 1), i32(N - 1)) * strides[0] * SIZE)
            for u in range(batch):
                i = i32(i0 + u * threads)
                rest = i32(u32(i) // u32(places))
                place, pair, k = i32(i - rest * places), i32(u32(rest) % u32(pairs)), i32(u32(rest) // u32(pairs))
                low = held[2 * u] if k < K and 2 * pair < N else u32(0)
                high = held[2 * u + 1] if k < K and 2 * pair + 1 < N else u32(0)
                if i < number:
                    shared[i32(start + (place * rows + k) * cell + pair)] = u32(low | (high << u32(16)))

    return fill


def weights(dtype: str, config: WeightsHalvesConfig) -> Callable[..., None]:
    """w[k,p,q,term] = sum over images n of y[n,k,p,q] * what the term sees in image n at (p,q)."""
    filters, images, places, parts, cell, vec = (
        *(config.filters, config.images, config.places, config.parts),
        *(config.cell, config.vec),
    )
    fill, fill_tops, multiply_add = fill_box(images, cell, config.threads, 16), _fill_tops(config), product(dtype, 16)
    look, read, write = _look_at_words(4), load_vector(dtype, vec, "float32"), store_vector(dtype, vec, "float32")
    tiles, steps, threads, both = filters // 16, -(-images // 16), config.threads, images >= 16
    sums, factors = 16 * tiles, 4 * tiles * steps

    def kernel(  # type: ignore[no-untyped-def]
        x, y, w, slices, across, groups, N, K, C, channels, Q, room, image, taps, padding, stride, dilation, flip, wide,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, WORD)
        total, a, b = cuda.local.array(sums, f32), cuda.local.array(factors, WORD), cuda.local.array(2, WORD)
        spots, result, old = cuda.local.array(4, WORD), cuda.local.array(8, f32), cuda.local.array(8, f32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        rest = i32(u32(cuda.blockIdx.x) // u32(slices))
        c0 = i32((i32(cuda.blockIdx.x) - rest * slices) * channels)
        row = i32(u32(rest) // u32(across))
        q0 = i32((rest - row * across) * places)
        p = i32(u32(row) // u32(groups))
        group = i32(row - p * groups)
        have, count = min(channels, i32(C - c0)), min(i32(places), i32(Q - q0))
        area = i32(taps[0] * taps[1])
        terms = i32(have * area)
        corner = (i32(p * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        # where in the box each term is, in words, in the order in which lanes take them; then the box; then y
        for m in range(thread, room, threads):
            line = i32(u32(m) // u32(taps[1]))
            s = i32(m - line * taps[1])
            c = i32(u32(line) // u32(taps[0]))
            r = i32(line - c * taps[0])
            if flip != 0:
                r = i32(taps[0] - 1 - r)
                s = i32(taps[1] - 1 - s)
            at = i32(((c * taps[0] + r) * wide + s * dilation[1]) * cell)
            slot = i32((m & ~31) + (((m >> 3) & 3) * 2 + (m & 1)) * 4 + ((m >> 1) & 3))
            shared[slot] = u32(at if m < terms else i32(0))
        first = x + i64(group * C + c0) * x_strides[1] * SIZE
        fill(shared, room, first, x_strides, N, (have, taps[0], wide), corner, dilation[0], image)
        tops = i32(room + channels * taps[0] * wide * cell)
        g, t = i32(lane >> 2), i32(lane & 3)
        place, part = i32(warp % places), i32(warp // places)
        own = i32(room + place * stride[1] * cell + t)
        for k0 in range(0, K, filters):
            at_y = i64(group * K + k0) * y_strides[1] + p * y_strides[2] + q0 * y_strides[3]
            fill_tops(shared, tops, y + at_y * SIZE, y_strides, N, i32(K - k0), count)
            cuda.syncthreads()
            for m in range(tiles):
                for step in range(steps):
                    at = i32(tops + (place * filters + m * 16 + g) * cell + step * 8 + t)
                    i = (m * steps + step) * 4
                    a[i], a[i + 1] = shared[at], shared[i32(at + 8 * cell)]
                    a[i + 2] = shared[i32(at + 4)] if both else u32(0)
                    a[i + 3] = shared[i32(at + 8 * cell + 4)] if both else u32(0)
            base = (
                w
                + (i64(group * K + k0 + g) * w_strides[0] + p * w_strides[1] + (q0 + place) * w_strides[2] + c0 * area)
                * SIZE
            )
            for start in range(part * TILE, terms, parts * TILE):
                for i in range(sums):
                    total[i] = f32(0)
                look(spots, i32(0), shared, i32(start + g * 4))
                for j in range(4):
                    for step in range(steps):
                        at = i32(own + i32(spots[j]) + step * 8)
                        b[0] = shared[at]
                        b[1] = shared[i32(at + 4)] if both else u32(0)
                        for m in range(tiles):
                            multiply_add(total, i32((m * 4 + j) * 4), a, i32((m * steps + step) * 4), b, i32(0))
                for m in range(tiles):
                    for upper in range(2):
                        for j in range(4):
                            i = (m * 4 + j) * 4 + 2 * upper
                            result[2 * j], result[2 * j + 1] = f32(alpha * total[i]), f32(alpha * total[i + 1])
                        f = i32(m * 16 + upper * 8)
                        for e in range(0, 8, vec):
                            term = i32(start + 8 * t + e)
                            target = base + (i64(f) * w_strides[0] + term) * SIZE
                            if k0 + f + g < K and place < count and term < terms:
                                if beta != f32(0):
                                    read(old, i32(e), target)
                                    for i in range(vec):
                                        result[e + i] = f32(result[e + i] + beta * old[e + i])
                                write(result, i32(e), target)
            cuda.syncthreads()

    return kernel
