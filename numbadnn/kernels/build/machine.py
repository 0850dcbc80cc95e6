"""What a block and a GPU have: shared memory and multiprocessors."""

from __future__ import annotations

import ctypes
import functools

from numbadnn.gpu import driver as _driver
from numbadnn.kernels.build import simulate

#: bytes of shared memory that a block may have, by compute capability; others: the least that there is
SHARED_CAPACITY = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}
LARGEST_CAPACITY, DEFAULT_CAPACITY = 227 * 1024, 48 * 1024


def shared_capacity(device: int) -> int:
    """Bytes of shared memory that a block may have on a device; under the simulator the largest there is."""
    if simulate.active() or device < 0:
        return LARGEST_CAPACITY
    return SHARED_CAPACITY.get(_driver.compute_capability(device), 99) * 1024


@functools.cache
def multiprocessors(device: int) -> int:
    """How many a device has."""
    handle, count = ctypes.c_int(), ctypes.c_int()
    _driver.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
    _driver.call("cuDeviceGetAttribute", ctypes.byref(count), ctypes.c_int(16), handle)
    return count.value
