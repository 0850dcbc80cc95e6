"""Table entries of four words, and shared memory by address: each access beside its twin for the simulator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.access import _bytes_at
from numbadnn.kernels.lang.cuda import SIMULATED, device, i32, intrinsic, types
from numbadnn.kernels.lang.hopper import instruction
from numbadnn.kernels.lang.llvm import _DOUBLE, _FLOAT, _I32, _asm, _pointer, _slot
from numbadnn.problem import ITEMSIZE

_ENTRY = ir.VectorType(_I32, 4)


def _write_words() -> Callable[..., None]:
    if SIMULATED:

        def twin(address, a, b, c, d):
            _bytes_at(int(address), 16)[:] = np.array([a, b, c, d], np.int32).tobytes()

        return twin

    @intrinsic
    def write(typingctx, address, a, b, c, d):
        def codegen(context, builder, signature, args):
            vector = ir.Constant(_ENTRY, ir.Undefined)
            for e, word in enumerate(args[1:]):
                vector = builder.insert_element(vector, word, ir.Constant(_I32, e))
            builder.store(vector, _pointer(builder, args[0], _ENTRY)).align = 16
            return context.get_dummy_value()

        return types.void(types.int64, i32, i32, i32, i32), codegen

    return write


#: ``write_words(address, a, b, c, d)``: an entry of a table, 16 aligned bytes
write_words = _write_words()


def _write_pair() -> Callable[..., None]:
    if SIMULATED:

        def twin(address, a, b):
            _bytes_at(int(address), 8)[:] = np.array([a, b], np.int32).tobytes()

        return twin

    @intrinsic
    def write(typingctx, address, a, b):
        def codegen(context, builder, signature, args):
            kind = ir.VectorType(_I32, 2)
            vector = ir.Constant(kind, ir.Undefined)
            for e, word in enumerate(args[1:]):
                vector = builder.insert_element(vector, word, ir.Constant(_I32, e))
            builder.store(vector, _pointer(builder, args[0], kind)).align = 8
            return context.get_dummy_value()

        return types.void(types.int64, i32, i32), codegen

    return write


#: ``write_pair(address, a, b)``: half an entry
write_pair = _write_pair()


def _fetch_words() -> Callable[..., None]:
    if SIMULATED:

        def twin(words, start, address):
            words[start : start + 4] = np.frombuffer(bytes(_bytes_at(int(address), 16)), np.int32)

        return twin

    @intrinsic
    def fetch(typingctx, words, start, address):
        def codegen(context, builder, signature, args):
            vector = builder.load(_pointer(builder, args[2], _ENTRY))
            vector.align = 16
            for e in range(4):
                target = _slot(context, builder, signature.args[0], args[0], args[1], e)
                builder.store(builder.extract_element(vector, ir.Constant(_I32, e)), target)
            return context.get_dummy_value()

        return types.void(words, i32, types.int64), codegen

    return fetch


#: ``fetch_words(words, start, address)``: an entry of a table into words[start:start+4]
fetch_words = _fetch_words()


def _shared_address() -> Callable[..., Any]:
    if SIMULATED:
        return lambda shared: 0

    @intrinsic
    def address(typingctx, shared):
        def codegen(context, builder, signature, args):
            start = _slot(context, builder, signature.args[0], args[0], ir.Constant(_I32, 0), 0)
            generic = builder.ptrtoint(start, ir.IntType(64))
            template = "{.reg .u64 at; cvta.to.shared.u64 at, $1; cvt.u32.u64 $0, at;}"
            return _asm(builder, template, "=r,l", _I32, [generic])

        return i32(shared), codegen

    return address


#: ``shared_address(shared)``: where dynamic shared memory starts, in bytes; 32 bits, so that offsets become immediates
shared_address = _shared_address()


@functools.cache
def read_at(dtype: str, count: int) -> Callable[..., None]:
    """``read_at(values, start, shared, address)``: values[start:start+count] from an address, one aligned access."""
    size = 4 if dtype == "int32" else ITEMSIZE[dtype]
    if SIMULATED:

        def twin(values, start, shared, address):
            at = address // shared.itemsize
            values[start : start + count] = shared[at : at + count].view(dtype)

        return twin
    kind = ir.VectorType({"float32": _FLOAT, "float64": _DOUBLE, "int32": _I32}[dtype], count)

    @intrinsic
    def read(typingctx, values, start, shared, address):
        def codegen(context, builder, signature, args):
            vector = builder.load(builder.inttoptr(args[3], kind.as_pointer(3)))  # address space 3: shared memory
            vector.align = count * size
            for e in range(count):
                target = _slot(context, builder, signature.args[0], args[0], args[1], e)
                builder.store(builder.extract_element(vector, ir.Constant(_I32, e)), target)
            return context.get_dummy_value()

        return types.void(values, i32, shared, i32), codegen

    return read


@functools.cache
def write_at(dtype: str, count: int) -> Callable[..., None]:
    """``write_at(values, start, shared, address)``: values[start:start+count] to an address, one aligned access."""
    size = 4 if dtype == "int32" else ITEMSIZE[dtype]
    if SIMULATED:

        def twin(values, start, shared, address):
            at = address // shared.itemsize
            shared[at : at + count] = values[start : start + count]

        return twin
    kind = ir.VectorType({"float32": _FLOAT, "float64": _DOUBLE, "int32": _I32}[dtype], count)

    @intrinsic
    def write(typingctx, values, start, shared, address):
        def codegen(context, builder, signature, args):
            vector = ir.Constant(kind, ir.Undefined)
            for e in range(count):
                value = builder.load(_slot(context, builder, signature.args[0], args[0], args[1], e))
                vector = builder.insert_element(vector, value, ir.Constant(_I32, e))
            to = builder.inttoptr(args[3], kind.as_pointer(3))  # address space 3: shared memory
            builder.store(vector, to).align = count * size
            return context.get_dummy_value()

        return types.void(values, i32, shared, i32), codegen

    return write


def _word(value: int) -> Any:
    return np.array([value & 0xFFFFFFFF], np.uint32).view(np.int32)[0]


def _funnel_twin(low: Any, high: Any, bits: Any) -> Any:
    return _word(((int(high) & 0xFFFFFFFF) << 32 | int(low) & 0xFFFFFFFF) >> int(bits))


def _permute_twin(low: Any, high: Any, which: Any) -> Any:
    both = (int(high) & 0xFFFFFFFF) << 32 | int(low) & 0xFFFFFFFF
    return _word(sum((both >> 8 * (int(which) >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4)))


def _words(template: str) -> Any:
    return instruction(template, (i32,), (i32, i32, i32), pure=True)


#: ``funnel(low, high, bits) -> int32``: the word that begins so many bits, 0 to 31, above the lowest of the two
funnel = _funnel_twin if SIMULATED else _words("shf.r.wrap.b32 $0, $1, $2, $3;")
#: ``permute(low, high, which) -> int32``: four of the two words' eight bytes; the lowest hexadecimal digit says the lowest
permute = _permute_twin if SIMULATED else _words("prmt.b32 $0, $1, $2, $3;")


def _copy_entry() -> Callable[..., None]:
    if SIMULATED:

        def twin(words, to, address):
            words[to // 4 : to // 4 + 4] = np.frombuffer(bytes(_bytes_at(int(address), 16)), np.uint32)

        return twin

    @intrinsic
    def copy(typingctx, words, to, address):
        def codegen(context, builder, signature, args):
            template = "cp.async.cg.shared.global [$0], [$1], 16;"
            _asm(builder, template, "r,l,~{memory}", ir.VoidType(), [args[1], args[2]], pure=False)
            return context.get_dummy_value()

        return types.void(words, i32, types.int64), codegen

    return copy


#: ``copy_entry(words, to, address)``: begin to copy 16 bytes of a table
copy_entry = _copy_entry()


def in_turn(steps: list[Any]) -> Callable[..., None]:
    """Functions of four arguments called one after the other: a loop that the compiler leaves would put arrays in memory."""

    def after(first: Any, second: Any) -> Callable[..., None]:
        @device
        def both(a, b, c, d):
            first(a, b, c, d)
            second(a, b, c, d)

        return both

    half = len(steps) // 2  # not one within the other: their names would grow
    return after(in_turn(steps[:half]), in_turn(steps[half:])) if half else steps[0]
