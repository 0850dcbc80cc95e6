"""Numbers of the elements of a window, a byte each in memory, an int32 each in registers; and the nearest number of a range."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.access import _bytes_at, store_together
from numbadnn.kernels.lang.cuda import SIMULATED, i32, i64, types
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _I32, _asm

#: the element type of an array of codes
CODE = np.dtype("int32") if SIMULATED else i32


if SIMULATED:

    def clamped(i: int, n: int) -> int:
        """i, or the nearest number in 0 ... n - 1."""
        return min(max(int(i), 0), n - 1)
else:

    @emitted(i32, i32, i32)
    def clamped(builder, i, n):
        """i, or the nearest number in 0 ... n - 1."""
        low = builder.select(builder.icmp_signed(">", i, _I32(0)), i, _I32(0))
        most = builder.sub(n, _I32(1))
        return builder.select(builder.icmp_signed("<", low, most), low, most)


@functools.cache
def load_codes(count: int) -> Callable[..., None]:
    """``load_codes(codes, start, address, there)``: ``count`` bytes in one aligned access; 0 if not ``there``."""
    if SIMULATED:

        def twin(codes, start, address, there):
            codes[start : start + count] = (
                np.frombuffer(bytes(_bytes_at(int(address), count)), np.uint8) if there else 0
            )

        return twin
    held = -(-count // 4)
    names, part = ", ".join(f"${i}" for i in range(held)), {1: "u8", 2: "u16"}.get(count, "b32")
    vector = f".v{held}.b32 {{{names}}}" if held > 1 else f".{part} {names}"
    template = (
        f"{{.reg .pred p; setp.ne.s32 p, ${held + 1}, 0; "
        + "".join(f"mov.b32 ${i}, 0; " for i in range(held))
        + f"@p ld.global{vector}, [${held}];}}"
    )
    constraints = ",".join(["=&r"] * held + ["l", "r"])

    @emitted(None, ARRAY, i32, i64, types.boolean)
    def load(builder, codes, start, address, there):
        result = _I32 if held == 1 else ir.LiteralStructType([_I32] * held)
        got = _asm(builder, template, constraints, result, [address, builder.zext(there, _I32)])
        words = [got] if held == 1 else [builder.extract_value(got, i) for i in range(held)]
        for i in range(count):
            code = builder.and_(builder.lshr(words[i // 4], _I32(8 * (i % 4))), _I32(255))
            codes.put(start, i, code)

    return load


@functools.cache
def store_codes(count: int) -> Callable[..., None]:
    """``store_codes(codes, start, address)``: ``count`` codes from codes[start:], a byte each, in one aligned access."""
    if SIMULATED:

        def twin(codes, start, address):
            _bytes_at(int(address), count)[:] = codes[start : start + count].astype(np.uint8).tobytes()

        return twin

    @emitted(None, ARRAY, i32, i64)
    def store(builder, codes, start, address):
        got: list[Any] = [codes.get(start, i) for i in range(count)]
        words = []
        for i in range(0, count, 4):
            word = got[i]
            for k, code in enumerate(got[i + 1 : i + 4], 1):
                word = builder.or_(word, builder.shl(code, _I32(8 * k)))
            words.append(word)
        if count < 4:
            words = [builder.trunc(words[0], ir.IntType(8 * count))]
        store_together(builder, address, words, "")

    return store
