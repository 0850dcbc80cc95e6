"""Pooling: the reference by law and against PyTorch, Theano's own counts of configurations, ties, NaN, and bad input."""

from __future__ import annotations

import ctypes
import itertools
import math
import re

import ml_dtypes
import numpy as np
import pytest
from fake_cudnn import FakeCudnn, view

import numbadnn
from numbadnn import reference
from numbadnn.cudnn import _tensors
from numbadnn.cudnn import pool as cudnn_pool
from numbadnn.cudnn._enums import DataType
from numbadnn.errors import NotSupportedError
from numbadnn.problem import Policy
from numbadnn.problems.pool import MODES, PoolProblem

RNG = np.random.default_rng(4)


def naive(x, ws, stride, mode, pad):
    """Pooling by slices of a padded array: nothing of the reference's window arithmetic."""
    largest = mode.startswith("max")
    border = [(0, 0), (0, 0), *((p, p) for p in pad)]
    padded = np.pad(x, border, constant_values=-np.inf if largest else 0.0)
    inside = np.pad(np.ones_like(x), border)
    sizes = [(n - w) // s + 1 for n, w, s in zip(padded.shape[2:], ws, stride, strict=True)]
    values, cells = [], []
    for offset in itertools.product(*map(range, ws)):
        steps = zip(offset, sizes, stride, strict=True)
        at = (slice(None), slice(None), *(slice(o, o + (n - 1) * s + 1, s) for o, n, s in steps))
        values.append(padded[at])
        cells.append(inside[at])
    if largest:
        return np.max(values, axis=0)
    total = np.sum(values, axis=0)
    return total / {"sum": 1, "average_inc_pad": np.prod(ws), "average_exc_pad": np.sum(cells, axis=0)}[mode]


# ---- Theano's counts -------------------------------------------------------------------------------------------------


def theano_2d():
    """test_pooling: windows, strides up to the window, paddings up to the stride; exc_pad without padding."""
    modes = ("max", "average_inc_pad", "average_exc_pad", "sum")
    found = []
    for pad, ws, stride, mode in itertools.product(((0, 0), (1, 0), (0, 1), (2, 3), (3, 2)), (4, 2, 5), (2, 3), modes):
        if mode == "average_exc_pad" and any(pad):
            continue
        if stride > ws or max(pad) > stride:
            continue
        found.append(((ws, ws), (stride, stride), pad, mode))
    return found


def theano_3d():
    """test_pooling3d: cubes, the same rules."""
    pads = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2, 3, 2), (3, 2, 2), (2, 2, 3))
    modes = ("max", "average_inc_pad", "average_exc_pad", "sum")
    found = []
    for pad, ws, stride, mode in itertools.product(pads, (4, 2, 5), (2, 3), modes):
        if mode == "average_exc_pad" and any(pad):
            continue
        if stride > ws or max(pad) > stride:
            continue
        found.append(((ws,) * 3, (stride,) * 3, pad, mode))
    return found


#: Theano's three shapes, with fewer images and smaller ones of the same remainders where the window does not mind
SHAPES_2D = ((1, 3, 20, 20), (1, 2, 19, 19), (2, 1, 17, 23))
SHAPES_3D = ((1, 2, 5, 5, 5), (1, 1, 11, 9, 7), (2, 1, 8, 9, 10))


def tolerance(window):
    """A sum of so many float32 numbers of order one, relative to the largest magnitude."""
    return 2.0**-23 * np.prod(window) * 4


@pytest.mark.parametrize("shape", SHAPES_2D, ids=str)
@pytest.mark.parametrize(("ws", "stride", "pad", "mode"), theano_2d())
def test_theanos_images(ws, stride, pad, mode, shape):
    check_against_naive(shape, ws, stride, pad, mode)


@pytest.mark.parametrize("shape", SHAPES_3D, ids=str)
@pytest.mark.parametrize(("ws", "stride", "pad", "mode"), theano_3d())
def test_theanos_volumes(ws, stride, pad, mode, shape):
    check_against_naive(shape, ws, stride, pad, mode)


