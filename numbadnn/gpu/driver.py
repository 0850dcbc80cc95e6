"""The CUDA driver library through ctypes: loaded once, every status checked, errors with their name and text.

Only what planning needs; the launch itself goes by address through ``build/shim.py``. Loading it creates no context.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from numbadnn.errors import BackendUnavailableError, NumbaDNNError, is_passing


@functools.cache
def loaded() -> ctypes.CDLL:
    """libcuda as it is; BackendUnavailableError where there is none. A process that only loaded it may still be forked."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        if is_passing(error):
            raise
        raise BackendUnavailableError(f"the NVIDIA driver library cannot be loaded: {error}") from None


def is_initialised() -> bool:
    """Whether anybody in this process has initialised CUDA, after which a forked child cannot use it."""
    count = ctypes.c_int()
    return loaded().cuDeviceGetCount(ctypes.byref(count)) != NOT_INITIALISED


@functools.cache
def library() -> ctypes.CDLL:
    """libcuda, initialised; BackendUnavailableError where there is no driver or no device."""
    lib = loaded()
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


NOT_INITIALISED = 3
SPAWN = (
    "this process was forked from one that had used CUDA, which cannot work; start it with the 'spawn' method "
    "(multiprocessing.set_start_method('spawn'))"
)
#: after these nothing runs in the context any more; CUDA reports them late, with whatever is called next
LOST = {700, 702, 710, 714, 715, 716, 717, 718, 719}
_lost_by = ""


def _nobody() -> str:
    return ""


#: what this thread enqueued last, in words ("" = nothing); call.launch sets it
blame: Callable[[], str] = _nobody


def check(status: int, doing: str) -> None:
    """NumbaDNNError unless ``status`` is 0."""
    if status:
        raise NumbaDNNError(f"{doing}: {describe(status, library())}{aftermath(status)}")


def aftermath(status: int) -> str:
    """For an error that has cost the context: what this thread enqueued last, which caused it; only named the first time."""
    global _lost_by
    if status == NOT_INITIALISED and library.cache_info().currsize:  # it was, in the parent
        return f"; {SPAWN}"
    if status not in LOST:
        return ""
    if _lost_by:
        return f"; the context was lost before, by {_lost_by}: only a new process can use the GPU"
    _lost_by = blame() or "work that was not this library's"
    return f"; the kernel that failed was enqueued before: the last call of this thread was {_lost_by}"


def lost() -> str:
    """After another library's error: CUDA's own and what caused it where the context is lost, "" where it lives."""
    try:
        status = library().cuCtxSynchronize()
    except BackendUnavailableError:
        return ""
    return f"{describe(status, library())}{aftermath(status)}" if status in LOST else ""


def call(name: str, *args: Any) -> None:
    """Call one driver function and check its status; Python ints go as 64-bit values, ctypes objects as they are."""
    plain = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in args]
    check(getattr(library(), name)(*plain), name)


@functools.cache
def version() -> int:
    """1000 * major + 10 * minor of the newest CUDA that the driver knows."""
    number = ctypes.c_int()
    call("cuDriverGetVersion", ctypes.byref(number))
    return number.value


@functools.cache
def compute_capability(device: int) -> tuple[int, int]:
    """(major, minor) of a device by its CUDA ordinal."""
    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
    call("cuDeviceGetAttribute", ctypes.byref(major), ctypes.c_int(75), handle)
    call("cuDeviceGetAttribute", ctypes.byref(minor), ctypes.c_int(76), handle)
    return major.value, minor.value
