"""The gradient of the sampler in the image: each pixel sums ``weight * dy`` over the records of the four cells around it.

Cells in the order above left, above right, below left, below right; points in theirs: the order of every sum is fixed.
``planes``: a pixel and some channels a thread. ``channels``: some channels of NHWC in one access. Another way for NCHW is in
``_spatial_gather_staged``.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels import _spatial_point
from numbadnn.kernels._cuda import cuda, device, i32, i64, u32
from numbadnn.kernels._packed import load_words, widen
from numbadnn.kernels._ptx import ACCUMULATOR, WORD, load, load_vector, store, store_vector
from numbadnn.kernels._spatial_point import INTEGER, INTEGER64
from numbadnn.kernels.spatial_layout import GatherConfig, StagedGatherConfig
from numbadnn.problem import ITEMSIZE

#: records of a pixel that are noted in shared memory; a grid as fine as the image has four a pixel on average
HELD = 8
#: of them so many are fetched at once
BATCH = 4
#: loads of planes that are under way at once
UNDER_WAY = 16


def records_of(acc: str, config: GatherConfig | StagedGatherConfig):  # type: ignore[no-untyped-def]
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


def order_of(config: GatherConfig | StagedGatherConfig):  # type: ignore[no-untyped-def]
    """``ordered(records, k, first, last) -> i32``: where among first ... last - 1, a cell's records, the k-th belongs; and which
    comes k-th, for more than two are in order already."""
    read, size = load(config.record, config.record), 4 * ITEMSIZE[config.record]

    @device
    def ordered(records, k, first, last):  # type: ignore[no-untyped-def]
        at = k
        if last - first == 2:
            other = i32(first + last - 1 - k)
            at = i32(first + (1 if read(records + i64(other) * size) < read(records + i64(k) * size) else 0))
        return at

    return ordered


def weight_by_side(acc: str):  # type: ignore[no-untyped-def]
    """``weight_of(record, left, below)``: what the point gives to a pixel of its cell, by the side that its cell lies on."""
    A = ACCUMULATOR[acc]

    @device
    def weight_of(record, left, below):  # type: ignore[no-untyped-def]
        u, v = A(record[1]), A(record[2])
        return A((u if left else A(A(1) - u)) * (A(A(1) - v) if below else v))

    return weight_of


def walk_of(dtype: str, acc: str, held: int, config: GatherConfig | StagedGatherConfig):  # type: ignore[no-untyped-def]
    """``walk``: dimg of one pixel in up to ``held`` channels: what a record says serves them all, the next is on its way."""
    A, record_size, size = ACCUMULATOR[acc], 4 * ITEMSIZE[config.record], ITEMSIZE[dtype]
    batch = min(held, UNDER_WAY)
    read, write, integer = load(dtype, acc), store(dtype, acc), _spatial_point.read_integer()
    fetch, weight_of, ordered = records_of(acc, config), weight_by_side(acc), order_of(config)

    @device
    def walk(  # type: ignore[no-untyped-def]
        record, sums, values, image, target, records, entry, next_entry, count, out_width, ys, step, next_target
    ):
        """``image``: the first channel of dy; ``entry``: the starts of the cells above, those below ``next_entry`` on."""
        for q in range(held):
            sums[q] = A(0)
        first, middle, last = integer(entry), integer(entry + 4), integer(entry + 8)
        entry += next_entry
        first_below, middle_below, last_below = integer(entry), integer(entry + 4), integer(entry + 8)
        upper = i32(last - first)  # records of the two cells above; those below follow
        total = i32(upper + last_below - first_below)
        first_below = i32(first_below - upper)
        next_at, next_weight = image, A(0)
        for k in range(-1, total):
            at, weight = next_at, next_weight
            if k + 1 < total:
                below = k + 1 >= upper
                where = i32((first_below if below else first) + k + 1)
                start, between = (i32(first_below + upper) if below else first), (middle_below if below else middle)
                end, left = (last_below if below else last), where < between
                where = ordered(records, where, start if left else between, between if left else end)
                next_at = image + fetch(record, records + i64(where) * record_size, out_width, ys) * size
                next_weight = weight_of(record, left, below)
            if weight != 0:
                if count == held:
                    for start_of_batch in range(0, held, batch):
                        for q in range(batch):
                            values[q] = read(at)
                            at += step
                        for q in range(batch):
                            sums[start_of_batch + q] = A(sums[start_of_batch + q] + weight * values[q])
                else:
                    for q in range(held):
                        if q < count:
                            sums[q] = A(sums[q] + weight * read(at))
                            at += step
        for q in range(held):
            if q < count:
                write(target, sums[q])
                target += next_target

    return walk


def planes(dtype: str, acc: str, config: GatherConfig) -> Callable[..., None]:
    """Any strides; ``config.channels`` channels a thread."""
    A, R, size = ACCUMULATOR[acc], ACCUMULATOR[config.record], ITEMSIZE[dtype]
    held, batch = config.channels, min(config.channels, UNDER_WAY)
    locate, walk = _spatial_point.tile(config.columns, config.rows), walk_of(dtype, acc, config.channels, config)

    def kernel(  # type: ignore[no-untyped-def]
        dy, dimg, work, parts, across, down, chunks, channels, height, width, out_width, ys, xs
    ):
        record = cuda.local.array(4, R)
        sums = cuda.local.array(held, A)
        values = cuda.local.array(batch, A)
        column, row, chunk, n = locate(i32(cuda.threadIdx.x), i32(cuda.blockIdx.x), across, down, chunks)
        if column >= width or row >= height:
            return
        c = i32(chunk * held)
        count = i32(min(i32(channels - c), i32(held)))
        image, target = (
            dy + (n * ys[0] + c * ys[1]) * size,
            dimg + (n * xs[0] + c * xs[1] + row * xs[2] + column * xs[3]) * size,
        )
        entry = work + parts[0] + ((i64(n) * (height + 1) + row) * (width + 2) + column) * 4
        walk(
            record, sums, values, image, target, work + parts[3], entry, i64(width + 2) * 4, count, out_width, ys,
            ys[1] * size, xs[1] * size,
        )  # fmt: skip

    return kernel


def channels(dtype: str, acc: str, config: GatherConfig) -> Callable[..., None]:
    """NHWC: ``config.channels`` neighbouring channels in one access; the threads of a block share its tile's pixels.

    First a thread a pixel notes the first ``HELD`` of its records in shared memory, as offsets (in vectors) and weights, then
    some of no weight up to whole batches; then all threads walk over (pixel, vector of channels). What a pixel has beyond
    those is read where it lies.
    """
    A, R, size, record_size = ACCUMULATOR[acc], ACCUMULATOR[config.record], ITEMSIZE[dtype], 4 * ITEMSIZE[config.record]
    vec, threads, pixels, columns = config.channels, config.threads, config.columns * config.rows, config.columns
    words = vec * size // 4
    read, convert, put = load_words(words), widen(dtype, vec, acc), store_vector(dtype, vec, acc)
    integer = _spatial_point.read_integer()
    locate, fetch, weight_of = _spatial_point.tile(columns, config.rows), records_of(acc, config), weight_by_side(acc)
    ordered = order_of(config)
    shift, nbytes = vec.bit_length() - 1, vec * size
    room, held_words = HELD * pixels, BATCH * words

    def kernel(dy, dimg, work, parts, across, down, vectors, height, width, out_width, ys, xs):  # type: ignore[no-untyped-def]
        offsets = cuda.shared.array(room, INTEGER)
        weights = cuda.shared.array(room, A)
        counts = cuda.shared.array(pixels, INTEGER)
        bounds = cuda.shared.array((6, pixels), INTEGER)
        targets = cuda.shared.array(pixels, INTEGER64)  # -1: there is no such pixel
        record = cuda.local.array(4, R)
        sums = cuda.local.array(vec, A)
        raw = cuda.local.array(held_words, WORD)
        values = cuda.local.array(vec, A)
        records = work + parts[3]
        thread = i32(cuda.threadIdx.x)
        left_column, top_row, _, n = locate(i32(0), i32(cuda.blockIdx.x), across, down, i32(1))
        if thread < pixels:
            row = i32(top_row + i32(u32(thread) // u32(columns)))
            column = i32(left_column + i32(u32(thread) % u32(columns)))
            live = column < width and row < height
            targets[thread] = (row * xs[2] + column * xs[3]) * size if live else i64(-1)
            entry = work + parts[0] + ((i64(n) * (height + 1) + row) * (width + 2) + column) * 4
            held = i32(0)
            for below in range(2):
                for e in range(3):
                    bounds[3 * below + e, thread] = integer(entry + 4 * e) if live else i32(0)
                entry += i64(width + 2) * 4
            upper = i32(bounds[2, thread] - bounds[0, thread])
            counts[thread] = i32(upper + bounds[5, thread] - bounds[3, thread])
            for below in range(2):
                first, middle, last = (
                    bounds[3 * below, thread],
                    bounds[3 * below + 1, thread],
                    bounds[3 * below + 2, thread],
                )
                base = i32(held - first)
                for k in range(first, last):
                    if held < HELD:
                        at = fetch(record, records + i64(k) * record_size, out_width, ys)
                        from_left = k < middle
                        to = i32(
                            base
                            + ordered(records, i32(k), first if from_left else middle, middle if from_left else last)
                        )
                        offsets[to * pixels + thread] = i32(at >> shift)
                        weights[to * pixels + thread] = weight_of(record, from_left, below == 1)
                        held = i32(held + 1)
            for k in range(held, i32(u32(held + (BATCH - 1)) // u32(BATCH)) * BATCH):
                offsets[k * pixels + thread] = offsets[thread]
                weights[k * pixels + thread] = A(0)
        cuda.syncthreads()
        image, target = dy + n * ys[0] * size, dimg + n * xs[0] * size
        pixel = i32(u32(thread) // u32(vectors))
        vector = i32(thread - pixel * vectors)
        further = i32(u32(threads) // u32(vectors))  # the next item of a thread: pixels on, and vectors
        more = i32(threads - further * vectors)
        while pixel < pixels:
            to = targets[u32(pixel)]
            if to >= 0:
                for e in range(vec):
                    sums[e] = A(0)
                count, line = counts[u32(pixel)], image + i64(vector) * nbytes
                noted = i32(min(count, i32(HELD)))
                for k in range(0, noted, BATCH):  # some loads under way at once
                    at = u32(k * pixels + pixel)
                    for q in range(BATCH):
                        read(raw, i32(q * words), line + i64(offsets[u32(at + q * pixels)]) * nbytes)
                    for q in range(
                        BATCH
                    ):  # what has no weight is not looked at: no branch, behind which a load would go
                        weight = weights[u32(at + q * pixels)]
                        for e in range(words):
                            raw[q * words + e] = raw[q * words + e] if weight != 0 else u32(0)
                        convert(values, i32(0), raw, i32(q * words))
                        for e in range(vec):
                            sums[e] = A(sums[e] + weight * values[e])
                if count > noted:
                    upper = i32(bounds[2, pixel] - bounds[0, pixel])
                    for k in range(noted, count):
                        below = k >= upper
                        where = i32(bounds[3, pixel] + k - upper) if below else i32(bounds[0, pixel] + k)
                        middle = bounds[4, pixel] if below else bounds[1, pixel]
                        far = fetch(record, records + i64(where) * record_size, out_width, ys)
                        weight = weight_of(record, where < middle, below)
                        if weight != 0:
                            read(raw, i32(0), line + far * size)
                            convert(values, i32(0), raw, i32(0))
                            for e in range(vec):
                                sums[e] = A(sums[e] + weight * values[e])
                put(sums, i32(0), target + to + i64(vector) * nbytes)
            pixel, vector = i32(pixel + further), i32(vector + more)
            if vector >= vectors:
                pixel, vector = i32(pixel + 1), i32(vector - vectors)

    return kernel
