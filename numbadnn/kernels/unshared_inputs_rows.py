"""Which gradients of unshared convolutions' images have their sums in registers; the device code is ``_unshared_inputs_rows``.

``unshared_inputs`` and ``unshared_inputs_halves`` read, add to and write sums in shared memory for each position and tap; a
pixel's sum is taken as often as taps reach it. Where that is often, of many images, it is what they spend their time on, and
sums in registers are quicker.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

from numbadnn.kernels import _driver, simulate
from numbadnn.kernels._launch import Kernel, sequence
from numbadnn.kernels._plans import around
from numbadnn.kernels._softmax_layout import LARGEST_ROOM
from numbadnn.kernels._support import accumulator_of
from numbadnn.kernels.unshared_inputs import collecting, lot_of
from numbadnn.kernels.unshared_tile import seen_of, tiles_of, vector
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import Policy
from numbadnn.registry import Executable

#: channels and filters of a product of tensor cores, bytes of y's values in one
LANES, EIGHT, ROWS, FRAGMENT = 32, 8, 16, 512
#: bytes in front of the ring, and of the rings of a multiprocessor, which keep memory busy
RINGS, RING = 256, 112 * 1024
MOST_IMAGES, MOST_TAPS, MOST_DEPTH, MOST_PLACES, MOST_ROWS, MOST_DEEP = 32, 16, 8, 8, 16, 4
LEAST_DEPTH, MULTIPROCESSORS, MANY = 5, 132, 16
#: taps that reach a pixel times images from which on this is quicker, by bytes of an element; fewer filters leave lanes idle
OFTEN, FEWEST_FILTERS = {2: 9, 4: 16}, 4
HOPPER = (9, 0)
#: registers of a thread beside its sums; cycles of a warp for a piece that is not for it
OTHERS, PASSING = 56, 40


class Parts(NamedTuple):
    """How a lane multiplies: device functions, sums of a column that it has, and bytes of y's values of a piece of filters.

    ``fill(shared, tops, pitch, y, strides, N, K, places, wide)`` brings y's values to shared memory, ``pitch`` bytes a position;
    ``place(lot, pitch, have, of_channel)`` is where a lane of the ``lot``-th warp of a row begins in filters and in y's values;
    ``multiply(first)`` makes ``run(total, shared, at_w, at_y, pitch, left, zeros)``, which adds to the sums from ``first`` on
    what a row of taps gives of up to a piece of filters; ``write(total, space, lot, area, have)`` writes a row of pixels.
    """

    fill: Callable[..., None]
    place: Callable[..., tuple[Any, Any]]
    multiply: Callable[[int], Callable[..., None]]
    write: Callable[..., None]
    sums: int
    of_piece: int


@dataclass(frozen=True, slots=True)
class RowsConfig:
    """A block has ``places`` positions of each of ``rows`` rows and ``channels`` channels of a group.

    ``images`` of a block, of which ``kept`` leave it and a thread has ``own``, 0 on tensor cores; ``right``: columns between
    positions; ``depth`` pieces of ``piece`` filters under way; ``ragged``: the last one has fewer; ``deep``: rows of positions
    at a time.
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
    rows: int = 1
    channels: int = 1

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def columns(self) -> int:
        return (self.places - 1) * self.stride[1] + self.taps[1]

    @property
    def bulk(self) -> bool:
        """Whether a filter's line is one copy: begun by a thread, and later, which blocks of few positions have no time for."""
        return self.turns > 2 and (self.deep > 1 or self.many)

    @property
    def high(self) -> int:
        """Rows of pixels that a group of rows of positions reaches."""
        return (self.deep - 1) * self.stride[0] + self.taps[0]

    @property
    def tiles(self) -> int:
        """Products that have all images."""
        return self.images // 16

    @property
    def tile(self) -> tuple[int, int]:
        return self.rows, self.places


