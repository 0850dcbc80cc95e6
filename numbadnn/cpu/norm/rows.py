"""Batch normalization where a run of neighbours belongs to one channel (NCHW); what each kernel does says ``loops.py``."""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.lang.lines import flush_rows, line_joint, line_moments, line_sum, source_rows, view
from numbadnn.cpu.lang.past import settle
from numbadnn.cpu.lang.typed import inner, offset_of
from numbadnn.cpu.norm.blocks import apply_line
from numbadnn.cpu.norm.loops import LINE, element, finite, line_at, product, share


@inner
def _moments(t, n, begun, centre):
    """Sums of d and d * d of n neighbours, and the centre: the mean of the first of them where none is known yet."""
    if not begun:
        first = min(LINE, n)
        centre = finite(line_sum(t, first) / first)
    more, squares = line_moments(t, centre, n)
    return more, squares, centre


def moments(
    x, code, channels, kept_n, kept, outer_n, outer, length, step, parts, result, lines, like, direct, stored, threads
):
    """result[part, :, channel] = count, mean, M2 of a piece of the channel's runs."""
    runs, real = product(outer_n), like.dtype.type
    group = max(1, LINE // max(length, 1))
    whole = direct and group == 1
    most = max(length, 1) if whole else LINE
    for tid in prange(threads):
        line = line_at(lines, tid, 0, like)
        for job in range(channels * parts * tid // threads, channels * parts * (tid + 1) // threads):
            channel, part = job // parts, job % parts
            start = offset_of(channel, kept_n, kept)
            first, end = share(runs, parts, part)
            count, s1, s2, centre = 0, 0.0, 0.0, real(0.0)
            for run in range(first, end, group):
                rows = min(group, end - run)
                for i in range(0, length, most):
                    n = min(most, length - i)
                    if whole:
                        found = element(x, start + offset_of(run, outer_n, outer), stored)
                        more, squares, around = _moments(view(found, 0, n, stored), n, count > 0, centre)
                    else:
                        found = source_rows(line, like, n, rows, x, start + i * step, run, outer_n, outer, step, code)
                        more, squares, around = _moments(view(found, 0, rows * n, like), rows * n, count > 0, centre)
                    s1, s2, centre, count = s1 + more, s2 + squares, real(around), count + rows * n
            result[part, 0, channel] = count
            result[part, 1, channel] = centre + s1 / count
            result[part, 2, channel] = s2 - s1 * (s1 / count)


def sums(
    x, dy, codes, mean, channels, kept_n, kept, outer_n, outer, length, step, parts,
    result, lines, like, direct, stored, threads,
):  # fmt: skip
    """result[part, :, channel] = sums of dy, dy * (x - mean) and x - mean over a piece of the channel's runs."""
    runs = product(outer_n)
    group = max(1, LINE // max(length, 1))
    whole = direct and group == 1
    most = max(length, 1) if whole else LINE
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
                    if whole:
                        x_line = element(x, x_at + offset_of(run, outer_n, outer[0]), stored)
                        dy_line = element(dy, dy_at + offset_of(run, outer_n, outer[1]), stored)
                        more = line_joint(view(x_line, 0, n, stored), view(dy_line, 0, n, stored), centre, n)
                    else:
                        x_place = (x, x_at + i * step[0], run, outer_n, outer[0], step[0], codes[0])
                        dy_place = (dy, dy_at + i * step[1], run, outer_n, outer[1], step[1], codes[1])
                        x_line = source_rows(line, like, n, rows, *x_place)
                        dy_line = source_rows(other, like, n, rows, *dy_place)
                        t, v = view(x_line, 0, rows * n, like), view(dy_line, 0, rows * n, like)
                        more = line_joint(t, v, centre, rows * n)
                    s1, s2, s3 = s1 + more[0], s2 + more[1], s3 + more[2]
            result[part, 0, channel], result[part, 1, channel], result[part, 2, channel] = s1, s2, s3


def apply(
    x, dy, out, codes, coefficients, kind, channels, kept_n, kept, outer_n, outer, length, step,
    lines, like, direct, stored, past, threads,
):  # fmt: skip
    """out = (x - m) * a + b (kind 0), dy * a + (x - m) * b + c (1) or dy * a (2); coefficients[:, channel] = m, a, b, c."""
    runs, real = product(outer_n), like.dtype.type
    for tid in prange(threads):
        fresh, line, other = line_at(lines, tid, 0, like), line_at(lines, tid, 1, like), line_at(lines, tid, 2, like)
        x_line, dy_line = line, other
        for job in range(channels * runs * tid // threads, channels * runs * (tid + 1) // threads):
            run, channel = job // channels, job % channels
            x_at, dy_at = offset_of(channel, kept_n, kept[0]), offset_of(channel, kept_n, kept[1])
            out_at = offset_of(channel, kept_n, kept[2])
            m, a = real(coefficients[0, channel]), real(coefficients[1, channel])
            b, c = real(coefficients[2, channel]), real(coefficients[3, channel])
            if direct:
                x_line = element(x, x_at + offset_of(run, outer_n, outer[0]), stored)
                dy_line = element(dy, dy_at + offset_of(run, outer_n, outer[1]), stored)
                result = element(out, out_at + offset_of(run, outer_n, outer[2]), stored)
                apply_line(kind, result, x_line, dy_line, (m, a, b, c), length, stored, past)
                continue
            for i in range(0, length, LINE):
                n = min(LINE, length - i)
                if kind < 2:
                    x_line = source_rows(
                        line, like, n, 1, x, x_at + i * step[0], run, outer_n, outer[0], step[0], codes[0]
                    )
                if kind > 0:
                    dy_line = source_rows(
                        other, like, n, 1, dy, dy_at + i * step[1], run, outer_n, outer[1], step[1], codes[1]
                    )
                apply_line(kind, fresh, x_line, dy_line, (m, a, b, c), n, like, False)
                flush_rows(fresh, like, n, 1, out, out_at + i * step[2], run, outer_n, outer[2], step[2], codes[2])
        if past:
            settle()
