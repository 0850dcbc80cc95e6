"""How ``numba.grouped_halves`` divides the gradient of the filters into blocks, and which shared memory each block has."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.conv.grouped.access import CHANNELS, odd, width
from numbadnn.problems.conv import ConvProblem

#: bytes of a unit: what a product reads of a position of x; of a pixel of few channels
UNIT, PIXEL = 32, 8
#: bytes of zeros, which positions that no result has are read as: as many as a bundle has of filters or of channels
ZEROS = 256
#: sums and fragments that a thread keeps
MOST_SUMS = 96
LEAST_WARPS, MOST_WARPS, MOST_POSITIONS = 3, 16, 512
#: of an H200's multiprocessor, microseconds: a byte and a copy of some, a product and what a warp reads for it; of a block: a
#: turn, and waiting for what is not under way before
BYTE, COPY, PRODUCT, READ, TURN, LOAD = 3.0e-5, 9e-5, 1.2e-3, 1.9e-3, 2.0, 2.0
#: configurations that ``space`` lists
MOST_TIMED = 12
#: elements that a block of the second kernel adds up
SPAN = 128
SHARED_BYTES, ALL_SHARED_BYTES, MULTIPROCESSORS = 99 * 1024, 224 * 1024, 132


@dataclass(frozen=True, slots=True)
class GroupedWeightsConfig:
    """A block has ``bundles`` of ``tall`` times 16 filters; its warps take ``each`` units of one, ``ways`` warps share positions.

    Units are shared by ``parts``. ``direct``: there is one share, and no sum of shares.

    ``channels`` and ``results`` of a group; ``few``: an image of at most four channels. ``copies``: of such an image, so that
    each position lies at a multiple of 16 bytes. ``load`` and ``y_load``: elements of an access to x and y; ``splits``: shares
    of the tiles, ``tile``: rows and columns of positions of so many ``images``, more than one where it is a whole image;
    ``stages``: tiles in shared memory.
    """

    channels: int
    results: int
    few: bool
    across: int
    copies: int
    load: int
    y_load: int
    tall: int
    bundles: int
    each: int
    parts: int
    ways: int
    stages: int
    resident: int
    direct: bool
    images: int
    tile: tuple[int, int]
    splits: int

    @property
    def m(self) -> int:
        """Filters of a bundle."""
        return 16 * self.tall

    @property
    def halves(self) -> int:
        """Units of a tap."""
        return 1 if self.few else max(1, self.channels // 16)

    @property
    def channels_held(self) -> int:
        """Channels of a bundle."""
        return self.channels if self.few else max(16, self.channels)

    @property
    def jobs(self) -> int:
        return self.bundles * self.parts

    @property
    def threads(self) -> int:
        return 32 * self.jobs * self.ways

    @property
    def even(self) -> bool:
        """Whether its threads share pixels of both images evenly, as ``fill_image`` wants them."""
        x, y = self.bundles * self.channels_held // self.load, self.bundles * self.m // self.y_load
        return self.threads % y == 0 and (self.few or self.threads % x == 0)

    @property
    def sums(self) -> int:
        return 8 * self.tall * self.each

    @property
    def pitch(self) -> int:
        """Bytes from pixel to pixel of x in shared memory: eight neighbours meet all banks."""
        return PIXEL if self.few else odd(2 * self.bundles * self.channels_held)

    @property
    def y_pitch(self) -> int:
        return odd(2 * self.bundles * self.m)

    @property
    def capacity(self) -> int:
        """Positions of a tile as the warps take them."""
        several = 16 * self.ways
        return -(-self.images * math.prod(self.tile) // several) * several

    def halo(self, problem: ConvProblem) -> tuple[int, int, int]:
        """Rows and columns of x that a tile needs, and columns of one remainder of the stride (few channels: from row to row)."""
        reach = [(t - 1) * d + 1 for t, d in zip(problem.taps, problem.dilation, strict=True)]
        rows, columns = ((n - 1) * s + more for n, s, more in zip(self.tile, problem.stride, reach, strict=True))
        return rows, columns, columns + columns % 2 if self.few else -(-columns // self.across)

    def apart(self, problem: ConvProblem) -> int:
        """Bytes from an image of few channels to the one a pixel further left: the other half of the banks."""
        rows, _, line = self.halo(problem)
        return -(-rows * line * PIXEL // 128) * 128 + 64

    def x_bytes(self, problem: ConvProblem) -> int:
        return self.images * self.image_bytes(problem)

    def image_bytes(self, problem: ConvProblem) -> int:
        rows, _, slots = self.halo(problem)
        if self.few:  # the last unit reads past the last pixel
            return -(-(self.apart(problem) * (self.copies - 1) + rows * slots * PIXEL + UNIT) // 128) * 128
        return -(-rows * slots * self.across * self.pitch // 128) * 128

    def y_bytes(self) -> int:
        return -(-self.capacity * self.y_pitch // 128) * 128

    def shared_bytes(self, problem: ConvProblem) -> int:
        tiles = self.stages * (self.x_bytes(problem) + self.y_bytes())
        sums = 4 * self.threads * self.sums
        tables = -(-(8 * self.capacity + 4 * units(problem)) // 128) * 128
        return ZEROS + max(tables + tiles, sums)


def units(problem: ConvProblem) -> int:
    """Of a bundle."""
    few, (down, along) = is_few(problem), problem.taps
    return down * -(-along // 4) if few else down * along * max(1, problem.w.shape[1] // 16)


def is_few(problem: ConvProblem) -> bool:
    return problem.groups == 1 and problem.w.shape[1] <= 4


def loads(problem: ConvProblem) -> tuple[int, int]:
    """Elements of an access to x and y; 0: none."""
    x, y = problem.x, problem.y
    most = next((w for w in (8, 4, 2) if y.shape[1] % w == 0), 0)
    y_load = width(y, most) if most and y.strides[1] == 1 else 0
    if is_few(problem):
        return 1, y_load
    if problem.w.shape[1] not in CHANNELS or x.strides[1] != 1:
        return 0, y_load
    return width(x, 8 if x.shape[1] % 8 == 0 else 4), y_load


def tall_of(problem: ConvProblem) -> int:
    """Sixteens of filters of a bundle, 0 where they are not 1, 2 or 4."""
    filters, each = problem.y.shape[1] // problem.groups, problem.w.shape[1]
    if is_few(problem):
        return next((n for n in (1, 2) if filters <= 16 * n), 4)
    together = max(1, 16 // each) * filters
    return together // 16 if together in (16, 32, 64) else 0


def bundles_of(problem: ConvProblem) -> int:
    return -(-problem.y.shape[1] // (16 * tall_of(problem)))


def tiles_of(problem: ConvProblem, config: GroupedWeightsConfig) -> tuple[int, int, int]:
    """Tiles down and along a tile's images, and blocks of bundles."""
    (_, _, height, width), (down, along) = problem.y.shape, config.tile
    return -(-height // down), -(-width // along), -(-bundles_of(problem) // config.bundles)


def partial_bytes(problem: ConvProblem) -> int:
    """Those of one share: a multiple of 16."""
    return -(-4 * math.prod(problem.w.shape) // 16) * 16


def candidates(problem: ConvProblem) -> Iterator[GroupedWeightsConfig]:
    """Every configuration that fits, with as many shares as fill the multiprocessors once."""
    few, (load, y_load), tall, count = is_few(problem), loads(problem), tall_of(problem), units(problem)
    if not (load and y_load and tall):
        return
    bundles = bundles_of(problem)
    base = GroupedWeightsConfig(
        channels=problem.w.shape[1],
        results=problem.y.shape[1] // problem.groups,
        few=few,
        across=1 if few else problem.stride[1],
        copies=2 if few and problem.stride[1] % 2 == 1 else 1,
        load=load,
        y_load=y_load,
        tall=tall,
        bundles=1,
        each=1,
        parts=1,
        ways=1,
        stages=1,
        resident=1,
        direct=False,
        images=1,
        tile=(1, 1),
        splits=1,
    )
    held = (1,) if few else tuple(n for n in (1, 2, 4) if n * base.channels_held <= 64 and n < 2 * bundles)
    for together in held:
        for each in eaches(problem, tall):
            parts = -(-count // each)
            for ways in (1, 2, 4, 8):
                warps = together * parts * ways
                config = replace(base, bundles=together, each=each, parts=parts, ways=ways)
                if LEAST_WARPS <= warps <= (MOST_WARPS if ways == 1 else 8) and config.even:
                    yield from _tiled(problem, config)


def eaches(problem: ConvProblem, tall: int) -> list[int]:
    """Units of a warp: as few parts as registers allow, and more."""
    count = units(problem)
    most = MOST_SUMS // (8 * tall)
    least = -(-count // most)
    return sorted({-(-count // parts) for parts in (least, least + 1, 2 * least, 3 * least)}, reverse=True)


def _tiled(problem: ConvProblem, config: GroupedWeightsConfig) -> Iterator[GroupedWeightsConfig]:
    for tile in tiles(problem):
        whole = tile == problem.y.shape[2:]
        for images in (1, 2, 4, 8) if whole else (1,):
            positions = images * math.prod(tile)
            if images > max(1, problem.x.shape[0]) or positions > MOST_POSITIONS:
                continue
            for stages in (1, 2, 3, 4):
                found = replace(config, tile=tile, images=images, stages=stages)
                if found.shared_bytes(problem) <= SHARED_BYTES:
                    yield from shared_out(problem, found)


@functools.lru_cache(maxsize=256)
def tiles(problem: ConvProblem) -> list[tuple[int, int]]:
    """Of each size, from one power of two to the next, the tile that reads and multiplies the least of an image."""
    _, _, height, width = problem.y.shape
    reach = [(t - 1) * d + 1 for t, d in zip(problem.taps, problem.dilation, strict=True)]

    def read(tile: tuple[int, int]) -> int:
        rows, columns = ((n - 1) * s + more for n, s, more in zip(tile, problem.stride, reach, strict=True))
        return -(-height // tile[0]) * -(-width // tile[1]) * (rows * columns + -(-math.prod(tile) // 16) * 16)

    widths = {-(-width // n) for n in range(1, -(-width // 8) + 1)}
    heights = {-(-height // n) for n in range(1, height + 1)} if height <= 64 else {1, 2, 4, 8, 16, 32}
    fitting = [(h, w) for h in heights for w in widths if h * w <= MOST_POSITIONS]
    found: dict[int, tuple[int, int]] = {}
    for tile in sorted(fitting, key=lambda t: (read(t), t)):
        found.setdefault((math.prod(tile) - 1).bit_length(), tile)
    return list(found.values())


def resident(problem: ConvProblem, config: GroupedWeightsConfig) -> int:
    """Blocks of a multiprocessor."""
    registers = -(-(config.sums + config.each + 72) // 8) * 8
    by_registers = 65536 // (config.threads * registers)
    return max(
        1, min(ALL_SHARED_BYTES // (config.shared_bytes(problem) + 1024), 2048 // config.threads, by_registers, 8)
    )


def shared_out(problem: ConvProblem, config: GroupedWeightsConfig) -> Iterator[GroupedWeightsConfig]:
    """With as many shares of the tiles as fill the multiprocessors once and twice, as half of it, and with one."""
    down, along, blocks = tiles_of(problem, config)
    tiles, together = -(-problem.x.shape[0] // config.images) * down * along, resident(problem, config)
    found = set()
    for waves in (0.5, 1, 2):
        splits = max(1, min(tiles, int(waves * together * MULTIPROCESSORS / blocks)))
        # none has more than the largest: fewer to add
        found.add(-(-tiles // -(-tiles // splits)))
    if 2 * blocks > MULTIPROCESSORS or tiles == 1:
        found.add(1)
    for splits in sorted(found):
        yield replace(config, splits=splits, resident=together, direct=splits == 1)


def microseconds(problem: ConvProblem, config: GroupedWeightsConfig) -> float:
    """An estimate to compare configurations by: turns of blocks, each its copies and products, and the sum of shares."""
    rows, columns, _ = config.halo(problem)
    down, along, blocks = tiles_of(problem, config)
    blocks *= config.splits
    positions, steps = config.images * math.prod(config.tile), config.capacity // 16
    count = -(-problem.x.shape[0] // config.images) * down * along
    turns = -(-count // config.splits) * -(-blocks // (MULTIPROCESSORS * config.resident))
    together = min(config.resident, -(-blocks // MULTIPROCESSORS))
    channels, filters = config.bundles * config.channels_held, config.bundles * config.m
    pixels = config.images * rows * columns
    moved = pixels * (6 if config.few else 2 * channels) + 2 * positions * filters
    copies = pixels * (8 if config.few else channels / config.load) + positions * filters / config.y_load
    products = steps * config.jobs * config.each * config.tall * 2
    reads = steps * config.jobs * (config.tall + config.each + 1)
    shared = together * max(moved * BYTE, copies * COPY + products * PRODUCT + reads * READ)
    if channels < 32 and not config.few:
        shared *= 1.1  # short pieces of memory
    alone = steps / config.ways * (0.03 + 0.003 * config.each * config.tall) + copies / config.threads * 0.04 + TURN
    turn = max(shared, alone) + 0.3 * min(shared, alone) + (LOAD if config.stages == 1 else 0)
    added = 0.0 if config.direct else 4.0 + 0.56 * partial_bytes(problem) * config.splits / 1e6
    return 7.6 + turns * turn + added + (config.ways - 1)


def space(problem: ConvProblem, limit: int = 1 << 30) -> list[GroupedWeightsConfig]:
    """Every configuration worth timing, the heuristic's first."""
    found: dict[tuple[int, ...], GroupedWeightsConfig] = {}
    fitting = (c for c in candidates(problem) if c.splits * partial_bytes(problem) <= limit)
    for config in sorted(fitting, key=lambda c: (microseconds(problem, c), c.tile, c.splits)):
        size = (config.images * math.prod(config.tile) - 1).bit_length()
        found.setdefault((config.bundles, config.each, config.ways, config.stages, size), config)
    return list(found.values())[:MOST_TIMED]


@functools.lru_cache(maxsize=256)
def heuristic(problem: ConvProblem, limit: int = 1 << 30) -> GroupedWeightsConfig | None:
    return next(iter(space(problem, limit)), None)