def heuristic(problem: ConvProblem, policy: Policy) -> RowsConfig | None:
    """The least estimate of what fits; None where sums in shared memory are quicker, or it cannot be done."""
    w, taps, stride = problem.w, problem.taps, problem.stride
    if not problem.unshared or problem.direction != "grad_inputs" or w.itemsize > 4 or simulate.active():
        return None
    if accumulator_of(w.dtype, policy) != "float32" or policy.determinism not in ("run_to_run", "not_guaranteed"):
        return None  # in which order terms are added depends on the tile, and that on how many images there are
    if policy.device >= 0 and _driver.compute_capability(policy.device) != HOPPER:
        return None
    if problem.x.shape[0] > MOST_IMAGES or w.shape[0] // problem.groups < FEWEST_FILTERS or max(taps) > MOST_TAPS:
        return None
    if any(step > n for step, n in zip(stride, taps, strict=True)) or problem.dilation != (1, 1):
        return None
    if problem.x.shape[0] * math.prod(taps) < OFTEN[w.itemsize] * math.prod(stride):
        return None
    found = candidates(problem)
    best = min(found, key=lambda pair: pair[0])[1] if found else None
    return best if best and space_bytes(problem, best) <= policy.workspace_limit else None


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
            config = fitted(problem, tile, channels, own, deep)
            if config:
                found.append((rank(problem, config), config))
    return found


