"""The configuration of ``f32x2.py`` and the constants that host and device code share."""

from __future__ import annotations

from typing import Any

from numbadnn.kernels.build.frozen import dataclass

LANES, IMAGES, FILTERS, PIECE = 32, 32, 16, 32
#: warps that prefetch filters, all that multiply nothing; bytes of a slot, of a pixel
PREFETCHERS, OTHERS, SLOT, PIXEL = 2, 4, 2048, 128
#: registers of a thread that prefetches, and of one that multiplies
FEWER, MORE = 32, 112
#: pixels and threads of a block that transposes, blocks of a multiprocessor; accesses by which a thread looks for a large number
TRANSPOSED_PIXELS, TRANSPOSERS, TRANSPOSING, LOOKS = 64, 256, 4, 2
#: in the workspace: where the inverse of the images' scale is, and where the images begin
INVERSE, TRANSPOSED = 4000, 4096


@dataclass(frozen=True, slots=True)
class F32x2Config:
    """A block: ``tall`` rows of ``positions`` each, for each ``parts`` times 16 filters or ``splits`` warps that share terms.

    A warp's ring has ``depth`` slots of 32 terms; there are buffers for ``boxes`` of some ``channels``.
    """

    tall: int
    positions: int
    parts: int
    splits: int
    depth: int
    boxes: int
    channels: int

    @property
    def warps(self) -> int:
        return self.tall * self.positions * self.parts * self.splits

    @property
    def threads(self) -> int:
        return LANES * (self.warps + OTHERS)

    @property
    def of_turn(self) -> int:
        """Filters of a block."""
        return FILTERS * self.parts

    @property
    def pitch(self) -> int:
        """Words of the sums of a filter."""
        return IMAGES * (self.tall * self.positions + 1) + 1


def ring_at(config: Any) -> int:
    """Where the rings of the warps begin: behind all barriers."""
    return -(-16 * (config.warps * config.depth + config.boxes) // 1024) * 1024


def box_at(config: Any) -> int:
    """What follows the rings."""
    return ring_at(config) + config.warps * config.depth * SLOT
