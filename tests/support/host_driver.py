"""A GPU whose memory is the host's: what ``places.Gpu`` and our own allocations ask of the driver, done at once."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from numbadnn.arrays import device as array
from numbadnn.gpu import bindings, context, memory, streams


class HostDriver:
    """As the module cuda.bindings.driver: every function gives a status and values. ``busy``: work of other streams so far."""

    class CUstream_flags:
        CU_STREAM_NON_BLOCKING = 1

    class CUpointer_attribute:
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9

    def __init__(self) -> None:
        self.streams, self.busy, self.owned = 0, 0, dict[int, np.ndarray]()

    def cuStreamCreate(self, flags: int) -> tuple[int, int]:
        self.streams += 1
        return 0, self.streams

    def cuMemAlloc(self, nbytes: int) -> tuple[int, int]:
        room = np.full(nbytes + 256, 0xAB, np.uint8)
        address = room.ctypes.data + -room.ctypes.data % 256
        self.owned[address] = room
        return 0, address

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[int, int]:
        return self.cuMemAlloc(nbytes)

    def cuMemFree(self, address: int) -> tuple[int]:
        del self.owned[address]
        return (0,)

    def cuMemFreeAsync(self, address: int, stream: int) -> tuple[int]:
        return self.cuMemFree(address)

    def _copy(self, to: int, source: int, nbytes: int, stream: int = 0) -> tuple[int]:
        self.busy += stream > 1
        ctypes.memmove(to, source, nbytes)
        return (0,)

    cuMemcpyHtoDAsync = cuMemcpyDtoDAsync = cuMemcpyDtoHAsync = cuMemcpyHtoD = cuMemcpyDtoH = _copy

    def cuMemsetD8Async(self, address: int, value: int, nbytes: int, stream: int = 0) -> tuple[int]:
        ctypes.memset(address, value, nbytes)
        return (0,)

    cuMemsetD8 = cuMemsetD8Async

    def cuStreamSynchronize(self, stream: int) -> tuple[int]:
        return (0,)

    def cuCtxSynchronize(self) -> tuple[int]:
        return (0,)

    def cuPointerGetAttribute(self, attribute: int, address: int) -> tuple[int, int]:
        return 0, 0


@contextlib.contextmanager
def _plainly(device: int) -> Iterator[int]:
    yield device


def install(patch: pytest.MonkeyPatch) -> HostDriver:
    """In the place of the driver, until the patch is undone."""
    driver = HostDriver()
    for module in (bindings, memory, streams, array):
        patch.setattr(module, "driver", lambda: driver)
    patch.setattr(memory, "_allocate", lambda nbytes, device, stream: driver.cuMemAlloc(nbytes)[1])
    patch.setattr(memory, "_kept", {})
    patch.setattr(context, "ensure_context", _plainly)
    patch.setattr(streams, "wait", lambda waiting, first, device: None)
    patch.setattr(streams, "is_capturing", lambda stream: False)
    return driver


def bytes_at(address: int, nbytes: int) -> Any:
    """The memory at an address of that GPU, to read and to write."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
