"""Batch normalization: the reference by law, Theano's grid, a large mean, running averages, and what is refused."""

import functools
import math

import numpy as np
import pytest

import numbadnn
from numbadnn import config, dispatch, reference, theano
from numbadnn.call import select
from numbadnn.cases import parse
from numbadnn.problem import Policy
from numbadnn.problems.norm import OPERANDS, NormProblem
from numbadnn.registry import implementations

GPU = pytest.param(0, id="gpu", marks=pytest.mark.gpu)
DEVICES = (pytest.param(-1, id="cpu"), GPU)


def example(shape, mode, seed=0):
    """x, dy, gamma, beta as float64."""
    rng = np.random.default_rng(seed)
    axes = (0,) if mode == "per-activation" else (0, *range(2, len(shape)))
    small = tuple(1 if a in axes else n for a, n in enumerate(shape))
    return (
        4 + 3 * rng.standard_normal(shape),
        rng.standard_normal(shape),
        rng.uniform(0.5, 2, small),
        rng.standard_normal(small),
    )


# ---- the reference ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["spatial", "per-activation"])
def test_reference_normalises(mode):
    x, _, gamma, beta = example((6, 3, 4, 2), mode)
    out, mean, invstd = reference.batch_normalization_train(x, gamma, beta, mode=mode, epsilon=0)
    back = (out - beta) / gamma
    axes = (0,) if mode == "per-activation" else (0, 2, 3)
    np.testing.assert_allclose(back.mean(axes), 0, atol=1e-12)
    np.testing.assert_allclose(back.var(axes), 1, rtol=1e-12)
    np.testing.assert_allclose(1 / invstd**2, x.var(axes, keepdims=True), rtol=1e-12)
    again = reference.batch_normalization_test(x, gamma, beta, mean, x.var(axes, keepdims=True), mode, 0)
    np.testing.assert_allclose(again, out, atol=1e-12)


def test_reference_against_hand_values():
    x = np.array([[1.0, 10.0], [3.0, 14.0]])
    one, rm, rv = np.ones((1, 2)), np.array([[1.0, 1.0]]), np.array([[2.0, 2.0]])
    out, mean, invstd, new_mean, new_var = reference.batch_normalization_train(
        x, 2 * one, one, epsilon=0, running_average_factor=0.25, running_mean=rm, running_var=rv
    )
    np.testing.assert_array_equal(out, [[-1, -1], [3, 3]])
    np.testing.assert_array_equal(mean, [[2, 12]])
    np.testing.assert_array_equal(invstd, [[1, 0.5]])
    np.testing.assert_array_equal(new_mean, [[1.25, 3.75]])
    np.testing.assert_array_equal(new_var, [[2.0, 3.5]])  # variances 1 and 4, times 2 / (2 - 1)


def slope(function, array, direction, step=1e-6):
    """Derivative of sum(function(array)) along a direction, by differences."""
    return (function(array + step * direction) - function(array - step * direction)) / (2 * step)


@pytest.mark.parametrize("mode", ["spatial", "per-activation"])
def test_reference_gradient_of_training_by_differences(mode):
    x, dy, gamma, beta = example((5, 3, 2, 2), mode)
    _, mean, invstd = reference.batch_normalization_train(x, gamma, beta, mode=mode)
    grads = reference.batch_normalization_train_grad(x, dy, gamma, mean, invstd, mode)
    operands = [x, gamma, beta]
    for i, grad in enumerate(grads):
        direction = np.random.default_rng(10 + i).standard_normal(operands[i].shape)

        def loss(value, i=i):
            given = [*operands[:i], value, *operands[i + 1 :]]
            return (reference.batch_normalization_train(*given, mode=mode)[0] * dy).sum()

        assert slope(loss, operands[i], direction) == pytest.approx((grad * direction).sum(), rel=1e-6)


