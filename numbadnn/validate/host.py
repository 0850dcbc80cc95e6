"""The caller's arrays on the host, whichever library and device they are of: what the reference reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.arrays import view_of
from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.problem import Spec


def is_array(value: Any) -> bool:
    """Whether a call would take this as an array of data: no number of NumPy's, no list."""
    known = hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")
    return known and not isinstance(value, np.generic)


def on_host(array: Any) -> np.ndarray:
    """A NumPy array with the same values and strides: of the same memory on the CPU, a copy of what a GPU holds.

    >>> on_host(np.ones((2, 3), "float32")[:, ::2]).strides
    (12, 8)
    """
    view = view_of(array, "array")
    if view.device < 0:
        return view.address
    from numbadnn.gpu import bindings
    from numbadnn.gpu.context import ensure_context

    dtype, (low, high) = numpy_dtype(view.dtype), Spec(view.dtype, view.shape, view.strides).span
    memory = np.empty(high - low + 1, dtype)
    if 0 not in view.shape:
        with ensure_context(view.device):
            driver = bindings.driver()
            bindings.check(driver.cuCtxSynchronize())
            address = int(view.address) + low * dtype.itemsize
            bindings.check(driver.cuMemcpyDtoH(memory.ctypes.data, address, memory.nbytes))
    strides = tuple(s * dtype.itemsize for s in view.strides)
    return np.ndarray(view.shape, dtype, memory, -low * dtype.itemsize, strides)
