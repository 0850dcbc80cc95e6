"""Lines (N, C, L): conv1d, causal_conv1d's gradients and pooling, against the reference, SciPy and images of one row."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import signal
from simulated import checks_passed

import numbadnn
from numbadnn import reference

RNG = np.random.default_rng(11)
DTYPES = ("float16",)


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Small integers: every sum of products here is exact in every dtype."""
    return RNG.integers(-2, 3, shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


#: of conv1d: (N, C, L), (K, C/groups, S), parameters
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 11), (4, 3, 3), {}),
    ((2, 3, 11), (4, 3, 3), {"border_mode": "half", "subsample": 2}),
    ((1, 4, 9), (6, 2, 2), {"border_mode": "full", "num_groups": 2, "filter_flip": False}),
    ((3, 2, 12), (2, 2, 3), {"border_mode": ((2, 0),), "filter_dilation": (2,), "subsample": (1,)}),
    ((2, 4, 7), (4, 1, 3), {"border_mode": 1, "num_groups": 4}),
    ((2, 2, 8), (3, 4, 2, 2), {"unshared": True, "subsample": 2}),
    ((0, 2, 8), (3, 2, 3), {}),
]


@pytest.mark.parametrize(
    ("image", "kernel", "more", "dtype"),
    [*((*case, "float32") for case in CASES), *((*CASES[1], dtype) for dtype in DTYPES)],
    ids=str,
)
def test_conv1d_in_three_directions(image: Any, kernel: Any, more: dict[str, Any], dtype: str) -> None:
    x, w = numbers(*image, dtype=dtype), numbers(*kernel, dtype=dtype)
    y = numbadnn.conv1d(x, w, **more)
    exact = reference.conv1d(x, w, **more)
    assert y.dtype == x.dtype and np.array_equal(y.astype(float), exact)
    g = numbers(*y.shape, dtype=dtype)
    dx = numbadnn.conv1d_grad_wrt_inputs(g, w, (None, None, image[2]), **more)
    assert np.array_equal(dx.astype(float), reference.conv1d_grad_wrt_inputs(g, w, image, **more))
    dw = numbadnn.conv1d_grad_wrt_weights(x, g, (*[None] * (len(kernel) - 1), kernel[-1]), **more)
    assert np.array_equal(dw.astype(float), reference.conv1d_grad_wrt_weights(x, g, kernel, **more))


def test_conv1d_is_scipys() -> None:
    x, w = RNG.standard_normal((1, 1, 50)), RNG.standard_normal((1, 1, 7))
    for mode, ours in (("valid", "valid"), ("full", "full"), ("same", "half")):
        assert np.allclose(numbadnn.conv1d(x, w, border_mode=ours)[0, 0], signal.convolve(x[0, 0], w[0, 0], mode))
    correlated = numbadnn.conv1d(x, w, filter_flip=False)[0, 0]
    assert np.allclose(correlated, signal.correlate(x[0, 0], w[0, 0], "valid"))


def test_a_line_is_an_image_of_one_row_and_no_array_is_copied() -> None:
    x, w = numbers(2, 9, 3).transpose(0, 2, 1), numbers(4, 3, 5)[:, :, ::2]
    more = {"alpha": 2.0, "algo": None, "precision": "float32", "accuracy": "elementwise", "backend": "cpu"}
    y = numbadnn.conv1d(x, w, **more)
    last = numbadnn.last_call()
    assert last is not None and last.problem.startswith("conv2d x=float32:2x3x1x9:nhwc w=float32:4x3x1x3:15,5,3,2")
    assert y.transpose(0, 2, 1).flags.c_contiguous, "channels last as the input"
    assert np.array_equal(y, numbadnn.conv2d(x[:, :, None], w[:, :, None], **more)[:, :, 0])
    explained = numbadnn.explain(numbadnn.conv1d, x, w)
    assert str(explained.problem) == str(numbadnn.explain(numbadnn.conv2d, x[:, :, None], w[:, :, None]).problem)


