"""The estimates that choose untuned, against what an H200 took: of layers of networks, and of random problems."""

import dataclasses
import json
import math
import statistics
import sys
from typing import Any

import pytest
from folders import ROOT

from numbadnn import cases
from numbadnn.call import remembered
from numbadnn.call.candidates import Candidates
from numbadnn.cases import networks
from numbadnn.cases.networks import NETWORKS
from numbadnn.config import current
from numbadnn.kept import ranks
from numbadnn.kernels.conv.tiles import model
from numbadnn.kernels.conv.tiles.product import Product
from numbadnn.problem import Policy
from numbadnn.registry import FAMILY, implementations

BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

import random_report  # noqa: E402

LINE = "conv2d x=float32:32x64x56x56 w=float32:64x64x3x3 pad=1,1,1,1"
parse = cases.parse


@pytest.fixture(autouse=True)
def as_on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tables of the GPU that was measured, whatever is here."""
    monkeypatch.setattr(ranks, "architecture", lambda device: "sm_90")


def test_under_tf32_cudnn_is_estimated_by_the_tensor_cores() -> None:
    """Measured under ieee: numba.implicit_tiles wins most of ResNet-50; under tf32 it takes 1.2 to 3.5 times cuDNN's time."""
    by_name = {impl.name: impl for impl in implementations("conv2d")}

    def first(line: str, precision: str) -> str:
        policy = Policy(device=0, fp32_precision=precision)
        names = ("cudnn.graph", "cudnn.algorithms", "numba.implicit_tiles", "numba.corrmm", "numba.direct")
        return min(names, key=lambda name: ranks.estimate(by_name[name], parse(line), policy))

    assert first(LINE, "tf32") == "cudnn.graph"
    assert first("conv2d x=float32:32x256x56x56 w=float32:64x256x1x1", "tf32") == "cudnn.graph"
    image = "conv2d x=float32:32x3x224x224 w=float32:64x3x7x7 pad=3,3,3,3 stride=2,2"
    for line, precision in ((image, "tf32"), (LINE.replace("float32", "float16"), "tf32")):
        for impl in by_name.values():
            if impl.rank_tf32 and "float32" in line:
                continue  # it has tiles for tensor cores, whatever the channels
            policy = Policy(device=0, fp32_precision=precision)
            assert ranks.estimate(impl, parse(line), policy) == ranks.estimate(impl, parse(line), Policy(device=0))


def test_the_estimates_choose_between_numba_and_cudnn_in_every_arithmetic_and_layout() -> None:
    """Of layers of networks that were measured by each: no table was learned of 16 bits, TF32 or channels-last float32."""
    document = json.loads((BENCH / "results" / "nvidia_h200_layers.json").read_text())
    known = {(name, layer.name): layer for name in NETWORKS for layer in networks.layers(name)}
    arithmetic = {"tf32": ("float32", "tf32"), "fp16": ("float16", "ieee"), "bf16": ("bfloat16", "ieee")}
    ratios: list[float] = []
    for row in document["rows"]:
        layer, times = known.get((row["network"], row["layer"])), row["us"]
        if layer is None or row["arithmetic"] not in arithmetic or not {"numba", "cudnn"} <= set(times):
            continue
        dtype, precision = arithmetic[row["arithmetic"]]
        problem = networks.problem(layer, row["direction"], dtype, row["layout"])
        names = {who: row["impl"][who].split()[0] for who in ("numba", "cudnn")}
        impls = {impl.name: impl for impl in implementations(problem.op)}
        if any("_by_" in name or name not in impls for name in names.values()):
            continue
        policy = Policy(device=0, fp32_precision=precision)
        said = {who: ranks.estimate(impls[name], problem, policy, usable=False) for who, name in names.items()}
        ratios.append(times[min(said, key=said.__getitem__)] / min(times["numba"], times["cudnn"]))
    assert len(ratios) > 200
    assert sum(ratio <= 1.1 for ratio in ratios) / len(ratios) > 0.93
    assert statistics.geometric_mean(ratios) < 1.025 and max(ratios) < 2


