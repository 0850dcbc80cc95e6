"""The spatial transformer: bounds that follow the rounding of positions (reference/spatial_bounds.py), and points of many kinds.

"random": points all over the image and beyond its borders. "identity": points on the pixels themselves, where a position may
be rounded to either side. "heap": all points of an image within one pixel's cell. "integers": points on pixels and half-way
between them, where every weight is exact. "nan": coordinates that are no numbers among random ones.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from numbadnn import reference
from numbadnn.measuring.compare import NORMAL, Depth, Float64, with_ours

WORK = "GB/s"

#: operation -> kinds of data at the edge of what numbers can say
EDGES = {"spatialtf_sampler": ("nan",), "spatialtf_sampler_grad": ("nan",)}


def values(problem: Any, rng: np.random.Generator, kind: str) -> list[np.ndarray]:
    """One array an input."""
    if problem.op == "spatialtf_grid":
        theta = (
            rng.integers(-4, 5, problem.theta.shape) if kind == "integers" else rng.normal(0, 0.4, problem.theta.shape)
        )
        return [theta + np.eye(2, 3)]
    if problem.op == "spatialtf_grid_grad":
        shape = problem.dgrid.shape
        return [rng.integers(-4, 5, shape) if kind == "integers" else rng.standard_normal(shape)]
    grid = _points(problem, rng, kind)
    if kind == "integers":
        arrays = [4.0 * rng.integers(-3, 4, problem.img.shape), grid]
        return arrays if problem.dy is None else [*arrays, 4.0 * rng.integers(-2, 3, problem.dy.shape)]
    arrays = [rng.standard_normal(problem.img.shape), grid]
    return arrays if problem.dy is None else [*arrays, rng.standard_normal(problem.dy.shape)]


def _points(problem: Any, rng: np.random.Generator, kind: str) -> np.ndarray:
    n, height, width, _ = problem.grid.shape
    axes: list[np.ndarray] = []
    position: Any
    for size, count in ((problem.img.shape[3], width), (problem.img.shape[2], height)):
        if kind == "integers":
            position = rng.integers(-2, 2 * size + 1, (n, height, width)) / 2
        elif kind == "identity":
            line = np.round(np.linspace(0, size - 1, count))
            position = np.broadcast_to(line if count == width and not axes else line[:, None], (n, height, width))
        elif kind == "heap":
            position = size // 2 + rng.uniform(0.1, 0.9, (n, height, width))
        else:
            position = rng.uniform(-1.6, size + 0.6, (n, height, width))
        if kind == "nan":
            position = np.where(rng.random(position.shape) < 0.25, np.nan, position)
        axes.append(position * 2 / (size - 1) - 1 if size > 1 else rng.uniform(-1, 1, position.shape))
    return np.stack(axes, axis=-1)


def extra_kinds(problem: Any) -> tuple[str, ...]:
    return ("identity", "heap") if problem.op.startswith("spatialtf_sampler") else ()


def exact_integers(problem: Any) -> bool:
    """The coordinates -1 ... 1 of an axis, and the points half-way, are exact where its size less one is a power of two."""
    spec = problem.img if problem.img is not None else problem.grid if problem.grid is not None else problem.dgrid
    sizes = spec.shape[2:] if problem.img is not None else spec.shape[1:3]
    return all(n <= 33 and (n - 1) & (n - 2) == 0 for n in sizes if n > 1)


def errors(problem: Any, inputs: tuple[Any, ...], old: Any, arithmetic: str, depth: Depth) -> tuple[Float64, ...]:
    if arithmetic != "ieee":
        raise ValueError(f"arithmetic: expected ieee for {problem.op}, got {arithmetic!r}")
    bound = partial(getattr(reference, f"{problem.op}_bound"), *inputs, **problem.keywords)
    bounds = with_ours(bound, problem.accumulator, depth)
    # products below the smallest normal number may be flushed to zero
    return tuple(e + 64 * NORMAL[problem.accumulator] for e in bounds)
