"""The configuration of ``tiles.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

#: lanes of a warp; steps of a piece, 16 bytes; filters of a thread, and its pieces of steps
LANES, VEC, FILTERS, PIECES = 32, 4, 8, 2
#: channels of a stage
CHANNELS = 8


@dataclass(frozen=True, slots=True)
class TilesConfig:
    """``across`` groups of a warp's lanes have other filters, all else other steps. ``dilation`` 0: a multiple of 4, else frozen.

    ``flip``: the last tap is the first in memory.
    """

    across: int
    warps: int
    taps: int
    dilation: int
    resident: int
    flip: bool

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def high(self) -> int:
        """Filters of a block."""
        return FILTERS * self.across

    @property
    def wide(self) -> int:
        """Steps of a block."""
        return VEC * PIECES * LANES // self.across * self.warps

    @property
    def behind(self) -> int:
        """Steps before the own ones that a frozen dilation reaches."""
        return (self.taps - 1) * self.dilation

    @property
    def looks(self) -> int:
        """Pieces that all taps of a piece of results see, where dilation is frozen."""
        return -(-self.behind // VEC) + 1

    @property
    def shift(self) -> int:
        """Where in these the first tap of the first step lies."""
        return -self.behind % VEC

    @property
    def pitch(self) -> int:
        """Factors of a tap in shared memory: four more than there are, so that channels begin in other banks."""
        return self.high + 4
