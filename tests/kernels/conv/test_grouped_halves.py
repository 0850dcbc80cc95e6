"""Convolution of few channels a group: what it takes, how it is divided, and its kernels under the simulator and on a GPU."""

from dataclasses import replace

import pytest
from configured import check_configurations
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numbadnn.kernels.conv.grouped import config as configurations
from numbadnn.kernels.conv.grouped import grouped as grouped_halves
from numbadnn.kernels.conv.grouped import weights_config as of_weights
from numbadnn.kernels.conv.grouped.walk import Walk, axis
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import implementations

POLICY = Policy(device=0)
BOTH = ("conv2d", "conv2d_grad_wrt_inputs")
WEIGHTS = "conv2d_grad_wrt_weights"
LAYERS = (
    "x=float16:32x128x56x56:nhwc w=float16:128x4x3x3:nhwc pad=1,1,1,1 groups=32",
    "x=float16:32x256x56x56:nhwc w=float16:256x8x3x3:nhwc pad=1,1,1,1 stride=2,2 groups=32",
    "x=bfloat16:32x512x28x28:nhwc w=bfloat16:512x16x3x3:nhwc pad=1,1,1,1 stride=2,2 groups=32",
    "x=float16:32x1024x7x7:nhwc w=float16:1024x32x3x3:nhwc pad=1,1,1,1 groups=32",
    "x=float16:32x3x224x224:nhwc w=float16:64x3x7x7:nhwc pad=3,3,3,3 stride=2,2",
    "x=float16:32x3x224x224:nhwc w=float16:64x3x3x3:nhwc pad=1,1,1,1",
)
#: odd sizes, several tiles; every number of channels, strides, dilation, uneven padding, scaling, both orders of the filters
GPU_LINES = (
    "x={t}:3x64x19x23:nhwc w={t}:64x4x3x3:nhwc pad=1,1,1,1 groups=16",
    "x={t}:2x128x21x30:nhwc w={t}:128x8x3x3:nhwc pad=1,0,2,1 stride=2,2 groups=16 flip=0 alpha=2 beta=-3",
    "x={t}:2x24x17x18:nhwc w={t}:24x8x3x3 pad=1,1,1,1 stride=1,2 groups=3",
    "x={t}:2x64x15x14:nhwc w={t}:64x16x3x3:nhwc pad=2,2,2,2 dilation=2,2 groups=4 beta=1",
    "x={t}:2x96x9x7:nhwc w={t}:96x32x3x3:nhwc pad=1,1,1,1 groups=3",
    "x={t}:1x32x12x13:nhwc w={t}:64x16x5x5 pad=2,2,2,2 stride=2,1 groups=2 flip=0",
    "x={t}:2x32x10x9:nhwc w={t}:32x8x1x1:nhwc stride=2,2 groups=4",
    "x={t}:2x3x41x37:nhwc w={t}:64x3x7x7:nhwc pad=3,3,3,3 stride=2,2",
    "x={t}:2x1x20x33 w={t}:10x1x3x3 y={t}:2x10x20x33:nhwc pad=1,1,1,1 alpha=-1",
    "x={t}:2x4x20x33:nhwc w={t}:32x4x3x3:nhwc pad=1,1,1,1 dilation=1,2 stride=3,1",
    "x={t}:2x3x21x18:nhwc w={t}:32x3x3x3:nhwc pad=1,1,1,1 stride=2,2 beta=1",
    "x={t}:9x96x7x7:nhwc w={t}:96x32x3x3:nhwc pad=1,1,1,1 groups=3 flip=0",  # several images a block
    "x={t}:3x3x22x23 w={t}:96x3x4x4 y={t}:3x96x7x5:nhwc stride=3,4 pad=1,1,0,0",
    "x={t}:2x32x40x11:nhwc w={t}:128x8x3x3:nhwc pad=1,1,1,1 groups=4",  # four times as many filters as channels
)
#: not taken: many filters, gradients of images from many or odd filters, a stride of 3, taps that are no neighbours
REFUSED = {BOTH[0]: (12,), BOTH[1]: (7, 8, 9, 12), WEIGHTS: (9,)}


def problem(text: str, op: str = "conv2d") -> ConvProblem:
    return ConvProblem.parse(f"{op} {text}")


