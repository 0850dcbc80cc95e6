"""Batch normalization on strided memory: kernels. Results are rounded once, at the end.

Three steps, each in two shapes of loop. ``moments`` and ``sums`` reduce pieces of the channels: (count, mean, M2), or the sums
that gradients need; their pieces follow from the problem alone and are joined in order, so that no thread count changes a
bit. ``apply`` then walks the elements once more. In ``*_rows`` a run of neighbouring elements belongs to one channel (NCHW), in
``*_columns`` to as many channels as it is long (NHWC, per-activation): there a line holds as many rows as fit, and what is a
number a channel is repeated for each, so that every loop is as long as a line.

Elements are taken from memory itself where it holds what a line would, whole runs at once; results go to a line that is no
operand's, as a loop that may overwrite what it reads is not vectorised. Elements are centred in the type of the lines,
float32 or float64, before they are squared: around the mean of the first line of a piece, or the mean given, so that a
large mean costs nothing. Sums of lines are added in float64.

``kept``, ``outer``, ``red`` and ``step`` hold one element stride for each operand; dtypes are numbers, see ``_typed``. Each
thread has LINES lines at ``lines``, of like's type. Loading this module imports Numba.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu._lines import (
    flush_rows,
    in_place,
    line_joint,
    line_moments,
    line_sum,
    memory_rows,
    source_rows,
    view,
)
from numbadnn.cpu._typed import inner, offset_of

#: elements of a line in scratch, lines of a thread, and from one to the next
LINE, LINES, PITCH = 1024, 7, 1088
#: lines whose sums are kept in the lines' own type before they join the total
BLOCK = 64


@inner
def _product(shape):  # type: ignore[no-untyped-def]
    total = 1
    for n in shape:
        total *= n
    return total


@inner
def _share(total, parts, part):  # type: ignore[no-untyped-def]
    return total * part // parts, total * (part + 1) // parts


@inner
def _line(lines, tid, number, like):  # type: ignore[no-untyped-def]
    """Address of one of a thread's lines."""
    return lines + (tid * LINES + number) * PITCH * like.itemsize


@inner
def _finite(value):  # type: ignore[no-untyped-def]
    """The value to centre around: 0 for one that would turn all else into NaN."""
    return value if abs(value) < float("inf") else 0.0


@inner
def _repeat(t, values, n, rows):  # type: ignore[no-untyped-def]
    """t = the n values, ``rows`` times."""
    for r in range(rows):
        for j in range(n):
            t[r * n + j] = values[j]


@inner
def _fold(t, n, rows, totals, at):  # type: ignore[no-untyped-def]
    """totals[at : at + n] += the rows of t; t = 0."""
    for r in range(rows):
        for j in range(n):
            totals[at + j] += t[r * n + j]
            t[r * n + j] = 0.0


@inner
def _all_in_place(step, codes, like):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(len(step)):
        count += in_place(step[i], codes[i], like)
    return count == len(step)


