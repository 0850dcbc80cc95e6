"""The gradient with respect to the filters of groups that have few: products of runs of pixels, summed in registers.

``dw[k, c, tap] = sum over pixels of y[k, pixel] * x[c, pixel's place under the tap]``. A job takes a part of the pixels, band
by band, and some groups, or, where neighbouring channels are groups of their own, vectors of groups. x is laid out as reals
with its border of zeros, taken apart by row and column modulo the stride, so that under each tap a row of y meets a run of
vectors, of pixels or of channels. y is read where it lies, or laid out in lines of x's pitch, so that a band is one run;
what the last vector of a run, or lanes between two lines, hold is masked and never meets an infinity. Each sum is taken by
vectors, lanes, bands and parts, in an order that follows from the problem alone. Loading this module imports Numba.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.conv.thin.filters_lines import inlined, lay_planes
from numbadnn.cpu.conv.thin.filters_tile import MASKING, TILES, clear, tile
from numbadnn.cpu.lang.elements import accsize, itemsize
from numbadnn.cpu.lang.runs import write_run
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import element, lanes, load_acc, scale_add, store_acc


@inlined
def _lay_x(here, x, place, first, last, rows, geo, phases, spare, like):
    """x of a band that begins at ``place`` of y, for the blocks ``first`` to ``last``; whether all of it is finite."""
    n, o, p, q = place
    acc, number = accsize(like), rows + geo.reach
    channel, count = (first * lanes(like), last - first) if geo.across else (first * geo.C, (last - first) * geo.C)
    groups = geo.G - channel if geo.across else 0
    plane, finite = here, True
    gap = geo.plane * acc if geo.split else 0
    for t in range(geo.slices):
        depth = o * geo.step_d + t * geo.dilation_d - geo.front
        for a in range(phases[0, 0]):
            row, top, bottom = phases[1 + a, 0] + p * geo.step_h, phases[1 + a, 1] - p, phases[1 + a, 2] - p
            begin = min(max(top, 0), number)
            end = min(max(bottom, begin), number) if 0 <= depth < geo.D else begin
            for b in range(0, phases[0, 1], 2 if geo.split else 1):
                column, left, right = phases[1 + b, 3] + q * geo.step_w, phases[1 + b, 4] - q, phases[1 + b, 5] - q
                low = min(max(left, 0), geo.pitch)
                high = min(max(right, low), geo.pitch)
                if geo.split:
                    low, high = max(-column, 0), max(geo.W - column, 0)
                at = n * geo.x_n + channel * geo.x_c + depth * geo.x_d + row * geo.x_h + column * geo.x_w
                shape = (number, geo.pitch, begin, end if low < high else begin, low, high)
                strides = (geo.step_h * geo.x_h, geo.step_w * geo.x_w)
                good = lay_planes(
                    plane, geo.x_size * acc, count, gap, x, at, geo.x_c, shape, strides, groups, spare, like
                )
                finite = finite and good
                plane += geo.plane * acc + gap
    return finite


@inlined
def _lay_y(here, y, at, first, last, rows, columns, geo, phases, spare, like):
    """y of a band that begins at element ``at``, for the blocks ``first`` to ``last``."""
    none = phases[0, 2]  # a 0 that no compiler knows: it would make another copy for it
    size, strides = geo.y_size * accsize(like), (geo.y_h, geo.y_w)
    if geo.across:
        shape = (rows, columns, none, rows, none, columns)
        lay_planes(
            here, size, last - first, none, y, at, geo.y_k, shape, strides, geo.G - first * lanes(like), spare, like
        )
    else:
        shape = (rows, geo.pitch, none, rows, none, columns)
        lay_planes(here, size, (last - first) * geo.K, none, y, at, geo.y_k, shape, strides, none, spare, like)


@inlined
def _put(w, line, block, k, geo, w_offsets, alpha, beta, like):
    """The sums of filter k of a block to w."""
    vl, acc = lanes(like), accsize(like)
    if geo.across:
        for i in range(geo.terms):
            first, n = block * vl * geo.w_k + w_offsets[i], min(vl, geo.G - block * vl)
            write_run(line + i * vl * acc, w, first, n, geo.w_k, alpha, beta, like)
        return
    first, run = (block * geo.K + k) * geo.w_k, geo.terms if geo.w_step else geo.terms // geo.terms
    for i in range(0, geo.terms, run):
        write_run(line + i * acc, w, first + w_offsets[i], run, geo.w_step, alpha, beta, like)


@inlined
def _multiply(here, y, y_step, sums, count, tail, finite, geo, walk, offsets, masks, like):
    """A band's products, for ``count`` blocks, of which the last is the ``tail`` of vectors of groups."""
    which, tile_y, tile_x = (
        (geo.tile, geo.tile_y, geo.tile_x) if finite else (MASKING, TILES[MASKING].y, TILES[MASKING].x)
    )
    acc = accsize(like)
    unit = lanes(like) * acc if geo.across else acc
    step = geo.sums * acc
    filters = (geo.K + geo.tile_y - 1) // geo.tile_y * geo.tile_y
    for c in range(count):
        mask = masks + 8 if tail and c == count - 1 else masks
        for k in range(0, geo.K, tile_y):
            for i in range(0, geo.terms, tile_x):
                at, x = sums + (c * filters + k) * step + i * unit, here + c * geo.C * geo.x_size * acc
                line = y + (c * geo.K + k) * y_step
                tile(which, at, step, x, offsets + i * 8, line, y_step, mask, walk, like)


