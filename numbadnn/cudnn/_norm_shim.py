"""The compiled host functions of cuDNN's batch normalization: the context checked and one C call made, with the GIL released.

The *table* of 64-bit words that a plan owns holds what stays the same: see ``norm_table``. Results are as in ``_shim``: 0,
WRONG_CONTEXT, or a status in the lower half.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from numba import float64, int32, njit

from numbadnn._hostcall import call_address, load_u64
from numbadnn.cudnn._shim import _check_context
from numbadnn.cudnn.lib import Library

_FUNCTION, _MODE, _ONE, _ZERO, _HANDLE, _DATA, _PARAMETERS = 24, 32, 40, 48, 56, 64, 72


def norm_table(
    library: Library,
    current: int,
    context: int,
    handle: int,
    name: str,
    mode: int,
    scalars: int,
    tensors: Sequence[int],
) -> ctypes.Array[ctypes.c_uint64]:
    """``scalars`` is the address of 1 (0 is 8 bytes further on), ``tensors`` the descriptors of data and parameters."""
    words = [current, context, 0, library.address(name), mode, scalars, scalars + 8, handle, *tensors]
    return (ctypes.c_uint64 * len(words))(*words)


@njit("int64(int64, float64, float64, int64, int64, int64, int64, int64, int64, int64, int64)", nogil=True, cache=True)
def train(table, factor, epsilon, x, gamma, beta, y, mean, invstd, new_mean, new_var):
    """cudnnBatchNormalizationForwardTraining; new_mean and new_var hold the old ones, or are 0."""
    code = _check_context(table)
    if code != 0:
        return code
    data, parameters = load_u64(table + _DATA), load_u64(table + _PARAMETERS)
    status = call_address(
        load_u64(table + _FUNCTION),
        load_u64(table + _HANDLE),
        int32(load_u64(table + _MODE)),
        load_u64(table + _ONE),
        load_u64(table + _ZERO),
        data,
        x,
        data,
        y,
        parameters,
        gamma,
        beta,
        float64(factor),
        new_mean,
        new_var,
        float64(epsilon),
        mean,
        invstd,
    )
    return (8 << 32) + status if status != 0 else 0


@njit("int64(int64, float64, int64, int64, int64, int64, int64, int64)", nogil=True, cache=True)
def infer(table, epsilon, x, gamma, beta, mean, var, y):
    """cudnnBatchNormalizationForwardInference."""
    code = _check_context(table)
    if code != 0:
        return code
    data = load_u64(table + _DATA)
    status = call_address(
        load_u64(table + _FUNCTION),
        load_u64(table + _HANDLE),
        int32(load_u64(table + _MODE)),
        load_u64(table + _ONE),
        load_u64(table + _ZERO),
        data,
        x,
        data,
        y,
        load_u64(table + _PARAMETERS),
        gamma,
        beta,
        mean,
        var,
        float64(epsilon),
    )
    return (8 << 32) + status if status != 0 else 0


@njit("int64(int64, float64, int64, int64, int64, int64, int64, int64, int64, int64)", nogil=True, cache=True)
def backward(table, epsilon, x, dy, gamma, mean, invstd, dx, dgamma, dbeta):
    """cudnnBatchNormalizationBackward."""
    code = _check_context(table)
    if code != 0:
        return code
    data, one, zero = load_u64(table + _DATA), load_u64(table + _ONE), load_u64(table + _ZERO)
    status = call_address(
        load_u64(table + _FUNCTION),
        load_u64(table + _HANDLE),
        int32(load_u64(table + _MODE)),
        one,
        zero,
        one,
        zero,
        data,
        x,
        data,
        dy,
        data,
        dx,
        load_u64(table + _PARAMETERS),
        gamma,
        dgamma,
        dbeta,
        float64(epsilon),
        mean,
        invstd,
    )
    return (8 << 32) + status if status != 0 else 0
