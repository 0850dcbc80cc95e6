"""Runs of stored elements to and from float64, whatever their dtype: one build of a kernel serves all four, and mixtures.

A dtype is a number at run time (``CODE``), so that a kernel is compiled once and not for each type; the loop over a run is
chosen outside the loop, and vectorised for each type. Loading this module imports Numba.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from numbadnn.cpu._vector import BLOCK, itemsize, load1, store1, widen_block

#: dtype name -> its number in a kernel
CODE = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
_F32, _F64, _F16, _BF16 = (np.empty(1, t) for t in (np.float32, np.float64, np.uint16, np.int16))


@njit(nogil=True, error_model="numpy")
def offset_of(index, shape, strides):  # type: ignore[no-untyped-def]
    """Element offset of a flat index into the axes ``shape``."""
    offset = 0
    for d in range(len(shape) - 1, -1, -1):
        offset += index % shape[d] * strides[d]
        index //= shape[d]
    return offset


@njit(nogil=True, error_model="numpy")
def fetch_run(buffer, n, base, like):  # type: ignore[no-untyped-def]
    """buffer[:n] = the n elements from address ``base`` on; ``buffer`` of float64, or of what sums of them are kept in."""
    whole = n // BLOCK * BLOCK if itemsize(like) < itemsize(buffer) else 0
    for i in range(0, whole, BLOCK):
        widen_block(buffer, i, base, like)
    for i in range(whole, n):
        buffer[i] = load1(base, i, like)


@njit(nogil=True, error_model="numpy")
def _fetch_as(buffer, n, base, step, like):  # type: ignore[no-untyped-def]
    if step == 1:
        fetch_run(buffer, n, base, like)
    else:
        for i in range(n):
            buffer[i] = load1(base, i * step, like)


@njit(nogil=True, error_model="numpy")
def _flush_as(buffer, n, base, step, like):  # type: ignore[no-untyped-def]
    if step == 1:
        for i in range(n):
            store1(base, i, buffer[i], like)
    else:
        for i in range(n):
            store1(base, i * step, buffer[i], like)


@njit(nogil=True, error_model="numpy")
def fetch(buffer, n, base, offset, step, code):  # type: ignore[no-untyped-def]
    """buffer[:n] = the n elements, ``step`` apart, from element ``offset`` of ``base`` on."""
    if code == 0:
        _fetch_as(buffer, n, base + offset * 4, step, _F32)
    elif code == 1:
        _fetch_as(buffer, n, base + offset * 8, step, _F64)
    elif code == 2:
        _fetch_as(buffer, n, base + offset * 2, step, _F16)
    else:
        _fetch_as(buffer, n, base + offset * 2, step, _BF16)


@njit(nogil=True, error_model="numpy")
def flush(buffer, n, base, offset, step, code):  # type: ignore[no-untyped-def]
    """The reverse of ``fetch``: n elements are rounded and stored."""
    if code == 0:
        _flush_as(buffer, n, base + offset * 4, step, _F32)
    elif code == 1:
        _flush_as(buffer, n, base + offset * 8, step, _F64)
    elif code == 2:
        _flush_as(buffer, n, base + offset * 2, step, _F16)
    else:
        _flush_as(buffer, n, base + offset * 2, step, _BF16)
