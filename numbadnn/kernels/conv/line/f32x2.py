"""``numba.line_twofold``: which float32 lines go to tensor cores as two float16; device code: ``device/f32x2.py``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from numbadnn.kernels.build import simulate
from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, reciprocal
from numbadnn.kernels.build.support import accumulator_of
from numbadnn.kernels.conv.line.channels import facts_of, whole
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem

LANES, MULTIPROCESSORS = 32, 132
#: threads that read; times of a warp; bytes of an element, and of eight channels of a time
READERS, RUN, SIZE, ROW = 128, 32, 4, 16
#: blocks of times in shared memory; as many sets of warps take turns with them, so that one multiplies while another writes
STAGES, SETS = 4, 2
#: where in shared memory, behind the scales of stages, begin: that of filters, the largest that readers and those who cut
#: filters found, which filters and group the block has, and filters
SCALE, EXTREMES, EXTREMES_OF_FILTERS, SHARE, FIRST = 32, 64, 192, 256, 320


@dataclass(frozen=True, slots=True)
class F32x2Config:
    """Each set has ``high`` * ``wide`` warps, a warp 16 * ``tiles`` filters and ``runs`` of 32 times; ``taps`` are frozen.

    After every ``run`` instructions of a tap their sums are added to the total. A reader prefetches 8 channels of
    ``turns`` times. ``full``: of the 8 * ``octets`` channels none is missing; ``whole``: four neighbouring times are one access.
    """

    octets: int
    tiles: int
    high: int
    wide: int
    runs: int
    taps: int
    run: int
    turns: int
    full: bool
    whole: bool

    @property
    def filters(self) -> int:
        return 16 * self.tiles * self.high

    @property
    def span(self) -> int:
        """Times of a stage."""
        return RUN * self.runs * self.wide

    @property
    def multipliers(self) -> int:
        """Threads."""
        return LANES * SETS * self.high * self.wide

    @property
    def pitch(self) -> int:
        """Rows of a vector of the filters at a tap: one more than there are, so that neighbours meet all banks."""
        return self.filters + 1

    @property
    def filter_bytes(self) -> int:
        """Of one half of all filters."""
        return self.octets * self.taps * self.pitch * ROW

    @property
    def plane(self) -> int:
        """Bytes of one half of a stage."""
        return self.turns * READERS * ROW

    @property
    def shared_bytes(self) -> int:
        return -(-(FIRST + 2 * self.filter_bytes) // 128) * 128 + STAGES * 2 * self.plane


MOST_TAPS, MOST_TURNS = 4, 7
#: exponents between the largest and the least: of a thousand million normal numbers three are less
ENOUGH = 30
#: of a block, on the GPUs of data centres
SHARED_BYTES = 160 * 1024


def halo_of(problem: ConvProblem) -> int:
    """Times before a block's own: sixteens, which lie in shared memory in another order."""
    return -(-problem.padding[1][0] // 16) * 16


def spread_of(channels: int, taps: int, run: int = 1) -> int:
    """Exponents from the least number to the largest of a block; 0 where sums are too short to be within their bound.

    What ``lang/scaled_halves.py`` is off by leaves room for more: numbers 2^j below the least that are cut to 2 units
    of 2^-24 are off by 2^j times as much, as filters may be at the same time. ``run``: instructions, of 16 channels,
    between two additions.

    >>> [spread_of(c, 3) for c in (15, 16, 32, 64)], spread_of(64, 3, run=4)
    ([0, 28, 31, 33], 31)
    """
    k, chunks = channels * taps, -(-channels // 16)
    spare = k - 34 * min(run, chunks) - 10 - -(-chunks // run) * taps - k / 128
    return 28 + int(math.log2(spare / 4 + 1)) if spare >= 0 else 0


def heuristic(problem: ConvProblem, policy: Policy) -> F32x2Config | None:
    """Up to 64 channels, sums long enough, few taps; None elsewhere."""
    x, y, (K, C), S = problem.x, problem.y, problem.w.shape[:2], problem.taps[1]
    if x.dtype != "float32" or accumulator_of("float32", policy) != "float32" or not _has_capacity(policy):
        return None
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return None  # how tensor cores round differs from one to the next
    if not (problem.stride[1] == 1 and x.strides[3] == 1 == y.strides[3]) or S > MOST_TAPS or C > 64:
        return None
    K //= problem.groups
    if not spread_of(C, S) or K < 9:
        return None
    return config_of(problem)


def config_of(problem: ConvProblem) -> F32x2Config | None:
    """Eight warps, so many filters and times each that a block's times are a few kilobytes of each channel."""
    (K, C), S = problem.w.shape[:2], problem.taps[1]
    K //= problem.groups
    vectors = 2 if C <= 16 else 4 if C <= 32 else 8
    tiles, high, wide, runs = {
        (8, 16): (1, 1, 2, 1),
        (8, 32): (1, 2, 2, 1),
        (4, 16): (1, 1, 4, 1),
        (4, 32): (2, 1, 4, 1),
        (2, 16): (1, 1, 4, 2),
        (2, 32): (2, 1, 4, 1),
    }.get((vectors, 16 if K <= 16 else 32 if K <= 32 else 64), (2, 2, 2, 1))
    run = max(r for r in (1, 2, 4) if r == 1 or (2 * r <= vectors and spread_of(C, S, r) >= ENOUGH))
    times = RUN * runs * wide + halo_of(problem)
    turns = -(-times * vectors // READERS)
    config = F32x2Config(vectors, tiles, high, wide, runs, S, run, turns, 8 * vectors == C, bool(whole(problem, 4)))
    return config if turns <= MOST_TURNS and config.shared_bytes <= SHARED_BYTES else None


def _has_capacity(policy: Policy) -> bool:
    """Whether blocks may have that much shared memory, as they may on the GPUs whose tensor cores are fast enough, too."""
    if policy.device < 0 or simulate.active():
        return True
    from numbadnn.gpu import driver as _driver

    return _driver.compute_capability(policy.device) in ((8, 0), (9, 0), (10, 0), (10, 3))


def kernel(dtype: str, config: F32x2Config) -> Kernel:
    parameters = Arguments(
        *("ptr:3", "i32 tiles_of_line works K C Q past dilation halo spread"),
        *("i64*2 x_strides", "i64 w_start", "i64*3 w_strides", "i64*2 y_strides by_tiles"),
    )
    threads = config.multipliers + READERS
    return Kernel.of("line_twofold", "conv.line.device.f32x2.forward", (config,), parameters, threads)


def prepare(problem: ConvProblem, device: int, config: F32x2Config, chosen: Kernel) -> Any:
    (N, _, _, Q), w = problem.x.shape, problem.w
    (K, C), S = w.shape[:2], problem.taps[1]
    K //= problem.groups
    blocks_of_filters, tiles = -(-K // config.filters), -(-Q // config.span)
    blocks = min(N * tiles, max(1, MULTIPROCESSORS // (blocks_of_filters * problem.groups)))
    scalars = chosen.values(
        facts_of(problem),
        tiles_of_line=tiles,
        works=N * tiles,
        halo=halo_of(problem),
        spread=spread_of(C, S, config.run),
        by_tiles=reciprocal(tiles),
    )
    threads = config.multipliers + READERS
    return chosen.prepare(
        device, (blocks, blocks_of_filters, problem.groups), (threads, 1, 1), scalars, config.shared_bytes
    )


def kernels() -> Iterator[Kernel]:
    """All channels there and some missing; the one of most sums is tested apart: sm_100's code has a few bytes of stack."""
    yield kernel("float32", F32x2Config(4, 2, 1, 4, 1, 2, 1, 5, True, True))
    yield kernel("float32", F32x2Config(2, 1, 1, 4, 2, 3, 1, 5, False, False))