def check_against_naive(shape, ws, stride, pad, mode):
    if any(p >= w for p, w in zip(pad, ws, strict=True)):
        with pytest.raises(ValueError, match="pad: expected less than the window"):
            numbadnn.pool(np.zeros(shape, "float32"), ws, stride, mode, pad)
        return
    x = RNG.standard_normal(shape).astype("float32")
    if any(w > n + 2 * p for n, w, p in zip(shape[2:], ws, pad, strict=True)):
        with pytest.raises(ValueError, match="ws: expected no more than the padded image"):
            numbadnn.pool(x, ws, stride, mode, pad)
        return
    want = naive(x.astype(np.float64), ws, stride, mode, pad)
    got = numbadnn.pool(x, ws, stride, mode, pad)
    np.testing.assert_allclose(got, want, rtol=0, atol=0 if mode == "max" else tolerance(ws))
    # the gradient is the adjoint of a linear map; of a maximum, of the map that picks this x's maxima
    dy = RNG.standard_normal(want.shape).astype("float32")
    dx = numbadnn.pool_grad(x, got, dy, ws, stride, mode, pad)
    left, right = float((dy.astype(np.float64) * want).sum()), float((dx.astype(np.float64) * x).sum())
    scale = float((np.abs(dy) * naive(np.abs(x).astype(np.float64), ws, stride, "sum", pad)).sum())
    assert abs(left - right) <= tolerance(ws) * scale


def test_the_number_of_theanos_configurations():
    assert len(theano_2d()) * len(SHAPES_2D) == 186
    assert len(theano_3d()) * len(SHAPES_3D) == 249


# ---- the reference ---------------------------------------------------------------------------------------------------

WINDOWS = (((2, 2), (2, 2), (0, 0)), ((3, 2), (1, 2), (1, 1)), ((2, 3, 2), (2, 1, 2), (1, 2, 0)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("ws", "stride", "pad"), WINDOWS)
def test_the_reference_is_the_naive_pooling_and_its_derivative(ws, stride, pad, mode):
    shape = (2, 2, 5, 6, 4)[: len(ws) + 2]
    x = RNG.permutation(np.arange(float(np.prod(shape)))).reshape(shape)  # no two equal: the maximum has a derivative
    y = reference.pool(x, ws, stride, mode, pad)
    np.testing.assert_allclose(y, naive(x, ws, stride, mode, pad), rtol=1e-15)
    dy, v = RNG.standard_normal(y.shape), RNG.standard_normal(shape)
    dx, step = reference.pool_grad(x, y, dy, ws, stride, mode, pad), 2.0**-6
    change = (reference.pool(x + step * v, ws, stride, mode, pad) - y) / step
    # the sum may cancel: each y, of numbers that are not negative, is off by so much of itself
    off = 2 * (math.prod(ws) + 1) * np.finfo(float).eps / step
    np.testing.assert_allclose((dy * change).sum(), (dx * v).sum(), rtol=1e-10, atol=off * (np.abs(dy) * y).sum())


@pytest.mark.parametrize("mode", ("max", "average_inc_pad", "average_exc_pad"))
@pytest.mark.parametrize(("ws", "stride", "pad"), (((2, 2), (2, 2), (1, 1)), ((3, 3), (2, 1), (1, 0)), WINDOWS[2]))
def test_the_reference_is_pytorchs_pooling(ws, stride, pad, mode):
    torch = pytest.importorskip("torch")
    pad = tuple(min(p, w // 2) for p, w in zip(pad, ws, strict=True))  # all that PyTorch takes
    x = RNG.standard_normal((2, 3, 7, 6, 5)[: len(ws) + 2])
    tensor = torch.tensor(x, requires_grad=True)
    functional, axes = torch.nn.functional, len(ws)
    if mode == "max":
        y = getattr(functional, f"max_pool{axes}d")(tensor, ws, stride, pad)
    else:
        include = mode == "average_inc_pad"
        y = getattr(functional, f"avg_pool{axes}d")(tensor, ws, stride, pad, count_include_pad=include)
    dy = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, tensor, dy)
    np.testing.assert_allclose(reference.pool(x, ws, stride, mode, pad), y.detach().numpy(), rtol=1e-13, atol=1e-15)
    got = reference.pool_grad(x, y.detach().numpy(), dy.numpy(), ws, stride, mode, pad)
    np.testing.assert_allclose(got, dx.numpy(), rtol=1e-13, atol=1e-14)


# ---- hand values -----------------------------------------------------------------------------------------------------


def image(values, dtype="float32"):
    return np.array(values, dtype)[None, None]


def test_padding_counts_in_one_average_and_not_in_the_other():
    ones = image(np.ones((4, 4)))
    inc = numbadnn.pool(ones, (3, 3), (2, 2), "average_inc_pad", (1, 1))[0, 0]
    np.testing.assert_allclose(inc, [[4 / 9, 6 / 9], [6 / 9, 1]], rtol=1e-7)
    assert (numbadnn.pool(ones, (3, 3), (2, 2), "average_exc_pad", (1, 1)) == 1).all()
    dy = image(np.full((2, 2), 36.0))
    grad = numbadnn.pool_grad(ones, image(inc), dy, (3, 3), (2, 2), "average_exc_pad", (1, 1))[0, 0]
    # windows of 4, 6, 6 and 9 elements: 36 over them, added where they share a row or column
    assert grad.tolist() == [[9, 15, 6, 6], [15, 25, 10, 10], [6, 10, 4, 4], [6, 10, 4, 4]]


def test_padding_is_less_than_any_number():
    x = image(-np.arange(1.0, 10).reshape(3, 3))
    assert numbadnn.pool(x, (2, 2), (2, 2), "max", (1, 1))[0, 0].tolist() == [[-1, -2], [-4, -5]]


@pytest.mark.parametrize("mode", ("max", "max_deterministic"))
@pytest.mark.parametrize("dtype", ("float32", "float64", "float16", "bfloat16"))
def test_a_tie_goes_to_the_first(mode, dtype):
    x = image(np.ones((3, 3)), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    y = numbadnn.pool(x, (2, 2), mode=mode)
    dx = numbadnn.pool_grad(x, y, np.ones_like(y), (2, 2), mode=mode)
    assert dx[0, 0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("value", (-np.inf, -np.finfo(np.float32).max, 0.0, np.inf), ids=str)
@pytest.mark.parametrize("channels", (1, 8))
def test_a_tie_of_anything_with_padding_goes_to_the_first_in_the_image(value, channels):
    image = np.full((1, channels, 3, 3), value, "float32")
    for x in (image, image.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)):
        y = numbadnn.pool(x, (3, 3), (2, 2), "max", (1, 1))
        assert (y == value).all()
        dx = numbadnn.pool_grad(x, y, np.ones_like(y), (3, 3), (2, 2), "max", (1, 1))
        assert (dx == np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0]])).all()


