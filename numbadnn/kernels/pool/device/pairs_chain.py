"""The maxima of a row of windows, and who gets their gradients, for two 16-bit numbers at a time.

Both halves of a word are of the same place, of two channels or of two planes. What a window still has to give is a word that
holds dy until an element equals the maximum: one comparison makes a mask of each half, by which the element takes it and the
window loses it. A NaN equals nothing: the rare windows that hold one are seen to in a branch.

An element of two windows at most adds up in 16 bits: the sum of two such numbers rounds to the same by way of float32. More
are added in float32, two registers a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numbadnn.kernels.lang.access import _numpy_type
from numbadnn.kernels.lang.cuda import SIMULATED, i32
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _FLOAT, _I16, _I32, _asm, _widen
from numbadnn.kernels.pool.device.chain import _elements, maximizer_by
from numbadnn.kernels.pool.device.pairs import KIND, larger_of
from numbadnn.kernels.pool.walk import WalkConfig

#: a + b; of bfloat16 as a * 1 + b, which GPUs before Hopper have too
_PLUS = {
    "float16": "add.rn.f16x2 $0, $1, $2;",
    "bfloat16": "{.reg .b32 one; mov.b32 one, 0x3f803f80; fma.rn.bf16x2 $0, $1, one, $2;}",
}
_NOTHING = _I32(0)
_EVERYTHING = _I32(-1)  # as numbers: NaN


class Totals(NamedTuple):
    """Where a thread's sums lie: ``slots`` (row, column, word) -> (first word, whether two, of float32).

    ``moved`` words are complete after a step: the others move up by as many.
    """

    slots: dict[tuple[int, int, int], tuple[int, bool]]
    capacity: int
    moved: int


def totals_of(config: WalkConfig) -> Totals:
    """Rows as far down as a window reaches, each of the thread's columns."""
    (kh, kw), (sh, sw), first = config.window, config.stride, config.x.first
    wide, rows = config.spread * sw, max(kh, sh)
    columns = [first + u * sw + k for u in range(config.windows) for k in range(kw)]
    slots, at = {}, 0
    for r in range(rows):
        for c in range(wide):
            reached = columns.count(c) * len(range(r % sh, kh, sh))
            for e in range(config.words):
                slots[r, c, e] = at, reached > 2
                at += 1 + (reached > 2)
    return Totals(slots, at, slots[sh, 0, 0][0] if rows > sh else at)


def _mask(builder: Any, dtype: str, test: str, a: Any, b: Any) -> Any:
    """All bits of a half where ``test`` (eq, nan) holds for those of a and b."""
    return _asm(builder, f"set.{test}.u32.{KIND[dtype]} $0, $1, $2;", "=r,r,r", _I32, [a, b])


def maximizer(dtype: str, config: WalkConfig) -> Callable[..., None]:
    """``maxima(best, xs)``: the maximum of each window and word, of rows xs that lie in any order."""

    def larger(builder: Any, a: Any, b: Any) -> Any:
        return larger_of(builder, a, b, dtype)

    return maximizer_by(larger, config, config.words, _numpy_type(dtype))


def _adder(builder: Any, dtype: str, total: Any) -> Any:
    """``add(n, long, share)``: to the sum at word n of those that ``total(n)`` points to."""

    def add(n: int, long: bool, share: Any) -> None:
        if not long:
            value = _asm(builder, _PLUS[dtype], "=r,r,r", _I32, [builder.load(total(n)), share])
            builder.store(value, total(n))
            return
        for i in range(2):
            half = _widen(builder, builder.trunc(builder.lshr(share, _I32(16 * i)), _I16), dtype, "float32")
            old = builder.bitcast(builder.load(total(n + i)), _FLOAT)
            value = _asm(builder, "add.rn.f32 $0, $1, $2;", "=f,f,f", _FLOAT, [old, half])
            builder.store(builder.bitcast(value, _I32), total(n + i))

    return add


def giver(dtype: str, config: WalkConfig) -> Callable[..., None]:
    """``give(total, xs, best, shares, top, left)``: to the first maximum of each window, if it is the thread's, its share.

    Of the rows, ``top`` are above the image; of the columns of x, ``left`` before it.
    """
    words, x_row, slots = config.words, config.x.length * config.words, totals_of(config).slots
    chains = [_elements(config, u) for u in range(config.windows) for _ in range(words)]
    above, before = config.pad[0], -config.x.first
    if SIMULATED:
        return _giver_twin(dtype, config, chains)

    @emitted(None, ARRAY, ARRAY, ARRAY, ARRAY, i32, i32)
    def give(builder, total, xs, best, shares, top, left):
        def mask(test, a, b):
            return _mask(builder, dtype, test, a, b)

        def inside(r, c, value, other):
            # what lies outside is what lies inside, but comes first: it must not be found
            for number, most, gone in ((r, above, top), (c, before, left)):
                if number < most:
                    value = builder.select(builder.icmp_signed("<", _I32(number), gone), other, value)
            return value

        add = _adder(builder, dtype, functools.partial(total.slot, _NOTHING))

        def chain(n, rest, found):
            """Gives ``rest`` to the first element of window and word n that is ``found``."""
            for i, (r, c, own) in enumerate(chains[n]):
                here = found(r, c, xs.get(_NOTHING, r * x_row + c * words + n % words))
                if own >= 0:
                    add(*slots[r, own, n % words], builder.and_(rest, here))
                if i + 1 < len(chains[n]):
                    rest = builder.and_(rest, builder.xor(here, _EVERYTHING))

        tops = [best.get(_NOTHING, n) for n in range(len(chains))]
        for n, best_n in enumerate(tops):
            # NaN, which nothing equals, where an element is outside
            equal = lambda r, c, x, t=best_n: mask("eq", x, inside(r, c, t, _EVERYTHING))  # noqa: E731
            chain(n, shares.get(_NOTHING, n), equal)
        all_of_them = functools.reduce(lambda a, b: larger_of(builder, a, b, dtype), tops)
        rare = builder.icmp_signed("!=", mask("nan", all_of_them, all_of_them), _NOTHING)
        with builder.if_then(rare, likely=False):
            for n, best_n in enumerate(tops):
                rest = builder.and_(shares.get(_NOTHING, n), mask("nan", best_n, best_n))
                chain(n, rest, lambda r, c, x: inside(r, c, mask("nan", x, x), _NOTHING))

    return give


def _giver_twin(dtype: str, config: WalkConfig, chains: list[Any]) -> Callable[..., None]:
    words, x_row, kind, slots = (
        config.words,
        config.x.length * config.words,
        _numpy_type(dtype),
        totals_of(config).slots,
    )

    def twin(total, xs, best, shares, top, left):
        for n, half in np.ndindex(len(chains), 2):
            best_n, share = (a[n : n + 1].view(kind)[half] for a in (best, shares))
            for r, c, own in chains[n]:
                x = xs[r * x_row + c * words + n % words :][:1].view(kind)[half]
                if r >= top and c >= left and (x == best_n or (x != x and best_n != best_n)):
                    if own >= 0:
                        at, long = slots[r, own, n % words]
                        if long:
                            total[at + half :][:1].view(np.float32)[0] += np.float32(share)
                        else:
                            total[at : at + 1].view(kind)[half] += share
                    break

    return twin
