"""The gradient of sums and averages of packed images, by tiles, in gather form: an element adds up what its windows give.

A thread makes ``rows`` strips of the image, each ``columns`` strides wide, one high and one deep, of the windows that reach them,
which it reads a plane at once. An element adds up the planes of windows that see it first, then the rows of their sum, then
the columns of that.
Windows outside the output give nothing. See ``device/tiles.py`` for the layout of images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, f32, i32, i64
from numbadnn.kernels.pool.device.parts import after, averager, locator, reader, writer, written_out
from numbadnn.kernels.pool.tiles_config import TilesConfig
from numbadnn.problem import ITEMSIZE


def adder(acc: str, config: TilesConfig) -> Any:
    """``add(total, ys, start, r)``: row r of a strip from the shares ys[start:] of the rows of windows that reach the strip."""
    A, lanes, windows, wide = ACCUMULATOR[acc], config.lanes, config.y_piece().length, config.columns * config.stride[2]
    (_, kh, kw), (_, sh, sw), (_, ph, pw) = config.window, config.stride, config.pad
    # of the strip's windows, from the strip
    top, left = config.first_window(1) * sh - ph, config.first_window(2) * sw - pw
    capacity, row_capacity, reach = config.y_piece().capacity * lanes, windows * lanes, config.window_rows
    down, across = -(-kh // sh), -(-kw // sw)

    @device
    def add(total, ys, start, r):
        given = cuda.local.array(row_capacity, A)
        for n in range(row_capacity):
            value, some = A(0), False
            for m in range(down):
                t = (r - top) // sh - m
                if t >= 0 and t < reach and r - top - t * sh < kh:
                    value, some = (
                        A(value + ys[start + t * capacity + n]) if some else ys[start + t * capacity + n],
                        True,
                    )
            given[n] = value
        for c in range(wide):
            for e in range(lanes):
                value, some = A(0), False
                for m in range(across):
                    u = (c - left) // sw - m
                    if u >= 0 and u < windows and c - left - u * sw < kw:
                        value, some = A(value + given[u * lanes + e]) if some else given[u * lanes + e], True
                total[c * lanes + e] = value

    return add


def planes_of(config: TilesConfig) -> list[tuple[list[int], list[int]]]:
    """The planes of a strip of the image that the same planes of windows see: (numbers of windows' planes, image's)."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for z in range(config.stride[0]):
        seen = (m for m in range(config.many_planes) if 0 <= z - config.start(0, m) < config.window[0])
        groups.setdefault(tuple(seen), []).append(z)
    return [(list(seen), planes) for seen, planes in groups.items()]


def gatherer(dtype: str, acc: str, config: TilesConfig, m: int) -> Any:
    """``gather(state)``: of the tile's planes of windows up to the m-th, their shares into the sums of each group of planes."""
    (kd, kh, kw), (sd, sh, sw), (pd, ph, pw) = config.window, config.stride, config.pad
    A, size, lanes, columns, rows = ACCUMULATOR[acc], ITEMSIZE[dtype], config.lanes, config.columns, config.rows
    piece, past, many_rows = config.y_piece(), config.past_x, config.many_rows
    read, capacity = reader(dtype, acc, lanes, piece, 0.0, True), piece.capacity * lanes
    seen, share = averager(dtype, acc, config)
    o_first, p_first, q_first = (config.first_window(axis) for axis in range(3))
    windows, held, deep = piece.length, many_rows * capacity, o_first + m
    before = gatherer(dtype, acc, config, m - 1) if m else None
    #: where the sums begin that this plane is in, and whether it is the first there
    sums = [(g * held, m == numbers[0]) for g, (numbers, _) in enumerate(planes_of(config)) if m in numbers]

    @device
    def divide(s, state):
        """The row s of windows of the plane."""
        ys, counts, parts, i, H = state
        count, part = seen(i * rows, p_first + s, sh, ph, kh, H, True)
        for u in range(windows):
            for e in range(lanes):
                at = s * capacity + u * lanes + e
                ys[at] = share(ys[at], f32(count * counts[u]), f32(part * parts[u]))

    divide_rows, add_sums = written_out(divide, many_rows), adder_of_planes(acc, held, sums)

    @device
    def gather_plane(state):
        total, dy, group, j, i, o, n, D, H, W, P, Q, deep_out, pitch = state
        ys = cuda.local.array(held, A)
        first, line, windows_plane = i32(i * rows + p_first), pitch * Q, i32(o + deep)
        at = dy + ((i64(n) * deep_out + windows_plane) * P + first) * line + group * (lanes * size)
        for s in range(many_rows):
            p = i32(first + s)
            inside = p >= 0 and p < P and windows_plane >= 0 and windows_plane < deep_out
            read(ys, s * capacity, at + s * line, j, Q, pitch, inside)
        counts = cuda.local.array(windows, f32)
        parts = cuda.local.array(windows, f32)
        count, part = seen(o, deep, sd, pd, kd, D, pd > 0)
        for u in range(windows):
            wide, wide_part = seen(j * columns, q_first + u, sw, pw, kw, W, past)
            counts[u], parts[u] = f32(count * wide), f32(part * wide_part)
        divide_rows((ys, counts, parts, i, H))
        add_sums(total, ys)

    return after(before, gather_plane)


