"""What a kernel needs and Numba does not have: accesses of chosen width at an address, conversions, exp2, shuffles.

Each is one small intrinsic beside its twin, a plain Python function that does the same under the CUDA simulator (there
an address is one of host memory, and reading or writing outside the ranges in ``MEMORY`` raises). 16-bit floats are
converted on the way in and out: bfloat16 is the upper half of a float32. ``load(dtype, acc)`` and its kin are made when
a kernel is built: ``acc`` ("float32" or "float64") is the type that the kernel computes in. Needs sm_80 or later.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels._cuda import SIMULATED, device, f32, f64, i32, intrinsic, types, u32
from numbadnn.problem import ITEMSIZE

#: (first, last + 1) byte addresses that the twins may touch; set by simulate.run
MEMORY: list[tuple[int, int]] = []

ACCUMULATOR = {"float32": f32, "float64": f64}
#: the same as the element type of a dynamic shared array
ELEMENT = {name: np.dtype(name) for name in ACCUMULATOR} if SIMULATED else ACCUMULATOR
#: the lowest finite value: where a maximum starts whose differences must not be inf - inf
LOWEST = {"float32": -3.4028234663852886e38, "float64": -1.7976931348623157e308}
_FLOAT, _DOUBLE, _HALF = ir.FloatType(), ir.DoubleType(), ir.HalfType()
_I16, _I32 = ir.IntType(16), ir.IntType(32)


def _asm(builder: Any, template: str, constraints: str, result: Any, values: list[Any], pure: bool = True) -> Any:
    """One PTX instruction; one that is not pure synchronises threads and must not be moved into a branch."""
    kind = ir.FunctionType(result, [v.type for v in values])
    assembly = ir.InlineAsm(kind, template, constraints, side_effect=not pure)
    return builder.call(assembly, values, attrs=() if pure else ("convergent",))


# ---- conversions between what lies in memory and the accumulator (LLVM values)


def _widen(builder: Any, bits: Any, dtype: str, acc: str) -> Any:
    """An integer read from memory as a value of type ``acc``."""
    if dtype == "float64":
        value = builder.bitcast(bits, _DOUBLE)
    elif dtype == "float32":
        value = builder.bitcast(bits, _FLOAT)
    elif dtype == "float16":
        value = builder.fpext(builder.bitcast(bits, _HALF), _FLOAT)
    else:
        value = builder.bitcast(builder.shl(builder.zext(bits, _I32), ir.Constant(_I32, 16)), _FLOAT)
    if acc == "float64" and dtype != "float64":
        value = builder.fpext(value, _DOUBLE)
    if acc == "float32" and dtype == "float64":
        raise TypeError("float64 data needs a float64 accumulator")
    return value


def _odd(builder: Any, value: Any) -> Any:
    """float64 -> float32 rounded to odd, so that rounding again to a shorter type is as if rounded once."""
    down = _asm(builder, "cvt.rz.f32.f64 $0, $1;", "=f,d", _FLOAT, [value])
    inexact = builder.fcmp_unordered("!=", builder.fpext(down, _DOUBLE), value)
    bits = builder.bitcast(down, _I32)
    return builder.bitcast(builder.or_(bits, builder.zext(inexact, _I32)), _FLOAT)


def _narrow(builder: Any, value: Any, dtype: str, acc: str) -> Any:
    """A value of type ``acc`` as the integer to be written, rounded once to nearest even."""
    if dtype == "float64":
        return builder.bitcast(value if acc == "float64" else builder.fpext(value, _DOUBLE), ir.IntType(64))
    if dtype == "float32":
        return builder.bitcast(value if acc == "float32" else builder.fptrunc(value, _FLOAT), _I32)
    single = _odd(builder, value) if acc == "float64" else value
    name = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    return _asm(builder, f"cvt.rn.{name}.f32 $0, $1;", "=h,f", _I16, [single])


# ---- their twins on host memory


def _numpy_type(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(dtype).type


def _bytes_at(address: int, size: int) -> Any:
    if not any(low <= address and address + size <= high for low, high in MEMORY):
        raise IndexError(f"the kernel touches {size} bytes at {address}, outside every operand")
    if address % size:
        raise ValueError(f"the kernel touches {size} bytes at {address}, which is not aligned to them")
    return (ctypes.c_uint8 * size).from_address(address)


def _read(dtype: str, address: int, count: int) -> Any:
    size = ITEMSIZE[dtype] * count
    return np.frombuffer(bytes(_bytes_at(int(address), size)), _numpy_type(dtype))


def _write(dtype: str, address: int, values: Any) -> None:
    data = np.asarray(values).astype(_numpy_type(dtype)).tobytes()
    _bytes_at(int(address), len(data))[:] = data


# ---- memory


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer(1))  # address space 1: global memory


@functools.cache
def load(dtype: str, acc: str) -> Callable[..., Any]:
    """``load(address) -> acc``: one element."""
    if SIMULATED:
        return lambda address: ACCUMULATOR[acc](_read(dtype, address, 1)[0])

    @intrinsic
    def load_element(typingctx, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            bits = builder.load(_pointer(builder, args[0], ir.IntType(8 * ITEMSIZE[dtype])))
            return _widen(builder, bits, dtype, acc)

        return ACCUMULATOR[acc](types.int64), codegen

    return load_element


@functools.cache
def store(dtype: str, acc: str) -> Callable[..., None]:
    """``store(address, value)``: one element, rounded once from ``acc``."""
    if SIMULATED:
        return lambda address, value: _write(dtype, address, ACCUMULATOR[acc](value))

    @intrinsic
    def store_element(typingctx, address, value):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            bits = _narrow(builder, args[1], dtype, acc)
            builder.store(bits, _pointer(builder, args[0], bits.type))
            return context.get_dummy_value()

        return types.void(types.int64, ACCUMULATOR[acc]), codegen

    return store_element


@functools.cache
def load_vector(dtype: str, count: int, acc: str) -> Callable[..., None]:
    """``load_vector(values, start, address)``: ``count`` elements in one aligned access into values[start:]."""
    if SIMULATED:

        def twin(values, start, address):  # type: ignore[no-untyped-def]
            values[start : start + count] = _read(dtype, address, count)

        return twin

    @intrinsic
    def load_elements(typingctx, values, start, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            word = ir.IntType(8 * min(ITEMSIZE[dtype] * count, max(ITEMSIZE[dtype], 4)))
            words = ir.VectorType(word, ITEMSIZE[dtype] * count * 8 // word.width)
            vector = builder.load(_pointer(builder, args[2], words))
            vector.align = ITEMSIZE[dtype] * count
            for i in range(count):
                bits = _element(builder, vector, i, ITEMSIZE[dtype] * 8)
                _put(context, builder, signature.args[0], args[0], args[1], i, _widen(builder, bits, dtype, acc))
            return context.get_dummy_value()

        return types.void(values, types.int32, types.int64), codegen

    return load_elements


@functools.cache
def store_vector(dtype: str, count: int, acc: str) -> Callable[..., None]:
    """``store_vector(values, start, address)``: values[start : start + count] in one aligned access."""
    if SIMULATED:
        return lambda values, start, address: _write(dtype, address, values[start : start + count])

    @intrinsic
    def store_elements(typingctx, values, start, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            got = [_slot(context, builder, signature.args[0], args[0], args[1], i) for i in range(count)]
            words = _packed(builder, [builder.load(g) for g in got], dtype, acc)
            vector = ir.Constant(ir.VectorType(words[0].type, len(words)), ir.Undefined)
            for i, word in enumerate(words):
                vector = builder.insert_element(vector, word, ir.Constant(_I32, i))
            builder.store(vector, _pointer(builder, args[2], vector.type)).align = ITEMSIZE[dtype] * count
            return context.get_dummy_value()

        return types.void(values, types.int32, types.int64), codegen

    return store_elements


def _element(builder: Any, vector: Any, i: int, bits: int) -> Any:
    """Element ``i`` of ``bits`` bits, of a vector of words that each hold one or two."""
    per_word = vector.type.element.width // bits
    word = builder.extract_element(vector, ir.Constant(_I32, i // per_word))
    if per_word == 1:
        return word
    return builder.trunc(builder.lshr(word, ir.Constant(word.type, bits * (i % per_word))), ir.IntType(bits))


def _packed(builder: Any, values: list[Any], dtype: str, acc: str) -> list[Any]:
    """Values as the words to be written: 16-bit ones in pairs, by one instruction from float32."""
    if ITEMSIZE[dtype] > 2 or len(values) == 1:
        return [_narrow(builder, v, dtype, acc) for v in values]
    if acc == "float64":
        values = [_odd(builder, v) for v in values]
    name = {"float16": "f16x2", "bfloat16": "bf16x2"}[dtype]
    pairs = zip(values[::2], values[1::2], strict=True)
    return [_asm(builder, f"cvt.rn.{name}.f32 $0, $2, $1;", "=r,f,f", _I32, [a, b]) for a, b in pairs]


def _slot(context: Any, builder: Any, kind: Any, array: Any, start: Any, i: int) -> Any:
    data = context.data_model_manager[kind].get(builder, array, "data")
    return builder.gep(data, [builder.add(start, ir.Constant(_I32, i))])


def _put(context: Any, builder: Any, kind: Any, array: Any, start: Any, i: int, value: Any) -> None:
    builder.store(value, _slot(context, builder, kind, array, start, i))


@functools.cache
def copy_bytes(size: int) -> Callable[..., None]:
    """``copy_bytes(destination, source)``: ``size`` (2, 4, 8 or 16) aligned bytes, whatever they mean."""
    if SIMULATED:

        def twin(destination, source):  # type: ignore[no-untyped-def]
            _bytes_at(int(destination), size)[:] = bytes(_bytes_at(int(source), size))

        return twin

    @intrinsic
    def copy(typingctx, destination, source):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            kind = _unit(size)
            value = builder.load(_pointer(builder, args[1], kind))
            value.align = size
            builder.store(value, _pointer(builder, args[0], kind)).align = size
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return copy


@functools.cache
def zero_bytes(size: int) -> Callable[..., None]:
    """``zero_bytes(destination)``: ``size`` (2, 4, 8 or 16) aligned bytes become 0."""
    if SIMULATED:

        def twin(destination):  # type: ignore[no-untyped-def]
            _bytes_at(int(destination), size)[:] = bytes(size)

        return twin

    @intrinsic
    def zero(typingctx, destination):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            kind = _unit(size)
            builder.store(ir.Constant(kind, None), _pointer(builder, args[0], kind)).align = size
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return zero


def _prefetch() -> Callable[[Any], None]:
    if SIMULATED:

        def twin(address):  # type: ignore[no-untyped-def]
            _bytes_at(int(address), 1)

        return twin

    @intrinsic
    def prefetch_line(typingctx, address):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            _asm(builder, "prefetch.global.L2 [$0];", "l", ir.VoidType(), list(args), pure=False)
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return prefetch_line


#: ``prefetch(address)``: have the line of memory that lies there brought to the L2 cache, without waiting for it
prefetch = _prefetch()


def _unit(size: int) -> Any:
    return ir.IntType(8 * size) if size <= 8 else ir.VectorType(_I32, size // 4)


# ---- dynamic shared memory


#: the element type of a dynamic shared array of raw words
WORD = np.dtype("uint32") if SIMULATED else types.uint32


@functools.cache
def load_shared(dtype: str, count: int, acc: str) -> Callable[..., None]:
    """``load_shared(values, start, words, at)``: ``count`` elements of raw bits from the shared words[at:] on."""
    size = ITEMSIZE[dtype] * count
    if SIMULATED:

        def twin(values, start, words, at):  # type: ignore[no-untyped-def]
            raw = np.ascontiguousarray(words[at : at + size // 4])
            values[start : start + count] = raw.view(_numpy_type(dtype))

        return twin

    @intrinsic
    def load_elements(typingctx, values, start, words, at):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            word = ir.IntType(8 * max(ITEMSIZE[dtype], 4))
            kind = ir.VectorType(word, size * 8 // word.width)
            slot = _slot(context, builder, signature.args[2], args[2], args[3], 0)
            vector = builder.load(builder.bitcast(slot, kind.as_pointer()))
            vector.align = size
            for i in range(count):
                bits = _element(builder, vector, i, ITEMSIZE[dtype] * 8)
                _put(context, builder, signature.args[0], args[0], args[1], i, _widen(builder, bits, dtype, acc))
            return context.get_dummy_value()

        return types.void(values, types.int32, words, types.int32), codegen

    return load_elements


# ---- arithmetic


def _unary(template: str, constraints: str) -> Callable[..., Any]:
    @intrinsic
    def instruction(typingctx, x):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _asm(builder, template, constraints, _FLOAT, list(args))

        return types.float32(types.float32), codegen

    return instruction


def _binary(template: str, constraints: str) -> Callable[..., Any]:
    @intrinsic
    def instruction(typingctx, x, y):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _asm(builder, template, constraints, _FLOAT, list(args))

        return types.float32(types.float32, types.float32), codegen

    return instruction


def _high_product() -> Callable[..., Any]:
    if SIMULATED:
        return lambda a, b: (int(a) * int(b)) >> 32

    @intrinsic
    def multiply(typingctx, a, b):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _asm(builder, "mul.hi.u32 $0, $1, $2;", "=r,r,r", _I32, list(args))

        return types.uint32(types.uint32, types.uint32), codegen

    return multiply


#: ``high_product(a, b)``: the upper 32 bits of the product of two unsigned words
high_product = _high_product()


@device
def quotient(number, by):  # type: ignore[no-untyped-def]
    """number // divisor, ``by`` is its ``reciprocal``: a tenth of the instructions of a division."""
    return i32(high_product(u32(2 * u32(number)), u32(by[0])) >> u32(by[1]))


