"""Device memory of our own: a stream-ordered pool, small blocks kept, and whose stream an allocation belongs to."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numbadnn.errors import CaptureError, NumbaDNNError
from numbadnn.gpu import streams
from numbadnn.gpu.bindings import check, driver, lasting_streams


@functools.cache
def _pool(device: int) -> Any:
    """This process's pool on a device; it keeps what was freed, so that a warm call allocates in a microsecond."""
    d = driver()
    properties = d.CUmemPoolProps()
    properties.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    pool = check(d.cuMemPoolCreate(properties))
    keep = d.cuuint64_t(2**63)
    check(d.cuMemPoolSetAttribute(pool, d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, keep))
    return pool


class _Override(threading.local):
    """What ``on_stream`` has set in this thread; read in each call, where a missing attribute would take 0.2 us."""

    stream: int = 0
    made: list[DeviceMemory] | None = None


_override = _Override()


def current_stream(device: int) -> int:
    """The stream our own allocations belong to: the legacy default one, unless inside ``on_stream``."""
    return _override.stream


@contextmanager
def on_stream(stream: int, device: int, home: int = 0) -> Iterator[None]:
    """Inside, this thread's allocations of ours belong to ``stream``; from then on to ``home``, which waits for it.

    A stream of the caller's may go before the memory does, and what reads a result later works in the order of ``home``.
    """
    before, made = _override.stream, _override.made
    new: list[DeviceMemory] = []
    try:
        _override.stream, _override.made = stream, new
        yield
    finally:
        _override.stream, _override.made = before, made
        if new and stream != home:
            streams.wait(home, stream, device)
            for memory in new:
                memory.stream, memory.key = home, None


_KEPT_BYTES, _KEPT_BLOCKS = 1 << 20, 16
#: lists stay once they are there: ``maker`` holds one
_kept: dict[tuple[int, int, int], list[int]] = {}


def _block_bytes(nbytes: int) -> int:
    return 1 << max(nbytes - 1, 511).bit_length()


class DeviceMemory:
    """``nbytes`` of device memory on a stream, given back on that stream when the last reference goes.

    Small blocks of a lasting stream are kept, by powers of two, 16 of a size at most: the driver's pool takes two calls of
    a microsecond each where a kernel takes two. ``elsewhere``: others were told that they may read on a stream of theirs. It
    may be destroyed before the memory is, and nothing may be asked of such a handle: then the whole device is waited for.
    """

    __slots__ = ("__weakref__", "address", "device", "elsewhere", "key", "stream")

    def __init__(self, nbytes: int, device: int, stream: int) -> None:
        self.device, self.stream, self.elsewhere, self.address = device, stream, False, 0
        self.key: tuple[int, int, int] | None = None
        self.address = self._kept_block(nbytes) or _allocate(self.key[2] if self.key else nbytes, device, stream)
        if stream and (made := _override.made) is not None:
            made.append(self)

    def _kept_block(self, nbytes: int) -> int:
        """A block that was given back, or 0; ``key`` says where this one is to be kept, if anywhere."""
        if nbytes > _KEPT_BYTES or self.stream not in lasting_streams:
            return 0
        self.key = key = (self.device, self.stream, _block_bytes(nbytes))
        kept = _kept.get(key)
        if kept:
            try:
                return kept.pop()
            except IndexError:  # another thread took it
                pass
        return 0

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # kept as a default: at interpreter exit this module's names may be gone before the last block of memory
        if not self.address or is_finalizing():
            return
        if self.elsewhere and not _settled(self.device):
            return  # while a graph is captured: better lost than given out again under a reader
        if self.key is not None:
            kept = _kept.setdefault(self.key, [])
            if len(kept) < _KEPT_BLOCKS:
                kept.append(self.address)
                return
        from numbadnn.gpu.context import ensure_context

        d = driver()
        with contextlib.suppress(NumbaDNNError), ensure_context(self.device):  # whose default stream it is
            if d.cuMemFreeAsync(self.address, self.stream)[0] != 0:
                d.cuMemFreeAsync(self.address, 0)  # its stream is gone: the default stream waits for everything
            return
        d.cuMemFreeAsync(self.address, self.stream)  # in a context that is not ours to change

    def __reduce__(self) -> Any:
        raise TypeError("device memory has one owner and cannot be copied or pickled: copy the array that lies in it")


def maker(nbytes: int, device: int) -> Callable[[int], DeviceMemory]:
    """``DeviceMemory`` of so many bytes as a function of the stream, at half the cost: where to look is known beforehand."""
    key = (device, 0, _block_bytes(nbytes))
    kept: list[int] = _kept.setdefault(key, []) if nbytes <= _KEPT_BYTES else []
    new = object.__new__

    def make(stream: int) -> DeviceMemory:
        if stream or not kept:
            return DeviceMemory(nbytes, device, stream)
        try:
            address = kept.pop()
        except IndexError:  # another thread took it
            return DeviceMemory(nbytes, device, stream)
        block = new(DeviceMemory)
        block.device, block.stream, block.elsewhere, block.key, block.address = device, 0, False, key, address
        return block

    return make


def _settled(device: int) -> bool:
    """Whether all work of a device is done, which is waited for; False where that may not be asked."""
    from numbadnn.gpu.context import ensure_context

    try:
        with ensure_context(device):
            return driver().cuCtxSynchronize()[0] == 0
    except NumbaDNNError:
        return False


def _allocate(nbytes: int, device: int, stream: int) -> int:
    """From the pool, in the order of the stream; CaptureError where a CUDA graph would have to own it."""
    from numbadnn.gpu.context import ensure_context

    d = driver()
    status, capturing = d.cuStreamIsCapturing(stream)
    if status == 0 and capturing != d.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
        raise CaptureError(
            "the stream is being captured and this array library has no allocator that a CUDA graph can own: pass "
            "out= (and workspace= to a Plan), or use CuPy or PyTorch arrays"
        )
    with ensure_context(device):
        return int(check(d.cuMemAllocFromPoolAsync(nbytes, _pool(device), stream)))


def scratch(nbytes: int, device: int, stream: int) -> tuple[DeviceMemory, int]:
    """Workspace from our own pool, ordered on ``stream``."""
    memory = DeviceMemory(nbytes, device, stream)
    return memory, memory.address
