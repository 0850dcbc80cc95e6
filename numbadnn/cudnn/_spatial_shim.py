"""The compiled host functions of cuDNN's spatial transformer: the context checked and one C call made, with the GIL released.

The *table* of 64-bit words that a plan owns holds what stays the same: see ``spatial_table``. Results are as in ``_shim``: 0,
WRONG_CONTEXT, or a status in the lower half.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from numba import njit

from numbadnn._hostcall import call_address, load_u64
from numbadnn.cudnn._shim import _check_context
from numbadnn.cudnn.lib import Library

_FUNCTION, _TRANSFORMER, _ONE, _ZERO, _HANDLE, _FIRST, _SECOND = 24, 32, 40, 48, 56, 64, 72


def spatial_table(
    library: Library,
    current: int,
    context: int,
    handle: int,
    name: str,
    transformer: int,
    scalars: int,
    tensors: Sequence[int],
) -> ctypes.Array[ctypes.c_uint64]:
    """``scalars`` is the address of 1 (0 is 8 bytes further on), ``tensors`` the descriptors of the image and of the output."""
    words = [current, context, 0, library.address(name), transformer, scalars, scalars + 8, handle, *tensors, 0, 0]
    return (ctypes.c_uint64 * len(words))(*words)


@njit("int64(int64, int64, int64)", nogil=True, cache=True)
def grid(table, a, b):
    """cudnnSpatialTfGridGeneratorForward (theta, grid) and Backward (dgrid, dtheta)."""
    code = _check_context(table)
    if code != 0:
        return code
    function, handle = load_u64(table + _FUNCTION), load_u64(table + _HANDLE)
    status = call_address(function, handle, load_u64(table + _TRANSFORMER), a, b)
    return (8 << 32) + status if status != 0 else 0


@njit("int64(int64, int64, int64, int64)", nogil=True, cache=True)
def sample(table, img, points, y):
    """cudnnSpatialTfSamplerForward."""
    code = _check_context(table)
    if code != 0:
        return code
    status = call_address(
        load_u64(table + _FUNCTION),
        load_u64(table + _HANDLE),
        load_u64(table + _TRANSFORMER),
        load_u64(table + _ONE),
        load_u64(table + _FIRST),
        img,
        points,
        load_u64(table + _ZERO),
        load_u64(table + _SECOND),
        y,
    )
    return (8 << 32) + status if status != 0 else 0


@njit("int64(int64, int64, int64, int64, int64, int64)", nogil=True, cache=True)
def sample_backward(table, img, points, dy, dimg, dpoints):
    """cudnnSpatialTfSamplerBackward."""
    code = _check_context(table)
    if code != 0:
        return code
    one, zero, first = load_u64(table + _ONE), load_u64(table + _ZERO), load_u64(table + _FIRST)
    status = call_address(
        load_u64(table + _FUNCTION),
        load_u64(table + _HANDLE),
        load_u64(table + _TRANSFORMER),
        one,
        first,
        img,
        zero,
        first,
        dimg,
        one,
        load_u64(table + _SECOND),
        dy,
        points,
        zero,
        dpoints,
    )
    return (8 << 32) + status if status != 0 else 0
