"""Instructions of the persistent recurrent kernels, each beside its twin for the simulator.

A grid barrier by integer counters: ``arrive`` after a block's writes, ``await_count`` before reading the others'.
``send(address, value, tag)`` writes a float32 and its tag as one word of 64 bits, ``receive(values, tags, at, address)``
reads one: whoever sees the tag has the value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.access import _bytes_at
from numbadnn.kernels.lang.cuda import SIMULATED, f32, i32, i64, u32
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted, instruction
from numbadnn.kernels.lang.llvm import _I16, _I32, _asm, _pointer


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
    return instruction("fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [$0], 1;", (), (i64,))


def _make_await() -> Any:
    text = "{.reg .pred p; .reg .u32 v; AGAIN: ld.acquire.gpu.global.u32 v, [$0]; setp.lt.u32 p, v, $1; @p bra AGAIN;}"
    return instruction(text, (), (i64, i32))


def _make_word() -> Any:
    @emitted(u32, i64)
    def load(builder, address):
        return builder.load(_pointer(builder, address, _I32))

    return load


def _make_halves() -> Any:
    @emitted(u32, i64, i64)
    def load(builder, low, high):
        low, high = (builder.zext(builder.load(_pointer(builder, a, _I16)), _I32) for a in (low, high))
        return builder.or_(low, builder.shl(high, ir.Constant(_I32, 16)))

    return load


def _make_send() -> Any:
    @emitted(None, i64, f32, i32)
    def run(builder, address, value, tag):
        text = "{.reg .b64 t; mov.b64 t, {$1, $2}; st.relaxed.gpu.global.b64 [$0], t;}"
        values = [address, builder.bitcast(value, _I32), tag]
        _asm(builder, text, "l,r,r,~{memory}", ir.VoidType(), values, pure=False)

    return run


def _make_receive() -> Any:
    @emitted(None, ARRAY, ARRAY, i32, i64)
    def run(builder, values, tags, at, address):
        text = "{.reg .b64 t; ld.relaxed.gpu.global.b64 t, [$2]; mov.b64 {$0, $1}, t;}"
        pair = ir.LiteralStructType([_I32, _I32])
        found = _asm(builder, text, "=r,=r,l,~{memory}", pair, [address], pure=False)
        values.put(at, 0, builder.extract_value(found, 0))
        tags.put(at, 0, builder.extract_value(found, 1))

    return run


def _send_twin(address: int, value: Any, tag: int) -> None:
    _bytes_at(int(address), 8)[:] = np.float32(value).tobytes() + np.int32(tag).tobytes()


def _receive_twin(values: Any, tags: Any, at: int, address: int) -> None:
    values[at], tags[at] = np.frombuffer(bytes(_bytes_at(int(address), 8)), np.uint32)


def _halves_twin(low: int, high: int) -> Any:
    return np.frombuffer(bytes(_bytes_at(int(low), 2)) + bytes(_bytes_at(int(high), 2)), np.uint32)[0]


arrive: Any = _arrive_twin if SIMULATED else _make_arrive()
await_count: Any = _await_twin if SIMULATED else _make_await()
load_word: Any = _word_twin if SIMULATED else _make_word()
load_halves: Any = _halves_twin if SIMULATED else _make_halves()
send: Any = _send_twin if SIMULATED else _make_send()
receive: Any = _receive_twin if SIMULATED else _make_receive()
