"""The configuration of ``pixels.py``, and what the host and the device both know."""

from __future__ import annotations

import math
from dataclasses import dataclass

from numbadnn.kernels.conv.unshared.inputs.rows_config import spread
from numbadnn.kernels.conv.unshared.inputs.rows_sizes import RowsConfig

#: channels and filters of a product of tensor cores; bytes of an element; rows of positions of y in shared memory
LANES, EIGHT, ROWS, SIZE, Y_ROWS = 32, 8, 16, 2, 2


@dataclass(frozen=True, slots=True)
class PixelsConfig:
    """A block has ``tall`` rows of ``wide`` pixels and ``channels`` channels of a group, of ``kept`` images.

    ``steps`` times 16 filters a group; ``depth`` slots of the ring. ``lasting``: the L2 cache gives up x last, whose pieces would
    meet the filters on their way to memory.
    """

    kept: int
    taps: tuple[int, int]
    wide: int
    channels: int
    steps: int
    depth: int
    flip: bool
    lasting: bool
    tall: int = 0

    @property
    def of_pixel(self) -> int:
        """Sums of a lane for a pixel."""
        return self.kept // 16 * 4

    @property
    def sums(self) -> int:
        """Of a lane: those past both ends of a row of pixels are other blocks'."""
        return (self.wide + 2 * (self.taps[1] - 1)) * self.of_pixel

    @property
    def positions(self) -> int:
        """Of a row that reach the block's pixels."""
        return self.wide + self.taps[1] - 1

    @property
    def warps(self) -> int:
        return self.taps[0] * self.channels // EIGHT

    @property
    def threads(self) -> int:
        """One warp more asks for filters, and one for y."""
        return LANES * (self.warps + 2)

    @property
    def pitch(self) -> int:
        """Bytes from a filter to the next."""
        return self.channels * math.prod(self.taps) * SIZE

    @property
    def slot(self) -> int:
        return -(-self.steps * ROWS * self.pitch // 128) * 128

    @property
    def y_row(self) -> int:
        return self.steps * ROWS * self.lanes.of_filter

    @property
    def lanes(self) -> RowsConfig:
        """What a lane multiplies, as ``device/rows_halves.py`` takes it."""
        pair = spread(self.pitch, math.prod(self.taps) * SIZE)[1]
        shape = (self.positions, (1, 1), 1, self.depth, ROWS, 1, self.steps, self.flip, False, 1, True, 0, True)
        return RowsConfig(self.kept, self.kept, self.warps, self.taps, *shape, pair=pair)


def ring_at(config: PixelsConfig) -> int:
    """Where the ring begins: behind all barriers."""
    return -(-16 * (config.depth + Y_ROWS) // 128) * 128
