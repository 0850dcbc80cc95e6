"""``cpu.fft``: right by its bound however images are cut, chosen where it is faster, within the memory that it counts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import cases
from numbadnn.cpu.conv import fft, fft_tiles
from numbadnn.measuring.data import make_arrays
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import implementations
from numbadnn.validate.check import Row, Subject, judge

POLICY = Policy()
LARGE = "x=float32:1x1x512x512 w=float32:1x1x21x21 pad=10,10,10,10"


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fft_tiles, "cores", lambda: 2)
    fft_tiles.tiles_of.cache_clear()
    yield
    fft_tiles.tiles_of.cache_clear()


def obeys(line: str) -> Row:
    """The contract, of one problem."""
    problem = cases.parse(line)
    impl = next(i for i in implementations(problem.op, ("cpu",)) if i.name == "cpu.fft")
    return judge(Row("", impl.name, line, "ok"), impl, Subject("", problem), POLICY, timed=False)


@pytest.mark.parametrize("line", (
    "conv2d x=float32:2x2x23x17 w=float32:3x2x5x4 pad=2,1,3,0",
    "conv2d x=float32:1x6x19x18:nhwc w=float32:3x2x3x5 pad=1,1,2,2 groups=3 flip=0 alpha=0.5 beta=2",
    "conv2d x=float64:1x1x30x21 w=float64:2x1x3x4 pad=7,5,0,1 dilation=2,3",
    "conv2d_grad_wrt_inputs x=float32:2x4x23x17 w=float32:6x2x5x4 pad=2,1,3,0 groups=2",
    "conv2d_grad_wrt_inputs x=float16:1x3x20x21 w=float16:2x3x3x4 pad=4,0,1,5 dilation=2,1 flip=0",
    "conv2d_grad_wrt_weights x=float32:3x4x15x17 w=float32:6x2x5x4 pad=2,1,3,0 groups=2 dilation=1,2",
    "conv3d x=float32:1x2x9x12x11 w=float32:2x2x3x1x4 pad=1,1,0,0,2,2",
    "causal_conv1d x=bfloat16:2x4x1x70 w=bfloat16:4x1x1x9 pad=0,0,8,0 groups=4",
), ids=lambda line: line.split()[0])  # fmt: skip
def test_images_cut_into_many_tiles_and_groups_by_the_share(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fft_tiles, "_lengths", lambda extent, reach, most: [reach + 3])
    monkeypatch.setattr(fft_tiles, "IN_CACHE", 1)  # one group at a time
    problem = cases.parse(line)
    tiles = fft_tiles.tiles_of(problem)
    assert tiles.together == 1 and (max(tiles.count) > 2 or problem.direction == "grad_weights")
    row = obeys(line)
    assert row.status == "ok", row.reason
    assert row.arithmetic == "fft" and row.worst and row.worst > 1e-7


def test_tiles_are_chosen_by_themselves_and_hold_the_bound() -> None:
    row = obeys("conv2d x=float32:1x1x300x280 w=float32:1x1x21x21 pad=10,10,10,10")
    assert row.status == "ok", row.reason
    assert row.facts["tile"] != "320x300"


def chosen(text: str, **keywords: Any) -> str:
    problem = ConvProblem.parse(text)
    arrays, _ = make_arrays(problem)
    with numbadnn.using(**keywords):
        return numbadnn.explain(getattr(numbadnn, problem.op), *arrays, **problem.keywords).chosen


def test_large_filters_go_by_transform_unless_elementwise_or_the_same_everywhere_is_asked_for() -> None:
    assert chosen(f"conv2d {LARGE}") == "cpu.fft"
    assert chosen(f"conv2d_grad_wrt_inputs {LARGE}") == "cpu.fft"
    assert chosen(f"conv2d_grad_wrt_weights {LARGE}") == "cpu.fft"
    for more in ({"accuracy": "elementwise"}, {"determinism": "batch_invariant"}, {"determinism": "gpu_to_gpu"}):
        assert chosen(f"conv2d {LARGE}", **more) == "cpu.im2col"
    x, w = np.ones((1, 1, 512, 512), np.float32), np.ones((1, 1, 21, 21), np.float32)
    numbadnn.conv2d(x, w)
    last = numbadnn.last_call()
    assert last is not None
    assert (last.impl, last.arithmetic, last.accuracy) == ("cpu.fft", "fft", "normwise")


def test_what_is_not_finite_stays_where_its_terms_are() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 1, 90, 80)).astype(np.float32), rng.standard_normal((1, 1, 9, 7)).astype(np.float32)
    x[0, 0, 40, 30], x[0, 0, 3, 70] = np.nan, np.inf
    with numbadnn.using(only="cpu.fft"):
        found = numbadnn.conv2d(x, w)
    with np.errstate(invalid="ignore"):
        right = numbadnn.reference.conv2d(x, w)
    assert 0 < np.isnan(right).sum() < 9 * 7 * 2
    np.testing.assert_allclose(found, right, atol=1e-4)


@pytest.mark.parametrize("text", (
    "conv2d x=float32:1x1x512x512 w=float32:1x1x5x5 pad=2,2,2,2",
    "conv2d x=float32:1x1x64x64 w=float32:1x1x15x15",
    "conv2d x=float32:1x1x256x256 w=float32:8x1x15x15 pad=7,7,7,7",
    "conv2d x=float32:1x64x56x56 w=float32:64x64x7x7 pad=3,3,3,3",
    "conv2d x=float32:1x16x56x56 w=float32:16x1x13x13 pad=6,6,6,6 groups=16",
    "conv2d x=float32:1x1x512x512 w=float32:1x1x21x21 stride=2,2",
    "conv2d_grad_wrt_weights x=float32:1x16x64x64 w=float32:16x16x13x13 pad=6,6,6,6",
    "conv3d x=float32:1x16x32x32x32 w=float32:16x16x3x3x3 pad=1,1,1,1,1,1",
    "causal_conv1d x=float32:1x1x1x100000 w=float32:1x1x1x64 pad=0,0,63,0",
))  # fmt: skip
def test_where_the_sum_is_faster_it_is_chosen(text: str) -> None:
    problem = ConvProblem.parse(text)
    ranks = {i.name: i.rank(problem) for i in implementations(problem.op, ("cpu",)) if not i.supports(problem, POLICY)}
    assert min(ranks, key=ranks.__getitem__) == "cpu.im2col"


@pytest.mark.parametrize("text, reason", (
    ("conv2d x=float32:1x1x9x9 w=float32:1x1x3x3 stride=2,1", "stride of"),
    ("conv2d x=float32:1x4x9x9 w=float32:4x4x1x1", "one tap"),
    ("conv2d x=float32:1x1x4x4 w=float32:1x2x2x1x3x3", "unshared"),
))  # fmt: skip
def test_refusals(text: str, reason: str) -> None:
    assert reason in fft.supports(ConvProblem.parse(text), POLICY)


@pytest.mark.parametrize("line", (
    "conv2d x=float32:1x3x200x200 w=float32:4x3x31x31 beta=1",
    "conv2d_grad_wrt_inputs x=float32:1x3x90x80 w=float32:16x3x31x31",
    "conv2d_grad_wrt_weights x=float64:2x8x80x80 w=float64:12x2x21x21 groups=4",
))  # fmt: skip
def test_a_run_holds_what_is_counted_against_the_limit(line: str) -> None:
    problem = cases.parse(line)
    needed = fft.scratch_bytes(problem)
    assert "workspace limit" in fft.supports(problem, Policy(workspace_limit=needed - 1))
    assert fft.supports(problem, Policy(workspace_limit=needed)) == ""
    inputs, _ = make_arrays(problem)
    outputs = (np.zeros(problem.output.shape, problem.output.dtype),)
    run = fft.plan(problem, POLICY).run
    run(inputs, outputs, None, None)
    tracemalloc.start()
    try:
        run(inputs, outputs, None, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert needed / 4 < peak <= needed + (1 << 16)
