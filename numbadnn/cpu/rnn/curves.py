"""sigmoid and tanh for float32 and float64, so that LLVM vectorises a loop of them. Loading this module imports Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from numbadnn.cpu.lang.exp import exp
from numbadnn.cpu.lang.vector import multiply_add as fma


def _sigmoid_of(real: Any) -> Any:
    one = real(1)

    @njit(nogil=True, inline="always")
    def sigmoid(a):
        e = exp(-abs(a))
        s = one / (one + e)
        return s if a >= 0 else e * s

    return sigmoid


def _tanh_of(real: Any, near: float) -> Any:
    """Below ``near`` the first terms of the series, which keep a small result's own digits."""
    one, less, near = real(1), real(-2), real(near)
    c3, c5, c7, c9 = (real(c) for c in (-1 / 3, 2 / 15, -17 / 315, 62 / 2835))

    @njit(nogil=True, inline="always")
    def tanh(a):
        b = abs(a)
        e = exp(less * b)
        t = (one - e) / (one + e)
        b2 = b * b
        small = fma(b * b2, fma(b2, fma(b2, fma(b2, c9, c7), c5), c3), b)
        t = small if b < near else t
        return -t if a < 0 else (t if a > 0 else a)

    return tanh


# the first term left out is 1e-2 b^10: half a unit in the last place of float32 at 0.3, of float64 at 0.035
_SIGMOID = {kind: _sigmoid_of(real) for kind, real in ((types.float32, np.float32), (types.float64, np.float64))}
_TANH = {types.float32: _tanh_of(np.float32, 0.3), types.float64: _tanh_of(np.float64, 0.035)}


def sigmoid(a):
    """1 / (1 + exp(-a)) within 8 units of 1; for kernels alone."""
    raise NotImplementedError("expected a call from compiled code")


def tanh(a):
    """Within 8 units of 1, near 0 of the result; for kernels alone."""
    raise NotImplementedError("expected a call from compiled code")


@overload(sigmoid)
def _sigmoid(a):
    return _of(_SIGMOID, a)


@overload(tanh)
def _tanh(a):
    return _of(_TANH, a)


def _of(functions, a):
    function = functions.get(a)
    return (lambda a: function(a)) if function else None
