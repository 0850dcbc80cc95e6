"""The ranks of implementations, what is learned of them from measurements, and how the learning is judged."""

import dataclasses
import functools
import math
import random
import sys
from typing import Any

import pytest
from folders import ROOT

import numbadnn
from numbadnn import cases, config
from numbadnn.call import candidates, select
from numbadnn.call.candidates import Candidates
from numbadnn.call.choose import choose
from numbadnn.cases.networks import NETWORKS
from numbadnn.gpu import driver as _driver
from numbadnn.kept import plan_file, ranks
from numbadnn.problem import Policy
from numbadnn.problems.conv_routes import DETOUR_US
from numbadnn.registry import FAMILY, Impl, implementations

BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

import learn_rank  # noqa: E402
import rank_report  # noqa: E402

MEASURED = BENCH / "results" / "nvidia_h200_tuning.json"
LINE = "conv2d x=float32:32x64x56x56 w=float32:64x64x3x3 pad=1,1,1,1"
parse = cases.parse


def estimates(own_us: float, name: str = "cpu.mine") -> Impl:
    """An implementation that says so many microseconds of everything."""
    known = implementations("conv2d")[0]
    return dataclasses.replace(known, name=name, backend="cpu", rank=lambda problem: own_us)


@functools.cache
def measured() -> list[dict[str, Any]]:
    return learn_rank.documents([str(MEASURED)])


@functools.cache
def left_out() -> list[rank_report.Choice]:
    return rank_report.left_out(measured(), learn_rank.learn, NETWORKS)


# ---- estimates -------------------------------------------------------------------------------------------------------


def test_every_rank_of_every_problem_is_a_number() -> None:
    """``explain`` and ``select`` rank before they ask who supports a problem."""
    rows = ranks.table()["sm_90"]["operations"]["conv"]
    for case in cases.find(["contract"]):
        problem = case.problem()
        for impl in implementations(case.op):
            assert not math.isnan(impl.rank(problem)), f"{impl.name}: {case.text}"
            assert ranks.estimate_by(rows, impl, problem) > 0, f"{impl.name}: {case.text}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (LINE, "float32 nchw dense"),
        (LINE.replace("conv2d", "conv2d_grad_wrt_weights"), "float32 nchw dense"),
        ("conv3d x=float32:2x64x32x32x32 w=float32:64x64x3x3x3", "float32 nchw dense"),
        ("conv2d x=float32:32x64x56x56 w=float32:64x2x3x3 groups=32", ""),  # wastes the more the smaller a group is
        ("conv2d x=float32:32x64x56x56:nhwc w=float32:64x64x3x3:nhwc", "float32 nhwc dense"),
        ("conv2d x=bfloat16:32x64x56x56:nhwc w=bfloat16:64x64x3x3:nhwc", ""),  # 16 bits: the ranks decide
        ("conv2d x=float32:32x64x56x56 w=float32:64x1x3x3 groups=64", "float32 nchw depthwise forward"),
        ("conv2d x=float32:1x8x8x8 w=float32:8x8x3x3", ""),  # a launch and little else
        (
            "causal_conv1d x=float32:32x64x1x4096 w=float32:64x64x1x3 pad=0,0,2,0",
            "",
        ),  # was not measured: others compute it
        ("conv2d x=float32:32x64x16x16 w=float32:64x16x16x64x1x1", ""),  # unshared
        ("softmax x=float32:4096x4096", ""),
    ],
)
def test_classes(line: str, found: str) -> None:
    assert ranks.class_of(parse(line)) == found


