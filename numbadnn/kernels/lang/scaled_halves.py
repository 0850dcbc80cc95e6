"""float32 as two float16 of a common scale, so that tensor cores multiply it within the bound of float32 arithmetic.

A float32 has 24 significant bits, a float16 has eleven, down to 2^-14. Scaled by a power of two so that the largest of a block of
numbers lies below 2^16,

    h1 = x * scale, rounded to float16,    h2 = (x * scale - h1) * 2^11, rounded to float16

are h1 + 2^-11 h2 = x * scale but for 2^-23 of it, as long as it is not below 2^-13, 2^29 times less than the largest may be:
below that the error stays 2^-36. Of the four products of two such numbers h2 * h2 lies below 2^-22 of the whole and is left out;
the three others are exact in float32. Three bfloat16 would have every exponent, and cost six products.

In units of u = 2^-24 of |x||w|, the numbers are off by 2 each and what is left out by 4. A tensor core cuts off where others
round: 2 for each of 17 terms, of the largest of them; so each instruction's sums of h1 * h1 are added, rounded, to a total. The
other products, 2^-10 of those, share one set of sums. Of k terms that is off by less than

    8 + 34 + 2 + k / 16 + k / 128    times u sum|x||w|

which is within IEEE's k from 48 terms on; with r instructions between two additions it is 34 r, and k / (16 r). What longer sums
have to spare is room for smaller numbers (``spread_of``). Where a block has numbers that are smaller still, or one that is not
finite, ``common_scale`` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.cuda import SIMULATED, device, i32, u32
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _FLOAT, _HALF, _I32, _asm

#: by how much h2 is larger than what h1 leaves
APART = 2048.0
#: exponents, as float32 writes them, of the largest of a block: two others' scales would leave the range of float32 together
LEAST, MOST = 68, 187
#: what ``widest`` begins with
NOTHING = 0, 0xFFFFFFFF
_ONE, _MANTISSA = 127 << 23, 0x7FFFFF
#: from here on rounding to float16 gives the next power of two
_ROUNDS_UP = 0x7FE000


@device
def widest(word, top, low):
    """``top``, the largest of magnitudes twice, and ``low``, the least but 0 twice less 1, once a float32's bits were seen."""
    magnitude = u32(word << u32(1))
    return max(top, magnitude), min(low, u32((magnitude + u32(0xFFFFFFFF)) & u32(0xFFFFFFFF)))


@device
def extremes(top, low):
    """(largest magnitude, 2^31 - the least that is not 0, or 0): of several the greater ones are those of all."""
    return i32(top >> 1), i32(0x7FFFFFFF - (low >> 1))


@device
def common_scale(top, low, spread):
    """(scale, its inverse, limit) as bits, of a block whose ``extremes`` are given.

    Magnitudes from 1 to ``limit`` are none to be multiplied like this: 0 if there are none, all if the largest is infinite, NaN,
    or out of range. ``spread``: exponents from the least that are to the largest.
    """
    exponent = i32((top >> 23) + (1 if (top & _MANTISSA) >= _ROUNDS_UP else 0))
    usable, bound = exponent >= LEAST and exponent <= MOST, i32(max(exponent - spread, 0) << 23)
    least = i32(i32(0x7FFFFFFF) - low + 1) if low > 0 else i32(0x7FFFFFFF)
    limit = i32(bound - 1) if least < bound else i32(0)
    if top == 0:
        limit = i32(0)
    elif not usable:
        limit = i32(0x7FFFFFFF)
    scale = i32((269 - exponent) << 23) if usable else i32(_ONE)
    inverse = i32((exponent - 15) << 23) if usable else i32(_ONE)
    return scale, inverse, limit


def halve_pair_twin(words: Any, at: int, step: int, x0: Any, x1: Any, scale: Any) -> None:
    """What ``halve_pair`` does, in NumPy."""
    with np.errstate(all="ignore"):
        x = np.array([x0, x1], np.uint32).view(np.float32) * np.array([scale], np.uint32).view(np.float32)
        upper = x.astype(np.float16)
        lower = ((x - upper.astype(np.float32)) * np.float32(APART)).astype(np.float16)
    words[at], words[at + step] = upper.view(np.uint32)[0], lower.view(np.uint32)[0]


def _halve_pair() -> Callable[..., None]:
    if SIMULATED:
        return halve_pair_twin

    def narrow(builder: Any, pair: list[Any]) -> Any:
        return _asm(builder, "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", _I32, pair)

    @emitted(None, ARRAY, i32, i32, u32, u32, i32)
    def halve(builder, words, at, step, x0, x1, scale):
        by = builder.bitcast(scale, _FLOAT)
        pair = [builder.fmul(builder.bitcast(x, _FLOAT), by) for x in (x0, x1)]
        upper = narrow(builder, pair)
        both = builder.bitcast(upper, ir.VectorType(_HALF, 2))
        held = [builder.fpext(builder.extract_element(both, _I32(i)), _FLOAT) for i in range(2)]
        left = [builder.fmul(builder.fsub(x, h), ir.Constant(_FLOAT, APART)) for x, h in zip(pair, held, strict=True)]
        words.put(at, 0, upper)
        words.put(builder.add(at, step), 0, narrow(builder, left))

    return halve


#: ``halve_pair(words, at, step, x0, x1, scale)``: of the bits x0 and x1, x0's in the lower half, h1 is words[at] and h2
#: words[at + step]
halve_pair = _halve_pair()
