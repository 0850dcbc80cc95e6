"""Find the maxima of a row of windows and add their gradients to the elements that have them, in few instructions.

An element is its window's first maximum if it has the maximum's bits and none before it has: one comparison, which makes two
predicates, "here" and "not yet", and one addition under the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from numbadnn.kernels.lang.cuda import SIMULATED, i32
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _FLOAT, _I32, _asm
from numbadnn.kernels.pool.walk import WalkConfig

_I64 = ir.IntType(64)


def _largest(builder: Any, a: Any, b: Any) -> Any:
    """The larger of two numbers, NaN if one is."""
    if a.type == _FLOAT:
        return _asm(builder, "max.NaN.f32 $0, $1, $2;", "=f,f,f", _FLOAT, [a, b])
    first = builder.or_(builder.fcmp_ordered(">", a, b), builder.fcmp_unordered("uno", a, a))
    return builder.select(first, a, b)


def maximizer(config: WalkConfig) -> Callable[..., None]:
    """``maxima(best, xs)``: the maximum of each window and lane, of rows xs that lie in any order."""
    return maximizer_by(_largest, config, config.lanes)


def maximizer_by(larger: Callable[..., Any], config: WalkConfig, each: int, dtype: Any = None) -> Callable[..., None]:
    """The same by ``larger(builder, a, b)``, of columns of ``each`` numbers; NumPy sees them as ``dtype``."""
    windows, (kh, kw), sw, length = config.windows, config.window, config.stride[1], config.x.length
    row = length * each
    if SIMULATED:

        def twin(best, xs):
            top = xs[: kh * row].view(dtype or xs.dtype).reshape(kh, length, -1).max(0)
            for u in range(windows):
                best[u * each : (u + 1) * each] = top[u * sw : u * sw + kw].max(0).view(best.dtype)

        return twin

    @emitted(None, ARRAY, ARRAY)
    def maxima(builder, best, xs):
        def over(values):
            return functools.reduce(functools.partial(larger, builder), values)

        def x(n):
            return builder.load(xs.slot(_I32(0), n))

        top = [over([x(r * row + n) for r in range(kh)]) for n in range(row)]
        for u in range(windows):
            for e in range(each):
                value = over([top[(u * sw + k) * each + e] for k in range(kw)])
                best.put(_I32(0), u * each + e, value)

    return maxima


def _elements(config: WalkConfig, u: int) -> list[tuple[int, int, int]]:
    """(row, column of x, own column or -1) of window u's elements, up to the last that is the thread's."""
    (kh, kw), sw, wide = config.window, config.stride[1], config.spread * config.stride[1]
    found = []
    for r in range(kh):
        for k in range(kw):
            c = config.x.first + u * sw + k
            found.append((r, u * sw + k, c if 0 <= c < wide else -1))
    while found and found[-1][2] < 0:
        found.pop()
    return found


def giver(acc: str, config: WalkConfig) -> Callable[..., None]:
    """``give(total, xs, best, shares, top, left)``: to the first maximum of each window, if it is the thread's, its share.

    Of the rows, ``top`` are above the image; of the columns of x, ``left`` before it.
    """
    lanes, windows = config.lanes, config.windows
    x_row, t_row = config.x.length * lanes, config.spread * config.stride[1] * lanes
    chains, above, before = [_elements(config, u) for u in range(windows)], config.pad[0], -config.x.first
    if SIMULATED:

        def twin(total, xs, best, shares, top, left):
            for n in range(windows * lanes):
                for r, c, own in chains[n // lanes]:
                    x = xs[r * x_row + c * lanes + n % lanes]
                    if r >= top and c >= left and (x == best[n] or (x != x and best[n] != best[n])):
                        if own >= 0:
                            total[r * t_row + own * lanes + n % lanes] += shares[n]
                        break

        return twin

    @emitted(None, ARRAY, ARRAY, ARRAY, ARRAY, i32, i32)
    def give(builder, total, xs, best, shares, top, left):
        word = _I32 if acc == "float32" else _I64
        for n in range(windows * lanes):
            e = n % lanes
            best_n, share = builder.bitcast(best.get(_I32(0), n), word), shares.get(_I32(0), n)
            tests = []
            for r, c, own in chains[n // lanes]:
                wanted = best_n
                # what lies outside is what lies inside, but comes first: it must not be found
                for number, most, gone in ((r, above, top), (c, before, left)):
                    if number < most:
                        wanted = builder.select(builder.icmp_signed("<", _I32(number), gone), word(-1), wanted)
                x = builder.bitcast(xs.get(_I32(0), r * x_row + c * lanes + e), word)
                target = None if own < 0 else total.slot(_I32(0), r * t_row + own * lanes + e)
                tests.append((x, wanted, target))
            if tests:
                _chain(builder, acc, share, tests)

    return give


def _chain(builder: Any, acc: str, share: Any, tests: list[tuple[Any, Any, Any]]) -> None:
    """Adds ``share`` to where the first (x, wanted, where) points whose x is wanted, if it points anywhere."""
    f, b, kind, width = ("f", "r", share.type, 32) if acc == "float32" else ("d", "l", share.type, 64)
    targets = [where for _, _, where in tests if where is not None]
    many, lines, n = len(targets), ["{.reg .pred p, q;"], 0
    first = 2 * many + 1  # of the tests among the operands: results, what they were, the share
    for i, (_, _, where) in enumerate(tests):
        pair, rest = f"${first + 2 * i}, ${first + 2 * i + 1}", ", q" if i else ""
        joined = f"{'.and' if i else ''}.b{width}"
        if where is None:
            lines.append(f"setp.ne{joined} q, {pair}{rest};")
        else:
            lines += [f"setp.eq{joined} p|q, {pair}{rest};", f"@p add.rn.f{width} ${n}, ${n}, ${2 * many};"]
            n += 1
    constraints = [f"={f}"] * many + [str(i) for i in range(many)] + [f] + [b, b] * len(tests)
    values = [builder.load(t) for t in targets] + [share] + [v for x, wanted, _ in tests for v in (x, wanted)]
    result = kind if many == 1 else ir.LiteralStructType([kind] * many)
    got = _asm(builder, " ".join(lines) + "}", ",".join(constraints), result, values)
    for i, target in enumerate(targets):
        builder.store(got if many == 1 else builder.extract_value(got, i), target)