@pytest.mark.slow(20)
def test_under_the_simulator() -> None:
    assert checks_passed("grouped_halves") == 31


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x=float32:1x8x8x8:nhwc w=float32:8x4x3x3 groups=2", "float16 or bfloat16"),
        ("x=float16:1x12x8x8:nhwc w=float16:8x6x3x3 groups=2", "4, 8, 16 or 32 channels"),
        ("x=float16:1x64x8x8:nhwc w=float16:8x64x3x3", "4, 8, 16 or 32 channels"),
        ("x=float16:1x8x8x8:nhwc w=float16:6x4x3x3 groups=2", "even number of results"),
        ("x=float16:1x8x8x8:nhwc w=float16:132x4x3x3 groups=2", "at most 64"),
        ("x=float16:1x8x8x8 w=float16:8x4x3x3 groups=2", "channels-last"),
        ("x=float16:1x32x40x40:nhwc w=float16:32x32x9x9", "fewer taps"),
        ("x=float16:2x4x4x4 w=float16:8x4x4x4x1x1", "shared filters"),
        ("x=float16:0x8x8x8:nhwc w=float16:8x4x3x3 groups=2", "not empty"),
        ("x=float16:2x8x8x8:nhwc w=float16:0x4x3x3 groups=2", "not empty"),
        ("x=float16:2x32x40x40:nhwc w=float16:8x32x9x9:nhwc", "fewer taps"),  # whose filters are no registers' worth
        (
            "x=float16:2x32x16x16:5000,1,16,1 w=float16:32x16x3x3:nhwc groups=2 y=float16:2x32x14x14:nhwc",
            "channels-last",
        ),
        (
            "x=float16:2x32x16x16:8192,1,1,32 w=float16:32x16x3x3:nhwc groups=2 y=float16:2x32x14x14:nhwc",
            "channels-last",
        ),
    ],
)
def test_refuses_with_a_reason(text: str, reason: str) -> None:
    assert reason in grouped_halves.supports(problem(text), POLICY)


def test_it_takes_any_number_of_images_or_none() -> None:
    """What is taken under batch_invariant must not depend on the others."""
    for images in (1, 8, 300):
        text = f"x=float16:{images}x3x1080x1920:nhwc w=float16:64x3x3x3:nhwc pad=1,1,1,1"
        assert "32 bits" not in grouped_halves.supports(problem(text), POLICY)
    assert "32 bits" in grouped_halves.supports(problem(text.replace("1080x1920", "10800x19200")), POLICY)


def test_the_gradient_of_the_image_takes_strides_up_to_2() -> None:
    text = "x=float16:1x8x9x9:nhwc w=float16:8x4x3x3 stride=3,1 groups=2"
    assert "strides of 1 and 2" in grouped_halves.supports(problem(text, "conv2d_grad_wrt_inputs"), POLICY)
    assert "strides" not in grouped_halves.supports(problem(text), POLICY)


@pytest.mark.parametrize("flip", [0, 1])
@pytest.mark.parametrize(
    ("taps", "stride", "dilation", "pad"), [(3, 2, 1, 1), (3, 2, 2, 1), (5, 2, 3, 0), (1, 2, 1, 0)]
)
def test_phases_meet_each_tap_where_it_is(taps: int, stride: int, dilation: int, pad: int, flip: int) -> None:
    """Every (place of y, tap) that the definition gives a result of the gradient, and no other."""
    line = f"x=float16:1x4x23x5 w=float16:4x4x{taps}x1 stride={stride},1 dilation={dilation},1 flip={flip} pad={pad},{pad},0,0"
    asked = problem(line, "conv2d_grad_wrt_inputs")
    rows, height = axis(asked, 0), asked.y.shape[2]
    for h in range(23):
        phase, i = h % stride, h // stride
        met = {
            (i * rows.stride + rows.lows[phase] + j * rows.step, rows.firsts[phase] + j * rows.turn)
            for j in range(rows.counts[phase])
        }
        wanted = {
            (p, taps - 1 - t if flip else t)
            for p in range(-30, height + 30)
            for t in range(taps)
            if p * stride - pad + t * dilation == h
        }
        assert met == wanted


