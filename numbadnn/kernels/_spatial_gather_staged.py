"""Both gradients of the sampler in one pass where the points of neighbouring pixels lie near each other, by way of shared memory.

The box of dy that a tile of pixels needs comes to shared memory some channels ahead (``_spatial_box``), and the tile's own
pixels with it. What each pixel sums is found once for all channels and kept in registers: where in the box each of its records
lies, and the weight; what it has fewer than others is read from a cell that holds 0. An element of dy then serves twice:
``weight * dy`` goes to the pixel's gradient, ``pixel * dy`` to the record's dot, of which ``_spatial_slope.finish`` makes the
gradient in the grid: image and dy come from memory once. Where the box is too large, or a pixel has more than ``config.held``
records, dy is read where it lies (``_spatial_gather``): slower, the same sums.

    shared memory     slot 0 ... 3, each ``group`` channels of   [ box of dy | 0 | own pixels ]
    behind the slots  which point and which of its four pixels each record is, for its dot
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels import _spatial_point
from numbadnn.kernels._async_copies import commit_async, wait_async_but
from numbadnn.kernels._cuda import cuda, device, i32, i64, u32
from numbadnn.kernels._ptx import ACCUMULATOR, WORD, let_next_start, load, store, wait_for_previous
from numbadnn.kernels._spatial_box import FAR, address_of, box_of, element, note, noted, stager
from numbadnn.kernels._spatial_gather import records_of_pixel, walk_of
from numbadnn.kernels._spatial_point import INTEGER, INTEGER64
from numbadnn.kernels.spatial_gradients import StagedGatherConfig
from numbadnn.problem import ITEMSIZE

#: channels at a time where dy is read where it lies
WALKED = 8
#: the note of a record that there is not, and the place of its dot
NONE, NO_DOT = -1, 2**32 - 1


def staged(dtype: str, acc: str, config: StagedGatherConfig) -> Callable[..., None]:
    """Rows contiguous; a block takes all channels, a multiple of ``config.group``, of 32 x ``config.rows`` pixels."""
    A, R, size = ACCUMULATOR[acc], ACCUMULATOR[config.record], ITEMSIZE[dtype]
    read, write, write_dot = load(dtype, acc), store(dtype, acc), store(acc, acc)
    pixel = element(dtype, acc)
    locate, look = _spatial_point.tile(32, config.rows), records_of_pixel(acc, config.held, config)
    threads, pieces = config.threads, config.pieces
    box, (plan, begin) = box_of(dtype, config, 0), stager(dtype, config, config.rounds)
    warps, many, vec = config.threads // 32, config.rows * 32 // config.threads, config.vec
    rounds, own_pieces = config.rounds, config.rows * 32 // config.vec
    group, stages, held = config.group, config.stages, config.held
    zero, box_bytes, slot = config.zero(size), config.box_bytes(size), config.group * config.box_bytes(size)
    stretch = config.rows * 32 * 8  # of notes: the k-th of all pixels lie together
    behind = max(stages * slot, stretch * held) // 4  # where the places of dots begin
    at_once, all_held = group * many, held * many
    walk = walk_of(dtype, acc, WALKED, config, dots=True)
    wait = wait_async_but(stages - 2)
    assert stages == 4, "turns are written out"

    @device
    def turn(  # type: ignore[no-untyped-def]
        s, c, channels, next_d, target, row_step, live,
        words, start_of, sources, steps, places, some, own_at, most, at, weight, dots, sums, own, values,
    ):  # fmt: skip
        """The channels from c + s * group on, which lie in slot s; ``most``: records of the thread's pixels, at most."""
        left = i32(channels - c - s * group)
        if left > 0:
            wait()
            cuda.syncthreads()
            if left > (stages - 1) * group and some >= 0:
                for q in range(group):
                    ahead = i32(start_of + ((s + stages - 1) % stages * slot + q * box_bytes))
                    begin(words, ahead, sources, steps, places)
            commit_async()
            for p in range(many):
                for q in range(group):
                    sums[p * group + q] = A(0)
                    own[p * group + q] = pixel(words, own_at, i32(s * slot + q * box_bytes + p * (warps * 32 * size)))
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
            for q in range(group):
                for p in range(many):
                    if i32(p) < live:
                        write(target + p * row_step, sums[p * group + q])
                target += next_d
        return target

    def kernel(  # type: ignore[no-untyped-def]
        img, dy, dimg, work, dot, parts, across, down, channels, height, width, out_height, out_width, xs, ys, ds
    ):
        words = cuda.shared.array(0, WORD)
        table = cuda.shared.array(128, INTEGER)
        needed = cuda.shared.array(pieces, INTEGER)
        record = cuda.local.array(4, R)
        turns, lines = cuda.local.array(held, INTEGER), cuda.local.array(held, INTEGER)
        noted_weights, dot_places = cuda.local.array(held, A), cuda.local.array(held, WORD)
        sources, steps = cuda.local.array(rounds, INTEGER64), cuda.local.array(rounds, INTEGER64)
        places = cuda.local.array(rounds, INTEGER)
        sums, own = cuda.local.array(at_once, A), cuda.local.array(at_once, A)
        at, weight = cuda.local.array(all_held, INTEGER), cuda.local.array(all_held, A)
        dots = cuda.local.array(all_held, A)
        walked, values, walked_own = (
            cuda.local.array(WALKED, A),
            cuda.local.array(WALKED, A),
            cuda.local.array(WALKED, A),
        )
        thread, records = i32(cuda.threadIdx.x), work + parts[3]
        column, row, _, n = locate(thread, i32(cuda.blockIdx.x), across, down, i32(1))
        start_of = address_of(words)
        mine = i32(start_of + thread * 8)
        which = i32(behind + thread)
        let_next_start()
        wait_for_previous()
        low_j, high_j, low_i, high_i = i32(FAR), i32(FAR), i32(FAR), i32(FAR)
        most = i32(0)
        for p in range(many):
            count = i32(0)
            if column < width and row + p * warps < height:
                entry = work + parts[0] + ((i64(n) * (height + 1) + row + p * warps) * (width + 2) + column) * 4
                count = look(record, noted_weights, dot_places, lines, turns, entry, i64(width + 2) * 4, records)
                if count > held:
                    low_j, high_j = max(low_j, i32(0)), i32(-FAR)  # too many: as a box that is too large
                    count = i32(0)
                for k in range(held):
                    if k < count:
                        i = lines[k]
                        j = i32(i32(dot_places[k] >> u32(2)) - i * out_width)
                        low_j, high_j = max(low_j, i32(-j)), max(high_j, j)
                        low_i, high_i = max(low_i, i32(-i)), max(high_i, i)
                        note(
                            words,
                            i32(mine + (p * warps * 32 * 8 + turns[k] * stretch)),
                            i32((i << 16) | j),
                            noted_weights[k],
                        )
                        words[which + (turns[k] * many + p) * (warps * 32)] = dot_places[k]
            most = max(most, count)
            for k in range(count, held):
                note(words, i32(mine + (p * warps * 32 * 8 + k * stretch)), i32(NONE), A(0))
        for k in range(thread, pieces, threads):
            needed[k] = 0
        fits, left, top, wide, tall, pitch = box(low_j, high_j, low_i, high_i, table)
        line, next_y, next_x, next_d = dy + n * ys[0] * size, ys[1] * size, xs[1] * size, ds[1] * size
        line_own = img + n * xs[0] * size
        target = dimg + (n * ds[0] + row * ds[2] + column * ds[3]) * size
        row_step = warps * ds[2] * size
        dot += i64(n) * out_height * out_width * 16
        live = i32(0)
        if column < width:
            live = i32(u32(max(i32(height - row + warps - 1), i32(0))) // u32(warps))
        if fits:
            for k in range(held):
                for p in range(many):
                    e = k * many + p
                    noted(at, weight, i32(e), words, i32(mine + (p * warps * 32 * 8 + k * stretch)))
                    i, j = i32(at[e] >> 16), i32(at[e] & 0xFFFF)
                    index = i32((i - top) * pitch + j - left * vec)
                    place = i32(index * size)
                    if at[e] == NONE:
                        words[which + e * threads] = u32(NO_DOT)
                        place = i32(zero)
                    else:
                        needed[i32(u32(index) // u32(vec))] = 1
                    at[e] = i32(start_of + place)
                    dots[e] = A(0)
            cuda.syncthreads()  # the boxes take the place of the notes
            if thread < stages * group:
                words[(thread * box_bytes + zero) // 4] = 0
                words[(thread * box_bytes + zero) // 4 + 1] = 0
            plan(sources, places, needed, i32(own_pieces), line, left, top, wide, tall, pitch, ys[2] * size)
            for r in range(rounds):
                steps[r] = next_y
                piece = i32(thread + r * threads)
                if piece < own_pieces:  # of the tile's own pixels
                    y = i32(u32(piece) // u32(32 // vec))
                    x = i32(piece - y * (32 // vec))
                    at_row, at_column = i32(row - i32(thread >> 5) + y), i32(column - i32(thread & 31) + x * vec)
                    steps[r], sources[r] = next_x, line_own + at_row * xs[2] * size + i64(at_column) * size
                    places[r] = i32(zero + 16 + piece * (vec * size)) if at_row < height and at_column < width else -1
            some = i32(-1)
            for r in range(rounds):
                some = max(some, places[r])
            for s in range(stages - 1):
                if s * group < channels:
                    for q in range(group):
                        begin(words, i32(start_of + (s * slot + q * box_bytes)), sources, steps, places)
                commit_async()
            own_at = i32(start_of + (zero + 16) + thread * size)
            for c in range(
                0, channels, 4 * group
            ):  # each slot has its own instructions: its place is a constant of theirs
                # fmt: off
                target = turn(
                    0, c, channels, next_d, target, row_step, live,
                    words, start_of, sources, steps, places, some, own_at, most, at, weight, dots, sums, own, values,
                )
                target = turn(
                    1, c, channels, next_d, target, row_step, live,
                    words, start_of, sources, steps, places, some, own_at, most, at, weight, dots, sums, own, values,
                )
                target = turn(
                    2, c, channels, next_d, target, row_step, live,
                    words, start_of, sources, steps, places, some, own_at, most, at, weight, dots, sums, own, values,
                )
                target = turn(
                    3, c, channels, next_d, target, row_step, live,
                    words, start_of, sources, steps, places, some, own_at, most, at, weight, dots, sums, own, values,
                )
                # fmt: on
            for e in range(all_held):
                place_of_dot = words[which + e * threads]
                if place_of_dot != u32(NO_DOT):
                    write_dot(dot + i64(place_of_dot) * 4, dots[e])
        else:
            for p in range(many):
                if i32(p) < live:
                    entry = work + parts[0] + ((i64(n) * (height + 1) + row + p * warps) * (width + 2) + column) * 4
                    line_own = img + (n * xs[0] + (row + p * warps) * xs[2] + column * xs[3]) * size
                    for c in range(0, channels, WALKED):
                        count = i32(min(i32(channels - c), i32(WALKED)))
                        for q in range(WALKED):
                            walked_own[q] = read(line_own + (c + q) * next_x) if q < count else A(0)
                        walk(
                            record, walked, values, line + c * next_y, target + p * row_step + c * next_d, records, entry,
                            i64(width + 2) * 4, count, out_width, ys, next_y, next_d, walked_own, dot, c == 0,
                        )  # fmt: skip

    return kernel