@pytest.mark.parametrize("mode", ["spatial", "per-activation"])
def test_reference_gradients_of_inference_by_differences(mode):
    x, dy, gamma, beta = example((5, 3, 2, 2), mode)
    mean, var = gamma + 3, gamma * gamma + 1
    dx, dgamma, dbeta, dmean, dvar = reference.batch_normalization_test_grad(x, dy, gamma, mean, var, mode)
    operands = [x, gamma, beta, mean, var]
    for i, grad in enumerate((dx, dgamma, dbeta, dmean, dvar)):
        direction = np.random.default_rng(10 + i).standard_normal(operands[i].shape)

        def loss(value, i=i):
            given = [*operands[:i], value, *operands[i + 1 :]]
            return (reference.batch_normalization_test(*given, mode) * dy).sum()

        assert slope(loss, operands[i], direction) == pytest.approx((grad * direction).sum(), rel=1e-6)


# ---- Theano's grid: 2 modes x ranks 1 to 6 x 3 shapes, all five arrays of both passes ---------------------------------

SIZES = ((5, 10, 30, 40, 10, 5), (4, 3, 1, 1, 1, 1), (2, 3, 5, 5, 1, 2))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("rank", range(1, 7))
@pytest.mark.parametrize("mode", ["spatial", "per-activation"])
def test_theanos_grid(mode, rank, sizes):
    sizes = tuple(min(n, 6) for n in sizes) if rank > 3 else sizes
    x, dy, gamma, beta = (a.astype("float32") for a in example(sizes[:rank], mode))
    rm, rv = gamma + 1, gamma + 2
    options = {"mode": mode, "epsilon": 5e-3}
    averages = {"running_mean": rm, "running_var": rv, "running_average_factor": 0.3}
    found = numbadnn.batch_normalization_train(x, gamma, beta, **options, **averages)
    exact = reference.batch_normalization_train(x, gamma, beta, **options, **averages)
    tested = numbadnn.batch_normalization_test(x, gamma, beta, rm, rv, **options)
    arrays = (x, dy, gamma, found[1], found[2])
    grads = numbadnn.batch_normalization_train_grad(*arrays, **options)
    given = numbadnn.batch_normalization_test_grad(x, dy, gamma, rm, rv, **options)
    pairs = [
        *zip(found, exact, strict=True),
        (tested, reference.batch_normalization_test(x, gamma, beta, rm, rv, **options)),
        *zip(grads, reference.batch_normalization_train_grad(*arrays, **options), strict=True),
        *zip(given, reference.batch_normalization_test_grad(x, dy, gamma, rm, rv, **options), strict=True),
    ]
    assert len(pairs) == 14
    for got, value in pairs:
        assert got.dtype == np.float32 and got.shape == value.shape
        np.testing.assert_allclose(got, value, rtol=2e-5, atol=2e-5 * max(1, np.abs(value).max()))


# ---- every implementation ---------------------------------------------------------------------------------------------


def implementations_of(problem, device):
    policy = Policy(device=device)
    for impl in implementations(problem.op):
        if (impl.backend == "cpu") == (device < 0) and not select.refusal(impl, problem, policy, config.current()):
            yield impl


@functools.cache
def large_mean(layout):
    problem = NormProblem.parse(f"{'batch_normalization_train'} x=float32:8x8x16x16{layout} mode=spatial")
    x = (np.random.default_rng(3).standard_normal((8, 8, 16, 16)) + 1e4).astype("float32")
    return problem, x


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["", ":nhwc"])
def test_a_large_mean_loses_nothing(layout, device):
    """Mean 1e4, deviation 1: the project's own implementations are as exact as around 0 (cuDNN rounds the mean first)."""
    from numbadnn.validate.execute import execute

    problem, x = large_mean(layout)
    one = np.ones((1, 8, 1, 1), "float32")
    out, mean, invstd = reference.batch_normalization_train(x, one, 0 * one, mode="spatial")
    names = []
    for impl in implementations_of(problem, device):
        if impl.backend == "cudnn":
            continue
        got = execute(impl, problem, Policy(device=device), (x, one, 0 * one), runs=1).results
        np.testing.assert_allclose(got[0], out, rtol=0, atol=2e-6)
        np.testing.assert_allclose(got[1], mean, rtol=1e-7)
        np.testing.assert_allclose(got[2], invstd, rtol=1e-6)
        names.append(impl.name)
    assert names


