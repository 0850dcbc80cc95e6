"""The configuration of ``places_whole.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

from numbadnn.kernels.conv.unshared.forward.places_many_config import LANES, PositionsConfig

#: terms that a warp multiplies at a time; images of a cell, its bytes
PIECE, EIGHT, CELL = 32, 8, 16
#: parts in which a tile's filters come, at most; how many are under way; bytes of their barriers
SHARES, UNDER_WAY, BARRIERS = 4, 2, 32


@dataclass(frozen=True, slots=True)
class WholeConfig(PositionsConfig):
    """``vec``: neighbouring results of an access; ``channels``: of a group."""

    channels: int

    @property
    def warps(self) -> int:
        """That multiply; one more asks for filters."""
        return self.tall * self.places * self.parts

    @property
    def shares(self) -> int:
        """Parts in which a tile's filters come, of whose positions each has as many; few images are soon there beside them."""
        return min(SHARES if self.images > EIGHT else UNDER_WAY, self.tall * self.places)

    @property
    def threads(self) -> int:
        return LANES * (self.warps + 1)

    @property
    def planes(self) -> int:
        return self.images // EIGHT
