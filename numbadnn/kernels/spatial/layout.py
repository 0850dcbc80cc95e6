"""Configurations of the spatial transformer's kernels, and what their launches are made of: the host side of ``device/``.

Nothing depends on the number of images but how many blocks there are: the bits of one do not change with the batch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.axes import vector_of
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks, reciprocal
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.problem import Spec
from numbadnn.problems.spatial import SpatialProblem

THREADS = 256


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
    def many(self) -> int:
        """Points a thread."""
        return self.rows * self.columns // self.threads

    @property
    def rounds(self) -> int:
        """Pieces a thread, at most."""
        return -(-self.pieces // self.threads)


class Step(NamedTuple):
    """One launch besides its addresses."""

    kernel: Kernel
    grid: tuple[int, int, int]
    threads: int
    scalars: tuple[Any, ...]
    shared_bytes: int = 0
    operands: str = ""  # the names of its addresses, where it is one of several


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
    early: bool = False,
) -> Step:
    """A launch of ``count`` blocks of ``function`` in ``device/<stem>.py``; ``types`` come before the configuration."""
    threads = getattr(config, "row_threads", THREADS) if function == "scan" else config.threads
    made_by = f"spatial.device.{stem}.{function}"
    title = f"spatial_{stem} {function}"
    kernel = Kernel.of(title, made_by, (*types, config), parameters, threads, resident, early)
    return Step(kernel, blocks(count * threads, threads), threads, scalars, shared_bytes)


def halves(problem: SpatialProblem) -> tuple[float, float]:
    """(W - 1)/2 and (H - 1)/2 of the image."""
    assert problem.img is not None
    return (problem.img.shape[3] - 1) / 2, (problem.img.shape[2] - 1) / 2


def geometry(problem: SpatialProblem) -> dict[str, Any]:
    """What kernels take of the image, of the points and of their strides, by the names of their parameters."""
    points = problem.y or problem.dy
    assert problem.img is not None and problem.grid is not None and points is not None
    half_width, half_height = halves(problem)
    return {
        "height": problem.img.shape[2],
        "width": problem.img.shape[3],
        "out_height": points.shape[2],
        "out_width": points.shape[3],
        "half_width": half_width,
        "half_height": half_height,
        "xs": problem.img.strides,
        "gs": problem.grid.strides,
        "ys": points.strides,
    }


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
    return vector_of(specs, 1, (specs[0].shape[1],))


def images(problem: SpatialProblem) -> tuple[Spec, ...]:
    """Every operand that is an image."""
    return tuple(s for s in (problem.img, problem.y, problem.dy, problem.dimg) if s is not None)


def reach(image: Spec) -> int:
    """How far elements of one image of a batch lie from its first, at most."""
    return sum(abs(t) * (n - 1) for t, n in zip(image.strides[1:], image.shape[1:], strict=True))


def planes_reason(problem: SpatialProblem) -> str:
    """Why the kernels for any layout cannot, "" if they can."""
    grid = problem.grid or problem.dgrid
    assert grid is not None
    _, h, w, _ = grid.shape
    if max(h, w, *(problem.img.shape[2:] if problem.img else ())) >= LIMIT32:
        return "needs fewer than 2**31 rows and columns"
    if problem.dgrid is not None and h * w >= LIMIT32:
        return "needs fewer than 2**31 points an image"
    return ""


def channels_reason(problem: SpatialProblem) -> str:
    """Why the kernels for NHWC cannot, "" if they can."""
    vec = vectors_of(images(problem))
    if vec < 2:
        return "needs neighbouring channels next to each other in memory, in aligned vectors"
    if any(reach(s) >= vec * 2**31 for s in images(problem)):
        return "needs images of fewer than 2**31 vectors of channels"
    if problem.dy is not None and math.prod(problem.dy.shape[2:]) >= 2**29:
        return "needs fewer than 2**29 points an image"
    return ""


def staged_reason(problem: SpatialProblem) -> str:
    """Why the kernels that keep boxes in shared memory cannot, "" if they can."""
    img, points = problem.img, problem.y or problem.dy
    assert img is not None and points is not None
    if max(*img.shape[2:], *points.shape[2:]) >= 2**15:
        return "needs fewer than 2**15 rows and columns"
    if not row_vec((img,) if problem.dy is None else (img, problem.dy)):
        return "needs rows that lie contiguous, in aligned chunks of 4 to 16 bytes"
    if img.shape[1] < 16 or math.prod(points.shape[2:]) < 256:
        return "needs at least 16 channels and 256 points"
    if problem.dy is not None and problem.accumulator == "float64":
        return "sums in float32"
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


# ---- the sampler -----------------------------------------------------------------------------------------------------


def sampler_step(problem: SpatialProblem, stem: str, config: Any = None) -> Step:
    """img, grid -> y"""
    img, grid, y = problem.img, problem.grid, problem.y
    assert img is not None and grid is not None and y is not None
    n, c = img.shape[:2]
    h, w = y.shape[2:]
    if config is None:
        config = sampler_config(problem, stem)
    across, down = tiles(config, w, h)
    acc = problem.accumulator
    types = (img.dtype, grid.dtype, acc)
    rest = ("i32 height width out_height out_width", f"{real(acc)} half_width half_height", "i64*4 xs gs ys")
    chunks = 1 if stem == "channels" else -(-c // config.channels)
    facts = {**geometry(problem), "across": across, "down": down, "chunks": chunks, "channels": c}
    count = n * chunks * across * down
    if isinstance(config, StagedConfig):
        staged = Arguments(
            "ptr:3", "i32 across down chunks", "i64*2 by_across by_down by_chunks", "i32 channels", *rest
        )
        divided = {f"by_{name}": reciprocal(facts[name]) for name in ("across", "down", "chunks")}
        capacity = config.stages * config.group * (config.pieces * config.vec * img.itemsize + 16)
        resident = 4 if acc == "float32" else 1
        return step("staged", "sampler", config, types, staged, count, staged(facts, **divided), resident, capacity)
    many = "vectors" if stem == "channels" else "chunks channels"
    parameters = Arguments("ptr:3", f"i32 across down {many}", *rest)
    scalars = parameters({**facts, "vectors": c // config.channels})
    return step("sampler", stem, config, types, parameters, count, scalars)


def sampler_config(problem: SpatialProblem, stem: str) -> TileConfig | StagedConfig:
    """256 points a block and up to 16 channels a thread; NHWC: points for about sixteen vectors a thread."""
    assert problem.img is not None and problem.y is not None
    c, (h, w) = problem.img.shape[1], problem.y.shape[2:]
    if stem == "staged":
        return staged_config(c, row_vec((problem.img,)), problem.img.itemsize)
    if stem == "planes":
        return TileConfig(*tile_of(THREADS, w, h), group(c, 16))
    vec = vectors_of(images(problem))
    return TileConfig(*tile_of_vectors(c // vec, w, h), vec)


def staged_config(channels: int, vec: int, itemsize: int) -> StagedConfig:
    """16-bit: half as many bytes a channel, so four at a time, in boxes that four blocks of a multiprocessor have room for."""
    if itemsize < 4:
        return StagedConfig(16, group(channels, 32), vec, 216, 4, math.gcd(channels, 4))
    return StagedConfig(16, group(channels, 64), vec, 512, 4, 1)


def tile_of_vectors(vectors: int, width: int, height: int, most: int = 256) -> tuple[int, int]:
    """(columns, rows) of up to ``most`` points: of as many as make about sixteen vectors for each of 256 threads."""
    points = max(16, min(most, 1 << ((4096 // vectors).bit_length() - 1 if vectors <= 4096 else 0)))
    columns, rows = tile_of(points, width, height)
    while columns > 2 * rows and rows * 2 <= height:  # squares share more of the image
        columns, rows = columns // 2, rows * 2
    return columns, rows
