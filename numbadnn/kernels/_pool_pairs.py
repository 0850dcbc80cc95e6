"""Max pooling of packed images of 16-bit numbers, by tiles, two numbers in each instruction.

As ``_pool_tiles``, but numbers stay as they lie in memory, two in a word, and one instruction has the maxima of both: first of
what stands in one column, row by row, then of neighbouring columns. Where channels are last, both halves of a word always go
the same way; in C order they are neighbouring columns, and one permutation of bytes brings together what two windows that lie
side by side see at the same place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels._bits import load_bits, store_bits
from numbadnn.kernels._cuda import SIMULATED, cuda, device, i32, i64, intrinsic, types, u32
from numbadnn.kernels._packed import load_words, store_words
from numbadnn.kernels._pool_keys import clamped
from numbadnn.kernels._pool_tiles import locator
from numbadnn.kernels._ptx import _I32, WORD, _asm, _numpy_type, _put, _slot
from numbadnn.kernels.pool_tiles import Piece, TilesConfig

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

        def twin(a, b):  # type: ignore[no-untyped-def]
            one, other = (np.array([w], np.uint32).view(_numpy_type(dtype)) for w in (a, b))
            return np.maximum(one, other).view(np.uint32)[0]

        return twin

    @intrinsic
    def instruction(typingctx, a, b):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return larger_of(builder, args[0], args[1], dtype)

        return types.uint32(types.uint32, types.uint32), codegen

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

        def twin(out, to, best, start):  # type: ignore[no-untyped-def]
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

    @intrinsic
    def over_columns(typingctx, out, to, best, start):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            def word(n):  # type: ignore[no-untyped-def]
                return builder.load(_slot(context, builder, signature.args[2], args[2], args[3], n))

            n = 0
            for q in range(0, columns, 1 if lanes > 1 else 2):
                for e in range(per_column):
                    if lanes > 1:
                        seen = [word((q * sw + k) * per_column + e) for k in range(kw)]
                    else:
                        seen = pairs(builder, word, q)
                    top = functools.reduce(lambda a, b: larger_of(builder, a, b, dtype), seen)
                    _put(context, builder, signature.args[0], args[0], args[1], n, top)
                    n += 1
            return context.get_dummy_value()

        return types.void(out, types.int32, best, types.int32), codegen

    return over_columns


def reader(dtype: str, lanes: int, piece: Piece) -> Any:
    """``read(words, start, row, j, width, cells)``: the columns of one row, as words in their ``places`` from words[start:].

    One column outside is read from the nearest inside, which a window that leaves the image has; several together become -inf.
    """
    vec, checked, fill = piece.vec, piece.checked, LOWEST[dtype]
    first, step, count, head, body, tail = piece.first, piece.step, piece.length, piece.head, piece.body, piece.tail
    half, per_column = max(1, vec // 2), max(1, lanes // 2)
    read1, read_vector, read_cell = load_bits(SIZE), load_words(half), load_words(per_column)
    after, singles = head + body * half, head + max(0, count - tail)

    @device
    def read_columns(words, start, row, j, width, cells):  # type: ignore[no-untyped-def]
        for n in range(singles):
            w = i32(j * step + (first + (n if n < head else n - head + tail)))
            w = clamped(w, width) if checked else w
            words[start + (n if n < head else n - head + after)] = read1(row + i64(w) * SIZE)
        for m in range(body):
            w, at = i32(j * step + (first + head + m * vec)), start + head + m * half
            ok = w < width if checked else True
            read_vector(words, i32(at), row + i64(w if ok else i32(0)) * SIZE)
            if checked:
                for e in range(half):
                    words[at + e] = words[at + e] if ok else u32(fill)

    @device
    def read_cells(words, start, row, j, width, cells):  # type: ignore[no-untyped-def]
        for c in range(count):
            w = i32(j * step + (first + c))
            w = clamped(w, width) if checked else w
            read_cell(words, i32(start + c * per_column), row + i64(w) * cells * SIZE)

    return read_cells if lanes > 1 else read_columns


def pool(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """y from x: each row of the tile is read once and joins every output row whose windows it is in."""
    (kd, kh, _), (sd, sh, _), (pd, ph, _) = config.window, config.stride, config.pad
    lanes, columns, rows, piece = config.lanes, config.columns, config.rows, config.x_piece()
    whole, check_rows, threads = config.whole, config.check_rows, config.threads
    read, join, over_columns, locate = reader(dtype, lanes, piece), larger(dtype), across(dtype, config), locator(lanes)
    per_column = max(1, lanes // 2)
    room = piece.length * per_column if lanes > 1 else max(places(piece))[0] + 1
    kept, made = rows * room, columns * per_column if lanes > 1 else (columns + 1) // 2
    write1, write = store_bits(SIZE), store_words(per_column if lanes > 1 else made)
    tall, in_words = (rows - 1) * sh + kh, columns % 2 == 0
    held = tall * room

    def kernel(x, y, tiles, groups, across, down, deep, D, H, W, cells, P, Q):  # type: ignore[no-untyped-def]
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, plane = locate(tile, groups, across, down, deep)
        words = cuda.local.array(held, WORD)
        best = cuda.local.array(kept, WORD)
        out = cuda.local.array(made, WORD)
        for z in range(kd):
            d = i32(o * sd + (z - pd))
            d = clamped(d, D) if check_rows else d
            for r in range(tall):
                h = i32(i * (rows * sh) + (r - ph))
                h = clamped(h, H) if check_rows else h
                line = (i64(plane) * D + d) * H + h
                read(words, i32(r * room), x + (line * W * cells + group * lanes) * SIZE, j, W, cells)
            for p in range(rows):
                for n in range(room):
                    at = p * room + n
                    top = words[p * sh * room + n]
                    for r in range(1, kh):
                        top = join(top, words[(p * sh + r) * room + n])
                    best[at] = join(best[at], top) if z > 0 else top
        for p in range(rows):
            ip = i32(i * rows + p)
            if ip < P:
                over_columns(out, i32(0), best, i32(p * room))
                line = ((i64(plane) * deep + o) * P + ip) * Q
                if whole and lanes == 1 and in_words:
                    write(out, i32(0), y + (line + j * columns) * SIZE)
                else:
                    for q in range(columns):
                        jq = i32(j * columns + q)
                        if whole or jq < Q:
                            if lanes > 1:
                                write(out, i32(q * per_column), y + ((line + jq) * cells + group * lanes) * SIZE)
                            else:
                                write1(y + (line + jq) * SIZE, u32(out[q // 2] >> u32(16 * (q % 2))))

    return kernel
