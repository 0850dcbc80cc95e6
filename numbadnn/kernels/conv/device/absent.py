"""Recompute sums of the images' gradient that are NaN because a filter's infinity met a zero that stands for no term.

Where no output lies, kernels multiply filters by zeros. That is quick, and right unless a filter is infinite or NaN: zero times
infinity is NaN. A sum that is NaN is computed anew, term by term. That is slow and rare; otherwise it costs a comparison a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.cuda import ACCUMULATOR, device, f32, i32


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


def perhaps_nan(count: int) -> Callable[..., Any]:
    """``suspicious(sums, first)``: whether one of ``count`` float32 (a multiple of 8) may be NaN; seldom so where none is.

    A product is NaN where a factor is, so that one instruction looks at two sums. Of infinity and 0 it is NaN too.
    """
    together = math.gcd(count, 16)

    @device
    def suspicious(sums, first):
        a = b = c = d = f32(0)
        for i in range(count // together):
            for e in range(0, together, 8):
                at = first + i * together + e
                a = f32(a + sums[at] * sums[at + 1])
                b = f32(b + sums[at + 2] * sums[at + 3])
                c = f32(c + sums[at + 4] * sums[at + 5])
                d = f32(d + sums[at + 6] * sums[at + 7])
        found = f32(f32(a + b) + f32(c + d))
        return found != found

    return suspicious


def taken(acc: str, count: int) -> Callable[..., Any]:
    """``take(sums, first, i)``: sums[first + i], where ``i`` is not known ahead, and sums are registers."""
    A = ACCUMULATOR[acc]

    @device
    def take(sums, first, i):
        value = A(sums[first])
        for e in range(1, count):
            value = sums[first + e] if i == i32(e) else value
        return value

    return take


def put_in(acc: str, count: int) -> Callable[..., None]:
    """``put(sums, first, i, value)``: sums[first + i] = value if it is NaN; ``i`` is not known ahead, and sums are registers."""
    A = ACCUMULATOR[acc]

    @device
    def put(sums, first, i, value):
        for e in range(count):
            old = sums[first + e]
            sums[first + e] = A(value) if i == i32(e) and old != old else old

    return put
