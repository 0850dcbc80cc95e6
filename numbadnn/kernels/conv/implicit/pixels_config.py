"""``numba.implicit_gemm`` forward and with respect to the image: the walk over pixels, configurations, their times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.conv.implicit.walk import Axis, axes_of, filter_steps, image_reason, packed_steps, rows_step
from numbadnn.problem import Spec
from numbadnn.problems.conv import ConvProblem

MULTIPROCESSORS = 132
#: of a multiprocessor; each block takes one more KB of it than it asks for
SHARED_BYTES = 228 * 1024
#: of ``store``: lines of 128 bytes by the threads, boxes by the copy engine
LINES, COPIES = 32, 64
ROW = 128  # bytes of a row in shared memory, those of the swizzle
#: of a ring beside buffers for all columns of a tile
WHOLE_STAGES = 4


@dataclass(frozen=True, slots=True)
class PixelsConfig:
    """A tile of ``m`` pixels (128, 256) by ``n`` channels (a multiple of 16), a ring of ``stages``, terms shared by ``splits``.

    ``by_rows``: filters are packed along the terms; ``phases``: the target is written in phases of a stride; ``store``:
    elements a thread writes at a time (1, 2, 8), or LINES or COPIES, through shared memory. ``resident``: filters stay
    in shared memory, in so many stretches of the terms. ``plain``: pixels are read as rows of a matrix. ``blocks``: so many
    share a multiprocessor. ``whole``: the copy engine is given all columns of a tile at a time, of which it has buffers.
    """

    m: int
    n: int
    stages: int
    splits: int
    by_rows: bool
    phases: bool
    store: int
    resident: int = 0
    plain: bool = False
    blocks: int = 1
    whole: bool = False


class Product(NamedTuple):
    """A problem as the walk over the pixels of ``target``: ``depth`` channels of the source, ``width`` of the target, a group."""

    problem: ConvProblem
    forward: bool
    axes: tuple[Axis, ...]
    source: Spec
    target: Spec
    filters: Spec
    depth: int
    width: int

    @property
    def item(self) -> int:
        return self.source.itemsize

    @property
    def steps(self) -> int:
        """Copies of 128 bytes of channels for each pixel, over the taps of the average phase."""
        taps = math.prod(self.problem.taps) / self.phases
        return max(1, round(-(-self.depth * self.item // 128) * taps))

    @property
    def pixels(self) -> int:
        """Those of one phase."""
        return self.target.shape[0] * math.prod(a.positions for a in self.axes)

    @property
    def phases(self) -> int:
        return math.prod(a.spread for a in self.axes)

    @property
    def plain(self) -> bool:
        """Whether every pixel of the source is read once, by one tap."""
        ones = all((a.taps, a.move, a.lower, a.upper, a.spread) == (1, 1, 0, 0, 1) for a in self.axes)
        return ones and self.phases == 1 and rows_step(self.source) > 0

    @property
    def mends(self) -> bool:
        """Whether a pixel may lack a tap that is no term: zeros stand for it, and a filter's infinity times these is NaN."""
        return not self.forward and any(a.lacks for a in self.axes)


