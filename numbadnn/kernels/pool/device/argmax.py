"""The gradient of max pooling whose windows overlap: each window is looked at once, by the block that needs it.

A block first walks its windows: a thread goes down a few columns of them, reads each row of x once, keeps the first maximum
of each window's part of the row, joins those of the rows a window has, and leaves the place of the maximum as a byte in
shared memory. Then it walks its elements: a thread goes down a few columns, keeps the codes and dy of the windows that
reach them, and adds up, in row-major order, the dy of those whose code names the element. Windows at the rim of the
block's tile are looked at by two blocks. No atomics, one order of summation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.lang.access import store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, WORD, cuda, device, i32, i64, types, u32
from numbadnn.kernels.pool.argmax import ArgmaxConfig, tiles
from numbadnn.kernels.pool.device.argmax_windows import loads, looker, reader
from numbadnn.kernels.pool.device.keys import add_where, clamped
from numbadnn.problem import ITEMSIZE

BYTE = np.dtype("uint8") if SIMULATED else types.uint8
#: the code of no element
NOWHERE = 0xFFFFFFFF


def adder(dtype: str, acc: str, config: ArgmaxConfig) -> Any:
    """``add(shared, dy, dx, ...)``: the elements of one thread, ``spread`` cells side by side and ``drop`` down."""
    (kh, kw), (sh, sw), (ph, pw) = config.window, config.stride, config.pad
    A, size, lanes, spread, drop = ACCUMULATOR[acc], ITEMSIZE[dtype], config.lanes, config.spread, config.drop
    piece, (tall, wide), reach, strips = config.y_piece, config.made, config.reach(0), config.strips
    p_low, q_low, across, vec = config.low(0), config.low(1), spread * sw, config.vec_dx
    read1, readv = loads(dtype, acc, lanes, piece.vec)
    (H, W), (P, Q), cells = config.image, config.outputs, config.cells
    pitch, line_x, line_y = cells * size, W * cells * size, Q * cells * size
    read = reader(read1, readv, pitch, lanes, piece, config.right_y, Q, None)
    writev, plus = store_vector(dtype, vec * lanes, acc), add_where(acc)
    windows, words, y_row, right = piece.length, max(1, lanes // 4), piece.room * lanes, config.right_y
    word_row, single, top, left = windows * words, lanes == 1, p_low * sh - ph, q_low * sw - pw
    total_room, y_kept, words_kept = across * lanes, reach * y_row, reach * word_row
    whole = W % (config.across * sw) + config.across % spread + H % (strips * sh) + strips % drop == 0

    @device
    def take(shares, codes, slot, shared, dy, p, q0, row, column, base, jj):
        ys = cuda.local.array(y_row, A)
        read(ys, dy + i64(clamped(p, i32(P))) * line_y, jj)
        for n in range(y_row):
            shares[slot * y_row + n] = ys[n]
        there = p >= 0 and p < P
        line = i32(base + clamped(row, i32(tall)) * wide)
        for u in range(windows):
            q, at = i32(q0 + u), i32(column + u)
            here = there
            if q_low + u < 0 or u >= right:
                here = there and q >= 0 and q < Q
                at = clamped(at, i32(wide))
            for n in range(words):
                code = u32(shared[i32((line + at) * words + n)])
                codes[slot * word_row + u * words + n] = code if here else u32(NOWHERE)

    @device
    def part(shares, codes, total, shared, dy, dx, i0, s0, s, jj, p_first, q0, column, base, inner):
        """One more row of windows, and the strip for which it was missing."""
        p = i32(i0 + s0 + s + (p_low + reach - 1))
        slot = (inner + reach - 1) % reach
        take(shares, codes, slot, shared, dy, p, q0, i32(p - p_first), column, base, jj)
        if s >= 0:
            for r in range(sh):
                for e in range(total_room):
                    total[e] = A(0)
                for t in range(reach):
                    for u in range(windows):
                        for k in range(kw):
                            n, c = r - top - t * sh, left + u * sw + k
                            if n >= 0 and n < kh and c >= 0 and c < across:
                                number, held = kh * kw - 1 - (n * kw + k), (inner + t) % reach
                                for e in range(lanes):
                                    bits, at = 8 * (e % 4), c * lanes + e
                                    word = codes[held * word_row + u * words + e // 4]
                                    field = u32(word) if single else u32(word & (255 << bits))
                                    share = shares[held * y_row + u * lanes + e]
                                    total[at] = plus(total[at], share, field, u32(number << bits))
                if whole or ((i0 + s0 + s) * sh + r < H and s0 + s < strips):
                    for m in range(across // vec):
                        if whole or jj * across + m * vec < W:
                            writev(
                                total,
                                i32(m * vec * lanes),
                                dx + (i64(s) * (sh * line_x) + (r * line_x + m * vec * pitch)),
                            )

    # one part a slot: a loop this long is not unrolled, and slots would not be registers
    @device
    def few_parts(shares, codes, total, shared, dy, dx, i0, s0, s, jj, p_first, q0, column, base):
        for inner in range(reach):
            part(shares, codes, total, shared, dy, dx, i0, s0, i32(s + inner), jj, p_first, q0, column, base, inner)

    @device
    def two_parts(shares, codes, total, shared, dy, dx, i0, s0, s, jj, p_first, q0, column, base):
        part(shares, codes, total, shared, dy, dx, i0, s0, s, jj, p_first, q0, column, base, 0)
        part(shares, codes, total, shared, dy, dx, i0, s0, i32(s + 1), jj, p_first, q0, column, base, 1)

    @device
    def three_parts(shares, codes, total, shared, dy, dx, i0, s0, s, jj, p_first, q0, column, base):
        part(shares, codes, total, shared, dy, dx, i0, s0, s, jj, p_first, q0, column, base, 0)
        part(shares, codes, total, shared, dy, dx, i0, s0, i32(s + 1), jj, p_first, q0, column, base, 1)
        part(shares, codes, total, shared, dy, dx, i0, s0, i32(s + 2), jj, p_first, q0, column, base, 2)

    parts = three_parts if reach == 3 else (two_parts if reach == 2 and lanes > 1 else few_parts)

    @device
    def add(shared, dy, dx, i0, s0, jj, p_first, q_first, base):
        shares = cuda.local.array(y_kept, A)
        codes = cuda.local.array(words_kept, WORD)
        total = cuda.local.array(total_room, A)
        q0 = i32(jj * spread + q_low)
        column = i32(q0 - q_first)
        dy = dy + i64(q0) * pitch
        dx = dx + i64(i0 + s0) * (sh * line_x) + i64(jj * across) * pitch
        # once more, before the first strip, for the windows above it
        for outer in range(-1, drop // reach):
            parts(shares, codes, total, shared, dy, dx, i0, s0, i32(outer * reach), jj, p_first, q0, column, base)

    return add


def pool_grad(dtype: str, acc: str, config: ArgmaxConfig) -> Callable[..., None]:
    """dx from x and dy."""
    group, lanes, last, threads = config.group, config.lanes, config.last, config.threads
    (tall1, wide1), (tall2, wide2) = config.chunks
    (rows, wide), strips, across, walk, drop = config.made, config.strips, config.across, config.walk, config.drop
    per_group, columns, spread, (p_rel, q_rel) = rows * wide, config.columns, config.spread, config.first
    look, add = looker(dtype, acc, config), adder(dtype, acc, config)
    room, element = per_group * group * max(1, lanes // 4), BYTE if lanes == 1 else WORD
    units1, units2 = tall1 * wide1 * group, tall2 * wide2 * group
    j_tile, jj_tile, (down, over) = across // columns, across // spread, tiles(config)
    size, cells = ITEMSIZE[dtype], config.cells
    x_image, y_image = (size * cells * math.prod(n) for n in (config.image, config.outputs))

    def kernel(x, dy, dx, groups, parts):
        shared = cuda.shared.array(room, element)
        tile = u32(cuda.blockIdx.x)
        outer = u32(tile // u32(parts))
        g0, tile = i32(i32(tile - outer * u32(parts)) * group), outer
        outer = u32(tile // u32(over))
        J, tile = i32(tile - outer * u32(over)), outer
        outer = u32(tile // u32(down))
        I, n = i32(tile - outer * u32(down)), i32(outer)
        p_first, q_first = i32(I * strips + p_rel), i32(J * across + q_rel)
        for unit in range(cuda.threadIdx.x, units1, threads):
            rest = u32(unit)
            g = u32(rest % u32(group) if last else rest // u32(wide1 * tall1))
            rest = u32(rest // u32(group) if last else rest - g * u32(wide1 * tall1))
            chunk = i32(rest // u32(wide1))
            g, j = i32(g), i32(rest - u32(chunk) * u32(wide1))
            mine = i32(g0 + g)
            if mine < groups:
                plane, offset = (n, mine * (lanes * size)) if last else (mine, 0)
                at = i32(g * per_group + chunk * walk * wide + j * columns)
                p, jg = i32(p_first + chunk * walk), i32(J * j_tile + j)
                look(shared, x + i64(plane) * x_image + offset, p, jg, at)
        cuda.syncthreads()
        for unit in range(cuda.threadIdx.x, units2, threads):
            rest = u32(unit)
            g = u32(rest % u32(group) if last else rest // u32(wide2 * tall2))
            rest = u32(rest // u32(group) if last else rest - g * u32(wide2 * tall2))
            chunk = i32(rest // u32(wide2))
            g, j = i32(g), i32(rest - u32(chunk) * u32(wide2))
            mine = i32(g0 + g)
            if mine < groups:
                plane, offset = (n, mine * (lanes * size)) if last else (mine, 0)
                jg, base = i32(J * jj_tile + j), i32(g * per_group)
                i0, s0 = i32(I * strips), i32(chunk * drop)
                dy_image, dx_image = dy + i64(plane) * y_image + offset, dx + i64(plane) * x_image + offset
                add(shared, dy_image, dx_image, i0, s0, jg, p_first, q_first, base)

    return kernel
