"""Bilinear upsampling and its gradient on strided memory: kernels.

An image is a plane of pixels of ``inner`` neighbouring values (1, or a run of channels of NHWC). Forwards each row of the
source is fetched and widened once, into one of two rows kept; a row of the result is the weighted sum of the two. Backwards
a row of the result sums the rows that took of it, and is then narrowed. Tables hold the samples and weights of each
output (forwards), or the outputs of each sample, one after the other (backwards). Loading this module imports Numba.
"""

from __future__ import annotations

from numba import njit, prange

from numbadnn.cpu._typed import fetch_run
from numbadnn.cpu._vector import itemsize, load1, store1


@njit(nogil=True, error_model="numpy")
def _fetch(row, base, columns, inner, step, value, like):
    """A row of pixels into packed accumulators; from pixel to pixel it is ``step`` elements, from value to value ``value``."""
    if (value == 1 and step == inner) or (inner == 1 and step == 1):
        fetch_run(row, columns * inner, base, like)
    else:
        size = itemsize(like)
        for j in range(columns):
            start = base + j * step * size
            if value == 1:
                fetch_run(row[j * inner :], inner, start, like)
            else:
                for k in range(inner):
                    row[j * inner + k] = load1(start, k * value, like)


@njit(nogil=True, error_model="numpy")
def _flush(row, base, columns, inner, step, value, like):
    if (value == 1 and step == inner) or (inner == 1 and step == 1):
        for k in range(columns * inner):
            store1(base, k, row[k], like)
    else:
        size = itemsize(like)
        for j in range(columns):
            start = base + j * step * size
            if value == 1:
                for k in range(inner):
                    store1(start, k, row[j * inner + k], like)
            else:
                for k in range(inner):
                    store1(start, k * value, row[j * inner + k], like)


@njit(nogil=True, error_model="numpy")
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


