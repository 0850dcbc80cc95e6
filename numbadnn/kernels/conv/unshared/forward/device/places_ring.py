"""Unshared convolution of many images of 16-bit types on tensor cores: filters and pixels both go around in shared memory.

A warp has a position and 16 filters of it, 64 terms at a time: 128 bytes of each filter, asked for by asynchronous copies, which
hold neither registers nor lines of the L1 cache; of that there is little where shared memory is full, and what loads have under
way is bound by it. The slots of a warp are a ring:

    slot    row k: pieces 0 ... 7 of filter k, 8 terms each       piece i lies at i ^ (k mod 8), so that ldmatrix meets all banks

What the positions of a block see lies in shared memory, of ``around`` channels: channel c lies where channel c + ``around``
comes. A pixel of 8 images is 16 bytes, as ldmatrix takes them:

    row    columns, images 0 to 7; columns, images 8 to 15; ...   rows are so far apart that 8 neighbouring terms of a channel
                                                                  meet all banks

Memory is what all wait for, so filters are asked for before anything else, then pixels. Every ``LAP`` slots all warps meet; the
channels that the next ones need are asked for where those lie that nobody needs any more. The sums stay in registers to the end.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.device.places_many import written_sums
from numbadnn.kernels.conv.unshared.forward.places_many_config import LANES, ROWS
from numbadnn.kernels.conv.unshared.forward.places_ring_config import EARLY, FETCH, LAP, SLOT_BYTES, TERMS, RingConfig
from numbadnn.kernels.conv.unshared.inputs.device.tile import pixel_at, tap_of
from numbadnn.kernels.conv.unshared.parts.device.seen import EIGHT, NONE, ROW, SIZE, first_position
from numbadnn.kernels.conv.unshared.parts.device.turned import copy_box_apart
from numbadnn.kernels.lang.async_copies import commit_async, copy_or_zero, sync_warp, wait_async_but
from numbadnn.kernels.lang.cuda import ELEMENT, HALF, INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.ptx import wait_for_previous
from numbadnn.kernels.lang.words import shared_address


def _fill_spots(threads: int) -> Callable[..., None]:
    """``fill(shared, table, room, terms, taps, dilation, rows, apart, flip, around)``: bytes from the boxes, or ``NONE``"""

    @device
    def fill(shared, table, room, terms, taps, dilation, rows, apart, flip, around):
        for m in range(i32(cuda.threadIdx.x), room, threads):
            c, r, s = tap_of(i32(m), taps)
            c = i32(u32(c) % u32(around))
            at = pixel_at(c, r, s, i32(rows * apart), taps, dilation, apart, flip)
            shared[i32(table + m)] = u32(i32(at * (4 * ROW))) if m < terms else NONE

    return fill


def _ask(vec: int) -> Callable[..., None]:
    """``ask(shared, to, start, step, left, terms)``: begin to copy a lane's pieces of every fourth filter, ``step`` bytes apart.

    0 past the ``left`` filters and the ``terms``, counted from the lane's own.
    """
    copy = copy_or_zero(vec * SIZE, FETCH)

    @device
    def ask(shared, to, start, step, left, terms):
        for i in range(ROWS // 4):
            own = i32((to ^ (64 * (i % 2))) + i * (4 * 128))
            for e in range(0, 8, vec):
                copy(shared, i32(own + e * SIZE), start + e * SIZE, i32(e) < terms and i32(4 * i) < left)
            start = start + step

    return ask


def forward(dtype: str, config: RingConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n."""
    images, tall, places, stages, threads = config.images, config.tall, config.places, config.stages, config.threads
    fill_spots, ask, copy = _fill_spots(threads), _ask(config.vec), copy_box_apart(SIZE, images, threads, ROW)
    first_of, multiply_add, element = first_position(tall, places), product(dtype, 16), ELEMENT["float32"]
    look_at_filters, look_at_pixels = load_matrices(False), load_matrices(True)
    columns, positions = images // EIGHT, tall * places
    sums, pitch, place_pitch = 4 * columns, config.pitch, config.place_pitch
    write_sums = written_sums(dtype, tall, places, config.parts * ROWS, pitch, place_pitch)
    # what a lap brings is asked for before the last slots of it: there are no more stages than those
    wait_first, wait_but = wait_async_but(stages - EARLY), wait_async_but(stages - 1)
    rings = threads // LANES * stages * SLOT_BYTES // 4

    @device
    def bring(shared, boxes, apart, x, strides, low, high, around, box, corner, image):
        """Begin to copy the channels from ``low`` to ``high``, in as many runs as the end of the boxes makes of them."""
        c = i32(low)
        while c < high:
            at = i32(u32(c) % u32(around))
            have = min(i32(high - c), i32(around - at))
            to, source = i32(boxes + at * box[0] * apart * ROW), x + i64(c) * strides[1] * SIZE
            wide = i32(box[1] * ROW)
            gap = i32(apart * ROW - wide)
            copy(shared, to, wide, gap, source, strides, (have, box[0], box[1]), corner, i32(1), image)
            c = i32(c + have)

    def kernel(
        x, w, y, across, groups, N, K, C, around, P, Q, room, image, taps, padding, stride, dilation, flip, box,
        x_strides, w_strides, y_strides, alpha, beta, apart,
    ):  # fmt: skip
        shared, halves = cuda.shared.array(0, WORD), cuda.shared.array(0, HALF)
        parted = cuda.shared.array(0, element)  # the same memory
        total = cuda.local.array(sums, f32)
        a, b = cuda.local.array(8, INT32), cuda.local.array(4, INT32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        group, p0, q0 = first_of(i32(cuda.blockIdx.x), across, groups)
        place, part = i32(warp % positions), i32(warp // positions)
        down, right = i32(place // places), i32(place % places)
        area = i32(taps[0] * taps[1])
        terms = i32(C * area)
        corner = (i32(p0 * stride[0] - padding[0]), i32(q0 * stride[1] - padding[1]))
        start = i32(shared_address(shared))
        table, zero = i32(rings), i32(rings + room)
        boxes, plane = i32(zero + ROW), i32(box[1] * ROW)
        # this lane's pieces of its warp's filters, and where they go
        row, piece = i32(lane >> 3), i32(lane & 7)
        p, q, k = min(i32(p0 + down), i32(P - 1)), min(i32(q0 + right), i32(Q - 1)), i32(part * ROWS + row)
        at_w = i64(group * K + min(k, i32(K - 1))) * w_strides[0] + p * w_strides[1] + q * w_strides[2]
        own_w, step = w + (at_w + piece * 8) * SIZE, i64(w_strides[0] * (4 * SIZE))
        left, own_terms = i32(K - k), i32(terms - piece * 8)
        ring = i32(start + warp * (stages * SLOT_BYTES))
        to_ring = i32(ring + row * 128 + (piece ^ row) * 16)
        for i in range(EARLY):
            ask(shared, i32(to_ring + i * SLOT_BYTES), own_w + i * 128, step, left, i32(own_terms - i * TERMS))
            commit_async()
        first = x + i64(group * C) * x_strides[1] * SIZE
        have = min(C, i32(i32(u32(LAP * TERMS - 1) // u32(area)) + 1))
        wait_for_previous()
        bring(shared, boxes, apart, first, x_strides, i32(0), have, around, box, corner, image)
        commit_async()
        for i in range(EARLY, stages):
            ask(shared, i32(to_ring + i * SLOT_BYTES), own_w + i * 128, step, left, i32(own_terms - i * TERMS))
            commit_async()
        if thread < ROW:
            shared[i32(zero + thread)] = u32(0)
        for i in range(sums):
            total[i] = f32(0)
        fill_spots(shared, table, room, terms, taps, dilation, box[0], apart, flip, around)
        own_x = i32(start + (boxes + (down * stride[0] * apart + right * stride[1]) * ROW) * 4)
        own_row = i32(ring + (lane & 15) * 128 + ((lane >> 4) ^ (lane & 7)) * 16)
        own_w, own_terms = own_w + stages * 128, i32(own_terms - stages * TERMS)
        slot, lap, spots, zeros = i32(0), i32(0), i32(table + lane), i32(start + zero * 4)
        for m0 in range(i32(0), terms, i32(TERMS)):
            if m0 == 0:
                wait_first()
            else:
                wait_but()
            if lap == 0:
                cuda.syncthreads()
                lap = i32(LAP)
                need = min(C, i32(i32(u32(m0 + 2 * LAP * TERMS - 1) // u32(area)) + 1))
                bring(shared, boxes, apart, first, x_strides, have, need, around, box, corner, image)
                have = need
            else:
                sync_warp()
            lap = i32(lap - 1)
            for half in range(2):
                spot = shared[i32(spots + m0 + half * 32)]
                at = zeros if spot == NONE else i32(own_x + i32(spot))
                to_plane = i32(0) if spot == NONE else i32(plane * 4)
                look_at_filters(a, i32(0), halves, i32((own_row + slot) ^ (64 * half)))
                look_at_filters(a, i32(4), halves, i32((own_row + slot) ^ (64 * half + 32)))
                for n in range(columns):
                    look_at_pixels(b, i32(0), halves, at)
                    at = i32(at + to_plane)
                    multiply_add(total, i32(n * 4), a, i32(0), b, i32(0))
                    multiply_add(total, i32(n * 4), a, i32(4), b, i32(2))
            sync_warp()
            ask(shared, i32(to_ring + slot), own_w, step, left, own_terms)
            commit_async()
            own_w, own_terms = own_w + 128, i32(own_terms - TERMS)
            slot = i32(slot + SLOT_BYTES) if slot < (stages - 1) * SLOT_BYTES else i32(0)
        cuda.syncthreads()  # the sums lie where the boxes were
        k = i32(part * ROWS + (lane >> 2))
        mine = i32(boxes + place * place_pitch + k * pitch + 2 * (lane & 3))
        for n in range(columns):
            for i in range(4):
                parted[i32(mine + (i >> 1) * 8 * pitch + n * EIGHT + (i & 1))] = total[n * 4 + i]
        cuda.syncthreads()
        write_sums(y, parted, boxes, (group, p0, q0), (N, K, P, Q), y_strides, alpha, beta)

    return kernel
