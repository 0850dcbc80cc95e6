"""Softmax: rows of normal numbers, rows of numbers far apart, and the reference's derived bound; the gradient is a sum."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from numbadnn import reference
from numbadnn.measuring.compare import NORMAL, Depth, Float64, accumulator, with_ours
from numbadnn.measuring.data import EXACT, LARGE, integers

WORK = "GB/s"

#: operation -> kinds of data at the edge of what numbers can say
EDGES = {"softmax": ("equal",)}


def values(problem: Any, rng: np.random.Generator, kind: str) -> list[np.ndarray]:
    """Normal numbers, thirty times that ("wide"), or integers whose sums are exact (the gradient alone, not of the log).

    "equal": each image's logits are one number, up to the largest that half of the type's range holds.
    """
    shape = problem.y.shape
    if kind == "equal":
        sizes = np.geomspace(1.0, LARGE[problem.y.dtype], shape[0]) * np.resize((1, -1), shape[0])
        return [np.broadcast_to(sizes.reshape(-1, *(1,) * (len(shape) - 1)), shape)]
    if kind == "integers":
        if not exact_integers(problem):
            raise ValueError(f"kind: {problem.op} with algo={problem.algo} is no sum, it has no exact integers")
        n = math.prod(shape[1:]) if problem.mode == "instance" else shape[1]
        return integers([shape, shape], EXACT[problem.y.dtype] // 16, n, rng)
    x = rng.standard_normal(shape) * (30 if kind == "wide" else 1)
    if problem.op == "softmax":
        return [x]
    return [rng.standard_normal(shape), reference.softmax(x, problem.algo, problem.mode)]


def extra_kinds(problem: Any) -> tuple[str, ...]:
    """Numbers far apart, for what must subtract the maximum."""
    return () if problem.algo == "fast" else ("wide",)


def exact_integers(problem: Any) -> bool:
    return bool(problem.op == "softmax_grad" and problem.algo != "log")


def errors(problem: Any, inputs: tuple[Any, ...], old: Any, arithmetic: str, depth: Depth) -> tuple[Float64, ...]:
    if arithmetic != "ieee":
        raise ValueError(f"arithmetic: expected ieee for {problem.op}, got {arithmetic!r}")
    dtype = accumulator(problem.output.dtype)
    bound = partial(getattr(reference, f"{problem.op}_bound"), *inputs, problem.algo, problem.mode, out_unit=0.0)
    return with_ours(partial(bound, tiny=NORMAL[dtype]), dtype, depth)
