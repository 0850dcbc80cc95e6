"""The softmax oracle by law: hand values, SciPy, finite differences, infinities; its error bounds against float32."""

import ml_dtypes
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from numbadnn.reference import softmax, softmax_bound, softmax_grad, softmax_grad_bound

AXES = {"channel": 1, "instance": None}
SHAPES = [(3, 5), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 3), (1, 1), (4, 1, 3)]
ALGOS = ["fast", "accurate", "log"]
MODES = ["channel", "instance"]


def random(*shape, seed=0, scale=3.0):
    return scale * np.random.default_rng((seed, *shape)).standard_normal(shape)


def close(result, expected):
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-14)


def rows(x, mode):
    """x as (rows, length): what is normalised together."""
    return np.moveaxis(x, 1, -1).reshape(-1, x.shape[1]) if mode == "channel" else x.reshape(len(x), -1)


def test_hand_values():
    x = np.log([[1.0, 2.0, 5.0]])
    close(softmax(x), [[0.125, 0.25, 0.625]])
    close(softmax(x, "log"), np.log([[0.125, 0.25, 0.625]]))
    cube = np.log(np.array([[[1.0, 2.0], [3.0, 2.0]]]))
    close(softmax(cube, mode="channel"), [[[0.25, 0.5], [0.75, 0.5]]])
    close(softmax(cube, mode="instance"), [[[0.125, 0.25], [0.375, 0.25]]])
    # sum(dy * sm) = 1/4 + 1/2 = 3/4
    close(softmax_grad([[1.0, 1.0, 0.0]], [[0.25, 0.5, 0.25]]), [[0.0625, 0.125, -0.1875]])
    close(softmax_grad([[1.0, 1.0, 0.0]], np.log([[0.25, 0.5, 0.25]]), "log"), [[0.5, 0.0, -0.5]])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("mode", MODES)
def test_equals_scipy(shape, algo, mode):
    x = random(*shape)
    function = scipy.special.log_softmax if algo == "log" else scipy.special.softmax
    axis = 1 if mode == "channel" else tuple(range(1, len(shape)))
    close(softmax(x, algo, mode), function(x, axis=axis))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("mode", MODES)
def test_gradient_by_differences(shape, algo, mode):
    """d<softmax(x), dy>/dx by central differences of step 1e-5: off by 1e-10 times the third derivative."""
    x, dy = random(*shape, scale=1.0), random(*shape, seed=1, scale=1.0)
    grad = softmax_grad(dy, softmax(x, algo, mode), algo, mode)
    step = 1e-5
    for index in np.ndindex(shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        slope = np.vdot(softmax(up, algo, mode) - softmax(down, algo, mode), dy) / (2 * step)
        assert abs(slope - grad[index]) < 1e-8


@settings(max_examples=100, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple),
    mode=st.sampled_from(MODES),
    shift=st.floats(-1000, 1000),
    seed=st.integers(0, 99),
)
def test_laws(shape, mode, shift, seed):
    x, dy = random(*shape, seed=seed, scale=10), random(*shape, seed=seed + 1)
    y = softmax(x, mode=mode)
    np.testing.assert_allclose(rows(y, mode).sum(1), 1.0, rtol=1e-13)
    close(softmax(x, "fast", mode), y)
    np.testing.assert_allclose(np.exp(softmax(x, "log", mode)), y, rtol=1e-12)
    np.testing.assert_allclose(softmax(x + shift, mode=mode), y, rtol=1e-9)
    # a shift of a row changes nothing, so the gradient of a row sums to 0; and it is linear in dy
    grad = softmax_grad(dy, y, mode=mode)
    np.testing.assert_allclose(rows(grad, mode).sum(1), 0.0, atol=1e-13)
    np.testing.assert_allclose(softmax_grad(2 * dy + 1, y, mode=mode), 2 * grad, atol=1e-12)
    # dsm = exp(log sm): the chain rule joins the two gradients
    np.testing.assert_allclose(softmax_grad(dy * y, np.log(y), "log", mode), grad, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("algo", ALGOS)
def test_large_values_do_not_overflow(algo):
    x = np.array([[1e300, 1e300, -1e300], [-1e300, 0.0, -1e300]])
    expected = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    y = softmax(x, algo)
    close(np.exp(y) if algo == "log" else y, expected)


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinity_stay_in_their_row(algo, mode):
    x = random(5, 4)
    x[1, 2], x[2, 0], x[3] = np.nan, np.inf, -np.inf
    y = softmax(x, algo, mode)
    assert np.isnan(y[1:4]).all()
    close(y[[0, 4]], softmax(x[[0, 4]], algo, mode))
    x = np.array([[0.0, -np.inf, 0.0]])
    close(softmax(x, algo), [[np.log(0.5), -np.inf, np.log(0.5)]] if algo == "log" else [[0.5, 0.0, 0.5]])
    close(
        softmax_grad([[1.0, 5.0, 0.0]], softmax(x, algo), algo), [[-2, 5, -3]] if algo == "log" else [[0.25, 0, -0.25]]
    )


@pytest.mark.parametrize("shape", [(2, 0, 4, 5), (0, 3), (0, 0), (2, 3, 0)])
@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("mode", MODES)
def test_zero_sizes(shape, algo, mode):
    empty = np.ones(shape, np.float32)
    for result in (softmax(empty, algo, mode), softmax_grad(empty, empty, algo, mode)):
        assert (result.shape, result.dtype) == (shape, np.float64)
    assert softmax_bound(empty, algo, mode, 2**-24, 2**-24).shape == shape
    assert softmax_grad_bound(empty, empty, algo, mode, 2**-24, 2**-24).shape == shape


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, np.int64])
def test_any_real_type_gives_float64(dtype):
    x = random(3, 4).astype(dtype)
    close(softmax(x), scipy.special.softmax(x.astype(np.float64), axis=1))
    assert softmax_grad(x, x).dtype == np.float64


