"""Configurations of the kernels that make the sampler's gradients, and what their launches are made of.

The host side of ``device/gather*.py`` and ``device/slope.py``: the gradient in the image gathers from bins of points
(``bins.py``); that in the grid has a pass of its own, or is made by ``finish`` of the dots that the gather leaves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.spatial.bins import bins_steps, record_type, rows_a_stripe, workspace_of
from numbadnn.kernels.spatial.layout import (
    THREADS,
    StagedConfig,
    Step,
    geometry,
    group,
    halves,
    images,
    real,
    row_vec,
    step,
    tile_of,
    tile_of_vectors,
    tiles,
    vectors_of,
)
from numbadnn.problems.spatial import SpatialProblem

#: records of a pixel that are noted in shared memory; a grid as fine as the image has four a pixel on average
HELD = 8


@dataclass(frozen=True, slots=True)
class SlopeConfig:
    """A block takes ``columns`` x ``rows`` points; ``share`` threads share a point's channels."""

    columns: int
    rows: int
    share: int
    threads: int = THREADS


@dataclass(frozen=True, slots=True)
class FinishConfig:
    """A thread has a point."""

    threads: int = THREADS


@dataclass(frozen=True, slots=True)
class GatherConfig:
    """As ``TileConfig``, of pixels; ``folded``: a point's number times a stride is where its dy lies; ``ordered``: two records
    of a cell are in order."""

    columns: int
    rows: int
    channels: int
    record: str
    folded: bool
    ordered: bool
    threads: int = THREADS


@dataclass(frozen=True, slots=True)
class SharedGatherConfig(GatherConfig):
    """The same of NHWC; ``share`` threads share a pixel's channels."""

    share: int = 1


