"""Split the numbers of ``device/f32x2.py`` into two float16 (``lang/scaled_halves.py``): pixels and filters.

Filters have a scale that a warp keeps: their two parts show whether it fits, at two instructions a pair. Where one number
is 0, too large, or so small that little is left of it, the slot is looked through and cut anew with a scale of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.lang.cuda import SIMULATED, device, f32, i32, u32
from numbadnn.kernels.lang.intrinsics import emitted, instruction
from numbadnn.kernels.lang.llvm import _FLOAT
from numbadnn.kernels.lang.scaled_halves import APART, MOST, NOTHING, common_scale, extremes, halve_pair, widest
from numbadnn.kernels.lang.warp import largest_of_warp

#: of a thread: sums, numbers of a slot, images of a pixel
SUMS, NUMBERS, EIGHT = 16, 16, 8
#: magnitudes from here on, infinities and NaN too, have no say in a scale: in float16 they are infinite, or fit
TOO_LARGE = (MOST - 2) << 23
#: how much larger than the largest number of a slot those of the next ones may be
HEADROOM = 2 << 23
#: the upper half of a number that cannot be cut; 1 as float32
NOT_A_NUMBER, ONE = 0x7FFF, 127 << 23


def _packed(name: str, twin: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    if SIMULATED:

        def run_twin(a, b):
            x, y = (np.array([v & 0x7FFF7FFF], np.uint32).view(np.float16) for v in (a, b))
            return twin(x, y).view(np.uint32)[0]

        return run_twin

    return instruction(f"{name}.xorsign.abs.f16x2 $0, $1, $2;", (u32,), (u32, u32), pure=True)


#: ``least_of(a, b)``, ``most_of(a, b)``: in each half of a word, with any sign; NaN counts for nothing
least_of, most_of = _packed("min", np.fmin), _packed("max", np.fmax)


def _as_float() -> Callable[..., Any]:
    if SIMULATED:
        return lambda bits: np.array([bits], np.int32).view(np.float32)[0]

    @emitted(f32, i32)
    def convert(builder, bits):
        return builder.bitcast(bits, _FLOAT)

    return convert


#: ``as_float(bits)``: a word of 32 bits as the float32 that it is
as_float = _as_float()


@device
def unusable(bits, limit):
    """Whether a number is not 0 and at most ``limit`` in magnitude."""
    magnitude = u32(u32(bits) & u32(0x7FFFFFFF))
    return magnitude > u32(0) and magnitude <= u32(limit)


@device
def marked(word, x0, x1, limit):
    """A pair of upper float16 parts; those of numbers up to ``limit`` are NaN."""
    word = u32(word | u32(NOT_A_NUMBER)) if unusable(x0, limit) else word
    return u32(word | u32(NOT_A_NUMBER << 16)) if unusable(x1, limit) else word


@device
def cut_images(words, x, at, scale, limit):
    """Both float16 parts of eight images from x[at] on; numbers up to ``limit`` are NaN."""
    for p in range(EIGHT // 2):
        halve_pair(words, i32(p), i32(4), x[at + 2 * p], x[at + 2 * p + 1], scale)
    if limit != 0:
        for p in range(EIGHT // 2):
            words[p] = marked(words[p], x[at + 2 * p], x[at + 2 * p + 1], limit)


@device
def usual(word):
    """0 instead of what has no say in a scale."""
    return word & (u32(0xFFFFFFFF) if u32(word & u32(0x7FFFFFFF)) < u32(TOO_LARGE) else u32(0))


def cutting(numbers: int) -> tuple[Callable[..., int], Callable[..., tuple[int, float, int]], Callable[..., None]]:
    """For so many numbers of a lane, whose warp has one scale for them:

    ``cut(a, x, scale, floor)``: both float16 parts; not 0 where one is too large, or its upper part below ``floor``.
    ``choose(x, scale, inverse, spread)``: (scale, inverse, limit) that fit these numbers; as they are where all are 0.
    ``cut_within(a, x, scale, limit)``: both float16 parts; numbers up to ``limit`` are NaN.
    """

    @device
    def cut(a, x, scale, floor):
        lo, hi = u32(0x7BFF7BFF), u32(0)
        for p in range(numbers // 2):
            halve_pair(a, i32(p), i32(numbers // 2), u32(x[2 * p]), u32(x[2 * p + 1]), scale)
            lo, hi = least_of(lo, a[p]), most_of(hi, a[p])
        over = u32(u32(hi & u32(0x7FFF7FFF)) + u32(0x04000400))
        under = u32(u32(u32(lo | u32(0x80008000)) - u32(floor)) ^ u32(0x80008000))
        return u32((over | under) & u32(0x80008000))

    @device
    def choose(x, scale, inverse, spread):
        top, low = u32(NOTHING[0]), u32(NOTHING[1])
        for i in range(numbers):
            top, low = widest(usual(x[i]), top, low)
        top, low = extremes(top, low)
        top, low = largest_of_warp(top), largest_of_warp(low)
        limit = i32(0)
        if top > 0:
            scale, back, limit = common_scale(i32(top + HEADROOM), low, spread)
            inverse = as_float(back)
        return scale, inverse, limit

    @device
    def cut_within(a, x, scale, limit):
        for p in range(numbers // 2):
            halve_pair(a, i32(p), i32(numbers // 2), u32(x[2 * p]), u32(x[2 * p + 1]), scale)
            a[p] = marked(u32(a[p]), x[2 * p], x[2 * p + 1], limit)

    return cut, choose, cut_within


cut, _choose, _cut_within = cutting(NUMBERS)


@device
def cut_anew(a, x, total, small, scale, inverse, spread):
    """A slot's numbers with a scale that fits them; those that it does not fit are NaN. (scale, inverse) from here on."""
    fresh, back, limit = _choose(x, scale, inverse, spread)
    if fresh != scale:
        for i in range(SUMS):
            total[i] = f32(total[i] + small[i] * f32(inverse * f32(1 / APART)))
            small[i] = f32(0)
    _cut_within(a, x, fresh, limit)
    return fresh, back
