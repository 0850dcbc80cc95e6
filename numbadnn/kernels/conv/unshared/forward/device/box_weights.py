"""grad_weights of an unshared convolution with float32 sums: a block computes several positions.

What the positions see lies in shared memory (``conv/unshared/parts/device/box_fill.py``), and so does what came of
them, [position][filter][image]. A thread has four terms of a position and ``filters`` filters: where images are few all
their pixels stay in registers, else four images at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.box_config import ROWS, BoxConfig
from numbadnn.kernels.conv.unshared.forward.device.f16 import _look_at_words
from numbadnn.kernels.conv.unshared.parts.device.box_fill import fill_box, spots_of
from numbadnn.kernels.conv.unshared.parts.device.receptive_field import first_position
from numbadnn.kernels.lang.access import load, load_shared, load_vector, store_vector
from numbadnn.kernels.lang.async_copies import copy_or_zero_at, wait_async
from numbadnn.kernels.lang.cuda import ELEMENT, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.problem import ITEMSIZE


def _fill_tops(dtype: str, config: BoxConfig) -> Callable[..., None]:
    """``fill(shared, start, y, strides, N, K, count)``: [position][filter][image] from ``y`` on, 0 past filters and images."""
    read, size, threads, images = load(dtype, "float32"), ITEMSIZE[dtype], config.threads, config.images
    positions = config.positions
    number, pitch = positions * ROWS * images, ROWS * images + 4
    batch = max(1, min(8, number // threads))

    @device
    def fill(shared, start, y, strides, N, K, count):
        held = cuda.local.array(batch, f32)
        for i0 in range(i32(cuda.threadIdx.x), number, threads * batch):
            for u in range(batch):
                i = min(i32(i0 + u * threads), i32(number - 1))
                rest = i32(u32(i) // u32(positions))
                place, n = min(i32(i - rest * positions), i32(count - 1)), i32(u32(rest) % u32(images))
                k = i32(u32(rest) // u32(images))
                at = min(n, i32(N - 1)) * strides[0] + min(k, i32(K - 1)) * strides[1] + place * strides[3]
                held[u] = read(y + at * size)
            for u in range(batch):
                i = i32(i0 + u * threads)
                rest = i32(u32(i) // u32(positions))
                place, n, k = i32(i - rest * positions), i32(u32(rest) % u32(images)), i32(u32(rest) // u32(images))
                if i < number:
                    shared[i32(start + place * pitch + k * images + n)] = held[u] if n < N and k < K else f32(0)

    return fill


def _copy_tops(config: BoxConfig) -> Callable[..., None]:
    """The same of float32, asynchronously; 4 images of 8 positions meet all banks."""
    size, threads, images, positions, copy = 4, config.threads, config.images, config.positions, copy_or_zero_at(4)
    pitch = ROWS * images + 4

    @device
    def fill(shared, start, y, strides, N, K, count):
        for i in range(i32(cuda.threadIdx.x), min(i32(ROWS), K) * (images * positions), threads):
            rest = i32(u32(i >> 2) // u32(positions))
            place = i32((i >> 2) - rest * positions)
            n, k = i32(i32(u32(rest) % u32(images // 4)) * 4 + (i & 3)), i32(u32(rest) // u32(images // 4))
            at = i64(min(n, i32(N - 1))) * strides[0] + k * strides[1] + min(place, i32(count - 1)) * strides[3]
            copy(shared, i32(start + place * pitch + k * images + n), y + at * size, n < N)

    return fill


def weights(dtype: str, config: BoxConfig) -> Callable[..., None]:
    """w[k,p,q,term] = sum over images n of y[n,k,p,q] * what the term sees in image n at (p,q)."""
    filters, positions, cell, images, vec = config.filters, config.positions, config.cell, config.images, config.vec
    threads = config.threads
    size, rows, first_of = ITEMSIZE[dtype], ROWS, first_position(1, positions)
    read, write = load_vector(dtype, vec, "float32"), store_vector(dtype, vec, "float32")
    fill_spots, fill_tops = spots_of(threads, cell), _fill_tops(dtype, config) if size < 4 else _copy_tops(config)
    fill = fill_box(dtype, config, 8)
    look_at_spots, look_at_images = _look_at_words(4), load_shared("float32", 4, "float32")
    sums, element, pitch = filters * 4, ELEMENT["float32"], ROWS * images + 4
    at_once = 8 if images == 8 else 4  # images whose pixels a thread holds
    pixels = 4 * at_once

    @device
    def look(values, table, own, spots, first):
        for e in range(4):
            for n in range(0, at_once, 4):
                look_at_images(values, i32(e * at_once + n), table, i32(own + i32(spots[e]) + first + n))

    def kernel(
        x, y, w, slices, blocks, groups, N, K, C, channels, Q, capacity, image, taps, padding, stride, dilation, flip, wide,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        table = cuda.shared.array(0, WORD)
        shared = cuda.shared.array(0, element)  # the same memory
        total, spots = cuda.local.array(sums, f32), cuda.local.array(4, WORD)
        values, top, old = cuda.local.array(pixels, f32), cuda.local.array(at_once, f32), cuda.local.array(vec, f32)
        thread = i32(cuda.threadIdx.x)
        rest = i32(u32(cuda.blockIdx.x) // u32(slices))
        c0 = i32((i32(cuda.blockIdx.x) - rest * slices) * channels)
        group, p, q0 = first_of(rest, blocks, groups)
        have, count = min(channels, i32(C - c0)), min(i32(positions), i32(Q - q0))
        area = i32(taps[0] * taps[1])
        terms = i32(have * area)
        corner = (i32(p * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        fill_spots(table, capacity, terms, taps, (1, dilation[1]), (taps[0], wide), flip, i32(0))
        first = x + i64(group * C + c0) * x_strides[1] * size
        fill(shared, capacity, first, x_strides, N, (have, taps[0], wide), corner, dilation[0], image)
        tops = i32(capacity + channels * taps[0] * wide * cell)
        quads = i32((terms + 3) // 4)
        for k0 in range(0, K, rows):
            at_y = i64(group * K + k0) * y_strides[1] + p * y_strides[2] + q0 * y_strides[3]
            fill_tops(shared, tops, y + at_y * size, y_strides, N, i32(K - k0), count)
            wait_async()
            cuda.syncthreads()
            for task in range(thread, i32(count * quads), threads):
                place = i32(u32(task) // u32(quads))
                m = i32((task - place * quads) * 4)
                own = i32(capacity + place * stride[1] * cell)
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
                if images == at_once:
                    look(values, table, own, spots, i32(0))
                for f0 in range(0, min(i32(rows), i32(K - k0)), filters):
                    for i in range(sums):
                        total[i] = f32(0)
                    for n0 in range(0, images, at_once):
                        if images > at_once:
                            look(values, table, own, spots, i32(n0))
                        for f in range(filters):
                            at = i32(tops + place * pitch + (f0 + f) * images + n0)
                            for n in range(0, at_once, 4):
                                look_at_images(top, i32(n), table, i32(at + n))
                            for n in range(at_once):
                                for e in range(4):
                                    total[f * 4 + e] = f32(total[f * 4 + e] + values[e * at_once + n] * top[n])
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
