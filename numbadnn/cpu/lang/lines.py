"""Lines: runs of elements in a buffer of float32 or float64, fetched, stored, summed and searched.

A line is an array made from an address by ``view``: a slice would count references to its array's memory, atomically, which
costs more than a short loop. A sum is taken in LANES lanes, joined in a tree, in the line's type, and from RUN elements to the
next in float64: its order follows from its length alone, whatever vectors the machine has. ``like`` is any array of the
line's type. Loading this module imports Numba.
"""

from __future__ import annotations

import math

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbadnn.cpu.lang.elements import I32, I64, IR, acc_type, broadcast, known, masked, splat, widen
from numbadnn.cpu.lang.typed import fetch, flush, inner, into, offset_of
from numbadnn.host.numba_names import cgutils, populate_array

#: elements of a block, and those that are summed in the line's type
LANES, RUN = 32, 2048


@intrinsic
def view(typingctx, address, start, n, like):
    """The n elements from number ``start`` on at ``address``, as an array of like's type that owns nothing."""

    def codegen(cx, b, sig, args):
        array = cx.make_array(sig.return_type)(cx, b)
        size = ir.Constant(I64, like.dtype.bitwidth // 8)
        data = b.inttoptr(b.add(args[0], b.mul(args[1], size)), array.data.type)
        populate_array(array, data=data, shape=[args[2]], strides=[size], itemsize=size, meminfo=None)
        return array._getvalue()

    if known(like):
        return types.Array(like.dtype, 1, "C")(types.int64, types.int64, types.int64, like), codegen


def halved(b, value, join):
    """All lanes of a vector joined into one, by halves."""
    n = value.type.count
    while n > 1:
        n //= 2
        low, high = (ir.Constant(ir.VectorType(I32, n), list(range(i, i + n))) for i in (0, n))
        undefined = ir.Constant(value.type, ir.Undefined)
        value = join(b, b.shuffle_vector(value, undefined, low), b.shuffle_vector(value, undefined, high))
    return b.extract_element(value, ir.Constant(I32, 0))


def plus(b, one, other):
    return b.fadd(one, other)


def _larger(b, one, other):
    return b.select(b.fcmp_ordered(">", one, other), one, other)


def _first(b, count):
    """A mask of the first ``count`` lanes."""
    lanes = ir.VectorType(I32, LANES)
    return b.icmp_signed("<", ir.Constant(lanes, list(range(LANES))), broadcast(b, b.trunc(count, I32), lanes))


def _reduction(count, terms, join=plus, empty=0.0):
    """An intrinsic: the ``count`` values that ``terms`` makes of x, y and a centre, each joined over x[start : start + n].

    x and y: lines, or stored elements of 16 bits, which are widened.
    """

    def reduce(typingctx, x, y, centre, start, n):
        def codegen(cx, b, sig, args):
            stored, ty = (ir.VectorType(IR[t], LANES) for t in (x.dtype, acc))
            lines = [cx.make_array(sig.args[i])(cx, b, args[i]).data for i in (0, 1)]
            totals = [cgutils.alloca_once_value(b, splat(ty, empty)) for _ in range(count)]

            def add(at, load, keep):
                blocks = [load(b.bitcast(b.gep(line, [b.add(args[3], at)]), stored.as_pointer())) for line in lines]
                values = [widen(b, block, x.dtype) for block in blocks]
                for total, value in zip(totals, terms(b, *values, broadcast(b, args[2], ty)), strict=True):
                    b.store(join(b, b.load(total), keep(value)), total)

            align = x.dtype.bitwidth // 8
            whole = b.and_(args[4], ir.Constant(I64, -LANES))
            with cgutils.for_range_slice(b, ir.Constant(I64, 0), whole, ir.Constant(I64, LANES), I64) as (at, _):
                add(at, lambda where: b.load(where, align=align), lambda value: value)
            with b.if_then(b.icmp_signed("<", whole, args[4])):
                mask, none = _first(b, b.sub(args[4], whole)), splat(stored, 0 if x.dtype.bitwidth == 16 else 0.0)
                add(
                    whole,
                    lambda where: masked(b, "load", stored, [where, ir.Constant(I32, align), mask, none]),
                    lambda value: b.select(mask, value, splat(ty, empty)),
                )
            return cx.make_tuple(b, sig.return_type, [halved(b, b.load(total), join) for total in totals])

        if known(x) and x.layout == "C" and x == y:
            acc = acc_type(x.dtype)
            return types.UniTuple(acc, count)(x, y, acc, types.int64, types.int64), codegen

    return intrinsic(reduce)


_sums_of = _reduction(1, lambda b, x, y, c: [x])
_dots_of = _reduction(1, lambda b, x, y, c: [b.fmul(x, y)])
_largest_of = _reduction(1, lambda b, x, y, c: [x], _larger, -math.inf)
_moments_of = _reduction(2, lambda b, x, y, c: [d := b.fsub(x, c), b.fmul(d, d)])
_joint_of = _reduction(3, lambda b, x, y, c: [y, b.fmul(y, d := b.fsub(x, c)), d])


@inner
def line_largest(x, n):
    """Maximum of x[:n]; with a NaN among them NaN, or another element."""
    return _largest_of(x, x, x.dtype.type(0.0), 0, n)[0]


@inner
def line_sum(x, n):
    """Sum of x[:n], in float64."""
    total = 0.0
    for i in range(0, n, RUN):
        total += _sums_of(x, x, x.dtype.type(0.0), i, min(RUN, n - i))[0]
    return total


@inner
def line_dot(x, y, n):
    """Sum of x[:n] * y[:n], in float64."""
    total = 0.0
    for i in range(0, n, RUN):
        total += _dots_of(x, y, x.dtype.type(0.0), i, min(RUN, n - i))[0]
    return total


@into
def line_moments(x, centre, n):
    """Sums of d = x[:n] - centre and of d * d, in float64."""
    s1, s2 = 0.0, 0.0
    for i in range(0, n, RUN):
        more = _moments_of(x, x, centre, i, min(RUN, n - i))
        s1, s2 = s1 + more[0], s2 + more[1]
    return s1, s2


@into
def line_joint(x, y, centre, n):
    """Sums of y[:n], of y * d and of d = x[:n] - centre, in float64."""
    s1, s2, s3 = 0.0, 0.0, 0.0
    for i in range(0, n, RUN):
        more = _joint_of(x, y, centre, i, min(RUN, n - i))
        s1, s2, s3 = s1 + more[0], s2 + more[1], s3 + more[2]
    return s1, s2, s3


@inner
def fetch_rows(line, like, n, rows, base, start, first, shape, strides, step, code):
    """At ``line``, ``rows`` times n elements of row first + r of the axes ``shape``; in one run where rows follow each other."""
    if len(shape) == 1 and step == 1 and strides[0] == n:
        fetch(view(line, 0, rows * n, like), rows * n, base, start + first * n, 1, code)
        return
    for r in range(rows):
        fetch(view(line, r * n, n, like), n, base, start + offset_of(first + r, shape, strides), step, code)


@inner
def flush_rows(line, like, n, rows, base, start, first, shape, strides, step, code):
    """The reverse of ``fetch_rows``."""
    if len(shape) == 1 and step == 1 and strides[0] == n:
        flush(view(line, 0, rows * n, like), rows * n, base, start + first * n, 1, code)
        return
    for r in range(rows):
        flush(view(line, r * n, n, like), n, base, start + offset_of(first + r, shape, strides), step, code)


@inner
def in_place(step, code, like):
    """Whether memory itself holds runs as lines of like's type."""
    return code == (0 if like.itemsize == 4 else 1) and step == 1


@inner
def memory_rows(line, like, n, rows, base, start, first, shape, strides, step, code):
    """Where memory itself holds what ``fetch_rows`` would put at ``line``, as the same type; ``line`` if it does not."""
    if in_place(step, code, like) and (rows == 1 or (len(shape) == 1 and strides[0] == n)):
        return base + (start + offset_of(first, shape, strides)) * like.itemsize
    return line


@inner
def source_rows(line, like, n, rows, base, start, first, shape, strides, step, code):
    """As ``fetch_rows``, and the address: ``line``, or memory itself, to be read only and no further than asked for."""
    found = memory_rows(line, like, n, rows, base, start, first, shape, strides, step, code)
    if found == line:
        fetch_rows(line, like, n, rows, base, start, first, shape, strides, step, code)
    return found
