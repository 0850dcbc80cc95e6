"""Tiles of the kernel that sums an unshared gradient of float32 images on tensor cores: which fit, and an estimate for each.

``split.py`` says when they are taken.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import Protocol

from numbadnn.kernels.build.machine import LARGEST_ROOM
from numbadnn.kernels.conv.unshared.parts.tile import seen_of, vector
from numbadnn.problems.conv import ConvProblem

#: channels of a product, filters of a slot, bytes in front of the ring
LANES, EIGHT, PIECE, RINGS = 32, 8, 16, 256
#: words that a number is cut into; positions and threads of a block that cuts y
WORDS, PIXELS, TURNERS = 3, 8, 256
#: images of an access of what adds boxes, accesses under way, channels of a block of it at most: fewer where that leaves fewer
#: threads than so many
LOT, AHEAD, COLLECTED, COLLECTORS = 4, (4, 6), 8, 120_000
#: bytes of a line of the L2 cache; of boxes, from which on saying that they have been read saves more than it costs
LINE, LARGE = 128, 24 << 20
#: bytes of y's values that a block cuts itself, where its ring has so many slots still: a shorter one costs more than that saves
FILLED, DEEP = 64 * 1024, 9
MOST_WARPS, MOST_DEPTH, LEAST_DEPTH, MULTIPROCESSORS = 16, 14, 2, 132
#: registers of a thread beside its sums, by products that have all images; of one of the warps that multiply nothing
OTHERS, FEWER = {1: 56, 2: 80}, 48
#: cycles of a quarter of a multiprocessor for a product and what belongs to it, for a row of taps besides, for a slot; of a
#: multiprocessor for a copy to begin
PRODUCT, ROW_OF_TAPS, PASSING, COPYING = 8.0, 150, 100, 45


class Boxed(Protocol):
    """What the configurations have in common whose blocks write boxes of rows of columns of positions, for one sum of them."""

    @property
    def rows(self) -> int: ...
    @property
    def places(self) -> int: ...
    @property
    def tile(self) -> tuple[int, int]: ...
    @property
    def channels(self) -> int: ...
    @property
    def images(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ColumnsConfig:
    """``warps`` multiply, others prefetch filters: ``depth`` slots of 16 of them; ``ragged``: the last one has fewer."""

    images: int
    warps: int
    taps: tuple[int, int]
    stride: tuple[int, int]
    depth: int
    flip: bool
    ragged: bool

    @property
    def tiles(self) -> int:
        """Products that have all images."""
        return self.images // 16

    @property
    def padded(self) -> int:
        """Warps in front of those that ask: registers go to whole groups of four, at least two."""
        return max(8, -(-self.warps // 4) * 4)

    @property
    def threads(self) -> int:
        return LANES * (self.padded + 4)

    @property
    def begun(self) -> int:
        """Registers that all threads begin with."""
        return 512 * 4 // (self.padded + 4) // 8 * 8

    def left(self, fewer: int) -> int:
        """Registers of a thread that multiplies: those that ask keep ``fewer`` and give the rest to the others."""
        return min(240, (self.begun * (self.padded + 4) - fewer * 4) // self.padded // 8 * 8)


@dataclass(frozen=True, slots=True)
class SplitConfig(ColumnsConfig):
    """A block has ``places`` columns of ``rows`` rows of positions, which go on in the next rows, and ``channels`` of a group.

    ``filled``: a block cuts y's values itself.
    """

    filled: bool = False
    rows: int = 1
    places: int = 1
    channels: int = 1

    @property
    def of_column(self) -> int:
        """Sums of a thread for a column of pixels."""
        return 4 * self.tiles

    @property
    def tile(self) -> tuple[int, int]:
        return self.rows, self.places

    @property
    def of_y(self) -> int:
        """Bytes of y's values in a slot."""
        return WORDS * self.tiles * 512

    @property
    def registers(self) -> int:
        """Of a thread that multiplies."""
        return self.left(FEWER)


