"""Depthwise convolution on the GPU: what it takes, how it is configured, and its kernels under the simulator."""

from dataclasses import replace

import pytest
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numbadnn.kernels.conv.depthwise import depthwise
from numbadnn.kernels.conv.depthwise.config import Tile
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import implementations

POLICY = Policy(device=0)


def problem(text: str, op: str = "conv2d") -> ConvProblem:
    return ConvProblem.parse(f"{op} {text}")


LAYER = "x=float32:64x144x56x56 w=float32:144x1x3x3 pad=1,1,1,1 groups=144"


def test_under_the_simulator() -> None:
    assert checks_passed("depthwise", "depthwise") == 19


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x=float32:1x4x8x8 w=float32:4x2x3x3 groups=2", "as many groups as channels"),
        ("x=float32:1x4x8x8 w=float32:4x1x3x3 groups=4 dilation=2,2", "dilated"),
        ("x=float32:1x4x8x8 w=float32:4x1x3x3 groups=4 stride=3,1", "strides of 1 or 2"),
        ("x=float32:1x4x9x9 w=float32:4x1x8x3 groups=4", "at most 7 taps"),
        ("x=float32:1x4x1x40 w=float32:4x1x1x32 groups=4", "31 of a row"),
        ("x=float32:1x4x8x8:512,128,16,2 w=float32:4x1x3x3 groups=4", "next to each other"),
    ],
)
def test_refuses_with_a_reason(text: str, reason: str) -> None:
    assert reason in depthwise._supports(problem(text), POLICY)


def test_long_causal_lines_are_left_to_their_own_kernels() -> None:
    line = "x=float32:1x4x1x40 w=float32:4x1x1x31 pad=0,0,30,0 groups=4"
    assert "at most 7 taps" not in depthwise._supports(problem(line), POLICY)
    causal = replace(problem(line), op="causal_conv1d")
    assert "at most 7 taps" in depthwise._supports(causal, POLICY)


def test_the_table_of_the_filters_gradient_keeps_to_the_workspace_limit() -> None:
    asked = problem(LAYER, "conv2d_grad_wrt_weights")
    needed = 4 * 144 * 9 * depthwise.heuristic(asked).splits
    less = depthwise._supports(asked, replace(POLICY, workspace_limit=needed - 1))
    assert less == f"needs {needed} bytes, the workspace limit is {needed - 1}"
    for enough, limit in ((asked, needed), (problem(LAYER), 0)):  # the other directions need none
        assert "workspace limit" not in depthwise._supports(enough, replace(POLICY, workspace_limit=limit))


def test_tiles_are_as_wide_as_the_memory_is_aligned() -> None:
    assert depthwise.heuristic(problem(LAYER)).tile == Tile(False, 4, 1, 4, 4)
    assert depthwise.heuristic(problem(LAYER.replace("56x56", "7x7"))).tile.columns == 1
    last = LAYER.replace("56x56", "56x56:nhwc")
    assert depthwise.heuristic(problem(last)).tile == Tile(True, 4, 2, 2, 2)
    # a stride of two needs tiles of an even number of columns in the image
    odd = "x=float32:1x4x9x9 w=float32:4x1x3x3 groups=4 stride=2,2"
    assert depthwise.heuristic(problem(odd, "conv2d_grad_wrt_inputs")).tile.columns == 2


def test_many_filters_a_channel_do_not_share_a_tile_of_channels() -> None:
    twice = problem("x=float32:1x8x6x6:nhwc w=float32:16x1x3x3 groups=8")
    assert depthwise.heuristic(twice).many and depthwise.heuristic(twice).tile.channels == 1


def test_the_sum_of_the_filters_gradient_depends_on_the_problem_alone() -> None:
    weights = problem(LAYER, "conv2d_grad_wrt_weights")
    config = depthwise.heuristic(weights)
    assert config == depthwise.heuristic(weights)
    assert 1 < config.splits <= 65535
    small = problem("x=float32:1x2x4x4 w=float32:2x1x3x3 groups=2", "conv2d_grad_wrt_weights")
    assert depthwise.heuristic(small).splits == 1


@pytest.mark.parametrize("op", ["conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights"])
def test_ranks_first_where_it_is_fastest(op: str) -> None:
    layer = problem(LAYER, op)
    ranks = {impl.name: impl.rank(layer) for impl in implementations(op) if impl.backend != "cpu"}
    taking = {name for name in ranks if name not in ("numba.unshared", "numba.depthwise_rows")}
    assert min(taking, key=lambda name: ranks[name]) == "numba.depthwise"
