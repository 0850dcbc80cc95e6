"""Blocks of elements: read where they lie in memory, widened, worked on in registers, and stored or added to lines.

A formula is a Python function of a builder, of two functions that load a block of either operand, and of coefficients, which are
numbers or lines (a number for each element); ``applier`` and ``adder`` make loops over n neighbours of it, of any stored type.
What exceeds the caches may be stored past them. Loading this module imports Numba.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbadnn.cpu.lang.elements import (
    BLOCK,
    IR,
    acc_type,
    at,
    broadcast,
    itemsize,
    known,
    line,
    narrow,
    prefetch,
    store_block,
    widen,
)
from numbadnn.cpu.lang.parallel import LINE
from numbadnn.cpu.lang.past import nontemporal
from numbadnn.cpu.lang.typed import inner


def _elements(dtype, lanes):
    return ir.VectorType(IR[dtype], lanes) if lanes > 1 else IR[dtype]


def _load(b, address, i, like, lanes):
    """The elements i to i + lanes at an address, widened."""
    place = at(b, address, _elements(like.dtype, lanes), i)
    prefetch(b, place, like, 0)
    return widen(b, b.load(place, align=like.dtype.bitwidth // 8), like.dtype)


def _of_line(cx, b, array, ty, i, lanes):
    """Pointer to the elements i to i + lanes of a line."""
    return b.bitcast(b.gep(cx.make_array(ty)(cx, b, array).data, [i]), _elements(ty.dtype, lanes).as_pointer())


def _values(cx, b, given, ty, i, lanes):
    """Coefficients of the elements i to i + lanes; ``ty``: of the tuple of them."""
    found = []
    for k, one in enumerate(ty.types):
        value = b.extract_value(given, k)
        if line(one):
            value = b.load(_of_line(cx, b, value, one, i, lanes), align=one.dtype.bitwidth // 8)
        elif lanes > 1:
            value = broadcast(b, value, _elements(one, lanes))
        found.append(value)
    return found


def _fit(given, like) -> bool:  # type: ignore[no-untyped-def]
    """Whether coefficients or sums are numbers or lines of the type that like's elements are widened to."""
    acc = acc_type(like.dtype)
    return isinstance(given, types.BaseTuple) and all(t == acc or (line(t) and t.dtype == acc) for t in given.types)


def _mapping(formula, lanes, past):
    """An intrinsic: elements i to i + lanes at ``out``; ``past`` the caches, to multiples of whole vectors."""

    def mapped(typingctx, out, x, y, i, given, like):
        def codegen(cx, b, sig, args):
            loads = [lambda k=k: _load(b, args[k], args[3], like, lanes) for k in (1, 2)]
            value = formula(b, *loads, *_values(cx, b, args[4], given, args[3], lanes))
            place, size = at(b, args[0], _elements(like.dtype, lanes), args[3]), like.dtype.bitwidth // 8
            value = narrow(b, value, like.dtype)
            if past:
                nontemporal(b, value, place, size * lanes)
            else:
                store_block(b, value, place, like)
            return cx.get_dummy_value()

        if known(like) and _fit(given, like):
            return types.void(types.int64, types.int64, types.int64, types.int64, given, like), codegen

    return intrinsic(mapped)


def _adding(formula, lanes):
    """An intrinsic: to each line of ``s`` its number of those that the formula makes is added, elements i to i + lanes."""

    def added(typingctx, x, y, i, given, s, like):
        def codegen(cx, b, sig, args):
            loads = [lambda k=k: _load(b, args[k], args[2], like, lanes) for k in (0, 1)]
            values = formula(b, *loads, *_values(cx, b, args[3], given, args[2], lanes))
            for k, (value, ty) in enumerate(zip(values, s.types, strict=True)):
                place = _of_line(cx, b, b.extract_value(args[4], k), ty, args[2], lanes)
                align = ty.dtype.bitwidth // 8
                b.store(b.fadd(b.load(place, align=align), value), place, align=align)
            return cx.get_dummy_value()

        if known(like) and _fit(given, like) and _fit(s, like):
            return types.void(types.int64, types.int64, types.int64, given, s, like), codegen

    return intrinsic(added)


def adder(formula):
    """A function that adds what the formula, a tuple, makes of n neighbouring elements of like's type to the lines ``s``."""
    block, one = _adding(formula, BLOCK), _adding(formula, 1)

    @inner
    def add(x, y, given, s, n, like):
        whole = n // BLOCK * BLOCK
        for i in range(0, whole, BLOCK):
            block(x, y, i, given, s, like)
        for i in range(whole, n):
            one(x, y, i, given, s, like)

    return add


def applier(formula):
    """A function that stores what the formula makes of n neighbouring elements: ``past`` the caches, where that can be."""
    block, block_past, one = (
        _mapping(formula, BLOCK, False),
        _mapping(formula, BLOCK, True),
        _mapping(formula, 1, False),
    )

    @inner
    def apply(out, x, y, given, n, like, past):
        past = past and out % itemsize(like) == 0
        head = min(n, -out % LINE // itemsize(like)) if past else 0
        whole = head + (n - head) // BLOCK * BLOCK
        for i in range(head):
            one(out, x, y, i, given, like)
        if past:
            for i in range(head, whole, BLOCK):
                block_past(out, x, y, i, given, like)
        else:
            for i in range(head, whole, BLOCK):
                block(out, x, y, i, given, like)
        for i in range(whole, n):
            one(out, x, y, i, given, like)

    return apply
