"""Pooling: a maximum is exact; sums, averages and every gradient are sums, of as many terms as windows share an element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn import reference
from numbadnn.measuring.compare import NORMAL, UNIT, Depth, Float64, accumulator, gamma
from numbadnn.measuring.data import EXACT, integers

WORK = "GB/s"

#: operation -> kinds of data at the edge of what numbers can say
EDGES = {"pool": ("lowest",)}


def values(problem: Any, rng: np.random.Generator, kind: str) -> list[np.ndarray]:
    """x; for the gradient also the forward output and dy.

    "ties": x from three values; "nan": one element in eight is NaN; "lowest": nine in ten are -inf, so that whole windows are;
    "integers": for the gradient of an average, multiples of the divisor.
    """
    x = rng.standard_normal(problem.x.shape)
    dy = rng.standard_normal(problem.y.shape)
    if kind == "integers":
        most, n = EXACT[problem.x.dtype] // 16, math.prod(problem.window)
        x, dy = integers([problem.x.shape, problem.y.shape], most, n, rng)
        if problem.mode == "average_inc_pad" or (problem.mode == "average_exc_pad" and not any(problem.pad)):
            dy = rng.integers(-2, 3, dy.shape) * float(n)
    elif kind == "ties":
        x = rng.choice([-1.0, 0.0, 1.0], problem.x.shape)
    elif kind == "lowest":
        x[rng.random(x.shape) < 0.9] = -np.inf
    elif kind == "nan":
        x[rng.random(x.shape) < 0.125] = np.nan
    if problem.op == "pool":
        return [x]
    y = reference.pool(x, *_arguments(problem))
    return [x, y, dy]


def _arguments(problem: Any) -> tuple[Any, ...]:
    return problem.window, problem.stride, problem.mode, problem.pad


def extra_kinds(problem: Any) -> tuple[str, ...]:
    """What only a maximum can get wrong."""
    if not problem.is_max:
        return ("nan",) if problem.op == "pool" else ()
    return ("ties", "nan")


def exact_integers(problem: Any) -> bool:
    """Maxima and sums; averages whose divisor is a power of two: others may multiply by its rounded inverse."""
    if problem.is_max or problem.mode == "sum":
        return True
    if problem.mode == "average_exc_pad" and any(problem.pad):
        return False
    n = math.prod(problem.window)
    return n & (n - 1) == 0 and (problem.op == "pool" or 2 * n * _overlap(problem) < EXACT[problem.x.dtype])


def _overlap(problem: Any) -> int:
    """The most windows that share an element."""
    return math.prod(-(-w // s) for w, s in zip(problem.window, problem.stride, strict=True))


def errors(problem: Any, inputs: tuple[Any, ...], old: Any, arithmetic: str, depth: Depth) -> tuple[Float64, ...]:
    """Of k terms: additions are off by gamma_(d-1) of the sum of magnitudes, d = ``depth(k)``, a division before or after by u.

    A product with the rounded inverse instead costs one u more: gamma_(d+1) in all. A maximum takes one element as it is.
    """
    if arithmetic != "ieee":
        raise ValueError(f"arithmetic: expected ieee for {problem.op}, got {arithmetic!r}")
    u = UNIT[dtype := accumulator(problem.output.dtype)]
    m = getattr(reference, f"{problem.op}_magnitude")(*inputs, *_arguments(problem))
    if problem.op == "pool":
        if problem.is_max:
            return (m,)
        k = math.prod(problem.window)
    else:
        k = _overlap(problem)
        if problem.is_max and k == 1:
            return (np.zeros_like(m),)
    return ((gamma(depth(k) + 1, u) + gamma(k + 1, 2.0**-53)) * m + (k + 1) * NORMAL[dtype],)
