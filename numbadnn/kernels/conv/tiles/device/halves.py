"""Products of 16-bit numbers by a warp: ldmatrix from shared memory, mma.sync with sums in float32.

``multiply(sums, shared, a_at, b_at)`` is that of ``device/sums.py``. A tile lies in shared memory as its operand
does in global memory: [unit][term] where terms are neighbours, else [term][unit], which ldmatrix transposes. One
ldmatrix gives a thread four pairs of neighbouring terms: of 16 rows and 16 terms of a, or of 16 columns of b.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.conv.tiles.config import ImplicitTilesConfig
from numbadnn.kernels.conv.tiles.device.sums import steps, warp_place
from numbadnn.kernels.lang.cuda import SIMULATED, cuda, device, i32, intrinsic, types
from numbadnn.kernels.lang.llvm import _I32, _asm, _slot
from numbadnn.kernels.lang.mma import product
from numbadnn.kernels.lang.warp import _EXCHANGE

INT32 = np.int32
TERMS = 16


@functools.cache
def load_matrices(transposed: bool) -> Callable[..., None]:
    """``load_matrices(words, start, shared, address)``: four 8 x 8 matrices, the rows of the i-th at lanes 8i to 8i+7."""
    if SIMULATED:
        return functools.partial(_load_twin, transposed)
    name = "ldmatrix.sync.aligned.m8n8.x4" + (".trans" if transposed else "") + ".shared.b16"

    @intrinsic
    def load(typingctx, words, start, shared, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            kind = ir.LiteralStructType([_I32] * 4)
            # memory is read: the compiler must not move it past a barrier
            constraints = "=r,=r,=r,=r,r,~{memory}"
            found = _asm(builder, f"{name} {{$0,$1,$2,$3}}, [$4];", constraints, kind, [args[3]], pure=False)
            for e in range(4):
                target = _slot(context, builder, signature.args[0], args[0], args[1], e)
                builder.store(builder.extract_value(found, e), target)
            return context.get_dummy_value()

        return types.void(words, i32, shared, i32), codegen

    return load


def by_halves(dtype: str, config: ImplicitTilesConfig) -> Callable[..., None]:
    """``multiply(sums, shared, a_at, b_at)``: one pair of tiles."""
    tall, wide, depth = config.tall, config.wide, config.k
    a_term, a_unit = steps(config, config.a, config.m, 2)
    b_term, b_unit = steps(config, config.b, config.n, 2)
    load_a, load_b = load_matrices(not config.a.along_terms), load_matrices(not config.b.along_terms)
    place, multiply_add, a_held, b_held = warp_place(config), product(dtype, TERMS), tall // 4, wide // 4

    @device
    def multiply(sums, shared, a_at, b_at):  # type: ignore[no-untyped-def]
        a = cuda.local.array(a_held, INT32)
        b = cuda.local.array(b_held, INT32)
        row, column, g, t = place()
        lane = i32(g * 4 + t)
        # matrix lane // 8: of a rows 0-7 and 8-15, then the same of later terms; of b terms first, then columns
        low, second, upper = i32(lane & 7), i32(((lane >> 3) & 1) * 8), i32((lane >> 4) * 8)
        if a_term == 2:
            a_at = i32(a_at + (row + second + low) * a_unit + upper * a_term)
        else:
            a_at = i32(a_at + (row + second) * a_unit + (upper + low) * a_term)
        if b_term == 2:
            b_at = i32(b_at + (column + upper + low) * b_unit + second * b_term)
        else:
            b_at = i32(b_at + (column + upper) * b_unit + (second + low) * b_term)
        for step in range(depth // TERMS):
            for i in range(tall // 16):
                load_a(a, i32(i * 4), shared, i32(a_at + step * (TERMS * a_term) + i * (16 * a_unit)))
            for j in range(wide // 16):
                load_b(b, i32(j * 4), shared, i32(b_at + step * (TERMS * b_term) + j * (16 * b_unit)))
            for i in range(tall // 16):
                for j in range(wide // 8):
                    multiply_add(sums, i32((i * (wide // 8) + j) * 4), a, i32(i * 4), b, i32(j * 2))

    return multiply


# ---- twin: the simulator has no warps, so every thread of the block meets here, and one of each 32 loads for all of them


def _load_twin(transposed: bool, words: Any, start: int, shared: Any, address: int) -> None:
    import threading

    thread: Any = threading.current_thread()
    number = thread.thread_id
    _EXCHANGE[number] = address // 2
    if thread.meet(~(number >> 5), 32):  # the last of the warp reads for all
        first = number & ~31
        rows = np.array([_EXCHANGE[first + lane] for lane in range(32)]).reshape(4, 8, 1)
        tiles = np.asarray(shared.view(np.uint16)[rows + np.arange(8)], np.uint16)
        tiles = np.ascontiguousarray(tiles.swapaxes(1, 2) if transposed else tiles)
        for lane, found in enumerate(tiles.view(np.int32).reshape(4, 32).T):
            _EXCHANGE[first + lane] = found
    words[start : start + 4] = _EXCHANGE[number]