@njit(nogil=True, error_model="numpy")
def _widen(row, wide, inner, first, second, weights, whole, phases):
    """A row of samples as a row of outputs; a sample of weight 0 is not looked at."""
    if inner == 1 and whole > 0:
        _widen_whole(row, wide, len(first) // whole, whole, phases)
    elif inner == 1:
        for o in range(len(first)):
            a, b = row[first[o]], row[second[o]]
            both = weights[0, o] * a + weights[1, o] * b
            wide[o] = a if weights[1, o] == 0 else both
    else:
        for o in range(len(first)):
            a, b, w0, w1 = first[o] * inner, second[o] * inner, weights[0, o], weights[1, o]
            if w1 == 0:
                for k in range(inner):
                    wide[o * inner + k] = row[a + k]
            else:
                for k in range(inner):
                    wide[o * inner + k] = w0 * row[a + k] + w1 * row[b + k]


@njit(nogil=True, error_model="numpy")
def _base(address, plane, channels, chunk, inner, strides, size):
    """Address of the first value of a job's plane: image ``plane // channels``, channel, then a chunk of ``inner`` values."""
    return (
        address + (plane // channels * strides[0] + plane % channels * strides[1] + chunk * inner * strides[4]) * size
    )


def forward(
    x,
    y,
    like,
    counts,
    inner,
    last,
    x_strides,
    y_strides,
    rows,
    row_weights,
    columns,
    column_weights,
    whole,
    phases,
    scratch,
    threads,
):
    """y from x. ``counts``: planes, channels of one image that are planes, chunks a plane, bands of rows, columns of x.

    Strides: image, plane, row, column, value. ``rows`` and ``columns`` are (2, outputs): the two samples of each.
    """
    planes, channels, chunks, bands, width = counts
    height = rows.shape[1]
    outputs = columns.shape[1]
    for tid in prange(threads):
        size = itemsize(like)
        total = planes * chunks * bands
        row, result, even, odd = scratch[tid, 0], scratch[tid, 1], scratch[tid, 2], scratch[tid, 3]
        first, second = columns[0], columns[1]
        for job in range(total * tid // threads, total * (tid + 1) // threads):
            band, rest = job % bands, job // bands
            chunk, plane = rest % chunks, rest // chunks
            n = last if chunk == chunks - 1 else inner
            source = _base(x, plane, channels, chunk, inner, x_strides, size)
            target = _base(y, plane, channels, chunk, inner, y_strides, size)
            held0, held1 = -1, -1
            for o in range(height * band // bands, height * (band + 1) // bands):
                for side in range(2 if row_weights[1, o] != 0 else 1):
                    i = rows[side, o]
                    if i % 2 == 0 and held0 != i:
                        _fetch(row, source + i * x_strides[2] * size, width, n, x_strides[3], x_strides[4], like)
                        _widen(row, even, n, first, second, column_weights, whole, phases)
                        held0 = i
                    elif i % 2 == 1 and held1 != i:
                        _fetch(row, source + i * x_strides[2] * size, width, n, x_strides[3], x_strides[4], like)
                        _widen(row, odd, n, first, second, column_weights, whole, phases)
                        held1 = i
                upper_even = rows[0, o] % 2 == 0
                where = target + o * y_strides[2] * size
                if row_weights[1, o] == 0:
                    if upper_even:
                        _flush(even, where, outputs, n, y_strides[3], y_strides[4], like)
                    else:
                        _flush(odd, where, outputs, n, y_strides[3], y_strides[4], like)
                else:
                    w_even = row_weights[0, o] if upper_even else row_weights[1, o]
                    w_odd = row_weights[1, o] if upper_even else row_weights[0, o]
                    for k in range(outputs * n):
                        result[k] = w_even * even[k] + w_odd * odd[k]
                    _flush(result, where, outputs, n, y_strides[3], y_strides[4], like)


@njit(nogil=True, error_model="numpy")
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


@njit(nogil=True, error_model="numpy")
def _narrow(total, narrow, inner, starts, outputs, weights, whole, phases):
    """The transpose of ``_widen``."""
    if inner == 1 and whole > 0:
        _narrow_whole(total, narrow, len(starts) - 1, whole, phases)
    elif inner == 1:
        for i in range(len(starts) - 1):
            value = weights[0] * 0
            for t in range(starts[i], starts[i + 1]):
                value += weights[t] * total[outputs[t]]
            narrow[i] = value
    else:
        for i in range(len(starts) - 1):
            for k in range(inner):
                narrow[i * inner + k] = 0
            for t in range(starts[i], starts[i + 1]):
                w, o = weights[t], outputs[t] * inner
                for k in range(inner):
                    narrow[i * inner + k] += w * total[o + k]


def backward(
    dy, dx, like, counts, inner, last, dy_strides, dx_strides,
    row_starts, rows, row_weights, column_starts, columns, column_weights, whole, phases, scratch, threads,
):  # fmt: skip
    """dx from dy; counts and strides as in ``forward``, the last count that of dy's columns."""
    planes, channels, chunks, bands, width = counts
    height = len(row_starts) - 1
    for tid in prange(threads):
        size = itemsize(like)
        jobs = planes * chunks * bands
        row, narrow, total = scratch[tid, 0], scratch[tid, 1], scratch[tid, 2]
        for job in range(jobs * tid // threads, jobs * (tid + 1) // threads):
            band, rest = job % bands, job // bands
            chunk, plane = rest % chunks, rest // chunks
            n = last if chunk == chunks - 1 else inner
            source = _base(dy, plane, channels, chunk, inner, dy_strides, size)
            target = _base(dx, plane, channels, chunk, inner, dx_strides, size)
            for i in range(height * band // bands, height * (band + 1) // bands):
                for k in range(width * n):
                    total[k] = 0
                for t in range(row_starts[i], row_starts[i + 1]):
                    _fetch(row, source + rows[t] * dy_strides[2] * size, width, n, dy_strides[3], dy_strides[4], like)
                    w = row_weights[t]
                    for k in range(width * n):
                        total[k] += w * row[k]
                _narrow(total, narrow, n, column_starts, columns, column_weights, whole, phases)
                _flush(
                    narrow,
                    target + i * dx_strides[2] * size,
                    len(column_starts) - 1,
                    n,
                    dx_strides[3],
                    dx_strides[4],
                    like,
                )
