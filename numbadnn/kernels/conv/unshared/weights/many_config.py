"""The configuration of ``many.py`` and the constants that host and device code share."""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass

#: FILTERS: of a product
LANES, FILTERS = 32, 16


@dataclass(frozen=True, slots=True)
class WeightsManyConfig:
    """A block has ``tall`` rows of ``positions`` output positions, a warp each, and ``terms`` of at most ``channels`` of a group.

    ``vec``: terms of an access; ``whole``: of the products; ``filter_tiles`` tiles of 16 filters are multiplied at a time.
    """

    images: int
    tall: int
    positions: int
    resident: int
    vec: int
    whole: bool
    filter_tiles: int
    channels: int
    terms: int

    @property
    def threads(self) -> int:
        return LANES * self.tall * self.positions
