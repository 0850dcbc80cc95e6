"""Batch normalization where neighbours belong to channels of their own (NHWC, per-activation); see ``loops.py``."""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.lang.lines import flush_rows, source_rows, view
from numbadnn.cpu.lang.past import settle
from numbadnn.cpu.lang.typed import inner, offset_of
from numbadnn.cpu.norm.blocks import add_moments, add_sums, apply_line
from numbadnn.cpu.norm.loops import LINE, element, finite, line_at, product, share

#: lines whose sums are kept in the lines' own type before they join the total; lines of a job of ``apply``
BLOCK, TOGETHER = 64, 16


@inner
def _repeat(t, values, n, rows):
    """t = the n values, ``rows`` times."""
    for r in range(rows):
        for j in range(n):
            t[r * n + j] = values[j]


@inner
def _fold(t, n, rows, totals, at):
    """totals[at : at + n] += the rows of t; t = 0."""
    for r in range(rows):
        for j in range(n):
            totals[at + j] += t[r * n + j]
            t[r * n + j] = 0.0


@inner
def _piece(job, strips, parts, width, total):
    """A job's part, outer index, first column, columns and first channel, and which rows it takes."""
    part, strip, o = job // strips % parts, job % strips, job // strips // parts
    j0 = strip * LINE
    first, end = share(total, parts, part)
    return part, o, j0, min(LINE, width - j0), o * width + j0, first, end


