"""A tile of pixels, or a part of one, whose sums of ``weight * dy`` and dots of ``pixel * dy`` are made in shared memory.

The box of dy that the tile needs comes there some channels ahead (``device/box.py``), and the tile's own pixels with it. What
each pixel sums is found once for all channels and kept in registers: where in the box each of its records lies, and the
weight; what it has fewer than others is read from a cell that holds 0. An element of dy then serves twice: ``weight * dy`` goes
to the pixel's gradient, ``pixel * dy`` to the record's dot.

    shared memory     slot 0 ... 3, each ``group`` channels of   [ box of dy | 0 | own pixels ]
    behind the slots  which point and which of its four pixels each record is, for its dot
"""

from __future__ import annotations

from numbadnn.kernels.lang.access import store
from numbadnn.kernels.lang.async_copies import commit_async
from numbadnn.kernels.lang.cuda import ACCUMULATOR, WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.warp import shuffle_xor
from numbadnn.kernels.spatial.device.box import FAR, address_of, box_of, element, stager, walking
from numbadnn.kernels.spatial.device.gather import records_of_pixel
from numbadnn.kernels.spatial.device.point import INTEGER, INTEGER64
from numbadnn.kernels.spatial.gradients import StagedGatherConfig
from numbadnn.problem import ITEMSIZE

#: row and column of a record that there is not, and the place of its dot
NONE, NO_DOT = -1, 2**32 - 1


