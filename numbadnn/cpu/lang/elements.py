"""Stored elements for Numba's CPU compiler: what memory holds, to and from the reals that are computed with.

Memory is named by an address (an integer), and its element type by a ``like`` array, whose contents are never read: float32,
float64, **uint16 for the bits of float16 and int16 for the bits of bfloat16**. A 16-bit element becomes float32 when loaded and
is rounded to nearest even when stored: by the machine's instructions for float16 where it has them, else by integer arithmetic
(LLVM's runtime inside Numba has no function for it). Single elements, and blocks of them to and from lines of reals; loading this
module imports Numba: only plans do it.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbadnn.host.numba_names import cgutils, cpu_target

FEATURES = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
X86_512 = "+avx512f" in FEATURES and "+avx512vl" in FEATURES
F16C = "+f16c" in FEATURES
I1, I16, I32, I64 = (ir.IntType(n) for n in (1, 16, 32, 64))
IR = {types.float32: ir.FloatType(), types.float64: ir.DoubleType(), types.uint16: I16, types.int16: I16}


def acc_type(dtype):
    """The type sums of ``dtype`` are kept in."""
    return types.float64 if dtype == types.float64 else types.float32


def known(like) -> bool:  # type: ignore[no-untyped-def]
    return isinstance(like, types.Array) and like.dtype in IR


def splat(ty, value):
    return ir.Constant(ty, [value] * ty.count) if isinstance(ty, ir.VectorType) else ir.Constant(ty, value)


def _as(ty, element):
    """``element``, or the vector of it with as many lanes as ``ty``."""
    return ir.VectorType(element, ty.count) if isinstance(ty, ir.VectorType) else element


def widen(b, value, dtype):
    """Stored bits -> accumulator, exactly; scalar or vector."""
    if dtype not in (types.uint16, types.int16):
        return value
    wide, real = _as(value.type, I32), _as(value.type, ir.FloatType())
    if dtype == types.uint16 and F16C and isinstance(value.type, ir.VectorType):  # LLVM does not vectorise a scalar one
        return b.fpext(b.bitcast(value, _as(value.type, ir.HalfType())), real)
    bits = b.zext(value, wide)
    if dtype == types.int16:
        return b.bitcast(b.shl(bits, splat(wide, 16)), real)
    # float16: move exponent and mantissa into place and rebias. A subnormal is converted as the integer that it is: in
    # place it would be a subnormal of float32, which is 0 on a thread that flushes such
    magnitude = b.and_(bits, splat(wide, 0x7FFF))
    normal = b.add(b.shl(magnitude, splat(wide, 13)), splat(wide, (127 - 15) << 23))
    small = b.fmul(b.sitofp(magnitude, real), splat(real, 2.0**-24))
    out = b.select(b.icmp_unsigned("<", magnitude, splat(wide, 0x400)), b.bitcast(small, wide), normal)
    special = b.icmp_unsigned(">=", magnitude, splat(wide, 0x7C00))
    out = b.or_(out, b.select(special, splat(wide, 0x7F800000), splat(wide, 0)))
    sign = b.shl(b.and_(bits, splat(wide, 0x8000)), splat(wide, 16))
    return b.bitcast(b.or_(out, sign), real)


def narrow(b, value, dtype):
    """Accumulator -> stored bits, to nearest even; scalar or vector."""
    if dtype not in (types.uint16, types.int16):
        return value
    wide, real, half = _as(value.type, I32), _as(value.type, ir.FloatType()), _as(value.type, I16)
    if dtype == types.uint16 and F16C:
        return b.bitcast(b.fptrunc(value, _as(value.type, ir.HalfType())), half)

    def c(n):
        return splat(wide, n)

    bits = b.bitcast(value, wide)
    magnitude = b.and_(bits, c(0x7FFFFFFF))
    nan = b.icmp_unsigned(">", magnitude, c(0x7F800000))
    if dtype == types.int16:
        odd = b.and_(b.lshr(bits, c(16)), c(1))
        rounded = b.lshr(b.add(bits, b.add(c(0x7FFF), odd)), c(16))
        return b.trunc(b.select(nan, b.or_(b.lshr(bits, c(16)), c(0x40)), rounded), half)
    # float16: three ranges (too large or NaN; subnormal, by adding 0.5 so that the hardware rounds; normal)
    large = b.select(nan, c(0x7E00), c(0x7C00))
    small = b.sub(b.bitcast(b.fadd(b.bitcast(magnitude, real), splat(real, 0.5)), wide), c(0x3F000000))
    odd = b.and_(b.lshr(magnitude, c(13)), c(1))
    normal = b.lshr(b.add(b.add(magnitude, c(((15 - 127) << 23) + 0xFFF & 0xFFFFFFFF)), odd), c(13))
    out = b.select(b.icmp_unsigned("<", magnitude, c(0x38800000)), small, normal)
    out = b.select(b.icmp_unsigned(">=", magnitude, c(0x47800000)), large, out)
    return b.trunc(b.or_(out, b.lshr(b.and_(bits, c(0x80000000)), c(16))), half)


def at(b, address, ty, offset=None):
    """Pointer to ``ty`` at ``address``, plus ``offset`` elements."""
    if offset is not None:
        element = ty.element if isinstance(ty, ir.VectorType) else ty
        size = ir.Constant(I64, element.width // 8 if isinstance(element, ir.IntType) else _bytes(element))
        address = b.add(address, b.mul(offset, size))
    return b.inttoptr(address, ty.as_pointer())


def _bytes(real) -> int:  # type: ignore[no-untyped-def]
    return 8 if isinstance(real, ir.DoubleType) else 4


def masked(b, which: str, ty, arguments):  # type: ignore[no-untyped-def]
    """llvm.masked.load (pointer, alignment, mask, otherwise) or llvm.masked.store (value, pointer, alignment, mask)."""
    element = ty.element
    name = f"f{_bytes(element) * 8}" if isinstance(element, ir.FloatType | ir.DoubleType) else f"i{element.width}"
    result = ty if which == "load" else ir.VoidType()
    fnty = ir.FunctionType(result, [a.type for a in arguments])
    fn = cgutils.get_or_insert_function(b.module, fnty, f"llvm.masked.{which}.v{ty.count}{name}.p0")
    return b.call(fn, arguments)


@intrinsic
def itemsize(typingctx, like):
    """Bytes of one stored element."""
    if known(like):
        return types.int64(like), lambda cx, b, sig, args: ir.Constant(I64, like.dtype.bitwidth // 8)


@intrinsic
def accsize(typingctx, like):
    """Bytes of one accumulator."""
    if known(like):
        return types.int64(like), lambda cx, b, sig, args: ir.Constant(I64, acc_type(like.dtype).bitwidth // 8)


@intrinsic
def load1(typingctx, address, offset, like):
    """The element at ``address`` + ``offset`` elements, widened."""

    def codegen(cx, b, sig, args):
        ty = IR[like.dtype]
        return widen(b, b.load(at(b, args[0], ty, args[1]), align=like.dtype.bitwidth // 8), like.dtype)

    if known(like):
        return acc_type(like.dtype)(types.int64, types.int64, like), codegen


@intrinsic
def load_apart(typingctx, address, offset, like):
    """As ``load1``, of elements that lie apart: LLVM makes no vectors of these, and one float16 is one instruction."""

    def codegen(cx, b, sig, args):
        ty = IR[like.dtype]
        value = b.load(at(b, args[0], ty, args[1]), align=like.dtype.bitwidth // 8)
        if like.dtype == types.uint16 and F16C:
            return b.fpext(b.bitcast(value, ir.HalfType()), ir.FloatType())
        return widen(b, value, like.dtype)

    if known(like):
        return acc_type(like.dtype)(types.int64, types.int64, like), codegen


@intrinsic
def store1(typingctx, address, offset, value, like):
    """Round ``value`` and store it at ``address`` + ``offset`` elements."""

    def codegen(cx, b, sig, args):
        ty = IR[like.dtype]
        b.store(narrow(b, args[2], like.dtype), at(b, args[0], ty, args[1]), align=like.dtype.bitwidth // 8)
        return cx.get_dummy_value()

    if known(like):
        return types.void(types.int64, types.int64, acc_type(like.dtype), like), codegen


#: elements of ``widen_block`` and ``narrow_block``, and how many units of two bytes ahead memory is asked for
BLOCK, AHEAD = 16, 1024


def line(buffer) -> bool:  # type: ignore[no-untyped-def]
    return isinstance(buffer, types.Array) and buffer.layout == "C" and buffer.dtype in (types.float32, types.float64)


def _convert(b, value, ty):
    """A vector of reals as another of as many."""
    if value.type == ty:
        return value
    return b.fpext(value, ty) if isinstance(ty.element, ir.DoubleType) else b.fptrunc(value, ty)


def _blocks(cx, b, sig, args):
    """Pointers to BLOCK elements of the buffer and in memory, from number ``start`` on, of (buffer, start, address, like)."""
    buffer, _, _, like = sig.args
    data = cx.make_array(buffer)(cx, b, args[0]).data
    real, ty = (ir.VectorType(IR[array.dtype], BLOCK) for array in (buffer, like))
    return b.bitcast(b.gep(data, [args[1]]), real.as_pointer()), at(b, args[2], ty, args[1])


def prefetch(b, here, like, write):
    """Let the elements come that are worked on soon: the processor's own foresight ends with a page."""
    ahead = b.gep(b.bitcast(here, I16.as_pointer()), [ir.Constant(I64, AHEAD)])
    fnty = ir.FunctionType(ir.VoidType(), [ahead.type, I32, I32, I32])
    fn = cgutils.get_or_insert_function(b.module, fnty, "llvm.prefetch.p0")
    b.call(fn, [ahead, *(ir.Constant(I32, n) for n in (write, 3, 1))])


