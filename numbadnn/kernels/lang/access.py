"""Accesses to memory of chosen width at an address, each a small intrinsic beside its twin for the CUDA simulator.

There an address is one of host memory, and reading or writing outside the ranges in ``MEMORY`` raises. ``load(dtype, acc)``
and its kin are made when a kernel is built: ``acc`` ("float32" or "float64") is the type that the kernel computes in, the
elements are converted on the way.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, intrinsic, types
from numbadnn.kernels.lang.llvm import _I32, _asm, _element, _narrow, _packed, _pointer, _put, _slot, _unit, _widen
from numbadnn.problem import ITEMSIZE

#: (first, last + 1) byte addresses that the twins may touch; set by simulate.run
MEMORY: list[tuple[int, int]] = []


def _numpy_type(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(dtype).type


def _bytes_at(address: int, size: int) -> Any:
    if not any(low <= address and address + size <= high for low, high in MEMORY):
        raise IndexError(f"the kernel touches {size} bytes at {address}, outside every operand")
    if address % size:
        raise ValueError(f"the kernel touches {size} bytes at {address}, which is not aligned to them")
    return (ctypes.c_uint8 * size).from_address(address)


def _read(dtype: str, address: int, count: int) -> Any:
    size = ITEMSIZE[dtype] * count
    return np.frombuffer(bytes(_bytes_at(int(address), size)), _numpy_type(dtype))


def _write(dtype: str, address: int, values: Any) -> None:
    data = np.asarray(values).astype(_numpy_type(dtype)).tobytes()
    _bytes_at(int(address), len(data))[:] = data


@functools.cache
def load(dtype: str, acc: str) -> Callable[..., Any]:
    """``load(address) -> acc``: one element."""
    if SIMULATED:
        return lambda address: ACCUMULATOR[acc](_read(dtype, address, 1)[0])

    @intrinsic
    def load_element(typingctx, address):
        def codegen(context, builder, signature, args):
            bits = builder.load(_pointer(builder, args[0], ir.IntType(8 * ITEMSIZE[dtype])))
            return _widen(builder, bits, dtype, acc)

        return ACCUMULATOR[acc](types.int64), codegen

    return load_element


@functools.cache
def store(dtype: str, acc: str) -> Callable[..., None]:
    """``store(address, value)``: one element, rounded once from ``acc``."""
    if SIMULATED:
        return lambda address, value: _write(dtype, address, ACCUMULATOR[acc](value))

    @intrinsic
    def store_element(typingctx, address, value):
        def codegen(context, builder, signature, args):
            bits = _narrow(builder, args[1], dtype, acc)
            builder.store(bits, _pointer(builder, args[0], bits.type))
            return context.get_dummy_value()

        return types.void(types.int64, ACCUMULATOR[acc]), codegen

    return store_element


@functools.cache
def load_vector(dtype: str, count: int, acc: str) -> Callable[..., None]:
    """``load_vector(values, start, address)``: ``count`` elements in one aligned access into values[start:]."""
    if SIMULATED:

        def twin(values, start, address):
            values[start : start + count] = _read(dtype, address, count)

        return twin

    @intrinsic
    def load_elements(typingctx, values, start, address):
        def codegen(context, builder, signature, args):
            word = ir.IntType(8 * min(ITEMSIZE[dtype] * count, max(ITEMSIZE[dtype], 4)))
            words = ir.VectorType(word, ITEMSIZE[dtype] * count * 8 // word.width)
            vector = builder.load(_pointer(builder, args[2], words))
            vector.align = ITEMSIZE[dtype] * count
            for i in range(count):
                bits = _element(builder, vector, i, ITEMSIZE[dtype] * 8)
                _put(context, builder, signature.args[0], args[0], args[1], i, _widen(builder, bits, dtype, acc))
            return context.get_dummy_value()

        return types.void(values, types.int32, types.int64), codegen

    return load_elements


#: how 16 bytes may be stored: as lines that nobody reads soon, which L2 gives up first; as lines that it gives up last, behind
#: all that passes through meanwhile, since they are read or written again soon: memory is not to be bothered with them
_KEEPING = "{.reg .b64 keep; createpolicy.fractional.L2::evict_last.b64 keep, 1.0; "
HINTS = {
    "first": "st.global.cs.v4.b32 [$0], {$1, $2, $3, $4};",
    "last": _KEEPING + "st.global.L2::cache_hint.v4.b32 [$0], {$1, $2, $3, $4}, keep;}",
}


def store_together(builder: Any, address: Any, words: Any, given_up: str) -> None:
    """All these words in one aligned access; 16 bytes so that L2 gives them up ``"first"`` or ``"last"``, if it says so."""
    width = words[0].type.width
    if given_up and len(words) == 4 and width == 32:
        bits = [builder.bitcast(word, _I32) for word in words]
        _asm(builder, HINTS[given_up], "l,r,r,r,r,~{memory}", ir.VoidType(), [address, *bits], pure=False)
        return
    vector = ir.Constant(ir.VectorType(words[0].type, len(words)), ir.Undefined)
    for i, word in enumerate(words):
        vector = builder.insert_element(vector, word, ir.Constant(_I32, i))
    builder.store(vector, _pointer(builder, address, vector.type)).align = len(words) * width // 8


@functools.cache
def store_vector(dtype: str, count: int, acc: str, given_up: str = "") -> Callable[..., None]:
    """``store_vector(values, start, address)``: values[start : start + count] in one aligned access; see ``HINTS``."""
    if SIMULATED:
        return lambda values, start, address: _write(dtype, address, values[start : start + count])

    @intrinsic
    def store_elements(typingctx, values, start, address):
        def codegen(context, builder, signature, args):
            got = [_slot(context, builder, signature.args[0], args[0], args[1], i) for i in range(count)]
            words = _packed(builder, [builder.load(g) for g in got], dtype, acc)
            store_together(builder, args[2], words, given_up)
            return context.get_dummy_value()

        return types.void(values, types.int32, types.int64), codegen

    return store_elements


@functools.cache
def copy_bytes(size: int) -> Callable[..., None]:
    """``copy_bytes(destination, source)``: ``size`` (2, 4, 8 or 16) aligned bytes, whatever they mean."""
    if SIMULATED:

        def twin(destination, source):
            _bytes_at(int(destination), size)[:] = bytes(_bytes_at(int(source), size))

        return twin

    @intrinsic
    def copy(typingctx, destination, source):
        def codegen(context, builder, signature, args):
            kind = _unit(size)
            value = builder.load(_pointer(builder, args[1], kind))
            value.align = size
            builder.store(value, _pointer(builder, args[0], kind)).align = size
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return copy


@functools.cache
def zero_bytes(size: int) -> Callable[..., None]:
    """``zero_bytes(destination)``: ``size`` (2, 4, 8 or 16) aligned bytes become 0."""
    if SIMULATED:

        def twin(destination):
            _bytes_at(int(destination), size)[:] = bytes(size)

        return twin

    @intrinsic
    def zero(typingctx, destination):
        def codegen(context, builder, signature, args):
            kind = _unit(size)
            builder.store(ir.Constant(kind, None), _pointer(builder, args[0], kind)).align = size
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return zero


def _of_line(template: str, constraints: str, twin: Callable[[Any], None]) -> Callable[[Any], None]:
    """An instruction on the line of memory that lies at an address."""
    if SIMULATED:
        return twin

    @intrinsic
    def instruction(typingctx, address):
        def codegen(context, builder, signature, args):
            _asm(builder, template, constraints, ir.VoidType(), list(args), pure=False)
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return instruction


def _forgotten(address: Any) -> None:
    if address % 128:
        raise ValueError(f"{address} is not aligned to a line of the cache")
    for word in range(0, 128, 16):
        _bytes_at(int(address) + word, 16)[:] = b"\xff" * 16


#: ``prefetch(address)``: have the line of memory that lies there brought to the L2 cache, without waiting for it
prefetch = _of_line("prefetch.global.L2 [$0];", "l", lambda address: _bytes_at(int(address), 1))
#: ``forget(address)``: nobody will read the 128 aligned bytes there before they are written again: the L2 cache need not write
#: them to memory
forget = _of_line("discard.global.L2 [$0], 128;", "l,~{memory}", _forgotten)


@functools.cache
def load_shared(dtype: str, count: int, acc: str) -> Callable[..., None]:
    """``load_shared(values, start, words, at)``: ``count`` elements of raw bits from the shared words[at:] on."""
    size = ITEMSIZE[dtype] * count
    if SIMULATED:

        def twin(values, start, words, at):
            raw = np.ascontiguousarray(words[at : at + size // 4])
            values[start : start + count] = raw.view(_numpy_type(dtype))

        return twin

    @intrinsic
    def load_elements(typingctx, values, start, words, at):
        def codegen(context, builder, signature, args):
            word = ir.IntType(8 * max(ITEMSIZE[dtype], 4))
            kind = ir.VectorType(word, size * 8 // word.width)
            slot = _slot(context, builder, signature.args[2], args[2], args[3], 0)
            vector = builder.load(builder.bitcast(slot, kind.as_pointer()))
            vector.align = size
            for i in range(count):
                bits = _element(builder, vector, i, ITEMSIZE[dtype] * 8)
                _put(context, builder, signature.args[0], args[0], args[1], i, _widen(builder, bits, dtype, acc))
            return context.get_dummy_value()

        return types.void(values, types.int32, words, types.int32), codegen

    return load_elements
