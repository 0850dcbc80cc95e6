"""Configurations of the kernels that make a grid of theta and theta's gradient, and what their launches are made of.

The host side of ``device/grid.py``.
"""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.spatial.layout import THREADS, Step, step
from numbadnn.problems.spatial import SpatialProblem


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
    types = (theta.dtype, grid.dtype, problem.accumulator)
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
