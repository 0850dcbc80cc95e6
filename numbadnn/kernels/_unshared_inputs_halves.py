"""The gradient of an unshared convolution's images of 16-bit types on tensor cores: each filter read once, sums in boxes.

A block has a tile of output positions and some channels of a group, as in ``_unshared_inputs``. For one position after another it
multiplies filters, [filter][term], with what came of them, [filter][image], and adds that to a box of pixels in shared memory.
A warp has ``rounds`` times 64 terms of every position. Whole lines of the filters come by asynchronous copies, ``ahead`` pieces
of 16 filters and 64 terms before they are multiplied, into a ring of the warp's own; ldmatrix turns them. The box is
[8 images][channel][pixel][image]: neighbouring terms are neighbouring pixels most of the time, and meet different banks.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels._async_copies import commit_async, sync_warp, wait_async_but
from numbadnn.kernels._bits import load_bits
from numbadnn.kernels._cuda import cuda, device, f32, i32, i64, u32
from numbadnn.kernels._implicit_tiles import HALF, INT32
from numbadnn.kernels._implicit_tiles_halves import load_matrices
from numbadnn.kernels._implicit_tiles_words import shared_address
from numbadnn.kernels._mma import product, write_shared
from numbadnn.kernels._ptx import ELEMENT, WORD, load_shared, store_vector
from numbadnn.kernels._unshared_filters import PITCH, SLOT, copy_piece
from numbadnn.kernels._unshared_halves import _look_at_words
from numbadnn.kernels.unshared_inputs_halves import LANES, TILE, InputsHalvesConfig

#: bytes of an element, and of a sum; images of a product
SIZE, ITEM, EIGHT = 2, 4, 8


def _fill_tops(config: InputsHalvesConfig) -> Callable[..., None]:
    """``fill(shared, start, y, strides, n0, N, K, count, wide)``: two filters a word, 0 past the ends."""
    half, threads, images, quads = load_bits(SIZE), config.threads, config.images, 4 * config.steps

    @device
    def fill(shared, start, y, strides, n0, N, K, count, wide):  # type: ignore[no-untyped-def]
        for i in range(i32(cuda.threadIdx.x), i32(count * (quads * images * 2)), threads):
            rest = i32(u32(i) // u32(count))
            place, pair = i32(i - rest * count), i32(rest & 1)
            n, quad = i32(u32(rest >> 1) % u32(images)), i32(u32(rest >> 1) // u32(images))
            k = i32((quad >> 2) * 16 + (quad & 3) * 2 + pair * 8)
            down = i32(u32(place) // u32(wide))
            at = i64(min(i32(n0 + n), i32(N - 1))) * strides[0] + down * strides[2] + (place - down * wide) * strides[3]
            low = half(y + (at + min(k, i32(K - 1)) * strides[1]) * SIZE)
            high = half(y + (at + min(i32(k + 1), i32(K - 1)) * strides[1]) * SIZE)
            low = low if k < K and n0 + n < N else u32(0)
            high = high if k + 1 < K and n0 + n < N else u32(0)
            shared[i32(start + ((place * quads + quad) * images + n) * 2 + pair)] = u32(low | (high << u32(16)))

    return fill


def boxes(dtype: str, config: InputsHalvesConfig) -> Callable[..., None]:
    """space[tile, channel, pixel of the tile's box, n] = sum over the tile's positions and over filters of y * w."""
    images, warps, rounds, steps, threads, ahead = (
        *(config.images, config.warps, config.rounds, config.steps, config.threads, config.ahead),
    )
    copy, fill_tops, multiply_add, look = (
        copy_piece(config.vec),
        _fill_tops(config),
        product(dtype, 16),
        _look_at_words(4),
    )
    load_factor, wait = load_matrices(True), wait_async_but(ahead - 1)
    look_at_pair, look_at_pixels, put = _look_at_words(2), load_shared("float32", 2, "float32"), write_shared(2)
    look_at_four, write_four, element = (
        load_shared("float32", 4, "float32"),
        store_vector("float32", 4, "float32"),
        ELEMENT["float32"],
    )
    planes = images // EIGHT
    sums, depth, quads, units, pairs = 16 * planes, 16 * steps, 4 * steps, rounds * steps, 2 * planes
    ring = ahead * SLOT

    def kernel(  # type: ignore[no-untyped-def]
        y, w, space, chunks, slices, groups, first, N, K, C, channels, across, tile, output, taps, stride, dilation, flip,
        box, room, w_strides, y_strides,
    ):  # fmt: skip
        shared, halves = cuda.shared.array(0, WORD), cuda.shared.array(0, HALF)
        pixels = cuda.shared.array(0, element)  # the same memory
        total, a, b = cuda.local.array(sums, f32), cuda.local.array(4, INT32), cuda.local.array(pairs, WORD)
        spots, old = cuda.local.array(8, WORD), cuda.local.array(16, f32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        g, t = i32(lane >> 2), i32(lane & 3)
        block = i32(cuda.blockIdx.x)
        part = i32(u32(block) // u32(chunks))
        chunk = i32(block - part * chunks)
        n0 = i32(first + chunk * images)
        number = i32(u32(part) // u32(slices))
        c0 = i32((part - number * slices) * channels)
        which = i32(u32(number) // u32(groups))
        group = i32(number - which * groups)
        row = i32(u32(which) // u32(across))
        p0, q0 = i32(row * tile[0]), i32((which - row * across) * tile[1])
        area, per_channel = i32(box[0] * box[1]), i32(taps[0] * taps[1])
        have = min(channels, i32(C - c0))
        terms, used = i32(have * per_channel), i32(have * area)
        wide = min(tile[1], i32(output[1] - q0))
        count = i32(min(tile[0], i32(output[0] - p0)) * wide)
        plane = i32((used + area) * EIGHT)  # and a channel for terms that are none
        tops = i32(room + plane * planes)
        base = w + (i64(group * K) * w_strides[0] + p0 * w_strides[1] + q0 * w_strides[2] + c0 * per_channel) * SIZE
        slots = i32(tops + tile[0] * tile[1] * (quads * images * 2) + warp * ring)
        every = i32((rounds * warps + warp) * TILE)
        # matrices of filters, as rows: 0 to 7 of the first eight terms, then of the next, then filters 8 to 15
        factor_at = i32(shared_address(shared) + (((lane & 7) + (lane >> 4) * 8) * PITCH + ((lane >> 3) & 1) * 4) * 4)
        for k0 in range(0, K, depth):
            rows, step_k, step_q = base + k0 * w_strides[0] * SIZE, i64(w_strides[0] * SIZE), i64(w_strides[2] * SIZE)
            step_p = i64(w_strides[1] * SIZE - wide * w_strides[2] * SIZE)
            # pieces are asked for in this order: those of a position, then of the next one
            source, s_asked, m_asked, right_asked, slot, left = (
                rows,
                i32(0),
                i32(warp * TILE),
                i32(0),
                i32(0),
                i32(count * units),
            )
            for _ in range(ahead):
                if left > 0:
                    here = source + i64(s_asked) * (16 * step_k)
                    copy(shared, i32(slots + slot), here, step_k, i32(K - k0 - 16 * s_asked), m_asked, terms)
                commit_async()
                left = i32(left - 1)
                slot = i32(slot + SLOT) if slot + SLOT < ring else i32(0)
                s_asked = i32(s_asked + 1)
                m_asked = i32(m_asked + warps * TILE) if s_asked == steps else m_asked
                s_asked = i32(0) if s_asked == steps else s_asked
                if m_asked >= every:
                    m_asked, right_asked, source = i32(warp * TILE), i32(right_asked + 1), source + step_q
                    source = source + (step_p if right_asked == wide else i64(0))
                    right_asked = i32(0) if right_asked == wide else right_asked
            if k0 == 0:
                for i in range(thread, room, threads):
                    m = i32((i & ~63) + (i & 7) * 8 + ((i >> 3) & 7))
                    line = i32(u32(m) // u32(taps[1]))
                    s = i32(m - line * taps[1])
                    c = i32(u32(line) // u32(taps[0]))
                    r = i32(line - c * taps[0])
                    if flip != 0:
                        r = i32(taps[0] - 1 - r)
                        s = i32(taps[1] - 1 - s)
                    at = i32(c * area + r * dilation[0] * box[1] + s * dilation[1])
                    shared[i] = u32((at if m < terms else used) * EIGHT)
                for i in range(thread, i32(plane * planes), threads):
                    pixels[i32(room + i)] = f32(0)
            at_y = i64(group * K + k0) * y_strides[1] + p0 * y_strides[2] + q0 * y_strides[3]
            fill_tops(shared, tops, y + at_y * SIZE, y_strides, n0, N, i32(K - k0), count, wide)
            cuda.syncthreads()
            for place in range(count):
                down = i32(u32(place) // u32(wide))
                right = i32(place - down * wide)
                shift = i32((down * stride[0] * box[1] + right * stride[1]) * EIGHT + room + 2 * t)
                for r in range(rounds):
                    m = i32((r * warps + warp) * TILE + 8 * g)
                    for i in range(sums):
                        total[i] = f32(0)
                    for s in range(steps):
                        wait()
                        sync_warp()
                        for n in range(planes):
                            look_at_pair(
                                b,
                                i32(2 * n),
                                shared,
                                i32(tops + (((place * quads + 4 * s + t) * images) + n * EIGHT + g) * 2),
                            )
                        for j in range(4):
                            load_factor(a, i32(0), halves, i32(factor_at + (slots + slot + 8 * j) * 4))
                            for n in range(planes):
                                multiply_add(total, i32((n * 4 + j) * 4), a, i32(0), b, i32(2 * n))
                        sync_warp()
                        if left > 0:
                            here = source + i64(s_asked) * (16 * step_k)
                            copy(shared, i32(slots + slot), here, step_k, i32(K - k0 - 16 * s_asked), m_asked, terms)
                        commit_async()
                        left = i32(left - 1)
                        slot = i32(slot + SLOT) if slot + SLOT < ring else i32(0)
                        s_asked = i32(s_asked + 1)
                        m_asked = i32(m_asked + warps * TILE) if s_asked == steps else m_asked
                        s_asked = i32(0) if s_asked == steps else s_asked
                        if m_asked >= every:
                            m_asked, right_asked, source = i32(warp * TILE), i32(right_asked + 1), source + step_q
                            source = source + (step_p if right_asked == wide else i64(0))
                            right_asked = i32(0) if right_asked == wide else right_asked
                    if m - 8 * g < room:
                        look(spots, i32(0), shared, m)
                        look(spots, i32(4), shared, i32(m + 4))
                        for n in range(planes):
                            for i in range(8):
                                look_at_pixels(old, i32(2 * i), pixels, i32(shift + n * plane + i32(spots[i])))
                            for i in range(8):
                                for e in range(2):
                                    old[2 * i + e] = f32(old[2 * i + e] + total[(n * 4 + i // 2) * 4 + 2 * (i % 2) + e])
                            for i in range(8):
                                put(old, i32(2 * i), pixels, i32(shift + n * plane + i32(spots[i])))
                cuda.syncthreads()
        slots = i32(chunks * images)
        target = space + (i64(number * C + c0) * area * slots + chunk * images) * ITEM
        for i in range(thread, i32(used * (2 * planes)), threads):
            pair = i32(i & 1)
            cell = i32(u32(i >> 1) // u32(planes))
            n = i32((i >> 1) - cell * planes)
            look_at_four(old, i32(0), pixels, i32(room + n * plane + cell * EIGHT + pair * 4))
            write_four(old, i32(0), target + (i64(cell) * slots + n * EIGHT + pair * 4) * ITEM)

    return kernel
