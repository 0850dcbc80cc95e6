"""The configuration of ``f32x2.py`` and the constants that host and device code share."""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass

#: channels of a product, filters of a slot, bytes in front of the ring
LANES, EIGHT, PIECE, RINGS = 32, 8, 16, 256
#: images of an access of what adds boxes, accesses under way, channels of a block of it at most: fewer where that leaves fewer
#: threads than so many
WIDTH, AHEAD_OF_SUMS, REDUCED, REDUCERS = 4, (4, 6), 8, 120_000
#: bytes of a line of the L2 cache; of boxes, from which on saying that they have been read saves more than it costs
LINE, LARGE = 128, 24 << 20
#: float16 parts of a number; warps that cut y, of four that multiply nothing; steps of y that each has under way
PARTS, FILLERS, AHEAD = 2, 2, 3
#: slots of the ring and buffers of y's rows: 16 at most, each has two barriers in front of the ring
MOST_WARPS, MOST_DEPTH, LEAST_DEPTH, CHUNKS = 16, 10, 3, 4
#: registers of a thread beside its sums; of one of the warps that multiply nothing
OTHERS, FEWER = 80, 80


@dataclass(frozen=True, slots=True)
class InputsF32x2Config:
    """``warps`` multiply, others prefetch filters: ``depth`` slots of 16 of them; ``ragged``: the last one has fewer.

    A block has ``positions`` neighbouring output positions of each of ``rows`` rows, and ``channels`` of a group.

    A warp has ``vectors`` times eight channels; ``vec`` values of y are a copy; there are buffers for ``chunks`` times those of a
    row and 16 filters.
    """

    images: int
    warps: int
    taps: tuple[int, int]
    stride: tuple[int, int]
    depth: int
    flip: bool
    ragged: bool
    vectors: int
    positions: int
    vec: int
    chunks: int = CHUNKS
    rows: int = 1
    channels: int = 1

    @property
    def tiles(self) -> int:
        """Products that have all images."""
        return self.images // 16

    @property
    def padded(self) -> int:
        """Warps in front of those that prefetch: registers go to whole groups of four, at least two."""
        return max(8, -(-self.warps // 4) * 4)

    @property
    def threads(self) -> int:
        return LANES * (self.padded + 4)

    @property
    def begun(self) -> int:
        """Registers that all threads begin with."""
        return 512 * 4 // (self.padded + 4) // 8 * 8

    @property
    def of_vector(self) -> int:
        """Sums of a thread for a pixel of eight channels."""
        return 4 * self.tiles

    @property
    def tile(self) -> tuple[int, int]:
        return self.rows, self.positions

    @property
    def of_y(self) -> int:
        """Bytes of y's values of a position and 16 filters, and of the inverses of the images' scales."""
        return PARTS * self.tiles * 512 + 2 * self.images

    @property
    def raw_bytes(self) -> int:
        """Of a step of y: a lane has two images and four filters."""
        return 8 * LANES * self.positions * 4

    @property
    def registers(self) -> int:
        """Of a thread that multiplies: those that prefetch keep ``FEWER`` and give the rest to the others."""
        return min(240, (self.begun * (self.padded + 4) - FEWER * 4) // self.padded // 8 * 8)
