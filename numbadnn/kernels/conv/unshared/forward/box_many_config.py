"""The configuration of ``box_many.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

LANES, EIGHT, PIECE, ALONG = 32, 8, 32, 4


@dataclass(frozen=True, slots=True)
class ManyConfig:
    """A block has ``tall`` rows of ``places`` positions at a time, ``parts`` warps for each; a thread 8 images of ``filters``.

    Four lanes split the terms, four at a time each; a warp's ring has ``stages`` slots of 32 terms, which ``vec`` at a time are
    copied to; ``channels`` in shared memory, which divide those of a group, as the places of terms are found once.
    """

    images: int
    filters: int
    tall: int
    places: int
    parts: int
    vec: int
    stages: int
    resident: int
    channels: int

    @property
    def threads(self) -> int:
        return LANES * self.tall * self.places * self.parts

    @property
    def apart(self) -> int:
        """Lanes that have different filters of the same terms and images."""
        return LANES * EIGHT // (ALONG * self.images)

    @property
    def across(self) -> int:
        """Filters of a warp."""
        return self.filters * self.apart

    @property
    def cell(self) -> int:
        """Words of a pixel."""
        return self.images if self.images == 32 else self.images + 4

    @property
    def pitch(self) -> int:
        """Words of the sums of a filter."""
        return self.images + 1
