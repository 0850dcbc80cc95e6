"""Forward convolution and its gradient with respect to the inputs, as one blocked product.

Both are the same sum, ``out[m, pixel] = sum_k A[m, k] * image[offset_k + pixel's place under tap_k]``: forward, m is a
filter, k = (channel, tap) and the image is x; for the gradient, m is a channel, k = (filter, tap) and the image is y.
With a subsample of (a, b) the gradient's pixels fall into a*b phases (row mod a, column mod b): inside a phase the same
taps meet every pixel, so that each phase is a dense stride-1 problem and no multiplication is by an inserted zero.
Images are volumes; those of two axes have one slice.

A thread takes a stretch of pixels, and for each KC terms packs that much of the Toeplitz matrix (a few hundred KiB,
whatever the image's size) and multiplies. Each element is summed in the order of k in blocks of KC, wherever and by
whichever thread it is computed: the same bits for any number of threads and any batch.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit, prange

from numbadnn.cpu._elements import accsize, itemsize, load1, poke
from numbadnn.cpu._gemm import pack, segments, unpack
from numbadnn.cpu._micro import KC, MR, NV, microkernel, transpose
from numbadnn.cpu._outside import finite, sum_inside
from numbadnn.cpu._vector import lanes, load, store_acc, zeros


class Geometry(NamedTuple):
    """What the kernels know of the problem; every length and stride in elements."""

    M: int  # output channels of a group
    G: int  # groups
    a_group: int  # strides of the filters
    a_row: int
    D: int  # the image that is read
    H: int
    W: int
    src_group: int
    src_c: int
    src_n: int
    src_d: int
    src_h: int
    src_w: int
    step_d: int  # slices, rows, columns of the image between neighbouring output pixels of a phase
    step_h: int
    step_w: int
    out_group: int
    out_m: int
    out_n: int
    out_d: int  # between neighbouring pixels of a phase
    out_h: int
    out_w: int
    limit: int  # most runs a vector of pixels can consist of
    run: int  # so many terms lie together in the filters
    packed: int  # whether pack_filters has run; else each thread packs what it needs
    outside: int  # whether a tap may fall where the image that is read has no position, and not only zeros


class Phase(NamedTuple):
    """One phase, as a row of an integer array."""

    P: int
    Q: int
    pixels: int
    out: int  # offset of its first pixel
    tap: int  # its first row in the list of taps, and their number
    taps: int
    k: int  # its first entry in the lists of terms, and their number
    depth: int
    a: int  # offset of its panels in the packed filters
    O: int


#: rows of A that stay in the second-level cache while a block of B is used
MC_PANELS = 32
#: rows kept for a column of B: a little more than KC, so that columns do not all start in one set of the cache
COLUMN = KC + 5


@njit(nogil=True, error_model="numpy")
def _pack_rows(target, filters, row_step, offsets, run, k0, k1, m0, m1, small, like):
    """Rows m0..m1 of A, terms k0..k1, as rows of KC: term k of row m lies at m * row_step + offsets[k] of ``filters``.

    ``run``: every so many terms from a multiple of it lie together in memory.
    """
    item, acc, vl = itemsize(like), accsize(like), lanes(like)
    if run == 1 and row_step == 1:  # rows lie together instead: turn squares of them
        for k in range(k0, k1, vl):
            for m in range(m0, m1, vl):
                mask = (1 << min(vl, m1 - m)) - 1
                for i in range(min(vl, k1 - k)):
                    store_acc(small + i * vl * acc, load(filters, offsets[k + i] + m, mask, zeros(like), like), like)
                transpose(small, vl, target + ((m - m0) * KC + k - k0) * acc, KC, like)
        return
    if run < 4:
        for k in range(k0, k1):
            for m in range(m0, m1):
                poke(target, (m - m0) * KC + k - k0, load1(filters, offsets[k] + m * row_step, like), like)
        return
    for m in range(m0, m1):
        source = filters + m * row_step * item
        row = target + ((m - m0) * KC - k0) * acc
        k = k0
        while k < k1:
            end = min(k1, k - k % run + run)
            while k < end:
                n = min(vl, end - k)
                value = load(source, offsets[k], (1 << n) - 1, zeros(like), like)
                if k + vl <= k0 + KC:
                    store_acc(row + k * acc, value, like)  # what is too much, the next run overwrites
                else:
                    for i in range(n):
                        poke(row, k + i, load1(source, offsets[k] + i, like), like)
                k += n


def pack_filters(filters, like, geo, phases, offsets, packed, work, work_size, threads):
    """All of A for every phase and group, as panels [phase][group][block of KC][panel of MR]."""
    panels = (geo.M + MR - 1) // MR
    for tid in prange(threads):
        job = 0
        for f in range(phases.shape[0]):
            k_first, depth = phases[f, 6], phases[f, 7]
            target = packed + phases[f, 8] * accsize(like)
            for g in range(geo.G):
                for k0 in range(0, depth, KC):
                    for panel in range(0, panels, 4):
                        end = min(panel + 4, panels)
                        if job % threads == tid:
                            _pack_rows(
                                target + panel * MR * KC * accsize(like),
                                filters + g * geo.a_group * itemsize(like),
                                geo.a_row,
                                offsets[k_first : k_first + depth],
                                geo.run,
                                k0,
                                min(k0 + KC, depth),
                                panel * MR,
                                min(end * MR, geo.M),
                                work + tid * work_size,
                                like,
                            )
                        job += 1
                    target += panels * MR * KC * accsize(like)


@njit(nogil=True, error_model="numpy")
def _stretch(
    src,
    filters,
    out,
    packed,
    offsets,
    like,
    geo,
    phase,
    taps,
    work,
    count,
    table,
    g,
    j0,
    j1,
    panel0,
    panel1,
    alpha,
    beta,
):
    """Output pixels j0..j1 of one phase, channels of panels panel0..panel1 of group g."""
    M = geo.M
    vl, item, acc = lanes(like), itemsize(like), accsize(like)
    NR = NV * vl
    limit = geo.limit
    P, Q, out_base, tap0, tap_count, k_count = phase[0], phase[1], phase[3], phase[4], phase[5], phase[7]
    O = phase[9]
    panels = (M + MR - 1) // MR
    columns = (j1 - j0 + NR - 1) // NR
    stretch = columns * NV  # in vectors
    src_step = geo.step_w * geo.src_w
    spread = src_step == 2
    size = 2 * limit * stretch
    for t in range(tap_count):
        for v in range(stretch):
            count[t * stretch + v] = 0
        segments(
            count[t * stretch : (t + 1) * stretch],
            table[t * size : (t + 1) * size],
            limit,
            vl,
            j0,
            j1,
            (O, P, Q, geo.step_d, geo.step_h, geo.step_w),
            (geo.D, geo.H, geo.W),
            (geo.src_n, geo.src_d, geo.src_h, geo.src_w),
            (taps[tap0 + t, 0], taps[tap0 + t, 1], taps[tap0 + t, 2]),
            spread,
        )
    out_count, out_table = count[tap_count * stretch :], table[tap_count * size :]
    for v in range(stretch):
        out_count[v] = 0
    segments(
        out_count,
        out_table,
        limit,
        vl,
        j0,
        j1,
        (O, P, Q, 1, 1, 1),
        (O, P, Q),
        (geo.out_n, geo.out_d, geo.out_h, geo.out_w),
        (0, 0, 0),
        geo.out_w == 2,
    )
    b_block = work
    own_a = work + COLUMN * stretch * vl * acc
    small = own_a + (MC_PANELS + 2) * MR * KC * acc
    tiles = small + MR * KC * acc
    tile_size = MR * NR * acc
    blocks = (k_count + KC - 1) // KC
    source = src + g * geo.src_group * item
    target = out + (out_base + g * geo.out_group) * item
    for kb in range(max(blocks, 1)):
        k0 = kb * KC
        depth = min(KC, k_count - k0)
        if depth > 0:
            pack(
                b_block,
                NR,
                NV,
                COLUMN * NR,
                source,
                geo.src_c,
                tap_count,
                k0,
                k0 + depth,
                stretch,
                count,
                table,
                limit,
                src_step,
                like,
            )
        all_a = packed + (phase[8] + (g * blocks + kb) * panels * MR * KC) * acc
        last = kb >= blocks - 1
        for mc in range(panel0, panel1, MC_PANELS):
            a_block = all_a + mc * MR * KC * acc
            if not geo.packed:
                a_block = own_a
                _pack_rows(
                    a_block,
                    filters + g * geo.a_group * item,
                    geo.a_row,
                    offsets[phase[6] : phase[6] + k_count],
                    geo.run,
                    k0,
                    k0 + depth,
                    mc * MR,
                    min((mc + MC_PANELS) * MR, panel1 * MR, M),
                    small,
                    like,
                )
            for column in range(columns):
                for panel in range(mc, min(mc + MC_PANELS, panel1)):
                    tile = tiles
                    if blocks > 1:
                        tile += ((panel - panel0) * columns + column) * tile_size
                    if depth > 0:
                        microkernel(
                            a_block + (panel - mc) * MR * KC * acc,
                            b_block + column * COLUMN * NR * acc,
                            depth,
                            tile,
                            kb,
                            like,
                        )
                    else:
                        for v in range(MR * NV):
                            store_acc(tile + v * vl * acc, zeros(like), like)
                    rows = min(MR, M - panel * MR)
                    if last and geo.outside and not finite(tile, rows, like):
                        sum_inside(
                            tile,
                            rows,
                            min(NR, j1 - j0 - column * NR),
                            source,
                            filters + g * geo.a_group * item,
                            offsets[phase[6] : phase[6] + k_count],
                            taps[tap0 : tap0 + tap_count],
                            phase,
                            geo,
                            panel * MR,
                            j0 + column * NR,
                            like,
                        )
                    if last:
                        unpack(
                            tile,
                            rows,
                            target + panel * MR * geo.out_m * item,
                            geo.out_m,
                            alpha,
                            beta,
                            column * NV,
                            out_count,
                            out_table,
                            limit,
                            geo.out_w,
                            like,
                        )


def gather(
    src,
    filters,
    out,
    packed,
    offsets,
    like,
    geo,
    phases,
    taps,
    split,
    work,
    work_size,
    counts,
    tables,
    alpha,
    beta,
    threads,
):
    """The product; ``split`` = (panels of columns a stretch, panels of rows a stretch)."""
    M, G = geo.M, geo.G
    panels = (M + MR - 1) // MR
    row_panels = split[1]
    row_jobs = (panels + row_panels - 1) // row_panels
    NR = NV * lanes(like)
    for tid in prange(threads):
        job = 0
        for f in range(phases.shape[0]):
            pixels = phases[f, 2]
            width = split[0] * NR
            for g in range(G):
                for j0 in range(0, pixels, width):
                    for rows in range(row_jobs):
                        if job % threads == tid:
                            panel0 = rows * row_panels
                            _stretch(
                                src,
                                filters,
                                out,
                                packed,
                                offsets,
                                like,
                                geo,
                                phases[f],
                                taps,
                                work + tid * work_size,
                                counts[tid],
                                tables[tid],
                                g,
                                j0,
                                min(j0 + width, pixels),
                                panel0,
                                min(panel0 + row_panels, panels),
                                alpha,
                                beta,
                            )
                        job += 1
