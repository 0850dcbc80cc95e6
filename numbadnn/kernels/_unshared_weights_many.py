"""The gradient of a filter for each position, of many images with sums in float32: for each image an outer product of what the
position sees and of what came of it.

Both were turned before, and lie in shared memory as boxes, [channel, row, column][image]. A thread has four neighbouring terms of
a position and ``filters`` filters, and walks four images at a time. Lanes have neighbouring fours, which they write together; the
pixels of every fourth term meet all banks, as pieces of a pixel are exchanged in the box.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from numbadnn.kernels._async_copies import wait_async
from numbadnn.kernels._cuda import cuda, f32, i32, i64, u32
from numbadnn.kernels._implicit_tiles import INT32
from numbadnn.kernels._implicit_tiles_words import read_at, shared_address
from numbadnn.kernels._ptx import ELEMENT, WORD, load_vector, store_vector, wait_for_previous
from numbadnn.kernels._unshared_box_fill import spots_of
from numbadnn.kernels._unshared_halves import _look_at_words
from numbadnn.kernels._unshared_seen import first_position
from numbadnn.kernels._unshared_turned import copy_box
from numbadnn.kernels.unshared_weights_many import LOT, WeightsManyConfig


def weights(config: WeightsManyConfig) -> Callable[..., None]:
    """w[k,p,q,term] = sum over images n of y[n,k,p,q] * what the term sees in image n at (p,q)."""
    filters, rows, images, threads, tall, places, vec = (
        config.filters, config.rows, config.images, config.threads, config.tall, config.places, config.vec,
    )  # fmt: skip
    positions, first_of, fill_spots = tall * places, first_position(tall, places), spots_of(threads, 4 * images)
    copy, copy_tops = copy_box(4, images, threads, images, True), copy_box(4, images, threads, images + 4)
    look, look_at_spots, element = read_at("float32", LOT), _look_at_words(4), ELEMENT["float32"]
    read, write = load_vector("float32", vec, "float32"), store_vector("float32", vec, "float32")
    sums, pixels, tops_words = filters * 4, 4 * LOT, positions * rows * (images + 4)
    shift, pieces, size = int(math.log2(images)), (images // 4 - 1) * 16, 4 * images
    top_size = size + 16  # what came of two positions is in different banks

    def kernel(  # type: ignore[no-untyped-def]
        x, y, w, slices, across, groups, N, K, C, channels, P, Q, room, image, taps, padding, stride, dilation, flip, box,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        table, shared = cuda.shared.array(0, WORD), cuda.shared.array(0, element)  # the same memory
        total, seen, top = cuda.local.array(sums, f32), cuda.local.array(pixels, f32), cuda.local.array(LOT, f32)
        spots, old = cuda.local.array(4, WORD), cuda.local.array(vec, f32)
        there, exchanged = cuda.local.array(4, INT32), cuda.local.array(4, INT32)
        thread = i32(cuda.threadIdx.x)
        rest = i32(u32(cuda.blockIdx.x) // u32(slices))
        c0 = i32((i32(cuda.blockIdx.x) - rest * slices) * channels)
        group, p0, q0 = first_of(rest, across, groups)
        have, area = min(channels, i32(C - c0)), i32(taps[0] * taps[1])
        terms = i32(have * area)
        quads = i32(u32(terms + 3) // u32(4))
        corner = (i32(p0 * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        tops_at = i32(i32(shared_address(shared)) + room * 4)
        seen_at, step = i32(tops_at + tops_words * 4), i64(w_strides[0] * 4)
        fill_spots(table, room, terms, taps, dilation, box, flip, i32(0))
        wait_for_previous()
        first = x + i64(group * C + c0) * x_strides[1] * 4
        copy(shared, i32(room + tops_words), i32(4), first, x_strides, (have, box[0], box[1]), corner, i32(1), image)
        for k0 in range(0, K, rows):
            at_y, left = y + i64(group * K + k0) * y_strides[1] * 4, min(i32(rows), i32(K - k0))
            copy_tops(shared, room, i32(4), at_y, y_strides, (left, tall, places), (p0, q0), i32(1), (P, Q))
            wait_async()
            cuda.syncthreads()
            parts = i32((left + filters - 1) // filters)
            for task in range(thread, i32(positions * parts * quads), threads):
                rest = i32(u32(task) // u32(quads))
                m, place = i32((task - rest * quads) * 4), i32(rest % positions)
                f0 = i32(rest // positions * filters)
                p, q = i32(p0 + place // places), i32(q0 + place % places)
                own = i32((place // places * stride[0] * box[1] + place % places * stride[1]) * size)
                look_at_spots(spots, i32(0), table, m)
                for e in range(4):
                    at = i32(own + i32(spots[e]))
                    there[e], exchanged[e] = i32(seen_at + at), i32((at >> shift) & pieces)
                if p < P and q < Q:
                    for i in range(sums):
                        total[i] = f32(0)
                    own_top = i32(tops_at + (f0 * positions + place) * top_size)
                    for n0 in range(i32(0), i32(size), i32(4 * LOT)):
                        for e in range(4):
                            look(seen, i32(e * LOT), shared, i32(there[e] + (exchanged[e] ^ n0)))
                        at_top = i32(own_top + n0)
                        for f in range(filters):
                            look(top, i32(0), shared, i32(at_top + f * positions * top_size))
                            for n in range(LOT):
                                for e in range(4):
                                    total[f * 4 + e] = f32(total[f * 4 + e] + seen[e * LOT + n] * top[n])
                    for i in range(sums):
                        total[i] = f32(alpha * total[i])
                    at_w = i64(group * K + k0 + f0) * w_strides[0] + i64(p) * w_strides[1] + i64(q) * w_strides[2]
                    row = w + (at_w + (c0 * area + m)) * 4
                    if beta != f32(0):
                        for f in range(filters):
                            for e in range(0, 4, vec):
                                if f0 + f < left and m + e < terms:
                                    read(old, i32(0), row + f * step + e * 4)
                                    for i in range(vec):
                                        total[f * 4 + e + i] = f32(total[f * 4 + e + i] + beta * old[i])
                    for f in range(filters):
                        for e in range(0, 4, vec):
                            if f0 + f < left and m + e < terms:
                                write(total, i32(f * 4 + e), row + e * 4)
                        row = row + step
            cuda.syncthreads()

    return kernel
