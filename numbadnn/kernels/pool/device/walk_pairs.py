"""The gradient of overlapping maxima of 16-bit numbers, two of them in each instruction.

As ``device/walk.py``, but numbers stay words (``device/pairs_chain.py``, ``device/pairs_words.py``): where channels are
last, of two channels each; in C order of two planes, which one thread reads and writes side by side. Of an odd number
of planes the last thread's two are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.bits import store_bits
from numbadnn.kernels.lang.cuda import WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.packed import store_words
from numbadnn.kernels.pool.device.codes import clamped
from numbadnn.kernels.pool.device.columns import LOWEST_WORDS, fetcher, placer
from numbadnn.kernels.pool.device.pairs_chain import giver, maximizer, totals_of
from numbadnn.kernels.pool.device.pairs_words import pairer, rounder
from numbadnn.kernels.pool.device.walk import ADDRESS, ALL, part
from numbadnn.kernels.pool.walk import WalkConfig

SIZE = 2


def writer(config: WalkConfig) -> Any:
    """``put(out, start, row, other, j)``: a row of the thread's columns at ``row``, of the second plane ``other`` bytes on."""
    vec, wide, last = config.vec_dx, config.spread * config.stride[1], config.last
    width, pitch, pieces = config.image[1], SIZE * config.cells, wide // config.vec_dx
    count = config.words if last else max(1, vec // 2)
    whole, pairs, second = width % wide == 0, last or vec % 2 == 0, pieces * count
    write, write1 = store_words(count), store_bits(SIZE)

    @device
    def put(out, start, row, other, j):
        for m in range(pieces):
            if whole or j * wide + m * vec < width:
                if pairs:
                    write(out, i32(start + m * count), row + m * vec * pitch)
                    if not last:
                        write(out, i32(start + second + m * count), row + m * vec * pitch + other)
                else:
                    write1(row + m * vec * pitch, out[start + m])
                    write1(row + m * vec * pitch + other, out[start + second + m])

    return put


def stepper(dtype: str, config: WalkConfig) -> tuple[Any, Any]:
    """(load, begin): what row p of windows is the first to see, and the rows above; step: its maxima, and the strip it ends."""
    (kh, _), (sh, sw), ph, last, ahead = config.window, config.stride, config.pad[0], config.last, config.ahead
    x, y, (H, W), (P, Q), pitch = config.x, config.y, config.image, config.outputs, SIZE * config.cells
    line, line_y, carried, fresh, warm = W * pitch, Q * pitch, max(0, kh - sh), min(kh, sh), config.warm
    words, words_y, x_row = x.words(SIZE), y.words(SIZE), x.length * config.words
    fetch, fetch_y, put = fetcher(x, SIZE), fetcher(y, SIZE), writer(config)
    # one column outside is read from the nearest inside, which a window that leaves the image has
    checked = [v > 1 and x.leaves(c, v) for c, v in x.pieces]
    pair = pairer(dtype, x, LOWEST_WORDS[dtype][0], last, checked)
    pair_y = pairer(dtype, y, 0, last, [True] * len(y.pieces))
    maxima, give, rounded = maximizer(dtype, config), giver(dtype, config), rounder(dtype, config)
    many, capacity_t, moved_t = config.windows * config.words, totals_of(config).capacity, totals_of(config).moved
    kept_x, moved_x, kept_t, first, x_step = carried * x_row, sh * x_row, capacity_t - moved_t, x.first, x.step
    out_row = config.spread * sw * (config.words if last else 1 if config.vec_dx % 2 == 0 else 2)
    capacity_out, far, far_y = sh * out_row, 0 if last else fresh * words, 0 if last else words_y

    @device
    def load(raw, raw_y, bases, bases_y, other, other_y, p):
        for r in range(fresh):
            h = i64(clamped(i32(p * sh + (carried - ph) + r), i32(H))) * line
            fetch(raw, i32(r * words), bases, h)
            if not last:
                fetch(raw, i32(far + r * words), bases, h + other)
        h = i64(clamped(p, i32(P))) * line_y
        fetch_y(raw_y, i32(0), bases_y, h)
        if not last:
            fetch_y(raw_y, i32(far_y), bases_y, h + other_y)

    @device
    def begin(xs, raw, bases, other, outside, p):
        for r in range(carried):
            h = i64(clamped(i32(p * sh - ph + r), i32(H))) * line
            fetch(raw, i32(0), bases, h)
            if not last:
                fetch(raw, i32(far), bases, h + other)
            pair(xs, i32(r * x_row), raw, i32(0), i32(far), outside)

    @device
    def step(xs, total, raw, raw_y, bases, bases_y, other, other_y, outside, outside_y, dx, j, p, n, count):
        best = cuda.local.array(many, WORD)
        shares = cuda.local.array(many, WORD)
        out = cuda.local.array(capacity_out, WORD)
        if not ahead:
            load(raw, raw_y, bases, bases_y, other, other_y, p)
        for r in range(fresh):
            pair(xs, i32((carried + r) * x_row), raw, i32(r * words), i32(far + r * words), outside)
        pair_y(shares, i32(0), raw_y, i32(0), i32(far_y), outside_y if p >= 0 and p < P else i32(ALL))
        if ahead and n + 1 < count:
            load(raw, raw_y, bases, bases_y, other, other_y, i32(p + 1))
        h = i32(p * sh - ph)
        maxima(best, xs)
        give(total, xs, best, shares, i32(-h), i32(-(j * x_step + first)))
        rounded(out, total)
        for r in range(sh):
            if n >= warm and n < count and h + r >= 0 and h + r < H:
                put(out, i32(r * out_row), dx + i64(h + r) * line, other, j)
        for e in range(kept_x):
            xs[e] = xs[e + moved_x]
        for e in range(kept_t):
            total[e] = total[e + moved_t]
        for e in range(kept_t, capacity_t):
            total[e] = u32(0)

    return (load, begin), step


def pool_grad(dtype: str, config: WalkConfig) -> Callable[..., None]:
    """dx from x and dy."""
    (load, begin), step = stepper(dtype, config)
    x, y, cells, threads, last = config.x, config.y, config.cells, config.threads, config.last
    pitch, kh, sh = SIZE * cells, config.window[0], config.stride[0]
    place, place_y, pieces, pieces_y = placer(x, pitch), placer(y, pitch), len(x.pieces), len(y.pieces)
    capacity_x, capacity_t, planes = kh * x.length * config.words, totals_of(config).capacity, 1 if last else 2
    capacity_raw, capacity_raw_y = planes * min(kh, sh) * x.words(SIZE), planes * y.words(SIZE)
    part_of, drop = part(config, SIZE), config.drop
    strip, strips, wide = config.strip, config.strips, config.spread * config.stride[1]
    warm, ahead = config.warm, config.ahead
    x_image, y_image = (pitch * math.prod(n) for n in (config.image, config.outputs))

    def kernel(x, dy, dx, units, images):
        unit = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if unit >= units:
            return
        offset, j, s, outer = part_of(u32(unit))
        plane = i64(outer) * planes
        xs = cuda.local.array(capacity_x, WORD)
        total = cuda.local.array(capacity_t, WORD)
        raw = cuda.local.array(capacity_raw, WORD)
        raw_y = cuda.local.array(capacity_raw_y, WORD)
        bases = cuda.local.array(pieces, ADDRESS)
        bases_y = cuda.local.array(pieces_y, ADDRESS)
        outside = place(bases, x + plane * x_image + offset, j)
        outside_y = place_y(bases_y, dy + plane * y_image + offset, j)
        two = plane + 1 < images
        other, other_y = i64(x_image if two else 0), i64(y_image if two else 0)
        dx = dx + plane * x_image + offset + i64(j * wide) * pitch
        first, count = i32(strip + s - warm), i32(min(drop, strips - s) + warm)
        begin(xs, raw, bases, other, outside, first)
        for e in range(capacity_t):
            total[e] = u32(0)
        if ahead:
            load(raw, raw_y, bases, bases_y, other, other_y, first)
        for strip_number in range(0, count, 1):
            n = i32(strip_number)
            step(
                xs, total, raw, raw_y, bases, bases_y, other, other_y, outside, outside_y, dx, j, i32(first + n), n, count,
            )  # fmt: skip

    return kernel
