"""Convolutions under batch_invariant: one choice and one order of additions whatever the batch; bits, simulated and on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from configured import check_configurations
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

import numbadnn
from numbadnn import config
from numbadnn.call import select
from numbadnn.call.candidates import Candidates
from numbadnn.gpu import driver
from numbadnn.kernels.build import support
from numbadnn.kernels.conv.implicit import gemm
from numbadnn.kernels.conv.tiles import model, tiles
from numbadnn.kernels.conv.tiles.product import Product
from numbadnn.problem import Policy, Spec, normalised_strides
from numbadnn.problems.conv import ConvProblem
from numbadnn.problems.images import NOMINAL, of_images, plainly
from numbadnn.registry import DETERMINISM, Impl, implementations

INVARIANT = Policy(device=0, determinism="batch_invariant")
BATCHES = (1, 2, 4, 7, 64, 1000)
#: one image of layers of each kind -> who computes it in float32 and in float16 on Hopper
LAYERS = {
    "x={t}:1x64x28x28 w={t}:96x64x3x3 pad=1,1,1,1": ("implicit_tiles", "implicit_gemm"),
    "x={t}:1x512x7x7:nhwc w={t}:512x512x3x3:nhwc pad=1,1,1,1": ("implicit_tiles", "implicit_gemm"),
    "x={t}:1x768x1x64 w={t}:3072x768x1x1": ("implicit_tiles", "pointwise"),
    "x={t}:1x256x14x14 w={t}:1024x256x1x1": ("implicit_tiles", "pointwise"),
    "x={t}:1x256x14x14:nhwc w={t}:1024x256x1x1": ("implicit_tiles", "implicit_gemm"),
    "x={t}:1x1280x1x1 w={t}:640x1280x1x1": ("implicit_tiles", "implicit_gemm"),
    "x={t}:1x64x40x1:nhwc w={t}:256x64x5x1 pad=2,2,0,0 stride=2,1": ("implicit_tiles", "implicit_gemm"),
    "x={t}:1x128x14x14 w={t}:128x64x3x3 pad=2,2,2,2 dilation=2,2 groups=2": ("implicit_tiles", "implicit_gemm"),
    "x={t}:1x3x224x224 w={t}:768x3x16x16 stride=16,16 flip=0": ("patches", "patches"),
    "x={t}:1x3x112x112 w={t}:96x3x4x4 stride=4,4": ("implicit_tiles", "implicit_gemm"),
    "x={t}:1x3x112x112 w={t}:64x3x7x7 pad=3,3,3,3 stride=2,2": ("implicit_tiles", "first_layer"),
    "x={t}:1x96x28x28 w={t}:96x1x7x7 pad=3,3,3,3 groups=96": ("depthwise", "depthwise"),
    "x={t}:1x512x1x100 w={t}:512x1x1x31 pad=0,0,15,15 groups=512": ("depthwise", "depthwise"),
    "x={t}:1x64x1x60 w={t}:64x1x1x40 pad=0,0,15,15 groups=64": ("direct", "direct"),
}
VOLUME = "x={t}:1x32x8x16x16 w={t}:64x32x3x3x3 pad=1,1,1,1,1,1 stride=2,2,2"


@pytest.fixture(autouse=True)
def hopper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are chosen as on a Hopper GPU, wherever nothing runs."""
    if request.node.get_closest_marker("gpu"):
        return
    monkeypatch.setattr(driver, "compute_capability", lambda device: (9, 0))
    for module in {m for m in map(_module, implementations("conv2d", ["numba"])) if hasattr(m, "device_reason")}:
        monkeypatch.setattr(module, "device_reason", lambda policy: "")
    monkeypatch.setattr(support, "device_reason", lambda policy: "")


def _module(impl: Impl) -> Any:
    import sys

    return sys.modules[(impl.rank).__module__]


def in_batch(problem: ConvProblem, count: int, gap: int = 0, aligned: bool = True) -> ConvProblem:
    """The layer of so many images, ``gap`` elements apart, as a call has them."""
    changed: dict[str, Any] = {}
    for name in "xy":
        spec = getattr(problem, name)
        shape, step = (count, *spec.shape[1:]), int(np.prod(spec.shape[1:])) + gap
        strides = normalised_strides(shape, (step, *spec.strides[1:]))
        changed[name] = Spec(spec.dtype, shape, strides, aligned)
    return replace(problem, **changed)


