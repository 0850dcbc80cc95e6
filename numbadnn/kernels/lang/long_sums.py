"""Sums of many terms without the errors of many: a running sum in two numbers, of which the second holds what the first lost.

An addition's rounding error is itself a number of the type, which six operations find (Knuth 1969). It is added to the second
number, and the two are made one sum and its remainder again: as in double-word arithmetic (Dekker 1971), n terms are off by
n * u squared of their magnitudes, which does not grow for any n that fits a memory. Without that step the second number is a
running sum with errors of its own, (n * u) squared in all: an average of 512 x 512 numbers 0.1 was 4.2e-6 off. Sums of up to
``LEAF`` terms are added as they come, which is faster where registers or arithmetic are short.
"""

from __future__ import annotations

from typing import Any

from numbadnn.kernels.build.support import LEAF as LEAF
from numbadnn.kernels.lang.cuda import ACCUMULATOR, device


def compensated(acc: str) -> tuple[Any, Any]:
    """``add(total, lost, term) -> (total, lost)``, and ``close(total, lost)``, the sum; both start at 0.

    Once the sum is no finite number, ``total`` goes on as the plain running sum and is the result.
    """
    A = ACCUMULATOR[acc]

    @device
    def add(total, lost, term):
        fresh = A(total + term)
        change = A(fresh - total)
        low = A(lost + A(A(total - A(fresh - change)) + A(term - change)))
        whole = A(fresh + low)
        if A(whole - whole) == A(0):
            return whole, A(low - A(whole - fresh))
        return fresh, low

    @device
    def close(total, lost):
        return A(total + lost) if A(lost - lost) == A(0) else total

    return add, close
