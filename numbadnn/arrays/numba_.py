"""Numba device arrays. Their outputs come from our stream-ordered pool: Numba's own allocation synchronises."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from numbadnn.arrays import Library, View, element_strides
from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.gpu import memory, streams
from numbadnn.host.cuda_names import DeviceNDArray, MemoryPointer, devices
from numbadnn.problem import Spec


def _address(array: Any) -> int:
    return array.gpu_data.device_pointer_value or 0


def _address_of_ours(array: Any) -> int:
    """Of one that ``_allocator`` made: Numba's own property takes three times as long."""
    owner = array.gpu_data._owner
    return owner.address if owner else 0


def _probe(array: Any) -> tuple[int, tuple[Any, ...]]:
    data = array.gpu_data
    address = data.device_pointer_value or 0
    return address, ("numba", array.shape, array.strides, array.dtype, data.context.device.id, address & 15)


def _view(array: Any) -> View:
    strides = element_strides(array.strides, array.dtype.itemsize, array.shape)
    device = array.gpu_data.context.device.id
    return View(LIBRARY, array.dtype.name, tuple(array.shape), strides, device, _address(array))


@functools.cache
def _device_pointer_type() -> Any:
    from cuda.bindings import driver

    return driver.CUdeviceptr


def _allocator(spec: Spec, device: int) -> Callable[[], Any]:
    """Copies of one template: building a DeviceNDArray from its arguments costs more than the kernel's launch."""
    nbytes, dtype = spec.size * spec.itemsize, numpy_dtype(spec.dtype)
    byte_strides = tuple(s * dtype.itemsize for s in spec.strides)
    with cuda.gpus[device]:  # get_context(device) would leave it current
        context = devices.get_context()
    pointer = _device_pointer_type()
    if nbytes == 0:

        def empty() -> Any:
            with cuda.gpus[device]:
                return cuda.device_array(spec.shape, dtype)

        return empty
    placeholder = MemoryPointer(context=context, pointer=pointer(0), size=nbytes)
    template = DeviceNDArray(spec.shape, byte_strides, dtype, gpu_data=placeholder).__dict__

    current_stream, own, new = memory.current_stream, memory.maker(nbytes, device), object.__new__

    def make() -> Any:
        owner = own(current_stream(device))
        array = new(DeviceNDArray)
        array.__dict__.update(template)
        array.gpu_data = MemoryPointer(context, pointer(owner.address), nbytes, owner)
        return array

    return make


LIBRARY = Library(
    name="numba",
    probe=_probe,
    view=_view,
    address=_address,
    address_on_gpu=_address_of_ours,
    allocator=_allocator,
    current_stream=memory.current_stream,
    allocating_on=memory.on_stream,
    record=lambda pairs, stream, device: streams.wait(0, stream, device),
    scratch=memory.scratch,
)


def library_for(kind: type, array: Any, argument: str) -> Library:
    if not issubclass(kind, DeviceNDArray) or isinstance(array, np.ndarray):
        raise TypeError(f"{argument}: expected a Numba device array (cuda.to_device), got {kind.__qualname__}")
    return LIBRARY