@inner
def _job(x, y, w, like, geo, tables, spare, partial, part, first, last, alpha, beta):
    """One part of the blocks ``first`` to ``last``."""
    vl, acc = lanes(like), accsize(like)
    phases, walks, w_offsets, offsets, masks = tables
    unit = vl if geo.across else 1
    down, along = (geo.P + geo.rows - 1) // geo.rows, (geo.Q + geo.columns - 1) // geo.columns
    filters = (geo.K + geo.tile_y - 1) // geo.tile_y * geo.tile_y
    here = spare + 2 * vl * vl * acc
    laid = here + geo.x_capacity * acc
    sums = laid + geo.y_capacity * acc
    clear(sums, (last - first) * filters * geo.sums * acc)
    for band in range(geo.bands * part // geo.parts, geo.bands * (part + 1) // geo.parts):
        image, place = divmod(band, down * along)
        n, o = divmod(image, geo.O)
        p, q = place // along * geo.rows, place % along * geo.columns
        rows, columns = min(geo.rows, geo.P - p), min(geo.columns, geo.Q - q)
        kind = 2 * (rows != geo.rows) + (columns != geo.columns)
        walk = (walks[kind, 1], walks[kind, 2], walks[kind, 3], walks[kind, 4], walks[kind, 5], walks[kind, 6])
        finite = _lay_x(here, x, (n, o, p, q), first, last, rows, geo, phases, spare, like)
        at = n * geo.y_n + first * geo.K * unit * geo.y_k + o * geo.y_d + p * geo.y_h + q * geo.y_w
        if geo.in_place:
            source, step = y + at * itemsize(like), unit * geo.y_k * itemsize(like)
        else:
            source, step = laid, geo.y_size * acc
            _lay_y(laid, y, at, first, last, rows, columns, geo, phases, spare, like)
        tail, mask = geo.across and last == geo.blocks, masks.ctypes.data + walks[kind, 0]
        offsets_at = offsets.ctypes.data
        _multiply(here, source, step, sums, last - first, tail, finite, geo, walk, offsets_at, mask, like)
    for block in range(first, last):
        for k in range(geo.K):
            line = sums + ((block - first) * filters + k) * geo.sums * acc
            if geo.parts == 1:
                _put(w, line, block, k, geo, w_offsets, alpha, beta, like)
            else:
                target = partial + ((part * geo.blocks + block) * geo.K + k) * geo.sums * acc
                for i in range(0, geo.sums, vl):
                    store_acc(target + i * acc, load_acc(line + i * acc, like), like)


def products(x, y, w, array, geo, tables, work, size, partial, alpha, beta, threads):
    """Every job: w where there is one part, else the parts' sums at ``partial`` [part][block][filter]."""
    chunks = (geo.blocks + geo.together - 1) // geo.together
    jobs = geo.parts * chunks
    for tid in prange(threads):
        like, here = element(array), work + tid * size
        for job in range(jobs * tid // threads, jobs * (tid + 1) // threads):
            part, first = job // chunks, job % chunks * geo.together
            last = min(first + geo.together, geo.blocks)
            _job(x, y, w, like, geo, tables, here, partial, part, first, last, alpha, beta)


def finish(w, array, geo, w_offsets, partial, alpha, beta, threads):
    """w = alpha * the sum of the parts + beta * w."""
    filters = geo.blocks * geo.K
    for tid in prange(threads):
        like = element(array)
        acc = accsize(like)
        step = filters * geo.sums * acc
        for f in range(filters * tid // threads, filters * (tid + 1) // threads):
            line = partial + f * geo.sums * acc
            for i in range(0, geo.sums, lanes(like)):
                value = load_acc(line + i * acc, like)
                for part in range(1, geo.parts):
                    value = scale_add(1.0, value, 1.0, load_acc(line + i * acc + part * step, like))
                store_acc(line + i * acc, value, like)
            _put(w, line, f // geo.K, f % geo.K, geo, w_offsets, alpha, beta, like)
