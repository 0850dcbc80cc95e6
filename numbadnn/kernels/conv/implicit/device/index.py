"""Index arithmetic of the implicit-GEMM kernels: which steps a block takes, where it is in its walk, which taps a phase has.

What depends on the number of spatial axes is made for it when a kernel is built. Tuples have the axes in the order of memory,
so that [-1] is along rows and [-2] across them; with three axes [0] is the one before them (``back``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.cuda import device, i32, u32


@device
def divided(a, b):
    """(quotient, remainder) of numbers that are not negative."""
    quotient = i32(u32(a) // u32(b))
    return quotient, i32(a - quotient * b)


@device
def share(steps, split, splits):
    """(first, last + 1) of a split's steps."""
    each, more = divided(steps, splits)
    begin = i32(each * split + min(split, more))
    return begin, i32(begin + each + (i32(1) if split < more else i32(0)))


@device
def taps_of(phase, taps, base, slope, spread, hop):
    """(the first tap that meets a phase, how many do)."""
    first = i32(0)
    while first < hop and i32(u32(phase + base + first * slope) % u32(spread)) != 0:
        first = i32(first + 1)
    count = i32(0)
    if first < hop and first < taps:
        count = i32(u32(taps - 1 - first) // u32(hop)) + i32(1)
    return first, i32(count)


def located(axes: int) -> Callable[..., Any]:
    """``located(number, sizes) -> (rest, back, down, right)``: a number's digits; ``back`` is 0 where there are two axes."""
    deep = axes == 3

    @device
    def find(number, sizes):
        rest, right = divided(number, sizes[-1])
        rest, down = divided(rest, sizes[-2])
        back = i32(0)
        if deep:
            rest, back = divided(rest, sizes[0])
        return rest, back, down, right

    return find


def taps_met(axes: int) -> Callable[..., Any]:
    """``taps_met(back, down, right, ...) -> (first, count) of each axis``: the taps that meet a phase, as ``taps_of``."""
    deep = axes == 3

    @device
    def find(back, down, right, taps, base, slope, spread, hop):
        first_t = i32(0)
        count_t = i32(1)
        if deep:
            first_t, count_t = taps_of(back, taps[0], base[0], slope[0], spread[0], hop[0])
        first_r, count_r = taps_of(down, taps[-2], base[-2], slope[-2], spread[-2], hop[-2])
        first_s, count_s = taps_of(right, taps[-1], base[-1], slope[-1], spread[-1], hop[-1])
        return first_t, count_t, first_r, count_r, first_s, count_s

    return find
