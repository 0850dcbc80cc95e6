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
    I32,
    I64,
    IR,
    acc_type,
    at,
    broadcast,
    itemsize,
    known,
    line,
    masked,
    narrow,
    widen,
)
from numbadnn.cpu.lang.parallel import LINE
from numbadnn.cpu.lang.past import nontemporal
from numbadnn.cpu.lang.typed import inner, into


def _pointer(cx, b, array, ty, i):
    """To the block of a line that begins with element ``i``."""
    return b.bitcast(b.gep(cx.make_array(ty)(cx, b, array).data, [i]), ir.VectorType(IR[ty.dtype], BLOCK).as_pointer())


def _mask(b, n):
    """Of the first ``n`` elements of a block, at most all."""
    lanes = ir.VectorType(I64, BLOCK)
    return b.icmp_signed("<", ir.Constant(lanes, list(range(BLOCK))), broadcast(b, n, lanes))


def _read(b, place, size, mask):
    """The block at a pointer; 0 for what ``mask``, if there is one, leaves out: that is not touched."""
    if mask is None:
        return b.load(place, align=size)
    ty = place.type.pointee
    return masked(b, "load", ty, [place, ir.Constant(I32, size), mask, ir.Constant(ty, None)])


def _write(b, value, place, size, mask):
    """The reverse of ``_read``."""
    if mask is None:
        b.store(value, place, align=size)
    else:
        masked(b, "store", value.type, [value, place, ir.Constant(I32, size), mask])


def _load(b, address, i, like, mask):
    """The block at an address that begins with element ``i``, widened."""
    place = at(b, address, ir.VectorType(IR[like.dtype], BLOCK), i)
    return widen(b, _read(b, place, like.dtype.bitwidth // 8, mask), like.dtype)


def _values(cx, b, given, ty, i, mask):
    """Coefficients of the block that begins with element ``i``; ``ty``: of the tuple of them."""
    found = []
    for k, one in enumerate(ty.types):
        value = b.extract_value(given, k)
        if line(one):
            value = _read(b, _pointer(cx, b, value, one, i), one.dtype.bitwidth // 8, mask)
        else:
            value = broadcast(b, value, ir.VectorType(IR[one], BLOCK))
        found.append(value)
    return found


def _fit(given, like) -> bool:  # type: ignore[no-untyped-def]
    """Whether coefficients or sums are numbers or lines of the type that like's elements are widened to."""
    acc = acc_type(like.dtype)
    return isinstance(given, types.BaseTuple) and all(t == acc or (line(t) and t.dtype == acc) for t in given.types)


def _mapping(formula, part, past):
    """An intrinsic: the block from element i on at ``out``; ``part``: n elements of it; ``past`` the caches: whole vectors."""

    def mapped(typingctx, out, x, y, i, n, given, like):
        def codegen(cx, b, sig, args):
            out, x, y, i, n, values, _ = args
            mask, size = _mask(b, n) if part else None, like.dtype.bitwidth // 8
            loads = [lambda one=one: _load(b, one, i, like, mask) for one in (x, y)]
            value = narrow(b, formula(b, *loads, *_values(cx, b, values, given, i, mask)), like.dtype)
            place = at(b, out, value.type, i)
            if past:
                nontemporal(b, value, place, size * BLOCK)
            else:
                _write(b, value, place, size, mask)
            return cx.get_dummy_value()

        if known(like) and _fit(given, like):
            return types.void(types.int64, types.int64, types.int64, types.int64, types.int64, given, like), codegen

    return intrinsic(mapped)


def _adding(formula, part):
    """An intrinsic: to each line of ``s`` is added what the formula makes of the block from element i on, or of n elements."""

    def added(typingctx, x, y, i, n, given, s, like):
        def codegen(cx, b, sig, args):
            x, y, i, n, values, sums, _ = args
            mask = _mask(b, n) if part else None
            loads = [lambda one=one: _load(b, one, i, like, mask) for one in (x, y)]
            terms = formula(b, *loads, *_values(cx, b, values, given, i, mask))
            for k, (term, ty) in enumerate(zip(terms, s.types, strict=True)):
                place, size = _pointer(cx, b, b.extract_value(sums, k), ty, i), ty.dtype.bitwidth // 8
                _write(b, b.fadd(_read(b, place, size, mask), term), place, size, mask)
            return cx.get_dummy_value()

        if known(like) and _fit(given, like) and _fit(s, like):
            return types.void(types.int64, types.int64, types.int64, types.int64, given, s, like), codegen

    return intrinsic(added)


def adder(formula):
    """A function that adds what the formula, a tuple, makes of n neighbouring elements of like's type to the lines ``s``."""
    block, some = _adding(formula, False), _adding(formula, True)

    @inner
    def add(x, y, given, s, n, like):
        whole = n // BLOCK * BLOCK
        for i in range(0, whole, BLOCK):
            block(x, y, i, BLOCK, given, s, like)
        if whole < n:
            some(x, y, whole, n - whole, given, s, like)

    return add


def applier(formula, of_run=None):
    """A function that stores what the formula makes of n neighbouring elements: ``past`` the caches, where that can be.

    With ``of_run`` it does so for the runs ``first`` to ``end``, ``steps`` bytes apart, and ``of_run(given, run)`` gives the
    coefficients of each: a call costs as much as a short run.
    """
    block, block_past, some = (
        _mapping(formula, False, False),
        _mapping(formula, False, True),
        _mapping(formula, True, False),
    )

    @into
    def one(out, x, y, given, n, like, past):
        past = past and out % itemsize(like) == 0
        head = min(n, -out % LINE // itemsize(like)) if past else 0
        whole = head + (n - head) // BLOCK * BLOCK
        for i in range(0, head, BLOCK):
            some(out, x, y, i, head - i, given, like)
        if past:
            for i in range(head, whole, BLOCK):
                block_past(out, x, y, i, BLOCK, given, like)
        else:
            for i in range(head, whole, BLOCK):
                block(out, x, y, i, BLOCK, given, like)
        if whole < n:
            some(out, x, y, whole, n - whole, given, like)

    if of_run is None:
        return inner(one.py_func)

    @inner
    def runs(out, x, y, steps, given, first, end, n, like, past):
        for k in range(first, end):
            one(out, x, y, of_run(given, k), n, like, past)
            out, x, y = out + steps[0], x + steps[1], y + steps[2]

    return runs
