"""The filters of ``gather.py`` as panels: rows of terms, MR of them side by side. Loading this module imports Numba."""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.conv.micro import KC, MR, ROW, transpose
from numbadnn.cpu.lang.elements import accsize, itemsize
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import lanes, load, load_places, store_acc, zeros

#: panels of A whose short runs are laid out together: neighbours in memory
PACKED_TOGETHER = 16


@inner
def pack_rows(target, filters, row_step, offsets, run, k0, k1, m0, m1, small, like):
    """Rows m0..m1 of A, terms k0..k1, as rows of ROW: term k of row m lies at m * row_step + offsets[k] of ``filters``.

    ``run``: every so many terms from a multiple of it lie together in memory.
    """
    acc, vl = accsize(like), lanes(like)
    if run == 1 and row_step == 1:  # rows lie together instead: turn squares of them
        for k in range(k0, k1, vl):
            for m in range(m0, m1, vl):
                mask = (1 << min(vl, m1 - m)) - 1
                for i in range(min(vl, k1 - k)):
                    store_acc(small + i * vl * acc, load(filters, offsets[k + i] + m, mask, zeros(like), like), like)
                transpose(small, vl, target + ((m - m0) * ROW + k - k0) * acc, ROW, like)
        return
    if run < 4:
        for k in range(k0, k1, vl):
            mask = (1 << min(vl, k1 - k)) - 1
            for m in range(m0, m1):
                value = load_places(filters + m * row_step * itemsize(like), offsets.ctypes.data + k * 8, mask, like)
                store_acc(target + ((m - m0) * ROW + k - k0) * acc, value, like)
        return
    # short runs of neighbouring rows are mostly neighbours in memory
    together = 64 if run < 4 * vl else 1
    for m in range(m0, m1, together):
        k = k0
        while k < k1:
            end = min(k1, k - k % run + run)
            while k < end:
                n = min(vl, end - k)
                row = target + ((m - m0) * ROW + k - k0) * acc
                for i in range(m, min(m + together, m1)):
                    value = load(filters, offsets[k] + i * row_step, (1 << n) - 1, zeros(like), like)
                    store_acc(row, value, like)  # what is too much, the next run overwrites, or it lies between rows
                    row += ROW * acc
                k += n


def pack_filters(filters, like, geo, phases, offsets, packed, work, work_size, threads):
    """All of A for every phase and group, as panels [phase][group][block of KC][panel of MR]."""
    panels, deepest = (geo.M + MR - 1) // MR, 0
    for f in range(phases.shape[0]):
        deepest = max(deepest, phases[f, 8])
    for tid in prange(threads):
        job = 0
        for g in range(geo.G):
            for k0 in range(0, deepest, KC):
                for panel in range(0, panels, PACKED_TOGETHER):
                    # phases inside: one may use what lies between another's terms in memory
                    for f in range(phases.shape[0] if job % threads == tid else 0):
                        k_first, depth = phases[f, 7], phases[f, 8]
                        blocks = (depth + KC - 1) // KC
                        at = phases[f, 9] + ((g * blocks + k0 // KC) * panels + panel) * MR * ROW
                        pack_rows(
                            packed + at * accsize(like),
                            filters + g * geo.a_group * itemsize(like),
                            geo.a_row,
                            offsets[k_first:],
                            geo.run,
                            k0,
                            min(k0 + KC, depth),
                            panel * MR,
                            min((panel + PACKED_TOGETHER) * MR, geo.M),
                            work + tid * work_size,
                            like,
                        )
                    job += 1
