"""softmax and softmax_grad on the CPU against the definition in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import numbadnn
from numbadnn import reference
from numbadnn.cpu.softmax import softmax
from numbadnn.problem import Policy, Spec, normalised_strides
from numbadnn.problems.softmax import SoftmaxProblem
from numbadnn.registry import implementations

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
#: unit roundoff of what each type is computed in
INSIDE = {"float16": 2.0**-24, "bfloat16": 2.0**-24, "float32": 2.0**-24, "float64": 2.0**-53}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}


def spec(dtype, array):
    strides = tuple(s // array.itemsize for s in array.strides)
    return Spec(dtype, array.shape, normalised_strides(array.shape, strides))


def forward(dtype, x, y, algo="accurate", mode="channel"):
    problem = SoftmaxProblem("softmax", y=spec(dtype, y), x=spec(dtype, x), algo=algo, mode=mode)
    executable = softmax.plan(problem, Policy(), None)
    executable.run((x,), (y,), None, None)
    return executable.facts["kernel"]


def gradient(dtype, dy, y, dx, algo="accurate", mode="channel"):
    problem = SoftmaxProblem(
        "softmax_grad", y=spec(dtype, y), dy=spec(dtype, dy), dx=spec(dtype, dx), algo=algo, mode=mode
    )
    softmax.plan(problem, Policy(), None).run((dy, y), (dx,), None, None)


def summed(array, mode):
    return (1,) if mode == "channel" else tuple(range(1, array.ndim))


def defined(x, algo, mode):
    """Value, and how far x lies below the maximum (what an error in the exponent is multiplied by).

    Computed in long double where the machine has one: else it would be NumPy's own sum that is measured.
    """
    x = np.ascontiguousarray(x.astype(np.longdouble))
    axes = summed(x, mode)
    below = x - x.max(axes, keepdims=True)
    total = np.exp(below).sum(axes, keepdims=True)
    return (below - np.log(total) if algo == "log" else np.exp(below) / total), np.abs(below)


def defined_gradient(dy, y, algo, mode):
    """Value, and the sum of the magnitudes that enter it."""
    dy, y = (np.ascontiguousarray(a.astype(np.longdouble)) for a in (dy, y))
    axes = summed(y, mode)
    if algo == "log":
        return dy - np.exp(y) * dy.sum(axes, keepdims=True), abs(dy) + np.exp(y) * abs(dy).sum(axes, keepdims=True)
    return y * (dy - (dy * y).sum(axes, keepdims=True)), abs(y) * (abs(dy) + abs(dy * y).sum(axes, keepdims=True))


def laid_out(array, layout):
    if layout == "channels last":
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)
    if layout == "reversed":
        every = (slice(None, None, -1),) * array.ndim
        return np.ascontiguousarray(array[every])[every]
    if layout == "transposed":
        return np.ascontiguousarray(array.T).T
    if layout == "every second":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    return array


def assert_close(got, expected, size, dtype):
    """One rounding to the output's type, and units of the type computed in, ``size`` of them."""
    bound = 1.01 * UNIT[dtype] * np.abs(expected) * (dtype != "float64") + INSIDE[dtype] * size + SMALLEST[dtype]
    worst = np.max(np.abs(got.astype(float) - expected) / bound)
    assert worst <= 1, f"{worst:.2f} times the bound"  # NaN fails too


SHAPES = [(3, 5), (4, 3000), (1, 1), (2, 7, 5, 6), (2, 40, 20, 20), (3, 4, 5, 2, 3), (2, 9, 1, 3)]


