"""Lines of accumulators for pooling: the vector operations it needs, and rows of an image taken apart by column.

A line is an address in scratch memory. A row of the image becomes one line for each residue of the columns modulo the
stride (``split``), so that an element of all windows along the row is a run of neighbours, whatever the stride. Numbers
(which element of its window is the maximum) travel in vectors as the bits of integers, as wide as an accumulator. Loading this
module imports Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbadnn.cpu.lang.elements import (
    I32,
    I64,
    accsize,
    at,
    broadcast,
    itemsize,
    known,
    load1,
    load_apart,
    peek,
    poke,
    splat,
    store1,
)
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import Vec, lanes, load, load_acc, scale, store, store_acc, vec_of, zeros


def _integers(ty: Any) -> Any:
    """The vector of integers as wide as the floating-point lanes of ``ty``."""
    return ir.VectorType(ir.IntType(64 if isinstance(ty.element, ir.DoubleType) else 32), ty.count)


def _bits(b: Any, number: Any, ty: Any) -> Any:
    """``number`` (64 bits) in every lane of an integer vector."""
    return broadcast(b, number if ty.element.width == 64 else b.trunc(number, ty.element), ty)


def _of_two(build: Callable[..., Any]) -> Any:
    """The operation on two vectors that ``build`` emits."""

    def operation(typingctx, x, y):
        if isinstance(x, Vec) and x == y:
            return x(x, y), lambda cx, b, sig, args: build(b, *args)

    return intrinsic(operation)


def _better(b: Any, value: Any, most: Any) -> Any:
    """Whether ``value`` replaces ``most``, which was seen earlier: larger, or the first NaN."""
    return b.and_(b.fcmp_unordered(">", value, most), b.fcmp_ordered("ord", most, most))


def _shuffle(index: Callable[[int, int], int]) -> Any:
    def build(b: Any, x: Any, y: Any) -> Any:
        n = x.type.count
        return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, n), [index(i, n) for i in range(n)]))

    return _of_two(build)


#: max(value, most), NaN where either is: of equals and of NaNs the second operand, as ``number_of_larger`` numbers them
larger = _of_two(lambda b, value, most: b.select(_better(b, value, most), value, most))
#: the same where neither is NaN: what a chain of these waits for is one instruction
greater = _of_two(lambda b, value, most: b.select(b.fcmp_ordered(">", value, most), value, most))
divide = _of_two(lambda b, x, y: b.fdiv(x, y))
#: x0 x2 x4 ... y0 y2 ..., x1 x3 ... y1 y3 ..., and back: x0 y0 x1 y1 ..., its second half
evens, odds = _shuffle(lambda i, n: 2 * i), _shuffle(lambda i, n: 2 * i + 1)
low_pairs, high_pairs = _shuffle(lambda i, n: i // 2 + i % 2 * n), _shuffle(lambda i, n: (n + i) // 2 + i % 2 * n)


@intrinsic
def word(typingctx, address, index):
    """The 64-bit integer number ``index`` at ``address``: tables are read by address, as arrays are counted when passed on."""

    def codegen(cx, b, sig, args):
        return b.load(at(b, args[0], I64, args[1]))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def set_word(typingctx, address, index, value):
    """Set the 64-bit integer number ``index`` at ``address``."""

    def codegen(cx, b, sig, args):
        b.store(args[2], at(b, args[0], I64, args[1]))
        return cx.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _integers_of(b: Any, number: Any, ty: Any) -> Any:
    """A number, or a vector of numbers, as integers as wide as the lanes of ``ty``."""
    wide = _integers(ty)
    return b.bitcast(number, wide) if isinstance(number.type, ir.VectorType) else _bits(b, number, wide)


@intrinsic
def number_of_larger(typingctx, value, most, number, numbers):
    """``number``, one or a vector, in the lanes where ``larger(value, most)`` is ``value``, else ``numbers``."""

    def codegen(cx, b, sig, args):
        value, most, number, numbers = args
        mine = b.bitcast(_integers_of(b, number, value.type), value.type)
        return b.select(_better(b, value, most), mine, numbers)

    if isinstance(value, Vec):
        return value(value, value, number if number == value else types.int64, value), codegen


@intrinsic
def number_of_greater(typingctx, value, most, number, numbers):
    """As ``number_of_larger``, where neither is NaN."""

    def codegen(cx, b, sig, args):
        value, most, number, numbers = args
        mine = b.bitcast(_integers_of(b, number, value.type), value.type)
        return b.select(b.fcmp_ordered(">", value, most), mine, numbers)

    if isinstance(value, Vec):
        return value(value, value, number if number == value else types.int64, value), codegen


@intrinsic
def raised(typingctx, numbers, number):
    """``numbers`` + ``number``, one or a vector, as integers."""

    def codegen(cx, b, sig, args):
        ty = args[0].type
        return b.bitcast(b.add(_integers_of(b, args[0], ty), _integers_of(b, args[1], ty)), ty)

    if isinstance(numbers, Vec):
        return numbers(numbers, number if number == numbers else types.int64), codegen


@intrinsic
def where_number(typingctx, numbers, number, value):
    """``value`` in the lanes where ``numbers`` are ``number``, one or a vector, else 0."""

    def codegen(cx, b, sig, args):
        numbers, number, value = args
        same = b.icmp_unsigned("==", *(_integers_of(b, n, value.type) for n in (numbers, number)))
        return b.select(same, value, splat(value.type, 0.0))

    if isinstance(value, Vec):
        return value(value, number if number == value else types.int64, value), codegen


@intrinsic
def lowest(typingctx, largest, like):
    """What a reduction starts from: a vector of -inf for a maximum, of 0 for a sum."""

    def codegen(cx, b, sig, args):
        ty = cx.get_value_type(vec)
        return b.select(args[0], splat(ty, float("-inf")), splat(ty, 0.0))

    if known(like) and largest == types.boolean:
        vec = vec_of(like)
        return vec(largest, like), codegen


@inner
def fill_line(line, n, value, like):
    """line[:n] = value, and up to a vector's lanes more."""
    for i in range(0, n, lanes(like)):
        store_acc(line + i * accsize(like), value, like)


