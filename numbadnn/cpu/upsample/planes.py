"""Bilinear upsampling and its gradient, an image of one channel at a time, on strided memory: kernels.

Forwards each row of the source is fetched and widened once, into one of two rows kept; a row of the result is the weighted
sum of the two. Backwards a row of the result sums the rows that took of it, and is then narrowed. Tables hold the samples
and weights of each output (forwards), or the outputs of each sample, one after the other (backwards). Loading this module
imports Numba.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.lang.elements import itemsize
from numbadnn.cpu.lang.past import settle
from numbadnn.cpu.lang.typed import fetch_as, flush_as, inner
from numbadnn.cpu.lang.vector import CHAIN, carry, made_good


@inner
def _widen_whole(row, wide, n, p, phases):
    """``_widen`` for a whole ratio p: outputs f, p + f, 2p + f ... are all weighted alike."""
    before = (p - 1) // 2
    for f in range(p):
        a, b = phases[p - f], phases[f]
        if f == 0:
            for i in range(n):
                wide[i * p + before] = row[i]
        elif p == 2:
            for i in range(n - 1):
                wide[2 * i + 1] = a * row[i] + b * row[i + 1]
        else:
            for i in range(n - 1):
                wide[i * p + before + f] = a * row[i] + b * row[i + 1]
    for o in range(before):
        wide[o] = row[0]
    for o in range((n - 1) * p + before + 1, n * p):
        wide[o] = row[n - 1]


@inner
def _widen(row, wide, first, second, weights, whole, phases):
    """A row of samples as a row of outputs; a sample of weight 0 is not looked at."""
    if whole > 0:
        _widen_whole(row, wide, len(first) // whole, whole, phases)
    else:
        for o in range(len(first)):
            a, b = row[first[o]], row[second[o]]
            both = weights[0, o] * a + weights[1, o] * b
            wide[o] = a if weights[1, o] == 0 else both


@inner
def _base(address, plane, channels, strides, size):
    """Address of the first value of a plane: image ``plane // channels``, then its channel."""
    return address + (plane // channels * strides[0] + plane % channels * strides[1]) * size


def forward(
    x,
    y,
    like,
    counts,
    x_strides,
    y_strides,
    rows,
    row_weights,
    columns,
    column_weights,
    whole,
    phases,
    scratch,
    past,
    threads,
):
    """y from x. ``counts``: planes, channels of an image, bands of rows, columns of x. Strides: as the image's axes.

    ``rows`` and ``columns`` are (2, outputs): the two samples of each.
    """
    planes, channels, bands, width = counts
    height, outputs = rows.shape[1], columns.shape[1]
    for tid in prange(threads):
        size = itemsize(like)
        row, result, even, odd = scratch[tid, 0], scratch[tid, 1], scratch[tid, 2], scratch[tid, 3]
        first, second = columns[0], columns[1]
        for job in range(planes * bands * tid // threads, planes * bands * (tid + 1) // threads):
            plane, band = job // bands, job % bands
            source, target = _base(x, plane, channels, x_strides, size), _base(y, plane, channels, y_strides, size)
            held0, held1 = -1, -1
            for o in range(height * band // bands, height * (band + 1) // bands):
                for side in range(2 if row_weights[1, o] != 0 else 1):
                    i = rows[side, o]
                    if i % 2 == 0 and held0 != i:
                        fetch_as(row, width, source + i * x_strides[2] * size, x_strides[3], like)
                        _widen(row, even, first, second, column_weights, whole, phases)
                        held0 = i
                    elif i % 2 == 1 and held1 != i:
                        fetch_as(row, width, source + i * x_strides[2] * size, x_strides[3], like)
                        _widen(row, odd, first, second, column_weights, whole, phases)
                        held1 = i
                upper_even = rows[0, o] % 2 == 0
                where = target + o * y_strides[2] * size
                if row_weights[1, o] == 0:
                    if upper_even:
                        flush_as(even, outputs, where, y_strides[3], like, past)
                    else:
                        flush_as(odd, outputs, where, y_strides[3], like, past)
                else:
                    w_even = row_weights[0, o] if upper_even else row_weights[1, o]
                    w_odd = row_weights[1, o] if upper_even else row_weights[0, o]
                    for k in range(outputs):
                        result[k] = w_even * even[k] + w_odd * odd[k]
                    flush_as(result, outputs, where, y_strides[3], like, past)
        if past:
            settle()


@inner
def _narrow_whole(total, narrow, n, p, phases):
    """The transpose of ``_widen_whole``: outputs one after the other away from each sample, then those beyond the ends."""
    before = (p - 1) // 2
    for i in range(n):
        narrow[i] = total[i * p + before]
    for d in range(1, p):
        w = phases[p - d]
        for i in range(1, n):
            narrow[i] += w * total[i * p + before - d]
        for i in range(n - 1):
            narrow[i] += w * total[i * p + before + d]
    for o in range(before):
        narrow[0] += total[o]
    for o in range((n - 1) * p + before + 1, n * p):
        narrow[n - 1] += total[o]


@inner
def _narrow(total, narrow, starts, outputs, weights, whole, phases):
    """The transpose of ``_widen``."""
    if whole > 0:
        _narrow_whole(total, narrow, len(starts) - 1, whole, phases)
    else:
        for i in range(len(starts) - 1):
            value, missing = weights[0] * 0, weights[0] * 0
            for start in range(starts[i], starts[i + 1], CHAIN):
                part = weights[0] * 0
                for t in range(start, min(start + CHAIN, starts[i + 1])):
                    part += weights[t] * total[outputs[t]]
                value, missing = carry(value, missing, part)
            narrow[i] = made_good(value, missing)


def backward(
    dy, dx, like, counts, dy_strides, dx_strides,
    row_starts, rows, row_weights, column_starts, columns, column_weights, whole, phases, scratch, past, threads,
):  # fmt: skip
    """dx from dy; counts and strides as in ``forward``, the last count that of dy's columns."""
    planes, channels, bands, width = counts
    height, outputs = len(row_starts) - 1, len(column_starts) - 1
    for tid in prange(threads):
        size = itemsize(like)
        row, narrow, total = scratch[tid, 0], scratch[tid, 1], scratch[tid, 2]
        upper, low = scratch[tid, 3], scratch[tid, 4]
        for job in range(planes * bands * tid // threads, planes * bands * (tid + 1) // threads):
            plane, band = job // bands, job % bands
            source, target = _base(dy, plane, channels, dy_strides, size), _base(dx, plane, channels, dx_strides, size)
            for i in range(height * band // bands, height * (band + 1) // bands):
                first, end = row_starts[i], row_starts[i + 1]
                long = end - first > CHAIN
                for k in range(width):
                    total[k] = 0
                if long:
                    for k in range(width):
                        upper[k], low[k] = 0, 0
                for t in range(first, end):
                    fetch_as(row, width, source + rows[t] * dy_strides[2] * size, dy_strides[3], like)
                    w = row_weights[t]
                    for k in range(width):
                        total[k] += w * row[k]
                    if long and (t - first) % CHAIN == CHAIN - 1:
                        for k in range(width):
                            upper[k], low[k] = carry(upper[k], low[k], total[k])
                            total[k] = 0
                if long:
                    for k in range(width):
                        value, missing = carry(upper[k], low[k], total[k])
                        total[k] = made_good(value, missing)
                _narrow(total, narrow, column_starts, columns, column_weights, whole, phases)
                flush_as(narrow, outputs, target + i * dx_strides[2] * size, dx_strides[3], like, past)
        if past:
            settle()
