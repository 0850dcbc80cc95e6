"""``numba.line_boxes``: float32 lines by TMA and wgmma, which problems and tiles; device code: ``device/boxes.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbadnn.kernels.build import simulate
from numbadnn.kernels.build import tensormap as _tensormap
from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, reciprocal
from numbadnn.kernels.build.support import accumulator_of
from numbadnn.kernels.conv.line.channels import facts_of, whole
from numbadnn.kernels.conv.line.f32x2 import ENOUGH, LANES, MULTIPROCESSORS, SIZE, spread_of
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem

#: channels and times of a box, filters of a block
CHANNELS, BOX, FILTERS = 64, 64, 64
#: groups of four warps, each with boxes of its own
GROUPS = 4
THREADS = GROUPS * 128
#: the thread that prefetches boxes, which takes it 250 cycles each, and for how many of them before it cuts filters
PREFETCHER, FIRST_BOXES = THREADS - LANES, GROUPS
#: bytes of a box, and of the rows of 8 channels that 64 filters and one empty are at a tap
BOX_BYTES, VECTOR = CHANNELS * BOX * SIZE, (FILTERS + 1) * 16
#: from tap to tap
TAP = CHANNELS // 8 * VECTOR
#: where in shared memory, behind the boxes' barriers, lie that of filters, what warps find in filters and in boxes, and filters
COME, EXTREMES_OF_FILTERS, EXTREMES, FIRST = 96, 128, 256, 384
SHARED_BYTES = 227 * 1024
MOST_BOXES = 12
PARAMETERS = Arguments(
    *("map:2", "ptr:3", "i32 tiles each rest slots packed K C Q past dilation spread"),
    *("i64*2 x_strides", "i64 w_start", "i64*3 w_strides", "i64*2 y_strides by_tiles"),
)


@dataclass(frozen=True, slots=True)
class BoxesConfig:
    """``taps`` are frozen; a box begins ``halo`` times before its results; after every ``run`` instructions, 16 channels each,
    of a tap their sums are added to the total."""

    taps: int
    halo: int
    run: int

    @property
    def span(self) -> int:
        """Results of a box, of a filter."""
        return BOX - self.halo

    @property
    def filters(self) -> int:
        """Bytes of one half of all filters."""
        return self.taps * TAP

    @property
    def first_box(self) -> int:
        return -(-(FIRST + 2 * self.filters) // 128) * 128

    @property
    def boxes(self) -> int:
        """As many as shared memory holds."""
        return min(MOST_BOXES, (SHARED_BYTES - 128 - self.first_box) // BOX_BYTES)


MOST_TAPS, MOST_HALO = 4, 24
#: of which more than one come to many multiprocessors
ENOUGH_BOXES = 200
#: of a grid's second and third axis
MOST_BLOCKS = 65535


def heuristic(problem: ConvProblem, policy: Policy) -> BoxesConfig | None:
    """33 to 64 channels, 17 filters and more, on Hopper; None elsewhere."""
    x, (K, C), S = problem.x, problem.w.shape[:2], problem.taps[1]
    if x.dtype != "float32" or accumulator_of("float32", policy) != "float32" or not _on_hopper(policy):
        return None
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return None  # how tensor cores round differs from one to the next
    if not whole(problem, 4) or not 1 < S <= MOST_TAPS or C > CHANNELS or (C < CHANNELS and problem.groups > 1):
        return None
    if problem.groups > 1 and K // problem.groups % FILTERS:
        return None  # results of the next group would be written
    if not (_nested(x) and _nested(problem.y)):
        return None
    run = max((r for r in (1, 2, 4) if spread_of(C, S, r) >= ENOUGH), default=0)
    halo = -(-problem.padding[1][0] // 8) * 8
    if max(problem.groups, -(-K // problem.groups // FILTERS)) > MOST_BLOCKS:
        return None
    if C <= 32 or K // problem.groups <= 16 or not run or halo > MOST_HALO:
        return None
    config = BoxesConfig(S, halo, run)
    boxes = x.shape[0] * -(-x.shape[3] // config.span) * -(-K // FILTERS)
    return config if boxes >= ENOUGH_BOXES else None


def _nested(spec: Spec) -> bool:
    """Whether images and channels lie as the copy engine wants them: one behind the other, images whole channels apart."""
    (N, rows, _, Q), (image, row) = spec.shape, spec.strides[:2]
    return (rows == 1 or row >= Q) and (N == 1 or (image >= rows * row and image % row == 0))


def _on_hopper(policy: Policy) -> bool:
    if policy.device < 0 or simulate.active():
        return True
    from numbadnn.gpu import driver as _driver

    return _driver.compute_capability(policy.device) == (9, 0)


def kernel(dtype: str, config: BoxesConfig) -> Kernel:
    return Kernel.of("line_boxes", "conv.line.device.boxes.forward", (config,), PARAMETERS, THREADS)


#: extents, strides in bytes, box
Described = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def maps(problem: ConvProblem, config: BoxesConfig) -> list[Described]:
    """Of the lines and of the results, for the copy engine."""

    def described(spec: Spec, times: int) -> Described:
        N, rows, _, Q = spec.shape
        along = ((spec.strides[1], rows), (spec.strides[0], N))
        strides = tuple(SIZE * s if size > 1 else SIZE * Q * rows for s, size in along)
        return (Q, rows, N), strides, (times, CHANNELS, 1)

    return [described(problem.x, BOX), described(problem.y, config.span)]


def arguments(problem: ConvProblem, config: BoxesConfig) -> tuple[tuple[int, int, int], int, tuple[Any, ...]]:
    """(grid, bytes of shared memory, all that the kernel takes after the addresses)."""
    (N, _, _, Q), w = problem.x.shape, problem.w
    (K, C), groups = w.shape[:2], problem.groups
    K //= groups
    blocks_of_filters, tiles = -(-K // FILTERS), -(-Q // config.span)
    blocks = min(N * tiles, max(1, MULTIPROCESSORS // (blocks_of_filters * groups)))
    each, rest = divmod(N * tiles, blocks)
    boxes = min(config.boxes, each + (rest > 0))
    scalars = PARAMETERS(
        facts_of(problem),
        tiles=tiles,
        each=each,
        rest=rest,
        slots=boxes,
        packed=packed(problem),
        spread=spread_of(C, config.taps, config.run),
        by_tiles=reciprocal(tiles),
    )
    return (blocks, blocks_of_filters, groups), 128 + config.first_box + boxes * BOX_BYTES, scalars


def packed(problem: ConvProblem) -> int:
    """Whether a block's filters lie in memory as one piece: 1, or -1 if the last tap is the first to be multiplied."""
    w, S = problem.w, problem.taps[1]
    if not w.aligned or w.shape[1] != CHANNELS or (*w.strides[:2], w.strides[3]) != (CHANNELS * S, S, 1):
        return 0
    return -1 if problem.flip else 1


def prepare(problem: ConvProblem, device: int, config: BoxesConfig, chosen: Kernel) -> Any:
    grid, shared, scalars = arguments(problem, config)
    found = [_tensormap.described(device, "float32", how, swizzled=False) for how in maps(problem, config)]
    return chosen.prepare(device, grid, (THREADS, 1, 1), (*found, *scalars), shared)


def kernels() -> Iterator[Kernel]:
    """None that every GPU has the instructions for."""
    yield from ()


def hopper_kernels() -> Iterator[Kernel]:
    """Those that sm_90a has: few runs and many, wide boxes and narrow ones."""
    yield kernel("float32", BoxesConfig(3, 8, 4))
    yield kernel("float32", BoxesConfig(2, 24, 2))
    yield kernel("float32", BoxesConfig(4, 8, 4))
