"""XLA's buffers on a GPU as arrays that numbadnn takes: in place, on XLA's stream, in a workspace of XLA's.

They are a library of their own, because everything about them is known: the stream is the one that XLA calls with, so no event
is waited for and no memory is held. So a call enqueues kernels alone, which a command buffer can record.
"""

from __future__ import annotations

import functools
import threading
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np

from numbadnn import arrays
from numbadnn.arrays import Library, View, dlpack, numpy_
from numbadnn.errors import WorkspaceError
from numbadnn.gpu import bindings, memory, streams
from numbadnn.gpu.context import ensure_context
from numbadnn.problem import contiguous_strides

#: bytes: where a workspace begins
ALIGNED = 256


class Buffer:
    """A buffer of XLA's, or a view of one with other axes."""

    __slots__ = ("address", "device", "dtype", "shape", "signature", "strides")

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: int) -> None:
        self.address, self.shape, self.strides, self.dtype, self.device = address, shape, strides, dtype, device
        self.signature = ("xla", shape, strides, dtype, device, address & 15)


class _Here(threading.local):
    """Of the call that this thread is in."""

    stream = 0
    workspace = (0, 0)


_here = _Here()


def _scratch(nbytes: int, device: int, stream: int) -> tuple[Any, int]:
    address, size = _here.workspace
    if nbytes <= size:
        return None, address
    return memory.scratch(nbytes, device, stream)


def _no_results(*_: Any) -> Any:
    raise WorkspaceError("out: expected XLA's buffers, got none")


LIBRARY: Library = Library(
    name="jax",
    probe=lambda array: (array.address, array.signature),
    view=lambda array: View(LIBRARY, array.dtype, array.shape, array.strides, array.device, array.address),
    address=lambda array: array.address,
    allocator=lambda spec, device: _no_results,
    current_stream=lambda device: _here.stream,
    allocating_on=lambda stream, device: nullcontext(),
    record=lambda pairs, stream, device: None,
    scratch=_scratch,
)
arrays._remember(Buffer, LIBRARY)


@functools.cache
def dtype(name: str) -> np.dtype[Any]:
    return numpy_.numpy_dtype(name)


def seen(buffer: Buffer, axes: tuple[int | None, ...] | None) -> Buffer:
    """The buffer with numbadnn's axes."""
    if axes is None:
        return buffer
    shape = tuple([1 if axis is None else buffer.shape[axis] for axis in axes])
    strides = tuple([0 if axis is None else buffer.strides[axis] for axis in axes])
    return Buffer(buffer.address, shape, strides, buffer.dtype, buffer.device)


def gpu_for(backend: str | None) -> int | None:
    """The GPU on which a computation that is traced now will most likely run; None: it will run on the CPU."""
    chosen = jax.config.jax_default_device
    default = jax.local_devices(backend=chosen)[0] if chosen is None or isinstance(chosen, str) else chosen
    if backend == "cpu":
        return None
    if default.platform != "gpu" and backend is not None:
        try:
            default = jax.local_devices(backend="gpu")[0]
        except RuntimeError:  # there is none
            return None
    return int(default.local_hardware_id) if default.platform == "gpu" else None


def placeholder(gpu: int, array: Any) -> Buffer:
    """Stands for a buffer on a GPU, to plan with."""
    return Buffer(ALIGNED, array.shape, contiguous_strides(array.shape), np.dtype(array.dtype).name, gpu)


def _address(given: Any) -> int:
    try:
        return int(given.__cuda_array_interface__["data"][0])
    except Exception:  # it knows no bfloat16, and no buffer of size zero
        return 0 if 0 in given.shape else int(dlpack.read(given.__dlpack__()).address)


def _buffer(given: Any, device: int) -> Buffer:
    shape = tuple(given.shape)
    return Buffer(_address(given), shape, contiguous_strides(shape), np.dtype(given.dtype).name, device)


def run(work: Any, stream: int, device: int, given: Any, outs: Any) -> None:
    """Compute on XLA's stream; ``outs`` are the results and, behind them, a workspace where one was asked for."""
    before = _here.stream, _here.workspace
    _here.stream = stream
    try:
        if len(outs) > len(work.outs):
            address, size = _address(outs[-1]), int(outs[-1].shape[0])
            start = -(-address // ALIGNED) * ALIGNED
            _here.workspace = start, size - (start - address)
        count = len(work.axes)
        arrays = [seen(_buffer(a, device), axes) for a, axes in zip(given[:count], work.axes, strict=True)]
        results = [seen(_buffer(a, device), axes) for a, axes in zip(outs, work.outs, strict=False)]
        words = {name: _integer(a, stream, device) for name, a in zip(work.words, given[count:], strict=True)}
        with ensure_context(device):  # XLA's threads need not have one
            if streams.is_capturing(stream):
                _record(work, stream, device, arrays, results)
            else:
                work.call(arrays, results, words)
    finally:
        _here.stream, _here.workspace = before


def _record(work: Any, stream: int, device: int, arrays: list[Buffer], results: list[Buffer]) -> None:
    """Into a command buffer: the plan is made apart from the stream that is captured, and kept, as it is replayed at any time."""
    driver = bindings.driver()
    _here.stream = streams.own(device)
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = bindings.check(driver.cuThreadExchangeStreamCaptureMode(relaxed))  # a plan may load code and allocate
    try:
        plan = work.plan(arrays, results)
    finally:
        bindings.check(driver.cuThreadExchangeStreamCaptureMode(before))
        _here.stream = stream
    streams.keep(plan)
    plan(*arrays, out=results[0] if len(results) == 1 else tuple(results))


def _integer(given: Any, stream: int, device: int) -> int:
    """An integer that XLA computed: the host waits for it."""
    driver, value = bindings.driver(), np.empty(given.shape, given.dtype)
    with ensure_context(device):
        bindings.check(driver.cuMemcpyDtoHAsync(value.ctypes.data, _address(given), value.nbytes, stream))
        bindings.check(driver.cuStreamSynchronize(stream))
    return int(value)
