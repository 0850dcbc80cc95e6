"""Instructions of the persistent recurrent kernels, each beside its twin for the simulator.

A grid barrier by integer counters: ``arrive`` after a block's writes, ``await_count`` before reading the others'.
``product``, m16n8k16 of float16 with float32 sums: lane 4*g + t holds rows g, g+8 and columns 2t, 2t+1 (then +8) of A,
as pairs in one word; column g of B; c as everywhere. Every thread of the block must take part.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels._cuda import SIMULATED, intrinsic, types
from numbadnn.kernels._ptx import _EXCHANGE, _FLOAT, _I16, _I32, _asm, _bytes_at, _pointer, _slot

_MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"


def _word_twin(address: int) -> Any:
    return np.frombuffer(bytes(_bytes_at(int(address), 4)), np.uint32)[0]


def _arrive_twin(address: int) -> None:
    count = int(_word_twin(address)) + 1
    _bytes_at(int(address), 4)[:] = np.uint32(count).tobytes()


def _await_twin(address: int, count: int) -> None:
    """Blocks run one after another there: a grid of one block never waits."""
    if int(_word_twin(address)) < int(count):
        raise RuntimeError("the simulator runs one block at a time: a grid barrier needs a grid of one block")


def _make_arrive() -> Any:
    @intrinsic
    def run(typingctx, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            text = "fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [$0], 1;"
            _asm(builder, text, "l,~{memory}", ir.VoidType(), list(args), pure=False)
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return run


def _make_await() -> Any:
    @intrinsic
    def run(typingctx, address, count):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            text = (
                "{.reg .pred p; .reg .u32 v; AGAIN: ld.acquire.gpu.global.u32 v, [$0]; setp.lt.u32 p, v, $1; "
                "@p bra AGAIN;}"
            )
            _asm(builder, text, "l,r,~{memory}", ir.VoidType(), list(args), pure=False)
            return context.get_dummy_value()

        return types.void(types.int64, types.int32), codegen

    return run


def _make_word() -> Any:
    @intrinsic
    def load(typingctx, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.load(_pointer(builder, args[0], _I32))

        return types.uint32(types.int64), codegen

    return load


def _make_halves() -> Any:
    @intrinsic
    def load(typingctx, low, high):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            parts = [builder.zext(builder.load(_pointer(builder, a, _I16)), _I32) for a in args]
            return builder.or_(parts[0], builder.shl(parts[1], ir.Constant(_I32, 16)))

        return types.uint32(types.int64, types.int64), codegen

    return load


def _halves_twin(low: int, high: int) -> Any:
    return np.frombuffer(bytes(_bytes_at(int(low), 2)) + bytes(_bytes_at(int(high), 2)), np.uint32)[0]


def _make_product() -> Any:
    @intrinsic
    def multiply(typingctx, sums, at, a, i, b, j):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            def slots(array, count):  # type: ignore[no-untyped-def]
                kind = signature.args[2 * array]
                return [_slot(context, builder, kind, args[2 * array], args[2 * array + 1], e) for e in range(count)]

            c_slots = slots(0, 4)
            values = [builder.load(s) for s in (*slots(1, 4), *slots(2, 2), *c_slots)]
            text = f"{_MMA} {{$0,$1,$2,$3}},{{$4,$5,$6,$7}},{{$8,$9}},{{$10,$11,$12,$13}};"
            constraints = "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"
            found = _asm(builder, text, constraints, ir.LiteralStructType([_FLOAT] * 4), values)
            for e, slot in enumerate(c_slots):
                builder.store(builder.extract_value(found, e), slot)
            return context.get_dummy_value()

        return types.void(sums, types.int32, a, types.int32, b, types.int32), codegen

    return multiply


def _product_twin(sums: Any, at: int, a: Any, i: int, b: Any, j: int) -> None:
    thread: Any = threading.current_thread()
    number = thread.thread_id
    _EXCHANGE[number] = (
        np.array(a[i : i + 4], np.uint32).view(np.float16).astype(np.float32),
        np.array(b[j : j + 2], np.uint32).view(np.float16).astype(np.float32),
    )
    thread.syncthreads()
    first, g, t = number & ~31, (number & 31) >> 2, number & 3
    for k in range(16):
        lane, half, upper = (k & 7) >> 1, k & 1, k >> 3
        left = _EXCHANGE[first + g * 4 + lane][0]
        for e in range(2):
            right = _EXCHANGE[first + (2 * t + e) * 4 + lane][1][2 * upper + half]
            sums[at + e] += left[4 * upper + half] * right
            sums[at + 2 + e] += left[4 * upper + 2 + half] * right
    thread.syncthreads()


arrive: Any = _arrive_twin if SIMULATED else _make_arrive()
await_count: Any = _await_twin if SIMULATED else _make_await()
load_word: Any = _word_twin if SIMULATED else _make_word()
load_halves: Any = _halves_twin if SIMULATED else _make_halves()
product: Any = _product_twin if SIMULATED else _make_product()
