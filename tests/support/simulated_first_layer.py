"""Run first layers' convolutions under the CUDA simulator; test_first_layer.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

from dataclasses import replace

import numpy as np
from reporting import agree, end, report

from numbadnn.kernels.conv.image import first_layer
from numbadnn.problems.conv import ConvProblem
from numbadnn.validate import simulate
from numbadnn.validate.oracle import Trial

#: windows that begin and end at odd and even pixels, uneven padding, few rows, several tiles, one to four channels
CASES = (
    "conv2d x={t}:2x3x6x8:nhwc w={t}:32x3x3x3:nhwc pad=1,1,1,1 stride=2,2 flip=0",
    "conv2d x={t}:1x4x5x36:nhwc w={t}:32x4x2x3 y={t}:1x32x5x19:nhwc pad=0,1,2,2 stride=1,2 alpha=2 beta=-3",
    "conv2d x={t}:1x1x3x8:nhwc w={t}:64x1x3x2 y={t}:1x64x1x2:nhwc stride=3,4",
    "conv2d x={t}:1x2x4x12:nhwc w={t}:32x2x2x5:nhwc pad=1,0,3,4 stride=2,2 beta=1",
    "conv2d x={t}:1x3x5x8 w={t}:32x3x3x3 pad=1,1,1,1 stride=2,2 beta=1",  # channels first: copies
)


def run(problem: ConvProblem, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Two warps, which take turns of two rows."""
    config = first_layer.heuristic(problem)
    assert config is not None
    return simulate.run(problem, arrays, "numba.first_layer", config=replace(config, rows=2, columns=16, warps=2))


def untouched(line: str) -> None:
    """A pixel beside a window may be infinite, though it is of a pair that the window meets."""
    problem = ConvProblem.parse(line)
    trial = Trial.of(problem, kind="integers")
    trial.inputs[0][:, :, :, 4] = np.inf
    (got,) = run(problem, trial.inputs)
    met = [abs(2 * q - problem.padding[1][0] + 1 - 4) <= 1 for q in range(problem.y.shape[3])]
    finite = np.isfinite(np.asarray(got, np.float64)).all((0, 1, 2))
    report(f"untouched {line}", bool((finite != np.array(met)).all()), finite)


if __name__ == "__main__":
    for number, text in enumerate(CASES):
        dtype, data = (("float16", "integers"), ("bfloat16", "random"))[number % 2]
        agree(text.format(t=dtype), data, run, "tensor_core")
    untouched("conv2d x=float16:1x3x2x12:nhwc w=float16:32x3x1x3:nhwc pad=0,0,1,1 stride=2,2")
    untouched("conv2d x=float16:1x3x2x12:nhwc w=float16:32x3x1x3:nhwc stride=2,2")
    end()
