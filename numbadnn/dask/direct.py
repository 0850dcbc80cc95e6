"""Parts of a block that go to a GPU from where they lie: those in pinned memory, row by row, without a copy on the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.dask.arrays import Slices

#: bytes that rows have on average where copying them one by one costs less than putting the block together on the host
LEAST_ROW = 1 << 16


def is_pinned(array: np.ndarray) -> bool:
    """Whether an array lies in memory that the driver has pinned, for whomever it was.

    That is ``numba.cuda.pinned_array``, PyTorch's ``pin_memory``, CuPy's, what ``cuMemHostRegister`` was told, and a result that
    a lane has lent.
    """
    from numbadnn.gpu.bindings import driver

    d = driver()
    low, high = np.lib.array_utils.byte_bounds(array)
    kind = d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    found = [d.cuPointerGetAttribute(kind, address) for address in (low, high - 1)]
    return all(status == 0 and int(value) == int(d.CUmemorytype.CU_MEMORYTYPE_HOST) for status, value in found)


def rows(part: np.ndarray, shape: tuple[int, ...], put: Slices) -> tuple[int, list[tuple[int, int]]]:
    """(bytes of a row, [(its first byte in the part, in the block)]) of a part that belongs at ``put`` of a block of ``shape``.

    The block is in C order; a row is what lies together in both.

    >>> rows(np.zeros((2, 3, 4), np.int8), (2, 5, 4), (slice(0, 2), slice(1, 4), slice(0, 4)))
    (12, [(0, 4), (12, 24)])
    """
    length, axes = _row(part, shape)
    steps = _steps(shape, part.itemsize)
    found = np.array([[0, sum(p.start * step for p, step in zip(put, steps, strict=True))]])
    for axis in axes:
        apart = np.array([part.strides[axis], steps[axis]])
        found = (np.arange(part.shape[axis])[:, None, None] * apart + found).reshape(-1, 2)
    return length, [(int(a), int(b)) for a, b in found]


def _row(part: np.ndarray, shape: tuple[int, ...]) -> tuple[int, list[int]]:
    """Bytes of a row, and the axes that rows stand along, the innermost first."""
    axes: list[int] = []
    length, steps = part.itemsize, _steps(shape, part.itemsize)
    for axis in reversed(range(part.ndim)):
        if part.shape[axis] == 1:
            continue
        if not axes and part.strides[axis] == steps[axis] == length:
            length *= part.shape[axis]
        else:
            axes.append(axis)
    return length, axes


def _steps(shape: tuple[int, ...], itemsize: int) -> list[int]:
    """Bytes from an element to the next of each axis, in C order."""
    return [math.prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape))]


def pinned(shape: tuple[int, ...], dtype: Any, parts: list[Any]) -> list[bool]:
    """Which parts are pinned, where a block goes to a GPU in rows of them: one of them is, and rows are long. Else nothing.

    Parts that are not are copied to pinned memory first, each by itself.
    """
    if any(not isinstance(p, np.ndarray) or p.dtype != dtype or not p.size for p in parts):
        return []
    count = sum(p.nbytes // _row(p, shape)[0] for p in parts)
    if sum(p.nbytes for p in parts) < count * LEAST_ROW:
        return []
    found = [is_pinned(p) for p in parts]
    return found if any(found) else []
