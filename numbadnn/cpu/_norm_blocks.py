"""Blocks of batch normalization: read where they lie in memory, widened, worked on in registers, and stored or added up.

``apply_line``: out = (x - m) * a + b, dy * a + (x - m) * b + c, or dy * a, where ``m``, ``a``, ``b`` and ``c`` are numbers (a run
of one channel) or lines (a channel for each element). ``add_moments`` and ``add_sums`` add what each element gives to lines.
Loading this module imports Numba.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbadnn.cpu._typed import inner
from numbadnn.cpu._vector import (
    _IR,
    BLOCK,
    I32,
    _narrow,
    _prefetch,
    _widen,
    acc_type,
    at,
    broadcast,
    itemsize,
    known,
    line,
)

#: bytes of a whole block of float32, the widest store
VECTOR = 4 * BLOCK


def _elements(dtype, lanes):  # type: ignore[no-untyped-def]
    return ir.VectorType(_IR[dtype], lanes) if lanes > 1 else _IR[dtype]


def _load(b, address, i, like, lanes):  # type: ignore[no-untyped-def]
    """The elements i to i + lanes at an address, widened."""
    place = at(b, address, _elements(like.dtype, lanes), i)
    _prefetch(b, place, like, 0)
    return _widen(b, b.load(place, align=like.dtype.bitwidth // 8), like.dtype)


def _of_line(cx, b, array, ty, i, lanes):  # type: ignore[no-untyped-def]
    """Pointer to the elements i to i + lanes of a line."""
    return b.bitcast(b.gep(cx.make_array(ty)(cx, b, array).data, [i]), _elements(ty.dtype, lanes).as_pointer())


def _mapping(terms, lanes, past=False):  # type: ignore[no-untyped-def]
    """An intrinsic: elements i to i + lanes at ``out``, which ``terms`` makes of x, dy (functions that load) and coefficients.

    ``past``: stored past the caches, to whole vectors' multiples.
    """

    def mapped(typingctx, out, x, dy, i, m, a, b, c, like):  # type: ignore[no-untyped-def]
        def codegen(cx, builder, sig, args):  # type: ignore[no-untyped-def]
            align = acc_type(like.dtype).bitwidth // 8

            def coefficient(value, ty):  # type: ignore[no-untyped-def]
                if line(ty):
                    return builder.load(_of_line(cx, builder, value, ty, args[3], lanes), align=align)
                return broadcast(builder, value, _elements(ty, lanes)) if lanes > 1 else value

            given = [coefficient(value, ty) for value, ty in zip(args[4:8], sig.args[4:8], strict=True)]
            loads = [lambda k=k: _load(builder, args[k], args[3], like, lanes) for k in (1, 2)]
            result = _narrow(builder, terms(builder, *loads, *given), like.dtype)
            place, size = at(builder, args[0], _elements(like.dtype, lanes), args[3]), like.dtype.bitwidth // 8
            stored = builder.store(result, place, align=min(VECTOR, size * lanes) if past else size)
            if not past:
                _prefetch(builder, place, like, 1)
            else:
                stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))
            return cx.get_dummy_value()

        if known(like):
            acc = acc_type(like.dtype)
            given = [t if line(t) and t.dtype == acc else acc for t in (m, a, b, c)]
            return types.void(types.int64, types.int64, types.int64, types.int64, *given, like), codegen

    return intrinsic(mapped)


def _adding(terms, lanes):  # type: ignore[no-untyped-def]
    """An intrinsic: lines s[i : i + lanes] += each of ``terms`` of the elements there of dy and of x, less ``centre``."""

    def added(typingctx, x, dy, i, centre, s, like):  # type: ignore[no-untyped-def]
        def codegen(cx, b, sig, args):  # type: ignore[no-untyped-def]
            align = centre.dtype.bitwidth // 8
            around = b.load(_of_line(cx, b, args[3], centre, args[2], lanes), align=align)
            d = b.fsub(_load(b, args[0], args[2], like, lanes), around)
            values = terms(b, lambda: _load(b, args[1], args[2], like, lanes), d)
            for k, value in enumerate(values):
                place = _of_line(cx, b, b.extract_value(args[4], k), centre, args[2], lanes)
                b.store(b.fadd(b.load(place, align=align), value), place, align=align)
            return cx.get_dummy_value()

        if known(like) and line(centre) and centre.dtype == acc_type(like.dtype):
            return types.void(types.int64, types.int64, types.int64, centre, s, like), codegen

    return intrinsic(added)


def _forward(builder, x, dy, m, a, b, c):  # type: ignore[no-untyped-def]
    return builder.fadd(builder.fmul(builder.fsub(x(), m), a), b)


def _gradient(builder, x, dy, m, a, b, c):  # type: ignore[no-untyped-def]
    around = builder.fadd(builder.fmul(builder.fsub(x(), m), b), c)
    return builder.fadd(builder.fmul(dy(), a), around)


def _scaled(builder, x, dy, m, a, b, c):  # type: ignore[no-untyped-def]
    return builder.fmul(dy(), a)


def _moments(builder, dy, d):  # type: ignore[no-untyped-def]
    return d, builder.fmul(d, d)


def _sums(builder, dy, d):  # type: ignore[no-untyped-def]
    v = dy()
    return v, builder.fmul(v, d), d


def _adder(terms):  # type: ignore[no-untyped-def]
    block, one = _adding(terms, BLOCK), _adding(terms, 1)

    @inner
    def add(x, dy, centre, s, n, like):  # type: ignore[no-untyped-def]
        """s[k] += term k of n neighbouring elements of like's type; d is what x is away from its centre."""
        whole = n // BLOCK * BLOCK
        for i in range(0, whole, BLOCK):
            block(x, dy, i, centre, s, like)
        for i in range(whole, n):
            one(x, dy, i, centre, s, like)

    return add