def test_the_learned_estimate_and_its_absence_is_the_implementations_own() -> None:
    problem = parse(LINE)
    floor = ranks.floor_us(problem)
    for rows in ({}, {"float16 nchw dense": {"fastest": 2.0, "cpu.mine": [1.5, 0.5]}}):
        assert ranks.estimate_by(rows, estimates(7.0), problem) == 7.0
    rows = {"float32 nchw dense": {"fastest": 2.0, "cpu.mine": [1.5, 0.5], "cpu.mine_by_forward": [1.5, 0.5]}}
    assert ranks.estimate_by(rows, estimates(9 * floor), problem) == pytest.approx(2 * floor * 1.5 * 3)
    assert ranks.estimate_by(rows, estimates(floor / 9), problem) == 2 * floor * 1.5  # none is faster than its floor
    assert ranks.estimate_by(rows, estimates(math.inf), problem) == math.inf
    detour = estimates(DETOUR_US + 9 * floor, "cpu.mine_by_forward")  # measured, it is no longer held back
    assert ranks.estimate_by(rows, detour, problem) == pytest.approx(9 * floor)  # but not faster than it says itself
    detour = estimates(DETOUR_US + 4 * floor, "cpu.mine_by_forward")
    assert ranks.estimate_by(rows, detour, problem) == pytest.approx(2 * floor * 1.5 * 2)
    # what was never measured beside others is not believed to beat them
    assert ranks.estimate_by(rows, estimates(1.0, "cpu.other"), problem) == ranks.UNKNOWN * 2 * floor
    assert ranks.estimate_by(rows, estimates(1e9, "cpu.other"), problem) == 1e9


def test_the_learned_estimate_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = estimates(1.0, "cpu.first"), estimates(2.0, "cpu.second")
    monkeypatch.setattr(candidates, "implementations", lambda op, backends: [first, second])
    names: list[list[str]] = []
    for table in ({}, {"float32 nchw dense": {"fastest": 1.0, "cpu.first": [1.2, 0.0], "cpu.second": [1.1, 0.0]}}):
        monkeypatch.setattr(ranks, "table", lambda table=table: {"cpu": {"operations": {"conv": table}}})
        names.append(
            [impl.name for impl in Candidates(parse(LINE), Policy(device=-1), config.current()).ordered(("cpu",))]
        )
    assert names == [["cpu.first", "cpu.second"], ["cpu.second", "cpu.first"]]


def test_of_a_layer_that_was_measured_the_fastest_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (
        dataclasses.replace(estimates(us, name), supports=lambda problem, policy: "")
        for us, name in ((1.0, "cpu.first"), (2.0, "cpu.second"))
    )
    for module in (candidates, select):
        monkeypatch.setattr(module, "implementations", lambda op, backends: [first, second])
    layers = {str(parse(LINE)): {"impl": "cpu.second", "config": None, "time_us": 3.25}}
    monkeypatch.setattr(ranks, "table", lambda: {"cpu": {"operations": {}, "engines": {}, "layers": layers}})

    def chosen(line: str = LINE, backend: str | None = None, **rules: Any) -> select.Choice:
        return choose(Candidates(parse(line), Policy(device=-1, **rules), config.current(), backend))

    assert (chosen().impl.name, chosen().decided_by) == ("cpu.second", "rank, of a known layer: 3.25 us")
    assert chosen(backend="cpu").impl.name == "cpu.second"
    assert chosen(LINE.replace("32x64x", "31x64x")).impl.name == "cpu.first"
    assert chosen(fp32_precision="tf32").impl.name == "cpu.first"  # was measured under other rules
    with numbadnn.using(exclude="*.second"):
        assert chosen().impl.name == "cpu.first"
    monkeypatch.setattr(plan_file, "stale", lambda entry, device: "it was made with another cuDNN")
    assert chosen().impl.name == "cpu.first"
    monkeypatch.undo()
    monkeypatch.setattr(candidates, "implementations", lambda op, backends: [first, second])
    monkeypatch.setattr(ranks, "table", lambda: {"cpu": {"layers": layers}})
    second = dataclasses.replace(second, supports=lambda problem, policy: "not today")
    assert chosen().impl.name == "cpu.first"


def test_every_known_layer_is_the_fastest_that_was_measured_of_it() -> None:
    cases = {str(c["parsed"]): c for c in measured()}
    layers = ranks.table()["sm_90"]["layers"]
    assert len(layers) > 20
    for text, entry in layers.items():
        assert entry["time_us"] == pytest.approx(learn_rank.fastest_us(cases[text]), abs=0.06)


