"""Convolution over groups of few channels, and its gradient with respect to the image: sums straight from padded planes.

Both are the sum of ``conv/gather.py``, phases included, with too few rows to fill a matrix product. A job takes a band of rows of
some groups of one image. It lays their channels out, converted, as planes with zeros around, apart by row and column modulo
the subsample. There a term (channel, tap) is an offset, and a run of sums, over the ends of rows too, reads a run of
memory: register tiles (``tile.py``) go along it, and what they sum between two rows is not stored. It goes by a few
rows at a time, so that memory is waited for while others are summed. Where channels are neighbours in memory they are
turned on the way in and out; single ones (depthwise) stay in the lanes of vectors.

Each sum runs over the terms in one order, whoever computes it. Loading this module imports Numba.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from numbadnn.cpu.conv.thin.lines import (
    fetch_lanes,
    fetch_line,
    fetch_rows,
    fetch_turned,
    write_lanes,
    write_rows,
    write_turned,
    zero_line,
)
from numbadnn.cpu.conv.thin.table import LANES, LINES, TURNED, geometry, phase_at, plane_at
from numbadnn.cpu.conv.thin.tile import LONGEST, four_rows, one_row, own_factors, summed, two_rows
from numbadnn.cpu.lang.elements import accsize, itemsize, load1, peek, poke, store1
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import element, lanes, load_acc, multiply_add, store_acc, zeros
from numbadnn.cpu.pool.lines import word


@inner
def _row_of_filters(target, base, offsets, depth, run, like):
    """The factors of a row, whose terms lie at ``offsets`` in the filters, ``run`` of them together."""
    if run < 4:
        for i in range(depth):
            poke(target, i, load1(base, word(offsets, i), like), like)
    else:
        for i in range(0, depth, run):
            count = min(run, depth - i)
            fetch_line(target + i * accsize(like), count, base + word(offsets, i) * itemsize(like), like)


@inner
def _row_of_lanes(target, filters, a_group, g0, groups, offsets, depth, like):
    """The factors of single channels: a vector for each term, of a vector's lanes of channels at a time."""
    vl = lanes(like)
    for lane in range((groups + vl - 1) // vl * vl):
        for i in range(depth):
            at = (lane // vl * depth + i) * vl + lane % vl
            if lane < groups:
                poke(target, at, load1(filters, (g0 + lane) * a_group + word(offsets, i), like), like)
            else:
                poke(target, at, 0.0, like)


@inner
def _filters(target, filters, table, g0, groups, square, like):
    """The factors of so many groups from ``g0`` on, for every phase; whether a gradient's are finite."""
    geo = geometry(table)
    vl, acc, item = lanes(like), accsize(like), itemsize(like)
    zero, rest = zeros(like), 0.0
    for f in range(geo.phases):
        phase = phase_at(table + geo.phases_at + 72 * f)
        here, depth = target + phase.a * acc, phase.terms
        where = table + geo.a_offsets_at + phase.first * 8
        if geo.source == LANES:
            length = (groups + vl - 1) // vl * vl * depth
            _row_of_lanes(here, filters, geo.a_group, g0, groups, where, depth, like)
        else:
            length = groups * geo.M * depth
            for g in range(g0, g0 + groups):
                for m in range(geo.M):
                    base = filters + (g * geo.a_group + m * geo.a_row) * item
                    _row_of_filters(here + ((g - g0) * geo.M + m) * depth * acc, base, where, depth, geo.run, like)
        if geo.gradient:
            whole = length // vl * vl
            for i in range(0, whole, vl):
                zero = multiply_add(zeros(like), load_acc(here + i * acc, like), zero)
            for i in range(whole, length):
                rest += 0.0 * peek(here, i, like)
    if geo.gradient:
        store_acc(square, zero, like)
        for i in range(vl):
            rest += peek(square, i, like)
    return rest == 0.0


@inner
def _fetch(buffer, src, table, g0, groups, n, o, p0, line0, line1, square, like):
    """Lines line0..line1 of the planes of these groups, of a band that begins with row ``p0`` of slice ``o``."""
    geo = geometry(table)
    acc, item = accsize(like), itemsize(like)
    channels, apart, pitch = groups * geo.C, geo.slices * geo.planes * geo.plane, geo.pitch * geo.unit
    step, row_step = geo.step_w * geo.src_w, geo.step_h * geo.src_h
    own = geo.source == LINES
    for c in range(channels if own else 1):
        base = src + (n * geo.src_n + (g0 * geo.C + c) * geo.src_c) * item
        target = buffer + c * apart * acc
        for s in range(geo.slices):
            d = o * geo.step_d + word(table + geo.slices_at, s)
            inside = 0 <= d < geo.D
            for i in range(geo.planes):
                plane = plane_at(table + geo.planes_at + 40 * i)
                # lines before ``begin`` and from ``end`` on are of padding
                begin = min(max(plane.begin - p0, line0), line1) if inside else line0
                end = min(max(plane.end - p0, begin), line1) if inside else line0
                if not geo.still:
                    for b in range(1 if own else geo.buffers):
                        here = target + b * apart * acc
                        zero_line(here + line0 * pitch * acc, (begin - line0) * pitch, like)
                        zero_line(here + end * pitch * acc, (line1 - end) * pitch, like)
                line = target + (begin * pitch + plane.first * geo.unit) * acc
                row = base + (d * geo.src_d + plane.at + (p0 + begin) * row_step) * item
                if own:
                    fetch_rows(line, pitch, end - begin, plane.columns, row, row_step, step, like)
                else:
                    for _ in range(end - begin):
                        if geo.source == TURNED:
                            fetch_turned(line, apart, channels, plane.columns, row, step, square, like)
                        else:
                            fetch_lanes(line, apart, channels, plane.columns, row, step, like)
                        line += pitch * acc
                        row += row_step * item
                target += geo.plane * acc


@inner
def _write(result, out, table, Q, rows, count, beta, square, like):
    """Rows of ``Q`` pixels of ``count`` channels, or of those in the mask ``count``, at address ``out``."""
    geo = geometry(table)
    acc, item = accsize(like), itemsize(like)
    if geo.result == LINES:
        for r in range(count):
            source, base = result + r * geo.row * acc, out + r * geo.out_m * item
            write_rows(source, geo.pitch, rows, Q, base, geo.out_h, geo.out_w, beta, like)
        return
    for p in range(rows):
        source, base = result + p * geo.pitch * geo.unit * acc, out + p * geo.out_h * item
        if geo.result == LANES:
            write_lanes(source, count, Q, base, geo.out_w, beta, like)
        else:
            write_turned(source, geo.row, count, Q, base, geo.out_w, beta, square, like)


@inner
def _some_rows(count, a, source, offsets, depth, where, vectors, out, out_row, alpha, like, result):
    if count == 4:
        four_rows(a, source, offsets, depth, where, vectors, out, out_row, -1, alpha, like, result)
    elif count == 2:
        two_rows(a, source, offsets, depth, where, vectors, out, out_row, -1, alpha, like, result)
    else:
        one_row(a, source, offsets, depth, where, vectors, out, out_row, -1, alpha, like, result)


@inner
def _sum(table, f, a, buffer, result, out, groups, rows, alpha, beta, square, like):
    """Rows of sums of phase ``f``, from the planes' lines at ``buffer`` on, to the rows of the result at ``out``."""
    geo = geometry(table)
    phase = phase_at(table + geo.phases_at + 72 * f)
    vl, acc, item = lanes(like), accsize(like), itemsize(like)
    apart, depth, offsets = geo.slices * geo.planes * geo.plane, phase.terms, table + geo.offsets_at + 8 * phase.first
    direct = phase.where > 0 and beta == 0
    where, vectors = table + phase.where, rows * phase.row_vectors
    if not direct:
        pixels = (rows - 1) * geo.pitch + phase.Q
        where, vectors = table + geo.flat_at, pixels if geo.source == LANES else (pixels + vl - 1) // vl
    if geo.source == LANES:
        line, row = geo.pitch * vl * acc, geo.out_h * item
        # by the columns of a tile, all channels of them: in the result they lie together; rows share lines
        for q in range(0, phase.Q if direct else 0, LONGEST):
            count, here = min(LONGEST, phase.Q - q), where + 24 * q
            for g in range(0, groups, vl):
                pixels, factors, there = buffer + g // vl * apart * acc, a + g * depth * acc, out + g * item
                mask = (1 << min(vl, groups - g)) - 1
                for _ in range(rows):
                    own_factors(factors, pixels, offsets, depth, here, count, there, 0, mask, alpha, like, like)
                    pixels, there = pixels + line, there + row
        for g in range(0, 0 if direct else groups, vl):
            pixels, factors, mask = buffer + g // vl * apart * acc, a + g * depth * acc, (1 << min(vl, groups - g)) - 1
            own_factors(factors, pixels, offsets, depth, where, vectors, result, 0, -1, alpha, like, summed(like))
            _write(result, out + g * item, table, phase.Q, rows, mask, beta, square, like)
        return
    for g in range(groups):
        here, m = buffer + g * geo.C * apart * acc, 0
        while m < geo.M:
            first = g * geo.M + m
            factors, there = a + first * depth * acc, out + first * geo.out_m * item
            count = 4 if m + 4 <= geo.M else 2 if m + 2 <= geo.M else 1
            if direct:
                row = geo.out_m * item
                _some_rows(count, factors, here, offsets, depth, where, vectors, there, row, alpha, like, like)
            else:
                row = geo.row * acc
                target = result + first * row if geo.result == TURNED else result
                _some_rows(count, factors, here, offsets, depth, where, vectors, target, row, alpha, like, summed(like))
                if geo.result == LINES:
                    _write(result, there, table, phase.Q, rows, count, beta, square, like)
            m += count
    if geo.result == TURNED:
        _write(result, out, table, phase.Q, rows, groups * geo.M, beta, square, like)


@inner
def _one_by_one(src, filters, table, f, out, g0, groups, n, o, p0, rows, alpha, beta, square, like):
    """As ``_sum`` of a gradient, from the arrays: no filter is multiplied by what lies outside the image."""
    geo = geometry(table)
    item = itemsize(like)
    phase = phase_at(table + geo.phases_at + 72 * f)
    store_acc(square, zeros(like), like)
    for i in range(groups * geo.M * rows * phase.Q):
        q, p, m = i % phase.Q, i // phase.Q % rows, i // (phase.Q * rows)
        g = g0 + m // geo.M
        image = src + (n * geo.src_n + g * geo.C * geo.src_c) * item
        total = peek(square, 0, like)
        for t in range(phase.first, phase.first + phase.terms):
            place = table + geo.places_at + 32 * t
            d, h, w = o + word(place, 1), p0 + p + word(place, 2), q + word(place, 3)
            if 0 <= d < geo.D and 0 <= h < geo.H and 0 <= w < geo.W:
                where = word(place, 0) * geo.src_c + d * geo.src_d + h * geo.src_h + w * geo.src_w
                at = g * geo.a_group + m % geo.M * geo.a_row + word(table + geo.a_offsets_at, t)
                total = multiply_add(load1(filters, at, like), load1(image, where, like), total)
        where = m * geo.out_m + p * geo.out_h + q * geo.out_w
        one = alpha * total
        if beta != 0:
            one += beta * load1(out, where, like)
        store1(out, where, one, like)


@inner
def _thread(tid, threads, src, filters, out, dtype, table, memory, alpha, beta):
    """The share of one thread; a job is a band of rows of some groups."""
    like = element(dtype)
    geo, acc, item = geometry(table), accsize(like), itemsize(like)
    memory += tid * geo.work * acc
    a, square, result = memory + geo.a_at * acc, memory + geo.square_at * acc, memory + geo.results_at * acc
    zero_line(memory, geo.a_at, like)
    blocks, bands = (geo.G + geo.together - 1) // geo.together, (geo.P + geo.band - 1) // geo.band
    of_block = geo.N * geo.O * bands
    laid_out, finite = -1, True
    for job in range(blocks * of_block * tid // threads, blocks * of_block * (tid + 1) // threads):
        block, n, o, p0 = job // of_block, job // (geo.O * bands) % geo.N, job // bands % geo.O, job % bands * geo.band
        g0, last = block * geo.together, min(p0 + geo.band, geo.P)
        groups = min(geo.together, geo.G - g0)
        if laid_out != block:
            finite, laid_out = _filters(a, filters, table, g0, groups, square, like), block
        for r in range(p0, last, geo.chunk):
            end = min(r + geo.chunk, last)
            if finite:
                # one chunk ahead: a vector can be loaded that was stored by parts when they have left for the cache
                fetched = min(r + geo.ahead, last) - p0 + geo.reach if r > p0 else 0
                lines = min(end + geo.ahead, last) - p0 + geo.reach
                _fetch(memory, src, table, g0, groups, n, o, p0, fetched, lines, square, like)
            for f in range(geo.phases):
                phase = phase_at(table + geo.phases_at + 72 * f)
                rows = min(end, phase.P) - r
                if o >= phase.O or rows <= 0:
                    continue
                at = phase.out + n * geo.out_n + g0 * geo.M * geo.out_m + o * geo.out_d + r * geo.out_h
                here = out + at * item
                if finite:
                    factors = a + phase.a * acc
                    planes = memory + (r - p0) * geo.pitch * geo.unit * acc
                    _sum(table, f, factors, planes, result, here, groups, rows, alpha, beta, square, like)
                else:
                    _one_by_one(src, filters, table, f, here, g0, groups, n, o, r, rows, alpha, beta, square, like)


def thin(src, filters, out, like, table, memory, alpha, beta, threads):
    """The convolution; ``table``: the address of a ``Geometry`` and the lists behind it."""
    for tid in prange(threads):
        _thread(np.int64(tid), threads, src, filters, out, like, table, memory, alpha, beta)
