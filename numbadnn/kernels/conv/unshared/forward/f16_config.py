"""The configuration of ``f16.py`` and the constants that host and device code share."""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass

LANES = 32
#: filters and terms of what a warp multiplies at once
ROWS, CHUNK = 16, 32


@dataclass(frozen=True, slots=True)
class F16Config:
    """``across`` warps split the filters, ``along`` warps their terms, of which each prefetches ``ahead`` chunks at a time.

    ``vec``: terms of an access to filters; ``capacity``: terms in shared memory, whole chunks; ``whole``: these are all terms;
    ``once``: these warps have all filters; ``batch``: images whose elements a thread prefetches at a time.
    """

    images: int
    vec: int
    across: int
    along: int
    ahead: int
    capacity: int
    whole: bool
    once: bool
    batch: int
    resident: int

    @property
    def threads(self) -> int:
        return LANES * self.across * self.along

    @property
    def tiles(self) -> int:
        """Products of 8 images."""
        return max(1, self.images // 8)

    @property
    def row(self) -> int:
        """Words of an image in shared memory: an odd number of chunks, so that two rows of a chunk meet all banks."""
        return (self.capacity // CHUNK | 1) * (CHUNK // 2)

    @property
    def zeros(self) -> int:
        """Where, behind the patches, four words are 0; behind them are the sums."""
        return self.images * self.row

    @property
    def shared_bytes(self) -> int:
        return 4 * (self.zeros + 4 + self.threads * 4 * self.tiles)
