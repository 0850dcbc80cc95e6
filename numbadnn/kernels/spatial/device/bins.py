"""Sort points into the cells of an image, in the order of the points: the gradient in the image gathers from these lists.

Every cell (row -1 ... H-1, column -1 ... W-1) gets a stretch of records; the stretches of a row of cells follow each other, and
``starts`` holds where each begins, W + 2 numbers a row. ``count`` counts the points of each cell (integer atomics), ``scan``
turns the counts of a row into places, ``place`` lists each cell's points and their records in any order, and ``sort`` puts a
point's record behind those of the smaller ones. Two records of a cell are put in order by whoever reads them: nothing is
sorted unless some cell has three. Where a row's stretch lies may differ from run to run; what stands in it may not.
Images of few points need one launch: ``device/stripe.py``.
A record is (number of the point in its image, u, v, the point's row). The workspace begins with the cursor and whether some
cell has three points; ``parts`` says where starts, ranks, lists and records begin in it.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import store_vector, zero_bytes
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.spatial.bins import BinsConfig, StripeConfig
from numbadnn.kernels.spatial.device import point as _spatial_point
from numbadnn.kernels.spatial.device.point import INTEGER
from numbadnn.problem import ITEMSIZE


def clear(config: BinsConfig) -> Callable[..., None]:
    """Zeros: 16 bytes a thread."""
    threads, zero = config.threads, zero_bytes(16)

    def kernel(starts, count):
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
    def find(grid, total, points, out_width, height, width, half_width, half_height, gs):
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

    def kernel(grid, work, parts, total, points, out_width, height, width, half_width, half_height, gs):
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

    def kernel(work, cells):
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


def store_record(config: BinsConfig | StripeConfig):  # type: ignore[no-untyped-def]
    """``put(record, address, point, row, u, v)``; ``record`` is a local array of four."""
    R, size = ACCUMULATOR[config.record], ITEMSIZE[config.record]
    pair = 16 // size
    write = store_vector(config.record, pair, config.record)

    @device
    def put(record, address, point, row, u, v):
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
    put, size, R = store_record(config), 4 * ITEMSIZE[config.record], ACCUMULATOR[config.record]

    def kernel(grid, work, parts, total, points, out_width, height, width, half_width, half_height, gs):
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
    put, size, R = store_record(config), 4 * ITEMSIZE[config.record], ACCUMULATOR[config.record]

    def kernel(grid, work, parts, total, points, out_width, height, width, half_width, half_height, gs):
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
