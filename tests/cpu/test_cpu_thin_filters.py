"""The gradient of the filters where a group has few: each way of laying out x and y, and what infinities may reach."""

from __future__ import annotations

import numpy as np
import pytest
from test_cpu_conv import check, laid_out, spec

from numbadnn.cpu.conv import im2col
from numbadnn.cpu.conv.thin.filters_plan import few_filters
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem

OP = "conv2d_grad_wrt_weights"
NHWC = ("nhwc", "", "nhwc")
CASES = {
    "lines in place": dict(x=(2, 3, 20, 33), w=(3, 1, 3, 3), padding=((1, 1), (1, 1)), groups=3),
    "lines narrower than a vector": dict(x=(3, 5, 9, 5), w=(5, 1, 3, 3), padding=((1, 1), (1, 1)), groups=5),
    "two filters": dict(x=(2, 3, 20, 33), w=(6, 1, 3, 5), padding=((1, 1), (2, 2)), groups=3),
    "one run, four filters": dict(x=(2, 6, 14, 14), w=(8, 3, 3, 3), padding=((1, 1), (1, 1)), groups=2),
    "filters that fill no tile": dict(x=(2, 4, 11, 21), w=(10, 2, 3, 4), padding=((1, 2), (0, 3)), groups=2),
    "every second column": dict(
        x=(2, 3, 23, 75), w=(3, 1, 3, 3), padding=((1, 0), (1, 1)), stride=(2, 2), groups=3, flip=False
    ),
    "one of two columns": dict(x=(1, 4, 9, 40), w=(8, 2, 1, 1), stride=(2, 2), groups=2),
    "every third column": dict(
        x=(2, 4, 23, 40), w=(6, 2, 5, 4), padding=((3, 1), (0, 2)), stride=(2, 3), dilation=(2, 1), groups=2
    ),
    "vectors of channels": dict(x=(2, 37, 9, 8), w=(37, 1, 3, 3), padding=((1, 1), (1, 1)), groups=37, layouts=NHWC),
    "vectors of channels, stride": dict(
        x=(2, 32, 12, 9),
        w=(32, 1, 3, 2),
        padding=((2, 1), (0, 1)),
        stride=(2, 3),
        dilation=(1, 2),
        groups=32,
        layouts=NHWC,
    ),
    "channels turned": dict(x=(2, 21, 9, 20), w=(21, 3, 3, 3), padding=((1, 1), (1, 1)), groups=7, layouts=NHWC),
    "channels turned, stride": dict(x=(1, 32, 9, 21), w=(64, 4, 3, 3), stride=(2, 2), groups=8, layouts=NHWC),
    "several bands": dict(x=(1, 2, 150, 150), w=(8, 1, 3, 3), padding=((1, 1), (1, 1)), groups=2),
    "bands of columns": dict(x=(1, 2, 3, 9001), w=(2, 1, 2, 3), padding=((1, 0), (1, 1)), stride=(1, 2), groups=2),
    "no pixel under some taps": dict(x=(1, 2, 1, 2), w=(2, 1, 5, 5), padding=((2, 2), (2, 2)), groups=2),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name):
    check(OP, **CASES[name])
    check(OP, **CASES[name], alpha=-0.75, beta=0.5, seed=1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(dtype):
    for name in (
        "lines in place",
        "one run, four filters",
        "every second column",
        "vectors of channels",
        "channels turned",
    ):
        check(OP, **CASES[name], dtype=dtype)


@pytest.mark.parametrize("name", [n for n in CASES if "bands" not in n])
def test_small_integers_to_the_bit(name):
    check(OP, **CASES[name], integers=True)


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_finite_goes_no_further(name):
    """An infinity in the image reaches the taps that meet it and no other, and leaves the bits of all others alone."""
    case = dict(CASES[name])
    layouts, shape, w = case.pop("layouts", ("", "", "")), case.pop("x"), case.pop("w")
    case = {"padding": ((0, 0), (0, 0)), "stride": (1, 1), "dilation": (1, 1)} | case
    out = [
        (n + sum(pad) - d * (taps - 1) - 1) // s + 1
        for n, pad, d, taps, s in zip(shape[2:], case["padding"], case["dilation"], w[2:], case["stride"], strict=True)
    ]
    rng = np.random.default_rng(0)
    shapes = zip((shape, w, (shape[0], w[0], *out)), layouts, strict=True)
    arrays = [laid_out(rng.standard_normal(s, np.float32), way) for s, way in shapes]
    x, filters, y = arrays
    problem = ConvProblem(OP, *(spec("float32", a) for a in arrays), **case)
    run = im2col.plan(problem, Policy(), None).run

    def gradient():
        filters[...] = np.nan
        run((x, y), (filters,), None, None)
        return filters.copy()

    y[...] = 0
    x[0, 0, 0, -1] = np.inf
    met = np.isnan(gradient())  # 0 * inf
    assert not met.all()
    y[...] = rng.standard_normal(y.shape, np.float32)
    x[0, 0, 0, -1] = 0
    clean = gradient()
    x[0, 0, 0, -1] = np.inf
    dirty = gradient()
    np.testing.assert_array_equal(np.isfinite(dirty), ~met)
    np.testing.assert_array_equal(dirty[~met], clean[~met])


def problem(groups, channels, filters, size, taps=3):
    image = Spec.of("float32", (2, groups * channels, size, size))
    out = Spec.of("float32", (2, groups * filters, size, size))
    kernels = Spec.of("float32", (groups * filters, channels, taps, taps))
    return ConvProblem(OP, image, kernels, out, padding=((taps // 2, taps // 2),) * 2, groups=groups)


@pytest.mark.parametrize(
    ("groups", "channels", "filters", "size", "taps", "expected"),
    [
        (32, 1, 1, 1, 3, True),
        (8, 4, 4, 3, 3, True),
        (4, 16, 16, 7, 3, True),
        (1, 4, 4, 56, 3, False),  # one group
        (2, 4, 17, 56, 3, False),
        (4, 16, 16, 3, 3, False),  # few pixels
        (4, 16, 16, 7, 1, False),
    ],
)
def test_who_has_few_filters(groups, channels, filters, size, taps, expected):
    assert few_filters(problem(groups, channels, filters, size, taps)) == expected
