"""The gradient of the sampler in the image: each pixel sums ``weight * dy`` over the records of the four cells around it.

Cells in the order above left, above right, below left, below right; points in theirs: the order of every sum is fixed. Where
more than LEAF points crowd around a pixel, account is kept of what the additions round off.
``planes``: a pixel and some channels a thread, for any strides. ``device/gather_channels.py`` (NHWC) and
``device/gather_staged.py`` (NCHW) make of the same records both gradients in one pass.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load, load_vector, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.long_sums import LEAF, compensated
from numbadnn.kernels.spatial.device import point as _spatial_point
from numbadnn.kernels.spatial.gradients import GatherConfig, StagedGatherConfig
from numbadnn.problem import ITEMSIZE


def offset_by_point(config: GatherConfig | StagedGatherConfig):  # type: ignore[no-untyped-def]
    """``offset_of(point, out_width, ys) -> i64``: where the dy of a point lies, in elements."""
    folded = config.folded

    @device
    def offset_of(point, out_width, ys):
        if folded:
            return i64(point) * ys[3]
        row = i64(u32(point) // u32(out_width))
        return row * ys[2] + (i64(point) - row * out_width) * ys[3]

    return offset_of


def records_of(acc: str, config: GatherConfig | StagedGatherConfig):  # type: ignore[no-untyped-def]
    """``fetch(record, address) -> (offset of the point's dy in elements)``: the record, and where its dy lies."""
    pair = 16 // ITEMSIZE[config.record]
    read, offset_of = load_vector(config.record, pair, config.record), offset_by_point(config)

    @device
    def fetch(record, address, out_width, ys):
        read(record, i32(0), address)
        if pair < 4:
            read(record, i32(2), address + 16)
        return offset_of(i64(record[0]), out_width, ys)

    return fetch


def order_of(config: GatherConfig | StagedGatherConfig):  # type: ignore[no-untyped-def]
    """``ordered(records, k, first, last) -> i32``: where among first ... last - 1, a cell's records, the k-th belongs; and which
    comes k-th, for more than two are in order already."""
    read, size = load(config.record, config.record), 4 * ITEMSIZE[config.record]

    @device
    def ordered(records, k, first, last):
        at = k
        if last - first == 2:
            other = i32(first + last - 1 - k)
            at = i32(first + (1 if read(records + i64(other) * size) < read(records + i64(k) * size) else 0))
        return at

    return ordered


def starts_of_pixel():
    """``find(starts, at, entry, next_entry) -> count``: starts[at], ... where the records of the four cells around a pixel begin
    and end, first, middle and last above, the same below; and how many they are."""
    integer = _spatial_point.read_integer()

    @device
    def find(starts, at, entry, next_entry):
        """``entry``: the starts of the cells above, those below ``next_entry`` on."""
        for k in range(3):
            starts[at + k] = integer(entry + 4 * k)
        for k in range(3):
            starts[at + 3 + k] = integer(entry + next_entry + 4 * k)
        return i32(starts[at + 2] - starts[at] + starts[at + 5] - starts[at + 3])

    return find


def records_of_pixel(acc: str, held: int, config: GatherConfig | StagedGatherConfig):  # type: ignore[no-untyped-def]
    """``look(...)``: ``count`` of a pixel's records, up to ``held``, from number ``base`` on in their order, all loads at once.

    Four local arrays of ``held``: weights, points, their rows, and places of dots. Where there are fewer, what they hold means
    nothing. A cell of two is put in order here, as ``order_of`` does.
    """
    read, size = load_vector(config.record, 16 // ITEMSIZE[config.record], config.record), 4 * ITEMSIZE[config.record]
    pair, weight_of, place_of = 16 // ITEMSIZE[config.record], weight_by_side(acc), dot_place()
    ordered = config.ordered
    sound = not SIMULATED  # a GPU makes an integer of NaN too, Python does not; nobody uses it

    @device
    def look(record, weights, numbers, lines, places, pairs, starts, at, base, count, records, points):
        first, middle, last = starts[at], starts[at + 1], starts[at + 2]
        first_below, middle_below, last_below = starts[at + 3], starts[at + 4], starts[at + 5]
        upper = i32(last - first)
        for k in range(held):
            below = base + k >= upper
            where = i32((i32(first_below - upper) if below else first) + base + k) if k < count else i32(0)
            read(record, i32(0), records + i64(where) * size)
            if pair < 4:
                read(record, i32(2), records + i64(where) * size + 16)
            left = where < (middle_below if below else middle)
            present = sound or k < count  # else there may be no record at all, and what was read is no number
            weights[k] = weight_of(record, left, below)
            numbers[k], lines[k] = i32(record[0]) if present else i32(0), i32(record[3]) if present else i32(0)
            places[k] = u32(place_of(record, left, below, points)) if present else u32(0)
            if not ordered:
                start = (first_below if left else middle_below) if below else (first if left else middle)
                end = (middle_below if left else last_below) if below else (middle if left else last)
                pairs[k] = 1 if where == start and end - start == 2 and k + 1 < count else 0
        if not ordered:
            for k in range(held - 1):
                if pairs[k] != 0 and numbers[k] > numbers[k + 1]:
                    weights[k], weights[k + 1] = weights[k + 1], weights[k]
                    places[k], places[k + 1] = places[k + 1], places[k]
                    numbers[k], numbers[k + 1] = numbers[k + 1], numbers[k]
                    lines[k], lines[k + 1] = lines[k + 1], lines[k]

    return look


def weight_by_side(acc: str):  # type: ignore[no-untyped-def]
    """``weight_of(record, left, below)``: what the point gives to a pixel of its cell, by the side that its cell lies on."""
    A = ACCUMULATOR[acc]

    @device
    def weight_of(record, left, below):
        u, v = A(record[1]), A(record[2])
        return A((u if left else A(A(1) - u)) * (A(A(1) - v) if below else v))

    return weight_of


def dot_place():
    """``place(record, left, below, points) -> i64``: which dot of its image this is: first those of all points with their pixel
    above left, then above right and so on. Neighbouring pixels write dots of neighbouring points, which lie together."""

    @device
    def place(record, left, below, points):
        return i64((0 if below else 2) + (1 if left else 0)) * points + i64(record[0])

    return place


def walk_of(  # type: ignore[no-untyped-def]
    dtype: str, acc: str, held: int, config: GatherConfig | StagedGatherConfig, crowds: bool = True, dots: bool = False
):
    """``walk``: dimg of one pixel in up to ``held`` channels: what a record says serves them all, the next is on its way.

    ``sums`` and ``values`` are local arrays of ``held``. ``crowds``: of more than LEAF records ``values`` has what
    the sums rounded off.
    ``dots``: the sums of ``pixel * dy`` over these channels as well, written where ``fresh``, else added to what lies there.
    """
    A, record_size, size = ACCUMULATOR[acc], 4 * ITEMSIZE[config.record], ITEMSIZE[dtype]
    dot_size, place_of = ITEMSIZE[acc], dot_place()
    read, write, integer = load(dtype, acc), store(dtype, acc), _spatial_point.read_integer()
    read_dot, write_dot = load(acc, acc), store(acc, acc)
    fetch, weight_of, ordered = records_of(acc, config), weight_by_side(acc), order_of(config)
    add, close = compensated(acc)

    @device
    def walk(
        record, sums, values, image, target, records, entry, next_entry, count, out_width, ys, step, next_target,
        own, dot, fresh, points,
    ):  # fmt: skip
        """``image``: the first channel of dy; ``entry``: the starts of the cells above, those below ``next_entry`` on; ``own``:
        the pixel's channels."""
        for q in range(held):
            sums[q] = A(0)
        first, middle, last = integer(entry), integer(entry + 4), integer(entry + 8)
        entry += next_entry
        first_below, middle_below, last_below = integer(entry), integer(entry + 4), integer(entry + 8)
        upper = i32(last - first)  # records of the two cells above; those below follow
        total = i32(upper + last_below - first_below)
        first_below = i32(first_below - upper)
        next_at, next_weight, next_dot, long = image, A(0), dot, total > LEAF if crowds else False
        for q in range(held if crowds else 0):
            values[q] = A(0)
        for k in range(-1, total):
            at, weight, place = next_at, next_weight, next_dot
            if k + 1 < total:
                below = k + 1 >= upper
                where = i32((first_below if below else first) + k + 1)
                start, between = (i32(first_below + upper) if below else first), (middle_below if below else middle)
                end, left = (last_below if below else last), where < between
                where = ordered(records, where, start if left else between, between if left else end)
                next_at = image + fetch(record, records + i64(where) * record_size, out_width, ys) * size
                next_weight = weight_of(record, left, below)
                if dots:
                    next_dot = dot + place_of(record, left, below, points) * dot_size
            if weight != 0 or (dots and k >= 0):
                part = A(0)
                if long:
                    for q in range(held):
                        if q < count:
                            value = read(at)
                            at += step
                            if dots:
                                part = A(part + own[q] * value)
                            if weight != 0:
                                sums[q], values[q] = add(sums[q], values[q], weight * value)
                elif count == held:
                    for q in range(held):
                        values[q] = read(at)
                        at += step
                    for q in range(held):
                        if dots:
                            part = A(part + own[q] * values[q])
                        total_of = A(sums[q] + weight * values[q])
                        sums[q] = total_of if weight != 0 else sums[q]
                else:
                    for q in range(held):
                        if q < count:
                            value = read(at)
                            at += step
                            if dots:
                                part = A(part + own[q] * value)
                            if weight != 0:
                                sums[q] = A(sums[q] + weight * value)
                if dots:
                    write_dot(place, part if fresh else A(part + read_dot(place)))
        for q in range(held):
            if q < count:
                if long:
                    sums[q] = close(sums[q], values[q])
                write(target, sums[q])
                target += next_target

    return walk


def planes(dtype: str, acc: str, config: GatherConfig) -> Callable[..., None]:
    """Any strides; ``config.channels`` channels a thread."""
    A, R, size = ACCUMULATOR[acc], ACCUMULATOR[config.record], ITEMSIZE[dtype]
    held = config.channels
    locate, walk = (
        _spatial_point.tile(config.columns, config.rows),
        walk_of(dtype, acc, config.channels, config),
    )

    def kernel(dy, dimg, work, parts, across, down, chunks, channels, height, width, out_width, ys, xs):
        record = cuda.local.array(4, R)
        sums = cuda.local.array(held, A)
        values = cuda.local.array(held, A)
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
            ys[1] * size, xs[1] * size, values, i64(0), True, i64(0),
        )  # fmt: skip

    return kernel
