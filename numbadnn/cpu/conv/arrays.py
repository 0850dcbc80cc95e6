"""Operands as NumPy arrays in the axes of the problem, for what NumPy and SciPy compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.problem import ITEMSIZE, Spec
from numbadnn.problems.conv import ConvProblem


def computed(problem: ConvProblem) -> Any:
    """The type of its sums."""
    return np.dtype("float64" if problem.x.dtype == "float64" else "float32")


def view(array: Any, spec: Spec) -> Any:
    """The operand in the problem's axes; the caller's may be others on the same memory."""
    strides = tuple(s * ITEMSIZE[spec.dtype] for s in spec.strides)
    return np.lib.stride_tricks.as_strided(array, spec.shape, strides)


def store(problem: ConvProblem, out: np.ndarray, value: np.ndarray) -> None:
    """out = alpha * value + beta * out, computed in the sums' type."""
    value = value if problem.alpha == 1 else value * value.dtype.type(problem.alpha)
    if problem.beta:
        value = value + out.astype(value.dtype) * value.dtype.type(problem.beta)
    out[...] = value
