"""Elements of 16-byte accesses kept as they lie in memory until they are needed: a load that is under way holds few registers.

A value that is converted where it is loaded is waited for there, inside whatever branch the load stands in. These intrinsics
part the two: ``load_words`` fills 32-bit words, ``widen`` makes values of them later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.access import _bytes_at, _numpy_type, _read, store_together
from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, intrinsic, types
from numbadnn.kernels.lang.llvm import _I32, _asm, _element, _pointer, _put, _slot, _widen
from numbadnn.problem import ITEMSIZE


@functools.cache
def load_words(count: int) -> Callable[..., None]:
    """``load_words(words, start, address)``: ``count`` (1, 2 or 4) aligned 32-bit words into words[start:]."""
    if SIMULATED:

        def twin(words, start, address):
            words[start : start + count] = np.frombuffer(bytes(_bytes_at(int(address), 4 * count)), np.uint32)

        return twin

    @intrinsic
    def load(typingctx, words, start, address):
        def codegen(context, builder, signature, args):
            kind = ir.VectorType(_I32, count) if count > 1 else _I32
            value = builder.load(_pointer(builder, args[2], kind))
            value.align = 4 * count
            for i in range(count):
                word = builder.extract_element(value, ir.Constant(_I32, i)) if count > 1 else value
                _put(context, builder, signature.args[0], args[0], args[1], i, word)
            return context.get_dummy_value()

        return types.void(words, types.int32, types.int64), codegen

    return load


@functools.cache
def store_words(count: int, given_up: str = "") -> Callable[..., None]:
    """``store_words(words, start, address)``: words[start : start + count] in one aligned access; see ``HINTS``."""
    if SIMULATED:

        def twin(words, start, address):
            _bytes_at(int(address), 4 * count)[:] = words[start : start + count].tobytes()

        return twin

    @intrinsic
    def store(typingctx, words, start, address):
        def codegen(context, builder, signature, args):
            got = [builder.load(_slot(context, builder, signature.args[0], args[0], args[1], i)) for i in range(count)]
            store_together(builder, args[2], got, given_up)
            return context.get_dummy_value()

        return types.void(words, types.int32, types.int64), codegen

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

    @intrinsic
    def convert(typingctx, values, start, words, at):
        def codegen(context, builder, signature, args):
            here = [
                builder.load(_slot(context, builder, signature.args[2], args[2], args[3], i))
                for i in range(size * count // 4)
            ]
            if size == 8:
                wide = ir.IntType(64)
                here = [
                    builder.or_(builder.zext(a, wide), builder.shl(builder.zext(b, wide), ir.Constant(wide, 32)))
                    for a, b in zip(here[::2], here[1::2], strict=True)
                ]
            vector = ir.Constant(ir.VectorType(here[0].type, len(here)), ir.Undefined)
            for i, word in enumerate(here):
                vector = builder.insert_element(vector, word, ir.Constant(_I32, i))
            for i in range(count):
                value = _widen(builder, _element(builder, vector, i, 8 * size), dtype, acc)
                _put(context, builder, signature.args[0], args[0], args[1], i, value)
            return context.get_dummy_value()

        return types.void(values, types.int32, words, types.int32), codegen

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

    @intrinsic
    def load(typingctx, values, start, address, there):
        def codegen(context, builder, signature, args):
            flag = builder.zext(args[3], _I32)
            result = word if held == 1 else ir.LiteralStructType([word] * held)
            got = _asm(builder, template, constraints, result, [args[2], flag])
            words = ir.Constant(ir.VectorType(word, held), ir.Undefined)
            for i in range(held):
                one = got if held == 1 else builder.extract_value(got, i)
                words = builder.insert_element(words, one, ir.Constant(_I32, i))
            for i in range(count):
                value = _widen(builder, _element(builder, words, i, 8 * size), dtype, acc)
                _put(context, builder, signature.args[0], args[0], args[1], i, value)
            return context.get_dummy_value()

        return types.void(values, types.int32, types.int64, types.boolean), codegen

    return load
