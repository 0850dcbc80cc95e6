"""Batch normalization on strided memory: kernels. Everything is computed in float64 and rounded once at the end.

Three steps, each in two shapes of loop. ``moments`` and ``sums`` reduce pieces of the channels: (mean, M2) around each
piece's own mean, or the sums that gradients need; their pieces follow from the problem alone and are joined in order, so
that no thread count changes a bit. ``apply`` then walks the elements once more. In ``*_rows`` a run of neighbouring elements
belongs to one channel (NCHW), in ``*_columns`` to as many channels as it is long (NHWC, per-activation).

``kept``, ``outer``, ``red`` and ``step`` hold one element stride for each operand; dtypes are numbers, see ``_typed``.
Loading this module imports Numba.
"""

from __future__ import annotations

from numba import njit, prange

from numbadnn.cpu._typed import fetch, flush, offset_of

CHUNK = 1024
COLUMNS = 256
#: rows of a strip that are averaged together before they join the total
BLOCK = 8
#: rows that a strip's coefficients are used for before the next strip's
ROWS = 32


@njit(nogil=True, error_model="numpy")
def _total(t, u, n):  # type: ignore[no-untyped-def]
    """Sum of t[:n] by halves, in a tree; destroys u."""
    half = ((n + 1) // 2 + 7) // 8 * 8
    if half >= n:
        half = n
        for i in range(n):
            u[i] = t[i]
    else:
        for i in range(n - half):
            u[i] = t[i] + t[half + i]
        for i in range(n - half, half):
            u[i] = t[i]
    n = half
    while n > 8:
        half = ((n + 1) // 2 + 7) // 8 * 8
        for i in range(n - half):
            u[i] += u[half + i]
        n = half
    total = 0.0
    for i in range(n):
        total += u[i]
    return total


@njit(nogil=True, error_model="numpy")
def _fetch_rows(t, n, rows, base, start, first, red_n, red, step, code):  # type: ignore[no-untyped-def]
    """t[r * n : (r + 1) * n] = n elements of row first + r; in one run where the rows follow each other."""
    if len(red_n) == 1 and step == 1 and red[0] == n:
        fetch(t, rows * n, base, start + first * n, 1, code)
        return
    for r in range(rows):
        fetch(t[r * n : (r + 1) * n], n, base, start + offset_of(first + r, red_n, red), step, code)


@njit(nogil=True, error_model="numpy")
def _flush_rows(t, n, rows, base, start, first, red_n, red, step, code):  # type: ignore[no-untyped-def]
    """The reverse of ``_fetch_rows``."""
    if len(red_n) == 1 and step == 1 and red[0] == n:
        flush(t, rows * n, base, start + first * n, 1, code)
        return
    for r in range(rows):
        flush(t[r * n : (r + 1) * n], n, base, start + offset_of(first + r, red_n, red), step, code)


@njit(nogil=True, inline="always")
def _share(total, parts, part):  # type: ignore[no-untyped-def]
    return total * part // parts, total * (part + 1) // parts


def moments_rows(x, code, channels, kept_n, kept, outer_n, outer, length, step, parts, result, buffers, threads):  # type: ignore[no-untyped-def]
    """result[part, :, channel] = count, mean, M2 of a piece of the channel's runs."""
    runs = 1
    for n in outer_n:
        runs *= n
    for tid in prange(threads):
        t, u, v = buffers[tid, 0], buffers[tid, 1], buffers[tid, 2]
        for job in range(channels * parts * tid // threads, channels * parts * (tid + 1) // threads):
            channel, part = job // parts, job % parts
            start = offset_of(channel, kept_n, kept)
            first, end = _share(runs, parts, part)
            count, mean, m2 = 0.0, 0.0, 0.0
            for run in range(first, end):
                at = start + offset_of(run, outer_n, outer)
                for i in range(0, length, CHUNK):
                    n = min(CHUNK, length - i)
                    fetch(t, n, x, at + i * step, step, code)
                    centre = _total(t, u, n) / n
                    for j in range(n):
                        v[j] = (t[j] - centre) * (t[j] - centre)
                    around = _total(v, u, n)
                    fresh, delta = count + n, centre - mean
                    mean += delta * (n / fresh)
                    m2 += around + delta * delta * (count * n / fresh)
                    count = fresh
            result[part, 0, channel], result[part, 1, channel], result[part, 2, channel] = count, mean, m2


def moments_columns(x, code, outers, outer_n, outer, width, step, red_n, red, parts, result, buffers, threads):  # type: ignore[no-untyped-def]
    """As moments_rows: ``outers`` x ``width`` channels, the last lying ``step`` apart."""
    strips = (width + COLUMNS - 1) // COLUMNS
    total = 1
    for n in red_n:
        total *= n
    for tid in prange(threads):
        t = buffers[tid, 0]
        mean, m2, centre = (
            buffers[tid, 2, :COLUMNS],
            buffers[tid, 2, COLUMNS : 2 * COLUMNS],
            buffers[tid, 2, 2 * COLUMNS :],
        )
        for job in range(outers * strips * parts * tid // threads, outers * strips * parts * (tid + 1) // threads):
            part, strip = job // strips % parts, job % strips
            o = job // strips // parts
            j0 = strip * COLUMNS
            n = min(COLUMNS, width - j0)
            start = offset_of(o, outer_n, outer) + j0 * step
            for j in range(n):
                mean[j], m2[j] = 0.0, 0.0
            first, end = _share(total, parts, part)
            count = 0.0
            for row in range(first, end, BLOCK):
                rows = min(BLOCK, end - row)
                _fetch_rows(t, n, rows, x, start, row, red_n, red, step, code)
                for j in range(n):
                    centre[j] = t[j]
                for r in range(1, rows):
                    for j in range(n):
                        centre[j] += t[r * n + j]
                fresh = count + rows
                share, weight = rows / fresh, count * rows / fresh
                for j in range(n):
                    centre[j] /= rows
                    delta = centre[j] - mean[j]
                    mean[j] += delta * share
                    m2[j] += delta * delta * weight
                for r in range(rows):
                    for j in range(n):
                        m2[j] += (t[r * n + j] - centre[j]) * (t[r * n + j] - centre[j])
                count = fresh
            at = o * width + j0
            for j in range(n):
                result[part, 0, at + j], result[part, 1, at + j], result[part, 2, at + j] = count, mean[j], m2[j]


def sums_rows(
    x, dy, codes, mean, channels, kept_n, kept, outer_n, outer, length, step, parts, result, buffers, threads
):  # type: ignore[no-untyped-def]
    """result[part, :, channel] = sums of dy, dy * (x - mean) and x - mean over a piece of the channel's runs."""
    runs = 1
    for n in outer_n:
        runs *= n
    for tid in prange(threads):
        t, u, v = buffers[tid, 0], buffers[tid, 1], buffers[tid, 2]
        for job in range(channels * parts * tid // threads, channels * parts * (tid + 1) // threads):
            channel, part = job // parts, job % parts
            x_start, dy_start = offset_of(channel, kept_n, kept[0]), offset_of(channel, kept_n, kept[1])
            first, end = _share(runs, parts, part)
            centre, s1, s2, s3 = mean[channel], 0.0, 0.0, 0.0
            for run in range(first, end):
                x_at = x_start + offset_of(run, outer_n, outer[0])
                dy_at = dy_start + offset_of(run, outer_n, outer[1])
                for i in range(0, length, CHUNK):
                    n = min(CHUNK, length - i)
                    fetch(t, n, x, x_at + i * step[0], step[0], codes[0])
                    fetch(v, n, dy, dy_at + i * step[1], step[1], codes[1])
                    for j in range(n):
                        t[j] -= centre
                    s1 += _total(v, u, n)
                    s3 += _total(t, u, n)
                    for j in range(n):
                        t[j] *= v[j]
                    s2 += _total(t, u, n)
            result[part, 0, channel], result[part, 1, channel], result[part, 2, channel] = s1, s2, s3


def sums_columns(x, dy, codes, mean, outers, outer_n, outer, width, step, red_n, red, parts, result, buffers, threads):  # type: ignore[no-untyped-def]
    """As sums_rows: ``outers`` x ``width`` channels, the last lying ``step`` apart."""
    strips = (width + COLUMNS - 1) // COLUMNS
    total = 1
    for n in red_n:
        total *= n
    for tid in prange(threads):
        t, v, rest = buffers[tid, 0], buffers[tid, 1], buffers[tid, 2]
        s1, s2 = rest[:COLUMNS], rest[COLUMNS : 2 * COLUMNS]
        s3, centre = rest[2 * COLUMNS : 3 * COLUMNS], rest[3 * COLUMNS :]
        for job in range(outers * strips * parts * tid // threads, outers * strips * parts * (tid + 1) // threads):
            part, strip = job // strips % parts, job % strips
            o = job // strips // parts
            j0 = strip * COLUMNS
            n = min(COLUMNS, width - j0)
            x_start = offset_of(o, outer_n, outer[0]) + j0 * step[0]
            dy_start = offset_of(o, outer_n, outer[1]) + j0 * step[1]
            at = o * width + j0
            for j in range(n):
                s1[j], s2[j], s3[j], centre[j] = 0.0, 0.0, 0.0, mean[at + j]
            first, end = _share(total, parts, part)
            for row in range(first, end, BLOCK):
                rows = min(BLOCK, end - row)
                _fetch_rows(t, n, rows, x, x_start, row, red_n, red[0], step[0], codes[0])
                _fetch_rows(v, n, rows, dy, dy_start, row, red_n, red[1], step[1], codes[1])
                for r in range(rows):
                    for j in range(n):
                        d = t[r * n + j] - centre[j]
                        s1[j] += v[r * n + j]
                        s2[j] += v[r * n + j] * d
                        s3[j] += d
            for j in range(n):
                result[part, 0, at + j], result[part, 1, at + j], result[part, 2, at + j] = s1[j], s2[j], s3[j]


def apply_rows(
    x, dy, out, codes, coefficients, kind, channels, kept_n, kept, outer_n, outer, length, step, buffers, threads
):  # type: ignore[no-untyped-def]
    """out = (x - m) * a + b (kind 0), dy * a + (x - m) * b + c (1) or dy * a (2); coefficients[:, channel] = m, a, b, c."""
    runs = 1
    for n in outer_n:
        runs *= n
    for tid in prange(threads):
        t, v = buffers[tid, 0], buffers[tid, 1]
        for job in range(channels * runs * tid // threads, channels * runs * (tid + 1) // threads):
            run, channel = job // channels, job % channels
            m, a = coefficients[0, channel], coefficients[1, channel]
            b, c = coefficients[2, channel], coefficients[3, channel]
            x_at = offset_of(channel, kept_n, kept[0]) + offset_of(run, outer_n, outer[0])
            dy_at = offset_of(channel, kept_n, kept[1]) + offset_of(run, outer_n, outer[1])
            out_at = offset_of(channel, kept_n, kept[2]) + offset_of(run, outer_n, outer[2])
            for i in range(0, length, CHUNK):
                n = min(CHUNK, length - i)
                if kind < 2:
                    fetch(t, n, x, x_at + i * step[0], step[0], codes[0])
                if kind > 0:
                    fetch(v, n, dy, dy_at + i * step[1], step[1], codes[1])
                if kind == 0:
                    for j in range(n):
                        t[j] = (t[j] - m) * a + b
                elif kind == 1:
                    for j in range(n):
                        t[j] = v[j] * a + ((t[j] - m) * b + c)
                else:
                    for j in range(n):
                        t[j] = v[j] * a
                flush(t, n, out, out_at + i * step[2], step[2], codes[2])


def apply_columns(
    x, dy, out, codes, coefficients, kind, outers, outer_n, outer, width, step, red_n, red, buffers, threads
):  # type: ignore[no-untyped-def]
    """As apply_rows, for runs along the channels."""
    strips = (width + COLUMNS - 1) // COLUMNS
    total = 1
    for n in red_n:
        total *= n
    blocks = (total + ROWS - 1) // ROWS
    jobs = outers * blocks
    for tid in prange(threads):
        t, v = buffers[tid, 0], buffers[tid, 1]
        for job in range(jobs * tid // threads, jobs * (tid + 1) // threads):
            o, first = job % outers, job // outers * ROWS
            x_start, dy_start = offset_of(o, outer_n, outer[0]), offset_of(o, outer_n, outer[1])
            out_start = offset_of(o, outer_n, outer[2])
            for strip in range(strips):
                j0 = strip * COLUMNS
                n = min(COLUMNS, width - j0)
                at = o * width + j0
                m, a = coefficients[0, at : at + n], coefficients[1, at : at + n]
                b, c = coefficients[2, at : at + n], coefficients[3, at : at + n]
                for row in range(first, min(first + ROWS, total), BLOCK):
                    rows = min(BLOCK, total - row)
                    if kind < 2:
                        _fetch_rows(t, n, rows, x, x_start + j0 * step[0], row, red_n, red[0], step[0], codes[0])
                    if kind > 0:
                        _fetch_rows(v, n, rows, dy, dy_start + j0 * step[1], row, red_n, red[1], step[1], codes[1])
                    for r in range(rows):
                        if kind == 0:
                            for j in range(n):
                                t[r * n + j] = (t[r * n + j] - m[j]) * a[j] + b[j]
                        elif kind == 1:
                            for j in range(n):
                                t[r * n + j] = v[r * n + j] * a[j] + ((t[r * n + j] - m[j]) * b[j] + c[j])
                        else:
                            for j in range(n):
                                t[r * n + j] = v[r * n + j] * a[j]
                    _flush_rows(t, n, rows, out, out_start + j0 * step[2], row, red_n, red[2], step[2], codes[2])
