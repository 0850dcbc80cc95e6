"""The configuration of ``products.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

#: PIECE: terms of a slot; BOXES: of pixels in shared memory
LANES, EIGHT, PIECE, BOXES = 32, 8, 32, 3


@dataclass(frozen=True, slots=True)
class ProductsConfig:
    """A block has ``tall`` rows of ``places`` positions at a time, for each ``parts`` warps times ``splits``.

    Parts have ``eights`` times 8 filters each, splits every so many turns, ``steps`` times four terms; ``whole``: of the
    products. A warp's ring has ``stages`` slots of 32 terms, which ``vec`` at a time are copied to. A box has ``channels``, which
    divide those of a group.
    """

    images: int
    eights: int
    steps: int
    tall: int
    places: int
    parts: int
    splits: int
    vec: int
    whole: bool
    stages: int
    channels: int

    @property
    def threads(self) -> int:
        return LANES * (self.tall * self.places * self.parts * self.splits)

    @property
    def across(self) -> int:
        """Filters of a warp."""
        return EIGHT * self.eights

    @property
    def pitch(self) -> int:
        """Words of the sums of a filter."""
        return self.images + 1
