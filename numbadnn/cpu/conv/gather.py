"""Forward convolution and its gradient with respect to the inputs, as one blocked product.

Both are the same sum, ``out[m, pixel] = sum_k A[m, k] * image[offset_k + pixel's place under tap_k]``: forward, m is a
filter, k = (channel, tap) and the image is x; for the gradient, m is a channel, k = (filter, tap) and the image is y.
With a subsample of (a, b) the gradient's pixels fall into a*b phases (row mod a, column mod b): inside a phase the same
taps meet every pixel, so that each phase is a dense stride-1 problem and no multiplication is by an inserted zero.
Images are volumes; those of two axes have one slice.

A thread takes a stretch of pixels, and for each KC terms lays out what they read (a few hundred KiB, whatever the image's
size) and multiplies. There are two layouts. As panels, every term of every pixel is copied: that much of the Toeplitz
matrix. As planes, the image is copied once, with its padding, and a term is a shift (``terms.Planes``); pixels beyond the
ends of rows are computed as well, and belong to no output: that pays where there are few filters or rows are long.
Filters are read where they lie, or packed. Each element is summed in the order of k in blocks of KC, whatever the layout,
wherever and by whichever thread it is computed: the same bits for any number of threads and any batch.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import prange

from numbadnn.cpu.conv.gather_pack import pack_rows
from numbadnn.cpu.conv.gemm import pack, segments, unpack
from numbadnn.cpu.conv.micro import BLOCKS, KC, MR, NV, ROW, carried_tile, carry_tile, microkernel, narrow_kernel
from numbadnn.cpu.conv.outside import finite, sum_inside
from numbadnn.cpu.lang.elements import accsize, itemsize
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import lanes, store_acc, zeros


class Phase(NamedTuple):
    """One phase, as a row of an integer array."""

    O: int
    P: int
    Q: int
    out: int  # offset of its first pixel
    tap: int  # its first row in the list of taps that are laid out, and their number
    taps: int
    terms: int  # of a channel
    k: int  # its first entry in the lists of terms, and their number
    depth: int
    a: int  # offset of its panels in the packed filters
    slices: int  # of images, where each is laid out by itself, else 1
    pixels: int  # of a slice
    rows: int  # of a slice as it is laid out, and their pixels
    pitch: int
    reach: int  # pixels that are laid out behind those of a stretch


#: rows of A that stay in the second-level cache while a block of B is used
MC_PANELS = 32
#: rows kept for a column of B: a little more than KC, so that columns do not all start in one set of the cache
COLUMN = KC + 5


@inner
def _stretch(
    src,
    filters,
    out,
    packed,
    offsets,
    a_places,
    places,
    like,
    geo,
    phase,
    taps,
    term_taps,
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
    O, P, Q, out_base = phase[0], phase[1], phase[2], phase[3]
    tap0, tap_count, terms, k_first, k_count = phase[4], phase[5], phase[6], phase[7], phase[8]
    rows, pitch, reach = phase[12], phase[13], phase[14]
    panels = (M + MR - 1) // MR
    columns = (j1 - j0 + NR - 1) // NR
    stretch = columns * NV  # in vectors
    laid = stretch + (reach + vl - 1) // vl
    src_step = geo.step_w * geo.src_w
    size = 2 * limit * laid
    # behind the last image's last plane there is no pixel to be read
    last = min(j1 + reach, phase[10] * rows * pitch) if geo.plane else j1
    for t in range(tap_count):
        for v in range(laid):
            count[t * laid + v] = 0
        segments(
            count[t * laid : (t + 1) * laid],
            table[t * size : (t + 1) * size],
            limit,
            vl,
            j0,
            last,
            (O, rows, pitch, geo.step_d, geo.step_h, geo.step_w),
            (geo.D, geo.H, geo.W),
            (geo.src_n, geo.src_d, geo.src_h, geo.src_w),
            (taps[tap0 + t, 0], taps[tap0 + t, 1], taps[tap0 + t, 2]),
            src_step == 2,
        )
    out_count, out_table = count[tap_count * laid :], table[tap_count * size :]
    for v in range(stretch):
        out_count[v] = 0
    segments(
        out_count,
        out_table,
        limit,
        vl,
        j0,
        j1,
        (O, rows, pitch, 1, 1, 1),
        (O, P, Q),
        (geo.out_n, geo.out_d, geo.out_h, geo.out_w),
        (0, 0, 0),
        geo.out_w == 2,
    )
    small = work
    own_a = small + MR * KC * acc
    b_block = own_a + (MC_PANELS + 2) * MR * ROW * acc
    tiles = b_block + (geo.block if geo.plane else COLUMN * stretch * vl) * acc
    tile_size = MR * NR * acc
    blocks = (k_count + KC - 1) // KC
    source = src + g * geo.src_group * item
    target = out + (out_base + g * geo.out_group) * item
    # a column of panels of B at a time, which stays in the first-level cache, where a row of panels of A stays in the second
    by_column = geo.plane == 0 and tap_count > 1 and panel1 - panel0 <= MC_PANELS
    together = 1 if by_column else columns
    laid_first, laid_end = -1, -1
    for kb in range(max(blocks, 1)):
        k0 = kb * KC
        depth = min(KC, k_count - k0)
        last = kb >= blocks - 1
        row_step, group, group_step, first, end = NR, NV, COLUMN * NR, k0, k0 + depth
        where, b_first, b_step = places, b_block, COLUMN * NR * acc
        if geo.plane and depth > 0:
            first, end = k0 // terms * tap_count, ((k0 + depth - 1) // terms + 1) * tap_count
            row_step, group, group_step = geo.plane, laid, 0
            where, b_first, b_step = places + (k_first + k0) * 8, b_block - first * geo.plane * acc, NR * acc
        all_a = packed + (phase[9] + (g * blocks + kb) * panels * MR * ROW) * acc
        for column0 in range(0, columns, together):
            if (
                not geo.plane or first != laid_first or end != laid_end
            ):  # a channel of many taps has planes for several blocks
                laid_first, laid_end = first, end
                pack(
                    b_block,
                    row_step,
                    group,
                    group_step,
                    source,
                    geo.src_c,
                    tap_count,
                    first,
                    end,
                    NV if by_column else laid,
                    laid,
                    count[column0 * NV :],
                    table[2 * column0 * NV * limit :],
                    limit,
                    src_step,
                    like,
                )
            for mc in range(panel0, panel1, MC_PANELS):
                a_block, a_step, a_where = all_a + mc * MR * ROW * acc, ROW * acc, a_places
                if geo.in_place:
                    a_block = filters + (g * geo.a_group + mc * MR * geo.a_row) * item
                    a_step, a_where = geo.a_row * item, a_places + (k_first + k0) * 8
                elif not geo.packed:
                    a_block = own_a
                    if column0 == 0:
                        pack_rows(
                            a_block,
                            filters + g * geo.a_group * item,
                            geo.a_row,
                            offsets[k_first:],
                            geo.run,
                            k0,
                            k0 + depth,
                            mc * MR,
                            min((mc + MC_PANELS) * MR, panel1 * MR, M),
                            small,
                            like,
                        )
                for column in range(column0, column0 + together):
                    narrow = j1 - j0 - column * NR <= vl
                    for panel in range(mc, min(mc + MC_PANELS, panel1)):
                        a, b = a_block + (panel - mc) * MR * a_step, b_first + (column - column0) * b_step
                        tile = tiles
                        if blocks > 1:
                            tile += ((panel - panel0) * columns + column) * tile_size
                        capacity = (panel1 - panel0) * columns * tile_size
                        if kb > 0 and kb % BLOCKS == 0:
                            carry_tile(tile, capacity, MR * NR, kb, like)
                        if depth > 0 and narrow:
                            narrow_kernel(a, a_step, a_where, b, where, depth, tile, kb % BLOCKS, like)
                        elif depth > 0:
                            microkernel(a, a_step, a_where, b, where, depth, tile, kb % BLOCKS, like)
                        else:
                            for v in range(MR * NV):
                                store_acc(tile + v * vl * acc, zeros(like), like)
                        if last and blocks > BLOCKS:
                            carried_tile(tile, capacity, MR * NR, like)
                        a_rows = min(MR, M - panel * MR)
                        if last and geo.outside and not finite(tile, a_rows, like):
                            first_tap = k_first // (k_count // terms)
                            sum_inside(
                                tile,
                                (NR, 1),
                                a_rows,
                                min(NR, j1 - j0 - column * NR),
                                source,
                                filters + g * geo.a_group * item,
                                offsets[k_first : k_first + k_count],
                                term_taps[first_tap : first_tap + terms],
                                phase,
                                geo,
                                panel * MR,
                                j0 + column * NR,
                                like,
                            )
                        if last:
                            unpack(
                                tile,
                                a_rows,
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
    a_places,
    places,
    like,
    geo,
    phases,
    taps,
    term_taps,
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
    NR = NV * lanes(like)
    for tid in prange(threads):
        job = 0
        for f in range(phases.shape[0]):
            slices, pixels, rows, pitch = phases[f, 10], phases[f, 11], phases[f, 12], phases[f, 13]
            width = split[0] * NR
            for g in range(G):
                for n in range(slices):
                    first = n * rows * pitch
                    for j0 in range(0, pixels, width):
                        for panel0 in range(0, panels, row_panels):
                            if job % threads == tid:
                                _stretch(
                                    src,
                                    filters,
                                    out,
                                    packed,
                                    offsets,
                                    a_places.ctypes.data,
                                    places.ctypes.data,
                                    like,
                                    geo,
                                    phases[f],
                                    taps,
                                    term_taps,
                                    work + tid * work_size,
                                    counts[tid],
                                    tables[tid],
                                    g,
                                    first + j0,
                                    first + min(j0 + width, pixels),
                                    panel0,
                                    min(panel0 + row_panels, panels),
                                    alpha,
                                    beta,
                                )
                            job += 1