def test_out_beta_and_a_kept_plan() -> None:
    x, w = numbers(2, 3, 9), numbers(4, 3, 3)
    out = np.ones((2, 7, 4), np.float32).transpose(0, 2, 1)
    assert numbadnn.conv1d(x, w, beta=3.0, out=out) is out
    assert np.array_equal(out, reference.conv1d(x, w) + 3)
    plan = numbadnn.plan(numbadnn.conv1d, x, w)
    assert np.array_equal(plan(x, w), out - 3) and np.array_equal(plan(x, w, out=np.empty((2, 4, 7), "f4")), out - 3)
    with pytest.raises(ValueError, match="out: this Plan was made for float32:2x4x7, got float32:2x4x8"):
        plan(x, w, out=np.empty((2, 4, 8), "f4"))
    with pytest.raises(ValueError, match="overlaps an input"):
        numbadnn.conv1d(x, np.ones((3, 3, 1), "f4"), out=x)


def test_mixed_dtypes_are_cast() -> None:
    x, w = numbers(2, 3, 9, dtype="float64"), numbers(4, 3, 3)
    y = numbadnn.conv1d(x, w)
    assert y.dtype == np.float64 and np.array_equal(y, reference.conv1d(x, w))


@pytest.mark.parametrize(
    "more", ({}, {"subsample": 2, "filter_dilation": 3}, {"num_groups": 2, "filter_flip": False}), ids=str
)
def test_causal_gradients_are_adjoint(more: dict[str, Any]) -> None:
    groups = more.get("num_groups", 1)
    x, w = numbers(2, 4, 10), numbers(6, 4 // groups, 3)
    g = numbers(*numbadnn.causal_conv1d(x, w, **more).shape)
    dx = numbadnn.causal_conv1d_grad_wrt_inputs(g, w, x.shape, **more)
    dw = numbadnn.causal_conv1d_grad_wrt_weights(x, g, w.shape, **more)
    inner = np.sum(numbadnn.causal_conv1d(x, w, **more).astype(float) * g)
    assert inner == np.sum(dx.astype(float) * x) == np.sum(dw.astype(float) * w)
    assert np.array_equal(dx, reference.causal_conv1d_grad_wrt_inputs(g, w, x.shape, **more))
    assert np.array_equal(dw, reference.causal_conv1d_grad_wrt_weights(x, g, w.shape, **more))


def test_causal_unshared_gradients() -> None:
    x, w, g = numbers(2, 3, 5), numbers(4, 5, 3, 2), numbers(2, 4, 5)
    dx = numbadnn.causal_conv1d_grad_wrt_inputs(g, w, x.shape, unshared=True)
    dw = numbadnn.causal_conv1d_grad_wrt_weights(x, g, (None, None, None, 2), unshared=True)
    assert np.array_equal(dx, reference.causal_conv1d_grad_wrt_inputs(g, w, x.shape, unshared=True))
    assert np.array_equal(dw, reference.causal_conv1d_grad_wrt_weights(x, g, w.shape, unshared=True))


@pytest.mark.parametrize(
    ("message", "call"),
    (
        (r"input: expected 3 dimensions, got 2 .*; input\[None\] is a batch of one with 3 channels",
         lambda x, w: numbadnn.conv1d(x[0], w)),
        (r"subsample: expected a tuple of 1 integers", lambda x, w: numbadnn.conv1d(x, w, subsample=(1, 1))),
        (r"subsample: expected an integer >= 1, got 0", lambda x, w: numbadnn.conv1d(x, w, subsample=0)),
        (r"window \(30,\) on image \(9,\)", lambda x, w: numbadnn.conv1d(x, np.ones((4, 3, 30), "f4"))),
        (r"input_shape: expected \(batch, channels, length\), the last 1 integers",
         lambda x, w: numbadnn.conv1d_grad_wrt_inputs(x, w[:3], None)),
        (r"filter_shape: expected \(filters, channels, length\)",
         lambda x, w: numbadnn.causal_conv1d_grad_wrt_weights(x, x, None)),
        (r"if its channels are last: moveaxis\(input, -1, 1\)",
         lambda x, w: numbadnn.conv1d(x.transpose(0, 2, 1), w)),
        (r"ws: expected no more than the padded image of img, \(2, 3, 9\)", lambda x, w: numbadnn.pool(x, (10,))),
    ),
)  # fmt: skip
def test_errors_speak_of_lines(message: str, call: Any) -> None:
    with pytest.raises(ValueError, match=message):
        call(numbers(2, 3, 9), numbers(4, 3, 3))


@pytest.mark.parametrize("mode", ("max", "max_deterministic", "sum", "average_inc_pad", "average_exc_pad"))
@pytest.mark.parametrize(("ws", "stride", "pad"), (((2,), (2,), None), (3, 2, 1), ((4,), None, (1,))), ids=str)
def test_pooling_of_lines(ws: Any, stride: Any, pad: Any, mode: Any) -> None:
    x = 4 * 3 * numbers(2, 3, 10)  # what 3 and 4 divide
    y = numbadnn.pool(x, ws, stride, mode, pad)
    exact = reference.pool(x, ws, stride, mode, pad)
    assert y.shape == exact.shape and np.allclose(y.astype(float), exact, rtol=2.0**-8, atol=0)
    g = 12 * numbers(*y.shape)
    dx = numbadnn.pool_grad(x, y, g, ws, stride, mode, pad)
    assert np.array_equal(dx.astype(float), reference.pool_grad(x, y, g, ws, stride, mode, pad))
    last = numbadnn.last_call()
    assert last is not None and last.problem.startswith("pool_grad x=") and ":2x3x1x10" in last.problem


def test_one_number_stands_for_every_axis() -> None:
    x, w = numbers(1, 2, 8, 8), numbers(3, 2, 2, 2)
    y = numbadnn.conv2d(x, w, subsample=2, filter_dilation=np.int64(2))
    assert np.array_equal(y, numbadnn.conv2d(x, w, subsample=(2, 2), filter_dilation=(2, 2)))
    up = numbadnn.conv2d_transpose(y, w, x.shape, input_dilation=2, filter_dilation=2)
    assert up.shape == x.shape
    assert np.array_equal(numbadnn.pool(x, 2, 2), numbadnn.pool(x, (2, 2), (2, 2)))
    assert np.array_equal(numbadnn.pool(x[:, :, None], 1, pad=0), x[:, :, None])


def test_check_takes_lines_and_axes() -> None:
    x, w = numbers(2, 3, 9), numbers(4, 3, 3)
    for function, arrays, more in (
        (numbadnn.conv1d, (x, w), {"subsample": 2}),
        (numbadnn.conv1d, (x, w), {"beta": 2.0, "out": np.ones((2, 4, 7), "f4")}),
        (numbadnn.conv1d_grad_wrt_weights, (x, numbers(2, 4, 7), (None, None, 3)), {}),
        (numbadnn.causal_conv1d_grad_wrt_inputs, (numbers(2, 4, 9), w, x.shape), {}),
        (numbadnn.pool, (x, 2), {}),
        (numbadnn.softmax, (x.transpose(2, 0, 1),), {"axis": 0}),
        (numbadnn.separable_conv2d_grad_wrt_weights,
         (numbers(1, 3, 4, 4), numbers(6, 1, 2, 2), numbers(2, 6, 1, 1), numbers(1, 2, 3, 3), 3), {}),
    ):  # fmt: skip
        found = numbadnn.check(function, *arrays, backends="cpu", **more)
        assert found.ok and "ok" in {row.status for row in found.rows}, function


def test_lines_and_axes_on_a_simulated_gpu() -> None:
    assert checks_passed("lines") == 15