def chosen(problem: ConvProblem, policy: Policy = INVARIANT) -> tuple[str, Any]:
    """Who computes it, and all that its bits depend on."""
    candidates = Candidates(problem, policy, config.current(), "numba")
    impl = next(i for i in candidates.ordered(("numba",)) if not candidates.reason(i))
    if impl.name == "numba.implicit_tiles":
        found, p = tiles.heuristic(plainly(problem), policy), Product(plainly(problem))
        share = tiles.share_of(p, policy, found.splits, p.padded_rows(found.m))
        return impl.name, (found.splits, found.k, found.terms, found.taps_first, found.warps, share)
    if impl.name == "numba.implicit_gemm":
        return impl.name, {c.splits for c in gemm._space(problem, roomy(policy))}
    return impl.name, None


@pytest.mark.parametrize("op", ["conv2d", "conv2d_grad_wrt_inputs"])
@pytest.mark.parametrize("line", LAYERS)
def test_every_batch_of_a_layer_has_one_choice_and_one_order(line: str, op: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(select, "unavailable", lambda backend, device: "")
    for dtype, name in zip(("float32", "float16", "bfloat16", "float64"), (*LAYERS[line], "", ""), strict=True):
        layer = ConvProblem.parse(f"{op} {line.format(t=dtype)}")
        with numbadnn.using(determinism="batch_invariant"):
            found = [chosen(in_batch(layer, n, 0, n != 7)) for n in BATCHES]
            found += [chosen(in_batch(layer, n, gap, aligned=gap < 2)) for n in (1, 3, 64) for gap in (8, 2, 1)]
        assert all(each == found[0] for each in found), found
        if op == "conv2d" and name:
            assert found[0][0] == f"numba.{name}"
        if found[0][0] == "numba.implicit_gemm":
            assert found[0][1] == {1}


@pytest.mark.parametrize("op", ["conv3d", "conv3d_grad_wrt_inputs"])
def test_volumes_too(op: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(select, "unavailable", lambda backend, device: "")
    for dtype, name in (("float32", "implicit_tiles"), ("bfloat16", "implicit_gemm")):
        layer = ConvProblem.parse(f"{op} {VOLUME.format(t=dtype)}")
        with numbadnn.using(determinism="batch_invariant"):
            found = {str(chosen(in_batch(layer, n))) for n in BATCHES}
        assert len(found) == 1 and name in found.pop()


def test_splits_follow_the_batch_where_bits_may() -> None:
    layer = ConvProblem.parse("conv2d x=float32:1x512x7x7 w=float32:512x512x3x3 pad=1,1,1,1")
    free, fixed = (
        {n: model.heuristic(in_batch(layer, n), policy).splits for n in (1, NOMINAL, 1000)}
        for policy in (Policy(device=0), INVARIANT)
    )
    assert free[1] > free[1000] and set(fixed.values()) == {free[NOMINAL]} and free[NOMINAL] > 1


def test_levels_that_are_declared() -> None:
    """A gradient of filters sums over the images: it is held to the same bits of the same batch."""
    for op in ("conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights", "causal_conv1d"):
        declared = {i.name: i.determinism for i in implementations(op, ["numba"])}
        line = op == "causal_conv1d"
        assert declared["numba.implicit_tiles"] == ("run_to_run" if line else "batch_invariant")
        assert declared.get("numba.implicit_gemm") == (None if line else "batch_invariant")
        assert declared["numba.corrmm"] == "run_to_run" and declared["numba.direct"] == "gpu_to_gpu"


def test_the_strongest_level_keeps_its_order(monkeypatch: Any) -> None:
    monkeypatch.setattr(select, "unavailable", lambda backend, device: "")
    layer = ConvProblem.parse("conv2d x=float32:1x64x28x28 w=float32:96x64x3x3 pad=1,1,1,1")
    with numbadnn.using(determinism="gpu_to_gpu"):
        name, _ = chosen(layer, replace(INVARIANT, determinism="gpu_to_gpu"))
    assert name == "numba.direct"


def test_a_batch_past_32_bits_is_computed_in_parts() -> None:
    layer = ConvProblem.parse("conv2d x=float16:1x64x512x512 w=float16:64x64x3x3 pad=1,1,1,1")
    big = in_batch(layer, 1000)
    (impl,) = (i for i in implementations("conv2d") if i.name == "numba.implicit_gemm")
    assert impl.supports(big, INVARIANT) == "" and "fewer than 2**31" in impl.supports(big, roomy(Policy(device=0)))


def roomy(policy: Policy) -> Policy:
    return replace(policy, workspace_limit=1 << 50)


def test_strides_that_nothing_depends_on_are_the_same_in_any_batch() -> None:
    alone, apart = (
        plainly(in_batch(ConvProblem.parse("conv2d x=float32:1x8x9x1:nhwc w=float32:4x8x3x1"), n, gap))
        for n, gap in ((1, 0), (5, 3))
    )
    assert alone.x.strides[1:] == apart.x.strides[1:] and apart.x.strides[0] == 75
    assert of_images(alone) == of_images(apart)


def test_under_the_simulator() -> None:
    assert checks_passed("batch_invariant") == 11


GPU_LAYERS = (
    "conv2d x={t}:64x72x14x14 w={t}:136x72x3x3 pad=1,1,1,1",
    "conv2d x={t}:64x512x7x7:nhwc w={t}:256x512x3x3:nhwc pad=1,1,1,1 stride=2,2",
    "conv2d x={t}:64x80x1x150 w={t}:384x80x1x3 pad=0,0,1,1 flip=0",
    "conv2d_grad_wrt_inputs x={t}:64x32x24x24 w={t}:64x32x4x4 pad=1,1,1,1 stride=2,2",
    "conv2d x={t}:64x3x48x48 w={t}:192x3x16x16 stride=16,16 flip=0",
    "conv2d x={t}:64x136x14x14 w={t}:200x136x1x1",
    "conv2d_grad_wrt_inputs x={t}:64x136x16x10 w={t}:200x136x1x1",
    "conv3d x={t}:16x32x6x8x8 w={t}:48x32x3x3x3 pad=1,1,1,1,1,1",
)


def test_gradients_of_filters_go_by_products_too(monkeypatch: Any) -> None:
    monkeypatch.setattr(select, "unavailable", lambda backend, device: "")
    line = "conv2d_grad_wrt_weights x={t}:8x64x28x28 w={t}:96x64x3x3 pad=1,1,1,1"
    with numbadnn.using(determinism="batch_invariant"):
        for dtype, name in (("float32", "implicit_tiles"), ("float16", "implicit_gemm"), ("float64", "implicit_tiles")):
            candidates = Candidates(ConvProblem.parse(line.format(t=dtype)), INVARIANT, config.current(), "numba")
            found = next(i.name for i in candidates.ordered(("numba",)) if not candidates.reason(i))
            assert found == f"numba.{name}"


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("numba.patches", "conv2d x=float16:5x3x56x57 w=float16:72x3x14x14 stride=14,14 flip=0 alpha=2"),
        ("numba.patches", "conv2d x=float32:5x3x64x65:nhwc w=float32:72x3x16x16:nhwc pad=0,1,2,0 stride=16,16"),
        ("numba.pointwise", "conv2d x=float16:5x72x9x9 w=float16:130x72x1x1 alpha=2 beta=-1"),
        ("numba.pointwise", "conv2d x=bfloat16:5x72x8x9 w=bfloat16:130x72x1x1"),
        ("numba.pointwise", "conv3d_grad_wrt_inputs x=float16:5x72x3x4x8 w=float16:130x72x1x1x1"),
        ("numba.depthwise", "conv2d x=float16:3x40x1x100 w=float16:40x1x1x31 groups=40 pad=0,0,15,15 flip=0"),
        ("numba.depthwise", "conv2d x=float32:3x40x1x100 w=float32:40x1x1x31 groups=40 stride=1,2"),
    ],
)
def test_against_the_reference_on_the_gpu(name: str, line: str) -> None:
    check_configurations(name, ConvProblem.parse(line), "random", [None])


