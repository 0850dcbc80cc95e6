"""Split the filters (once) and each TMA box of ``device/boxes.py`` into two float16 with a common scale."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.line.boxes import (
    BOX,
    BOX_BYTES,
    EXTREMES,
    EXTREMES_OF_FILTERS,
    FIRST,
    TAP,
    THREADS,
    VECTOR,
    BoxesConfig,
)
from numbadnn.kernels.conv.line.f32x2 import LANES, SIZE
from numbadnn.kernels.lang import hopper
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.scaled_halves import NOTHING, common_scale, extremes, halve_pair, widest
from numbadnn.kernels.lang.warp import largest_of_warp
from numbadnn.kernels.lang.words import in_turn


def _largest(count: int) -> Callable[..., tuple[int, int]]:
    """``largest(held) -> (top, low)``: the extremes of a warp's words, ``count`` of each lane."""

    @device
    def largest(held):
        top, low = u32(NOTHING[0]), u32(NOTHING[1])
        for i in range(count):
            top, low = widest(held[i], top, low)
        upper, lower = extremes(top, low)
        return largest_of_warp(upper), largest_of_warp(lower)

    return largest


def _store_row(at: int) -> Callable[..., None]:
    """``store(held, to, half, scale)``: the eight channels held[at:] of a row, h1 to ``to`` and h2 ``half`` bytes further."""
    keep = hopper.keep_words

    @device
    def store(held, to, half, scale):
        row = cuda.local.array(8, WORD)
        for p in range(4):
            halve_pair(row, i32(p), i32(4), held[at + 2 * p], held[at + 2 * p + 1], scale)
        keep(to, row[0], row[1], row[2], row[3])
        keep(u32(to + half), row[4], row[5], row[6], row[7])

    return store


def boxes() -> Callable[..., tuple[float, int]]:
    """``cut(base, place, group, warp, lane, spread) -> (inverse of the scale, limit)``: a group's box, in its place.

    A warp has two vectors of channels, a lane two times of these.
    """
    load, load_words, keep, number = hopper.load_word, hopper.load_words, hopper.keep_word, hopper.as_float
    meet, fence, largest = hopper.meet, hopper.fence_shared, _largest(32)
    store = [_store_row(8 * i) for i in range(4)]
    store_0, store_1, store_2, store_3 = store

    @device
    def cut(base, place, group, warp, lane, spread):
        held = cuda.local.array(32, WORD)
        own = u32(place + u32(warp * (16 * BOX * SIZE) + lane * SIZE))
        for i in range(4):
            for e in range(8):
                held[8 * i + e] = load(u32(own + u32(((i >> 1) * 8 + e) * (BOX * SIZE) + (i & 1) * (LANES * SIZE))))
        top, low = largest(held)
        at = u32(base + u32(EXTREMES) + u32(group * 32))
        if lane == 0:
            keep(u32(at + u32(warp * 8)), u32(top))
            keep(u32(at + u32(warp * 8 + 4)), u32(low))
        meet(i32(1 + group))
        a, b = load_words(at), load_words(u32(at + u32(16)))
        top = max(max(i32(a[0]), i32(a[2])), max(i32(b[0]), i32(b[2])))
        low = max(max(i32(a[1]), i32(a[3])), max(i32(b[1]), i32(b[3])))
        scale, inverse, limit = common_scale(top, low, spread)
        to, half = u32(place + u32(warp * (2 * BOX * 16) + lane * 16)), u32(BOX_BYTES // 2)
        store_0(held, to, half, scale)
        store_1(held, u32(to + u32(LANES * 16)), half, scale)
        store_2(held, u32(to + u32(BOX * 16)), half, scale)
        store_3(held, u32(to + u32(BOX * 16 + LANES * 16)), half, scale)
        fence()
        meet(i32(1 + group))
        return number(u32(inverse)), limit

    return cut


def filters(config: BoxesConfig) -> Callable[..., tuple[float, int]]:
    """``cut(base, w, come, packed, K, C, spread, strides) -> (inverse of the scale, limit)``: a block's filters, in their place.

    A thread has all taps of eight channels of a filter. ``packed``: filters are on their way to shared memory, as they are, and
    the barrier ``come`` tells of them; -1: the last tap first. Else threads prefetch their own.
    """
    taps, warps, half_bytes = config.taps, THREADS // LANES, config.filters
    bits, load_words, keep, number = load_bits(SIZE), hopper.load_words, hopper.keep_word, hopper.as_float
    fence, largest, wait = hopper.fence_shared, _largest(8 * config.taps), hopper.barrier_wait
    count = 8 * taps

    def look_of(i: int) -> Callable[..., None]:
        places = [(4 * i + e) % taps * 8 + (4 * i + e) // taps for e in range(4)]
        p0, p1, p2, p3 = places

        @device
        def look(held, at, there, unused):
            four = load_words(u32(at + u32(16 * i)))
            held[p0] = four[0] if there else u32(0)
            held[p1] = four[1] if there else u32(0)
            held[p2] = four[2] if there else u32(0)
            held[p3] = four[3] if there else u32(0)

        return look

    def prefetch_of(s: int) -> Callable[..., None]:
        @device
        def prefetch(held, row, left, steps):
            for e in range(8):
                value = bits(row + (min(i32(e), left) * steps[1] + s * steps[2]) * SIZE)
                held[8 * s + e] = value if i32(e) <= left else u32(0)

        return prefetch

    def store_of(s: int) -> Callable[..., None]:
        store_row = _store_row(8 * s)

        @device
        def store(held, to, step, scale):
            store_row(held, u32(to + s * step), u32(half_bytes), scale)

        return store

    look_all, prefetch_all, store_all = (
        in_turn([of(i) for i in range(n)]) for of, n in ((look_of, 2 * taps), (prefetch_of, taps), (store_of, taps))
    )

    @device
    def cut(base, w, come, packed, K, C, spread, strides):
        held = cuda.local.array(count, WORD)
        thread = i32(cuda.threadIdx.x)
        f, vector = i32(thread >> 3), i32(thread & 7)
        if packed != 0:
            wait(come, u32(0))
            look_all(held, u32(base + u32(FIRST) + u32(thread * (8 * taps * SIZE))), f < K, 0)
        else:
            c = min(i32(8 * vector), i32(C - 1))
            row = w + (i64(min(f, i32(K - 1))) * strides[0] + c * strides[1]) * SIZE
            prefetch_all(held, row, i32(C - 1 - 8 * vector), strides)
        top, low = largest(held)
        at = u32(base + u32(EXTREMES_OF_FILTERS))
        if thread & (LANES - 1) == 0:
            keep(u32(at + u32((thread >> 5) * 8)), u32(top))
            keep(u32(at + u32((thread >> 5) * 8 + 4)), u32(low))
        cuda.syncthreads()
        for i in range(warps // 2):
            found = load_words(u32(at + u32(16 * i)))
            top, low = max(top, max(i32(found[0]), i32(found[2]))), max(low, max(i32(found[1]), i32(found[3])))
        scale, inverse, limit = common_scale(top, low, spread)
        to, step = i32(base + u32(FIRST) + u32(vector * VECTOR + f * 16)), i32(TAP)
        if packed < 0:
            to, step = i32(to + (taps - 1) * TAP), i32(-TAP)
        store_all(held, to, step, scale)
        fence()
        cuda.syncthreads()
        return number(u32(inverse)), limit

    return cut
