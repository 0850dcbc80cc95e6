"""Bilinear upsampling: sums of a few products with weights f/p; the bound stands beside the reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from numbadnn import reference
from numbadnn.measuring.compare import NORMAL, Depth, Float64, accumulator, with_ours

WORK = "GB/s"
EDGES: dict[str, tuple[str, ...]] = {}


def values(problem: Any, rng: np.random.Generator, kind: str) -> list[np.ndarray]:
    """One array; "integers": multiples of the weights' denominator; "nan": one element in eight is NaN."""
    shape = problem.inputs[0].shape
    if kind == "integers":
        (p, _), (r, _) = problem.ratio
        return [rng.integers(-4, 5, shape) * float(p * r)]
    x = rng.standard_normal(shape)
    if kind == "nan":
        x[rng.random(shape) < 0.125] = np.nan
    return [x]


def extra_kinds(problem: Any) -> tuple[str, ...]:
    """A sample of weight 0 is not looked at: NaN must not spread to where it has none."""
    return ("nan",)


def exact_integers(problem: Any) -> bool:
    """The weights f/p are exact where p is a power of two; (2p)**2 of them, each times 4 p**2, stay below 2**24."""
    p = [p for p, _ in problem.ratio]
    return all(n & (n - 1) == 0 for n in p) and 16 * (p[0] * p[1]) ** 2 < 2**24


def errors(problem: Any, inputs: tuple[Any, ...], old: Any, arithmetic: str, depth: Depth) -> tuple[Float64, ...]:
    if arithmetic != "ieee":
        raise ValueError(f"arithmetic: expected ieee for {problem.op}, got {arithmetic!r}")
    dtype = accumulator(problem.output.dtype)
    keywords = problem.keywords
    given = {"input_shape": keywords.get("input_shape"), "frac_ratio": keywords["frac_ratio"]}
    (found,) = with_ours(partial(reference.bilinear_upsampling_bound, inputs[0], **given), dtype, depth)
    return (found + 64 * NORMAL[dtype],)
