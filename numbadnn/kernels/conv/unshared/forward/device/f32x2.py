"""Unshared convolution of 9 to 32 float32 images on tensor cores: each number is two float16 with a common scale.

Images are cut before (``device/f32x2_transpose.py``), with one scale; filters, each used once, in registers
(``device/f32x2_lanes.py``), with a scale that a warp keeps as long as it fits. Blocks stay and take one tile of positions after
another. A warp has a position, 16 filters, and all terms or every second slot of them.

    filters    through a ring of each warp's own, 32 terms of 16 filters of its position a slot
    images     boxes of some channels that the tile sees, in a few buffers in shared memory, for all warps

Each slot and box is one copy of a tensor's tile, prefetched by warps that do nothing else. A number that cannot be cut is NaN; a
result that is not finite is summed anew (``device/f32x2_plain.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.device.f32x2_cut import SUMS
from numbadnn.kernels.conv.unshared.forward.device.f32x2_lanes import filters_row, multiplying
from numbadnn.kernels.conv.unshared.forward.device.f32x2_prefetch import prefetching
from numbadnn.kernels.conv.unshared.forward.device.f32x2_store import storing
from numbadnn.kernels.conv.unshared.forward.f32x2_config import (
    FEWER,
    INVERSE,
    LANES,
    MORE,
    PIECE,
    PIXEL,
    PREFETCHERS,
    F32x2Config,
    box_at,
    ring_at,
)
from numbadnn.kernels.conv.unshared.inputs.device.tile import pixel_at, tap_of
from numbadnn.kernels.conv.unshared.parts.device.boxes import prefetching_boxes, starting
from numbadnn.kernels.conv.unshared.parts.device.receptive_field import first_position
from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.async_copies import meet_of
from numbadnn.kernels.lang.cuda import ELEMENT, WORD, cuda, f32, i32, u32
from numbadnn.kernels.lang.hopper import map_address, prefetch_map, set_registers
from numbadnn.kernels.lang.ptx import block_here, thread_here, wait_for_previous
from numbadnn.kernels.lang.words import shared_address


def forward(config: F32x2Config) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    threads, boxes = LANES * config.warps, config.boxes
    first_of, meet = first_position(config.tall, config.positions), meet_of(threads)
    w_of, x_of = map_address(0), map_address(1)
    prefetch, multiply, store_results, prefetch_boxes = (
        prefetching(config, PIECE),
        multiplying(config),
        storing(config),
        prefetching_boxes(config, 3),
    )
    fewer, more, read = set_registers(FEWER, False), set_registers(MORE, True), load("float32", "float32")
    rings_from, boxes_from, element = ring_at(config), box_at(config), ELEMENT["float32"]

    start_barriers = starting(config)

    def kernel(
        w_map, x_map, x, w, space, y, tiles, floor, spread, across, groups, N, K, C, channels, P, Q, capacity, image, taps,
        padding, stride, dilation, flip, box, x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        shared, results = cuda.shared.array(0, WORD), cuda.shared.array(0, element)  # the same memory
        total = cuda.local.array(SUMS, f32)
        thread, begin = i32(cuda.threadIdx.x), i32(shared_address(shared))
        full = i32((begin + 1023) & -1024)
        start_barriers(full)
        terms, plane, table = i32(C * taps[0] * taps[1]), i32(box[0] * box[1]), i32(full + boxes_from)
        to_box, bytes_of_box = i32(table + 4 * capacity), i32(channels * plane * PIXEL)
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
                    at = (i32(0), i32(q0 * stride[1] - padding[1]), i32(p0 * stride[0] - padding[0]), i32(group * C))
                    phases = prefetch_boxes(
                        shared, x_of(x_map), full, to_box, bytes_of_box, bytes_of_box, C, channels, at, phases
                    )
                    tile = i32(tile + i32(cuda.gridDim.x))
            elif prefetcher < PREFETCHERS:
                ring, filters = i32(full + rings_from), w_of(w_map)
                while tile < tiles:
                    group, p0, q0 = first_of(tile, across, groups)
                    slot, parity = prefetch(
                        shared, filters, full, ring, i32(group * K), K, P, Q, p0, q0, terms, i32(0), slot, parity
                    )  # fmt: skip
                    tile = i32(tile + i32(cuda.gridDim.x))
        else:
            more()
            for m in range(thread, capacity, i32(threads)):
                c, r, s = tap_of(min(i32(m), i32(terms - 1)), taps)
                part = i32(u32(c) // u32(channels))
                at = pixel_at(i32(c - part * channels), r, s, plane, taps, dilation, box[1], flip)
                at = i32(at + i32(u32(part) % u32(boxes)) * (channels * plane))
                shared[i32(((table - begin) >> 2) + m)] = u32(at * PIXEL)
            wait_for_previous()
            back, parity, row = read(space + INVERSE), i32(0), filters_row(i32(thread & 31))
            meet(i32(1))
            again = (x, w, C, image, taps, stride, padding, flip, x_strides, w_strides)
            first = i32(to_box + boxes * bytes_of_box)
            while tile < tiles:
                group, p0, q0 = first_of(tile, across, groups)
                origin = (i32(group * C), i32(p0 * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
                state = (slot, parity, phases)
                slot, parity, phases = multiply(
                    total, shared, full, table, to_box, back, terms, i32(channels * taps[0] * taps[1]), box, taps, stride, flip,
                    floor, spread, origin, state,
                )  # fmt: skip
                store_results(
                    results, first, total, row, y, again, (group, p0, q0), (N, K, P, Q), y_strides, (alpha, beta)
                )
                tile = i32(tile + i32(cuda.gridDim.x))

    return kernel
