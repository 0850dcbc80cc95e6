"""Conversions between memory and the words of ``device/walk_pairs.py``: rows of two planes are paired, sums rounded and parted.

Where channels are last, a word is what lies in memory. In C order it holds a column's number of one plane in its lower half and
that of another plane in its upper half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.lang.access import _numpy_type
from numbadnn.kernels.lang.cuda import SIMULATED, i32
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _FLOAT, _I32, _asm, _packed
from numbadnn.kernels.pool.device.pairs_chain import totals_of
from numbadnn.kernels.pool.walk import Columns, WalkConfig

#: bytes of two words that are both lower halves, and both upper halves
LOWER, UPPER = 0x5410, 0x7632


def _permute(builder: Any, a: Any, b: Any, selector: int) -> Any:
    return _asm(builder, f"prmt.b32 $0, $1, $2, {selector:#x};", "=r,r,r", _I32, [a, b])


def pairer(dtype: str, columns: Columns, fill: int, last: bool, checked: list[bool]) -> Callable[..., None]:
    """``pair(values, start, raw, at, other, outside)``: a row's words raw[at:] (C order: of one plane, of the other raw[other:]).

    Words of an access that is ``checked`` and outside are ``fill``.
    """
    pieces, lanes = columns.pieces, columns.lanes
    if SIMULATED:

        def twin(values, start, raw, at, other, outside):
            for i, (_, v) in enumerate(pieces):
                count = -(-v * lanes // 2)
                if last:
                    words = raw[at : at + count].copy()
                else:
                    one, two = (raw[n : n + count].copy().view(np.uint16)[:v].astype(np.uint32) for n in (at, other))
                    words = one | two << np.uint32(16)
                if checked[i] and outside >> i & 1:
                    words[:] = fill
                values[start : start + words.size] = words
                start, at, other = start + words.size, at + count, other + count

        return twin

    @emitted(None, ARRAY, i32, ARRAY, i32, i32, i32)
    def pair(builder, values, start, raw, at, other, outside):
        def word(base, n):
            return raw.get(base, n)

        to, n = 0, 0
        for i, (_, v) in enumerate(pieces):
            count = -(-v * lanes // 2)
            if last:
                got = [word(at, n + k) for k in range(count)]
            else:
                both = [(word(at, n + k // 2), word(other, n + k // 2)) for k in range(v)]
                got = [_permute(builder, *pair, UPPER if k % 2 else LOWER) for k, pair in enumerate(both)]
            if checked[i]:
                gone = builder.icmp_signed("!=", builder.and_(outside, _I32(1 << i)), _I32(0))
                got = [builder.select(gone, _I32(fill), g) for g in got]
            for value in got:
                values.put(start, to, value)
                to += 1
            n += count

    return pair


def rounder(dtype: str, config: WalkConfig) -> Callable[..., None]:
    """``rounded(out, total)``: the complete rows, a row ``config.stride[0]`` of them, as they are to be written.

    Channels last: words column by column. C order: the words, or lower halves, of one plane's columns, then the other's.
    """
    slots, pairs, (sh, sw) = totals_of(config).slots, config.vec_dx % 2 == 0, config.stride
    wide, words, last = config.spread * sw, config.words, config.last
    if SIMULATED:

        def twin(out, total):
            kind, n = _numpy_type(dtype), 0
            for r in range(sh):
                rows: list[Any] = [[], []]
                for c in range(wide):
                    for e in range(words):
                        at, long = slots[r, c, e]
                        two = (
                            total[at : at + 2].view(np.float32).astype(kind) if long else total[at : at + 1].view(kind)
                        )
                        rows[0].append(two[0])
                        rows[1].append(two[1])
                if last:
                    done = np.array(rows, kind).T.ravel().view(np.uint32)
                elif pairs:
                    done = np.array(rows, kind).ravel().view(np.uint32)
                else:
                    done = np.array(rows, kind).ravel().view(np.uint16).astype(np.uint32)
                out[n : n + done.size] = done
                n += done.size

        return twin

    @emitted(None, ARRAY, ARRAY)
    def rounded(builder, out, total):
        def word(n):
            return builder.load(total.slot(_I32(0), n))

        done = []
        for r in range(sh):
            row = []
            for c in range(wide):
                for e in range(words):
                    at, long = slots[r, c, e]
                    if long:
                        both = [builder.bitcast(word(at + i), _FLOAT) for i in range(2)]
                        row += _packed(builder, both, dtype, "float32")
                    else:
                        row.append(word(at))
            if last:
                done += row
            elif pairs:
                done += [
                    _permute(builder, a, b, s) for s in (LOWER, UPPER) for a, b in zip(row[::2], row[1::2], strict=True)
                ]
            else:
                done += row + [builder.lshr(w, _I32(16)) for w in row]
        for n, value in enumerate(done):
            out.put(_I32(0), n, value)

    return rounded
