"""Run the depthwise and the CorrMM kernels under the CUDA simulator; test_depthwise.py and test_corrmm.py start it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

import sys
from dataclasses import replace
from typing import Any

from reporting import agree, end

from numbadnn.kernels.conv.corrmm import corrmm as corrmm_host
from numbadnn.problems.conv import ConvProblem
from numbadnn.validate import simulate

DIRECTIONS = ("conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights")
DEPTHWISE = (  # vectors and edges, strides, multipliers, both layouts, every type, taps that are not square
    "x=float32:1x2x8x8 w=float32:2x1x3x3 pad=1,1,1,1 groups=2 stride=2,2 alpha=2 beta=-1",
    "x=float16:1x2x5x8 w=float16:4x1x5x5 pad=2,2,2,2 groups=2 flip=0",
    "x=float32:1x2x6x9 w=float32:2x1x3x2 pad=0,2,1,0 groups=2 stride=2,1",
    "x=float64:1x4x5x6:nhwc w=float64:4x1x3x3 pad=1,1,1,1 groups=4",
    "x=bfloat16:2x8x4x5:nhwc w=bfloat16:8x1x3x3:nhwc pad=1,1,1,1 groups=8 stride=2,2 beta=1",
    "x=float32:1x3x4x5:nhwc w=float32:6x1x4x3 pad=2,1,1,1 groups=3 stride=1,2",
)
CORRMM = (
    "x=float32:2x3x4x3 w=float32:4x3x3x2 pad=1,1,0,1",
    "x=float16:1x4x3x3:nhwc w=float16:4x4x2x2:nhwc pad=1,0,0,1 stride=2,1 flip=0 alpha=2 beta=-1",
    "x=float64:1x2x4x3 w=float64:2x1x2x2:4,-4,2,1 groups=2 dilation=2,1",
    "x=float32:2x2x2x3 w=float32:2x2x2x1x2x2 groups=2 pad=0,1,0,0",
)


def check(line: str, name: str, kind: str = "integers", config: Any = None) -> None:
    def run(problem: ConvProblem, arrays: tuple[Any, ...]) -> Any:
        return simulate.run(problem, arrays, name, config=config(problem) if config else None)

    agree(line, kind, run, "tensor_core" if "=float16" in line and name == "numba.corrmm" else "ieee")


def depthwise() -> None:
    for i, line in enumerate(DEPTHWISE):
        for j, op in enumerate(DIRECTIONS):
            check(f"{op} {line}", "numba.depthwise", "random" if (i + j) % 3 == 0 else "integers")
    check("conv2d x=float32:1x2x1x36 w=float32:2x1x1x31 groups=2 pad=0,0,15,15 flip=0", "numba.depthwise", "random")


def corrmm() -> None:
    for i, line in enumerate(CORRMM):
        for j, op in enumerate(DIRECTIONS):
            check(f"{op} {line}", "numba.corrmm", "random" if (i + j) % 3 == 0 else "integers")
    for op in DIRECTIONS:  # one buffer for two images, one after the other
        check(f"{op} {CORRMM[0]}", "numba.corrmm", config=lambda p: replace(corrmm_host.heuristic(p), images=1))
    for op in ("conv3d", "conv3d_grad_wrt_inputs"):
        check(f"{op} x=float32:1x2x2x4x2 w=float32:2x2x2x3x2 pad=1,0,1,1,0,0 stride=1,2,1", "numba.corrmm")


if __name__ == "__main__":
    for part in sys.argv[1:]:
        globals()[part]()
    end()