@pytest.mark.parametrize("channels_last", (False, True))
@pytest.mark.parametrize("position", range(9))
def test_nan_propagates_from_every_position_and_takes_the_gradient(position, channels_last):
    x = np.ones((1, 4, 3, 3), "float32")
    x[:, 2].reshape(-1)[position] = np.nan
    x[:, 2].reshape(-1)[8] = np.inf if position != 8 else np.nan  # a NaN beats infinity, wherever that is
    if channels_last:
        x = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    for mode in MODES:
        y = numbadnn.pool(x, (3, 3), mode=mode)
        assert np.isnan(y[0, 2]).all() and not np.isnan(y[0, [0, 1, 3]]).any()
    y = numbadnn.pool(x, (3, 3))
    dx = numbadnn.pool_grad(x, y, np.full_like(y, 5), (3, 3))
    assert np.flatnonzero(dx[0, 2]).tolist() == [position] and dx[0, 2].sum() == 5


def test_the_first_of_several_nans_takes_the_gradient():
    x = image([[1, np.nan, np.inf], [np.nan, 2, np.nan]])
    y = numbadnn.pool(x, (2, 3))
    assert numbadnn.pool_grad(x, y, np.ones_like(y), (2, 3))[0, 0].tolist() == [[0, 1, 0], [0, 0, 0]]


def test_16_bit_sums_are_kept_in_float32():
    x = np.ones((1, 1, 64, 64), "float16")
    assert numbadnn.pool(x, (64, 64), mode="average_inc_pad").item() == 1
    y = np.full((1, 1, 61, 61), 0.1, "float16")
    dx = numbadnn.pool_grad(x, y, y, (4, 4), mode="sum")
    assert dx[0, 0, 30, 30] == np.float16(16 * np.float64(np.float16(0.1)))


def test_numbers_are_paired_where_sums_are_float32_and_the_gpu_compares_them_in_pairs():
    from numbadnn.kernels.pool import walk as pool_walk

    def paired(dtype, acc, capability):
        problem = PoolProblem.parse(f"pool_grad x={dtype}:1x8x8x8 window=3x3 stride=2x2 pad=1x1")
        first = pool_walk.space(problem)[0]
        return pool_walk.possible(problem, first, acc, capability).paired

    assert paired("float16", "float32", (8, 0)) and paired("bfloat16", "float32", (9, 0))
    assert not paired("bfloat16", "float32", (8, 0)) and not paired("float16", "float64", (9, 0))
    assert not paired("float32", "float32", (9, 0))