@functools.lru_cache(256)
def candidates(problem: ConvProblem) -> list[tuple[float, SplitConfig]]:
    """(estimated microseconds, configuration) of all that fit."""
    C, (P, Q), found = problem.w.shape[3], problem.y.shape[2:], []
    for channels in sorted({-(-C // parts) for parts in (1, 2, 4, 8, 16)}):
        if vector(problem, channels, 4) < 4:
            continue  # a line of filters is copied 16 bytes at a time
        for rows in sorted({-(-P // -(-P // n)) for n in range(1, min(P, MOST_WARPS) + 1)}):
            columns = -(-P // rows) * Q * problem.groups * -(-C // channels)
            dealt = {max(1, -(-columns // (MULTIPROCESSORS * waves))) for waves in (1, 2, 3)}
            tried = (configured(problem, (rows, places), channels) for places in sorted(dealt))
            found += [(rank(problem, config), config) for config in tried if config]
    return found


def configured(problem: ConvProblem, tile: tuple[int, int], channels: int, depth: int = 0) -> SplitConfig | None:
    """With as many slots as fit, if not said how many."""
    images, K = max(16, 1 << (problem.x.shape[0] - 1).bit_length()), problem.w.shape[0] // problem.groups
    warps = seen_of(problem, tile)[0] * -(-channels // EIGHT)
    taps, stride = (problem.taps[0], problem.taps[1]), (problem.stride[0], problem.stride[1])
    config = SplitConfig(images, warps, taps, stride, 0, bool(problem.flip), K % PIECE > 0, False, *tile, channels)
    filled = replace(config, filled=True)
    if math.prod(tile) * y_pitch_of(problem, config) <= FILLED and depth_of(problem, filled) >= DEEP:
        config = filled
    depth = depth or depth_of(problem, config)
    fits = warps <= MOST_WARPS and taps[1] * config.of_column + OTHERS[config.tiles] <= config.registers
    return replace(config, depth=depth) if fits and depth >= LEAST_DEPTH else None


def depth_of(problem: ConvProblem, config: SplitConfig) -> int:
    """Slots that fit."""
    return min(MOST_DEPTH, (LARGEST_ROOM - shared_bytes(problem, replace(config, depth=0))) // slot_of(problem, config))


def pitch_of(problem: ConvProblem, config: SplitConfig) -> int:
    """Bytes of a filter's line in a slot: an odd number of 16, so that each second begins in another quarter of the banks."""
    length = config.channels * math.prod(problem.taps) * 4
    return length + (16 - length) % 32


def slot_of(problem: ConvProblem, config: SplitConfig) -> int:
    """Bytes of 16 filters and y's values."""
    return PIECE * pitch_of(problem, config) + (0 if config.filled else config.of_y)


def y_pitch_of(problem: ConvProblem, config: SplitConfig) -> int:
    """Bytes of y's values of a position, where a block cuts them: neighbours begin in other banks."""
    return steps_of(problem) * config.of_y + 16


def shared_bytes(problem: ConvProblem, config: SplitConfig) -> int:
    of_y = math.prod(config.tile) * y_pitch_of(problem, config) if config.filled else 0
    return RINGS + config.depth * slot_of(problem, config) + of_y


def strips_of(problem: ConvProblem, config: Boxed) -> int:
    """Rows of positions, ``rows`` at a time."""
    return -(-problem.y.shape[2] // config.rows)


def parts_of(problem: ConvProblem, config: Boxed) -> int:
    """How many blocks the columns of all strips are dealt to."""
    return -(-strips_of(problem, config) * problem.y.shape[3] // config.places)


def box_of(problem: ConvProblem, config: Boxed) -> tuple[int, int]:
    """Rows and columns of pixels that a block's columns of a strip reach, at most."""
    return seen_of(problem, config.tile)


def most_boxes(problem: ConvProblem, config: Boxed) -> int:
    """That may hold a pixel: of as many strips and, in each, of as many blocks as its positions can be in."""
    strips = -(-box_of(problem, config)[0] // (config.rows * problem.stride[0]))
    columns = -(-problem.taps[1] // problem.stride[1])
    return strips * (-(-(columns - 1) // config.places) + 1)


def boxes_bytes(problem: ConvProblem, config: Boxed) -> int:
    """Of all images. A block has a box in each strip that it has columns of; the next one's are counted on from there."""
    boxes = strips_of(problem, config) + parts_of(problem, config)
    return boxes * math.prod(box_of(problem, config)) * problem.x.shape[1] * config.images * 4


def space_bytes(problem: ConvProblem, config: SplitConfig) -> int:
    """The boxes, and behind them y where it is cut before."""
    if config.filled:
        return boxes_bytes(problem, config)
    return (
        boxes_bytes(problem, config) + problem.groups * math.prod(problem.y.shape[2:]) * steps_of(problem) * config.of_y
    )


def steps_of(problem: ConvProblem) -> int:
    """Slots that have the filters of a group at a position."""
    return -(-(problem.w.shape[0] // problem.groups) // PIECE)


def blocks_of(problem: ConvProblem, config: Boxed) -> int:
    return parts_of(problem, config) * problem.groups * -(-problem.w.shape[3] // config.channels)


def busiest(config: SplitConfig) -> int:
    """How many rows of taps the fullest quarter of a multiprocessor multiplies for a column of positions."""
    high, quarters = (config.rows - 1) * config.stride[0] + config.taps[0], [0, 0, 0, 0]
    for warp, a in itertools.product(range(config.warps), range(config.rows)):
        quarters[warp % 4] += 0 <= warp % high - a * config.stride[0] < config.taps[0]
    return max(quarters)


def rank(problem: ConvProblem, config: SplitConfig) -> float:
    """An estimate from an H200: launches, filters or the products of the fullest quarter of a multiprocessor, boxes."""
    taps = config.taps[1]
    steps, blocks = steps_of(problem), blocks_of(problem, config)
    waves = -(-blocks // MULTIPROCESSORS)
    row = taps * 6 * config.tiles * PRODUCT + ROW_OF_TAPS
    column = busiest(config) * row + config.rows * config.warps / 4 * PASSING
    own = waves * config.places * steps * column / 1755
    stream = problem.w.size * problem.w.itemsize / 3.8e6 * (1.3 - 0.3 * blocks / (waves * MULTIPROCESSORS))
    reached = strips_of(problem, config) * problem.y.shape[3] * problem.stride[1]
    reached += (strips_of(problem, config) + parts_of(problem, config)) * (taps - problem.stride[1])
    written = reached * box_of(problem, config)[0] * problem.x.shape[1] * config.images * 4
    copying = waves * math.prod(config.tile) * steps * (PIECE + 1) * COPYING / 1755
    start = (9 if config.filled else 12) + 3 * (waves - 1)
    return start + max(own, stream, copying) + 0.25 * min(own, stream) + written / 2.5e6
