"""Sort points into the cells of an image in one launch, where there are few points: ``device/bins.py`` takes five.

A block has ``rows`` rows of cells and looks at all points of its image. Counts and lists stay in shared memory, the cell and
rank of each of a thread's points in registers. The block's stretch begins behind as many records as there are points in the
rows above, wherever they lie across: what stands where is the same in every run, and every cell is in order.

    shared memory   a sum of each warp | points above | where each cell begins, and the last ends | points, cell by cell
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.cuda import ACCUMULATOR, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.packed import load_words, widen
from numbadnn.kernels.lang.ptx import let_next_start, quotient
from numbadnn.kernels.lang.warp import shuffle_xor
from numbadnn.kernels.spatial.bins import StripeConfig
from numbadnn.kernels.spatial.device import point as _spatial_point
from numbadnn.kernels.spatial.device.bins import store_record
from numbadnn.kernels.spatial.device.point import INTEGER
from numbadnn.problem import ITEMSIZE

#: accesses of the grid that are under way at once
UNDER_WAY = 4


def stripe(config: StripeConfig) -> Callable[..., None]:
    """A point of other rows is known by its y alone. ``config.points`` points that lie together are read in one access; a thread
    makes ``config.accesses`` of them."""
    threads, many, accesses = config.threads, config.points, config.accesses
    warps, pair, apart, all_points = threads // 32, 2 * many, threads * many, accesses * many
    above, counts = warps, warps + 1  # how many points lie above; where each cell begins, and where the last ends
    cell = _spatial_point.cell(config.acc)
    words = max(1, pair * ITEMSIZE[config.place] // 4)
    raw_words = UNDER_WAY * words
    read, read_words, convert = load(config.place, config.acc), load_words(words), widen(config.place, pair, config.acc)
    write, A = _spatial_point.write_integer(), ACCUMULATOR[config.acc]
    put, size, R = store_record(config), 4 * ITEMSIZE[config.record], ACCUMULATOR[config.record]
    grid_size, before_thread = ITEMSIZE[config.place], before_of_thread(warps)
    read_point, convert_point = load_words(max(1, grid_size // 2)), widen(config.place, 2, config.acc)

    @device
    def scaled(value, half):
        return A(A(value + A(1)) * half)

    def kernel(grid, work, parts, stripes, rows, out_height, out_width, by, height, width, half_width, half_height, gs):
        table = cuda.shared.array(0, INTEGER)  # a sum of each warp, and what ``above`` and so on say
        record, values, raw = cuda.local.array(4, R), cuda.local.array(pair, A), cuda.local.array(raw_words, WORD)
        cells_of = cuda.local.array(all_points, INTEGER)  # of its points, and how many came there before; -1: none
        let_next_start()
        thread = i32(cuda.threadIdx.x)
        warp, lane = i32(thread >> 5), i32(thread & 31)
        n = i32(u32(cuda.blockIdx.x) // u32(stripes))
        top = i32(i32(i32(cuda.blockIdx.x) - n * stripes) * rows - 1)  # the first row of cells is -1
        tall = i32(min(rows, i32(height - top)))
        across, points = i32(width + 1), i32(out_height * out_width)
        cells = i32(tall * across)
        listed = i32(counts + cells + 1)  # points, cell by cell
        k = thread
        while k < cells:
            table[u32(counts + k)] = 0
            k = i32(k + threads)
        if thread == 0:
            table[above] = 0
        cuda.syncthreads()
        image = grid + n * gs[0] * grid_size
        begin, end = A(top), A(top + tall)
        before = i32(0)
        for r in range(accesses):
            first = i32(thread * many + r * apart)
            if many == 1:
                row = i32(u32(first) // u32(out_width))
                at = image + (i64(row) * gs[1] + i64(first - row * out_width) * gs[2]) * grid_size
                values[0] = read(at) if first < points else A(0)
                values[1] = read(at + gs[3] * grid_size) if first < points else A(0)
            else:
                if r % UNDER_WAY == 0:
                    for q in range(UNDER_WAY):
                        if first + q * apart < points:
                            read_words(raw, i32(q * words), image + i64(first + q * apart) * (2 * grid_size))
                convert(values, i32(0), raw, i32(r % UNDER_WAY * words))
            for e in range(many):
                y = scaled(values[2 * e + 1], half_height)
                cells_of[r * many + e] = -1
                if first < points and y > A(-1) and y < end:
                    if y < begin:
                        before = i32(before + 1)
                    else:
                        sound, j, i, _, _ = cell(scaled(values[2 * e], half_width), y, height, width)
                        if sound:
                            own = i32((i - top) * across + j + 1)
                            cells_of[r * many + e] = i32(own << 16) | cuda.atomic.add(table, u32(counts + own), 1)
        if before > 0:
            cuda.atomic.add(table, above, before)
        cuda.syncthreads()
        each = i32(u32(i32(cells + threads - 1)) // u32(threads))
        first = i32(min(i32(thread * each), cells))
        last = i32(min(i32(first + each), cells))
        total, k = i32(0), first
        while k < last:
            total = i32(total + table[u32(counts + k)])
            k = i32(k + 1)
        place, k = before_thread(total, table), first
        while k < last:
            count = table[u32(counts + k)]
            table[u32(counts + k)] = place
            place, k = i32(place + count), i32(k + 1)
        if thread == threads - 1:
            table[u32(counts + cells)] = place
        cuda.syncthreads()
        base = i64(i64(n) * out_height * out_width + table[above])
        starts = work + parts[0] + (i64(n) * (height + 1) + top + 1) * (width + 2) * 4
        for row in range(warp, tall, warps):
            for column in range(lane, width + 2, 32):  # a row ends where the next begins
                write(
                    starts + (i64(row) * (width + 2) + column) * 4,
                    i32(base + table[u32(counts + row * across + column)]),
                )
        for r in range(accesses):
            for e in range(many):
                own = cells_of[r * many + e]
                if own >= 0:
                    table[u32(listed + table[u32(counts + (own >> 16))] + (own & 0xFFFF))] = i32(
                        thread * many + r * apart + e
                    )
        cuda.syncthreads()
        records = work + parts[3] + base * size
        k = thread
        while k < table[u32(counts + cells)]:
            point = table[u32(listed + k)]
            k = i32(k + threads)
            row = quotient(point, by)
            if many == 1:
                at = image + (i64(row) * gs[1] + i64(point - row * out_width) * gs[2]) * grid_size
                values[0], values[1] = read(at), read(at + gs[3] * grid_size)
            else:
                read_point(raw, i32(0), image + i64(point) * (2 * grid_size))
                convert_point(values, i32(0), raw, i32(0))
            x, y = scaled(values[0], half_width), scaled(values[1], half_height)
            _, j, i, u, v = cell(x, y, height, width)
            own = i32((i - top) * across + j + 1)
            other, last = table[u32(counts + own)], table[u32(counts + own + 1)]
            to = other
            while other < last:
                if table[u32(listed + other)] < point:
                    to = i32(to + 1)
                other = i32(other + 1)
            put(record, records + i64(to) * size, point, row, u, v)

    return kernel


def before_of_thread(warps: int):  # type: ignore[no-untyped-def]
    """``before(count, table) -> i32``: the sum of ``count`` over the threads before this one; ``table``: a number of each warp.

    Sums of counts of points that fit shared memory are exact in float32.
    """
    swap = shuffle_xor("float32")

    @device
    def before(count, table):
        lane, warp = i32(i32(cuda.threadIdx.x) & 31), i32(i32(cuda.threadIdx.x) >> 5)
        mine, total = (
            f32(0),
            f32(count),
        )  # of the lanes before this one among 1, 2, 4 ... neighbours, and of all of those
        for level in range(5):
            other = swap(total, i32(1 << level))
            mine = f32(mine + (other if lane & (1 << level) else f32(0)))
            total = f32(total + other)
        if lane == 0:
            table[u32(warp)] = i32(total)
        cuda.syncthreads()
        of_warps = f32(table[u32(lane)]) if lane < warp else f32(0)
        for level in range(5):
            of_warps = f32(of_warps + swap(of_warps, i32(16 >> level)))
        return i32(mine + of_warps)

    return before
