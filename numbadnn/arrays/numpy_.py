"""NumPy arrays: they run on the CPU; bfloat16 is ``ml_dtypes.bfloat16``."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable
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


def allocator(spec: Spec, device: int = -1) -> Callable[[], np.ndarray]:
    """What makes new arrays with the spec's strides, which must be those of some axis order of a packed array."""
    dtype = numpy_dtype(spec.dtype)
    order = sorted(range(len(spec.shape)), key=lambda axis: (-spec.strides[axis], axis))
    shape, back = tuple(spec.shape[axis] for axis in order), tuple(np.argsort(order).tolist())
    packed = functools.partial(np.empty if spec.size * dtype.itemsize < LARGE else _aligned, shape, dtype)
    return packed if order == list(range(len(order))) else lambda: packed().transpose(back)


def strided_empty(spec: Spec) -> np.ndarray:
    """A new array with the spec's strides."""
    return allocator(spec)()


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """A new array that begins with a line of memory, as what is written past the caches has to."""
    nbytes = math.prod(shape) * dtype.itemsize
    room = np.empty(nbytes + 64, np.uint8)
    start = -address(room) % 64
    return room[start : start + nbytes].view(dtype).reshape(shape)


def _told(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _reader() -> Callable[[np.ndarray], int]:
    """``_told`` at a seventh of its time, 0.2 us: NumPy's arrays are structures that begin with where their elements lie.

    CPython's ``id`` is where such a structure lies. Where that does not hold, arrays are asked.
    """
    word, head = ctypes.c_size_t.from_address, object.__basicsize__

    def read(array: np.ndarray) -> int:
        return int(word(id(array) + head).value)

    samples = np.arange(6.0), np.arange(6.0).reshape(2, 3)[::-1, 1:], np.array(1.0), np.empty((0, 3))
    known = sys.implementation.name == "cpython" and all(read(array) == _told(array) for array in samples)
    return read if known else _told


#: ``address(array)``: where element (0, ..., 0) of a NumPy array lies
address = _reader()


def describe(array: np.ndarray, library: Library) -> View:
    strides = element_strides(array.strides, array.dtype.itemsize, array.shape)
    return View(library, array.dtype.name, array.shape, strides, -1, array, not array.flags.writeable)


def _probe(array: np.ndarray) -> tuple[np.ndarray, tuple[Any, ...]]:
    return array, (np.ndarray, array.shape, array.strides, array.dtype, array.flags.writeable, address(array) & 15)


def _view(array: np.ndarray) -> View:
    if not array.dtype.isnative:
        raise TypeError(f"expected native byte order, got dtype {array.dtype.str}")
    return describe(np.asarray(array), LIBRARY)


LIBRARY = Library(
    name="numpy",
    probe=_probe,
    view=_view,
    address=lambda array: array,
    allocator=allocator,
    current_stream=lambda device: 0,
    allocating_on=lambda stream, device: nullcontext(),
    record=lambda pairs, stream, device: None,
    scratch=lambda nbytes, device, stream: (None, 0),
)


def library_for(kind: type, array: Any, argument: str) -> Library:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{argument}: expected an array, got the NumPy scalar {array!r}")
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())  # to ask NumPy for it would import it, in 10 ms
    if isinstance(array, (np.matrix, masked)):
        raise TypeError(f"{argument}: expected a plain numpy.ndarray, got {kind.__qualname__}")
    return LIBRARY
