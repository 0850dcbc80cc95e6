"""The bounds hold for sums computed as declared, are not much wider than that, and whatever is beyond them is seen."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from numbadnn import cases, reference
from numbadnn.measuring import compare
from numbadnn.measuring.compare import UNIT, Bound
from numbadnn.validate import determinism
from numbadnn.validate.oracle import Trial

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}


def flat(dtype: str, e: float = 0.0, n: int = 4) -> Bound:
    return Bound(np.full(n, e), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants_are_the_types_own(dtype: str) -> None:
    info = ml_dtypes.finfo(DTYPES[dtype])
    assert UNIT[dtype] == float(info.eps) / 2
    assert compare.SUBNORMAL[dtype] == float(info.smallest_subnormal)
    assert compare.NORMAL[dtype] == float(info.smallest_normal)
    top = flat(dtype).overflow
    if dtype != "float64":  # half an ULP above the largest number: rounds up, and what lies just below does not
        with np.errstate(over="ignore"):
            assert np.isinf(np.array([top]).astype(DTYPES[dtype])[0])
        assert np.array([top * (1 - 2.0**-26)]).astype(DTYPES[dtype])[0] == info.max or dtype == "bfloat16"
        assert np.array([top * (1 - 2.0**-20)]).astype(DTYPES[dtype])[0] == info.max or dtype == "float32"


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_alone_is_within_a_bound_of_no_error(dtype: str) -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(2000) * 10.0 ** rng.integers(-9, 5, 2000)
    found = compare.compare(exact.astype(DTYPES[dtype]), exact, flat(dtype, 0, 2000))
    assert found.ok and found.ulp == 0
    assert found.worst > (0.9 if dtype != "float64" else -1)  # and it is not wider than that


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("times", (0.5, 2.0))
def test_one_element_off_by_twice_the_bound_is_found_and_half_is_not(dtype: str, times: float) -> None:
    exact = np.array([1.0, 0.5, 2.0, -4.0])
    bound = flat(dtype, 64 * UNIT[dtype])
    wrong = exact.copy()
    wrong[2] += times * bound.total(exact)[2]
    found = compare.compare(wrong.astype(DTYPES[dtype]), exact, bound)
    assert found.ok == (times < 1)
    assert found.where == (2,) and found.worst == pytest.approx(times, rel=0.05)
    assert found.mismatches == (times > 1) and found.ulp >= 8


@pytest.mark.parametrize("left", (np.nan, np.inf, -np.inf))
def test_what_is_not_finite_is_found(left: float) -> None:
    exact = np.array([[1.0, 2.0], [3.0, 4.0]])
    result = exact.astype(np.float32)
    result[1, 0] = left
    found = compare.compare(result, exact, Bound(np.full((2, 2), 1e3), "float32"))
    assert found.mismatches == 1 and found.where == (1, 0) and found.worst == np.inf
    assert "3 expected at (1, 0)" in str(found)
    assert not compare.compare_exactly(result, exact).ok


def test_positions_that_are_not_finite_must_agree() -> None:
    exact = np.array([np.nan, np.inf, -np.inf, 1.0])
    bound = Bound(np.array([np.nan, np.nan, np.nan, 0.0]), "float32")
    assert compare.compare(exact.astype(np.float32), exact, bound).ok
    for i, other in enumerate((1.0, -np.inf, np.nan)):
        result = exact.astype(np.float32)
        result[i] = other
        assert compare.compare(result, exact, bound).where == (i,)


def test_overflow_must_be_what_rounding_the_reference_gives() -> None:
    exact = np.array([65519.0, 65521.0, -70000.0, 65504.0])
    right = np.array([65504.0, np.inf, -np.inf, 65504.0], np.float16)
    assert compare.compare(right, exact, flat("float16")).ok
    for i, value in enumerate((np.inf, 65504.0, -65504.0, np.inf)):
        wrong = right.copy()
        wrong[i] = value
        assert compare.compare(wrong, exact, flat("float16")).where == (i,), i
    either = np.array([np.inf, 65504.0, -np.inf, 65504.0], np.float16)  # two units of error allow both
    assert compare.compare(either, exact, flat("float16", 2.0)).ok


def test_exact_comparison_takes_no_error_at_all() -> None:
    exact = np.array([1.0, 0.0, 3.0, 2049.0])
    result = exact.astype(np.float16)
    result[1] = -0.0
    assert compare.compare_exactly(result, exact).ok  # 2049 rounds to 2048
    result[2] = np.nextafter(result[2], np.float16(0))
    found = compare.compare_exactly(result, exact)
    assert found.mismatches == 1 and found.where == (2,) and found.ulp == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_ulps_count_numbers_between(dtype: str) -> None:
    kind = DTYPES[dtype]
    one = np.array([1.0, -1.0, 0.0, 0.0]).astype(kind)
    bits = one.view(f"i{one.itemsize}")
    moved = (bits + np.array([3, 5, 2, 0]).astype(bits.dtype)).view(kind)
    assert compare.ulps(moved, one.astype(np.float64)) == 5
    zeros = np.array([0.0, -0.0, 0.0, -0.0]).astype(kind)
    assert compare.ulps(zeros, -zeros.astype(np.float64)) == 0
    smallest = np.array([compare.SUBNORMAL[dtype]]).astype(kind)
    assert compare.ulps(-smallest, smallest.astype(np.float64)) == 2
    assert compare.ulps(np.array([np.nan]).astype(kind), np.array([1.0])) == 0


def test_wrong_shape_or_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected float32 \(4,\), got float64"):
        compare.compare(np.zeros(4), np.zeros(4), flat("float32"))
    with pytest.raises(ValueError, match="shorter than"):
        compare.gamma(2**24, 2.0**-24)


# ---- bounds against sums that are computed as they suppose ----------------------------------------------------------

CONVOLUTIONS = (
    "conv2d x=float32:2x24x7x7 w=float32:3x24x3x3 pad=1,1,1,1",
    "conv2d_grad_wrt_inputs x=float32:2x3x7x7 w=float32:24x3x3x3 stride=2,1",
    "conv2d_grad_wrt_weights x=float32:3x2x12x12 w=float32:3x2x3x3 dilation=1,2 alpha=0.3",
)


def products(problem: Any, inputs: tuple[Any, ...]) -> np.ndarray:
    """Every product of every element of a convolution, (products, *result's shape), from the definition."""
    size = problem.output.size
    first, second = (np.asarray(a, np.float64) for a in inputs)
    rows = []
    for i in np.ndindex(first.shape):  # linear in the first operand: one column of the matrix an element
        one = np.zeros(first.shape)
        one[i] = first[i]
        rows.append(getattr(reference, problem.op)(one, second, **_shapes(problem)).reshape(size))
    return np.array(rows)


def _shapes(problem: Any) -> dict[str, Any]:

    return {**problem.keywords, "alpha": 1.0}


@pytest.mark.parametrize("line", CONVOLUTIONS, ids=lambda line: line.split()[0])
def test_ieee_bound_holds_for_a_sum_in_the_worst_order_and_is_of_its_size(line: str) -> None:
    problem = cases.parse(line)
    trial = Trial.of(problem, 1)
    inputs = [np.abs(a.astype(np.float64)).astype(np.float32) for a in trial.inputs]  # no cancelling: errors add up
    trial = Trial(problem, tuple(inputs))
    terms = products(problem, trial.inputs)
    total = np.zeros(terms.shape[1], np.float32)
    for row in np.sort(terms, axis=0)[::-1]:  # the largest first, so that every later sum is rounded
        total = (total + row.astype(np.float32)).astype(np.float32)
    result = (np.float32(problem.alpha) * total).reshape(problem.output.shape)
    found = trial.compare(result, "ieee")
    assert found.ok and found.worst > 1e-3, str(found)


@pytest.mark.parametrize("line", CONVOLUTIONS, ids=lambda line: line.split()[0])
@pytest.mark.parametrize("beyond", ("float16 accumulator", "tf32 inputs"))
def test_less_precise_arithmetic_is_not_taken_for_ieee(line: str, beyond: str) -> None:
    problem = cases.parse(line)
    trial = Trial.of(problem, 1)
    if beyond == "tf32 inputs":
        rounded = tuple(_tf32(a) for a in trial.inputs)
        result = Trial(problem, rounded).value.astype(np.float32)
        assert trial.compare(result, "tf32").ok
    else:
        total = np.zeros(problem.output.size, np.float16)
        for row in products(problem, trial.inputs):
            total = (total + row.astype(np.float16)).astype(np.float16)
        result = (problem.alpha * total.astype(np.float32)).astype(np.float32).reshape(problem.output.shape)
    assert not trial.compare(result, "ieee").ok
    assert not trial.compare(result, "tensor_core").ok


def _tf32(array: np.ndarray) -> np.ndarray:
    """Rounded to 11 significant bits, as a tensor core reads float32."""
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)


