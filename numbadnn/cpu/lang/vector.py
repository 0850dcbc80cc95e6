"""Vectors for Numba's CPU compiler: masked loads and stores, and what is done with them.

Numba has no vector type, but an ``@intrinsic`` may emit LLVM IR, and LLVM has one on every machine. ``Vec`` is such a value as a
Numba variable; each function below is one operation on it. Memory and ``like`` are as in ``elements.py``.

Sums are never reassociated; ``multiply_add`` is fused exactly where the machine has an FMA instruction. Loading this module
imports Numba: only plans do it.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, models, register_model

from numbadnn.cpu.lang.elements import (
    FEATURES,
    I1,
    I32,
    I64,
    IR,
    X86_512,
    acc_type,
    at,
    broadcast,
    known,
    masked,
    narrow,
    splat,
    widen,
)
from numbadnn.host.numba_names import cgutils

VECTOR_BYTES = 64 if X86_512 else 32 if "+avx" in FEATURES else 16


class Vec(types.Type):
    """A vector of VECTOR_BYTES of float32 or float64, or ``times`` as long, which LLVM splits."""

    def __init__(self, dtype: types.Float, times: int = 1) -> None:
        self.dtype = dtype
        self.lanes = times * VECTOR_BYTES * 8 // dtype.bitwidth
        super().__init__(name=f"Vec({dtype}, {self.lanes})")


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type) -> None:  # type: ignore[no-untyped-def]
        super().__init__(dmm, fe_type, ir.VectorType(IR[fe_type.dtype], fe_type.lanes))


def vec_of(like):
    """The vector of accumulators that ``like`` asks for: one of the machine's, or as long as an ``Element`` says."""
    return Vec(acc_type(like.dtype), getattr(like, "times", 1))


def _mask(b, mask, lanes: int):  # type: ignore[no-untyped-def]
    return b.bitcast(b.trunc(mask, ir.IntType(lanes)), ir.VectorType(I1, lanes))


class Element(types.Array):
    """The type of an array that holds nothing, for ``like``: it has no owner whose references are counted at every call.

    ``times``: how many of the machine's vectors are worked on as one.
    """

    def __init__(self, dtype: types.Type, times: int) -> None:
        self.times = times
        super().__init__(dtype, 1, "C", name=f"Element({dtype}, {times})")

    @property
    def key(self):
        # what types are compared by; an array's own lacks ``times``
        return self.dtype, self.times


register_model(Element)(models.OpaqueModel)


def _element(times: int):  # type: ignore[no-untyped-def]
    def element(typingctx, like):
        if known(like):
            return Element(like.dtype, times)(like), lambda cx, b, sig, args: cx.get_dummy_value()

    return intrinsic(element)


#: ``like`` as the functions of a loop take it; and for four vectors, where with one the loops cost more than what they do
element, four_of = _element(1), _element(4)


@intrinsic
def lanes(typingctx, like):
    """Accumulators of a vector."""
    if known(like):
        return types.int64(like), lambda cx, b, sig, args: ir.Constant(I64, vec_of(like).lanes)


@intrinsic
def zeros(typingctx, like):
    """A vector of zeros of like's accumulator type."""
    if known(like):
        vec = vec_of(like)
        return vec(like), lambda cx, b, sig, args: splat(cx.get_value_type(vec), 0.0)


