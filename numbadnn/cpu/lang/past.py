"""Non-temporal stores, for results that exceed the caches: memory is not read where it is overwritten.

Only whole vectors go so, to multiples of 64 bytes or, where they are shorter, of their own size; and what was written in this way
is there for other threads after ``settle``. Loading this module imports Numba.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbadnn.cpu.lang.elements import BLOCK, I32, IR, at, known, narrow, narrowing
from numbadnn.cpu.lang.parallel import LINE
from numbadnn.cpu.lang.vector import store_lanes, vec_of


def nontemporal(b, value, place, nbytes):
    """Store a vector of so many bytes past the caches."""
    stored = b.store(value, place, align=min(LINE, nbytes))
    stored.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(I32, 1)]))


@intrinsic
def put(typingctx, address, offset, mask, value, past, like):
    """As ``store``; all lanes past the caches where ``past`` is true."""

    def codegen(cx, b, sig, args):
        address, offset, mask, value, past, _ = args
        with b.if_else(past) as (then, otherwise):
            with then:
                ty = ir.VectorType(IR[like.dtype], vec.lanes)
                place = at(b, address, ty, offset)
                nontemporal(b, narrow(b, value, like.dtype), place, vec.lanes * like.dtype.bitwidth // 8)
            with otherwise:
                store_lanes(b, address, offset, mask, value, like.dtype)
        return cx.get_dummy_value()

    if known(like):
        vec = vec_of(like)
        return types.void(types.int64, types.int64, types.int64, vec, types.boolean, like), codegen


#: as ``narrow_block``, to a multiple of LINE bytes or the block's own
narrow_block_past = narrowing(
    lambda b, value, place, like: nontemporal(b, value, place, BLOCK * like.dtype.bitwidth // 8)
)


@intrinsic
def settle(typingctx):
    """Let what was stored past the caches be there for every thread."""

    def codegen(cx, builder, sig, args):
        builder.fence("seq_cst")
        return cx.get_dummy_value()

    return types.void(), codegen
