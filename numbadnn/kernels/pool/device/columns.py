"""How a thread of ``device/walk.py`` reads its columns of a row, first as raw words, then as numbers.

What a row holds stays raw until it is needed, so that reading it can begin a step earlier. Numbers of x become such that equal
ones have equal bits: -0 becomes 0, and there is one NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.access import _bytes_at, _numpy_type
from numbadnn.kernels.lang.cuda import SIMULATED, i32, i64
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _DOUBLE, _FLOAT, _I16, _I32, _asm, _pointer, _widen
from numbadnn.kernels.pool.walk import Columns
from numbadnn.problem import ITEMSIZE

_I64 = ir.IntType(64)
#: words whose elements are all -inf
LOWEST_WORDS = {
    "float16": (0xFC00FC00,), "bfloat16": (0xFF80FF80,), "float32": (0xFF800000,), "float64": (0, 0xFFF00000),
}  # fmt: skip


def placer(columns: Columns, pitch: int) -> Callable[..., Any]:
    """``place(bases, row, j) -> outside``: the address of each access in the row at ``row``; outside, of the nearest inside.

    Bit i of ``outside`` tells that access i is. Columns are ``pitch`` bytes apart.
    """
    pieces, width, step, first = columns.pieces, columns.width, columns.step, columns.first
    if SIMULATED:

        def twin(bases, row, j):
            outside = 0
            for i, (c, v) in enumerate(pieces):
                w = j * step + first + c
                bases[i] = row + min(max(w, 0), width - v) * pitch
                outside |= (w < 0 or w + v > width) << i
            return outside

        return twin

    @emitted(i32, ARRAY, i64, i32)
    def place(builder, bases, row, j):
        start, zero, outside = builder.mul(j, _I32(step)), _I32(0), _I32(0)
        for i, (c, v) in enumerate(pieces):
            w = builder.add(start, _I32(first + c))
            if columns.leaves(c, v):
                low, high = builder.icmp_signed("<", w, zero), builder.icmp_signed(">", w, _I32(width - v))
                w = builder.select(low, zero, builder.select(high, _I32(width - v), w))
                flag = builder.select(builder.or_(low, high), _I32(1 << i), zero)
                outside = builder.or_(outside, flag)
            offset = builder.mul(builder.sext(w, _I64), _I64(pitch))
            bases.put(zero, i, builder.add(row, offset))
        return outside

    return place


def fetcher(columns: Columns, size: int) -> Callable[..., None]:
    """``fetch(raw, start, bases, offset)``: the words of a row ``offset`` bytes from the bases' into raw[start:]."""
    lengths = [v * columns.lanes * size for _, v in columns.pieces]
    if SIMULATED:

        def twin(raw, start, bases, offset):
            for base, length in zip(bases, lengths, strict=True):
                data = np.frombuffer(bytes(_bytes_at(int(base + offset), length)).ljust(4, b"\0"), np.uint32)
                raw[start : start + data.size] = data
                start += data.size

        return twin

    @emitted(None, ARRAY, i32, ARRAY, i64)
    def fetch(builder, raw, start, bases, offset):
        n = 0
        for i, length in enumerate(lengths):
            base = builder.load(bases.slot(_I32(0), i))
            address = builder.add(base, offset)
            if length == 2:
                words = [builder.zext(builder.load(_pointer(builder, address, _I16)), _I32)]
            else:
                vector = builder.load(_pointer(builder, address, ir.VectorType(_I32, length // 4)))
                vector.align = length
                words = [builder.extract_element(vector, _I32(k)) for k in range(length // 4)]
            for word in words:
                raw.put(start, n, word)
                n += 1

    return fetch


def unpacker(dtype: str, acc: str, columns: Columns, fill: tuple[int, ...], checked: list[bool], plain: bool) -> Any:
    """``unpack(values, start, raw, at, outside)``: the words raw[at:] of a row as numbers of type ``acc`` into values[start:].

    Words of an access that is ``checked`` and outside are ``fill``. ``plain``: numbers stay what they are.
    """
    lanes, pieces, size = columns.lanes, columns.pieces, ITEMSIZE[dtype]
    if SIMULATED:

        def twin(values, start, raw, at, outside):
            for i, (_, v) in enumerate(pieces):
                count, bits = v * lanes, np.array(raw[at : at + -(-v * lanes * size // 4)])
                if checked[i] and outside >> i & 1:
                    bits[:] = np.resize(np.array(fill, np.uint32), bits.size)
                values[start : start + count] = bits.view(_numpy_type(dtype))[:count]
                start, at = start + count, at + bits.size

        return twin

    @emitted(None, ARRAY, i32, ARRAY, i32, i32)
    def unpack(builder, values, start, raw, at, outside):
        to, word = 0, 0
        for i, (_, v) in enumerate(pieces):
            count = -(-v * lanes * size // 4)
            got = [raw.get(at, word + n) for n in range(count)]
            if checked[i]:
                gone = builder.icmp_signed("!=", builder.and_(outside, _I32(1 << i)), _I32(0))
                got = [builder.select(gone, _I32(fill[n % len(fill)]), g) for n, g in enumerate(got)]
            for e in range(v * lanes):
                value = _widen(builder, _bits(builder, got, e, size), dtype, acc)
                value = value if plain else _canonical(builder, value, acc)
                values.put(start, to + e, value)
            to, word = to + v * lanes, word + count

    return unpack


def _bits(builder: Any, words: list[Any], e: int, size: int) -> Any:
    """Element ``e`` of those that lie in words."""
    if size == 2:
        return builder.trunc(builder.lshr(words[e // 2], _I32(16 * (e % 2))), _I16)
    if size == 4:
        return words[e]
    high = builder.shl(builder.zext(words[2 * e + 1], _I64), _I64(32))
    return builder.or_(high, builder.zext(words[2 * e], _I64))


def _canonical(builder: Any, value: Any, acc: str) -> Any:
    """x + 0: 0 for -0. Where x is float32 that is the one NaN, too; float64 keeps what a NaN carries."""
    if acc == "float32":
        return _asm(builder, "add.rn.f32 $0, $1, 0f00000000;", "=f,f", _FLOAT, [value])
    total = _asm(builder, "add.rn.f64 $0, $1, 0d0000000000000000;", "=d,d", _DOUBLE, [value])
    nan = builder.fcmp_unordered("uno", value, value)
    bits = builder.select(nan, _I64(2**63 - 1), builder.bitcast(total, _I64))
    return builder.bitcast(bits, _DOUBLE)
