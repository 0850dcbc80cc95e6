"""grad_weights of an unshared convolution, 16-bit, on tensor cores: sums over images, each filter stored once.

A block has ``tall`` rows of some neighbouring positions and some channels of a group. What they see lies in shared memory
(``conv/unshared/parts/device/receptive_field.py``), and so does what came of them, as a box of its own whose channels are
filters. A warp has one position of a row after another: its filters times images stay in registers, and 32 terms at a time pass.
The columns of a product are chosen so that a lane has 8 neighbouring terms.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.parts.device.receptive_field import (
    EIGHT,
    NONE,
    ROW,
    SIZE,
    fill_field,
    fill_spots,
    first_position,
)
from numbadnn.kernels.conv.unshared.weights.f16_config import LANES, TILE, WeightsF16Config
from numbadnn.kernels.lang.cuda import HALF, INT32, WORD, cuda, f32, i32, i64, u32
from numbadnn.kernels.lang.epilogue import storing_vector
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.words import shared_address


def weights(dtype: str, config: WeightsF16Config) -> Callable[..., None]:
    """w[k,p,q,term] = sum over images n of y[n,k,p,q] * what the term sees in image n at (p,q)."""
    filters, images, positions, parts, vec = config.filters, config.images, config.positions, config.parts, config.vec
    tall = config.tall
    first_of = first_position(tall, positions)
    fill, place_terms = fill_field(images, config.threads), fill_spots(config.threads)
    look, multiply_add = load_matrices(False), product(dtype, 16)
    store = storing_vector(dtype, vec)
    tiles, planes, steps, both = filters // 16, images // EIGHT, -(-images // 16), images >= 16
    sums, factors, words = 16 * tiles, 4 * tiles * steps, 4 * planes

    def kernel(
        x, y, w, slices, across, groups, N, K, C, channels, P, Q, capacity, image, taps, padding, stride, dilation, flip, box,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        shared, shared16 = cuda.shared.array(0, WORD), cuda.shared.array(0, HALF)  # the same memory
        total, a = cuda.local.array(sums, f32), cuda.local.array(factors, INT32)
        pixels, b = cuda.local.array(words, INT32), cuda.local.array(2, INT32)
        result = cuda.local.array(8, f32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        rest = i32(u32(cuda.blockIdx.x) // u32(slices))
        c0 = i32((i32(cuda.blockIdx.x) - rest * slices) * channels)
        group, p0, q0 = first_of(rest, across, groups)
        have, count, rows = min(channels, i32(C - c0)), min(i32(positions), i32(Q - q0)), min(i32(tall), i32(P - p0))
        area = i32(taps[0] * taps[1])
        terms = i32(have * area)
        corner = (i32(p0 * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        place_terms(shared, capacity, terms, taps, dilation, (have, box[0], box[1]), flip)
        first, plane = x + i64(group * C + c0) * x_strides[1] * SIZE, i32(channels * box[0] * box[1] * ROW)
        field_box = (have, box[0], box[1])
        fill(shared, capacity, plane, first, x_strides, N, field_box, corner, image)
        tops, top_plane = i32(capacity + planes * plane), i32(filters * tall * positions * ROW)
        g, t = i32(lane >> 2), i32(lane & 3)
        place, part = i32(warp % positions), i32(warp // positions)
        start = i32(shared_address(shared))
        own = i32(start + (capacity + place * stride[1] * ROW) * 4)
        # matrices of y: filters 0 to 7 and 8 to 15 of eight images, then of the next eight
        row_of_y = i32((lane & 7) + ((lane >> 3) & 1) * 8)
        own_y = i32(
            start + (tops + (lane >> 4 if both else 0) * top_plane + (row_of_y * tall * positions + place) * ROW) * 4
        )
        for k0 in range(0, K, filters):
            at_y = y + i64(group * K + k0) * y_strides[1] * SIZE
            tops_box = (min(i32(filters), i32(K - k0)), tall, positions)
            fill(shared, tops, top_plane, at_y, y_strides, N, tops_box, (p0, q0), (P, Q))
            cuda.syncthreads()
            for down in range(rows):
                for m in range(tiles):
                    for step in range(steps):
                        at = i32(own_y + (step * 2 * top_plane + (m * 16 * tall + down) * positions * ROW) * 4)
                        look(a, i32((m * steps + step) * 4), shared16, at)
                        if not both:
                            a[m * 4 + 2], a[m * 4 + 3] = i32(0), i32(0)
                base = w + (i64(group * K + k0 + g) * w_strides[0] + c0 * area) * SIZE
                base = base + ((p0 + down) * w_strides[1] + (q0 + place) * w_strides[2]) * SIZE
                there = i32(own + down * stride[0] * box[1] * (4 * ROW))
                for s0 in range(0, terms, parts * TILE):
                    m0 = i32(s0 + part * TILE)
                    spot = shared[i32(min(m0, i32(capacity - TILE)) + lane)]
                    at = i32(there + (i32(0) if spot == NONE else i32(spot)))  # what is past the end is not written
                    for n in range(planes):
                        look(pixels, i32(4 * n), shared16, i32(at + n * plane * 4))
                    for i in range(sums):
                        total[i] = f32(0)
                    for j in range(4):
                        for step in range(steps):
                            b[0] = pixels[8 * step + j]
                            b[1] = pixels[8 * step + 4 + j] if both else i32(0)
                            for m in range(tiles):
                                multiply_add(total, i32((m * 4 + j) * 4), a, i32((m * steps + step) * 4), b, i32(0))
                    for m in range(tiles):
                        for upper in range(2):
                            for j in range(4):
                                i = (m * 4 + j) * 4 + 2 * upper
                                result[2 * j], result[2 * j + 1] = f32(alpha * total[i]), f32(alpha * total[i + 1])
                            f = i32(m * 16 + upper * 8)
                            for e in range(0, 8, vec):
                                term = i32(m0 + 8 * t + e)
                                target = base + (i64(f) * w_strides[0] + term) * SIZE
                                if k0 + f + g < K and place < count and term < terms:
                                    store(result, i32(e), target, beta)
            cuda.syncthreads()

    return kernel
