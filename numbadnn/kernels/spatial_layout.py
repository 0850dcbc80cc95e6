"""Configurations of the spatial transformer's kernels, and what their launches are made of: the host side of ``_spatial_*``.

Nothing depends on the number of images but how many blocks there are: the bits of one do not change with the batch.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any, NamedTuple

from numbadnn.kernels._launch import Kernel, blocks
from numbadnn.kernels._support import LIMIT32
from numbadnn.ops.spatial import SpatialProblem
from numbadnn.problem import Spec

THREADS = 256


@dataclass(frozen=True, slots=True)
class GridConfig:
    """``points`` neighbouring points of the grid a thread; ``wide``: indices of 64 bits."""

    points: int
    wide: bool
    threads: int = THREADS


@dataclass(frozen=True, slots=True)
class ThetaConfig:
    """``points`` of the grid a block; ``whole``: they are all points of an image."""

    points: int
    whole: bool
    threads: int = THREADS


@dataclass(frozen=True, slots=True)
class TileConfig:
    """A block takes ``columns`` x ``rows`` points, a thread ``channels`` channels (NHWC: in one access)."""

    columns: int
    rows: int
    channels: int
    threads: int = THREADS


@dataclass(frozen=True, slots=True)
class StagedConfig:
    """A block takes 32 x ``rows`` points and ``channels`` channels, ``group`` at a time; ``stages`` times so many boxes of up to
    ``pieces`` of ``vec`` pixels."""

    rows: int
    channels: int
    vec: int
    pieces: int
    stages: int
    group: int
    threads: int = THREADS

    @property
    def columns(self) -> int:
        return 32

    @property
    def rounds(self) -> int:
        """Pieces a thread, at most."""
        return -(-self.pieces // self.threads)

    @property
    def of_points(self) -> StagedConfig:
        """For the points themselves as a box."""
        return replace(self, pieces=self.rows * 32 // self.vec)


@dataclass(frozen=True, slots=True)
class SlopeConfig:
    """A block takes ``columns`` x ``rows`` points; ``share`` threads share a point's channels, ``vec`` in one access."""

    columns: int
    rows: int
    share: int
    vec: int
    threads: int = THREADS


@dataclass(frozen=True, slots=True)
class BinsConfig:
    """Dtypes of the grid, of positions and of records; ``wide``: 2**31 points and more.

    ``threads`` of the kernels over points, ``row_threads`` of the one over a row of cells.
    """

    place: str
    acc: str
    record: str
    wide: bool = False
    threads: int = THREADS
    row_threads: int = 128


@dataclass(frozen=True, slots=True)
class GatherConfig:
    """As ``TileConfig``, of pixels; ``folded``: a point's number times a stride is where its dy lies."""

    columns: int
    rows: int
    channels: int
    record: str
    folded: bool
    threads: int = THREADS


@dataclass(frozen=True, slots=True)
class StagedGatherConfig(StagedConfig):
    """The same of pixels and of boxes of dy; up to ``held`` records of a pixel are noted."""

    held: int = 8
    record: str = "float32"
    folded: bool = True


class Step(NamedTuple):
    """One launch besides its addresses."""

    kernel: Kernel
    grid: tuple[int, int, int]
    threads: int
    scalars: tuple[Any, ...]
    shared_bytes: int = 0


def step(
    stem: str,
    function: str,
    config: Any,
    types: tuple[str, ...],
    parameters: str,
    count: int,
    scalars: Any,
    resident: int = 1,
    shared_bytes: int = 0,
) -> Step:
    """A launch of ``count`` blocks of ``function`` in ``_spatial_<stem>``; ``types`` come before the configuration."""

    def build() -> Callable[..., None]:
        module = importlib.import_module(f"numbadnn.kernels._spatial_{stem}")
        return getattr(module, function)(*types, config)

    words = []
    for word in parameters.split():  # "i32:3" is three of them, one by one
        name, _, repeated = word.partition(":")
        words += [name] * int(repeated or 1)
    values = (v if isinstance(v, str) else str(int(v)) for v in astuple(config))
    name = " ".join([f"spatial_{stem}", function, *types, *values])
    threads = getattr(config, "row_threads", THREADS) if function == "scan" else config.threads
    kernel = Kernel(name, " ".join(words), build, threads, resident)
    return Step(kernel, blocks(count * threads, threads), threads, scalars, shared_bytes)


