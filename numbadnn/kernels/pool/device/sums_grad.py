"""The gradient of sums and averages of packed images, by tiles, in gather form: an element adds up what its windows give.

A thread makes ``rows`` strips of the image, each ``columns`` strides wide and one high, of the windows' rows that reach them,
which it reads all at once. A row of the image adds up the rows of windows that see it first, then the columns of their sum.
Windows outside the output give nothing. See ``device/tiles.py`` for the layout of images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, f32, i32, i64
from numbadnn.kernels.pool.device.parts import averager, locator, reader, writer, written_out
from numbadnn.kernels.pool.tiles import TilesConfig
from numbadnn.problem import ITEMSIZE


def adder(acc: str, config: TilesConfig) -> Any:
    """``add(total, ys, start, r)``: row r of a strip from the shares ys[start:] of the rows of windows that reach the strip."""
    A, lanes, windows, wide = ACCUMULATOR[acc], config.lanes, config.y_piece().length, config.columns * config.stride[2]
    (_, kh, kw), (_, sh, sw), (_, ph, pw) = config.window, config.stride, config.pad
    # of the strip's windows, from the strip
    top, left = config.first_window(1) * sh - ph, config.first_window(2) * sw - pw
    room, row_room, reach = config.y_piece().room * lanes, windows * lanes, config.window_rows
    down, across = -(-kh // sh), -(-kw // sw)

    @device
    def add(total, ys, start, r):
        given = cuda.local.array(row_room, A)
        for n in range(row_room):
            value, some = A(0), False
            for m in range(down):
                t = (r - top) // sh - m
                if t >= 0 and t < reach and r - top - t * sh < kh:
                    value, some = A(value + ys[start + t * room + n]) if some else ys[start + t * room + n], True
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


def pool_grad(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """dx from dy; x is not read."""
    (kd, kh, kw), (sd, sh, sw), (pd, ph, pw) = config.window, config.stride, config.pad
    A, size, lanes, columns, rows = ACCUMULATOR[acc], ITEMSIZE[dtype], config.lanes, config.columns, config.rows
    piece, past, threads, many_rows = config.y_piece(), config.past_x, config.threads, rows + config.window_rows - 1
    read, room, put = reader(dtype, acc, lanes, piece, 0.0, True), piece.room * lanes, writer(dtype, acc, config)
    locate, (seen, share), add = locator(lanes), averager(dtype, acc, config), adder(acc, config)
    p_first, q_first, windows, total_room = (
        config.first_window(1),
        config.first_window(2),
        piece.length,
        columns * sw * lanes,
    )
    held = many_rows * room

    @device
    def divide(s, state):
        """The row s of windows of the tile."""
        ys, counts, parts, i, H = state
        count, part = seen(i * rows, p_first + s, sh, ph, kh, H, True)
        for u in range(windows):
            for e in range(lanes):
                at = s * room + u * lanes + e
                ys[at] = share(ys[at], f32(count * counts[u]), f32(part * parts[u]))

    @device
    def write(strip, state):
        ys, at, plane, pitch, line, o, i, j, D, H, W = state
        total = cuda.local.array(total_room, A)
        for r in range(sh):
            add(total, ys, strip * room, r)
            h = i32((i * rows + strip) * sh + r)
            for z in range(sd):
                for n in range(total_room):
                    total[n] = total[n] if z < kd else A(0)
                if o * sd + z < D and h < H:
                    put(total, i32(0), at + z * plane + (strip * sh + r) * line, j, W, pitch)

    divide_rows, write_strips = written_out(divide, many_rows), written_out(write, rows)

    def kernel(x, dy, dx, tiles, by, many, D, H, W, cells, P, Q, deep_out):
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, n = locate(tile, by, many)
        ys = cuda.local.array(held, A)
        pitch = i64(cells) * size if lanes > 1 else i64(size)
        first, line = i32(i * rows + p_first), pitch * Q
        at = dy + ((i64(n) * deep_out + o) * P + first) * line + group * (lanes * size)
        for s in range(many_rows):
            p = i32(first + s)
            read(ys, s * room, at + s * line, j, Q, pitch, p >= 0 and p < P and o < deep_out)
        counts = cuda.local.array(windows, f32)
        parts = cuda.local.array(windows, f32)
        count, part = seen(o, 0, sd, pd, kd, D, False)  # there is no padding in depth
        for u in range(windows):
            wide, wide_part = seen(j * columns, q_first + u, sw, pw, kw, W, past)
            counts[u], parts[u] = f32(count * wide), f32(part * wide_part)
        divide_rows((ys, counts, parts, i, H))
        line = pitch * W
        at = dx + ((i64(n) * D + o * sd) * H + i * (rows * sh)) * line + group * (lanes * size)
        write_strips((ys, at, line * H, pitch, line, o, i, j, D, H, W))

    return kernel
