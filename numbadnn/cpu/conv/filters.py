"""The gradient of convolution with respect to the filters, as a blocked product over pixels.

``dw[k, m] = sum over pixels of y[k, pixel] * x[pixel's place under m]`` with m = (channel, tap). The rows of A are the
rows of the Toeplitz matrix, KC pixels long, which are only pointed at: a row is a plane of the image and a shift
(``terms.Planes``), or lies in the image itself where nothing is padded; where its pixels lie is one list for all rows. B is
y transposed, KC pixels of NR filters. The sum over all pixels of the batch is cut into ``splits`` parts, a number that
follows from the problem alone; each part goes through its pixels in blocks of KC in order, and the parts are added in
order. So the bits do not depend on the number of threads.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.conv.gemm import pack, segments
from numbadnn.cpu.conv.micro import BLOCKS, KC, MR, NV, carried_tile, carry_tile, listed_kernel, transpose
from numbadnn.cpu.lang.elements import accsize, itemsize, load1, peek, store1
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import lanes, load, load_acc, prefetch_line, scale, scale_add, store, store_acc, zeros

#: panels of A that are packed together and stay in the second-level cache
MC_PANELS = 32


@inner
def _pack_y(target, small, base, k0, k1, count, table, geo, like):
    """y of filters k0..k1 (of a group), transposed into panels of KC rows of NR."""
    vl, acc = lanes(like), accsize(like)
    stretch = KC // vl
    for v in range((k1 - k0 + NV * vl - 1) // (NV * vl) * NV):
        k = k0 + v * vl
        rows = min(max(k1 - k, 0), vl)
        pack(
            small,
            KC,
            stretch,
            0,
            base,
            geo.y_k,
            1,
            k,
            k + rows,
            stretch,
            stretch,
            count,
            table,
            geo.limit,
            geo.y_w,
            like,
        )
        for i in range(rows, vl):
            for u in range(stretch):
                store_acc(small + (i * KC + u * vl) * acc, zeros(like), like)
        panel = target + ((v // NV) * KC * NV + v % NV) * vl * acc
        for u in range(stretch):
            transpose(small + u * vl * acc, KC, panel + u * vl * NV * vl * acc, NV * vl, like)


@inner
def finish_vector(w, like, geo, w_offsets, tiles, small, g, k0, m_first, m_last, alpha, beta):
    """Add the parts of a vector of filters from k0, turn them and write rows m_first..m_last of them."""
    vl, acc, item = lanes(like), accsize(like), itemsize(like)
    NR = NV * vl
    panels, columns = (geo.M + MR - 1) // MR, (geo.K + NR - 1) // NR
    part = geo.G * panels * columns * MR * NR * acc
    turned = small + vl * vl * acc
    filters = min(vl, geo.K - k0)
    for m0 in range(m_first, m_last, vl):
        rows = min(vl, m_last - m0)
        together = True
        for i in range(rows):
            panel, row = divmod(m0 + i, MR)
            at = tiles + ((panel * columns + k0 // NR) * MR * NR + row * NR + k0 % NR) * acc
            value = load_acc(at, like)
            for s in range(1, geo.splits):
                value = scale_add(1.0, value, 1.0, load_acc(at + s * part, like))
            store_acc(small + i * vl * acc, value, like)
            together = together and w_offsets[m0 + i] == w_offsets[m0] + i
        transpose(small, vl, turned, vl, like)
        for k in range(filters):
            base = w + (g * geo.w_group + (k0 + k) * geo.w_k) * item
            line = turned + k * vl * acc
            if together:
                mask = (1 << rows) - 1
                value = load_acc(line, like)
                if beta == 0:
                    store(base, w_offsets[m0], mask, scale(alpha, value), like)
                else:
                    old = load(base, w_offsets[m0], mask, zeros(like), like)
                    store(base, w_offsets[m0], mask, scale_add(alpha, value, beta, old), like)
            else:
                for i in range(rows):
                    one = alpha * peek(line, i, like)
                    if beta != 0:
                        one += beta * load1(base, w_offsets[m0 + i], like)
                    store1(base, w_offsets[m0 + i], one, like)


@inner
def _pixels(at, j0, j1, geo, strides, size):
    """``at[i]`` = where pixel j0 + i lies, counted in ``strides`` of image, slice, row, column, from pixel 0, times ``size``."""
    line, q = divmod(j0, geo.Q)
    for i in range(j1 - j0):
        n, rest = divmod(line, geo.O * geo.P)
        o, p = divmod(rest, geo.P)
        base = n * strides[0] + o * strides[1] + p * strides[2]
        at[i] = (base + q * strides[3]) * size
        q += 1
        if q == geo.Q:
            q = 0
            line += 1


@inner
def _lay_out(x, like, geo, taps, j0, j1, count, table):
    """The lists of the planes under pixels j0..j1 as planes count them; the number of vectors."""
    vl = lanes(like)
    vectors = (j1 - j0 + vl - 1) // vl
    size = 2 * geo.limit * vectors
    for v in range(taps.shape[0] * vectors):
        count[v] = 0
    for t in range(taps.shape[0]):
        segments(
            count[t * vectors : (t + 1) * vectors],
            table[t * size : (t + 1) * size],
            geo.limit,
            vl,
            j0,
            j1,
            (geo.O, geo.rows, geo.pitch, geo.step_d, geo.step_h, geo.step_w),
            (geo.D, geo.H, geo.W),
            (geo.x_n, geo.x_d, geo.x_h, geo.x_w),
            (taps[t, 0], taps[t, 1], taps[t, 2]),
            geo.step_w * geo.x_w == 2,
        )
    return vectors


@inner
def _part(
    x,
    y,
    w,
    places,
    rows,
    like,
    geo,
    taps,
    w_offsets,
    tiles,
    work,
    count,
    table,
    g,
    j0,
    j1,
    panel0,
    panel1,
    column0,
    column1,
    alpha,
    beta,
):
    """Pixels j0..j1 of group g, for (channel, tap) panels panel0..panel1 and filter columns column0..column1."""
    vl, acc, item = lanes(like), accsize(like), itemsize(like)
    NR = NV * vl
    stretch = KC // vl
    columns = (geo.K + NR - 1) // NR
    b_block = work
    small = b_block + (column1 - column0) * KC * NR * acc
    a_block = small + vl * KC * acc
    pixels, y_count, count = count[:KC], count[KC : KC + stretch], count[KC + stretch :]
    y_table, table = table[: 2 * geo.limit * stretch], table[2 * geo.limit * stretch :]
    channels, capacity = geo.M // geo.T, carry_capacity(geo, like)
    for j in range(j0, j1, KC):
        end = min(j + KC, j1)
        for v in range(stretch):
            y_count[v] = 0
        segments(
            y_count,
            y_table,
            geo.limit,
            vl,
            j,
            end,
            (geo.O, geo.P, geo.Q, 1, 1, 1),
            (geo.O, geo.P, geo.Q),
            (geo.y_n, geo.y_d, geo.y_h, geo.y_w),
            (0, 0, 0),
            geo.y_w == 2,
        )
        _pack_y(
            b_block,
            small,
            y + g * geo.y_group * item,
            column0 * NR,
            min(column1 * NR, geo.K),
            y_count,
            y_table,
            geo,
            like,
        )
        vectors, first = 0, 0
        if geo.plane:
            slice_size = geo.rows * geo.pitch
            _pixels(pixels, j, end, geo, (geo.O * slice_size, slice_size, geo.pitch, 1), 1)
            first, last = pixels[0], pixels[end - j - 1] + 1 + geo.reach
            vectors = _lay_out(x, like, geo, taps, first, last, count, table)
            for i in range(end - j):
                pixels[i] = (pixels[i] - first) * acc
        else:
            strides = (geo.x_n, geo.step_d * geo.x_d, geo.step_h * geo.x_h, geo.step_w * geo.x_w)
            _pixels(pixels, j, end, geo, strides, acc)
        for mc in range(panel0, panel1, MC_PANELS):
            mc_end = min(mc + MC_PANELS, panel1)
            source = x + g * geo.x_group * item
            if geo.plane:
                c0, c1 = mc * MR // geo.T, min((mc_end * MR - 1) // geo.T + 1, channels)
                pack(
                    a_block,
                    geo.plane,
                    vectors,
                    0,
                    source,
                    geo.x_c,
                    taps.shape[0],
                    c0 * taps.shape[0],
                    c1 * taps.shape[0],
                    vectors,
                    vectors,
                    count,
                    table,
                    geo.limit,
                    geo.step_w * geo.x_w,
                    like,
                )
                source = a_block - c0 * taps.shape[0] * geo.plane * acc
            for panel in range(mc, mc_end):
                if geo.plane == 0 and panel + 1 < panel1:
                    for i in range(MR):
                        later = source + rows[(panel + 1) * MR + i]
                        for k in range(0, end - j, 64 // acc):
                            prefetch_line(later + pixels[k], 0, like)
                for column in range(column0, column1):
                    tile, number = tiles + (panel * columns + column) * MR * NR * acc, (j - j0) // KC
                    if number > 0 and number % BLOCKS == 0:
                        carry_tile(tile, capacity, MR * NR, number, like)
                    listed_kernel(
                        source,
                        rows.ctypes.data + panel * MR * 8,
                        pixels.ctypes.data,
                        b_block + (column - column0) * KC * NR * acc,
                        places,
                        end - j,
                        tile,
                        number % BLOCKS,
                        like,
                    )
                    if end == j1 and number >= BLOCKS:
                        carried_tile(tile, capacity, MR * NR, like)
            if geo.splits == 1 and end == j1:  # while the tiles are in the caches
                m0, m1 = mc * MR, min(mc_end * MR, geo.M)
                for k in range(column0 * NR, min(column1 * NR, geo.K), vl):
                    finish_vector(w, like, geo, w_offsets, tiles, small, g, k, m0, m1, alpha, beta)


@inner
def carry_capacity(geo, like):
    """Bytes from a tile to what has been carried of it: all tiles of all parts."""
    NR = NV * lanes(like)
    return geo.splits * geo.G * ((geo.M + MR - 1) // MR) * ((geo.K + NR - 1) // NR) * MR * NR * accsize(like)


def product(
    x,
    y,
    w,
    places,
    rows,
    like,
    geo,
    taps,
    w_offsets,
    tiles,
    split,
    work,
    work_size,
    counts,
    tables,
    alpha,
    beta,
    threads,
):
    """Every part's product, as tiles [part][group][panel][column]; ``split`` = (columns, panels) a job.

    Where there is one part, w = alpha * product + beta * w as well.
    """
    NR = NV * lanes(like)
    panels, columns = (geo.M + MR - 1) // MR, (geo.K + NR - 1) // NR
    for tid in prange(threads):
        job = 0
        for s in range(geo.splits):
            for g in range(geo.G):
                target = tiles + (s * geo.G + g) * panels * columns * MR * NR * accsize(like)
                for panel in range(0, panels, split[1]):
                    for column in range(0, columns, split[0]):
                        if job % threads == tid:
                            _part(
                                x,
                                y,
                                w,
                                places.ctypes.data,
                                rows,
                                like,
                                geo,
                                taps,
                                w_offsets,
                                target,
                                work + tid * work_size,
                                counts[tid],
                                tables[tid],
                                g,
                                s * geo.split,
                                min((s + 1) * geo.split, geo.pixels),
                                panel,
                                min(panel + split[1], panels),
                                column,
                                min(column + split[0], columns),
                                alpha,
                                beta,
                            )
                        job += 1


def finish(w, like, geo, w_offsets, tiles, work, work_size, alpha, beta, threads):
    """w = alpha * sum of the parts + beta * w."""
    vl = lanes(like)
    NR = NV * vl
    group = (geo.M + MR - 1) // MR * ((geo.K + NR - 1) // NR) * MR * NR * accsize(like)
    for tid in prange(threads):
        job = 0
        for g in range(geo.G):
            for k0 in range(0, geo.K, vl):
                if job % threads == tid:
                    finish_vector(
                        w, like, geo, w_offsets, tiles + g * group, work + tid * work_size, g, k0, 0, geo.M, alpha, beta
                    )
                job += 1
