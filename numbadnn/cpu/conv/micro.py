"""The two kernels that live in registers: the matrix micro-kernel and the transpose, as LLVM IR.

The micro-kernel is the innermost loop of BLIS (Van Zee and van de Geijn, 2015): MR rows by NV vectors of sums stay in
registers while A is broadcast and B streams from the first-level cache. It reaches 250 to 265 GFLOP/s on one core of a
512-bit machine that can issue two such multiplications a cycle. Loading this module imports Numba.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbadnn.cpu.lang.elements import I32, I64, X86_512, accsize, at, broadcast, known, splat
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import carry, lanes, load_acc, made_good, store_acc, vec_of, zeros
from numbadnn.host.numba_names import cgutils
from numbadnn.registry import Summation

#: rows and vectors of the register tile: MR*NV accumulators, NV vectors of B and one broadcast must fit the registers
MR, NV = (8, 2) if X86_512 else (6, 2)
#: longest run of the contraction in one micro-kernel call: a KC x NR panel of B stays in the first-level cache
KC = 256
#: how sums of products are added
SUMS = Summation((KC, 64), "compensated")
#: accumulators between packed rows of A: more than KC, so that rows do not all start in one set of the cache
ROW = KC + 16
#: so many blocks of KC are added to a tile one after the other; a longer sum carries their sums (``carry_tile``)
BLOCKS = 64


@intrinsic
def transpose(typingctx, source, source_step, target, target_step, like):
    """Transpose a square of accumulators, a vector's lanes wide: steps are elements between rows."""

    def codegen(cx, b, sig, args):
        source, source_step, target, target_step, _ = args
        n = vec.lanes
        ty = cx.get_value_type(vec)
        align = vec.dtype.bitwidth // 8
        rows = [b.load(at(b, source, ty, b.mul(source_step, ir.Constant(I64, i))), align=align) for i in range(n)]
        width = n // 2
        while width:  # swap off-diagonal blocks of this width: after the last, rows are columns
            low = [i if i % (2 * width) < width else n + i - width for i in range(n)]
            high = [i + width if i % (2 * width) < width else n + i for i in range(n)]
            index = [ir.Constant(ir.VectorType(I32, n), order) for order in (low, high)]
            for i in range(n):
                if i % (2 * width) < width:
                    x, y = rows[i], rows[i + width]
                    rows[i], rows[i + width] = (b.shuffle_vector(x, y, order) for order in index)
            width //= 2
        for i, row in enumerate(rows):
            b.store(row, at(b, target, ty, b.mul(target_step, ir.Constant(I64, i))), align=align)
        return cx.get_dummy_value()

    if known(like):
        vec = vec_of(like)
        return types.void(types.int64, types.int64, types.int64, types.int64, like), codegen


def _kernel(height: int, width: int, listed: bool):  # type: ignore[no-untyped-def]
    """The micro-kernel of ``height`` rows by ``width`` vectors; ``listed``: whether rows of a lie anywhere."""

    def microkernel(typingctx, a, rows, columns, b, places, depth, tile, add, like):
        def codegen(cx, b, sig, args):
            a, a_rows, a_columns, panel, places, depth, tile, add, _ = args
            ty = cx.get_value_type(vec)
            real, n, size = ty.element, vec.lanes, vec.dtype.bitwidth // 8
            name = f"llvm.fmuladd.v{n}f{size * 8}"
            fma = cgutils.get_or_insert_function(b.module, ir.FunctionType(ty, [ty, ty, ty]), name)
            numbers = [ir.Constant(I64, i) for i in range(height)]
            steps = [b.load(at(b, a_rows, I64, i), align=8) if listed else b.mul(a_rows, i) for i in numbers]
            rows = [b.add(a, step) for step in steps]
            start, loop, end = b.block, b.append_basic_block("depth"), b.append_basic_block("depth.end")
            b.branch(loop)
            b.position_at_end(loop)
            k = b.phi(I64)
            sums = [b.phi(ty) for _ in range(height * width)]
            k.add_incoming(ir.Constant(I64, 0), start)
            for s in sums:
                s.add_incoming(splat(ty, 0.0), start)
            b_k = b.add(panel, b.load(at(b, places, I64, k), align=8))
            columns = [b.load(at(b, b.add(b_k, ir.Constant(I64, v * n * size)), ty), align=size) for v in range(width)]
            column = b.load(at(b, a_columns, I64, k), align=8)
            new = []
            for i in range(height):
                row = broadcast(b, b.load(at(b, b.add(rows[i], column), real), align=size), ty)
                new += [b.call(fma, [row, columns[v], sums[i * width + v]]) for v in range(width)]
            k_next = b.add(k, ir.Constant(I64, 1))
            k.add_incoming(k_next, loop)
            for s, value in zip(sums, new, strict=True):
                s.add_incoming(value, loop)
            b.cbranch(b.icmp_signed("<", k_next, depth), loop, end)
            b.position_at_end(end)
            order = [i * NV + v for i in range(height) for v in range(width)]
            places = [at(b, b.add(tile, ir.Constant(I64, place * n * size)), ty) for place in order]
            with b.if_else(b.icmp_signed("!=", add, ir.Constant(I64, 0))) as (then, otherwise):
                with then:
                    for value, place in zip(new, places, strict=True):
                        b.store(b.fadd(b.load(place, align=size * n), value), place, align=size * n)
                with otherwise:
                    for value, place in zip(new, places, strict=True):
                        b.store(value, place, align=size * n)
            return cx.get_dummy_value()

        if known(like):
            vec = vec_of(like)
            return types.void(*[types.int64] * 8, like), codegen

    return intrinsic(microkernel)


@inner
def carry_tile(tile, capacity, n, number, like):
    """Add a tile's n accumulators to those that lie ``capacity`` bytes further, and what that loses to those as far again.

    ``number``: of the block of KC that is next; the first time they are put there.
    """
    for here in range(tile, tile + n * accsize(like), lanes(like) * accsize(like)):
        part = load_acc(here, like)
        if number == BLOCKS:
            total, low = part, zeros(like)
        else:
            total, low = carry(load_acc(here + capacity, like), load_acc(here + 2 * capacity, like), part)
        store_acc(here + capacity, total, like)
        store_acc(here + 2 * capacity, low, like)


@inner
def carried_tile(tile, capacity, n, like):
    """Make a tile the sum of what has been carried and of what it holds."""
    for here in range(tile, tile + n * accsize(like), lanes(like) * accsize(like)):
        total, low = carry(load_acc(here + capacity, like), load_acc(here + 2 * capacity, like), load_acc(here, like))
        store_acc(here, made_good(total, low), like)


#: (a, rows, columns, b, places, depth, tile, add, like):
#: tile[i, j] = (add ? tile[i, j] : 0) + the sum of a[i, k] * b[k, j], k ascending.
#: Row k of b, NR = NV vectors long, begins ``places[k]`` bytes behind ``b``; a tile is MR rows of NR, packed. a[i, k] lies
#: i * rows + columns[k] bytes behind ``a``; for the listed kernel, rows[i] + columns[k]. Lists are addresses of 64-bit integers,
#: all else are accumulators. The narrow kernel has a vector's lanes instead of NR: for what is left over at the end of a stretch.
#: The low one has half of MR rows, likewise.
microkernel, narrow_kernel = _kernel(MR, NV, False), _kernel(MR, 1, False)
listed_kernel, low_kernel = _kernel(MR, NV, True), _kernel(MR // 2, NV, True)
