"""The register tiles of ``thin.py``, as LLVM IR: sums of some rows by some vectors, while the terms go by.

The images of the terms lie in a padded buffer, so that a term is an offset into it and the pixels of a vector are
neighbours. Loading this module imports Numba.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbadnn.cpu.lang.elements import I64, X86_512, acc_type, at, broadcast, known, splat
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import Element, store_lanes, vec_of
from numbadnn.host.numba_names import cgutils

#: rows of a tile -> its widths in vectors: rows * width sums, so many vectors and one factor must fit the registers
WIDTHS = (
    {1: (8, 4, 2, 1), 2: (8, 4, 2, 1), 4: (6, 3, 2, 1)} if X86_512 else {1: (8, 4, 2, 1), 2: (4, 2, 1), 4: (3, 2, 1)}
)

#: vectors of the widest
LONGEST = WIDTHS[1][0]


@intrinsic
def summed(typingctx, like):
    """``like`` of the accumulators."""
    if known(like):
        return Element(acc_type(like.dtype), 1)(like), lambda cx, b, sig, args: cx.get_dummy_value()


def _tile(rows: int, wide: int, spread: bool) -> Any:
    """alpha * sum_i a[r, i] * source[offset_i + where_v], i ascending, stored at out + r * out_row + where_v.

    ``where``: of each vector its place in the source and in the result, in bytes, and a mask of lanes to store.
    ``spread``: a[r, i] is a number, else a vector, and ``lanes`` is another mask. ``result``: the type that is stored.
    """

    def tile(typingctx, a, source, offsets, depth, where, out, out_row, lanes, alpha, like, result):
        def codegen(cx, b, sig, args):
            a, source, offsets, depth, where, out, out_row, lanes, alpha, _, _ = args
            ty = cx.get_value_type(vec)
            n, size = vec.lanes, vec.dtype.bitwidth // 8

            def c(number: int) -> Any:
                return ir.Constant(I64, number)

            name = f"llvm.fmuladd.v{n}f{size * 8}"
            fma = cgutils.get_or_insert_function(b.module, ir.FunctionType(ty, [ty, ty, ty]), name)
            factor_bytes = c(size if spread else n * size)
            factors = [b.add(a, b.mul(b.mul(depth, c(r)), factor_bytes)) for r in range(rows)]
            places = [[b.load(at(b, where, I64, c(3 * v + part))) for part in range(3)] for v in range(wide)]
            start, loop, end = b.block, b.append_basic_block("terms"), b.append_basic_block("terms.end")
            b.cbranch(b.icmp_signed(">", depth, c(0)), loop, end)
            b.position_at_end(loop)
            i = b.phi(I64)
            sums = [b.phi(ty) for _ in range(rows * wide)]
            here = b.add(source, b.load(at(b, offsets, I64, i)))
            pixels = [b.load(at(b, b.add(here, place[0]), ty), align=size) for place in places]
            new = []
            for r in range(rows):
                factor = b.add(factors[r], b.mul(i, factor_bytes))
                if spread:
                    factor = broadcast(b, b.load(at(b, factor, ty.element), align=size), ty)
                else:
                    factor = b.load(at(b, factor, ty), align=size)
                new += [b.call(fma, [factor, pixels[v], sums[r * wide + v]]) for v in range(wide)]
            i_next = b.add(i, c(1))
            i.add_incoming(c(0), start)
            i.add_incoming(i_next, loop)
            b.cbranch(b.icmp_signed("<", i_next, depth), loop, end)
            b.position_at_end(end)
            totals = [b.phi(ty) for _ in sums]
            for total, running, value in zip(totals, sums, new, strict=True):
                for phi, block in ((running, start), (total, start)):
                    phi.add_incoming(splat(ty, 0.0), block)
                running.add_incoming(value, loop)
                total.add_incoming(value, loop)
            scaled = [b.fmul(broadcast(b, alpha, ty), total) for total in totals]
            for v, (_, place, mask) in enumerate(places):
                spots = [b.add(b.add(out, place), b.mul(out_row, c(r))) for r in range(rows)]
                bits = b.and_(b.and_(mask, lanes), c((1 << n) - 1))

                def store(bits: Any, v: int = v, spots: list[Any] = spots) -> None:
                    for r, spot in enumerate(spots):
                        store_lanes(b, spot, c(0), bits, scaled[r * wide + v], result.dtype)

                if X86_512:
                    store(bits)
                    continue
                # without mask registers a whole vector is better stored as one
                with b.if_else(b.icmp_signed("==", bits, c((1 << n) - 1))) as (whole, part):
                    with whole:
                        store(c((1 << n) - 1))
                    with part:
                        store(bits)
            return cx.get_dummy_value()

        if known(like) and known(result):
            vec = vec_of(like)
            return types.void(*[types.int64] * 8, vec.dtype, like, result), codegen

    return intrinsic(tile)


def _tiles(rows: int, spread: bool) -> Any:
    """A function that makes so many ``vectors`` for so many rows, by the widest tiles first."""
    widths = WIDTHS[rows]
    w0, w1, w2 = widths[:3]
    first, second, third, last = (_tile(rows, w, spread) for w in (w0, w1, w2, 1))

    @inner
    def tiles(a, source, offsets, depth, where, vectors, out, out_row, lanes, alpha, like, result):
        while vectors >= w0:
            first(a, source, offsets, depth, where, out, out_row, lanes, alpha, like, result)
            where, vectors = where + 24 * w0, vectors - w0
        if vectors >= w1:
            second(a, source, offsets, depth, where, out, out_row, lanes, alpha, like, result)
            where, vectors = where + 24 * w1, vectors - w1
        if vectors >= w2:
            third(a, source, offsets, depth, where, out, out_row, lanes, alpha, like, result)
            where, vectors = where + 24 * w2, vectors - w2
        if vectors > 0:
            last(a, source, offsets, depth, where, out, out_row, lanes, alpha, like, result)

    return tiles


one_row, two_rows, four_rows = (_tiles(rows, True) for rows in (1, 2, 4))
#: of channels that are neighbours: each lane has its own factors
own_factors = _tiles(1, False)
