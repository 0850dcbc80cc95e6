"""Unshared convolution with float32 sums: a block computes several positions and reads their pixels once.

A block has some neighbouring positions of a row and ``channels`` channels of a group at a time, and what they see in shared
memory (``conv/unshared/parts/device/box_fill.py``). Eight lanes go along the terms of a filter, four at a time,
straight from memory, and prefetch the next ones before they multiply; each has ``filters`` x 8 sums. The four groups of eight
a warp have different filters, or different images where these are more. The sums meet in shared memory, from where
neighbouring positions are written together.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.box_config import EIGHT, LANES, BoxConfig
from numbadnn.kernels.conv.unshared.forward.device.f16 import _look_at_words
from numbadnn.kernels.conv.unshared.forward.device.plain import _fold
from numbadnn.kernels.conv.unshared.parts.device.box_fill import fill_box, spots_of
from numbadnn.kernels.conv.unshared.parts.device.receptive_field import first_position
from numbadnn.kernels.lang.access import load, load_shared, store
from numbadnn.kernels.lang.async_copies import wait_async
from numbadnn.kernels.lang.cuda import ELEMENT, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.packed import load_words, widen
from numbadnn.problem import ITEMSIZE


def _prefetch(dtype: str, config: BoxConfig) -> Callable[..., None]:
    """``prefetch(held, slot, base, step, m, terms)``: four terms, from ``m`` on, of filters ``step`` bytes apart, as they lie."""
    filters, vec, size = config.filters, config.vec, ITEMSIZE[dtype]
    words, read = 4 * size // 4, load_words(vec * size // 4)

    @device
    def prefetch(held, slot, base, step, m, terms):
        for e in range(0, 4, vec):
            row = base + i64(min(i32(m + e), i32(terms - vec))) * size
            for f in range(filters):  # sums of addresses hold fewer registers than addresses
                read(held, i32(slot + f * words + e * size // 4), row)
                row = row + step

    return prefetch


def fold_lanes(lanes: int, reach: int, sums: int) -> Callable[..., None]:
    """``fold(total, lane)``: each of the lanes that split a sum has in the end some of the ``sums``, added in one fixed tree."""
    first = _fold("float32", reach, sums // 2)
    if lanes == 2:
        return first
    others = fold_lanes(lanes // 2, reach // 2, sums // 2)

    @device
    def fold(total, lane):
        first(total, lane)
        others(total, lane)

    return fold


def forward(dtype: str, config: BoxConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    filters, positions, parts, ahead, cell = config.filters, config.positions, config.parts, config.ahead, config.cell
    whole, groups_of_images = config.whole, config.images // 8
    size, read, write = ITEMSIZE[dtype], load(dtype, "float32"), store(dtype, "float32")
    fill, fill_spots, prefetch = (
        fill_box(dtype, config, 4),
        spots_of(config.threads, config.cell),
        _prefetch(dtype, config),
    )
    expand = widen(dtype, 4, "float32")
    look_at_spots, look_at_images = _look_at_words(4), load_shared("float32", 4, "float32")
    fold, pitch, beside = fold_lanes(EIGHT, LANES // 2, filters * 8), config.pitch, LANES // EIGHT
    words, across, first_of = size, config.across, first_position(1, positions)
    sums, waiting = filters * 8, ahead * filters * size
    step, vec, element, threads = 4 * EIGHT, config.vec, ELEMENT["float32"], config.threads
    of_turn = parts * config.across

    def kernel(
        x, w, y, blocks, groups, N, K, C, channels, Q, capacity, image, taps, padding, stride, dilation, flip, wide,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        table = cuda.shared.array(0, WORD)
        shared = cuda.shared.array(0, element)  # the same memory
        total, held = cuda.local.array(sums, f32), cuda.local.array(waiting, WORD)
        spots, weight = cuda.local.array(4, WORD), cuda.local.array(4, f32)
        pixels = cuda.local.array(8, f32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        group, p, q0 = first_of(i32(cuda.blockIdx.x), blocks, groups)
        count = min(i32(positions), i32(Q - q0))
        area = i32(taps[0] * taps[1])
        corner = (i32(p * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        place, part = i32(warp % positions), i32(warp // positions)  # parts have different filters
        own_lane, other = i32(lane // beside), i32(lane % beside)  # a shared pixel is one access
        own_images, own_filters = i32(other % groups_of_images), i32(other // groups_of_images)
        own = i32(capacity + place * stride[1] * cell + own_images * 8)
        q = min(i32(q0 + place), i32(Q - 1))
        base = w + (i64(group * K) * w_strides[0] + p * w_strides[1] + q * w_strides[2]) * size
        results = i32(capacity + channels * taps[0] * wide * cell)
        for turn in range(i32((K + across * parts - 1) // (across * parts))):
            k0 = i32((turn * parts + part) * across + own_filters * filters)
            k1 = min(k0, i32(K - filters))  # the last ones have some of those before as well
            own_rows, step_k = base + i64(k1) * w_strides[0] * size, w_strides[0] * size
            for i in range(sums):
                total[i] = f32(0)
            for c0 in range(0, 1 if whole else C, channels):
                have = min(channels, i32(C - c0))
                terms = i32(have * area)
                start = own_rows + i64(c0 * area) * size
                for i in range(ahead):
                    prefetch(held, i32(i * filters * words), start, step_k, i32(i * step + own_lane * 4), terms)
                if not whole or turn == 0:
                    cuda.syncthreads()
                    fill_spots(table, capacity, terms, taps, (1, dilation[1]), (taps[0], wide), flip, i32(0))
                    first = x + i64(group * C + c0) * x_strides[1] * size
                    fill(shared, capacity, first, x_strides, N, (have, taps[0], wide), corner, dilation[0], image)
                    wait_async()
                    cuda.syncthreads()
                for m0 in range(i32(own_lane * 4), i32(terms + own_lane * 4), i32(ahead * step)):
                    for i in range(ahead):
                        m = i32(m0 + i * step)
                        if m < terms:
                            look_at_spots(spots, i32(0), table, m)
                            for e in range(4):
                                if vec == 4 or m + e < terms:
                                    at = i32(own + i32(spots[e]))
                                    look_at_images(pixels, i32(0), table, at)
                                    look_at_images(pixels, i32(4), table, i32(at + 4))
                                    for f in range(filters):
                                        expand(weight, i32(0), held, i32((i * filters + f) * words))
                                        for n in range(8):
                                            total[n * filters + f] = f32(total[n * filters + f] + pixels[n] * weight[e])
                        prefetch(held, i32(i * filters * words), start, step_k, i32(m + ahead * step), terms)
            fold(total, lane)
            begin = i32(turn * of_turn)
            sums_at = i32(results + (place * of_turn + k1 - begin) * pitch + own_images * 8 + own_lane)
            for i in range(filters):  # lane l of eight has image l
                if k1 + i >= k0:
                    shared[i32(sums_at + i * pitch)] = total[i]
            cuda.syncthreads()
            for i in range(
                thread, i32(of_turn * N * positions), threads
            ):  # neighbouring positions are written together
                rest, at_place = i32(u32(i) // u32(positions)), i32(u32(i) % u32(positions))
                k, n = i32(u32(rest) % u32(of_turn)), i32(u32(rest) // u32(of_turn))
                result = f32(alpha * shared[i32(results + (at_place * of_turn + k) * pitch + n)])
                if at_place < count and begin + k < K:
                    at = i64(n) * y_strides[0] + (group * K + begin + k) * y_strides[1]
                    target = y + (at + p * y_strides[2] + (q0 + at_place) * y_strides[3]) * size
                    if beta != f32(0):
                        result = f32(result + beta * read(target))
                    write(target, result)
            cuda.syncthreads()

    return kernel