@pytest.mark.parametrize("mode", ["max", "average_exc_pad", "sum"])
@pytest.mark.parametrize("layout", ["", ":nhwc"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "window", ["3x3x3 stride=2x2x2 pad=1x1x1", "3x3x3 stride=1x1x1 pad=1x1x1", "2x2x2", "2x2x2 stride=1x1x1"]
)
def test_gradients_of_volumes_are_made_in_tiles(window, dtype, layout, mode):
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from numbadnn.kernels.pool import pool as own
    from numbadnn.kernels.pool import tiles

    problem = PoolProblem.parse(f"pool_grad x={dtype}:2x8x9x10x16{layout} window={window} mode={mode}")
    assert tiles.reason(problem) == ""
    assert own.rank_tiles(problem) < own.rank_strided(problem)
    room = problem.y.size if mode == "max" and window != "2x2x2" else 0
    assert tiles.codes_bytes(problem) == room
    assert ("workspace" in own.supports_tiles(problem, Policy(device=0, workspace_limit=0))) == (room > 0)


def test_windows_that_registers_do_not_hold_are_read_row_by_row():
    from numbadnn.kernels.pool import tiles as pool_tiles
    from numbadnn.kernels.pool import tiles_config

    for window, held in (("3x3 stride=2x2", True), ("40x40", False)):
        config = pool_tiles.heuristic(
            PoolProblem.parse(f"pool x=float32:2x8x80x80 window={window} mode=average_inc_pad")
        )
        assert tiles_config.batch(config, "float32") == (config.x_rows if held else 1)


@pytest.mark.parametrize(
    ("shape", "hopper", "elsewhere"),
    [
        ("128x64x112x112", (True, 4), (False, 4)),
        ("128x64x112x112:nhwc", (False, 4), (False, 4)),
    ],
)
def test_the_next_strip_is_not_read_before_where_that_would_spill(shape, hopper, elsewhere):
    from numbadnn.kernels.pool import walk as pool_walk

    problem = PoolProblem.parse(f"pool_grad x=float16:{shape} window=3x3 stride=2x2 pad=1x1")
    first = pool_walk.space(problem)[0]
    for capability, expected in (((9, 0), hopper), ((8, 0), elsewhere), ((10, 0), elsewhere)):
        c = pool_walk.possible(problem, first, "float32", capability)
        assert (c.ahead, c.resident) == expected


# ---- the public functions --------------------------------------------------------------------------------------------


def test_defaults_and_other_ways_to_say_it():
    x = RNG.standard_normal((1, 2, 5, 6)).astype("float32")
    want = numbadnn.pool(x, (2, 3), (1, 1), "max", (0, 0))
    assert (numbadnn.pool(x, (2, 3)) == want).all()
    assert (numbadnn.pool(x, [2, 3], np.array([1, 1]), "max", [0, 0]) == want).all()
    with pytest.warns(DeprecationWarning, match="average_inc_pad"):
        old = numbadnn.pool(x, (2, 2), mode="average")
    assert (old == numbadnn.pool(x, (2, 2), mode="average_inc_pad")).all()
    out = np.empty_like(want)
    assert numbadnn.pool(x, (2, 3), out=out) is out and (out == want).all()
    dx = np.empty_like(x)
    assert numbadnn.pool_grad(x, want, want, (2, 3), result=dx) is dx
    assert (dx == numbadnn.pool_grad(x, want, want, (2, 3))).all()


def test_a_stride_past_the_image_takes_one_window_however_long_it_is():
    x = np.arange(48, dtype="float32").reshape(1, 2, 4, 6)
    for mode in ("max", "sum", "average_exc_pad"):
        y = numbadnn.pool(x, (2, 3), (4, 6), mode)[:, :, :1, :1]
        dx = numbadnn.pool_grad(x, y, y, (2, 3), (6, 6), mode)
        for stride in ((2**34, 2**34), (2**70, 2**70)):  # tables as long as the stride would not fit memory
            np.testing.assert_array_equal(numbadnn.pool(x, (2, 3), stride, mode), y)
            np.testing.assert_array_equal(numbadnn.pool_grad(x, y, y, (2, 3), stride, mode), dx)


@pytest.mark.parametrize("mode", ("max", "sum", "average_inc_pad", "average_exc_pad"))
@pytest.mark.parametrize("order", "CF")
def test_a_window_far_larger_than_the_image_costs_what_the_image_does(mode, order):
    """Of 2**40 elements, and of 2**36 in strides of 2**35: tables as long as either would not fit memory."""
    x = np.random.default_rng(0).integers(-9, 9, (2, 4, 5, 6)).astype("float32", order=order)
    far, counted = 1 << 39, 30 if mode == "average_exc_pad" else 1 << 80
    y = numbadnn.pool(x, (2 * far, 2 * far), (1 << 40, 1 << 40), mode, (far, far))
    reduced = {"max": x.max((2, 3)), "sum": x.sum((2, 3))}.get(mode, x.sum((2, 3)) / np.float32(counted))
    np.testing.assert_allclose(y[:, :, 0, 0], reduced, rtol=1e-6)
    dx = numbadnn.pool_grad(x, y, np.ones_like(y), (2 * far, 2 * far), (1 << 40, 1 << 40), mode, (far, far))
    first = np.arange(30) == x.reshape(2, 4, 30).argmax(2)[..., None]
    each = {"max": first.reshape(x.shape), "sum": np.ones_like(x)}.get(mode, np.full_like(x, 1 / np.float32(counted)))
    np.testing.assert_allclose(dx, each, rtol=1e-6)
    if mode == "sum":
        half = 1 << 35  # the first of two windows ends behind column 0 and row 0, the second begins there
        y = numbadnn.pool(x, (half, half), (half, half), mode, (half - 1, half - 1))
        np.testing.assert_array_equal(
            y, [[[[a[0, 0], a[0, 1:].sum()], [a[1:, 0].sum(), a[1:, 1:].sum()]] for a in b] for b in x]
        )


def test_channels_last_in_channels_last_out():
    x = np.ones((2, 6, 6, 4), "float32").transpose(0, 3, 1, 2)
    y = numbadnn.pool(x, (2, 2), (2, 2))
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous
    assert numbadnn.pool_grad(x, y, y, (2, 2), (2, 2)).transpose(0, 2, 3, 1).flags.c_contiguous


@pytest.mark.parametrize("shape", ((0, 3, 4, 4), (2, 0, 4, 4), (0, 1, 4, 4, 4)))
def test_an_empty_batch_gives_an_empty_result(shape):
    ws = (2,) * (len(shape) - 2)
    y = numbadnn.pool(np.zeros(shape, "float32"), ws, ws)
    assert y.shape == (*shape[:2], *(2 for _ in ws)) and y.dtype == np.float32
    assert numbadnn.pool_grad(np.zeros(shape, "float32"), y, y, ws, ws).shape == shape


X = np.zeros((1, 1, 4, 4), "float32")


@pytest.mark.parametrize(("arguments", "error", "says"), [
    (dict(ws=(2,)), ValueError, "img: expected 3 dimensions for a window"),
    (dict(ws=None), TypeError, "ws: expected an integer, or 1, 2 or 3 integers, got None"),
    (dict(ws=0), ValueError, "ws: expected integers of at least 1"),
    (dict(ws=(2.5, 2)), TypeError, "ws: expected integers"),
    (dict(ws={3, 2}), TypeError, "ws: expected an integer, or 1, 2 or 3 integers, got {2, 3}"),
    (dict(ws={2: 1, 3: 1}), TypeError, "ws: expected an integer, or 1, 2 or 3 integers, got {2: 1, 3: 1}"),
    (dict(ws=(2, 2), stride=frozenset((1, 2))), TypeError, "stride: expected 2 integers, got frozenset"),
    (dict(ws=(2, 2), pad={0: 1, 1: 1}.keys()), TypeError, "pad: expected 2 integers, got dict_keys"),
    (dict(ws=(2, 2, 2)), ValueError, "img: expected 5 dimensions"),
    (dict(ws=(0, 2)), ValueError, "ws: expected integers of at least 1"),
    (dict(ws=(2, 2), stride=(0, 1)), ValueError, "stride: expected integers of at least 1"),
    (dict(ws=(2, 2), stride=(1, 1, 1)), ValueError, "stride: expected 2 integers"),
    (dict(ws=(2, 2), stride="2"), TypeError, "stride: expected 2 integers|stride: expected integers"),
    (dict(ws=(2, 2), pad=(-1, 0)), ValueError, "pad: expected integers of at least 0"),
    (dict(ws=(2, 2), pad=(2, 0)), ValueError, "pad: expected less than the window"),
    (dict(ws=(2, 2), pad=(1,)), ValueError, "pad: expected 2 integers"),
    (dict(ws=(5, 2)), ValueError, "ws: expected no more than the padded image"),
    (dict(ws=(2, 2), mode="min"), ValueError, "mode: expected one of max"),
    (dict(ws=(2, 2), mode=["max"]), ValueError, "mode: expected one of max"),
])  # fmt: skip
def test_bad_parameters(arguments, error, says):
    with pytest.raises(error, match=says):
        numbadnn.pool(X, **arguments)
    says = says.replace("img", "inp")
    with pytest.raises(error, match=says):
        numbadnn.pool_grad(X, X, X, **arguments)


def test_errors_of_the_destination_name_it_as_the_caller_does():
    """``out`` is another argument of the gradient."""
    x = np.ones((1, 1, 4, 4), "f4")
    y, frozen = numbadnn.pool(x, (2, 2)), np.empty_like(x)
    frozen.flags.writeable = False
    for result, error, says in (
        (frozen, ValueError, "a writable array"),
        (x, ValueError, "memory of its own, got an array that overlaps an input"),
        (
            np.lib.stride_tricks.as_strided(x, x.shape, (0, 0, 4, 4)),
            ValueError,
            "an array whose elements do not overlap",
        ),
        ([x], TypeError, "an array"),
        ((), ValueError, "an array or a tuple of them"),
        (np.empty((1, 1, 4, 4), "i4"), TypeError, ""),
        (x[..., :3], ValueError, "shape"),
    ):
        with pytest.raises(error, match=f"^result: expected {says}"):
            numbadnn.pool_grad(x, y, y.copy(), (2, 2), result=result)


def test_bad_arrays():
    empty = np.zeros((0, 1, 4, 4), "float32")
    with pytest.raises(ValueError, match="ws: expected no more than the padded image"):
        numbadnn.pool(empty, (5, 5))
    with pytest.raises(ValueError, match="img: expected spatial axes of at least one element"):
        numbadnn.pool(np.zeros((1, 1, 0, 4), "float32"), (1, 1))
    with pytest.raises(TypeError, match="img"):
        numbadnn.pool(np.zeros((1, 1, 4, 4), "int32"), (2, 2))
    y = np.zeros((1, 1, 3, 3), "float32")
    with pytest.raises(ValueError, match=r"out: expected shape \(1, 1, 3, 3\)"):
        numbadnn.pool_grad(X, X, y, (2, 2))
    with pytest.raises(ValueError, match=r"out_grad: expected shape \(1, 1, 3, 3\)"):
        numbadnn.pool_grad(X, y, X, (2, 2))
    with pytest.raises(TypeError, match="out_grad: expected inp's dtype float32"):
        numbadnn.pool_grad(X, y, y.astype("float64"), (2, 2))
    with pytest.raises(ValueError, match="result: expected shape"):
        numbadnn.pool_grad(X, y, y, (2, 2), result=np.zeros((1, 1, 5, 5), "float32"))
    with pytest.raises(TypeError, match="out: expected dtype float32"):
        numbadnn.pool(X, (2, 2), out=y.astype("float64"))


@pytest.mark.parametrize("text", (
    "pool x=float32:2x3x8x8", "pool x=float32:2x3x8x8 window=2", "pool x=float32:2x3x8x8 window=2x2 y=float32:2x3x3x4",
    "pool x=float32:2x3x8x8 window=2x2 dy=float32:2x3x4x4", "pool_grad window=2x2", "pool x=float32:2x3x8x8 window=2x2 no",
))  # fmt: skip
def test_problem_lines_that_mean_nothing(text):
    with pytest.raises(ValueError, match="expected"):
        PoolProblem.parse(text)


# ---- cuDNN, by a fake of its library ------------------------------------------------------------------------------------


class PoolingFake(FakeCudnn):
    """Pooling by the reference, from what the descriptors were told."""

    def _ints(self, address, n):
        return tuple((ctypes.c_int * n).from_address(address))

    def cudnnSetTensorNdDescriptor(self, pointer, dtype, n, shape, strides):
        kind = {DataType.FLOAT: np.float32, DataType.DOUBLE: np.float64}[DataType(dtype)]
        self.items[pointer].four = (kind, self._ints(shape, n), self._ints(strides, n))

    def cudnnCreatePoolingDescriptor(self, out):
        return self.cudnnCreateTensorDescriptor(out)

    def cudnnDestroyPoolingDescriptor(self, pointer):
        return self.cudnnDestroyTensorDescriptor(pointer)

    def cudnnSetPoolingNdDescriptor(self, pointer, mode, nan, n, window, pad, stride):
        assert nan == 1
        names = ("max", "average_inc_pad", "average_exc_pad", "max_deterministic")
        self.mode, axes = names[mode], (window, stride, pad)
        self.window, self.stride, self.pad = (self._ints(a, n) for a in axes)

    def cudnnPoolingForward(self, handle, descriptor, alpha, x_desc, x, beta, y_desc, y):
        got = reference.pool(self._four(x_desc, x), self.window, self.stride, self.mode, self.pad)
        self._scale(self._four(y_desc, y), got, alpha, beta)

    def cudnnPoolingBackward(self, handle, descriptor, alpha, y_desc, y, dy_desc, dy, x_desc, x, beta, dx_desc, dx):
        x, y, dy = self._four(x_desc, x), self._four(y_desc, y), self._four(dy_desc, dy)
        got = reference.pool_grad(x, y, dy, self.window, self.stride, self.mode, self.pad)
        self._scale(self._four(dx_desc, dx), got, alpha, beta)


@pytest.mark.parametrize("text", (
    "x=float32:2x3x5x6 window=3x2 stride=2x1 pad=1x0", "x=float64:2x3x5x6:nhwc window=2x2 mode=average_exc_pad",
    "x=float32:1x2x4x5x6 window=2x3x2 stride=1x2x3 pad=1x1x0 mode=average_inc_pad",
))  # fmt: skip
def test_what_cudnn_is_called_with(monkeypatch, text):
    fake = PoolingFake().install(monkeypatch)
    forward, backward = PoolProblem.parse(f"pool {text}"), PoolProblem.parse(f"pool_grad {text}")
    stores = {n: np.full(getattr(backward, n).size, np.nan, backward.x.dtype) for n in ("x", "y", "dy", "dx")}
    itemsize = backward.x.itemsize

    def array(name):
        spec = getattr(backward, name)
        return view(stores[name].ctypes.data, stores[name].dtype.type, spec.shape, spec.strides)

    x, y, dy, dx = (stores[n].ctypes.data for n in ("x", "y", "dy", "dx"))
    array("x")[...], array("dy")[...] = RNG.standard_normal(backward.x.shape), RNG.standard_normal(backward.y.shape)
    policy = Policy(device=0)
    assert cudnn_pool.supports(forward, policy) == cudnn_pool.supports(backward, policy) == ""
    cudnn_pool.plan(forward, policy, None).run((x,), (y,), None, 7)
    cudnn_pool.plan(backward, policy, None).run((x, y, dy), (dx,), None, 7)
    assert not fake.problems
    if forward.is_max:
        assert fake.mode == "max_deterministic"
    arguments = (forward.window, forward.stride, forward.mode, forward.pad)
    close = {"rtol": 2.0 ** (-23 if itemsize == 4 else -52), "atol": 0}
    np.testing.assert_allclose(array("y"), reference.pool(array("x"), *arguments), **close)
    np.testing.assert_allclose(
        array("dx"), reference.pool_grad(array("x"), array("y"), array("dy"), *arguments), **close
    )


WIDE = "x=float32:2x3x4x5:500,100,10,1 y=float32:2x3x2x2:nhwc"


@pytest.mark.parametrize(("text", "says"), [
    (f"{WIDE} dy=float32:2x3x2x2:nhwc dx=float32:2x3x4x5", "same strides in x and dx, got \\(500"),
    (f"{WIDE} dy=float32:2x3x2x2 dx=float32:2x3x4x5:500,100,10,1", "same strides in y and dy, got \\(12"),
    ("x=float32:1x3x4x5:999,20,5,1 dx=float32:1x3x4x5:60,20,5,1 dy=float32:1x3x2x2:7,4,2,1", ""),  # strides that nothing reads
])  # fmt: skip
@pytest.mark.parametrize("mode", ["max", "average_inc_pad"])
def test_cudnns_gradient_needs_pairs_of_the_same_strides(monkeypatch, text, says, mode):
    """cudnnPoolingBackward documents CUDNN_STATUS_BAD_PARAM for others; what is admitted is described to it as it asks."""
    fake, problem = PoolingFake().install(monkeypatch), PoolProblem.parse(f"pool_grad {text} window=2x2 mode={mode}")
    refused = cudnn_pool.supports(problem, Policy(device=0))
    assert re.search(says, refused) if says else refused == ""
    if not says:
        executable = cudnn_pool.plan(problem, Policy(device=0), None)
        told = [item.four[2] for item in fake.items.values() if hasattr(item, "four")]
        assert told[0] == told[3] and told[1] == told[2] and executable


def test_what_ctypes_would_cut_to_32_bits_is_refused():
    problem = PoolProblem.parse("pool x=float32:1x1x4x4 window=2x2 stride=4294967297x1")
    assert "above 2**31" in cudnn_pool.supports(problem, Policy(device=0))
    with pytest.raises(NotSupportedError, match="32 bits"):
        _tensors.ints((1, 2**32 + 1))


@pytest.mark.parametrize(("text", "policy", "says"), [
    ("x=float32:1x1x4x4 window=2x2 mode=sum", {}, "has no mode sum"),
    ("x=float32:1x1x4x4 window=2x2", {"determinism": "batch_invariant"}, "guarantees run_to_run at best"),
    ("x=float32:1x1x4x4 window=2x2", {"precision": "float64"}, "not in float64"),
    ("x=float32:1x1x4x4:16,16,-4,1 window=2x2", {}, "positive strides only"),
    ("x=float32:2x1x4x4:2147483648,16,4,1 window=2x2", {}, "more than 2\\*\\*31 elements"),
])  # fmt: skip
def test_what_cudnn_is_not_asked_for(text, policy, says):
    assert re.search(says, cudnn_pool.supports(PoolProblem.parse(f"pool {text}"), Policy(device=0, **policy)))


# ---- numbadnn.theano -------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_theanos_names():
    from numbadnn import theano

    x = RNG.standard_normal((2, 2, 6, 6)).astype("float32")
    for mode in MODES:
        y = theano.dnn_pool(x, (2, 2), mode=mode)
        assert (y == numbadnn.pool(x, (2, 2), (1, 1), mode)).all()
        y = theano.GpuDnnPool(mode)(x, np.array([3, 3]), np.array([2, 2]), np.array([1, 1]))
        assert (y == numbadnn.pool(x, (3, 3), (2, 2), mode, (1, 1))).all()
        dx = theano.GpuDnnPoolGrad(mode)(x, y, y, [3, 3], [2, 2], [1, 1])
        assert (dx == numbadnn.pool_grad(x, y, y, (3, 3), (2, 2), mode, (1, 1))).all()
    assert theano.GpuDnnPool("average").mode == "average_inc_pad"
    desc = theano.GpuDnnPoolDesc((2, 2, 2), (1, 1, 1), "max", (0, 0, 0))
    assert desc().get_ndim() == 3
    left_out = theano.GpuDnnPoolDesc((2, 2, 2), None)
    assert (left_out.stride, left_out.pad) == ((1, 1, 1), (0, 0, 0))
    with pytest.raises(ValueError, match="mode: expected one of"):
        theano.GpuDnnPoolBase("min")
    with pytest.raises(ValueError, match="stride: expected 2 integers"):
        theano.GpuDnnPoolDesc((2, 2), (1, 1, 1))
    with pytest.raises(ValueError, match="ws: expected 2 or 3 integers"):
        theano.GpuDnnPoolDesc((2,))
    for bad in (2, {2, 3}):
        with pytest.raises(TypeError, match="ws: expected 2 or 3 integers"):
            theano.GpuDnnPoolDesc(bad)


@pytest.mark.parametrize("width", [31, 32, 33, 47, 65])
@pytest.mark.parametrize("mode", ["max", "average_exc_pad"])
def test_rows_of_any_width_are_given_their_last_column(width, mode):
    """With a stride of two, columns are given their gradients in pairs; of an odd row the last has none to pair with."""
    rng = np.random.default_rng(width)
    x = rng.standard_normal((1, 2, 5, width)).astype("float32")
    y = numbadnn.pool(x, (3, 3), (2, 2), mode, (1, 1))
    dy = rng.integers(-4, 5, y.shape).astype("float32")
    got = np.full_like(x, np.nan)
    numbadnn.pool_grad(x, y, dy, (3, 3), (2, 2), mode, (1, 1), result=got)
    exact = reference.pool_grad(x, y, dy, (3, 3), (2, 2), mode, (1, 1))
    np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-6)
