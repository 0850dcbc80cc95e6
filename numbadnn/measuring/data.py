"""Arrays for a problem: memory laid out exactly as its specs say, filled so that a mistake shows.

``buffer`` allocates an operand with its strides (any sign, 0 too) and its alignment, inside memory that is NaN everywhere
else, so that a kernel which reads a gap spreads NaN and one which writes a gap is found by ``untouched``. ``make_arrays``
gives an operation's inputs as its family's law makes them: random, or small integers whose every partial sum is exact.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.problem import Spec

KINDS = ("random", "integers")
GUARD_BYTES = 128

#: integers up to here are exact in the type; float64 is held to float32's, which is plenty
EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "float64": 2**24}


#: a large number of each type, whose sums of a few do not overflow it
LARGE = {"float16": 2.0**14, "bfloat16": 1e30, "float32": 1e30, "float64": 1e30}


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

    ``kind``: "random", normal numbers, no zeros, never overflowing float16; "integers", small ones such that every partial
    sum in any order is exact in the output's type; or one of the family's own (``laws``).

    >>> from numbadnn.ops.softmax import SoftmaxProblem
    >>> inputs, old = make_arrays(SoftmaxProblem.parse("softmax x=float32:2x3"))
    >>> inputs[0].shape, old
    ((2, 3), None)
    """
    from numbadnn.measuring.laws import law

    family = law(problem.op)
    kinds = (*KINDS, *family.extra_kinds(problem), *family.EDGES.get(problem.op, ()))
    if kind not in kinds:
        raise ValueError(f"kind: expected one of {', '.join(kinds)}, got {kind!r}")
    values = family.values(problem, np.random.default_rng(seed), kind)
    specs = (*problem.inputs, problem.output)[: len(values)]
    arrays = tuple(buffer(s, v).array for s, v in zip(specs, values, strict=True))
    n = len(problem.inputs)
    return arrays[:n], arrays[n] if len(arrays) > n else None


def normal(spec: Spec, rng: np.random.Generator) -> np.ndarray:
    """Standard normal numbers of the operand's type, none of them zero."""
    wide = np.float64 if spec.dtype == "float64" else np.float32
    values = rng.standard_normal(spec.shape, wide).astype(numpy_dtype(spec.dtype))
    values[values == 0] = 1
    return values


def integers(shapes: list[tuple[int, ...]], limit: int, k: int, rng: np.random.Generator) -> list[np.ndarray]:
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