def test_a_constant_channel():
    x, one = np.full((4, 2), 0.1, "float32"), np.ones((1, 2), "float32")
    out, mean, invstd = numbadnn.batch_normalization_train(x, one, 3 * one, epsilon=1e-4)
    np.testing.assert_array_equal(out, 3)
    np.testing.assert_allclose(invstd, 100, rtol=1e-6)
    np.testing.assert_array_equal(mean, np.float32(0.1))


def test_dtypes_and_layouts_of_results():
    x = np.zeros((2, 4, 3, 3), "float16").transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    one = np.ones((1, 4, 1, 1), "float32")
    out, mean, invstd = numbadnn.batch_normalization_train(x, one, one, "spatial")
    assert (out.dtype, mean.dtype, invstd.dtype) == (np.float16, np.float32, np.float32)
    assert out.strides == x.strides
    dx, dgamma, dbeta = numbadnn.batch_normalization_train_grad(x, x, one, mean, invstd, "spatial")
    assert (dx.dtype, dgamma.dtype, dbeta.dtype) == (np.float16, np.float32, np.float32)


def test_out_is_a_tuple():
    x, one = np.arange(6.0).reshape(3, 2), np.ones((1, 2))
    out = np.empty((3, 2)), np.empty((1, 2)), np.empty((1, 2))
    result = numbadnn.batch_normalization_train(x, one, one, out=out)
    assert all(a is b for a, b in zip(result, out, strict=True))
    with pytest.raises(ValueError, match="out: expected 3 arrays"):
        numbadnn.batch_normalization_train(x, one, one, out=out[0])


def test_empty_batches():
    x, one = np.zeros((0, 3, 2)), np.ones((1, 3, 1))
    out, mean, invstd = numbadnn.batch_normalization_train(x, one, one, "spatial")
    assert out.shape == x.shape and np.isnan(mean).all() and np.isnan(invstd).all()
    assert numbadnn.batch_normalization_test(x, one, one, one, one, "spatial").shape == x.shape
    dx, dgamma, dbeta = numbadnn.batch_normalization_train_grad(x, x, one, one, one, "spatial")
    assert dx.shape == x.shape and not dgamma.any() and not dbeta.any()
    assert not any(g.any() for g in numbadnn.batch_normalization_test_grad(x, x, one, one, one, "spatial")[1:])


# ---- what is refused --------------------------------------------------------------------------------------------------

X, ONE = np.ones((4, 3, 2, 2)), np.ones((1, 3, 1, 1))


@pytest.mark.parametrize(
    ("error", "text", "change"),
    [
        (ValueError, "mode: expected one of per-activation, spatial, got 'channel'", {"mode": "channel"}),
        (ValueError, "epsilon: expected a finite number >= 0, got -1", {"epsilon": -1.0}),
        (ValueError, "epsilon", {"epsilon": float("nan")}),
        (TypeError, "epsilon: expected a number", {"epsilon": "1e-4"}),
        (ValueError, "running_average_factor: expected a number from 0 to 1", {"running_average_factor": 1.5}),
        (ValueError, "running_var: expected both running averages or neither", {"running_mean": ONE}),
        (ValueError, "running_mean: expected both", {"running_var": ONE}),
        (ValueError, r"gamma: expected shape \(1, 3, 1, 1\)", {"gamma": np.ones(3)}),
        (ValueError, r"beta: expected shape \(1, 3, 1, 1\)", {"beta": np.ones((1, 3, 2, 2))}),
        (ValueError, r"running_mean: expected shape", {"running_mean": np.ones((1, 2, 1, 1)), "running_var": ONE}),
        (TypeError, "gamma: ", {"gamma": ONE.astype(int)}),
        (ValueError, "at least 1 dimension", {"inputs": np.ones(())}),
    ],
)
def test_bad_input(error, text, change):
    arguments = {"inputs": X, "gamma": ONE, "beta": ONE, "mode": "spatial"} | change
    with pytest.raises(error, match=text):
        numbadnn.batch_normalization_train(**arguments)


def test_running_averages_of_one_value_are_refused():
    x, one = np.ones((1, 3)), np.ones((1, 3))
    with pytest.raises(ValueError, match="at least 2 values to average"):
        numbadnn.batch_normalization_train(x, one, one, running_mean=one, running_var=one)
    assert len(numbadnn.batch_normalization_train(x, one, one)) == 3


