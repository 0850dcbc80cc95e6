"""The configuration of ``places_many.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

LANES, ROWS, CHUNK = 32, 16, 32


@dataclass(frozen=True, slots=True)
class PositionsConfig:
    """A block has ``tall`` rows of ``places`` positions, ``parts`` warps for each, which have 16 filters each.

    ``vec``: terms of an access.
    """

    images: int
    tall: int
    places: int
    parts: int
    vec: int

    @property
    def threads(self) -> int:
        return LANES * self.tall * self.places * self.parts

    @property
    def pitch(self) -> int:
        """Words of the sums of a filter."""
        return self.images + 4

    @property
    def place_pitch(self) -> int:
        """Words of the sums of a position."""
        return self.parts * ROWS * self.pitch + 1


@dataclass(frozen=True, slots=True)
class PlacesManyConfig(PositionsConfig):
    """``ahead``: chunks of 32 terms under way; ``channels`` in shared memory, ``whole``: all.

    They divide those of a group, as the places of terms are found once.
    """

    ahead: int
    resident: int
    whole: bool
    channels: int
