"""Unshared convolution of many images of float32, several positions a block: a small product of matrices for each.

Products of float32 are exact in float64, which tensor cores sum as quickly as other units sum float32, 2048 an instruction
where those have 32; a sum is rounded once. What the positions see lies in shared memory, [channel, row, column][image], some
channels in each of three boxes: the next is copied while what is there is multiplied. A warp has a position, some filters, and
all their terms or every second turn, 16 of them; these come through a ring of its own (``conv/unshared/parts/device/ring.py``):

    lane 4 g + t, step j of a turn    images ``own`` g ... ``own`` (g + 1) of term 4 j + t, and that term of filters g, g + 8 ...

Terms follow each other through the boxes, so a turn may begin in one and end in the next. Four neighbouring pixels, which the
lanes of a step read, lie in different quarters of the banks: of a pixel's pieces of 32 bytes the i-th is at i ^ (pixel mod 4).
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.device.products_box import copies_of
from numbadnn.kernels.conv.unshared.forward.products_config import BOXES, EIGHT, LANES, PIECE, ProductsConfig
from numbadnn.kernels.conv.unshared.inputs.device.tile import pixel_at, tap_of
from numbadnn.kernels.conv.unshared.parts.device.ring import after, ask_for
from numbadnn.kernels.conv.unshared.parts.device.seen import first_position
from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.async_copies import commit_async, sync_warp, wait_async_but
from numbadnn.kernels.lang.cuda import ELEMENT, INT32, WORD, cuda, device, f32, f64, i32, i64, u32
from numbadnn.kernels.lang.mma import product
from numbadnn.kernels.lang.ptx import thread_here, wait_for_previous
from numbadnn.kernels.lang.words import read_at, shared_address


def _looks(config: ProductsConfig) -> tuple[Callable[..., None], Callable[..., None]]:
    """``look`` prefetches the factors of a turn, ``multiply`` multiplies them."""
    eights, steps, own = config.eights, config.steps, config.images // EIGHT
    look_at_images, look_at_term = read_at("float32", own), read_at("float32", 1)
    look_at_spot, exchanged = read_at("int32", 1), 64 * (config.images // 16) - 32

    @device
    def look(seen, weight, spots, shared, spots_at, pixels_from, filters_at, left, zero):
        for j in range(steps):
            look_at_spot(spots, i32(j), shared, i32(spots_at + 16 * j))
        for j in range(steps):
            for f in range(eights):
                look_at_term(weight, i32(f * steps + j), shared, i32((filters_at ^ (16 * j)) + f * (EIGHT * PIECE * 4)))
            at = i32(pixels_from + spots[j]) if 4 * j < left else zero
            look_at_images(seen, i32(j * own), shared, i32(at ^ ((at >> 2) & exchanged)))

    multiply_add = product("float64", 4 * steps, config.whole)

    @device
    def multiply(total, a, b):
        for i in range(own // 2):
            for f in range(eights):
                multiply_add(total, i32((i * eights + f) * 4), a, i32(i * 2 * steps), b, i32(f * steps))

    return look, multiply


def _wait_but(most: int) -> Callable[..., None]:
    """``wait(groups)``: all groups of copies of this thread but the last ``groups`` are there, or but the last ``most``."""
    wait = wait_async_but(most)
    if most == 0:

        @device
        def all_of_them(groups):
            wait()

        return all_of_them
    fewer = _wait_but(most - 1)

    @device
    def chosen(groups):
        if groups < most:
            fewer(groups)
        else:
            wait()

    return chosen


def forward(config: ProductsConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    images, eights, steps, tall, places = config.images, config.eights, config.steps, config.tall, config.places
    parts, splits, stages, across, threads = config.parts, config.splits, config.stages, config.across, config.threads
    (own_piece, ask), (look, multiply), own = ask_for(across, EIGHT, config.vec), _looks(config), images // EIGHT
    fill_pixels, corner_of, copy_pixels = copies_of(config)
    first_of, positions, of_turn, pitch = first_position(tall, places), tall * places, parts * across, config.pitch
    read, write, element = load("float32", "float32"), store("float32", "float32"), ELEMENT["float32"]
    wide = ELEMENT["float64"]
    turn, hop, warps, skip = 4 * steps, PIECE * splits, threads // LANES, 4 * steps * splits
    in_turns = LANES * splits // across
    sums, seen_once, factors, outputs = images * across // LANES, own * steps, eights * steps, images // in_turns
    kept, kept_by_first = sums // splits, sums - sums // splits
    # from the sums of the first of two warps that share terms to those of the second
    between = kept // 4 // eights * 2 + kept // 2 % 2 + (kept // 4 % eights * EIGHT + kept % 2) * pitch
    slot_bytes, ring_words, wait_but = 4 * across * PIECE, stages * across * PIECE, _wait_but(stages)

    @device
    def term_of(piece):
        """The first term of a piece of a slot, which has the warp's turns: every ``splits``-th."""
        return i32((piece & ~(steps - 1)) * 4 * splits + (piece & (steps - 1)) * 4)

    @device
    def where_of(warp):
        """A warp's position, filters and slots."""
        rest = u32(warp // u32(positions))
        return i32(warp % u32(positions)), i32(rest % u32(parts)), i32(rest // u32(parts))

    @device
    def filters_at(w, strides, tile, k, sizes):
        """Where this lane's piece of its warp's first filters begins."""
        _, blocks, groups, K, _, P, Q = sizes
        thread = u32(thread_here())
        warp, row, piece = u32(thread >> u32(5)), i32(thread >> u32(3) & u32(3)), i32(thread & u32(7))
        place, part, split = where_of(warp)
        first = i32(k + part * across + row)
        group, p, q = first_of(tile, blocks, groups)
        p = min(i32(p + u32(place) // u32(places)), i32(P - 1))
        q = min(i32(q + u32(place) % u32(places)), i32(Q - 1))
        m = i32(split * turn + term_of(piece))
        return w + (i64(group * K + first) * strides[0] + i64(p) * strides[1] + i64(q) * strides[2] + m) * 4

    @device
    def ask_next(shared, to, following, w, strides, left, first, own_terms, sizes):
        """Prefetch a slot; what the next one is for: (address, tile, first filter, first term)"""
        at, tile, k, m = following
        tiles, _, _, K, terms, _, _ = sizes
        if tile < tiles:
            ask(shared, to, at, i64(strides[0] * 16), i32(left - k), i32(own_terms - m))
        commit_async()
        m, at = i32(m + hop), at + 4 * hop
        if m >= terms:
            tile, k, _ = after(tile, k, i32(0), i32(1), i32(1), of_turn, K)
            at, m = filters_at(w, strides, tile, k, sizes), first
        return at, tile, k, m

    def kernel(
        x, w, y, tiles, blocks, groups, N, K, C, channels, P, Q, room, image, taps, padding, stride, dilation, flip, box,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        table, shared = cuda.shared.array(0, WORD), cuda.shared.array(0, element)  # the same memory
        partial = cuda.shared.array(0, wide)
        total, held = cuda.local.array(sums, f64), cuda.local.array(outputs, f32)
        spots, seen = cuda.local.array(steps, INT32), cuda.local.array(seen_once, f32)
        weight = cuda.local.array(factors, f32)
        a, b = cuda.local.array(seen_once, f64), cuda.local.array(factors, f64)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread & 31), i32(thread >> 5)
        place, part, split = where_of(u32(warp))
        area, plane = i32(taps[0] * taps[1]), i32(box[0] * box[1])
        terms, lot, number = i32(C * area), i32(channels * area), i32(channels * plane)
        around = i32(BOXES * lot)
        start, ring = i32(shared_address(shared)), i32(room + warp * ring_words)
        zero = i32(room + warps * ring_words)
        boxes = i32(zero + LANES)
        pixels = i32(boxes + BOXES * number * images)
        results = i32(pixels + (number + 1) // 2 * 4)
        tile, k0, c0, at_box = i32(cuda.blockIdx.x), i32(0), i32(0), i32(0)
        sizes = (tiles, blocks, groups, K, terms, P, Q)
        row, piece = own_piece()
        to_ring, first = i32(start + ring * 4 + piece), i32(split * turn)
        left, own_terms = i32(K - part * across - row), i32(terms - term_of(i32(thread & 7)))
        following = (filters_at(w, w_strides, tile, k0, sizes), tile, k0, first)
        for i in range(stages):
            following = ask_next(
                shared, i32(to_ring + i * slot_bytes), following, w, w_strides, left, first, own_terms, sizes
            )
        for i in range(thread, room, threads):  # the last ones are the first ones again
            c, r, s = tap_of(i32(u32(i) % u32(around)), taps)
            table[i] = u32(i32(pixel_at(c, r, s, plane, taps, dilation, box[1], flip) * (images * 4)))
        if thread < LANES:
            shared[i32(zero + thread)] = f32(0)
        fill_pixels(table, pixels, number, box, x_strides)
        pixels_at, to_box = i32(start + pixels * 4), i32(start + boxes * 4)
        cuda.syncthreads()
        wait_for_previous()
        at_x, h0, v0 = corner_of(x, x_strides, tile, blocks, groups, C, stride, padding)
        copy_pixels(shared, pixels_at, number, to_box, at_x, h0, v0, image)
        commit_async()
        g, t = i32(lane >> 2), i32(lane & 3)
        down, right = i32(place // places), i32(place % places)
        own_at = i32((down * stride[0] * box[1] + right * stride[1]) * images + own * g)
        pixels_from, no_pixel = i32(start + (boxes + own_at) * 4), i32(start + (zero + own * g) * 4)
        own_row, own_left = i32(start + (ring + g * PIECE + g * 4 + t) * 4), i32(terms - t)
        m, slot, own_spots = i32(0), i32(0), i32(start + t * 4)
        spot, e, rest = i32(0), i32(0), i32(0)
        asked = i32(0)  # slots since the last box
        while tile < tiles:
            next_tile, next_k, next_c = after(tile, k0, c0, channels, C, of_turn, K)
            wait_but(asked)
            cuda.syncthreads()
            if c0 == 0:
                for i in range(sums):
                    total[i] = f64(0)
                m, spot, e, rest = first, i32(at_box * lot + first), i32(0), i32(own_left - first)
                spot = i32(spot - around) if spot >= around else spot
            at_box, asked = i32(at_box + 1) if at_box < BOXES - 1 else i32(0), i32(0)
            if next_tile < tiles:
                at_x = at_x + channels * x_strides[1] * 4
                if next_c == 0:
                    at_x, h0, v0 = corner_of(x, x_strides, next_tile, blocks, groups, C, stride, padding)
                to = i32(to_box + at_box * number * (images * 4))
                copy_pixels(shared, pixels_at, number, to, at_x, h0, v0, image)
            commit_async()
            limit = i32((c0 + channels) * area)  # the terms before are in the boxes
            more = m < terms and min(i32(m + turn), terms) <= limit
            while more:
                look(
                    seen, weight, spots, shared, i32(own_spots + spot * 4), pixels_from, i32((own_row + slot) ^ (e * 4)), rest,
                    no_pixel,
                )  # fmt: skip
                for i in range(seen_once):  # rows of a product are two images of eight lanes
                    a[i] = f64(seen[i // (2 * steps) * 2 + i // 2 % steps * own + i % 2])
                for i in range(factors):
                    b[i] = f64(weight[i])
                m, spot, e, rest = i32(m + skip), i32(spot + skip), i32(e + turn), i32(rest - skip)
                if e == PIECE or m >= terms:  # all that there is of this slot is in registers
                    sync_warp()
                    following = ask_next(
                        shared, i32(to_ring + slot), following, w, w_strides, left, first, own_terms, sizes
                    )
                    slot = i32(slot + slot_bytes) if slot < (stages - 1) * slot_bytes else i32(0)
                    e = i32(0)
                    asked = i32(asked + 1)
                    wait_but(i32(stages) if asked < stages else i32(stages - 1))
                    sync_warp()
                spot = i32(spot - around) if spot >= around else spot
                more = m < terms and min(i32(m + turn), terms) <= limit
                multiply(total, a, b)
            if next_c == 0:
                here = u32(thread_here())
                at_place, part, _ = where_of(u32(here >> u32(5)))
                sums_at = i32((at_place * of_turn + part * across + i32(here & u32(3)) * 2) * pitch)
                sums_at = i32(sums_at + own * i32(here >> u32(2) & u32(7)))
                if splits > 1:  # each of two warps adds half of the sums
                    for i in range(kept):
                        n, f = i32(i // 4 // eights * 2 + i // 2 % 2), i32(i // 4 % eights * EIGHT + i % 2)
                        at = i32(results // 2 + sums_at + (1 - split) * between + f * pitch + n)
                        partial[at] = total[i] if split > 0 else total[kept_by_first + i]
                    cuda.syncthreads()
                for i in range(kept):
                    n, f = i32(i // 4 // eights * 2 + i // 2 % 2), i32(i // 4 % eights * EIGHT + i % 2)
                    at, value = i32(sums_at + split * between + f * pitch + n), total[i]
                    if splits > 1:
                        value = f64(
                            (total[kept_by_first + i] if split > 0 else value) + partial[i32(results // 2 + at)]
                        )
                    shared[i32(results + splits * at)] = f32(f64(alpha) * value)
                cuda.syncthreads()
                at_place, own_output = i32(here % u32(positions)), u32(here // u32(positions))
                k, n0 = i32(own_output % u32(of_turn)), i32(own_output // u32(of_turn))
                group, p, q = first_of(tile, blocks, groups)
                p, q = i32(p + u32(at_place) // u32(places)), i32(q + u32(at_place) % u32(places))
                if p < P and q < Q and k0 + k < K:
                    at_y = i64(group * K + k0 + k) * y_strides[1] + p * y_strides[2] + q * y_strides[3]
                    at_y = y + (at_y + n0 * y_strides[0]) * 4
                    sum_at = i32((at_place * of_turn + k) * pitch)
                    for i in range(outputs):  # before any is written, which might change them for all that is known
                        held[i] = shared[i32(results + splits * (sum_at + n0 + i * in_turns))]
                    for i in range(outputs):
                        if i32(n0 + i * in_turns) < N:
                            result = held[i]
                            if beta != f32(0):
                                result = f32(result + beta * read(at_y))
                            write(at_y, result)
                        at_y = at_y + y_strides[0] * (4 * in_turns)
            tile, k0, c0 = next_tile, next_k, next_c

    return kernel
