"""grad_weights of an unshared convolution of many images on tensor cores: sums over images, each filter stored once.

Products of float32 are exact in float64, which such sums have, rounded once; those of 16-bit types are summed in float32.
Both arrays were transposed before. A block has the box of pixels that its positions see in shared memory, [channel, row,
column][image]; a warp has a position: what came of it, filters times images, stays in registers, and 64 bytes of terms at a
time pass, read once for 16 filters or, of 16-bit types, for 32. The columns of ``wide`` / 2 products are chosen so that lane
4 g + t has 16 bytes of terms of filters g and g + 8, and of those 16 further on:

    column 2 u + e of product j    is term    wide u + 2 j + e        columns 2 t and 2 t + 1 of all are wide t ... wide (t + 1)

A lane reads 16 bytes of a pixel, some images: any order of the images does, if it is that of both factors.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.parts.device.box_fill import spots_of
from numbadnn.kernels.conv.unshared.parts.device.receptive_field import first_position
from numbadnn.kernels.conv.unshared.parts.device.transposed import copy_box
from numbadnn.kernels.conv.unshared.weights.many_config import FILTERS, LANES, WeightsManyConfig
from numbadnn.kernels.lang.access import load_vector
from numbadnn.kernels.lang.async_copies import wait_async
from numbadnn.kernels.lang.cuda import INT32, WORD, cuda, device, f32, f64, i32, i64, u32
from numbadnn.kernels.lang.epilogue import storing_vector
from numbadnn.kernels.lang.mma import product
from numbadnn.kernels.lang.packed import load_words
from numbadnn.kernels.lang.ptx import wait_for_previous
from numbadnn.kernels.lang.words import read_at, shared_address
from numbadnn.problem import ITEMSIZE


def weights(dtype: str, config: WeightsManyConfig) -> Callable[..., None]:
    """w[k,p,q,term] = sum over images n of y[n,k,p,q] * what the term sees in image n at (p,q)."""
    images, threads, tall, positions, vec = config.images, config.threads, config.tall, config.positions, config.vec
    tiles = config.filter_tiles
    single, size = dtype == "float32", ITEMSIZE[dtype]
    pixel, wide, tile = images * size, 16 // size, 64 // size
    looks, words = max(1, pixel // 64), min(4, pixel // 16)  # of a lane at a pixel
    each = 4 if single else 2  # of an operand of a product, and those of a look
    steps = words // each
    first_of, fill_spots = first_position(tall, positions), spots_of(threads, pixel)
    copy = copy_box(size, images, threads, pixel // 4, True)
    multiply_add = product("float64" if single else dtype, 16, config.whole)
    look = read_at("float32" if single else "int32", words)
    fetch = load_vector("float32", 4, "float32") if single else load_words(words)
    store = storing_vector(dtype, vec, given_up="first")
    acc, raw, factor, taken = (f64, f32, f64, f64) if single else (f32, INT32, INT32, i32)
    halves, pieces = 64 * (looks - 1), looks * wide // 2
    loaded_words = pieces * words
    of_tile, of_factors, row_vectors, at_once = 2 * wide, 2 * words * looks, 2 * tiles, FILTERS * tiles
    sums, factors = of_tile * tiles, of_factors * tiles

    @device
    def scaled(value, by):
        return f64(f64(value) * by) if single else i32(value)

    @device
    def prefetch(pixels, shared, spot, own, start):
        for j in range(wide // 2):
            at = i32(own + i32(shared[i32(spot + 2 * j)]))
            exchanged = i32((at >> 1) & halves)  # of an odd pixel the last images come first
            for n in range(looks):
                to = i32((j * looks + n) * words)
                look(pixels, to, shared, i32(start + at + (exchanged ^ (64 * n))))

    def kernel(
        x, y, w, slices, length, across, groups, N, K, C, channels, P, Q, capacity, image, taps, padding, stride, dilation, flip,
        box, x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, WORD)
        total, a, b = cuda.local.array(sums, acc), cuda.local.array(factors, factor), cuda.local.array(words, factor)
        held, pixels = cuda.local.array(words, raw), cuda.local.array(loaded_words, raw)
        result = cuda.local.array(wide, f32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        g, t = i32(lane >> 2), i32(lane & 3)
        rest = i32(u32(cuda.blockIdx.x) // u32(slices))
        m0 = i32((i32(cuda.blockIdx.x) - rest * slices) * length)
        group, p0, q0 = first_of(rest, across, groups)
        down, right = i32(warp // positions), i32(warp % positions)
        p, q, area = i32(p0 + down), i32(q0 + right), i32(taps[0] * taps[1])
        terms, inside = min(length, i32(C * area - m0)), p < P and q < Q
        c0 = i32(u32(m0) // u32(area))
        have = i32(u32(m0 + terms - 1) // u32(area) + 1 - c0)
        own_terms, own_spot = i32(terms - wide * t), i32(m0 - c0 * area + wide * (g >> 1) + (g & 1))
        corner = (i32(p0 * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        fill_spots(shared, capacity, i32(have * area), taps, dilation, box, flip, i32(0))
        wait_for_previous()
        first = x + i64(group * C + c0) * x_strides[1] * size
        copy(shared, capacity, i32(4), first, x_strides, (have, box[0], box[1]), corner, image)
        scale = (
            f64(alpha) if single else f32(alpha)
        )  # in y's factor; without it the compiler widens y again for each term
        own = i32((down * stride[0] * box[1] + right * stride[1]) * pixel)
        start = i32(i32(shared_address(shared)) + capacity * 4 + t * words * 4)
        at_y = y + (min(p, i32(P - 1)) * y_strides[2] + min(q, i32(Q - 1)) * y_strides[3]) * size + t * words * 4
        at_w = w + (i64(group * K + g) * w_strides[0] + i64(p) * w_strides[1] + i64(q) * w_strides[2]) * size
        at_w, vector_stride = at_w + (m0 + wide * t) * size, i64(w_strides[0] * (8 * size))
        for k0 in range(0, K, at_once):
            for row in range(row_vectors):  # eight filters
                k = i64(group * K + min(i32(k0 + 8 * row + g), i32(K - 1)))
                for n in range(looks):
                    fetch(held, i32(0), at_y + k * y_strides[1] * size + n * 64)
                    for i in range(words):
                        a[row // 2 * of_factors + (n * words + i) * 2 + row % 2] = scaled(held[i], scale)
            left = i32(K - k0 - g) if inside else i32(0)
            if k0 == 0:
                wait_async()
                cuda.syncthreads()
            prefetch(pixels, shared, own_spot, own, start)
            for m in range(i32(0), terms, i32(tile)):
                for i in range(sums):
                    total[i] = acc(0)
                for i in range(pieces):
                    for e in range(words):
                        b[e] = taken(pixels[i * words + e])
                    for step in range(steps):
                        at_a = i32((i % looks * steps + step) * each * 2)
                        for n in range(tiles):
                            to = i32(n * of_tile + i // looks * 4)
                            multiply_add(total, to, a, i32(n * of_factors + at_a), b, i32(step * each))
                prefetch(pixels, shared, i32(own_spot + m + tile), own, start)  # while products are under way
                target = at_w + m * size
                for row in range(row_vectors):
                    for e in range(wide):
                        value = total[row // 2 * of_tile + e // 2 * 4 + row % 2 * 2 + e % 2]
                        result[e] = f32(value) if single else f32(alpha * value)
                    for e in range(0, wide, vec):
                        if 8 * row < left and m + e < own_terms:
                            store(result, i32(e), target + e * size, beta)
                    target = target + vector_stride
            at_w = at_w + row_vectors * vector_stride

    return kernel
