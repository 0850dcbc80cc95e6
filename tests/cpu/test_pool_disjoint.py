"""The gradient of a maximum on the CPU, over windows apart and overlapping: parts of vectors, ties, what no window reaches."""

import numpy as np
import pytest

import numbadnn
from numbadnn import reference

SHAPES = (
    ((2, 3, 8, 8), (2, 2)),
    ((1, 2, 7, 9), (2, 2)),  # a row and a column that no window reaches: less than a vector
    ((2, 5, 33, 70), (2, 2)),  # two vectors and a part of one, and a row left
    ((1, 2, 6, 40), (3, 2)),
    ((2, 3, 5, 6, 34), (2, 2, 2)),  # a plane left
    ((1, 7, 9, 13), (3, 3)),
    ((1, 33, 5, 7, 6), (2, 3, 2)),
    ((1, 4, 2, 2), (2, 2)),
    ((1, 1, 16, 3), (4, 2)),
)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize(("shape", "window"), SHAPES)
def test_agrees_with_the_reference_to_the_bit(shape, window, last, dtype):
    """Small integers, among which are many ties, and NaNs."""
    rng = np.random.default_rng(3)
    x = rng.integers(-2, 3, shape).astype(dtype)
    x.ravel()[rng.integers(0, x.size, 3)] = np.nan
    y = numbadnn.pool(x, window, window)
    dy = rng.integers(-3, 4, y.shape).astype(dtype)
    want = reference.pool_grad(*(a.astype(np.float64) for a in (x, y, dy)), window, window)
    if last:
        axes = (0, *range(2, len(shape)), 1)
        x, y, dy = (np.ascontiguousarray(a.transpose(axes)).transpose(np.argsort(axes)) for a in (x, y, dy))
    got = numbadnn.pool_grad(x, y, dy, window, window)
    np.testing.assert_array_equal(np.asarray(got, np.float64), want)
    kernel = numbadnn.plan(numbadnn.pool_grad, x, y, dy, window, window).executable.facts["kernel"]
    cells, far = last and shape[1] >= 4, last and shape[1] > 1
    assert kernel == ("cells_disjoint" if cells else "rows_grad" if far or window[-1] != 2 else "pairs_disjoint")


def test_what_it_does_not_take_is_taken_by_the_others():
    x = np.ones((1, 2, 6, 6), np.float32)
    for window, stride, pad, mode in (
        ((2, 2), (1, 1), (0, 0), "max"),
        ((2, 2), (2, 2), (1, 1), "max"),
        ((3, 3), (3, 3), (0, 0), "max"),
        ((2, 2), (2, 2), (0, 0), "sum"),
    ):
        y = numbadnn.pool(x, window, stride, mode, pad)
        plan = numbadnn.plan(numbadnn.pool_grad, x, y, y, window, stride, mode, pad)
        assert plan.executable.facts["kernel"] == "rows_grad", (window, stride, pad, mode)
    views = x[:, :, :, ::2], np.ones((1, 2, 3, 1), np.float32)  # columns that are no neighbours
    plan = numbadnn.plan(numbadnn.pool_grad, views[0], views[1], views[1], (2, 2), (2, 2))
    assert plan.executable.facts["kernel"] == "rows_grad"


@pytest.mark.parametrize(
    ("size", "window", "stride", "pad"),
    [
        ((40, 37), (3, 3), (2, 2), (1, 1)),
        ((19, 70), (3, 3), (1, 1), (1, 1)),
        ((40, 24), (16, 3), (5, 1), (8, 0)),  # the tallest whose rows' maxima are kept
        ((40, 24), (17, 3), (5, 2), (3, 1)),  # and one that is taller
        ((9, 80), (2, 9), (1, 2), (0, 4)),  # more windows over a column than are told apart without a list
        ((7, 9, 40), (3, 3, 3), (2, 2, 2), (1, 1, 1)),
        ((6, 7, 40), (3, 2, 5), (1, 1, 1), (0, 1, 2)),
    ],
)
def test_windows_that_overlap_give_to_the_first_maximum(size, window, stride, pad):
    """As above; bands of rows begin anew, and rows of windows share the maxima of rows of the image."""
    rng = np.random.default_rng(4)
    x = rng.integers(-2, 3, (2, 5, *size)).astype("float32")
    x.ravel()[rng.integers(0, x.size, 9)] = np.nan
    x[:, 1] = -np.inf
    y = numbadnn.pool(x, window, stride, "max", pad)
    dy = rng.integers(-3, 4, y.shape).astype("float32")
    want = reference.pool_grad(*(a.astype(np.float64) for a in (x, y, dy)), window, stride, "max", pad)
    axes = (0, *range(2, x.ndim), 1)
    for last in (False, True):
        if last:
            x, y, dy = (np.ascontiguousarray(a.transpose(axes)).transpose(np.argsort(axes)) for a in (x, y, dy))
        np.testing.assert_array_equal(numbadnn.pool_grad(x, y, dy, window, stride, "max", pad), want)
