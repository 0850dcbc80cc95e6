"""The gradient of maxima of packed images, by tiles, in gather form: an element adds up what the windows that chose it give.

A thread walks down ``rows`` strips of the image, each ``columns`` strides wide and one high. With every strip one more row
of windows comes into reach: from x it is found which element each of them chose, and that and the windows' gradients are kept
while strips below still need them. That costs arithmetic at the rims of the tile, and saves the memory
that indices would take. Windows outside the output give nothing; no atomics, one order of summation.
See ``device/tiles.py`` for the layout of images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, cuda, device, i32, i64
from numbadnn.kernels.pool.device.parts import INFINITY, locator, reader, writer
from numbadnn.kernels.pool.tiles import TilesConfig
from numbadnn.problem import ITEMSIZE

#: the element type of an array of int32
NUMBER = np.dtype("int32") if SIMULATED else i32


def chooser(acc: str, config: TilesConfig) -> Any:
    """``choose(xs, u, e, first) -> number``: which element of window u of a row is its first maximum, in row-major order.

    Backwards, so that the last to be at least the best so far is the first of equals, and a NaN, always taken, stays until
    an earlier one is. Outside the image x is -inf, which wins only where all is -inf: then ``first`` is right.
    """
    A, lanes, (kd, kh, kw), sw = ACCUMULATOR[acc], config.lanes, config.window, config.stride[2]
    volume, x_row, padded = kd * kh * kw, config.x_piece().room * lanes, config.check_rows or config.past_x

    @device
    def choose(xs, u, e, first):
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


def pool_grad(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """dx from x and dy."""
    (kd, kh, kw), (sd, sh, sw), (_, ph, pw) = config.window, config.stride, config.pad
    A, size, lanes, columns, rows = ACCUMULATOR[acc], ITEMSIZE[dtype], config.lanes, config.columns, config.rows
    threads, check_rows, x_piece, y_piece = config.threads, config.check_rows, config.x_piece(), config.y_piece()
    read_x = reader(dtype, acc, lanes, x_piece, -INFINITY, check_rows)
    read_y = reader(dtype, acc, lanes, y_piece, 0.0, True)
    locate, choose, put, wide = locator(lanes), chooser(acc, config), writer(dtype, acc, config), columns * sw
    p_first, q_first, reach = config.first_window(1), config.first_window(2), config.window_rows
    top, left = p_first * sh - ph, q_first * sw - pw  # of a strip's windows, from the strip's first element
    windows, x_row = y_piece.length, x_piece.room * lanes
    row_room = windows * lanes
    held, y_room, total_room = kd * kh * x_row, y_piece.room * lanes, sd * sh * wide * lanes
    kept = reach * row_room

    def kernel(x, dy, dx, tiles, by, many, D, H, W, cells, P, Q, deep_out):
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, plane = locate(tile, by, many)
        xs = cuda.local.array(held, A)
        ys = cuda.local.array(y_room, A)
        total = cuda.local.array(total_room, A)
        shares = cuda.local.array(kept, A)
        chosen = cuda.local.array(kept, NUMBER)
        pitch = i64(cells) * size if lanes > 1 else i64(size)
        line = pitch * W
        for e in range(kept):
            shares[e] = A(0)
            chosen[e] = i32(-1)
        for s in range(rows + (reach - 1)):
            strip = i32(i * rows + (s - (reach - 1)))
            p = i32(strip + (p_first + reach - 1))
            at = dy + ((i64(plane) * deep_out + o) * P + p) * (pitch * Q) + group * (lanes * size)
            read_y(ys, 0, at, j, Q, pitch, p >= 0 and p < P and o < deep_out)
            h = i32(p * sh - ph)
            for z in range(kd):
                at = x + ((i64(plane) * D + (o * sd + z)) * H + h) * line + group * (lanes * size)
                for r in range(kh):
                    inside = o * sd + z < D and h + r >= 0 and h + r < H if check_rows else True
                    read_x(xs, (z * kh + r) * x_row, at + r * line, j, W, pitch, inside)
            for e in range(kept - row_room):
                shares[e] = shares[e + row_room]
                chosen[e] = chosen[e + row_room]
            for u in range(windows):
                w = i32((j * columns + (q_first + u)) * sw - pw)
                first = i32((i32(-h) if h < 0 else i32(0)) * kw + (i32(-w) if w < 0 else i32(0)))
                for e in range(lanes):
                    shares[kept - row_room + u * lanes + e] = ys[u * lanes + e]
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
                                            mine = chosen[t * row_room + u * lanes + e] == (z * kh + r) * kw + k
                                            total[at] = A(total[at] + (share if mine else A(0)))
                for z in range(sd):
                    for r in range(sh):
                        d, hr = i32(o * sd + z), i32(strip * sh + r)
                        if d < D and hr < H:
                            at = dx + ((i64(plane) * D + d) * H + hr) * line + group * (lanes * size)
                            put(total, i32((z * sh + r) * wide * lanes), at, j, W, pitch)

    return kernel
