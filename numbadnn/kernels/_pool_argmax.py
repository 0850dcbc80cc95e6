"""The gradient of max pooling whose windows overlap: each window is looked at once, by the block that needs it.

A block first walks its windows: a thread goes down a few columns of them, reads each row of x once, keeps the first maximum
of each window's part of the row, joins those of the rows a window has, and leaves the place of the maximum as a byte in
shared memory. Then it walks its elements: a thread goes down a few columns, keeps the codes and dy of the windows that
reach them, and adds up, in row-major order, the dy of those whose code names the element. Windows at the rim of the
block's tile are looked at by two blocks. No atomics, one order of summation.

Codes count from the last element of a window: larger is earlier. 16-bit numbers are compared as keys (``_pool_keys``) that
hold their code; others as they are, from the last element on, so that the last to be at least the best so far is the first
of equals, and a NaN, always taken, stays until an earlier one is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels._cuda import SIMULATED, cuda, device, i32, i64, types, u32
from numbadnn.kernels._pool_keys import LOWEST_KEY, add_where, clamped, load_keys, load_values, pack_codes
from numbadnn.kernels._ptx import ACCUMULATOR, WORD, store_vector
from numbadnn.kernels.pool_argmax import ArgmaxConfig, tiles
from numbadnn.kernels.pool_tiles import Piece
from numbadnn.problem import ITEMSIZE

INFINITY = float("inf")
NUMBER = np.dtype("int32") if SIMULATED else i32
BYTE = np.dtype("uint8") if SIMULATED else types.uint8
#: the code of no element
NOWHERE = 0xFFFFFFFF


def reader(read1: Any, readv: Any, pitch: int, lanes: int, piece: Piece, right: int, width: int, fill: Any) -> Any:
    """``read(values, row, j)``: a piece's columns, ``row`` being the address of its first in a row of ``width``.

    Columns outside are read from one inside, then become ``fill``, if that is not None. ``read1`` and ``readv`` also get
    the code of a column, which falls by one a column. Columns are ``pitch`` bytes apart.
    """
    first, step, length, head, body, tail = piece.first, piece.step, piece.length, piece.head, piece.body, piece.tail
    vec, wide, last = piece.vec, piece.vec * lanes, piece.length - 1

    singles = head + max(0, length - tail)

    # functions that are inlined cost Numba time: hence no smaller ones
    @device
    def read(values, row, j):  # type: ignore[no-untyped-def]
        for n in range(singles):
            c = n if n < head else n - head + tail
            at, code, to = i32(c * lanes), i32(last - c), row + c * pitch
            if first + c < 0 or c >= right:
                w = i32(j * step + (first + c))
                read1(values, at, to + i64(clamped(w, i32(width)) - w) * pitch, code)
                if fill is not None:
                    inside = w >= 0 and w < width
                    for e in range(lanes):
                        values[c * lanes + e] = values[c * lanes + e] if inside else fill
            else:
                read1(values, at, to, code)
        for m in range(body):
            c = head + m * vec
            w = i32(j * step + (first + c))
            inside = w < width if c + vec > right else True
            more = i64(i32(0) if inside else i32(width - vec - w)) * pitch
            readv(values, i32(c), row + c * pitch + more, i32(last - c))
            if c + vec > right and fill is not None:
                for e in range(wide):
                    values[c + e] = values[c + e] if inside else fill

    return read


def loads(dtype: str, acc: str, lanes: int, vec: int) -> tuple[Any, Any]:
    """Loads of one column and of ``vec``, as values of type ``acc``."""
    return load_values(dtype, lanes, acc), load_values(dtype, vec * lanes, acc)


def by_keys(dtype: str, config: ArgmaxConfig) -> tuple[Any, Any]:
    """``row(best, codes, slot, xs, inside)`` and ``window(best, codes, out, u, first, start)`` for 16-bit numbers.

    The first makes one maximum of each window's part of a row, the second joins a window's rows, the
    first of them in slot ``start``, into out[:lanes].
    """
    lanes, columns, (kh, kw), sw = config.lanes, config.columns, config.window, config.stride[1]
    many = columns * lanes

    @device
    def row(best, codes, slot, xs, inside):  # type: ignore[no-untyped-def]
        for u in range(columns):
            for e in range(lanes):
                key = xs[u * sw * lanes + e]
                for k in range(1, kw):
                    other = xs[(u * sw + k) * lanes + e]
                    key = key if key > other else other
                best[slot * many + u * lanes + e] = key if inside else i32(LOWEST_KEY)

    @device
    def window(best, codes, out, u, first, start):  # type: ignore[no-untyped-def]
        for e in range(lanes):
            key = best[(start + kh - 1) % kh * many + u * lanes + e]
            for r in range(kh - 1):
                other = i32(best[(start + r) % kh * many + u * lanes + e] + (kh - 1 - r) * kw)
                key = key if key > other else other
            out[e] = key

    return row, window


def by_values(acc: str, config: ArgmaxConfig) -> tuple[Any, Any]:
    """The same for float32 and float64; ``first`` is the code of a window all of whose elements are -inf."""
    A, lanes, columns, (kh, kw), sw = ACCUMULATOR[acc], config.lanes, config.columns, config.window, config.stride[1]
    many, last, padded = columns * lanes, config.x_piece.length - 1, max(config.pad) > 0

    @device
    def row(best, codes, slot, xs, inside):  # type: ignore[no-untyped-def]
        for u in range(columns):
            for e in range(lanes):
                value, code = xs[(u * sw + kw - 1) * lanes + e], i32(last - (u * sw + kw - 1))
                for back in range(1, kw):
                    c = u * sw + kw - 1 - back
                    other = xs[c * lanes + e]
                    better = (other >= value) | (other != other)
                    value = other if better else value
                    code = i32(last - c) if better else code
                best[slot * many + u * lanes + e] = value if inside else A(-INFINITY)
                codes[slot * many + u * lanes + e] = code

    @device
    def window(best, codes, out, u, first, start):  # type: ignore[no-untyped-def]
        for e in range(lanes):
            at, bottom = u * lanes + e, (start + kh - 1) % kh * many
            value, code = best[bottom + at], codes[bottom + at]
            for back in range(1, kh):
                r = (start + kh - 1 - back) % kh
                other = best[r * many + at]
                better = (other >= value) | (other != other)
                value = other if better else value
                code = i32(codes[r * many + at] + back * kw) if better else code
            if padded:
                code = first if value == A(-INFINITY) else code
            out[e] = code

    return row, window


def looker(dtype: str, acc: str, config: ArgmaxConfig) -> Any:
    """``look(shared, x, ...)``: the windows of one thread, ``columns`` side by side and ``walk`` down."""
    (kh, kw), (sh, sw), ph = config.window, config.stride, config.pad[0]
    lanes, columns, walk, size = config.lanes, config.columns, config.walk, ITEMSIZE[dtype]
    piece, wide, short = config.x_piece, config.made[1], ITEMSIZE[dtype] == 2
    per_word, words = (4 if lanes >= 4 else 2), max(1, lanes // 4)
    if short:
        kind: Any = NUMBER
        fill: Any = LOWEST_KEY if SIMULATED else i32(LOWEST_KEY)
        read1 = load_keys(dtype, lanes, 0)
        readv = load_keys(dtype, piece.vec, 1) if piece.vec > 1 else read1
        row, window = by_keys(dtype, config)
    else:
        kind, fill = ACCUMULATOR[acc], ACCUMULATOR[acc](-INFINITY) if SIMULATED else -INFINITY
        read1, readv = loads(dtype, acc, lanes, piece.vec)
        row, window = by_values(acc, config)
    (H, W), cells = config.image, config.cells
    pitch, line = cells * size, W * cells * size
    read, pack = reader(read1, readv, pitch, lanes, piece, config.right, W, fill), pack_codes(per_word)
    room, kept, carried = piece.room * lanes, kh * columns * lanes, max(0, kh - sh)
    length, piece_first, x_step, period = piece.length, piece.first, piece.step, config.periods[0]
    rotating, carried_room, shift = config.rotating, carried * columns * lanes, sh * columns * lanes

    @device
    def read_row(best, codes, slot, x, h, j):  # type: ignore[no-untyped-def]
        xs = cuda.local.array(room, kind)
        read(xs, x + i64(clamped(h, i32(H))) * line, j)
        row(best, codes, slot, xs, h >= 0 and h < H)

    @device
    def look(shared, x, p, j, at):  # type: ignore[no-untyped-def]
        best = cuda.local.array(kept, kind)
        codes = cuda.local.array(kept, NUMBER)
        out = cuda.local.array(lanes, NUMBER)
        h = i32(p * sh - ph)
        x = x + i64(j * x_step + piece_first) * pitch
        for r in range(carried):
            read_row(best, codes, r, x, i32(h + r), j)
        for outer in range(walk // period):
            for inner in range(period):  # unrolled, so that slots are registers
                start = inner * sh
                for r in range(carried, kh):
                    read_row(best, codes, (start + r) % kh, x, i32(h + r), j)
                for u in range(columns):
                    left = i32(j * (columns * sw) + (u * sw + piece_first))
                    gone = i32((i32(-h) if h < 0 else i32(0)) * kw + (i32(-left) if left < 0 else i32(0)))
                    # of this window's last element, among those of a row of x
                    less = length - 1 - (u * sw + kw - 1)
                    window(best, codes, out, u, i32(kh * kw - 1 + less - gone), start)
                    place = i32(at + (outer * period + inner) * wide + u)
                    if lanes == 1:
                        shared[place] = ((out[0] & 255) - less) & 255
                    else:
                        for n in range(words):
                            shared[i32(place * words + n)] = pack(out, i32(4 * n), i32(less))
                h = i32(h + sh)
                if not rotating:
                    for n in range(carried_room):
                        best[n] = best[n + shift]
                        codes[n] = codes[n + shift]

    return look


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
    def take(shares, codes, slot, shared, dy, p, q0, row, column, base, jj):  # type: ignore[no-untyped-def]
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
    def part(shares, codes, total, shared, dy, dx, i0, s0, s, jj, p_first, q0, column, base, inner):  # type: ignore[no-untyped-def]
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
    def few_parts(shares, codes, total, shared, dy, dx, i0, s0, s, jj, p_first, q0, column, base):  # type: ignore[no-untyped-def]
        for inner in range(reach):
            part(shares, codes, total, shared, dy, dx, i0, s0, i32(s + inner), jj, p_first, q0, column, base, inner)

    @device
    def two_parts(shares, codes, total, shared, dy, dx, i0, s0, s, jj, p_first, q0, column, base):  # type: ignore[no-untyped-def]
        part(shares, codes, total, shared, dy, dx, i0, s0, s, jj, p_first, q0, column, base, 0)
        part(shares, codes, total, shared, dy, dx, i0, s0, i32(s + 1), jj, p_first, q0, column, base, 1)

    @device
    def three_parts(shares, codes, total, shared, dy, dx, i0, s0, s, jj, p_first, q0, column, base):  # type: ignore[no-untyped-def]
        part(shares, codes, total, shared, dy, dx, i0, s0, s, jj, p_first, q0, column, base, 0)
        part(shares, codes, total, shared, dy, dx, i0, s0, i32(s + 1), jj, p_first, q0, column, base, 1)
        part(shares, codes, total, shared, dy, dx, i0, s0, i32(s + 2), jj, p_first, q0, column, base, 2)

    parts = three_parts if reach == 3 else (two_parts if reach == 2 and lanes > 1 else few_parts)

    @device
    def add(shared, dy, dx, i0, s0, jj, p_first, q_first, base):  # type: ignore[no-untyped-def]
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

    def kernel(x, dy, dx, groups, parts):  # type: ignore[no-untyped-def]
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
