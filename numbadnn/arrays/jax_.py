"""JAX arrays: immutable, so every result is a new array and ``out=`` is refused; tracers and deleted arrays are too.

Inputs come through ``__dlpack__(stream=ours)``, which makes our stream wait for them; on the GPU results are our memory,
handed over by DLPack with a deleter. XLA reuses the memory of an array that is deleted or donated in the order of its own
stream, of which it tells nobody: each call has it wait for ours. (An exported capsule that is kept instead would make a donation
an error.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from numbadnn.arrays import Borrowed, Library, View, dlpack, numpy_
from numbadnn.arrays.device import DeviceArray
from numbadnn.gpu import memory, streams
from numbadnn.problem import Spec


def _device_of(array: Any) -> Any:
    """Its one device, of a live array."""
    if array.is_deleted():
        raise ValueError("expected a live JAX array, got one that was deleted (donated to a computation)")
    devices = array.devices()
    if len(devices) != 1:
        raise TypeError(f"expected an array on one device, got one sharded over {len(devices)}")
    return next(iter(devices))


def _view(array: Any) -> View:
    device = _device_of(array)
    if device.platform == "cpu":
        return numpy_.describe(np.asarray(array), LIBRARY)
    ordinal = device.local_hardware_id
    capsule = array.__dlpack__(stream=streams.own(ordinal))
    tensor = dlpack.read(capsule)
    return View(LIBRARY, tensor.dtype, tensor.shape, tensor.strides, ordinal, Borrowed(tensor.address, capsule))


def _probe(array: Any) -> tuple[Any, tuple[Any, ...]]:
    if _device_of(array).platform == "cpu":
        same = np.asarray(array)
        return same, ("jax", same.shape, same.strides, same.dtype, -1, numpy_.address(same) & 15)
    view = _view(array)
    return view.address, ("jax", view.shape, view.strides, view.dtype, view.device, view.pointer & 15)


def _allocator(spec: Spec, device: int) -> Callable[[], Any]:
    if device < 0:
        return numpy_.allocator(spec)
    return lambda: DeviceArray(spec, device, _current_stream(device))


def _current_stream(device: int) -> int:
    return memory.current_stream(device) or streams.own(device)


def _address(array: Any) -> Any:
    return array.memory.address if isinstance(array, DeviceArray) else array


class _Now:
    """A number in GPU memory for which XLA must wait until the work that is now on a stream is done."""

    def __init__(self, owner: memory.DeviceMemory, stream: int) -> None:
        self._owner, self._stream = owner, stream

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._owner.device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        streams.wait(stream or 0, self._stream, self._owner.device)
        return dlpack.capsule(self._owner, self._owner.address, (1,), (1,), "float32", self._owner.device)


@functools.cache
def _number(device: int) -> memory.DeviceMemory:
    return memory.DeviceMemory(4, device, 0)


#: a computation; XLA runs those of a device one after the other, on the stream in whose order memory is given out again
_any_work = jax.jit(lambda number: number + 1)


def _record(pairs: list[tuple[Any, Any]], stream: int, device: int) -> None:
    """Whatever XLA is asked to do from now on, it does after the work that is now on ``stream``."""
    streams.wait(streams.own(device), stream, device)
    _any_work(jax.dlpack.from_dlpack(_Now(_number(device), stream)))


def _finish(results: tuple[Any, ...], arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """As JAX's, where the first JAX array is: on its device, of the dtype that was computed."""
    with _wide(results):
        if isinstance(results[0], DeviceArray):
            return tuple(map(jax.dlpack.from_dlpack, results))
        first = next(array for array in arrays if isinstance(array, jax.Array))
        (device,) = first.devices()
        if first.committed:
            return tuple([jax.device_put(np.ascontiguousarray(result), device) for result in results])
        with jax.default_device(device):  # not tied to it, as the argument is not
            return tuple([_taken(np.ascontiguousarray(result)) for result in results])


#: bytes up to which a copy (4 us) is faster than to hand the memory over (18 us)
SMALL = 1 << 17
#: compiled, it costs a fifth: what JAX does in Python for an array that it has not seen is done once a shape
_copied = jax.jit(jax.numpy.asarray)


def _taken(result: np.ndarray) -> Any:
    """A result as JAX's: small ones are copied."""
    return (_copied if result.nbytes <= SMALL else jax.device_put)(result)


_NARROW: AbstractContextManager[Any] = nullcontext()


def _wide(results: tuple[Any, ...]) -> AbstractContextManager[Any]:
    """Within, JAX takes float64 as it is, which else becomes float32 unless 64 bits are enabled."""
    if all(result.dtype != "float64" for result in results) or jax.config.jax_enable_x64:
        return _NARROW
    enable = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    return enable(True)


LIBRARY = Library(
    name="jax",
    probe=_probe,
    view=_view,
    address=_address,
    allocator=_allocator,
    current_stream=_current_stream,
    allocating_on=lambda stream, device: memory.on_stream(stream, device, streams.own(device)),
    record=_record,
    scratch=memory.scratch,
    outside=True,
    finish=_finish,
    takes_out=False,
)


def library_for(kind: type, array: Any, argument: str) -> Library:
    if isinstance(array, jax.core.Tracer):
        raise TypeError(
            f"{argument}: expected a concrete JAX array, got a tracer: this function computes at once and is no part of what "
            "jax.jit, jax.grad or jax.vmap trace; numbadnn.jax has those that are"
        )
    if not isinstance(array, jax.Array):
        raise TypeError(f"{argument}: expected a jax.Array, got {kind.__qualname__}")
    return LIBRARY
