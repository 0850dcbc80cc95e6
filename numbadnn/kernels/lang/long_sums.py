"""Sums of many terms without the errors of many: beside a running sum goes what its additions rounded off.

An addition's rounding error is itself a number of the type, which six operations find (Knuth 1969). Added up and put back at
the end, the sum of n terms is off by its own last rounding and by n * u squared of the terms' magnitudes (Ogita, Rump and
Oishi 2005): it does not grow for any n that fits a memory. Sums of up to ``LEAF`` terms are added as they come, which is
faster where registers or arithmetic are short.
"""

from __future__ import annotations

from typing import Any

from numbadnn.kernels.build.support import LEAF as LEAF
from numbadnn.kernels.lang.cuda import ACCUMULATOR, device


def compensated(acc: str) -> tuple[Any, Any]:
    """``add(total, lost, term) -> (total, lost)``, and ``close(total, lost)``, the sum; both start at 0.

    ``total`` is the plain running sum: where it is no finite number, it is the result.
    """
    A = ACCUMULATOR[acc]

    @device
    def add(total, lost, term):
        fresh = A(total + term)
        change = A(fresh - total)
        return fresh, A(lost + A(A(total - A(fresh - change)) + A(term - change)))

    @device
    def close(total, lost):
        return A(total + lost) if A(lost - lost) == A(0) else total

    return add, close
