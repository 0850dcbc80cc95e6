"""Max pooling of packed images of 16-bit numbers, by tiles, two numbers in each instruction.

As ``device/tiles.py``, but numbers stay as they lie in memory, two in a word, and one instruction has the maxima of
both: first of what stands in one column, row by row, then of neighbouring columns. Where channels are last, both halves
of a word always go the same way; in C order they are neighbouring columns, and one permutation of bytes brings together
what two windows that lie side by side see at the same place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.lang.access import _numpy_type
from numbadnn.kernels.lang.bits import load_bits, store_bits
from numbadnn.kernels.lang.cuda import SIMULATED, WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _I32, _asm
from numbadnn.kernels.lang.packed import load_words, store_words
from numbadnn.kernels.pool.device.codes import clamped
from numbadnn.kernels.pool.device.parts import locator
from numbadnn.kernels.pool.tiles_config import Piece, TilesConfig

#: two numbers that are -inf
LOWEST = {"float16": 0xFC00FC00, "bfloat16": 0xFF80FF80}
KIND = {"float16": "f16x2", "bfloat16": "bf16x2"}
SIZE = 2


def larger_of(builder: Any, a: Any, b: Any, dtype: str) -> Any:
    """The maxima of two pairs, NaN where either is."""
    return _asm(builder, f"max.NaN.{KIND[dtype]} $0, $1, $2;", "=r,r,r", _I32, [a, b])


@functools.cache
def larger(dtype: str) -> Callable[..., Any]:
    """``larger(a, b)``: the maxima of two pairs, NaN where either is."""
    if SIMULATED:

        def twin(a, b):
            one, other = (np.array([w], np.uint32).view(_numpy_type(dtype)) for w in (a, b))
            return np.maximum(one, other).view(np.uint32)[0]

        return twin

    @emitted(u32, u32, u32)
    def instruction(builder, a, b):
        return larger_of(builder, a, b, dtype)

    return instruction


def places(piece: Piece) -> list[tuple[int, int]]:
    """(word, half) of each column of a piece: accesses of one column have a word each."""
    half = piece.vec // 2
    found = [(c, 0) for c in range(piece.head)]
    found += [(piece.head + n // 2, n % 2) for n in range(piece.tail - piece.head)]
    after = piece.head + piece.body * half
    return found + [(after + n, 0) for n in range(max(0, piece.length - piece.tail))]


def across(dtype: str, config: TilesConfig) -> Callable[..., None]:
    """``across(out, to, best, start)``: the maxima over each window's columns of best[start:], a row of columns' maxima."""
    columns, sw, kw, lanes = config.columns, config.stride[2], config.window[2], config.lanes
    where, per_column = places(config.x_piece()), max(1, lanes // 2)
    if SIMULATED:

        def twin(out, to, best, start):
            got = best[start:].copy().view(_numpy_type(dtype))
            if lanes > 1:
                table = got[: len(where) * lanes].reshape(-1, lanes)
            else:
                table = np.array([got[2 * word + half] for word, half in where])[:, None]
            tops = np.array([table[q * sw : q * sw + kw].max(0) for q in range(columns)]).ravel()
            tops = np.append(tops, tops[: tops.size % 2])
            out[to : to + tops.size // 2] = tops.view(np.uint32)

        return twin

    def pairs(builder: Any, word: Any, q: int) -> list[Any]:
        """For each column of windows q and q + 1 (or q alone) the two numbers in one word."""
        found = []
        for k in range(kw):
            (a, x), (b, y) = where[q * sw + k], where[min(q + 1, columns - 1) * sw + k]
            plain = a == b and (x, y) != (1, 0) and x == 0
            selector = (0x7600 if y else 0x5400) | (0x32 if x else 0x10)
            one, other = word(a), word(b)
            found.append(
                one if plain else _asm(builder, f"prmt.b32 $0, $1, $2, {selector:#x};", "=r,r,r", _I32, [one, other])
            )
        return found

    @emitted(None, ARRAY, i32, ARRAY, i32)
    def over_columns(builder, out, to, best, start):
        def word(n):
            return best.get(start, n)

        n = 0
        for q in range(0, columns, 1 if lanes > 1 else 2):
            for e in range(per_column):
                if lanes > 1:
                    seen = [word((q * sw + k) * per_column + e) for k in range(kw)]
                else:
                    seen = pairs(builder, word, q)
                top = functools.reduce(lambda a, b: larger_of(builder, a, b, dtype), seen)
                out.put(to, n, top)
                n += 1

    return over_columns


def reader(dtype: str, lanes: int, piece: Piece) -> Any:
    """``read(words, start, row, j, width, pitch)``: the columns of one row, as words in their ``places`` from words[start:].

    One column outside is read from the nearest inside, which a window that leaves the image has; several together become -inf.
    """
    vec, past, fill = piece.vec, piece.past, LOWEST[dtype]
    first, step, count, head, body, tail = piece.first, piece.step, piece.length, piece.head, piece.body, piece.tail
    half, per_column = max(1, vec // 2), max(1, lanes // 2)
    read1, read_vector, read_cell = load_bits(SIZE), load_words(half), load_words(per_column)
    after, singles = head + body * half, head + max(0, count - tail)

    @device
    def read_columns(words, start, row, j, width, pitch):
        w = i32(j * step + first)
        at = row + i64(w) * SIZE
        for n in range(singles):
            c = n if n < head else n - head + tail
            nearest = row + i64(clamped(i32(w + c), width)) * SIZE if past or first + c < 0 else at + c * SIZE
            words[start + (n if n < head else n - head + after)] = read1(nearest)
        for m in range(body):
            c, to = head + m * vec, start + head + m * half
            ok = w + c < width if past else True
            read_vector(words, i32(to), at + c * SIZE if ok else row)
            if past:
                for e in range(half):
                    words[to + e] = words[to + e] if ok else u32(fill)

    @device
    def read_cells(words, start, row, j, width, pitch):
        w = i32(j * step + first)
        at = row + i64(w) * pitch
        for c in range(count):
            nearest = row + i64(clamped(i32(w + c), width)) * pitch if past or first + c < 0 else at + c * pitch
            read_cell(words, i32(start + c * per_column), nearest)

    return read_cells if lanes > 1 else read_columns


def pool(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """y from x: each row of the tile is read once and joins every output row whose windows it is in."""
    (kd, kh, _), (sd, sh, _), (pd, ph, _) = config.window, config.stride, config.pad
    lanes, columns, rows, piece = config.lanes, config.columns, config.rows, config.x_piece()
    whole, check_rows, threads = config.whole, config.check_rows, config.threads
    read, join, over_columns, locate = reader(dtype, lanes, piece), larger(dtype), across(dtype, config), locator(lanes)
    per_column = max(1, lanes // 2)
    capacity = piece.length * per_column if lanes > 1 else max(places(piece))[0] + 1
    kept, made = rows * capacity, columns * per_column if lanes > 1 else (columns + 1) // 2
    write1, write = store_bits(SIZE), store_words(per_column if lanes > 1 else made)
    tall, in_words = (rows - 1) * sh + kh, columns % 2 == 0
    held = tall * capacity

    def kernel(x, y, tiles, by, many, D, H, W, cells, P, Q):
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, n = locate(tile, by, many)
        words = cuda.local.array(held, WORD)
        best = cuda.local.array(kept, WORD)
        out = cuda.local.array(made, WORD)
        pitch = i64(cells * SIZE)
        line, top = pitch * W, i32(i * (rows * sh) - ph)
        for z in range(kd):
            d = i32(o * sd + (z - pd))
            d = clamped(d, D) if check_rows else d
            plane = x + (i64(n) * D + d) * H * line + group * (lanes * SIZE)
            at = plane + top * line
            for r in range(tall):
                row = plane + clamped(i32(top + r), H) * line if check_rows else at + r * line
                read(words, i32(r * capacity), row, j, W, pitch)
            for p in range(rows):
                for e in range(capacity):
                    at_best = p * capacity + e
                    over = words[p * sh * capacity + e]
                    for r in range(1, kh):
                        over = join(over, words[(p * sh + r) * capacity + e])
                    best[at_best] = join(best[at_best], over) if z > 0 else over
        line = pitch * Q
        at = y + ((i64(n) * many[3] + o) * P + i * rows) * line + j * columns * pitch + group * (lanes * SIZE)
        for p in range(rows):
            if i * rows + p < P:
                over_columns(out, i32(0), best, i32(p * capacity))
                if whole and lanes == 1 and in_words:
                    write(out, i32(0), at + p * line)
                else:
                    for q in range(columns):
                        if whole or j * columns + q < Q:
                            if lanes > 1:
                                write(out, i32(q * per_column), at + p * line + q * pitch)
                            else:
                                write1(at + p * line + q * SIZE, u32(out[q // 2] >> u32(16 * (q % 2))))

    return kernel
