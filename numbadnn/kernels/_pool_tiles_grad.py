"""The gradient of pooling of packed images, by tiles, in gather form: an element adds up what the windows that see it give.

A thread walks down ``rows`` strips of the image, each ``columns`` strides wide and one high. With every strip one more row
of windows comes into reach: from x, for a maximum, it is found which element each of them chose, and that and the windows'
gradients are kept while strips below still need them. That costs arithmetic at the rims of the tile, and saves the memory
that indices would take. Windows outside the output give nothing; no atomics, one order of summation.
See ``_pool_tiles`` for the layout of images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels._cuda import SIMULATED, cuda, device, i32, i64
from numbadnn.kernels._pool_tiles import INFINITY, divisor, locator, reader
from numbadnn.kernels._ptx import ACCUMULATOR, store, store_vector
from numbadnn.kernels.pool_tiles import TilesConfig
from numbadnn.problem import ITEMSIZE

#: the element type of an array of int32
NUMBER = np.dtype("int32") if SIMULATED else i32


def chooser(acc: str, config: TilesConfig) -> Any:
    """``choose(xs, u, e, first) -> number``: which element of window u of a row is its first maximum, in row-major order.

    Backwards, so that the last to be at least the best so far is the first of equals, and a NaN, always taken, stays until
    an earlier one is. Outside the image x is -inf, which wins only where all is -inf: then ``first`` is right.
    """
    A, lanes, (kd, kh, kw), sw = ACCUMULATOR[acc], config.lanes, config.window, config.stride[2]
    volume, x_row, padded = kd * kh * kw, config.x_piece().room * lanes, config.check_rows or config.check_x

    @device
    def choose(xs, u, e, first):  # type: ignore[no-untyped-def]
        best, found = A(-INFINITY), i32(0)
        for back in range(volume):
            n = volume - 1 - back
            value = xs[(n // kw) * x_row + (u * sw + n % kw) * lanes + e]
            better = (value >= best) | (value != value)
            best = value if better else best
            found = i32(n) if better else found
        if padded:
            found = first if best == A(-INFINITY) else found
        return found

    return choose


def writer(dtype: str, acc: str, config: TilesConfig) -> Any:
    """``put(total, start, row, j, width, cells)``: a row of the tile, from total[start:], as far as it is in the image."""
    size, vec, lanes, wide = ITEMSIZE[dtype], config.vec, config.lanes, config.columns * config.stride[2]
    write1, writev = store(dtype, acc), store_vector(dtype, max(vec, lanes), acc)

    @device
    def put(total, start, row, j, width, cells):  # type: ignore[no-untyped-def]
        if lanes > 1:
            for c in range(wide):
                w = i32(j * wide + c)
                if w < width:
                    writev(total, i32(start + c * lanes), row + i64(w) * cells * size)
        elif vec > 1:
            for m in range(wide // vec):
                w = i32(j * wide + m * vec)
                if w < width:
                    writev(total, i32(start + m * vec), row + i64(w) * size)
        else:
            for c in range(wide):
                w = i32(j * wide + c)
                if w < width:
                    write1(row + i64(w) * size, total[start + c])

    return put


def pool_grad(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """dx from x (for max) and dy."""
    (kd, kh, kw), (sd, sh, sw), (_, ph, pw) = config.window, config.stride, config.pad
    A, size, lanes, columns, rows = ACCUMULATOR[acc], ITEMSIZE[dtype], config.lanes, config.columns, config.rows
    largest, threads, check_rows = config.kind == "max", config.threads, config.check_rows
    x_piece, y_piece, wide = config.x_piece(), config.y_piece(), columns * sw
    read_x, read_y = reader(dtype, acc, lanes, x_piece, -INFINITY), reader(dtype, acc, lanes, y_piece, 0.0)
    locate, divide = locator(lanes), divisor(acc, config)
    choose, put = chooser(acc, config), writer(dtype, acc, config)
    p_first, q_first, reach = config.first_window(1), config.first_window(2), config.window_rows
    top, left = p_first * sh - ph, q_first * sw - pw  # of a strip's windows, from the strip's first element
    windows, x_row = y_piece.length, x_piece.room * lanes
    row_room = windows * lanes
    held, y_room, total_room = kd * kh * x_row if largest else 1, y_piece.room * lanes, sd * sh * wide * lanes
    kept = reach * row_room

    def kernel(x, dy, dx, tiles, groups, across, down, deep, D, H, W, cells, P, Q, deep_out):  # type: ignore[no-untyped-def]
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, plane = locate(tile, groups, across, down, deep)
        xs = cuda.local.array(held, A)
        ys = cuda.local.array(y_room, A)
        total = cuda.local.array(total_room, A)
        shares = cuda.local.array(kept, A)
        chosen = cuda.local.array(kept, NUMBER)
        for e in range(kept):
            shares[e] = A(0)
            chosen[e] = i32(-1)
        for s in range(rows + (reach - 1)):
            strip = i32(i * rows + (s - (reach - 1)))
            p = i32(strip + (p_first + reach - 1))
            there = p >= 0 and p < P and o < deep_out
            line = (i64(plane) * deep_out + (o if there else i32(0))) * P + (p if there else i32(0))
            read_y(ys, 0, dy + (line * Q * cells + group * lanes) * size, j, Q, cells, there)
            h = i32(p * sh - ph)
            if largest:
                for z in range(kd):
                    for r in range(kh):
                        inside = o * sd + z < D and h + r >= 0 and h + r < H if check_rows else True
                        line = (i64(plane) * D + (o * sd + z if inside else i64(0))) * H + (h + r if inside else i64(0))
                        at = x + (line * W * cells + group * lanes) * size
                        read_x(xs, (z * kh + r) * x_row, at, j, W, cells, inside)
            for e in range(kept - row_room):
                shares[e] = shares[e + row_room]
                if largest:
                    chosen[e] = chosen[e + row_room]
            for u in range(windows):
                q = i32(j * columns + (q_first + u))
                w = i32(q * sw - pw)
                first = i32((i32(-h) if h < 0 else i32(0)) * kw + (i32(-w) if w < 0 else i32(0)))
                for e in range(lanes):
                    # rows that a tile does not see beyond the output's may be read unchecked
                    share = divide(ys[u * lanes + e] if there else A(0), o, p, q, D, H, W)
                    shares[kept - row_room + u * lanes + e] = share
                    if largest:
                        chosen[kept - row_room + u * lanes + e] = choose(xs, u, e, first)
            if s >= reach - 1:
                for e in range(total_room):
                    total[e] = A(0)
                for t in range(reach):
                    for u in range(windows):
                        for z in range(kd):
                            for r in range(kh):
                                for k in range(kw):
                                    row, c = top + t * sh + r, left + u * sw + k
                                    if row >= 0 and row < sh and c >= 0 and c < wide:
                                        for e in range(lanes):
                                            at = ((z * sh + row) * wide + c) * lanes + e
                                            share = shares[t * row_room + u * lanes + e]
                                            if largest:
                                                mine = chosen[t * row_room + u * lanes + e] == (z * kh + r) * kw + k
                                                share = share if mine else A(0)
                                            total[at] = A(total[at] + share)
                for z in range(sd):
                    for r in range(sh):
                        d, hr = i32(o * sd + z), i32(strip * sh + r)
                        if d < D and hr < H:
                            at = dx + (((i64(plane) * D + d) * H + hr) * W * cells + group * lanes) * size
                            put(total, (z * sh + r) * wide * lanes, at, j, W, cells)

    return kernel
