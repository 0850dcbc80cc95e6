"""The gradient of the sampler in the image: each pixel sums ``weight * dy`` over the records of the four cells around it.

Cells in the order above left, above right, below left, below right; points in theirs: the order of every sum is fixed.
``planes``: a pixel and some channels a thread. ``channels``: some channels of NHWC in one access.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels import _spatial_point
from numbadnn.kernels._cuda import cuda, device, i32, i64, u32
from numbadnn.kernels._ptx import ACCUMULATOR, load, load_vector, store, store_vector
from numbadnn.kernels._spatial_point import INTEGER, INTEGER64
from numbadnn.kernels.spatial_layout import GatherConfig
from numbadnn.problem import ITEMSIZE

#: records of a pixel that are noted in shared memory; a grid as fine as the image has four a pixel on average
HELD = 8


def _records(acc: str, config: GatherConfig):  # type: ignore[no-untyped-def]
    """``fetch(record, address) -> (offset of the point's dy in elements)``: the record, and where its dy lies."""
    kind, folded = config.record, config.folded
    size = ITEMSIZE[kind]
    pair = 16 // size
    read = load_vector(kind, pair, kind)

    @device
    def fetch(record, address, out_width, ys):  # type: ignore[no-untyped-def]
        read(record, i32(0), address)
        if pair < 4:
            read(record, i32(2), address + 16)
        point = i64(record[0])
        if folded:
            return point * ys[3]
        row = i64(u32(point) // u32(out_width))
        return row * ys[2] + (point - row * out_width) * ys[3]

    return fetch


def planes(dtype: str, acc: str, config: GatherConfig) -> Callable[..., None]:
    """Any strides; ``config.channels`` channels a thread."""
    A, R, size, record_size = ACCUMULATOR[acc], ACCUMULATOR[config.record], ITEMSIZE[dtype], 4 * ITEMSIZE[config.record]
    held = config.channels
    read, write, integer = load(dtype, acc), store(dtype, acc), _spatial_point.read_integer()
    locate, fetch = _spatial_point.tile(config.columns, config.rows), _records(acc, config)

    def kernel(  # type: ignore[no-untyped-def]
        dy, dimg, work, parts, across, down, chunks, channels, height, width, out_width, ys, xs
    ):
        record = cuda.local.array(4, R)
        sums = cuda.local.array(held, A)
        column, row, chunk, n = locate(i32(cuda.threadIdx.x), i32(cuda.blockIdx.x), across, down, chunks)
        if column >= width or row >= height:
            return
        c = i32(chunk * held)
        count = i32(min(i32(channels - c), i32(held)))
        for q in range(held):
            sums[q] = A(0)
        image = dy + (n * ys[0] + c * ys[1]) * size
        step = ys[1] * size
        entry = work + parts[0] + ((i64(n) * (height + 1) + row) * (width + 2) + column) * 4
        for below in range(2):
            first, middle, last = integer(entry), integer(entry + 4), integer(entry + 8)
            for k in range(first, last):
                at = image + fetch(record, work + parts[3] + i64(k) * record_size, out_width, ys) * size
                u, v = A(record[1]), A(record[2])
                across_weight = u if k < middle else A(A(1) - u)
                weight = A(across_weight * (A(A(1) - v) if below == 1 else v))
                if weight != 0:
                    if count == held:
                        for q in range(held):
                            sums[q] = A(sums[q] + weight * read(at + q * step))
                    else:
                        for q in range(held):
                            if q < count:
                                sums[q] = A(sums[q] + weight * read(at + q * step))
            entry += i64(width + 2) * 4
        target = dimg + (n * xs[0] + c * xs[1] + row * xs[2] + column * xs[3]) * size
        for q in range(held):
            if q < count:
                write(target + q * (xs[1] * size), sums[q])

    return kernel


def channels(dtype: str, acc: str, config: GatherConfig) -> Callable[..., None]:
    """NHWC: ``config.channels`` neighbouring channels in one access; the threads of a block share its tile's pixels.

    First a thread a pixel notes the first ``HELD`` of its records in shared memory, as offsets and weights; then all threads
    walk over (pixel, vector of channels). What a pixel has beyond those is read where it lies.
    """
    A, R, size, record_size = ACCUMULATOR[acc], ACCUMULATOR[config.record], ITEMSIZE[dtype], 4 * ITEMSIZE[config.record]
    vec, threads, pixels = config.channels, config.threads, config.columns * config.rows
    read, put, integer = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc), _spatial_point.read_integer()
    locate, fetch = _spatial_point.tile(config.columns, config.rows), _records(acc, config)
    room, batch = HELD * pixels, 4
    held_values = batch * vec

    @device
    def weight_of(record, left, below):  # type: ignore[no-untyped-def]
        u, v = A(record[1]), A(record[2])
        return A((u if left else A(A(1) - u)) * (A(A(1) - v) if below else v))

    def kernel(dy, dimg, work, parts, across, down, vectors, height, width, out_width, ys, xs):  # type: ignore[no-untyped-def]
        offsets = cuda.shared.array(room, INTEGER64)
        weights = cuda.shared.array(room, A)
        bounds = cuda.shared.array((6, pixels), INTEGER)
        record = cuda.local.array(4, R)
        sums = cuda.local.array(vec, A)
        values = cuda.local.array(held_values, A)
        records = work + parts[3]
        thread = i32(cuda.threadIdx.x)
        if thread < pixels:
            column, row, _, n = locate(thread, i32(cuda.blockIdx.x), across, down, i32(1))
            live = column < width and row < height
            entry = work + parts[0] + ((i64(n) * (height + 1) + row) * (width + 2) + column) * 4
            held = i32(0)
            for below in range(2):
                for e in range(3):
                    bounds[3 * below + e, thread] = integer(entry + 4 * e) if live else i32(0)
                entry += i64(width + 2) * 4
            for below in range(2):
                middle = bounds[3 * below + 1, thread]
                for k in range(bounds[3 * below, thread], bounds[3 * below + 2, thread]):
                    if held < HELD:
                        at = fetch(record, records + i64(k) * record_size, out_width, ys)
                        offsets[held * pixels + thread] = at
                        weights[held * pixels + thread] = weight_of(record, k < middle, below == 1)
                        held = i32(held + 1)
        cuda.syncthreads()
        for item in range(thread, i32(pixels * vectors), threads):
            pixel = i32(u32(item) // u32(vectors))
            vector = i32(item - pixel * vectors)
            column, row, _, n = locate(pixel, i32(cuda.blockIdx.x), across, down, i32(1))
            if column < width and row < height:
                for e in range(vec):
                    sums[e] = A(0)
                image = dy + (n * ys[0] + vector * i64(vec)) * size
                upper = i32(bounds[2, pixel] - bounds[0, pixel])
                count = i32(upper + bounds[5, pixel] - bounds[3, pixel])
                noted = i32(min(count, i32(HELD)))
                for k in range(0, noted, batch):  # some loads under way at once; one too many repeats the last
                    for q in range(batch):
                        at = i32(min(i32(k + q), i32(noted - 1))) * pixels + pixel
                        read(values, i32(q * vec), image + offsets[at] * size)
                    for q in range(batch):
                        if k + q < noted:
                            weight = weights[(k + q) * pixels + pixel]
                            if weight != 0:
                                for e in range(vec):
                                    sums[e] = A(sums[e] + weight * values[q * vec + e])
                for k in range(noted, count):
                    below = k >= upper
                    where = i32(bounds[3, pixel] + k - upper) if below else i32(bounds[0, pixel] + k)
                    middle = bounds[4, pixel] if below else bounds[1, pixel]
                    at = fetch(record, records + i64(where) * record_size, out_width, ys)
                    weight = weight_of(record, where < middle, below)
                    if weight != 0:
                        read(values, i32(0), image + at * size)
                        for e in range(vec):
                            sums[e] = A(sums[e] + weight * values[e])
                put(sums, i32(0), dimg + (n * xs[0] + row * xs[2] + column * xs[3] + vector * i64(vec)) * size)

    return kernel
