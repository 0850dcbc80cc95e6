"""Chunks of NumPy through GPUs: lanes, each with a stream of its own and pinned memory, two to six for each GPU.

A task takes a lane, has its blocks put together in pinned memory, and enqueues copy, call and copy back on the lane's stream.
While it waits, tasks of other lanes put theirs together and have copies under way: so copies and computing overlap. One core
copies in memory at about a third of the rate of the link to a GPU, hence several lanes where there are cores. Give the
scheduler as many threads as there are lanes.
"""

from __future__ import annotations

import functools
import math
import queue
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from numbadnn.errors import BackendUnavailableError
from numbadnn.gpu.devices import gpus, no_gpu_reason
from numbadnn.host.quota import processors

#: ordinals of GPUs, () for all that the worker has; None: blocks are computed where they are
Gpus = tuple[int, ...] | None

#: lanes of a GPU at least and at most; in between one for each processor
FEWEST, MOST = 2, 6
#: results of a lane that may lie in pinned memory at a time; what is kept beyond them is copied to ordinary memory
RESULTS = 2


def gpus_of(device: Any, devices: Any) -> Gpus:
    """What ``device`` (None, "cpu", "cuda", "cuda:N") and ``devices`` (None, "all", ordinals) ask for.

    Both are looked at where the call is made; the GPUs are those of the worker that a task runs on.

    >>> gpus_of(None, None), gpus_of("cuda:1", None), gpus_of(None, "all"), gpus_of(None, [0, 2])
    (None, (1,), (), (0, 2))
    """
    if device is not None and devices is not None:
        raise ValueError(f"devices: expected None where device is given, got device={device!r} and devices={devices!r}")
    if device is not None:
        kind, _, number = str(device).partition(":")
        if device == "cpu":
            return None
        if kind != "cuda" or not (number.isdecimal() or device == "cuda"):
            raise ValueError(f'device: expected None, "cpu", "cuda" or "cuda:N", got {device!r}')
        return (int(number or 0),)
    if devices is None:
        return None
    if isinstance(devices, str):
        if devices != "all":
            raise ValueError(f'devices: expected None, "all" or the numbers of GPUs, got {devices!r}')
        return ()
    numbers = tuple(devices)
    if not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise ValueError(f'devices: expected None, "all" or the numbers of GPUs, got {devices!r}')
    return numbers


