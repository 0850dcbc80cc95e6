"""Run convolutions of few channels a group under the CUDA simulator; test_grouped_halves.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from reporting import agree, end, report

from numbadnn.kernels.conv.grouped import config as configurations
from numbadnn.kernels.conv.grouped import weights_config as of_weights
from numbadnn.problems.conv import ConvProblem
from numbadnn.validate import simulate
from numbadnn.validate.oracle import Trial

BOTH = ("conv2d", "conv2d_grad_wrt_inputs")
WEIGHTS = "conv2d_grad_wrt_weights"
#: groups of 4, 8, 16 and 32; strides, dilation, uneven padding, odd sizes; filters in both orders; images of few channels
CASES = (
    (BOTH, "x={t}:2x8x5x6:nhwc w={t}:8x4x3x3:nhwc pad=1,1,1,1 groups=2 flip=0"),
    (BOTH, "x={t}:1x8x7x6:nhwc w={t}:8x4x3x3 pad=1,0,0,2 stride=2,2 groups=2 alpha=2 beta=-3"),
    (BOTH, "x={t}:1x24x6x5:nhwc w={t}:24x8x3x2:nhwc pad=1,1,0,1 stride=2,1 groups=3 beta=1"),
    (BOTH, "x={t}:1x16x7x7:nhwc w={t}:16x8x3x3:nhwc pad=2,2,2,2 dilation=2,1 groups=2 flip=0"),
    (BOTH, "x={t}:1x32x5x5:nhwc w={t}:32x16x3x3:nhwc pad=1,1,1,1 stride=2,2 groups=2 flip=0"),
    (BOTH, "x={t}:1x32x4x3:nhwc w={t}:32x32x3x3:nhwc pad=1,1,1,1"),
    (BOTH, "x={t}:1x16x6x6:nhwc w={t}:8x8x1x1:nhwc stride=2,2 groups=2"),  # phases that meet no tap
    (BOTH[:1], "x={t}:1x3x9x9:nhwc w={t}:16x3x5x5:nhwc pad=2,2,2,2 stride=2,2"),
    (BOTH[:1], "x={t}:2x1x5x4:nhwc w={t}:10x1x3x3 y={t}:2x10x5x4:nhwc pad=1,1,1,1 alpha=-1"),
    (BOTH[:1], "x={t}:1x4x6x7 w={t}:8x4x3x3 y={t}:1x8x2x2:nhwc stride=3,2 dilation=1,2 pad=0,1,1,0"),
    (
        BOTH[1:],
        "x={t}:2x3x7x9:nhwc w={t}:8x3x3x3:nhwc pad=1,1,1,1 stride=2,2 alpha=2 beta=-1",
    ),  # an odd number of results
)
#: of the filters: bundles of groups, several warps to a bundle and to a position, images of few channels and both their strides
OF_WEIGHTS = (
    "x={t}:2x32x5x6:nhwc w={t}:32x4x3x3:nhwc pad=1,1,1,1 groups=8 flip=0",
    "x={t}:1x24x7x6:nhwc w={t}:24x8x3x3 pad=1,0,0,2 stride=2,2 groups=3 alpha=2 beta=-3",
    "x={t}:1x64x5x4:nhwc w={t}:64x32x3x2:nhwc pad=1,1,1,1 groups=2 dilation=2,1 beta=1",
    "x={t}:2x3x9x9:nhwc w={t}:16x3x5x5:nhwc pad=2,2,2,2 stride=2,2",
    "x={t}:2x1x5x4 w={t}:10x1x3x3 y={t}:2x10x5x4:nhwc pad=1,1,1,1 alpha=-1",
)


def small(problem: ConvProblem, tile: tuple[int, int]) -> Any:
    """What the heuristic takes, with few warps and a tile of which there are several."""
    if problem.op == WEIGHTS:
        few = [c for c in of_weights.candidates(problem) if c.threads <= 160]
        config = few[len(str(problem)) % len(few)]
        return replace(config, tile=tile, splits=1 if config.direct else 2)
    found = [c for c in configurations.candidates(problem) if c.warps <= 4]
    return replace(found[len(str(problem)) % len(found)], tile=tile)


def run(problem: ConvProblem, arrays: tuple[Any, ...], tile: tuple[int, int]) -> Any:
    return simulate.run(problem, arrays, "numba.grouped_halves", config=small(problem, tile))


def check(line: str, kind: str, tile: tuple[int, int]) -> None:
    agree(line, kind, lambda problem, arrays: run(problem, arrays, tile), "tensor_core")


def contained(line: str) -> None:
    """Infinities and NaN of one group's image reach no other group."""
    problem = ConvProblem.parse(line)
    trial = Trial.of(problem, kind="integers")
    source = trial.inputs[0]
    each = source.shape[1] // problem.groups
    source[:, each : 2 * each] = np.where(source[:, each : 2 * each] > 0, np.inf, np.nan)
    (got,) = run(problem, trial.inputs, (3, 4))
    results = got.shape[1] // problem.groups
    ours = np.asarray(got, np.float64)
    others = np.delete(ours, np.s_[results : 2 * results], 1)
    wanted = np.delete(trial.value, np.s_[results : 2 * results], 1)
    report(f"contained {line}", bool(np.array_equal(others, wanted) and not np.isfinite(ours[:, results]).all()))


