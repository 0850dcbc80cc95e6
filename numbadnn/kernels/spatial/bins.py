"""Configurations of the kernels that sort points into the cells of an image, and what their launches are made of.

The host side of ``device/bins.py`` and ``device/stripe.py``, and where the bins lie in the workspace.
"""

from __future__ import annotations

import math

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import reciprocal
from numbadnn.kernels.spatial.layout import THREADS, Step, halves, real, step
from numbadnn.problem import ITEMSIZE, Spec
from numbadnn.problems.spatial import SpatialProblem

#: threads of the kernel that makes all bins at once
STRIPE_THREADS = 1024
#: numbers it keeps in shared memory besides those of cells and points: one of each warp, how many lie above, and the end
STRIPE_SUMS = STRIPE_THREADS // 32 + 2


@dataclass(frozen=True, slots=True)
class BinsConfig:
    """Dtypes of the grid, of positions and of records.

    ``threads`` of the kernels over points, fewer than 2**31, ``row_threads`` of the one over a row of cells.
    """

    place: str
    acc: str
    record: str
    threads: int = THREADS
    row_threads: int = 128


@dataclass(frozen=True, slots=True)
class StripeConfig:
    """As ``BinsConfig``; ``points`` that lie together are read at once, ``accesses`` times a thread."""

    place: str
    acc: str
    record: str
    points: int
    accesses: int
    threads: int = STRIPE_THREADS


def record_type(problem: SpatialProblem) -> str:
    """float32 where it holds every point's number exactly."""
    assert problem.dy is not None
    small = math.prod(problem.dy.shape[2:]) < 2**24 and problem.accumulator == "float32"
    return "float32" if small else "float64"


def _up(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def workspace_of(problem: SpatialProblem, n: int, stem: str) -> tuple[tuple[int, int, int, int], int, int]:
    """Where starts, ranks, listed and records of ``n`` images lie behind the cursor, where the dots, and the bytes of all."""
    assert problem.img is not None and problem.dy is not None
    height, width = problem.img.shape[2:]
    points = n * math.prod(problem.dy.shape[2:])
    starts = 16
    ranks = _up(starts + n * (height + 1) * (width + 2) * 4)
    listed = ranks + _up(4 * points)
    records = listed + _up(4 * points)
    dots = records + _up(points * (16 if record_type(problem) == "float32" else 32))
    end = dots if stem == "planes" else dots + _up(4 * points * ITEMSIZE[problem.accumulator])
    return (starts, ranks, listed, records), dots, end


#: blocks of ``stripe`` that run at once, points that one looks at at least, and numbers it may have in shared memory
STRIPES, STRIPE_POINTS, STRIPE_CAPACITY = 132, 1024, 24 * 1024


def points_at_once(grid: Spec) -> int:
    """How many points of an image one access of 16 bytes reads; 1 where they do not lie together."""
    n, h, w, _ = grid.shape
    points = 16 // (2 * grid.itemsize)
    packed = grid.strides[3] == 1 and grid.strides[2] == 2 and (h == 1 or grid.strides[1] == 2 * w) and grid.aligned
    return points if packed and not h * w % points and (n == 1 or not grid.strides[0] % (2 * points)) else 1


def rows_a_stripe(problem: SpatialProblem) -> int:
    """Rows of cells that one launch for all bins has room for beside all points of an image; none: there are several launches."""
    assert problem.img is not None and problem.dy is not None
    return (STRIPE_CAPACITY - STRIPE_SUMS - math.prod(problem.dy.shape[2:])) // (problem.img.shape[3] + 1)


def bins_steps(problem: SpatialProblem, n: int, offsets: tuple[int, ...]) -> tuple[Step, ...]:
    """clear, count, scan, place and sort; one launch for images of few points."""
    img, grid, dy = problem.img, problem.grid, problem.dy
    assert img is not None and grid is not None and dy is not None
    height, width = img.shape[2:]
    h, w = dy.shape[2:]
    acc, record = problem.accumulator, record_type(problem)
    total = n * h * w
    together, most = points_at_once(grid), rows_a_stripe(problem)
    if most > 0:
        rows = min(most, -(-(height + 1) // max(1, min(STRIPES // n, h * w // STRIPE_POINTS))))
        capacity = STRIPE_SUMS + rows * (width + 1) + h * w
        stripes = -(-(height + 1) // rows)
        scalars = (offsets, stripes, rows, h, w, reciprocal(w), height, width, *halves(problem), grid.strides)
        parameters = f"ptr:2 i64*4 i32:4 i64*2 i32:2 {real(acc)}:2 i64*4"
        whole = StripeConfig(grid.dtype, acc, record, together, -(-h * w // (STRIPE_THREADS * together)))
        stripe = step("stripe", "stripe", whole, (), parameters, n * stripes, scalars, shared_bytes=4 * capacity)
        return (stripe._replace(operands="grid space"),)
    config = BinsConfig(grid.dtype, acc, record, row_threads=32 if width < 256 else 128)
    zeroed = offsets[1] // 16
    over = -(-total // config.threads)
    tail = (offsets, total, h * w, w, height, width, *halves(problem), grid.strides)
    types = f"i64*4 i64:2 i32:3 {real(acc)}:2 i64*4"
    steps = (
        step("bins", "clear", config, (), "ptr i64", -(-zeroed // config.threads), (zeroed,)),
        step("bins", "count", config, (), f"ptr:2 {types}", over, tail),
        step("bins", "scan", config, (), "ptr i32", n * (height + 1), (width + 1,)),
        step("bins", "place", config, (), f"ptr:2 {types}", over, tail),
        step("bins", "sort", config, (), f"ptr:2 {types}", over, tail),
    )
    return tuple(
        s._replace(operands="grid space" if s.kernel.parameters.startswith("ptr ptr") else "space") for s in steps
    )
