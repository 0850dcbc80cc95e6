"""Gradients of depthwise filters by rows in shared memory: what they take, how blocks share the work, simulator and GPU."""

from dataclasses import replace

import pytest
from configured import check_configurations
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numbadnn.kernels.conv.depthwise import rows as depthwise_rows
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem

POLICY = Policy(device=0)
OP = "conv2d_grad_wrt_weights"
#: odd sizes, several bands and strips, channels and images that do not come out even, scaling, both orders of the filters
GPU_LINES = (
    "x={t}:5x72x30x30:nhwc w={t}:72x1x3x3 pad=1,1,1,1 groups=72 flip=0",
    "x={t}:3x40x61x75:nhwc w={t}:40x1x3x3 pad=1,0,0,2 stride=2,2 groups=40 alpha=2 beta=-3",
    "x={t}:2x40x17x150:nhwc w={t}:40x1x5x5 pad=2,2,2,2 groups=40 beta=1",
    "x={t}:9x8x14x9:nhwc w={t}:8x1x2x3 pad=0,1,1,1 stride=1,2 groups=8 flip=0",
    "x={t}:33x64x7x7:nhwc w={t}:64x1x5x5 pad=2,2,2,2 stride=2,2 groups=64",
    "x={t}:4x32x56x56:nhwc w={t}:32x1x3x3 pad=1,1,1,1 groups=32",
)


def problem(text: str) -> ConvProblem:
    return ConvProblem.parse(f"{OP} {text}")


def test_under_the_simulator() -> None:
    assert checks_passed("depthwise_rows") == 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x=float32:1x8x8x8:nhwc w=float32:8x1x3x3 groups=8", "float16 or bfloat16"),
        ("x=float16:1x8x8x8:nhwc w=float16:16x1x3x3 groups=8", "as many groups and filters as channels"),
        ("x=float16:1x8x8x8:nhwc w=float16:8x1x3x3 groups=8 dilation=2,2", "dilated"),
        ("x=float16:1x8x8x8:nhwc w=float16:8x1x1x1 groups=8 stride=2,2", "no larger than the taps"),
        ("x=float16:1x8x9x9:nhwc w=float16:8x1x7x7 groups=8", "at most 5 taps"),
        ("x=float16:1x12x8x8:nhwc w=float16:12x1x3x3 groups=12", "multiples of 8 channels"),
        ("x=float16:1x8x8x8 w=float16:8x1x3x3 groups=8", "multiples of 8 channels"),
        ("x=float16:0x8x8x8:nhwc w=float16:8x1x3x3 groups=8", "not empty"),
    ],
)
def test_what_it_refuses(text: str, reason: str) -> None:
    assert reason in depthwise_rows.supports(problem(text), POLICY)


def test_keeps_to_the_workspace_limit() -> None:
    asked = problem("x=float16:4x32x56x56:nhwc w=float16:32x1x3x3 pad=1,1,1,1 groups=32")
    assert "workspace limit is 64" in depthwise_rows.supports(asked, replace(POLICY, workspace_limit=64))


@pytest.mark.parametrize("images", [1, 2, 32, 100])
@pytest.mark.parametrize(("channels", "side"), [(8, 5), (32, 112), (144, 56), (960, 7), (24, 300)])
@pytest.mark.parametrize(("taps", "stride"), [(3, 1), (3, 2), (5, 2)])
def test_its_blocks_fit_and_have_all_positions(images: int, channels: int, side: int, taps: int, stride: int) -> None:
    shape = (
        f"{channels}x1x{taps}x{taps} stride={stride},{stride} groups={channels} pad={','.join(4 * [str(taps // 2)])}"
    )
    asked = problem(f"x=float16:{images}x{channels}x{side}x{side}:nhwc w=float16:{shape}")
    out = asked.y.shape[3]
    for config in depthwise_rows.space(asked, POLICY):
        assert config.threads <= depthwise_rows.MOST_THREADS
        assert config.shared_bytes <= depthwise_rows.SHARED
        splits, strips, bands = depthwise_rows._splits(asked, config)
        assert strips * config.rows >= out
        assert bands * config.groups * depthwise_rows.COLUMNS >= out
        assert splits * config.images >= strips * bands * images
        assert config.even == (out % (config.groups * depthwise_rows.COLUMNS) == 0 and images % config.images == 0)


@pytest.mark.gpu
@pytest.mark.parametrize("text", GPU_LINES)
def test_every_configuration_on_the_gpu(text: str) -> None:
    for dtype, kind in (("float16", "integers"), ("bfloat16", "random")):
        asked = problem(text.format(t=dtype))
        assert depthwise_rows.supports(asked, POLICY) == ""
        check_configurations("numba.depthwise_rows", asked, kind, depthwise_rows.space(asked, POLICY))


@pytest.mark.gpu
def test_an_infinity_reaches_its_own_taps_alone() -> None:
    """Threads whose columns do not exist multiply nothing: 0 times an infinity would be NaN."""
    torch = pytest.importorskip("torch")

    import numbadnn

    x = torch.zeros(1, 8, 6, 6, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    g = torch.ones(1, 8, 6, 6, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    x[0, 0, 3, 5] = float("inf")  # the last column: met by the last two columns of g
    with numbadnn.using(only="numba.depthwise_rows"):
        found = numbadnn.conv2d_grad_wrt_weights(x, g, (8, 1, 3, 3), border_mode=1, num_groups=8, filter_flip=False)
    assert found[0, 0, :, 1:].isinf().all()
    found[0, 0, :, 1:] = 0
    assert not found.any()
