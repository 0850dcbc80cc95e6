"""Which points lie in each cell of an image, in the order of the points: what the gradient in the image gathers from.

Every cell (row -1 ... H-1, column -1 ... W-1) gets a stretch of records; the stretches of a row of cells follow each other, and
``starts`` holds where each begins, W + 2 numbers a row. ``count`` counts the points of each cell (integer atomics), ``scan``
turns the counts of a row into places, ``place`` lists each cell's points and their records in any order, and ``sort`` puts a
point's record behind those of the smaller ones. Two records of a cell are put in order by whoever reads them: nothing is
sorted unless some cell has three. Where a row's stretch lies may differ from run to run; what stands in it may not.
Images of few points need one launch: ``stripe``.
A record is (number of the point in its image, u, v, the point's row). The workspace begins with the cursor and whether some
cell has three points; ``parts`` says where starts, ranks, lists and records begin in it.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels import _spatial_point
from numbadnn.kernels._cuda import cuda, device, i32, i64, u32
from numbadnn.kernels._packed import load_words, widen
from numbadnn.kernels._ptx import ACCUMULATOR, WORD, let_next_start, load, store_vector, zero_bytes
from numbadnn.kernels._spatial_point import INTEGER
from numbadnn.kernels.spatial_gradients import BinsConfig, StripeConfig
from numbadnn.problem import ITEMSIZE

#: accesses of the grid that are under way at once in ``stripe``
UNDER_WAY = 4


def clear(config: BinsConfig) -> Callable[..., None]:
    """Zeros: 16 bytes a thread."""
    threads, zero = config.threads, zero_bytes(16)

    def kernel(starts, count):  # type: ignore[no-untyped-def]
        index = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if index < count:
            zero(starts + index * 16)

    return kernel


def _points(config: BinsConfig):  # type: ignore[no-untyped-def]
    """``(...) -> (whether the thread has a point that meets the image, n, point, its row, cell's entry in starts, u, v)``."""
    threads = config.threads
    position, cell = _spatial_point.position(config.place, config.acc), _spatial_point.cell(config.acc)
    grid_size = ITEMSIZE[config.place]

    @device
    def find(grid, total, points, out_width, height, width, half_width, half_height, gs):  # type: ignore[no-untyped-def]
        index = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        live = index < total
        index = index if live else i64(0)
        n = i64(u32(index) // u32(points))
        point = i64(index - n * points)
        row = i64(u32(point) // u32(out_width))
        at = grid + (n * gs[0] + row * gs[1] + (point - row * out_width) * gs[2]) * grid_size
        px, py = position(at, gs[3] * grid_size, half_width, half_height)
        sound, j, i, u, v = cell(px, py, height, width)
        entry = i64((n * (height + 1) + i + 1) * i64(width + 2) + j + 1)
        return live and sound, index, point, row, entry, u, v

    return find


def count(config: BinsConfig) -> Callable[..., None]:
    """ranks[point] = how many points had come to its cell before it."""
    find, add, write = _points(config), _spatial_point.add_integer(), _spatial_point.write_integer()

    def kernel(  # type: ignore[no-untyped-def]
        grid, work, parts, total, points, out_width, height, width, half_width, half_height, gs
    ):
        live, index, _, _, entry, _, _ = find(
            grid, total, points, out_width, height, width, half_width, half_height, gs
        )
        if live:
            write(work + parts[1] + index * 4, add(work + parts[0] + entry * 4, i32(1)))

    return kernel


def scan(config: BinsConfig) -> Callable[..., None]:
    """A row of cells a block: counts to places, the row's own stretch taken from the cursor, with which the workspace begins."""
    threads = config.row_threads
    read, write, add = _spatial_point.read_integer(), _spatial_point.write_integer(), _spatial_point.add_integer()

    def kernel(work, cells):  # type: ignore[no-untyped-def]
        sums = cuda.shared.array(threads, INTEGER)
        base = cuda.shared.array(1, INTEGER)
        thread = i32(cuda.threadIdx.x)
        row = work + 16 + i64(cuda.blockIdx.x) * (cells + 1) * 4
        each = i32((cells + threads - 1) // threads)
        first = i32(min(i32(thread * each), cells))
        last = i32(min(i32(first + each), cells))
        total = i32(0)
        for k in range(first, last):
            total = i32(total + read(row + i64(k) * 4))
        sums[thread] = total
        step = i32(1)
        while step < threads:  # inclusive sums, each step twice as far
            cuda.syncthreads()
            before = sums[i32(thread - step)] if thread >= step else i32(0)
            cuda.syncthreads()
            sums[thread] = i32(sums[thread] + before)
            step = i32(step * 2)
        if thread == threads - 1:
            base[0] = add(work, sums[thread])
        cuda.syncthreads()
        place = i32(base[0] + sums[thread] - total)
        for k in range(first, last):
            n = read(row + i64(k) * 4)
            write(row + i64(k) * 4, place)
            place = i32(place + n)
        if thread == threads - 1:
            write(row + i64(cells) * 4, i32(base[0] + sums[thread]))

    return kernel


def _put_record(config: BinsConfig | StripeConfig):  # type: ignore[no-untyped-def]
    """``put(record, address, point, row, u, v)``; ``record`` is a local array of four."""
    R, size = ACCUMULATOR[config.record], ITEMSIZE[config.record]
    pair = 16 // size
    write = store_vector(config.record, pair, config.record)

    @device
    def put(record, address, point, row, u, v):  # type: ignore[no-untyped-def]
        record[0] = R(point)
        record[1] = R(u)
        record[2] = R(v)
        record[3] = R(row)
        write(record, i32(0), address)
        if pair < 4:
            write(record, i32(2), address + 16)

    return put


def place(config: BinsConfig) -> Callable[..., None]:
    """listed[start of its cell + rank] = point, and its record there."""
    find, read, write = _points(config), _spatial_point.read_integer(), _spatial_point.write_integer()
    put, size, R = _put_record(config), 4 * ITEMSIZE[config.record], ACCUMULATOR[config.record]

    def kernel(  # type: ignore[no-untyped-def]
        grid, work, parts, total, points, out_width, height, width, half_width, half_height, gs
    ):
        record = cuda.local.array(4, R)
        live, index, point, row, entry, u, v = find(
            grid, total, points, out_width, height, width, half_width, half_height, gs
        )
        if live:
            start, rank = read(work + parts[0] + entry * 4), read(work + parts[1] + index * 4)
            at = i64(start) + rank
            write(work + parts[2] + at * 4, i32(point))
            put(record, work + parts[3] + at * size, point, row, u, v)
            if rank == 2:
                write(work + 4, i32(1))

    return kernel


def sort(config: BinsConfig) -> Callable[..., None]:
    """records[start of its cell + points of the cell that are smaller] = the point's record"""
    find, read = _points(config), _spatial_point.read_integer()
    put, size, R = _put_record(config), 4 * ITEMSIZE[config.record], ACCUMULATOR[config.record]

    def kernel(  # type: ignore[no-untyped-def]
        grid, work, parts, total, points, out_width, height, width, half_width, half_height, gs
    ):
        record = cuda.local.array(4, R)
        if read(work + 4) == 0:
            return
        live, _, point, row, entry, u, v = find(
            grid, total, points, out_width, height, width, half_width, half_height, gs
        )
        if live:
            first, last = read(work + parts[0] + entry * 4), read(work + parts[0] + entry * 4 + 4)
            at = first
            for k in range(first, last):
                if read(work + parts[2] + i64(k) * 4) < point:
                    at = i32(at + 1)
            put(record, work + parts[3] + i64(at) * size, point, row, u, v)

    return kernel


def stripe(config: StripeConfig) -> Callable[..., None]:
    """All of it in one launch: a block has ``rows`` rows of cells and looks at all points of its image.

    Counts and lists stay in shared memory, the cell and rank of each of a thread's points in registers. The block's stretch
    begins behind as many records as there are points in the rows above, wherever they lie across: what stands where is the same
    in every run, and every cell is in order. A point of other rows is known by its y alone. ``config.points`` points that lie
    together are read in one access; a thread makes ``config.accesses`` of them.
    """
    threads, many, accesses = config.threads, config.points, config.accesses
    warps, pair, apart, all_points = threads // 32, 2 * many, threads * many, accesses * many
    above, counts = threads, threads + 1  # how many points lie above; where each cell begins, and where the last ends
    cell = _spatial_point.cell(config.acc)
    words = max(1, pair * ITEMSIZE[config.place] // 4)
    raw_words = UNDER_WAY * words
    read, read_words, convert = load(config.place, config.acc), load_words(words), widen(config.place, pair, config.acc)
    write, A = _spatial_point.write_integer(), ACCUMULATOR[config.acc]
    put, size, R = _put_record(config), 4 * ITEMSIZE[config.record], ACCUMULATOR[config.record]
    grid_size = ITEMSIZE[config.place]

    @device
    def scaled(value, half):  # type: ignore[no-untyped-def]
        return A(A(value + A(1)) * half)

    def kernel(  # type: ignore[no-untyped-def]
        grid, work, parts, stripes, rows, out_height, out_width, height, width, half_width, half_height, gs
    ):
        table = cuda.shared.array(0, INTEGER)  # a sum of each thread, and what ``above`` and so on say
        record, values, raw = cuda.local.array(4, R), cuda.local.array(pair, A), cuda.local.array(raw_words, WORD)
        cells_of = cuda.local.array(
            all_points, INTEGER
        )  # of the thread's points, and how many came there before; -1: none
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
        table[u32(thread)] = total
        step = i32(1)
        while step < threads:  # inclusive sums, each step twice as far
            cuda.syncthreads()
            back = table[u32(thread - step)] if thread >= step else i32(0)
            cuda.syncthreads()
            table[u32(thread)] = i32(table[u32(thread)] + back)
            step = i32(step * 2)
        place, k = i32(table[u32(thread)] - total), first
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
            row = i32(u32(point) // u32(out_width))
            at = image + (i64(row) * gs[1] + i64(point - row * out_width) * gs[2]) * grid_size
            x, y = scaled(read(at), half_width), scaled(read(at + gs[3] * grid_size), half_height)
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
