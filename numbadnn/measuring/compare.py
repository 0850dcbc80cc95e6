"""How far a right result may lie from the reference, as a function of the arithmetic an implementation declares.

A result is the rounding, to the output's type, of something computed in an accumulator. Its error is therefore

    |result - exact| <= e + u_out * (|exact| + e) + tiny,        e = what the accumulator may be off by (``Bound``)

with u_out the unit roundoff of the output's type and tiny half its smallest subnormal. For a sum of products, u the
accumulator's unit roundoff, gamma_d = d*u / (1 - d*u) and M = |alpha| * sum|x||w| + |beta||out|:

    ieee          e = gamma_d * M, with or without fused multiply-add (Higham, ch. 3 and 4), d the most roundings that a product
                  passes through in the tree that the implementation declares (``registry.Summation``): k for a sum of k that
                  is added in any order, 256 + log2(k/256) for one in blocks of 256 whose sums are added pairwise. With
                  alpha or beta three roundings more: the scalar's own, the product's, the sum's.
    tensor_core   the same with TENSOR_CORE: operands are aligned to the largest of a block and cut off, not rounded, so
                  a unit is 2^-23; and blocks of at least four products cut their sum and its carry too, hence 1.5 * d.
    tf32          as tensor_core, and each factor is first rounded to 11 bits: 2 * 2^-11 + 2^-22 of M.
    tf32_cut      the same where factors are cut off after 11 bits, as some of cuDNN's engines do: 2 * 2^-10 + 2^-20 of M.
    half          sums kept in float16, where it was asked for: (exp(1.5 * d * 2^-10) - 1) * M.
    half_products as tensor_core; each product of a recurrent network's matrix is rounded to float16 before it is added to
                  others: 2^-11 of it (``rnn_bounds``).
    given_mean    as ieee; the gradient of batch normalization takes the mean that it gets for exact: where that of the
                  inputs is another, it is off by the difference times a slope (``reference.norm.train_grad_bound``).
    fft, winograd norms over image or tile instead of M (``transforms.py``).

The reference computes in float64 and is off by the same formula with u = 2^-53 and d = k; that is added, and counts for
float64 alone.
Softmax is no sum of products; its bound stands with its derivation beside its reference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numbadnn.registry import BLOCKED, SEQUENCE, Summation

Float64 = NDArray[np.float64]
#: of so many terms, the most roundings that one passes through (``Summation.depth``)
Depth = Callable[[float], float]

#: unit roundoff, smallest subnormal and smallest normal number of each type, and the largest exponent
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
SUBNORMAL = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}
NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
EXPONENT = {"float16": 15, "bfloat16": 127, "float32": 127, "float64": 1023}

#: unit and length of a sum on tensor cores, as the module's first paragraph derives
TENSOR_CORE_UNIT, TENSOR_CORE_LENGTH = 2.0**-23, 1.5
TF32 = {"tf32": 2 * 2.0**-11 + 2.0**-22, "tf32_cut": 2 * 2.0**-10 + 2.0**-20}

#: these classes sum products directly: on small integers nothing is rounded, so nothing may differ
DIRECT = ("ieee", "tensor_core", "half_products", "given_mean")


def gamma(k: float, unit: float) -> float:
    """k*u / (1 - k*u); ValueError where the sum is too long for the type."""
    if k * unit >= 1:
        raise ValueError(f"expected a sum shorter than {1 / unit:g}, got {k:g} terms")
    return k * unit / (1 - k * unit)


def accumulator(dtype: str) -> str:
    """The type that sums are kept in: float64 for float64, float32 for everything else."""
    return "float64" if dtype == "float64" else "float32"


def with_ours(bound: Callable[..., Any], dtype: str, depth: Depth) -> tuple[Float64, ...]:
    """``bound(unit=, depth=)`` of an accumulator, and the reference's own error by the same bound, in any order."""
    if dtype != "float64":  # where a unit more of float64 says it
        both = [bound(unit=UNIT[dtype] + UNIT["float64"], depth=depth)]
    else:
        both = [bound(unit=UNIT["float64"], depth=d) for d in (depth, SEQUENCE.depth)]
    return tuple(sum(parts) for parts in zip(*(b if isinstance(b, tuple) else (b,) for b in both), strict=True))


@dataclass(frozen=True)
class Bound:
    """``accumulated``: the largest error of each element before it is rounded to ``dtype``, the output's type."""

    accumulated: Float64
    dtype: str

    def total(self, exact: Float64) -> Float64:
        """The largest error of each element after that rounding."""
        e = self.accumulated
        return e + UNIT[self.dtype] * (np.abs(exact) + e) + SUBNORMAL[self.dtype] / 2

    @property
    def overflow(self) -> float:
        """From this magnitude on, rounding to the output's type gives infinity."""
        if self.dtype == "float64":  # where the reference overflows together with the result
            return sys.float_info.max
        return (2.0 - UNIT[self.dtype]) * 2.0 ** EXPONENT[self.dtype]


def bounds(
    problem: Any, inputs: tuple[Any, ...], old: Any = None, arithmetic: str = "ieee", summation: Summation = BLOCKED
) -> tuple[Bound, ...]:
    """The bound on each element of each result of ``problem`` on these inputs, for what an implementation declares."""
    from numbadnn.measuring.laws import law

    with np.errstate(invalid="ignore", over="ignore"):
        errors = law(problem.op).errors(problem, inputs, old, arithmetic, summation.depth)
    return tuple(Bound(e, spec.dtype) for e, spec in zip(errors, problem.outputs, strict=True))


