"""The gradient of convolution with respect to the filters, as a blocked product over pixels.

``dw[k, m] = sum over pixels of y[k, pixel] * x[pixel's place under m]`` with m = (channel, tap). The rows of A are the
rows of the Toeplitz matrix, KC pixels long; B is y transposed, KC pixels of NR filters. The sum over all pixels of the
batch is cut into ``splits`` parts, a number that follows from the problem alone; each part goes through its pixels in
blocks of KC in order, and the parts are added in order. So the bits do not depend on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit, prange

from numbadnn.cpu._elements import accsize, itemsize, load1, peek, store1
from numbadnn.cpu._gemm import pack, segments
from numbadnn.cpu._micro import KC, MR, NV, microkernel, transpose
from numbadnn.cpu._vector import lanes, load, load_acc, scale, scale_add, store, store_acc, zeros

#: panels of A that are packed together and stay in the second-level cache
MC_PANELS = 32


class Geometry(NamedTuple):
    """What the kernels know of the problem; every length and stride in elements."""

    M: int  # (channel, tap) pairs of a group
    K: int  # filters of a group
    G: int
    T: int
    O: int
    P: int
    Q: int
    pixels: int
    D: int
    H: int
    W: int
    x_group: int
    x_c: int
    x_n: int
    x_d: int
    x_h: int
    x_w: int
    step_d: int
    step_h: int
    step_w: int
    y_group: int
    y_k: int
    y_n: int
    y_d: int
    y_h: int
    y_w: int
    w_group: int
    w_k: int
    limit: int  # most runs a vector of pixels can consist of
    splits: int
    split: int  # pixels of each part but the last: a multiple of KC


@njit(nogil=True, error_model="numpy")
def _pack_y(target, small, base, k0, k1, count, table, geo, like):
    """y of filters k0..k1 (of a group), transposed into panels of KC rows of NR."""
    vl, acc = lanes(like), accsize(like)
    stretch = KC // vl
    for v in range((k1 - k0 + NV * vl - 1) // (NV * vl) * NV):
        k = k0 + v * vl
        rows = min(max(k1 - k, 0), vl)
        pack(small, KC, stretch, 0, base, geo.y_k, 1, k, k + rows, stretch, count, table, geo.limit, geo.y_w, like)
        for i in range(rows, vl):
            for u in range(stretch):
                store_acc(small + (i * KC + u * vl) * acc, zeros(like), like)
        panel = target + ((v // NV) * KC * NV + v % NV) * vl * acc
        for u in range(stretch):
            transpose(small + u * vl * acc, KC, panel + u * vl * NV * vl * acc, NV * vl, like)


@njit(nogil=True, error_model="numpy")
def _part(x, y, like, geo, taps, tiles, work, count, table, g, j0, j1, panel0, panel1, column0, column1):
    """Pixels j0..j1 of group g, for (channel, tap) panels panel0..panel1 and filter columns column0..column1."""
    vl, acc, item = lanes(like), accsize(like), itemsize(like)
    NR = NV * vl
    stretch = KC // vl
    size = 2 * geo.limit * stretch
    columns = (geo.K + NR - 1) // NR
    b_block = work
    small = b_block + (column1 - column0) * KC * NR * acc
    a_block = small + vl * KC * acc
    spread = geo.step_w * geo.x_w == 2
    for j in range(j0, j1, KC):
        end = min(j + KC, j1)
        for t in range(geo.T + 1):
            for v in range(stretch):
                count[t * stretch + v] = 0
        for t in range(geo.T):
            segments(
                count[t * stretch :],
                table[t * size :],
                geo.limit,
                vl,
                j,
                end,
                (geo.O, geo.P, geo.Q, geo.step_d, geo.step_h, geo.step_w),
                (geo.D, geo.H, geo.W),
                (geo.x_n, geo.x_d, geo.x_h, geo.x_w),
                (taps[t, 0], taps[t, 1], taps[t, 2]),
                spread,
            )
        segments(
            count[geo.T * stretch :],
            table[geo.T * size :],
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
            count[geo.T * stretch :],
            table[geo.T * size :],
            geo,
            like,
        )
        for mc in range(panel0, panel1, MC_PANELS):
            mc_end = min(mc + MC_PANELS, panel1)
            pack(
                a_block,
                KC,
                stretch,
                0,
                x + g * geo.x_group * item,
                geo.x_c,
                geo.T,
                mc * MR,
                min(mc_end * MR, geo.M),
                stretch,
                count,
                table,
                geo.limit,
                geo.step_w * geo.x_w,
                like,
            )
            for column in range(column0, column1):
                for panel in range(mc, mc_end):
                    microkernel(
                        a_block + (panel - mc) * MR * KC * acc,
                        b_block + (column - column0) * KC * NR * acc,
                        end - j,
                        tiles + (panel * columns + column) * MR * NR * acc,
                        j - j0,
                        like,
                    )


def product(x, y, like, geo, taps, tiles, split, work, work_size, counts, tables, threads):
    """Every part's product, as tiles [part][group][panel][column]; ``split`` = (columns, panels) a job."""
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
                                like,
                                geo,
                                taps,
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
                            )
                        job += 1


@njit(nogil=True, error_model="numpy")
def _finish(w, like, geo, w_offsets, tiles, small, g, k0, alpha, beta):
    """Add the parts of a vector of filters from k0, turn them and write them, (channel, tap) by (channel, tap)."""
    vl, acc, item = lanes(like), accsize(like), itemsize(like)
    NR = NV * vl
    panels, columns = (geo.M + MR - 1) // MR, (geo.K + NR - 1) // NR
    part = geo.G * panels * columns * MR * NR * acc
    turned = small + vl * vl * acc
    filters = min(vl, geo.K - k0)
    for m0 in range(0, geo.M, vl):
        rows = min(vl, geo.M - m0)
        together = True
        for i in range(rows):
            panel, row = divmod(m0 + i, MR)
            at = tiles + (((g * panels + panel) * columns + k0 // NR) * MR * NR + row * NR + k0 % NR) * acc
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


def finish(w, like, geo, w_offsets, tiles, work, work_size, alpha, beta, threads):
    """w = alpha * sum of the parts + beta * w."""
    vl = lanes(like)
    for tid in prange(threads):
        job = 0
        for g in range(geo.G):
            for k0 in range(0, geo.K, vl):
                if job % threads == tid:
                    _finish(w, like, geo, w_offsets, tiles, work + tid * work_size, g, k0, alpha, beta)
                job += 1
