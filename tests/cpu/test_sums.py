"""Long sums: what a running sum in float32 loses, against closed forms and the bound of the tree that is declared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn.config import current
from numbadnn.measuring.compare import UNIT, gamma
from numbadnn.problem import Policy
from numbadnn.registry import BLOCKED, SEQUENCE, Summation, implementations
from numbadnn.validate.oracle import Trial

pytest.importorskip("numba")

TENTH = float(np.float32(0.1))
#: what a constant may be off by, whatever the number of terms: chains of a few hundred, and two roundings
NEAR = 600 * UNIT["float32"]


def near(got: Any, right: float) -> None:
    assert abs(float(got) / right - 1) < NEAR, (float(got), right)


def channels_last(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


@pytest.mark.parametrize("last", [False, True])
def test_the_average_of_a_constant_is_the_constant(last: bool) -> None:
    x = np.full((1, 8 if last else 1, 600, 600), 0.1, "f4")
    x = channels_last(x) if last else x
    for window in ((600, 600), (600, 1), (1, 600)):
        near(numbadnn.pool(x, window, (1, 1), "average_inc_pad")[0, 0, 0, 0], TENTH)


@pytest.mark.parametrize("last", [False, True])
def test_many_windows_over_one_pixel(last: bool) -> None:
    channels, n = (4, 299) if last else (1, 599)
    x, dy = np.zeros((1, channels, n, n), "f4"), np.full((1, channels, (n + 1) // 2, (n + 1) // 2), 0.1, "f4")
    x, dy = (channels_last(x), channels_last(dy)) if last else (x, dy)
    k = (n + 1) // 2
    near(numbadnn.pool_grad(x, dy, dy, (k, k), (1, 1), "sum")[0, 0, k - 1, k - 1], TENTH * k * k)


@pytest.mark.parametrize("channels", [1, 16])
def test_many_points_on_one_pixel(channels: int) -> None:
    img = np.ones((1, channels, 3, 4), "f4")
    grid, dy = np.full((1, 300, 300, 2), -1, "f4"), np.full((1, channels, 300, 300), 0.1, "f4")
    img, dy = (channels_last(img), channels_last(dy)) if channels > 1 else (img, dy)
    dimg = numbadnn.spatialtf_sampler_grad(img, grid, dy)[0]
    near(dimg[0, -1, 0, 0], TENTH * 300 * 300)
    assert not dimg[:, :, 1:].any() and not dimg[:, :, :, 1:].any()


@pytest.mark.parametrize("last", [False, True])
def test_many_channels_at_one_point(last: bool) -> None:
    img = np.zeros((1, 20_000, 2, 2), "f4")
    img[..., 1] = 0.1
    img = channels_last(img) if last else img
    dy = channels_last(np.ones((1, 20_000, 1, 1), "f4")) if last else np.ones((1, 20_000, 1, 1), "f4")
    dgrid = numbadnn.spatialtf_sampler_grad(img, np.zeros((1, 1, 1, 2), "f4"), dy)[1]
    near(dgrid[0, 0, 0, 0], TENTH * 20_000 / 2)


def test_a_grid_of_many_points() -> None:
    dtheta = numbadnn.spatialtf_grid_grad(np.full((1, 1000, 100, 2), 0.1, "f4"))
    near(dtheta[0, 0, 2], TENTH * 1000 * 100)
    near(numbadnn.spatialtf_grid_grad(np.full((1, 3, 20_000, 2), 0.1, "f4"))[0, 1, 2], TENTH * 6e4)


@pytest.mark.parametrize("channels", [1, 8])
def test_the_gradient_of_a_large_ratio(channels: int) -> None:
    dy = np.full((1, channels, 400, 400), 0.1, "f4")
    dy = channels_last(dy) if channels > 1 else dy
    dx = numbadnn.bilinear_upsampling_grad(dy, (1, channels, 2, 2), frac_ratio=((200, 1), (200, 1)))
    assert abs(float(dx.astype("f8").sum()) / (TENTH * channels * 160_000) - 1) < NEAR


@pytest.mark.parametrize("last", [False, True])
def test_softmax_of_many_alike(last: bool) -> None:
    x = np.zeros((1, 20_000, 8, 2), "f4")
    x[:, ::2] = -2.3
    x = x if last else channels_last(x)
    total = 10_000 * (1 + float(np.exp(np.float64(np.float32(-2.3)))))
    near(numbadnn.softmax(x)[0, 1, 0, 0], 1 / total)
    sm, dy = np.full_like(x, 1e-5), np.full_like(x, 0.1)
    near(1e-5 * TENTH - numbadnn.softmax_grad(dy, sm)[0, 0, 0, 0] + 1, 1 + 1e-5 * TENTH)


@pytest.mark.parametrize("last", [False, True])
def test_the_gradient_of_filters_over_many_pixels(last: bool) -> None:
    x, dy = np.full((1, 16, 400, 300), 0.1, "f4"), np.ones((1, 16, 400, 300), "f4")
    x, dy = (channels_last(x), channels_last(dy)) if last else (x, dy)
    near(numbadnn.conv2d_grad_wrt_weights(x, dy, (16, 16, 1, 1))[3, 5, 0, 0], TENTH * 1.2e5)


@pytest.mark.parametrize("last", [False, True])
def test_a_filter_of_many_channels(last: bool) -> None:
    x, w = np.full((1, 20_000, 3, 3), 0.1, "f4"), np.ones((16, 20_000, 1, 1), "f4")
    x = channels_last(x) if last else x
    near(numbadnn.conv2d(x, w)[0, 3, 1, 1], TENTH * 2e4)


# ---- what is declared ------------------------------------------------------------------------------------------------

#: sums of thousands of terms and more, of every kind
LONG = (
    "pool x=float32:1x2x120x130 window=120x130 mode=average_inc_pad",
    "pool x=float16:1x16x120x130:nhwc window=120x130 mode=sum",
    "pool_grad x=float32:1x1x199x199 window=100x100 stride=1x1 mode=sum",
    "spatialtf_sampler_grad img=float32:1x2x3x3 grid=float32:1x120x120x2 dy=float32:1x2x120x120",
    "spatialtf_grid_grad dgrid=float32:1x300x300x2",
    "softmax x=float32:1x20000",
    "softmax_grad dy=float32:1x20000x8 y=float32:1x20000x8",
    "bilinear_upsampling_grad x=float32:1x1x2x2 ratio=200",
    "conv2d x=float32:1x30000x2x2 w=float32:4x30000x1x1",
    "conv2d x=float32:1x30000x2x2:nhwc w=float32:16x30000x1x1",
    "conv2d_grad_wrt_weights x=float32:2x4x200x200 w=float32:4x4x1x1 y=float32:2x4x200x200",
)


def alike(problem: Any) -> Trial:
    """Every number 0.1, which float32 does not hold: what is rounded on the way does not cancel."""
    trial = Trial.of(problem)
    inputs = tuple(
        np.full_like(a, 0.1) if name != "grid" else a for name, a in zip(names(problem), trial.inputs, strict=True)
    )
    return Trial(problem, inputs)


def names(problem: Any) -> list[str]:
    words = [word.partition("=")[0] for word in str(problem).split()[1:]]
    return words[: len(problem.inputs)]


def declared(line: str, backend: str, device: int) -> int:
    """How many implementations of a backend were held against what they declare."""
    from numbadnn.registry import problem_class
    from numbadnn.validate.execute import execute

    problem = problem_class(line.split()[0]).parse(line)
    trial, ran = alike(problem), 0
    policy = Policy(device, current().determinism, "ieee", "auto", "auto", current().workspace_limit)
    for impl in implementations(problem.op):
        if impl.backend != backend or impl.supports(problem, policy):
            continue
        outcome = execute(impl, problem, policy, trial.inputs, runs=1)
        executable = outcome.executable
        found = trial.compare(outcome.results, executable.arithmetic, executable.summation)
        assert found.ok, f"{impl.name} declares {executable.summation}: {found}"
        ran += 1
    return ran


@pytest.mark.parametrize("line", LONG)
def test_the_cpu_adds_as_it_declares(line: str) -> None:
    assert declared(line, "cpu", -1)


@pytest.mark.gpu
@pytest.mark.parametrize("line", LONG)
def test_a_gpu_adds_as_it_declares(line: str) -> None:
    assert declared(line, "numba", 0)
    declared(line, "cudnn", 0)


def test_depth_of_a_tree() -> None:
    assert [SEQUENCE.depth(k) for k in (1, 2, 100)] == [1, 2, 100]
    assert BLOCKED.depth(256) == 256 and BLOCKED.depth(257) == 257 and BLOCKED.depth(1 << 20) == 256 + 12
    assert Summation(()).depth(1 << 10) == 11
    assert Summation((4, 8), "sequence").depth(4 * 8 * 10) == 1 + 3 + 7 + 9
    assert Summation((), "sequence", lanes=32).depth(320) == 1 + 5 + 9
    assert Summation((128,), "compensated").depth(1 << 40) == 130
    with pytest.raises(ValueError, match="rest: expected pairwise, sequence or compensated, got 'random'"):
        Summation((), "random")
    with pytest.raises(ValueError, match="chains, lanes: expected positive numbers"):
        Summation((0,))


def test_the_bound_tells_a_running_sum_from_blocks() -> None:
    """Of a million equal terms: any order lets 6 % pass, and a running sum is off by 0.1 %; blocks let 2e-5 pass."""
    problem = numbadnn.ops.pool.PoolProblem.parse("pool x=float32:1x1x1000x1000 window=1000x1000 mode=average_inc_pad")
    trial = alike(problem)
    running = np.add.accumulate(np.full(1_000_000, 0.1, "f4"), dtype=np.float32)[-1:].reshape(1, 1, 1, 1) / np.float32(
        1e6
    )
    assert trial.compare(running, "ieee", SEQUENCE).ok and not trial.compare(running, "ieee", BLOCKED).ok
    width = trial.bounds("ieee", BLOCKED)[0].accumulated.item() / TENTH
    assert math.isclose(width, gamma(BLOCKED.depth(10**6) + 1, UNIT["float32"]), rel_tol=1e-2)