# ---- comparing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """``worst``: the largest |error| / bound, at index ``where``; ``ulp``: the most representable numbers between.

    ``mismatches`` counts elements beyond the bound, or not finite where the reference is (and the reverse).
    """

    worst: float
    where: tuple[int, ...]
    ulp: int
    mismatches: int
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.mismatches == 0

    def __str__(self) -> str:
        text = f"|error| is {self.worst:.3g} of the bound at {self.where}, {self.ulp} ULP at most"
        return text if self.ok else f"{self.mismatches} elements wrong: {text}; {self.note}"


def worst(found: list[Comparison]) -> Comparison:
    """The comparisons of several outputs as one: that of the worst, which says its number; mismatches are added up."""
    if len(found) == 1:
        return found[0]
    number = max(range(len(found)), key=lambda i: (not found[i].ok, found[i].worst))
    of_all: dict[str, Any] = {"ulp": max(c.ulp for c in found), "mismatches": sum(c.mismatches for c in found)}
    return replace(found[number], **of_all, note=f"output {number + 1}: {found[number].note}")


def compare(result: Any, exact: Float64, limit: Bound) -> Comparison:
    """Hold a result (in the output's type) against the exact value, element by element.

    >>> exact = np.array([[1.0, 3.0]])
    >>> compare(np.array([[1.0, 3.0]], "float32"), exact, Bound(np.zeros((1, 2)), "float32")).ok
    True
    """
    result = np.asarray(result)
    if result.shape != exact.shape or result.dtype.name != limit.dtype:
        raise ValueError(f"result: expected {limit.dtype} {exact.shape}, got {result.dtype.name} {result.shape}")
    accumulated = np.broadcast_to(limit.accumulated, exact.shape).ravel()

    def ratio(at: slice, got: np.ndarray, right: Float64) -> Float64:
        return _ratio(got.astype(np.float64), right, Bound(accumulated[at], limit.dtype))

    return _judge(result, exact, ratio, f"expected within {limit.dtype} bounds")


def _ratio(got: Float64, exact: Float64, limit: Bound) -> Float64:
    """|error| / bound of each element, infinite where one side is finite and the other must not be."""
    top, e = limit.overflow, limit.accumulated
    # infinity stands for anything that rounds to it: at the least `top`
    error = np.abs(np.clip(got, -top, top) - np.clip(exact, -top, top))
    total = limit.total(np.clip(exact, -top, top))
    ratio = np.where(error == 0, 0.0, error / total)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    wrong = np.where(np.isinf(got), np.abs(exact) + e < top, np.abs(exact) - e >= top)
    ratio = np.where(wrong, np.inf, ratio)
    same = (np.isnan(got) & np.isnan(exact)) | (got == exact)
    return np.where(np.isfinite(exact), ratio, np.where(same, 0.0, np.inf))


def compare_exactly(result: Any, exact: Float64) -> Comparison:
    """Every element must be the exact value rounded to the result's type; zeros of either sign are one value."""

    def ratio(at: slice, got: np.ndarray, right: Float64) -> Float64:
        equal = (got == right.astype(got.dtype)) | (np.isnan(got.astype(np.float64)) & np.isnan(right))
        return np.where(equal, 0.0, np.inf)

    return _judge(np.asarray(result), exact, ratio, "expected equality to the bit")


#: elements judged at once: few enough that what is worked out on the way stays in a core's cache
BLOCK = 1 << 14


def _judge(
    result: np.ndarray, exact: Float64, ratio: Callable[[slice, np.ndarray, Float64], Float64], expectation: str
) -> Comparison:
    """``ratio`` of every element, a block after the other; the first of the largest is the one that is shown."""
    if result.size == 0:
        return Comparison(0.0, (), 0, 0)
    got, right = result.ravel(), exact.ravel()
    largest, first, mismatches, apart = -1.0, 0, 0, 0
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for start in range(0, got.size, BLOCK):
            at = slice(start, start + BLOCK)
            found = ratio(at, got[at], right[at])
            most = int(np.argmax(found))
            if found[most] > largest:
                largest, first = float(found[most]), start + most
            mismatches += int(np.count_nonzero(~(found <= 1)))
            if found[most] > 0:  # else all are what they should be
                apart = max(apart, ulps(got[at], right[at]))
    where = tuple(int(i) for i in np.unravel_index(first, exact.shape))
    note = f"{expectation}: {right[first]:.9g} expected at {where}, got {float(got[first]):.9g}"
    return Comparison(largest, where, apart, mismatches, note)


def ulps(result: np.ndarray, exact: Float64) -> int:
    """The most representable numbers that lie between any element and the exact value rounded; NaN is left out."""
    with np.errstate(over="ignore", invalid="ignore"):
        a, b = _ordered(result), _ordered(exact.astype(result.dtype))
    real = ~(np.isnan(result.astype(np.float64)) | np.isnan(exact))
    wide_a, wide_b = a.view(np.uint64), b.view(np.uint64)  # where no difference overflows
    return int(np.where(a > b, wide_a - wide_b, wide_b - wide_a)[real].max(initial=0))


def _ordered(values: np.ndarray) -> NDArray[np.int64]:
    """Integers in the order of the numbers, one apart from number to number; both zeros are one."""
    bits = np.ascontiguousarray(values).view(f"i{values.itemsize}")
    return np.where(bits < 0, np.iinfo(bits.dtype).min - bits, bits).astype(np.int64)
