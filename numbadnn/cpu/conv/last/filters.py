"""The gradient of the filters where channels are neighbours in memory, as a blocked product over pixels.

As ``conv/filters.py``, whose parts, tiles and end it has; but rows of A are (tap, channel), so that those of a panel
lie together at each pixel, and neither x nor y is turned: pixels are read where they lie or in a box (``box.py``), and
B is copied.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.conv.filters import MC_PANELS, carry_capacity, finish_vector
from numbadnn.cpu.conv.last.box import lay_box, places_of
from numbadnn.cpu.conv.micro import BLOCKS, KC, MR, NV, carried_tile, carry_tile, listed_kernel
from numbadnn.cpu.lang.elements import accsize, itemsize
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import lanes, load, store_acc, zeros


@inner
def _copy_y(target, y, pixels, k0, k1, like):
    """Filters k0..k1 of some pixels, as panels of KC rows of NR; ``pixels``: where they lie, in bytes."""
    vl, acc = lanes(like), accsize(like)
    NR = NV * vl
    for k in range(k0, k0 + (k1 - k0 + NR - 1) // NR * NR, vl):
        mask, to = (1 << max(0, min(vl, k1 - k))) - 1, target + ((k - k0) // NR * KC * NR + (k - k0) % NR) * acc
        for at in pixels:
            store_acc(to, load(y + at, k, mask, zeros(like), like), like)
            to += NR * acc


@inner
def _part(
    x, y, w, steps, rows, like, geo, image, layout, phase, seen, lows, w_offsets, tiles, work, place, g, j0, j1, panels,
    columns, alpha, beta,
):  # fmt: skip
    """Pixels j0..j1 of group g, for some panels of (tap, channel) and columns of filters."""
    vl, acc, item = lanes(like), accsize(like), itemsize(like)
    NR = NV * vl
    every = (geo.K + NR - 1) // NR
    b_block = work
    small = b_block + (columns[1] - columns[0]) * KC * NR * acc
    box = small + 2 * vl * vl * acc
    source, results = x + g * geo.x_group * item, y + g * geo.y_group * item
    capacity = carry_capacity(geo, like)
    here, targets = place[: layout.pixels], place[layout.pixels :]
    for j in range(j0, j1, KC):
        end = min(j + KC, j1)
        lines = (j // geo.Q, (end + geo.Q - 1) // geo.Q)
        places_of(targets, lines, (0, geo.Q), phase, (geo.y_n, geo.y_d, geo.y_h, geo.y_w), item)
        base = source
        if layout.in_place:
            strides = (geo.x_n, geo.step_d * geo.x_d, geo.step_h * geo.x_h, geo.step_w * geo.x_w)
            places_of(here, lines, (0, geo.Q), phase, strides, acc)
        else:
            base = box
            lay_box(box, source, here, lines, (0, geo.Q), phase, seen, lows, image, layout, like)
        first = j - lines[0] * geo.Q
        _copy_y(b_block, results, targets[first : first + end - j], columns[0] * NR, min(columns[1] * NR, geo.K), like)
        for mc in range(panels[0], panels[1], MC_PANELS):
            last = min(mc + MC_PANELS, panels[1])
            for panel in range(mc, last):
                for column in range(columns[0], columns[1]):
                    tile, number = tiles + (panel * every + column) * MR * NR * acc, (j - j0) // KC
                    if number > 0 and number % BLOCKS == 0:
                        carry_tile(tile, capacity, MR * NR, number, like)
                    listed_kernel(
                        base,
                        rows.ctypes.data + panel * MR * 8,
                        here.ctypes.data + first * 8,
                        b_block + (column - columns[0]) * KC * NR * acc,
                        steps.ctypes.data,
                        end - j,
                        tile,
                        number % BLOCKS,
                        like,
                    )
                    if end == j1 and number >= BLOCKS:
                        carried_tile(tile, capacity, MR * NR, like)
            if geo.splits == 1 and end == j1:  # while the tiles are in the caches
                for k in range(columns[0] * NR, min(columns[1] * NR, geo.K), vl):
                    m1 = min(last * MR, geo.M)
                    finish_vector(w, like, geo, w_offsets, tiles, small, g, k, mc * MR, m1, alpha, beta)


def product_last(
    x, y, w, steps, rows, like, geo, image, layout, phases, seen, lows, w_offsets, tiles, split, work, work_size, places, alpha,
    beta, threads,
):  # fmt: skip
    """As ``product`` of ``cpu/conv/filters.py``; ``split`` = (columns, panels) a job."""
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
                                steps,
                                rows,
                                like,
                                geo,
                                image,
                                layout,
                                phases[0],
                                seen[0],
                                lows,
                                w_offsets,
                                target,
                                work + tid * work_size,
                                places[tid],
                                g,
                                s * geo.split,
                                min((s + 1) * geo.split, geo.pixels),
                                (panel, min(panel + split[1], panels)),
                                (column, min(column + split[0], columns)),
                                alpha,
                                beta,
                            )
                        job += 1