#: 1/x within 2**-22, otherwise as the GPU likes
rough_reciprocal = (lambda x: 1 / x) if SIMULATED else _unary("rcp.approx.ftz.f32 $0, $1;", "=f,f")


def _divided() -> Callable[..., Any]:
    if SIMULATED:
        return lambda value, n, part: value / n
    template = (
        "{.reg .pred p; .reg .f32 rest, less; mul.rn.f32 $0, $1, $3; neg.f32 less, $2; fma.rn.f32 rest, less, $0, $1; "
        "setp.num.f32 p, rest, rest; @p fma.rn.f32 $0, $3, rest, $0;}"
    )

    @intrinsic
    def divide(typingctx, value, n, part):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _asm(builder, template, "=&f,f,f,f", _FLOAT, list(args))

        return types.float32(types.float32, types.float32, types.float32), codegen

    return divide


#: ``divided(value, n, part)``: value / n, but 0 for -0, by an integer n below 2**14 whose reciprocal is ``part`` within 2**-20.
#: A product, and a correction by the exact remainder, where that is a number: it is not for infinities and NaN. Of a quotient
#: that is not itself a float32, the nearest middle of two is 1 / (2 * n) of their distance away, far more than the error
#: before the last rounding (tried with every float32, n up to 128); only quotients below 2**-126 can be such a middle, and may
#: round to the odd one.
divided = _divided()


