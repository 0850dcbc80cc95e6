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
from numba.cuda import types
from numba.cuda.extending import intrinsic

from numbadnn.host.cuda_names import config

__all__ = ["SIMULATED", "cuda", "device", "f32", "f64", "i32", "i64", "intrinsic", "types", "u32", "u64"]

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
#: the element type of a shared array of 16-bit numbers, whose bits alone matter
HALF = np.dtype("uint16") if SIMULATED else types.uint16
#: the element type of an array of 32-bit integers
INT32 = np.int32
