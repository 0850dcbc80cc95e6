"""A box of an image in shared memory, copied there in the background, piece by piece: what a tile of points needs.

The pixels around neighbouring points lie near each other. ``box_of`` finds the smallest box of the image that has those of a
block's points, ``stager`` copies it; what lies outside the image is 0 in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels import _reduce
from numbadnn.kernels._async_copies import copy_or_zero
from numbadnn.kernels._cuda import SIMULATED, cuda, device, f32, i32, i64, intrinsic, types, u32
from numbadnn.kernels._ptx import _I32, ACCUMULATOR, _asm, _numpy_type, _put, _slot, _widen
from numbadnn.kernels.spatial_layout import StagedConfig
from numbadnn.problem import ITEMSIZE

#: no pixel: farther than any
FAR = -1e9


# ---- pieces of a box, and elements of it ----------------------------------------------------------------------------


def _address_of() -> Callable[..., Any]:
    """``address_of(words) -> i32``: where a shared array begins; a place in it is then one 32-bit sum away."""
    if SIMULATED:
        return lambda words: 0

    template = "{.reg .u64 t; cvta.to.shared.u64 t, $1; cvt.u32.u64 $0, t;}"

    @intrinsic
    def address_of(typingctx, words):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            first = _slot(context, builder, signature.args[0], args[0], ir.Constant(_I32, 0), 0)
            return _asm(builder, template, "=r,l", _I32, [builder.ptrtoint(first, ir.IntType(64))], pure=False)

        return types.int32(words), codegen

    return address_of


address_of = _address_of()


@functools.cache
def element(dtype: str, acc: str) -> Callable[..., Any]:
    """``element(words, at, more) -> acc``: the element ``more`` bytes, a constant, behind a shared address.

    The constant becomes part of the instruction that reads; a sum of two integers would be an instruction of its own.
    """
    size = ITEMSIZE[dtype]
    if SIMULATED:

        def twin(words, at, more):  # type: ignore[no-untyped-def]
            at += more
            raw = np.ascontiguousarray(words[at // 4 : at // 4 + max(1, size // 4)]).view(_numpy_type(dtype))
            return ACCUMULATOR[acc](raw[at % 4 // size])

        return twin

    @intrinsic
    def read(typingctx, words, at, more):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            base = builder.inttoptr(args[1], ir.IntType(8).as_pointer(3))  # address space 3: shared memory
            place = builder.bitcast(builder.gep(base, [args[2]], inbounds=True), ir.IntType(8 * size).as_pointer(3))
            return _widen(builder, builder.load(place, align=size), dtype, acc)

        return ACCUMULATOR[acc](words, types.int32, types.int32), codegen

    return read


def _note() -> tuple[Callable[..., None], Callable[..., None]]:
    """``note(words, at, place, weight)`` keeps both at a shared address, ``noted(places, weights, e, words, at)`` brings them
    back as places[e] and weights[e]: one access of 8 bytes."""
    if SIMULATED:

        def put(words, at, place, weight):  # type: ignore[no-untyped-def]
            words[at // 4] = np.int32(place).view(np.uint32)
            words[at // 4 + 1] = np.float32(weight).view(np.uint32)

        def get(places, weights, e, words, at):  # type: ignore[no-untyped-def]
            places[e] = np.uint32(words[at // 4]).view(np.int32)
            weights[e] = np.uint32(words[at // 4 + 1]).view(np.float32)

        return put, get
    pair = ir.VectorType(_I32, 2)

    @intrinsic
    def note_both(typingctx, words, at, place, weight):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            vector = builder.insert_element(ir.Constant(pair, ir.Undefined), args[2], ir.Constant(_I32, 0))
            vector = builder.insert_element(vector, builder.bitcast(args[3], _I32), ir.Constant(_I32, 1))
            builder.store(vector, builder.inttoptr(args[1], pair.as_pointer(3))).align = 8
            return context.get_dummy_value()

        return types.void(words, types.int32, types.int32, types.float32), codegen

    @intrinsic
    def noted_both(typingctx, places, weights, e, words, at):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            vector = builder.load(builder.inttoptr(args[4], pair.as_pointer(3)))
            vector.align = 8
            first = builder.extract_element(vector, ir.Constant(_I32, 0))
            second = builder.bitcast(builder.extract_element(vector, ir.Constant(_I32, 1)), ir.FloatType())
            _put(context, builder, signature.args[0], args[0], args[2], 0, first)
            _put(context, builder, signature.args[1], args[1], args[2], 0, second)
            return context.get_dummy_value()

        return types.void(places, weights, types.int32, words, types.int32), codegen

    return note_both, noted_both


note, noted = _note()


# ---- the box ----------------------------------------------------------------------------------------------------------


def larger() -> Any:
    """``larger(a, b)``"""

    @device
    def larger_of(a, b):  # type: ignore[no-untyped-def]
        return a if a > b else b

    return larger_of


def box_of(dtype: str, config: StagedConfig, more: int) -> Any:
    """``box(...) -> (fits, left, top, wide, tall, pitch)`` of all the block's places, which reach ``more`` beyond their own.

    From this thread's largest -column, column, -row and row (FAR: it has none) and four shared arrays of 32. ``left`` and
    ``wide`` are in pieces of ``vec`` columns. A row of the box begins ``pitch`` pixels behind the one above: where there is
    room as many as all banks hold, so that neighbouring columns do not meet in a bank, whatever their rows. (Pixels of 16 bits
    seldom meet; there the copies into such rows would.)
    """
    most_of_block = _reduce.over_lanes("float32", larger(), config.threads, FAR)
    vec, room, banks = config.vec, config.pieces, 128 // ITEMSIZE[dtype] if ITEMSIZE[dtype] > 2 else 1
    pixels = room * vec

    @device
    def box(low_j, high_j, low_i, high_i, s0, s1, s2, s3):  # type: ignore[no-untyped-def]
        low_j, high_j = most_of_block(low_j, s0), most_of_block(high_j, s1)
        low_i, high_i = most_of_block(low_i, s2), most_of_block(high_i, s3)
        some = high_j > f32(FAR)
        first = i32(-low_j) if some else i32(0)
        last = i32(i32(high_j) + more) if some else i32(-1)
        left = i32(i32(u32(i32(first + vec)) // u32(vec)) - 1)  # rounded down; a column may be -1
        wide = i32(i32(u32(i32(last + vec)) // u32(vec)) - left)
        top = i32(-low_i) if some else i32(0)
        tall = i32(i32(high_i) - top + (1 + more)) if some else i32(0)
        fits = wide <= room and tall <= room and wide * tall <= room
        pitch = i32(i32(wide * vec + (banks - 1)) & -banks)
        return fits, left, top, wide, tall, pitch if fits and pitch * tall <= pixels else i32(wide * vec)

    return box


def stager(dtype: str, config: StagedConfig) -> tuple[Any, Any]:
    """``plan(offsets, places, ...)``, and ``begin(words, to, line, offsets, places)``: begin to copy a channel of the box."""
    size, vec, threads, rounds = ITEMSIZE[dtype], config.vec, config.threads, config.rounds
    nbytes = vec * size
    copy = copy_or_zero(nbytes)

    @device
    def plan(offsets, places, left, top, wide, tall, pitch, row_step, width, height):  # type: ignore[no-untyped-def]
        """Of this thread's r-th piece: offsets[r] in bytes; places[r]: -1 outside the box, else twice where in it in bytes, and 1
        more inside the image."""
        for r in range(rounds):
            piece = i32(i32(cuda.threadIdx.x) + r * threads)
            row = i32(u32(piece) // u32(max(wide, i32(1))))
            column = i32(piece - row * wide)
            x, y = i32((column + left) * vec), i32(top + row)
            inside = x >= 0 and x < width and y >= 0 and y < height
            offsets[r] = y * row_step + i64(x) * size if inside else i64(0)
            places[r] = i32(i32((row * pitch + column * vec) * (2 * size)) + (1 if inside else 0)) if row < tall else -1

    @device
    def begin(words, to, line, offsets, places):  # type: ignore[no-untyped-def]
        for r in range(rounds):
            if places[r] >= 0:
                copy(words, i32(to + (places[r] >> 1)), line + offsets[r], (places[r] & 1) != 0)

    return plan, begin
