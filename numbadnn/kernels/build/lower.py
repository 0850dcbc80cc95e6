"""A kernel's Python function, compiled by Numba to LLVM code and to PTX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cuda
from numba.cuda import types


def _parameter_type(word: str) -> Any:
    if word == "map":  # sixteen words here, one parameter of 128 bytes in the end (_tensormap)
        word = "i64*16"
    name, _, count = word.partition("*")
    base = {"ptr": types.int64, "i32": types.int32, "i64": types.int64, "f32": types.float32, "f64": types.float64}[
        name
    ]
    return types.UniTuple(base, int(count)) if count else base


def lowered(
    build: Callable[[], Callable[..., None]],
    parameters: str,
    arch: tuple[int, int, str],
    threads: int,
    resident: int = 1,
) -> Callable[[], str]:
    """The kernel ``build()`` as LLVM code; called, it is made PTX for an architecture such as (9, 0, "a").

    Blocks have at most ``threads`` threads; ``resident`` of them must fit a multiprocessor together: that bounds the
    registers of a thread. Numba works for one thread at a time; NVVM, which is what is left, for several.
    """
    from numbadnn.host.cuda_names import compiler
    from numbadnn.kernels.build import compile as _compile

    signature = types.void(*map(_parameter_type, parameters.split()))
    # without the second number ptxas prefers occupancy to keeping values in registers
    options: dict[str, Any] = {"device": False, "abi": "numba", "launch_bounds": (threads, resident)}
    options["cc"] = cc = arch if arch[2] else arch[:2]
    with _compile.quick():
        lower = getattr(compiler, "_compile_pyfunc_with_fixup", None)
        if lower is None:  # cuda.compile in two parts
            whole = str(cuda.compile(build(), signature, output="ptx", **options)[0])
            return lambda: whole
        library, _ = lower(build(), signature, **options)
        library.llvm_strs  # noqa: B018  makes text of it here, so that NVVM need not wait for another thread's turn

    def ptx() -> str:
        [code] = library.get_asm_strs(cc=cc)
        return str(code)

    return ptx
