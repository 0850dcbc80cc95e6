"""Products of the states with a packed matrix, by the micro-kernel of the convolutions: all steps of a layer use one packing.

BLAS packs the matrix anew in each step, which takes as long as the product of a few sequences with it. Here panels of NR
columns lie one after the other, row by row, zeros beyond the last column. Loading this module imports Numba.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.conv.micro import KC, MR, NV, listed_kernel, low_kernel, transpose
from numbadnn.cpu.lang.elements import accsize, peek
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import add, fill, lanes, load, load_acc, multiply_add, store, store_acc, zeros

#: integers of a thread's lists: columns of a, rows of b, rows of a; accumulators of its tile
LISTS, TILE = 2 * KC + MR, MR * NV * 64


def pack(matrix, packed, turned, like, threads):
    """Panels of b[k, j] = matrix[k, j], or matrix[j, k] where ``turned``; ``packed`` is (panels, depth, NR)."""
    panels, depth, wide = packed.shape
    width = matrix.shape[0] if turned else matrix.shape[1]
    for tid in prange(threads):
        for p in range(panels * tid // threads, panels * (tid + 1) // threads):
            first = p * wide
            count = min(wide, width - first)
            squares = 0
            if count == wide:
                squares = _squares(matrix, packed, p, like) if turned else _rows(matrix, packed, p, like)
            for k in range(squares, depth):
                for j in range(count):
                    packed[p, k, j] = matrix[first + j, k] if turned else matrix[k, first + j]
                for j in range(count, wide):
                    packed[p, k, j] = 0


@inner
def _squares(matrix, packed, p, like):
    """Transpose a panel as far as there are squares: so many of its rows."""
    _, depth, wide = packed.shape
    size, vl = accsize(like), lanes(like)
    for k in range(0, depth // vl * vl, vl):
        for v in range(0, wide, vl):
            source = matrix.ctypes.data + ((p * wide + v) * depth + k) * size
            transpose(source, depth, packed.ctypes.data + ((p * depth + k) * wide + v) * size, wide, like)
    return depth // vl * vl


@inner
def _rows(matrix, packed, p, like):
    """Copy a panel: all of its rows."""
    _, depth, wide = packed.shape
    size, vl = accsize(like), lanes(like)
    for k in range(depth):
        source = matrix.ctypes.data + (k * matrix.shape[1] + p * wide) * size
        target = packed.ctypes.data + (p * depth + k) * wide * size
        for v in range(NV):
            store_acc(target + v * vl * size, load_acc(source + v * vl * size, like), like)
    return depth


@inner
def lists_of(lists, like):
    """Write what is the same for every tile into a thread's lists."""
    for k in range(KC):
        lists[k] = k * accsize(like)
        lists[KC + k] = k * NV * lanes(like) * accsize(like)


@inner
def product(a, a_step, depth, more, more_step, packed, out, on_top, n0, n1, lists, tile, like):
    """out[n, j] = (on_top ? out[n, j] : 0) + the sum of a[n, k] * b[k, j], for n0 <= n < n1.

    ``a``, ``more``: addresses of rows that lie ``a_step`` and ``more_step`` apart. k < depth is a's, the rest of b's depth
    is ``more``'s.
    """
    panels, whole, wide = packed.shape
    size = accsize(like)
    if out.shape[0] == 1 and not on_top:
        _one_row(a, depth, more, packed, out, like)
        return
    for p in range(panels):
        b = packed.ctypes.data + p * whole * wide * size
        for n in range(n0, n1, MR):
            low = n1 - n <= MR // 2
            for k in range(0, depth, KC):
                _place_rows(lists, a_step, n, n1)
                _tile(a + k * size, b + k * wide * size, min(KC, depth - k), lists, tile, k > 0, low, like)
            for k in range(depth, whole, KC):
                _place_rows(lists, more_step, n, n1)
                first = more + (k - depth) * size
                _tile(first, b + k * wide * size, min(KC, whole - k), lists, tile, True, low, like)
            put(tile, out, n, n1, p * wide, on_top, like)


