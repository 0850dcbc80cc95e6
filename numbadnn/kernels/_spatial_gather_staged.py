"""The gradient of the sampler in the image where the points of neighbouring pixels lie near each other, by way of shared memory.

The box of dy that a tile of pixels needs comes to shared memory some channels ahead (``_spatial_box``). What each pixel sums is
found once for all channels and kept in registers: where in the box each of its records lies, and the weight; what it has fewer
than others is read from a cell that holds 0. Where the box is too large, or a pixel has more than ``config.held`` records, dy is
read where it lies (``_spatial_gather``): slower, the same sums.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels import _spatial_point
from numbadnn.kernels._async_copies import commit_async, wait_async_but
from numbadnn.kernels._cuda import cuda, device, f32, i32, i64, u32
from numbadnn.kernels._ptx import ACCUMULATOR, WORD, store
from numbadnn.kernels._spatial_box import FAR, address_of, box_of, element, note, noted, stager
from numbadnn.kernels._spatial_gather import order_of, records_of, walk_of, weight_by_side
from numbadnn.kernels._spatial_point import INTEGER, INTEGER64
from numbadnn.kernels.spatial_layout import StagedGatherConfig
from numbadnn.problem import ITEMSIZE

#: channels at a time where dy is read where it lies
WALKED = 8


def staged(dtype: str, acc: str, config: StagedGatherConfig) -> Callable[..., None]:
    """Rows of dy contiguous; a block takes all channels of 32 x ``config.rows`` pixels."""
    A, R, size, record_size = ACCUMULATOR[acc], ACCUMULATOR[config.record], ITEMSIZE[dtype], 4 * ITEMSIZE[config.record]
    write, integer, pixel = store(dtype, acc), _spatial_point.read_integer(), element(dtype, acc)
    locate, weight_of, fetch = _spatial_point.tile(32, config.rows), weight_by_side(acc), records_of(acc, config)
    ordered = order_of(config)
    box, (plan, begin) = box_of(dtype, config, 0), stager(dtype, config)
    warps, many, vec, rounds = config.threads // 32, config.rows * 32 // config.threads, config.vec, config.rounds
    group, stages, held = config.group, config.stages, config.held
    zero = config.pieces * vec * size  # what lies behind each box
    box_bytes, slot = zero + 16, group * (zero + 16)
    stretch = config.rows * 32 * 8  # of notes: the k-th of all pixels lie together
    at_once, all_held = group * many, held * many
    walk = walk_of(dtype, acc, WALKED, config)
    wait = wait_async_but(stages - 2)
    assert stages == 4 and many == 2, "turns are written out"

    @device
    def turn(  # type: ignore[no-untyped-def]
        s,
        c,
        channels,
        next_x,
        next_y,
        line,
        target,
        row_step,
        live,
        words,
        start_of,
        pieces,
        there,
        most,
        at,
        weight,
        sums,
    ):
        """The channels from c + s * group on, which lie in slot s; ``most``: records of the thread's pixels, at most."""
        left = i32(channels - c - s * group)
        if left > 0:
            wait()
            cuda.syncthreads()
            for q in range(group):
                if left > (stages - 1) * group + q:
                    ahead = i32(start_of + ((s + stages - 1) % stages * slot + q * box_bytes))
                    begin(words, ahead, line + q * next_y, pieces, there)
            commit_async()
            for e in range(at_once):
                sums[e] = A(0)
            for k in range(held):
                if k < 4 or k < most:
                    for p in range(many):
                        for q in range(group):
                            value = pixel(words, i32(at[k * many + p] + (s * slot + q * box_bytes)))
                            sums[p * group + q] = A(sums[p * group + q] + weight[k * many + p] * value)
            for q in range(group):
                for p in range(many):
                    if i32(p) < live and (group == 1 or q < left):
                        write(target + p * row_step, sums[p * group + q])
                target += next_x
        return line + group * next_y, target

    def kernel(  # type: ignore[no-untyped-def]
        dy, dimg, work, parts, across, down, channels, height, width, out_height, out_width, ys, xs
    ):
        words = cuda.shared.array(0, WORD)
        s0 = cuda.shared.array(32, f32)
        s1 = cuda.shared.array(32, f32)
        s2 = cuda.shared.array(32, f32)
        s3 = cuda.shared.array(32, f32)
        record = cuda.local.array(4, R)
        pieces, there = cuda.local.array(rounds, INTEGER64), cuda.local.array(rounds, INTEGER)
        sums = cuda.local.array(at_once, A)
        at, weight = cuda.local.array(all_held, INTEGER), cuda.local.array(all_held, A)
        walked = cuda.local.array(WALKED, A)
        values = cuda.local.array(WALKED, A)
        thread, records = i32(cuda.threadIdx.x), work + parts[3]
        column, row, _, n = locate(thread, i32(cuda.blockIdx.x), across, down, i32(1))
        start_of = address_of(words)
        mine = i32(start_of + thread * 8)
        low_j, high_j, low_i, high_i = f32(FAR), f32(FAR), f32(FAR), f32(FAR)
        most = i32(0)
        for p in range(many):
            count = i32(0)
            if column < width and row + p * warps < height:
                entry = work + parts[0] + ((i64(n) * (height + 1) + row + p * warps) * (width + 2) + column) * 4
                for below in range(2):
                    first, middle, last = integer(entry), integer(entry + 4), integer(entry + 8)
                    if count + last - first > held:
                        low_j, high_j = max(low_j, f32(0)), f32(-FAR)  # too many: as a box that is too large
                        last = first
                    base = i32(count - first)
                    for k in range(first, last):
                        fetch(record, records + i64(k) * record_size, out_width, ys)
                        from_left = k < middle
                        to = i32(
                            base
                            + ordered(records, i32(k), first if from_left else middle, middle if from_left else last)
                        )
                        point = i32(record[0])
                        i = i32(u32(point) // u32(out_width))
                        j = i32(point - i * out_width)
                        low_j, high_j = max(low_j, f32(-j)), max(high_j, f32(j))
                        low_i, high_i = max(low_i, f32(-i)), max(high_i, f32(i))
                        note(words, i32(mine + (p * warps * 32 * 8 + to * stretch)), i32((i << 16) | j),
                             weight_of(record, from_left, below == 1))  # fmt: skip
                        count = i32(count + 1)
                    entry += i64(width + 2) * 4
            most = max(most, count)
            for k in range(count, held):
                note(words, i32(mine + (p * warps * 32 * 8 + k * stretch)), i32(0), A(0))
        fits, left, top, wide, tall, pitch = box(low_j, high_j, low_i, high_i, s0, s1, s2, s3)
        line, next_y, next_x = dy + n * ys[0] * size, ys[1] * size, xs[1] * size
        target = dimg + (n * xs[0] + row * xs[2] + column * xs[3]) * size
        row_step = warps * xs[2] * size
        live = i32(0)
        if column < width:
            live = i32((1 if row < height else 0) + (1 if row + warps < height else 0))
        if fits:
            for k in range(held):
                for p in range(many):
                    e = k * many + p
                    noted(at, weight, i32(e), words, i32(mine + (p * warps * 32 * 8 + k * stretch)))
                    i, j = i32(at[e] >> 16), i32(at[e] & 0xFFFF)
                    place = i32(i32((i - top) * pitch + j - left * vec) * size)
                    at[e] = i32(start_of + (place if weight[e] != 0 else i32(zero)))
            cuda.syncthreads()  # the boxes take the place of the notes
            if thread < stages * group:
                words[(thread * box_bytes + zero) // 4] = 0
                words[(thread * box_bytes + zero) // 4 + 1] = 0
            plan(pieces, there, left, top, wide, tall, pitch, ys[2] * size, out_width, out_height)
            for s in range(stages - 1):
                for q in range(group):
                    if s * group + q < channels:
                        to = i32(start_of + (s * slot + q * box_bytes))
                        begin(words, to, line + (s * group + q) * next_y, pieces, there)
                commit_async()
            line += (stages - 1) * group * next_y
            for c in range(
                0, channels, 4 * group
            ):  # each slot has its own instructions: its place is a constant of theirs
                # fmt: off
                line, target = turn(
                    0, c, channels, next_x, next_y, line, target, row_step, live,
                    words, start_of, pieces, there, most, at, weight, sums,
                )
                line, target = turn(
                    1, c, channels, next_x, next_y, line, target, row_step, live,
                    words, start_of, pieces, there, most, at, weight, sums,
                )
                line, target = turn(
                    2, c, channels, next_x, next_y, line, target, row_step, live,
                    words, start_of, pieces, there, most, at, weight, sums,
                )
                line, target = turn(
                    3, c, channels, next_x, next_y, line, target, row_step, live,
                    words, start_of, pieces, there, most, at, weight, sums,
                )
                # fmt: on
        else:
            for p in range(many):
                if i32(p) < live:
                    entry = work + parts[0] + ((i64(n) * (height + 1) + row + p * warps) * (width + 2) + column) * 4
                    for c in range(0, channels, WALKED):
                        walk(
                            record, walked, values, line + c * next_y, target + p * row_step + c * next_x, records, entry,
                            i64(width + 2) * 4, i32(min(i32(channels - c), i32(WALKED))), out_width, ys, next_y, next_x,
                        )  # fmt: skip

    return kernel
