"""The configuration of ``f16.py`` and the constants that host and device code share."""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass

#: terms that a warp has at once
LANES, TILE = 32, 32


@dataclass(frozen=True, slots=True)
class WeightsF16Config:
    """A block has ``positions`` output positions, ``parts`` warps for each, and ``filters`` (16 or 32) at a time.

    ``vec``: terms of an access.
    """

    images: int
    filters: int
    positions: int
    parts: int
    vec: int
    tall: int
    channels: int
    resident: int = 2

    @property
    def threads(self) -> int:
        return LANES * self.positions * self.parts
