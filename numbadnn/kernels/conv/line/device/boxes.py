"""1-D convolution of float32 by wgmma: each number is two float16 with a common scale (``lang/scaled_halves.py``).

A block has its filters, and behind them its times' boxes (64 channels of 64 times), brought by the copy engine, as many as
shared memory has room for at once. Four groups of four warps cut the filters together; then each takes a box, and does all with
it by itself. They multiply by turns, so that one's cutting and storing goes on beside the others' products:

    largest of the box: the scale | cut, in its place | multiply: filters (rows) by times (columns) | scale back, in its place,
    store as a box

    box, brought   channel 0: 64 times    cut   vector 0 of channels, h1: 8 channels of time 0, of time 1 ...
                   channel 1: 64 times          vector 1 ...                                    then h2, the same
                   ...

Eight times of a vector, wherever they begin, are 128 bytes one behind the other, as wgmma takes them: so a tap is as many rows
further on, whatever the dilation. Filters lie in rows of 8 channels, too: [half][tap][vector][filter].

Times that have numbers too small for their scale, or one that is not finite, say so, as filters do; then a warp looks which of
its results these concern, and computes them anew as plain sums (``device/f32x2_plain.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.line.boxes import (
    BOX,
    BOX_BYTES,
    CHANNELS,
    COME,
    FILTERS,
    FIRST,
    FIRST_BOXES,
    GROUPS,
    MOST_BOXES,
    PREFETCHER,
    TAP,
    VECTOR,
    BoxesConfig,
)
from numbadnn.kernels.conv.line.device.boxes_cut import boxes, filters
from numbadnn.kernels.conv.line.device.f32x2_plain import plain_sums
from numbadnn.kernels.conv.line.f32x2 import LANES, SIZE
from numbadnn.kernels.lang import hopper
from numbadnn.kernels.lang.async_copies import arrive_of, meet_of
from numbadnn.kernels.lang.cuda import cuda, device, f32, i32, i64, u32, u64
from numbadnn.kernels.lang.ptx import quotient
from numbadnn.kernels.lang.scaled_halves import APART
from numbadnn.kernels.lang.words import in_turn


def _descriptor(vector: int) -> int:
    """The constant half of a matrix descriptor, without swizzle: bytes from vector to vector, and from 8 rows to the next."""
    return (128 >> 4) << 32 | (vector >> 4) << 16


def _multiply(config: BoxesConfig) -> Callable[..., None]:
    """``multiply(sums, a, b, rows)``: descriptors of the filters and of the box at the first tap; rows from tap to tap.

    The sums are the total, a run's, and those of mixed products: of these some follow every run, and are multiplied while its
    sums are added.
    """
    span, count, vector_pair = config.span, config.span // 2, 2 * BOX
    half, half_box = config.filters >> 4, BOX_BYTES // 2 >> 4
    begin, end, wait_one, wait = hopper.wgmma_fence, hopper.wgmma_commit, hopper.wgmma_wait(1), hopper.wgmma_wait(0)
    chunks = [(s, c) for s in range(config.taps) for c in range(CHANNELS // 16)]
    runs = [chunks[i : i + config.run] for i in range(0, len(chunks), config.run)]

    def product_of(chunk: tuple[int, int], to: int, fresh: bool, w_half: int, x_half: int) -> Callable[..., None]:
        product, (s, c) = hopper.wgmma("float16", span, True, True, to * count, fresh), chunk
        of_filters, of_box = ((s * TAP + 2 * c * VECTOR) >> 4) + w_half * half, c * vector_pair + x_half * half_box

        @device
        def multiply_chunk(sums, a, b, rows):
            product(sums, u64(a + u64(of_filters)), u64(b + rows * u64(s) + u64(of_box)))

        return multiply_chunk

    def run_of(run: list[tuple[int, int]], to: int) -> list[Callable[..., None]]:
        return [product_of(chunk, to, chunk == run[0], 0, 0) for chunk in run]

    def batch_of(upper: list[Callable[..., None]], some: list[tuple[int, int]], first: bool) -> Callable[..., None]:
        fresh = some[0] if first else None
        mixed = [product_of(c, 2, c == fresh and i == 0, i, 1 - i) for c in some for i in (0, 1)]
        multiply_upper, multiply_mixed = in_turn(upper), in_turn(mixed)

        @device
        def multiply_batch(sums, a, b, rows):
            begin()
            multiply_upper(sums, a, b, rows)
            end()
            multiply_mixed(sums, a, b, rows)
            end()
            wait_one()
            for i in range(count):
                sums[i] = f32(sums[i] + sums[count + i])

        return multiply_batch

    uppers = [run_of(runs[0], 0) + run_of(runs[1], 1), *(run_of(run, 1) for run in runs[2:])]
    parts = [chunks[i * len(chunks) // len(uppers) : (i + 1) * len(chunks) // len(uppers)] for i in range(len(uppers))]
    batches = in_turn([batch_of(u, p, i == 0) for i, (u, p) in enumerate(zip(uppers, parts, strict=True))])

    @device
    def multiply(sums, a, b, rows):
        batches(sums, a, b, rows)
        wait()

    return multiply


def _store(config: BoxesConfig) -> Callable[..., None]:
    """``store(sums, inverse, to)``: a lane's sums, scaled back, to shared memory: 64 filters, one behind the other."""
    keep, groups, count, row = hopper.keep_pair, config.span // 8, config.span // 2, config.span * SIZE

    @device
    def store(sums, inverse, to):
        for j in range(groups):
            for i in range(4):
                value = f32(sums[4 * j + i] + sums[2 * count + 4 * j + i] * f32(1 / APART))
                sums[4 * j + i] = f32(value * inverse)
            keep(u32(to + u32(j * 8 * SIZE)), sums[4 * j], sums[4 * j + 1])
            keep(u32(to + u32(j * 8 * SIZE + 8 * row)), sums[4 * j + 2], sums[4 * j + 3])

    return store