@inner
def fetch(line, n, base, step, like):
    """line[:n] = n elements, ``step`` apart."""
    L = lanes(like)
    if step != 1 or n < L:
        for i in range(n):
            poke(line, i, load_apart(base, i * step, like), like)
        return
    for i in range(0, n, L):
        first = min(i, n - L)  # the last vector overlaps the one before
        store_acc(line + first * accsize(like), load(base, first, -1, zeros(like), like), like)


@inner
def flush(line, n, base, step, like):
    """The reverse of ``fetch``: n elements are rounded and stored."""
    L = lanes(like)
    if step != 1 or n < L:
        for i in range(n):
            store1(base, i * step, peek(line, i, like), like)
        return
    for i in range(0, n, L):
        first = min(i, n - L)
        store(base, first, -1, load_acc(line + first * accsize(like), like), like)


@inner
def split(lines, gap, phases, n, stride, pad, base, step, like):
    """Column i*stride + s of a row of n becomes element i of the line ``(s + pad) % stride``, of the first ``phases``.

    Lines lie ``gap`` elements apart; what lies before and after their elements is left as it is.
    """
    L, size = lanes(like), accsize(like)
    if stride == 1:
        fetch(lines, n, base, step, like)
    elif stride == 2 and phases == 2 and step == 1 and n >= 2 * L:
        even, odd = lines + pad % 2 * gap * size, lines + (pad + 1) % 2 * gap * size
        for i in range(0, n // 2, L):
            first = min(i, n // 2 - L)
            a, b = load(base, 2 * first, -1, zeros(like), like), load(base, 2 * first + L, -1, zeros(like), like)
            store_acc(even + first * size, evens(a, b), like)
            store_acc(odd + first * size, odds(a, b), like)
        if n % 2:
            poke(even, n // 2, load1(base, n - 1, like), like)
    else:
        for r in range(phases):
            s = (r - pad) % stride
            fetch(
                lines + r * gap * size,
                (n - s + stride - 1) // stride,
                base + s * step * itemsize(like),
                stride * step,
                like,
            )


@inner
def divide_line(line, n, spans, factor, like):
    """line[:n] /= spans[:n] * factor."""
    size = accsize(like)
    for i in range(0, n, lanes(like)):
        divisor = scale(factor, load_acc(spans + i * size, like))
        store_acc(line + i * size, divide(load_acc(line + i * size, like), divisor), like)
