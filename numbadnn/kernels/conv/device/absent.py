"""Recompute sums of the images' gradient that are NaN because a filter's infinity met a zero that stands for no term.

Where no output lies, kernels multiply filters by zeros. That is quick, and right unless a filter is infinite or NaN: zero times
infinity is NaN. A sum that is NaN is computed anew, term by term. That is slow and rare; otherwise it costs a comparison a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.cuda import ACCUMULATOR, device, i32


def any_nan(count: int) -> Callable[..., Any]:
    """``wrong(sums, first) -> whether one of ``count`` is NaN``."""

    # one long loop is not unrolled for every architecture, and would put the sums in memory
    together = math.gcd(count, 16)

    @device
    def wrong(sums, first):
        found = False
        for i in range(count // together):
            for e in range(together):
                value = sums[first + i * together + e]
                found = found | (value != value)
        return found

    return wrong


def put_in(acc: str, count: int) -> Callable[..., None]:
    """``put(sums, first, i, value)``: sums[first + i] = value if it is NaN; ``i`` is not known ahead, and sums are registers."""
    A = ACCUMULATOR[acc]

    @device
    def put(sums, first, i, value):
        for e in range(count):
            old = sums[first + e]
            sums[first + e] = A(value) if i == i32(e) and old != old else old

    return put