#: flushes results below 2**-126 to 0
exp2 = np.exp2 if SIMULATED else _unary("ex2.approx.ftz.f32 $0, $1;", "=f,f")
exp = np.exp if SIMULATED else math.exp
log = np.log if SIMULATED else math.log
_LOG2E = 1.4426950408889634


def exponential(dtype: str) -> Callable[..., Any]:
    """``exp(x)`` for values stored as ``dtype``: within 2 ulp; for 16-bit types by exp2 alone.

    exp2(x * log2 e) has a relative error of about |x| * 2**-24: at the |x| < 104 where a 16-bit result is not 0 that is
    below 2**-17, far inside its rounding. float32 and float64 need the function that reduces its argument.
    """
    if dtype not in ("float16", "bfloat16"):
        return exp

    @device
    def power(x):  # type: ignore[no-untyped-def]
        return exp2(f32(x * f32(_LOG2E)))

    return power


_maximum_f32 = np.maximum if SIMULATED else _binary("max.NaN.f32 $0, $1, $2;", "=f,f,f")


@device
def _maximum_f64(a, b):  # type: ignore[no-untyped-def]
    return a if a > b or a != a else b


def maximum(acc: str) -> Callable[..., Any]:
    """``maximum(a, b)``, NaN if either is."""
    return _maximum_f32 if acc == "float32" else _maximum_f64


