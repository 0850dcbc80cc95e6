"""Run convolutions of few channels a group under the CUDA simulator; test_grouped_halves.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from numbadnn.kernels import grouped_halves_config as configurations
from numbadnn.kernels import simulate
from numbadnn.ops.conv import ConvProblem
from numbadnn.validate.oracle import Trial

BOTH = ("conv2d", "conv2d_grad_wrt_inputs")
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
)
failures = 0


def small(problem: ConvProblem, tile: tuple[int, int]) -> configurations.GroupedHalvesConfig:
    """What the heuristic takes, with few warps and a tile of which there are several."""
    found = [c for c in configurations.candidates(problem) if c.warps <= 4]
    return replace(found[len(str(problem)) % len(found)], tile=tile)


def run(problem: ConvProblem, trial: Trial, tile: tuple[int, int]) -> Any:
    arrays = (*trial.inputs, *(() if trial.old is None else (trial.old,)))
    return simulate.run(problem, arrays, "numba.grouped_halves", config=small(problem, tile))


def report(name: str, ok: bool, text: object = "") -> None:
    global failures
    failures += not ok
    print("ok  " if ok else "FAIL", name, text, flush=True)


def check(line: str, kind: str, tile: tuple[int, int]) -> None:
    problem = ConvProblem.parse(line)
    trial = Trial.of(problem, kind=kind)
    got = run(problem, trial, tile)
    found = trial.compare_exactly(got) if kind == "integers" else trial.compare(got, "tensor_core")
    report(line, bool(found.ok), found)


def contained(line: str) -> None:
    """Infinities and NaN of one group's image reach no other group."""
    problem = ConvProblem.parse(line)
    trial = Trial.of(problem, kind="integers")
    source = trial.inputs[0]
    each = source.shape[1] // problem.groups
    source[:, each : 2 * each] = np.where(source[:, each : 2 * each] > 0, np.inf, np.nan)
    (got,) = run(problem, trial, (3, 4))
    results = got.shape[1] // problem.groups
    ours = np.asarray(got, np.float64)
    others = np.delete(ours, np.s_[results : 2 * results], 1)
    wanted = np.delete(trial.value, np.s_[results : 2 * results], 1)
    report(f"contained {line}", bool(np.array_equal(others, wanted) and not np.isfinite(ours[:, results]).all()))


if __name__ == "__main__":
    sys.setswitchinterval(1e-4)  # the simulator's threads wait for each other all the time
    asked = [(op, text) for ops, text in CASES for op in ops]
    for number, (op, text) in enumerate(asked):
        dtype, data, tile = (("float16", "integers", (3, 4)), ("bfloat16", "random", (2, 9)))[number % 3 == 1]
        check(f"{op} {text.format(t=dtype)}", data, tile)
    for number, channels in enumerate((4, 8, 16)):
        shape = f"{2 * channels}x{channels}x3x3:nhwc pad=1,1,1,1 stride=2,2 groups=2"
        contained(f"{BOTH[number % 2]} x=float16:1x{2 * channels}x5x5:nhwc w=float16:{shape}")
    print("failures", failures)
    sys.exit(bool(failures))