def test_what_is_foretold_on_a_gpu_comes_before_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, asked = parse(LINE), []

    def foretell(problem: Any, policy: Policy) -> float | None:
        asked.append(policy.device)
        return None if policy.fp32_precision == "tf32" else 5.0

    impl = dataclasses.replace(estimates(7.0), foretell=foretell)
    assert ranks.estimate(impl, problem, Policy(device=0)) == 5.0
    assert ranks.estimate(impl, problem, Policy(device=0, fp32_precision="tf32")) == 7.0
    assert ranks.estimate(impl, problem, Policy(device=-1)) == 7.0
    assert asked == [0, 0]
    monkeypatch.setattr(candidates, "implementations", lambda op, backends: [impl])
    mine, other = "cpu.mine", "cpu.other"
    # who may not run is not asked
    for where, exclude, count in (("elsewhere", other, 2), ("", mine, 2), ("", other, 3)):
        monkeypatch.setattr(select, "unavailable", lambda backend, device, where=where: where)
        with numbadnn.using(exclude=exclude):
            found = Candidates(problem, Policy(device=0), config.current()).ordered(("cpu",))
            assert found == [impl] and len(asked) == count


def test_a_library_is_asked_what_it_foretells_where_that_may_be_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is that of all estimates, whatever is asked."""
    problem, asked, generator = parse(LINE), list[str](), random.Random(0)
    monkeypatch.setattr(select, "unavailable", lambda backend, device: "")
    unasked = 0
    for _ in range(200):
        impls, true = [], {}
        for n in range(6):
            own, least = float(generator.randrange(1, 9)), float(generator.randrange(1, 9))
            told = generator.choice([None, least, least + 2])
            name = f"cpu.{n}"
            true[name] = own if told is None else told

            def foretell(problem: Any, policy: Policy, name: str = name, told: float | None = told) -> float | None:
                asked.append(name)
                return told

            impl = dataclasses.replace(estimates(own), name=name)
            if n % 2:
                impl = dataclasses.replace(impl, foretell=foretell, foretold_least=lambda problem, least=least: least)
            else:
                true[name] = own
            impls.append(impl)
        monkeypatch.setattr(candidates, "implementations", lambda op, backends, impls=impls: impls)
        given = Candidates(problem, Policy(device=0), config.current())
        asked.clear()
        first = next(given.in_turn(("cpu",)))
        unasked += 3 - len(asked)
        order = [impl.name for impl in given.ordered(("cpu",))]
        assert order == sorted(true, key=lambda name: true[name]) and order[0] == first.name
        assert len(asked) == 3  # each once
    assert unasked > 200


def test_an_engine_that_transforms_is_foretold_where_the_heuristics_named_it_by_its_routes_too() -> None:
    """Within 20 % of what an H200 took, and nothing of what they did not name."""
    cases = {c["case"]: c for c in measured()}
    for name, impl, measured_us in (
        ("resnet50/3b-3x3/grad-inputs/float32-nchw", "cudnn.graph", 121),
        ("resnet50/3b-3x3/forward/float32-nchw", "cudnn.graph", 132),
        ("resnet50/2b-3x3/forward/float32-nchw", "cudnn.graph_by_grad_inputs", 142),
        ("resnet50/2b-3x3/forward/float32-nchw", "cudnn.graph", None),
        ("resnet50/4b-3x3/grad-inputs/float32-nchw", "cudnn.graph", None),  # named after others
        ("resnet50/3b-3x3/grad-weights/float32-nchw", "cudnn.graph", None),
        ("resnet50/3b-3x3/forward/float16-nhwc", "cudnn.graph", None),
    ):
        told = learn_rank.foretold(cases[name], impl)
        assert told == (measured_us and pytest.approx(measured_us, rel=0.2)), name


def test_implicit_tiles_counts_the_terms_that_the_phases_of_a_gradient_have() -> None:
    impl = next(i for i in implementations("conv2d_grad_wrt_inputs") if i.name == "numba.implicit_tiles")
    line = "conv2d_grad_wrt_inputs x=float32:32x512x{1}x{1} w=float32:1024x512x{0}x{0} stride={2},{2}"
    one, all_four, plain = (impl.rank(parse(line.format(*sizes))) for sizes in ((1, 28, 2), (2, 28, 2), (1, 14, 1)))
    # of four phases a filter of one tap meets one, which is the product without strides after the image was cleared
    assert one == pytest.approx(plain + 2 + 4 * 32 * 512 * 28 * 28 / 3e6)
    assert (all_four - 6) / 4 <= one - 6  # that of four taps meets all


def test_the_estimate_of_cudnn_knows_tiles_and_winograd() -> None:
    """Within 30 % of what an H200 took: few tiles are slow, few filters' gradients are split, those of 3x3 go by Winograd."""
    impls = {
        op: next(i for i in implementations(op) if i.name == "cudnn.graph")
        for op in ("conv2d", "conv2d_grad_wrt_weights")
    }
    for text, measured_us in {
        "conv2d x=float32:32x256x56x56 w=float32:128x256x1x1": 174,
        "conv2d x=float32:32x512x28x28 w=float32:256x512x1x1": 228,  # as many multiplications, in one and a half rounds
        "conv2d_grad_wrt_weights x=float32:32x64x56x56 w=float32:64x64x1x1": 443,
        "conv2d_grad_wrt_weights x=float32:32x64x56x56 w=float32:64x64x3x3 pad=1,1,1,1": 298,
        "conv2d_grad_wrt_weights x=float32:32x512x7x7 w=float32:512x512x3x3 pad=1,1,1,1": 95,
    }.items():
        problem = parse(text)
        assert 1 / 1.3 < impls[problem.op].rank(problem) / measured_us < 1.3, text


