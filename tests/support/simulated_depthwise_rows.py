"""Run gradients of depthwise filters under the CUDA simulator; test_depthwise_rows.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

from dataclasses import replace
from typing import Any

from reporting import agree, end

from numbadnn.kernels.conv.depthwise import rows as depthwise_rows
from numbadnn.problems.conv import ConvProblem
from numbadnn.validate import simulate

#: strides, uneven padding, odd sizes, bands and strips, images and channels that do not come out even, filters in both orders
CASES = (
    "x={t}:2x8x5x6:nhwc w={t}:8x1x3x3 pad=1,1,1,1 groups=8 flip=0",
    "x={t}:3x16x9x7:nhwc w={t}:16x1x3x3 pad=1,0,0,2 stride=2,2 groups=16 alpha=2 beta=-3",
    "x={t}:1x40x7x5:nhwc w={t}:40x1x5x5 pad=2,2,2,2 groups=40 beta=1",
    "x={t}:2x8x4x9:nhwc w={t}:8x1x2x3 pad=0,1,1,1 stride=1,2 groups=8 flip=0",
)


def run(problem: ConvProblem, arrays: tuple[Any, ...]) -> Any:
    config = replace(depthwise_rows.heuristic(problem), groups=1, images=2, rows=3, even=False)
    return simulate.run(problem, arrays, "numba.depthwise_rows", config=config)


if __name__ == "__main__":
    for number, text in enumerate(CASES):
        dtype, data = (("float16", "integers"), ("bfloat16", "random"))[number % 2]
        agree(f"conv2d_grad_wrt_weights {text.format(t=dtype)}", data, run)
    end()
