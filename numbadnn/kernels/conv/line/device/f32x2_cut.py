"""Split the inputs and filters of ``device/f32x2.py`` into two float16: rows of eight channels, and the filters.

A reader has 8 channels of some times; readers tell each other what the largest is, cut all they have by the scale of that, and
have prefetched the same of the next block before. The filters of a block have one scale, too.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.depthwise.device.rows import INT32
from numbadnn.kernels.conv.line.f32x2 import (
    EXTREMES,
    EXTREMES_OF_FILTERS,
    LANES,
    READERS,
    ROW,
    SCALE,
    SETS,
    SIZE,
    STAGES,
    F32x2Config,
)
from numbadnn.kernels.lang.async_copies import arrive_of, meet_of
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.hopper import ADDRESS
from numbadnn.kernels.lang.ptx import quotient
from numbadnn.kernels.lang.scaled_halves import NOTHING, common_scale, extremes, halve_pair, widest
from numbadnn.kernels.lang.warp import largest_of_warp
from numbadnn.kernels.lang.words import in_turn, write_at

#: barriers: of stages that are full, that are empty; the readers' and the multipliers' own
FULL, EMPTY, OF_READERS, OF_MULTIPLIERS = 1, 1 + STAGES, 1 + 2 * STAGES, 2 + 2 * STAGES


def key_of(vectors: int) -> Callable[..., int]:
    """``key(row)``: what a row's vectors have their places changed by, so that 8 rows from a multiple of 8 on meet all banks."""
    shift = {8: 0, 4: 1, 2: 2}[vectors]

    @device
    def key(row):
        return i32((row >> shift) & (vectors - 1))

    return key


