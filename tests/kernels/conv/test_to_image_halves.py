"""Convolutions of 16-bit types into few channels: what is taken, what tiles meet, and their kernels, simulated and on a GPU."""

import pytest
from configured import check_configurations
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numbadnn.kernels.conv.image import to_image_halves
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem

POLICY = Policy(device=0)
INPUTS, FORWARD = "conv2d_grad_wrt_inputs", "conv2d"
#: first layers' gradients, a last layer; odd sizes, scaling, one to four channels, one to eight parts
GPU_LINES = (
    f"{INPUTS} x=float16:2x3x64x66:nhwc w=float16:64x3x7x7:nhwc pad=3,3,3,3 stride=2,2 flip=0",
    f"{INPUTS} x=bfloat16:3x3x37x41:nhwc w=bfloat16:32x3x3x3:nhwc pad=1,0,0,2 stride=2,2 alpha=2 beta=-3",
    f"{INPUTS} x=float16:2x4x40x70 w=float16:128x4x3x2 y=float16:2x128x40x69:nhwc pad=1,1,0,0",
    f"{INPUTS} x=bfloat16:1x1x38x45 w=bfloat16:16x1x2x3 y=bfloat16:1x16x37x22:nhwc stride=1,2 beta=1 flip=0",
    f"{INPUTS} x=float16:2x3x36x36:nhwc w=float16:16x3x1x1:nhwc stride=2,2",
    f"{INPUTS} x=float16:2x3x31x40:nhwc w=float16:32x3x3x4:nhwc pad=1,1,1,1 stride=2,2",
    f"{FORWARD} x=float16:2x64x35x77:nhwc w=float16:2x64x5x3:nhwc pad=2,2,0,1",
)


def test_under_the_simulator() -> None:
    assert checks_passed("to_image_halves") == 7


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{INPUTS} x=float32:1x3x8x8:nhwc w=float32:16x3x3x3", "needs float16"),
        (f"{INPUTS} x=float16:1x6x8x8:nhwc w=float16:16x3x3x3 groups=2", "one group"),
        (f"{INPUTS} x=float16:1x5x8x8:nhwc w=float16:16x5x3x3", "at most 4 channels"),
        (f"{INPUTS} x=float16:1x3x8x8:nhwc w=float16:24x3x3x3:nhwc", "channels to be summed"),
        (f"{INPUTS} x=float16:1x3x8x8:nhwc w=float16:16x3x3x3 dilation=2,1", "dilated"),
        (f"{INPUTS} x=float16:1x3x8x8:nhwc w=float16:16x3x3x3 stride=1,3", "strides of 1 or 2"),
        (f"{INPUTS} x=float16:1x3x8x8 w=float16:16x3x3x3", "channels-last"),
        (f"{FORWARD} x=float16:1x16x8x8:nhwc w=float16:3x16x3x3 stride=2,1", "gradient of the image alone"),
        (f"{INPUTS} x=float16:0x3x8x8:nhwc w=float16:16x3x3x3:nhwc", "not empty"),
    ],
)
def test_what_it_refuses(text: str, reason: str) -> None:
    assert reason in to_image_halves.supports(ConvProblem.parse(text), POLICY)


@pytest.mark.parametrize("taps", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pad", [0, 1, 3])
def test_a_tile_has_all_that_its_positions_meet(taps: int, stride: int, pad: int) -> None:
    line = f"{INPUTS} x=float16:1x3x256x256:nhwc w=float16:64x3x{taps}x{taps}:nhwc stride={stride},{stride}"
    for config in to_image_halves.space(ConvProblem.parse(f"{line} pad={pad},{pad},{pad},{pad}")):
        for axis, positions in enumerate((config.rows, config.columns)):
            results = range(positions * stride)
            met = [(i + pad - r) // stride for i in results for r in range(taps) if (i + pad - r) % stride == 0]
            assert config.lowest[axis] <= min(met)
            assert max(met) < config.lowest[axis] + config.source[axis]
        assert config.shared_bytes <= to_image_halves.SHARED_BYTES


@pytest.mark.gpu
@pytest.mark.parametrize("line", GPU_LINES)
def test_every_configuration_on_the_gpu(line: str) -> None:
    asked = ConvProblem.parse(line)
    assert to_image_halves.supports(asked, POLICY) == ""
    for kind in ("random", "integers"):
        check_configurations("numba.to_image_halves", asked, kind, to_image_halves.space(asked))