#: lines of d and d * d; of dy, dy * d and d
add_moments, add_sums = _adder(_moments), _adder(_sums)


@intrinsic
def settle(typingctx):  # type: ignore[no-untyped-def]
    """Let what was stored past the caches be there for every thread."""

    def codegen(cx, builder, sig, args):  # type: ignore[no-untyped-def]
        builder.fence("seq_cst")
        return cx.get_dummy_value()

    return types.void(), codegen


def _applier(terms):  # type: ignore[no-untyped-def]
    block, block_past, one = _mapping(terms, BLOCK), _mapping(terms, BLOCK, True), _mapping(terms, 1)

    @inner
    def apply(out, x, dy, m, a, b, c, n, like, past):  # type: ignore[no-untyped-def]
        past = past and out % itemsize(like) == 0
        head = min(n, -out % VECTOR // itemsize(like)) if past else 0
        whole = head + (n - head) // BLOCK * BLOCK
        for i in range(head):
            one(out, x, dy, i, m, a, b, c, like)
        if past:
            for i in range(head, whole, BLOCK):
                block_past(out, x, dy, i, m, a, b, c, like)
        else:
            for i in range(head, whole, BLOCK):
                block(out, x, dy, i, m, a, b, c, like)
        for i in range(whole, n):
            one(out, x, dy, i, m, a, b, c, like)

    return apply


_apply_forward, _apply_gradient, _apply_scaled = (_applier(terms) for terms in (_forward, _gradient, _scaled))


@inner
def apply_line(kind, out, x, dy, m, a, b, c, n, like, past):  # type: ignore[no-untyped-def]
    """n neighbouring elements of like's type: kinds 0, 1 and 2 of the formulas above; ``past`` the caches, where that can be."""
    if kind == 0:
        _apply_forward(out, x, dy, m, a, b, c, n, like, past)
    elif kind == 1:
        _apply_gradient(out, x, dy, m, a, b, c, n, like, past)
    else:
        _apply_scaled(out, x, dy, m, a, b, c, n, like, past)
