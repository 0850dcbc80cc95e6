"""What the C calls of cuDNN are told about operands: descriptors, which free themselves, and the two scalars."""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Sequence
from typing import Any

from numbadnn.cudnn._enums import DATA_TYPE
from numbadnn.cudnn.lib import Library


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
    return (ctypes.c_int * len(values))(*values)


def tensor(library: Library, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """A tensor's descriptor; an axis of size 1 may have any stride here, for cuDNN it must not be 0."""
    out = made(library, "Tensor")
    free = [max(s, 1) if n == 1 else s for n, s in zip(shape, strides, strict=True)]
    library.call("cudnnSetTensorNdDescriptor", out.value, int(DATA_TYPE[dtype]), len(shape), ints(shape), ints(free))
    return out