def contained_filters(line: str) -> None:
    """Infinities and NaN of one group's image reach no filter of another."""
    problem = ConvProblem.parse(line)
    trial = Trial.of(problem, kind="integers")
    each, filters = problem.w.shape[1], problem.w.shape[0] // problem.groups
    source = trial.inputs[0]
    source[:, each : 2 * each] = np.where(source[:, each : 2 * each] > 0, np.inf, np.nan)
    ours = np.asarray(run(problem, trial.inputs, (3, 4))[0], np.float64)
    others, wanted = (np.delete(a, np.s_[filters : 2 * filters], 0) for a in (ours, trial.value))
    report(
        f"contained {line}", bool(np.array_equal(others, wanted) and not np.isfinite(ours[filters : 2 * filters]).all())
    )


def untouched(line: str) -> None:
    """What no window meets may be infinite, though a tile reaches it."""
    problem = ConvProblem.parse(line)
    trial = Trial.of(problem, kind="integers")
    trial.inputs[0][:, :, 7:] = np.inf
    (got,) = run(problem, trial.inputs, (2, 3))
    report(f"untouched {line}", bool(np.array_equal(np.asarray(got, np.float64), trial.value)))


def several_images(line: str) -> None:
    """One after the other in a block, the last with fewer."""
    problem = ConvProblem.parse(line)
    trial = Trial.of(problem, kind="integers")
    from_all: Any = of_weights.candidates if problem.op == WEIGHTS else configurations.candidates
    config = next(c for c in from_all(problem) if c.images == 2 and c.threads <= 128)
    found = trial.compare_exactly(simulate.run(problem, trial.inputs, "numba.grouped_halves", config=config))
    report(f"several images {line}", bool(found.ok), found)


if __name__ == "__main__":
    asked = [(op, text) for ops, text in CASES for op in ops]
    for number, (op, text) in enumerate(asked):
        dtype, data, tile = (("float16", "integers", (3, 4)), ("bfloat16", "random", (2, 9)))[number % 3 == 1]
        check(f"{op} {text.format(t=dtype)}", data, tile)
    for number, channels in enumerate((4, 8, 16)):
        shape = f"{2 * channels}x{channels}x3x3:nhwc pad=1,1,1,1 stride=2,2 groups=2"
        contained(f"{BOTH[number % 2]} x=float16:1x{2 * channels}x5x5:nhwc w=float16:{shape}")
    for number, text in enumerate(OF_WEIGHTS):
        dtype, data = (("float16", "integers"), ("bfloat16", "random"))[number % 2]
        check(f"{WEIGHTS} {text.format(t=dtype)}", data, (3, 4))
    untouched(f"{WEIGHTS} x=float16:1x32x8x7:nhwc w=float16:32x16x3x3:nhwc groups=2 stride=2,2")
    contained_filters(f"{WEIGHTS} x=float16:1x32x5x5:nhwc w=float16:32x8x3x3:nhwc pad=1,1,1,1 groups=4")
    several_images("conv2d x=float16:3x32x4x3:nhwc w=float16:32x16x3x3:nhwc pad=1,1,1,1 groups=2")
    several_images(f"{BOTH[1]} x=float16:3x16x4x3:nhwc w=float16:16x8x3x3:nhwc pad=1,1,1,1 groups=2")
    several_images(f"{WEIGHTS} x=float16:3x32x5x4:nhwc w=float16:32x8x3x3:nhwc pad=1,1,1,1 groups=4")
    end()
