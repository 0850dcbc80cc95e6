"""Unshared convolution of 16-bit types on tensor cores, several positions a block: what they see is gathered once for all.

A block has some neighbouring positions of a row and ``channels`` channels at a time. The box of pixels that these see lies in
shared memory as words of two images (``_unshared_weights_halves``); a term (channel, tap) is a place in it. A warp has one
position, or a share of its terms, and reads filters straight into the registers of a product, ``ahead`` chunks of 32 terms before
it needs them: a lane has 8 neighbouring terms of two filters. Words of two terms are made of two words of two images as they are
needed. Warps that share a position add their sums through shared memory, in order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numbadnn.kernels._cuda import cuda, device, f32, i32, i64, u32
from numbadnn.kernels._mma import product
from numbadnn.kernels._packed import load_words
from numbadnn.kernels._ptx import ELEMENT, WORD, load, store
from numbadnn.kernels._unshared_halves import _look_at_words
from numbadnn.kernels._unshared_weights_halves import fill_box
from numbadnn.kernels.unshared_places import CHUNK, LANES, PlacesConfig

#: bytes of an element
SIZE = 2


def _ask(config: PlacesConfig) -> Callable[..., None]:
    """``ask(held, slot, base, rows, m, terms)``: a lane's terms of its filters in one chunk, from term ``m`` on."""
    vec, tiles, read = config.vec, config.filters // 16, load_words(config.vec // 2)

    @device
    def ask(held, slot, base, rows, m, terms):  # type: ignore[no-untyped-def]
        for f in range(2 * tiles):
            for e in range(0, 8, vec):
                # past the end the last terms are read again, and not used
                at = i64(rows[f]) + min(i32(m + e), i32(terms - vec))
                read(held, i32(slot + f * 4 + e // 2), base + at * SIZE)

    return ask


def _multiply(dtype: str, config: PlacesConfig) -> Callable[..., None]:
    """``multiply(total, a, b, spots, held, slot, shared, own, table, m, end, odd)``: one chunk; ``m``: a lane's first term."""
    tiles, images, multiply_add, look = config.filters // 16, config.images, product(dtype, 16), _look_at_words(4)
    columns = max(1, images // 8)

    @device
    def multiply(total, a, b, spots, held, slot, shared, own, table, m, end, odd):  # type: ignore[no-untyped-def]
        look(spots, i32(0), shared, i32(table))
        look(spots, i32(4), shared, i32(table + 4))
        for step in range(2):
            for f in range(tiles):
                for e in range(2):
                    there = m + 4 * step + 2 * e < end
                    a[4 * f + 2 * e] = held[slot + 8 * f + 2 * step + e] if there else u32(0)
                    a[4 * f + 2 * e + 1] = held[slot + 8 * f + 4 + 2 * step + e] if there else u32(0)
            for j in range(0, columns, 2):
                for e in range(2):
                    low = shared[i32(own + i32(spots[4 * step + 2 * e]) + 4 * j)]
                    high = shared[i32(own + i32(spots[4 * step + 2 * e + 1]) + 4 * j)]
                    even, upper = (
                        u32((low & u32(0xFFFF)) | (high << u32(16))),
                        u32((low >> u32(16)) | (high & u32(0xFFFF0000))),
                    )
                    if columns == 1:
                        b[e] = upper if odd else even
                    else:
                        b[e], b[2 + e] = even, upper
                for i in range(1 if columns == 1 else 2):
                    for f in range(tiles):
                        multiply_add(total, i32((f * columns + j + i) * 4), a, i32(4 * f), b, i32(2 * i))

    return multiply


def forward(dtype: str, config: PlacesConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    filters, images, places, parts, ahead, cell, whole = (
        *(config.filters, config.images, config.places, config.parts, config.ahead, config.cell, config.whole),
    )
    read, write, fill, ask, multiply = (
        *(
            load(dtype, "float32"),
            store(dtype, "float32"),
            fill_box(images, cell, config.threads, 16 if config.resident == 1 and config.threads <= 256 else 4),
            _ask(config),
            _multiply(dtype, config),
        ),
    )
    tiles, columns, threads, each, element = (
        *(filters // 16, max(1, images // 8), config.threads, 8 * (filters // 16), ELEMENT["float32"]),
    )
    sums, waiting, factors, rows_count = 4 * tiles * columns, ahead * each, 4 * tiles, 2 * tiles
    outputs = places * filters * images

    def kernel(  # type: ignore[no-untyped-def]
        x, w, y, across, groups, N, K, C, channels, Q, room, image, taps, padding, stride, dilation, flip, wide,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, WORD)
        parted = cuda.shared.array(0, element)  # the same memory
        total, a, b = cuda.local.array(sums, f32), cuda.local.array(factors, WORD), cuda.local.array(4, WORD)
        held, spots = cuda.local.array(waiting, WORD), cuda.local.array(8, WORD)
        rows = cuda.local.array(rows_count, np.int64)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        row = i32(u32(cuda.blockIdx.x) // u32(across))
        q0 = i32((i32(cuda.blockIdx.x) - row * across) * places)
        p = i32(u32(row) // u32(groups))
        group = i32(row - p * groups)
        count = min(i32(places), i32(Q - q0))
        area = i32(taps[0] * taps[1])
        corner = (i32(p * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        g, t = i32(lane >> 2), i32(lane & 3)
        place, part = i32(warp % places), i32(warp // places)
        odd = (g & 1) != 0 and columns == 1
        own = i32(room + place * stride[1] * cell + (g if columns > 1 else g >> 1))
        step = i32(parts * CHUNK)
        begin = i32(part * CHUNK + 8 * t)
        q = min(i32(q0 + place), i32(Q - 1))
        base = w + (i64(group * K) * w_strides[0] + p * w_strides[1] + q * w_strides[2]) * SIZE
        for k0 in range(0, K, filters):
            for f in range(rows_count):
                rows[f] = i64(min(i32(k0 + f * 8 + g), i32(K - 1))) * w_strides[0]
            for i in range(sums):
                total[i] = f32(0)
            for c0 in range(0, 1 if whole else C, channels):
                have = min(channels, i32(C - c0))
                terms = i32(have * area)
                start = base + i64(c0 * area) * SIZE
                for i in range(ahead):
                    ask(held, i32(i * each), start, rows, i32(begin + i * step), terms)
                cuda.syncthreads()
                for m in range(thread, room, threads):
                    line = i32(u32(m) // u32(taps[1]))
                    s = i32(m - line * taps[1])
                    c = i32(u32(line) // u32(taps[0]))
                    r = i32(line - c * taps[0])
                    if flip != 0:
                        r = i32(taps[0] - 1 - r)
                        s = i32(taps[1] - 1 - s)
                    at = i32(((c * taps[0] + r) * wide + s * dilation[1]) * cell)
                    shared[m] = u32(at if m < terms else i32(0))
                first = x + i64(group * C + c0) * x_strides[1] * SIZE
                box = (have, taps[0], wide)
                fill(shared, room, first, x_strides, N, box, corner, dilation[0], image)
                cuda.syncthreads()
                for m0 in range(begin, i32(terms + 8 * t), i32(ahead * step)):
                    for i in range(ahead):
                        m = i32(m0 + i * step)
                        table = m if m < room else 8 * t
                        multiply(total, a, b, spots, held, i32(i * each), shared, own, table, m, terms, odd)
                        ask(held, i32(i * each), start, rows, i32(m + ahead * step), terms)
            # sums [part][position][filter][image], over the box where there is one box
            cuda.syncthreads()
            for f in range(tiles):
                for j in range(columns):
                    for i in range(4):
                        k = i32(f * 16 + (i >> 1) * 8 + g)
                        column = i32(2 * t + (i & 1))
                        n = column if columns == 1 else i32(2 * ((j // 2) * 8 + column) + (j & 1))
                        parted[i32(room + ((part * places + place) * filters + k) * images + n)] = total[
                            (f * columns + j) * 4 + i
                        ]
            cuda.syncthreads()
            for i in range(thread, outputs, threads):
                rest, at_place = i32(i // places), i32(i % places)
                k, n = i32(rest % filters), i32(rest // filters)
                value = f32(0)
                for other in range(parts):
                    value = f32(value + parted[i32(room + ((other * places + at_place) * filters + k) * images + n)])
                if at_place < count and n < N and k0 + k < K:
                    at = (
                        i64(n) * y_strides[0]
                        + (group * K + k0 + k) * y_strides[1]
                        + p * y_strides[2]
                        + (q0 + at_place) * y_strides[3]
                    )
                    target = y + at * SIZE
                    result = f32(alpha * value)
                    if beta != f32(0):
                        result = f32(result + beta * read(target))
                    write(target, result)

    return kernel