@pytest.mark.parametrize("layout", ["", "channels last", "reversed", "transposed", "every second"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_against_the_definition(dtype, layout):
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        x = laid_out((4 * rng.standard_normal(shape)).astype(DTYPES[dtype]), layout)
        dy = laid_out(rng.standard_normal(shape).astype(DTYPES[dtype]), "" if layout == "reversed" else layout)
        for mode in ("channel", "instance"):
            for algo in ("fast", "accurate", "log"):
                out = laid_out(np.empty(shape, DTYPES[dtype]), layout)
                out[...] = np.nan
                before = x.copy()
                forward(dtype, x, out, algo, mode)
                np.testing.assert_array_equal(x, before)
                expected, below = defined(x.astype(float), algo, mode)
                assert_close(out, expected, abs(expected) * (30 + below) + (below + 10 if algo == "log" else 0), dtype)
                y = out.copy(order="K")
                out[...] = np.nan
                gradient(dtype, dy, y, out, algo, mode)
                expected, size = defined_gradient(dy.astype(float), y.astype(float), algo, mode)
                assert_close(out, expected, 70 * size, dtype)


def test_long_rows_stay_accurate():
    rng = np.random.default_rng(1)
    for shape, mode in (((1, 300_000), "channel"), ((1, 100_000, 8), "channel"), ((2, 3, 200, 300), "instance")):
        x = rng.standard_normal(shape)
        for dtype in ("float32", "float64"):
            a = x.astype(dtype)
            out = np.full(shape, np.nan, dtype)
            forward(dtype, a, out, "accurate", mode)
            axes = summed(a, mode)
            # the sums of the definition in longer arithmetic, else it is the definition that is tested
            e = np.exp(a.astype(np.longdouble) - a.max(axes, keepdims=True))
            expected = (e / e.sum(axes, keepdims=True)).astype(float)
            assert_close(out, expected, expected * 60, dtype)


def test_nan_and_infinities():
    nan, inf = np.nan, np.inf
    rows = np.array([[1, nan, 2], [1, inf, 2], [1, -inf, 1], [-inf, -inf, -inf], [1000, 0, -1000]], np.float32)
    expected = np.array([[nan] * 3, [nan] * 3, [0.5, 0, 0.5], [nan] * 3, [1, 0, 0]], np.float32)
    for shape, turn in (((5, 3), False), ((1, 3, 5), True)):
        x = np.ascontiguousarray(rows.T)[None] if turn else rows
        for algo in ("fast", "accurate"):
            out = np.zeros(shape, np.float32)
            forward("float32", x, out, algo)
            np.testing.assert_array_equal(out[0].T if turn else out, expected)
    out = np.zeros((5, 3), np.float32)
    forward("float32", rows, out, "log")
    assert np.isnan(out[[0, 1, 3]]).all()
    np.testing.assert_array_equal(out[4], np.array([0, -1000, -2000], np.float32))
    wide = np.tile(rows[:, :, None], (1, 1, 20))  # the loop over columns
    out = np.zeros(wide.shape, np.float32)
    assert forward("float32", wide, out) == "columns"
    np.testing.assert_array_equal(out, np.tile(expected[:, :, None], (1, 1, 20)))


def test_registered():
    x = Spec.of("float32", (2, 3))
    for op, problem in (
        ("softmax", SoftmaxProblem("softmax", y=x, x=x)),
        ("softmax_grad", SoftmaxProblem("softmax_grad", y=x, dy=x, dx=x)),
    ):
        (impl,) = (i for i in implementations(op) if i.backend == "cpu")
        assert impl.supports(problem, Policy()) == ""


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("algo", ["accurate", "log"])
def test_one_infinite_gradient_whatever_the_strides(dtype, algo):
    sm = numbadnn.softmax(np.zeros((1, 2, 3, 4), dtype), algo, "instance")
    dy = np.ones((1, 2, 3, 4), dtype)
    dy[0, 1, 2, 3] = np.inf
    with np.errstate(invalid="ignore"):
        want = reference.softmax_grad(dy, sm, algo, "instance")
    for axes in ((0, 1, 2, 3), (0, 1, 3, 2), (0, 3, 2, 1), (0, 2, 3, 1)):
        other = np.ascontiguousarray(dy.transpose(axes)).transpose(np.argsort(axes))
        got = numbadnn.softmax_grad(other, sm, algo, "instance")
        np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_image_alone_has_the_bits_that_it_has_among_others(dtype):
    """Whether rows or columns are added follows from one image; where it does not, the plan says so."""
    random, levels = np.random.default_rng(0), set()
    for _ in range(60):
        shape = (9, *random.integers(1, 10, random.integers(1, 4)))
        layout = str(random.choice(["", "channels last", "transposed", "every second"]))
        x = laid_out(random.standard_normal(shape).astype(dtype), layout)
        how = {"algo": str(random.choice(["accurate", "log"])), "mode": str(random.choice(["channel", "instance"]))}
        with numbadnn.using(determinism="batch_invariant"):
            y, alone = numbadnn.softmax(x, **how), numbadnn.softmax(x[4:5], **how)
            np.testing.assert_array_equal(y[4:5], alone)
            dx, alone = numbadnn.softmax_grad(x, y, **how), numbadnn.softmax_grad(x[4:5], y[4:5], **how)
            np.testing.assert_array_equal(dx[4:5], alone)
        free = numbadnn.softmax(x, **how)
        levels.add(numbadnn.last_call().determinism)
        if numbadnn.last_call().determinism == "gpu_to_gpu":
            np.testing.assert_array_equal(free, y)
    assert levels == {"run_to_run", "gpu_to_gpu"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_image_of_a_cut_batch_has_the_bits_that_it_has_alone(dtype):
    """The result of a batch that is not packed is in C order, that of one of its images is channels last as the image is."""
    import ml_dtypes

    rng = np.random.default_rng(0)
    for n in range(8):
        shape = 5, int(rng.integers(2, 14)), 1 if n > 5 else int(rng.integers(2, 14)), int(rng.integers(2, 14))
        x = rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype)).transpose(0, 3, 1, 2)
        with numbadnn.using(determinism="batch_invariant"):
            for cut in (x[::-1], x[::2], x[:, :, 1:]):
                how = {"mode": ("instance", "channel")[n % 2]}
                y = numbadnn.softmax(cut, **how)
                np.testing.assert_array_equal(y[1:2], numbadnn.softmax(cut[1:2], **how))
                dx, alone = (numbadnn.softmax_grad(cut[s], y[s], **how) for s in (slice(None), slice(1, 2)))
                np.testing.assert_array_equal(dx[1:2], alone)
