"""A convolution by way of its gradients and back: the same numbers, refusals in words, implementations that are shown."""

from __future__ import annotations

import numpy as np
import pytest

from numbadnn import reference
from numbadnn.measuring.data import Buffer, buffer
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.problems.conv_routes import ROUTES, by_inputs, by_weights
from numbadnn.registry import implementations
from numbadnn.validate.oracle import Trial

SHAPES = (
    "x=float32:2x3x5x6 w=float32:4x3x3x2",
    "x=float32:2x3x5x6 w=float32:4x3x3x2 pad=2,2,1,1",
    "x=float32:1x2x4x3 w=float32:3x2x3x3 pad=1,0,0,2 flip=0",
    "x=float32:2x3x8x7:nhwc w=float32:2x3x2x3:nhwc pad=2,1,0,3 dilation=2,3 alpha=2 beta=-1",
    "x=float32:2x3x4x4:-48,16,-4,1 w=float32:3x3x1x1",
    "x=float32:1x2x3x4x3 w=float32:3x2x2x3x2 pad=1,0,1,1,0,0",
)
STRIDED = (
    "x=float32:2x3x9x7 w=float32:4x3x3x2 stride=2,3",
    "x=float32:2x3x9x8 w=float32:4x3x2x2 stride=3,2 pad=0,1,2,0 dilation=2,1 flip=0",
    "x=float32:1x2x5x4x6 w=float32:3x2x2x1x2 stride=2,1,3 dilation=1,1,2 pad=0,0,1,1,2,2",
)


def view(spec: Spec, memory: Buffer, move: int) -> np.ndarray:
    """What a spec describes, so many bytes from where the operand begins."""
    strides = tuple(s * spec.itemsize for s in spec.strides)
    return np.ndarray(spec.shape, memory.array.dtype, memory.memory, memory.offset + move, strides)


def held(problem: ConvProblem, find: object, name: str) -> None:
    """The other problem, computed by the reference on views of the same memory, against the reference of the problem itself."""
    route = find(problem)  # type: ignore[operator]
    assert route.problem is not None, f"{problem}: {route.reason}"
    other = ConvProblem.parse(str(route.problem))
    assert other == route.problem, name
    trial = Trial.of(problem, kind="integers")
    buffers = [buffer(s, v) for s, v in zip(problem.inputs, trial.inputs, strict=True)]
    out = buffer(problem.output, trial.old if trial.old is not None else np.zeros(problem.output.shape))
    specs = (*other.inputs, other.output)
    views = [view(s, b, move) for s, b, move in zip(specs, (*buffers, out), route.offsets, strict=True)]
    keywords = {k: v for k, v in other.keywords.items() if k not in ("alpha", "beta")}
    result = getattr(reference, other.op)(*(v.astype(np.float64) for v in views[:2]), **keywords)
    views[2][...] = other.alpha * result + (other.beta * views[2] if other.beta else 0)
    verdict = trial.compare_exactly((out.array,))
    assert verdict.ok, f"{problem} as {other}: {verdict}"


OPS = ("", "_grad_wrt_inputs", "_grad_wrt_weights")


@pytest.mark.parametrize("shape", SHAPES + STRIDED)
@pytest.mark.parametrize("ending", OPS)
def test_the_other_problem_gives_the_same_numbers(shape: str, ending: str) -> None:
    axes = 3 if shape.split()[0].count("x") == 5 else 2
    problem = ConvProblem.parse(f"conv{axes}d{ending} {shape}")
    if problem.direction != "grad_weights" and shape in SHAPES:
        held(problem, by_inputs, shape)
    if problem.direction != "grad_inputs":
        held(problem, by_weights, shape)


@pytest.mark.parametrize(
    ("line", "find", "reason"),
    [
        ("conv2d x=float32:1x4x5x5 w=float32:4x2x3x3 groups=2", by_inputs, "one group"),
        ("conv2d x=float32:1x4x5x5 w=float32:4x4x3x3 stride=2,1", by_inputs, "stride 1"),
        ("conv2d x=float32:1x4x5x5 w=float32:4x4x3x3 pad=3,0,0,0", by_inputs, "padding narrower"),
        ("conv2d x=float32:1x2x3x3 w=float32:2x2x2x2x2x2", by_weights, "unshared"),
        ("conv2d x=float32:1x2x1x3 w=float32:2x2x1x1 pad=2,2,0,0 stride=5,1", by_weights, "nothing but padding"),
    ],
)
def test_where_there_is_no_way_round(line: str, find: object, reason: str) -> None:
    assert reason in find(ConvProblem.parse(line)).reason  # type: ignore[operator]


@pytest.mark.parametrize(
    ("line", "route", "same"),
    [
        ("conv2d x=float32:1x2x4x4 w=float32:3x2x3x3 pad=1,1,1,1", "by_grad_inputs", False),
        ("conv2d x=float32:1x2x4x4 w=float32:3x2x3x3", "by_grad_inputs", True),
        ("conv2d x=float32:1x2x4x4 w=float32:3x2x3x3 pad=1,1,1,1", "by_grad_weights", True),
        ("conv2d_grad_wrt_inputs x=float32:1x2x4x4 w=float32:3x2x3x3 pad=1,1,1,1", "by_forward", False),
        ("conv2d_grad_wrt_inputs x=float32:1x2x4x4 w=float32:3x2x3x3 pad=2,2,2,2", "by_forward", True),
        ("conv2d_grad_wrt_weights x=float32:1x2x4x4 w=float32:3x2x3x3 pad=1,1,1,1", "by_forward", True),
    ],
)
def test_own_kernels_take_no_way_on_which_an_infinite_filter_meets_other_zeros(
    line: str, route: str, same: bool
) -> None:
    """Padding is multiplied in a convolution, and has no term in the gradient of an image. cuDNN promises neither."""
    problem = ConvProblem.parse(line)
    (impl,) = (i for i in implementations(problem.op) if i.name == f"numba.corrmm_{route}")
    assert ("needs no padding" in impl.supports(problem, Policy(device=0))) != same
    (impl,) = (i for i in implementations(problem.op) if i.name == f"cudnn.graph_{route}")
    assert "needs no padding" not in impl.supports(problem, Policy(device=0))


def test_each_route_is_an_implementation_behind_the_one_it_stands_on() -> None:
    problem = ConvProblem.parse(f"conv2d {SHAPES[1]}")
    for base in ("cudnn.graph", "numba.corrmm"):
        known = {i.name: i for i in implementations("conv2d")}
        for route in ("by_grad_inputs", "by_grad_weights"):
            assert known[f"{base}_{route}"].rank(problem) > known[base].rank(problem)
        for op in ("conv3d_grad_wrt_inputs", "conv2d_grad_wrt_weights"):
            assert f"{base}_by_forward" in {i.name for i in implementations(op)}
    assert set(ROUTES) == {"by_grad_inputs", "by_grad_weights", "by_forward"}
    assert not any("_by_" in i.name for i in implementations("causal_conv1d"))
