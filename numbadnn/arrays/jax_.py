"""JAX arrays: immutable, so every result is a new array and ``out=`` is refused; tracers and deleted arrays are too.

Inputs come through ``__dlpack__(stream=ours)``, which makes our stream wait for them; on the GPU results are our memory,
handed over by DLPack with a deleter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from numbadnn.arrays import Library, View, dlpack, numpy_
from numbadnn.arrays import device as memory
from numbadnn.gpu import streams
from numbadnn.problem import Spec


def _view(array: Any) -> View:
    if array.is_deleted():
        raise ValueError("expected a live JAX array, got one that was deleted (donated to a computation)")
    devices = array.devices()
    if len(devices) != 1:
        raise TypeError(f"expected an array on one device, got one sharded over {len(devices)}")
    if next(iter(devices)).platform == "cpu":
        return numpy_.describe(np.asarray(array), LIBRARY)
    ordinal = next(iter(devices)).local_hardware_id
    tensor = dlpack.read(array.__dlpack__(stream=streams.own(ordinal)))
    return View(LIBRARY, tensor.dtype, tensor.shape, tensor.strides, ordinal, tensor.address)


def _probe(array: Any) -> tuple[Any, tuple[Any, ...]]:
    view = _view(array)
    return view.address, ("jax", view.shape, view.strides, view.dtype, view.device, view.pointer & 15)


def _allocator(spec: Spec, device: int) -> Callable[[], Any]:
    if device < 0:
        return numpy_.allocator(spec)
    return lambda: memory.DeviceArray(spec, device, _current_stream(device))


def _current_stream(device: int) -> int:
    return memory.current_stream(device) or streams.own(device)


def _address(array: Any) -> Any:
    return array.memory.address if isinstance(array, memory.DeviceArray) else array


def _finish(array: Any) -> Any:
    if isinstance(array, memory.DeviceArray):
        return jax.dlpack.from_dlpack(array)
    return jax.device_put(np.ascontiguousarray(array), jax.devices("cpu")[0])


LIBRARY = Library(
    name="jax",
    probe=_probe,
    view=_view,
    address=_address,
    allocator=_allocator,
    current_stream=_current_stream,
    allocating_on=memory.on_stream,
    record=lambda array, stream, device: streams.wait(streams.own(device), stream, device),
    scratch=memory.scratch,
    finish=_finish,
    takes_out=False,
)


def library_for(kind: type, array: Any, argument: str) -> Library:
    if isinstance(array, jax.core.Tracer):
        raise TypeError(
            f"{argument}: expected a concrete JAX array, got a tracer: numbadnn runs eagerly and cannot be traced by "
            "jax.jit or jax.grad"
        )
    if not isinstance(array, jax.Array):
        raise TypeError(f"{argument}: expected a jax.Array, got {kind.__qualname__}")
    return LIBRARY
