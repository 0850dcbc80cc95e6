"""NumPy arrays: they run on the CPU; bfloat16 is ``ml_dtypes.bfloat16``."""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext
from typing import Any

import numpy as np

from numbadnn.arrays import Library, View, element_strides
from numbadnn.problem import Spec

#: bytes from which on results begin with a line of memory
LARGE = 1 << 20


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of that name, ml_dtypes' for bfloat16."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def strided_empty(spec: Spec) -> np.ndarray:
    """A new array with the spec's strides, which must be those of some axis order of a packed array."""
    dtype = numpy_dtype(spec.dtype)
    order = sorted(range(len(spec.shape)), key=lambda axis: (-spec.strides[axis], axis))
    shape = [spec.shape[axis] for axis in order]
    packed = np.empty(shape, dtype) if spec.size * dtype.itemsize < LARGE else _aligned(shape, dtype)
    return packed.transpose(np.argsort(order))


def _aligned(shape: list[int], dtype: np.dtype[Any]) -> np.ndarray:
    """A new array that begins with a line of memory, as what is written past the caches has to."""
    nbytes = math.prod(shape) * dtype.itemsize
    room = np.empty(nbytes + 64, np.uint8)
    start = -room.__array_interface__["data"][0] % 64
    return room[start : start + nbytes].view(dtype).reshape(shape)


def describe(array: np.ndarray, library: Library) -> View:
    strides = element_strides(array.strides, array.dtype.itemsize, array.shape)
    return View(library, array.dtype.name, array.shape, strides, -1, array, not array.flags.writeable)


def _probe(array: np.ndarray) -> tuple[np.ndarray, tuple[Any, ...]]:
    aligned = array.__array_interface__["data"][0] & 15
    return array, (np.ndarray, array.shape, array.strides, array.dtype, array.flags.writeable, aligned)


def _view(array: np.ndarray) -> View:
    if not array.dtype.isnative:
        raise TypeError(f"expected native byte order, got dtype {array.dtype.str}")
    return describe(np.asarray(array), LIBRARY)


LIBRARY = Library(
    name="numpy",
    probe=_probe,
    view=_view,
    address=lambda array: array,
    allocator=lambda spec, device: functools.partial(strided_empty, spec),
    current_stream=lambda device: 0,
    allocating_on=lambda stream, device: nullcontext(),
    record=lambda array, stream, device: None,
    scratch=lambda nbytes, device, stream: (None, 0),
)


def library_for(kind: type, array: Any, argument: str) -> Library:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{argument}: expected an array, got the NumPy scalar {array!r}")
    if isinstance(array, (np.ma.MaskedArray, np.matrix)):
        raise TypeError(f"{argument}: expected a plain numpy.ndarray, got {kind.__qualname__}")
    return LIBRARY
