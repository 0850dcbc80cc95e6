"""Unshared convolution of many images with sums in float32, several positions a block: a small product of matrices for each.

What the positions see lies in shared memory, [channel, row, column][image], all channels or some at a time: the next are copied
while these are multiplied. A warp has a position; its filters go from memory straight into registers:

    lane = (share of the terms, filters, images)     8 images x ``filters`` sums a thread, four neighbouring terms a turn

Lanes of a share read a pixel's images together, whatever pixels the other shares read: no two of them meet in a bank.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels._async_copies import wait_async
from numbadnn.kernels._cuda import cuda, device, f32, i32, i64, u32
from numbadnn.kernels._packed import load_words, widen
from numbadnn.kernels._ptx import ELEMENT, WORD, load, load_shared, store, wait_for_previous
from numbadnn.kernels._unshared_box import fold_lanes
from numbadnn.kernels._unshared_halves import _look_at_words
from numbadnn.kernels._unshared_seen import first_position
from numbadnn.kernels._unshared_turned import copy_box
from numbadnn.kernels.unshared_box_many import EIGHT, LANES, ManyConfig


def _spots(config: ManyConfig) -> Callable[..., None]:
    """``fill(table, room, terms, taps, dilation, box, flip)``: where in the box each term is; past the end where the first is."""
    threads, cell = config.threads, config.cell

    @device
    def fill(table, room, terms, taps, dilation, box, flip):  # type: ignore[no-untyped-def]
        for m in range(i32(cuda.threadIdx.x), room, threads):
            line = i32(u32(m) // u32(taps[1]))
            s = i32(m - line * taps[1])
            c = i32(u32(line) // u32(taps[0]))
            r = i32(line - c * taps[0])
            if flip != 0:
                r = i32(taps[0] - 1 - r)
                s = i32(taps[1] - 1 - s)
            at = i32(((c * box[0] + r * dilation[0]) * box[1] + s * dilation[1]) * cell)
            table[m] = u32(at if m < terms else i32(0))

    return fill


def _ask(config: ManyConfig) -> Callable[..., None]:
    """``ask(held, slot, base, step, m, terms)``: four terms, from ``m`` on, of filters ``step`` bytes apart."""
    filters, vec, read = config.filters, config.vec, load_words(config.vec)

    @device
    def ask(held, slot, base, step, m, terms):  # type: ignore[no-untyped-def]
        for e in range(0, 4, vec):
            row = base + i64(min(i32(m + e), i32(terms - vec))) * 4
            for f in range(filters):  # sums of addresses hold fewer registers than addresses
                read(held, i32(slot + f * 4 + e), row)
                row = row + step

    return ask


def forward(config: ManyConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    filters, tall, places, parts, ahead, along, cell, vec, whole = (
        *(config.filters, config.tall, config.places, config.parts, config.ahead, config.along, config.cell),
        *(config.vec, config.whole),
    )
    images, across, threads, pitch, positions = (
        config.images,
        config.across,
        config.threads,
        config.pitch,
        tall * places,
    )
    groups_of_images, half, beside, step = images // EIGHT, images // 2, LANES // along, 4 * along
    read, write, fill_spots, ask, expand = (
        *(load("float32", "float32"), store("float32", "float32"), _spots(config), _ask(config)),
        widen("float32", 4, "float32"),
    )
    look_at_spots, look_at_images = _look_at_words(4), load_shared("float32", 4, "float32")
    copy, first_of, element = copy_box(4, images, threads, cell), first_position(tall, places), ELEMENT["float32"]
    sums, waiting, each = filters * EIGHT, ahead * filters * 4, filters * 4
    fold, kept, own_of = fold_lanes(along, LANES // 2, sums), sums // along, EIGHT // along
    of_turn = parts * across

    def kernel(  # type: ignore[no-untyped-def]
        x, w, y, blocks, groups, N, K, C, channels, P, Q, room, image, taps, padding, stride, dilation, flip, box,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        table = cuda.shared.array(0, WORD)
        shared = cuda.shared.array(0, element)  # the same memory
        total, held = cuda.local.array(sums, f32), cuda.local.array(waiting, WORD)
        spots, weight, seen = cuda.local.array(4, WORD), cuda.local.array(4, f32), cuda.local.array(EIGHT, f32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        group, p0, q0 = first_of(i32(cuda.blockIdx.x), blocks, groups)
        place, part = i32(warp % positions), i32(warp // positions)  # parts have different filters
        down, right = i32(place // places), i32(place % places)
        share, other = i32(lane // beside), i32(lane % beside)
        own_images, own_filters = i32(other % groups_of_images), i32(other // groups_of_images)
        area, plane = i32(taps[0] * taps[1]), i32(box[0] * box[1] * cell)
        corner = (i32(p0 * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        own = i32(room + (down * stride[0] * box[1] + right * stride[1]) * cell + own_images * 4)
        results = i32(room + (1 if whole else 2) * channels * plane)
        first, step_k = x + i64(group * C) * x_strides[1] * 4, i64(w_strides[0] * 4)
        at_w = i64(min(i32(p0 + down), i32(P - 1))) * w_strides[1] + min(i32(q0 + right), i32(Q - 1)) * w_strides[2]
        base = w + (i64(group * K) * w_strides[0] + at_w) * 4
        turns = i32((K + of_turn - 1) // of_turn)
        k0 = i32(part * across + own_filters * filters)
        k1 = min(k0, i32(K - filters))  # the last ones have some of those before as well
        start, terms = base + k1 * step_k, i32(min(channels, C) * area)
        for i in range(ahead):
            ask(held, i32(i * each), start, step_k, i32((i * along + share) * 4), terms)
        fill_spots(table, room, terms, taps, dilation, box, flip)
        wait_for_previous()
        copy(shared, room, i32(4), first, x_strides, (min(channels, C), box[0], box[1]), corner, i32(1), image)
        buffer = i32(0)
        for turn in range(turns):
            for i in range(sums):
                total[i] = f32(0)
            k2 = min(i32(k0 + of_turn), i32(K - filters))
            for c0 in range(0, 1 if whole else C, channels):
                terms = i32(min(channels, i32(C - c0)) * area)
                c1 = i32(c0 + channels) if c0 + channels < C else i32(0)  # what follows, at last of the next filters
                following = base + (k1 if c1 > 0 else k2) * step_k + i64(c1 * area) * 4
                more, next_terms = c1 > 0 or turn + 1 < turns, i32(min(channels, i32(C - c1)) * area)
                wait_async()
                cuda.syncthreads()
                if not whole and more:
                    source, to = first + i64(c1) * x_strides[1] * 4, i32(room + (channels * plane - buffer))
                    extent = (min(channels, i32(C - c1)), box[0], box[1])
                    copy(shared, to, i32(4), source, x_strides, extent, corner, i32(1), image)
                for m0 in range(i32(share * 4), i32(terms + share * 4), i32(ahead * step)):
                    ends = m0 + ahead * step >= terms + share * 4
                    for i in range(ahead):
                        m = i32(m0 + i * step)
                        if m < terms:
                            look_at_spots(spots, i32(0), table, m)
                            for e in range(4):
                                if vec == 4 or m + e < terms:
                                    at = i32(own + buffer + i32(spots[e]))
                                    look_at_images(seen, i32(0), shared, at)
                                    look_at_images(seen, i32(4), shared, i32(at + half))
                                    for f in range(filters):
                                        expand(weight, i32(0), held, i32(i * each + f * 4))
                                        for n in range(EIGHT):
                                            total[n * filters + f] = f32(total[n * filters + f] + seen[n] * weight[e])
                        m = i32((i * along + share) * 4) if ends else i32(m + ahead * step)
                        ask(held, i32(i * each), following if ends else start, step_k, m, next_terms if ends else terms)
                start = following
                if not whole:
                    buffer = i32(channels * plane - buffer)
            fold(total, lane)
            begin = i32(turn * of_turn)
            sums_at = i32(results + (place * of_turn + k1 - begin) * pitch + own_images * 4)
            for i in range(kept):  # the lanes of a term have some of its images each
                n, f = i32(share * own_of + i // filters), i32(i % filters)
                if k1 + f >= k0:
                    shared[i32(sums_at + f * pitch + (n & 3) + (n >> 2) * half)] = total[i]
            cuda.syncthreads()
            at_place = i32(thread % positions)
            p, q = i32(p0 + at_place // places), i32(q0 + at_place % places)
            if p < P and q < Q:
                target = y + (i64(group * K + begin) * y_strides[1] + p * y_strides[2] + q * y_strides[3]) * 4
                for i in range(i32(thread // positions), i32(of_turn * N), i32(threads // positions)):
                    n, k = i32(u32(i) // u32(of_turn)), i32(u32(i) % u32(of_turn))
                    if begin + k < K:
                        at_y = target + (n * y_strides[0] + k * y_strides[1]) * 4
                        result = f32(alpha * shared[i32(results + (at_place * of_turn + k) * pitch + n)])
                        if beta != f32(0):
                            result = f32(result + beta * read(at_y))
                        write(at_y, result)
            cuda.syncthreads()
            k0, k1 = i32(k0 + of_turn), k2

    return kernel
