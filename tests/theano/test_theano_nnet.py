"""numbadnn.theano's pooling of any rank, batch normalization over any axes, activations and patches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import theano
from numbadnn.theano import bn, pool

RNG = np.random.default_rng(6)
REDUCTIONS = {"max": np.max, "sum": np.sum, "average_exc_pad": np.mean, "average_inc_pad": np.mean}


def windows(x: Any, window: tuple[int, ...], stride: tuple[int, ...], sizes: list[int], mode: str) -> Any:
    """Pooling by its definition, a window at a time; what sticks out of the image is not there."""
    axes = len(window)
    result = np.empty((*x.shape[:-axes], *sizes))
    for place in np.ndindex(*sizes):
        seen = tuple(slice(p * s, p * s + w) for p, s, w in zip(place, stride, window, strict=True))
        result[(..., *place)] = REDUCTIONS[mode](x[(..., *seen)], axis=tuple(range(-axes, 0)))
    return result


#: image, window, stride -> rows without borders ignored, by Theano's documents and (None) by its formula
SIZES = (
    ((5, 5), (2, 2), None, (3, 3)), ((7, 4), (3, 2), (3, 2), (3, 2)), ((7, 8), (3, 3), (2, 2), (3, 4)),
    ((6, 5), (4, 3), (1, 2), (3, 2)), ((2, 9), (3, 2), (2, 4), (1, 3)), ((9, 1), (1, 2), (3, 3), (3, 1)),
)  # fmt: skip


@pytest.mark.parametrize("mode", REDUCTIONS)
def test_windows_that_stick_out_hold_what_is_inside(mode: str) -> None:
    for image, window, stride, sizes in SIZES:
        x = RNG.standard_normal((2, 3, *image))
        found = pool.pool_2d(x, window, False, stride, mode=mode)
        assert pool.Pool.out_shape(x.shape, window, stride=stride) == [2, 3, *sizes]
        expected = windows(x, window, stride or window, list(sizes), mode)
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def test_sizes_are_those_of_the_formula_and_of_what_pooling_gives() -> None:
    for n, window, stride in itertools.product(range(1, 8), range(1, 5), range(1, 5)):
        x = np.arange(float(n)).reshape(n, 1)
        sizes = pool.Pool.out_shape((n, 1), (window, 1), stride=(stride, 1))
        plain = (n - 1) // stride + 1 if stride >= window else max(0, (n - 1 - window) // stride + 1) + 1
        assert sizes == [plain, 1] == list(pool.pool_2d(x, (window, 1), False, (stride, 1)).shape)
        ignored = pool.Pool.out_shape((n, 1), (window, 1), True, (stride, 1))
        assert ignored == [max(0, (n - window) // stride + 1), 1]
        assert ignored == list(pool.pool_2d(x, (window, 1), True, (stride, 1)).shape)


def test_any_rank_and_three_axes() -> None:
    for shape in ((5, 6), (3, 5, 6), (2, 1, 3, 5, 6), (0, 5, 6)):
        x = RNG.standard_normal(shape)
        for ignore_border, sizes in ((True, [2, 3]), (False, [3, 3])):
            expected = windows(x, (2, 2), (2, 2), sizes, "max")
            assert np.array_equal(pool.pool_2d(x, (2, 2), ignore_border), expected)
    volume = RNG.standard_normal((2, 5, 4, 7))
    found = pool.pool_3d(volume, (2, 2, 3), False, (2, 1, 3), mode="sum")
    np.testing.assert_allclose(found, windows(volume, (2, 2, 3), (2, 1, 3), [3, 3, 3], "sum"), rtol=1e-13, atol=1e-13)
    assert np.array_equal(pool.Pool(True, "max", 3)(volume, (2, 2, 2)), pool.pool_3d(volume, (2, 2, 2), True))


def test_arguments_that_pooling_refuses_name_the_cure() -> None:
    x = np.ones((1, 1, 4, 4))
    with pytest.raises(NotImplementedError, match="ignore_border=True takes padding"):
        pool.pool_2d(x, (2, 2), False, pad=(1, 1))
    with pytest.raises(ValueError, match="ws: expected it or its old name 'ds', got both"):
        pool.pool_2d(x, (2, 2), True, ds=(2, 2))
    with pytest.raises(ValueError, match="pad: expected less than the window"):
        pool.pool_2d(x, (2, 2), True, pad=(2, 2))
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        pool.pool_2d(np.ones(4), (2, 2), True)
    with pytest.raises(ValueError, match="mode: expected one of"):
        pool.pool_2d(x, (5, 5), True, mode="median")
    with pytest.warns(RuntimeWarning, match="pool_2d: ignore_border is not given and is False"):
        assert pool.pool_2d(x, (3, 3)).shape == (1, 1, 2, 2)
    assert theano.downsample.DownsampleFactorMax((3, 3), True)(x).shape == (1, 1, 1, 1)


AXES = ("per-activation", "spatial", (0,), (1,), (0, 2, 3), (0, 1, 2), (2, 0), (3,), (0, 1, 2, 3))


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_batch_normalization_over_any_axes(axes: Any) -> None:
    """With parameters of the rank of the inputs, without the axes, and with 1 where they are the same for an axis."""
    x = RNG.standard_normal((4, 3, 5, 2))
    named = {"per-activation": (0,), "spatial": (0, 2, 3)}
    numbers = tuple(sorted(named.get(axes, axes) if isinstance(axes, str) else axes))
    full = tuple(1 if a in numbers else n for a, n in enumerate(x.shape))
    squeezed = tuple(n for a, n in enumerate(x.shape) if a not in numbers)
    m = x.size // int(np.prod(full))
    mean, var = x.mean(numbers, keepdims=True), x.var(numbers, keepdims=True)
    for shape in (full, squeezed, tuple(1 for _ in full), tuple(1 for _ in squeezed)):
        gamma, beta, old = (np.asarray(RNG.standard_normal(shape)) for _ in range(3))
        variance = np.asarray(abs(old))
        wide = [a.reshape(full if a.size == mean.size else (1, 1, 1, 1)) for a in (gamma, beta, old)]
        found = bn.batch_normalization_train(x, gamma, beta, axes, 1e-3, 0.25, old, variance)
        expected = (
            (x - mean) / np.sqrt(var + 1e-3) * wide[0] + wide[1],
            mean,
            1 / np.sqrt(var + 1e-3),
            wide[2] * 0.75 + mean * 0.25,
            abs(wide[2]) * 0.75 + var * 0.25 * m / (m - 1),
        )
        statistics = full if len(shape) == 4 else squeezed
        for f, e in zip(found, expected, strict=True):
            np.testing.assert_allclose(f, e.reshape(f.shape), rtol=1e-12, atol=1e-12)
        assert [f.shape for f in found] == [x.shape, *[statistics] * 4]
        test = bn.batch_normalization_test(x, gamma, beta, old, variance, axes, 1e-3)
        expected_test = (x - wide[2]) / np.sqrt(abs(wide[2]) + 1e-3) * wide[0] + wide[1]
        np.testing.assert_allclose(test, expected_test, rtol=1e-12, atol=1e-12)


def test_batch_normalization_refuses_what_theano_refused() -> None:
    x, one = np.ones((4, 3)), np.ones(3)
    for axes in ((), (2,), (0, 0), (-1,), 0, "channel"):
        with pytest.raises(ValueError, match="axes: expected"):
            bn.batch_normalization_train(x, one, one, axes)
    with pytest.raises(ValueError, match="gamma: expected 2 dimensions, as inputs has, or 1"):
        bn.batch_normalization_train(x, np.ones((1, 1, 3)), one, (0,))
    with pytest.raises(ValueError, match=r"beta: expected shape \(3,\), or 1"):
        bn.batch_normalization_train(x, one, np.ones(4), (0,))
    with pytest.raises(ValueError, match="epsilon must be at least 1e-5"):
        bn.batch_normalization_test(x, one, one, one, one, (0,), 1e-6)
    with pytest.raises(ValueError, match="mode: expected 'low_mem'"):
        bn.batch_normalization(x, one, one, one, one, "no_mem")


def libraries() -> list[Any]:
    found: list[Any] = [np.asarray]
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    return [*found, torch.as_tensor, jax.numpy.asarray]


def test_activations_at_their_edges_in_every_library() -> None:
    x = np.array([[-np.inf, -200.0, -1.5, -0.0, 2.0, 200.0, np.inf, np.nan]], "float32")
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-x.astype("f8")))
    for make in libraries():
        np.testing.assert_allclose(np.asarray(theano.sigmoid(make(x))), sigmoid, rtol=1e-6, atol=1e-45)
        assert np.array_equal(np.asarray(theano.relu(make(x))), np.maximum(x, 0), equal_nan=True)
        leaky = np.asarray(theano.relu(make(x), 0.25))
        assert np.array_equal(leaky, np.where(x > 0, x, 0.25 * x), equal_nan=True) and leaky.dtype == np.float32
        assert np.array_equal(np.asarray(theano.relu(make(x[:, :5]), make(np.full(5, 0.5, "f4")))), np.where(
            x > 0, x, x / 2)[:, :5])  # fmt: skip
    with pytest.raises(ValueError, match="c: expected a matrix or a vector"):
        theano.softmax(np.ones((1, 2, 2)))
    with pytest.warns(DeprecationWarning, match="a matrix of one row"):
        assert theano.softmax(np.zeros(2)).shape == (1, 2)


def test_what_is_put_together_of_views_takes_every_library() -> None:
    x = RNG.standard_normal((2, 3, 5, 4)).astype("float32")
    one = np.ones(4, "float32")
    for make in libraries():
        pooled = pool.pool_2d(make(x), (2, 3), False)
        assert type(pooled) is type(make(x))
        assert np.array_equal(np.asarray(pooled), windows(x, (2, 3), (2, 3), [3, 2], "max"))
        out = bn.batch_normalization_train(make(x), make(one), make(one), (0, 1, 2))[0]
        assert type(out) is type(make(x)) and out.shape == x.shape
        assert np.array_equal(np.asarray(theano.images2neibs(make(x), (5, 2))), theano.images2neibs(x, (5, 2)))


def test_patches_in_every_mode() -> None:
    x = np.arange(2.0 * 6 * 5).reshape(1, 2, 6, 5)
    zeros = {"valid": (0, 0), "ignore_borders": (0, 0), "half": (1, 1), "full": (2, 2)}
    for mode, (rows, columns) in zeros.items():
        padded = np.pad(x, ((0, 0), (0, 0), (rows, rows), (columns, columns)))
        step = (3, 2) if mode == "valid" else (2, 3)
        places = itertools.product(
            range(2), range(0, padded.shape[2] - 2, step[0]), range(0, padded.shape[3] - 2, step[1])
        )
        expected = np.stack([padded[0, c, i : i + 3, j : j + 3].ravel() for c, i, j in places])
        assert np.array_equal(theano.images2neibs(x, (3, 3), step, mode), expected), mode
    wrapped = np.pad(x, ((0, 0), (0, 0), (1, 1), (2, 2)), mode="wrap")
    places = itertools.product(range(2), range(0, 6, 2), range(0, 5, 3))
    expected = np.stack([wrapped[0, c, i : i + 3, j : j + 5].ravel() for c, i, j in places])
    assert np.array_equal(theano.images2neibs(x, (3, 5), (2, 3), "wrap_centered"), expected)
    for shape, mode, text in (((4, 3), "valid", "to fill 6 rows"), ((2, 3), "wrap_centered", "odd sizes")):
        with pytest.raises(ValueError, match=text):
            theano.images2neibs(x, shape, (3, 2), mode)
    assert theano.images2neibs(x[:0], (3, 5)).shape == (0, 15)


def test_whether_cudnn_is_there_is_asked_as_in_theano(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in (theano.dnn_available, theano.dnn_present):
        assert asked() is (asked.msg == "")
    monkeypatch.setattr(theano.config.dnn, "_enabled", "False")
    assert not theano.dnn_available() and theano.dnn_available.msg == "disabled by the flag dnn.enabled"
    monkeypatch.undo()
    monkeypatch.setattr("numbadnn.cudnn.available", lambda: numbadnn.cudnn.Availability(False, "not installed"))
    assert not theano.dnn_available("dev0") and theano.dnn_available.msg == "not installed"
