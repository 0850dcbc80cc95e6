"""First layers' convolutions: what is taken, what their tiles read, and their kernels under the simulator and on a GPU."""

import pytest
from configured import check_configurations
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numbadnn.kernels.conv.image import first_layer
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem

POLICY = Policy(device=0)
LAYER = "conv2d x=float16:2x3x64x64:nhwc w=float16:64x3x7x7:nhwc pad=3,3,3,3 stride=2,2"
#: layers of several tiles, windows that begin and end at odd and even pixels, odd sizes, scaling, one to four channels
GPU_LINES = (
    LAYER,
    f"{LAYER} flip=0 alpha=2 beta=-3",
    "conv2d x=bfloat16:3x3x37x300:nhwc w=bfloat16:32x3x3x3:nhwc pad=1,1,1,1 stride=2,2 flip=0",
    "conv2d x=float16:2x4x36x36:nhwc w=float16:128x4x3x4 y=float16:2x128x19x18:nhwc pad=2,1,1,2 stride=2,2",
    "conv2d x=bfloat16:1x1x64x60:nhwc w=bfloat16:64x1x5x5 y=bfloat16:1x64x60x14:nhwc stride=1,4 beta=1",
    "conv2d x=float16:2x2x33x44:nhwc w=float16:32x2x6x5:nhwc pad=0,3,4,0 stride=3,2",
)


def test_under_the_simulator() -> None:
    assert checks_passed("first_layer") == 7


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv2d x=float32:1x3x8x8:nhwc w=float32:32x3x3x3 stride=2,2", "needs float16"),
        ("conv2d x=float16:1x6x8x8:nhwc w=float16:32x3x3x3 stride=2,2 groups=2", "one group"),
        ("conv2d x=float16:1x3x8x8:nhwc w=float16:32x3x3x3 stride=2,2 dilation=2,1", "dilated"),
        ("conv2d x=float16:1x3x8x8:nhwc w=float16:32x3x3x3 stride=2,1", "stride of 2 or 4"),
        ("conv2d x=float16:1x5x8x8:nhwc w=float16:32x5x3x3 stride=2,2", "at most 4 channels"),
        ("conv2d x=float16:1x3x8x8:nhwc w=float16:48x3x3x3 stride=2,2", "32, 64 or 128 results"),
        ("conv2d x=float16:1x3x8x8 w=float16:32x3x3x3 stride=2,2", "channels, then pixels"),
        ("conv2d x=float16:1x3x8x10:nhwc w=float16:32x3x3x3 stride=2,2", "groups of four pixels"),
        ("conv2d x=float16:1x3x8x8:nhwc w=float16:32x3x3x3 y=float16:1x32x3x3 stride=2,2", "channels-last results"),
        ("conv2d x=float16:1x3x32x32:nhwc w=float16:32x3x11x11:nhwc stride=4,4", "fewer taps"),
        ("conv2d x=float16:0x3x8x8:nhwc w=float16:32x3x3x3 stride=2,2", "not empty"),
    ],
)
def test_what_it_refuses(text: str, reason: str) -> None:
    assert reason in first_layer.supports(ConvProblem.parse(text), POLICY)


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize("pad", [0, 1, 2, 3])
def test_a_tile_has_all_that_its_windows_meet(taps: int, stride: int, pad: int) -> None:
    line = f"conv2d x=float16:1x3x256x256:nhwc w=float16:32x3x{taps}x{taps}:nhwc stride={stride},{stride}"
    for config in first_layer.space(ConvProblem.parse(f"{line} pad={pad},{pad},{pad},{pad}")):
        assert config.columns % 16 == 0
        assert (pad + config.front + config.skip) % 4 == 0  # a tile begins at a group of four pixels
        last = config.skip + (config.columns - 1) * stride + config.front + taps - 1
        assert last < 4 * config.fours
        assert config.front + taps + config.tail == 2 * config.chunks
        assert config.shared_bytes <= first_layer.SHARED_BYTES


@pytest.mark.gpu
@pytest.mark.parametrize("line", GPU_LINES)
def test_every_configuration_on_the_gpu(line: str) -> None:
    asked = ConvProblem.parse(line)
    assert first_layer.supports(asked, POLICY) == ""
    for kind in ("random", "integers"):
        check_configurations("numba.first_layer", asked, kind, first_layer.space(asked))