def test_running_averages_and_destinations_are_not_taken_for_one_another():
    x, one = np.ones((4, 3), np.float32), np.ones((1, 3), np.float32)
    numbadnn.batch_normalization_train(x, one, one, running_mean=one, running_var=one)
    targets = (one + 6, one + 6)  # as many arrays, with the shapes of the call that is remembered
    with pytest.raises(ValueError, match=r"out: expected 3 arrays \(y, mean, invstd\), got 2"):
        numbadnn.batch_normalization_train(x, one, one, out=targets)
    assert (targets[0] == 7).all() and (targets[1] == 7).all()


def test_gradients_check_their_arrays():
    with pytest.raises(ValueError, match=r"dy: expected shape \(4, 3, 2, 2\)"):
        numbadnn.batch_normalization_train_grad(X, X[:2], ONE, ONE, ONE, "spatial")
    with pytest.raises(ValueError, match="var: expected shape"):
        numbadnn.batch_normalization_test_grad(X, X, ONE, ONE, X, "spatial")


@pytest.mark.parametrize("op", OPERANDS)
def test_a_problem_is_one_line(op):
    text = f"{op} x=float16:2x6x3x3:nhwc gamma=float32:1x6x1x1 mode=spatial epsilon=0.0"
    problem = NormProblem.parse(text)
    assert NormProblem.parse(str(problem)) == problem
    with pytest.raises(ValueError, match="expected"):
        NormProblem.parse(f"{op} x=float32:2x3 colour=red")
    with pytest.raises(ValueError, match="gamma: expected shape"):
        NormProblem.parse(f"{op} x=float32:2x3 gamma=float32:2x3") if op else None


def test_explain_names_the_implementation():
    found = dispatch.explain(numbadnn.batch_normalization_train, X, ONE, ONE, "spatial")
    assert found.chosen == "cpu.loops"


# ---- the specification's names ----------------------------------------------------------------------------------------


def test_theanos_names():
    with numbadnn.using(fallback="allow"):
        out, mean, invstd = theano.dnn_batch_normalization_train(X, ONE, ONE, "spatial")
        np.testing.assert_array_equal(out, 1)
        with pytest.raises(ValueError, match="epsilon must be at least 1e-5"):
            theano.dnn_batch_normalization_train(X, ONE, ONE, "spatial", 9e-6)
        with pytest.raises(TypeError, match="epsilon: expected a number, got None"):
            theano.GpuDnnBatchNormInference("spatial", epsilon=None)(X, ONE, ONE, ONE, ONE)
        theano.dnn_batch_normalization_test(X, ONE, ONE, ONE, ONE, "spatial", 1e-5)
        x, rm, rv = X * 1.0, 5 * ONE, 6 * ONE
        op = theano.GpuDnnBatchNorm("spatial", True, True, False, True)
        results = op(x, ONE, ONE, 1e-3, 0.5, rm, rv)
        assert results[0] is x and results[3] is rm and results[4] is not rv
        np.testing.assert_array_equal(rm, 3)
        np.testing.assert_array_equal(rv, 6)
        with pytest.raises(ValueError, match="both running averages"):
            op(x, ONE, ONE)
        dx, dscale, dbias = theano.GpuDnnBatchNormGrad("spatial")(X, X, ONE, mean, invstd, 1e-4)
        np.testing.assert_array_equal(dbias, 16)
        want = theano.dnn_batch_normalization_test(X, ONE, ONE, ONE, ONE, "spatial", 0.5)
        made = theano.GpuDnnBatchNormInference("spatial", epsilon=0.5)  # as the old page has it
        np.testing.assert_array_equal(made(X, ONE, ONE, ONE, ONE), want)
        assert theano.GpuDnnBatchNormGrad("spatial", 0.5).epsilon == 0.5
        y = theano.GpuDnnBatchNormInference("spatial", inplace=True)(x, ONE, ONE, ONE, ONE)
        assert y is x
    with pytest.raises(ValueError, match="mode: expected"):
        theano.GpuDnnBatchNormBase("rows")


