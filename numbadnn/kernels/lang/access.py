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

from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, i32, i64
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted, instruction
from numbadnn.kernels.lang.llvm import _I32, _asm, _element, _narrow, _packed, _pointer, _unit, _vector, _widen
from numbadnn.problem import ITEMSIZE

#: (first, last + 1) byte addresses that the twins may touch; set by simulate.run
MEMORY: list[tuple[int, int]] = []


@functools.cache
def _numpy_type(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(dtype).type


def _bytes_at(address: int, size: int) -> Any:
    for low, high in MEMORY:  # a loop: any() takes three times as long, and all that kernels touch is asked about
        if low <= address and address + size <= high:
            break
    else:
        raise IndexError(f"the kernel touches {size} bytes at {address}, outside every operand")
    if address % size:
        raise ValueError(f"the kernel touches {size} bytes at {address}, which is not aligned to them")
    return (ctypes.c_uint8 * size).from_address(address)


def _read(dtype: str, address: int, count: int) -> Any:
    return np.frombuffer(bytes(_bytes_at(int(address), ITEMSIZE[dtype] * count)), _numpy_type(dtype))


def _write(dtype: str, address: int, values: Any) -> None:
    data = np.asarray(values).astype(_numpy_type(dtype)).tobytes()
    _bytes_at(int(address), len(data))[:] = data


@functools.cache
def load(dtype: str, acc: str) -> Callable[..., Any]:
    """``load(address) -> acc``: one element."""
    if SIMULATED:
        kind = ACCUMULATOR[acc]
        return lambda address: kind(_read(dtype, address, 1)[0])

    @emitted(ACCUMULATOR[acc], i64)
    def load_element(builder, address):
        bits = builder.load(_pointer(builder, address, ir.IntType(8 * ITEMSIZE[dtype])))
        return _widen(builder, bits, dtype, acc)

    return load_element


@functools.cache
def store(dtype: str, acc: str) -> Callable[..., None]:
    """``store(address, value)``: one element, rounded once from ``acc``."""
    if SIMULATED:
        return lambda address, value: _write(dtype, address, ACCUMULATOR[acc](value))

    @emitted(None, i64, ACCUMULATOR[acc])
    def store_element(builder, address, value):
        bits = _narrow(builder, value, dtype, acc)
        builder.store(bits, _pointer(builder, address, bits.type))

    return store_element


@functools.cache
def load_vector(dtype: str, count: int, acc: str) -> Callable[..., None]:
    """``load_vector(values, start, address)``: ``count`` elements in one aligned access into values[start:]."""
    if SIMULATED:

        def twin(values, start, address):
            values[start : start + count] = _read(dtype, address, count)

        return twin

    @emitted(None, ARRAY, i32, i64)
    def load_elements(builder, values, start, address):
        word = ir.IntType(8 * min(ITEMSIZE[dtype] * count, max(ITEMSIZE[dtype], 4)))
        words = ir.VectorType(word, ITEMSIZE[dtype] * count * 8 // word.width)
        vector = builder.load(_pointer(builder, address, words))
        vector.align = ITEMSIZE[dtype] * count
        for i in range(count):
            bits = _element(builder, vector, i, ITEMSIZE[dtype] * 8)
            values.put(start, i, _widen(builder, bits, dtype, acc))

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
    vector = _vector(builder, words)
    builder.store(vector, _pointer(builder, address, vector.type)).align = len(words) * width // 8


@functools.cache
def store_vector(dtype: str, count: int, acc: str, given_up: str = "") -> Callable[..., None]:
    """``store_vector(values, start, address)``: values[start : start + count] in one aligned access; see ``HINTS``."""
    if SIMULATED:
        return lambda values, start, address: _write(dtype, address, values[start : start + count])

    @emitted(None, ARRAY, i32, i64)
    def store_elements(builder, values, start, address):
        got = [values.get(start, i) for i in range(count)]
        store_together(builder, address, _packed(builder, got, dtype, acc), given_up)

    return store_elements


@functools.cache
def copy_bytes(size: int) -> Callable[..., None]:
    """``copy_bytes(destination, source)``: ``size`` (2, 4, 8 or 16) aligned bytes, whatever they mean."""
    if SIMULATED:

        def twin(destination, source):
            _bytes_at(int(destination), size)[:] = bytes(_bytes_at(int(source), size))

        return twin

    @emitted(None, i64, i64)
    def copy(builder, destination, source):
        kind = _unit(size)
        value = builder.load(_pointer(builder, source, kind))
        value.align = size
        builder.store(value, _pointer(builder, destination, kind)).align = size

    return copy


@functools.cache
def zero_bytes(size: int) -> Callable[..., None]:
    """``zero_bytes(destination)``: ``size`` (2, 4, 8 or 16) aligned bytes become 0."""
    if SIMULATED:

        def twin(destination):
            _bytes_at(int(destination), size)[:] = bytes(size)

        return twin

    @emitted(None, i64)
    def zero(builder, destination):
        kind = _unit(size)
        builder.store(ir.Constant(kind, None), _pointer(builder, destination, kind)).align = size

    return zero


def _prefetch() -> Callable[[Any], None]:
    if SIMULATED:
        return lambda address: _bytes_at(int(address), 1)

    @emitted(None, i64)
    def fetch(builder, address):
        _asm(builder, "prefetch.global.L2 [$0];", "l", ir.VoidType(), [address], pure=False)

    return fetch


def _forgotten(address: Any) -> None:
    if address % 128:
        raise ValueError(f"{address} is not aligned to a line of the cache")
    for word in range(0, 128, 16):
        _bytes_at(int(address) + word, 16)[:] = b"\xff" * 16


#: ``prefetch(address)``: have the line of memory that lies there brought to the L2 cache, without waiting for it
prefetch = _prefetch()
#: ``forget(address)``: nobody will read the 128 aligned bytes there before they are written again: the L2 cache need not write
#: them to memory
forget = _forgotten if SIMULATED else instruction("discard.global.L2 [$0], 128;", (), (i64,))


@functools.cache
def load_shared(dtype: str, count: int, acc: str) -> Callable[..., None]:
    """``load_shared(values, start, words, at)``: ``count`` elements of raw bits from the shared words[at:] on."""
    size = ITEMSIZE[dtype] * count
    if SIMULATED:

        def twin(values, start, words, at):
            raw = np.ascontiguousarray(words[at : at + size // 4])
            values[start : start + count] = raw.view(_numpy_type(dtype))

        return twin

    @emitted(None, ARRAY, i32, ARRAY, i32)
    def load_elements(builder, values, start, words, at):
        word = ir.IntType(8 * max(ITEMSIZE[dtype], 4))
        kind = ir.VectorType(word, size * 8 // word.width)
        vector = builder.load(builder.bitcast(words.slot(at), kind.as_pointer()))
        vector.align = size
        for i in range(count):
            bits = _element(builder, vector, i, ITEMSIZE[dtype] * 8)
            values.put(start, i, _widen(builder, bits, dtype, acc))

    return load_elements
