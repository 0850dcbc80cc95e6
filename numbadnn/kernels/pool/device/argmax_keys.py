"""Find the first maximum of each window of 16-bit numbers: one maximum of integer keys gives value and place at once.

An element becomes a key: an int32 whose upper half orders as the number does (NaN above all, -0 as 0) and whose lower half is
larger for earlier places of the tile. As ``device/argmax.py`` otherwise; what lies outside the image is what is nearest inside,
as ``device/pairs.py`` reads it, at a place that counts as later than all of a window's inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.lang.cuda import SIMULATED, WORD, cuda, device, i32, i64
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _I32, _asm
from numbadnn.kernels.pool.device.argmax import storer
from numbadnn.kernels.pool.device.codes import CODE, clamped
from numbadnn.kernels.pool.device.pairs import SIZE, places, reader
from numbadnn.kernels.pool.device.parts import after, locator
from numbadnn.kernels.pool.tiles_config import TilesConfig

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


def looker(dtype: str, config: TilesConfig, z: int) -> Callable[..., None]:
    """``look(best, words, late, h, w)``: the windows' keys so far, joined with those of plane z of the tile.

    h, w: where the first window begins; ``late``: how much later the plane is than it would be.
    """
    (_, kh, kw), (_, sh, sw), (_, ph, pw) = config.window, config.stride, config.pad
    tall, columns, length = config.x_rows, config.columns, config.x_piece().length
    rows, lanes, (spots, capacity) = config.rows, config.lanes, _spots(config)
    made, (kd, sd) = rows * columns * lanes, (config.window[0], config.stride[0])
    #: the planes of windows that see this one: where their keys begin, the code of their first element here
    seen_by = [(o * made, (z - o * sd) * kh * kw) for o in range(config.deep) if 0 <= z - o * sd < kd]
    if SIMULATED:

        def twin(best, words, late, h, w):
            bits = words.copy().view(np.uint16).astype(np.int64)
            magnitude = bits & 0x7FFF
            value = np.where(bits > 0x7FFF, -magnitude - (magnitude > 0), magnitude)
            value = np.where(magnitude > _NAN[dtype], 0x7FFF, value)
            for n in range(made):
                p, q, e = n // (columns * lanes), n // lanes % columns, n % lanes
                for code in range(kh * kw):
                    t, c = p * sh + code // kw, q * sw + code % kw
                    word, half = spots[c][e]
                    place = t * kw + c + LATER[1] * (h + t < 0) + LATER[2] * (w + c < 0) + late
                    key = value[2 * (t * capacity + word) + half] * 65536 + FIRST - place
                    for start, plane in seen_by:
                        best[start + n] = max(best[start + n], key - plane)

        return twin

    @emitted(None, ARRAY, ARRAY, i32, i32, i32)
    def look(builder, best, words, late, h, w):
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
            pairs = [_ordered(builder, words.get(zero, t * capacity + n), dtype) for n in range(capacity)]

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
                for start, plane in seen_by:
                    to, placed_top = start + p * columns * lanes + n, builder.sub(top, builder.add(late, _I32(plane)))
                    best.put(zero, to, _larger(builder, best.get(zero, to), placed_top))

    return look


def finder(config: TilesConfig) -> Callable[..., None]:
    """``find(found, best)``: the codes of keys."""
    kw, (_, sh, sw), lanes = config.window[2], config.stride, config.lanes
    starts = [p * sh * kw + q * sw for p in range(config.rows) for q in range(config.columns) for _ in range(lanes)]
    starts *= config.deep
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


def walker(dtype: str, config: TilesConfig, z: int) -> Any:
    """``walk(state)``: looks at the planes of the tile up to the z-th."""
    (_, sh, sw), (pd, ph, pw), lanes, tall = config.stride, config.pad, config.lanes, config.x_rows
    read, look, before = reader(dtype, lanes, config.x_piece()), looker(dtype, config, z), None
    if z:
        before = walker(dtype, config, z - 1)
    capacity, check_rows, rows, columns, late = (
        _spots(config)[1],
        config.check_rows,
        config.rows,
        config.columns,
        LATER[0],
    )
    held = tall * capacity

    @device
    def walk_plane(state):
        best, x, group, j, i, first, n, D, H, W, pitch = state
        words = cuda.local.array(held, WORD)
        line, top, d = pitch * W, i32(i * (rows * sh) - ph), i32(first + z)
        later = i32(late if z < pd and d < 0 else 0)
        d = clamped(d, D) if check_rows else d
        plane = x + (i64(n) * D + d) * H * line + group * (lanes * SIZE)
        at = plane + top * line
        for r in range(tall):
            row = plane + clamped(i32(top + r), H) * line if check_rows else at + r * line
            read(words, i32(r * capacity), row, j, W, pitch)
        look(best, words, later, top, i32(j * (columns * sw) - pw))

    return after(before, walk_plane)


def choose(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """codes from x."""
    kd, sd, pd, deep = config.window[0], config.stride[0], config.pad[0], config.deep
    walk, find, put_codes = walker(dtype, config, (deep - 1) * sd + kd - 1), finder(config), storer(config)
    locate, threads, made = locator(config.lanes), config.threads, config.rows * config.columns * config.lanes
    held = deep * made

    def kernel(x, codes, tiles, by, many, D, H, W, cells, P, Q, deep_out):
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, n = locate(tile, by, many)
        best = cuda.local.array(held, CODE)
        found = cuda.local.array(held, CODE)
        for e in range(held):
            best[e] = i32(LOWEST)
        walk((best, x, group, j, i, i32(o * (deep * sd) - pd), n, D, H, W, i64(cells * SIZE)))
        find(found, best)
        for u in range(deep):
            if o * deep + u < deep_out:
                put_codes(found, u * made, codes, group, j, i, i64(n) * deep_out + o * deep + u, cells, P, Q)

    return kernel
