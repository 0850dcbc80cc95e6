"""Lines of many channels and many filters in float32: tiles of blocks and threads; the device code is ``device/tiles.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from numbadnn.kernels.build.launch import Kernel, reciprocal
from numbadnn.kernels.conv.line.channels import first_tap, whole
from numbadnn.kernels.conv.line.dense import MOST_DENSE_BEHIND, MOST_FROZEN_TAPS, MULTIPROCESSORS
from numbadnn.problems.conv import ConvProblem

#: lanes of a warp; steps of a piece, 16 bytes; filters of a thread, and its pieces of steps
LANES, VEC, FILTERS, PIECES = 32, 4, 8, 2
#: channels of a stage
CHANNELS = 8


@dataclass(frozen=True, slots=True)
class TilesConfig:
    """``across`` groups of a warp's lanes have other filters, all else other steps. ``dilation`` 0: a multiple of 4, else frozen.

    ``flip``: the last tap is the first in memory.
    """

    across: int
    warps: int
    taps: int
    dilation: int
    resident: int
    flip: bool

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def high(self) -> int:
        """Filters of a block."""
        return FILTERS * self.across

    @property
    def wide(self) -> int:
        """Steps of a block."""
        return VEC * PIECES * LANES // self.across * self.warps

    @property
    def behind(self) -> int:
        """Steps before the own ones that a frozen dilation reaches."""
        return (self.taps - 1) * self.dilation

    @property
    def looks(self) -> int:
        """Pieces that all taps of a piece of results see, where dilation is frozen."""
        return -(-self.behind // VEC) + 1

    @property
    def shift(self) -> int:
        """Where in these the first tap of the first step lies."""
        return -self.behind % VEC

    @property
    def pitch(self) -> int:
        """Factors of a tap in shared memory: four more than there are, so that channels begin in other banks."""
        return self.high + 4


#: fewer filters leave most of a block idle, and fewer products of an element do not pay for the way by shared memory
FEWEST_FILTERS, FEWEST_TERMS = 9, 16
#: where there are fewer blocks of four warps, they have two
ENOUGH_BLOCKS = 2 * MULTIPROCESSORS


def halo_of(problem: ConvProblem) -> int:
    """Pieces before a block's own steps."""
    return -(-problem.padding[1][0] // VEC)


def row_of(problem: ConvProblem, config: TilesConfig) -> int:
    """Bytes of a channel's steps in shared memory."""
    return 4 * (config.wide + VEC * halo_of(problem))


def stage_bytes(problem: ConvProblem, config: TilesConfig) -> int:
    return CHANNELS * (row_of(problem, config) + 4 * config.taps * config.pitch)


def heuristic(problem: ConvProblem, acc: str) -> TilesConfig | None:
    """Blocks of 32 filters, or of 16 where as many are idle then; None where the lines are not whole, or taps far apart."""
    w, (K, C), taps, dilation = problem.w, problem.w.shape[:2], problem.taps[1], problem.dilation[1]
    K //= problem.groups
    if problem.x.dtype != "float32" or acc != "float32" or not whole(problem, VEC):
        return None
    if K < FEWEST_FILTERS or C * taps < FEWEST_TERMS or w.strides[1:2] + w.strides[3:] != (taps, 1):
        return None
    if dilation % VEC == 0 or taps == 1:
        dilation = 0
    elif (taps - 1) * dilation > MOST_DENSE_BEHIND:
        return None
    config = TilesConfig(2 if -(-K // 16) % 2 else 4, 4, taps, dilation, 4, bool(problem.flip))
    if blocks_of(problem, config) < ENOUGH_BLOCKS:
        config = replace(config, warps=2, resident=8)
    # a thread copies one of the pieces behind the block's own, at most
    fits = halo_of(problem) * CHANNELS <= config.threads
    return config if taps <= MOST_FROZEN_TAPS and fits else None


def blocks_of(problem: ConvProblem, config: TilesConfig) -> int:
    (N, _, _, Q), K = problem.x.shape, problem.w.shape[0] // problem.groups
    return -(-K // config.high) * -(-Q // config.wide) * problem.groups * N


def estimate(problem: ConvProblem, config: TilesConfig) -> float:
    """Microseconds on an H200: memory, and the products of whole blocks, of which a GPU has ENOUGH_BLOCKS at least."""
    blocks, terms = max(blocks_of(problem, config), ENOUGH_BLOCKS), problem.w.shape[1] * problem.taps[1]
    return 4 + problem.bytes / 8e6 + 2 * blocks * config.high * config.wide * terms / 4.6e7


def kernel(dtype: str, acc: str, config: TilesConfig) -> Kernel:
    parameters, made_by = "ptr:3 i32:10 i64*2 i64 i64 i64*2 i64*2 i64*2 i64*2 i64*2", "conv.line.device.tiles.forward"
    return Kernel.of("line_tiles", made_by, (config,), parameters, config.threads, config.resident)


def prepare(problem: ConvProblem, device: int, config: TilesConfig, chosen: Kernel) -> Any:
    Q, w = problem.x.shape[3], problem.w
    K = w.shape[0] // problem.groups
    start, _ = first_tap(problem)
    filters, tiles, halo = -(-K // config.high), -(-Q // config.wide), halo_of(problem)
    scalars = (
        *(filters, tiles, problem.groups, K, w.shape[1], Q, problem.dilation[1]),
        *(halo, row_of(problem, config), stage_bytes(problem, config)),
        *(problem.x.strides[:2], start, w.strides[0], problem.y.strides[:2]),
        *(reciprocal(divisor) for divisor in (filters, tiles, problem.groups, max(halo, 1))),
    )
    grid, block = (blocks_of(problem, config), 1, 1), (config.threads, 1, 1)
    return chosen.prepare(device, grid, block, scalars, 2 * stage_bytes(problem, config))


def kernels() -> Iterator[Kernel]:
    yield kernel("float32", "float32", TilesConfig(4, 4, 2, 0, 4, True))
    yield kernel("float32", "float32", TilesConfig(4, 4, 3, 1, 4, False))
    yield kernel("float32", "float32", TilesConfig(2, 2, 3, 0, 8, False))
