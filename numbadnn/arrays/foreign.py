"""Objects of libraries we do not know, by ``__cuda_array_interface__`` (version 2 or 3) or ``__dlpack__``.

On the GPU the result is a ``numbadnn.arrays.DeviceArray``, which speaks both; on the CPU a NumPy array. What was
exported is held until the work that reads it is done: it may be a copy, and its owner knows nothing of our streams.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.arrays import Borrowed, Library, View, dlpack, element_strides, numpy_
from numbadnn.arrays.device import DeviceArray
from numbadnn.gpu import bindings, memory, streams
from numbadnn.problem import Spec, contiguous_strides


def _from_interface(array: Any) -> View:
    interface = array.__cuda_array_interface__
    lacking = {"shape", "typestr", "data"} - set(interface if isinstance(interface, dict) else ())
    if lacking:
        raise TypeError(
            f"expected shape, typestr and data in __cuda_array_interface__, it lacks {', '.join(sorted(lacking))}"
        )
    if interface.get("mask") is not None:
        raise TypeError("expected an array without a mask")
    dtype = np.dtype(interface["typestr"])
    name = "bfloat16" if getattr(array, "dtype", None) == "bfloat16" else dtype.name
    shape = tuple(interface["shape"])
    address, readonly = interface["data"]
    byte_strides = interface.get("strides")
    strides = element_strides(byte_strides, dtype.itemsize, shape) if byte_strides else contiguous_strides(shape)
    device = _device_of(address)
    stream = interface.get("stream")
    if stream is not None:
        streams.wait(memory.current_stream(device), int(stream), device)
    return View(LIBRARY, name, shape, strides, device, Borrowed(address, (array, interface), stream), bool(readonly))


def _device_of(address: int) -> int:
    d = bindings.driver()
    if not address:
        return 0
    attribute = d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(bindings.check(d.cuPointerGetAttribute(attribute, address)))


def _view(array: Any) -> View:
    if hasattr(array, "__cuda_array_interface__"):
        return _from_interface(array)
    kind, device = array.__dlpack_device__()
    if kind in (1, 3):
        return numpy_.describe(np.from_dlpack(array), LIBRARY)
    capsule = dlpack.exported(array, memory.current_stream(device) or 1)
    tensor = dlpack.read(capsule)
    address = Borrowed(tensor.address, (array, capsule))
    return View(LIBRARY, tensor.dtype, tensor.shape, tensor.strides, tensor.device, address, tensor.readonly)


def _probe(array: Any) -> tuple[Any, tuple[Any, ...]]:
    view = _view(array)
    how = (view.shape, view.strides, view.dtype, view.device, view.pointer & 15, view.readonly)
    return view.address, ("foreign", *how)


def _allocator(spec: Spec, device: int) -> Any:
    if device < 0:
        return numpy_.allocator(spec)
    return lambda: DeviceArray(spec, device, memory.current_stream(device))


def _address(array: Any) -> Any:
    return array.memory.address if isinstance(array, DeviceArray) else array


def _record(pairs: list[tuple[Any, Any]], stream: int, device: int) -> None:
    streams.wait(0, stream, device)
    for array, address in pairs:
        if (working := getattr(address, "stream", None)) is not None:
            streams.wait(int(working), stream, device)
        if not isinstance(array, DeviceArray):  # ours go back in the order of the stream that has just been told
            streams.hold((array, getattr(address, "owner", None)), stream, device)


LIBRARY = Library(
    name="foreign",
    probe=_probe,
    view=_view,
    address=_address,
    allocator=_allocator,
    current_stream=memory.current_stream,
    allocating_on=memory.on_stream,
    record=_record,
    scratch=memory.scratch,
    outside=True,
)
