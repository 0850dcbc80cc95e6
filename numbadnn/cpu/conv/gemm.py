"""Convolution as a blocked matrix product whose Toeplitz matrix never exists: three pieces shared by all directions.

``segments`` describes a stretch of pixels of an image under one filter tap as short runs of memory, one list a vector;
``pack`` copies rows of the Toeplitz matrix by these lists into a buffer of the size of a cache, converting the type on
the way; ``unpack`` does the reverse for the result. Between them stands ``microkernel`` (``micro.py``), a register
tile of MR x NR over KC terms. This is the structure of BLIS (Van Zee and van de Geijn, 2015) with the packing reading
straight from the image.

Sizes are elements, addresses are bytes, ``like`` carries the stored type. Loading this module imports Numba.
"""

from __future__ import annotations

from numbadnn.cpu.conv.micro import NV
from numbadnn.cpu.lang.elements import accsize, itemsize, load1, peek, poke, store1
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import (
    lanes,
    load,
    load_acc,
    load_even,
    prefetch_line,
    scale,
    scale_add,
    store,
    store_acc,
    store_even,
    zeros,
)

#: so many channels ahead memory is asked for: the processor does not foresee that a channel goes on in another page
AHEAD = 2


@inner
def segments(count, table, limit, vl, j0, j1, grid, image, strides, tap, spread):
    """List the runs of memory behind output pixels j0..j1 (flattened over images, slices, rows, columns) under one tap.

    ``grid`` = (O, P, Q, slice step, row step, column step), ``image`` = (D, H, W), ``strides`` = element strides of image,
    slice, row, column, ``tap`` = (dt, dr, ds): pixel (n, o, p, q) reads slice o*step + dt, row p*step + dr, column
    q*step + ds; outside the image is padding and in no run. Vector v of the stretch has count[v] runs; run s is
    table[2*(v*limit + s)] = offset of the element lane 0 would have, and then a mask of lanes (with ``spread`` moved to
    the even bits, for ``load_even``).
    """
    O, P, Q, vd, vh, vw = grid
    D, H, W = image
    sn, sd, sh, sw = strides
    dt, dr, ds = tap
    step = vw * sw
    first = 0 if ds >= 0 else (-ds + vw - 1) // vw
    last = min(Q, (W - 1 - ds) // vw + 1) if ds < W else 0
    for v in range((j1 - j0 + vl - 1) // vl):
        count[v] = 0
    line, q = divmod(j0, Q)
    slices, p = divmod(line, P)
    n, o = divmod(slices, O)
    floor = o * vd + dt
    j = j0
    while j < j1:
        run = min(Q - q, j1 - j)
        row = p * vh + dr
        a, b = max(q, first), min(q + run, last)
        if 0 <= floor < D and 0 <= row < H and a < b:
            begin = j - j0 + a - q
            end = begin + b - a
            offset = n * sn + floor * sd + row * sh + (a * vw + ds) * sw
            v = begin // vl
            while v * vl < end:
                low, high = max(begin - v * vl, 0), min(end - v * vl, vl)
                mask = ((1 << (high - low)) - 1) << low
                at = 2 * (v * limit + count[v])
                table[at] = offset + (v * vl - begin) * step
                table[at + 1] = _spread(mask) if spread else mask
                count[v] += 1
                v += 1
        j += run
        q = 0
        p += 1
        if p == P:
            p = 0
            o += 1
            if o == O:
                o = 0
                n += 1
            floor = o * vd + dt


@inner
def _spread(mask):
    """Bit i to bit 2*i, for 16 bits."""
    mask = (mask | (mask << 8)) & 0x00FF00FF
    mask = (mask | (mask << 4)) & 0x0F0F0F0F
    mask = (mask | (mask << 2)) & 0x33333333
    return (mask | (mask << 1)) & 0x55555555


@inner
def pack(
    target, row_step, group, group_step, base, channel_step, T, k0, k1, vectors, lists, count, table, limit, step, like
):
    """Rows k0..k1 of the Toeplitz matrix, ``vectors`` wide: row k is channel k // T of the image under tap k % T.

    Vector v of row k goes to (v // group)*group_step + (v % group)*lanes + (k - k0)*row_step. ``count`` and ``table``
    hold the lists of T taps, ``lists`` vectors each; ``step``: elements between neighbouring pixels.
    """
    if T == 1 and step == 1:  # follow the image: a stretch of one channel is one stretch of memory
        for k in range(k0, k1):
            source = base + k * channel_step * itemsize(like)
            later = base + min(k + AHEAD, k1 - 1) * channel_step * itemsize(like)
            column = target + (k - k0) * row_step * accsize(like)
            for v0 in range(0, vectors, group):
                for v in range(v0, min(v0 + group, vectors)):
                    at = 2 * v * limit
                    prefetch_line(later, table[at], like)
                    value = load(source, table[at], table[at + 1] if count[v] else 0, zeros(like), like)
                    for s in range(1, count[v]):
                        value = load(source, table[at + 2 * s], table[at + 2 * s + 1], value, like)
                    store_acc(column + (v - v0) * lanes(like) * accsize(like), value, like)
                column += group_step * accsize(like)
        return
    for v0 in range(0, vectors, group):
        for k in range(k0, min(k0 + T, k1)):
            c0, t = divmod(k, T)
            c1 = (k1 - t + T - 1) // T
            for v in range(v0, min(v0 + group, vectors)):
                row = t * lists + v
                out = target + (
                    v0 // group * group_step + (c0 * T + t - k0) * row_step + (v - v0) * lanes(like)
                ) * accsize(like)
                _pack_channels(
                    out, T * row_step, base, channel_step, c0, c1, count[row], table, 2 * row * limit, step, like
                )


@inner
def _pack_channels(out, out_step, base, channel_step, c0, c1, runs, table, at, step, like):
    """One vector of pixels under one tap, for channels c0..c1."""
    source = base + c0 * channel_step * itemsize(like)
    source_step, out_step = channel_step * itemsize(like), out_step * accsize(like)
    first, mask, second, mask2 = 0, 0, 0, 0
    if runs > 0:
        first, mask = table[at], table[at + 1]
    if runs > 1:
        second, mask2 = table[at + 2], table[at + 3]
    for _ in range(c0, c1):
        value = zeros(like)
        if step == 1:
            value = load(source, first, mask, value, like)
            if runs > 1:
                value = load(source, second, mask2, value, like)
                for s in range(2, runs):
                    value = load(source, table[at + 2 * s], table[at + 2 * s + 1], value, like)
            store_acc(out, value, like)
        elif step == 2:
            value = load_even(source, first, mask, value, like)
            if runs > 1:
                value = load_even(source, second, mask2, value, like)
                for s in range(2, runs):
                    value = load_even(source, table[at + 2 * s], table[at + 2 * s + 1], value, like)
            store_acc(out, value, like)
        else:
            store_acc(out, value, like)
            for s in range(runs):
                _gather(out, source, table[at + 2 * s], table[at + 2 * s + 1], step, like)
        source += source_step
        out += out_step


@inner
def _gather(out, source, offset, mask, step, like):
    lane = 0
    while mask:
        if mask & 1:
            poke(out, lane, load1(source, offset + lane * step, like), like)
        mask >>= 1
        lane += 1


@inner
def unpack(tile, rows, base, row_step, alpha, beta, first, count, table, limit, step, like):
    """out = alpha * tile + beta * out, for ``rows`` rows of a tile, whose pixels begin at vector ``first`` of the lists."""
    vl, acc, item = lanes(like), accsize(like), itemsize(like)
    for v in range(NV):
        at = 2 * (first + v) * limit
        for s in range(count[first + v]):
            offset, mask = table[at + 2 * s], table[at + 2 * s + 1]
            for i in range(rows):
                out = base + i * row_step * item
                if step > 2 or step < 1:
                    _scatter(tile, (i * NV + v) * vl, out, offset, mask, step, alpha, beta, like)
                    continue
                value = load_acc(tile + (i * NV + v) * vl * acc, like)
                if step == 2:
                    if beta == 0:
                        store_even(out, offset, mask, scale(alpha, value), like)
                    else:
                        old = load_even(out, offset, mask, zeros(like), like)
                        store_even(out, offset, mask, scale_add(alpha, value, beta, old), like)
                elif beta == 0:
                    store(out, offset, mask, scale(alpha, value), like)
                else:
                    store(
                        out,
                        offset,
                        mask,
                        scale_add(alpha, value, beta, load(out, offset, mask, zeros(like), like)),
                        like,
                    )


@inner
def _scatter(tile, at, base, offset, mask, step, alpha, beta, like):
    lane = 0
    while mask:
        if mask & 1:
            where = offset + lane * step
            value = alpha * peek(tile, at + lane, like)
            if beta != 0:
                value += beta * load1(base, where, like)
            store1(base, where, value, like)
        mask >>= 1
        lane += 1
