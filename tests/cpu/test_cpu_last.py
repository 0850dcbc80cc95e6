"""Convolutions whose channels are neighbours in memory: in place and in boxes, jobs that end anywhere, what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
from test_cpu_conv import check, laid_out, spec

import numbadnn
from numbadnn import reference
from numbadnn.cpu.conv import im2col
from numbadnn.cpu.conv.last import plan as _last_plan
from numbadnn.problem import Policy
from numbadnn.problems.conv import DIRECTIONS, ConvProblem

LAST = ("nhwc", "nhwc", "nhwc")
CASES = {
    "in place": dict(x=(3, 24, 9, 11), w=(40, 24, 1, 1)),
    "in place, stride": dict(x=(2, 16, 9, 11), w=(33, 16, 2, 1), stride=(2, 3)),
    "boxes": dict(x=(3, 17, 9, 11), w=(40, 17, 3, 3), padding=((1, 1), (1, 1))),
    "boxes of several images": dict(x=(90, 12, 3, 4), w=(16, 12, 3, 3), padding=((1, 1), (1, 1))),
    "more terms than a block": dict(x=(2, 48, 7, 9), w=(32, 48, 3, 3), padding=((2, 0), (0, 1)), flip=False),
    "stride, dilation": dict(
        x=(2, 19, 23, 25), w=(21, 19, 3, 2), padding=((3, 1), (0, 2)), stride=(2, 3), dilation=(2, 1)
    ),
    "no pixel under some taps": dict(x=(2, 16, 2, 3), w=(16, 16, 5, 5), padding=((2, 2), (2, 2))),
    "padding alone under some taps": dict(x=(1, 16, 2, 2), w=(16, 16, 1, 1), padding=((3, 0), (0, 4))),
    "groups": dict(x=(2, 48, 9, 7), w=(80, 24, 3, 3), padding=((1, 1), (1, 1)), groups=2),
    "three channels": dict(x=(2, 3, 19, 23), w=(16, 3, 7, 7), padding=((3, 3), (3, 3)), stride=(2, 2)),
    "long rows": dict(x=(1, 12, 2, 1001), w=(16, 12, 1, 3), padding=((0, 0), (1, 1))),
    "long rows, stride": dict(x=(1, 12, 3, 1501), w=(13, 12, 2, 3), padding=((1, 0), (0, 2)), stride=(1, 2)),
    "filters one behind the other": dict(
        x=(2, 32, 8, 9), w=(32, 32, 3, 3), padding=((1, 1), (1, 1)), layouts=("nhwc", "transposed", "nhwc")
    ),
    "filters as they come": dict(
        x=(2, 20, 8, 9), w=(20, 20, 3, 3), padding=((1, 1), (1, 1)), layouts=("nhwc", "", "nhwc")
    ),
}
OPS = tuple(DIRECTIONS)


def case_of(name):
    return {"layouts": LAST} | CASES[name]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", CASES)
def test_cases(name, op):
    check(op, **case_of(name))
    check(op, **case_of(name), alpha=-0.75, beta=0.5, seed=1)
    check(op, **case_of(name), integers=True)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(dtype, op):
    for name in ("in place", "boxes", "stride, dilation", "groups"):
        check(op, **case_of(name), dtype=dtype)


def problem_of(op, name, dtype="float32", **more):
    """The problem, and arrays for x, w and y."""
    case = dict(case_of(name))
    shape, w, layouts = case.pop("x"), case.pop("w"), case.pop("layouts")
    case = {"padding": ((0, 0), (0, 0)), "stride": (1, 1), "dilation": (1, 1)} | case | more
    out = [
        (n + sum(pad) - d * (taps - 1) - 1) // s + 1
        for n, pad, d, taps, s in zip(shape[2:], case["padding"], case["dilation"], w[2:], case["stride"], strict=True)
    ]
    rng = np.random.default_rng(0)
    shapes = zip((shape, w, (shape[0], w[0], *out)), layouts, strict=True)
    arrays = {n: laid_out(rng.standard_normal(s).astype(dtype), way) for n, (s, way) in zip("xwy", shapes, strict=True)}
    return ConvProblem(op, *(spec(dtype, a) for a in arrays.values()), **case), arrays


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", CASES)
def test_which_kernel(name, op):
    problem, _ = problem_of(op, name)
    kernel = {"conv2d": "last", "conv2d_grad_wrt_inputs": "last", "conv2d_grad_wrt_weights": "last filters"}[op]
    if name in ("three channels", "no pixel under some taps") and op == "conv2d_grad_wrt_inputs":
        kernel = "gather"  # a vector has more channels than it writes; there are more taps than positions
    if problem.y.shape[3] > 256 and op == "conv2d_grad_wrt_weights":
        kernel = "filters"
    assert im2col.plan(problem, Policy(), None).facts["kernel"] == kernel


def test_filters_that_are_too_many_are_not_laid_out_once_more():
    for op, kernel in zip(OPS, ("gather", "gather", "last filters"), strict=True):
        problem = ConvProblem.parse(f"{op} x=float32:1x512x8x8:nhwc w=float32:4096x512x5x5:nhwc")
        assert im2col.plan(problem, Policy(), None).facts["kernel"] == kernel


@pytest.mark.parametrize("name", ["boxes", "stride, dilation", "no pixel under some taps", "groups", "long rows"])
def test_infinite_filters_of_the_images_gradient_meet_no_position_outside(name):
    op = "conv2d_grad_wrt_inputs"
    problem, arrays = problem_of(op, name)
    w = arrays["w"]
    w[0, 0, 0, 0], w[3, 0, -1, -1], w[1, 1, 0, -1] = np.inf, np.inf, -np.inf
    executable = im2col.plan(problem, Policy(), None)
    assert executable.facts["kernel"] == ("gather" if name == "no pixel under some taps" else "last")
    arrays["x"][...] = np.nan
    executable.run((arrays["y"], arrays["w"]), (arrays["x"],), None, None)
    options = {
        "border_mode": problem.padding, "subsample": problem.stride, "filter_dilation": problem.dilation,
        "filter_flip": problem.flip, "num_groups": problem.groups,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        expected = reference.conv2d_grad_wrt_inputs(arrays["y"], arrays["w"], arrays["x"].shape, **options)
    assert np.isfinite(expected[:, :2]).any() and np.isinf(expected).any() == (name != "no pixel under some taps")
    np.testing.assert_allclose(arrays["x"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("far", (1000, 10**5, 10**9))
def test_pixels_that_lie_far_apart_take_no_memory_for_what_lies_between(far):
    """It was refused: boxes around pixels in strides of a thousand, all padding but for some, passed the workspace limit."""
    r = np.random.default_rng(0)
    x, w = (r.integers(-2, 3, s).astype("f4") for s in ((2, 32, 5, 6), (32, 32, 2, 2)))
    given = {"border_mode": (far, far), "subsample": (far, far), "filter_dilation": (far, far)}
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    y, right = numbadnn.conv2d(last, w, **given), numbadnn.conv2d(x, w, **given)
    np.testing.assert_array_equal(y, right)
    assert y.strides[1] == 4 and (y[:, :, 0, 0] == np.einsum("nc,kc->nk", x[:, :, 0, 0], w[:, :, 0, 0])).all()
    np.testing.assert_array_equal(
        numbadnn.conv2d_grad_wrt_inputs(y, w, x.shape, **given),
        numbadnn.conv2d_grad_wrt_inputs(right, w, x.shape, **given),
    )
    np.testing.assert_array_equal(
        numbadnn.conv2d_grad_wrt_weights(last, y, w.shape, **given),
        numbadnn.conv2d_grad_wrt_weights(x, right, w.shape, **given),
    )


@pytest.mark.parametrize("op", OPS)
def test_nothing_around_the_result_is_written(op):
    for name in ("in place", "boxes", "long rows, stride", "groups"):
        problem, arrays = problem_of(op, name)
        names, result = DIRECTIONS[op]
        shape = arrays[result].shape
        held = np.full(arrays[result].size + 128, 7.25, np.float32)
        inner = held[64:-64].reshape(shape[0], *shape[2:], shape[1]).transpose(0, 3, 1, 2)
        inner[...] = np.nan
        im2col.plan(problem, Policy(), None).run(tuple(arrays[n] for n in names), (inner,), None, None)
        assert (held[:64] == 7.25).all() and (held[-64:] == 7.25).all() and np.isfinite(inner).all()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["in place", "boxes", "boxes of several images", "long rows"])
def test_same_bits_for_any_number_of_threads(name, op, monkeypatch):
    import numba

    from numbadnn.cpu.conv.last import filters_plan as _last_filters_plan

    problem, arrays = problem_of(op, name)
    names, result = DIRECTIONS[op]
    executable, found = im2col.plan(problem, Policy(), None), []
    for threads in range(1, numba.config.NUMBA_NUM_THREADS + 1):
        for plan in (_last_plan, _last_filters_plan):
            monkeypatch.setattr(plan, "thread_count", lambda flops, threads=threads: threads)
        arrays[result][...] = np.nan
        executable.run(tuple(arrays[n] for n in names), (arrays[result],), None, None)
        found.append(arrays[result].copy())
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
