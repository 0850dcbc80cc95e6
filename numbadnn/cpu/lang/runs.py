"""Runs of elements, some steps apart, to and from accumulators that are neighbours. Loading this module imports Numba."""

from __future__ import annotations

from numbadnn.cpu.lang.elements import accsize, load1, peek, poke, store1
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import lanes, load, load_acc, scale, scale_add, store, store_acc, zeros


@inner
def read_run(target, base, offset, n, step, like):
    """n elements, ``step`` apart, into accumulators; nothing past them is touched."""
    vl, acc = lanes(like), accsize(like)
    if step == 1:
        for i in range(0, n - vl + 1, vl):
            store_acc(target + i * acc, load(base, offset + i, (1 << vl) - 1, zeros(like), like), like)
        for i in range(n // vl * vl, n):
            poke(target, i, load1(base, offset + i, like), like)
    else:
        for i in range(n):
            poke(target, i, load1(base, offset + i * step, like), like)


@inner
def write_run(source, base, offset, n, step, alpha, beta, like):
    """n elements, ``step`` apart: alpha * source + beta * what is there."""
    vl, acc = lanes(like), accsize(like)
    if step == 1:
        for i in range(0, n, vl):
            mask, value = (1 << min(vl, n - i)) - 1, load_acc(source + i * acc, like)
            if beta == 0:
                store(base, offset + i, mask, scale(alpha, value), like)
            else:
                old = load(base, offset + i, mask, zeros(like), like)
                store(base, offset + i, mask, scale_add(alpha, value, beta, old), like)
        return
    for i in range(n):
        one = alpha * peek(source, i, like)
        if beta != 0:
            one += beta * load1(base, offset + i * step, like)
        store1(base, offset + i * step, one, like)