# ---- between a kernel and the next on the stream, which may start before it ends (``Kernel.early``)


def _fence(template: str) -> Callable[[], None]:
    """An instruction without operands, that no access to memory is moved across; sm_80 goes without (``Kernel.ptx``)."""
    if SIMULATED:
        return lambda: None

    @intrinsic
    def instruction(typingctx):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            assembly = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), template, "~{memory}", side_effect=True)
            builder.call(assembly, [], attrs=("convergent",))
            return context.get_dummy_value()

        return types.void(), codegen

    return instruction


#: from here on the next kernel may start, once all blocks have come here
let_next_start = _fence("griddepcontrol.launch_dependents;")
#: what the kernel before wrote is there behind this, and it has ended
wait_for_previous = _fence("griddepcontrol.wait;")


def _here(register: str, twin: Callable[[Any], Any]) -> Callable[[], Any]:
    if SIMULATED:
        return lambda: twin(threading.current_thread())

    @intrinsic
    def read(typingctx):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            template = f"mov.u32 $0, %{register};"
            assembly = ir.InlineAsm(ir.FunctionType(_I32, []), template, "=r", side_effect=True)
            return builder.call(assembly, [])

        return types.int32(), codegen

    return read


#: ``thread_here()``: threadIdx.x, read here: what is made of it is made here as well, and holds no registers all the time
thread_here = _here("tid.x", lambda thread: thread.thread_id)
#: ``block_here()``: the same of blockIdx.x
block_here = _here("ctaid.x", lambda thread: thread.blockIdx.x)


