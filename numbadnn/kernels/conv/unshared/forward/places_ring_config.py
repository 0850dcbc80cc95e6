"""The configuration of ``places_ring.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

from numbadnn.kernels.conv.unshared.forward.places_many_config import ROWS, PositionsConfig

#: terms of a slot, its bytes, and slots after which all warps meet
TERMS, SLOT_BYTES, LAP = 64, 64 * 2 * ROWS, 3
#: slots of a warp, the best first, and no more than of a lap; the first ones are asked for before pixels; bytes of a filter
#: that come to the L2 cache together
STAGES, EARLY, FETCH = (3, 2), 1, 128


@dataclass(frozen=True, slots=True)
class RingConfig(PositionsConfig):
    """``stages``: slots of a warp; ``channels`` in shared memory at a time."""

    stages: int
    channels: int
