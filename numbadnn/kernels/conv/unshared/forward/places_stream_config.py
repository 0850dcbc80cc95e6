"""The configuration of ``places_stream.py`` and the constants that host and device code share."""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.conv.unshared.forward.f32x2_config import OTHERS
from numbadnn.kernels.conv.unshared.parts.tile import LANES
from numbadnn.kernels.conv.unshared.parts.transposed import EIGHT

#: terms of a slot; filters of a warp
TERMS, ROWS = 64, 16
#: registers of a thread that prefetches, and of one that multiplies
FEWER, MORE = 40, 104


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """A block has ``tall`` rows of ``positions`` each, ``parts`` warps for each, which have 16 filters each.

    ``vec``: neighbouring results of an access. A warp's ring has ``depth`` slots of 64 terms; there are buffers for ``boxes``
    of some ``channels``.
    """

    images: int
    tall: int
    positions: int
    parts: int
    vec: int
    depth: int
    boxes: int
    channels: int

    splits = 1

    @property
    def warps(self) -> int:
        """That multiply."""
        return self.tall * self.positions * self.parts

    @property
    def threads(self) -> int:
        return LANES * (self.warps + OTHERS)

    @property
    def pitch(self) -> int:
        """Words of the sums of a filter."""
        return self.images + 4

    @property
    def planes(self) -> int:
        return self.images // EIGHT

    @property
    def apart(self) -> int:
        """Words of the sums of a position and 16 filters: those of two pieces of a row meet all banks."""
        return ROWS * self.pitch + 2