def halves(problem: SpatialProblem) -> tuple[float, float]:
    """(W - 1)/2 and (H - 1)/2 of the image."""
    assert problem.img is not None
    return (problem.img.shape[3] - 1) / 2, (problem.img.shape[2] - 1) / 2


def real(acc: str) -> str:
    """The parameter type of an accumulator."""
    return "f64" if acc == "float64" else "f32"


# ---- tiles -----------------------------------------------------------------------------------------------------------


def tile_of(points: int, width: int, height: int, across: int = 16) -> tuple[int, int]:
    """(columns, rows), powers of two of ``points`` in all: ``across`` columns or fewer, more where there are few rows.

    16: the 32 threads of a warp take 16 x 2 points, which a turned grid sends to fewer rows of the image than 32 x 1.
    """
    columns = min(points, across)
    while columns > 4 and columns >= 2 * width:
        columns //= 2
    while columns < points and points // columns >= 2 * height and columns < width:
        columns *= 2
    return columns, points // columns


def tiles(config: Any, width: int, height: int) -> tuple[int, int]:
    """Tiles across and down."""
    return -(-width // config.columns), -(-height // config.rows)


def group(channels: int, most: int) -> int:
    """Channels a thread: all up to four, else a power of two up to ``most``."""
    return channels if channels <= 4 else min(most, 1 << (channels - 1).bit_length())


def vectors_of(specs: tuple[Spec, ...]) -> int:
    """The most channels, up to 16 bytes, that every vector of them is aligned to; 0: they are not neighbours in memory."""
    if any(s.strides[1] != 1 and s.shape[1] > 1 for s in specs):
        return 0
    vec = 16 // specs[0].itemsize if all(s.aligned for s in specs) else 1
    free = [t for s in specs for i, t in enumerate(s.strides) if i != 1 and s.shape[i] > 1]
    while vec > 1 and any(v % vec for v in (specs[0].shape[1], *free)):
        vec //= 2
    return vec


def images(problem: SpatialProblem) -> tuple[Spec, ...]:
    """Every operand that is an image."""
    return tuple(s for s in (problem.img, problem.y, problem.dy, problem.dimg) if s is not None)


def reach(image: Spec) -> int:
    """How far elements of one image of a batch lie from its first, at most."""
    return sum(abs(t) * (n - 1) for t, n in zip(image.strides[1:], image.shape[1:], strict=True))


def planes_reason(problem: SpatialProblem) -> str:
    return ""


def channels_reason(problem: SpatialProblem) -> str:
    """Why the kernels for NHWC cannot, "" if they can."""
    vec = vectors_of(images(problem))
    if vec < 2:
        return "needs neighbouring channels next to each other in memory, in aligned vectors"
    if any(reach(s) >= vec * 2**31 for s in images(problem)):
        return "needs images of fewer than 2**31 vectors of channels"
    return ""


def staged_reason(problem: SpatialProblem) -> str:
    """Why the kernels that keep boxes in shared memory cannot, "" if they can."""
    img, points = problem.img, problem.y or problem.dy
    assert img is not None and points is not None
    if max(*img.shape[2:], *points.shape[2:]) >= 2**15:
        return "needs fewer than 2**15 rows and columns"
    if not row_vec((img,) if problem.dy is None else (img, problem.dy)):
        return "needs rows that lie contiguous and aligned to pieces of 4 to 16 bytes"
    if img.shape[1] < 16 or math.prod(points.shape[2:]) < 256:
        return "needs at least 16 channels and 256 points"
    return ""


def row_vec(specs: tuple[Spec, ...]) -> int:
    """The most elements, of 4 to 16 bytes, that every row of these images consists of and is aligned to; 0: none."""
    size = specs[0].itemsize
    vec = 16 // size if all(s.aligned for s in specs) and all(s.strides[3] == 1 for s in specs) else 0
    free = [
        v for s in specs for v in (s.shape[3], *(t for t, n in zip(s.strides[:3], s.shape[:3], strict=True) if n > 1))
    ]
    while vec and any(v % vec for v in free):
        vec //= 2
    return vec if vec * size >= 4 else 0


# ---- grid and theta --------------------------------------------------------------------------------------------------


def grid_step(problem: SpatialProblem) -> Step:
    """theta -> grid"""
    theta, grid = problem.theta, problem.grid
    assert theta is not None and grid is not None
    n, h, w, _ = grid.shape
    points = 16 // (2 * grid.itemsize) if grid.aligned else 1
    packed = grid.strides[3] == 1 and (grid.strides[2] == 2 or w == 1)
    outer = [s for s, size in zip(grid.strides[:2], (n, h), strict=True) if size > 1]
    while points > 1 and (not packed or w % points or any(s % (2 * points) for s in outer)):
        points //= 2
    total = n * h * (w // points)
    config = GridConfig(points, total >= LIMIT32)
    scalars = (total, w // points, h, w, theta.strides, grid.strides)
    types = (theta.dtype, problem.accumulator)
    parameters = "ptr:2 i64:2 i32:2 i64*3 i64*4"
    return step("grid", "grid", config, types, parameters, -(-total // config.threads), scalars)


def theta_steps(problem: SpatialProblem) -> tuple[Step, Step | None, int]:
    """dgrid -> dtheta: over blocks of points, over blocks (None where there is one an image), and the workspace's bytes."""
    dgrid, dtheta = problem.dgrid, problem.dtheta
    assert dgrid is not None and dtheta is not None
    n, h, w, _ = dgrid.shape
    points = THREADS * max(1, min(16, -(-h * w // THREADS)))
    chunks = -(-h * w // points)
    config = ThetaConfig(points, chunks == 1)
    types = (dgrid.dtype, problem.accumulator)
    first = step(
        "grid",
        "parts",
        config,
        types,
        "ptr:2 i32:3 i64*4 i64*3",
        n * chunks,
        (chunks, h, w, dgrid.strides, dtheta.strides),
    )
    if chunks == 1:
        return first, None, 0
    last = step("grid", "finish", config, types, "ptr:2 i32 i64*3", n, (chunks, dtheta.strides))
    return first, last, n * chunks * 6 * (8 if problem.accumulator == "float64" else 4)


# ---- the sampler -----------------------------------------------------------------------------------------------------


def sampler_step(problem: SpatialProblem, stem: str, config: Any = None) -> Step:
    """img, grid -> y"""
    img, grid, y = problem.img, problem.grid, problem.y
    assert img is not None and grid is not None and y is not None
    n, c, height, width = img.shape
    h, w = y.shape[2:]
    if config is None:
        config = sampler_config(problem, stem)
    across, down = tiles(config, w, h)
    acc = problem.accumulator
    types = (img.dtype, grid.dtype, acc)
    more = (height, width, h, w, *halves(problem), img.strides, grid.strides, y.strides)
    chunks = 1 if stem == "channels" else -(-c // config.channels)
    many: tuple[int, ...] = (c // config.channels,) if stem == "channels" else (chunks, c)
    scalars = (across, down, *many, *more)
    parameters = f"ptr:3 i32:{7 if stem == 'channels' else 8} {real(acc)}:2 i64*4 i64*4 i64*4"
    where = ("staged", "sampler") if stem == "staged" else ("sampler", stem)
    resident = 4 if stem == "staged" and acc == "float32" else 1
    return step(*where, config, types, parameters, n * chunks * across * down, scalars, resident)


def sampler_config(problem: SpatialProblem, stem: str) -> TileConfig | StagedConfig:
    """256 points a block and up to 16 channels a thread; NHWC: points for about sixteen vectors a thread."""
    assert problem.img is not None and problem.y is not None
    c, (h, w) = problem.img.shape[1], problem.y.shape[2:]
    if stem == "staged":
        return staged_config(c, row_vec((problem.img,)), problem.img.itemsize)
    if stem == "planes":
        return TileConfig(*tile_of(THREADS, w, h), group(c, 16))
    vec = vectors_of(images(problem))
    return TileConfig(*_tile_of_vectors(c // vec, w, h), vec)


def staged_config(channels: int, vec: int, itemsize: int) -> StagedConfig:
    """16-bit: half as many bytes a channel, so two at a time, in boxes of half the pixels."""
    few = itemsize < 4
    return StagedConfig(16, group(channels, 64), vec, 256 if few else 512, 4, 2 if few else 1)


def _tile_of_vectors(vectors: int, width: int, height: int) -> tuple[int, int]:
    points = max(16, min(256, 1 << ((4096 // vectors).bit_length() - 1 if vectors <= 4096 else 0)))
    columns, rows = tile_of(points, width, height)
    while columns > 2 * rows and rows * 2 <= height:  # squares share more of the image
        columns, rows = columns // 2, rows * 2
    return columns, rows


def slope_step(problem: SpatialProblem, stem: str, config: Any = None) -> Step:
    """img, grid, dy -> dgrid"""
    img, grid, dy, dgrid = problem.img, problem.grid, problem.dy, problem.dgrid
    assert img is not None and grid is not None and dy is not None and dgrid is not None
    n, c, height, width = img.shape
    h, w = dy.shape[2:]
    if stem == "staged":
        config, vectors = config or replace(staged_config(c, row_vec((img, dy)), img.itemsize), channels=1), c
    elif stem == "channels":
        vec = vectors_of(images(problem))
        vectors = c // vec
        share = min(32, 1 << max(0, (vectors - 1).bit_length()))
        # as few as the block takes up at a time where a tile of more would not be full
        points = max(THREADS // share, min(THREADS, 1 << (h * w - 1).bit_length()))
        config = SlopeConfig(*tile_of(points, w, h), share, vec)
    else:
        share = 8 if c >= 64 and h * w <= 4096 else 4 if c >= 32 and h * w <= 16384 else 1
        config, vectors = SlopeConfig(*tile_of(THREADS // share, w, h), share, 1), c
    across, down = tiles(config, w, h)
    acc = problem.accumulator
    scalars = (
        across, down, vectors, height, width, h, w, *halves(problem), img.strides, grid.strides, dy.strides, dgrid.strides
    )  # fmt: skip
    parameters = f"ptr:4 i32:7 {real(acc)}:2 i64*4 i64*4 i64*4 i64*4"
    where = ("staged", "slope") if stem == "staged" else ("slope", stem)
    resident = 4 if stem != "planes" and acc == "float32" else 1
    return step(*where, config, (img.dtype, grid.dtype, acc), parameters, n * across * down, scalars, resident)


# ---- the gradient in the image: bins, then gather --------------------------------------------------------------------


class Bins(NamedTuple):
    """The launches for so many images, and where their parts of the workspace begin."""

    steps: tuple[Step, ...]  # clear, count, scan, place, sort, gather
    nbytes: int


def record_type(problem: SpatialProblem) -> str:
    """float32 where it holds every point's number exactly."""
    assert problem.dy is not None
    small = math.prod(problem.dy.shape[2:]) < 2**24 and problem.accumulator == "float32"
    return "float32" if small else "float64"


def _up(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def workspace_of(problem: SpatialProblem, n: int) -> tuple[tuple[int, int, int, int], int]:
    """Where starts, ranks, listed and records of ``n`` images lie behind the cursor, and the bytes of all."""
    assert problem.img is not None and problem.dy is not None
    height, width = problem.img.shape[2:]
    points = n * math.prod(problem.dy.shape[2:])
    starts = 16
    ranks = _up(starts + n * (height + 1) * (width + 2) * 4)
    listed = ranks + _up(4 * points)
    records = listed + _up(4 * points)
    return (starts, ranks, listed, records), records + _up(points * (16 if record_type(problem) == "float32" else 32))


def bins_of(
    problem: SpatialProblem, n: int, stem: str, gather: GatherConfig | StagedGatherConfig | None = None
) -> Bins:
    """The launches of ``n`` images."""
    img, grid, dy, dimg = problem.img, problem.grid, problem.dy, problem.dimg
    assert img is not None and grid is not None and dy is not None and dimg is not None
    _, c, height, width = img.shape
    h, w = dy.shape[2:]
    acc, record = problem.accumulator, record_type(problem)
    offsets, nbytes = workspace_of(problem, n)
    config = BinsConfig(grid.dtype, acc, record, n * h * w >= LIMIT32, row_threads=32 if width < 256 else 128)
    zeroed = offsets[1] // 16
    total = n * h * w
    over = -(-total // config.threads)
    tail = (offsets, total, h * w, w, height, width, *halves(problem), grid.strides)
    types = f"i64*4 i64:2 i32:3 {real(acc)}:2 i64*4"
    gather = gather or gather_config(problem, stem)
    across, down = tiles(gather, width, height)
    chunks = -(-c // gather.channels) if stem == "planes" else 1
    many: tuple[int, ...] = (chunks, c) if stem == "planes" else (c // gather.channels if stem == "channels" else c,)
    sizes = (height, width, h, w) if stem == "staged" else (height, width, w)
    scalars = (offsets, across, down, *many, *sizes, dy.strides, dimg.strides)
    shared_bytes = staged_gather_bytes(gather, dy.itemsize) if isinstance(gather, StagedGatherConfig) else 0
    resident = {"planes": 1, "channels": 4, "staged": 3}[stem] if acc == "float32" else 1
    where = ("gather_staged" if stem == "staged" else "gather", stem)
    steps = (
        step("bins", "clear", config, (), "ptr i64", -(-zeroed // config.threads), (zeroed,)),
        step("bins", "count", config, (), f"ptr:2 {types}", over, tail),
        step("bins", "scan", config, (), "ptr i32", n * (height + 1), (width + 1,)),
        step("bins", "place", config, (), f"ptr:2 {types}", over, tail),
        step("bins", "sort", config, (), f"ptr:2 {types}", over, tail),
        step(
            *where, gather, (img.dtype, acc), f"ptr:3 i64*4 i32:{len(scalars) - 3} i64*4 i64*4", n * chunks * across * down,
            scalars, resident, shared_bytes,
        ),
    )  # fmt: skip
    return Bins(steps, nbytes)


def staged_gather_bytes(config: StagedGatherConfig, itemsize: int) -> int:
    """Records, then in their place stages of boxes with what is 0 behind each."""
    box = config.pieces * config.vec * itemsize + 16
    return max(32 * config.rows * 8 * config.held, config.stages * config.group * box)


def gather_config(problem: SpatialProblem, stem: str) -> GatherConfig | StagedGatherConfig:
    """As the sampler's, over pixels."""
    assert problem.img is not None and problem.dy is not None
    c, height, width = problem.img.shape[1:]
    dy = problem.dy
    folded = dy.strides[2] == dy.shape[3] * dy.strides[3] or dy.shape[2] == 1
    record = record_type(problem)
    if stem == "planes":
        return GatherConfig(*tile_of(THREADS, width, height, 32), group(c, 16), record, folded)
    if stem == "staged":
        like = staged_config(1, row_vec((dy,)), dy.itemsize)
        return StagedGatherConfig(**asdict(like), held=7, record=record, folded=folded)
    vec = vectors_of(images(problem))
    return GatherConfig(*_tile_of_vectors(c // vec, width, height), vec, record, folded)
