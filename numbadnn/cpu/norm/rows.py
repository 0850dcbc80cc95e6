"""Batch normalization where a run of neighbours belongs to one channel (NCHW); what each kernel does says ``loops.py``."""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.lang.lines import LANES, flush_rows, line_joint, line_moments, line_sum, source_rows, view
from numbadnn.cpu.lang.past import settle
from numbadnn.cpu.lang.typed import inner, into, offset_of
from numbadnn.cpu.norm.blocks import apply_runs
from numbadnn.cpu.norm.loops import LINE, element, finite, line_at, product, share


@into
def _run_at(run, outer_n, outer):
    """``offset_of`` for the axes of runs: mostly one, and then a call costs as much as a short run."""
    return run * outer[0] if len(outer_n) == 1 else offset_of(run, outer_n, outer)


@into
def _lie_whole(direct, group, length, like):
    """Whether runs are summed where they lie, not as lines of several: in float64 these add up in fewer steps."""
    return direct and (group == 1 or (like.itemsize == 4 and length >= LANES))


@inner
def _apart(kept, stored):
    """Bytes from the run of one channel to the next, of the result, x and dy, where there is one step."""
    if kept.shape[1] != 1:
        return 0, 0, 0
    return kept[2, 0] * stored.itemsize, kept[0, 0] * stored.itemsize, kept[1, 0] * stored.itemsize


@inner
def _centre(t, n):
    """The mean of the first of n neighbours."""
    first = min(LINE, n)
    return finite(line_sum(t, first) / first)


def moments(
    x, code, channels, kept_n, kept, outer_n, outer, length, step, parts, result, lines, like, direct, stored, threads
):
    """result[part, :, channel] = count, mean, M2 of a piece of the channel's runs."""
    runs, real = product(outer_n), like.dtype.type
    group = max(1, LINE // max(length, 1))
    whole = _lie_whole(direct, group, length, like)
    for tid in prange(threads):
        line = line_at(lines, tid, 0, like)
        for job in range(channels * parts * tid // threads, channels * parts * (tid + 1) // threads):
            channel, part = job // parts, job % parts
            start = offset_of(channel, kept_n, kept)
            first, end = share(runs, parts, part)
            count, s1, s2, centre = 0, 0.0, 0.0, real(0.0)
            if whole:
                count = (end - first) * length
                found = element(x, start + _run_at(first, outer_n, outer), stored)
                centre = real(_centre(view(found, 0, length, stored), length))
                for run in range(first, end):
                    found = element(x, start + _run_at(run, outer_n, outer), stored)
                    more, squares = line_moments(view(found, 0, length, stored), centre, length)
                    s1, s2 = s1 + more, s2 + squares
            else:
                for run in range(first, end, group):
                    rows = min(group, end - run)
                    for i in range(0, length, LINE):
                        n = min(LINE, length - i)
                        found = source_rows(line, like, n, rows, x, start + i * step, run, outer_n, outer, step, code)
                        t = view(found, 0, rows * n, like)
                        if count == 0:
                            centre = real(_centre(t, rows * n))
                        more, squares = line_moments(t, centre, rows * n)
                        s1, s2, count = s1 + more, s2 + squares, count + rows * n
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
    whole = _lie_whole(direct, group, length, like)
    for tid in prange(threads):
        line, other = line_at(lines, tid, 0, like), line_at(lines, tid, 1, like)
        for job in range(channels * parts * tid // threads, channels * parts * (tid + 1) // threads):
            channel, part = job // parts, job % parts
            x_at, dy_at = offset_of(channel, kept_n, kept[0]), offset_of(channel, kept_n, kept[1])
            first, end = share(runs, parts, part)
            centre, s1, s2, s3 = like.dtype.type(mean[channel]), 0.0, 0.0, 0.0
            if whole:
                for run in range(first, end):
                    x_line = view(element(x, x_at + _run_at(run, outer_n, outer[0]), stored), 0, length, stored)
                    dy_line = view(element(dy, dy_at + _run_at(run, outer_n, outer[1]), stored), 0, length, stored)
                    more = line_joint(x_line, dy_line, centre, length)
                    s1, s2, s3 = s1 + more[0], s2 + more[1], s3 + more[2]
            else:
                for run in range(first, end, group):
                    rows = min(group, end - run)
                    for i in range(0, length, LINE):
                        n = min(LINE, length - i)
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
    runs = product(outer_n)
    for tid in prange(threads):
        fresh, line, other = line_at(lines, tid, 0, like), line_at(lines, tid, 1, like), line_at(lines, tid, 2, like)
        x_line, dy_line = line, other
        together = channels if direct and len(kept_n) == 1 else 1  # whose runs lie at one step
        steps = _apart(kept, stored)
        job, end = channels * runs * tid // threads, channels * runs * (tid + 1) // threads
        while job < end:
            run, channel = job // channels, job % channels
            last = min(channel + together, channels, channel + end - job)
            job += last - channel
            x_at = offset_of(channel, kept_n, kept[0]) + offset_of(run, outer_n, outer[0])
            dy_at = offset_of(channel, kept_n, kept[1]) + offset_of(run, outer_n, outer[1])
            out_at = offset_of(channel, kept_n, kept[2]) + offset_of(run, outer_n, outer[2])
            if direct:
                x_line, dy_line, result = (
                    element(x, x_at, stored),
                    element(dy, dy_at, stored),
                    element(out, out_at, stored),
                )
                apply_runs(
                    kind, result, x_line, dy_line, steps, coefficients, like, channel, last, length, stored, past
                )
                continue
            for i in range(0, length, LINE):
                n = min(LINE, length - i)
                if kind < 2:
                    x_line = source_rows(
                        line, like, n, 1, x, x_at + i * step[0], 0, outer_n, outer[0], step[0], codes[0]
                    )
                if kind > 0:
                    dy_line = source_rows(
                        other, like, n, 1, dy, dy_at + i * step[1], 0, outer_n, outer[1], step[1], codes[1]
                    )
                apply_runs(kind, fresh, x_line, dy_line, steps, coefficients, like, channel, last, n, like, False)
                flush_rows(fresh, like, n, 1, out, out_at + i * step[2], 0, outer_n, outer[2], step[2], codes[2])
        if past:
            settle()
