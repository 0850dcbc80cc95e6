"""Softmax and its gradient on strided memory: kernels. Results are rounded once, at the end.

Two shapes of loop. ``rows``: the axis that is summed lies closest in memory; short rows are taken several at a time, a long
one chunk by chunk. ``columns``: another axis does (channels of NCHW), and a strip of neighbouring sums advances together,
each line of it one index of what is summed. What fits the scratch is fetched and raised to powers once; rows and gradients
are worked on in memory itself where it holds what the scratch would. Results go where no operand is, or loops are not vectorised.
Sums are taken in blocks, in an order that follows from the length alone, so that a long row stays accurate and no thread
count changes a bit. Scratch is at ``lines``, of like's type, float32 or float64: what everything is computed in.

``kind``: 0 softmax, 1 log-softmax, 2 gradient of softmax, 3 gradient of log-softmax. ``a`` is x, or dy; ``b`` is x, or
the forward output; ``code`` is their dtype's number, see ``lang/typed.py``. Loading this module imports Numba.
"""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from numbadnn.cpu.lang.exp import exp as _exp
from numbadnn.cpu.lang.lines import (
    flush_rows,
    in_place,
    line_dot,
    line_largest,
    line_sum,
    memory_rows,
    source_rows,
    view,
)
from numbadnn.cpu.lang.past import settle
from numbadnn.cpu.lang.typed import fetch, flush, inner, offset_of
from numbadnn.cpu.lang.vector import carry, made_good

#: terms of a column that are summed before they join the total
BLOCK = 64


@inner
def _row_total(kind, t, u, result, n, m):
    """What n elements of a row add to its sum; of kinds 0 and 1 the powers are left in ``result``."""
    if kind < 2:
        for j in range(n):
            result[j] = _exp(t[j] - m)
        return line_sum(result, n)
    if kind == 2:
        return line_dot(t, u, n)
    return line_sum(t, n)


@inner
def _row_result(kind, t, u, result, n, m, total):
    """result[:n] = the results; of kind 0 it holds the powers."""
    factor = t.dtype.type(1.0 / total if kind == 0 else math.log(total) if kind == 1 else total)
    if kind == 0:
        for j in range(n):
            result[j] *= factor
    elif kind == 1:
        for j in range(n):
            result[j] = (t[j] - m) - factor
    elif kind == 2:
        for j in range(n):
            result[j] = u[j] * (t[j] - factor)
    else:
        for j in range(n):
            result[j] = t[j] - _exp(u[j]) * factor


@inner
def _short_rows(a, b, out, code, kind, first, rows, shape, strides, n, steps, line, pitch, like):
    """``rows`` rows of n elements, from number ``first`` on, which fit each of three lines of scratch ``pitch`` bytes apart."""
    place, fresh = (out, 0, first, shape, strides[2], steps[2], code), line + 2 * pitch
    t_line = source_rows(line, like, n, rows, a, 0, first, shape, strides[0], steps[0], code)
    u_line = t_line
    if kind >= 2:
        u_line = source_rows(line + pitch, like, n, rows, b, 0, first, shape, strides[1], steps[1], code)
    found = memory_rows(fresh, like, n, rows, *place)
    for at in range(0, rows * n, n):
        t, u, result = view(t_line, at, n, like), view(u_line, at, n, like), view(found, at, n, like)
        m = line_largest(t, n) if kind < 2 else t[0]
        total = _row_total(kind, t, u, result, n, m)
        _row_result(kind, t, u, result, n, m, total)
    if found == fresh:
        flush_rows(fresh, like, n, rows, *place)


@inner
def _long_row(a, b, out, code, kind, length, steps, starts, red_shape, red, chunk, t, u, result):
    """One sum over ``length`` elements: an inner run of them at a constant step, at each index of the axes red_shape."""
    outer = 1
    for n in red_shape:
        outer *= n
    m, total, lost = t.dtype.type(-np.inf), 0.0, 0.0
    for phase in range(0 if kind < 2 else 1, 3):
        if phase == 2:
            total = made_good(total, lost)
        for o in range(outer):
            at_a = starts[0] + offset_of(o, red_shape, red[0])
            at_b = starts[1] + offset_of(o, red_shape, red[1])
            at_out = starts[2] + offset_of(o, red_shape, red[2])
            for i in range(0, length, chunk):
                n = min(chunk, length - i)
                fetch(t, n, a, at_a + i * steps[0], steps[0], code)
                if kind >= 2:
                    fetch(u, n, b, at_b + i * steps[1], steps[1], code)
                if phase == 0:
                    most = line_largest(t, n)
                    m = m if m > most else most
                    continue
                part = _row_total(kind, t, u, result, n, m) if phase == 1 or kind == 0 else 0.0
                if phase == 1:
                    total, lost = carry(total, lost, float(part))
                else:
                    _row_result(kind, t, u, result, n, m, total)
                    flush(result, n, out, at_out + i * steps[2], steps[2], code)