@pytest.mark.gpu
@pytest.mark.slow(30)
@pytest.mark.parametrize("sixteen", [False, True])
@pytest.mark.parametrize("number", range(len(GPU_LAYERS)))
def test_every_configuration_gives_the_same_bits_on_the_gpu(number: int, sixteen: bool) -> None:
    """The bits of random numbers, not their sums alone: of all that the heuristic may choose for another batch."""
    from numbadnn.measuring.data import make_arrays
    from numbadnn.validate.determinism import fingerprint, levels

    dtype = ("float16", "bfloat16")[number % 2] if sixteen else "float32"
    problem = ConvProblem.parse(GPU_LAYERS[number].format(t=dtype))
    policy = replace(INVARIANT, workspace_limit=config.current().workspace_limit)
    with numbadnn.using(determinism="batch_invariant"):
        candidates = Candidates(problem, policy, config.current(), "numba")
        impl = next(i for i in candidates.ordered(("numba",)) if not candidates.reason(i))
    inputs, _ = make_arrays(problem)
    seen = {}
    for setting in [None, *(impl.space(problem, policy) if impl.space else ())]:
        seen[str(setting)] = fingerprint(*levels.run(impl.plan(problem, policy, setting), problem, policy, inputs))
    assert len(set(seen.values())) == 1, (impl.name, seen)
    assert levels.examine(impl, problem, policy).level == "batch_invariant"
    assert DETERMINISM.index(impl.determinism) >= DETERMINISM.index("batch_invariant")