def test_theanos_op_takes_a_tenth_of_the_new_statistics():
    from numbadnn import theano

    x, rm, rv = np.random.default_rng(5).standard_normal((6, 3, 2, 2)), 3 * ONE, 2 * ONE
    with numbadnn.using(fallback="allow"):
        got = theano.GpuDnnBatchNorm("spatial", True)(x, ONE, ONE, running_mean=rm, running_var=rv)
        zero = theano.GpuDnnBatchNorm("spatial", True, running_average_factor=0.0)(x, ONE, ONE, None, None, rm, rv)
    np.testing.assert_allclose(got[3], 0.9 * rm + 0.1 * x.mean((0, 2, 3), keepdims=True))
    np.testing.assert_allclose(got[4], 0.9 * rv + 0.1 * x.var((0, 2, 3), ddof=1, keepdims=True))
    np.testing.assert_array_equal(zero[3:], (rm, rv))


def test_theanos_ops_in_place_look_at_every_destination_before_they_write_into_one():
    x, one, zero = (
        np.random.default_rng(8).standard_normal((2, 3, 4, 4)).astype("f4"),
        np.ones((1, 3, 1, 1), "f4"),
        np.zeros((1, 3, 1, 1), "f4"),
    )
    kept, frozen = x.copy(), zero.copy()
    frozen.flags.writeable = False
    op = theano.GpuDnnBatchNorm("spatial", True, True, True, True)
    for name, averages in (("running_mean", (frozen, one.copy())), ("running_var", (zero.copy(), frozen))):
        with pytest.raises(ValueError, match=f"^{name}: expected a writable array, got a read-only one"):
            op(x, one, zero, 1e-4, 0.5, *averages)
    image = x.copy()
    image.flags.writeable = False
    for call in (
        lambda: op(image, one, zero, 1e-4, 0.5, zero.copy(), one.copy()),
        lambda: theano.GpuDnnBatchNormInference("spatial", True)(image, one, zero, zero, one),
        lambda: theano.GpuDnnDropoutOp(True)(image, 0.5),
    ):
        with pytest.raises(ValueError, match="^x: expected a writable array"):
            call()
    assert np.array_equal(x, kept)
    with pytest.raises(TypeError, match="^inplace: expected True or False"):
        theano.GpuDnnDropoutOp("no")


def test_theanos_epsilon_of_any_size():
    x, one = np.array([[1.0], [3.0]]), np.ones((1, 1))
    with pytest.raises(TypeError, match="^epsilon: expected a number"):
        theano.dnn_batch_normalization_train(x, one, one, epsilon=10**400)
    with numbadnn.using(fallback="allow"):
        theano.dnn_batch_normalization_train(x, one, one, epsilon=1e300)  # no warning of float32's
    with pytest.raises(ValueError, match="^epsilon must be at least 1e-5"):
        theano.dnn_batch_normalization_train(x, one, one, epsilon=9e-6)
    with pytest.raises(ValueError, match="^mode: expected per-activation or spatial"):
        theano.GpuDnnBatchNorm(np.array(["spatial", "a"]))


def test_theanos_old_order_is_not_taken_for_the_later_one():
    """An epsilon where a flag stands now: an op in place would have written over its input."""
    from numbadnn import theano

    for make, name in (
        (theano.GpuDnnBatchNormInference, "inplace"),
        (theano.GpuDnnBatchNorm, "running_averages"),
    ):
        with pytest.raises(TypeError, match=f"{name}: expected True or False, got 0.001"):
            make("spatial", 1e-3)
    with pytest.raises(TypeError, match="inplace: expected True or False, got 'small'"):
        theano.GpuDnnConvGradW("small")