def readers(config: F32x2Config) -> Callable[..., None]:
    """``read(shared, stages, line, ...)``: what a reader does with all blocks of times."""
    vectors, turns, full, span, plane = config.octets, config.turns, config.full, config.span, config.plane
    before, warps, of_stage = config.multipliers, READERS // LANES, config.multipliers // SETS + READERS
    hop, count, step = READERS // vectors, 8 * config.turns, READERS * ROW
    last_turn = turns - 1
    bits, write, key = load_bits(SIZE), write_at("int32", 4), key_of(vectors)
    meet, wait, arrive = meet_of(READERS), meet_of(of_stage), arrive_of(of_stage)

    @device
    def prefetch_inner(held, line, time, step, channels, whole):
        for e in range(8):
            start = line + i64(time) * SIZE + (i32(e) if full else min(i32(e), channels)) * step
            for turn in range(last_turn):
                held[8 * turn + e] = bits(start + turn * hop * SIZE)
            held[8 * last_turn + e] = bits(start + last_turn * hop * SIZE) if whole else u32(0)

    def prefetch_of(turn: int) -> Callable[..., None]:
        at = 8 * turn

        @device
        def prefetch(held, line, where, how):
            time = i32(where[0] + turn * hop)
            start = (
                line + i64(time if time >= 0 and time < where[1] else i32(0)) * SIZE
            )  # what is not there is not used
            for e in range(8):
                held[at + e] = bits(start + (i32(e) if full else min(i32(e), how[1])) * how[0])

        return prefetch

    def omit_of(turn: int) -> Callable[..., None]:
        at = 8 * turn

        @device
        def omit(held, line, where, how):
            time = i32(where[0] + turn * hop)
            there = time >= 0 and time < where[1]
            for e in range(8):
                held[at + e] = held[at + e] if there and i32(e) < how[2] else u32(0)

        return omit

    def store_of(turn: int) -> Callable[..., None]:
        at = 8 * turn

        @device
        def store(held, shared, how, whole):
            row, to, scale = cuda.local.array(8, WORD), how[0], how[1]
            for p in range(4):
                halve_pair(row, i32(p), i32(4), held[at + 2 * p], held[at + 2 * p + 1], scale)
            if turn < last_turn or whole:
                write(row, i32(0), shared, i32(to + turn * step))
                write(row, i32(4), shared, i32(to + plane + turn * step))

        return store

    prefetch_outer, omit_all, store_all = (
        in_turn([of(t) for t in range(turns)]) for of in (prefetch_of, omit_of, store_of)
    )

    @device
    def prefetch_all(held, line, t0, first, Q, halo, how):
        if t0 >= halo and t0 + span <= Q:
            prefetch_inner(held, line, i32(first + t0), how[0], how[1], how[3])
        else:
            prefetch_outer(held, line, (i32(first + t0), min(Q, i32(t0 + span))), how)

    @device
    def read(shared, stages, line, works, tiles, by_tiles, C, Q, halo, spread, strides):
        held, coming = cuda.local.array(count, WORD), cuda.local.array(count, WORD)
        thread = i32(i32(cuda.threadIdx.x) - before)
        q, half = i32(thread & 15), i32(thread >> 4)
        o, unit = i32(half & (vectors - 1)), i32(half // vectors)
        c0 = min(i32(8 * o), i32(C - 1))
        own = line + c0 * strides[1] * SIZE
        # the time of the q-th row of sixteen
        first = i32(unit * 16 + (q & 1) + ((q >> 2) & 2) + ((q << 1) & 12) - halo)
        place = i32((unit * 16 + q) * (vectors * ROW) + (o ^ key(q)) * ROW)
        whole = unit * 16 + last_turn * hop < halo + span  # whether there are as many rows
        how = (strides[1] * SIZE, i32(C - 1 - c0), i32(C - 8 * o), whole)
        work = i32(cuda.blockIdx.x)
        n = quotient(work, by_tiles)
        t0 = i32((work - n * tiles) * span)
        prefetch_all(coming, own + i64(n) * strides[0] * SIZE, t0, first, Q, halo, how)
        stage, turn, more = i32(0), i32(0), work < works
        while more:
            now = t0
            for i in range(count):
                held[i] = coming[i]
            work = i32(work + i32(cuda.gridDim.x))
            n = quotient(work, by_tiles)
            t0 = i32((work - n * tiles) * span)
            more = work < works
            if more:
                prefetch_all(coming, own + i64(n) * strides[0] * SIZE, t0, first, Q, halo, how)
            if not full or now < halo or now + span > Q:
                omit_all(held, line, (i32(first + now), min(Q, i32(now + span))), how)
            largest, least = u32(NOTHING[0]), u32(NOTHING[1])
            for i in range(count):
                largest, least = widest(held[i], largest, least)
            top, low = extremes(largest, least)
            top, low = largest_of_warp(top), largest_of_warp(low)
            at = i32(EXTREMES // 4 + (turn & 1) * (2 * warps))
            if thread & (LANES - 1) == 0:
                shared[i32(at + (thread >> 5) * 2)] = u32(top)
                shared[i32(at + (thread >> 5) * 2 + 1)] = u32(low)
            meet(OF_READERS)
            for i in range(warps):
                top, low = max(top, i32(shared[i32(at + 2 * i)])), max(low, i32(shared[i32(at + 2 * i + 1)]))
            scale, inverse, limit = common_scale(top, low, spread)
            if turn >= STAGES:
                wait(i32(EMPTY + stage))
            store_all(held, shared, (i32(stages + stage * (2 * plane) + place), scale), whole)
            if thread == 0:
                shared[i32(2 * stage)], shared[i32(2 * stage + 1)] = u32(inverse), u32(limit)
            arrive(i32(FULL + stage))
            stage, turn = i32((stage + 1) & (STAGES - 1)), i32(turn + 1)

    return read


def filters(config: F32x2Config) -> Callable[..., None]:
    """``place(shared, first, w, K, C, spread, strides)``: filters in shared memory from ``first`` on, and their scale.

    A warp has one of several at a time, a lane two neighbouring channels of a tap, which are a word of each half. Of filters that
    are not there the last has the place.
    """
    vectors, taps, pitch, full = config.octets, config.taps, config.pitch, config.full
    pairs, warps, half, bits = 4 * vectors * taps, config.multipliers // LANES, config.filter_bytes, load_bits(SIZE)
    turns, number = -(-pairs // LANES), config.filters // warps
    held, both = 2 * turns * number, 2 * turns
    meet, write = meet_of(config.multipliers), write_at("int32", 1)

    def prefetch_of(j: int) -> Callable[..., None]:
        @device
        def prefetch(got, w, offsets, how):
            row = w + i64(min(i32(how[0] + j * warps), how[1])) * how[2]
            for i in range(both):
                got[j * both + i] = bits(row + offsets[i])

        return prefetch

    def store_of(j: int) -> Callable[..., None]:
        @device
        def store(shared, got, places, how):
            pair = cuda.local.array(2, WORD)
            for i in range(turns):
                halve_pair(pair, i32(0), i32(1), got[j * both + 2 * i], got[j * both + 2 * i + 1], how[1])
                if i32(how[0] + i * LANES) < pairs:
                    write(pair, i32(0), shared, i32(places[i] + j * (warps * ROW)))
                    write(pair, i32(1), shared, i32(places[i] + j * (warps * ROW) + half))

        return store

    prefetch_all, store_all = (in_turn([of(j) for j in range(number)]) for of in (prefetch_of, store_of))

    @device
    def place(shared, first, w, K, C, spread, strides):
        got, places = cuda.local.array(held, WORD), cuda.local.array(turns, INT32)
        offsets = cuda.local.array(both, ADDRESS)
        lane, f = i32(i32(cuda.threadIdx.x) & (LANES - 1)), i32(i32(cuda.threadIdx.x) >> 5)
        for i in range(turns):
            p = i32(lane + i * LANES)
            c = i32(p // taps * 2)
            s = i32(p - p // taps * taps)
            places[i] = i32(first + ((c >> 3) * taps + s) * (pitch * ROW) + f * ROW + (c & 7) * 2)
            for e in range(2):
                offsets[2 * i + e] = (i64(min(i32(c + e), i32(C - 1))) * strides[1] + s * strides[2]) * SIZE
        prefetch_all(got, w, offsets, (f, i32(K - 1), strides[0] * SIZE))
        largest, least = u32(NOTHING[0]), u32(NOTHING[1])
        for j in range(number):
            for i in range(both):
                if not full:
                    c = i32((lane + i // 2 * LANES) // taps * 2 + i % 2)
                    got[j * both + i] = got[j * both + i] if c < C else u32(0)
                largest, least = widest(got[j * both + i], largest, least)
        top, low = extremes(largest, least)
        top, low = largest_of_warp(top), largest_of_warp(low)
        if lane == 0:
            shared[i32(EXTREMES_OF_FILTERS // 4 + 2 * f)] = u32(top)
            shared[i32(EXTREMES_OF_FILTERS // 4 + 2 * f + 1)] = u32(low)
        meet(OF_MULTIPLIERS)
        for i in range(warps):
            top = max(top, i32(shared[EXTREMES_OF_FILTERS // 4 + 2 * i]))
            low = max(low, i32(shared[EXTREMES_OF_FILTERS // 4 + 2 * i + 1]))
        scale, inverse, limit = common_scale(top, low, spread)
        if lane == 0 and f == 0:
            shared[SCALE // 4], shared[SCALE // 4 + 1] = u32(inverse), u32(limit)
        store_all(shared, got, places, (lane, scale))

    return place
