"""The CUDA driver library through ctypes: loaded once, every status checked, errors with their name and text.

Only what planning needs; the launch itself goes by address through ``_shim``. Loading it creates no context.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from numbadnn.errors import BackendUnavailableError, NumbaDNNError


@functools.cache
def library() -> ctypes.CDLL:
    """libcuda, initialised; BackendUnavailableError where there is no driver or no device."""
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BackendUnavailableError(f"the NVIDIA driver library cannot be loaded: {error}") from None
    status = lib.cuInit(0)
    if status:
        raise BackendUnavailableError(f"the NVIDIA driver does not start: {describe(status, lib)}")
    return lib


def describe(status: int, lib: Any = None) -> str:
    """``CUDA_ERROR_NAME (its text)`` for a driver status."""
    texts = []
    for function in ("cuGetErrorName", "cuGetErrorString"):
        text = ctypes.c_char_p()
        if lib is not None:
            getattr(lib, function)(int(status), ctypes.byref(text))
        texts.append((text.value or b"").decode())
    name, sentence = texts
    return f"{name} ({sentence})" if name else f"CUDA driver status {status}"


def check(status: int, doing: str) -> None:
    """NumbaDNNError unless ``status`` is 0."""
    if status:
        raise NumbaDNNError(f"{doing}: {describe(status, library())}")


def call(name: str, *args: Any) -> None:
    """Call one driver function and check its status; Python ints go as 64-bit values, ctypes objects as they are."""
    plain = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in args]
    check(getattr(library(), name)(*plain), name)


@functools.cache
def compute_capability(device: int) -> tuple[int, int]:
    """(major, minor) of a device by its CUDA ordinal."""
    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
    call("cuDeviceGetAttribute", ctypes.byref(major), ctypes.c_int(75), handle)
    call("cuDeviceGetAttribute", ctypes.byref(minor), ctypes.c_int(76), handle)
    return major.value, minor.value
