"""The first half of ``device/argmax.py``: a thread walks down some columns of windows and leaves the place of each one's maximum.

Codes count from the last element of a window: larger is earlier. 16-bit numbers are compared as keys (``device/keys.py``) that
hold their code; others as they are, from the last element on, so that the last to be at least the best so far is the first
of equals, and a NaN, always taken, stays until an earlier one is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, cuda, device, i32, i64
from numbadnn.kernels.pool.argmax import ArgmaxConfig
from numbadnn.kernels.pool.device.keys import LOWEST_KEY, clamped, load_keys, load_values, pack_codes
from numbadnn.kernels.pool.tiles import Piece
from numbadnn.problem import ITEMSIZE

INFINITY = float("inf")
NUMBER = np.dtype("int32") if SIMULATED else i32


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
    def read(values, row, j):
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
    def row(best, codes, slot, xs, inside):
        for u in range(columns):
            for e in range(lanes):
                key = xs[u * sw * lanes + e]
                for k in range(1, kw):
                    other = xs[(u * sw + k) * lanes + e]
                    key = key if key > other else other
                best[slot * many + u * lanes + e] = key if inside else i32(LOWEST_KEY)

    @device
    def window(best, codes, out, u, first, start):
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
    def row(best, codes, slot, xs, inside):
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
    def window(best, codes, out, u, first, start):
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
    def read_row(best, codes, slot, x, h, j):
        xs = cuda.local.array(room, kind)
        read(xs, x + i64(clamped(h, i32(H))) * line, j)
        row(best, codes, slot, xs, h >= 0 and h < H)

    @device
    def look(shared, x, p, j, at):
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
