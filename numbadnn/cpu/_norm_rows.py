"""Batch normalization where a run of neighbours belongs to one channel (NCHW); what each kernel does says ``_norm.py``."""

from __future__ import annotations

from numba import prange

from numbadnn.cpu._lines import flush_rows, line_joint, line_moments, line_sum, source_rows, view
from numbadnn.cpu._norm import LINE, alike, element, finite, line_at, product, share
from numbadnn.cpu._norm_apply import apply_line, apply_memory
from numbadnn.cpu._typed import _BF16, _F16, _F32, _F64, inner, offset_of


@inner
def _moments(address, n, code, begun, centre):  # type: ignore[no-untyped-def]
    """Sums of d and d * d of n neighbours, and the centre: the mean of the first of them where none is known yet."""
    if code == 0:
        return _moments_of(view(address, 0, n, _F32), n, begun, centre)
    if code == 1:
        return _moments_of(view(address, 0, n, _F64), n, begun, centre)
    if code == 2:
        return _moments_of(view(address, 0, n, _F16), n, begun, centre)
    return _moments_of(view(address, 0, n, _BF16), n, begun, centre)


@inner
def _moments_of(t, n, begun, centre):  # type: ignore[no-untyped-def]
    if not begun:
        first = min(LINE, n)
        centre = finite(line_sum(t, first) / first)
    more, squares = line_moments(t, centre, n)
    return more, squares, centre


@inner
def _joint(x, dy, n, code, centre):  # type: ignore[no-untyped-def]
    """Sums of dy, dy * d and d of n neighbours."""
    if code == 0:
        return line_joint(view(x, 0, n, _F32), view(dy, 0, n, _F32), centre, n)
    if code == 1:
        return line_joint(view(x, 0, n, _F64), view(dy, 0, n, _F64), centre, n)
    if code == 2:
        return line_joint(view(x, 0, n, _F16), view(dy, 0, n, _F16), centre, n)
    return line_joint(view(x, 0, n, _BF16), view(dy, 0, n, _BF16), centre, n)


def moments(  # type: ignore[no-untyped-def]
    x, code, channels, kept_n, kept, outer_n, outer, length, step, parts, result, lines, like, threads
):
    """result[part, :, channel] = count, mean, M2 of a piece of the channel's runs."""
    runs, own, real = product(outer_n), 0 if like.itemsize == 4 else 1, like.dtype.type
    group = max(1, LINE // max(length, 1))
    direct = group == 1 and alike((step,), (code,), like)
    most, type_of = (max(length, 1), code) if direct else (LINE, own)
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
                    if direct:
                        found = element(x, start + offset_of(run, outer_n, outer), code)
                    else:
                        found = source_rows(line, like, n, rows, x, start + i * step, run, outer_n, outer, step, code)
                    more, squares, around = _moments(found, rows * n, type_of, count > 0, centre)
                    s1, s2, centre, count = s1 + more, s2 + squares, real(around), count + rows * n
            result[part, 0, channel] = count
            result[part, 1, channel] = centre + s1 / count
            result[part, 2, channel] = s2 - s1 * (s1 / count)


def sums(  # type: ignore[no-untyped-def]
    x, dy, codes, mean, channels, kept_n, kept, outer_n, outer, length, step, parts, result, lines, like, threads
):
    """result[part, :, channel] = sums of dy, dy * (x - mean) and x - mean over a piece of the channel's runs."""
    runs, own = product(outer_n), 0 if like.itemsize == 4 else 1
    group = max(1, LINE // max(length, 1))
    direct = group == 1 and alike(step, codes, like)
    most, type_of = (max(length, 1), codes[0]) if direct else (LINE, own)
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
                    if direct:
                        x_line = element(x, x_at + offset_of(run, outer_n, outer[0]), codes[0])
                        dy_line = element(dy, dy_at + offset_of(run, outer_n, outer[1]), codes[0])
                    else:
                        x_place = (x, x_at + i * step[0], run, outer_n, outer[0], step[0], codes[0])
                        dy_place = (dy, dy_at + i * step[1], run, outer_n, outer[1], step[1], codes[1])
                        x_line = source_rows(line, like, n, rows, *x_place)
                        dy_line = source_rows(other, like, n, rows, *dy_place)
                    more = _joint(x_line, dy_line, rows * n, type_of, centre)
                    s1, s2, s3 = s1 + more[0], s2 + more[1], s3 + more[2]
            result[part, 0, channel], result[part, 1, channel], result[part, 2, channel] = s1, s2, s3


def apply(  # type: ignore[no-untyped-def]
    x, dy, out, codes, coefficients, kind, channels, kept_n, kept, outer_n, outer, length, step, lines, like, threads
):
    """out = (x - m) * a + b (kind 0), dy * a + (x - m) * b + c (1) or dy * a (2); coefficients[:, channel] = m, a, b, c."""
    runs, direct, real = product(outer_n), alike(step, codes, like), like.dtype.type
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
                x_line = element(x, x_at + offset_of(run, outer_n, outer[0]), codes[0])
                dy_line = element(dy, dy_at + offset_of(run, outer_n, outer[1]), codes[0])
                result = element(out, out_at + offset_of(run, outer_n, outer[2]), codes[0])
                apply_memory(kind, result, x_line, dy_line, codes[0], m, a, b, c, length)
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
                apply_line(kind, fresh, x_line, dy_line, m, a, b, c, n, like)
                flush_rows(fresh, like, n, 1, out, out_at + i * step[2], run, outer_n, outer[2], step[2], codes[2])