def adder_of_planes(acc: str, held: int, sums: list[tuple[int, bool]]) -> Any:
    """``add(total, ys)``: a plane of windows to each of the ``sums`` (where it begins, whether nothing is there yet)."""
    A = ACCUMULATOR[acc]
    if not sums:

        @device
        def nothing(total, ys):
            pass

        return nothing
    (start, fresh), before = sums[-1], adder_of_planes(acc, held, sums[:-1])

    @device
    def add(total, ys):
        before(total, ys)
        for e in range(held):
            total[start + e] = ys[e] if fresh else A(total[start + e] + ys[e])

    return add


def writer_of_planes(dtype: str, acc: str, config: TilesConfig, groups: list[tuple[list[int], list[int]]]) -> Any:
    """``write(state)``: the planes of the image of each of the ``groups``, of which the last has the last sums."""
    *others, (seen, planes) = groups
    A, size, lanes, (_, sh, sw), rows = ACCUMULATOR[acc], ITEMSIZE[dtype], config.lanes, config.stride, config.rows
    put, add, before = writer(dtype, acc, config), adder(acc, config), None
    capacity, total_capacity, some = config.y_piece().capacity * lanes, config.columns * sw * lanes, bool(seen)
    start, sd, own = len(others) * config.many_rows * capacity, config.stride[0], tuple(planes)
    if others:
        before = writer_of_planes(dtype, acc, config, others)

    @device
    def write(n, state):
        """Row n of the tile."""
        sums, dx, group, j, i, o, plane, D, H, W, pitch = state
        total = cuda.local.array(total_capacity, A)
        if some:
            add(total, sums, start + n // sh * capacity, n % sh)
        else:
            for e in range(total_capacity):
                total[e] = A(0)
        h, line = i32(i * (rows * sh) + n), pitch * W
        at = dx + ((i64(plane) * D + o * sd) * H + h) * line + group * (lanes * size)
        for z in own:
            if o * sd + z < D and h < H:
                put(total, i32(0), at + z * (line * H), j, W, pitch)

    write_rows = written_out(write, rows * sh)
    return after(before, write_rows)


def pool_grad(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """dx from dy; x is not read."""
    A, size, lanes, threads, groups = ACCUMULATOR[acc], ITEMSIZE[dtype], config.lanes, config.threads, planes_of(config)
    gather, write = gatherer(dtype, acc, config, config.many_planes - 1), writer_of_planes(dtype, acc, config, groups)
    locate, sums_capacity = locator(lanes), len(groups) * config.many_rows * config.y_piece().capacity * lanes

    def kernel(x, dy, dx, tiles, by, many, D, H, W, cells, P, Q, deep_out):
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, plane = locate(tile, by, many)
        sums = cuda.local.array(sums_capacity, A)
        pitch = i64(cells) * size if lanes > 1 else i64(size)
        gather((sums, dy, group, j, i, o, plane, D, H, W, P, Q, deep_out, pitch))
        write((sums, dx, group, j, i, o, plane, D, H, W, pitch))

    return kernel
