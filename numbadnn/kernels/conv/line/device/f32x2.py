"""1-D convolution of float32 on tensor cores: each number is two float16 with a common scale (``lang/scaled_halves.py``).

Four warps read lines and cut them, two sets of warps multiply, a stage each by turns; a block goes from times to times:

    readers    prefetch the next times | their largest: the scale | cut, into a stage | ...
    set 0      cut filters, once      | stage 0: taps, write                | stage 2: taps, write | ...
    set 1      the same                      | stage 1: taps, write                | stage 3 ...

    stage      h1   row of time t0: vector 0 (c0 ... c7), vector 1 ...      h2   the same
                    row of time t1: ...

A row's vectors are 16 bytes each; a tap is so many rows further on, whatever the dilation. The columns of two products are such
times that a lane has 4 neighbouring times of a filter in the end: column n of the j-th is time 4 * (n / 2) + 2 * j + n % 2. So
that eight lanes meet all banks at every tap, time 8a + 4b + 2c + d of 16 is row 8c + 4a + 2b + d, and a row's vectors lie
at other places from row to row. Filters lie in shared memory in rows of 8 channels too, [vector][tap][filter].

Times that have numbers too small for their scale, or one that is not finite, say so, as filters do; then a warp looks which of
its results these concern, and computes them anew as plain sums (``device/f32x2_plain.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.line.device.f32x2_cut import EMPTY, FULL, OF_MULTIPLIERS, filters, key_of, readers
from numbadnn.kernels.conv.line.device.f32x2_plain import plain_sums
from numbadnn.kernels.conv.line.f32x2 import (
    FIRST,
    LANES,
    READERS,
    ROW,
    RUN,
    SCALE,
    SETS,
    SHARE,
    SIZE,
    STAGES,
    F32x2Config,
)
from numbadnn.kernels.lang.access import store, store_vector
from numbadnn.kernels.lang.async_copies import arrive_of, meet_of, sync_warp
from numbadnn.kernels.lang.cuda import ELEMENT, HALF, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.ptx import quotient, thread_here
from numbadnn.kernels.lang.scaled_halves import APART
from numbadnn.kernels.lang.words import in_turn, shared_address

#: the type of an element
FLOAT = ELEMENT["float32"]


def _multiply(config: F32x2Config) -> Callable[..., None]:
    """``multiply(total, words, shared16, at)``: at = the stage, a lane's first time, from tap to tap, where its filters lie,
    which vector of two it takes."""
    vectors, taps, tiles, pitch, plane = config.octets, config.taps, config.tiles, config.pitch, config.plane
    groups, half, other = 2 * config.runs, config.filter_bytes, 16 * config.runs * config.tiles
    look, multiply_add, key = load_matrices(False), product("float16", 16), key_of(vectors)
    sums, run, many = 8 * tiles, config.run, 8 * tiles * groups

    def turn(s: int) -> Callable[..., None]:
        @device
        def multiply_tap(total, words, shared16, at):
            fresh = cuda.local.array(many, f32)
            for i in range(many):
                fresh[i] = f32(0)
            time = i32(at[1] + s * at[2])
            row = i32((time & ~15) | (time & 1) | ((time >> 1) & 6) | ((time << 2) & 8))
            start = i32(at[0] + row * (vectors * ROW))
            first = i32((at[4] ^ key(row)) * ROW)
            for chunk in range(vectors // 2):
                for m in range(tiles):
                    of = ((2 * chunk * taps + s) * pitch + m * 16) * ROW
                    look(words, i32(8 + 8 * m), shared16, i32(at[3] + of))
                    look(words, i32(12 + 8 * m), shared16, i32(at[3] + half + of))
                place = i32(start + (first ^ (chunk * 2 * ROW)))
                for g in range(groups):
                    look(words, i32(0), shared16, i32(place + g * (16 * vectors * ROW)))
                    look(words, i32(4), shared16, i32(place + plane + g * (16 * vectors * ROW)))
                    for i in range(sums):
                        fresh[g * sums + i] = f32(0) if chunk % run == 0 else fresh[g * sums + i]
                    for m in range(tiles):
                        for j in range(2):
                            to = other + g * sums + 8 * m + 4 * j
                            multiply_add(total, i32(to), words, i32(8 + 8 * m), words, i32(4 + 2 * j))
                    for m in range(tiles):
                        for j in range(2):
                            multiply_add(fresh, i32(g * sums + 8 * m + 4 * j), words, i32(8 + 8 * m), words, i32(2 * j))
                    for m in range(tiles):
                        for j in range(2):
                            to = other + g * sums + 8 * m + 4 * j
                            multiply_add(total, i32(to), words, i32(12 + 8 * m), words, i32(2 * j))
                    if chunk % run == run - 1:
                        for i in range(sums):
                            total[g * sums + i] = f32(total[g * sums + i] + fresh[g * sums + i])

        return multiply_tap

    return in_turn([turn(s) for s in range(taps)])


def _store(config: F32x2Config) -> Callable[..., None]:
    """``store_sums(total, inverse, target, f, time, K, Q, step)``: a lane's sums, scaled back."""
    tiles, groups, other, whole = config.tiles, 2 * config.runs, 16 * config.runs * config.tiles, config.whole
    write, write_one = store_vector("float32", 4, "float32"), store("float32", "float32")

    @device
    def store_sums(total, inverse, target, f, time, K, Q, step):
        result = cuda.local.array(4, f32)
        for m in range(tiles):
            for half in range(2):
                own = i32(f + m * 16 + half * 8)
                to = target + (m * 16 + half * 8) * step
                for g in range(groups):
                    for v in range(4):
                        at = ((g * tiles + m) * 2 + v // 2) * 4 + 2 * half + v % 2
                        value = f32(total[at] + total[other + at] * f32(1 / APART))
                        result[v] = f32(value * inverse)
                    if own < K:
                        if whole:
                            if time + 16 * g < Q:
                                write(result, i32(0), to + 16 * g * SIZE)
                        else:
                            for v in range(4):
                                if time + 16 * g + v < Q:
                                    write_one(to + (16 * g + v) * SIZE, result[v])

    return store_sums


def forward(config: F32x2Config) -> Callable[..., None]:
    """y[n,k,t] = sum over c,s of x[n, g*C+c, t - past + s*dilation] * w[k,c,s]; past = (S-1) * dilation."""
    taps, tiles, runs, high, span, pitch = (
        *(config.taps, config.tiles, config.runs, config.high, config.span, config.pitch),
    )
    multipliers, high_filters, plane = config.multipliers, config.filters, config.plane
    warps, of_stage = config.high * config.wide, config.multipliers // SETS + READERS
    read, place, multiply, store_sums, compute = (
        *(
            readers(config),
            filters(config),
            _multiply(config),
            _store(config),
            plain_sums(taps, RUN * runs, 16 * tiles),
        ),
    )
    sums, count, first_stage = 32 * runs * tiles, 8 + 8 * tiles, config.shared_bytes - 2 * STAGES * config.plane
    meet, wait, arrive = meet_of(multipliers), meet_of(of_stage), arrive_of(of_stage)

    @device
    def own_place(thread):
        """A lane, and its warp's first filter and time of a stage."""
        warp = i32((thread >> 5) & (warps - 1))
        f, t = i32((warp & (high - 1)) * (16 * tiles)), i32((warp >> (high - 1)) * (RUN * runs))  # high is 1 or 2
        return i32(thread & (LANES - 1)), f, t

    def kernel(
        x, w, y, tiles_of_line, works, K, C, Q, past, dilation, halo, spread, x_strides,
        w_start, w_strides, y_strides, by_tiles,
    ):  # fmt: skip
        shared, shared16 = cuda.shared.array(0, WORD), cuda.shared.array(0, HALF)  # the same memory
        floats = cuda.shared.array(0, FLOAT)
        base = shared_address(shared)
        stages = i32(base + first_stage)
        k0, group = i32(cuda.blockIdx.y * high_filters), i32(cuda.blockIdx.z)
        if cuda.threadIdx.x >= multipliers:
            lines = x + i64(group * C) * x_strides[1] * SIZE
            read(shared, stages, lines, works, tiles_of_line, by_tiles, C, Q, halo, spread, x_strides)
        else:
            total, words = cuda.local.array(sums, f32), cuda.local.array(count, WORD)
            rows = w + (w_start + i64(group * K + k0) * w_strides[0]) * SIZE
            if thread_here() == 0:
                shared[SHARE // 4], shared[SHARE // 4 + 1], shared[SHARE // 4 + 2] = u32(k0), u32(group), u32(0)
            place(shared, i32(base + FIRST), rows, i32(K - k0), C, spread, w_strides)
            meet(OF_MULTIPLIERS)
            stage = i32((thread_here() >> 5) // warps)
            work = i32(i32(cuda.blockIdx.x) + stage * i32(cuda.gridDim.x))
            while work < works:
                for i in range(sums):
                    total[i] = f32(0)
                lane, f, t = own_place(thread_here())  # here, as what is made of it would hold registers all the time
                first = i32(halo - past + t + (lane & 1) + ((lane << 1) & 12) + ((lane >> 3) & 2))
                factors = i32(base + FIRST + ((lane >> 4) * (taps * pitch) + f + (lane & 15)) * ROW)
                wait(i32(FULL + stage))
                here = (i32(stages + stage * (2 * plane)), first, dilation, factors, i32((lane >> 3) & 1))
                multiply(total, words, shared16, here)
                inverse, limit = f32(floats[i32(2 * stage)] * floats[SCALE // 4]), i32(shared[i32(2 * stage + 1)])
                limit_of_filters = i32(shared[SCALE // 4 + 1])
                if work + STAGES * i32(cuda.gridDim.x) < works:
                    arrive(i32(EMPTY + stage))
                n = quotient(work, by_tiles)
                lane, f, t = own_place(thread_here())
                k0, group = i32(shared[SHARE // 4]), i32(shared[SHARE // 4 + 1])  # would hold registers, too
                t = i32(t + (work - n * tiles_of_line) * span)
                target = y + (i64(n) * y_strides[0] + i64(group * K + k0) * y_strides[1]) * SIZE
                mine, time = i32(f + (lane >> 2)), i32(t + 4 * (lane & 3))
                to = target + (i64(mine) * y_strides[1] + i64(time)) * SIZE
                store_sums(total, inverse, to, mine, time, i32(K - k0), Q, y_strides[1] * SIZE)
                if limit > 0 or limit_of_filters > 0:
                    sync_warp()
                    lane = i32(lane + i32(shared[SHARE // 4 + 2]))  # 0; lest all that follows be made before the loop
                    line = x + (i64(n) * x_strides[0] + i64(group * C) * x_strides[1]) * SIZE
                    row = w + (w_start + i64(group * K + k0 + f) * w_strides[0]) * SIZE
                    to, limits = target + i64(f) * y_strides[1] * SIZE, (limit, limit_of_filters)
                    steps = (x_strides[1], y_strides[1])
                    compute(line, row, to, lane, limits, t, i32(K - k0 - f), C, Q, past, dilation, steps, w_strides)
                stage, work = i32((stage + SETS) & (STAGES - 1)), i32(work + SETS * i32(cuda.gridDim.x))

    return kernel
