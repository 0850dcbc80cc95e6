"""The last step of batch normalization and its gradients: out = (x - m) * a + b, dy * a + (x - m) * b + c, or dy * a.

A block of elements is read, widened, worked on in registers, rounded and stored, where it lies in memory; ``m``, ``a``, ``b`` and
``c`` are numbers (a run of one channel) or lines (a channel for each element). Loading this module imports Numba.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbadnn.cpu._typed import inner
from numbadnn.cpu._vector import (
    _IR,
    BLOCK,
    _convert,
    _narrow,
    _prefetch,
    _widen,
    acc_type,
    at,
    broadcast,
    known,
    line,
)


def _elements(dtype, lanes):  # type: ignore[no-untyped-def]
    return ir.VectorType(_IR[dtype], lanes) if lanes > 1 else _IR[dtype]


def _mapping(terms, lanes):  # type: ignore[no-untyped-def]
    """An intrinsic: elements i to i + lanes at ``out``, which ``terms`` makes of x, dy (functions that load) and coefficients."""

    def mapped(typingctx, out, x, dy, i, m, a, b, c, like):  # type: ignore[no-untyped-def]
        def codegen(cx, builder, sig, args):  # type: ignore[no-untyped-def]
            align = like.dtype.bitwidth // 8
            stored, real = (_elements(t, lanes) for t in (like.dtype, acc_type(like.dtype)))

            def where(address, write):  # type: ignore[no-untyped-def]
                place = at(builder, address, stored, args[3])
                _prefetch(builder, place, like, write)
                return place

            def load(address):  # type: ignore[no-untyped-def]
                return _widen(builder, builder.load(where(address, 0), align=align), like.dtype)

            def coefficient(value, ty):  # type: ignore[no-untyped-def]
                if not isinstance(ty, types.Array):
                    return broadcast(builder, value, real) if lanes > 1 else value
                found = _elements(ty.dtype, lanes)
                data = builder.gep(cx.make_array(ty)(cx, builder, value).data, [args[3]])
                value = builder.load(builder.bitcast(data, found.as_pointer()), align=ty.dtype.bitwidth // 8)
                return _convert(builder, value, real)

            given = [coefficient(value, ty) for value, ty in zip(args[4:8], sig.args[4:8], strict=True)]
            result = terms(builder, lambda: load(args[1]), lambda: load(args[2]), *given)
            builder.store(_narrow(builder, result, like.dtype), where(args[0], 1), align=align)
            return cx.get_dummy_value()

        if known(like):
            given = [t if line(t) else acc_type(like.dtype) for t in (m, a, b, c)]
            return types.void(types.int64, types.int64, types.int64, types.int64, *given, like), codegen

    return intrinsic(mapped)


def _forward(builder, x, dy, m, a, b, c):  # type: ignore[no-untyped-def]
    return builder.fadd(builder.fmul(builder.fsub(x(), m), a), b)


def _gradient(builder, x, dy, m, a, b, c):  # type: ignore[no-untyped-def]
    around = builder.fadd(builder.fmul(builder.fsub(x(), m), b), c)
    return builder.fadd(builder.fmul(dy(), a), around)


def _scaled(builder, x, dy, m, a, b, c):  # type: ignore[no-untyped-def]
    return builder.fmul(dy(), a)


_forward_block, _gradient_block, _scaled_block = (_mapping(terms, BLOCK) for terms in (_forward, _gradient, _scaled))
_forward_one, _gradient_one, _scaled_one = (_mapping(terms, 1) for terms in (_forward, _gradient, _scaled))


@inner
def apply_line(kind, out, x, dy, m, a, b, c, n, like):  # type: ignore[no-untyped-def]
    """n neighbouring elements of like's type: kinds 0, 1 and 2 of the formulas above; ``out`` may be x or dy itself."""
    whole = n // BLOCK * BLOCK
    if kind == 0:
        for i in range(0, whole, BLOCK):
            _forward_block(out, x, dy, i, m, a, b, c, like)
        for i in range(whole, n):
            _forward_one(out, x, dy, i, m, a, b, c, like)
    elif kind == 1:
        for i in range(0, whole, BLOCK):
            _gradient_block(out, x, dy, i, m, a, b, c, like)
        for i in range(whole, n):
            _gradient_one(out, x, dy, i, m, a, b, c, like)
    else:
        for i in range(0, whole, BLOCK):
            _scaled_block(out, x, dy, i, m, a, b, c, like)
        for i in range(whole, n):
            _scaled_one(out, x, dy, i, m, a, b, c, like)
