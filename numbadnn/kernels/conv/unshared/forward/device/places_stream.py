"""Unshared convolution of 16-bit types: a block computes tile after tile and prefetches the next one.

    filters    through a ring of each warp's own, 64 terms of 16 filters of its position a slot
    images     transposed before, in cells (``conv/unshared/parts/device/transposed.py``): boxes of some channels that the tile
    sees, in a few buffers

Each slot and box is one copy of a tensor's tile, prefetched by warps that do nothing else, so that memory is never idle between
tiles. A warp has a position and 16 filters. Both factors are loaded as matrices: pieces of filters are exchanged by the copy
engine, so that neighbours meet all banks; cells of eight images do where filters are not flipped and a tile is one row.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.device.f32x2_prefetch import prefetching, terms_before
from numbadnn.kernels.conv.unshared.forward.device.f32x2_store import first_filter
from numbadnn.kernels.conv.unshared.forward.f32x2_config import PREFETCHERS, SLOT, box_at, ring_at
from numbadnn.kernels.conv.unshared.forward.places_stream_config import FEWER, LANES, MORE, ROWS, TERMS, StreamConfig
from numbadnn.kernels.conv.unshared.inputs.device.tile import pixel_at, tap_of
from numbadnn.kernels.conv.unshared.parts.device.boxes import awaiting, prefetching_boxes, starting
from numbadnn.kernels.conv.unshared.parts.device.receptive_field import EIGHT, NONE, SIZE, first_position
from numbadnn.kernels.conv.unshared.parts.transposed import CELL
from numbadnn.kernels.lang.async_copies import meet_of, sync_warp
from numbadnn.kernels.lang.cuda import ELEMENT, HALF, INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.epilogue import storing_vector
from numbadnn.kernels.lang.hopper import barrier_arrive, barrier_wait, map_address, prefetch_map, set_registers
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.ptx import block_here, thread_here, wait_for_previous
from numbadnn.kernels.lang.words import shared_address


def _fill_table(threads: int, boxes: int) -> Callable[..., None]:
    """``fill(shared, table, capacity, terms, taps, dilation, channels, box, pitch, flip)``: bytes from the first box, or
    ``NONE``.

    Of ``TERMS`` before the first as well.
    """

    @device
    def fill(shared, table, capacity, terms, taps, dilation, channels, box, pitch, flip):
        for m in range(i32(thread_here() - TERMS), capacity, i32(threads)):
            c, r, s = tap_of(max(i32(0), min(i32(m), i32(terms - 1))), taps)
            number = i32(u32(c) // u32(channels))
            at = pixel_at(i32(c - number * channels), r, s, i32(box[0] * box[1]), taps, dilation, box[1], flip)
            at = i32(at * CELL + i32(u32(number) % u32(boxes)) * pitch)
            shared[i32(table + m)] = u32(at) if m >= 0 and m < terms else NONE

    return fill


def _multiplying(dtype: str, config: StreamConfig) -> Callable[..., tuple[int, int, int]]:
    """``multiply(total, shared, shared16, full, table, own, nothing, plane, terms, before, box_terms, state)``: a tile's sums of
    a warp.

    ``table``: where each term is in the boxes, of which the warp's position sees its own part; ``nothing``: a cell of zeros;
    ``plane``: bytes from eight images to the next; ``before``: terms that the first slot begins before the first;
    ``box_terms``: terms of a box. ``state``: the next slot, the parity of its barrier, and of each box's; what they are
    afterwards.
    """
    warps, depth, planes, sums = config.warps, config.depth, config.planes, 4 * config.planes
    multiply_add, look_transposed, look = product(dtype, 16), load_matrices(True), load_matrices(False)
    (await_boxes, leave_boxes), rings_from = awaiting(config), ring_at(config)

    @device
    def multiply(total, shared, shared16, full, table, own, nothing, plane, terms, before, box_terms, state):
        a, b = cuda.local.array(8, INT32), cuda.local.array(4, INT32)
        thread = i32(thread_here())
        warp, lane = i32(thread >> 5), i32(thread & 31)
        for i in range(sums):
            total[i] = f32(0)
        slot, parity, phases = state
        barrier, from_ring = i32(full + warp * depth * 8), i32(full + rings_from + warp * (depth * SLOT))
        row = i32(from_ring + (lane & 15) * 128 + ((lane >> 4) ^ (lane & 7)) * 16)
        have, left, coming, going = i32(0), i32(0), i32(0), i32(0)
        for m in range(i32(-before), terms, i32(TERMS)):
            have, phases, coming = await_boxes(full, have, min(i32(m + TERMS), terms), box_terms, phases, coming)
            barrier_wait(u32(barrier + slot * 8), u32(parity))
            for half in range(2):
                if m + half * (TERMS // 2) < terms and m + (half + 1) * (TERMS // 2) > 0:
                    spot = shared[i32(table + m + half * (TERMS // 2) + lane)]
                    at = nothing if spot == NONE else i32(own + i32(spot))
                    step = i32(0) if spot == NONE else plane
                    filters = i32((row + slot * SLOT) ^ (64 * half))
                    look(a, i32(0), shared16, filters)
                    look(a, i32(4), shared16, i32(filters ^ 32))
                    for n in range(planes):
                        look_transposed(b, i32(0), shared16, at)
                        at = i32(at + step)
                        multiply_add(total, i32(n * 4), a, i32(0), b, i32(0))
                        multiply_add(total, i32(n * 4), a, i32(4), b, i32(2))
            sync_warp()
            if lane == 0:
                barrier_arrive(u32(barrier + (warps * depth + slot) * 8))
            left, going = leave_boxes(full, left, min(i32(m + TERMS), terms), box_terms, going)
            parity = i32(parity ^ 1) if slot == depth - 1 else parity
            slot = i32(0) if slot == depth - 1 else i32(slot + 1)
        return slot, parity, phases

    return multiply


def _storing(dtype: str, config: StreamConfig) -> Callable[..., None]:
    """``store_results(parted, start, total, y, first, sizes, strides, alpha, beta)``: a tile's sums, by way of shared memory.

    ``start``: where they may lie meanwhile, [position][filter][image] of each part; ``first``: group, row and column of the first
    position; ``sizes``: N, K, P, Q. The warps of a part wait for each other alone: while they write, others multiply.
    """
    vec, images, planes, columns, parts = config.vec, config.images, config.planes, config.positions, config.parts
    positions, threads, pitch, apart = config.tall * columns, LANES * config.warps // parts, config.pitch, config.apart
    pieces, cells, meet = columns // vec, positions // vec * ROWS * images, meet_of(threads)
    store = storing_vector(dtype, vec)

    @device
    def store_results(parted, start, total, y, first, sizes, strides, alpha, beta):
        result = cuda.local.array(vec, f32)
        warp, lane = i32(i32(thread_here()) // LANES), i32(i32(thread_here()) % LANES)
        part = i32(warp // positions)
        start, k0 = i32(start + part * (positions * apart)), first_filter(part, sizes[1])
        mine = i32(start + warp % positions * apart + (lane >> 2) * pitch + 2 * (lane & 3))
        meet(i32(2 + part))  # the sums before are written
        for n in range(planes):
            for i in range(4):
                parted[i32(mine + (i >> 1) * 8 * pitch + n * EIGHT + (i & 1))] = total[4 * n + i]
        meet(i32(2 + part))
        for i in range(i32(thread_here() - part * threads), i32(cells), i32(threads)):
            piece, rest = i32(i % pieces), i32(i // pieces)
            n, rest = i32(rest % images), i32(rest // images)
            k, down = i32(rest % ROWS), i32(rest // ROWS)
            p, q = i32(first[1] + down), i32(first[2] + piece * vec)
            # filters that the part before has as well are its own
            if k0 + k >= part * ROWS and n < sizes[0] and p < sizes[2] and q < sizes[3]:
                at = (
                    i64(n) * strides[0]
                    + i64(first[0] * sizes[1] + k0 + k) * strides[1]
                    + p * strides[2]
                    + q * strides[3]
                )
                row = i32(start + (down * columns + piece * vec) * apart + k * pitch + n)
                for e in range(vec):
                    result[e] = f32(alpha * parted[i32(row + e * apart)])
                store(result, i32(0), y + at * SIZE, beta)

    return store_results


def forward(dtype: str, config: StreamConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    threads, boxes = LANES * config.warps, config.boxes
    tall, columns, sums, positions = config.tall, config.positions, 4 * config.planes, config.tall * config.positions
    first_of, meet, fill_table = first_position(tall, columns), meet_of(threads), _fill_table(threads, boxes)
    x_of, w_of, element = map_address(0), map_address(1), ELEMENT["float32"]
    fewer, more = set_registers(FEWER, False), set_registers(MORE, True)
    prefetch, prefetch_boxes = prefetching(config, TERMS), prefetching_boxes(config, 2)
    multiply, store_results = _multiplying(dtype, config), _storing(dtype, config)
    rings_from, boxes_from = ring_at(config), box_at(config)
    start_barriers = starting(config)

    def kernel(
        x_map, w_map, y, tiles, wide, box_pitch, box_bytes, across, groups, N, K, C, channels, P, Q, capacity, image, taps,
        padding, stride, dilation, flip, box, x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        shared, shared16 = cuda.shared.array(0, WORD), cuda.shared.array(0, HALF)
        parted = cuda.shared.array(0, element)  # the same memory
        total = cuda.local.array(sums, f32)
        thread, begin = i32(cuda.threadIdx.x), i32(shared_address(shared))
        full = i32((begin + 1023) & -1024)
        start_barriers(full)
        terms, to_box = i32(C * taps[0] * taps[1]), i32(full + boxes_from)
        nothing = i32(to_box + boxes * box_pitch)
        table = i32(((nothing - begin) >> 2) + CELL // 4 + TERMS)
        if thread == threads:
            prefetch_map(w_of(w_map))
            prefetch_map(x_of(x_map))
        cuda.syncthreads()
        tile, slot, phases = i32(block_here()), i32(0), i32(0)
        if thread_here() >= threads:
            fewer()
            prefetcher, parity = i32((thread_here() - threads) // LANES), i32(1)
            if prefetcher == PREFETCHERS and thread % LANES == 0:
                wait_for_previous()
                while tile < tiles:
                    group, p0, q0 = first_of(tile, across, groups)
                    left, top = i32(q0 * stride[1] - padding[1]), i32(p0 * stride[0] - padding[0])
                    at = (i32(left * EIGHT), top, i32(group * C), i32(0))
                    phases = prefetch_boxes(
                        shared, x_of(x_map), full, to_box, box_pitch, box_bytes, C, channels, at, phases
                    )
                    tile = i32(tile + i32(cuda.gridDim.x))
            elif prefetcher < PREFETCHERS:
                ring, filters = i32(full + rings_from), w_of(w_map)
                while tile < tiles:
                    group, p0, q0 = first_of(tile, across, groups)
                    slot, parity = prefetch(
                        shared, filters, full, ring, i32(group * K), K, P, Q, p0, q0, terms, i32(w_strides[2]), slot, parity
                    )  # fmt: skip
                    tile = i32(tile + i32(cuda.gridDim.x))
        else:
            more()
            fill_table(shared, table, capacity, terms, taps, dilation, channels, (box[0], wide), box_pitch, flip)
            if thread < CELL // 4:
                shared[i32(((nothing - begin) >> 2) + thread)] = u32(0)
            warp, parity = i32(thread // LANES), i32(0)
            place = i32(warp % positions)
            down, right = i32(place // columns), i32(place % columns)
            own = i32(to_box + (down * stride[0] * wide + right * stride[1]) * CELL)
            plane, box_terms = i32(channels * box[0] * wide * CELL), i32(channels * taps[0] * taps[1])
            start = i32(table + capacity)
            meet(i32(1))
            while tile < tiles:
                group, p0, q0 = first_of(tile, across, groups)
                at = i32(min(i32(p0 + down), i32(P - 1)) * Q + min(i32(q0 + right), i32(Q - 1)))
                before, state = terms_before(at, i32(w_strides[2]), TERMS), (slot, parity, phases)
                slot, parity, phases = multiply(
                    total, shared, shared16, full, table, own, nothing, plane, terms, before, box_terms, state
                )  # fmt: skip
                store_results(parted, start, total, y, (group, p0, q0), (N, K, P, Q), y_strides, alpha, beta)
                tile = i32(tile + i32(cuda.gridDim.x))

    return kernel
