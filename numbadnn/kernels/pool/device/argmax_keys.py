"""Which element of each window of 16-bit numbers is its first maximum: one integer maximum finds value and place.

An element becomes a key: an int32 whose upper half orders as the number does (NaN above all, -0 as 0) and whose lower half is
larger for earlier places of the tile. As ``device/argmax.py`` otherwise; what lies outside the image is what is nearest inside,
as ``device/pairs.py`` reads it, at a place that counts as later than all of a window's inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.lang.cuda import SIMULATED, WORD, cuda, i32, i64
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _I32, _asm
from numbadnn.kernels.pool.device.argmax import putter
from numbadnn.kernels.pool.device.codes import CODE, clamped
from numbadnn.kernels.pool.device.pairs import SIZE, places, reader
from numbadnn.kernels.pool.device.parts import locator
from numbadnn.kernels.pool.tiles import TilesConfig

#: below every key; the lower half of the tile's first element
LOWEST, FIRST = -(2**31), 0x7FFF
#: how much later a place before the image is, in each axis: a tile has fewer places
LATER = (0x4000, 0x2000, 0x1000)
#: x + 0, which turns -0 into 0 and every NaN into 0x7fff
_PLUS_ZERO = {
    "float16": "add.rn.f16x2 $0, $1, $2;",
    "bfloat16": "{.reg .b32 one; mov.b32 one, 0x3f803f80; fma.rn.bf16x2 $0, $1, one, $2;}",
}
_NAN = {"float16": 0x7C00, "bfloat16": 0x7F80}  # magnitudes above are NaN


def _permute(builder: Any, a: Any, b: Any, selector: int) -> Any:
    """A word of four of the eight bytes of a and b."""
    return _asm(builder, f"prmt.b32 $0, $1, $2, {selector:#x};", "=r,r,r", _I32, [a, b])


def _ordered(builder: Any, word: Any, dtype: str) -> Any:
    """Two 16-bit floats as two signed 16-bit integers of the same order."""
    plain = _asm(builder, _PLUS_ZERO[dtype], "=r,r,r", _I32, [word, _I32(0)])
    sign = _permute(builder, plain, plain, 0xBB99)
    return builder.xor(plain, builder.and_(sign, _I32(0x7FFF7FFF)))


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed(">", a, b), a, b)


def _spots(config: TilesConfig) -> tuple[list[list[tuple[int, int]]], int]:
    """(word, half) of each lane of each column of a row, and how many words a row has."""
    lanes, per_column = config.lanes, config.lanes // 2
    if lanes == 1:
        found = places(config.x_piece())
        return [[spot] for spot in found], max(found)[0] + 1
    many = config.x_piece().length
    return [[(c * per_column + e // 2, e % 2) for e in range(lanes)] for c in range(many)], many * per_column


def looker(dtype: str, config: TilesConfig) -> Callable[..., None]:
    """``look(best, words, plane, h, w)``: the windows' keys so far, joined with those of a plane whose first code is ``plane``.

    h, w: where the first window begins.
    """
    (_, kh, kw), (_, sh, sw), (_, ph, pw) = config.window, config.stride, config.pad
    tall, columns, length = config.x_rows, config.columns, config.x_piece().length
    rows, lanes, (spots, room) = config.rows, config.lanes, _spots(config)
    if SIMULATED:

        def twin(best, words, plane, h, w):
            bits = words.copy().view(np.uint16).astype(np.int64)
            magnitude = bits & 0x7FFF
            value = np.where(bits > 0x7FFF, -magnitude - (magnitude > 0), magnitude)
            value = np.where(magnitude > _NAN[dtype], 0x7FFF, value)
            for n in range(rows * columns * lanes):
                p, q, e = n // (columns * lanes), n // lanes % columns, n % lanes
                for code in range(kh * kw):
                    t, c = p * sh + code // kw, q * sw + code % kw
                    word, half = spots[c][e]
                    late = LATER[1] * (h + t < 0) + LATER[2] * (w + c < 0)
                    key = value[2 * (t * room + word) + half] * 65536 + FIRST - t * kw - c - plane - late
                    best[n] = max(best[n], key)

        return twin

    @emitted(None, ARRAY, ARRAY, i32, i32, i32)
    def look(builder, best, words, plane, h, w):
        zero = _I32(0)

        def placed(code, before, start, late):
            """``code``, of a place that may be ``before`` the image."""
            if not before:
                return _I32(code)
            return builder.select(builder.icmp_signed("<", start, zero), _I32(code + late), _I32(code))

        def at(start, n):
            return builder.add(start, _I32(n))

        numbers = [builder.sub(_I32(FIRST), placed(c, c < pw, at(w, c), LATER[2])) for c in range(length)]

        def of_row(t):
            pairs = [_ordered(builder, words.get(zero, t * room + n), dtype) for n in range(room)]

            def key(c, e):
                word, half = spots[c][e]
                if half:
                    return builder.or_(builder.and_(pairs[word], _I32(0xFFFF0000)), numbers[c])
                return _permute(builder, pairs[word], numbers[c], 0x1054)

            keys, row = (
                [[key(c, e) for e in range(lanes)] for c in range(length)],
                placed(t * kw, t < ph, at(h, t), LATER[1]),
            )
            for q in range(columns):
                for e in range(lanes):
                    seen = [keys[q * sw + k][e] for k in range(kw)]
                    yield builder.sub(functools.reduce(functools.partial(_larger, builder), seen), row)

        tops = [list(of_row(t)) for t in range(tall)]
        for p in range(rows):
            for n in range(columns * lanes):
                seen = [tops[p * sh + r][n] for r in range(kh)]
                top = functools.reduce(functools.partial(_larger, builder), seen)
                to = p * columns * lanes + n
                best.put(zero, to, _larger(builder, best.get(zero, to), builder.sub(top, plane)))

    return look


def finder(config: TilesConfig) -> Callable[..., None]:
    """``find(found, best)``: the codes of keys."""
    kw, (_, sh, sw), lanes = config.window[2], config.stride, config.lanes
    starts = [p * sh * kw + q * sw for p in range(config.rows) for q in range(config.columns) for _ in range(lanes)]
    if SIMULATED:

        def twin(found, best):
            found[:] = FIRST - (best & 0xFFFF) - np.array(starts)

        return twin

    @emitted(None, ARRAY, ARRAY)
    def find(builder, found, best):
        for n, start in enumerate(starts):
            low = builder.and_(best.get(_I32(0), n), _I32(0xFFFF))
            found.put(_I32(0), n, builder.sub(_I32(FIRST - start), low))

    return find


def choose(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """codes from x."""
    (kd, kh, kw), (sd, sh, sw), (pd, ph, pw) = config.window, config.stride, config.pad
    lanes, columns, rows, tall, check_rows = config.lanes, config.columns, config.rows, config.x_rows, config.check_rows
    read, look, find, put_codes = (
        reader(dtype, lanes, config.x_piece()),
        looker(dtype, config),
        finder(config),
        putter(config),
    )
    locate, room, threads, made = locator(lanes), _spots(config)[1], config.threads, rows * columns * lanes
    held, late = tall * room, LATER[0]

    def kernel(x, codes, tiles, by, many, D, H, W, cells, P, Q):
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, n = locate(tile, by, many)
        words = cuda.local.array(held, WORD)
        best = cuda.local.array(made, CODE)
        found = cuda.local.array(made, CODE)
        for e in range(made):
            best[e] = i32(LOWEST)
        pitch = i64(cells * SIZE)
        line, top = pitch * W, i32(i * (rows * sh) - ph)
        for z in range(kd):
            d = i32(o * sd + (z - pd))
            first = i32(z * (kh * kw) + (late if d < 0 else 0))
            d = clamped(d, D) if check_rows else d
            plane = x + (i64(n) * D + d) * H * line + group * (lanes * SIZE)
            at = plane + top * line
            for r in range(tall):
                row = plane + clamped(i32(top + r), H) * line if check_rows else at + r * line
                read(words, i32(r * room), row, j, W, pitch)
            look(best, words, first, top, i32(j * (columns * sw) - pw))
        find(found, best)
        put_codes(found, codes, group, j, i, i64(n) * many[3] + o, cells, P, Q)

    return kernel