def rows(
    a, b, out, code, kind, count, shape, strides, red_shape, red, length, steps, chunk, lines, like, past, threads
):
    """``count`` sums, indexed by the axes ``shape``; ``strides``, ``red`` and ``steps`` hold one entry an operand."""
    group = chunk // max(length, 1) if len(red_shape) == 0 else 0
    pitch = chunk * like.itemsize
    for tid in prange(threads):
        line = lines + 3 * tid * pitch
        first, end = count * tid // threads, count * (tid + 1) // threads
        for i in range(first, end, max(group, 1)):
            if group > 0:
                number = min(group, end - i)
                _short_rows(a, b, out, code, kind, i, number, shape, strides, length, steps, line, pitch, like)
            else:
                t, u = view(line, 0, chunk, like), view(line, chunk, chunk, like)
                result = view(line, 2 * chunk, chunk, like)
                starts = (
                    offset_of(i, shape, strides[0]),
                    offset_of(i, shape, strides[1]),
                    offset_of(i, shape, strides[2]),
                )
                _long_row(a, b, out, code, kind, length, steps, starts, red_shape, red, chunk, t, u, result)


@inner
def _add_line(kind, n, t, u, m, part):
    """One line's terms join the partial sums; of kind 0 the powers take the elements' place."""
    if kind == 0:
        for j in range(n):
            t[j] = _exp(t[j] - m[j])
            part[j] += t[j]
    elif kind == 1:
        for j in range(n):
            part[j] += _exp(t[j] - m[j])
    elif kind == 2:
        for j in range(n):
            part[j] += t[j] * u[j]
    else:
        for j in range(n):
            part[j] += t[j]


@inner
def _line_result(kind, n, t, u, m, total, result):
    """One line's results; ``total`` is the sum, its inverse (kind 0) or its logarithm (1)."""
    if kind == 0:
        for j in range(n):
            result[j] = t[j] * total[j]
    elif kind == 1:
        for j in range(n):
            result[j] = (t[j] - m[j]) - total[j]
    elif kind == 2:
        for j in range(n):
            result[j] = u[j] * (t[j] - total[j])
    else:
        for j in range(n):
            result[j] = t[j] - _exp(u[j]) * total[j]


@inner
def _strip(a, b, out, code, kind, n, steps, starts, length, red_shape, red, wide, kept, table, like, past):
    """``n`` neighbouring sums, ``steps`` apart, each over the ``length`` indices of the axes red_shape.

    ``table`` holds lines of ``wide`` elements: five of scratch, then those of a and of b: all (``kept``), or one of either.
    """
    result, m = view(table, 0, wide, like), view(table, wide, wide, like)
    part, total = view(table, 2 * wide, wide, like), view(table, 3 * wide, wide, like)
    low, a_lines = view(table, 4 * wide, wide, like), 5
    b_lines = a_lines + (length if kept else 1)
    direct = kind >= 2 and in_place(steps[0], code, like) and steps[1] == 1 and steps[2] == 1
    for j in range(n):
        m[j], part[j], total[j], low[j] = -np.inf, 0.0, 0.0, 0.0
    for phase in range(0 if kind < 2 else 1, 3):
        for i in range(length):
            t, u = (
                view(table, (a_lines + i * kept) * wide, wide, like),
                view(table, (b_lines + i * kept) * wide, wide, like),
            )
            if direct:
                t = view(a, starts[0] + offset_of(i, red_shape, red[0]), n, like)
                u = view(b, starts[1] + offset_of(i, red_shape, red[1]), n, like)
                result = view(out, starts[2] + offset_of(i, red_shape, red[2]), n, like)
            elif not kept or phase == (0 if kind < 2 else 1):
                fetch(t, n, a, starts[0] + offset_of(i, red_shape, red[0]), steps[0], code)
                if kind >= 2:
                    fetch(u, n, b, starts[1] + offset_of(i, red_shape, red[1]), steps[1], code)
            if phase == 0:
                for j in range(n):
                    m[j] = t[j] if t[j] > m[j] else m[j]
            elif phase == 1:
                _add_line(kind, n, t, u, m, part)
                if i % BLOCK == BLOCK - 1 or i == length - 1:
                    for j in range(n):
                        total[j], low[j] = carry(total[j], low[j], part[j])
                        part[j] = 0.0
            else:
                if kind == 0 and not kept:
                    _add_line(kind, n, t, u, m, part)
                _line_result(kind, n, t, u, m, total, result)
                if not direct:
                    flush(result, n, out, starts[2] + offset_of(i, red_shape, red[2]), steps[2], code, past)
        if phase == 1:
            for j in range(n):
                total[j] = made_good(total[j], low[j])
        if phase == 1 and kind < 2:
            for j in range(n):
                total[j] = math.log(total[j]) if kind == 1 else 1.0 / total[j]


def columns(
    a,
    b,
    out,
    code,
    kind,
    count,
    shape,
    strides,
    length,
    red_shape,
    red,
    width,
    steps,
    wide,
    kept,
    height,
    lines,
    like,
    past,
    threads,
):
    """``count`` x ``width`` sums: the outer axes ``shape``, and an axis whose neighbours lie ``steps`` apart.

    ``wide`` of those make a strip, whose lines are all ``kept`` in scratch (1) or fetched again (0); ``height`` counts them.
    """
    strips = (width + wide - 1) // wide
    for tid in prange(threads):
        table = lines + tid * height * wide * like.itemsize
        first, end = count * strips * tid // threads, count * strips * (tid + 1) // threads
        for job in range(first, end):
            i, j = job // strips, job % strips * wide
            starts = (
                offset_of(i, shape, strides[0]) + j * steps[0],
                offset_of(i, shape, strides[1]) + j * steps[1],
                offset_of(i, shape, strides[2]) + j * steps[2],
            )
            n = min(wide, width - j)
            _strip(a, b, out, code, kind, n, steps, starts, length, red_shape, red, wide, kept, table, like, past)
        if past:
            settle()
