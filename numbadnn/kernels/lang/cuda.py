"""The door to numba.cuda: types, compilation to PTX, intrinsics, and whether the CUDA simulator stands in for it.

Kernels are written against these names, so that another compiler with the same model (numba-cuda's successor has
another import name) is one file's work; ``build/compile.py`` makes the compiler faster, no more. Under the simulator
(``NUMBA_ENABLE_CUDASIM=1``) kernels run as plain Python: the integer types then check their range, so that an index that
would wrap on the GPU raises there. Importing this module imports Numba: do it inside functions. A kernel's parameters
are written as text, so that a kernel whose binary is on disk needs no compiler: ``"ptr ptr i32*4 f32"`` is two addresses,
a tuple of four int32 and a float32; ``map`` is a TMA descriptor by value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import config, types
from numba.cuda.extending import intrinsic

__all__ = ["SIMULATED", "cuda", "device", "f32", "f64", "i32", "i64", "intrinsic", "lowered", "types", "u32", "u64"]

SIMULATED = bool(config.ENABLE_CUDASIM)
if not SIMULATED:  # Numba's own numba.cuda, which stands in for numba-cuda, simulates but compiles only in part
    import numba_cuda  # noqa: F401  ImportError says what is missing


def _checked(name: str, low: int, high: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        number = int(value)
        if not low <= number <= high:
            raise OverflowError(f"{number} does not fit in {name}")
        return number

    return convert


i32: Any
i64: Any
u32: Any
u64: Any
f32: Any
f64: Any
device: Any
#: of modules with functions of kernels, in which ``cuda`` is what the block has while the simulator runs it
namespaces: dict[int, dict[str, Any]] = {}
if SIMULATED:
    i32, u32 = _checked("int32", -(2**31), 2**31 - 1), _checked("uint32", 0, 2**32 - 1)
    i64, u64 = _checked("int64", -(2**63), 2**63 - 1), _checked("uint64", 0, 2**64 - 1)
    f32, f64 = np.float32, np.float64

    def device(function: Any) -> Any:
        """As it is, where Numba's would look for ``cuda`` among a module's names in each call: a launch does so once."""
        namespaces[id(function.__globals__)] = function.__globals__
        return function

else:
    i32, u32, i64, u64 = types.int32, types.uint32, types.int64, types.uint64
    f32, f64 = types.float32, types.float64
    #: a function inlined into the kernels that call it; one that is not inlined cannot be compiled without a GPU
    device = cuda.jit(device=True, inline="always")

#: the type that a kernel computes in
ACCUMULATOR = {"float32": f32, "float64": f64}
#: the same as the element type of a dynamic shared array
ELEMENT = {name: np.dtype(name) for name in ACCUMULATOR} if SIMULATED else ACCUMULATOR
#: the element type of a dynamic shared array of raw words
WORD = np.dtype("uint32") if SIMULATED else types.uint32


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
    from numba.cuda import compiler

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
