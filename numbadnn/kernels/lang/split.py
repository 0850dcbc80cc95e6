"""float32 as three bfloat16, so that tensor cores multiply it as exactly as float32 arithmetic does.

A float32 has 24 significant bits, a bfloat16 has eight and the same exponents. Cut off one after the other,

    b1 = upper half of x,    b2 = upper half of x - b1,    b3 = upper half of x - b1 - b2

are x, exactly: both differences are, and nothing is left. Of the nine products of two such numbers three lie below 2^-21 of
the whole; the six others, each exact in float32, are ``multiply_split``. What is left is not 0 just where x is infinite, NaN,
or below 2^-110 and not 0: ``split_pair`` returns it, and whoever multiplies such numbers must do so in another way.

A tensor core cuts off where others round: in units of u = 2^-24, 2 for each of 17 terms, of the largest of them. So the
largest products have sums of their own, of ``run`` instructions, which are then added, rounded, to a total; the five others,
which are 2^-7 of those, share one set of sums. Of k terms that is off by less than

    34 run + 8 + k / (16 run) + k / 12    times u sum|x||w|

which is within IEEE's k from ``least_terms(run)`` terms on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.lang.cuda import SIMULATED, device, f32, i32, u32
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _FLOAT, _I32, _asm
from numbadnn.kernels.lang.mma import product

#: largest error, in units, of one instruction's sums and of the products that are left out
CUT_OFF, LEFT_OUT = 34, 8
#: of what is left of two numbers: bits that are set where either is not the sum of its three parts
LEFT = 0xFFFF


def least_terms(run: int) -> int:
    """How long a sum must be for its bound to be within IEEE's, with ``run`` instructions between two additions to the total.

    >>> least_terms(1), least_terms(4)
    (50, 160)
    """
    return math.ceil((CUT_OFF * run + LEFT_OUT) / (1 - 1 / (16 * run) - 1 / 12))


def split_pair_twin(words: Any, at: int, step: int, x0: Any, x1: Any) -> Any:
    """What ``split_pair`` does, in NumPy."""
    rest = np.array([x0, x1], np.float32)
    for part in range(3):
        left = rest.view(np.uint32)
        upper = left & np.uint32(0xFFFF0000)
        words[at + part * step] = (upper[0] >> np.uint32(16)) | upper[1]
        if part < 2:
            with np.errstate(invalid="ignore"):
                rest = rest - upper.view(np.float32)
            rest.view(np.uint32)[np.isnan(rest)] = 0x7FFFFFFF  # as a GPU writes NaN
    return left[0] | left[1]


def _split_pair() -> Callable[..., Any]:
    if SIMULATED:
        return split_pair_twin

    def without_upper(builder: Any, bits: Any) -> Any:
        upper = builder.bitcast(builder.and_(bits, _I32(0xFFFF0000)), _FLOAT)
        whole = builder.bitcast(bits, _FLOAT)
        return builder.bitcast(_asm(builder, "sub.rn.f32 $0, $1, $2;", "=f,f,f", _FLOAT, [whole, upper]), _I32)

    @emitted(u32, ARRAY, i32, i32, f32, f32)
    def split(builder, words, at, step, x0, x1):
        rest = [builder.bitcast(x, _I32) for x in (x0, x1)]
        for part in range(3):
            if part:
                rest = [without_upper(builder, r) for r in rest]
            word = _asm(builder, "prmt.b32 $0, $1, $2, 0x7632;", "=r,r,r", _I32, rest)
            start = builder.add(at, builder.mul(step, _I32(part)))
            words.put(start, 0, word)
        return builder.or_(*rest)

    return split


#: ``split_pair(words, at, step, x0, x1) -> left``: b1, b2 and b3 of both, x0's in the lower half, into words[at::step]
split_pair = _split_pair()


def multiply_split(sums_apart: int, a_step: int, b_step: int) -> Callable[..., None]:
    """``multiply(sums, at, a, i, b, j)``: the six products of m16n8k16 of a[i::a_step] and b[j::b_step].

    The largest are added to sums[at:at+4], the five others to sums[at + sums_apart :].
    """
    multiply_add = product("bfloat16", 16)

    @device
    def multiply(sums, at, a, i, b, j):
        small = i32(at + sums_apart)
        for p in range(3):
            multiply_add(sums, small, a, i32(i + p * a_step), b, i32(j + (2 - p) * b_step))
        for p in range(2):
            multiply_add(sums, small, a, i32(i + p * a_step), b, i32(j + (1 - p) * b_step))
        multiply_add(sums, i32(at), a, i32(i), b, i32(j))

    return multiply
