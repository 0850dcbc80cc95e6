"""Batch normalization where a run of neighbours belongs to one channel (NCHW); what each kernel does says ``_norm.py``."""

from __future__ import annotations

from numba import prange

from numbadnn.cpu._lines import flush_rows, in_place, line_joint, line_moments, line_sum, memory_rows, source_rows, view
from numbadnn.cpu._norm import LINE, all_in_place, finite, line_at, product, share
from numbadnn.cpu._typed import inner, offset_of


def moments(  # type: ignore[no-untyped-def]
    x, code, channels, kept_n, kept, outer_n, outer, length, step, parts, result, lines, like, threads
):
    """result[part, :, channel] = count, mean, M2 of a piece of the channel's runs."""
    runs = product(outer_n)
    group = max(1, LINE // max(length, 1))
    most = max(length, 1) if in_place(step, code, like) else LINE
    for tid in prange(threads):
        line = line_at(lines, tid, 0, like)
        for job in range(channels * parts * tid // threads, channels * parts * (tid + 1) // threads):
            channel, part = job // parts, job % parts
            start = offset_of(channel, kept_n, kept)
            first, end = share(runs, parts, part)
            count, s1, s2, centre = 0, 0.0, 0.0, like.dtype.type(0.0)
            for run in range(first, end, group):
                rows = min(group, end - run)
                for i in range(0, length, most):
                    n = min(most, length - i)
                    found = source_rows(line, like, n, rows, x, start + i * step, run, outer_n, outer, step, code)
                    t = view(found, 0, rows * n, like)
                    if count == 0:
                        first_n = min(LINE, rows * n)
                        centre = t.dtype.type(finite(line_sum(t, first_n) / first_n))
                    more, squares = line_moments(t, centre, rows * n)
                    s1, s2, count = s1 + more, s2 + squares, count + rows * n
            result[part, 0, channel] = count
            result[part, 1, channel] = centre + s1 / count
            result[part, 2, channel] = s2 - s1 * (s1 / count)


def sums(  # type: ignore[no-untyped-def]
    x, dy, codes, mean, channels, kept_n, kept, outer_n, outer, length, step, parts, result, lines, like, threads
):
    """result[part, :, channel] = sums of dy, dy * (x - mean) and x - mean over a piece of the channel's runs."""
    runs = product(outer_n)
    group = max(1, LINE // max(length, 1))
    most = max(length, 1) if all_in_place(step, codes, like) else LINE
    for tid in prange(threads):
        line, other = line_at(lines, tid, 0, like), line_at(lines, tid, 1, like)
        for job in range(channels * parts * tid // threads, channels * parts * (tid + 1) // threads):
            channel, part = job // parts, job % parts
            x_at, dy_at = offset_of(channel, kept_n, kept[0]), offset_of(channel, kept_n, kept[1])
            first, end = share(runs, parts, part)
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


def apply(  # type: ignore[no-untyped-def]
    x, dy, out, codes, coefficients, kind, channels, kept_n, kept, outer_n, outer, length, step, lines, like, threads
):
    """out = (x - m) * a + b (kind 0), dy * a + (x - m) * b + c (1) or dy * a (2); coefficients[:, channel] = m, a, b, c."""
    runs = product(outer_n)
    most = max(length, 1) if all_in_place(step, codes, like) else LINE
    for tid in prange(threads):
        fresh, line, other = line_at(lines, tid, 0, like), line_at(lines, tid, 1, like), line_at(lines, tid, 2, like)
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
