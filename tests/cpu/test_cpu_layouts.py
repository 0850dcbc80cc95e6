"""Upsampling, the spatial transformer and dropout on the CPU: the layouts that have kernels of their own agree."""

import numpy as np
import pytest

import numbadnn

#: fewer than a vector, whole vectors of any machine, and some left over
CHANNELS = (3, 8, 19, 64, 83)


def channels_last(array):
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def numbers(shape, dtype, seed=0):
    """Small integers, of which every sum below is exact."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("channels", CHANNELS)
def test_upsampling_is_the_same_in_either_layout(channels, dtype):
    x, dy = numbers((2, channels, 5, 6), dtype), numbers((2, channels, 10, 12), dtype)
    up = numbadnn.bilinear_upsampling
    down = numbadnn.bilinear_upsampling_grad
    assert np.array_equal(up(x, 2), up(channels_last(x), 2))
    assert np.array_equal(down(dy, x.shape, 2), down(channels_last(dy), x.shape, 2))


@pytest.mark.parametrize("channels", CHANNELS)
def test_upsampling_does_not_look_at_pixels_of_weight_0(channels):
    x = np.ones((1, channels, 4, 4), np.float32)
    x[:, :, 1] = np.nan
    packed, last = (numbadnn.bilinear_upsampling(a, 2) for a in (x, channels_last(x)))
    assert np.array_equal(packed, last, equal_nan=True)
    assert np.isfinite(last[:, :, [0, 4]]).all() and np.isnan(last[:, :, [1, 2, 3]]).all()


def grid_of(shape, dtype):
    """Points in quarters of pixels of an image of 9x9: inside, on its edge, beyond it, and one that is NaN."""
    grid = (np.random.default_rng(3).integers(-22, 23, (*shape, 2)) / 16).astype(dtype)
    grid[0, :6] /= 4  # far inside: whole vectors of points
    grid[0, 6, 3] = np.nan
    return grid


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("channels", CHANNELS)
def test_sampler_is_the_same_in_either_layout(channels, dtype):
    img, grid = numbers((2, channels, 9, 9), dtype), grid_of((2, 17, 30), dtype)
    dy = numbers((2, channels, 17, 30), dtype, 1)
    assert np.array_equal(
        numbadnn.spatialtf_sampler(img, grid), numbadnn.spatialtf_sampler(channels_last(img), grid), equal_nan=True
    )
    packed = numbadnn.spatialtf_sampler_grad(img, grid, dy)
    last = numbadnn.spatialtf_sampler_grad(channels_last(img), grid, channels_last(dy))
    for a, b in zip(packed, last, strict=True):
        assert np.array_equal(a, b, equal_nan=True)


def test_sampler_does_not_look_at_pixels_outside_or_of_weight_0():
    img = np.full((1, 19, 9, 9), np.inf, np.float32)
    img[:, :, 4] = 2
    grid = np.zeros((1, 4, 32, 2), np.float32)
    grid[..., 0] = np.linspace(-0.9, 0.9, 32)
    for image in (img, channels_last(img)):
        assert (numbadnn.spatialtf_sampler(image, grid) == 2).all()


@pytest.mark.parametrize("offset", [0, 3, (1 << 40) + 5])
@pytest.mark.parametrize("plane", [(8, 8), (7, 7), (1, 130), (33, 3)])
@pytest.mark.parametrize("channels", [3, 16, 70])
def test_dropout_has_the_same_mask_in_either_layout(channels, plane, offset):
    x = np.random.default_rng(0).standard_normal((2, channels, *plane)).astype(np.float32)
    packed, state = numbadnn.dropout(x, 0.4, offset=offset)
    last = channels_last(x)
    y, _ = numbadnn.dropout(last, 0.4, offset=offset)
    assert y.strides == last.strides and np.array_equal(packed, y)
    assert np.array_equal(packed, numbadnn.dropout_grad(last, state))
