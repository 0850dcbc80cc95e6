"""Gradients of transposed and separable convolutions: adjoint to the bit on small integers, and equal to the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import reference

RNG = np.random.default_rng(3)


def numbers(*shape: int) -> np.ndarray:
    return RNG.integers(-2, 3, shape).astype("float32")


@pytest.mark.parametrize("axes", (2, 3))
@pytest.mark.parametrize("more", ({}, {"num_groups": 2, "filter_flip": False, "border_mode": 1}), ids=str)
def test_transposed(axes: int, more: dict[str, Any]) -> None:
    name, groups = f"conv{axes}d_transpose", more.get("num_groups", 1)
    x, w = numbers(2, 6, *(3, 4, 2)[:axes]), numbers(6, 4 // groups, *(3, 2, 3)[:axes])
    crop = 2 * more.get("border_mode", 0)
    shape = (2, 4, *(2 * (i - 1) + k - crop for i, k in zip(x.shape[2:], w.shape[2:], strict=True)))
    more = {**more, "input_dilation": 2}
    y = getattr(numbadnn, name)(x, w, shape, **more)
    g = numbers(*y.shape)
    dx = getattr(numbadnn, f"{name}_grad_wrt_inputs")(g, w, **more)
    dw = getattr(numbadnn, f"{name}_grad_wrt_weights")(x, g, w.shape, **more)
    assert dx.shape == x.shape and dw.shape == w.shape
    assert np.sum(y * g) == np.sum(dx * x) == np.sum(dw * w)
    assert np.array_equal(dx, getattr(reference, f"{name}_grad_wrt_inputs")(g, w, **more))
    assert np.array_equal(dw, getattr(reference, f"{name}_grad_wrt_weights")(x, g, w.shape, **more))
    plan = numbadnn.plan(getattr(numbadnn, f"{name}_grad_wrt_weights"), x, g, w.shape, **more)
    assert np.array_equal(plan(x, g), dw), "a Plan takes the arrays in the function's order"


def test_transposed_unshared() -> None:
    x, w = numbers(2, 3, 2, 2), numbers(3, 2, 2, 4, 2, 2)
    g = numbers(2, 4, 3, 3)
    dx = numbadnn.conv2d_transpose_grad_wrt_inputs(g, w, unshared=True)
    dw = numbadnn.conv2d_transpose_grad_wrt_weights(x, g, w.shape, unshared=True)
    y = numbadnn.conv2d_transpose(x, w, g.shape, unshared=True)
    assert np.sum(y * g) == np.sum(dx * x) == np.sum(dw * w)


@pytest.mark.parametrize("axes", (2, 3))
@pytest.mark.parametrize("more", ({}, {"subsample": 2, "border_mode": "half", "filter_flip": False}), ids=str)
def test_separable(axes: int, more: dict[str, Any]) -> None:
    name = f"separable_conv{axes}d"
    x, w, mix = numbers(2, 3, *(5, 4, 3)[:axes]), numbers(6, 1, *(3, 2, 3)[:axes]), numbers(4, 6, *(1,) * axes)
    y = getattr(numbadnn, name)(x, w, mix, 3, **more)
    g = numbers(*y.shape)
    dx = getattr(numbadnn, f"{name}_grad_wrt_inputs")(g, w, mix, 3, (None, None, *x.shape[2:]), **more)
    dw, dmix = getattr(numbadnn, f"{name}_grad_wrt_weights")(x, w, mix, g, 3, **more)
    assert np.sum(y * g) == np.sum(dx * x) == np.sum(dw * w) == np.sum(dmix * mix)
    assert np.array_equal(dx, getattr(reference, f"{name}_grad_wrt_inputs")(g, w, mix, 3, x.shape, **more))
    exact = getattr(reference, f"{name}_grad_wrt_weights")(x, w, mix, g, 3, **more)
    assert np.array_equal(dw, exact[0]) and np.array_equal(dmix, exact[1])
    out = np.empty_like(w), np.empty_like(mix)
    found = getattr(numbadnn, f"{name}_grad_wrt_weights")(x, w, mix, g, 3, out=out, **more)
    assert found[0] is out[0] and found[1] is out[1] and np.array_equal(out[1], dmix)


def test_separable_bad_input() -> None:
    x, w, mix, g = numbers(2, 3, 5, 4), numbers(6, 1, 3, 2), numbers(4, 6, 1, 1), numbers(2, 4, 3, 3)
    with pytest.raises(ValueError, match="input_shape: expected 4 numbers"):
        numbadnn.separable_conv2d_grad_wrt_inputs(g, w, mix, 3, None)
    with pytest.raises(ValueError, match="num_channels: expected input's 3 channels, got 2"):
        numbadnn.separable_conv2d_grad_wrt_weights(x, w, mix, g, 2)
    with pytest.raises(ValueError, match="out: expected a tuple of two arrays, .* got ndarray"):
        numbadnn.separable_conv2d_grad_wrt_weights(x, w, mix, g, 3, out=w)
    with pytest.raises(ValueError, match="overlaps an input"):
        numbadnn.separable_conv2d_grad_wrt_weights(x, w, mix, g, 3, out=(w, np.empty_like(mix)))
    with pytest.raises(TypeError, match="ask for the plan of each conv2d_grad_wrt_inputs by itself"):
        numbadnn.plan(numbadnn.separable_conv2d_grad_wrt_inputs, g, w, mix, 3, x.shape)


def test_separable_gradients_of_filters_write_both_results_or_none() -> None:
    x, w, mix = np.ones((2, 3, 6, 5)), np.ones((6, 1, 3, 3)), np.ones((4, 6, 1, 1))
    g = np.ones((2, 4, 4, 3))
    memory, first, second = np.full(77, np.nan), np.full_like(w, np.nan), np.full_like(mix, np.nan)
    for outs, error, text in (
        (
            (memory[:54].reshape(w.shape), memory[53:].reshape(mix.shape)),
            ValueError,
            "out: expected arrays with memory",
        ),
        ((np.empty((6, 1, 3, 4)), second), ValueError, r"out: expected shape \(6, 1, 3, 3\), got"),
        ((first, np.empty((4, 6, 1, 1), "float32")), TypeError, "out: expected dtype float64"),
        ([first, second], ValueError, "out: expected a tuple of two arrays, .* got list"),
        ((first,), ValueError, "out: expected a tuple of two arrays, .* got 1 in a tuple"),
    ):
        with pytest.raises(error, match=text):
            numbadnn.separable_conv2d_grad_wrt_weights(x, w, mix, g, 3, out=outs)
    assert all(np.isnan(a).all() for a in (memory, first, second))
