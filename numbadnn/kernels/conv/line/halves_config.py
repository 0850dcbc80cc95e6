"""The configuration of ``halves.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

#: times that a warp has at once
LANES, RUN = 32, 32


@dataclass(frozen=True, slots=True)
class LineHalvesConfig:
    """A block has ``filters`` (16 or 32), a warp ``runs`` of 32 times; ``pairs``: channels in shared memory, by two.

    ``pieces`` of a thread: 8 times of two channels each; ``whole``: all channels are in shared memory.
    """

    filters: int
    runs: int
    pairs: int
    warps: int
    resident: int
    whole: bool
    pieces: int

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def span(self) -> int:
        """Times of a block."""
        return self.warps * self.runs * RUN
