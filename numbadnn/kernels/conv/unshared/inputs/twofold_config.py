"""The configuration of ``twofold.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

from numbadnn.kernels.conv.unshared.inputs.split_config import LANES, ColumnsConfig

#: halves of a number; warps that cut y, of four that multiply nothing; lots of y that each has under way
HALVES, FILLERS, AHEAD = 2, 2, 3
#: places of the ring and of y's rows: 16 at most, each has two barriers in front of the ring
MOST_WARPS, MOST_DEPTH, LEAST_DEPTH, CHUNKS = 16, 10, 3, 4
#: registers of a thread beside its sums; of one of the warps that multiply nothing
OTHERS, FEWER = 80, 80


@dataclass(frozen=True, slots=True)
class InputsTwofoldConfig(ColumnsConfig):
    """A block has ``places`` neighbouring positions of each of ``rows`` rows, and ``channels`` of a group.

    A warp has ``lots`` times eight channels; ``vec`` values of y are a copy; there are places for ``chunks`` times those of a row
    and 16 filters.
    """

    lots: int
    places: int
    vec: int
    chunks: int = CHUNKS
    rows: int = 1
    channels: int = 1

    @property
    def of_lot(self) -> int:
        """Sums of a thread for a pixel of eight channels."""
        return 4 * self.tiles

    @property
    def tile(self) -> tuple[int, int]:
        return self.rows, self.places

    @property
    def of_y(self) -> int:
        """Bytes of y's values of a position and 16 filters, and of the inverses of the images' scales."""
        return HALVES * self.tiles * 512 + 2 * self.images

    @property
    def raw_bytes(self) -> int:
        """Of a lot of y: a lane has two images and four filters."""
        return 8 * LANES * self.places * 4

    @property
    def registers(self) -> int:
        """Of a thread that multiplies."""
        return self.left(FEWER)