def moments(
    x, code, outers, outer_n, outer, width, step, red_n, red, parts, result, lines, like, direct, stored, threads
):
    """As ``moments`` of rows: ``outers`` x ``width`` channels, the last lying ``step`` apart."""
    strips, total = (width + LINE - 1) // LINE, product(red_n)
    for tid in prange(threads):
        line = line_at(lines, tid, 0, like)
        s1, s2 = view(line_at(lines, tid, 1, like), 0, LINE, like), view(line_at(lines, tid, 2, like), 0, LINE, like)
        centre = view(line_at(lines, tid, 3, like), 0, LINE, like)
        for job in range(outers * strips * parts * tid // threads, outers * strips * parts * (tid + 1) // threads):
            part, o, j0, n, at, first, end = _piece(job, strips, parts, width, total)
            start = offset_of(o, outer_n, outer) + j0 * step
            group = max(1, min(LINE // n, end - first))
            whole = direct and (group == 1 or (len(red_n) == 1 and red[0] == n))
            result[part, :, at : at + n] = 0.0
            for row in range(first, end, group):
                rows = min(group, end - row)
                if whole and row > first:
                    found = element(x, start + offset_of(row, red_n, red), stored)
                    add_moments(found, found, (centre,), (s1, s2), rows * n, stored)
                else:
                    found = source_rows(line, like, n, rows, x, start, row, red_n, red, step, code)
                    if row == first:
                        _start(view(found, 0, LINE, like), s1, s2, centre, n, rows, result[part], at)
                    add_moments(found, found, (centre,), (s1, s2), rows * n, like)
                if (row - first) // group % BLOCK == BLOCK - 1 or row + group >= end:
                    _fold(s1, n, group, result[part, 1], at)
                    _fold(s2, n, group, result[part, 2], at)
            for j in range(n):
                result[part, 0, at + j] = end - first
                result[part, 2, at + j] -= result[part, 1, at + j] * (result[part, 1, at + j] / (end - first))
                result[part, 1, at + j] = centre[j] + result[part, 1, at + j] / (end - first)


@inner
def _start(t, s1, s2, centre, n, rows, result, at):
    """Sums of 0, and the means of the first line's rows to centre around."""
    for j in range(rows * n):
        s1[j], s2[j] = t[j], 0.0
    _fold(s1, n, rows, result[1], at)
    for j in range(n):
        centre[j] = finite(result[1, at + j] / rows)
        result[1, at + j] = 0.0
    for r in range(1, rows):
        for j in range(n):
            centre[r * n + j] = centre[j]


def sums(
    x, dy, codes, mean, outers, outer_n, outer, width, step, red_n, red, parts,
    result, lines, like, direct, stored, threads,
):  # fmt: skip
    """As ``sums`` of rows: ``outers`` x ``width`` channels, the last lying ``step`` apart."""
    strips, total = (width + LINE - 1) // LINE, product(red_n)
    for tid in prange(threads):
        line, other = line_at(lines, tid, 0, like), line_at(lines, tid, 1, like)
        s1, s2 = view(line_at(lines, tid, 2, like), 0, LINE, like), view(line_at(lines, tid, 3, like), 0, LINE, like)
        s3 = view(line_at(lines, tid, 4, like), 0, LINE, like)
        centre = view(line_at(lines, tid, 5, like), 0, LINE, like)
        for job in range(outers * strips * parts * tid // threads, outers * strips * parts * (tid + 1) // threads):
            part, o, j0, n, at, first, end = _piece(job, strips, parts, width, total)
            x_at = offset_of(o, outer_n, outer[0]) + j0 * step[0]
            dy_at = offset_of(o, outer_n, outer[1]) + j0 * step[1]
            group = max(1, min(LINE // n, end - first))
            whole = direct and (group == 1 or (len(red_n) == 1 and red[0, 0] == n and red[1, 0] == n))
            _repeat(centre, mean[at : at + n], n, group)
            for j in range(group * n):
                s1[j], s2[j], s3[j] = 0.0, 0.0, 0.0
            result[part, :, at : at + n] = 0.0
            for row in range(first, end, group):
                rows = min(group, end - row)
                if whole:
                    x_line = element(x, x_at + offset_of(row, red_n, red[0]), stored)
                    dy_line = element(dy, dy_at + offset_of(row, red_n, red[1]), stored)
                    add_sums(x_line, dy_line, (centre,), (s1, s2, s3), rows * n, stored)
                else:
                    x_line = source_rows(line, like, n, rows, x, x_at, row, red_n, red[0], step[0], codes[0])
                    dy_line = source_rows(other, like, n, rows, dy, dy_at, row, red_n, red[1], step[1], codes[1])
                    add_sums(x_line, dy_line, (centre,), (s1, s2, s3), rows * n, like)
                if (row - first) // group % BLOCK == BLOCK - 1 or row + group >= end:
                    _fold(s1, n, group, result[part, 0], at)
                    _fold(s2, n, group, result[part, 1], at)
                    _fold(s3, n, group, result[part, 2], at)


def apply(
    x, dy, out, codes, coefficients, kind, outers, outer_n, outer, width, step, red_n, red,
    lines, like, direct, stored, past, threads,
):  # fmt: skip
    """As ``apply`` of rows, for runs along the channels."""
    strips, total = (width + LINE - 1) // LINE, product(red_n)
    group = max(1, min(LINE // min(LINE, max(width, 1)), total))
    whole = direct
    for i in range(3):  # a line of several rows
        whole = whole and (group == 1 or (len(red_n) == 1 and red[i, 0] == width))
    blocks = (total + group * TOGETHER - 1) // (group * TOGETHER)
    for tid in prange(threads):
        fresh, line, other = line_at(lines, tid, 0, like), line_at(lines, tid, 1, like), line_at(lines, tid, 6, like)
        x_line, dy_line = line, other
        m, a = view(line_at(lines, tid, 2, like), 0, LINE, like), view(line_at(lines, tid, 3, like), 0, LINE, like)
        b, c = view(line_at(lines, tid, 4, like), 0, LINE, like), view(line_at(lines, tid, 5, like), 0, LINE, like)
        begun = -1
        for job in range(outers * strips * blocks * tid // threads, outers * strips * blocks * (tid + 1) // threads):
            row, strip, o = job % blocks * (group * TOGETHER), job // blocks % strips, job // blocks // strips
            j0 = strip * LINE
            n, at = min(LINE, width - j0), o * width + j0
            if begun != job // blocks:  # the coefficients of another strip
                begun = job // blocks
                _repeat(m, coefficients[0, at : at + n], n, group)
                _repeat(a, coefficients[1, at : at + n], n, group)
                _repeat(b, coefficients[2, at : at + n], n, group)
                _repeat(c, coefficients[3, at : at + n], n, group)
            x_at, dy_at = offset_of(o, outer_n, outer[0]) + j0 * step[0], offset_of(o, outer_n, outer[1]) + j0 * step[1]
            out_at = offset_of(o, outer_n, outer[2]) + j0 * step[2]
            for r in range(row, min(row + group * TOGETHER, total), group):
                rows = min(group, total - r)
                if whole:
                    x_line = element(x, x_at + offset_of(r, red_n, red[0]), stored)
                    dy_line = element(dy, dy_at + offset_of(r, red_n, red[1]), stored)
                    result = element(out, out_at + offset_of(r, red_n, red[2]), stored)
                    apply_line(kind, result, x_line, dy_line, (m, a, b, c), rows * n, stored, past)
                    continue
                if kind < 2:
                    x_line = source_rows(line, like, n, rows, x, x_at, r, red_n, red[0], step[0], codes[0])
                if kind > 0:
                    dy_line = source_rows(other, like, n, rows, dy, dy_at, r, red_n, red[1], step[1], codes[1])
                apply_line(kind, fresh, x_line, dy_line, (m, a, b, c), rows * n, like, False)
                flush_rows(fresh, like, n, rows, out, out_at, r, red_n, red[2], step[2], codes[2])
        if past:
            settle()