@intrinsic
def load(typingctx, address, offset, mask, otherwise, like):
    """Lanes whose bit in ``mask`` is set from consecutive elements, the rest from ``otherwise``; no other is touched."""

    def codegen(cx, b, sig, args):
        address, offset, mask, otherwise, _ = args
        n = vec.lanes
        ty = ir.VectorType(IR[like.dtype], n)
        bits = _mask(b, mask, n)
        align = ir.Constant(I32, like.dtype.bitwidth // 8)
        loaded = masked(b, "load", ty, [at(b, address, ty, offset), align, bits, ir.Constant(ty, ir.Undefined)])
        return b.select(bits, widen(b, loaded, like.dtype), otherwise)

    if known(like):
        vec = vec_of(like)
        return vec(types.int64, types.int64, types.int64, vec, like), codegen


@intrinsic
def load_places(typingctx, address, places, mask, like):
    """Lanes whose bit in ``mask`` is set from elements anywhere, the rest 0: lane i's is number ``places[i]`` (64-bit)."""

    def codegen(cx, b, sig, args):
        address, places, mask, _ = args
        n, size = vec.lanes, like.dtype.bitwidth // 8
        ty, wide = ir.VectorType(IR[like.dtype], n), ir.VectorType(I64, n)
        offsets = b.mul(b.load(b.inttoptr(places, wide.as_pointer()), align=8), splat(wide, size))
        pointers = ir.VectorType(ty.element.as_pointer(), n)
        where = b.inttoptr(b.add(broadcast(b, address, wide), offsets), pointers)
        element = f"{'i' if size == 2 else 'f'}{size * 8}"
        fnty = ir.FunctionType(ty, [pointers, I32, ir.VectorType(I1, n), ty])
        fn = cgutils.get_or_insert_function(b.module, fnty, f"llvm.masked.gather.v{n}{element}.v{n}p0")
        zero = ir.Constant(ty, [0] * n)
        return widen(b, b.call(fn, [where, ir.Constant(I32, size), _mask(b, mask, n), zero]), like.dtype)

    if known(like):
        vec = vec_of(like)
        return vec(types.int64, types.int64, types.int64, like), codegen


@intrinsic
def load_even(typingctx, address, offset, mask, otherwise, like):
    """As ``load`` from every second element; bit 2*i of ``mask`` stands for lane i."""

    def codegen(cx, b, sig, args):
        address, offset, mask, otherwise, _ = args
        n = vec.lanes
        ty = ir.VectorType(IR[like.dtype], n)
        align = ir.Constant(I32, like.dtype.bitwidth // 8)
        masks, halves = [], []
        for part in range(2):
            bits = _mask(b, b.lshr(mask, ir.Constant(I64, part * n)), n)
            where = at(b, address, ty, b.add(offset, ir.Constant(I64, part * n)))
            masks.append(bits)
            halves.append(masked(b, "load", ty, [where, align, bits, ir.Constant(ty, [0] * n)]))
        even = ir.Constant(ir.VectorType(I32, n), list(range(0, 2 * n, 2)))
        return b.select(
            b.shuffle_vector(*masks, even), widen(b, b.shuffle_vector(*halves, even), like.dtype), otherwise
        )

    if known(like):
        vec = vec_of(like)
        return vec(types.int64, types.int64, types.int64, vec, like), codegen


def store_lanes(b, address, offset, mask, value, dtype):
    """Store the lanes whose bit in ``mask`` is set, rounded to a stored type, to consecutive elements."""
    ty, align = ir.VectorType(IR[dtype], value.type.count), ir.Constant(I32, dtype.bitwidth // 8)
    where = at(b, address, ty, offset)
    masked(b, "store", ty, [narrow(b, value, dtype), where, align, _mask(b, mask, ty.count)])


@intrinsic
def store(typingctx, address, offset, mask, value, like):
    """Store the lanes whose bit in ``mask`` is set, rounded to like's type, to consecutive elements."""

    def codegen(cx, b, sig, args):
        address, offset, mask, value, _ = args
        store_lanes(b, address, offset, mask, value, like.dtype)
        return cx.get_dummy_value()

    if known(like):
        vec = vec_of(like)
        return types.void(types.int64, types.int64, types.int64, vec, like), codegen


@intrinsic
def store_even(typingctx, address, offset, mask, value, like):
    """As ``store`` to every second element; bit 2*i of ``mask`` stands for lane i."""

    def codegen(cx, b, sig, args):
        address, offset, mask, value, _ = args
        n = vec.lanes
        ty = ir.VectorType(IR[like.dtype], n)
        align = ir.Constant(I32, like.dtype.bitwidth // 8)
        stored = narrow(b, value, like.dtype)
        for part in range(2):
            places = ir.Constant(ir.VectorType(I32, n), [(part * n + i) // 2 for i in range(n)])
            bits = _mask(b, b.lshr(mask, ir.Constant(I64, part * n)), n)
            where = at(b, address, ty, b.add(offset, ir.Constant(I64, part * n)))
            masked(b, "store", ty, [b.shuffle_vector(stored, stored, places), where, align, bits])
        return cx.get_dummy_value()

    if known(like):
        vec = vec_of(like)
        return types.void(types.int64, types.int64, types.int64, vec, like), codegen


@intrinsic
def prefetch_line(typingctx, address, offset, like):
    """Let the line of memory come that an element lies in, which is read soon; harmless where there is none."""

    def codegen(cx, b, sig, args):
        here = b.bitcast(at(b, args[0], IR[like.dtype], args[1]), ir.IntType(8).as_pointer())
        fnty = ir.FunctionType(ir.VoidType(), [here.type, I32, I32, I32])
        fn = cgutils.get_or_insert_function(b.module, fnty, "llvm.prefetch.p0")
        b.call(fn, [here, *(ir.Constant(I32, n) for n in (0, 3, 1))])
        return cx.get_dummy_value()

    if known(like):
        return types.void(types.int64, types.int64, like), codegen


def _plain(name: str):  # type: ignore[no-untyped-def]
    """The whole vector at ``address`` of accumulators: aligned to an accumulator only."""

    def load_acc(typingctx, address, like):
        def codegen(cx, b, sig, args):
            return b.load(at(b, args[0], cx.get_value_type(vec)), align=vec.dtype.bitwidth // 8)

        if known(like):
            vec = vec_of(like)
            return vec(types.int64, like), codegen

    def store_acc(typingctx, address, value, like):
        def codegen(cx, b, sig, args):
            b.store(args[1], at(b, args[0], cx.get_value_type(vec)), align=vec.dtype.bitwidth // 8)
            return cx.get_dummy_value()

        if known(like):
            vec = vec_of(like)
            return types.void(types.int64, vec, like), codegen

    return intrinsic(load_acc if name == "load" else store_acc)


load_acc, store_acc = _plain("load"), _plain("store")


@intrinsic
def fill(typingctx, value, like):
    """A vector whose lanes are all ``value``."""
    if known(like):
        vec = vec_of(like)
        return vec(vec.dtype, like), lambda cx, b, sig, args: broadcast(b, args[0], cx.get_value_type(vec))


@intrinsic
def multiply_add(typingctx, x, y, z):
    """x * y + z for vectors or numbers, fused where the machine has the instruction."""
    vector = isinstance(x, Vec)

    def codegen(cx, b, sig, args):
        ty, real = args[0].type, x.dtype if vector else x
        name = f"llvm.fmuladd.{f'v{ty.count}' if vector else ''}f{real.bitwidth}"
        return b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(ty, [ty, ty, ty]), name), args)

    if vector or (isinstance(x, types.Float) and x == y == z):
        return x(x, x, x), codegen


@intrinsic
def scale_add(typingctx, alpha, value, beta, old):
    """alpha * value + beta * old for vectors, each operation rounded."""

    def codegen(cx, b, sig, args):
        alpha, value, beta, old = args
        return b.fadd(b.fmul(broadcast(b, alpha, value.type), value), b.fmul(broadcast(b, beta, value.type), old))

    if isinstance(value, Vec):
        return value(value.dtype, value, value.dtype, value), codegen


@intrinsic
def scale(typingctx, alpha, value):
    """alpha * value for a vector."""

    def codegen(cx, b, sig, args):
        return b.fmul(broadcast(b, args[0], args[1].type), args[1])

    if isinstance(value, Vec):
        return value(value.dtype, value), codegen


@intrinsic
def add(typingctx, x, y):
    """x + y for vectors or numbers."""
    if isinstance(x, Vec | types.Float) and x == y:
        return x(x, y), lambda cx, b, sig, args: b.fadd(*args)


@intrinsic
def lost(typingctx, x, y, total):
    """What ``total``, x + y rounded, lacks of the exact sum: exactly that (Knuth's TwoSum); NaN where it is not finite."""

    def codegen(cx, b, sig, args):
        x, y, total = args
        other = b.fsub(total, x)
        return b.fadd(b.fsub(x, b.fsub(total, other)), b.fsub(y, other))

    if isinstance(x, Vec | types.Float) and x == y == total:
        return x(x, x, x), codegen


@intrinsic
def made_good(typingctx, total, low):
    """total + low, what it lost; a total that was infinite on the way lost nothing that is a number, and stays as it is."""

    def codegen(cx, b, sig, args):
        total, low = args
        return b.select(b.fcmp_ordered("ord", low, low), b.fadd(total, low), total)

    if isinstance(total, Vec | types.Float) and total == low:
        return total(total, low), codegen


@njit(nogil=True, inline="always")
def carry(total, low, part):
    """The total and what it lost, of vectors or numbers, once ``part`` is added: any number of parts is off by two roundings."""
    new = add(total, part)
    return new, add(low, lost(total, part, new))


#: a sum of more terms is added in chains of so many, whose sums are added with what each addition loses (``lost``)
CHAIN = 128


@intrinsic
def has_nan(typingctx, value):
    """Whether any lane is NaN."""

    def codegen(cx, b, sig, args):
        lanes = b.fcmp_unordered("uno", args[0], args[0])
        return b.icmp_unsigned("!=", b.bitcast(lanes, ir.IntType(value.lanes)), ir.Constant(ir.IntType(value.lanes), 0))

    if isinstance(value, Vec):
        return types.boolean(value), codegen
