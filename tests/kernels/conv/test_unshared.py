"""``numba.unshared``: which problems go to tensor cores, and what these compute, in the simulator."""

import sys
from typing import Any

import pytest
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from large_problems import first_config

from numbadnn.kernels.build import assemble as _assemble
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.conv import direct
from numbadnn.kernels.conv.unshared import plain, unshared
from numbadnn.kernels.conv.unshared.forward import box as unshared_box
from numbadnn.kernels.conv.unshared.forward import f16 as unshared_f16
from numbadnn.kernels.conv.unshared.forward import f32x2 as unshared_f32x2
from numbadnn.kernels.conv.unshared.forward import places_stream as unshared_places_stream
from numbadnn.kernels.conv.unshared.inputs import f32x2 as unshared_inputs_f32x2
from numbadnn.kernels.conv.unshared.inputs import rows as unshared_inputs_rows
from numbadnn.kernels.conv.unshared.inputs.f32x2_boxes import blocks_of
from numbadnn.kernels.conv.unshared.inputs.f32x2_config import FEWER, RINGS, InputsF32x2Config
from numbadnn.kernels.conv.unshared.inputs.rows_sizes import space_bytes
from numbadnn.kernels.conv.unshared.parts import transposed as unshared_transposed
from numbadnn.kernels.conv.unshared.plain_config import UnsharedConfig
from numbadnn.kernels.conv.unshared.weights import f16 as unshared_weights_f16
from numbadnn.kernels.conv.unshared.weights import many as unshared_weights_many
from numbadnn.kernels.conv.unshared.weights.many_config import WeightsManyConfig
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import implementations


def several_places(problem: ConvProblem, policy: Policy) -> Any:
    """The configuration of the first kernel that takes a problem; None where a block of it has one position."""
    found = first_config(unshared.MEMBERS, problem, policy)
    return None if isinstance(found, UnsharedConfig | unshared_f16.F16Config) else found


@pytest.mark.slow(20)
def test_tensor_cores_under_the_simulator() -> None:
    assert checks_passed("unshared") >= 73


def test_what_tensor_cores_take() -> None:
    problem = ConvProblem.parse("conv2d x=float16:32x16x63x63 w=float16:16x55x55x16x9x9")
    config = unshared_f16.heuristic(problem, Policy())
    assert config is not None
    assert config.whole
    assert config.once
    assert config.shared_bytes <= unshared_f16.SHARED_BYTES
    for policy in (
        Policy(determinism="gpu_to_gpu"),
        Policy(determinism="batch_invariant"),
        Policy(precision="float64"),
    ):
        assert unshared_f16.heuristic(problem, policy) is None
    for line in ("x=float32:2x4x4x4 w=float32:8x4x4x4x1x1", "x=float16:2x1x3x3 w=float16:8x1x1x1x3x3"):
        assert unshared_f16.heuristic(ConvProblem.parse(f"conv2d {line}"), Policy()) is None


