"""Elements as the bits they are: loaded from an address into a register and stored again, whatever they mean."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.access import _bytes_at
from numbadnn.kernels.lang.cuda import SIMULATED, i64, types
from numbadnn.kernels.lang.intrinsics import emitted
from numbadnn.kernels.lang.llvm import _pointer

_TYPES = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def bits_type(size: int) -> Any:
    """The type of a register, and of an element of shared memory, that holds ``size`` (2, 4 or 8) bytes: 32 bits or 64."""
    if SIMULATED:
        return np.dtype("uint64" if size == 8 else "uint32")
    return types.uint64 if size == 8 else types.uint32


@functools.cache
def load_bits(size: int) -> Callable[..., Any]:
    """``load_bits(address) -> bits``: ``size`` aligned bytes, the upper half of a register 0 where they are two."""
    if SIMULATED:
        held = np.uint64 if size == 8 else np.uint32
        return lambda address: held(np.frombuffer(bytes(_bytes_at(int(address), size)), _TYPES[size])[0])

    @emitted(bits_type(size), i64)
    def load(builder, address):
        bits = builder.load(_pointer(builder, address, ir.IntType(8 * size)))
        return builder.zext(bits, ir.IntType(32)) if size == 2 else bits

    return load


@functools.cache
def store_bits(size: int) -> Callable[..., None]:
    """``store_bits(address, bits)``: ``size`` aligned bytes, of two the lower half of the register."""
    if SIMULATED:

        def twin(address, bits):
            kept = np.uint64(bits) & np.uint64((1 << 8 * size) - 1)
            _bytes_at(int(address), size)[:] = kept.astype(_TYPES[size]).tobytes()

        return twin

    @emitted(None, i64, bits_type(size))
    def store(builder, address, bits):
        kind = ir.IntType(8 * size)
        builder.store(builder.trunc(bits, kind) if size == 2 else bits, _pointer(builder, address, kind))

    return store
