"""Plain memory of one GPU for operands, freed together, and the time of launches on it; all on the legacy default stream.

Times are of the device alone: a block of other work keeps it busy while the host enqueues, each launch stands between two
events, and whoever measures holds the device's lock file: processes may plan side by side, but one measures at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.host import files as stored
from numbadnn.kept import machine
from numbadnn.measuring.data import Buffer

MOST_SETS, MOST_BYTES = 64, 2 << 30
BLOCK_BYTES, BLOCKS = 256 << 20, 6
#: launches that are enqueued behind one block of other work
PAIRS = 16


def sets(nbytes: int, cache: int) -> int:
    """So many sets of operands that a set used again was driven out of the cache meanwhile.

    >>> sets(1 << 20, 50 << 20), sets(1 << 30, 50 << 20)
    (64, 2)
    """
    wanted = -(-2 * cache // max(nbytes, 1)) + 1
    return max(1, min(wanted, MOST_SETS, MOST_BYTES // max(nbytes, 1)))


class Device:
    """Memory and events of one device; ``free`` gives all of it back."""

    def __init__(self, number: int) -> None:
        from numbadnn.gpu import bindings

        self.driver, self.check, self.number = bindings.driver(), bindings.check, number
        self._owned: list[int] = []
        self._host: list[int] = []
        self._events: list[tuple[Any, Any]] = []

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """While kernels run: no other process measures or runs any then; copies from and to the host do go on."""
        return stored.lock_file(machine.lock_name(self.number))

    def allocate(self, nbytes: int) -> int:
        address = int(self.check(self.driver.cuMemAlloc(max(nbytes, 1))))
        self._owned.append(address)
        return address

    def release(self, address: int) -> None:
        """Give one allocation back before the others."""
        self._owned.remove(address)
        self.check(self.driver.cuMemFree(address))

    def put(self, b: Buffer, address: int = 0) -> int:
        """Copy a whole buffer to the device; the address of its first byte."""
        address = address or self.allocate(b.memory.nbytes)
        self.check(self.driver.cuMemcpyHtoD(address, b.memory.ctypes.data, b.memory.nbytes))
        return address

    def rotations(self, buffers: list[Buffer], bases: list[int]) -> list[list[int]]:
        """What lies at ``bases``, and copies of it, so many that together they outgrow the L2 cache."""
        attribute = self.driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        cache = self.check(self.driver.cuDeviceGetAttribute(attribute, self.number))
        found = [bases]
        for _ in range(sets(sum(b.memory.nbytes for b in buffers), cache) - 1):
            copies = [self.allocate(b.memory.nbytes) for b in buffers]
            for b, old, new in zip(buffers, bases, copies, strict=True):
                self.check(self.driver.cuMemcpyDtoD(new, old, b.memory.nbytes))
            found.append(copies)
        return found

    def pin(self, nbytes: int) -> np.ndarray:
        """Page-locked bytes of the host's memory."""
        address = int(self.check(self.driver.cuMemAllocHost(max(nbytes, 1))))
        self._host.append(address)
        return np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(address))

    @functools.cached_property
    def block(self) -> int:
        """The memory whose filling is the work that keeps the device busy."""
        return self.allocate(BLOCK_BYTES)

    def times(self, launch: Callable[[int], None], count: int) -> list[float]:
        """Microseconds of ``launch(0)`` to ``launch(count - 1)``, each; the caller is ``alone``."""
        d, check, found = self.driver, self.check, list[float]()
        while len(self._events) < min(count, PAIRS):
            self._events.append((check(d.cuEventCreate(0)), check(d.cuEventCreate(0))))
        while len(found) < count:
            events = self._events[: count - len(found)]
            for _ in range(BLOCKS):  # the device is kept busy meanwhile: not the host's time is measured
                check(d.cuMemsetD32Async(self.block, 0, BLOCK_BYTES // 4, 0))
            for i, (begin, end) in enumerate(events, len(found)):
                check(d.cuEventRecord(begin, 0))
                launch(i)
                check(d.cuEventRecord(end, 0))
            check(d.cuCtxSynchronize())
            found += [1000 * check(d.cuEventElapsedTime(begin, end)) for begin, end in events]
        return found

    def free(self) -> None:
        for event in (event for pair in self._events for event in pair):
            self.driver.cuEventDestroy(event)
        for address in self._owned:
            self.driver.cuMemFree(address)
        for address in self._host:
            self.driver.cuMemFreeHost(address)
