"""Calling C functions by address from host code that Numba compiles, with the GIL released.

A ``ctypes`` call costs about a microsecond and each Python object around it more; an operation needs six of them. One
``@njit(nogil=True)`` function that makes all six costs as much as one. The functions it calls come as *integer
arguments* (addresses), not as globals: so the compiled code holds no pointer of this process and ``cache=True`` can
keep it on disk.

>>> @kept("int32(int64, int64)")                                        # doctest: +SKIP
... def current_context(cuCtxGetCurrent, slot):
...     return call_address(cuCtxGetCurrent, slot)                      # C: int f(uint64_t)

``call_address(address, *args)`` returns the C function's 32-bit ``int`` (CUresult, cudnnStatus_t), ``call_address_64``
a 64-bit one. An argument goes as its Numba type says: int64/uint64 for pointers and ``int64_t``, ``int32(x)`` for C
``int`` and enums, ``float32(x)``/``float64(x)``. ``store_*``/``load_*`` read and write memory at an address.
Importing this module imports Numba: import it inside functions. Nothing here checks an address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbadnn.host import sources
from numbadnn.host.builds import compiled
from numbadnn.host.undisturbed import undisturbed


def kept(signature: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``@njit`` of one signature that holds no GIL and is kept on disk, as long as this file and its own package are as they are.

    ``_nrt=False``: it takes numbers alone, and its machine code needs nothing of Numba's runtime.
    """

    def build(body: Callable[..., Any]) -> Any:
        package, dot, _ = body.__module__.rpartition(".")
        around = sources.package(package) if dot else sources.modules(body.__module__)
        stamp = around and sources.modules(__name__) + around
        made = compiled(body, stamp, nogil=True, _nrt=False, **options)
        with undisturbed():
            made.compile(signature)
            made.disable_compile()
        return made

    return build


def _caller(result: Any) -> Callable[..., Any]:
    """An intrinsic that calls the C function at ``address`` with ``args`` and returns ``result``."""

    def call(typingctx, address, *args):
        if not isinstance(address, types.Integer) or not all(isinstance(a, types.Number) for a in args):
            return None
        # a literal is a plain 64-bit integer here; anything else goes to C as it is typed
        plain = tuple(types.unliteral(a) for a in args)
        signature = result(types.uintp, types.StarArgTuple(plain))

        def codegen(context, builder, sig, values):
            target, packed = values
            c_types = [context.get_value_type(a) for a in plain]
            c_args = [builder.extract_value(packed, i) for i in range(len(plain))]
            function = ir.FunctionType(context.get_value_type(result), c_types)
            return builder.call(builder.inttoptr(target, function.as_pointer()), c_args)

        return signature, codegen

    return intrinsic(call)


def _storer(kind: Any) -> Callable[..., Any]:
    """An intrinsic that writes ``value`` at ``address`` as ``kind``."""

    def store(typingctx, address, value):
        def codegen(context, builder, sig, values):
            pointer = builder.inttoptr(values[0], context.get_value_type(kind).as_pointer())
            builder.store(values[1], pointer)
            return context.get_dummy_value()

        return types.void(types.uintp, kind), codegen

    return intrinsic(store)


def _loader(kind: Any) -> Callable[..., Any]:
    """An intrinsic that reads a ``kind`` at ``address``."""

    def load(typingctx, address):
        def codegen(context, builder, sig, values):
            return builder.load(builder.inttoptr(values[0], context.get_value_type(kind).as_pointer()))

        return kind(types.uintp), codegen

    return intrinsic(load)


call_address = _caller(types.int32)
call_address_64 = _caller(types.int64)
store_u64 = _storer(types.uint64)
store_u32 = _storer(types.uint32)
store_f32 = _storer(types.float32)
store_f64 = _storer(types.float64)
load_u64 = _loader(types.uint64)
load_u32 = _loader(types.uint32)
load_f64 = _loader(types.float64)