def test_a_detour_is_ranked_by_the_problem_that_it_becomes() -> None:
    straight, detour = (
        next(i for i in implementations(op) if i.name == name)
        for op, name in (("conv2d", "cudnn.graph"), ("conv2d_grad_wrt_inputs", "cudnn.graph_by_forward"))
    )
    gradient = "conv2d_grad_wrt_inputs x=float32:32x64x28x28 w=float32:128x64x1x1"
    forward = parse("conv2d x=float32:32x128x28x28 w=float32:64x128x1x1")
    assert detour.rank(parse(gradient)) - DETOUR_US == pytest.approx(straight.rank(forward), rel=0.01)
    assert detour.rank(parse(gradient + " stride=2,2")) == math.inf  # there is none


# ---- learning --------------------------------------------------------------------------------------------------------


def test_a_line_is_found_and_few_cases_are_drawn_to_what_is_unknown() -> None:
    points = [(x, 1.2 * x**0.3) for x in (1.0, 2.0, 4.0, 8.0)]
    ratio, slope = learn_rank.line(points * 1000)
    assert ratio == pytest.approx(1.2, rel=0.01) and slope == pytest.approx(0.3, rel=0.01)
    assert learn_rank.line([]) == (pytest.approx(ranks.UNKNOWN), 0.0)
    assert 1.0 < learn_rank.line([(1.0, 1.0)])[0] < ranks.UNKNOWN < learn_rank.line([(1.0, 2.0)])[0]


def test_what_was_measured_once_is_no_class_and_the_configuration_of_today_counts() -> None:
    case = next(c for c in measured() if c["case"] == "resnet50/2c-1x1/grad-weights/float32-nchw")
    assert learn_rank.operations([case], {}) == {}
    assert any(learn_rank.operations([case, case], {}).values())
    today = learn_rank.taken_us(case, "numba.implicit_tiles", {})
    assert today is not None
    others = [
        {**c, "heuristic": c["time_us"] != today} for c in case["candidates"]
    ]  # as if another had been taken then
    assert learn_rank.taken_us({**case, "candidates": others}, "numba.implicit_tiles", {}) == today


def test_what_is_far_from_the_fastest_counts_little() -> None:
    near = [(1.0, 1.0)] * 4
    assert learn_rank.line([*near, (1.0, 100.0)])[0] < math.prod([*[1.0] * 4, 100.0]) ** (1 / 5)


