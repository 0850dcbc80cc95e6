"""The filters of ``last.py`` as panels: rows of terms, NR channels of the output side by side. Importing it imports Numba."""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.conv.micro import NV, transpose
from numbadnn.cpu.lang.elements import accsize, itemsize, load1, poke
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import lanes, load, store_acc, zeros


@inner
def _panel(target, filters, offsets, depth, m0, m1, geo, layout, small, like):
    """Channels m0..m1 of the output of all terms, a panel: row k is term k."""
    vl, acc = lanes(like), accsize(like)
    NR = NV * vl
    if geo.a_row == 1:
        for k in range(depth):
            for v in range(0, NR, vl):
                mask = (1 << max(0, min(vl, m1 - m0 - v))) - 1
                store_acc(
                    target + (k * NR + v) * acc, load(filters, offsets[k] + m0 + v, mask, zeros(like), like), like
                )
        return
    together = layout.a_channel == 1 and layout.channels % vl == 0
    for k in range(0, depth, vl if together else 1):
        for v in range(0, NR, vl):
            for i in range(vl):
                m = m0 + v + i
                if together:
                    value = zeros(like)
                    if m < m1:
                        value = load(filters, offsets[k] + m * geo.a_row, (1 << vl) - 1, zeros(like), like)
                    store_acc(small + i * vl * acc, value, like)
                else:
                    poke(
                        target,
                        k * NR + v + i,
                        load1(filters, offsets[k] + m * geo.a_row, like) if m < m1 else 0.0,
                        like,
                    )
            if together:
                transpose(small, vl, target + (k * NR + v) * acc, NR, like)


def pack_panels(filters, like, geo, layout, phases, offsets, packed, work, work_size, threads):
    """All filters, as panels."""
    vl, acc = lanes(like), accsize(like)
    NR = NV * vl
    panels = (geo.M + NR - 1) // NR
    for tid in prange(threads):
        job = 0
        for f in range(phases.shape[0]):
            first, depth = phases[f, 7], phases[f, 8]
            for g in range(geo.G):
                for panel in range(panels):
                    if job % threads == tid:
                        at = (first * geo.G + g * depth) * panels + panel * depth
                        _panel(
                            packed + at * NR * acc,
                            filters + g * geo.a_group * itemsize(like),
                            offsets[first:],
                            depth,
                            panel * NR,
                            min((panel + 1) * NR, geo.M),
                            geo,
                            layout,
                            work + tid * work_size,
                            like,
                        )
                    job += 1
