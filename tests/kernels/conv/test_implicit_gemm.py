"""Implicit GEMM on the GPU: what it takes, how it is configured, its kernels under the simulator and on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numbadnn.kept import ranks
from numbadnn.kernels.build import assemble as _assemble
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.conv.implicit import gemm as host
from numbadnn.kernels.conv.implicit import layout as implicit_layout
from numbadnn.kernels.conv.implicit import pixels as implicit_pixels
from numbadnn.kernels.conv.implicit import pixels_config as implicit_pixels_config
from numbadnn.kernels.conv.implicit.walk import filter_steps, image_reason
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import implementations

POLICY = Policy(device=0)
DIRECTIONS = ("conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights")
VOLUME_DIRECTIONS = ("conv3d", "conv3d_grad_wrt_inputs", "conv3d_grad_wrt_weights")
LAYER = "x=float16:32x64x56x56:nhwc w=float16:64x64x3x3:nhwc pad=1,1,1,1"
VOLUME = "x=float16:2x64x32x32x32:nhwc w=float16:128x64x3x3x3:nhwc pad=1,1,1,1,1,1"


def problem(text: str, op: str = "conv2d") -> ConvProblem:
    return ConvProblem.parse(f"{op} {text}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "checks"),
    [("pixels", 5), ("weights", 3), ("weight_totals", 2), ("volumes", 10), ("volume_weights", 3), ("lacking", 5)],
)
def test_under_the_simulator(part: str, checks: int) -> None:
    assert checks_passed("implicit_gemm", part) == checks


@pytest.mark.skipif(not _assemble.find_ptxas(), reason="ptxas is not installed")
@pytest.mark.parametrize("kernel", list(host.hopper_kernels()), ids=lambda k: k.name.replace(" ", "-"))
def test_hopper_kernels_assemble_without_spills(kernel: Kernel) -> None:
    made = _assemble.by_ptxas(kernel.ptx((9, 0, "a")), "sm_90a", _assemble.find_ptxas())
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in made.log, made.log
    assert "serialized" not in made.log, made.log


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x=float32:1x8x8x8:nhwc w=float32:8x8x3x3", "where TF32 is allowed"),
        ("x=float16:1x16x8x8:nhwc w=float16:8x8x3x3 groups=2", "64 channels"),
        ("x=float16:1x8x8x8:nhwc w=float16:8x8x3x3 pad=130,130,0,0", "below 128 pixels"),
        ("x=float16:1x8x300x8:nhwc w=float16:8x8x3x3 dilation=128,1", "below 128 pixels"),
        ("x=float16:1x8x60x60:nhwc w=float16:8x8x3x3 stride=9,1", "strides of at most 8"),
    ],
)
def test_refuses_with_a_reason(text: str, reason: str) -> None:
    assert reason in host.supports(problem(text), POLICY)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x=float32:1x8x8x8x8:nhwc w=float32:8x8x3x3x3", "where TF32 is allowed"),
        ("x=float16:1x16x8x8x8:nhwc w=float16:8x8x3x3x3 groups=2", "64 channels"),
        ("x=float16:1x8x8x8x8:nhwc w=float16:8x8x3x3x3 pad=17,0,0,0,0,0", "below 16 pixels on 3 axes"),
        ("x=float16:1x8x8x40x8:nhwc w=float16:8x8x1x3x1 dilation=1,16,1", "below 16 pixels on 3 axes"),
        (
            "x=float16:1x8x8x40x8:nhwc w=float16:8x8x1x2x1 dilation=1,32,1 pad=0,0,16,16,0,0",
            "below 16 pixels on 3 axes",
        ),
        ("x=float16:1x8x40x8x8:nhwc w=float16:8x8x3x3x3 stride=9,1,1", "strides of at most 8"),
    ],
)
def test_refuses_volumes_with_a_reason(text: str, reason: str) -> None:
    assert reason in host.supports(problem(text, "conv3d"), POLICY)


@pytest.mark.parametrize("strides", [(192, 1, 64, 0), (576, 1, 0, 0), (192, 1, 0, 64), (576, 1, -192, -64)])
def test_filters_whose_taps_are_not_one_axis_are_rearranged(strides: tuple[int, ...]) -> None:
    assert filter_steps(Spec("float16", (64, 64, 3, 3), (576, 1, 192, 64))) == (576, 64)
    assert filter_steps(Spec("float16", (64, 64, 3, 3), strides)) is None
    assert filter_steps(Spec("float16", (64, 64, 1, 3, 3), (*strides[:2], 0, *strides[2:]))) is None


def test_windows_of_volumes_are_told_with_the_innermost_axis_first() -> None:
    asked = problem(
        "x=float16:2x8x5x6x7:nhwc w=float16:8x8x1x2x3 pad=3,4,1,2,0,0 stride=1,2,3 dilation=1,3,2", "conv3d"
    )
    p = implicit_pixels.product(asked)
    image = implicit_pixels.maps(p, host.heuristic(asked))[0]
    assert image[:2] == ((8, 7, 6, 5, 2), (16, 112, 672, 3360))
    assert (image.lower, image.upper, image.steps) == ((0, -1, -3), (-6, -2, 4), (3, 2, 1))


def test_images_that_cannot_be_read_are_copied() -> None:
    limited = Policy(device=0, workspace_limit=10_000)
    for x, nbytes in (
        ("1x8x30x40", 19_200),
        ("1x12x30x40:nhwc", 38_400),  # 16 channels a pixel
        ("1x8x30x40:nhwc:unaligned", 19_200),
    ):
        asked = problem(f"x=float16:{x} w=float16:8x{x.split('x')[1]}x3x3 y=float16:1x8x28x38:nhwc")
        inner = implicit_layout.readable(asked)
        assert not image_reason(inner.x, "x") and inner.y == asked.y
        assert f"needs {nbytes} bytes for channels-last images" in host.supports(asked, limited)
        assert host.rank(asked) > host.rank(inner)
    assert implicit_layout.readable(problem(LAYER)) == problem(LAYER)


@pytest.mark.parametrize(
    "text",
    [
        "x=float16:2x8x6x5 w=float16:12x8x1x1",  # 12 filters in pixels of 16: the copy engine would not take their group's step
        "x=float16:2x8x6x5:nhwc w=float16:12x8x1x1 y=float16:2x12x6x5:480,1,80,16",
        "x=bfloat16:2x3x9x7 w=bfloat16:24x3x3x3:nhwc",
        "x=float16:2x128x12x13:nhwc w=float16:256x64x1x1:nhwc groups=2",
        "x=float16:2x8x3x6x5 w=float16:12x8x1x1x1",
        "x=bfloat16:2x3x4x9x7 w=bfloat16:24x3x3x3x3:nhwc",
    ],
)
def test_what_the_copy_engine_is_told_are_steps_of_16_bytes(text: str) -> None:
    volume = len(text.split()[0].split("x")) == 6
    for op in (VOLUME_DIRECTIONS if volume else DIRECTIONS)[:2]:
        asked = problem(text, op)
        p = implicit_pixels.product(implicit_layout.readable(asked))
        for config in host.space(asked):
            described = implicit_pixels.maps(p, config)
            assert all(step % 16 == 0 for one in described for step in one.strides), (config, described)


def test_the_heuristic_comes_first_and_is_one_of_the_space() -> None:
    for op, layer in [(op, LAYER) for op in DIRECTIONS[:2]] + [(op, VOLUME) for op in VOLUME_DIRECTIONS]:
        configs = host.space(problem(layer, op))
        assert configs[0] == host.heuristic(problem(layer, op))
        assert len(set(configs)) == len(configs) > 1


def test_ranks_whatever_it_is_asked() -> None:
    unshared = ConvProblem.parse("conv2d x=float32:2x3x4x5 w=float32:4x4x5x3x1x1")
    assert all(i.rank(unshared) > 0 for i in implementations("conv2d") if i.name == "numba.implicit_gemm")
    huge = problem("x=float16:1x8192x9x9:nhwc w=float16:8192x8192x3x3:nhwc", DIRECTIONS[2])
    assert host.rank(huge) > host.rank(problem(LAYER, DIRECTIONS[2]))


def test_volumes_and_cudnn_come_before_direct_sums() -> None:
    rows = ranks.table()["sm_90"]["operations"]["conv"]
    for op in VOLUME_DIRECTIONS:
        for text in (VOLUME, VOLUME.replace(":nhwc", "")):
            asked = problem(text, op)
            us = {i.name: ranks.estimate_by(rows, i, asked) for i in implementations(op) if i.backend != "cpu"}
            slower = max(us["cudnn.graph"], us["numba.implicit_gemm"])
            assert slower < min(us[f"numba.{n}"] for n in ("implicit_tiles", "corrmm", "direct")), us


def test_few_pixels_share_their_terms_among_multiprocessors() -> None:
    small = problem("x=float16:1x512x7x7:nhwc w=float16:512x512x3x3:nhwc pad=1,1,1,1")
    assert host.heuristic(small).splits > 1
    assert host.heuristic(problem(LAYER)).splits == 1


def test_tiles_fit_the_channels_and_filters_stay_where_they_are_few() -> None:
    found = host.space(problem("x=float16:32x24x56x56:nhwc w=float16:144x24x1x1:nhwc"))
    assert {144, 80, 48} <= {c.n for c in found} and all(c.plain for c in found)
    assert found[0].resident == 1 and any(c.blocks == 2 for c in found)
    assert not any(c.plain for c in host.space(problem(LAYER)))


@pytest.mark.parametrize("multiprocessors", (16, 114, 132))
@pytest.mark.parametrize("filters", (64, 1100, 70000))
def test_every_column_has_a_block_where_filters_stay(filters: int, multiprocessors: int) -> None:
    """More columns than the device runs blocks at once were a grid of none."""
    found = problem(f"x=float16:32x8x56x56:nhwc w=float16:{filters}x8x1x1:nhwc")
    p, seen = implicit_pixels_config.product(found), 0
    for config in host.space(found):
        if config.resident:
            (rows, columns, _), count, *_ = implicit_pixels.arguments(p, config)
            slots = config.blocks * multiprocessors
            blocks, seen = implicit_pixels.blocks_of(config, columns, count, slots), seen + 1
            assert blocks % columns == 0 and columns <= blocks <= max(slots, columns) and count == rows * columns
    assert seen


def test_filters_of_few_pixels_are_written_by_the_product() -> None:
    few = problem("x=float16:1x512x7x7:nhwc w=float16:512x512x3x3:nhwc pad=1,1,1,1", DIRECTIONS[2])
    assert host.heuristic(few).direct
    assert not any(c.direct for c in host.space(replace(few, beta=1.0)))
    assert all(c.direct == (c.splits == 1) for c in host.space(few))


#: operands, each in all directions: tails, strides, dilation, uneven padding, groups, flips, layouts, alpha and beta
LINES = (
    "x=float16:2x64x9x9:nhwc w=float16:64x64x3x3:nhwc pad=1,1,1,1",
    "x=bfloat16:2x64x15x14:nhwc w=bfloat16:136x64x3x3:nhwc pad=1,1,1,1 stride=2,2 flip=0",
    "x=float16:3x72x10x11:nhwc w=float16:40x72x3x2 pad=0,2,1,0 stride=1,2",
    "x=float16:1x8x30x40:nhwc w=float16:8x8x5x5:nhwc pad=2,2,2,2 alpha=2 beta=-1",
    "x=float16:2x128x12x13:nhwc w=float16:256x128x1x1:nhwc",
    "x=float16:2x128x12x13:nhwc w=float16:256x128x1x1:nhwc stride=2,2",
    "x=bfloat16:1x256x7x7:nhwc w=bfloat16:264x256x3x3:nhwc pad=1,1,1,1",
    "x=float16:2x16x20x17:nhwc w=float16:24x16x3x3 pad=3,2,2,3 dilation=2,3 flip=0",
    "x=float16:2x16x20x17:nhwc w=float16:24x16x3x3 pad=3,2,2,3 dilation=2,3 stride=2,3",
    "x=float16:2x128x9x10:nhwc w=float16:256x64x3x3:nhwc pad=1,1,1,1 groups=2",
    "x=float16:2x64x9x9:nhwc w=float16:64x64x3x3 y=float16:2x64x9x9 pad=1,1,1,1",
    "x=float16:1x32x13x13:nhwc w=float16:48x32x7x7:nhwc stride=3,4 pad=0,1,5,6",
    "x=float16:5x64x1x1:nhwc w=float16:64x64x1x1:nhwc",
    "x=float16:1x64x40x3:nhwc w=float16:8x64x4x1 dilation=3,1 stride=4,1",
    "x=float16:2x64x9x9:nhwc w=float16:64x64x3x3:nhwc y=float16:2x64x9x9:6480,1,720,72 pad=1,1,1,1",
    "x=float16:6x64x56x56:nhwc w=float16:64x64x3x2:nhwc pad=1,1,1,0",
    "x=float32:2x32x9x9:nhwc w=float32:64x32x3x3:nhwc pad=1,1,1,1",
    "x=float32:2x20x12x11:nhwc w=float32:36x20x3x2 pad=0,2,1,0 stride=1,2 flip=0",
    "x=float32:2x64x12x13:nhwc w=float32:128x64x1x1:nhwc alpha=2 beta=1",
    "x=float16:2x64x9x9 w=float16:64x64x3x3 pad=1,1,1,1",
    "x=float16:2x3x20x21:nhwc w=float16:16x3x3x3:nhwc pad=1,1,1,1 stride=2,2",
    "x=bfloat16:3x12x9x8 w=bfloat16:20x12x3x3 alpha=2 beta=-1",
    "x=float16:2x8x6x5 w=float16:12x8x1x1",
    "x=float32:2x20x12x11 w=float32:36x20x3x2",
    "x=float16:9x24x56x57:nhwc w=float16:144x24x1x1:nhwc",
    "x=bfloat16:3x40x14x15:nhwc w=bfloat16:240x40x1x1:nhwc",
    "x=float16:8x256x14x15:nhwc w=float16:512x256x1x1:nhwc",
    "x=bfloat16:8x64x14x15:nhwc w=bfloat16:512x64x3x3:nhwc pad=1,1,1,1",
)
#: the same of volumes, with filters along one axis or two; corners and offsets as far as the copy engine takes them
VOLUME_LINES = (
    "x=float16:2x64x5x6x7:nhwc w=float16:64x64x3x3x3:nhwc pad=1,1,1,1,1,1",
    "x=bfloat16:2x64x7x9x8:nhwc w=bfloat16:136x64x3x3x3:nhwc pad=1,1,1,1,1,1 stride=2,2,2 flip=0",
    "x=float16:3x72x4x10x7:nhwc w=float16:40x72x2x3x2 pad=0,1,0,2,1,0 stride=1,1,2",
    "x=float16:1x8x9x14x15:nhwc w=float16:8x8x5x5x5:nhwc pad=2,2,2,2,2,2 alpha=2 beta=-1",
    "x=float16:2x128x6x7x5:nhwc w=float16:256x128x1x1x1:nhwc",
    "x=float16:2x128x6x7x5:nhwc w=float16:256x128x1x1x1:nhwc stride=2,2,2",
    "x=bfloat16:1x128x3x9x9:nhwc w=bfloat16:72x128x1x3x3:nhwc pad=0,0,1,1,1,1",
    "x=float16:2x144x8x7x6:nhwc w=float16:64x144x3x1x1:nhwc pad=1,1,0,0,0,0 stride=2,1,1",
    "x=float16:2x64x8x40x40:nhwc w=float16:64x64x1x3x3:nhwc pad=0,0,1,1,1,1",
    "x=float16:2x16x8x9x10:nhwc w=float16:24x16x3x2x3 pad=2,1,1,0,3,2 dilation=2,1,3 flip=0",
    "x=float16:2x16x8x9x10:nhwc w=float16:24x16x3x2x3 pad=2,1,1,0,3,2 dilation=2,1,3 stride=2,3,2",
    "x=float16:2x128x5x6x4:nhwc w=float16:256x64x3x3x3:nhwc pad=1,1,1,1,1,1 groups=2",
    "x=float16:2x64x4x5x6:nhwc w=float16:64x64x3x3x3 y=float16:2x64x4x5x6 pad=1,1,1,1,1,1",
    "x=float16:2x64x4x5x6:nhwc w=float16:64x64x3x3x3 y=float16:2x64x4x5x6:8928,1,2232,432,72 pad=1,1,1,1,1,1",
    "x=float16:1x32x9x13x13:nhwc w=float16:48x32x7x7x7:nhwc stride=2,3,4 pad=3,3,0,1,5,6",
    "x=float16:2x64x4x6x5 w=float16:64x64x3x3x3 pad=1,1,1,1,1,1",
    "x=bfloat16:1x12x5x6x4 w=bfloat16:20x12x3x3x3 alpha=2 beta=-1",
    "x=float16:2x3x6x12x11:nhwc w=float16:16x3x3x3x3:nhwc pad=1,1,1,1,1,1 stride=1,2,2",
    "x=float16:1x16x3x5x40:nhwc w=float16:8x16x1x3x2 pad=16,15,1,1,0,15 dilation=1,1,31",
    "x=float32:2x32x5x6x7:nhwc w=float32:64x32x3x3x3:nhwc pad=1,1,1,1,1,1",
    "x=float32:2x20x5x7x6:nhwc w=float32:36x20x2x3x2 pad=0,1,0,2,1,0 stride=1,2,1 flip=0",
)
ON_THE_GPU = [
    (op, line)
    for ops, lines in ((DIRECTIONS, LINES), (VOLUME_DIRECTIONS, VOLUME_LINES))
    for op in ops
    for line in lines
]
#: one value for all columns of a filter
EXPANDED = "x=float16:2x64x9x9:nhwc w=float16:64x64x3x3:192,1,64,0 pad=1,1,1,1"
ON_THE_GPU += [(op, EXPANDED) for op in DIRECTIONS[:2]]


@pytest.mark.gpu
@pytest.mark.slow(10)
@pytest.mark.parametrize(("op", "line"), ON_THE_GPU)
def test_configurations_on_the_gpu(op: str, line: str) -> None:
    from numbadnn.validate.check import Row, Subject, judge

    asked, policy = problem(line, op), Policy(device=0, fp32_precision="tf32")
    (impl,) = (i for i in implementations(op) if i.name == "numba.implicit_gemm")
    reason = impl.supports(asked, policy)
    if reason:
        pytest.skip(reason)
    subject = Subject(line, asked)
    configs = host.space(asked)
    if asked.axes == 3:  # the tiles are those of two axes: the first, and some of the others with each line
        configs = [configs[0], *configs[1 + len(line) % 4 :: 4]]
    for chosen in configs:
        this = replace(impl, plan=lambda p, policy, _, c=chosen: impl.plan(p, policy, c))
        row = judge(Row(line, impl.name, line, "ok"), this, subject, policy, timed=False)
        assert row.status == "ok", f"{chosen}: {row.reason}"


@pytest.mark.gpu
@pytest.mark.slow(10)
@pytest.mark.parametrize(
    ("op", "line"),
    [(op, line) for op, line in ON_THE_GPU if op in (DIRECTIONS[1], VOLUME_DIRECTIONS[1]) and line != EXPANDED],
)
def test_a_tap_that_meets_no_output_is_no_term_on_the_gpu(op: str, line: str) -> None:
    """Filters that are infinite or NaN in a few places show where outputs meet these, and at no border."""
    from numbadnn.validate.check import Row, Subject, judge
    from numbadnn.validate.oracle import Trial

    asked, policy, rng = problem(line, op), Policy(device=0, fp32_precision="tf32"), np.random.default_rng(0)
    (impl,) = (i for i in implementations(op) if i.name == "numba.implicit_gemm")
    if reason := impl.supports(asked, policy):
        pytest.skip(reason)
    made = Trial.of(asked)
    dy, w = (a.copy() for a in made.inputs)
    for value in (np.inf, np.nan, -np.inf):
        w[(*(rng.integers(n) for n in w.shape),)] = value
    dy[(*(rng.integers(n) for n in dy.shape),)] = np.inf
    subject = Subject(line, asked, Trial(asked, (dy, w), made.old))
    for chosen in host.space(asked)[:: 3 if asked.axes == 2 else 5]:
        this = replace(impl, plan=lambda p, policy, _, c=chosen: impl.plan(p, policy, c))
        with np.errstate(all="ignore"):  # the reference multiplies them too
            row = judge(Row(line, impl.name, line, "ok"), this, subject, policy, timed=False)
        assert row.status == "ok", f"{chosen}: {row.reason}"
