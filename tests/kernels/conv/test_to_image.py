"""Convolutions into few channels: what they take, what their tiles meet, and their kernels under the simulator and on a GPU."""

import pytest
from configured import check_configurations
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numbadnn.kernels.conv.image import to_image
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import implementations

POLICY = Policy(device=0)
INPUTS, FORWARD = "conv2d_grad_wrt_inputs", "conv2d"
#: layers' gradients of images, transposed convolutions of several blocks, last layers; odd sizes, scaling, unaligned rows
GPU_LINES = (
    f"{INPUTS} x=float32:2x3x37x41 w=float32:19x3x3x3 pad=1,1,1,1 flip=0",
    f"{INPUTS} x=float32:2x3x37x150:nhwc w=float32:19x3x5x3:nhwc pad=1,0,0,2 stride=2,2 alpha=2 beta=-3",
    f"{INPUTS} x=float32:2x4x64x64 w=float32:33x4x7x7 pad=3,3,3,3 stride=2,2 flip=0",
    f"{INPUTS} x=float32:1x1x38x45 w=float32:3x1x2x3 stride=1,2 beta=1 flip=0",
    f"{INPUTS} x=float32:2x3x36x36:nhwc w=float32:4x3x1x1 stride=2,2",
    f"{INPUTS} x=float32:3x2x131x70:nhwc w=float32:40x2x6x7 pad=2,3,0,6 stride=2,1",
    f"{FORWARD} x=float32:2x64x65x77 w=float32:3x64x3x3 pad=1,1,1,1 flip=0",
    f"{FORWARD} x=float32:1x19x36x35:nhwc w=float32:1x19x3x2:nhwc pad=0,2,1,0 alpha=-1 beta=1",
)


def test_under_the_simulator() -> None:
    assert checks_passed("to_image") == 9


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{INPUTS} x=float32:1x5x8x8 w=float32:8x5x3x3", "at most 4 channels"),
        (f"{FORWARD} x=float32:1x3x8x8 w=float32:8x3x3x3", "at most 4 channels"),
        (f"{INPUTS} x=float16:1x3x8x8 w=float16:8x3x3x3", "needs float32"),
        (f"{INPUTS} x=float32:1x4x8x8 w=float32:8x2x3x3 groups=2", "one group"),
        (f"{INPUTS} x=float32:1x3x8x8 w=float32:8x3x3x3 dilation=2,1", "dilated"),
        (f"{INPUTS} x=float32:1x3x8x8 w=float32:8x3x3x3 stride=1,3", "strides of 1 or 2"),
        (f"{FORWARD} x=float32:1x8x8x8 w=float32:3x8x3x3 stride=2,1", "gradient of the image alone"),
        (f"{INPUTS} x=float32:1x3x9x9 w=float32:8x3x9x1", "at most 7 taps"),
        (f"{INPUTS} x=float32:0x3x8x8 w=float32:8x3x3x3", "not empty"),
    ],
)
def test_what_it_refuses(text: str, reason: str) -> None:
    assert reason in to_image.supports(ConvProblem.parse(text), POLICY)


@pytest.mark.parametrize("taps", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pad", [0, 1, 3])
def test_a_tile_has_all_that_its_patches_meet(taps: int, stride: int, pad: int) -> None:
    line = f"{INPUTS} x=float32:1x3x256x256 w=float32:8x3x{taps}x{taps} stride={stride},{stride}"
    config = to_image.heuristic(ConvProblem.parse(f"{line} pad={pad},{pad},{pad},{pad}"))
    rows, columns, plane = config.tile
    extents = (to_image.DOWN * config.patch[0], to_image.ACROSS * config.patch[1])
    for axis, room in enumerate((rows, columns)):
        met = [
            (i + pad - r) // stride for i in range(extents[axis]) for r in range(taps) if (i + pad - r) % stride == 0
        ]
        assert config.lowest[axis] <= min(met)
        assert max(met) < config.lowest[axis] + room
    assert plane % 32 == 32 // config.lanes or config.lanes == 1  # neighbouring channels in different banks
    assert config.shared_bytes <= to_image.SHARED


@pytest.mark.parametrize(
    "line",
    [
        f"{INPUTS} x=float32:16x3x224x224 w=float32:64x3x3x3 pad=1,1,1,1",
        f"{INPUTS} x=float32:32x3x224x224:nhwc w=float32:64x3x7x7:nhwc pad=3,3,3,3 stride=2,2",
        f"{FORWARD} x=float32:4x64x256x256 w=float32:3x64x3x3 pad=1,1,1,1",
    ],
)
def test_ranks_before_the_other_own_kernels(line: str) -> None:
    asked = ConvProblem.parse(line)
    ranks = {i.name: i.rank(asked) for i in implementations(asked.op) if i.backend == "numba"}
    for name in ("depthwise", "grouped_halves", "implicit_gemm", "first_layer", "to_image_halves"):  # do not take it
        ranks.pop(f"numba.{name}", None)
    assert min(ranks, key=lambda name: ranks[name]) == "numba.to_image"


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["random", "integers"])
@pytest.mark.parametrize("line", GPU_LINES)
def test_every_configuration_on_the_gpu(line: str, kind: str) -> None:
    asked = ConvProblem.parse(line)
    assert to_image.supports(asked, POLICY) == ""
    check_configurations("numba.to_image", asked, kind, to_image.space(asked, POLICY))