class Lane:
    """A stream of a GPU, memory on both sides for what goes there, pinned memory for results, and the filters that are there."""

    def __init__(self, device: int) -> None:
        from numba import cuda

        self.device, self._cuda = device, cuda
        self._pinned: dict[Any, Any] = {}
        self._there: dict[Any, Any] = {}
        self._here: dict[int, tuple[Any, Any]] = {}
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()  # pinned memory that no result lies in
        for _ in range(RESULTS):
            self._results.put(None)
        with cuda.gpus[device]:
            self.stream = cuda.stream()

    def pinned(self, slot: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Pinned memory of this lane for a block; the next block of the same slot has the same memory."""
        return _in(self._held(self._pinned, slot, math.prod(shape) * np.dtype(dtype).itemsize), shape, dtype)

    def call(self, function: Any, blocks: list[np.ndarray], weights: list[Any], keywords: dict[str, Any]) -> np.ndarray:
        """The function's result for blocks in pinned memory, as an array of NumPy."""
        with self._cuda.gpus[self.device]:
            there = [self._copied(slot, block) for slot, block in enumerate(blocks)]
            there += [self._filters(w) for w in weights]
            found = function(*there, **keywords, stream=self.stream)
            result, lasting = self._result(found.shape, found.dtype)
            found.copy_to_host(result, stream=self.stream)
            self.stream.synchronize()
        return result if lasting else result.copy()

    def _held(self, memories: dict[Any, Any], slot: Any, nbytes: int) -> Any:
        """Bytes of the slot, pinned or on the GPU; larger ones are made where they do not suffice."""
        memory = memories.get(slot)
        if memory is None or memory.size < nbytes:
            make = self._cuda.pinned_array if memories is self._pinned else self._cuda.device_array
            memories.pop(slot, None)
            with self._cuda.gpus[self.device]:
                memories[slot] = memory = make(max(nbytes, 1), np.uint8)
        return memory

    def _copied(self, slot: int, block: np.ndarray) -> Any:
        """The block on the GPU, in memory that the next block of the slot has again; the copy is enqueued."""
        copy = _in(self._held(self._there, slot, block.nbytes), block.shape, block.dtype)
        copy.copy_to_device(block, stream=self.stream)
        return copy

    def _result(self, shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, bool]:
        """Pinned memory for a result, and whether the result may stay there for as long as somebody has it."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            memory = self._results.get_nowait()
        except queue.Empty:
            return self.pinned("result", shape, dtype), False
        if memory is None or memory.size < nbytes:
            try:
                memory = self._cuda.pinned_array(max(nbytes, 1), np.uint8)
            except BaseException:
                self._results.put(None)
                raise
        lent = _Lent(memory)
        weakref.finalize(lent, self._results.put, memory).atexit = False
        return _in(np.asarray(lent), shape, dtype), True

    def _filters(self, filters: np.ndarray) -> Any:
        """Filters on this GPU, copied once; views are made for each call, and so are copied for each."""
        key = id(filters)
        known = self._here.get(key)
        if known is not None and known[0]() is filters:
            return known[1]
        copied = self._cuda.to_device(np.ascontiguousarray(filters), stream=self.stream)
        if filters.base is None:
            self._here = {k: v for k, v in self._here.items() if v[0]() is not None}
            self._here[key] = (weakref.ref(filters), copied)
        return copied


class _Lent:
    """Memory as an array's owner: once no array has it any more, its finalizer runs."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory, self.__array_interface__ = memory, memory.__array_interface__


def _in(memory: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array in the first of these bytes."""
    dtype = np.dtype(dtype)
    return memory[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


#: threads of a scheduler begin at once: the lanes are made by one, and Numba's first look at the driver bears no other thread
_making = threading.RLock()


def lanes(numbers: tuple[int, ...]) -> queue.SimpleQueue[Lane]:
    """The free lanes of these GPUs (() for all) of this process: GPU after GPU, so that chunks go round them."""
    with _making:
        return _made(numbers)


@functools.cache
def _made(numbers: tuple[int, ...]) -> queue.SimpleQueue[Lane]:
    known = [gpu["device"] for gpu in gpus()]
    if not known:
        raise BackendUnavailableError(f'device="cuda": {no_gpu_reason()}')
    missing = sorted(set(numbers) - set(known))
    if missing:
        raise BackendUnavailableError(f"devices: expected numbers of {known}, got {missing[0]}")
    free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
    chosen = tuple(numbers or known)
    for device in chosen * min(max(processors() // len(chosen), FEWEST), MOST):
        free.put(Lane(device))
    return free


@contextmanager
def lane(numbers: Gpus) -> Iterator[Lane | None]:
    """A free lane of these GPUs, waited for; None where blocks are computed where they are."""
    if numbers is None:
        yield None
        return
    free = lanes(numbers)
    taken = free.get()
    try:
        yield taken
    finally:
        free.put(taken)


@functools.lru_cache(16)
def _copied(token: int, device: int, filters: Any) -> Any:
    import cupy

    with cupy.cuda.Device(device):
        return cupy.asarray(filters.array)


class _Same:
    """An array as a key: the same object, not the same numbers."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __hash__(self) -> int:
        return id(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.array is self.array


def beside(block: Any, filters: Any) -> Any:
    """Filters of NumPy on the GPU of a block of CuPy, copied once a worker; others as they are."""
    if not isinstance(filters, np.ndarray):
        return filters
    return _copied(id(filters), block.device.id, _Same(filters))