def owns(problem: ConvProblem, channels: int) -> list[int]:
    """Images of a thread that are tried: those that leave no lanes without a channel; 0 on tensor cores."""
    if problem.w.itemsize == 2:
        return [0]
    images = 1 << (problem.x.shape[0] - 1).bit_length()
    return [
        own for own in (1, 2, 4, 8, 16) if own <= images and (own == 1 or LANES * own // images <= max(channels, EIGHT))
    ]


def fitted(problem: ConvProblem, tile: tuple[int, int], channels: int, own: int, deep: int = 1) -> RowsConfig | None:
    """With two blocks on a multiprocessor where there are enough and they fit, and a ring of ``RING`` bytes for both."""
    if deep > tile[0] or (deep > 1 and problem.x.shape[0] <= EIGHT and math.prod(tile) < MANY):
        return None  # what groups of rows save is less than the passing by costs
    for resident in (2, 1):
        config = configured(problem, tile, channels, 2, resident, own, deep)
        if resident == 2 and blocks_of(problem, config) <= MULTIPROCESSORS:
            continue
        room = LARGEST_ROOM if resident == 1 else LARGEST_ROOM // 2 - 1024
        least = 2 if deep == 1 else LEAST_DEPTH
        depth = min(MOST_DEPTH, max(least, RING // resident // slot_of(problem, config)))
        deeper = [replace(config, depth=n) for n in range(2, depth + 1)]
        fits = [c for c in deeper if shared_bytes(problem, c) <= room]
        if fits and sums_of(config) + OTHERS <= registers_of(config):
            return fits[-1]
    return None


def sums_of(config: RowsConfig) -> int:
    return config.columns * (config.own or 4 * config.tiles)


def registers_of(config: RowsConfig) -> int:
    """Of a thread: a quarter of a multiprocessor has as many warps as any other."""
    return min(255, 512 // -(-config.warps * config.resident // 4) // 8 * 8)


def configured(
    problem: ConvProblem,
    tile: tuple[int, int],
    channels: int,
    depth: int,
    resident: int = 1,
    own: int = 0,
    deep: int = 1,
) -> RowsConfig:
    """As many warps as ``channels`` of every row of taps need."""
    kept, K = 1 << (problem.x.shape[0] - 1).bit_length(), problem.w.shape[0] // problem.groups
    images, taps = max(16, kept) if own == 0 else kept, (problem.taps[0], problem.taps[1])
    lots = -(-channels // (EIGHT if own == 0 else LANES * own // images))
    turns, piece = -(-channels * math.prod(taps) * problem.w.itemsize // (LANES * 16)), ROWS
    if own and deep > 1:  # so that a ring has some for every row of a group
        piece = ROWS // 2 if turns < 9 else ROWS // 4
    stride, flip = (problem.stride[0], problem.stride[1]), bool(problem.flip)
    shape = (tile[1], stride, deep, depth, piece, turns, -(-K // piece))
    found = RowsConfig(
        images, kept, 0, taps, *shape, flip, K % piece > 0, resident, math.prod(tile) >= MANY, own, tile[0], channels
    )
    return replace(found, warps=found.high * lots)


def pitch_of(problem: ConvProblem, config: RowsConfig) -> int:
    """Bytes of a filter's line in shared memory: neighbouring pairs of filters are 8 banks apart for tensor cores."""
    length = config.channels * math.prod(problem.taps) * problem.w.itemsize
    if config.own:
        return -(-length // 16) * 16
    return (length - 16 + 127) // 128 * 128 + 16


def y_pitch_of(problem: ConvProblem, config: RowsConfig) -> int:
    """Bytes of y's values of a position in shared memory, with what neighbours need to meet different banks."""
    if config.own:
        return (problem.w.shape[0] // problem.groups * config.images + 4) * 4
    return config.steps * config.tiles * FRAGMENT + 16


def slot_of(problem: ConvProblem, config: RowsConfig) -> int:
    """Bytes of a piece of filters in shared memory."""
    return config.piece * pitch_of(problem, config)


def shared_bytes(problem: ConvProblem, config: RowsConfig) -> int:
    return RINGS + config.depth * slot_of(problem, config) + math.prod(config.tile) * y_pitch_of(problem, config)


def space_bytes(problem: ConvProblem, config: RowsConfig) -> int:
    """The boxes of all images."""
    pixels = math.prod(seen_of(problem, config.tile)) * math.prod(tiles_of(problem, config.tile)) * problem.x.shape[1]
    return pixels * config.kept * 4


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
    loads = waves * positions * K * config.kept / config.threads
    # of two blocks of threads one's beginning is hidden behind the other's products
    start = 5 if config.own and config.resident == 2 else 6
    return start + max(own, stream) + 0.1 * min(own, stream) + 0.1 * loads + space_bytes(problem, config) / 1.3e6


def kernel(dtype: str, config: RowsConfig) -> Kernel:
    config = replace(config, rows=1, channels=1)  # those are arguments

    def build() -> Callable[..., None]:
        from numbadnn.kernels import _unshared_inputs_rows

        return _unshared_inputs_rows.boxes(dtype, config)

    parameters = "ptr ptr ptr i32 i32 i32 i32 i32 i32 i32 i32*2 i32*2 i32 i32 i32 i64*3 i64*4"
    numbers = (*astuple(config)[:3], *config.taps, config.places, *config.stride, *astuple(config)[6:16])
    name = f"unshared rows {dtype} " + " ".join(str(int(v)) for v in numbers)
    return Kernel(name, parameters, build, config.threads, config.resident)


def plan(problem: ConvProblem, policy: Policy, config: RowsConfig) -> Executable:
    """Two launches, the second of which starts before the first has ended, and waits for it."""
    dtype, device, w, lot = problem.x.dtype, policy.device, problem.w, lot_of(config.kept, "float32")
    N, slices, tiles = problem.x.shape[0], -(-w.shape[3] // config.channels), tiles_of(problem, config.tile)
    first = kernel(dtype, config)
    scalars = (
        *(slices, problem.groups, N, w.shape[0] // problem.groups, w.shape[3], config.channels, tiles[1], config.tile),
        *(problem.y.shape[2:], pitch_of(problem, config), y_pitch_of(problem, config)),
        *(seen_of(problem, config.tile)[0], w.strides[:3], problem.y.strides),
    )
    grid = (blocks_of(problem, config), 1, 1)
    launch = first.prepare(device, grid, (config.threads, 1, 1), scalars, shared_bytes(problem, config))
    added = collecting(problem, "float32", device, config.tile, 0, config.kept, lot)
    direct = sequence("y w x space", [(launch, "y w space"), (added, "space x")])

    facts = {"kernel": first.name, "config": config}
    arithmetic = "ieee" if config.own else "tensor_core"
    return around(direct, facts, space_bytes(problem, config), arithmetic, "run_to_run")


def hopper_kernels() -> Iterator[Kernel]:
    """Many images and one."""
    yield kernel("float16", RowsConfig(32, 32, 12, (9, 9), 5, (1, 1), 4, 5, 16, 3, 1, False, False, 1, True))
    yield kernel("bfloat16", RowsConfig(16, 1, 12, (3, 3), 4, (1, 1), 1, 8, 16, 2, 2, True, True, 1, False))
    yield kernel("float32", RowsConfig(32, 32, 12, (9, 9), 5, (1, 1), 4, 5, 8, 6, 2, False, False, 1, True, 8))
    yield kernel("float32", RowsConfig(32, 32, 6, (3, 3), 2, (1, 1), 1, 3, 16, 3, 2, False, False, 2, False, 16))
    yield kernel("float32", RowsConfig(8, 8, 6, (3, 3), 2, (1, 1), 1, 3, 16, 3, 2, False, False, 2, False, 4))
    yield kernel("float32", RowsConfig(1, 1, 3, (3, 3), 4, (1, 1), 1, 4, 16, 3, 2, False, False, 1, False, 1))
