"""The gradient of max pooling whose windows overlap: each thread walks down some columns, with all that it needs in registers.

At each step one more row of windows is complete: the thread finds their maxima, adds dy to the first element of each window
that equals its maximum (``device/chain.py``), and writes the rows that no later window sees. Windows at the rim of its columns
are looked at by two threads, those above its first row by the thread above, too. Nothing is shared and there are no
atomics; an element adds up its windows in row-major order.

Outside the image stands, for a maximum, what is nearest inside, which each window that leaves the image has, or -inf. To
the right and below it comes after an equal element inside; to the left and above ``give`` knows that it is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.lang.access import store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, WORD, cuda, device, i32, i64, types, u32
from numbadnn.kernels.pool.device.chain import giver, maximizer
from numbadnn.kernels.pool.device.codes import clamped
from numbadnn.kernels.pool.device.columns import LOWEST_WORDS, fetcher, placer, unpacker
from numbadnn.kernels.pool.walk import WalkConfig
from numbadnn.problem import ITEMSIZE

ADDRESS = np.dtype("int64") if SIMULATED else types.int64
#: bits for all accesses of a row
ALL = 2**30 - 1


def writer(dtype: str, acc: str, config: WalkConfig) -> Any:
    """``put(total, start, row, j)``: a row of the thread's columns, the first of them at ``row``, from total[start:]."""
    vec, lanes, pitch, wide = (
        config.vec_dx,
        config.lanes,
        ITEMSIZE[dtype] * config.cells,
        config.spread * config.stride[1],
    )
    width, write = config.image[1], store_vector(dtype, config.vec_dx * config.lanes, acc)
    whole, pieces = width % wide == 0, wide // config.vec_dx

    @device
    def put(total, start, row, j):
        for m in range(pieces):
            if whole or j * wide + m * vec < width:
                write(total, i32(start + m * vec * lanes), row + m * vec * pitch)

    return put


def stepper(dtype: str, acc: str, config: WalkConfig) -> tuple[Any, Any]:
    """(load, begin): what row p of windows is the first to see, and the rows above; step: its maxima, and the strip it ends."""
    (kh, _), (sh, sw), ph, lanes, ahead = config.window, config.stride, config.pad[0], config.lanes, config.ahead
    x, y, (H, W), (P, Q), pitch = config.x, config.y, config.image, config.outputs, ITEMSIZE[dtype] * config.cells
    line, line_y = W * pitch, Q * pitch
    size, carried, fresh, warm = ITEMSIZE[dtype], max(0, kh - sh), min(kh, sh), config.warm
    words, rows, x_row, t_row = x.words(size), max(kh, sh), x.length * lanes, config.spread * sw * lanes
    fetch, fetch_y, put = fetcher(x, size), fetcher(y, size), writer(dtype, acc, config)
    # one column outside is read from the nearest inside, which a window that leaves the image has
    checked = [v > 1 and x.leaves(c, v) for c, v in x.pieces]
    unpack = unpacker(dtype, acc, x, LOWEST_WORDS[dtype], checked, False)
    unpack_y = unpacker(dtype, acc, y, (0,), [True] * len(y.pieces), True)
    maxima, give, A, many = maximizer(config), giver(acc, config), ACCUMULATOR[acc], config.windows * lanes
    kept_x, kept_t, moved_x, moved_t = carried * x_row, (rows - sh) * t_row, sh * x_row, sh * t_row
    capacity_t, first, x_step = rows * t_row, x.first, x.step

    @device
    def load(raw, raw_y, bases, bases_y, p):
        for r in range(fresh):
            h = clamped(i32(p * sh + (carried - ph) + r), i32(H))
            fetch(raw, i32(r * words), bases, i64(h) * line)
        fetch_y(raw_y, i32(0), bases_y, i64(clamped(p, i32(P))) * line_y)

    @device
    def begin(xs, raw, bases, outside, p):
        for r in range(carried):
            fetch(raw, i32(0), bases, i64(clamped(i32(p * sh - ph + r), i32(H))) * line)
            unpack(xs, i32(r * x_row), raw, i32(0), outside)

    @device
    def step(xs, total, raw, raw_y, bases, bases_y, outside, outside_y, dx, j, p, n, count):
        best = cuda.local.array(many, A)
        shares = cuda.local.array(many, A)
        if not ahead:
            load(raw, raw_y, bases, bases_y, p)
        for r in range(fresh):
            unpack(xs, i32((carried + r) * x_row), raw, i32(r * words), outside)
        unpack_y(shares, i32(0), raw_y, i32(0), outside_y if p >= 0 and p < P else i32(ALL))
        if ahead and n + 1 < count:
            load(raw, raw_y, bases, bases_y, i32(p + 1))
        h = i32(p * sh - ph)
        maxima(best, xs)
        give(total, xs, best, shares, i32(-h), i32(-(j * x_step + first)))
        # n < count always holds, and range below has its step: without them the loop ran at 70 % of a copy in 16 bits, not 76
        for r in range(sh):
            if n >= warm and n < count and h + r >= 0 and h + r < H:
                put(total, i32(r * t_row), dx + i64(h + r) * line, j)
        for e in range(kept_x):
            xs[e] = xs[e + moved_x]
        for e in range(kept_t):
            total[e] = total[e + moved_t]
        for e in range(kept_t, capacity_t):
            total[e] = A(0)

    return (load, begin), step


