"""The gradient of an unshared convolution's images of 16-bit types on tensor cores: each filter read once, sums in boxes.

A block has a tile of output positions and some channels of a group, as in ``device/boxes.py``; a warp has ``own`` of these
channels alone: it adds to pixels that no other warp has, and so waits for none. For one position after another it multiplies
filters, [filter][term], with what came of them, [filter][image], and adds that to a box of pixels in shared memory. Whole lines
of the filters come by asynchronous copies, ``depth`` positions before they are multiplied, into a ring of the warp's own:

    position 0                                                           | position 1 | ...    depth of them
    first 64 terms of 16 filters, of the next 16, ... | next 64 terms ...|

ldmatrix turns them. Terms before a warp's own, from the last whole access on, are its neighbour's and are not added. The box is
[8 images][channel][pixel][image]: neighbouring terms are neighbouring pixels most of the time, and meet different banks.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.inputs.device.tile import NONE, block_of, pixel_at, tap_of, terms_of
from numbadnn.kernels.conv.unshared.inputs.halves_config import LANES, TILE, InputsHalvesConfig
from numbadnn.kernels.conv.unshared.parts.device.filters import PITCH, ROWS, SLOT
from numbadnn.kernels.lang.access import store_vector
from numbadnn.kernels.lang.async_copies import commit_async, copy_or_zero, sync_warp, wait_async_but
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import ELEMENT, HALF, INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.ptx import let_next_start
from numbadnn.kernels.lang.words import read_at, shared_address, write_at

#: bytes of an element, of a word and sum, and of eight sums; images of a product
SIZE, ITEM, EIGHT, CELL = 2, 4, 8, 32
#: words of a position's filters beside the pairs, so that neighbours are in other banks
PAD = 2


def _load_tops(config: InputsHalvesConfig) -> Callable[..., None]:
    """``load(held, i, y, strides, N, K, count, wide)``: 16 filters of the ``i``-th (position, image), 0 past the ends.

    Neighbours have neighbouring positions.
    """
    half, images = load_bits(SIZE), config.images

    @device
    def load(held, i, y, strides, N, K, count, wide):
        rest = u32(u32(i) // u32(count))
        place, n, s = i32(i - rest * count), i32(rest % u32(images)), i32(rest // u32(images))
        down = i32(u32(place) // u32(wide))
        source = n * strides[0] + s * ROWS * strides[1] + down * strides[2] + (place - down * wide) * strides[3]
        source = y + source * SIZE
        left = i32(K - s * ROWS) if n < N else i32(0)
        if left >= ROWS:
            for k in range(ROWS):
                held[k] = half(source)
                source = source + strides[1] * SIZE
        else:
            for k in range(ROWS):
                held[k] = u32(0)
                if k < left:
                    held[k] = half(source)
                    source = source + strides[1] * SIZE

    return load


def _store_tops(config: InputsHalvesConfig) -> Callable[..., None]:
    """``store(held, i, shared, tops, count)``: those, as [position][quad of filters][image].

    The lane of a product with quad t takes filters 2t, 2t+1, 2t+8 and 2t+9.
    """
    write, images, pitch = write_at("int32", 2), config.images, 4 * (8 * config.steps * config.images + PAD)

    @device
    def store(held, i, shared, tops, count):
        pair = cuda.local.array(2, WORD)
        rest = u32(u32(i) // u32(count))
        place, n, s = i32(i - rest * count), i32(rest % u32(images)), i32(rest // u32(images))
        for t in range(4):
            pair[0] = u32(held[2 * t] | (held[2 * t + 1] << u32(16)))
            pair[1] = u32(held[2 * t + 8] | (held[2 * t + 9] << u32(16)))
            write(pair, i32(0), shared, i32(tops + place * pitch + ((4 * s + t) * images + n) * 8))

    return store


def _row_lanes(rounds: int) -> int:
    """Lanes that copy one filter's terms, 8 each: all of them at once."""
    return 8 if rounds == 1 else 16 if rounds == 2 else LANES


