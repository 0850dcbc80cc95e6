"""exp for float32 and float64 in plain arithmetic, so that LLVM vectorises a loop of it. Loading this module imports Numba."""

from __future__ import annotations

import math

import numpy as np
from numba import njit, types
from numba.extending import overload

from numbadnn.cpu.lang.vector import multiply_add as fma

_INVERSE_FACTORIALS = tuple(1 / math.factorial(i) for i in range(14))
C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13 = _INVERSE_FACTORIALS[2:]
#: adding it rounds to an integer, which then stands in the low bits: 1.5 * 2**52, 1.5 * 2**23
_ROUND, _ROUND_32 = 6755399441055744.0, np.float32(12582912.0)
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LOG2E_32, _LN2_HIGH_32, _LN2_LOW_32 = np.float32(_LOG2E), np.float32(0.693359375), np.float32(-2.12194440e-4)
_LEAST_32 = np.float32(-110.0)
_D0, _D2, _D3, _D4, _D5, _D6, _D7 = (np.float32(c) for c in (1.0, *_INVERSE_FACTORIALS[2:8]))


@njit(nogil=True, inline="always")
def _exp_64(x):
    x = -760.0 if x < -760.0 else x
    t = fma(x, _LOG2E, _ROUND)
    n = t - _ROUND
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    r2 = r * r
    r4 = r2 * r2
    low = fma(r2, fma(r, C3, C2), 1.0 + r)
    middle = fma(r2, fma(r, C7, C6), fma(r, C5, C4))
    high = fma(r4, fma(r, C13, C12), fma(r2, fma(r, C11, C10), fma(r, C9, C8)))
    value = fma(r4, fma(r4, high, middle), low)
    bits = np.float64(t).view(np.int64) - np.int64(0x4338000000000000)  # n as an integer
    half = bits >> 1  # two factors: the result may be subnormal
    return value * _power_64(half) * _power_64(bits - half)


@njit(nogil=True, inline="always")
def _power_64(n):
    return np.int64((n + 1023) << 52).view(np.float64)


@njit(nogil=True, inline="always")
def _exp_32(x):
    x = _LEAST_32 if x < _LEAST_32 else x
    t = fma(x, _LOG2E_32, _ROUND_32)
    n = t - _ROUND_32
    r = fma(n, -_LN2_LOW_32, fma(n, -_LN2_HIGH_32, x))
    r2 = r * r
    value = fma(r2, fma(r2, fma(r2, fma(r, _D7, _D6), fma(r, _D5, _D4)), fma(r, _D3, _D2)), _D0 + r)
    bits = np.int32(np.float32(t).view(np.int32) - np.int32(0x4B400000))
    half = np.int32(bits >> np.int32(1))
    return value * _power_32(half) * _power_32(np.int32(bits - half))


@njit(nogil=True, inline="always")
def _power_32(n):
    return np.int32(np.int32(n + np.int32(127)) << np.int32(23)).view(np.float32)


def exp(x):
    """exp(x) for x <= 0 or NaN, within 1.5 units in the last place of float64 (float32: 2 units); for kernels alone."""
    raise NotImplementedError("expected a call from compiled code")


@overload(exp)
def _exp_of(x):
    def of_32(x):
        return _exp_32(x)

    def of_64(x):
        return _exp_64(x)

    return of_32 if x == types.float32 else of_64