@pytest.mark.parametrize("dtype", ("float32", "float16", "float64"))
@pytest.mark.parametrize("shape", ((2, 5, 33, 31), (3, 64, 9, 7), (2, 3, 1, 5)))
@pytest.mark.parametrize("last", (False, True))
def test_results_written_past_the_caches_are_the_same(monkeypatch, dtype, shape, last):
    """Where operands exceed the caches; to addresses that are multiples of a vector's bytes, and to others."""
    from numbadnn.call import launch
    from numbadnn.cpu.norm import norm

    def array(first):
        memory = np.full(math.prod(shape) + 40, np.nan, dtype)[first : first + math.prod(shape)]
        n, c, h, w = shape
        return memory.reshape(n, h, w, c).transpose(0, 3, 1, 2) if last else memory.reshape(shape)

    rng, x, dy, found = np.random.default_rng(5), array(1), array(2), {}
    x[...], dy[...] = rng.standard_normal(shape), rng.standard_normal(shape)
    gamma, beta, mean, var = (rng.uniform(0.5, 1.5, (1, shape[1], 1, 1)).astype(dtype) for _ in range(4))
    for past in (False, True):
        monkeypatch.setattr(norm, "past_caches", lambda nbytes, run, past=past: past)
        launch.thread.plans.clear()
        for first in (0, 3, 16):
            y = numbadnn.batch_normalization_test(x, gamma, beta, mean, var, "spatial", out=array(first))
            shapes = [np.empty_like(gamma) for _ in range(2)]
            dx, *_ = numbadnn.batch_normalization_train_grad(
                x, dy, gamma, mean, var, "spatial", out=(array(first), *shapes)
            )
            found[past, first] = (y, dx)
    launch.thread.plans.clear()
    for key, (y, dx) in found.items():
        assert np.array_equal(y, found[False, 0][0]) and np.array_equal(dx, found[False, 0][1]), key
        assert np.isfinite(y.astype("float64")).all()


@pytest.mark.parametrize("layout", ("nchw", "nhwc"))
@pytest.mark.parametrize(("size", "epsilon"), ((1e20, 1e-5), (1e37, 0.0), (1e-19, 0.0), (1e-25, 0.0), (1e-35, 0.0)))
def test_the_cpu_holds_deviations_whose_squares_float32_does_not(size, epsilon, layout):
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((4, 6, 5, 7)).astype("float32") for _ in range(2))
    x = x * np.float32(size)
    if layout == "nhwc":
        x, dy = (np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) for a in (x, dy))
    gamma, beta = (rng.standard_normal((1, 6, 1, 1)).astype("float32") for _ in range(2))
    expected = reference.batch_normalization_train(x, gamma, beta, "spatial", epsilon)
    found = numbadnn.batch_normalization_train(x, gamma, beta, "spatial", epsilon)
    statistics = (np.asarray(e, "float32") for e in expected[1:])
    arrays = (x, dy, gamma, *statistics, "spatial")
    found += numbadnn.batch_normalization_train_grad(*arrays)
    expected += reference.batch_normalization_train_grad(*arrays)
    for got, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6 * np.abs(right).max())


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 2, 3)])
def test_the_mean_of_a_channel_with_an_infinity(axes, value):
    """In whatever pieces a channel is cut: infinite, as the definition says; with both infinities NaN."""
    x = np.random.default_rng(0).standard_normal((4, 5, 6, 7)).astype("f4")
    one = np.ones((1, 5, 1, 1), "f4")
    for image, other in ((0, None), (3, None), (1, 2)):
        special = x.copy()
        special[image, 2, 0, 0] = value
        if other is not None:
            special[other, 2, 1, 1] = -value
        laid = np.ascontiguousarray(special.transpose(axes)).transpose(np.argsort(axes))
        got = numbadnn.batch_normalization_train(laid, one, one, "spatial")[1].ravel()
        right = reference.batch_normalization_train(special, one, one, "spatial")[1].ravel()
        assert np.isnan(got[2]) if other is not None else got[2] == value
        assert right[2] == got[2] or (np.isnan(right[2]) and np.isnan(got[2]))
        assert np.isfinite(np.delete(got, 2)).all()


def test_cudnn_takes_statistics_in_the_layout_of_channels_last_inputs():
    """A call makes them like its inputs: 1x24x1x1 channels last is C order too."""
    from numbadnn.cudnn.norm import supports

    line = "batch_normalization_train x=float32:4x24x8x8:nhwc gamma=float32:1x24x1x1 mode=spatial"
    made = " ".join(f"{name}=float32:1x24x1x1:nhwc" for name in ("mean", "invstd"))
    problem = parse(f"{line} {made}")
    assert problem.outputs[1].strides == (24, 1, 24, 24)
    assert supports(problem, Policy(device=0)) == ""
    apart = parse(f"{line} mean=float32:1x24x1x1:48,2,1,1 invstd=float32:1x24x1x1")
    assert "packed in C order" in supports(apart, Policy(device=0))