def product(problem: ConvProblem) -> Product:
    """Forward or the gradient with respect to the image."""
    forward, g = problem.direction == "forward", problem.groups
    source, target = (problem.x, problem.y) if forward else (problem.y, problem.x)
    w = problem.w
    if (
        not forward and w.dtype == "float32"
    ):  # TF32 is multiplied packed along the terms only, which are the filters here
        turn = (1, 0, *range(2, len(w.shape)))
        w = Spec(w.dtype, tuple(w.shape[i] for i in turn), tuple(w.strides[i] for i in turn), w.aligned)
    axes = axes_of(problem, forward)
    return Product(problem, forward, axes, source, target, w, source.shape[1] // g, target.shape[1] // g)


# ---- what fits


def store_of(target: Spec, width: int) -> int:
    """Elements a thread may write at a time."""
    if target.strides[1] != 1 or not target.aligned:
        return 1
    others = (width, *(s for n, s in zip(target.shape, target.strides, strict=True) if n > 1 and s != 1))
    return next(v for v in (8, 2, 1) if (v < 8 or target.itemsize == 2) and all(step % v == 0 for step in others))


def by_copies_reason(p: Product) -> str:
    """Why the copy engine cannot write the target, "" if it can."""
    if p.problem.beta or p.phases > 1 or not rows_step(p.target):
        return "needs beta of 0 and a target whose pixels are one axis of memory"
    if p.item != 2:
        return "needs 16-bit types"
    if p.width % (16 // p.target.itemsize):
        return "needs groups of whole 16-byte chunks"
    return image_reason(p.target, "the result")


def filter_bytes(n: int, by_rows: bool) -> int:
    """Shared memory of 128 bytes of terms of ``n`` filters, or of 64 terms of them in boxes of 64."""
    return (n if by_rows else -(-n // 64) * 64) * 128


def buffer_bytes(config: PixelsConfig) -> int:
    """Shared memory that results pass through, of both groups of threads: 64 rows of 128 bytes twice, or for every 64 columns."""
    if config.store < LINES:
        return 0
    return 2 * 64 * 128 * (max(2, -(-config.n // 64)) if config.whole else 2)


def shared_bytes(config: PixelsConfig) -> int:
    """The ring, buffers of results, filters that stay, barriers, and what aligning it takes."""
    filters = filter_bytes(config.n, config.by_rows)
    ring = config.stages * (config.m * ROW + (0 if config.resident else filters) + 16)
    return 1024 + ring + buffer_bytes(config) + config.resident * filters + 16


def stages_of(config: PixelsConfig) -> int:
    """As many as shared memory holds, eight at most."""
    filters, buffers = filter_bytes(config.n, config.by_rows), buffer_bytes(config)
    free = SHARED_BYTES // config.blocks - 1024 - 1040 - buffers - config.resident * filters
    return min(8, free // (config.m * 128 + (0 if config.resident else filters) + 16))


def _padded(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def packed_bytes(w: Spec) -> int:
    """What rearranged filters take, 0 if they are read where they are."""
    return 0 if filter_steps(w) else _padded(packed_steps(w)[0] * w.shape[0] * w.itemsize)


def workspace_bytes(p: Product, splits: int) -> int:
    """Rearranged filters, then partial sums."""
    return packed_bytes(p.filters) + (4 * splits * p.target.size if splits > 1 else 0)


# ---- what is fast


class Tiling(NamedTuple):
    """What a configuration is chosen by."""

    m: int
    n: int
    splits: int = 1
    resident: int = 0
    blocks: int = 1


def microseconds(p: Product, t: Tiling) -> float:
    """An estimate, by what an H200 was measured to take: a step, the writing of a tile, the adding of partial sums."""
    rows = -(-p.pixels // t.m)
    tiles = rows * -(-p.width // t.n) * p.problem.groups * p.phases * t.splits
    step = 0.0037 + 5.9e-4 * (t.m + (0 if t.resident else t.n)) + 9.2e-6 * t.m * t.n
    write = (0.24 + 7.6e-5 * t.m * t.n) * (1.6 if p.phases > 1 else 1.0 if not by_copies_reason(p) else 2.0)
    # two blocks on a multiprocessor wait less for each other's writing than for each other's steps
    tile = p.steps / t.splits * step * (1.0, 2.25)[t.blocks - 1] + write * (1.0, 1.48)[t.blocks - 1]
    moved = (p.source.size + p.target.size) * p.item / 3.5e6
    # few terms are few lines of memory, which all multiprocessors ask for at once
    asked = 0.0 if t.resident else 0.06 * rows * max(0.0, 1 - p.depth * p.item / 128)
    extra = 2.5 + p.target.size * (8.0 * t.splits + 2) / 4.5e6 if t.splits > 1 else 0.0
    uneven = 1.05 if t.n % 64 else 1.0
    working = -(-tiles // (t.blocks * MULTIPROCESSORS)) * tile * uneven
    return math.cbrt(working**3 + moved**3 + asked**3) + extra  # the longest, a little more where others are as long


def _widths(p: Product) -> list[int]:
    """Columns of a tile; where the copy engine writes, also what shares the columns out evenly."""
    found = {64, 128, 256}
    if not by_copies_reason(p):
        found |= {-(-p.width // (16 * parts)) * 16 for parts in range(1, 9)}
    return [
        n for n in sorted(found) if n == 64 or (min(48, p.width) <= n <= 256 and n < min(2 * p.width, p.width + 64))
    ]


def candidates(p: Product) -> Iterator[Tiling]:
    for n in _widths(p):
        for m, near in ((128, 1), (256, 1), (128, 2), (256, 2)):
            if m * n > 128 * 256 // near or (near == 2 and p.mends):  # NaN is looked for with registers that two lack
                continue
            yield Tiling(m, n, blocks=near)
            tiles, slots = -(-p.pixels // m) * -(-p.width // n), near * MULTIPROCESSORS
            stays = Tiling(m, n, 1, p.steps, near)
            few = p.width <= n or p.steps <= 2
            if few and p.problem.groups == p.phases == 1 and tiles > slots and config_of(p, stays).stages >= 3:
                yield stays
        if n % 64 == 0:
            for m in (128, 256) if n < 256 else (128,):
                yield from (Tiling(m, n, splits) for splits in (2, 3, 4, 5, 6, 8) if p.steps >= 4 * splits)


def config_of(p: Product, t: Tiling) -> PixelsConfig:
    store = 2 if t.splits > 1 and p.width % 2 == 0 else 1 if t.splits > 1 else store_of(p.target, p.width)
    if t.splits == 1 and not by_copies_reason(p):
        store = COPIES
    elif store == 8 and not p.problem.beta:
        store = LINES
    by_rows, phases = p.forward or p.item == 4, p.phases > 1
    found = PixelsConfig(t.m, t.n, 0, t.splits, by_rows, phases, store, t.resident, p.plain, t.blocks)
    whole = replace(found, whole=store == COPIES and t.n > 64 and t.m == 128 and t.blocks == 1)
    # fewer meetings of threads, as long as the ring need not shrink to less than multiplying takes
    found = whole if stages_of(whole) >= WHOLE_STAGES else found
    return replace(found, stages=stages_of(found))


def space(problem: ConvProblem, limit: int = 1 << 30, whole: bool = False) -> list[PixelsConfig]:
    """Every configuration worth timing, the one whose estimated time is the shortest first.

    ``whole``: only those that do not split sums. They all add in one order: steps of 128 bytes of channels, tap after tap.
    """
    p = product(problem)
    fitting = [t for t in candidates(p) if workspace_bytes(p, t.splits) <= limit and (t.splits == 1 or not whole)]
    fitting.sort(key=lambda t: microseconds(p, t))
    found = [config_of(p, t) for t in fitting]
    return [c for c in found if c.stages >= 2][:10]
