"""Softmax and its gradient on strided memory: kernels. Everything is computed in float64 and rounded once at the end.

Two shapes of loop. ``rows``: the axis that is summed lies closest in memory, and a row is taken chunk by chunk. ``columns``:
another axis does (channels of NCHW), and a strip of COLUMNS neighbouring sums advances together. Sums are taken in
blocks, in an order that follows from the length alone, so that a long row stays accurate and no thread count changes a bit.

``kind``: 0 softmax, 1 log-softmax, 2 gradient of softmax, 3 gradient of log-softmax. ``a`` is x, or dy; ``b`` is x, or
the forward output. Loading this module imports Numba.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from numbadnn.cpu._typed import fetch_run
from numbadnn.cpu._vector import itemsize, load1, store1

CHUNK = 1024
COLUMNS = 128
#: terms of a column that are summed before they join the total
BLOCK = 64
#: terms of a column whose powers are kept, so that each is worked out once
KEPT = 256
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding it rounds to an integer, which then stands in the low bits
_INVERSE_FACTORIALS = tuple(1 / math.factorial(i) for i in range(14))
C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13 = _INVERSE_FACTORIALS[2:]


@njit(nogil=True, inline="always")
def _exp(x):
    """exp(x) for x <= 0 or NaN within 1.5 units in the last place; plain arithmetic, so that LLVM vectorises a loop of it."""
    x = -760.0 if x < -760.0 else x
    t = x * _LOG2E + _ROUND
    n = t - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r) + r2 * (C2 + r * C3)
    middle = (C4 + r * C5) + r2 * (C6 + r * C7)
    high = ((C8 + r * C9) + r2 * (C10 + r * C11)) + r4 * (C12 + r * C13)
    value = low + r4 * (middle + r4 * high)
    bits = np.float64(t).view(np.int64) - np.int64(0x4338000000000000)  # n as an integer
    half = bits >> 1  # two factors: the result may be subnormal
    return value * _power(half) * _power(bits - half)


@njit(nogil=True, inline="always")
def _power(n):
    return np.int64((n + 1023) << 52).view(np.float64)


@njit(nogil=True, error_model="numpy")
def _offset(index, shape, strides):
    """Element offset of a flat index into the axes ``shape``."""
    offset = 0
    for d in range(len(shape) - 1, -1, -1):
        offset += index % shape[d] * strides[d]
        index //= shape[d]
    return offset


@njit(nogil=True, error_model="numpy")
def _fetch(buffer, n, base, offset, step, like):
    base += offset * itemsize(like)
    if step == 1:
        fetch_run(buffer, n, base, like)
    else:
        for i in range(n):
            buffer[i] = load1(base, i * step, like)


@njit(nogil=True, error_model="numpy")
def _flush(buffer, n, base, offset, step, like):
    base += offset * itemsize(like)
    if step == 1:
        for i in range(n):
            store1(base, i, buffer[i], like)
    else:
        for i in range(n):
            store1(base, i * step, buffer[i], like)


@njit(nogil=True, error_model="numpy")
def _total(t, n):
    """Sum of t[:n] in eight lanes; destroys t."""
    while n > 8:
        half = ((n + 1) // 2 + 7) // 8 * 8
        for i in range(n - half):
            t[i] += t[half + i]
        n = half
    total = 0.0
    for i in range(n):
        total += t[i]
    return total


@njit(nogil=True, error_model="numpy")
def _largest(t, u, n):
    """The maximum of t[:n] by halves, which LLVM vectorises; NaN, or another element, where one is NaN. Destroys u."""
    half = ((n + 1) // 2 + 7) // 8 * 8
    if half >= n:
        half = n
        for i in range(n):
            u[i] = t[i]
    else:
        for i in range(n - half):
            u[i] = t[i] if t[i] > t[half + i] else t[half + i]
        for i in range(n - half, half):
            u[i] = t[i]
    n = half
    while n > 8:
        half = ((n + 1) // 2 + 7) // 8 * 8
        for i in range(n - half):
            u[i] = u[i] if u[i] > u[half + i] else u[half + i]
        n = half
    m = u[0]
    for i in range(1, n):
        m = u[i] if u[i] > m else m
    return m


@njit(nogil=True, error_model="numpy")
def _short_row(a, out, like, length, steps, starts, t, u):
    """``_row`` of kind 0 for one run that fits the scratch: each power is worked out once, the bits are the same."""
    _fetch(t, length, a, starts[0], steps[0], like)
    m = _largest(t, u, length)
    for j in range(length):
        u[j] = _exp(t[j] - m)
    for j in range(length):
        t[j] = u[j]
    total = _total(t, length)
    for j in range(length):
        t[j] = u[j] / total
    _flush(t, length, out, starts[2], steps[2], like)


@njit(nogil=True, error_model="numpy")
def _row(a, b, out, like, kind, length, steps, starts, red_shape, red, t, u):
    """One sum over ``length`` elements: an inner run of them at a constant step, at each index of the axes red_shape."""
    outer = 1
    for n in red_shape:
        outer *= n
    m, total, lost = -np.inf, 0.0, 0.0
    for phase in range(0 if kind < 2 else 1, 3):
        if phase == 2:
            total += lost
            if kind == 1:
                total = math.log(total)
        for o in range(outer):
            at_a = starts[0] + _offset(o, red_shape, red[0])
            at_b = starts[1] + _offset(o, red_shape, red[1])
            at_out = starts[2] + _offset(o, red_shape, red[2])
            for i in range(0, length, CHUNK):
                n = min(CHUNK, length - i)
                _fetch(t, n, a, at_a + i * steps[0], steps[0], like)
                if kind >= 2 and (phase == 2 or kind == 2):
                    _fetch(u, n, b, at_b + i * steps[1], steps[1], like)
                if phase == 0:
                    most = _largest(t, u, n)
                    m = m if m > most else most
                elif phase == 1:
                    if kind < 2:
                        for j in range(n):
                            t[j] = _exp(t[j] - m)
                    elif kind == 2:
                        for j in range(n):
                            t[j] *= u[j]
                    part = _total(t, n)
                    fresh = total + part  # compensated (Neumaier)
                    if abs(total) >= abs(part):
                        lost += (total - fresh) + part
                    else:
                        lost += (part - fresh) + total
                    total = fresh
                else:
                    for j in range(n):
                        t[j] = _result(kind, t[j], u[j], m, total)
                    _flush(t, n, out, at_out + i * steps[2], steps[2], like)


@njit(nogil=True, inline="always")
def _result(kind, a, b, m, total):
    if kind == 0:
        return _exp(a - m) / total
    if kind == 1:
        return (a - m) - total
    if kind == 2:
        return b * (a - total)
    return a - _exp(b) * total


def rows(a, b, out, like, kind, count, shape, strides, red_shape, red, length, steps, buffers, threads):
    """``count`` sums, indexed by the axes ``shape``; ``strides``, ``red`` and ``steps`` hold one entry an operand."""
    short = kind == 0 and len(red_shape) == 0 and length <= CHUNK
    for tid in prange(threads):
        first, end = count * tid // threads, count * (tid + 1) // threads
        for i in range(first, end):
            starts = (_offset(i, shape, strides[0]), _offset(i, shape, strides[1]), _offset(i, shape, strides[2]))
            if short:
                _short_row(a, out, like, length, steps, starts, buffers[tid, 0], buffers[tid, 1])
                continue
            _row(a, b, out, like, kind, length, steps, starts, red_shape, red, buffers[tid, 0], buffers[tid, 1])


@njit(nogil=True, error_model="numpy")
def _strip(a, b, out, like, kind, n, steps, starts, length, red_shape, red, table):
    """``n`` neighbouring sums, ``steps`` apart, each over the ``length`` indices of the axes red_shape.

    ``table``: five rows of scratch, then the powers of as many indices as there are rows.
    """
    t, u, m, part, total = table[0], table[1], table[2], table[3], table[4]
    kept = kind == 0 and length <= len(table) - 5
    for j in range(n):
        m[j], part[j], total[j] = -np.inf, 0.0, 0.0
    for phase in range(0 if kind < 2 else 1, 3):
        for i in range(length):
            if kept and phase == 2:
                powers = table[5 + i]
                for j in range(n):
                    t[j] = powers[j] / total[j]
                _flush(t, n, out, starts[2] + _offset(i, red_shape, red[2]), steps[2], like)
                continue
            _fetch(t, n, a, starts[0] + _offset(i, red_shape, red[0]), steps[0], like)
            if kind >= 2 and (phase == 2 or kind == 2):
                _fetch(u, n, b, starts[1] + _offset(i, red_shape, red[1]), steps[1], like)
            if phase == 0:
                for j in range(n):
                    m[j] = t[j] if t[j] > m[j] else m[j]
            elif phase == 1:
                if kept:
                    powers = table[5 + i]
                    for j in range(n):
                        powers[j] = _exp(t[j] - m[j])
                        part[j] += powers[j]
                elif kind < 2:
                    for j in range(n):
                        part[j] += _exp(t[j] - m[j])
                elif kind == 2:
                    for j in range(n):
                        part[j] += t[j] * u[j]
                else:
                    for j in range(n):
                        part[j] += t[j]
                if i % BLOCK == BLOCK - 1 or i == length - 1:
                    for j in range(n):
                        total[j] += part[j]
                        part[j] = 0.0
            else:
                for j in range(n):
                    t[j] = _result(kind, t[j], u[j], m[j], total[j])
                _flush(t, n, out, starts[2] + _offset(i, red_shape, red[2]), steps[2], like)
        if phase == 1 and kind == 1:
            for j in range(n):
                total[j] = math.log(total[j])


def columns(a, b, out, like, kind, count, shape, strides, length, red_shape, red, width, steps, buffers, threads):
    """``count`` x ``width`` sums: the outer axes ``shape``, and an axis whose neighbours lie ``steps`` apart."""
    strips = (width + COLUMNS - 1) // COLUMNS
    for tid in prange(threads):
        first, end = count * strips * tid // threads, count * strips * (tid + 1) // threads
        for job in range(first, end):
            i, j = job // strips, job % strips * COLUMNS
            starts = (
                _offset(i, shape, strides[0]) + j * steps[0],
                _offset(i, shape, strides[1]) + j * steps[1],
                _offset(i, shape, strides[2]) + j * steps[2],
            )
            n = min(COLUMNS, width - j)
            _strip(a, b, out, like, kind, n, steps, starts, length, red_shape, red, buffers[tid])
