"""The configuration of ``box.py`` and the constants that host and device code share."""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass

#: lanes that go along a filter together; filters whose gradient a block writes at a time
LANES, EIGHT, ROWS = 32, 8, 32


@dataclass(frozen=True, slots=True)
class BoxConfig:
    """A block has ``positions`` output positions, as many warps of products for each; a thread ``filters``,
    ``vec`` terms at once.

    ``images``: 8, 16 or 32; ``ahead``: turns of four terms under way; ``channels`` in shared memory, ``whole``: these are all.
    """

    images: int
    filters: int
    positions: int
    warps: int
    vec: int
    ahead: int
    resident: int
    whole: bool
    channels: int

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def parts(self) -> int:
        """Warps of a position, which have different filters."""
        return self.warps // self.positions

    @property
    def across(self) -> int:
        """Filters of a warp."""
        return self.filters * 4 // (self.images // 8)

    @property
    def pitch(self) -> int:
        """Words of the sums of a filter."""
        return self.images + 1

    @property
    def cell(self) -> int:
        """Words of a pixel: an odd multiple of 4, so that eight neighbours meet all banks."""
        return (self.images // 4 | 1) * 4
