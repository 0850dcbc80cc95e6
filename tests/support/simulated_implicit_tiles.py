"""Run the tiled implicit products under the CUDA simulator; test_implicit_tiles.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

from typing import Any

from reporting import agree, end

from numbadnn.kernels.conv.tiles import model
from numbadnn.kernels.conv.tiles.config import configured
from numbadnn.kernels.conv.tiles.product import Product
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.validate import simulate

DIRECTIONS = ("conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights")
LINES = (  # tails and uneven padding; strides, phases without taps, groups, vectors; backwards in float64; copies of positions
    "x=float32:2x3x5x4 w=float32:4x3x3x2 pad=1,1,0,2",
    "x=float32:1x8x5x6:nhwc w=float32:8x4x2x3:nhwc pad=2,0,1,1 stride=2,3 dilation=2,1 flip=0 groups=2 alpha=2 beta=-3",
    "x=float64:1x2x4x4:-32,16,-4,1 w=float64:3x2x2x3 pad=1,0,1,1 stride=1,2 alpha=-1 beta=1",
    "x=float32:2x4x4x4 w=float32:4x4x1x1",
)


def check(line: str, kind: str, splits: int, stages: int, precision: str = "ieee") -> None:
    def run(problem: ConvProblem, arrays: tuple[Any, ...]) -> Any:
        policy, tf32 = Policy(device=0, fp32_precision=precision), precision == "tf32"
        ((shape, _),) = model.candidates(problem.x.dtype, tf32)
        terms = {2: 16, 4: 8, 8: 4}[problem.x.itemsize]
        config = configured(Product(problem), shape, tf32, splits, stages, terms)
        return simulate.run(problem, arrays, "numba.implicit_tiles", policy, config)

    agree(line, kind, run, "tensor_core" if "float16" in line else precision)


def products() -> None:
    for i, line in enumerate(LINES):
        for j, op in enumerate(DIRECTIONS):
            for splits, stages in ((1, 3), (2, 2))[(i + j) % 2 if i > 1 else 0 :]:
                check(f"{op} {line}", "random" if (i + j + splits) % 3 == 0 else "integers", splits, stages)
    check("conv3d x=float32:1x2x2x4x2 w=float32:2x2x2x3x2 pad=1,0,1,1,0,0 stride=1,2,1", "integers", 1, 3)
    check("conv3d_grad_wrt_inputs x=float32:1x2x3x4x2 w=float32:2x2x2x3x2 stride=2,1,1", "integers", 1, 3)
    for splits, rest in (
        (1, "pad=1,0,0,1 stride=2,2"),
        (2, "stride=3,2 dilation=2,1"),
        (1, "stride=2,2 alpha=2 beta=1"),
    ):
        filters = "2x2" if "dilation" in rest else "1x1"  # phases that meet no tap, first, last and between
        check(f"conv2d_grad_wrt_inputs x=float32:1x3x6x5 w=float32:20x3x{filters} {rest}", "integers", splits, 3)
    for line in (  # the last phase first; several tiles a phase, groups, three axes; results by way of shared memory
        "conv2d_grad_wrt_inputs x=float32:1x4x9x9 w=float32:4x2x3x3 pad=1,1,1,1 stride=2,2 groups=2",
        "conv2d_grad_wrt_inputs x=float32:1x35x6x5 w=float32:3x35x3x3 pad=1,1,1,1 stride=2,2 alpha=-2 beta=3",
        "conv3d_grad_wrt_inputs x=float32:1x2x4x5x4 w=float32:3x2x3x3x2 pad=1,1,1,1,0,0 stride=2,2,2",
    ):
        check(line, "integers", 1, 2)
    check("conv2d_grad_wrt_inputs x=float64:1x3x4x5 w=float64:2x3x1x1 stride=2,2", "integers", 1, 3)
    check("conv2d x=float32:1x3x4x4 w=float32:2x3x2x2", "random", 1, 3, "tf32")
    check("conv2d x=float32:1x4x4x3:nhwc w=float32:6x4x2x2:nhwc", "integers", 1, 3, "tf32")
    check("conv2d x=float64:1x2x4x3 w=float64:3x2x2x3 pad=1,0,1,1 flip=0", "integers", 1, 3)
    for op in DIRECTIONS:
        check(f"{op} x=float64:2x4x3x4 w=float64:6x4x1x1", "integers", 1, 3)
    halves = "x={t}:1x8x4x3:nhwc w={t}:8x8x2x3:nhwc pad=1,0,1,1 stride=2,1"
    for i, op in enumerate(DIRECTIONS):
        check(f"{op} {halves.format(t=('float16', 'bfloat16')[i % 2])}", "integers" if i else "random", 1 + i, 3)


if __name__ == "__main__":
    products()
    end()
