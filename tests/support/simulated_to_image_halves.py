"""Run convolutions of 16-bit types into few channels under the CUDA simulator; test_to_image_halves.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

from dataclasses import replace

import numpy as np
from reporting import agree, end, report

from numbadnn.kernels.conv.image import to_image_halves
from numbadnn.problems.conv import ConvProblem
from numbadnn.validate import simulate
from numbadnn.validate.oracle import Trial

INPUTS, FORWARD = "conv2d_grad_wrt_inputs", "conv2d"
#: strides, uneven padding, odd sizes, several tiles, phases that meet no tap, one to four channels, parts and ways
CASES = (
    f"{INPUTS} x={{t}}:1x3x6x7:nhwc w={{t}}:16x3x3x3:nhwc pad=1,1,1,1 flip=0",
    f"{INPUTS} x={{t}}:2x3x5x36:nhwc w={{t}}:32x3x3x3:nhwc pad=1,0,0,2 stride=2,2 alpha=2 beta=-3",
    f"{INPUTS} x={{t}}:1x1x9x5 w={{t}}:16x1x2x3 y={{t}}:1x16x8x2:nhwc stride=1,2 beta=1",
    f"{INPUTS} x={{t}}:1x4x6x6:nhwc w={{t}}:16x4x1x1:nhwc stride=2,2",
    f"{INPUTS} x={{t}}:1x2x5x8:nhwc w={{t}}:16x2x2x4 y={{t}}:1x16x3x4:nhwc pad=1,1,1,1 stride=2,2 flip=0",
    f"{FORWARD} x={{t}}:1x32x4x5:nhwc w={{t}}:2x32x3x2:nhwc pad=0,2,1,0 alpha=-1",
)


def run(problem: ConvProblem, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Two warps to a part of the channels where there is one."""
    config = to_image_halves.heuristic(problem)
    assert config is not None
    config = replace(config, rows=4, columns=16, ways=2 // config.parts)
    return simulate.run(problem, arrays, "numba.to_image_halves", config=config)


def untouched(line: str) -> None:
    """What only one phase meets may be infinite for that one alone."""
    problem = ConvProblem.parse(line)
    trial = Trial.of(problem, kind="integers")
    trial.inputs[0][:, :, 2, 2] = np.inf
    (got,) = run(problem, trial.inputs)
    finite = np.isfinite(np.asarray(got, np.float64)).all((0, 1))
    met = [0 <= h + problem.padding[0][0] - 2 * 2 < problem.taps[0] for h in range(problem.x.shape[2])]
    report(f"untouched {line}", bool((finite == ~np.outer(met, met)).all()))


if __name__ == "__main__":
    for number, text in enumerate(CASES):
        dtype, data = (("float16", "integers"), ("bfloat16", "random"))[number % 2]
        agree(text.format(t=dtype), data, run, "tensor_core")
    untouched(f"{INPUTS} x=float16:1x3x8x8:nhwc w=float16:16x3x3x3:nhwc pad=1,1,1,1 stride=2,2")
    end()
