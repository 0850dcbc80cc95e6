"""The configuration of ``rows.py``, and the bytes of shared memory and workspace that it takes.

``rows_config.py`` chooses among what fits.
"""

from __future__ import annotations

import math

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.conv.unshared.parts.tile import receptive_field, tiles_of
from numbadnn.problems.conv import ConvProblem

#: channels and filters of a product of tensor cores, bytes of y's values in one
LANES, EIGHT, ROWS, FRAGMENT = 32, 8, 16, 512
#: bytes of an asynchronous copy; bytes in front of the ring
COPY, RINGS = 16, 256
#: lanes of tensor cores, of neighbouring pairs of channels, whose sums lie together
NEAR = 2
#: registers of a thread beside its sums; of a thread of the warps that multiply nothing, where others have more
OTHERS, FEWER = 56, 32


@dataclass(frozen=True, slots=True)
class RowsConfig:
    """A block has ``positions`` output positions of each of ``rows`` rows and ``channels`` channels of a group.

    ``images`` of a block, of which ``kept`` leave it and a thread has ``own``, 0 on tensor cores; ``right``: columns between
    positions; ``depth`` pieces of ``piece`` filters under way; ``ragged``: the last one has fewer; ``deep``: rows of positions
    at a time; ``transposed``: y's images are neighbours; ``even``: no row of positions ends within a block; ``pair``: how far a
    lane's two neighbouring filters are apart; ``align``: filters begin in shared memory within so many bytes as they do in
    memory; ``pitch``: bytes from one to the next.
    """

    images: int
    kept: int
    warps: int
    taps: tuple[int, int]
    positions: int
    stride: tuple[int, int]
    deep: int
    depth: int
    piece: int
    turns: int
    steps: int
    flip: bool
    ragged: bool
    resident: int
    many: bool
    own: int = 0
    transposed: bool = False
    even: bool = False
    pair: int = 1
    align: int = 16
    pitch: int = 0
    rows: int = 1
    channels: int = 1

    @property
    def prefetched(self) -> bool:
        """Whether a warp of its own prefetches whole lines: they begin later, which blocks of few positions have no time for."""
        return self.turns > 2 and (self.deep > 1 or self.many)

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.columns * (self.own or 4 * self.tiles)

    @property
    def split(self) -> bool:
        """Whether registers go from warps that multiply nothing, four of them then, to the others."""
        alone = 512 // -(-(self.warps + 1) * self.resident // 4)
        return self.prefetched and self.resident == 1 and self.warps % 4 == 0 and self.sums + OTHERS > alone

    @property
    def registers(self) -> int:
        """Of a thread that multiplies: a quarter of a multiprocessor has as many warps as any other."""
        if self.split:
            return min(240, (512 - FEWER) // (self.warps // 4) // 8 * 8)
        return min(255, 512 // -(-(self.warps + self.prefetched) * self.resident // 4) // 8 * 8)

    @property
    def threads(self) -> int:
        return LANES * (self.warps + (4 if self.split else int(self.prefetched)))

    @property
    def columns(self) -> int:
        return (self.positions - 1) * self.stride[1] + self.taps[1]

    @property
    def high(self) -> int:
        """Rows of pixels that a group of rows of positions reaches."""
        return (self.deep - 1) * self.stride[0] + self.taps[0]

    @property
    def tiles(self) -> int:
        """Products that have all images."""
        return self.images // 16

    @property
    def of_filter(self) -> int:
        """Bytes of a row of transposed values of y of a filter: an odd number of 16, so that neighbours meet different banks."""
        return self.positions * self.kept * (4 if self.own else 2) + 16

    @property
    def tile(self) -> tuple[int, int]:
        return self.rows, self.positions

    @property
    def within(self) -> int:
        """The bits of where filters begin in memory that say where they begin in shared memory."""
        return self.align - 1 if self.align > COPY else 0

    @property
    def line(self) -> int:
        """Bytes of a pixel's sums of tensor cores that lie together: of four channels and up to four images."""
        return 2 * NEAR * min(self.kept, 4) * 4

    @property
    def vectors(self) -> int:
        """Warps of a row of pixels, each with some channels."""
        return self.warps // self.high


def pitch_of(problem: ConvProblem, config: RowsConfig) -> int:
    """Bytes from one filter's line in shared memory to the next."""
    if config.pitch:
        return config.pitch
    length = config.channels * math.prod(problem.taps) * problem.w.itemsize
    return -(-length // 16) * 16


def y_pitch_of(problem: ConvProblem, config: RowsConfig) -> int:
    """Bytes of y's values of a position in shared memory, or of a filter, with what neighbours need to meet different banks."""
    if config.transposed:
        return config.of_filter
    if config.own:
        return (problem.w.shape[0] // problem.groups * config.images + 4) * 4
    return config.steps * config.tiles * FRAGMENT + 16


def slot_of(problem: ConvProblem, config: RowsConfig) -> int:
    """Bytes of a piece of filters in shared memory, wherever within ``align`` the first begins."""
    return config.piece * pitch_of(problem, config) + (config.align if config.within else 0)


def shared_bytes(problem: ConvProblem, config: RowsConfig) -> int:
    of_y = config.rows * problem.w.shape[0] // problem.groups if config.transposed else math.prod(config.tile)
    return RINGS + config.depth * slot_of(problem, config) + of_y * y_pitch_of(problem, config)


def boxes_bytes(problem: ConvProblem, config: RowsConfig) -> int:
    """Of all images; of whole vectors of channels on tensor cores."""
    pixels, tiles = math.prod(receptive_field(problem, config.tile)), math.prod(tiles_of(problem, config.tile))
    vectors = blocks_of(problem, config) * config.vectors * EIGHT
    return pixels * (tiles * problem.x.shape[1] if config.own else vectors) * config.kept * 4


def space_bytes(problem: ConvProblem, config: RowsConfig) -> int:
    """The boxes, and behind them y where it is transposed."""
    transposed = math.prod(problem.y.shape[1:]) * config.kept * problem.y.itemsize if config.transposed else 0
    return boxes_bytes(problem, config) + transposed


def blocks_of(problem: ConvProblem, config: RowsConfig) -> int:
    return math.prod(tiles_of(problem, config.tile)) * problem.groups * -(-problem.w.shape[3] // config.channels)
