"""Bilinear upsampling and its gradient where channels lie next to each other in memory (NHWC): kernels.

A pixel of the result is a weighted sum of pixels, all of whose channels are taken a vector at a time and summed in
registers: the result is written once and nothing is kept in between. Loading this module imports Numba.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu._typed import inner
from numbadnn.cpu._vector import fill, itemsize, lanes, load, multiply_add, scale, store, zeros


@inner
def _one(y, a, k, mask, like):
    zero = zeros(like)
    store(y, k, mask, load(a, k, mask, zero, like), like)


@inner
def _two(y, a, b, wa, wb, k, mask, like):
    zero = zeros(like)
    first = scale(wa, load(a, k, mask, zero, like))
    store(y, k, mask, multiply_add(fill(wb, like), load(b, k, mask, zero, like), first), like)


@inner
def _four(y, a, b, below, w, k, mask, like):
    """``below``: what lies between the two rows, in bytes; ``w``: the weights of a and b above, then below."""
    zero = zeros(like)
    total = scale(w[0], load(a, k, mask, zero, like))
    total = multiply_add(fill(w[1], like), load(b, k, mask, zero, like), total)
    total = multiply_add(fill(w[2], like), load(a + below, k, mask, zero, like), total)
    store(y, k, mask, multiply_add(fill(w[3], like), load(b + below, k, mask, zero, like), total), like)


@inner
def _blend(y, a, b, below, up, down, left, right, channels, like):
    """One pixel of the result from those at a and b and the two below them; a pixel of weight 0 is not looked at."""
    step = lanes(like)
    whole = channels - channels % step
    rest = (1 << (channels - whole)) - 1
    if down == 0 and right == 0:
        for k in range(0, whole, step):
            _one(y, a, k, -1, like)
        if rest:
            _one(y, a, whole, rest, like)
    elif down == 0 or right == 0:
        other = b if down == 0 else a + below
        wa, wb = (left, right) if down == 0 else (up, down)
        for k in range(0, whole, step):
            _two(y, a, other, wa, wb, k, -1, like)
        if rest:
            _two(y, a, other, wa, wb, whole, rest, like)
    else:
        w = (up * left, up * right, down * left, down * right)
        for k in range(0, whole, step):
            _four(y, a, b, below, w, k, -1, like)
        if rest:
            _four(y, a, b, below, w, whole, rest, like)


def forward(x, y, like, counts, xs, ys, rows, row_weights, columns, column_weights, threads):
    """y from x. ``counts``: images, channels; strides: image, row, column; ``rows``, ``columns``: both samples of each."""
    images, channels = counts
    height, width = rows.shape[1], columns.shape[1]
    for tid in prange(threads):
        size = itemsize(like)
        for job in range(images * height * tid // threads, images * height * (tid + 1) // threads):
            n, i = job // height, job % height
            line = x + (n * xs[0] + rows[0, i] * xs[1]) * size
            below = (rows[1, i] - rows[0, i]) * xs[1] * size
            up, down = row_weights[0, i], row_weights[1, i]
            target = y + (n * ys[0] + i * ys[1]) * size
            for j in range(width):
                a, b = line + columns[0, j] * xs[2] * size, line + columns[1, j] * xs[2] * size
                left, right = column_weights[0, j], column_weights[1, j]
                _blend(target + j * ys[2] * size, a, b, below, up, down, left, right, channels, like)


@inner
def _gather(dx, dy, like, k, mask, row_taps, column_taps, strides, tables):
    """Channels from k on of one pixel: the sum over its rows and columns of dy."""
    rows, row_weights, columns, column_weights = tables
    zero = zeros(like)
    total = zero
    for r in range(row_taps[0], row_taps[1]):
        line, w = dy + rows[r] * strides[0], row_weights[r]
        for c in range(column_taps[0], column_taps[1]):
            value = load(line + columns[c] * strides[1], k, mask, zero, like)
            total = multiply_add(fill(w * column_weights[c], like), value, total)
    store(dx, k, mask, total, like)


@inner
def _gather_four(dx, dy, like, k, step, row_taps, column_taps, strides, tables):
    """As ``_gather`` for four vectors of channels, whose sums go on side by side."""
    rows, row_weights, columns, column_weights = tables
    zero = zeros(like)
    a, b, c, d = zero, zero, zero, zero
    for r in range(row_taps[0], row_taps[1]):
        line, w = dy + rows[r] * strides[0], row_weights[r]
        for t in range(column_taps[0], column_taps[1]):
            at, weight = line + columns[t] * strides[1], fill(w * column_weights[t], like)
            a = multiply_add(weight, load(at, k, -1, zero, like), a)
            b = multiply_add(weight, load(at, k + step, -1, zero, like), b)
            c = multiply_add(weight, load(at, k + 2 * step, -1, zero, like), c)
            d = multiply_add(weight, load(at, k + 3 * step, -1, zero, like), d)
    store(dx, k, -1, a, like)
    store(dx, k + step, -1, b, like)
    store(dx, k + 2 * step, -1, c, like)
    store(dx, k + 3 * step, -1, d, like)


def backward(
    dy, dx, like, counts, ys, xs, row_starts, rows, row_weights, column_starts, columns, column_weights, threads
):
    """dx from dy; counts and strides as in ``forward``. The outputs of sample i are ``starts[i]`` to ``starts[i + 1]``."""
    images, channels = counts
    height, width = len(row_starts) - 1, len(column_starts) - 1
    for tid in prange(threads):
        size, step = itemsize(like), lanes(like)
        blocks = channels - channels % (4 * step)
        strides, tables = (ys[1] * size, ys[2] * size), (rows, row_weights, columns, column_weights)
        for job in range(images * height * tid // threads, images * height * (tid + 1) // threads):
            n, i = job // height, job % height
            source, target = dy + n * ys[0] * size, dx + (n * xs[0] + i * xs[1]) * size
            row_taps = row_starts[i], row_starts[i + 1]
            for j in range(width):
                at, column_taps = target + j * xs[2] * size, (column_starts[j], column_starts[j + 1])
                for k in range(0, blocks, 4 * step):
                    _gather_four(at, source, like, k, step, row_taps, column_taps, strides, tables)
                for k in range(blocks, channels, step):
                    mask = -1 if k + step <= channels else (1 << (channels - k)) - 1
                    _gather(at, source, like, k, mask, row_taps, column_taps, strides, tables)
