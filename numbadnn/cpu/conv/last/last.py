"""Convolutions of images whose channels are neighbours in memory, forward and with respect to the inputs, as one blocked product.

``conv/gather.py`` has pixels side by side in a vector; here these are the output's channels, and pixels are what is broadcast:

    out[pixel, m] = sum over k = (tap, channel) of image[pixel's place + place_k] * filters[k, m]

So pixels are read where they lie, if no tap reaches beyond the image, or in a box: the rows that some lines of pixels see, with
their padding, laid out by a thread just before. Rows of a tile are pixels, wherever they lie. Filters are laid out
once, as panels [phase][group][NR channels of the output][term]. Each element is summed in the order of k in blocks of KC, the
same bits for any number of threads and any batch.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.conv.last.box import lay_box, places_of, zero_run
from numbadnn.cpu.conv.micro import BLOCKS, KC, MR, NV, carried_tile, carry_tile, listed_kernel
from numbadnn.cpu.conv.outside import finite, sum_inside
from numbadnn.cpu.lang.elements import accsize, itemsize
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import lanes, load, load_acc, scale, scale_add, store, zeros

#: pixels of which all channels are written before those of others
TOGETHER = 8 * MR


@inner
def _write(tiles, target, places, m0, m1, alpha, beta, like):
    """Channels m0..m1 of pixels that lie at ``places``, in bytes: alpha * sums + beta * what is there."""
    vl, acc = lanes(like), accsize(like)
    for m in range(m0, m1, vl):
        mask, at = (1 << min(vl, m1 - m)) - 1, tiles + (m - m0) * acc
        if beta == 0:
            for place in places:
                store(target + place, m, mask, scale(alpha, load_acc(at, like)), like)
                at += NV * vl * acc
        else:
            for place in places:
                old = load(target + place, m, mask, zeros(like), like)
                store(target + place, m, mask, scale_add(alpha, load_acc(at, like), beta, old), like)
                at += NV * vl * acc


@inner
def _job(
    src, filters, out, packed, columns, steps, offsets, term_taps, like, geo, layout, phase, seen, lows, work, place, g, lines,
    span, panels, alpha, beta,
):  # fmt: skip
    """Columns ``span`` of lines of a phase, some panels of group g."""
    vl, acc, item = lanes(like), accsize(like), itemsize(like)
    NR = NV * vl
    first, depth, terms = phase[7], phase[8], phase[6]
    source, filters = src + g * geo.src_group * item, filters + g * geo.a_group * item
    tiles, capacity = work, TOGETHER * NR * acc
    base = source
    targets = place[layout.pixels :]
    count = places_of(targets, lines, span, phase, (geo.out_n, geo.out_d, geo.out_h, geo.out_w), item)
    if layout.in_place:
        strides = (geo.src_n, geo.step_d * geo.src_d, geo.step_h * geo.src_h, geo.step_w * geo.src_w)
        places_of(place, lines, span, phase, strides, acc)
    else:
        base = tiles + 3 * capacity
        lay_box(base, source, place, lines, span, phase, seen, lows, geo, layout, like)
    for i in range(count, (count + MR - 1) // MR * MR):
        place[i] = place[count - 1]
    every = (geo.M + NR - 1) // NR
    target = out + (phase[3] + g * geo.out_group) * item
    for pixel in range(0, count, TOGETHER):  # all panels of a few, which are whole lines of the output
        stop = min(pixel + TOGETHER, count)
        for panel in range(panels[0], panels[1]):
            b = packed + ((first * geo.G + g * depth) * every + panel * depth) * NR * acc
            for k in range(0, depth, KC):
                for i in range(pixel, stop, MR):
                    if k > 0 and k // KC % BLOCKS == 0:
                        carry_tile(tiles + (i - pixel) * NR * acc, capacity, MR * NR, k // KC, like)
                    listed_kernel(
                        base,
                        place.ctypes.data + i * 8,
                        columns.ctypes.data + (first + k) * 8,
                        b + k * NR * acc,
                        steps.ctypes.data,
                        min(KC, depth - k),
                        tiles + (i - pixel) * NR * acc,
                        k // KC % BLOCKS,
                        like,
                    )
            for i in range(pixel, stop if depth > BLOCKS * KC else pixel, MR):
                carried_tile(tiles + (i - pixel) * NR * acc, capacity, MR * NR, like)
            if depth == 0:
                zero_run(tiles, TOGETHER * NR, like)
            m0 = panel * NR
            m1 = min(m0 + NR, geo.M)
            for i in range(pixel, stop if geo.outside else pixel, MR):
                tile = tiles + (i - pixel) * NR * acc
                if not finite(tile, MR, like):
                    tap = first // (depth // terms)
                    sum_inside(
                        tile,
                        (1, NR),
                        m1 - m0,
                        min(MR, stop - i),
                        source,
                        filters,
                        offsets[first : first + depth],
                        term_taps[tap : tap + terms],
                        phase,
                        geo,
                        m0,
                        lines[0] * phase[2] + span[0] + i,
                        like,
                    )
            _write(tiles, target, targets[pixel:stop], m0, m1, alpha, beta, like)


def gather_last(
    src, filters, out, packed, columns, steps, offsets, term_taps, like, geo, layout, phases, seen, lows, work, work_size, places,
    alpha, beta, threads,
):  # fmt: skip
    """The product, in jobs of some lines and some panels; ``seen``: of each phase, see ``plan.py``."""
    NR = NV * lanes(like)
    panels = (geo.M + NR - 1) // NR
    for tid in prange(threads):
        job = 0
        for f in range(phases.shape[0]):
            Q = phases[f, 2]
            lines = phases[f, 11] // Q
            for g in range(geo.G):
                for line in range(0, lines, layout.lines):
                    for q in range(0, Q, layout.wide):
                        for panel in range(0, panels, layout.high):
                            if job % threads == tid:
                                _job(
                                    src,
                                    filters,
                                    out,
                                    packed,
                                    columns,
                                    steps,
                                    offsets,
                                    term_taps,
                                    like,
                                    geo,
                                    layout,
                                    phases[f],
                                    seen[f],
                                    lows,
                                    work + tid * work_size,
                                    places[tid],
                                    g,
                                    (line, min(line + layout.lines, lines)),
                                    (q, min(q + layout.wide, Q)),
                                    (panel, min(panel + layout.high, panels)),
                                    alpha,
                                    beta,
                                )
                            job += 1
