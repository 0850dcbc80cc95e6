"""Whole-number arithmetic that the implicit-GEMM kernels share: shares of steps, and the taps that meet a phase."""

from __future__ import annotations

from numbadnn.kernels._cuda import device, i32, u32


@device
def divided(a, b):  # type: ignore[no-untyped-def]
    """(quotient, remainder) of numbers that are not negative."""
    quotient = i32(u32(a) // u32(b))
    return quotient, i32(a - quotient * b)


@device
def share(steps, split, splits):  # type: ignore[no-untyped-def]
    """(first, last + 1) of a split's steps."""
    each, more = divided(steps, splits)
    begin = i32(each * split + min(split, more))
    return begin, i32(begin + each + (i32(1) if split < more else i32(0)))


@device
def taps_of(phase, taps, base, slope, spread, hop):  # type: ignore[no-untyped-def]
    """(the first tap that meets a phase, how many do)."""
    first = i32(0)
    while first < hop and i32(u32(phase + base + first * slope) % u32(spread)) != 0:
        first = i32(first + 1)
    count = i32(0)
    if first < hop and first < taps:
        count = i32(u32(taps - 1 - first) // u32(hop)) + i32(1)
    return first, i32(count)
