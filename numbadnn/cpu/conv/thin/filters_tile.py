"""The kernel in registers of ``filters.py``, as LLVM IR: sums of products of some runs of y and some of x.

Nothing is broadcast and nothing joined but at a run's end: lanes are pixels of one channel, or channels of one pixel. Loading
this module imports Numba.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbadnn.cpu.conv.thin.geometry import Tile
from numbadnn.cpu.lang.elements import FEATURES, I1, I32, I64, X86_512, at, known, masked, splat
from numbadnn.cpu.lang.vector import vec_of
from numbadnn.host.numba_names import cgutils

#: numbers of the tile whose lanes are groups, and of that for what is not finite
ACROSS, MASKING = 0, 1
TILES = (
    Tile(1, 9, joined=False),
    Tile(1, 9, x_masked=True),
    Tile(1, 9),
    *((Tile(2, 9), Tile(4, 6, y_masked=False)) if X86_512 else (Tile(2, 6, y_masked=False),)),
)
#: the same in plain tuples, which ``later`` can keep
SHAPES = tuple(map(tuple, TILES))
#: whether a vector's first lanes can be loaded at no cost, and so y be read where it lies
MASKED = X86_512 or "+avx" in FEATURES


def _pair(b, x, y, index):
    if isinstance(x, ir.Constant) and isinstance(y, ir.Constant):
        return x
    return b.fadd(*(b.shuffle_vector(x, y, order) for order in index))


def _lane_sums(b, rows):
    """A vector of the sums over the lanes of each of these vectors, by halves, and zeros."""
    ty, n = rows[0].type, rows[0].type.count
    rows = rows + [splat(ty, 0.0)] * (n - len(rows))
    width = n // 2
    while width:  # row i and its partner share a vector: each keeps half as many lanes
        lane = [(j // width // 2 * 2 * width + j % width, j // width % 2 * n) for j in range(n)]
        index = [ir.Constant(ir.VectorType(I32, n), [own + half + other for own, other in lane]) for half in (0, width)]
        pairs = zip(rows[: len(rows) // 2], rows[len(rows) // 2 :], strict=True)
        rows = [_pair(b, x, y, index) for x, y in pairs]
        width //= 2
    return rows[0]


def _add(b, ty, place, value):
    where, align = at(b, place, ty), 8 if isinstance(ty.element, ir.DoubleType) else 4
    b.store(b.fadd(b.load(where, align=align), value), where, align=align)


def _loop(b, count, carried, body):
    """Emit ``count`` >= 1 rounds of body(number, carried values), which gives the next values; the last ones."""
    start, loop = b.block, b.append_basic_block("loop")
    b.branch(loop)
    b.position_at_end(loop)
    phis = [b.phi(value.type) for value in (count, *carried)]
    for phi, value in zip(phis, (ir.Constant(I64, 0), *carried), strict=True):
        phi.add_incoming(value, start)
    new = [b.add(phis[0], ir.Constant(I64, 1)), *body(phis[0], phis[1:])]
    for phi, value in zip(phis, new, strict=True):
        phi.add_incoming(value, b.block)
    end = b.append_basic_block("loop.end")
    b.cbranch(b.icmp_signed("<", new[0], count), loop, end)
    b.position_at_end(end)
    return new[1:]


def _products(cx, b, vec, number, arguments):
    """Emit TILES[number]."""
    sums_at, sums_step, x, offsets, y, y_step, masks, lines, count, x_line, y_line, y_vector, mask_step = arguments
    ty, n = cx.get_value_type(vec), vec.lanes
    align = vec.dtype.bitwidth // 8
    size = ir.Constant(I64, n * align)
    fnty = ir.FunctionType(ty, [ty, ty, ty])
    fma = cgutils.get_or_insert_function(b.module, fnty, f"llvm.fmuladd.v{n}f{vec.dtype.bitwidth}")
    shape = TILES[number]
    rows, columns, masks_used = shape.y, shape.x, shape.y_masked or shape.x_masked
    xs = [b.add(x, b.load(at(b, offsets, I64, ir.Constant(I64, i)))) for i in range(columns)]
    ys = [b.add(y, b.mul(y_step, ir.Constant(I64, j))) for j in range(rows)]

    def vector(i, carried):
        x_at, y_at, mask_at, *sums = carried
        none = splat(ty, 0.0)
        if masks_used:
            mask = b.bitcast(b.trunc(b.load(at(b, mask_at, I64)), ir.IntType(n)), ir.VectorType(I1, n))
        if shape.y_masked and MASKED:
            what = [ir.Constant(I32, align), mask, none]
            seen = [masked(b, "load", ty, [at(b, b.add(base, y_at), ty), *what]) for base in ys]
        else:
            seen = [b.load(at(b, b.add(base, y_at), ty), align=align) for base in ys]
        new = list(sums)
        for column, base in enumerate(xs):
            value = b.load(at(b, b.add(base, x_at), ty), align=align)
            value = b.select(mask, value, none) if shape.x_masked else value
            for k, line in zip(range(column, len(sums), columns), seen, strict=True):
                new[k] = b.call(fma, [line, value, sums[k]])
        return [b.add(x_at, size), b.add(y_at, y_vector), b.add(mask_at, mask_step), *new]

    def line(i, carried):
        x_at, y_at, *sums = carried
        new = _loop(b, count, [x_at, y_at, masks, *sums], vector)
        return [b.add(x_at, x_line), b.add(y_at, y_line), *new[3:]]

    start = [ir.Constant(I64, 0)] * 2 + [splat(ty, 0.0)] * (rows * columns)
    sums = _loop(b, lines, start, line)[2:]
    for j in range(rows):
        row, place = sums[j * columns : (j + 1) * columns], b.add(sums_at, b.mul(sums_step, ir.Constant(I64, j)))
        for k, value in enumerate(
            [_lane_sums(b, row[i : i + n]) for i in range(0, columns, n)] if shape.joined else row
        ):
            _add(b, ty, b.add(place, ir.Constant(I64, k * n * align)), value)


@intrinsic
def tile(typingctx, which, sums, sums_step, x, offsets, y, y_step, masks, walk, like):
    """sums[j, i] += y_j * x_i, of accumulators, for all of TILES[which]; ``masks`` have a bit for each lane that counts.

    Run i of x begins offsets[i] bytes behind ``x``, run j of y j*y_step behind ``y``, sums of j j*sums_step behind ``sums``:
    numbers, of which whole vectors are rewritten, or vectors. ``walk`` = (lines, vectors of a line, bytes between lines of x, of
    y, between vectors of y, between their masks).
    """

    def codegen(cx, b, sig, args):
        # functions of their own, chosen by address: LLVM would copy the loops around them for each
        given = [*args[1:8], *(b.extract_value(args[8], i) for i in range(6))]
        chosen, *others = [_outlined(cx, b.module, vec, number, len(given)) for number in range(len(TILES))]
        for number, fn in enumerate(others, 1):
            chosen = b.select(b.icmp_signed("==", args[0], ir.Constant(I64, number)), fn, chosen)
        b.call(chosen, given)
        return cx.get_dummy_value()

    if known(like):
        vec = vec_of(like)
        return types.void(*[types.int64] * 8, types.UniTuple(types.int64, 6), like), codegen


def _outlined(cx, module, vec, number, count):
    """The function of TILES[number] in this module."""
    name = f"numbadnn_thin_tile_{number}_{vec.lanes}_{vec.dtype.bitwidth}"
    fn = cgutils.get_or_insert_function(module, ir.FunctionType(ir.VoidType(), [I64] * count), name)
    if fn.is_declaration:
        fn.linkage = "internal"
        fn.attributes.add("noinline")
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        _products(cx, b, vec, number, fn.args)
        b.ret_void()
    return fn


@intrinsic
def all_finite(typingctx, address, vectors, like):
    """Whether all accumulators of these ``vectors`` >= 1 are finite."""

    def codegen(cx, b, sig, args):
        ty = cx.get_value_type(vec)
        none, size = splat(ty, 0.0), ir.Constant(I64, vec.lanes * vec.dtype.bitwidth // 8)

        def vector(i, carried):
            value = b.load(at(b, b.add(args[0], b.mul(i, size)), ty), align=vec.dtype.bitwidth // 8)
            return [b.fadd(carried[0], b.fmul(value, none))]  # a 0, or NaN for ever

        lost = b.fcmp_unordered("uno", *_loop(b, args[1], [none], vector) * 2)
        return b.icmp_unsigned("==", b.bitcast(lost, ir.IntType(vec.lanes)), ir.Constant(ir.IntType(vec.lanes), 0))

    if known(like):
        vec = vec_of(like)
        return types.boolean(types.int64, types.int64, like), codegen


@intrinsic
def clear(typingctx, address, size):
    """Set ``size`` bytes to 0."""

    def codegen(cx, b, sig, args):
        cgutils.memset(b, b.inttoptr(args[0], ir.IntType(8).as_pointer()), args[1], 0)
        return cx.get_dummy_value()

    return types.void(types.int64, types.int64), codegen