@dataclass(frozen=True, slots=True)
class StagedGatherConfig(StagedConfig):
    """The same of pixels and of boxes of dy; up to ``held`` records of a pixel are kept, in tiles where no pixel has more than
    ``few`` only those; ``deep`` a thread in crowded tiles, where it has one pixel or a share of one."""

    few: int = 5
    held: int = 7
    deep: int = 7
    record: str = "float32"
    folded: bool = True
    ordered: bool = True

    @property
    def rounds(self) -> int:
        return -(-(self.pieces + self.rows * self.columns // self.vec) // self.threads)

    def zero(self, itemsize: int) -> int:
        """Where the 0 lies behind a box of dy, in bytes."""
        return self.pieces * self.vec * itemsize

    def box_bytes(self, itemsize: int) -> int:
        """A box of dy, the 0, and the tile's own pixels."""
        return self.zero(itemsize) + 16 + self.rows * self.columns * itemsize


# ---- the gradient in the grid alone ----------------------------------------------------------------------------------


def slope_step(problem: SpatialProblem, config: SlopeConfig | None = None) -> Step:
    """img, grid, dy -> dgrid"""
    img, grid, dy, dgrid = problem.img, problem.grid, problem.dy, problem.dgrid
    assert img is not None and grid is not None and dy is not None and dgrid is not None
    n, c = img.shape[:2]
    h, w = dy.shape[2:]
    if config is None:
        share = 8 if c >= 64 and h * w <= 4096 else 4 if c >= 32 and h * w <= 16384 else 1
        config = SlopeConfig(*tile_of(THREADS // share, w, h), share)
    across, down = tiles(config, w, h)
    acc = problem.accumulator
    parameters = Arguments(
        *("ptr:4", "i32 across down channels height width out_height out_width"),
        *(f"{real(acc)} half_width half_height", "i64*4 xs gs ys ds"),
    )
    scalars = parameters(geometry(problem), across=across, down=down, channels=c, ds=dgrid.strides)
    return step("slope", "planes", config, (img.dtype, grid.dtype, acc), parameters, n * across * down, scalars)


# ---- the gradient in the image: bins, then gather --------------------------------------------------------------------


class Bins(NamedTuple):
    """The launches for so many images, and the bytes of their workspace."""

    steps: tuple[Step, ...]  # those of ``bins_steps``, gather, and finish where the gather leaves dots
    nbytes: int


def bins_of(
    problem: SpatialProblem, n: int, stem: str, gather: GatherConfig | StagedGatherConfig | None = None
) -> Bins:
    """The launches of ``n`` images."""
    img, grid, dy, dimg = problem.img, problem.grid, problem.dy, problem.dimg
    assert img is not None and grid is not None and dy is not None and dimg is not None
    _, c, height, width = img.shape
    h, w = dy.shape[2:]
    acc = problem.accumulator
    offsets, dots, nbytes = workspace_of(problem, n, stem)
    gather = gather or gather_config(problem, stem)
    across, down = tiles(gather, width, height)
    chunks = -(-c // gather.channels) if stem == "planes" else 1
    many: tuple[int, ...] = (chunks, c) if stem == "planes" else (c // gather.channels if stem == "channels" else c,)
    both = stem != "planes"
    sizes = (height, width, h, w) if both else (height, width, w)
    strides = (img.strides, dy.strides, dimg.strides) if both else (dy.strides, dimg.strides)
    scalars = (offsets, across, down, *many, *sizes, *strides)
    pointers = 5 if both else 3
    shared_bytes = 0
    if isinstance(gather, StagedGatherConfig):
        shared_bytes = staged_gather_bytes(gather, dy.itemsize)
    few = img.itemsize < 4
    resident = {"planes": 1, "channels": 8 if few else 7, "staged": 3 if few else 2}[stem] if acc == "float32" else 1
    where = (f"gather_{stem}" if both else "gather", stem)
    operands = f"img dy dimg space space+{dots}" if both else "dy dimg space"
    steps = (
        *bins_steps(problem, n, offsets),
        step(
            *where, gather, (img.dtype, acc),
            f"ptr:{pointers} i64*4 i32:{len(scalars) - len(strides) - 1}" + " i64*4" * len(strides),
            n * chunks * across * down, scalars, resident, shared_bytes, early=both,
        )._replace(operands=operands),
    )  # fmt: skip
    if not both:
        return Bins(steps, nbytes)
    assert problem.dgrid is not None
    total = n * h * w
    ending = FinishConfig()
    rest = (total, h * w, w, height, width, *halves(problem), grid.strides, problem.dgrid.strides)
    parameters = f"ptr:3 i64:2 i32:3 {real(acc)}:2 i64*4 i64*4"
    last = step("slope", "finish", ending, (grid.dtype, acc), parameters, -(-total // ending.threads), rest, early=True)
    return Bins((*steps, last._replace(operands=f"grid space+{dots} dgrid")), nbytes)


def staged_gather_bytes(config: StagedGatherConfig, itemsize: int) -> int:
    """Stages of boxes, behind them the places of dots."""
    boxes = config.stages * config.group * config.box_bytes(itemsize)
    return boxes + 4 * max(config.columns * config.rows * config.held, config.threads * config.deep)


def gather_config(problem: SpatialProblem, stem: str) -> GatherConfig | StagedGatherConfig:
    """As the sampler's, over pixels."""
    assert problem.img is not None and problem.dy is not None
    c, height, width = problem.img.shape[1:]
    dy = problem.dy
    folded = dy.strides[2] == dy.shape[3] * dy.strides[3] or dy.shape[2] == 1
    record, ordered = record_type(problem), rows_a_stripe(problem) > 0
    if stem == "planes":
        return GatherConfig(*tile_of(THREADS, width, height, 32), group(c, 16), record, folded, ordered)
    if stem == "staged":
        few, vec = dy.itemsize < 4, row_vec((problem.img, dy))
        together = math.gcd(c, 4 if few else 2)
        rows, pieces = (8, 192) if few else (16, 512)
        # a turned image has five records a pixel at most, one enlarged by a tenth seven
        kept = {"few": 5, "held": 7, "deep": 6 if few else 12}
        return StagedGatherConfig(
            rows, 1, vec, pieces, 4, together, **kept, record=record, folded=folded, ordered=ordered
        )
    vec = vectors_of(images(problem))
    vectors = c // vec
    share = min(32, 1 << (vectors - 1).bit_length())
    share = share // 2 if share > 2 else share  # two vectors a lane: the lanes meet over fewer
    columns, rows = tile_of_vectors(vectors, width, height, 128)
    return SharedGatherConfig(columns, rows, vec, record, folded, ordered, threads=128, share=share)
