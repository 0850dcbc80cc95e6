"""Table entries of four words, and shared memory by address: each access beside its twin for the simulator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.access import _bytes_at
from numbadnn.kernels.lang.cuda import SIMULATED, device, i32, i64
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted, instruction
from numbadnn.kernels.lang.llvm import _DOUBLE, _FLOAT, _I32, _asm, _pointer, _vector
from numbadnn.problem import ITEMSIZE

_ENTRY = ir.VectorType(_I32, 4)


def _write_words() -> Callable[..., None]:
    if SIMULATED:

        def twin(address, a, b, c, d):
            _bytes_at(int(address), 16)[:] = np.array([a, b, c, d], np.int32).tobytes()

        return twin

    @emitted(None, i64, i32, i32, i32, i32)
    def write(builder, address, a, b, c, d):
        builder.store(_vector(builder, [a, b, c, d]), _pointer(builder, address, _ENTRY)).align = 16

    return write


#: ``write_words(address, a, b, c, d)``: an entry of a table, 16 aligned bytes
write_words = _write_words()


def _write_pair() -> Callable[..., None]:
    if SIMULATED:

        def twin(address, a, b):
            _bytes_at(int(address), 8)[:] = np.array([a, b], np.int32).tobytes()

        return twin

    @emitted(None, i64, i32, i32)
    def write(builder, address, a, b):
        builder.store(_vector(builder, [a, b]), _pointer(builder, address, ir.VectorType(_I32, 2))).align = 8

    return write


#: ``write_pair(address, a, b)``: half an entry
write_pair = _write_pair()


def _fetch_words() -> Callable[..., None]:
    if SIMULATED:

        def twin(words, start, address):
            words[start : start + 4] = np.frombuffer(bytes(_bytes_at(int(address), 16)), np.int32)

        return twin

    @emitted(None, ARRAY, i32, i64)
    def fetch(builder, words, start, address):
        vector = builder.load(_pointer(builder, address, _ENTRY))
        vector.align = 16
        for e in range(4):
            words.put(start, e, builder.extract_element(vector, ir.Constant(_I32, e)))

    return fetch


#: ``fetch_words(words, start, address)``: an entry of a table into words[start:start+4]
fetch_words = _fetch_words()


def _shared_address() -> Callable[..., Any]:
    if SIMULATED:
        return lambda shared: 0

    @emitted(i32, ARRAY)
    def address(builder, shared):
        start = shared.slot(ir.Constant(_I32, 0), 0)
        generic = builder.ptrtoint(start, ir.IntType(64))
        template = "{.reg .u64 at; cvta.to.shared.u64 at, $1; cvt.u32.u64 $0, at;}"
        return _asm(builder, template, "=r,l", _I32, [generic])

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

    @emitted(None, ARRAY, i32, ARRAY, i32)
    def read(builder, values, start, shared, address):
        vector = builder.load(builder.inttoptr(address, kind.as_pointer(3)))  # address space 3: shared memory
        vector.align = count * size
        for e in range(count):
            values.put(start, e, builder.extract_element(vector, ir.Constant(_I32, e)))

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

    @emitted(None, ARRAY, i32, ARRAY, i32)
    def write(builder, values, start, shared, address):
        vector = _vector(builder, [values.get(start, e) for e in range(count)])
        to = builder.inttoptr(address, kind.as_pointer(3))  # address space 3: shared memory
        builder.store(vector, to).align = count * size

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

    @emitted(None, ARRAY, i32, i64)
    def copy(builder, words, to, address):
        template = "cp.async.cg.shared.global [$0], [$1], 16;"
        _asm(builder, template, "r,l,~{memory}", ir.VoidType(), [to, address], pure=False)

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
