"""The configuration of ``to_image_halves.py``, and what the host and the device both know."""

from __future__ import annotations

import math

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.conv.image.to_image_config import met

#: channels of the source that a warp has; rows of positions that it sums at a time
TERMS, ROWS = 16, 2


@dataclass(frozen=True, slots=True)
class ToImageHalvesConfig:
    """``first``: (top, left) of the sum. A block has tiles of ``rows`` and ``columns`` positions of every phase; ``parts`` warps
    share the channels of the source, ``ways`` the positions."""

    channels: int
    taps: tuple[int, int]
    stride: tuple[int, int]
    first: tuple[int, int]
    parts: int
    ways: int
    rows: int
    columns: int
    resident: int

    @property
    def threads(self) -> int:
        return 32 * self.parts * self.ways

    @property
    def lowest(self) -> tuple[int, int]:
        """The first row and column of the source that position 0 meets, which may be negative."""
        return met(self.stride, self.taps, self.stride, self.first)[0]

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns of the source that a position meets, in all its phases."""
        return met(self.stride, self.taps, self.stride, self.first)[1]

    def _meets(self, later: int, j: int) -> bool:
        """Whether results of a phase along the rows meet the j-th column of places."""
        return 0 <= later + self.first[1] - self.stride[1] * (self.lowest[1] + j) < self.taps[1]

    @property
    def firsts(self) -> int:
        """Columns of places that only the first of two phases meets: these are the first ones."""
        return sum(not self._meets(1, j) for j in range(self.reach[1])) if self.stride[1] == 2 else 0

    @property
    def seconds(self) -> int:
        """From this column of places on only the second phase meets them."""
        alone = sum(not self._meets(0, j) for j in range(self.reach[1])) if self.stride[1] == 2 else 0
        return self.reach[1] - alone

    @property
    def kinds(self) -> int:
        """Sums of both phases, of the first alone, of the second alone."""
        return 1 + (self.firsts > 0) + (self.seconds < self.reach[1])

    @property
    def source(self) -> tuple[int, int]:
        """Rows and columns of the source that a tile meets."""
        return self.rows + self.reach[0] - 1, self.columns + self.reach[1] - 1

    @property
    def pitch(self) -> int:
        """Bytes from position to position in shared memory: eight neighbours meet all banks."""
        return 2 * TERMS * self.parts + 16

    @property
    def source_bytes(self) -> int:
        return math.prod(self.source) * self.pitch

    @property
    def phases(self) -> int:
        return math.prod(self.stride)

    @property
    def part_bytes(self) -> int:
        """Sums of a warp: ROWS, phases, 16 positions, four channels."""
        return ROWS * self.phases * 16 * 16

    @property
    def sums_bytes(self) -> int:
        return self.part_bytes * self.parts * self.ways

    @property
    def shared_bytes(self) -> int:
        """What is read of the source, and two buffers for sums."""
        return self.source_bytes + 2 * self.sums_bytes