# ---- between the threads of a warp


@functools.cache
def shuffle_xor(acc: str) -> Callable[..., Any]:
    """``shuffle_xor(value, mask)``: the value of the thread whose lane differs by ``mask``; all 32 take part."""
    if SIMULATED:
        return _shuffle_twin
    swap = "shfl.sync.bfly.b32 {0}, {0}, $2, 31, -1;"
    if acc == "float32":
        template, constraints = "shfl.sync.bfly.b32 $0, $1, $2, 31, -1;", "=f,f,r"
    else:
        halves = swap.format("lo") + swap.format("hi")
        template = "{.reg .b32 lo, hi; mov.b64 {lo, hi}, $1; " + halves + " mov.b64 $0, {lo, hi};}"
        constraints = "=d,d,r"

    @intrinsic
    def shuffle(typingctx, value, mask):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            kind = context.get_value_type(ACCUMULATOR[acc])
            return _asm(builder, template, constraints, kind, list(args), pure=False)

        return ACCUMULATOR[acc](ACCUMULATOR[acc], i32), codegen

    return shuffle


_EXCHANGE: dict[int, Any] = {}


def _shuffle_twin(value: Any, mask: int) -> Any:
    """The simulator has no warps: every thread of the block meets here, as every kernel of ours shuffles uniformly."""
    thread: Any = threading.current_thread()
    _EXCHANGE[thread.thread_id] = value
    thread.syncthreads()
    other = _EXCHANGE[thread.thread_id ^ int(mask)]
    thread.syncthreads()
    return other


def _largest_of_warp() -> Callable[..., Any]:
    """``largest(value) -> i32``: the largest of a warp's 32-bit integers; all 32 lanes take part."""
    if SIMULATED:

        def twin(value):  # type: ignore[no-untyped-def]
            thread: Any = threading.current_thread()
            number = thread.thread_id
            _EXCHANGE[number] = value
            thread.meet(~(number >> 5), 32)
            found = max(_EXCHANGE[(number & ~31) + lane] for lane in range(32))
            thread.meet(~(number >> 5), 32)  # before another value takes its place
            return found

        return twin

    @intrinsic
    def largest(typingctx, value):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _asm(builder, "redux.sync.max.s32 $0, $1, -1;", "=r,r", _I32, list(args), pure=False)

        return types.int32(types.int32), codegen

    return largest


largest_of_warp = _largest_of_warp()


def _some_of_warp() -> Callable[..., Any]:
    """``some_of_warp(bits) -> u32``: the bits that any of a warp's lanes has set; all 32 take part."""
    if SIMULATED:

        def twin(bits):  # type: ignore[no-untyped-def]
            thread: Any = threading.current_thread()
            number = thread.thread_id
            _EXCHANGE[number] = bits
            thread.meet(~(number >> 5), 32)
            found = 0
            for lane in range(32):
                found |= _EXCHANGE[(number & ~31) + lane]
            thread.meet(~(number >> 5), 32)
            return found

        return twin

    @intrinsic
    def some(typingctx, bits):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return _asm(builder, "redux.sync.or.b32 $0, $1, -1;", "=r,r", _I32, list(args), pure=False)

        return types.uint32(types.uint32), codegen

    return some


some_of_warp = _some_of_warp()
