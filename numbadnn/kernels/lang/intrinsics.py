"""Device functions that are written in LLVM code, or are one PTX instruction.

``emitted`` makes one of a function that writes the code; ``instruction`` makes one of a template. Neither is for the CUDA
simulator, where a twin in plain Python takes their place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir

from numbadnn.kernels.lang.cuda import SIMULATED, f32, f64, i32, i64, intrinsic, types, u32, u64
from numbadnn.kernels.lang.llvm import _I32, _asm, _slot

#: stands for the type of an operand that is whatever the caller has: an array, or a descriptor
ARRAY: Any = None
#: of a type: its letter in constraints, and what LLVM calls it
_CODE = {} if SIMULATED else {i32: "r", u32: "r", i64: "l", u64: "l", f32: "f", f64: "d"}
_KIND = {"r": _I32, "l": ir.IntType(64), "f": ir.FloatType(), "d": ir.DoubleType()}


class Array(NamedTuple):
    """An array among the operands of an intrinsic; its elements have the numbers ``start`` + i."""

    context: Any
    builder: Any
    kind: Any
    value: Any

    def slot(self, start: Any, i: int = 0) -> Any:
        """The address of an element."""
        return _slot(self.context, self.builder, self.kind, self.value, start, i)

    def get(self, start: Any, i: int = 0) -> Any:
        return self.builder.load(self.slot(start, i))

    def put(self, start: Any, i: int, value: Any) -> None:
        self.builder.store(value, self.slot(start, i))


def emitted(result: Any, *operands: Any) -> Callable[[Callable[..., Any]], Any]:
    """A device function made of ``write(builder, *values)``, which writes its code and returns what it gives.

    ``result`` None: it gives nothing; a tuple's numbers are returned as a list. An operand ``ARRAY`` comes as an ``Array``.
    """
    names = ["typingctx", *(f"operand_{i}" for i in range(len(operands)))]

    def decorate(write: Callable[..., Any]) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = [
                Array(context, builder, kind, value) if isinstance(kind, types.Array) else value
                for kind, value in zip(signature.args, args, strict=True)
            ]
            written = write(builder, *values)
            if result is None:
                return context.get_dummy_value()
            return context.make_tuple(builder, result, written) if isinstance(written, list) else written

        def call(typingctx: Any, *given: Any) -> Any:
            kinds = [kind if kind is not ARRAY else own for kind, own in zip(operands, given, strict=True)]
            return (types.void if result is None else result)(*kinds), codegen

        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return intrinsic(call)

    return decorate


def instruction(
    template: str, results: tuple[Any, ...] = (), operands: tuple[Any, ...] = (), pure: bool = False
) -> Any:
    """One PTX instruction as a device function; several results come as a tuple. ``pure``: it touches no memory."""
    codes = ["=" + _CODE[t] for t in results] + [_CODE[t] for t in operands] + ([] if pure else ["~{memory}"])
    many = len(results) > 1

    @emitted(types.UniTuple(results[0], len(results)) if many else results[0] if results else None, *operands)
    def write(builder, *values):
        kinds = [_KIND[_CODE[t]] for t in results]
        kind = ir.LiteralStructType(kinds) if many else kinds[0] if kinds else ir.VoidType()
        value = _asm(builder, template, ",".join(codes), kind, list(values), pure)
        return [builder.extract_value(value, i) for i in range(len(kinds))] if many else value

    return write