def moments_rows(  # type: ignore[no-untyped-def]
    x, code, channels, kept_n, kept, outer_n, outer, length, step, parts, result, lines, like, threads
):
    """result[part, :, channel] = count, mean, M2 of a piece of the channel's runs."""
    runs = _product(outer_n)
    group = max(1, LINE // max(length, 1))
    most = max(length, 1) if in_place(step, code, like) else LINE
    for tid in prange(threads):
        line = _line(lines, tid, 0, like)
        for job in range(channels * parts * tid // threads, channels * parts * (tid + 1) // threads):
            channel, part = job // parts, job % parts
            start = offset_of(channel, kept_n, kept)
            first, end = _share(runs, parts, part)
            count, s1, s2, centre = 0, 0.0, 0.0, like.dtype.type(0.0)
            for run in range(first, end, group):
                rows = min(group, end - run)
                for i in range(0, length, most):
                    n = min(most, length - i)
                    found = source_rows(line, like, n, rows, x, start + i * step, run, outer_n, outer, step, code)
                    t = view(found, 0, rows * n, like)
                    if count == 0:
                        first_n = min(LINE, rows * n)
                        centre = t.dtype.type(_finite(line_sum(t, first_n) / first_n))
                    more, squares = line_moments(t, centre, rows * n)
                    s1, s2, count = s1 + more, s2 + squares, count + rows * n
            result[part, 0, channel] = count
            result[part, 1, channel] = centre + s1 / count
            result[part, 2, channel] = s2 - s1 * (s1 / count)


def moments_columns(  # type: ignore[no-untyped-def]
    x, code, outers, outer_n, outer, width, step, red_n, red, parts, result, lines, like, threads
):
    """As moments_rows: ``outers`` x ``width`` channels, the last lying ``step`` apart."""
    strips, total = (width + LINE - 1) // LINE, _product(red_n)
    for tid in prange(threads):
        line = _line(lines, tid, 0, like)
        s1 = view(_line(lines, tid, 1, like), 0, LINE, like)
        s2, centre = view(_line(lines, tid, 2, like), 0, LINE, like), view(_line(lines, tid, 3, like), 0, LINE, like)
        for job in range(outers * strips * parts * tid // threads, outers * strips * parts * (tid + 1) // threads):
            part, strip, o = job // strips % parts, job % strips, job // strips // parts
            j0 = strip * LINE
            n, at = min(LINE, width - j0), o * width + j0
            start = offset_of(o, outer_n, outer) + j0 * step
            first, end = _share(total, parts, part)
            group = max(1, min(LINE // n, end - first))
            result[part, :, at : at + n] = 0.0
            for row in range(first, end, group):
                rows = min(group, end - row)
                found = source_rows(line, like, n, rows, x, start, row, red_n, red, step, code)
                t = view(found, 0, LINE, like)
                if row == first:
                    _start(t, s1, s2, centre, n, rows, result[part], at)
                _add_moments(t, centre, s1, s2, rows * n)
                if (row - first) // group % BLOCK == BLOCK - 1 or row + group >= end:
                    _fold(s1, n, group, result[part, 1], at)
                    _fold(s2, n, group, result[part, 2], at)
            for j in range(n):
                result[part, 0, at + j] = end - first
                result[part, 2, at + j] -= result[part, 1, at + j] * (result[part, 1, at + j] / (end - first))
                result[part, 1, at + j] = centre[j] + result[part, 1, at + j] / (end - first)


@inner
def _start(t, s1, s2, centre, n, rows, result, at):  # type: ignore[no-untyped-def]
    """Sums of 0, and the means of the first line's rows to centre around."""
    for j in range(rows * n):
        s1[j], s2[j] = t[j], 0.0
    _fold(s1, n, rows, result[1], at)
    for j in range(n):
        centre[j] = _finite(result[1, at + j] / rows)
        result[1, at + j] = 0.0
    for r in range(1, rows):
        for j in range(n):
            centre[r * n + j] = centre[j]


@inner
def _add_moments(t, centre, s1, s2, n):  # type: ignore[no-untyped-def]
    for j in range(n):
        d = t[j] - centre[j]
        s1[j] += d
        s2[j] += d * d


def sums_rows(  # type: ignore[no-untyped-def]
    x, dy, codes, mean, channels, kept_n, kept, outer_n, outer, length, step, parts, result, lines, like, threads
):
    """result[part, :, channel] = sums of dy, dy * (x - mean) and x - mean over a piece of the channel's runs."""
    runs = _product(outer_n)
    group = max(1, LINE // max(length, 1))
    most = max(length, 1) if _all_in_place(step, codes, like) else LINE
    for tid in prange(threads):
        line, other = _line(lines, tid, 0, like), _line(lines, tid, 1, like)
        for job in range(channels * parts * tid // threads, channels * parts * (tid + 1) // threads):
            channel, part = job // parts, job % parts
            x_at, dy_at = offset_of(channel, kept_n, kept[0]), offset_of(channel, kept_n, kept[1])
            first, end = _share(runs, parts, part)
            centre, s1, s2, s3 = like.dtype.type(mean[channel]), 0.0, 0.0, 0.0
            for run in range(first, end, group):
                rows = min(group, end - run)
                for i in range(0, length, most):
                    n = min(most, length - i)
                    x_place = (x, x_at + i * step[0], run, outer_n, outer[0], step[0], codes[0])
                    dy_place = (dy, dy_at + i * step[1], run, outer_n, outer[1], step[1], codes[1])
                    t = view(source_rows(line, like, n, rows, *x_place), 0, rows * n, like)
                    v = view(source_rows(other, like, n, rows, *dy_place), 0, rows * n, like)
                    more = line_joint(t, v, centre, rows * n)
                    s1, s2, s3 = s1 + more[0], s2 + more[1], s3 + more[2]
            result[part, 0, channel], result[part, 1, channel], result[part, 2, channel] = s1, s2, s3


def sums_columns(  # type: ignore[no-untyped-def]
    x, dy, codes, mean, outers, outer_n, outer, width, step, red_n, red, parts, result, lines, like, threads
):
    """As sums_rows: ``outers`` x ``width`` channels, the last lying ``step`` apart."""
    strips, total = (width + LINE - 1) // LINE, _product(red_n)
    for tid in prange(threads):
        line, other = _line(lines, tid, 0, like), _line(lines, tid, 1, like)
        s1, s2 = view(_line(lines, tid, 2, like), 0, LINE, like), view(_line(lines, tid, 3, like), 0, LINE, like)
        s3, centre = view(_line(lines, tid, 4, like), 0, LINE, like), view(_line(lines, tid, 5, like), 0, LINE, like)
        for job in range(outers * strips * parts * tid // threads, outers * strips * parts * (tid + 1) // threads):
            part, strip, o = job // strips % parts, job % strips, job // strips // parts
            j0 = strip * LINE
            n, at = min(LINE, width - j0), o * width + j0
            x_at = offset_of(o, outer_n, outer[0]) + j0 * step[0]
            dy_at = offset_of(o, outer_n, outer[1]) + j0 * step[1]
            first, end = _share(total, parts, part)
            group = max(1, min(LINE // n, end - first))
            _repeat(centre, mean[at : at + n], n, group)
            for j in range(group * n):
                s1[j], s2[j], s3[j] = 0.0, 0.0, 0.0
            result[part, :, at : at + n] = 0.0
            for row in range(first, end, group):
                rows = min(group, end - row)
                x_line = source_rows(line, like, n, rows, x, x_at, row, red_n, red[0], step[0], codes[0])
                dy_line = source_rows(other, like, n, rows, dy, dy_at, row, red_n, red[1], step[1], codes[1])
                t, v = view(x_line, 0, LINE, like), view(dy_line, 0, LINE, like)
                _add_sums(t, v, centre, s1, s2, s3, rows * n)
                if (row - first) // group % BLOCK == BLOCK - 1 or row + group >= end:
                    _fold(s1, n, group, result[part, 0], at)
                    _fold(s2, n, group, result[part, 1], at)
                    _fold(s3, n, group, result[part, 2], at)


@inner
def _add_sums(t, v, centre, s1, s2, s3, n):  # type: ignore[no-untyped-def]
    for j in range(n):
        d = t[j] - centre[j]
        s1[j] += v[j]
        s2[j] += v[j] * d
        s3[j] += d


def apply_rows(  # type: ignore[no-untyped-def]
    x, dy, out, codes, coefficients, kind, channels, kept_n, kept, outer_n, outer, length, step, lines, like, threads
):
    """out = (x - m) * a + b (kind 0), dy * a + (x - m) * b + c (1) or dy * a (2); coefficients[:, channel] = m, a, b, c."""
    runs = _product(outer_n)
    most = max(length, 1) if _all_in_place(step, codes, like) else LINE
    for tid in prange(threads):
        fresh, line, other = _line(lines, tid, 0, like), _line(lines, tid, 1, like), _line(lines, tid, 2, like)
        x_line, dy_line = line, other
        for job in range(channels * runs * tid // threads, channels * runs * (tid + 1) // threads):
            run, channel = job // channels, job % channels
            x_at, dy_at = offset_of(channel, kept_n, kept[0]), offset_of(channel, kept_n, kept[1])
            out_at = offset_of(channel, kept_n, kept[2])
            for i in range(0, length, most):
                n = min(most, length - i)
                if kind < 2:
                    x_line = source_rows(
                        line, like, n, 1, x, x_at + i * step[0], run, outer_n, outer[0], step[0], codes[0]
                    )
                if kind > 0:
                    dy_line = source_rows(
                        other, like, n, 1, dy, dy_at + i * step[1], run, outer_n, outer[1], step[1], codes[1]
                    )
                place = (out, out_at + i * step[2], run, outer_n, outer[2], step[2], codes[2])
                result = memory_rows(fresh, like, n, 1, *place)
                t, v = view(x_line, 0, n, like), view(dy_line, 0, n, like)
                _apply_one(kind, t, v, view(result, 0, n, like), n, coefficients, channel)
                if result == fresh:
                    flush_rows(fresh, like, n, 1, *place)


@inner
def _apply_one(kind, t, v, result, n, coefficients, channel):  # type: ignore[no-untyped-def]
    """The results of one channel's line."""
    real = t.dtype.type
    m, a = real(coefficients[0, channel]), real(coefficients[1, channel])
    b, c = real(coefficients[2, channel]), real(coefficients[3, channel])
    if kind == 0:
        for j in range(n):
            result[j] = (t[j] - m) * a + b
    elif kind == 1:
        for j in range(n):
            result[j] = v[j] * a + ((t[j] - m) * b + c)
    else:
        for j in range(n):
            result[j] = v[j] * a


def apply_columns(  # type: ignore[no-untyped-def]
    x, dy, out, codes, coefficients, kind, outers, outer_n, outer, width, step, red_n, red, lines, like, threads
):
    """As apply_rows, for runs along the channels."""
    strips, total = (width + LINE - 1) // LINE, _product(red_n)
    group = max(1, min(LINE // min(LINE, max(width, 1)), total))
    blocks = (total + group - 1) // group
    for tid in prange(threads):
        fresh, line, other = _line(lines, tid, 0, like), _line(lines, tid, 1, like), _line(lines, tid, 6, like)
        x_line, dy_line = line, other
        m, a = view(_line(lines, tid, 2, like), 0, LINE, like), view(_line(lines, tid, 3, like), 0, LINE, like)
        b, c = view(_line(lines, tid, 4, like), 0, LINE, like), view(_line(lines, tid, 5, like), 0, LINE, like)
        begun = -1
        for job in range(outers * strips * blocks * tid // threads, outers * strips * blocks * (tid + 1) // threads):
            row, strip, o = job % blocks * group, job // blocks % strips, job // blocks // strips
            j0 = strip * LINE
            n, at = min(LINE, width - j0), o * width + j0
            if begun != job // blocks:  # the coefficients of another strip
                begun = job // blocks
                _repeat(m, coefficients[0, at : at + n], n, group)
                _repeat(a, coefficients[1, at : at + n], n, group)
                _repeat(b, coefficients[2, at : at + n], n, group)
                _repeat(c, coefficients[3, at : at + n], n, group)
            rows = min(group, total - row)
            x_at, dy_at = offset_of(o, outer_n, outer[0]) + j0 * step[0], offset_of(o, outer_n, outer[1]) + j0 * step[1]
            out_at = offset_of(o, outer_n, outer[2]) + j0 * step[2]
            if kind < 2:
                x_line = source_rows(line, like, n, rows, x, x_at, row, red_n, red[0], step[0], codes[0])
            if kind > 0:
                dy_line = source_rows(other, like, n, rows, dy, dy_at, row, red_n, red[1], step[1], codes[1])
            place = (out, out_at, row, red_n, red[2], step[2], codes[2])
            result = memory_rows(fresh, like, n, rows, *place)
            t, v = view(x_line, 0, LINE, like), view(dy_line, 0, LINE, like)
            _apply_each(kind, t, v, view(result, 0, LINE, like), m, a, b, c, rows * n)
            if result == fresh:
                flush_rows(fresh, like, n, rows, *place)


@inner
def _apply_each(kind, t, v, result, m, a, b, c, n):  # type: ignore[no-untyped-def]
    """The results of a line whose elements have coefficients of their own."""
    if kind == 0:
        for j in range(n):
            result[j] = (t[j] - m[j]) * a[j] + b[j]
    elif kind == 1:
        for j in range(n):
            result[j] = v[j] * a[j] + ((t[j] - m[j]) * b[j] + c[j])
    else:
        for j in range(n):
            result[j] = v[j] * a[j]
