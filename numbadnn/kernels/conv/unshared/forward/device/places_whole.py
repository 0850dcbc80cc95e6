"""Unshared convolution of 16-bit types, a tile of positions a block, all of whose filters have a place when it begins.

    filters    [filter][position][term]: of a filter some of the tile's positions are one copy, told to one of a few barriers
    images     turned before (``conv/unshared/parts/device/turned.py``): the box of pixels that the tile sees, in planes
    of eight images

Shared memory holds all of them at once, so that nothing is waited for but memory. A warp has a position and 16 filters; its sums
stay in registers to the end. Both factors are loaded as matrices: terms of a filter, whose rows meet all banks, and of a term's
pixels a cell of eight images, whose rows do where filters are not flipped and a tile is one row.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.device.places_many import written_sums
from numbadnn.kernels.conv.unshared.forward.places_many_config import LANES, ROWS
from numbadnn.kernels.conv.unshared.forward.places_whole_config import BARRIERS, CELL, PIECE, UNDER_WAY, WholeConfig
from numbadnn.kernels.conv.unshared.parts.device.seen import EIGHT, NONE, ROW, SIZE, fill_spots, first_position
from numbadnn.kernels.conv.unshared.parts.device.turned import carry_box
from numbadnn.kernels.lang.access import load_vector, store_vector
from numbadnn.kernels.lang.async_copies import copy_line, meet_of, sync_warp
from numbadnn.kernels.lang.cuda import ELEMENT, HALF, INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.hopper import barrier_expect, barrier_init, barrier_wait, fence_barriers
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.ptx import wait_for_previous
from numbadnn.kernels.lang.words import shared_address

#: pieces of pixels that a thread has under way
ONCE = 9


def _written_rows(dtype: str, config: WholeConfig) -> Callable[..., None]:
    """``write(y, parted, start, first, sizes, strides, alpha, beta)``: the same as ``written_sums``, a row of places at once."""
    places, filters, images, apart = config.places, config.parts * ROWS, config.images, config.place_pitch
    cells, threads, pitch = config.tall * filters * images, LANES * config.warps, config.pitch
    read, write = load_vector(dtype, places, "float32"), store_vector(dtype, places, "float32")

    @device
    def write_all(y, parted, start, first, sizes, strides, alpha, beta):
        result, old = cuda.local.array(places, f32), cuda.local.array(places, f32)
        for i in range(i32(cuda.threadIdx.x), cells, threads):
            n, rest = i32(i % images), i32(i // images)
            k, p = i32(rest % filters), i32(first[1] + rest // filters)
            if n < sizes[0] and k < sizes[1] and p < sizes[2] and first[2] < sizes[3]:
                at = i64(n) * strides[0] + i64(first[0] * sizes[1] + k) * strides[1] + p * strides[2] + first[2]
                row = i32(start + (p - first[1]) * (places * apart) + k * pitch + n)
                for e in range(places):
                    result[e] = f32(alpha * parted[i32(row + e * apart)])
                if beta != f32(0):
                    read(old, i32(0), y + at * SIZE)
                    for e in range(places):
                        result[e] = f32(result[e] + beta * old[e])
                write(result, i32(0), y + at * SIZE)

    return write_all


def forward(dtype: str, config: WholeConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    images, tall, places, parts, threads = config.images, config.tall, config.places, config.parts, LANES * config.warps
    planes, positions, shares, sums = config.planes, tall * places, config.shares, 4 * config.planes
    share = positions // shares
    first_of, place_terms = first_position(tall, places), fill_spots(threads, False)
    carry = carry_box(SIZE, images, threads, ROW, ONCE)
    warps, meet = threads // LANES, meet_of(threads)
    multiply_add, look_turned, look = product(dtype, 16), load_matrices(True), load_matrices(False)
    pitch, place_pitch, b_words, element = config.pitch, config.place_pitch, 4 * config.planes, ELEMENT["float32"]
    if config.vec > 1:
        write_sums = _written_rows(dtype, config)
    else:
        write_sums = written_sums(dtype, tall, places, parts * ROWS, pitch, place_pitch)

    @device
    def ask(shared, w, to, apart, full, k, K, P, Q, p0, q0, length, strides):
        """A lane asks for a filter, at some positions of a row after the other.

        Not for all at once: they would keep the pixels waiting, without which nothing is multiplied.
        """
        for part in range(shares):
            first = part * share
            p, q = i32(p0 + first // places), i32(q0 + first % places)
            size = i32(min(i32(share), i32(Q - q)) * length) if p < P and q < Q else i32(0)
            if part >= UNDER_WAY:
                barrier_wait(u32(full + 8 * (part - UNDER_WAY)), u32(0))
            if k == 0:
                barrier_expect(u32(full + 8 * part), u32(K * size))
            sync_warp()
            if k < K and size > 0:
                source = w + (i64(k) * strides[0] + i64(p) * strides[1] + i64(q) * strides[2]) * SIZE
                copy_line(shared, i32(to + k * apart + first * length), source, size, u32(full + 8 * part))

    @device
    def fetch(a, b, shared, halves, m, lane, terms, plane, there, nothing, at):
        spot = shared[i32(m + lane)]
        seen = nothing if spot == NONE else i32(there + i32(spot))
        for n in range(planes):
            look_turned(b, i32(4 * n), halves, i32(seen + 4 * n * plane))
        for j in range(2):
            look(a, i32(4 * j), halves, i32(at + (m + 16 * j) * SIZE))
        if m + PIECE > terms:  # terms of what follows
            for j in range(4):
                for e in range(2):
                    a[2 * j + e] = a[2 * j + e] if m + 8 * j < terms else 0

    @device
    def multiply(total, a, b):
        for j in range(2):
            for n in range(planes):
                multiply_add(total, i32(4 * n), a, i32(4 * j), b, i32(4 * n + 2 * j))

    def kernel(
        x, w, y, wide, plane, apart, across, groups, N, K, C, channels, P, Q, room, image, taps, padding, stride, dilation, flip,
        box, x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        shared, halves = cuda.shared.array(0, WORD), cuda.shared.array(0, HALF)
        parted = cuda.shared.array(0, element)  # the same memory
        total, a, b = cuda.local.array(sums, f32), cuda.local.array(8, INT32), cuda.local.array(b_words, INT32)
        next_a, next_b = cuda.local.array(8, INT32), cuda.local.array(b_words, INT32)
        thread, begin = i32(cuda.threadIdx.x), i32(shared_address(shared))
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        group, p0, q0 = first_of(i32(cuda.blockIdx.x), across, groups)
        full, terms = i32(begin + 4 * room), i32(C * taps[0] * taps[1])
        filters = i32(full + BARRIERS)
        boxes = i32(room + (BARRIERS + parts * ROWS * apart + 2 * PIECE) // 4)
        to_planes, zeros = i32(begin + 4 * boxes), i32(C * box[0] * wide * CELL)
        if warp == warps and lane < shares:
            barrier_init(u32(full + 8 * lane), u32(1))
            fence_barriers()
        cuda.syncthreads()
        if warp == warps:  # to ask takes as long as what is asked for
            first_w = w + i64(group * K) * w_strides[0] * SIZE
            ask(shared, first_w, filters, apart, full, lane, K, P, Q, p0, q0, i32(terms * SIZE), w_strides)
            return
        place_terms(shared, room, terms, taps, dilation, (C, box[0], wide), flip)
        if thread < 4 * planes:
            shared[i32(boxes + (thread // 4) * plane + zeros // 4 + thread % 4)] = u32(0)
        corner = (i32(p0 * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        wait_for_previous()
        first_x = x + i64(group * C) * x_strides[1] * SIZE
        carry(shared, boxes, plane, first_x, x_strides, (C, box[0], wide), corner, image)
        place, part = i32(warp % positions), i32(warp // positions)
        down, right = i32(place // places), i32(place % places)
        there = i32(to_planes + (down * stride[0] * wide + right * stride[1]) * CELL)
        # rows 0 to 7 and 8 to 15 of eight terms, then the same of the next eight
        at = i32(filters + (part * ROWS + (lane & 15)) * apart + (place * terms + (lane >> 4) * 8) * SIZE)
        nothing = i32(to_planes + zeros)
        for i in range(sums):
            total[i] = f32(0)
        meet(i32(1))
        barrier_wait(u32(full + 8 * (place // share)), u32(0))
        fetch(a, b, shared, halves, i32(0), lane, terms, plane, there, nothing, at)
        for m in range(i32(0), terms, 2 * PIECE):
            further = i32(m + PIECE)
            if further < terms:
                fetch(next_a, next_b, shared, halves, further, lane, terms, plane, there, nothing, at)
            multiply(total, a, b)
            if further < terms:
                if further + PIECE < terms:
                    fetch(a, b, shared, halves, i32(further + PIECE), lane, terms, plane, there, nothing, at)
                multiply(total, next_a, next_b)
        meet(i32(1))  # the sums lie where the filters were
        start, g, t = i32(room + BARRIERS // 4), i32(lane >> 2), i32(lane & 3)
        mine = i32(start + place * place_pitch + (part * ROWS + g) * pitch + 2 * t)
        for n in range(planes):
            for i in range(4):
                parted[i32(mine + (i >> 1) * 8 * pitch + n * EIGHT + (i & 1))] = total[4 * n + i]
        meet(i32(1))
        write_sums(y, parted, start, (group, p0, q0), (N, K, P, Q), y_strides, alpha, beta)

    return kernel