def test_a_layer_that_two_networks_have_is_left_out_with_either() -> None:
    shared = "conv2d x={0}:32x320x7x7 w={0}:1280x320x1x1"  # the last layer of MobileNetV2 and of EfficientNet-B0
    own = "conv2d x=float32:32x64x56x56 w=float32:64x64x1x1"

    def case(name: str, line: str) -> dict[str, Any]:
        candidate = {"impl": "numba.direct", "config": None, "time_us": 9.0, "heuristic": True, "number": 0}
        known = {"architecture": "sm_90", "parsed": parse(line), "source": ""}
        return {"case": name, "problem": line, "candidates": [candidate], **known}

    some = [
        case("mobilenetv2/last/forward/float32-nchw", shared.format("float32")),
        case("efficientnetb0/last/forward/float64-nchw", shared.format("float64")),
        case("resnet50/2a-1x1/forward/float32-nchw", own),
        case("latency/mobilenet-last/forward/float32-nchw", shared.format("float32").replace("32x320x7", "1x320x7")),
        case("a line", "conv2d x=float32:7x64x56x56 w=float32:64x64x1x1"),
        case("mobilenetv2/6-expand/forward/float32-nchw", "conv2d x=float32:32x160x7x7 w=float32:960x160x1x1"),
    ]
    networks = [rank_report.networks_of(c) for c in some]
    assert networks[:2] == [{"mobilenetv2", "efficientnetb0"}] * 2
    assert networks[2:] == [{"resnet50"}, {"latency"}, {"a line"}, {"mobilenetv2"}]
    assert rank_report.networks_of(some[0], any_images=True) == {"mobilenetv2", "efficientnetb0", "latency"}
    seen: list[list[str]] = []

    def learn(learned: list[dict[str, Any]]) -> dict[str, Any]:
        seen.append([c["case"] for c in learned])
        return {}

    names = [c["case"] for c in some]
    assert len(rank_report.left_out(some, learn, ["mobilenetv2"])) == 3
    assert seen == [names[2:5]] * 2  # for the shared layers, and for its own
    seen.clear()
    rank_report.left_out(some, learn, ["latency"], any_images=True)
    assert seen == [[names[2], names[4]]]


# ---- what is shipped -------------------------------------------------------------------------------------------------


def test_the_table_that_is_shipped_holds_numbers_and_names_what_exists() -> None:
    for tables in ranks.table().values():
        assert set(tables) == {"operations", "engines", "layers"}
        for family, rows in tables["operations"].items():
            known = {impl.name for op in FAMILY if FAMILY[op] == family for impl in implementations(op)}
            for row in rows.values():
                lines = {name: line for name, line in row.items() if name != ranks.FASTEST}
                assert row[ranks.FASTEST] > 0 and lines and lines.keys() <= known
                assert all(ratio > 0 and abs(slope) < 2 for ratio, slope in lines.values())
        for op, classes in tables["engines"].items():
            known = {impl.name for impl in implementations(op)}
            for row in classes.values():
                assert {name.split()[0] for name in row} <= known and all(v > 0 for v in row.values())
        for text, entry in tables["layers"].items():
            problem = parse(text)
            made = {"made_with"} if entry["impl"].startswith("cudnn.") else set()
            assert str(problem) == text and set(entry) == {"impl", "config", "time_us"} | made
            assert entry["impl"] in {impl.name for impl in implementations(problem.op)}


def test_the_table_that_is_shipped_is_what_the_committed_measurements_give() -> None:
    """Else: python bench/learn_rank.py --write bench/results/nvidia_h200_tuning.json, after any change of a rank."""
    assert learn_rank.with_layers(measured())["sm_90"] == ranks.table()["sm_90"]


def test_untuned_is_near_the_fastest_in_networks_that_were_left_out() -> None:
    assert rank_report.share(left_out()) >= 0.9
    assert len(left_out()) == sum(bool(rank_report.networks_of(case) & {*NETWORKS}) for case in measured()) > 200


def test_what_the_report_chooses_select_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own kernels are asked as on the GPU that was measured: they refuse where they have no time, and else admit."""
    pytest.importorskip("numba_cuda")
    monkeypatch.setattr(_driver, "compute_capability", lambda device=0: (9, 0))
    policy = Policy(device=0)
    for choice in left_out():
        problem = choice.case["parsed"]
        own = {i.name: i.supports(problem, policy) for i in implementations(problem.op) if i.backend == "numba"}
        assert not own.get(choice.impl), choice.case["case"]
        assert all(own[name] for name in choice.ahead), f"{choice.case['case']}: {choice.ahead}"