def test_inputs_are_left_alone():
    x = random(3, 4)
    kept = x.copy()
    softmax_grad(x, softmax(x))
    softmax_bound(x, "fast", "channel", 2**-24, 2**-24)
    np.testing.assert_array_equal(x, kept)
    assert not np.shares_memory(softmax(np.zeros((0, 3))), x)


def test_malformed_arguments():
    x = random(2, 3)
    with pytest.raises(ValueError, match="algo: expected one of fast, accurate, log, got 'slow'"):
        softmax(x, "slow")
    with pytest.raises(ValueError, match="mode: expected channel or instance, got 'row'"):
        softmax(x, mode="row")
    with pytest.raises(ValueError, match="algo: expected"):
        softmax_grad(x, x, "slow")
    with pytest.raises(ValueError, match=r"x: expected at least 2 axes, got shape \(3,\)"):
        softmax(x[0])
    with pytest.raises(ValueError, match=r"dy: expected the shape of sm, \(2, 3\), got \(2, 2\)"):
        softmax_grad(x[:, :2], x)
    with pytest.raises(TypeError, match="x: expected real numbers, got dtype complex128"):
        softmax(x + 1j)


# ---- bounds ----------------------------------------------------------------------------------------------------------


def float32_softmax(x, algo, mode):
    """The same formula with every step rounded to float32, one element added after the other: the worst order."""
    out = np.empty_like(rows(x, mode))
    for y, row in zip(out, rows(x, mode), strict=True):
        shifted = row if algo == "fast" else row - row.max()
        total = np.add.accumulate(np.exp(shifted))[-1]
        y[:] = shifted - np.log(total) if algo == "log" else np.exp(shifted) / total
    assert out.dtype == np.float32
    return out


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(4, 7), (3, 1000), (2, 5, 3, 4)])
@pytest.mark.parametrize("scale", [0.1, 3.0, 15.0])
def test_float32_keeps_the_bound_and_a_wrong_value_does_not(algo, mode, shape, scale):
    x = random(*shape, scale=scale).astype(np.float32)
    exact, unit = softmax(x, algo, mode), 2.0**-24
    bound = softmax_bound(x, algo, mode, unit, unit, np.finfo(np.float32).tiny)
    error = np.abs(float32_softmax(x, algo, mode) - rows(exact, mode))
    assert (error <= rows(bound, mode)).all()
    # tight: half a percent of any cell that does not underflow is seen
    floor = 0.1 if algo == "log" else 2000 * np.finfo(np.float32).tiny
    assert (bound <= 0.005 * np.maximum(np.abs(exact), floor)).all()


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(4, 7), (3, 1000), (2, 5, 3, 4)])
def test_float32_gradient_keeps_the_bound(algo, mode, shape):
    dy, sm = random(*shape, seed=1).astype(np.float32), softmax(random(*shape), algo, mode).astype(np.float32)
    unit = 2.0**-24
    exact, bound = softmax_grad(dy, sm, algo, mode), softmax_grad_bound(dy, sm, algo, mode, unit, unit)
    g, y = rows(dy, mode), rows(sm, mode)
    terms = g if algo == "log" else g * y
    total = np.add.accumulate(terms, axis=1)[:, -1:]
    result = g - np.exp(y) * total if algo == "log" else y * (g - total)
    assert result.dtype == np.float32
    assert (np.abs(result - rows(exact, mode)) <= rows(bound, mode)).all()
    assert bound.max() < 5e-3 * np.abs(exact).max()


def test_bound_grows_with_the_output_type_and_refuses_long_rows():
    x = random(2, 64)
    fine = softmax_bound(x, "accurate", "channel", 2**-24, 2**-24)
    coarse = softmax_bound(x, "accurate", "channel", 2**-24, 2**-11)
    np.testing.assert_allclose(coarse - fine, (2**-11 - 2**-24) * softmax(x), rtol=1e-6)
    with pytest.raises(ValueError, match="unit: expected"):
        softmax_bound(x, "accurate", "channel", 2**-4, 2**-11)