def _copy_position(config: InputsHalvesConfig) -> Callable[..., None]:
    """``copy(shared, to, source, strides, rows, terms)``: begin to copy a lane's share of a warp's filters of a position.

    It has 8 terms of some filters; ``rows`` and ``terms`` are what there is from its first on, past which is 0.
    """
    copy, vec, steps = copy_or_zero(config.vec * SIZE), config.vec, config.steps
    row_lanes, taken = _row_lanes(config.rounds), 8 * config.rounds
    apart = LANES // row_lanes  # filters of the lanes

    @device
    def copy_all(shared, to, source, strides, rows, terms):
        if taken == row_lanes or i32(cuda.threadIdx.x % row_lanes) < taken:
            for k in range(0, ROWS * steps, apart):
                slot = i32(to + (k // ROWS * SLOT + k % ROWS * PITCH) * ITEM)
                for e in range(0, 8, vec):
                    copy(shared, i32(slot + e * SIZE), source + e * SIZE, k < rows and e < terms)
                source = source + strides[0] * (apart * SIZE)

    return copy_all


@device
def _next_position(source, right, wide, strides):
    """(its filters, its column in the tile)"""
    source, right = source + strides[2] * SIZE, i32(right + 1)
    if right == wide:
        source, right = source + (strides[1] - wide * strides[2]) * SIZE, i32(0)
    return source, right


def _ask(config: InputsHalvesConfig) -> Callable[..., tuple[int, int]]:
    """``ask(shared, to, source, strides, rows, terms, count, wide)``: the first positions; (filters, column) of the next one."""
    copy, rounds, steps, depth = _copy_position(config), config.rounds, config.steps, config.depth

    @device
    def ask(shared, to, source, strides, rows, terms, count, wide):
        right = i32(0)
        for d in range(depth):
            if d < count:
                copy(shared, i32(to + d * (rounds * steps * SLOT * 4)), source, strides, rows, terms)
            commit_async()
            source, right = _next_position(source, right, wide, strides)
        return source, right

    return ask


@device
def _fill_spots(table, at, count, start, low, end, c0, area, taps, dilation, wide, flip):
    """How far into the box each term of a warp is, ``NONE`` outside of its own, ``low`` to ``end``.

    In the order in which a lane has them: 8 terms 8 apart.
    """
    for i in range(i32(cuda.threadIdx.x % LANES), count, LANES):
        m = i32(start + (i & ~63) + (i & 7) * 8 + ((i >> 3) & 7))
        c, r, s = tap_of(m, taps)
        spot = i32(pixel_at(i32(c - c0), r, s, area, taps, dilation, wide, flip) * CELL)
        table[i32(at + i)] = u32(spot if m >= low and m < end else i32(NONE))


def boxes(dtype: str, config: InputsHalvesConfig) -> Callable[..., None]:
    """space[tile, channel, pixel of the tile's box, n] = sum over the tile's positions and over filters of y * w."""
    images, kept, rounds, steps, depth = config.images, config.kept, config.rounds, config.steps, config.depth
    vec, threads = config.vec, config.threads
    ask, copy, multiply_add = _ask(config), _copy_position(config), product(dtype, 16)
    load_tops, store_tops, held_items = _load_tops(config), _store_tops(config), images * steps
    load_factor, wait = load_matrices(True), wait_async_but(depth - 1)
    read_spots, read_pair = read_at("int32", 4), read_at("int32", 2)
    read_pixels, write_pixels, clear = read_at("float32", 2), write_at("float32", 2), write_at("float32", 4)
    lot, here_lots = min(kept, 4), max(1, min(kept, EIGHT) // 4)
    read_lot, write_lot, element = read_at("float32", lot), store_vector("float32", lot, "float32"), ELEMENT["float32"]
    planes, room, pitch = images // EIGHT, rounds * TILE, 4 * (8 * steps * images + PAD)
    sums, pairs, row_lanes, whole = 16 * planes, 2 * planes, _row_lanes(rounds), rounds * steps * SLOT * ITEM
    ring = depth * whole

    def kernel(
        y, w, space, slices, groups, N, K, C, channels, own, across, tile, output, taps, stride, dilation, flip, box,
        w_strides, y_strides,
    ):  # fmt: skip
        let_next_start()
        shared, halves = cuda.shared.array(0, WORD), cuda.shared.array(0, HALF)
        pixels = cuda.shared.array(0, element)  # the same memory
        total, a, b = cuda.local.array(sums, f32), cuda.local.array(4, INT32), cuda.local.array(pairs, INT32)
        held = cuda.local.array(ROWS, WORD)
        spots, old = cuda.local.array(8, INT32), cuda.local.array(sums, f32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        g, t = i32(lane >> 2), i32(lane & 3)
        number, part, group, p0, q0 = block_of(i32(cuda.blockIdx.x), slices, groups, across, tile)
        c0 = i32(part * channels)
        area, per_channel = i32(box[0] * box[1]), i32(taps[0] * taps[1])
        have = min(channels, i32(C - c0))
        wide = min(tile[1], i32(output[1] - q0))
        count = i32(min(tile[0], i32(output[0] - p0)) * wide)
        mine, low, end = terms_of(warp, own, have, c0, per_channel)
        start = i32(low // vec * vec)
        # addresses in shared memory: a table of spots for each warp, its ring, the box, and what came of filters
        origin, plane = shared_address(shared), i32(channels * area * CELL)
        own_spots = i32(origin + (warp * room + 8 * g) * ITEM)
        rings = i32(origin + threads // LANES * room * ITEM)
        first = i32(rings + threads // LANES * ring)
        tops = i32(first + plane * planes)
        base = w + (i64(group * K) * w_strides[0] + p0 * w_strides[1] + q0 * w_strides[2]) * SIZE
        # which terms of which filters a lane copies, and where to
        column = i32(lane % row_lanes)
        own_row, own_term = i32(lane // row_lanes), i32(start + column * 8)
        to = i32(rings + warp * ring + ((column // 8) * steps * SLOT + own_row * PITCH + column % 8 * 4) * ITEM)
        own_terms = i32(end - own_term)
        # matrices of filters, as rows: 0 to 7 of the first eight terms, then of the next, then filters 8 to 15
        factors = i32(rings + warp * ring + (((lane & 7) + (lane >> 4) * 8) * PITCH + ((lane >> 3) & 1) * 4) * 4)
        here = base + own_row * w_strides[0] * SIZE + own_term * SIZE
        source, right = ask(shared, to, here, w_strides, i32(K - own_row), own_terms, count, wide)
        at_y = i64(group * K) * y_strides[1] + p0 * y_strides[2] + q0 * y_strides[3]
        came, items = y + at_y * SIZE, i32(count * held_items)
        load_tops(held, min(thread, i32(items - 1)), came, y_strides, N, K, count, wide)  # under way for a while
        _fill_spots(shared, i32(warp * room), room, start, low, end, c0, area, taps, dilation, box[1], flip)
        for i in range(4):
            old[i] = f32(0)
        for i in range(16 * thread, i32(plane * planes), 16 * threads):
            clear(old, i32(0), pixels, i32(first + i))
        for k0 in range(0, K, ROWS * steps):
            rows = i32(K - k0 - own_row)
            if k0 > 0:
                cuda.syncthreads()
                there = here + k0 * w_strides[0] * SIZE
                source, right = ask(shared, to, there, w_strides, rows, own_terms, count, wide)
            for i in range(thread, items, threads):
                if k0 > 0 or i > thread:
                    load_tops(held, i32(i), came + k0 * y_strides[1] * SIZE, y_strides, N, i32(K - k0), count, wide)
                store_tops(held, i32(i), shared, tops, count)
            cuda.syncthreads()
            turn, column, shift = i32(0), i32(0), i32(first + 2 * t * ITEM)
            top, asked = i32(tops + (t * images + g) * 8), i32(depth)
            for _ in range(count):
                wait()
                sync_warp()
                for r in range(rounds):
                    read_spots(spots, i32(0), shared, i32(own_spots + r * TILE * ITEM))
                    read_spots(spots, i32(4), shared, i32(own_spots + r * TILE * ITEM + 16))
                    for i in range(sums):
                        total[i] = f32(0)
                    for s in range(steps):
                        for n in range(planes):
                            read_pair(b, i32(2 * n), shared, i32(top + (4 * s * images + n * EIGHT) * 8))
                        for j in range(4):
                            slot = i32(turn + ((r * steps + s) * SLOT + 8 * j) * ITEM)
                            load_factor(a, i32(0), halves, i32(factors + slot))
                            for n in range(planes):
                                multiply_add(total, i32((n * 4 + j) * 4), a, i32(0), b, i32(2 * n))
                    if r + 1 == rounds:
                        sync_warp()
                        if asked < count:
                            copy(shared, i32(to + turn), source, w_strides, rows, own_terms)
                        commit_async()
                    for n in range(planes):  # all reads, then all writes, so that one waits for another no more often
                        for i in range(8):
                            if spots[i] != NONE:
                                read_pixels(old, i32((8 * n + i) * 2), pixels, i32(shift + n * plane + spots[i]))
                    for i in range(sums):
                        total[i] = f32(total[i] + old[i])
                    for n in range(planes):
                        for i in range(8):
                            if spots[i] != NONE:
                                write_pixels(total, i32((8 * n + i) * 2), pixels, i32(shift + n * plane + spots[i]))
                source, right = _next_position(source, right, wide, w_strides)
                asked, top = i32(asked + 1), i32(top + pitch)
                turn = i32(turn + whole) if turn + whole < ring else i32(0)
                column, shift = i32(column + 1), i32(shift + stride[1] * CELL)
                if column == wide:
                    column, shift = i32(0), i32(shift + (stride[0] * box[1] - wide * stride[1]) * CELL)
        cuda.syncthreads()
        skip, cells = i32(mine * area), i32(min(own, i32(have - mine)) * area)
        target = space + (i64(number * C + c0) * area + skip) * (kept * ITEM)
        for n in range(planes):
            for i in range(lane, i32(cells * here_lots), LANES):
                cell = i32(i // here_lots)
                to_lot = i32(i - cell * here_lots) * (lot * ITEM)
                read_lot(old, i32(0), pixels, i32(first + n * plane + (skip + cell) * CELL + to_lot))
                write_lot(old, i32(0), target + i64(cell) * (kept * ITEM) + (n * CELL + to_lot))

    return kernel
