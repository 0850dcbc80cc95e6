"""Loads that leave elements as raw words until they are needed, so that a load under way holds few registers.

A value that is converted where it is loaded is waited for there, inside whatever branch the load stands in. These intrinsics
part the two: ``load_words`` fills 32-bit words, ``widen`` makes values of them later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.access import _bytes_at, _numpy_type, _read, store_together
from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, i32, i64, types
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _I32, _asm, _element, _pointer, _vector, _widen
from numbadnn.problem import ITEMSIZE


@functools.cache
def load_words(count: int) -> Callable[..., None]:
    """``load_words(words, start, address)``: ``count`` (1, 2 or 4) aligned 32-bit words into words[start:]."""
    if SIMULATED:

        def twin(words, start, address):
            words[start : start + count] = np.frombuffer(bytes(_bytes_at(int(address), 4 * count)), np.uint32)

        return twin

    @emitted(None, ARRAY, i32, i64)
    def load(builder, words, start, address):
        kind = ir.VectorType(_I32, count) if count > 1 else _I32
        value = builder.load(_pointer(builder, address, kind))
        value.align = 4 * count
        for i in range(count):
            word = builder.extract_element(value, ir.Constant(_I32, i)) if count > 1 else value
            words.put(start, i, word)

    return load


@functools.cache
def store_words(count: int, given_up: str = "") -> Callable[..., None]:
    """``store_words(words, start, address)``: words[start : start + count] in one aligned access; see ``HINTS``."""
    if SIMULATED:

        def twin(words, start, address):
            _bytes_at(int(address), 4 * count)[:] = words[start : start + count].tobytes()

        return twin

    @emitted(None, ARRAY, i32, i64)
    def store(builder, words, start, address):
        got = [words.get(start, i) for i in range(count)]
        store_together(builder, address, got, given_up)

    return store


@functools.cache
def widen(dtype: str, count: int, acc: str) -> Callable[..., None]:
    """``widen(values, start, words, at)``: ``count`` elements of ``dtype`` from words[at:] as values of the accumulator."""
    size = ITEMSIZE[dtype]
    if SIMULATED:

        def twin(values, start, words, at):
            raw = np.ascontiguousarray(words[at : at + size * count // 4])
            values[start : start + count] = raw.view(_numpy_type(dtype))

        return twin

    @emitted(None, ARRAY, i32, ARRAY, i32)
    def convert(builder, values, start, words, at):
        here = [words.get(at, i) for i in range(size * count // 4)]
        if size == 8:
            wide = ir.IntType(64)
            here = [
                builder.or_(builder.zext(a, wide), builder.shl(builder.zext(b, wide), ir.Constant(wide, 32)))
                for a, b in zip(here[::2], here[1::2], strict=True)
            ]
        vector = _vector(builder, here)
        for i in range(count):
            value = _widen(builder, _element(builder, vector, i, 8 * size), dtype, acc)
            values.put(start, i, value)

    return convert


@functools.cache
def load_where(dtype: str, count: int, acc: str, fill: float) -> Callable[..., None]:
    """``load_where(values, start, address, there)``: as ``load_vector``; ``fill``, and nothing read, if not ``there``.

    A predicate stands before the load, not a branch around it: loads that follow each other are all under way at once.
    """
    size = ITEMSIZE[dtype]
    if SIMULATED:

        def twin(values, start, address, there):
            values[start : start + count] = _read(dtype, address, count) if there else ACCUMULATOR[acc](fill)

        return twin
    bits = 8 * max(size, min(4, size * count))  # of a register
    held, word = size * count * 8 // bits, ir.IntType(bits)
    nothing = int.from_bytes(np.array([fill] * (bits // (8 * size)), _numpy_type(dtype)).tobytes(), "little")
    names = ", ".join(f"${i}" for i in range(held))
    vector = f".v{held}.b{bits} {{{names}}}" if held > 1 else f".b{bits} {names}"
    template = (
        f"{{.reg .pred p; setp.ne.s32 p, ${held + 1}, 0; "
        + "".join(f"mov.b{bits} ${i}, {nothing:#x}; " for i in range(held))
        + f"@p ld.global{vector}, [${held}];}}"
    )
    constraints = ",".join([{16: "=&h", 32: "=&r", 64: "=&l"}[bits]] * held + ["l", "r"])

    @emitted(None, ARRAY, i32, i64, types.boolean)
    def load(builder, values, start, address, there):
        flag = builder.zext(there, _I32)
        result = word if held == 1 else ir.LiteralStructType([word] * held)
        got = _asm(builder, template, constraints, result, [address, flag])
        words = _vector(builder, [got if held == 1 else builder.extract_value(got, i) for i in range(held)])
        for i in range(count):
            value = _widen(builder, _element(builder, words, i, 8 * size), dtype, acc)
            values.put(start, i, value)

    return load
