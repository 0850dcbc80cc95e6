"""Recurrent networks: weights of the size that networks begin with, and the reference's propagated bound.

Integers: rnn_relu with at most one 2 or -2 in each row and column of its matrices, so that every sum is short and
exact; inputs are even and one bias odd, so that no sum is 0, where the slope is a matter of taste.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn import reference
from numbadnn.measuring.compare import (
    SUBNORMAL,
    TENSOR_CORE_LENGTH,
    TENSOR_CORE_UNIT,
    TF32,
    UNIT,
    Depth,
    Float64,
    accumulator,
)
from numbadnn.measuring.data import EXACT

WORK = "GFLOP/s"
EDGES: dict[str, tuple[str, ...]] = {}


def values(problem: Any, rng: np.random.Generator, kind: str) -> list[np.ndarray]:
    """Normal numbers and weights uniform in +-1/sqrt(hidden); "wide": inputs and biases that saturate the gates."""
    shapes = {name: spec.shape for name, spec in zip(problem.names, problem.inputs, strict=True)}
    if kind == "integers":
        found = {name: 2.0 * rng.integers(-1, 2, shape) for name, shape in shapes.items()}
        found["w"] = _sparse(problem, rng)
        return list(found.values())
    found = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    found["w"] = rng.uniform(-1, 1, shapes["w"]) / np.sqrt(problem.network.hidden_size)
    if kind == "wide":
        found["x"] *= 30
    return list(found.values())


def extra_kinds(problem: Any) -> tuple[str, ...]:
    """Saturated gates; a linear unit has none."""
    return () if problem.network.rnn_mode == "rnn_relu" else ("wide",)


def exact_integers(problem: Any) -> bool:
    """Linear units whose largest possible value, and largest possible sum of gradients, is exact; of weights that are sparse."""
    if problem.network.rnn_mode != "rnn_relu" or problem.inputs[0].strides == (0,):
        return False
    network, steps = problem.network, problem.steps
    size = 2.0
    for _ in range(network.num_layers):  # twice one input, twice one state and two biases, at each step
        below = size
        for _ in range(steps):
            size = 2 * below + 2 * size + 3
    if problem.op == "rnn_forward":
        return bool(size <= EXACT[problem.dtype])
    slope = 2.0
    for _ in range(network.num_layers):
        above = network.directions * slope + 2
        for _ in range(steps):
            slope = 2 * above + 2 * slope
    return bool(slope * size * steps * problem.batch <= EXACT[problem.dtype])


def _sparse(problem: Any, rng: np.random.Generator) -> np.ndarray:
    network, flat = problem.network, []
    hidden, gates = network.hidden_size, network.gates
    for layer in range(network.num_layers):
        for _ in range(network.directions):
            skip = layer == 0 and network.input_mode == "skip"
            for columns in (0 if skip else network.in_dim(layer, problem.input_dim), hidden):
                matrix = np.zeros((hidden, columns))
                n = min(matrix.shape)
                matrix[rng.permutation(hidden)[:n], rng.permutation(columns)[:n]] = rng.choice((-2, 2), n)
                flat.append(matrix.ravel())
    for _ in range(network.num_layers * network.directions):
        flat += [rng.choice((-1, 1), gates * hidden), 2 * rng.integers(-1, 2, gates * hidden)]
    return np.concatenate(flat)


def errors(problem: Any, inputs: tuple[Any, ...], old: Any, arithmetic: str, depth: Depth) -> tuple[Float64, ...]:
    """States, gates and their gradients may be kept in the data's type; products are those of the arithmetic.

    half_products: those of tensor_core, each matrix's kept in the data's type before it is added to others.
    """
    dtype = accumulator(problem.dtype)
    rounding: dict[str, Any] = {
        "depth": depth,
        "unit": UNIT[dtype],
        "store": UNIT[problem.dtype],
        "tiny": SUBNORMAL[problem.dtype],
    }
    if arithmetic in ("tensor_core", "half_products", "tf32"):
        rounding |= {"unit": TENSOR_CORE_UNIT, "stretch": TENSOR_CORE_LENGTH}
    if arithmetic == "half_products":
        rounding["products"] = UNIT[problem.dtype]
    if arithmetic == "tf32":
        rounding["factor"] = TF32[arithmetic]
    if arithmetic not in ("ieee", "tensor_core", "half_products", "tf32"):
        expected = "ieee, tensor_core, half_products or tf32"
        raise ValueError(f"arithmetic: expected {expected} for {problem.op}, got {arithmetic!r}")
    with np.errstate(over="ignore", invalid="ignore"):
        return getattr(reference, f"{problem.op}_bound")(*inputs, rounding=rounding, **problem.keywords)