def part(config: WalkConfig, size: int) -> Any:
    """``part_of(unit) -> (bytes to the lanes, number of the columns, first strip, number of the image)`` of a thread."""
    groups, across, down, drop = config.cells // config.lanes, config.across, config.down, config.drop
    lane_bytes = config.lanes * size

    @device
    def part_of(unit):
        rest = u32(unit)
        outer = u32(rest // u32(groups))
        offset, rest = i32(rest - outer * u32(groups)) * lane_bytes, outer
        outer = u32(rest // u32(across))
        j, rest = i32(rest - outer * u32(across)), outer
        outer = u32(rest // u32(down))
        return offset, j, i32(i32(rest - outer * u32(down)) * drop), outer

    return part_of


def pool_grad(dtype: str, acc: str, config: WalkConfig) -> Callable[..., None]:
    """dx from x and dy."""
    (load, begin), step = stepper(dtype, acc, config)
    A, x, y, size, cells, threads = ACCUMULATOR[acc], config.x, config.y, ITEMSIZE[dtype], config.cells, config.threads
    pitch, (kh, _), (sh, sw), lanes = size * cells, config.window, config.stride, config.lanes
    place, place_y, pieces, pieces_y = placer(x, pitch), placer(y, pitch), len(x.pieces), len(y.pieces)
    capacity_x, capacity_t = kh * x.length * lanes, max(kh, sh) * config.spread * sw * lanes
    capacity_raw, capacity_raw_y = min(kh, sh) * x.words(size), y.words(size)
    part_of, drop = part(config, size), config.drop
    strip, strips, wide, warm, ahead = config.strip, config.strips, config.spread * sw, config.warm, config.ahead
    x_image, y_image = (pitch * math.prod(n) for n in (config.image, config.outputs))

    def kernel(x, dy, dx, units):
        unit = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if unit >= units:
            return
        offset, j, s, outer = part_of(u32(unit))
        plane = i64(outer)
        xs = cuda.local.array(capacity_x, A)
        total = cuda.local.array(capacity_t, A)
        raw = cuda.local.array(capacity_raw, WORD)
        raw_y = cuda.local.array(capacity_raw_y, WORD)
        bases = cuda.local.array(pieces, ADDRESS)
        bases_y = cuda.local.array(pieces_y, ADDRESS)
        outside = place(bases, x + plane * x_image + offset, j)
        outside_y = place_y(bases_y, dy + plane * y_image + offset, j)
        dx = dx + plane * x_image + offset + i64(j * wide) * pitch
        first, count = i32(strip + s - warm), i32(min(drop, strips - s) + warm)
        begin(xs, raw, bases, outside, first)
        for e in range(capacity_t):
            total[e] = A(0)
        if ahead:
            load(raw, raw_y, bases, bases_y, first)
        for strip_number in range(0, count, 1):
            n = i32(strip_number)
            step(xs, total, raw, raw_y, bases, bases_y, outside, outside_y, dx, j, i32(first + n), n, count)

    return kernel
