"""How ``numba.grouped_halves`` divides its work into blocks, and which registers and shared memory each block has."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.conv.grouped.access import in_rows, load_width, odd, packed, put_width
from numbadnn.kernels.conv.grouped.walk import Walk
from numbadnn.problems.conv import ConvProblem

#: results of a group: their filters are kept in registers
MOST_RESULTS = 64
#: registers of a thread for filters, sums and offsets: of one group, of several, and where that saves reading; for all else
MOST_HELD, MOST_HELD_MANY, MOST_HELD_EVER, OTHERS = 100, 72, 140, 64
MOST_WARPS = 16
#: registers that a thread can have, and a multiprocessor
MOST_REGISTERS, ALL_REGISTERS = 255, 65536
#: bytes of shared memory where terms are read that no tap has: as many as the groups of a warp have channels
ZEROS = 2 * 64
#: of a block, on the multiprocessors that have the least; of all blocks of an H200's
SHARED_BYTES, ALL_SHARED_BYTES = 99 * 1024, 224 * 1024
MULTIPROCESSORS = 132
#: positions of a block; channels that blocks read of a pixel where there are as many
MOST_POSITIONS, SPANS = 512, (32, 64)
#: of a multiprocessor: bytes and instructions of warps a microsecond, microseconds that a block waits for memory, and for the
#: filters of each later phase
SPEED, ISSUE, WAIT, PHASE = 3.0e4, 4.0e3, 2.0, 2.0
#: configurations that ``space`` lists
MOST_TIMED = 12


@dataclass(frozen=True, slots=True)
class GroupedHalvesConfig:
    """A block has ``tile`` rows and columns of results of each phase, of ``groups`` groups.

    ``channels`` of a group lie in ``capacity`` (4, 8, 16 or 32) of shared memory; ``taps``: the most of a phase, of whom there
    are several (``phases``); ``across``: the columns' stride in the image read; ``load`` and ``put``: elements of an access
    to an image, load 1 where the channels of a pixel are gathered; ``packed``: the filters' terms lie together, ``along``:
    else their results do, in ``rows`` that are copied as they are; ``wide``: eights of results of a warp, which multiplies
    ``bunch`` groups. A block has so many ``images``, one after the other.
    """

    channels: int
    results: int
    taps: int
    phases: bool
    across: int
    load: int
    put: int
    packed: bool
    along: bool
    rows: bool
    groups: int
    wide: int
    bunch: int
    warps: int
    resident: int
    images: int
    tile: tuple[int, int]

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def capacity(self) -> int:
        return max(4, self.channels)

    @property
    def piece(self) -> int:
        """Channels of a tap that an access to shared memory has."""
        return min(8, self.capacity)

    @property
    def pieces(self) -> int:
        return self.taps * (self.capacity // self.piece)

    @property
    def steps(self) -> int:
        """Instructions of 16 terms."""
        return -(-self.pieces * self.piece // 16)

    @property
    def eights(self) -> int:
        return -(-self.results // 8)

    @property
    def parts(self) -> int:
        """Warps that share the results of a group."""
        return self.eights // self.wide

    @property
    def jobs(self) -> int:
        """Warps that share the filters of a block; those that have the same share the positions."""
        return self.groups // self.bunch * self.parts

    @property
    def ways(self) -> int:
        return self.warps // self.jobs

    @property
    def every(self) -> int:
        """Steps that filters are read for: ldmatrix reads two at a time."""
        return self.steps if self.piece == 4 else self.steps + self.steps % 2

    @property
    def pitch(self) -> int:
        """Bytes from pixel to pixel in shared memory: eight neighbours meet all banks."""
        return odd(2 * self.groups * self.capacity)

    @property
    def filter_pitch(self) -> int:
        """Bytes of a result's terms, or of a term's results: eight neighbours meet all banks."""
        return odd(16 * self.eights) if self.rows else 32 * self.steps + 16

    @property
    def group_bytes(self) -> int:
        """Of the filters of a group."""
        return self.filter_pitch * (16 * self.every if self.rows else 8 * self.eights)

    @property
    def eight_bytes(self) -> int:
        """From eight results to the next."""
        return 16 if self.rows else 8 * self.filter_pitch

    @property
    def filter_bytes(self) -> int:
        """Of all filters of a block; four pieces are read at a time, past the last of an odd number of steps."""
        return self.groups * self.group_bytes + 32

    @property
    def result_pitch(self) -> int:
        return odd(-(-2 * self.groups * self.results // 16) * 16)

    @property
    def held(self) -> int:
        """Registers that the terms of a warp take."""
        return self.bunch * self.wide * (2 * self.every + 4) + self.steps

    @property
    def registers(self) -> int:
        """Of a thread, about."""
        return self.held + OTHERS + (0 if self.packed else 12)

    def halo(self, walk: Walk) -> tuple[int, int, int]:
        """Rows and columns of the image read that a block needs, and columns of one remainder of the stride."""
        rows = (self.tile[0] - 1) * walk.rows.stride + walk.rows.reach
        columns = (self.tile[1] - 1) * walk.columns.stride + walk.columns.reach
        return rows, columns, -(-columns // self.across)

    def halo_bytes(self, walk: Walk) -> int:
        rows, _, slots = self.halo(walk)
        return -(-rows * slots * self.across * self.pitch // 16) * 16

    def shared_bytes(self, walk: Walk) -> int:
        """Zeros, the image, the filters, the results, and where each position is read and written."""
        positions, several = math.prod(self.tile), 16 * self.ways
        results = positions * self.result_pitch + 8 * -(-positions // several) * several
        return ZEROS + self.halo_bytes(walk) + self.filter_bytes + results


def candidates(problem: ConvProblem) -> Iterator[GroupedHalvesConfig]:
    """Every configuration that fits: groups of a block, results of a warp, tiles."""
    walk = Walk.of(problem)
    terms, results = (1, 0) if problem.direction == "forward" else (0, 1)
    w = problem.w
    spans = {max(1, min(span // max(4, walk.channels), _power(walk.groups))) for span in SPANS}
    for groups in sorted(spans):
        load, put = min(load_width(walk), groups * max(4, walk.channels)), put_width(walk, groups)
        base = GroupedHalvesConfig(
            channels=walk.channels,
            results=walk.results,
            taps=walk.taps,
            phases=walk.rows.apart * walk.columns.apart > 1,
            across=walk.columns.stride,
            load=load,
            put=put,
            packed=packed(w, terms, walk.channels),
            along=w.strides[results] == 1,
            rows=in_rows(w, results, walk),
            groups=groups,
            wide=1,
            bunch=1,
            warps=8,
            resident=1,
            images=1,
            tile=(1, 1),
        )
        for config in _shared_out(base):
            yield from _tiled(config, walk)


def _shared_out(base: GroupedHalvesConfig) -> Iterator[GroupedHalvesConfig]:
    """With as many results and groups a warp as its registers hold; four warps, and eight."""
    wides = [n for n in range(8, 0, -1) if base.eights % n == 0]
    wide = next(n for n in wides if _fits(replace(base, wide=n)))
    base = replace(base, wide=wide)
    bunch = max(n for n in (1, 2, 4, 8, 16) if base.groups % n == 0 and _fits(replace(base, bunch=n)))
    shares = [(wide, bunch), (wide, max(1, bunch // 2))]
    shares += [(n, 1) for n in wides if n > wide and replace(base, wide=n).held <= MOST_HELD_EVER][-1:]
    for share in dict.fromkeys(shares):
        config = replace(base, wide=share[0], bunch=share[1])
        for warps in sorted({max(1, most // config.jobs) * config.jobs for most in (8, 4)}):
            if warps <= MOST_WARPS and config.registers <= min(MOST_REGISTERS, ALL_REGISTERS // (32 * warps)):
                yield replace(config, warps=warps, resident=_resident(config, warps))


def _resident(config: GroupedHalvesConfig, warps: int) -> int:
    """Blocks of a multiprocessor that the registers of their threads allow."""
    return max(1, min(16 // warps * 2, ALL_REGISTERS // (32 * warps * (-(-config.registers // 8) * 8))))


def _fits(config: GroupedHalvesConfig) -> bool:
    one = config.wide * config.bunch == 1
    return one or config.held <= (MOST_HELD if config.bunch == 1 else MOST_HELD_MANY)


def _tiled(config: GroupedHalvesConfig, walk: Walk) -> Iterator[GroupedHalvesConfig]:
    """With every tile that fits."""
    height, width = walk.positions
    for across in range(1, -(-width // 8) + 1):
        columns = -(-width // across)
        if columns > MOST_POSITIONS or (across > 1 and -(-width // (across - 1)) == columns):
            continue
        heights = {-(-height // down) for down in range(1, height + 1)} if height <= 64 else {1, 2, 4, 8, 16, 32}
        for rows in sorted(heights):
            found = replace(config, tile=(rows, columns))
            if rows * columns <= MOST_POSITIONS and found.shared_bytes(walk) <= SHARED_BYTES:
                yield found
                if (rows, columns) == walk.positions and not config.phases:
                    yield from (replace(found, images=n) for n in (2, 4, 8) if n <= walk.source.shape[0])


def _power(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def microseconds(config: GroupedHalvesConfig, walk: Walk) -> float:
    """An estimate to compare tiles by: turns of blocks on the multiprocessors, each its wait and its bytes."""
    rows, columns, _ = config.halo(walk)
    (height, width), (down, along) = walk.positions, config.tile
    phases = walk.rows.apart * walk.columns.apart
    bundles = -(-walk.source.shape[0] // config.images) * -(-walk.groups // config.groups)
    blocks = bundles * -(-height // down) * -(-width // along)
    moved = 2 * config.groups * (rows * columns * config.channels + phases * down * along * config.results)
    moved += config.filter_bytes // 2 // config.images
    together = max(
        1, min(ALL_SHARED_BYTES // (config.shared_bytes(walk) + 1024), 2048 // config.threads, config.resident)
    )
    together = min(together, -(-blocks // MULTIPROCESSORS))
    # of each group's 16 positions: what a warp issues for them all, and for each group
    issued = (60 + 4 * config.steps) / config.bunch + config.wide * (14 + config.steps) + 2 * config.steps
    wait = WAIT + PHASE * (phases - 1)
    busy = together * (moved / SPEED + -(-down * along // 16) * phases * config.groups * config.parts * issued / ISSUE)
    return -(-blocks // (MULTIPROCESSORS * together)) * config.images * (wait + busy)


def space(problem: ConvProblem) -> list[GroupedHalvesConfig]:
    """Every configuration worth timing, the heuristic's first: of each division of the work the best tile of each size."""
    walk = Walk.of(problem)
    ordered = sorted(candidates(problem), key=lambda c: (microseconds(c, walk), c.tile, c.groups))
    found: dict[tuple[int, ...], GroupedHalvesConfig] = {}
    for config in ordered:
        size = (math.prod(config.tile) - 1).bit_length()
        found.setdefault((config.groups, config.bunch, config.warps, config.images, size), config)
    return [c for c in found.values() if microseconds(c, walk) <= 2 * microseconds(ordered[0], walk)][:MOST_TIMED]


@functools.lru_cache(maxsize=256)  # asked for by what supports, plans and explains
def heuristic(problem: ConvProblem) -> GroupedHalvesConfig | None:
    """The configuration whose estimated time is the shortest; None where none fits."""
    return next(iter(space(problem)), None)
