"""Unshared convolution of many images with sums in float32, several positions a block: a small product of matrices for each.

What the positions see lies in shared memory, [channel, row, column][image], some channels at a time: the next are copied while
these are multiplied. A warp has a position, and its filters come through a ring of its own (``_unshared_ring``):

    lane = (share of the terms, images, filters)     8 images x ``filters`` sums a thread, four neighbouring terms a turn

Of a pixel's images lanes of odd shares read the second half first, so that two shares, which read different pixels, meet all
banks; neighbouring lanes read the same images, and lanes two apart the same filters, which is one access for two of them.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels._async_copies import commit_async, sync_warp, wait_async, wait_async_but
from numbadnn.kernels._cuda import SIMULATED, cuda, device, f32, i32, i64, u32
from numbadnn.kernels._implicit_tiles import INT32
from numbadnn.kernels._implicit_tiles_words import read_at, shared_address
from numbadnn.kernels._ptx import ELEMENT, WORD, load, store, wait_for_previous
from numbadnn.kernels._unshared_box import fold_lanes
from numbadnn.kernels._unshared_box_fill import spots_of
from numbadnn.kernels._unshared_ring import after, ask_for
from numbadnn.kernels._unshared_seen import first_position
from numbadnn.kernels._unshared_turned import copy_box
from numbadnn.kernels.unshared_box_many import ALONG, EIGHT, LANES, PIECE, ManyConfig


def forward(config: ManyConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    images, filters, tall, places, parts, stages, threads, cell, across, apart, pitch = (
        config.images, config.filters, config.tall, config.places, config.parts, config.stages,
        config.threads, config.cell, config.across, config.apart, config.pitch,
    )  # fmt: skip
    fill_spots, ask = spots_of(threads, 4 * cell), ask_for(across, apart, config.vec)
    read, write = load("float32", "float32"), store("float32", "float32")
    positions, half = tall * places, images // 2
    look_at_spots, look = read_at("int32", 4), read_at("float32", 4)
    copy, first_of, element = copy_box(4, images, threads, cell), first_position(tall, places), ELEMENT["float32"]
    sums, each, beside = filters * EIGHT, filters * 4, LANES // ALONG
    fold, kept, own_of = fold_lanes(ALONG, LANES // 2, sums), sums // ALONG, EIGHT // ALONG
    of_turn, slot_words, wait_but = parts * across, across * PIECE, wait_async_but(stages - 2)
    swaps, half_sums, ring_words = images == 32, sums // 2, stages * across * PIECE
    meet = (lambda: cuda.syncthreads()) if SIMULATED else sync_warp

    @device
    def filters_at(w, strides, tile, blocks, groups, K, k, term, P, Q):  # type: ignore[no-untyped-def]
        """Where this warp's filters begin, from ``term`` on."""
        warp = i32(cuda.threadIdx.x // LANES)
        place, own = i32(warp % positions), i32(k + warp // positions * across)
        group, p, q = first_of(tile, blocks, groups)
        p, q = min(i32(p + place // places), i32(P - 1)), min(i32(q + place % places), i32(Q - 1))
        return w + (i64(group * K + own) * strides[0] + i64(p) * strides[1] + i64(q) * strides[2] + term) * 4

    @device
    def ask_next(shared, ring, slot, w, strides, at, tile, k, c, m, tiles, blocks, groups, K, C, channels, terms, P, Q):  # type: ignore[no-untyped-def]
        """Ask for a slot; what the next one is for: (address, tile, first filter, first channel, first term)"""
        if tile < tiles:
            left = i32(K - k - cuda.threadIdx.x // LANES // positions * across)
            ask(shared, i32(ring + slot * slot_words), at, i64(strides[0] * 4), left, m, terms)
        commit_async()
        m = i32(m + PIECE)
        if m >= terms:
            tile, k, c = after(tile, k, c, channels, C, of_turn, K)
            at, m = (
                filters_at(w, strides, tile, blocks, groups, K, k, i32(u32(c * terms) // u32(channels)), P, Q),
                i32(0),
            )
        return at, tile, k, c, m

    def kernel(  # type: ignore[no-untyped-def]
        x, w, y, tiles, blocks, groups, N, K, C, channels, P, Q, room, image, taps, padding, stride, dilation, flip, box,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        table, shared = cuda.shared.array(0, WORD), cuda.shared.array(0, element)  # the same memory
        total, weight = cuda.local.array(sums, f32), cuda.local.array(each, f32)
        spots, seen = cuda.local.array(4, INT32), cuda.local.array(EIGHT, f32)
        there = cuda.local.array(4, INT32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        place, part = i32(warp % positions), i32(warp // positions)  # parts have different filters
        down, right = i32(place // places), i32(place % places)
        share, other = i32(lane // beside), i32(lane % beside)
        own_filter, own_images = i32(other % apart), i32(other // apart)
        area, plane = i32(taps[0] * taps[1]), i32(box[0] * box[1] * cell)
        terms, past, extent = i32(channels * area), i32(channels * plane), (channels, box[0], box[1])
        reach = i32(((tall - 1) * stride[0] * box[1] + (places - 1) * stride[1] + 1) * cell)
        span = i32(past + reach)  # of a buffer: behind it is what terms past the end see, 0
        start = i32(shared_address(shared))
        own = i32(start + (room + (down * stride[0] * box[1] + right * stride[1]) * cell + own_images * 4) * 4)
        swapped = swaps and share % 2 == 1
        low, high = i32(own + (4 * half if swapped else 0)), i32(own + (0 if swapped else 4 * half))
        ring = i32(room + 2 * span + warp * ring_words)
        results = i32(room + 2 * span + (threads // LANES) * ring_words)
        shift, own_row = i32(own_filter * (8 // apart)), i32(start + (ring + own_filter * PIECE) * 4)
        near, far = i32(own_row + (share ^ shift) * 16), i32(own_row + ((share + 4) ^ shift) * 16)
        tile, k0, c0 = i32(cuda.blockIdx.x), i32(0), i32(0)
        ask_tile, ask_k, ask_c, ask_m = tile, k0, c0, i32(0)
        ask_at = filters_at(w, w_strides, tile, blocks, groups, K, k0, i32(0), P, Q)
        own_spots = i32(start + share * 16)
        buffer, slot = i32(0), i32(0)
        few = terms <= (stages - 2) * PIECE

        for i in range(stages - 1):
            ask_at, ask_tile, ask_k, ask_c, ask_m = ask_next(
                shared, ring, i32(i), w, w_strides, ask_at, ask_tile, ask_k, ask_c, ask_m,
                tiles, blocks, groups, K, C, channels, terms, P, Q,
            )  # fmt: skip
        fill_spots(table, room, terms, taps, dilation, box, flip, i32(past * 4))
        for i in range(thread, reach, threads):
            shared[i32(room + past + i)], shared[i32(room + span + past + i)] = f32(0), f32(0)
        group, p, q = first_of(tile, blocks, groups)
        corner = (i32(p * stride[0] - padding[0]), i32(q * stride[1] - padding[1]))
        first = x + i64(group * C) * x_strides[1] * 4
        wait_for_previous()
        copy(shared, room, i32(4), first, x_strides, extent, corner, i32(1), image)
        wait_async()
        cuda.syncthreads()
        look_at_spots(spots, i32(0), table, own_spots)
        while tile < tiles:
            if few:
                wait_async()
            else:
                wait_but()
            cuda.syncthreads()
            next_tile, next_k, next_c = after(tile, k0, c0, channels, C, of_turn, K)
            if next_tile < tiles:
                group, p, q = first_of(next_tile, blocks, groups)
                corner = (i32(p * stride[0] - padding[0]), i32(q * stride[1] - padding[1]))
                first = x + i64(group * C + next_c) * x_strides[1] * 4
                copy(shared, i32(room + (span - buffer)), i32(4), first, x_strides, extent, corner, i32(1), image)
            if c0 == 0:
                for i in range(sums):
                    total[i] = f32(0)
            for m0 in range(i32(0), terms, i32(PIECE)):
                wait_but()
                meet()
                ask_at, ask_tile, ask_k, ask_c, ask_m = ask_next(
                    shared, ring, i32(slot - 1) if slot > 0 else i32(stages - 1), w, w_strides, ask_at, ask_tile, ask_k, ask_c,
                    ask_m, tiles, blocks, groups, K, C, channels, terms, P, Q,
                )  # fmt: skip
                for j in range(2):
                    m = i32(m0 + 16 * j)
                    if m < terms:
                        for e in range(4):
                            there[e] = spots[e]
                        m = i32(m + 16) if m + 16 < terms else i32(0)  # where the next ones are, long before
                        look_at_spots(spots, i32(0), table, i32(own_spots + m * 4))
                        at = i32(slot * (4 * slot_words) + (near if j == 0 else far))
                        for f in range(filters):
                            look(weight, i32(f * 4), shared, i32(at + f * apart * PIECE * 4))
                        for e in range(4):
                            look(seen, i32(0), shared, i32(low + there[e]))
                            look(seen, i32(4), shared, i32(high + there[e]))
                            for f in range(filters):
                                for n in range(EIGHT):
                                    total[n * filters + f] = f32(total[n * filters + f] + seen[n] * weight[f * 4 + e])
                slot = i32(slot + 1) if slot < stages - 1 else i32(0)
            low, high = i32(low + (span - 2 * buffer) * 4), i32(high + (span - 2 * buffer) * 4)
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
                at_place = i32(thread % positions)
                group, p, q = first_of(tile, blocks, groups)
                p, q = i32(p + at_place // places), i32(q + at_place % places)
                if p < P and q < Q:
                    target = y + (i64(group * K + k0) * y_strides[1] + p * y_strides[2] + q * y_strides[3]) * 4
                    for i in range(i32(thread // positions), i32(of_turn * N), i32(threads // positions)):
                        n, k = i32(u32(i) // u32(of_turn)), i32(u32(i) % u32(of_turn))
                        if k0 + k < K:
                            at_y = target + (n * y_strides[0] + k * y_strides[1]) * 4
                            result = f32(alpha * shared[i32(results + (at_place * of_turn + k) * pitch + n)])
                            if beta != f32(0):
                                result = f32(result + beta * read(at_y))
                            write(at_y, result)
            tile, k0, c0 = next_tile, next_k, next_c

    return kernel
