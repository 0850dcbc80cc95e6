"""A box of an image in shared memory, copied there in the background, piece by piece: what a tile of points needs.

The pixels around neighbouring points lie near each other. ``box_of`` finds the smallest box of the image that has those of a
block's points, ``stager`` copies what of it is needed: of a turned tile's box a third is not, and the L2 cache, from which
neighbouring tiles read the same pixels, is what limits 16-bit samplers. Its two halves ask each other less often where one
copy brings all 128 bytes that its piece lies in: a tile nearby wants them soon.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.access import _numpy_type
from numbadnn.kernels.lang.async_copies import commit_async, copy_or_zero, wait_async_but
from numbadnn.kernels.lang.cuda import (
    ACCUMULATOR,
    SIMULATED,
    cuda,
    device,
    i32,
    i64,
    u32,
)
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _I32, _asm, _widen
from numbadnn.kernels.lang.warp import largest_of_warp
from numbadnn.kernels.spatial.layout import StagedConfig
from numbadnn.problem import ITEMSIZE

#: no pixel: farther than any
FAR = -(2**29)


# ---- pieces of a box, and elements of it ----------------------------------------------------------------------------


def _address_of() -> Callable[..., Any]:
    """``address_of(words) -> i32``: where a shared array begins; a place in it is then one 32-bit sum away."""
    if SIMULATED:
        return lambda words: 0

    template = "{.reg .u64 t; cvta.to.shared.u64 t, $1; cvt.u32.u64 $0, t;}"

    @emitted(i32, ARRAY)
    def address_of(builder, words):
        first = words.slot(ir.Constant(_I32, 0), 0)
        return _asm(builder, template, "=r,l", _I32, [builder.ptrtoint(first, ir.IntType(64))], pure=False)

    return address_of


address_of = _address_of()


@functools.cache
def element(dtype: str, acc: str) -> Callable[..., Any]:
    """``element(words, at, more) -> acc``: the element ``more`` bytes, a constant, behind a shared address.

    The constant becomes part of the instruction that reads; a sum of two integers would be an instruction of its own.
    """
    size = ITEMSIZE[dtype]
    if SIMULATED:

        def twin(words, at, more):
            at += more
            raw = np.ascontiguousarray(words[at // 4 : at // 4 + max(1, size // 4)]).view(_numpy_type(dtype))
            return ACCUMULATOR[acc](raw[at % 4 // size])

        return twin

    @emitted(ACCUMULATOR[acc], ARRAY, i32, i32)
    def read(builder, words, at, more):
        base = builder.inttoptr(at, ir.IntType(8).as_pointer(3))  # address space 3: shared memory
        place = builder.bitcast(builder.gep(base, [more], inbounds=True), ir.IntType(8 * size).as_pointer(3))
        return _widen(builder, builder.load(place, align=size), dtype, acc)

    return read


# ---- the box ----------------------------------------------------------------------------------------------------------


def box_of(dtype: str, config: StagedConfig, more: int) -> Any:
    """``box(...) -> (fits, left, top, wide, tall, pitch)`` of all the block's places, which reach ``more`` beyond their own.

    From this thread's largest -column, column, -row and row (FAR: it has none) and a shared array of four integers a warp.
    ``left`` and ``wide`` are in pieces of ``vec`` columns. A row of the box begins ``pitch`` pixels behind the one above: where
    there is room as many as all banks hold, so that neighbouring columns do not meet in a bank, whatever their rows. (Pixels of
    16 bits seldom meet; there the copies into such rows would.)
    """
    warps = config.threads // 32
    vec, capacity, banks = config.vec, config.pieces, 128 // ITEMSIZE[dtype] if ITEMSIZE[dtype] > 2 else 1
    pixels = capacity * vec

    @device
    def box(low_j, high_j, low_i, high_i, table):
        low_j, high_j = largest_of_warp(low_j), largest_of_warp(high_j)
        low_i, high_i = largest_of_warp(low_i), largest_of_warp(high_i)
        lane, mine = i32(i32(cuda.threadIdx.x) & 31), i32(i32(i32(cuda.threadIdx.x) >> 5) * 4)
        if lane == 0:
            table[mine], table[mine + 1], table[mine + 2], table[mine + 3] = low_j, high_j, low_i, high_i
        cuda.syncthreads()
        other = i32(i32(lane & (warps - 1)) * 4)
        low_j, high_j = largest_of_warp(table[other]), largest_of_warp(table[other + 1])
        low_i, high_i = largest_of_warp(table[other + 2]), largest_of_warp(table[other + 3])
        some = high_j > FAR
        first = i32(-low_j) if some else i32(0)
        last = i32(high_j + more) if some else i32(-1)
        left = i32(i32(u32(i32(first + vec)) // u32(vec)) - 1)  # rounded down; a column may be -1
        wide = i32(i32(u32(i32(last + vec)) // u32(vec)) - left)
        top = i32(-low_i) if some else i32(0)
        tall = i32(high_i - top + (1 + more)) if some else i32(0)
        fits = wide <= capacity and tall <= capacity and i32(wide * tall) <= capacity
        pitch = i32(i32(wide * vec + (banks - 1)) & -banks)
        return fits, left, top, wide, tall, pitch if fits and i32(pitch * tall) <= pixels else i32(wide * vec)

    return box


def stager(dtype: str, config: StagedConfig, rounds: int, by_line: bool = False) -> tuple[Any, Any]:
    """``plan(sources, places, ...)`` of up to ``rounds`` pieces a thread, ``begin(words, to, sources, steps, places)``: begin to
    copy a channel of them.

    ``by_line``: where there are threads enough, 8 or 16 neighbours copy a row, and which of them copies a piece is where that
    lies among as many pieces of memory: no row's copies are those of two groups. They ask the L2 cache less often.
    """
    size, vec, threads = ITEMSIZE[dtype], config.vec, config.threads
    copy, shift = copy_or_zero(vec * size, 128), (vec * size).bit_length() - 1

    @device
    def plan(sources, places, needed, skip, line, left, top, wide, tall, pitch, row_step):
        """The first ``skip`` pieces are others'. Of the thread's r-th piece, sources[r] is where it lies in the channel at
        ``line``, places[r] where in the box, in bytes; -1: it is not copied, as no point needs it."""
        across = i32(8 if wide <= 8 else 16)
        lined = by_line and wide <= across and i32(tall * across) <= i32(rounds * threads - skip)
        for r in range(rounds):
            piece = i32(i32(cuda.threadIdx.x) + r * threads - skip)
            if piece >= 0:
                if lined:
                    row = i32(piece >> (3 if across == 8 else 4))
                    begins = line + i32(top + row) * row_step + i64(i32(left * vec)) * size
                    column = i32(i32(piece - i32((begins >> shift) & 15)) & i32(across - 1))
                else:
                    row = i32(u32(piece) // u32(max(wide, i32(1))))
                    column = i32(piece - row * wide)
                place = i32(row * pitch + column * vec)
                sources[r] = line + i32(top + row) * row_step + i64(i32((column + left) * vec)) * size
                places[r] = -1
                if row < tall and (column < wide or not by_line) and needed[i32(u32(place) // u32(vec))] != 0:
                    places[r] = i32(place * size)

    @device
    def begin(words, to, sources, steps, places):
        for r in range(rounds):
            if places[r] >= 0:
                copy(words, i32(to + places[r]), sources[r], True)
            sources[r] += steps[r]

    return plan, begin


def walking(config: Any, begin: Callable[..., None], box_bytes: int) -> Callable[..., None]:
    """``next_boxes(s, left, copies)``: wait for the boxes of slot s, then begin those of the slot before, if channels are left.

    ``copies``: shared memory, where its boxes start, and of a thread's pieces the sources, steps, places and whether it has any.
    """
    stages, group, slot = config.stages, config.group, config.group * box_bytes
    wait = wait_async_but(stages - 2)

    @device
    def next_boxes(s, left, copies):
        words, start_of, sources, steps, places, some = copies
        wait()
        cuda.syncthreads()
        if left > (stages - 1) * group and some >= 0:
            for q in range(group):
                ahead = i32(start_of + ((s + stages - 1) % stages * slot + q * box_bytes))
                begin(words, ahead, sources, steps, places)
        commit_async()

    return next_boxes
