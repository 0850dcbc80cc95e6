"""What the gradient of overlapping max pooling does in one or two instructions each: keys, packed codes, guarded sums.

A 16-bit float becomes a key: an int32 whose upper half orders as the number does (NaN above all, -0 as 0) and whose lower
half is the code of its place, larger for earlier places, so that one integer maximum finds value and place of the first
of equals. Codes of a byte lie four in a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.access import _bytes_at, load_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, i32, i64, u32
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _I32, _asm, _element, _pointer, _widen
from numbadnn.problem import ITEMSIZE

#: below every key: what lies outside the image
LOWEST_KEY = -(2**31)
#: x + 0, which turns -0 into 0 and every NaN into 0x7fff
_PLUS_ZERO = {
    "float16": "add.rn.f16x2 $0, $1, $2;",
    "bfloat16": "{.reg .b32 one; mov.b32 one, 0x3f803f80; fma.rn.bf16x2 $0, $1, one, $2;}",
}
_NAN = {"float16": 0x7C00, "bfloat16": 0x7F80}  # magnitudes above are NaN


def _constant(value: int) -> Any:
    return ir.Constant(_I32, value)


def _permute(builder: Any, a: Any, b: Any, selector: int) -> Any:
    """A word of four of the eight bytes of a and b."""
    return _asm(builder, f"prmt.b32 $0, $1, $2, {selector:#x};", "=r,r,r", _I32, [a, b])


def _ordered(builder: Any, word: Any, dtype: str) -> Any:
    """Two 16-bit floats as two signed 16-bit integers of the same order."""
    plain = _asm(builder, _PLUS_ZERO[dtype], "=r,r,r", _I32, [word, _constant(0)])
    sign = _permute(builder, plain, plain, 0xBB99)
    return builder.xor(plain, builder.and_(sign, _constant(0x7FFF7FFF)))


@functools.cache
def load_keys(dtype: str, count: int, step: int) -> Callable[..., None]:
    """``load_keys(keys, start, address, code)``: ``count`` elements in one aligned access as keys[start:].

    Their codes are ``code``, code - step, code - 2*step ...
    """
    if SIMULATED:

        def twin(keys, start, address, code):
            bits = np.frombuffer(bytes(_bytes_at(int(address), 2 * count)), np.uint16).astype(np.int64)
            magnitude = bits & 0x7FFF
            value = np.where(bits > 0x7FFF, -magnitude - (magnitude > 0), magnitude)
            value = np.where(magnitude > _NAN[dtype], 0x7FFF, value)
            keys[start : start + count] = value * 65536 + code - step * np.arange(count)

        return twin

    @emitted(None, ARRAY, i32, i64, i32)
    def load(builder, keys, start, address, code):
        if count == 1:
            kind = ir.IntType(16)
            words = [builder.zext(builder.load(_pointer(builder, address, kind)), _I32)]
        else:
            vector = builder.load(_pointer(builder, address, ir.VectorType(_I32, count // 2)))
            vector.align = 2 * count
            words = [builder.extract_element(vector, _constant(i)) for i in range(count // 2)]
        for i in range(count):
            if i % 2 == 0:
                pair = _ordered(builder, words[i // 2], dtype)
            number = builder.sub(code, _constant(i * step))
            if i % 2:
                key = builder.or_(builder.and_(pair, _constant(0xFFFF0000)), number)
            else:
                key = _permute(builder, pair, number, 0x1054)
            keys.put(start, i, key)

    return load


@functools.cache
def load_values(dtype: str, count: int, acc: str) -> Callable[..., None]:
    """``load_values(values, start, address, code)``: the same of type ``acc``, without codes."""
    if SIMULATED:
        read = load_vector(dtype, count, acc)
        return lambda values, start, address, code: read(values, start, address)

    @emitted(None, ARRAY, i32, i64, i32)
    def load(builder, values, start, address, code):
        bits = 8 * ITEMSIZE[dtype]
        word = ir.IntType(min(bits * count, max(bits, 32)))
        vector = builder.load(_pointer(builder, address, ir.VectorType(word, bits * count // word.width)))
        vector.align = bits * count // 8
        for i in range(count):
            value = _widen(builder, _element(builder, vector, i, bits), dtype, acc)
            values.put(start, i, value)

    return load


if SIMULATED:

    def clamped(i: int, n: int) -> int:
        """i, or the nearest number in 0 ... n - 1."""
        return min(max(int(i), 0), n - 1)
else:

    @emitted(i32, i32, i32)
    def clamped(builder, i, n):
        """i, or the nearest number in 0 ... n - 1."""
        low = builder.select(builder.icmp_signed(">", i, _constant(0)), i, _constant(0))
        most = builder.sub(n, _constant(1))
        return builder.select(builder.icmp_signed("<", low, most), low, most)


@functools.cache
def pack_codes(count: int) -> Callable[..., Any]:
    """``pack_codes(codes, start, less) -> uint32``: the low bytes of 2 or 4 int32, from codes[start:], less ``less`` each.

    Of two, the upper half of the word is anything.
    """
    if SIMULATED:
        # a window outside the image has any code
        return lambda codes, start, less: u32(
            sum((((int(codes[start + i]) & 255) - int(less)) & 255) << (8 * i) for i in range(count))
        )

    @emitted(u32, ARRAY, i32, i32)
    def pack(builder, codes, start, less):
        got = [codes.get(start, i) for i in range(count)]
        word = _permute(builder, got[0], got[1], 0x0040)
        if count == 4:
            word = _permute(builder, word, _permute(builder, got[2], got[3], 0x0040), 0x5410)
        return builder.sub(word, builder.mul(less, _constant(0x01010101)))

    return pack


@functools.cache
def add_where(acc: str) -> Callable[..., Any]:
    """``add_where(total, share, field, code) -> total``, plus ``share`` where the words ``field`` and ``code`` are equal."""
    A = ACCUMULATOR[acc]
    if SIMULATED:
        return lambda total, share, field, code: A(total + share) if field == code else total
    letter, kind = ("f", "f32") if acc == "float32" else ("d", "f64")
    template = f"{{.reg .pred p; setp.eq.u32 p, $3, $4; @p add.rn.{kind} $0, $0, $2;}}"

    @emitted(A, A, A, u32, u32)
    def add(builder, total, share, field, code):
        return _asm(builder, template, f"={letter},0,{letter},r,r", total.type, [total, share, field, code])

    return add
