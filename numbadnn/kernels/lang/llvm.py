"""The pieces of LLVM code that intrinsics are written with: values in memory as numbers, slots of arrays, PTX instructions.

16-bit floats are converted on the way in and out of memory: bfloat16 is the upper half of a float32. ``acc`` ("float32" or
"float64") is the type that the kernel computes in.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbadnn.problem import ITEMSIZE

_FLOAT, _DOUBLE, _HALF = ir.FloatType(), ir.DoubleType(), ir.HalfType()
_I16, _I32 = ir.IntType(16), ir.IntType(32)


def _asm(builder: Any, template: str, constraints: str, result: Any, values: list[Any], pure: bool = True) -> Any:
    """One PTX instruction; one that is not pure synchronises threads and must not be moved into a branch."""
    kind = ir.FunctionType(result, [v.type for v in values])
    assembly = ir.InlineAsm(kind, template, constraints, side_effect=not pure)
    return builder.call(assembly, values, attrs=() if pure else ("convergent",))


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


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer(1))  # address space 1: global memory


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


def _vector(builder: Any, values: list[Any]) -> Any:
    """Values of one type side by side."""
    vector = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
    for i, value in enumerate(values):
        vector = builder.insert_element(vector, value, ir.Constant(_I32, i))
    return vector


def _unit(size: int) -> Any:
    return ir.IntType(8 * size) if size <= 8 else ir.VectorType(_I32, size // 4)