@pytest.mark.parametrize("op", BOTH)
@pytest.mark.parametrize("line", LAYERS)
def test_configurations_fit(line: str, op: str) -> None:
    asked = problem(line, op)
    walk, found = Walk.of(asked), configurations.space(asked)
    if op == BOTH[1] and walk.results % 2:
        assert "channels a group" in grouped_halves.supports(asked, POLICY)
        return
    assert 1 <= len(found) <= configurations.MOST_TIMED
    assert found[0] == configurations.heuristic(asked)
    for config in found:
        assert config.shared_bytes(walk) <= configurations.SHARED_BYTES
        assert config.ways * config.jobs == config.warps
        assert config.wide * config.parts * 8 >= config.results
        assert config.bunch * config.capacity * 2 <= configurations.ZEROS
        assert config.pitch % 32 == 16 or config.pitch == 8  # eight neighbours meet all banks
        assert config.threads % (config.groups * config.channels // config.load) == 0 or config.load == 1


@pytest.mark.parametrize("op", (*BOTH, WEIGHTS))
@pytest.mark.parametrize("line", LAYERS[:4])
def test_ranks_before_the_other_own_kernels(line: str, op: str) -> None:
    asked = problem(line, op)
    refusing = ("numba.depthwise", "numba.first_layer", "numba.implicit_gemm", "numba.to_image_halves")
    ranks = {i.name: i.rank(asked) for i in implementations(op) if i.backend == "numba" and i.name not in refusing}
    assert min(ranks, key=lambda name: ranks[name]) == "numba.grouped_halves"


@pytest.mark.parametrize("line", LAYERS)
def test_configurations_of_the_filters_fit(line: str) -> None:
    asked = problem(line, WEIGHTS)
    found = of_weights.space(asked)
    assert 1 <= len(found) <= of_weights.MOST_TIMED
    assert found[0] == of_weights.heuristic(asked)
    for config in found:
        down, along, _ = of_weights.tiles_of(asked, config)
        assert config.shared_bytes(asked) <= of_weights.SHARED_BYTES
        assert config.each * config.parts >= of_weights.units(asked)
        assert config.sums <= of_weights.MOST_SUMS
        assert config.splits <= -(-asked.x.shape[0] // config.images) * down * along
        assert config.images == 1 or config.tile == asked.y.shape[2:]
        assert config.direct == (config.splits == 1)
        assert config.even
        assert config.m * 2 <= of_weights.ZEROS
        assert config.y_pitch % 32 == 16 and config.pitch % 32 == (8 if config.few else 16)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x=float16:1x12x8x8:nhwc w=float16:8x6x3x3 groups=2", "4, 8, 16 or 32 channels"),
        ("x=float16:1x32x8x8:nhwc w=float16:24x16x3x3 groups=2", "fill products"),
        ("x=float16:1x32x8x8 w=float16:32x16x3x3 groups=2", "channels-last"),
        ("x=float16:1x3x8x8:nhwc w=float16:16x3x3x3 dilation=1,2", "neighbouring columns"),
        ("x=float16:1x32x8x8192:nhwc w=float16:32x16x3x3:nhwc groups=2 dilation=1,4000", "smaller part"),
    ],
)
def test_refuses_filters_with_a_reason(text: str, reason: str) -> None:
    assert reason in grouped_halves.supports(problem(text, WEIGHTS), POLICY)


def test_the_workspace_limit_bounds_the_shares() -> None:
    asked = problem(LAYERS[0], WEIGHTS)
    one = of_weights.partial_bytes(asked)
    assert all(c.splits <= 3 for c in of_weights.space(asked, 3 * one))
    assert "workspace" in grouped_halves.supports(asked, replace(POLICY, workspace_limit=one - 1))


@pytest.mark.gpu
@pytest.mark.slow(10)
@pytest.mark.parametrize("op", (*BOTH, WEIGHTS))
@pytest.mark.parametrize("number", range(len(GPU_LINES)))
def test_configurations_on_the_gpu(number: int, op: str) -> None:
    (impl,) = (i for i in implementations(op) if i.name == "numba.grouped_halves")
    assert impl.space is not None
    for dtype, kind in (("float16", "integers"), ("bfloat16", "random")):
        asked = problem(GPU_LINES[number].format(t=dtype), op)
        if reason := impl.supports(asked, POLICY):
            assert number in REFUSED[op], reason
            pytest.skip(reason)
        configs = impl.space(asked, POLICY)[: 4 if dtype == "float16" else 1]
        check_configurations("numba.grouped_halves", asked, kind, configs)
