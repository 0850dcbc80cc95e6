"""``numba.pool_argmax``: the gradient of max pooling whose windows overlap. The host side of ``device/argmax.py``."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any

from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.pool import walk as pool_walk
from numbadnn.kernels.pool.tiles import Piece
from numbadnn.kernels.pool.walk import WalkConfig
from numbadnn.problem import ITEMSIZE
from numbadnn.problems.pool import PoolProblem

Two = tuple[int, int]
#: bytes of codes a block may keep
MOST_SHARED = 24 * 1024
#: numbers a thread may hold in registers; beyond ``MANY_HELD`` fewer blocks share a multiprocessor
MOST_HELD, MANY_HELD = 110, (60, 90)
THREADS = 128
#: rows of windows that a thread keeps at a time
MOST_ROWS = 3
#: blocks an H200 has at a time
SLOTS = 660


@dataclass(frozen=True, slots=True)
class ArgmaxConfig:
    """All that a kernel is built for.

    A block takes ``strips`` x ``across`` cells (a cell: stride x stride elements) of ``group`` images, or groups of
    ``lanes`` channels where ``last``. First it walks windows: a thread ``columns`` side by side, ``walk`` down; then cells:
    ``spread`` side by side, ``drop`` down. ``made`` rows and columns of windows, the first of them ``first`` from the
    block's first cell. ``rotating``: rows of maxima stay in their slot, else they move up. ``vec``,
    ``vec_y``, ``vec_dx``: columns an access. ``right``, ``right_y``: the first column a thread reads that may lie outside.
    The extents of an image, ``cells`` channels together, are frozen too: what is left of an address is then one sum a row.
    """

    window: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    last: bool
    lanes: int
    group: int
    strips: int
    across: int
    columns: int
    walk: int
    spread: int
    drop: int
    vec: int
    vec_y: int
    vec_dx: int
    first: Two
    made: Two
    right: int
    right_y: int
    image: Two
    outputs: Two
    cells: int
    rotating: bool
    threads: int
    resident: int

    def low(self, axis: int) -> int:
        """The first window that reaches a cell, from the window of the cell's number."""
        return -((self.window[axis] - 1 - self.pad[axis]) // self.stride[axis])

    def reach(self, axis: int, cells: int = 1) -> int:
        """How many windows reach ``cells`` neighbouring cells."""
        return (cells * self.stride[axis] - 1 + self.pad[axis]) // self.stride[axis] - self.low(axis) + 1

    @property
    def periods(self) -> Two:
        """Steps after which the rows that a thread keeps lie in the same slots: its walk and drop are multiples."""
        return self.window[0] // math.gcd(self.window[0], self.stride[0]) if self.rotating else 1, self.reach(0)

    @property
    def x_piece(self) -> Piece:
        """The columns of x that ``columns`` windows see."""
        sw, kw = self.stride[1], self.window[1]
        return Piece(self.first[1] * sw - self.pad[1], self.columns * sw, (self.columns - 1) * sw + kw, self.vec, True)

    @property
    def y_piece(self) -> Piece:
        """The columns of dy whose windows reach ``spread`` cells."""
        return Piece(self.low(1), self.spread, self.reach(1, self.spread), self.vec_y, True)

    @property
    def chunks(self) -> tuple[Two, Two]:
        """Threads down and across, of the windows and of the cells."""
        wide, tall = self.made[1] // self.columns, self.made[0] // self.walk
        return (tall, wide), (-(-self.strips // self.drop), -(-self.across // self.spread))


@dataclass(frozen=True, slots=True)
class Extents:
    """Images of H x W and P x Q elements, ``cells`` channels together; ``planes`` images, ``groups`` of channels in each."""

    planes: int
    cells: int
    image: Two
    outputs: Two


def _last(problem: PoolProblem) -> bool:
    return not all(s.is_contiguous for s in _operands(problem))


def _operands(problem: PoolProblem) -> tuple[Any, ...]:
    return problem.x, problem.dy, problem.dx


def extents(problem: PoolProblem) -> Extents:
    """Channels last: an image is a plane; C order: every channel is, and there is one cell."""
    n, c, H, W = problem.x.shape
    outputs = (problem.y.shape[2], problem.y.shape[3])
    return Extents(n, c, (H, W), outputs) if _last(problem) else Extents(n * c, 1, (H, W), outputs)


def heuristic(problem: PoolProblem) -> ArgmaxConfig | WalkConfig | None:
    """The first that walks, where one does, else the first of ``space``."""
    walking = pool_walk.space(problem)
    return walking[0] if walking else next(iter(space(problem)), None)


@functools.lru_cache(maxsize=256)
def space(problem: PoolProblem) -> tuple[ArgmaxConfig, ...]:
    """Configurations that fit registers and shared memory; all give the same bits."""
    sw, most = problem.stride[1], 16 // problem.x.itemsize
    aligned, W, Q = all(s.aligned for s in _operands(problem)), problem.x.shape[3], problem.y.shape[3]
    found: list[tuple[int, ...]] = []
    if _last(problem):
        for lanes in (most, most // 2, most // 4, 1):
            if lanes == 1 or (lanes > 1 and aligned and problem.x.shape[1] % lanes == 0):
                found += [(lanes, 1, 1, 1, columns, spread) for columns, spread in ((2, 1), (1, 1), (4, 1), (2, 2))]
    else:
        for wide in dict.fromkeys((most, most // 2, most // 4, 2, 1)):
            spread = max(1, wide // sw)
            vec_dx = math.gcd(most, W, spread * sw) if aligned else 1
            for columns in dict.fromkeys((spread, max(1, spread // 2), 2 * spread)):
                vec = math.gcd(most, W, columns * sw) if aligned else 1
                vec_y = math.gcd(most, Q, spread) if aligned else 1
                if vec_dx > 1 or spread == columns == 1:  # else neighbouring threads would be strides apart
                    found.append((1, vec, vec_y, vec_dx, columns, spread))
    tiled = (_tiled(problem, *shape) for shape in found)
    return tuple(c for c in tiled if c is not None and _held(c, problem) <= MOST_HELD and _modest(c))


def _tiled(
    problem: PoolProblem, lanes: int, vec: int, vec_y: int, vec_dx: int, columns: int, spread: int
) -> ArgmaxConfig | None:
    """A configuration with the tile chosen and what depends on extents filled in; None where no tile fits."""
    e, last, (sh, sw) = extents(problem), _last(problem), problem.stride
    cells = -(-e.image[0] // sh), -(-e.image[1] // sw)

    # rotating, a loop over as many steps as rows is unrolled: if it is not too long
    rotating = lanes == 1 and problem.window[0] <= 3 and columns <= (4 if problem.x.itemsize == 2 else 2)
    blank = ArgmaxConfig(
        problem.window, problem.stride, problem.pad, last, lanes, 1, 1, 1, columns, 1, spread, 1,
        vec, vec_y, vec_dx, (0, 0), (1, 1), 0, 0, e.image, e.outputs, e.cells, rotating, THREADS, 1,
    )  # fmt: skip

    def filled(group: int, strips: int, across: int, walk: int, drop: int) -> ArgmaxConfig:
        c = replace(blank, group=group, strips=strips, across=across, walk=walk, drop=drop)
        (tall, top), (wide, left) = _windows(c, 0, strips), _windows(c, 1, across)
        return replace(c, first=(top, left), made=(-(-tall // walk) * walk, -(-wide // columns) * columns))

    across = cells[1]
    limit = 64 if last else 512
    if across > limit:  # equal parts, of whole threads
        many = math.lcm(columns, spread)
        across = -(-cells[1] // -(-cells[1] // limit))
        across = -(-across // many) * many
    c = filled(1, cells[0], across, 1, 1)
    tile = _tile(c, problem)
    if tile is None:
        return None
    group, strips, walk, drop = tile
    c = filled(group, strips, across, walk, drop)
    tiles = -(-cells[1] // across)
    # the first column of the last thread
    x_at = (tiles - 1) * across * sw + (c.chunks[0][1] - 1) * c.x_piece.step + c.x_piece.first
    y_at = (tiles - 1) * across + (c.chunks[1][1] - 1) * spread + c.y_piece.first
    right, right_y = max(0, e.image[1] - x_at), max(0, e.outputs[1] - y_at)
    resident = 5 - sum(_held(c, problem) > n for n in MANY_HELD)
    return replace(c, right=right, right_y=right_y, resident=resident)


def _windows(c: ArgmaxConfig, axis: int, tile: int) -> Two:
    """How many windows a tile of so many cells needs, and the first of them from its first cell: all, if it is all."""
    if tile * c.stride[axis] >= c.image[axis]:
        return c.outputs[axis], 0
    return c.reach(axis, tile), c.low(axis)


#: images or channels that a block may take together
GROUPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def _tile(c: ArgmaxConfig, problem: PoolProblem) -> tuple[int, int, int, int] | None:
    """Group, strips, walk and drop at the least cost: windows looked at twice, threads and multiprocessors idle."""
    e, (sh, sw), size = extents(problem), c.stride, problem.x.itemsize
    groups, cells, over = (e.cells // c.lanes if c.last else e.planes), -(-e.image[0] // sh), -(-e.image[1] // sw)
    tiles_over, wide = -(-over // c.across), (c.chunks[0][1], c.chunks[1][1])
    carried, (step, reach) = max(0, c.window[0] - sh), c.periods
    few = 64 if c.last else 0  # bytes of neighbouring channels, for whole accesses of memory
    most, best = MOST_SHARED // (c.made[1] * c.lanes), (math.inf, 1, 1, 1, 1)
    fitting = [g for g in GROUPS if g <= groups and not (c.last and groups % g)]
    sizes = [g for g in fitting if g * c.lanes * size >= few or g == groups or groups % 2] or fitting
    for strips in {-(-cells // n) for n in range(1, cells + 1)}:
        count = _windows(c, 0, strips)[0]
        walks = [_steps(count, walk, 0.2 + 0.4 * carried / sh) for walk in range(step, max(step, 9) + 1, step)]
        drops = [_steps(strips, drop, 0.6 + 0.2 * (reach - 1)) for drop in range(reach, max(reach, 9) + 1, reach)]
        for group in sizes:
            blocks = (e.planes if c.last else 1) * -(-groups // group) * -(-cells // strips) * tiles_over
            waves = 1 + 0.5 * SLOTS / blocks
            part = -(-cells // strips) * strips / cells / strips
            for tall, walk, steps in walks:
                if tall * walk * group > most:
                    continue
                one = steps / _busy(group * wide[0] * tall)
                for tall2, drop, steps2 in drops:
                    two = steps2 / _busy(group * wide[1] * tall2)
                    best = min(best, ((one + two) * part * waves, group, strips, walk, drop))
    return best[1:] if best[0] < math.inf else None


def _steps(count: int, walk: int, more: float) -> tuple[int, int, float]:
    """Threads down, the rows of each, and rows that all of them do, where each does ``more`` before its first."""
    tall = -(-count // walk)
    return tall, walk, tall * (walk + more)


def _busy(units: int) -> float:
    """The share of threads with something to do."""
    return units / (-(-units // THREADS) * THREADS)


def shared_bytes(c: ArgmaxConfig) -> int:
    """A byte a window and lane; in channels last words of four."""
    return c.group * math.prod(c.made) * (1 if c.lanes == 1 else 4 * max(1, c.lanes // 4))


def _held(c: ArgmaxConfig, problem: PoolProblem) -> int:
    """About how many registers a thread needs beside addresses."""
    words, reach, size = 2 if problem.x.itemsize == 8 else 1, c.reach(0), problem.x.itemsize
    one = (c.x_piece.room * words + max(1, c.window[0] - 1) * c.columns * (1 if size == 2 else 1 + words)) * c.lanes
    shares = (reach * c.y_piece.room + c.spread * c.stride[1]) * words * c.lanes
    return max(one, shares + reach * c.y_piece.room * max(1, c.lanes // 4))


def _modest(c: ArgmaxConfig) -> bool:
    """Whether codes fit a byte, and the unrolled code is no longer than is worth compiling."""
    work = max(c.columns * sum(c.window), c.spread * math.prod(c.window)) * c.lanes
    codes = c.x_piece.room + math.prod(c.window)
    return codes < 255 and c.reach(0) <= MOST_ROWS and work <= 320 and shared_bytes(c) <= 2 * MOST_SHARED


def reason(problem: PoolProblem) -> str:
    """Why this kernel cannot, "" if it can."""
    if problem.op != "pool_grad" or not problem.is_max or len(problem.window) != 2:
        return "needs the gradient of a maximum over two axes"
    if not any(k > s for k, s in zip(problem.window, problem.stride, strict=True)):
        return "needs windows that overlap: others are quicker without a second look"
    specs = _operands(problem)
    if not (all(s.is_contiguous for s in specs) or all(s.is_channels_last for s in specs)):
        return "needs operands that are all packed, in C order or channels last"
    config = heuristic(problem)
    if config is None:
        return f"needs windows that fit the registers of a thread, at most {MOST_ROWS} rows of them over a row of the image"
    if max(math.prod(s.shape[1:]) for s in specs) * problem.x.itemsize >= LIMIT32 or problem.x.size >= 2**36:
        return "needs images of less than 2 GiB"
    return ""


def prepare(
    problem: PoolProblem, c: ArgmaxConfig | WalkConfig, acc: str
) -> tuple[Kernel, tuple[int, int, int], tuple[Any, ...]]:
    """Kernel, grid and arguments."""
    if isinstance(c, WalkConfig):
        return pool_walk.prepare(problem, c, acc)
    e = extents(problem)
    planes, groups = (e.planes, e.cells // c.lanes) if c.last else (1, e.planes)
    parts = -(-groups // c.group)
    grid = blocks(planes * parts * math.prod(tiles(c)) * c.threads, c.threads)
    return kernel(problem.x.dtype, acc, c), grid, (groups, parts)


def tiles(c: ArgmaxConfig) -> Two:
    """Tiles down and across an image."""
    return -(-c.image[0] // (c.stride[0] * c.strips)), -(-c.image[1] // (c.stride[1] * c.across))


def kernel(dtype: str, acc: str, config: ArgmaxConfig) -> Kernel:
    """The kernel of one configuration."""
    assert dtype in ITEMSIZE

    def build() -> Callable[..., None]:
        module = importlib.import_module("numbadnn.kernels.pool.device.argmax")
        return module.pool_grad(dtype, acc, config)

    words = [" ".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in astuple(config)]
    name = f"pool_argmax {dtype} {acc} {' '.join(words)}"
    return Kernel(name, "ptr ptr ptr i32 i32", build, config.threads, config.resident)