@intrinsic
def widen_block(typingctx, buffer, start, address, like):
    """buffer[start : start + BLOCK] = the elements from ``address`` + ``start`` elements on, as the buffer's type."""

    def codegen(cx, b, sig, args):
        there, here = _blocks(cx, b, sig, args)
        prefetch(b, here, like, 0)
        value = widen(b, b.load(here, align=like.dtype.bitwidth // 8), like.dtype)
        real = there.type.pointee
        b.store(_convert(b, value, real), there, align=_bytes(real.element))
        return cx.get_dummy_value()

    if known(like) and line(buffer):
        return types.void(buffer, types.int64, types.int64, like), codegen


def narrowing(store):
    """The reverse of ``widen_block``: BLOCK elements are rounded and given to ``store``, with where they go."""

    def narrow_block(typingctx, buffer, start, address, like):
        def codegen(cx, b, sig, args):
            there, here = _blocks(cx, b, sig, args)
            value = b.load(there, align=_bytes(there.type.pointee.element))
            value = _convert(b, value, ir.VectorType(IR[acc_type(like.dtype)], BLOCK))
            store(b, narrow(b, value, like.dtype), here, like)
            return cx.get_dummy_value()

        if known(like) and line(buffer):
            return types.void(buffer, types.int64, types.int64, like), codegen

    return intrinsic(narrow_block)


def store_block(b, value, place, like):
    prefetch(b, place, like, 1)
    b.store(value, place, align=like.dtype.bitwidth // 8)


narrow_block = narrowing(store_block)


@intrinsic
def peek(typingctx, address, index, like):
    """The accumulator number ``index`` at ``address``."""

    def codegen(cx, b, sig, args):
        return b.load(at(b, args[0], IR[acc_type(like.dtype)], args[1]))

    if known(like):
        return acc_type(like.dtype)(types.int64, types.int64, like), codegen


@intrinsic
def poke(typingctx, address, index, value, like):
    """Set the accumulator number ``index`` at ``address``."""

    def codegen(cx, b, sig, args):
        b.store(args[2], at(b, args[0], IR[acc_type(like.dtype)], args[1]))
        return cx.get_dummy_value()

    if known(like):
        return types.void(types.int64, types.int64, acc_type(like.dtype), like), codegen


def broadcast(b, scalar, ty):
    one = b.insert_element(ir.Constant(ty, ir.Undefined), scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(
        one, ir.Constant(ty, ir.Undefined), ir.Constant(ir.VectorType(I32, ty.count), [0] * ty.count)
    )
