"""Batch normalization: normal numbers around a mean of each channel's own, a large mean, and the reference's derived bounds.

Small integers are exact where every step is: with epsilon 0 and a variance of 1 or 4 for given statistics; for the gradient of
training where the number of values averaged is a power of 2 and the mean given is their mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn import reference
from numbadnn.measuring.compare import NORMAL, UNIT, Depth, Float64
from numbadnn.problems.norm import OPERANDS, TEST, TEST_GRAD, TRAIN, TRAIN_GRAD, NormProblem
from numbadnn.reference import norm

WORK = "GB/s"

#: operation -> kinds of data at the edge of what numbers can say
EDGES = {TRAIN: ("constant",)}

#: the largest value of a channel in data of kind "constant"
LARGEST = {"float16": 6e4, "bfloat16": 1e10, "float32": 1e10, "float64": 1e10}

#: the mean of a channel in data of kind "offset", in standard deviations
OFFSET = 1e4


def values(problem: NormProblem, rng: np.random.Generator, kind: str) -> list[np.ndarray]:
    """One array an input. train_grad gets the statistics that a forward call would have given it.

    "constant": a channel holds one value, small or large.
    """
    if kind == "integers":
        return _integers(problem, rng)
    shape, small = problem.x.shape, problem.gamma.shape
    made = {
        "x": rng.standard_normal(shape) + (OFFSET if kind == "offset" else 0.5) * rng.uniform(1, 2, small),
        "dy": rng.standard_normal(shape),
        "gamma": rng.uniform(0.5, 1.5, small) * rng.choice((-1, 1), small),
        "beta": rng.standard_normal(small),
        "mean": (OFFSET if kind == "offset" else 0.5) * rng.uniform(1, 2, small),
        "var": rng.uniform(0.5, 2.0, small),
        "running_mean": rng.standard_normal(small),
        "running_var": rng.uniform(0.5, 2.0, small),
    }
    if kind == "constant":
        made["x"] = np.broadcast_to(np.resize((0.1, 100.0, LARGEST[problem.x.dtype], -3.3e4), small), shape)
    if problem.op == TRAIN_GRAD:
        one = np.ones(small)
        _, made["mean"], made["invstd"] = reference.batch_normalization_train(
            made["x"], one, one, mode=problem.mode, epsilon=problem.epsilon or 1e-3
        )
    return [made[name] for name in OPERANDS[problem.op][0][: len(problem.inputs)]]


def extra_kinds(problem: NormProblem) -> tuple[str, ...]:
    """A mean of ten thousand standard deviations, for the types that hold such numbers."""
    wide = problem.x.dtype in ("float32", "float64") and problem.gamma.dtype in ("float32", "float64")
    return ("offset",) if wide and problem.op in (TRAIN, TEST) else ()


def exact_integers(problem: NormProblem) -> bool:
    m = problem.averaged
    if problem.op == TRAIN_GRAD:
        return m & (m - 1) == 0 and 2 <= m <= 256
    return problem.op in (TEST, TEST_GRAD) and problem.epsilon == 0 and m <= 256


def _integers(problem: NormProblem, rng: np.random.Generator) -> list[np.ndarray]:
    """Integers up to 4; for train_grad half of each channel mirrors the other half at its mean."""
    shape, small = problem.x.shape, problem.gamma.shape
    mean = rng.integers(-2, 3, small).astype(np.float64)
    x = rng.integers(-3, 4, shape) + mean
    if problem.op == TRAIN_GRAD:
        flat = np.moveaxis(x, problem.axes, range(len(problem.axes))).reshape(problem.averaged, -1).copy()
        half, centre = len(flat) // 2, mean.reshape(1, -1)
        flat[half:] = 2 * centre - flat[:half]
        kept = [n for a, n in enumerate(shape) if a not in problem.axes]
        folded = flat.reshape(*[shape[a] for a in problem.axes], *kept)
        x = np.moveaxis(folded, range(len(problem.axes)), problem.axes)
    made = {
        "x": x,
        "dy": rng.integers(-3, 4, shape),
        "gamma": rng.choice((-2, -1, 1, 2), small),
        "beta": rng.integers(-3, 4, small),
        "mean": mean,
        "var": rng.choice((1, 4), small),
        "invstd": rng.choice((0.5, 1.0), small),
    }
    return [made[name] for name in OPERANDS[problem.op][0][: len(problem.inputs)]]


def accumulator(problem: NormProblem) -> str:
    """The type computed in: float64 where any operand is."""
    return "float64" if any(s.dtype == "float64" for s in (*problem.inputs, *problem.outputs)) else "float32"


def errors(
    problem: NormProblem, inputs: tuple[Any, ...], old: Any, arithmetic: str, depth: Depth
) -> tuple[Float64, ...]:
    """The bounds beside the reference, and the reference's own error by the same bounds."""
    known = ("ieee", "given_mean") if problem.op == TRAIN_GRAD else ("ieee",)
    if arithmetic not in known:
        raise ValueError(f"arithmetic: expected {' or '.join(known)} for {problem.op}, got {arithmetic!r}")
    if problem.averaged == 0:
        return tuple(np.zeros(s.shape) for s in problem.outputs)
    dtype, mode, epsilon = accumulator(problem), problem.mode, problem.epsilon

    name = {TRAIN: "train", TEST: "inference", TRAIN_GRAD: "train_grad", TEST_GRAD: "inference_grad"}[problem.op]
    function: Any = getattr(norm, f"{name}_bound")
    more: tuple[Any, ...] = () if problem.op == TRAIN_GRAD else (epsilon,)
    arrays = inputs
    if problem.op == TRAIN:
        arrays, more = (*inputs[:3], *(inputs[3:] or (None, None))), (epsilon, problem.factor)
    given = (True,) if arithmetic == "given_mean" else ()
    theirs_and_ours = ((UNIT[dtype], NORMAL[dtype], depth, *given), (UNIT["float64"], 0.0, norm.chain))
    both = [function(*arrays, mode, *more, *numbers) for numbers in theirs_and_ours]
    found = [theirs + ours for theirs, ours in zip(*both, strict=True)]
    if problem.op == TRAIN:
        found[0] = _of_constants(problem, inputs, found[0])
    return tuple(found)


def _of_constants(problem: NormProblem, inputs: tuple[Any, ...], bound: Float64) -> Float64:
    """Where a channel holds one value, its deviation is 0 and the result beta, however large the value: to 2^-10.

    The bound of a mean says less of large values: half a unit of 1e10 is 512, a hundred thousand after the division.
    """
    x, beta = np.asarray(inputs[0], np.float64), np.abs(np.asarray(inputs[2], np.float64))
    constant = np.ptp(x, axis=problem.axes, keepdims=True) == 0
    return np.where(constant, np.minimum(bound, 2.0**-10 * (1 + beta)), bound)
