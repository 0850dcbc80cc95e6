"""Prefetch filters for ``device/f32x2.py`` and ``device/places_stream.py``: a lane fills the ring of each multiplying warp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.unshared.forward.device.f32x2_store import first_filter
from numbadnn.kernels.conv.unshared.forward.f32x2_config import LANES, PREFETCHERS, SLOT
from numbadnn.kernels.lang.async_copies import copy_tile
from numbadnn.kernels.lang.cuda import device, i32, u32
from numbadnn.kernels.lang.hopper import barrier_expect, barrier_wait
from numbadnn.kernels.lang.ptx import thread_here


@device
def terms_before(at, step, piece):
    """How many a position's first copy begins before its first term, so that copies begin where lines of memory do.

    ``step``: terms between positions ``at``, or 0: then all begin with the first term.
    """
    return i32(i32(at * step) & i32(piece - 1))


def prefetching(config: Any, piece: int) -> Callable[..., tuple[int, int]]:
    """``prefetch(shared, filters, full, ring, first, K, P, Q, p, q, terms, step, slot, parity)``: a tile's copies of
    ``piece`` terms.

    ``first``: the group's first filter; ``step``: see ``terms_before``. (slot, parity) of what is next. Lanes wait together, and
    their warps may be a slot and a half apart: a ring has two slots at least.
    """
    columns, parts, splits, depth, warps = config.positions, config.parts, config.splits, config.depth, config.warps
    positions, each, hop, copy = config.tall * columns, warps // PREFETCHERS, piece * splits, copy_tile(3, True)

    @device
    def prefetch(shared, filters, full, ring, first, K, P, Q, p, q, terms, step, slot, parity):
        thread = i32(thread_here() - LANES * warps)
        lane = i32(thread % LANES)
        if lane < each:
            warp = i32(thread // LANES * each + lane)
            place, rest = i32(warp % positions), i32(warp // positions)
            part, split = i32(rest % parts), i32(rest // parts)
            at = i32(min(i32(p + place // columns), i32(P - 1)) * Q + min(i32(q + place % columns), i32(Q - 1)))
            k = i32(first + first_filter(part, K))
            to, barrier = i32(ring + warp * depth * SLOT), i32(full + warp * depth * 8)
            for m in range(i32(split * piece - terms_before(at, step, piece)), terms, i32(hop)):
                barrier_wait(u32(barrier + (warps * depth + slot) * 8), u32(parity))
                barrier_expect(u32(barrier + slot * 8), u32(SLOT))
                copy(shared, i32(to + slot * SLOT), filters, (i32(m), k, at), u32(barrier + slot * 8))
                parity = i32(parity ^ 1) if slot == depth - 1 else parity
                slot = i32(0) if slot == depth - 1 else i32(slot + 1)
        return slot, parity

    return prefetch
