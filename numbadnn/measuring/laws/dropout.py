"""Dropout: a mask that everybody must have to the bit, and one product or quotient of what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.measuring.compare import NORMAL, UNIT, Depth, Float64, accumulator
from numbadnn.measuring.data import normal

WORK = "GB/s"
EDGES: dict[str, tuple[str, ...]] = {}


def values(problem: Any, rng: np.random.Generator, kind: str) -> list[np.ndarray]:
    """Normal numbers, or small integers; none is zero, so that what was dropped can be seen."""
    shape = problem.source.shape
    return [rng.integers(1, 9, shape) if kind == "integers" else normal(problem.source, rng)]


def extra_kinds(problem: Any) -> tuple[str, ...]:
    return ()


def exact_integers(problem: Any) -> bool:
    """Where 1 / (1 - p) is a power of two (or nothing is kept) no product is rounded."""
    return problem.p in (0.0, 0.5, 0.75, 1.0)


def errors(problem: Any, inputs: tuple[Any, ...], old: Any, arithmetic: str, depth: Depth) -> tuple[Float64, ...]:
    """x / (1 - p) may be computed as x times the rounded inverse: the inverse's rounding and the product's, 1 - p in float64."""
    if arithmetic != "ieee":
        raise ValueError(f"arithmetic: expected ieee for {problem.op}, got {arithmetic!r}")
    dtype = accumulator(problem.output.dtype)
    u = UNIT[dtype]
    size = np.abs(np.asarray(inputs[0]).astype(np.float64)) * problem.scale
    return ((2 * u + u * u + 3 * UNIT["float64"]) * size + NORMAL[dtype],)
