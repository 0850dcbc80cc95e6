"""A lane to a GPU: a stream of its own, memory on both sides, pinned memory for results, and the filters that are there."""

from __future__ import annotations

import math
import queue
import weakref
from typing import Any

import numpy as np

from numbadnn.dask import direct
from numbadnn.dask.arrays import Slices
from numbadnn.gpu import memory, streams

#: results of a lane that may lie in pinned memory at a time; what is kept beyond them is copied to ordinary memory
RESULTS = 2


class Lane:
    """One task has it at a time. Its stream waits for no other one, the default stream included, and none waits for it."""

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
            self._raw = streams.lasting(device)
            self.stream = cuda.external_stream(self._raw)

    def pinned(self, slot: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Pinned memory of this lane for a block; the next block of the same slot has the same memory."""
        return _in(self._held(self._pinned, slot, math.prod(shape) * np.dtype(dtype).itemsize), shape, dtype)

    def from_parts(
        self, slot: int, shape: tuple[int, ...], dtype: Any, parts: list[Any], puts: list[Slices]
    ) -> Any | None:
        """A block on the GPU, zero beside its parts, where it is better copied from where these lie; else None."""
        with self._cuda.gpus[self.device]:
            pinned = direct.pinned(shape, dtype, parts)
            if not pinned:
                return None
            block = _in(self._held(self._there, slot, math.prod(shape) * np.dtype(dtype).itemsize), shape, dtype)
            address = block.__cuda_array_interface__["data"][0]
            if sum(p.size for p in parts) != math.prod(shape):
                self._cleared(address, block.nbytes)
            for i, (part, put) in enumerate(zip(parts, puts, strict=True)):
                if not pinned[i]:
                    mine = self.pinned((slot, i), part.shape, dtype)
                    mine[...] = part
                    part = mine
                length, places = direct.rows(part, shape, put)
                for here, there in places:
                    self._sent(address + there, part.ctypes.data + here, length)
        return block

    def _sent(self, there: int, here: int, nbytes: int) -> None:
        """Enqueue a copy of bytes of pinned memory to the GPU."""
        from numbadnn.gpu.bindings import check, driver

        check(driver().cuMemcpyHtoDAsync(there, here, nbytes, self._raw))

    def _cleared(self, there: int, nbytes: int) -> None:
        from numbadnn.gpu.bindings import check, driver

        check(driver().cuMemsetD8Async(there, 0, nbytes, self._raw))

    def call(self, function: Any, blocks: list[Any], weights: list[Any], keywords: dict[str, Any]) -> np.ndarray:
        """The function's result for blocks in pinned memory, or on this lane already, as an array of NumPy."""
        with self._cuda.gpus[self.device], memory.on_stream(self._raw, self.device, home=self._raw):
            there = [self._copied(slot, block) for slot, block in enumerate(blocks)]
            there += [self._filters(w) for w in weights]
            found = function(*there, **keywords, stream=self.stream)
            result, lasting = self._result(found.shape, found.dtype)
            found.copy_to_host(result, stream=self.stream)
            self.stream.synchronize()
        return result if lasting else result.copy()

    def settle(self) -> None:
        """Wait for what was enqueued: a task that failed leaves copies under way."""
        with self._cuda.gpus[self.device]:
            self.stream.synchronize()

    def _held(self, memories: dict[Any, Any], slot: Any, nbytes: int) -> Any:
        """Bytes of the slot, pinned or on the GPU; larger ones are made where they do not suffice."""
        held = memories.get(slot)
        if held is None or held.size < nbytes:
            make = self._cuda.pinned_array if memories is self._pinned else self._cuda.device_array
            memories.pop(slot, None)
            with self._cuda.gpus[self.device]:
                memories[slot] = held = make(max(nbytes, 1), np.uint8)
        return held

    def _copied(self, slot: int, block: Any) -> Any:
        """The block on the GPU, in memory that the next block of the slot has again; the copy is enqueued."""
        if not isinstance(block, np.ndarray):
            return block
        copy = _in(self._held(self._there, slot, block.nbytes), block.shape, block.dtype)
        copy.copy_to_device(block, stream=self.stream)
        return copy

    def _result(self, shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, bool]:
        """Pinned memory for a result, and whether the result may stay there for as long as somebody has it."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            lent = self._results.get_nowait()
        except queue.Empty:
            return self.pinned("result", shape, dtype), False
        if lent is None or lent.size < nbytes:
            try:
                lent = self._cuda.pinned_array(max(nbytes, 1), np.uint8)
            except BaseException:
                self._results.put(None)
                raise
        owner = _Lent(lent)
        weakref.finalize(owner, self._results.put, lent).atexit = False
        return _in(np.asarray(owner), shape, dtype), True

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

    def __init__(self, lent: np.ndarray) -> None:
        self.memory, self.__array_interface__ = lent, lent.__array_interface__


def _in(held: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array in the first of these bytes."""
    dtype = np.dtype(dtype)
    return held[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
