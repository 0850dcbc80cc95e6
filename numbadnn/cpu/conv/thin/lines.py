"""Rows of pixels to and from the planes of ``thin.py``: as they lie, transposed, or with channels in the lanes of vectors.

What is fetched is followed by zeros, up to a whole vector of them. Loading this module imports Numba.
"""

from __future__ import annotations

from numbadnn.cpu.conv.micro import transpose
from numbadnn.cpu.lang.elements import accsize, itemsize, load1, peek, poke, store1
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import add, lanes, load, load_acc, load_even, scale, store, store_acc, store_even, zeros
from numbadnn.cpu.pool.lines import evens

#: the even bits of a word: lanes of ``load_even`` and ``store_even``
EVEN = 0x55555555


@inner
def zero_line(target, n, like):
    """n zeros, and more up to a whole vector."""
    for i in range(0, n, lanes(like)):
        store_acc(target + i * accsize(like), zeros(like), like)


@inner
def fetch_line(target, n, base, like):
    """n elements that are neighbours."""
    vl, acc = lanes(like), accsize(like)
    whole = n // vl * vl
    for i in range(0, whole, vl):
        store_acc(target + i * acc, load(base, i, -1, zeros(like), like), like)
    if whole < n:
        store_acc(target + whole * acc, load(base, whole, (1 << (n - whole)) - 1, zeros(like), like), like)


@inner
def fetch_rows(target, pitch, rows, n, base, row_step, step, like):
    """Rows of n elements, ``step`` apart, from address ``base`` on and ``row_step`` apart, to lines ``pitch`` apart."""
    vl, acc, item = lanes(like), accsize(like), itemsize(like)
    if step == 2:
        whole = max(n - 1, 0) // vl * vl  # the last pair of vectors would end behind the last element
        mask = EVEN & ((1 << 2 * (n - whole)) - 1)
        for r in range(rows):
            line, row = target + r * pitch * acc, base + r * row_step * item
            for i in range(0, whole, vl):
                a, b = load(row, 2 * i, -1, zeros(like), like), load(row, 2 * i + vl, -1, zeros(like), like)
                store_acc(line + i * acc, evens(a, b), like)
            store_acc(line + whole * acc, load_even(row, 2 * whole, mask, zeros(like), like), like)
        return
    if step != 1:
        for r in range(rows):
            for i in range(n):
                poke(target, r * pitch + i, load1(base, r * row_step + i * step, like), like)
        return
    whole = n // vl * vl
    mask = (1 << (n - whole)) - 1
    for r in range(rows):
        line, row = target + r * pitch * acc, base + r * row_step * item
        for i in range(0, whole, vl):
            store_acc(line + i * acc, load(row, i, -1, zeros(like), like), like)
        if mask:
            store_acc(line + whole * acc, load(row, whole, mask, zeros(like), like), like)


@inner
def fetch_turned(target, plane, channels, n, base, step, small, like):
    """n pixels, ``step`` apart, of channels that are neighbours: rows of pixels, ``plane`` accumulators apart."""
    vl, acc = lanes(like), accsize(like)
    for i in range(0, n, vl):
        for c in range(0, channels, vl):
            mask = (1 << min(vl, channels - c)) - 1
            for j in range(vl):
                value = load(base, (i + j) * step + c, mask if i + j < n else 0, zeros(like), like)
                store_acc(small + j * vl * acc, value, like)
            transpose(small, vl, target + (c * plane + i) * acc, plane, like)


@inner
def fetch_lanes(target, plane, channels, n, base, step, like):
    """n pixels, ``step`` apart, of channels that are neighbours: a vector's lanes of them together, ``plane`` apart."""
    vl, acc, item = lanes(like), accsize(like), itemsize(like)
    whole = channels // vl * vl
    for i in range(n):
        pixel, line = base + i * step * item, target + i * vl * acc
        for c in range(0, whole, vl):
            store_acc(line + c // vl * plane * acc, load(pixel, c, -1, zeros(like), like), like)
        if whole < channels:
            value = load(pixel, whole, (1 << (channels - whole)) - 1, zeros(like), like)
            store_acc(line + whole // vl * plane * acc, value, like)


@inner
def _put(base, offset, mask, value, beta, like):
    """value + beta * what is there, in the lanes of ``mask``."""
    if beta != 0:
        value = add(value, scale(beta, load(base, offset, mask, zeros(like), like)))
    store(base, offset, mask, value, like)


@inner
def _put_even(base, offset, mask, value, beta, like):
    if beta != 0:
        value = add(value, scale(beta, load_even(base, offset, mask, zeros(like), like)))
    store_even(base, offset, mask, value, like)


@inner
def write_rows(source, pitch, rows, n, base, row_step, step, beta, like):
    """Lines of n elements to rows whose elements are ``step`` apart: source + beta * what is there."""
    vl, acc, item = lanes(like), accsize(like), itemsize(like)
    whole = n // vl * vl
    mask, even = (1 << (n - whole)) - 1, EVEN & ((1 << 2 * (n - whole)) - 1)
    for r in range(rows):
        line, row = source + r * pitch * acc, base + r * row_step * item
        if step == 1:
            for i in range(0, whole, vl):
                _put(row, i, -1, load_acc(line + i * acc, like), beta, like)
            if mask:
                _put(row, whole, mask, load_acc(line + whole * acc, like), beta, like)
        elif step == 2:
            for i in range(0, whole, vl):
                _put_even(row, 2 * i, EVEN, load_acc(line + i * acc, like), beta, like)
            if mask:
                _put_even(row, 2 * whole, even, load_acc(line + whole * acc, like), beta, like)
        else:
            for i in range(n):
                one = peek(line, i, like)
                if beta != 0:
                    one += beta * load1(row, i * step, like)
                store1(row, i * step, one, like)


@inner
def write_turned(source, row, channels, n, base, step, beta, small, like):
    """The reverse of ``fetch_turned``, of rows ``row`` accumulators apart, added as by ``write_rows``."""
    vl, acc = lanes(like), accsize(like)
    for i in range(0, n, vl):
        for c in range(0, channels, vl):
            mask = (1 << min(vl, channels - c)) - 1
            transpose(source + (c * row + i) * acc, row, small, vl, like)
            for j in range(min(vl, n - i)):
                _put(base, (i + j) * step + c, mask, load_acc(small + j * vl * acc, like), beta, like)


@inner
def write_lanes(source, mask, n, base, step, beta, like):
    """n vectors of channels to pixels that are ``step`` apart, added as by ``write_rows``."""
    for i in range(n):
        _put(base, i * step, mask, load_acc(source + i * lanes(like) * accsize(like), like), beta, like)
