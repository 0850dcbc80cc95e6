"""What the C calls of cuDNN are told about operands: descriptors, which free themselves, and the two scalars."""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Sequence
from typing import Any

from numbadnn.cudnn._enums import DATA_TYPE
from numbadnn.cudnn.lib import Library
from numbadnn.errors import NotSupportedError
from numbadnn.problem import Spec, normalised_strides

#: the C calls take sizes, strides and parameters as C ints
INT_MAX = 2**31 - 1


def scalars(dtype: str, alpha: float = 1.0, beta: float = 0.0) -> tuple[int, int, Any]:
    """(address of alpha, address of beta, what to keep): doubles for float64 data, else floats, each in 8 bytes of its own."""
    form = "d" if dtype == "float64" else "f4x"
    memory = ctypes.create_string_buffer(b"".join(struct.pack(form, v) for v in (alpha, beta)), 16)
    return ctypes.addressof(memory), ctypes.addressof(memory) + 8, memory


def made(library: Library, kind: str) -> Any:
    """A descriptor (its address) that is destroyed with the object returned."""
    out = ctypes.c_void_p()
    library.call(f"cudnnCreate{kind}Descriptor", ctypes.byref(out))
    destroy = getattr(library.functions, f"cudnnDestroy{kind}Descriptor")
    weakref.finalize(out, destroy, out.value).atexit = False
    return out


def ints(values: Sequence[int]) -> ctypes.Array[ctypes.c_int]:
    """As C ints; NotSupportedError for what ctypes would cut to 32 bits without a word."""
    if any(abs(v) > INT_MAX for v in values):
        raise NotSupportedError(f"cuDNN's C calls count in 32 bits, got {tuple(values)}")
    return (ctypes.c_int * len(values))(*values)


def uncountable(operands: Sequence[Spec], *numbers: Sequence[int]) -> str:
    """Why the C calls cannot count what these operands span, or these parameters ("" = they can)."""
    if any(spec.span[1] >= INT_MAX for spec in operands):
        return "an operand spans more than 2**31 elements, cuDNN counts strides in 32 bits"
    if any(abs(v) > INT_MAX for values in numbers for v in values):
        return "a parameter is above 2**31, cuDNN counts in 32 bits"
    return ""


def strides_of(spec: Spec) -> tuple[int, ...]:
    """What a descriptor is told: an axis of size 1 has the same stride in all operands whose other strides are the same."""
    return normalised_strides(spec.shape, spec.strides)


def tensor(library: Library, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """A tensor's descriptor; an axis of size 1 may have any stride here, for cuDNN it must not be 0."""
    out = made(library, "Tensor")
    free = [max(s, 1) if n == 1 else s for n, s in zip(shape, strides, strict=True)]
    library.call("cudnnSetTensorNdDescriptor", out.value, int(DATA_TYPE[dtype]), len(shape), ints(shape), ints(free))
    return out
