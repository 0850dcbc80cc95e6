"""What the CPU's plans and kernels cost: as much as the work, whatever dilation, stride and filters are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import reference
from numbadnn.problems.conv import ConvProblem

pytest.importorskip("numba")
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


def last(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of scratch memory that calls have asked for."""
    from numbadnn.cpu.conv import filters_plan, gather_plan
    from numbadnn.cpu.conv.last import filters_plan as last_filters
    from numbadnn.cpu.conv.last import plan as last_plan
    from numbadnn.cpu.conv.thin import filters_plan as thin_filters
    from numbadnn.cpu.conv.thin import plan as thin_plan
    from numbadnn.cpu.lang import parallel

    found: list[int] = []

    def scratch(nbytes: int) -> Any:
        found.append(nbytes)
        return parallel.scratch(nbytes)

    for module in (filters_plan, gather_plan, last_filters, last_plan, thin_filters, thin_plan):
        monkeypatch.setattr(module, "scratch", scratch)
    return found


@pytest.mark.parametrize("channels, groups", [(32, 1), (32, 32), (32, 8)])
@pytest.mark.parametrize("order", [last, np.ascontiguousarray])
def test_scratch_does_not_grow_with_dilation(asked: list[int], channels: int, groups: int, order: Any) -> None:
    """Two taps far beyond the image, in every direction; results are the reference's."""
    x, w, dy = (
        order(normal(1, channels, 5, 6)),
        normal(channels, channels // groups, 2, 2),
        order(normal(1, channels, 5, 6)),
    )
    most = {}
    for d in (3, 100_000):
        more: dict[str, Any] = {"border_mode": (d, d), "filter_dilation": (2 * d, 2 * d), "num_groups": groups}
        asked.clear()
        y = numbadnn.conv2d(x, w, **more)
        dx = numbadnn.conv2d_grad_wrt_inputs(dy, w, x.shape, **more)
        dw = numbadnn.conv2d_grad_wrt_weights(x, dy, w.shape, **more)
        most[d] = max(asked)
        if d == 3:
            np.testing.assert_allclose(y, reference.conv2d(x, w, **more), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(
                dx, reference.conv2d_grad_wrt_inputs(dy, w, x.shape, **more), rtol=1e-4, atol=1e-4
            )
            np.testing.assert_allclose(
                dw, reference.conv2d_grad_wrt_weights(x, dy, w.shape, **more), rtol=1e-4, atol=1e-4
            )
        else:  # every tap meets padding alone
            assert not y.any() and not dx.any() and not dw.any()
    assert most[100_000] < 4 * most[3] + (1 << 20), most


def test_boxes_of_taps_far_apart_hold_what_each_sees() -> None:
    """Rows and columns of taps that no pixel shares lie in boxes of their own: right, with images that are larger and not."""
    for shape, dilation in (((2, 16, 40, 30), (13, 9)), ((1, 16, 9, 500), (4, 230)), ((1, 16, 200, 8), (90, 3))):
        x, w = normal(*shape), normal(16, 16, 3, 3)
        more: dict[str, Any] = {"border_mode": "half", "filter_dilation": dilation}
        want = reference.conv2d(x, w, **more)
        np.testing.assert_allclose(numbadnn.conv2d(last(x), w, **more), want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("alpha, beta", [(1.0, 0.0), (2.0, 0.5)])
@pytest.mark.parametrize("order", [last, np.ascontiguousarray])
@pytest.mark.parametrize("kernel, stride", [((1, 1), (9, 11)), ((3, 2), (20, 1)), ((2, 9), (3, 40))])
def test_gradients_of_large_strides(kernel: Any, stride: Any, order: Any, alpha: float, beta: float) -> None:
    """Where no tap reaches a pixel is alpha * 0 + beta * out; with phases by the hundred those are set apart."""
    from dataclasses import replace

    shape = (2, 16, 25 + kernel[0], 45 + kernel[1])
    w = normal(16, 16, *kernel)
    out = tuple((n - k) // s + 1 for n, k, s in zip(shape[2:], kernel, stride, strict=True))
    dy = order(normal(2, 16, *out))
    problem = numbadnn.plan(numbadnn.conv2d_grad_wrt_inputs, dy, w, shape, subsample=stride).problem
    problem = replace(problem, alpha=alpha, beta=beta)
    old = order(normal(*shape))
    from numbadnn.cpu.conv.im2col import plan
    from numbadnn.problem import Policy

    target = order(old.copy())
    problem = replace(problem, x=replace(problem.x, strides=tuple(s // 4 for s in target.strides)))
    plan(problem, Policy(device=-1)).run((dy, w), (target,), None, None)
    want = alpha * reference.conv2d_grad_wrt_inputs(dy, w, shape, subsample=stride) + beta * old.astype("f8")
    np.testing.assert_allclose(target, want, rtol=1e-4, atol=1e-4)


def test_a_plan_of_a_large_stride_lists_the_phases_that_taps_reach() -> None:
    from numbadnn.cpu.conv.terms import phases_of, volume

    line = "conv2d_grad_wrt_inputs x=float32:1x3x1200x1200 w=float32:2x3x1x1 y=float32:1x2x2x2 stride=600,600"
    assert [len(axis) for axis in phases_of(volume(ConvProblem.parse(line)))] == [1, 1, 1]
    line = "conv2d_grad_wrt_inputs x=float32:1x3x5x5 w=float32:2x3x2x2 y=float32:1x2x2x2 stride=3,3"
    assert [len(axis) for axis in phases_of(volume(ConvProblem.parse(line)))] == [1, 3, 3]


@pytest.mark.parametrize("size, filters, kernel", [(60, 1, 40), (60, 40, 20), (30, 3, 18)])
def test_filters_of_more_taps_than_a_block_has_terms(size: int, filters: int, kernel: int) -> None:
    x, w = normal(2, 2, size, size), normal(filters, 2, kernel, kernel)
    np.testing.assert_allclose(numbadnn.conv2d(x, w), reference.conv2d(x, w), rtol=1e-3, atol=2e-3)
    dy = normal(2, filters, 5, 5)
    shape = (2, 2, 4 + kernel, 4 + kernel)
    want = reference.conv2d_grad_wrt_inputs(dy, w, shape)
    np.testing.assert_allclose(numbadnn.conv2d_grad_wrt_inputs(dy, w, shape), want, rtol=1e-3, atol=2e-3)


def test_a_plan_makes_no_tables() -> None:
    """Of a large upsampling, which alone would take seconds and gigabytes: only the call needs them."""
    from numbadnn.cpu.upsample.upsample import plan
    from numbadnn.problem import Policy
    from numbadnn.problems.upsample import UpsampleProblem

    for op in ("bilinear_upsampling", "bilinear_upsampling_grad"):
        plan(UpsampleProblem.parse(f"{op} x=float32:1x1x2x2 ratio=99999999"), Policy(device=-1))


#: images, channels, filters, groups; image, filter; parameters. Filters as large as the image, and larger by padding; strides
LARGE_FILTERS = (
    ((1, 2, 3, 1), (9, 8), (9, 8), {}),
    ((3, 4, 4, 2), (7, 9), (5, 9), {"border_mode": (1, 2)}),
    ((5, 8, 16, 1), (5, 4), (7, 8), {"border_mode": ((1, 2), (3, 2))}),
    ((2, 6, 6, 6), (12, 11), (9, 10), {"border_mode": (2, 1), "subsample": (3, 2)}),
    ((2, 3, 4, 1), (6, 20), (6, 7), {"subsample": (1, 6)}),
    ((2, 2, 5, 1), (4, 5, 6), (4, 4, 5), {}),
)


@pytest.mark.parametrize(("sizes", "image", "taps", "more"), LARGE_FILTERS)
@pytest.mark.parametrize("flip", [False, True])
def test_gradients_over_few_positions_read_the_filters(
    sizes: Any, image: Any, taps: Any, more: Any, flip: bool
) -> None:
    """As the reference, also of filters that lie reversed and with infinities; a sample's bits whatever the batch."""
    (N, C, K, G), axes = sizes, len(image)
    more = {**more, "num_groups": G, "filter_flip": flip}
    name = f"conv{axes}d_grad_wrt_inputs"
    function, truth = getattr(numbadnn, name), getattr(reference, name)
    w = normal(K, C // G, *taps)[..., ::-1]
    dy = normal(*getattr(numbadnn, f"conv{axes}d")(np.zeros((N, C, *image), "f4"), w, **more).shape)
    old = normal(N, C, *image)
    expected = truth(dy, w, old.shape, **more)
    found = function(dy, w, old.shape, alpha=2, beta=-1, out=old.copy(), **more)
    np.testing.assert_allclose(found, 2 * expected - old, rtol=1e-4, atol=1e-4)
    whole = function(dy, w, old.shape, **more)
    for n in range(N):
        assert np.array_equal(function(dy[n : n + 1], w, (1, *old.shape[1:]), **more)[0], whole[n])
    dy[0, 0].flat[0], w[0, 0].flat[1] = np.inf, np.nan
    with np.errstate(all="ignore"):
        expected = truth(dy, w, old.shape, **more)
    np.testing.assert_allclose(function(dy, w, old.shape, **more), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("taps", [8, 64, 256])
def test_products_of_a_gradient_over_one_position_are_those_of_the_sum(taps: int) -> None:
    from numbadnn.cpu.conv.few_positions import few_positions, position_terms
    from numbadnn.cpu.conv.terms import volume

    problem = volume(
        ConvProblem.parse(f"conv2d_grad_wrt_inputs x=float32:1x4x{taps}x{taps} w=float32:4x4x{taps}x{taps}")
    )
    assert few_positions(problem)
    _, terms = position_terms(problem, (1, 1), 1, planes=True)
    (phase,) = terms.phases
    assert phase[8] * phase[10] * phase[11] == problem.flops // 2  # depth, slices, pixels