def splits_more(problem: Any, policy: Policy) -> bool:
    """Whether ``numba.implicit_tiles`` has its terms split as often as may be: it had not when random problems were measured."""
    if problem.x.itemsize != 4:
        return False
    product = Product(problem)
    _, shape, splits = model.estimated(product, model.is_tf32(problem, policy))[0]
    return splits > 1 and splits == max(1, -(-product.terms // shape[2]) // model.FEW_BLOCKS)


@pytest.mark.parametrize(
    ("file", "kind", "count", "near", "typical", "worst"),
    [
        ("random", "conv", 200, 0.7, 1.11, 3),
        ("random_1", "conv", 120, 0.75, 1.14, 7.5),
        ("random_1", "rnn", 8, 0.99, 1.01, 1.1),
        ("random_2", "conv", 60, 0.6, 1.15, 2.5),
        ("random_2", "rnn", 5, 0.99, 1.01, 1.1),
        ("random_3", "conv", 130, 0.6, 1.16, 2.8),
        ("random_3", "rnn", 2, 0.99, 1.01, 1.1),
        ("random_4", "conv", 457, 0.6, 1.17, 5.7),
        ("random_4", "rnn", 30, 0.89, 1.06, 2.2),
    ],
)
def test_the_estimates_choose_among_all_that_was_measured_of_random_problems(
    file: str, kind: str, count: int, near: float, typical: float, worst: float
) -> None:
    """Sizes that no network has, in every arithmetic: what is chosen against the fastest, whatever its configuration."""
    ratios = []
    for row in json.loads((BENCH / "results" / f"nvidia_h200_{file}.json").read_text())["rows"]:
        problem = parse(row["problem"])
        policy = Policy(device=0, fp32_precision=row["precision"])
        measured = [c for c in row["candidates"] if not random_report.wrong(row, c)] or row["candidates"]
        if any(c["impl"] == "numba.implicit_tiles" for c in measured) and splits_more(problem, policy):
            measured = [c for c in measured if c["impl"] != "numba.implicit_tiles"]
        own = {c["impl"]: c["time_us"] for c in measured if c["heuristic"]}
        impls = [impl for impl in implementations(problem.op) if impl.name in own]
        if FAMILY[problem.op] == kind and impls:
            usable = kind == "rnn"  # asks no library what it foretells
            chosen = min(impls, key=lambda impl: ranks.estimate(impl, problem, policy, usable))
            ratios.append(own[chosen.name] / min(c["time_us"] for c in measured))
    assert len(ratios) == count
    assert sum(ratio <= 1.1 for ratio in ratios) / len(ratios) > near
    assert statistics.geometric_mean(ratios) < typical and max(ratios) < worst


@pytest.mark.parametrize("name", ["numba.direct", "numba.depthwise", "numba.implicit_gemm", "numba.implicit_tiles"])
def test_own_kernels_take_what_is_said_of_them(name: str) -> None:
    """Of random problems, where they are within three times the fastest: half within 25 %, seven in eight within 60 %."""
    off = []
    for file in ("random", "random_1", "random_2"):
        for row in json.loads((BENCH / "results" / f"nvidia_h200_{file}.json").read_text())["rows"]:
            us = next((c["time_us"] for c in row["candidates"] if c["impl"] == name and c["heuristic"]), None)
            if us is not None and us < 3 * random_report.fastest_of(row)["time_us"]:
                problem, policy = parse(row["problem"]), Policy(device=0, fp32_precision=row["precision"])
                if name == "numba.implicit_tiles" and splits_more(problem, policy):
                    continue
                impl = next(i for i in implementations(problem.op) if i.name == name)
                off.append(abs(math.log(us / ranks.estimate(impl, problem, policy))))
    off.sort()
    assert len(off) > 30
    assert off[len(off) // 2] < math.log(1.25) and off[len(off) * 7 // 8] < math.log(1.6)


def test_few_tiles_of_few_terms_are_split() -> None:
    """Seen on an H200: one block for each of two tiles added 6480 terms in 161 us."""
    for text, tf32 in (
        ("conv3d_grad_wrt_weights x=float32:2x3x18x18x10 w=float32:24x3x3x3x3 pad=1,1,1,1,1,1", True),
        ("conv2d_grad_wrt_weights x=float32:4x5x22x22 w=float32:224x5x1x1", False),
        ("conv3d x=float32:1x96x5x5x5:nhwc w=float32:10x96x3x3x3:nhwc pad=1,1,1,1,1,1 stride=2,2,2", False),
    ):
        product = Product(parse(text))
        _, (_, _, k, *_), splits = model.estimated(product, tf32)[0]
        assert splits >= 15 and -(-product.terms // k) // splits >= model.FEW_BLOCKS


def times_measured(name: str, text: str, measured_us: float) -> float:
    """How many times what was measured an implementation's own estimate is."""
    problem = parse(text)
    impl = next(i for i in implementations(problem.op) if i.name == name)
    return impl.rank(problem) / measured_us


def test_an_implicit_product_copies_odd_planes_slowly_and_takes_few_pixels_of_few_channels_quickly() -> None:
    """Of what an H200 took: it said 43, 418 and 47."""
    for text, measured_us in {
        "conv2d x=float16:1x208x213x213 w=float16:32x208x1x1": 74,
        "conv2d x=float16:32x96x1x2425 w=float16:872x96x1x9 dilation=1,2 pad=0,0,8,8": 627,
        "conv2d x=bfloat16:1x1x48x48 w=bfloat16:64x1x5x5": 26,
    }.items():
        assert 1 / 1.35 < times_measured("numba.implicit_gemm", text, measured_us) < 1.35, text


def test_direct_waits_for_scattered_filters() -> None:
    """Of what an H200 took: neighbouring threads read different filters of channels-last images; it said 45 and 158."""
    for text, measured_us in {
        "conv2d x=float32:2x192x16x16:nhwc w=float32:376x192x2x2:nhwc stride=2,2": 222,
        "conv2d x=float32:4x192x16x16:nhwc w=float32:176x192x4x4:nhwc stride=4,4": 431,
    }.items():
        assert 1 / 2.2 < times_measured("numba.direct", text, measured_us) < 1.3, text


def test_few_groups_run_on_an_engine_that_was_made_for_groups() -> None:
    """bfloat16 filters of four groups of 16 channels: 46 us by the engine that cuDNN's heuristics name first, 19 by this one."""
    offered = [{"form": "nchw", "engine": engine, "knobs": {}} for engine in (0, 65, 19)]

    def taken(line: str) -> Any:
        impl = next(i for i in implementations(parse(line).op) if i.name == "cudnn.graph")
        mocked = dataclasses.replace(impl, space=lambda problem, policy: offered)
        return ranks.configuration(mocked, parse(line), Policy(device=0))

    line = "conv2d_grad_wrt_weights x=bfloat16:3x64x27x27 w=bfloat16:64x16x3x3 pad=1,1,1,1 groups=4"
    assert taken(line) == offered[1]
    assert taken(line.replace("bfloat16", "float32")) != offered[1]
    assert taken("conv2d_grad_wrt_weights x=bfloat16:3x512x27x27 w=bfloat16:512x16x3x3 pad=1,1,1,1 groups=32") is None


def test_gradients_of_strided_images_in_few_groups_stay_with_what_cudnn_names() -> None:
    """bfloat16 images of two groups of 48 channels: 37 us by the engine that cuDNN's heuristics name, 107 by that for groups."""
    impl = next(i for i in implementations("conv2d_grad_wrt_inputs") if i.name == "cudnn.graph")
    offered = [{"form": "nhwc", "engine": engine, "knobs": {}} for engine in (64, 22, 59)]
    mocked = dataclasses.replace(impl, space=lambda problem, policy: offered)
    strided = (
        "conv2d_grad_wrt_inputs x=bfloat16:64x96x24x24:nhwc w=bfloat16:96x48x3x3:nhwc pad=1,1,1,1 groups=2 stride=2,2"
    )
    assert ranks.configuration(mocked, parse(strided), Policy(device=0)) is None
    assert ranks.configuration(mocked, parse(strided.removesuffix(" stride=2,2")), Policy(device=0)) == offered[1]


def test_patches_of_16_bits_are_written_slowly_and_small_ones_are_left_to_cudnn() -> None:
    """Of what an H200 took, channels first and last; PyTorch took 56 and 37 us for patches of 4x4, 266 to 500 for the others."""
    impls = {impl.name: impl for impl in implementations("conv2d")}
    for sizes, measured in {
        ("32x3x224x224", "768x3x16x16", 16): (95.5, 82.8),
        ("32x3x224x224", "1024x3x14x14", 14): (122.0, 109.7),
        ("64x3x224x224", "512x3x32x32", 32): (158.9, 151.9),
        ("32x3x224x224", "96x3x4x4", 4): (140.3, 126.5),
    }.items():
        x, w, side = sizes
        for last, took in zip(("", ":nhwc"), measured, strict=True):
            problem = parse(f"conv2d x=float16:{x}{last} w=float16:{w}{last} stride={side},{side} flip=0")
            by_patches, by_cudnn = (
                ranks.estimate(impls[name], problem, Policy(device=0), usable=False)
                for name in ("numba.patches", "cudnn.graph")
            )
            assert 1 / 1.1 < impls["numba.patches"].rank(problem) / took < 1.1, problem
            assert (by_patches < by_cudnn) == (side > 4), problem


def test_recurrent_networks_take_what_is_said_of_them() -> None:
    """Of what an H200 took: the small algorithm with more than 256 units, and steps of 768 units in one launch."""
    rows = {
        (c["impl"], row["problem"].split("hidden=")[1].split()[0]): (row, c["time_us"])
        for row in json.loads((BENCH / "results" / "nvidia_h200_random_4.json").read_text())["rows"]
        for c in row["candidates"]
        if row["problem"].startswith("rnn")
    }
    for name, hidden in (("cudnn.rnn", "304"), ("cudnn.rnn", "278"), ("numba.rnn", "768")):
        row, us = rows[name, hidden]
        impl = next(i for i in implementations("rnn_forward") if i.name == name)
        said = ranks.estimate(impl, parse(row["problem"]), Policy(device=0, fp32_precision=row["precision"]))
        assert 1 / 1.35 < said / us < 1.35


def test_what_cudnn_is_slow_at_is_estimated_as_slow() -> None:
    """Of what an H200 took: lines of channels of their own, gradients by filters with gaps over strided images; and what it is
    not slow at: 1x1 filters over ragged planes, gradients of 3-D filters."""
    for text, measured_us in {
        "conv2d_grad_wrt_weights x=float32:4x18x1x1903:nhwc w=float32:18x1x1x1:nhwc groups=18": 84.8,
        "conv2d_grad_wrt_weights x=float32:4x12x1x7790 w=float32:12x1x1x2 groups=12 stride=1,2": 58.9,
        "conv2d_grad_wrt_weights x=bfloat16:8x80x1x4976 w=bfloat16:320x80x1x5 pad=0,0,16,16 stride=1,2 dilation=1,8": 451,
        "conv2d_grad_wrt_inputs x=bfloat16:16x992x1x2834:nhwc w=bfloat16:18x992x1x16:nhwc pad=0,0,60,60 stride=1,2 "
        "dilation=1,8": 300,
        "conv2d x=float16:4x64x191x326 w=float16:128x64x1x1": 56.2,
        "conv3d_grad_wrt_weights x=float16:2x64x32x32x32:nhwc w=float16:128x64x3x3x3:nhwc pad=1,1,1,1,1,1": 57.6,
        "conv3d_grad_wrt_weights x=float16:2x32x64x64x64 w=float16:64x32x3x3x3 pad=1,1,1,1,1,1": 423.5,
    }.items():
        assert 1 / 1.3 < times_measured("cudnn.graph", text, measured_us) < 1.3, text


def test_what_waits_and_what_is_ragged_is_estimated_as_slow() -> None:
    """Of what an H200 took: a gradient of one row by many filters; small images of few channels; groups of 48, and C order."""
    for name, text, measured_us in (
        ("numba.to_image", "conv2d_grad_wrt_inputs x=float32:4x1x1x1421 w=float32:320x1x1x2", 92.6),
        ("numba.to_image", "conv2d_grad_wrt_inputs x=float32:2x1x128x83 w=float32:11x1x3x3 pad=1,1,1,1", 10.4),
        ("cudnn.graph", "conv2d_grad_wrt_inputs x=float32:4x1x9x18 w=float32:20x1x5x5 pad=2,2,2,2", 17.4),
        (
            "cudnn.graph",
            "conv2d_grad_wrt_inputs x=float32:2x3x101x101:nhwc w=float32:8x3x3x3:nhwc pad=1,1,1,1 stride=2,2",
            81.8,
        ),
        (
            "cudnn.graph",
            "conv2d x=bfloat16:4x768x7x7:nhwc w=bfloat16:768x48x3x3:nhwc pad=1,1,1,1 groups=16",
            42.4,
        ),
        (
            "cudnn.graph",
            "conv2d_grad_wrt_inputs x=bfloat16:1x1024x53x86 w=bfloat16:1024x32x3x3 pad=1,1,1,1 groups=32",
            47.8,
        ),
    ):
        assert 1 / 1.35 < times_measured(name, text, measured_us) < 1.35, text


def test_of_small_networks_cudnns_estimate_knows_what_tf32_admits() -> None:
    """36.7 us by its small algorithm, which ieee rounding forbids for so short sums."""
    row = next(
        row
        for row in json.loads((BENCH / "results" / "nvidia_h200_random_1.json").read_text())["rows"]
        if "hidden=120" in row["problem"]
    )
    problem = parse(row["problem"])
    impl = next(i for i in implementations(problem.op) if i.name == "cudnn.rnn")
    ieee, tf32 = (ranks.estimate(impl, problem, Policy(device=0, fp32_precision=p)) for p in ("ieee", "tf32"))
    assert 1 / 1.3 < tf32 / 36.7 < 1.3 and ieee > 3 * tf32


@pytest.mark.parametrize(
    "line",
    [
        "conv2d_grad_wrt_weights x=float32:4x1x112x112 w=float32:64x1x1x1",
        "conv2d_grad_wrt_weights x=float32:4x1x56x56 w=float32:128x1x5x5 pad=2,2,2,2",
        "conv2d_grad_wrt_inputs x=float32:16x128x112x112 w=float32:32x128x1x1 stride=2,2",
        "conv3d_grad_wrt_inputs x=float32:16x1x14x14x14 w=float32:64x1x5x5x5 pad=2,2,2,2,2,2",
    ],
)
def test_what_is_likely_on_the_cpu_has_corrmm_where_it_was_the_faster(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured on two cores: 1.2 to 3.4 times as fast as cpu.im2col; no estimate of seconds keeps it from being timed."""
    monkeypatch.setattr(ranks, "architecture", lambda device: "cpu")
    problem, policy = parse(line), Policy(device=-1)
    found = [i for i in implementations(problem.op, ["cpu"]) if i.name in ("cpu.im2col", "cpu.corrmm")]
    near = remembered._likely(Candidates(problem, policy, current()), found)
    assert {i.name for i in near} == {"cpu.im2col", "cpu.corrmm"}
