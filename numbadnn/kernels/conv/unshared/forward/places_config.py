"""The configuration of ``places.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

LANES, CHUNK = 32, 32


@dataclass(frozen=True, slots=True)
class PlacesConfig:
    """A block has ``places`` positions, ``parts`` warps for each; ``filters`` (16 or 32) at a time; ``vec``: terms of an access.

    ``ahead``: chunks of 32 terms under way; ``channels`` in shared memory, ``whole``: these are all.
    """

    images: int
    filters: int
    places: int
    parts: int
    vec: int
    ahead: int
    resident: int
    whole: bool
    tall: int
    channels: int

    @property
    def threads(self) -> int:
        return LANES * self.places * self.parts

    @property
    def pitch(self) -> int:
        """Words of the sums of a filter: neighbouring filters then meet different banks."""
        return self.images if self.images == 8 else self.images + 8