@pytest.mark.parametrize("images", [1, 3, 8, 19, 32])
@pytest.mark.parametrize(
    "sizes", ["x={t}:{n}x16x63x63 w={t}:16x55x55x16x9x9", "x={t}:{n}x32x34x34 w={t}:32x32x32x32x3x3"]
)
def test_several_positions_of_a_block_fit_shared_memory(
    sizes: str, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and the filters' gradient, 16 bits and 32; the order of the images' sums does not depend on how many there are."""
    for module in (unshared_f32x2, unshared_places_stream):
        monkeypatch.setattr(module, "heuristic", lambda problem, policy: None)  # Hopper's alone
    for room in (99 * 1024, 227 * 1024):
        for module in (
            unshared_box,
            unshared_weights_many,
        ):
            monkeypatch.setattr(module, "shared_capacity", lambda device, room=room: room)
        for op in ("conv2d", "conv2d_grad_wrt_weights"):
            forward, limit = op == "conv2d", room if op == "conv2d" or images > 8 else 99 * 1024
            problem = ConvProblem.parse(f"{op} {sizes.format(t='float32', n=images)}")
            single = several_places(problem, Policy())
            assert isinstance(single, WeightsManyConfig if images > 8 and not forward else unshared_box.BoxConfig)
            module = sys.modules[type(single).__module__.removesuffix("_config")]
            assert module.shared_bytes(problem, single) <= limit
            fixed = several_places(problem, Policy(determinism="gpu_to_gpu"))
            assert fixed == (None if forward else single if images <= 8 else unshared_box.heuristic(problem, Policy()))
            half = ConvProblem.parse(f"{op} {sizes.format(t='float16', n=images)}")
            found = several_places(half, Policy())
            if forward:
                assert found is None
            else:
                module = unshared_weights_many if images > 8 else unshared_weights_f16
                assert isinstance(found, WeightsManyConfig if images > 8 else unshared_weights_f16.WeightsF16Config)
                assert module.shared_bytes(half, found) <= limit


@pytest.mark.parametrize("images", [8, 19, 32])
def test_without_a_workspace_images_are_read_as_they_lie(images: int) -> None:
    policy, sizes = Policy(workspace_limit=1024), "x={t}:{n}x16x63x63 w={t}:16x55x55x16x9x9"
    for op in ("conv2d", "conv2d_grad_wrt_weights"):
        single = several_places(ConvProblem.parse(f"{op} {sizes.format(t='float32', n=images)}"), policy)
        assert isinstance(single, unshared_box.BoxConfig)
    found = several_places(ConvProblem.parse(f"conv2d {sizes.format(t='float16', n=images)}"), policy)
    assert found is None


def test_filters_beyond_what_a_launch_has_are_more_launches() -> None:
    """Of one group; each launch has about as many, none fewer than a product."""
    sizes = "conv2d x=float32:9x32x34x34 w=float32:{k}x32x32x{c}x3x3 groups={g}"

    def problem(k: int, groups: int = 1) -> ConvProblem:
        return ConvProblem.parse(sizes.format(k=k, g=groups, c=32 // groups))

    for k, expected in ((32, [(0, 32)]), (33, [(0, 17), (17, 16)]), (72, [(0, 24), (24, 24), (48, 24)])):
        slices = unshared_f32x2.slices_of(problem(k))
        assert [(first, one.w.shape[0]) for first, one in slices] == expected
        assert all(one.y.shape[1] == one.w.shape[0] for _, one in slices)
        assert unshared_f32x2.heuristic(problem(k), Policy()) is not None
    assert all(one.w.shape[0] >= 16 for k in range(16, 257) for _, one in unshared_f32x2.slices_of(problem(k)))
    assert unshared_f32x2.heuristic(problem(257), Policy()) is None
    assert unshared_f32x2.heuristic(problem(64, 2), Policy()) is not None
    assert unshared_f32x2.heuristic(problem(66, 2), Policy()) is None


def test_few_positions_have_a_block_a_multiprocessor() -> None:
    sizes = "conv2d x={t}:8x16x55x55 w={t}:16x25x25x16x7x7 stride=2,2"
    single = several_places(ConvProblem.parse(sizes.format(t="float32")), Policy())
    assert isinstance(single, unshared_box.BoxConfig)
    assert (single.positions, single.warps, single.ahead, single.resident) == (5, 10, 3, 1)
    assert several_places(ConvProblem.parse(sizes.format(t="float16")), Policy()) is None
    many = several_places(ConvProblem.parse(sizes.replace(":8x", ":32x").format(t="float16")), Policy())
    assert isinstance(many, unshared_places_stream.StreamConfig)


def test_what_several_tiles_need_comes_while_one_is_multiplied() -> None:
    """Boxes of some channels, of which two are there; a tile's rows at once where the output has them."""

    def kind(sizes: str, **options: Any) -> Any:
        return unshared_places_stream.heuristic(ConvProblem.parse(f"conv2d {sizes}"), Policy(**options))

    sizes = "x=float16:{n}x{c}x{s}x{s} w=float16:{k}x{s}x{s}x{c}x3x3 pad=1,1,1,1"
    config = kind(sizes.format(n=32, s=64, c=32, k=32))
    assert (config.images, config.tall, config.positions, config.parts, config.vec) == (32, 1, 8, 2, 8)
    assert (config.depth, config.boxes, config.channels, config.threads) == (3, 2, 16, 640)
    assert unshared_places_stream.shared_bytes(
        ConvProblem.parse(f"conv2d {sizes.format(n=32, s=64, c=32, k=32)}"), config
    ) == (1024 + 1024 + 16 * 3 * 2048 + 2 * 4 * 16 * 3 * 11 * 16 + 16 + 4 * (64 + 320 + 16 * (16 * 36 + 2)))
    found = kind(sizes.format(n=1, s=62, c=16, k=16))
    assert (found.images, found.tall, found.positions, found.parts, found.vec) == (8, 2, 8, 1, 1)
    # images; filters; terms; few tiles of few images; the type
    for problem in (
        sizes.format(n=33, s=64, c=32, k=32),
        *(sizes.format(n=32, s=64, c=32, k=15), sizes.format(n=32, s=64, c=32, k=33)),
        *(sizes.format(n=32, s=64, c=8, k=32), sizes.format(n=32, s=64, c=17, k=32)),
        "x=float16:8x16x55x55 w=float16:16x25x25x16x7x7 stride=2,2",
        sizes.format(n=32, s=64, c=32, k=32).replace("float16", "float32"),
    ):
        assert kind(problem) is None, problem
    # rows of positions with something between them; filters that are the same at all positions
    for strides in ("1198080,18720,288", "288,0,0"):
        problem = sizes.format(n=32, s=64, c=32, k=32).replace(" pad", f":{strides},9,3,1 pad")
        assert kind(problem) is None, problem
    assert kind(sizes.format(n=32, s=64, c=32, k=32), workspace_limit=1024) is None
    assert kind(sizes.format(n=32, s=64, c=32, k=32), determinism="gpu_to_gpu") is None
    single = unshared_f32x2.heuristic(
        ConvProblem.parse(f"conv2d {sizes.format(n=32, s=64, c=32, k=32).replace('float16', 'float32')}"), Policy()
    )
    assert single is not None
    assert (single.depth, single.boxes, single.channels) == (3, 2, 8)


def test_float32_images_as_two_float16() -> None:
    """Of rows that tiles of equal width divide; what fits; by its estimate, no slower than other kernels."""

    def found(sizes: str, **options: Any) -> InputsF32x2Config | None:
        problem = ConvProblem.parse(f"conv2d_grad_wrt_inputs {sizes}")
        return unshared_inputs_f32x2.heuristic(problem, Policy(**options))

    for images, side in ((9, 32), (16, 64), (19, 32), (32, 64)):
        sizes = f"x=float32:{images}x32x{side}x{side} w=float32:32x{side}x{side}x32x3x3 pad=1,1,1,1"
        problem, config = ConvProblem.parse(f"conv2d_grad_wrt_inputs {sizes}"), found(sizes)
        assert config is not None
        assert config.images == (16 if images <= 16 else 32)
        assert unshared_inputs_f32x2.shared_bytes(problem, config) <= 227 * 1024
        assert 16 * (config.depth + config.chunks) <= RINGS
        assert 32 * config.padded * config.registers + 128 * FEWER <= 1 << 16
        assert unshared_inputs_f32x2.pitch_of(problem, config.channels) % 128 == 32
        assert side % config.positions == 0
        assert blocks_of(problem, config) <= unshared_inputs_f32x2.MULTIPROCESSORS
    large = "x=float32:32x32x64x64 w=float32:32x64x64x32x3x3 pad=1,1,1,1"
    assert found(large, determinism="gpu_to_gpu") is None
    assert found(large, workspace_limit=1024) is None
    assert found("x=float32:8x32x64x64 w=float32:32x64x64x32x3x3 pad=1,1,1,1") is None
    assert found("x=float32:32x32x66x66 w=float32:32x62x62x32x3x3 dilation=2,2") is None
    assert found("x=float32:32x32x64x64 w=float32:9x64x64x32x3x3 pad=1,1,1,1") is None  # 81 terms
    prime = found("x=float32:32x32x31x31 w=float32:32x31x31x32x3x3 pad=1,1,1,1")  # columns
    assert prime is not None and prime.positions == 1
    assert found("x=float32:16x16x40x40 w=float32:16x8x8x16x5x5 stride=5,5") is None  # 16 terms of a pixel
    assert (
        found("x=float32:9x614400x1x1 w=float32:25500x1x1x2048x1x1 groups=300") is None
    )  # of the second kernel's grid
    low = ConvProblem.parse("conv2d_grad_wrt_inputs x=float32:12x512x5x12 w=float32:512x5x12x64x1x1 groups=8")
    assert all(config.rows <= 5 for _, config in unshared_inputs_f32x2.candidates(low))


@pytest.mark.parametrize(
    ("sizes", "inputs", "weights"),
    [  # microseconds on an H200 of those that could be taken
        (  # 4.4, unshared 5.4; 2.4, unshared 3.4, unshared_box 3.7
            "x=float32:8x4x12x12 w=float32:4x10x10x4x3x3",
            "numba.unshared_inputs_rows",
            "numba.direct",
        ),
        (  # 15.8, rows 16.6; 15.2, unshared 23.6
            "x=float32:16x16x32x32 w=float32:16x28x28x16x5x5",
            "numba.unshared_inputs_twofold",
            "numba.unshared_box",
        ),
        (  # 11.7, twofold 12.7; 13.7, unshared_box 15.4
            "x=float32:16x32x20x20 w=float32:32x18x18x32x3x3",
            "numba.unshared_inputs_rows",
            "numba.unshared",
        ),
        (  # 14.0, twofold 17.9
            "x=float32:32x8x28x28 w=float32:8x24x24x8x5x5",
            "numba.unshared_inputs_rows",
            "numba.unshared_weights_many",
        ),
        (  # 19.3, unshared 20.0; 20.5, unshared_box 28.2
            "x=float32:4x64x16x16 w=float32:64x16x16x64x3x3 pad=1,1,1,1",
            "numba.unshared_inputs_rows",
            "numba.unshared",
        ),
    ],
)
def test_layers_have_the_kernels_that_were_fastest(
    sizes: str, inputs: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (direct, plain):
        monkeypatch.setattr(module, "device_reason", lambda policy: "")

    def first(op: str) -> str:
        problem = ConvProblem.parse(f"{op} {sizes}")
        taking = [impl for impl in implementations(op, ["numba"]) if not impl.supports(problem, Policy())]
        return min(taking, key=lambda impl: impl.rank(problem)).name

    assert (first("conv2d_grad_wrt_inputs"), first("conv2d_grad_wrt_weights")) == (inputs, weights)


def test_blocks_that_are_few_are_taken_last_but_taken() -> None:
    sizes = "conv2d_grad_wrt_weights x=float32:16x32x20x20 w=float32:32x{p}x18x32x3x3"
    few, enough = (ConvProblem.parse(sizes.format(p=p).replace("20x20", f"{p + 2}x20")) for p in (18, 20))
    for problem, last in ((few, True), (enough, False)):
        ranks = {i.name: i.rank(problem) for i in implementations(problem.op, ["numba"]) if "unshared" in i.name}
        assert unshared_box.heuristic(problem, Policy()) is not None
        assert (ranks["numba.unshared_box"] > ranks["numba.unshared"]) == last


def test_of_tiles_that_are_alike_the_one_with_fewer_boxes() -> None:
    """Of few positions most of a training step's memory is these boxes: one position a block would need half as much again."""
    problem = ConvProblem.parse("conv2d_grad_wrt_inputs x=float32:8x4x12x12 w=float32:4x10x10x4x3x3")
    config = unshared_inputs_rows.heuristic(problem, Policy())
    assert config is not None
    assert space_bytes(problem, config) == 50 * 4 * (3 * 4) * 8 * 4  # tiles, channels, pixels, images, bytes


@pytest.mark.skipif(not _assemble.find_ptxas(), reason="ptxas is not installed")
@pytest.mark.parametrize(
    "kernel",
    [
        *unshared_inputs_rows.hopper_kernels(),
        *unshared_inputs_f32x2.hopper_kernels(),
        *unshared_f32x2.hopper_kernels(),
        *unshared_places_stream.hopper_kernels(),
        *unshared_transposed.hopper_kernels(),
    ],
    ids=lambda k: k.name.replace(" ", "-"),
)
def test_sums_of_rows_of_pixels_are_registers(kernel: Kernel) -> None:
    made = _assemble.by_ptxas(kernel.ptx((9, 0, "a")), "sm_90a", _assemble.find_ptxas())
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in made.log, made.log
    if kernel.threads == 640:  # some give registers to others, who would wait for ever for more than all have
        assert "Used 96 registers" in made.log, made.log


def test_what_the_cache_is_asked_to_give_up_last() -> None:
    """What was transposed: up to a third of the cache, of which others want some too."""
    lasting = "st.global.L2::cache_hint.v4.b32"
    for size, vec in ((2, 8), (4, 4)):
        few = unshared_transposed.kernel(size, 32, vec, lasting=unshared_transposed.lasts(unshared_transposed.LASTING))
        many = unshared_transposed.kernel(
            size, 32, vec, lasting=unshared_transposed.lasts(unshared_transposed.LASTING + 1)
        )
        assert few.name != many.name
        assert lasting in few.ptx((9, 0, "a")) and lasting in few.ptx((8, 0, ""))
        assert lasting not in many.ptx((9, 0, "a"))
