"""Both gradients of the sampler in one pass where the points of neighbouring pixels lie near each other, by way of shared memory.

Image and dy come from memory once: an element of dy in shared memory serves the pixel's gradient and the record's dot, of which
``slope.finish`` makes the gradient in the grid. Most tiles have few records a pixel, as many as an image that is turned
or enlarged a little; they have instructions of their own (``device/gather_tile.py``). Where points lie denser than pixels a tile
is done in parts (``device/gather_parts.py``). Where a box is too large even so, or a pixel has too many records, dy is read where
it lies (``device/gather.py``): slower.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.cuda import ACCUMULATOR, WORD, cuda, i32, i64, u32
from numbadnn.kernels.lang.long_sums import LEAF
from numbadnn.kernels.lang.ptx import let_next_start, wait_for_previous
from numbadnn.kernels.spatial.device import point as _spatial_point
from numbadnn.kernels.spatial.device.gather import starts_of_pixel, walk_of
from numbadnn.kernels.spatial.device.gather_parts import parts_of_tile
from numbadnn.kernels.spatial.device.gather_tile import tile_of
from numbadnn.kernels.spatial.device.point import INTEGER
from numbadnn.kernels.spatial.gradients import StagedGatherConfig
from numbadnn.problem import ITEMSIZE

#: channels at a time where dy is read where it lies
WALKED = 8


def staged(dtype: str, acc: str, config: StagedGatherConfig) -> Callable[..., None]:
    """Rows contiguous; a block takes all channels, a multiple of ``config.group``, of ``columns`` x ``rows`` pixels."""
    A, R, size = ACCUMULATOR[acc], ACCUMULATOR[config.record], ITEMSIZE[dtype]
    read = load(dtype, acc)
    threads, pieces, many = config.threads, config.pieces, config.many
    locate, find = _spatial_point.tile(config.columns, config.rows), starts_of_pixel()
    down_step, six, clears = threads // config.columns, 6 * many, -(-pieces // threads)
    few, columns, flags = config.few, config.columns, config.pieces + 1  # one more: what no pixel needs
    in_few, in_many = tile_of(dtype, acc, config, few), tile_of(dtype, acc, config, config.held)
    in_parts = parts_of_tile(dtype, acc, config)
    walk, one_by_one = (walk_of(dtype, acc, n, config, n == 1, dots=True) for n in (WALKED, 1))

    def kernel(
        img, dy, dimg, work, dot, parts, across, down, channels, height, width, out_height, out_width, xs, ys, ds
    ):
        words = cuda.shared.array(0, WORD)
        table = cuda.shared.array(128, INTEGER)
        needed = cuda.shared.array(flags, INTEGER)
        starts, counts = cuda.local.array(six, INTEGER), cuda.local.array(many, INTEGER)
        record = cuda.local.array(4, R)
        walked, values, own = cuda.local.array(WALKED, A), cuda.local.array(WALKED, A), cuda.local.array(WALKED, A)
        thread, records = i32(cuda.threadIdx.x), work + parts[3]
        column, row, _, n = locate(thread, i32(cuda.blockIdx.x), across, down, i32(1))
        next_entry = i64(width + 2) * 4
        entries = work + parts[0] + i64(n) * (height + 1) * i64(width + 2) * 4
        entry = entries + (row * i64(width + 2) + column) * 4
        live = i32(0)
        if column < width:
            live = i32(u32(max(i32(height - row + down_step - 1), i32(0))) // u32(down_step))
        for r in range(clears):
            if thread + r * threads < pieces:
                needed[thread + r * threads] = 0
        let_next_start()
        wait_for_previous()
        most = i32(0)
        for p in range(many):
            counts[p] = 0
            if i32(p) < live:
                counts[p] = find(starts, i32(6 * p), entry + (p * down_step) * next_entry, next_entry)
            most = max(most, counts[p])
        left, top = i32(column - i32(u32(thread) % u32(columns))), i32(row - i32(u32(thread) // u32(columns)))
        target = dimg + (n * ds[0] + row * ds[2] + column * ds[3]) * size
        row_step, next_y, next_x, next_d = down_step * ds[2] * size, ys[1] * size, xs[1] * size, ds[1] * size
        points = i64(out_height) * out_width
        dot += i64(n) * points * 16
        line = dy + n * ys[0] * size
        arrays, sizes = (words, table, needed, record, starts, counts), (channels, height, width, out_width)
        dy_of, img_of = (line, ys[2] * size, next_y), (img + n * xs[0] * size, xs[2] * size, next_x)
        into, dot_of, whole = (target, row_step, next_d), (dot, points), (i32(1), left, top, i32(columns))
        if cuda.syncthreads_or(i32(1) if most > few else i32(0)) != 0:
            done = in_many(arrays, most, records, live, sizes, dy_of, img_of, into, dot_of, whole)
        else:
            done = in_few(arrays, most, records, live, sizes, dy_of, img_of, into, dot_of, whole)
        if done:
            return
        if in_parts(
            arrays, most, records, entries, sizes, dy_of, img_of, dimg + n * ds[0] * size, ds, dot_of, left, top
        ):
            return
        for p in range(many):
            if i32(p) < live:
                line_own = img + (n * xs[0] + (row + p * down_step) * xs[2] + column * xs[3]) * size
                crowd = find(starts, i32(6 * p), entry + (p * down_step) * next_entry, next_entry)
                for c in range(channels if crowd > LEAF else 0):
                    own[0] = read(line_own + c * next_x)
                    one_by_one(
                        record, walked, values, line + c * next_y, target + p * row_step + c * next_d, records,
                        entry + (p * down_step) * next_entry, next_entry, i32(1), out_width, ys, next_y, next_d, own,
                        dot, c == 0, points,
                    )  # fmt: skip
                for c in range(0, channels if crowd <= LEAF else 0, WALKED):
                    count = i32(min(i32(channels - c), i32(WALKED)))
                    for q in range(WALKED):
                        own[q] = read(line_own + (c + q) * next_x) if q < count else A(0)
                    walk(
                        record, walked, values, line + c * next_y, target + p * row_step + c * next_d, records,
                        entry + (p * down_step) * next_entry, next_entry, count, out_width, ys, next_y, next_d, own,
                        dot, c == 0, points,
                    )  # fmt: skip

    return kernel