def test_bounds_widen_in_the_order_of_the_classes() -> None:
    problem = cases.parse(CONVOLUTIONS[0])
    trial = Trial.of(problem)
    widths = [trial.bounds(a)[0].accumulated for a in ("ieee", "tensor_core", "tf32", "tf32_cut")]
    assert all((a < b).all() for a, b in itertools.pairwise(widths))
    assert (widths[1] < 4 * widths[0]).all()
    with pytest.raises(ValueError, match="arithmetic: expected"):
        trial.bounds("exact")[0]


def test_tensor_core_bound_holds_for_blocks_that_are_cut_off() -> None:
    """Blocks of four products and the sum so far, each aligned to the largest exponent and cut to 24 bits."""
    problem = cases.parse("conv2d x=float16:2x64x4x4 w=float16:3x64x3x3")
    trial = Trial.of(problem, 2)
    terms = products(problem, trial.inputs)
    total = np.zeros(terms.shape[1])
    for i in range(0, len(terms), 4):
        block = np.concatenate([total[None], terms[i : i + 4]])
        step = 2.0 ** (np.floor(np.log2(np.abs(block).max(axis=0) + 1e-300)) - 23)
        total = (np.trunc(block / step) * step).sum(axis=0)
        step = 2.0 ** (np.floor(np.log2(np.abs(total) + 1e-300)) - 23)
        total = np.trunc(total / step) * step
    error = np.abs(total.reshape(problem.output.shape) - trial.value)
    assert (error <= trial.bounds("tensor_core")[0].accumulated).all()


