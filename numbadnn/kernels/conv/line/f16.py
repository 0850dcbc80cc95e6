"""``numba.line_halves``: which 16-bit lines go to tensor cores, and in which tiles; device code: ``device/f16.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.support import accumulator_of
from numbadnn.kernels.conv.line.channels import facts_of, whole
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem

#: times that a warp has at once
LANES, RUN = 32, 32


@dataclass(frozen=True, slots=True)
class LineF16Config:
    """A block has ``filters`` (16 or 32), a warp ``runs`` of 32 times; ``pairs``: channels in shared memory, by two.

    ``pieces`` of a thread: 8 times of two channels each; ``whole``: all channels are in shared memory.
    """

    filters: int
    runs: int
    pairs: int
    warps: int
    resident: int
    whole: bool
    pieces: int

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def span(self) -> int:
        """Times of a block."""
        return self.warps * self.runs * RUN


#: of a block, on the multiprocessors that have the least
SHARED_BYTES = 99 * 1024
#: fewer of a group leave most of a product idle
FEWEST_FILTERS, FEWEST_TERMS = 4, 8
#: that a thread holds at a time
MOST_PIECES = 4
#: as many blocks as these hold together share the times of all lines
MULTIPROCESSORS = 132


def halo_of(problem: ConvProblem) -> int:
    """Pieces before a block's own times."""
    return -(-problem.padding[1][0] // 8)


def row_of(problem: ConvProblem, config: LineF16Config) -> int:
    """Words of a pair of channels in shared memory: 8 more than a multiple of 32, so that four rows meet all banks."""
    words = config.span + 8 * halo_of(problem)
    return words + (8 - words) % 32


def shared_bytes(problem: ConvProblem, config: LineF16Config) -> int:
    chunks = -(-problem.w.shape[1] // 16)
    table = chunks * problem.taps[1] * config.filters // 16 * 128
    return 4 * (table + min(config.pairs, 8 * chunks) * row_of(problem, config))


def heuristic(problem: ConvProblem, policy: Policy) -> LineF16Config | None:
    """None where the threads of ``numba.line`` are to do it."""
    x, (K, C) = problem.x, problem.w.shape[:2]
    K //= problem.groups
    if x.itemsize != 2 or accumulator_of(x.dtype, policy) != "float32":
        return None
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return None  # how tensor cores round differs from one to the next
    if K < FEWEST_FILTERS or C * problem.taps[1] < FEWEST_TERMS:
        return None
    return configured(problem) if whole(problem, 8) else None


def configured(problem: ConvProblem) -> LineF16Config | None:
    """As measured; with fewer channels at a time, and filters, where these do not fit."""
    K, C = problem.w.shape[0] // problem.groups, problem.w.shape[1]
    filters = 16 if K <= 16 else 32
    for wanted, runs, pairs, warps, resident in (
        *([(16, 2, 8, 8, 2)] if filters == 16 and C <= 16 else []),
        *((32, 1, 16, 8, 2), (32, 1, 8, 8, 2), (16, 1, 8, 8, 2)),
    ):
        found = with_pieces(problem, min(filters, wanted), runs, pairs, warps, resident)
        if found.pieces <= MOST_PIECES and shared_bytes(problem, found) <= SHARED_BYTES:
            return found
    return None


def with_pieces(problem: ConvProblem, filters: int, runs: int, pairs: int, warps: int, resident: int) -> LineF16Config:
    """As many pieces of a thread as its block has of ``pairs`` of channels."""
    chunks, across = -(-problem.w.shape[1] // 16), warps * runs * RUN // 8 + halo_of(problem)
    pieces = -(-min(pairs, 8 * chunks) * across // (LANES * warps))
    return LineF16Config(filters, runs, pairs, warps, resident, 8 * chunks <= pairs, pieces)


def kernel(dtype: str, config: LineF16Config) -> Kernel:
    parameters = Arguments(
        *("ptr:3", "i32 blocks_of_filters blocks lanes groups N K C S Q past dilation halo row quarter"),
        *("i64*2 x_strides", "i64 w_start", "i64*3 w_strides", "i64*2 y_strides"),
    )
    made_by = "conv.line.device.f16.forward"
    return Kernel.of("line_halves", made_by, (dtype, config), parameters, config.threads, config.resident)


def prepare(problem: ConvProblem, device: int, config: LineF16Config, chosen: Kernel) -> Any:
    (N, _, _, Q), K = problem.x.shape, problem.w.shape[0] // problem.groups
    blocks, blocks_of_filters = -(-Q // config.span), -(-K // config.filters)
    parts = blocks_of_filters * problem.groups
    lanes = min(N * blocks, max(1, MULTIPROCESSORS * config.resident // parts))
    halo = halo_of(problem)
    scalars = chosen.values(
        facts_of(problem),
        blocks_of_filters=blocks_of_filters,
        blocks=blocks,
        lanes=lanes,
        halo=halo,
        row=row_of(problem, config),
        quarter=(config.span + 8 * halo) // 4,
    )
    shared = shared_bytes(problem, config)
    return chosen.prepare(device, (parts * lanes, 1, 1), (config.threads, 1, 1), scalars, shared)


def kernels() -> Iterator[Kernel]:
    """Few filters and many, all channels at once and not."""
    yield kernel("float16", LineF16Config(16, 2, 8, 8, 2, True, 3))
    yield kernel("bfloat16", LineF16Config(32, 1, 16, 8, 2, True, 3))
    yield kernel("float16", LineF16Config(32, 1, 16, 8, 2, False, 3))
