"""Arrays for a problem: memory laid out exactly as its specs say, filled so that a mistake shows.

``buffer`` allocates an operand with its strides (any sign, 0 too) and its alignment, inside memory that is NaN everywhere
else, so that a kernel which reads a gap spreads NaN and one which writes a gap is found by ``untouched``. ``make_arrays``
gives an operation's inputs: normal numbers, numbers far apart, or small integers whose every partial sum is exact.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from numbadnn import reference
from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.problem import Spec

KINDS = ("random", "wide", "integers")
GUARD_BYTES = 128

#: integers up to here are exact in the type; float64 is held to float32's, which is plenty
EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "float64": 2**24}


class Buffer(NamedTuple):
    """One operand in its own memory: ``memory`` is all of it (1-D), ``array`` the operand, ``offset`` its first byte."""

    spec: Spec
    memory: np.ndarray
    array: np.ndarray
    offset: int


def buffer(spec: Spec, values: Any = None) -> Buffer:
    """An operand of this spec, NaN wherever ``values`` does not say otherwise; guards before and after it.

    >>> buffer(Spec("float32", (2, 2), (-2, 1))).array.strides
    (-8, 4)
    """
    dtype, (low, high) = numpy_dtype(spec.dtype), spec.span
    step = 16 // dtype.itemsize
    first = -(-(GUARD_BYTES // dtype.itemsize - low) // step) * step + (0 if spec.aligned else 1)
    count = first + high + 1 + GUARD_BYTES // dtype.itemsize
    room = np.empty(count + 64 // dtype.itemsize, dtype)
    skip = -room.ctypes.data % 64 // dtype.itemsize
    memory = room[skip : skip + count]
    memory[...] = np.nan
    array = _view(memory, spec, first)
    if values is not None:
        array[...] = values
    return Buffer(spec, memory, array, first * dtype.itemsize)


def _view(memory: np.ndarray, spec: Spec, first: int) -> np.ndarray:
    strides = tuple(s * memory.itemsize for s in spec.strides)
    return np.ndarray(spec.shape, memory.dtype, memory, first * memory.itemsize, strides)


def untouched(b: Buffer) -> bool:
    """Whether everything around the operand is still NaN."""
    outside = np.ones(b.memory.shape, np.uint8)
    _view(outside, b.spec, b.offset // b.memory.itemsize)[...] = 0
    around = b.memory[outside.view(bool)]
    return bool(np.isnan(around.astype(np.float32)).all())


def make_arrays(problem: Any, seed: int = 0, kind: str = "random") -> tuple[tuple[np.ndarray, ...], np.ndarray | None]:
    """(inputs in call order, old contents of the output or None where beta is 0), NumPy arrays with the problem's strides.

    ``kind``: "random", standard normal, no zeros, never overflowing float16; "wide", thirty times that (softmax alone, not
    ``fast``); "integers", small ones such that every partial sum in any order is exact in the output's type.

    >>> from numbadnn.ops.softmax import SoftmaxProblem
    >>> inputs, old = make_arrays(SoftmaxProblem.parse("softmax x=float32:2x3"))
    >>> inputs[0].shape, old
    ((2, 3), None)
    """
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    rng = np.random.default_rng(seed)
    if problem.op.startswith("conv"):
        values = _integers_conv(problem, rng) if kind == "integers" else [_normal(s, rng) for s in problem.inputs]
    else:
        values = _softmax_values(problem, rng, kind)
    inputs = tuple(buffer(s, v).array for s, v in zip(problem.inputs, values, strict=True))
    if not getattr(problem, "beta", 0.0):
        return inputs, None
    old = rng.integers(-2, 3, problem.output.shape) if kind == "integers" else _normal(problem.output, rng)
    return inputs, buffer(problem.output, old).array


def _normal(spec: Spec, rng: np.random.Generator) -> np.ndarray:
    wide = np.float64 if spec.dtype == "float64" else np.float32
    values = rng.standard_normal(spec.shape, wide).astype(numpy_dtype(spec.dtype))
    values[values == 0] = 1
    return values


def exact_integers(problem: Any) -> bool:
    """Whether ``kind="integers"`` can be exact: the operation is a sum, alpha and beta are multiples of 1/4 below 4."""
    if problem.op.startswith("conv"):
        return all(abs(v) < 4 and float(4 * v).is_integer() for v in (problem.alpha, problem.beta))
    return problem.op == "softmax_grad" and problem.algo != "log"


def _integers_conv(problem: Any, rng: np.random.Generator) -> list[np.ndarray]:
    """k products and the old output, scaled by alpha and beta, stay below EXACT; 4 * 4 is alpha's size and fraction."""
    limit = EXACT[problem.output.dtype] // 16 - 8
    k = reference.conv2d_reduction_length(problem.op, problem.w.shape, problem.y.shape, problem.groups)
    return _integers([s.shape for s in problem.inputs], limit, k, rng)


def _integers(shapes: list[tuple[int, ...]], limit: int, k: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Two arrays whose sums of k products have magnitudes summing to at most ``limit``.

    Where k alone is too long, the first is mostly zeros: k * density is a quarter of the limit on average, so that no sum
    comes near the limit itself.
    """
    most = min(math.isqrt(limit // k), 8)
    if most:
        return [rng.integers(1, most + 1, shape) * rng.choice((-1, 1), shape) for shape in shapes]
    first, second = (rng.choice((-1, 1), shape) for shape in shapes)
    kept = rng.random(first.shape) < limit / (4 * k)
    kept.flat[rng.integers(kept.size)] = True
    return [first * kept, second]


def _softmax_values(problem: Any, rng: np.random.Generator, kind: str) -> list[np.ndarray]:
    shape = problem.y.shape
    if kind == "integers":
        if not exact_integers(problem):
            raise ValueError(f"kind: {problem.op} with algo={problem.algo} is no sum, it has no exact integers")
        n = math.prod(shape[1:]) if problem.mode == "instance" else shape[1]
        return _integers([shape, shape], EXACT[problem.y.dtype] // 16, n, rng)
    x = rng.standard_normal(shape) * (30 if kind == "wide" else 1)
    if problem.op == "softmax":
        return [x]
    return [rng.standard_normal(shape), reference.softmax(x, problem.algo, problem.mode)]
