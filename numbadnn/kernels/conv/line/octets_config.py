"""The configuration of ``octets.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

from numbadnn.kernels.conv.line.halves_config import LANES, RUN

WARPS = 8
THREADS = LANES * WARPS
#: rows of 16 bytes that 8 times take in shared memory
PITCH = 10


@dataclass(frozen=True, slots=True)
class OctetsConfig:
    """A block has 8 * ``octets`` channels and 16 * ``tiles`` filters, a warp of it ``runs`` of 32 times; ``taps`` are frozen."""

    octets: int
    tiles: int
    runs: int
    taps: int
    resident: int

    @property
    def filters(self) -> int:
        return 16 * self.tiles

    @property
    def pitch(self) -> int:
        """Rows of an octet of the filters in shared memory: one more than there are, so that neighbours meet all banks."""
        return self.filters + 1

    @property
    def span(self) -> int:
        """Times of a block."""
        return WARPS * self.runs * RUN
