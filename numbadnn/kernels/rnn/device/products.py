"""The products of the persistent recurrent kernels: a tile of states times a block's part of R, shared by eight warps.

The warps share the terms of each sum, and their parts are added in order. Float32 multiplies by fused multiply-adds,
float16 by tensor cores, its part of R in registers.
"""

from __future__ import annotations

from typing import Any

from numbadnn.kernels.lang.access import load_shared
from numbadnn.kernels.lang.cuda import WORD, cuda, device, f32, i32
from numbadnn.kernels.lang.mma import product
from numbadnn.kernels.rnn.persist_config import Persist

WARPS = 8


def products(config: Persist, columns: int, gates: int, column_pitch: int) -> tuple[Any, Any, int, int]:
    """(``multiply``, ``spill``, the sums a thread has, the words of R it holds).

    ``multiply(sums, words, tile, fragments, g, lane, warp)`` adds the tile (rows, hidden) times this block's part of R,
    ``columns`` of it, for gate ``g`` of ``gates``; ``spill(red, sums, lane, warp)`` writes a warp's sums where all can
    read them.
    """
    rows, hidden, pitch, red_pitch = config.rows, config.hidden, config.pitch, columns + 8
    return (_by_mma if config.dtype == "float16" else _by_fma)(
        rows, hidden, pitch, red_pitch, columns, gates, column_pitch
    )


def _by_fma(
    rows: int, hidden: int, pitch: int, red_pitch: int, columns: int, gates: int, column_pitch: int
) -> tuple[Any, Any, int, int]:
    """A lane has rows lane // 8 + 4 i and columns lane % 8 + 8 q; a warp every eighth run of four terms."""
    tall, wide = rows // 4, columns // 8
    a_count, b_count, chunks = 4 * tall, 4 * wide, hidden // (4 * WARPS)
    read = load_shared("float32", 4, "float32")

    @device
    def multiply(sums, words, tile, fragments, g, lane, warp):
        a = cuda.local.array(a_count, f32)
        b = cuda.local.array(b_count, f32)
        row, column = i32(lane >> 3), i32(lane & 7)
        for j in range(chunks):
            k = i32((warp + j * WARPS) * 4)
            for i in range(tall):
                read(a, i32(i * 4), words, i32(tile + (row + 4 * i) * pitch + k))
            for q in range(wide):
                read(b, i32(q * 4), words, i32((column + 8 * q) * column_pitch + g * hidden + k))
            for e in range(4):
                for i in range(tall):
                    for q in range(wide):
                        sums[i * wide + q] = f32(sums[i * wide + q] + a[i * 4 + e] * b[q * 4 + e])

    @device
    def spill(red, sums, lane, warp):
        for i in range(tall):
            for q in range(wide):
                red[(warp * rows + (lane >> 3) + 4 * i) * red_pitch + (lane & 7) + 8 * q] = sums[i * wide + q]

    return multiply, spill, tall * wide, 1


def _by_mma(
    rows: int, hidden: int, pitch: int, red_pitch: int, columns: int, gates: int, column_pitch: int
) -> tuple[Any, Any, int, int]:
    """A warp has every eighth run of 16 terms, and its part of R in registers."""
    tall, lines, pieces = rows // 16, columns // 8, hidden // (16 * WARPS)
    add_product = product("float16", 16)

    @device
    def multiply(sums, words, tile, fragments, g, lane, warp):
        a = cuda.local.array(4, WORD)
        row, pair = i32(lane >> 2), i32(lane & 3)
        for j in range(pieces):
            k = i32((warp + j * WARPS) * 8 + pair)
            for m in range(tall):
                at = i32(tile + (m * 16 + row) * pitch + k)
                a[0], a[1] = words[at], words[i32(at + 8 * pitch)]
                a[2], a[3] = words[i32(at + 4)], words[i32(at + 8 * pitch + 4)]
                for line in range(lines):
                    held = i32(((g * pieces + j) * lines + line) * 2)
                    add_product(sums, i32((m * lines + line) * 4), a, i32(0), fragments, held)

    @device
    def spill(red, sums, lane, warp):
        for m in range(tall):
            for line in range(lines):
                for e in range(4):
                    row = m * 16 + (lane >> 2) + 8 * (e >> 1)
                    red[(warp * rows + row) * red_pitch + line * 8 + (lane & 3) * 2 + (e & 1)] = sums[
                        (m * lines + line) * 4 + e
                    ]

    return multiply, spill, tall * lines * 4, gates * pieces * lines * 2
