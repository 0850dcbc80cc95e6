"""Primary contexts: which is current on this thread, and making a device's current for the length of a call.

CUDA work goes to the context that is current on the calling thread, and a thread that never used CUDA has none. The
library works in the primary context of the arrays' device, the one that PyTorch, CuPy, JAX and Numba share: it is
retained once a device, never released, made current for a call where it is not, and what was current comes back after.
Where nothing was, that of device 0 stays: CUDA's runtime would take it there too, and to set and unset it in every call
costs more than the call. PyTorch's threads of backward passes are such, until something of PyTorch's own runs in them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager

from numbadnn.errors import NumbaDNNError
from numbadnn.gpu import driver as _driver


@functools.cache
def primary_context(device: int) -> int:
    """The handle of the primary context of a device, retained for the life of the process."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _driver.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
    _driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    return context.value or 0


def current_context() -> int:
    """The handle of the context that is current on this thread, 0 for none."""
    context = ctypes.c_void_p()
    _driver.call("cuCtxGetCurrent", ctypes.byref(context))
    return context.value or 0


def _is_primary(context: int) -> bool:
    """Whether the current context ``context`` is the primary one of its own device."""
    handle, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    _driver.call("cuCtxGetDevice", ctypes.byref(handle))
    _driver.call("cuDevicePrimaryCtxGetState", handle, ctypes.byref(flags), ctypes.byref(active))
    # a device's handle is its ordinal; asking for the primary context of an inactive one would create it
    return bool(active.value) and primary_context(handle.value) == context


@contextmanager
def ensure_context(device: int) -> Iterator[int]:
    """Make the primary context of ``device`` current on this thread, and restore what was; device 0's stays where nothing was.

    Raises NumbaDNNError where the thread works in a context that is not any device's primary one (made with
    cuCtxCreate): arrays of it cannot be used from the primary context.
    """
    wanted, before = primary_context(device), current_context()
    if before == wanted:
        yield wanted
        return
    if before and not _is_primary(before):
        raise NumbaDNNError(
            f"expected the primary context of CUDA device {device} on this thread, got context {before:#x} that is no "
            "device's primary context (made with cuCtxCreate); pop it before the call"
        )
    after = before or (0 if device else wanted)  # another device's would become the thread's current device
    try:
        try:
            _driver.call("cuCtxSetCurrent", wanted)
            yield wanted
        finally:
            if after != wanted:
                _driver.call("cuCtxSetCurrent", after)
    except BaseException:  # once more: it may be Ctrl-C, in the end itself
        _driver.call("cuCtxSetCurrent", after)
        raise