@inner
def _tile(a, b, depth, lists, tile, on_top, low, like):
    at = lists.ctypes.data
    if low:
        low_kernel(a, at + 2 * KC * 8, at, b, at + KC * 8, depth, tile, on_top, like)
    else:
        listed_kernel(a, at + 2 * KC * 8, at, b, at + KC * 8, depth, tile, on_top, like)


@inner
def _place_rows(lists, step, n, n1):
    """Rows of a tile; past the last one the last one again, whose sums nobody reads."""
    for i in range(MR):
        lists[2 * KC + i] = min(n + i, n1 - 1) * step


@inner
def put(tile, out, n, n1, j, on_top, like):
    """Write a tile of sums to out[n : n1, j :], or add it to what is there (``on_top``)."""
    size, vl, width = accsize(like), lanes(like), out.shape[1]
    whole = width - j >= NV * vl  # stores under a mask take several times as long
    for i in range(min(MR, n1 - n)):
        for v in range(NV):
            left = min(vl, width - j - v * vl)
            if whole:
                value = load_acc(tile + (i * NV + v) * vl * size, like)
                there = out.ctypes.data + ((n + i) * width + j + v * vl) * size
                store_acc(there, add(load_acc(there, like), value) if on_top else value, like)
            elif left > 0:
                value = load_acc(tile + (i * NV + v) * vl * size, like)
                place, mask = (n + i) * width + j + v * vl, (1 << min(left, vl)) - 1
                if on_top:
                    value = add(load(out.ctypes.data, place, mask, zeros(like), like), value)
                store(out.ctypes.data, place, mask, value, like)


@inner
def _one_row(a, depth, more, packed, out, like):
    """Of one sequence: four panels at a time, whose sums are enough not to wait for one another."""
    panels, whole, wide = packed.shape
    size, vl, width = accsize(like), lanes(like), out.shape[1]
    panel = whole * wide * size
    for p in range(0, panels, 4):
        # of fewer than four the last is computed several times
        b0 = packed.ctypes.data + p * panel
        b1 = packed.ctypes.data + min(p + 1, panels - 1) * panel
        b2 = packed.ctypes.data + min(p + 2, panels - 1) * panel
        b3 = packed.ctypes.data + min(p + 3, panels - 1) * panel
        s0, s1, s2, s3 = zeros(like), zeros(like), zeros(like), zeros(like)
        t0, t1, t2, t3 = zeros(like), zeros(like), zeros(like), zeros(like)
        for k in range(whole):
            x = fill(peek(a, k, like) if k < depth else peek(more, k - depth, like), like)
            at = k * wide * size
            next_at = at + vl * size
            s0, t0 = multiply_add(x, load_acc(b0 + at, like), s0), multiply_add(x, load_acc(b0 + next_at, like), t0)
            s1, t1 = multiply_add(x, load_acc(b1 + at, like), s1), multiply_add(x, load_acc(b1 + next_at, like), t1)
            s2, t2 = multiply_add(x, load_acc(b2 + at, like), s2), multiply_add(x, load_acc(b2 + next_at, like), t2)
            s3, t3 = multiply_add(x, load_acc(b3 + at, like), s3), multiply_add(x, load_acc(b3 + next_at, like), t3)
        _put_row(s0, t0, out, p * wide, width, like)
        _put_row(s1, t1, out, (p + 1) * wide, width, like)
        _put_row(s2, t2, out, (p + 2) * wide, width, like)
        _put_row(s3, t3, out, (p + 3) * wide, width, like)


@inner
def _put_row(low, high, out, j, width, like):
    vl = lanes(like)
    left = width - j
    if left > 0:
        store(out.ctypes.data, j, (1 << min(left, vl)) - 1, low, like)
    if left > vl:
        store(out.ctypes.data, j + vl, (1 << min(left - vl, vl)) - 1, high, like)