def forward(config: BoxesConfig) -> Callable[..., None]:
    """y[n,k,t] = sum over c,s of x[n, g*C+c, t - past + s*dilation] * w[k,c,s]; past = (S-1) * dilation."""
    span, many, halo, first_box = config.span, 3 * config.span // 2, config.halo, config.first_box
    cut_filters, cut_box, multiply, store, compute = (
        *(filters(config), boxes(), _multiply(config), _store(config), plain_sums(config.taps, span, 16)),
    )
    x_map_of, y_map_of, store_box = hopper.map_address(0), hopper.map_address(1), hopper.store_box
    init, expect, wait, fence_all = (
        *(hopper.barrier_init, hopper.barrier_expect, hopper.barrier_wait, hopper.fence_barriers),
    )
    start, copy_box, copy_bytes, fence = hopper.shared_start, hopper.copy_box, hopper.copy_stretch, hopper.fence_shared
    meet, commit, wait_read, wait_stored = hopper.meet, hopper.commit_boxes, hopper.wait_boxes(0), hopper.wait_stored
    my_turn, next_turn = meet_of(256), arrive_of(256)
    of_filters, of_box, bytes_of_filter = _descriptor(VECTOR), _descriptor(BOX * 16), CHANNELS * config.taps * SIZE

    @device
    def prefetch(base, map_x, slot, tile, tiles, by_tiles, channel):
        n = quotient(tile, by_tiles)
        barrier = u32(base + u32(slot * 8))
        expect(barrier, u32(BOX_BYTES))
        time = i32((tile - n * tiles) * span - halo)
        copy_box(u32(base + u32(first_box) + u32(slot * BOX_BYTES)), x_map_of(map_x), time, channel, n, barrier)

    def kernel(
        map_x, map_y, x, w, y, tiles, each, rest, slots, packed, K, C, Q, past, dilation, spread, x_strides,
        w_start, w_strides, y_strides, by_tiles,
    ):  # fmt: skip
        thread = i32(cuda.threadIdx.x)
        base = u32((start() + u32(127)) & u32(0xFFFFFF80))
        block, k0, group = i32(cuda.blockIdx.x), i32(cuda.blockIdx.y * FILTERS), i32(cuda.blockIdx.z)
        blocks, number = i32(cuda.gridDim.x), i32(each + (1 if block < rest else 0))
        come = u32(base + u32(COME))
        if thread == 0:
            init(come, u32(1))
            fence_all()
            if packed != 0:
                size = i32(min(K - k0, i32(FILTERS)) * bytes_of_filter)
                expect(come, u32(size))
                copy_bytes(u32(base + u32(FIRST)), w + i64(group * K + k0) * w_strides[0] * SIZE, size, come)
        elif thread == PREFETCHER:
            for i in range(MOST_BOXES):
                init(u32(base + u32(i * 8)), u32(1))
            fence_all()
        cuda.syncthreads()
        if thread == PREFETCHER:  # behind the filters, and in their order
            for i in range(min(FIRST_BOXES, slots, number)):
                prefetch(base, map_x, i, i32(block + i * blocks), tiles, by_tiles, i32(group * C))
        rows = w + (w_start + i64(group * K + k0) * w_strides[0]) * SIZE
        inverse_of_filters, limit_of_filters = cut_filters(base, rows, come, packed, i32(K - k0), C, spread, w_strides)
        if thread == PREFETCHER:
            for i in range(FIRST_BOXES, min(slots, number)):
                prefetch(base, map_x, i, i32(block + i * blocks), tiles, by_tiles, i32(group * C))
        lane, warp, own = i32(thread & (LANES - 1)), i32((thread >> 5) & 3), i32(thread >> 7)
        box, slot, parity = own, own, u32(0)
        sums = cuda.local.array(many, f32)
        a = u64(u64(of_filters) | u64(u32(base + u32(FIRST)) >> u32(4)))
        while box < number:
            wait(u32(base + u32(slot * 8)), parity)
            place = u32(base + u32(first_box) + u32(slot * BOX_BYTES))
            inverse, limit = cut_box(base, place, own, warp, lane, spread)
            if thread & 127 == 0 and box >= GROUPS and box - GROUPS + slots < number:
                wait_read()  # what was stored from the box before, in whose place another comes
                before = i32(slot - GROUPS + (slots if slot < GROUPS else 0))
                tile = i32(block + (box - GROUPS + slots) * blocks)
                prefetch(base, map_x, before, tile, tiles, by_tiles, i32(group * C))
            b = u64(u64(of_box) | u64(u32(place + u32((halo - past) * 16)) >> u32(4)))
            if box > 0:
                my_turn(i32(1 + GROUPS + own))
            multiply(sums, a, b, u64(dilation))
            if box + 1 < number:
                next_turn(i32(1 + GROUPS + ((own + 1) & (GROUPS - 1))))
            meet(i32(1 + own))  # nobody reads the box any more
            to = u32(place + u32(((warp * 16 + (lane >> 2)) * span + 2 * (lane & 3)) * SIZE))
            store(sums, f32(inverse * inverse_of_filters), to)
            fence()
            meet(i32(1 + own))
            n = quotient(i32(block + box * blocks), by_tiles)
            t0 = i32((block + box * blocks - n * tiles) * span)
            if thread & 127 == 0:
                store_box(y_map_of(map_y), t0, i32(group * K + k0), n, place)
                commit()
            if limit > 0 or limit_of_filters > 0:
                if thread & 127 == 0:
                    wait_stored()
                meet(i32(1 + own))
                f = i32(warp * 16)
                line = x + (i64(n) * x_strides[0] + i64(group * C) * x_strides[1]) * SIZE
                row = rows + f * w_strides[0] * SIZE
                target = y + (i64(n) * y_strides[0] + i64(group * K + k0 + f) * y_strides[1]) * SIZE
                limits, steps, end = (limit, limit_of_filters), (x_strides[1], y_strides[1]), min(Q, i32(t0 + span))
                compute(line, row, target, lane, limits, t0, i32(K - k0 - f), C, end, past, dilation, steps, w_strides)
            box, slot = i32(box + GROUPS), i32(slot + GROUPS)
            if slot >= slots:
                slot, parity = i32(slot - slots), u32(parity ^ u32(1))
        if thread & 127 == 0:
            wait_read()  # before shared memory is another block's

    return kernel
