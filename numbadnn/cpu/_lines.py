"""Lines: runs of elements in a buffer of float32 or float64, fetched, stored, summed and searched.

A line is an array made from an address by ``view``: a slice would count references to its array's memory, atomically, which
costs more than a short loop. A sum is taken over blocks of LANES in a tree, in the line's type, and the blocks in float64: its
order follows from its length alone, whatever vectors the machine has. Behind what is reduced there must be LANES elements of
memory, whose contents do not matter. ``like`` is any array of the line's type. Loading this module imports Numba.
"""

from __future__ import annotations

import math

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from numbadnn.cpu._typed import fetch, flush, inner, offset_of
from numbadnn.cpu._vector import I32, I64, broadcast, line, splat

LANES = 64


@intrinsic
def view(typingctx, address, start, n, like):  # type: ignore[no-untyped-def]
    """The n elements from number ``start`` on at ``address``, as an array of like's type that owns nothing."""

    def codegen(cx, b, sig, args):  # type: ignore[no-untyped-def]
        array = cx.make_array(sig.return_type)(cx, b)
        size = ir.Constant(I64, like.dtype.bitwidth // 8)
        data = b.inttoptr(b.add(args[0], b.mul(args[1], size)), array.data.type)
        populate_array(array, data=data, shape=[args[2]], strides=[size], itemsize=size, meminfo=None)
        return array._getvalue()

    if line(like):
        return types.Array(like.dtype, 1, "C")(types.int64, types.int64, types.int64, like), codegen


def _halved(b, value, combine):  # type: ignore[no-untyped-def]
    """All lanes of a vector combined into one, by halves."""
    n = value.type.count
    while n > 1:
        n //= 2
        low, high = (ir.Constant(ir.VectorType(I32, n), list(range(i, i + n))) for i in (0, n))
        undefined = ir.Constant(value.type, ir.Undefined)
        value = combine(b, b.shuffle_vector(value, undefined, low), b.shuffle_vector(value, undefined, high))
    return b.extract_element(value, ir.Constant(I32, 0))


def _block(cx, b, array, data, start):  # type: ignore[no-untyped-def]
    ty = ir.VectorType(cx.get_value_type(array.dtype), LANES)
    where = b.gep(cx.make_array(array)(cx, b, data).data, [start])
    return b.load(b.bitcast(where, ty.as_pointer()), align=array.dtype.bitwidth // 8)


def _first(b, value, count, otherwise: float):  # type: ignore[no-untyped-def]
    """The first ``count`` lanes, and ``otherwise`` in the rest."""
    lanes = ir.VectorType(I32, LANES)
    number = ir.Constant(lanes, list(range(LANES)))
    inside = b.icmp_signed("<", number, broadcast(b, b.trunc(count, I32), lanes))
    return b.select(inside, value, splat(value.type, otherwise))


@intrinsic
def _block_dot(typingctx, x, y, start, count):  # type: ignore[no-untyped-def]
    """Sum of x * y over ``count`` <= LANES elements from ``start`` on."""

    def codegen(cx, b, sig, args):  # type: ignore[no-untyped-def]
        one, other = (_block(cx, b, sig.args[i], args[i], args[2]) for i in (0, 1))
        product = _first(b, b.fmul(one, other), args[3], 0.0)
        return _halved(b, product, lambda b, low, high: b.fadd(low, high))

    if line(x) and line(y):
        return x.dtype(x, y, types.int64, types.int64), codegen


@intrinsic
def _block_sum(typingctx, x, start, count):  # type: ignore[no-untyped-def]
    """Sum of ``count`` <= LANES elements from ``start`` on."""

    def codegen(cx, b, sig, args):  # type: ignore[no-untyped-def]
        value = _first(b, _block(cx, b, sig.args[0], args[0], args[1]), args[2], 0.0)
        return _halved(b, value, lambda b, low, high: b.fadd(low, high))

    if line(x):
        return x.dtype(x, types.int64, types.int64), codegen


@intrinsic
def _block_largest(typingctx, x, start, count):  # type: ignore[no-untyped-def]
    """Maximum of ``count`` <= LANES elements from ``start`` on; with a NaN among them NaN, or another element."""

    def codegen(cx, b, sig, args):  # type: ignore[no-untyped-def]
        value = _first(b, _block(cx, b, sig.args[0], args[0], args[1]), args[2], -math.inf)
        return _halved(b, value, lambda b, low, high: b.select(b.fcmp_ordered(">", low, high), low, high))

    if line(x):
        return x.dtype(x, types.int64, types.int64), codegen


@inner
def line_dot(x, y, n):  # type: ignore[no-untyped-def]
    """Sum of x[:n] * y[:n], in float64."""
    total, whole = 0.0, n // LANES * LANES
    for i in range(0, whole, LANES):
        total += _block_dot(x, y, i, LANES)
    if whole < n:
        total += _block_dot(x, y, whole, n - whole)
    return total


@inner
def line_sum(x, n):  # type: ignore[no-untyped-def]
    """Sum of x[:n], in float64."""
    total, whole = 0.0, n // LANES * LANES
    for i in range(0, whole, LANES):
        total += _block_sum(x, i, LANES)
    if whole < n:
        total += _block_sum(x, whole, n - whole)
    return total


@inner
def line_largest(x, n):  # type: ignore[no-untyped-def]
    """Maximum of x[:n], n >= 1; with a NaN among them NaN, or another element."""
    whole = (n - 1) // LANES * LANES
    most = _block_largest(x, whole, n - whole)
    for i in range(0, whole, LANES):
        value = _block_largest(x, i, LANES)
        most = value if value > most else most
    return most


@inner
def fetch_rows(line, like, n, rows, base, start, first, shape, strides, step, code):  # type: ignore[no-untyped-def]
    """At ``line``, ``rows`` times n elements of row first + r of the axes ``shape``; in one run where rows follow each other."""
    if len(shape) == 1 and step == 1 and strides[0] == n:
        fetch(view(line, 0, rows * n, like), rows * n, base, start + first * n, 1, code)
        return
    for r in range(rows):
        fetch(view(line, r * n, n, like), n, base, start + offset_of(first + r, shape, strides), step, code)


@inner
def flush_rows(line, like, n, rows, base, start, first, shape, strides, step, code):  # type: ignore[no-untyped-def]
    """The reverse of ``fetch_rows``."""
    if len(shape) == 1 and step == 1 and strides[0] == n:
        flush(view(line, 0, rows * n, like), rows * n, base, start + first * n, 1, code)
        return
    for r in range(rows):
        flush(view(line, r * n, n, like), n, base, start + offset_of(first + r, shape, strides), step, code)


@inner
def memory_rows(line, like, n, rows, base, start, first, shape, strides, step, code):  # type: ignore[no-untyped-def]
    """Where memory itself holds what ``fetch_rows`` would put at ``line``, as the same type; ``line`` if it does not."""
    if code == (0 if like.itemsize == 4 else 1) and step == 1 and (rows == 1 or (len(shape) == 1 and strides[0] == n)):
        return base + (start + offset_of(first, shape, strides)) * like.itemsize
    return line


@inner
def source_rows(line, like, n, rows, base, start, first, shape, strides, step, code):  # type: ignore[no-untyped-def]
    """As ``fetch_rows``, and the address: ``line``, or memory itself, to be read only and no further than asked for."""
    found = memory_rows(line, like, n, rows, base, start, first, shape, strides, step, code)
    if found == line:
        fetch_rows(line, like, n, rows, base, start, first, shape, strides, step, code)
    return found
