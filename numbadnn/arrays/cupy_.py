"""CuPy arrays; outputs and workspace come from CuPy's own (stream-ordered) memory pool."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import cupy

from numbadnn.arrays import Library, View, element_strides
from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.gpu import streams
from numbadnn.problem import Spec


def _probe(array: Any) -> tuple[int, tuple[Any, ...]]:
    data = array.data
    address = data.ptr
    return address, ("cupy", array.shape, array.strides, array.dtype, data.device_id, address & 15)


def _view(array: Any) -> View:
    strides = element_strides(array.strides, array.dtype.itemsize, array.shape)
    return View(LIBRARY, array.dtype.name, tuple(array.shape), strides, array.data.device_id, array.data.ptr)


@functools.cache
def _is_alone() -> bool:
    """Whether there is one device only. CuPy allocates on the current one, which else must be made the arrays' for it."""
    return bool(cupy.cuda.runtime.getDeviceCount() == 1)


def _allocator(spec: Spec, device: int) -> Callable[[], Any]:
    dtype, shape, ndarray = numpy_dtype(spec.dtype), spec.shape, cupy.ndarray
    nbytes = spec.size * spec.itemsize
    byte_strides = tuple(s * spec.itemsize for s in spec.strides)

    def strided() -> Any:
        return ndarray(shape, dtype, cupy.cuda.alloc(nbytes), byte_strides)

    make = functools.partial(ndarray, shape, dtype) if spec.is_contiguous else strided
    return make if _is_alone() else functools.partial(_make_on, device, make)


def _make_on(device: int, make: Callable[[], Any]) -> Any:
    with cupy.cuda.Device(device):
        return make()


def _scratch(nbytes: int, device: int, stream: int) -> tuple[Any, int]:
    alloc = cupy.cuda.alloc
    buffer = alloc(nbytes) if _is_alone() else _make_on(device, functools.partial(alloc, nbytes))
    return buffer, buffer.ptr


def _allocating_on(stream: int, device: int) -> AbstractContextManager[Any]:
    return cupy.cuda.Stream.from_external(streams.Raw(stream))


LIBRARY = Library(
    name="cupy",
    probe=_probe,
    view=_view,
    address=lambda array: array.data.ptr,
    allocator=_allocator,
    current_stream=lambda device: cupy.cuda.get_current_stream(device).ptr,
    allocating_on=_allocating_on,
    record=lambda pairs, stream, device: streams.wait(cupy.cuda.get_current_stream(device).ptr, stream, device),
    scratch=_scratch,
)


def library_for(kind: type, array: Any, argument: str) -> Library:
    if not issubclass(kind, cupy.ndarray):
        raise TypeError(f"{argument}: expected a cupy.ndarray, got {kind.__qualname__}")
    return LIBRARY