def tile_of(dtype: str, acc: str, config: StagedGatherConfig, held: int, parts: bool = False):  # type: ignore[no-untyped-def]
    """``tile(...) -> done``: a tile whose pixels have up to ``held`` records each; not done where one has more, or their box is
    too large. ``parts``: it is a part of a tile, and ``share`` neighbouring threads share the records of a pixel."""
    A, size = ACCUMULATOR[acc], ITEMSIZE[dtype]
    write_dot, look = store(acc, acc), records_of_pixel(acc, held, config)
    threads, many, vec = config.threads, 1 if parts else config.many, config.vec
    box, (plan, begin) = box_of(dtype, config, 0), stager(dtype, config, config.rounds)
    rounds, ordered, all_pieces = config.rounds, config.ordered, config.rows * config.columns // vec
    part_pieces = threads // vec
    group, stages = config.group, config.stages
    nothing_at = config.pieces * vec  # behind each box
    zero, box_bytes, slot = config.zero(size), config.box_bytes(size), config.group * config.box_bytes(size)
    behind = stages * slot // 4  # where the places of dots begin
    at_once, all_held = group * many, held * many
    turn = turn_of(dtype, acc, config, held, parts)
    assert stages == 4, "turns are written out"

    @device
    def tile(arrays, most, records, live, sizes, dy_of, img_of, into, dot_of, part):
        words, table, needed, record, starts, counts = arrays
        channels, height, width, out_width = sizes
        line, line_step, next_y = dy_of
        line_own, own_step, next_x = img_of
        target, row_step, next_d = into
        dot, points = dot_of
        share, first_column, first_row, columns = part
        sources, steps = cuda.local.array(rounds, INTEGER64), cuda.local.array(rounds, INTEGER64)
        places = cuda.local.array(rounds, INTEGER)
        sums, own, values = cuda.local.array(at_once, A), cuda.local.array(at_once, A), cuda.local.array(group, A)
        at, weight = cuda.local.array(all_held, INTEGER), cuda.local.array(all_held, A)
        dots = cuda.local.array(all_held, A)
        weights, dot_places = cuda.local.array(held, A), cuda.local.array(held, WORD)
        lines, pairs = cuda.local.array(held, INTEGER), cuda.local.array(held, INTEGER)
        numbers = cuda.local.array(held, INTEGER)
        thread = i32(cuda.threadIdx.x)
        start_of, which = address_of(words), u32(behind + thread)
        low_j, high_j, low_i, high_i = i32(FAR), i32(FAR), i32(FAR), i32(FAR)
        mine, own_part, own_pieces = thread, i32(0), i32(all_pieces)
        if parts:
            mine = i32(u32(thread) // u32(share))
            own_part = i32(thread - mine * share)
            own_pieces = i32(u32(part_pieces) // u32(share))
        for p in range(many):
            first = i32(0)
            if parts:
                each = i32(u32(i32(counts[p] + share - 1)) // u32(share))
                if not ordered:  # the two of a cell stay together: no cell has more where nothing was sorted
                    each = each if counts[p] > held else i32(held)
                first = i32(own_part * each)
                counts[p] = i32(max(i32(min(i32(counts[p] - first), each)), i32(0)))
                most = max(most, counts[p])
            look(
                record, weights, numbers, lines, dot_places, pairs, starts, i32(6 * p), first, counts[p], records, points
            )  # fmt: skip
            for k in range(held):
                e = k * many + p
                i = lines[k]
                j = i32(numbers[k] - i * out_width)
                there = k < counts[p]
                at[e], weight[e] = (i32((i << 16) | j) if there else i32(NONE)), (weights[k] if there else A(0))
                words[u32(which + e * threads)] = dot_places[k] if there else u32(NO_DOT)
                if there:
                    low_j, high_j = max(low_j, i32(-j)), max(high_j, j)
                    low_i, high_i = max(low_i, i32(-i)), max(high_i, i)
        if most > held:
            low_j, high_j = max(low_j, i32(0)), i32(-FAR)  # too many: as a box that is too large
        fits, left, top, wide, tall, pitch = box(low_j, high_j, low_i, high_i, table)
        if fits:
            for e in range(all_held):
                index = i32((i32(at[e] >> 16) - top) * pitch + i32(at[e] & 0xFFFF) - left * vec)
                index = index if at[e] != NONE else i32(nothing_at)
                needed[i32(u32(index) // u32(vec))] = 1
                at[e] = i32(start_of + index * size)
                dots[e] = A(0)
            cuda.syncthreads()
            if thread < stages * group:
                words[u32(thread * (box_bytes // 4) + zero // 4)] = 0
                words[u32(thread * (box_bytes // 4) + zero // 4 + 1)] = 0
            plan(sources, places, needed, own_pieces, line, left, top, wide, tall, pitch, line_step)
            for r in range(rounds):
                steps[r] = next_y
                piece = i32(thread + r * threads)
                if piece < own_pieces:  # of the tile's own pixels
                    across = i32(u32(columns) // u32(vec))
                    y = i32(u32(piece) // u32(across))
                    x = i32(piece - y * across)
                    at_row, at_column = i32(first_row + y), i32(first_column + x * vec)
                    steps[r], sources[r] = next_x, line_own + at_row * own_step + i64(at_column) * size
                    places[r] = i32(zero + 16 + piece * (vec * size)) if at_row < height and at_column < width else -1
            some = i32(-1)
            for r in range(rounds):
                some = max(some, places[r])
            for s in range(stages - 1):
                if s * group < channels:
                    for q in range(group):
                        begin(words, i32(start_of + (s * slot + q * box_bytes)), sources, steps, places)
                commit_async()
            own_at = i32(start_of + (zero + 16) + mine * size)
            if parts:
                live = live if own_part == 0 else i32(0)
            copies = (words, start_of, sources, steps, places, some)
            pixels = (own_at, share, most, at, weight, dots, sums, own, values)
            into = (row_step, next_d, live)
            for c in range(0, channels, 4 * group):  # each slot has its own instructions, whose constant its place is
                target = turn(0, c, channels, target, into, copies, pixels)
                target = turn(1, c, channels, target, into, copies, pixels)
                target = turn(2, c, channels, target, into, copies, pixels)
                target = turn(3, c, channels, target, into, copies, pixels)
            for e in range(all_held):
                place_of_dot = words[u32(which + e * threads)]
                if place_of_dot != u32(NO_DOT):
                    write_dot(dot + i64(place_of_dot) * 4, dots[e])
        return fits

    return tile


def turn_of(dtype: str, acc: str, config: StagedGatherConfig, held: int, parts: bool):  # type: ignore[no-untyped-def]
    """``turn(s, c, ...) -> target``: the channels from c + s * group on, which lie in slot s."""
    A, size, threads, many = ACCUMULATOR[acc], ITEMSIZE[dtype], config.threads, 1 if parts else config.many
    write, pixel = store(dtype, acc), element(dtype, acc)
    _, begin = stager(dtype, config, config.rounds)
    group, swap = config.group, shuffle_xor(acc)
    box_bytes, slot = config.box_bytes(size), config.group * config.box_bytes(size)
    next_boxes = walking(config, begin, box_bytes)

    @device
    def turn(s, c, channels, target, into, copies, pixels):
        """``most``: records of the thread's pixels, at most."""
        row_step, next_d, live = into
        words = copies[0]
        own_at, share, most, at, weight, dots, sums, own, values = pixels
        left = i32(channels - c - s * group)
        if left > 0:
            next_boxes(s, left, copies)
            for p in range(many):
                for q in range(group):
                    sums[p * group + q] = A(0)
                    own[p * group + q] = pixel(words, own_at, i32(s * slot + q * box_bytes + p * (threads * size)))
            for k in range(held):
                if k < 4 or k < most:
                    for p in range(many):
                        e = k * many + p
                        for q in range(group):
                            values[q] = pixel(words, at[e], i32(s * slot + q * box_bytes))
                            dots[e] = A(dots[e] + own[p * group + q] * values[q])
                        if weight[e] != 0:
                            for q in range(group):
                                sums[p * group + q] = A(sums[p * group + q] + weight[e] * values[q])
            if parts:
                lanes = i32(1)
                while lanes < share:
                    for e in range(group):
                        sums[e] = A(sums[e] + swap(sums[e], lanes))
                    lanes = i32(lanes * 2)
            for q in range(group):
                for p in range(many):
                    if i32(p) < live:
                        write(target + p * row_step, sums[p * group + q])
                target += next_d
        return target

    return turn
