"""Products of 16-bit numbers by a warp: ldmatrix from shared memory, mma.sync with sums in float32.

``multiply(sums, shared, a_at, b_at)`` is that of ``device/sums.py``. A tile lies in shared memory as its operand
does in global memory: [unit][term] where terms are neighbours, else [term][unit], which ldmatrix transposes. One
ldmatrix gives a thread four pairs of neighbouring terms: of 16 rows and 16 terms of a, or of 16 columns of b.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numbadnn.kernels.conv.tiles.config import ImplicitTilesConfig
from numbadnn.kernels.conv.tiles.device.sums import steps
from numbadnn.kernels.gemm.device.parts import warp_place
from numbadnn.kernels.lang.cuda import cuda, device, i32
from numbadnn.kernels.lang.mma import load_matrices, product

INT32 = np.int32
TERMS = 16


def by_halves(dtype: str, config: ImplicitTilesConfig) -> Callable[..., None]:
    """``multiply(sums, shared, a_at, b_at)``: one pair of tiles."""
    tall, wide, depth = config.tall, config.wide, config.k
    a_term, a_unit = steps(config, config.a, config.m, 2)
    b_term, b_unit = steps(config, config.b, config.n, 2)
    load_a, load_b = load_matrices(not config.a.along_terms), load_matrices(not config.b.along_terms)
    place, multiply_add, a_held, b_held = warp_place(config), product(dtype, TERMS), tall // 4, wide // 4

    @device
    def multiply(sums, shared, a_at, b_at):
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
