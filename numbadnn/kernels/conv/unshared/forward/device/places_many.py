"""Unshared convolution of many images of 16-bit types on tensor cores: a warp for each position and 16 filters.

What the positions of a block see lies in shared memory (``conv/unshared/parts/device/seen.py``), all channels or some
at a time: the next are copied while these are multiplied. Filters go from memory straight into the registers of a
product, ``ahead`` chunks of 32 terms before they are needed: a lane has 8 neighbouring terms of two filters. The sums
stay in registers to the end.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.places_many_config import CHUNK, LANES, ROWS, PlacesManyConfig
from numbadnn.kernels.conv.unshared.parts.device.seen import EIGHT, NONE, ROW, SIZE, fill_spots, first_position
from numbadnn.kernels.conv.unshared.parts.device.turned import copy_box
from numbadnn.kernels.lang.async_copies import wait_async
from numbadnn.kernels.lang.cuda import ELEMENT, HALF, INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.epilogue import scaled
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.packed import load_words
from numbadnn.kernels.lang.ptx import wait_for_previous
from numbadnn.kernels.lang.words import shared_address


def _ask(vec: int) -> Callable[..., None]:
    """``ask(held, slot, low, high, m, terms)``: a lane's terms from ``m`` on, of two filters."""
    read = load_words(vec // 2)

    @device
    def ask(held, slot, low, high, m, terms):
        for e in range(0, 8, vec):  # past the end the last terms are read again, and not used
            at = i64(i32(min(i32(m + e), i32(terms - vec)) * SIZE))
            read(held, i32(slot + e // 2), low + at)
            read(held, i32(slot + 4 + e // 2), high + at)

    return ask


def written_sums(dtype: str, tall: int, places: int, filters: int, pitch: int, place_pitch: int) -> Callable[..., None]:
    """``write(y, parted, start, first, sizes, strides, alpha, beta)``: sums, [position][filter][image] from ``start`` on.

    ``first``: its group, row and column; ``sizes``: N, K, P, Q. A thread has a filter of a position, and every other image, as
    a position has twice as many threads as filters: neighbouring lanes have neighbouring positions, and addresses are sums.
    """
    put, positions = scaled(dtype, "float32"), tall * places

    @device
    def write_all(y, parted, start, first, sizes, strides, alpha, beta):
        place, own = i32(cuda.threadIdx.x % positions), i32(cuda.threadIdx.x // positions)
        n0, k = i32(own // filters), i32(own % filters)
        p, q = i32(first[1] + place // places), i32(first[2] + place % places)
        if k < sizes[1] and p < sizes[2] and q < sizes[3]:
            at = i64(n0) * strides[0] + i64(first[0] * sizes[1] + k) * strides[1] + p * strides[2] + q * strides[3]
            target, step = y + at * SIZE, i64(strides[0] * (2 * SIZE))
            sum_at = i32(start + place * place_pitch + k * pitch + n0)
            for _ in range(n0, sizes[0], 2):
                put(target, parted[sum_at], alpha, beta)
                sum_at, target = i32(sum_at + 2), target + step

    return write_all


def forward(dtype: str, config: PlacesManyConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    images, tall, places, ahead, whole = config.images, config.tall, config.places, config.ahead, config.whole
    threads = config.threads
    place_terms, ask = fill_spots(threads), _ask(config.vec)
    copy, first_of = copy_box(SIZE, images, threads, ROW), first_position(tall, places)
    multiply_add, look, element = product(dtype, 16), load_matrices(True), ELEMENT["float32"]
    columns, positions = images // EIGHT, tall * places
    sums, waiting, pitch, place_pitch = 4 * columns, 8 * ahead, config.pitch, config.place_pitch
    write_sums, vec = written_sums(dtype, tall, places, config.parts * ROWS, pitch, place_pitch), config.vec

    def kernel(
        x, w, y, across, groups, N, K, C, channels, P, Q, room, image, taps, padding, stride, dilation, flip, box,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        shared, halves = cuda.shared.array(0, WORD), cuda.shared.array(0, HALF)
        parted = cuda.shared.array(0, element)  # the same memory
        total, held = cuda.local.array(sums, f32), cuda.local.array(waiting, WORD)
        a, b = cuda.local.array(8, WORD), cuda.local.array(4, INT32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        group, p0, q0 = first_of(i32(cuda.blockIdx.x), across, groups)
        place, part = i32(warp % positions), i32(warp // positions)
        down, right = i32(place // places), i32(place % places)
        area = i32(taps[0] * taps[1])
        corner = (i32(p0 * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        g, t = i32(lane >> 2), i32(lane & 3)
        plane, extent = i32(channels * box[0] * box[1] * ROW), (i32(0), box[0], box[1])
        boxes, begin = i32(room + ROW), i32(8 * t)
        zeros = i32(i32(shared_address(shared)) + room * 4)
        if thread < ROW:
            shared[i32(room + thread)] = u32(0)
        own = i32(zeros + (ROW + (down * stride[0] * box[1] + right * stride[1]) * ROW) * 4)
        at_w = i64(min(i32(p0 + down), i32(P - 1))) * w_strides[1] + min(i32(q0 + right), i32(Q - 1)) * w_strides[2]
        base = w + (i64(group * K) * w_strides[0] + at_w) * SIZE
        k = i32(part * ROWS + g)
        low = base + min(k, i32(K - 1)) * w_strides[0] * SIZE
        high = base + min(i32(k + 8), i32(K - 1)) * w_strides[0] * SIZE
        have = min(channels, C)
        terms = i32(have * area)
        for i in range(ahead):
            ask(held, i32(i * 8), low, high, i32(begin + i * CHUNK), terms)
        for i in range(sums):
            total[i] = f32(0)
        first, buffer = x + i64(group * C) * x_strides[1] * SIZE, i32(0)
        place_terms(shared, room, terms, taps, dilation, (have, box[0], box[1]), flip)
        wait_for_previous()
        copy(shared, boxes, plane, first, x_strides, (have, extent[1], extent[2]), corner, image)
        for c0 in range(0, 1 if whole else C, channels):
            left = i32(0) if whole else i32(C - c0 - channels)
            next_terms = i32(min(channels, left) * area) if left > 0 else terms
            next_low, next_high = low + i64(terms * SIZE), high + i64(terms * SIZE)
            wait_async()
            cuda.syncthreads()
            if not whole and left > 0:
                source, to = first + i64(c0 + channels) * x_strides[1] * SIZE, i32(boxes + (columns * plane - buffer))
                have = min(channels, left)
                copy(shared, to, plane, source, x_strides, (have, extent[1], extent[2]), corner, image)
            there = i32(own + buffer * 4)
            for m0 in range(i32(0), terms, i32(ahead * CHUNK)):
                leaves = m0 + ahead * CHUNK >= terms and left > 0  # at the very end the last terms are read again
                from_low, from_high = next_low if leaves else low, next_high if leaves else high
                limit, after = next_terms if leaves else terms, begin if leaves else i32(m0 + begin + ahead * CHUNK)
                for i in range(ahead):
                    m = i32(m0 + i * CHUNK)
                    for e in range(4):
                        there_is = m + begin + 2 * e // vec * vec < terms
                        a[2 * e] = held[i * 8 + e] if there_is else u32(0)
                        a[2 * e + 1] = held[i * 8 + 4 + e] if there_is else u32(0)
                    ask(held, i32(i * 8), from_low, from_high, i32(after + i * CHUNK), limit)
                    spot = shared[i32(m + lane)]
                    at = zeros if spot == NONE else i32(there + i32(spot))
                    to_plane = i32(0) if spot == NONE else i32(plane * 4)
                    for n in range(columns):
                        look(b, i32(0), halves, at)
                        at = i32(at + to_plane)
                        multiply_add(total, i32(n * 4), a, i32(0), b, i32(0))
                        multiply_add(total, i32(n * 4), a, i32(4), b, i32(2))
            low, high, terms = next_low, next_high, next_terms
            if not whole:
                buffer = i32(columns * plane - buffer)
        cuda.syncthreads()  # the sums lie where the boxes were
        mine = i32(boxes + place * place_pitch + k * pitch + 2 * t)
        for n in range(columns):
            for i in range(4):
                parted[i32(mine + (i >> 1) * 8 * pitch + n * EIGHT + (i & 1))] = total[n * 4 + i]
        cuda.syncthreads()
        write_sums(y, parted, boxes, (group, p0, q0), (N, K, P, Q), y_strides, alpha, beta)

    return kernel