@pytest.mark.parametrize("line", CONVOLUTIONS, ids=lambda line: line.split()[0])
@pytest.mark.parametrize("arithmetic", ("fft", "winograd"))
def test_transform_bounds_take_float32_and_refuse_what_is_beyond(line: str, arithmetic: str) -> None:
    problem = cases.parse(line)
    trial = Trial.of(problem, 1)
    assert trial.compare(trial.value.astype(np.float32), arithmetic).ok
    limit = trial.bounds(arithmetic)[0].total(trial.value)
    for times, ok in ((0.9, True), (1.1, False)):
        moved = trial.value.copy()
        moved[0, 1, 2, 1] += times * limit[0, 1, 2, 1]
        assert trial.compare(moved.astype(np.float32), arithmetic).ok == ok
    shape = trial.bounds(arithmetic)[0].accumulated.shape
    assert shape == problem.output.shape


def test_fft_bound_holds_for_a_convolution_by_fft_in_float32() -> None:
    problem = cases.parse("conv2d x=float32:2x8x14x14 w=float32:3x8x3x3")
    trial = Trial.of(problem, 3)
    scipy_fft = pytest.importorskip("scipy.fft")
    x, w = trial.inputs
    fx, fw = (scipy_fft.rfft2(a, (16, 16)) for a in (x, w))
    assert fx.dtype == np.complex64
    y = scipy_fft.irfft2(np.einsum("ncpq,kcpq->nkpq", fx, fw), (16, 16))[..., 2:14, 2:14]
    found = trial.compare(np.ascontiguousarray(y.astype(np.float32)), "fft")
    assert found.ok and found.worst > 1e-5, str(found)


SOFTMAX = [
    case
    for op in ("softmax", "softmax_grad")
    for case in cases.find([op], "contract")
    if case.name.split("/")[1] in ("classes", "images", "odd")
]


@pytest.mark.parametrize("case", SOFTMAX, ids=lambda c: c.name)
def test_softmax_bound_holds_for_the_plain_formula_and_for_no_much_worse_one(case: cases.Case) -> None:
    problem = case.problem()
    trial = Trial.of(problem)
    working = np.float64 if problem.output.dtype == "float64" else np.float32
    result = _softmax(problem, [a.astype(working) for a in trial.inputs]).astype(DTYPES[problem.output.dtype])
    assert trial.compare(result, "ieee").ok
    if problem.output.dtype == "float32":  # one step of 16-bit arithmetic on the way
        coarse = _softmax(problem, [a.astype(np.float16).astype(np.float32) for a in trial.inputs])
        assert not trial.compare(coarse, "ieee").ok


def _softmax(problem: Any, arrays: list[np.ndarray]) -> np.ndarray:
    axes = (1,) if problem.mode == "channel" else tuple(range(1, arrays[0].ndim))
    if problem.op == "softmax":
        shifted = arrays[0] - arrays[0].max(axis=axes, keepdims=True)
        total = np.exp(shifted).sum(axis=axes, keepdims=True)
        return shifted - np.log(total) if problem.algo == "log" else np.exp(shifted) / total
    dy, sm = arrays
    if problem.algo == "log":
        return dy - np.exp(sm) * dy.sum(axis=axes, keepdims=True)
    return sm * (dy - (dy * sm).sum(axis=axes, keepdims=True))


def test_softmax_has_no_other_arithmetic() -> None:
    trial = Trial.of(cases.parse("softmax x=float32:2x5"))
    with pytest.raises(ValueError, match="expected ieee"):
        trial.bounds("tf32")[0]


# ---- determinism -----------------------------------------------------------------------------------------------------


def test_fingerprint_is_of_values_in_c_order() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert determinism.fingerprint(a) == hashlib.sha256(a.tobytes()).hexdigest()
    assert determinism.fingerprint(np.asfortranarray(a)) == determinism.fingerprint(a)
    assert determinism.fingerprint(a[:, ::-1]) != determinism.fingerprint(a)
    b = a.astype(ml_dtypes.bfloat16)
    assert determinism.fingerprint(b) == hashlib.sha256(b.tobytes()).hexdigest()


def test_one_bit_of_difference_is_seen() -> None:
    results = iter([0.0, 0.0, -0.0])
    assert not determinism.repeatable(lambda: np.array([next(results)], np.float32))
    assert determinism.repeatable(lambda: np.array([np.nan, 1.0]), 4)
