"""Transposed, separable and causal convolution, and conv3d on frames: golden values, and equality with what they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import reference

RNG = np.random.default_rng(1)


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.integers(-2, 3, shape).astype(dtype)


# ---- transposed ------------------------------------------------------------------------------------------------------


def test_transposed_golden_value_of_theano() -> None:
    x, w = np.ones((2, 2, 4, 4), np.float32), np.ones((2, 1, 4, 4), np.float32)
    y = numbadnn.conv2d_transpose(x, w, (2, 1, 10, 10), input_dilation=(2, 2))
    line = np.array([1, 1, 2, 2, 2, 2, 2, 2, 1, 1])
    assert y.shape == (2, 1, 10, 10)
    assert np.array_equal(y[1, 0], 2 * np.outer(line, line))


@pytest.mark.parametrize("axes", (2, 3))
@pytest.mark.parametrize("flip", (True, False))
def test_transposed_is_the_gradient_with_respect_to_the_input(axes: int, flip: bool) -> None:
    x, w = numbers(2, 6, *(3, 4, 2)[:axes]), numbers(6, 2, *(3, 2, 3)[:axes])
    shape = (2, 4, *(6, 8, 4)[:axes])
    more = {"border_mode": ((1, 0), (0, 0), (1, 1))[:axes], "filter_flip": flip, "num_groups": 2}
    y = getattr(numbadnn, f"conv{axes}d_transpose")(x, w, (None, None, *shape[2:]), input_dilation=(2,) * axes, **more)
    gradient = getattr(numbadnn, f"conv{axes}d_grad_wrt_inputs")(x, w, shape, subsample=(2,) * axes, **more)
    assert np.array_equal(y, gradient)
    same = getattr(reference, f"conv{axes}d_transpose")(x, w, shape, input_dilation=(2,) * axes, **more)
    assert np.array_equal(y, same)


@pytest.mark.parametrize("axes", (2, 3))
@pytest.mark.parametrize(("groups", "dilation"), ((1, 1), (2, 1), (4, 2)))
def test_transposed_without_flip_is_pytorchs(axes: int, groups: int, dilation: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, w = numbers(2, 4, *(3, 5, 2)[:axes], dtype="f8"), numbers(4, 3, *(3, 2, 3)[:axes], dtype="f8")
    theirs = getattr(torch.nn.functional, f"conv_transpose{axes}d")(
        torch.from_numpy(x),
        torch.from_numpy(w),
        stride=2,
        padding=1,
        output_padding=1,
        groups=groups,
        dilation=dilation,
    ).numpy()
    ours = getattr(numbadnn, f"conv{axes}d_transpose")(
        x, w, theirs.shape, border_mode=1, input_dilation=(2,) * axes, filter_flip=False, num_groups=groups,
        filter_dilation=(dilation,) * axes,
    )  # fmt: skip
    assert np.array_equal(ours, theirs)


def test_transposed_unshared() -> None:
    w = numbers(3, 4, 4, 2, 3, 3)
    y = numbadnn.conv2d_transpose(numbers(1, 3, 4, 4), w, (1, 2, 6, 6), unshared=True)
    assert y.shape == (1, 2, 6, 6) and numbadnn.last_call().problem.startswith("conv2d_grad_wrt_inputs ")


# ---- separable -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", (2, 3))
@pytest.mark.parametrize(
    "parameters",
    (
        {},
        {"subsample": 2},
        {"border_mode": "full"},
        {"border_mode": "half", "filter_dilation": 2, "filter_flip": False},
        {"border_mode": ((1, 0), (0, 2), (3, 1)), "subsample": 3},
    ),
    ids=("valid", "stride2", "full", "dilation", "uneven"),
)
def test_separable(axes: int, parameters: dict[str, Any]) -> None:
    more = {k: (v,) * axes if type(v) is int else v for k, v in parameters.items()}
    if isinstance(more.get("border_mode"), tuple):
        more["border_mode"] = more["border_mode"][:axes]
    x = numbers(2, 2, *(6, 7, 6)[:axes])
    depthwise, pointwise = numbers(6, 1, *(3, 2, 3)[:axes]), numbers(5, 6, *(1,) * axes)
    name = f"separable_conv{axes}d"
    out = np.empty(getattr(reference, name)(x, depthwise, pointwise, 2, **more).shape, np.float32)
    shapes = (x.shape, depthwise.shape, pointwise.shape)
    assert getattr(numbadnn, name)(x, depthwise, pointwise, 2, *shapes, **more, out=out) is out
    assert np.array_equal(out, getattr(reference, name)(x, depthwise, pointwise, 2, **more))


def test_separable_writes_over_none_of_its_operands() -> None:
    """The second convolution alone, which writes, knows nothing of what the first reads."""
    x, depthwise, pointwise = numbers(1, 2, 3, 3), numbers(2, 1, 3, 3), numbers(2, 2, 1, 1)
    kept = x.copy(), depthwise.copy(), pointwise.copy()
    for operand in (x, depthwise.reshape(1, 2, 3, 3)):
        with pytest.raises(ValueError, match="^out: expected memory of its own, got an array that overlaps an input"):
            numbadnn.separable_conv2d(x, depthwise, pointwise, 2, border_mode=1, out=operand)
    with pytest.raises(ValueError, match="overlaps an input"):
        numbadnn.separable_conv2d(x, depthwise, pointwise, 2, border_mode=1, out=(x[:, ::-1],))
    for operand, was in zip((x, depthwise, pointwise), kept, strict=True):
        assert np.array_equal(operand, was)
    rows = np.zeros((1, 2, 6, 3), np.float32)  # out's rows lie between the image's
    image, out = rows[:, :, ::2], rows[:, :, 1::2]
    image[...] = x
    numbadnn.separable_conv2d(image, depthwise, pointwise, 2, border_mode=1, out=out)
    assert np.array_equal(out, numbadnn.separable_conv2d(x, depthwise, pointwise, 2, border_mode=1))


def test_separable_golden_value_of_theano() -> None:
    x = np.array([[[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]]], np.float32)
    x = np.concatenate([x, x], 1)
    depthwise = np.array([[[[3, 2, 1], [5, 4, 3], [3, 2, 1]]], [[[2, 1, 2], [3, 2, 1], [5, 4, 3]]]], np.float32)
    pointwise = np.array([[[[4]], [[3]]], [[[1]], [[2]]]], np.float32)
    expected = reference.separable_conv2d(x, depthwise, pointwise, 2)
    assert np.array_equal(numbadnn.separable_conv2d(x, depthwise, pointwise, 2), expected)
    assert expected.shape == (1, 2, 2, 2)


def test_separable_is_two_convolutions_to_explain() -> None:
    x, depthwise, pointwise = numbers(1, 2, 4, 4), numbers(2, 1, 2, 2), numbers(1, 2, 1, 1)
    for ask in (numbadnn.explain, numbadnn.plan):
        with pytest.raises(TypeError, match="separable_conv2d is several convolutions"):
            ask(numbadnn.separable_conv2d, x, depthwise, pointwise, 2)


# ---- causal ----------------------------------------------------------------------------------------------------------


def test_causal_golden_values_of_theano() -> None:
    x, w = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5), np.array([[[1, 10, 100]]], np.float32)
    assert numbadnn.causal_conv1d(x, w).ravel().tolist() == [1, 12, 123, 234, 345]
    assert numbadnn.causal_conv1d(x, w, filter_flip=False).ravel().tolist() == [100, 210, 321, 432, 543]


@pytest.mark.parametrize("stride", (1, 2))
@pytest.mark.parametrize("dilation", (1, 3))
@pytest.mark.parametrize("groups", (1, 2))
def test_causal_sees_nothing_of_the_future(stride: int, dilation: int, groups: int) -> None:
    x, w = numbers(2, 4, 17), numbers(6, 4 // groups, 3)
    more = {"subsample": stride, "filter_dilation": dilation, "num_groups": groups}
    y = numbadnn.causal_conv1d(x, w, w.shape, x.shape, **more)
    assert y.shape == (2, 6, 16 // stride + 1)
    assert np.array_equal(y, reference.causal_conv1d(x, w, **more))
    later = x.copy()
    later[..., 8:] = 7
    assert np.array_equal(numbadnn.causal_conv1d(later, w, **more)[..., : -(-8 // stride)], y[..., : -(-8 // stride)])


def test_causal_unshared_which_theano_could_not() -> None:
    x, w = numbers(2, 3, 9), numbers(4, 5, 3, 3)
    y = numbadnn.causal_conv1d(x, w, subsample=2, unshared=True)
    assert np.array_equal(y, reference.causal_conv1d(x, w, subsample=2, unshared=True))
    alone = numbadnn.causal_conv1d(x, np.ascontiguousarray(w[:, 3]), subsample=2)
    assert np.array_equal(y[..., 3], alone[..., 3])
    for images, length in ((2, 11), (0, 11), (1, 1)):
        more = {"subsample": 3, "filter_dilation": 2, "num_groups": 2, "filter_flip": False, "unshared": True}
        x, w = numbers(images, 4, length), numbers(6, (length - 1) // 3 + 1, 2, 3)
        assert np.array_equal(numbadnn.causal_conv1d(x, w, **more), reference.causal_conv1d(x, w, **more))


def test_causal_takes_views_mixed_dtypes_and_out() -> None:
    x, w = numbers(2, 3, 20)[:, ::-1, ::2], numbers(4, 3, 2, dtype="f8")
    out = np.zeros((2, 4, 20), "f8")[..., ::2]
    assert numbadnn.causal_conv1d(x, w, out=out) is out
    assert np.array_equal(out, reference.causal_conv1d(x, w))
    assert numbadnn.causal_conv1d(np.ones((0, 3, 5), "f4"), w).shape == (0, 4, 5)


# ---- conv3d on frames ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", (3, 1))
@pytest.mark.parametrize("border", ("valid", "full", "half", ("half", "valid", "full")), ids=str)
def test_frames(border: Any, time: int) -> None:
    x, w = numbers(2, 5, 3, 6, 5), numbers(4, time, 3, 2, 3)
    y = numbadnn.conv3d2d(x, w, x.shape, (4, None, 3, 2, 3), border)
    assert np.array_equal(y, reference.conv3d2d(x, w, border_mode=border))
    moved = [np.ascontiguousarray(a.swapaxes(1, 2)) for a in (x, w)]
    if isinstance(border, str):
        assert np.array_equal(y.swapaxes(1, 2), numbadnn.conv3d(*moved, border_mode=border))
    loops = np.zeros((2, 5 - time + 1, 4, 5, 3))
    if border == "valid":  # nested loops, as Theano's test has them
        for t in range(loops.shape[1]):
            for s in range(time):
                frame, kernel = x[:, t + time - 1 - s].astype(float), w[:, s].astype(float)
                loops[:, t] += reference.conv2d(frame, kernel)
        assert np.array_equal(y, loops)


def test_frames_with_out_and_mixed_dtypes() -> None:
    x, w = numbers(1, 4, 2, 5, 5), numbers(3, 2, 2, 3, 3, dtype="f8")
    out = np.empty((1, 3, 3, 3, 3), "f8")
    assert numbadnn.conv3d2d(x, w, out=out) is out
    assert np.array_equal(out, reference.conv3d2d(x, w))
