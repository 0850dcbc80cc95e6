"""Tiles of the kernels that keep the sums of an unshared gradient in registers: which of them fit, and an estimate for each.

``unshared_inputs_rows`` says when they are taken.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace

from numbadnn.kernels._softmax_layout import LARGEST_ROOM
from numbadnn.kernels.unshared_tile import seen_of, tiles_of, vector
from numbadnn.ops.conv import ConvProblem

#: channels and filters of a product of tensor cores, bytes of y's values in one
LANES, EIGHT, ROWS, FRAGMENT = 32, 8, 16, 512
#: bytes in front of the ring, and of the rings of a multiprocessor, which keep memory busy
RINGS, RING = 256, 112 * 1024
#: the same of a ring that a warp of its own fills, by bytes of an element, and its fewest pieces: more were slower on an H200
ASKED_RING, ASKED_DEPTH = {2: 126 * 1024, 4: 84 * 1024}, 4
MOST_DEPTH, MOST_PLACES, MOST_ROWS, MOST_DEEP = 8, 8, 16, 4
LEAST_DEPTH, MULTIPROCESSORS, MANY = 5, 132, 16
#: images from which on y's values are turned before, where a block has many positions
TURNED = 16
#: bytes of boxes in a microsecond, written and collected, by bytes of an element
BOXES = {2: 1.5e6, 4: 1.3e6}
#: registers of a thread beside its sums; of a thread of the warps that multiply nothing, where others have more
OTHERS, FEWER = 56, 32
#: cycles of a warp for a piece that is not for it; microseconds of a line's copy, and by which whole lines are there sooner
PASSING, COPYING, SOONER = 40, 0.002, 1.0


@dataclass(frozen=True, slots=True)
class RowsConfig:
    """A block has ``places`` positions of each of ``rows`` rows and ``channels`` channels of a group.

    ``images`` of a block, of which ``kept`` leave it and a thread has ``own``, 0 on tensor cores; ``right``: columns between
    positions; ``depth`` pieces of ``piece`` filters under way; ``ragged``: the last one has fewer; ``deep``: rows of positions
    at a time; ``turned``: y's images are neighbours; ``whole``: a piece is of a row of positions, and all of them are under
    way at once; ``even``: no row of positions ends within a block.
    """

    images: int
    kept: int
    warps: int
    taps: tuple[int, int]
    places: int
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
    turned: bool = False
    whole: bool = False
    even: bool = False
    rows: int = 1
    channels: int = 1

    @property
    def asked(self) -> bool:
        """Whether a warp of its own asks for whole lines: they begin later, which blocks of few positions have no time for."""
        return self.whole or (self.turns > 2 and (self.deep > 1 or self.many))

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.columns * (self.own or 4 * self.tiles)

    @property
    def split(self) -> bool:
        """Whether registers go from warps that multiply nothing, four of them then, to the others."""
        alone = 512 // -(-(self.warps + 1) * self.resident // 4)
        return self.asked and self.resident == 1 and self.warps % 4 == 0 and self.sums + OTHERS > alone

    @property
    def registers(self) -> int:
        """Of a thread that multiplies: a quarter of a multiprocessor has as many warps as any other."""
        if self.split:
            return min(240, (512 - FEWER) // (self.warps // 4) // 8 * 8)
        return min(255, 512 // -(-(self.warps + self.asked) * self.resident // 4) // 8 * 8)

    @property
    def threads(self) -> int:
        return LANES * (self.warps + (4 if self.split else int(self.asked)))

    @property
    def columns(self) -> int:
        return (self.places - 1) * self.stride[1] + self.taps[1]

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
        """Bytes of a row of turned values of y of a filter: an odd number of 16, so that neighbours meet different banks."""
        return self.places * self.kept * (4 if self.own else 2) + 16

    @property
    def tile(self) -> tuple[int, int]:
        return self.rows, self.places


@functools.lru_cache(256)
def candidates(problem: ConvProblem) -> list[tuple[float, RowsConfig]]:
    """(estimated microseconds, configuration) of all that fit."""
    C, (P, Q), once = problem.w.shape[3], problem.y.shape[2:], 16 // problem.w.itemsize
    downs = sorted({-(-P // -(-P // n)) for n in range(1, MOST_ROWS + 1)})
    acrosses = sorted({-(-Q // -(-Q // n)) for n in range(1, MOST_PLACES + 1)})
    found = []
    for channels in sorted({-(-C // parts) for parts in (1, 2, 4, 8)}):
        if vector(problem, channels, once) < once:
            continue  # a line of filters is copied 16 bytes at a time
        tiles = itertools.product(downs, acrosses)
        for tile, own, deep in itertools.product(tiles, owns(problem, channels), range(1, MOST_DEEP + 1)):
            tried = [fitted(problem, tile, channels, own, deep)]
            packed = channels == C and problem.w.strides[2] == math.prod(problem.w.shape[3:])
            if packed and deep == 1 and own == 0:
                tried.append(fitted(problem, tile, channels, own, whole=True))
            found += [(rank(problem, config), config) for config in tried if config]
    return found


def owns(problem: ConvProblem, channels: int) -> list[int]:
    """Images of a thread that are tried: those that leave no lanes without a channel; 0 on tensor cores."""
    if problem.w.itemsize == 2:
        return [0]
    images = 1 << (problem.x.shape[0] - 1).bit_length()
    return [
        own for own in (1, 2, 4, 8, 16) if own <= images and (own == 1 or LANES * own // images <= max(channels, EIGHT))
    ]


def fitted(
    problem: ConvProblem, tile: tuple[int, int], channels: int, own: int, deep: int = 1, whole: bool = False
) -> RowsConfig | None:
    """With two blocks on a multiprocessor where there are enough and they fit, and a ring of ``RING`` bytes for both."""
    if deep > tile[0] or (deep > 1 and problem.x.shape[0] <= EIGHT and math.prod(tile) < MANY):
        return None  # what groups of rows save is less than the passing by costs
    for resident in (1,) if whole else (2, 1):
        config = configured(problem, tile, channels, 2, resident, own, deep, whole)
        if resident == 2 and blocks_of(problem, config) <= MULTIPROCESSORS:
            continue
        room = LARGEST_ROOM if resident == 1 else LARGEST_ROOM // 2 - 1024
        least, ring = 2 if deep == 1 else LEAST_DEPTH, RING
        if config.asked:
            least, ring = ASKED_DEPTH, ASKED_RING[problem.w.itemsize]
        depth = min(MOST_DEPTH, max(least, ring // resident // slot_of(problem, config)))
        depths = [tile[0] * config.steps] if whole else list(range(2, depth + 1))
        fits = [c for c in (replace(config, depth=n) for n in depths) if shared_bytes(problem, c) <= room]
        if fits and fits[-1].depth <= MOST_DEPTH and config.sums + OTHERS <= config.registers:
            return fits[-1]
    return None


def configured(
    problem: ConvProblem,
    tile: tuple[int, int],
    channels: int,
    depth: int,
    resident: int = 1,
    own: int = 0,
    deep: int = 1,
    whole: bool = False,
) -> RowsConfig:
    """As many warps as ``channels`` of every row of taps need."""
    kept, K = 1 << (problem.x.shape[0] - 1).bit_length(), problem.w.shape[0] // problem.groups
    images, taps = max(16, kept) if own == 0 else kept, (problem.taps[0], problem.taps[1])
    lots = -(-channels // (EIGHT if own == 0 else LANES * own // images))
    turns, piece = -(-channels * math.prod(taps) * problem.w.itemsize // (LANES * 16)), ROWS
    if own and deep > 1:  # so that a ring has some for every row of a group
        piece = ROWS // 2 if turns < 9 else ROWS // 4
    stride, flip = (problem.stride[0], problem.stride[1]), bool(problem.flip)
    many, ragged = math.prod(tile) >= MANY, K % piece > 0
    shape = (tile[1], stride, deep, depth, piece, turns, -(-K // piece), flip, ragged, resident, many, own)
    even = problem.y.shape[3] % tile[1] == 0
    found = RowsConfig(images, kept, 0, taps, *shape, False, whole, even, tile[0], channels)
    found = replace(found, warps=found.high * lots)
    # tensor cores would multiply what lies behind the last filter's values
    return replace(found, turned=found.asked and not whole and kept >= TURNED and not (ragged and own == 0))


def pitch_of(problem: ConvProblem, config: RowsConfig) -> int:
    """Bytes of a filter's line in shared memory: neighbouring pairs of filters are 8 banks apart for tensor cores."""
    length = config.channels * math.prod(problem.taps) * problem.w.itemsize * (config.places if config.whole else 1)
    if config.own:
        return -(-length // 16) * 16
    return (length - 16 + 127) // 128 * 128 + 16


def y_pitch_of(problem: ConvProblem, config: RowsConfig) -> int:
    """Bytes of y's values of a position in shared memory, or of a filter, with what neighbours need to meet different banks."""
    if config.turned:
        return config.of_filter
    if config.own:
        return (problem.w.shape[0] // problem.groups * config.images + 4) * 4
    return config.steps * config.tiles * FRAGMENT + 16


def slot_of(problem: ConvProblem, config: RowsConfig) -> int:
    """Bytes of a piece of filters in shared memory."""
    return config.piece * pitch_of(problem, config)


def shared_bytes(problem: ConvProblem, config: RowsConfig) -> int:
    of_y = config.rows * problem.w.shape[0] // problem.groups if config.turned else math.prod(config.tile)
    return RINGS + config.depth * slot_of(problem, config) + of_y * y_pitch_of(problem, config)


def boxes_bytes(problem: ConvProblem, config: RowsConfig) -> int:
    """Of all images."""
    pixels = math.prod(seen_of(problem, config.tile)) * math.prod(tiles_of(problem, config.tile)) * problem.x.shape[1]
    return pixels * config.kept * 4


def space_bytes(problem: ConvProblem, config: RowsConfig) -> int:
    """The boxes, and behind them y where it is turned."""
    turned = math.prod(problem.y.shape[1:]) * config.kept * problem.y.itemsize if config.turned else 0
    return boxes_bytes(problem, config) + turned


def blocks_of(problem: ConvProblem, config: RowsConfig) -> int:
    return math.prod(tiles_of(problem, config.tile)) * problem.groups * -(-problem.w.shape[3] // config.channels)


def busiest(config: RowsConfig) -> float:
    """How many warps multiply for a position on the fullest quarter of a multiprocessor, on average over a group's rows."""
    lots, quarters = config.warps // config.high, [0, 0, 0, 0]
    if config.deep == 1:
        return -(-config.warps * config.resident // 4)
    for row, a, lot in itertools.product(range(config.high), range(config.deep), range(lots)):
        quarters[(lot * config.high + row) % 4] += 0 <= row - a * config.stride[0] < config.taps[0]
    return max(quarters) * config.resident / config.deep


def rank(problem: ConvProblem, config: RowsConfig) -> float:
    """An estimate from an H200: launches, filters or what the fullest quarter of a multiprocessor issues, y's values, boxes."""
    K, taps, positions = problem.w.shape[0] // problem.groups, config.taps[1], math.prod(config.tile)
    if config.own:
        position, rate = K * (taps * (config.own + 3) + config.own / 4 + 6) + config.steps * 150, 1.0
    else:
        position, rate = config.steps * (taps * (6 + config.tiles) + 140), 0.55
    blocks, at_once = blocks_of(problem, config), MULTIPROCESSORS * config.resident
    waves = -(-blocks // at_once)
    passing = config.warps - config.warps // config.high * config.taps[0]  # warps that a piece is not for
    cycles = position * busiest(config) + config.steps * PASSING * passing * config.resident / 4
    own = waves * positions * cycles / (1755 * rate)
    stream = problem.w.size * problem.w.itemsize / 3.6e6 * (1.3 - 0.3 * blocks / (waves * at_once))
    loads = waves * positions * K * config.kept / (LANES * config.warps)
    # of two blocks of threads one's beginning is hidden behind the other's products
    start = 5.0 if config.own and config.resident == 2 else 6.0
    if config.whole:
        start += COPYING * config.rows * K - SOONER
    return (
        start
        + max(own, stream)
        + 0.1 * min(own, stream)
        + 0.1 * loads
        + boxes_bytes(problem, config) / BOXES[problem.w.itemsize]
    )
