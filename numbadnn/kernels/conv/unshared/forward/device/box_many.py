"""Unshared convolution of many images with sums in float32, several positions a block: a small product of matrices for each.

What the positions see lies in shared memory, [channel, row, column][image], some channels at a time: the next are copied while
these are multiplied. A warp has a position, and its filters come through a ring of its own
(``conv/unshared/parts/device/ring.py``):

    lane = (share of the terms, images, filters)     8 images x ``filters`` sums a thread, four neighbouring terms a turn

Of a pixel's images lanes of odd shares read the second half first, so that two shares, which read different pixels, meet all
banks; neighbouring lanes read the same images, and lanes two apart the same filters, which is one access for two of them. Where
the pixels of a box lie is found once, and half a slot, 16 terms, multiplied at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.box_many_config import ALONG, EIGHT, LANES, PIECE, ManyConfig
from numbadnn.kernels.conv.unshared.forward.device.box import fold_lanes
from numbadnn.kernels.conv.unshared.parts.device.box_fill import pixels_of, spots_of
from numbadnn.kernels.conv.unshared.parts.device.ring import after, ask_for
from numbadnn.kernels.conv.unshared.parts.device.seen import first_position
from numbadnn.kernels.lang.async_copies import commit_async, copy_or_zero, sync_warp, wait_async, wait_async_but
from numbadnn.kernels.lang.cuda import ELEMENT, INT32, WORD, cuda, device, f32, i32, i64
from numbadnn.kernels.lang.epilogue import scaled
from numbadnn.kernels.lang.ptx import wait_for_previous
from numbadnn.kernels.lang.words import read_at, shared_address


def forward(config: ManyConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    images, filters, tall, places, parts = config.images, config.filters, config.tall, config.places, config.parts
    stages, threads, cell, across, apart = config.stages, config.threads, config.cell, config.across, config.apart
    pitch, in_turns, outputs = config.pitch, LANES // config.across, config.images * config.across // LANES
    fill_spots, fill_pixels = spots_of(threads, 4 * cell), pixels_of(threads)
    own_piece, ask = ask_for(across, apart, config.vec)
    put = scaled("float32", "float32")
    positions, half = tall * places, images // 2
    look_at_spots, look_at_pixel, look = read_at("int32", 4), read_at("int32", 2), read_at("float32", 4)
    copy, first_of, element = copy_or_zero(16), first_position(tall, places), ELEMENT["float32"]
    pieces, together = images // 4, threads // (images // 4)
    sums, beside, in_hand = filters * EIGHT, LANES // ALONG, filters * 4
    fold, own_of, kept = fold_lanes(ALONG, LANES // 2, sums), EIGHT // ALONG, sums // ALONG
    of_turn, slot_bytes, wait_but = parts * across, 4 * across * PIECE, wait_async_but(stages - 1)
    swaps, half_sums, ring_words = images == 32, sums // 2, stages * across * PIECE

    @device
    def filters_at(w, strides, tile, k, sizes):
        """Where this lane's piece of its warp's filters begins."""
        _, blocks, groups, K, _, _, P, Q = sizes
        warp, row, piece = i32(cuda.threadIdx.x // LANES), i32(cuda.threadIdx.x % LANES // 8), i32(cuda.threadIdx.x % 8)
        place, first = i32(warp % positions), i32(k + warp // positions * across + row)
        group, p, q = first_of(tile, blocks, groups)
        p, q = min(i32(p + place // places), i32(P - 1)), min(i32(q + place % places), i32(Q - 1))
        return w + (i64(group * K + first) * strides[0] + i64(p) * strides[1] + i64(q) * strides[2] + piece * 4) * 4

    @device
    def ask_next(shared, to, following, w, strides, left, terms, own_terms, sizes):
        """Prefetch a slot; what the next one is for: (address, tile, first filter, first channel, first term)"""
        at, tile, k, c, m = following
        tiles, _, _, K, C, channels, _, _ = sizes
        if tile < tiles:
            ask(shared, to, at, i64(strides[0] * 16), i32(left - k), i32(own_terms - m))
        commit_async()
        m, at = i32(m + PIECE), at + 4 * PIECE
        if m >= terms:  # the next channels' terms follow
            at, m = at - i32(m - terms) * 4, i32(0)
            tile, k, c = after(tile, k, c, channels, C, of_turn, K)
            if c == 0:
                at = filters_at(w, strides, tile, k, sizes)
        return at, tile, k, c, m

    @device
    def corner_of(x, strides, tile, blocks, groups, C, stride, padding):
        """The first pixel of what a tile sees: address of this thread's piece of it, row and column."""
        group, p, q = first_of(tile, blocks, groups)
        h, v = i32(p * stride[0] - padding[0]), i32(q * stride[1] - padding[1])
        at = i64(group * C) * strides[1] + i64(h) * strides[2] + i64(v) * strides[3]
        return x + (at + cuda.threadIdx.x % pieces * 4) * 4, h, v

    @device
    def copy_pixels(pixel, number, shared, table, pixels_at, to, at, h0, v0, image):
        """Begin to copy a box, this thread every ``together``-th pixel from ``pixel`` on; 0 outside the image."""
        where = cuda.local.array(2, INT32)
        for i in range(pixel, number, i32(together)):
            look_at_pixel(where, i32(0), table, i32(pixels_at + i * 8))
            h, v = i32(h0 + (where[1] >> 16)), i32(v0 + (where[1] & 0xFFFF))
            inside = h >= 0 and h < image[0] and v >= 0 and v < image[1]
            copy(shared, i32(to + i * (4 * cell)), at + i64(where[0]), inside)

    @device
    def multiply(total, weight, seen, shared, pixel, e):
        """Term ``e`` of four. In this order most operands are reused, or of another bank of registers."""
        look(seen, i32(0), shared, pixel)
        look(seen, i32(4), shared, i32(pixel ^ 64) if swaps else i32(pixel + 4 * half))
        for n in range(EIGHT):
            for f in range(filters):
                total[n * filters + f] = f32(total[n * filters + f] + seen[n] * weight[f * 4 + e])

    def kernel(
        x, w, y, tiles, blocks, groups, N, K, C, channels, P, Q, room, image, taps, padding, stride, dilation, flip, box,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        table, shared = cuda.shared.array(0, WORD), cuda.shared.array(0, element)  # the same memory
        total, weight = cuda.local.array(sums, f32), cuda.local.array(in_hand, f32)
        spots, seen = cuda.local.array(4, INT32), cuda.local.array(EIGHT, f32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        place, part = i32(warp % positions), i32(warp // positions)
        down, right = i32(place // places), i32(place % places)
        share, other = i32(lane // beside), i32(lane % beside)
        own_filter, own_images = i32(other % apart), i32(other // apart)
        area, plane = i32(taps[0] * taps[1]), i32(box[0] * box[1] * cell)
        terms, past = i32(channels * area), i32(channels * plane)
        reach = i32(((tall - 1) * stride[0] * box[1] + (places - 1) * stride[1] + 1) * cell)
        span = i32(past + reach)  # of a buffer: behind it is what terms past the end see, 0
        start, ring = i32(shared_address(shared)), i32(room + warp * ring_words)
        boxes = i32(room + (threads // LANES) * ring_words)
        own = i32(start + (boxes + (down * stride[0] * box[1] + right * stride[1]) * cell + own_images * 4) * 4)
        swapped = swaps and share % 2 == 1
        low = i32(own + (4 * half if swapped else 0))
        own_row = i32(start + (ring + own_filter * PIECE + (share ^ (own_filter * (8 // apart))) * 4) * 4)
        row, piece = own_piece()
        to_ring = i32(start + ring * 4 + piece)
        left, own_terms = i32(K - part * across - row), i32(terms - thread % 8 * 4)
        tile, k0, c0 = i32(cuda.blockIdx.x), i32(0), i32(0)
        sizes = (tiles, blocks, groups, K, C, channels, P, Q)
        following = (filters_at(w, w_strides, tile, k0, sizes), tile, k0, c0, i32(0))
        own_spots = i32(start + share * 16)
        buffer, slot = i32(0), i32(0)
        number, own_pixel = i32(channels * box[0] * box[1]), i32(thread // pieces)
        to_box, pixels = i32(start + boxes * 4 + thread % pieces * 16), i32(boxes + 2 * span)
        pixels_at, results = i32(start + pixels * 4), i32(pixels + 2 * number)

        for i in range(stages):
            following = ask_next(
                shared, i32(to_ring + i * slot_bytes), following, w, w_strides, left, terms, own_terms, sizes
            )
        fill_spots(table, room, terms, taps, dilation, box, flip, i32(past * 4))
        for i in range(thread, reach, threads):
            shared[i32(boxes + past + i)], shared[i32(boxes + span + past + i)] = f32(0), f32(0)
        fill_pixels(table, pixels, number, box, x_strides)
        at_x, h0, v0 = corner_of(x, x_strides, tile, blocks, groups, C, stride, padding)
        cuda.syncthreads()
        wait_for_previous()
        copy_pixels(own_pixel, number, shared, table, pixels_at, to_box, at_x, h0, v0, image)
        wait_async()
        cuda.syncthreads()
        while tile < tiles:
            if terms <= (stages - 1) * PIECE:
                wait_async()
            else:
                wait_but()
            cuda.syncthreads()
            next_tile, next_k, next_c = after(tile, k0, c0, channels, C, of_turn, K)
            if next_tile < tiles:
                at_x = at_x + channels * x_strides[1] * 4
                if next_c == 0:
                    at_x, h0, v0 = corner_of(x, x_strides, next_tile, blocks, groups, C, stride, padding)
                copy_pixels(
                    own_pixel, number, shared, table, pixels_at, i32(to_box + (span - buffer) * 4), at_x, h0, v0, image
                )
            if c0 == 0:
                for i in range(sums):
                    total[i] = f32(0)
            for m0 in range(i32(0), terms, i32(PIECE)):
                wait_but()
                sync_warp()
                at = i32(own_row + slot)
                for m in range(m0, min(i32(m0 + PIECE), terms), i32(16)):
                    look_at_spots(spots, i32(0), table, i32(own_spots + m * 4))
                    for f in range(filters):
                        look(weight, i32(f * 4), shared, i32(at + f * apart * PIECE * 4))
                    multiply(total, weight, seen, shared, i32(low + spots[0]), 0)
                    multiply(total, weight, seen, shared, i32(low + spots[1]), 1)
                    multiply(total, weight, seen, shared, i32(low + spots[2]), 2)
                    multiply(total, weight, seen, shared, i32(low + spots[3]), 3)
                    at = i32(at ^ 64)
                sync_warp()
                following = ask_next(
                    shared, i32(to_ring + slot), following, w, w_strides, left, terms, own_terms, sizes
                )
                slot = i32(slot + slot_bytes) if slot < (stages - 1) * slot_bytes else i32(0)
            low = i32(low + (span - 2 * buffer) * 4)
            buffer = i32(span - buffer)
            if next_c == 0:
                if swaps:
                    for i in range(half_sums):
                        a, b = total[i], total[half_sums + i]
                        total[i], total[half_sums + i] = b if swapped else a, a if swapped else b
                fold(total, lane)
                sums_at = i32(results + (place * of_turn + part * across + own_filter) * pitch + own_images * 4)
                for i in range(kept):  # the lanes of a term have some of its images each
                    n, f = i32(share * own_of + i // filters), i32(i % filters)
                    shared[i32(sums_at + f * apart * pitch + (n & 3) + (n >> 2) * half)] = total[i]
                cuda.syncthreads()
                at_place, own_output = i32(thread % positions), i32(thread // positions)
                k, n0 = i32(own_output % of_turn), i32(own_output // of_turn)
                group, p, q = first_of(tile, blocks, groups)
                p, q = i32(p + at_place // places), i32(q + at_place % places)
                if p < P and q < Q and k0 + k < K:
                    at_y = i64(group * K + k0 + k) * y_strides[1] + p * y_strides[2] + q * y_strides[3]
                    at_y = y + (at_y + n0 * y_strides[0]) * 4
                    sum_at = i32(results + (at_place * of_turn + k) * pitch)
                    for i in range(outputs):  # before any is written, which might change them for all that is known
                        total[i] = shared[i32(sum_at + n0 + i * in_turns)]
                    for i in range(outputs):
                        if i32(n0 + i * in_turns) < N:
                            put(at_y, total[i], alpha, beta)
                        at_y = at_y + y_strides[0] * (4 * in_turns)
            tile, k0, c0 = next_tile, next_k, next_c

    return kernel
