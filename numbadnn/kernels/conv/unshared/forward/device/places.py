"""Unshared convolution of 16-bit types on tensor cores, several positions a block: what they see is gathered once for all.

A block has ``tall`` rows of some neighbouring positions, and what they see (``conv/unshared/parts/device/seen.py``) in
shared memory, all channels or some at a time. A warp has one position of a row after another, or a share of its terms,
and reads filters straight into the registers of a product, ``ahead`` chunks of 32 terms before it needs them, those of
the next row among them: a lane has 8 neighbouring terms of two filters. Sums of what a block has no room for at once,
and of warps that share a position, meet in shared memory, in order.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.places_config import CHUNK, LANES, PlacesConfig
from numbadnn.kernels.conv.unshared.parts.device.seen import (
    EIGHT,
    NONE,
    ROW,
    SIZE,
    fill_seen,
    fill_spots,
    first_position,
)
from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ELEMENT, HALF, INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.packed import load_words
from numbadnn.kernels.lang.words import shared_address


def _ask(config: PlacesConfig) -> Callable[..., None]:
    """``ask(held, slot, base, step, left, m, terms)``: a lane's terms from ``m`` on, of ``left`` filters, every eighth."""
    vec, tiles, read = config.vec, config.filters // 16, load_words(config.vec // 2)

    @device
    def ask(held, slot, base, step, left, m, terms):
        for e in range(0, 8, vec):
            # past the end the last terms are read again, and not used; and so are the last filters
            row = base + i64(min(i32(m + e), i32(terms - vec))) * SIZE
            for f in range(2 * tiles):
                read(held, i32(slot + f * 4 + e // 2), row)
                row = row + (step if 8 * f + 8 < left else i64(0))

    return ask


def forward(dtype: str, config: PlacesConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    filters, images, places, parts, ahead, whole, tall = (
        *(config.filters, config.images, config.places, config.parts, config.ahead, config.whole, config.tall),
    )
    read, write, fill, place_terms, ask = (
        *(load(dtype, "float32"), store(dtype, "float32")),
        *(fill_seen(images, config.threads), fill_spots(config.threads, True), _ask(config)),
    )
    first_of = first_position(tall, places)
    multiply_add, look = product(dtype, 16), load_matrices(True)
    tiles, columns, threads, each, element = (
        *(filters // 16, images // EIGHT, config.threads, 8 * (filters // 16), ELEMENT["float32"]),
    )
    sums, waiting, factors, outputs, pitch = (
        4 * tiles * columns,
        ahead * each,
        each,
        places * filters * images,
        config.pitch,
    )

    def kernel(
        x, w, y, across, groups, N, K, C, channels, P, Q, room, image, taps, padding, stride, dilation, flip, box,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        shared, halves = cuda.shared.array(0, WORD), cuda.shared.array(0, HALF)
        parted = cuda.shared.array(0, element)  # the same memory
        total, held = cuda.local.array(sums, f32), cuda.local.array(waiting, WORD)
        a, b = cuda.local.array(factors, WORD), cuda.local.array(4, INT32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        group, p0, q0 = first_of(i32(cuda.blockIdx.x), across, groups)
        count, rows = min(i32(places), i32(Q - q0)), min(i32(tall), i32(P - p0))
        area = i32(taps[0] * taps[1])
        corner = (i32(p0 * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        g, t = i32(lane >> 2), i32(lane & 3)
        place, part = i32(warp % places), i32(warp // places)
        plane = i32(channels * box[0] * box[1] * ROW)
        results = i32(room + columns * plane + ROW)
        zeros = i32(shared_address(shared) + (results - ROW) * 4)
        if thread < ROW:
            shared[i32(results - ROW + thread)] = u32(0)
        seen = i32(shared_address(shared) + (room + place * stride[1] * ROW) * 4)
        step = i32(parts * CHUNK)
        begin = i32(part * CHUNK + 8 * t)
        q = min(i32(q0 + place), i32(Q - 1))
        base = w + (i64(group * K) * w_strides[0] + p0 * w_strides[1] + q * w_strides[2]) * SIZE
        for k0 in range(0, K, filters):
            k1 = min(i32(k0 + g), i32(K - 1))
            left, step_k = i32(K - k1), i64(8 * SIZE) * w_strides[0]
            for c0 in range(0, 1 if whole else C, channels):
                have = min(channels, i32(C - c0))
                terms = i32(have * area)
                here = base + (i64(k1) * w_strides[0] + c0 * area) * SIZE
                for i in range(ahead):
                    ask(held, i32(i * each), here, step_k, left, i32(begin + i * step), terms)
                if k0 == 0 or not whole:
                    cuda.syncthreads()
                    place_terms(shared, room, terms, taps, dilation, (have, box[0], box[1]), flip)
                    first = x + i64(group * C + c0) * x_strides[1] * SIZE
                    fill(shared, room, plane, first, x_strides, N, (have, box[0], box[1]), corner, image)
                    cuda.syncthreads()
                for down in range(rows):
                    there = i32(seen + down * stride[0] * box[1] * (4 * ROW))
                    following = here + (w_strides[1] * SIZE if down + 1 < rows else i64(0))
                    for i in range(sums):
                        total[i] = f32(0)
                    for m0 in range(begin, i32(terms + 8 * t), i32(ahead * step)):
                        ends = m0 + ahead * step >= terms + 8 * t
                        for i in range(ahead):
                            m = i32(m0 + i * step)
                            for f in range(tiles):
                                for e in range(4):
                                    a[8 * f + 2 * e] = held[i * each + 8 * f + e]
                                    a[8 * f + 2 * e + 1] = held[i * each + 8 * f + 4 + e]
                            source = following if ends else here
                            ask(
                                held,
                                i32(i * each),
                                source,
                                step_k,
                                left,
                                i32(begin + i * step) if ends else i32(m + ahead * step),
                                terms,
                            )
                            first_of_block = i32(m - begin)
                            if first_of_block < terms:  # every warp, or none: some have nothing but zeros
                                if m - 8 * t + CHUNK > terms:
                                    for e in range(factors):
                                        a[e] = a[e] if m + 2 * (e // 2 % 4) < terms else u32(0)
                                spot = shared[i32(min(i32(m - 8 * t), i32(room - CHUNK)) + lane)]
                                beyond = spot == NONE or m - 8 * t >= room
                                at = zeros if beyond else i32(there + i32(spot))
                                to_plane = i32(0) if beyond else i32(plane * 4)
                                for n in range(columns):
                                    look(b, i32(0), halves, i32(at + n * to_plane))
                                    for f in range(tiles):
                                        to = i32((f * columns + n) * 4)
                                        multiply_add(total, to, a, i32(8 * f), b, i32(0))
                                        multiply_add(total, to, a, i32(8 * f + 4), b, i32(2))
                    here = following
                    for f in range(tiles):
                        for n in range(columns):
                            for i in range(4):
                                k = i32(f * 16 + (i >> 1) * 8 + g)
                                row_of = i32(((down * parts + part) * places + place) * filters + k)
                                to = i32(results + row_of * pitch + n * EIGHT + 2 * t + (i & 1))
                                value = total[(f * columns + n) * 4 + i]
                                parted[to] = value if c0 == 0 else f32(parted[to] + value)
            cuda.syncthreads()
            for i in range(thread, i32(rows * outputs), threads):
                rest, at_place = i32(i // places), i32(i % places)
                k, rest = i32(rest % filters), i32(rest // filters)
                n, down = i32(rest % images), i32(rest // images)
                value = f32(0)
                for other in range(parts):
                    row_of = i32(((down * parts + other) * places + at_place) * filters + k)
                    value = f32(value + parted[i32(results + row_of * pitch + n)])
                if at_place < count and n < N and k0 + k < K:
                    at = i64(n) * y_strides[0] + (group * K + k0 + k) * y_strides[1]
                    target = y + (at + (p0 + down) * y_strides[2] + (q0 + at_place) * y_strides[3]) * SIZE
                    result = f32(alpha * value)
                    if beta != f32(0):
                        result = f32(result + beta * read(target))
                    write(target, result)
            if k0 + filters < K:
                cuda.syncthreads()

    return kernel
