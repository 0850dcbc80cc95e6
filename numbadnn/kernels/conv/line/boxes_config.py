"""The configuration of ``boxes.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

from numbadnn.kernels.conv.line.twofold_config import LANES, SIZE

#: channels and times of a box, filters of a block
CHANNELS, BOX, FILTERS = 64, 64, 64
#: groups of four warps, each with boxes of its own
GROUPS = 4
THREADS = GROUPS * 128
#: the thread that asks for boxes, which takes it 250 cycles each, and for how many of them before it cuts filters
ASKING, FIRST_BOXES = THREADS - LANES, GROUPS
#: bytes of a box, and of the rows of 8 channels that 64 filters and one empty are at a tap
BOX_BYTES, OCTET = CHANNELS * BOX * SIZE, (FILTERS + 1) * 16
#: from tap to tap
TAP = CHANNELS // 8 * OCTET
#: where in shared memory, behind the boxes' barriers, lie that of filters, what warps find in filters and in boxes, and filters
COME, EXTREMES_OF_FILTERS, EXTREMES, FIRST = 96, 128, 256, 384
SHARED_BYTES = 227 * 1024
MOST_BOXES = 12


@dataclass(frozen=True, slots=True)
class BoxesConfig:
    """``taps`` are frozen; a box begins ``halo`` times before its results; after every ``run`` instructions, 16 channels each,
    of a tap their sums are added to the total."""

    taps: int
    halo: int
    run: int

    @property
    def span(self) -> int:
        """Results of a box, of a filter."""
        return BOX - self.halo

    @property
    def filters(self) -> int:
        """Bytes of one half of all filters."""
        return self.taps * TAP

    @property
    def first_box(self) -> int:
        return -(-(FIRST + 2 * self.filters) // 128) * 128

    @property
    def boxes(self) -> int:
        """That shared memory has room for."""
        return min(MOST_BOXES, (SHARED_BYTES - 128 - self.first_box) // BOX_BYTES)
