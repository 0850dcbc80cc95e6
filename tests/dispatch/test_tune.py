"""Measuring, remembering, choosing: what is fastest and right is found, kept in a file, and taken from it; nothing else is."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import __main__ as command
from numbadnn.cases import find, parse
from numbadnn.errors import NotSupportedError
from numbadnn.host import files as stored
from numbadnn.kept import choices, machine, ranks
from numbadnn.kept.outcome import Measured, Outcome
from numbadnn.measuring import tune
from numbadnn.problem import Policy, Spec
from numbadnn.registry import Executable, Impl
from numbadnn.validate.faults import planted

X = np.random.default_rng(0).standard_normal((6, 50)).astype("float32")
LINE = "softmax x=float32:6x50 y=float32:6x50 algo=accurate mode=channel"


@dataclasses.dataclass(frozen=True)
class Tile:
    """A configuration of the planted implementation: how long it sleeps, and what it multiplies its results by."""

    sleep_us: int
    factor: float = 1.0


HEAD = '{"format": "numbadnn-choices-1", '
SPACE = [Tile(3000), Tile(20), Tile(0, 1.5), Tile(1000)]


def softmax_of(tile: Tile, x: np.ndarray) -> np.ndarray:
    end = time.perf_counter() + tile.sleep_us * 1e-6
    e = np.exp(x - x.max(1, keepdims=True))
    while time.perf_counter() < end:
        pass
    return tile.factor * e / e.sum(1, keepdims=True)


def planned(problem: Any, policy: Any, tile: Tile | None) -> Executable:
    tile = tile or SPACE[0]
    if tile.sleep_us < 0:
        raise NotSupportedError(f"cannot be built any more: {tile}")

    def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
        outputs[0][...] = softmax_of(tile, inputs[0])

    return Executable(run, facts={"config": tile})


def tiled(space: list[Tile] | None = None, name: str = "cpu.tiled", rank: float = 1e9) -> Impl:
    """An implementation of softmax with configurations to choose from."""
    found = SPACE if space is None else space
    return Impl("softmax", "cpu", name, lambda p, q: "", planned, lambda p: rank, space=lambda p, q: found)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    numbadnn.clear_caches()
    with numbadnn.using(cache_dir=str(tmp_path)):
        yield tmp_path
    numbadnn.clear_caches()


def choice_file(folder: Path) -> Path:
    return folder / "choices" / machine.file_name(-1)


def last() -> Any:
    found = numbadnn.last_call()
    assert found is not None
    return found


def test_the_fastest_configuration_that_agrees_is_found_and_remembered(folder: Path) -> None:
    with planted(tiled()), numbadnn.using(only="cpu.tiled,cpu.loops", exclude="cpu.loops"):
        with numbadnn.using(tune="measure"):
            found = numbadnn.softmax(X)
        assert last().facts["config"] == Tile(20) and last().decided_by.startswith("measured, ")
        assert np.array_equal(found, softmax_of(Tile(20), X))
        numbadnn.clear_caches()
        numbadnn.softmax(X)  # cached is the default
        assert last().facts["config"] == Tile(20) and last().decided_by.startswith("tuned, ")
        numbadnn.clear_caches()
        with numbadnn.using(tune="heuristic"):
            numbadnn.softmax(X)
        assert last().facts["config"] == SPACE[0] and last().decided_by == "rank"


def test_the_file_is_readable_and_holds_what_was_measured(folder: Path) -> None:
    with planted(tiled()), numbadnn.using(tune="measure"):
        numbadnn.softmax(X)
    document = json.loads(choice_file(folder).read_text())
    assert document["format"] == choices.FORMAT and document["device"] == machine.device_name(-1)
    (record,) = document["choices"][machine.versions(-1)][LINE].values()
    assert {"cpu.loops", "cpu.tiled"} == set(record["considered"])
    times = [entry["time_us"] for entry in record["fastest"]]
    assert times == sorted(times) and record["fastest"][0]["impl"] == "cpu.loops"
    assert {"sleep_us": 0, "factor": 1.5} not in [entry["config"] for entry in record["fastest"]]
    assert any("does not agree with cpu.loops" in text for text in record["disagreed"])
    assert os.stat(choice_file(folder)).st_mode & 0o077 == 0


def test_a_narrower_question_takes_the_fastest_that_it_admits(folder: Path) -> None:
    with planted(tiled()):
        with numbadnn.using(tune="measure"):
            numbadnn.softmax(X)
        with numbadnn.using(exclude="cpu.loops"):
            numbadnn.softmax(X)
        assert last().facts["config"] == Tile(20) and last().decided_by.startswith("tuned")


def test_an_implementation_that_was_not_asked_then_is_not_overlooked_now(folder: Path) -> None:
    with numbadnn.using(tune="measure"):
        numbadnn.softmax(X)
    numbadnn.clear_caches()
    with planted(tiled([Tile(0)], "cpu.newer", rank=0.0)):
        numbadnn.softmax(X)
        assert last().impl == "cpu.newer" and last().decided_by == "rank"


def test_an_implementation_that_is_gone_is_passed_over(folder: Path) -> None:
    with planted(tiled([Tile(0)], "cpu.former")), numbadnn.using(tune="measure", only="cpu.former,cpu.loops"):
        numbadnn.softmax(X)
    path = choice_file(folder)
    document = json.loads(path.read_text())
    (record,) = document["choices"][machine.versions(-1)][LINE].values()
    record["fastest"].sort(key=lambda entry: entry["impl"] != "cpu.former")
    assert record["fastest"][0]["impl"] == "cpu.former"
    path.write_text(json.dumps(document))
    numbadnn.clear_caches()
    numbadnn.softmax(X)
    assert last().impl == "cpu.loops" and last().decided_by.startswith("tuned, ")


def test_other_rules_or_versions_do_not_take_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(tiled()), numbadnn.using(exclude="cpu.loops"):
        with numbadnn.using(tune="measure"):
            numbadnn.softmax(X)
        with numbadnn.using(workspace_limit="1MiB"):
            numbadnn.softmax(X)
        assert last().decided_by == "rank"
        numbadnn.clear_caches()
        monkeypatch.setattr(machine, "versions", lambda device: "numba=0.1")
        numbadnn.softmax(X)
        assert last().decided_by == "rank"


def test_only_what_is_likely_is_measured_and_all_of_it_where_that_is_asked_for(folder: Path) -> None:
    def takes(sleep_us: int, name: str, rank: float) -> Impl:
        def plan(problem: Any, policy: Any, tile: Tile | None) -> Executable:
            return planned(problem, policy, tile or Tile(sleep_us))

        return dataclasses.replace(tiled([Tile(5)], name, rank), plan=plan)

    def ran() -> tuple[str, str]:
        numbadnn.clear_caches()
        numbadnn.softmax(X)
        return last().impl, last().decided_by.split(",")[0]

    slow, near, far = takes(3000, "cpu.slow", 10.0), takes(200, "cpu.near", 29.0), takes(0, "cpu.far", 31.0)
    with planted(slow), planted(near), planted(far), numbadnn.using(only="cpu.slow,cpu.near,cpu.far"):
        assert ran() == ("cpu.slow", "rank")
        with numbadnn.using(tune="likely"):
            assert ran() == ("cpu.near", "measured")
            assert ran() == ("cpu.near", "tuned")
        (record,) = json.loads(choice_file(folder).read_text())["choices"][machine.versions(-1)][LINE].values()
        kept = [(entry["impl"], entry["config"]) for entry in record["fastest"]]
        assert kept == [("cpu.near", None), ("cpu.slow", None)] and record["likely"]  # and no other configuration
        assert ran() == ("cpu.near", "tuned")
        with numbadnn.using(tune="measure"):
            assert ran()[1] == "measured" and last().facts["config"].sleep_us <= 5
    only = takes(0, "cpu.only", 1.0)
    with planted(only), numbadnn.using(only="cpu.only,cpu.loops", tune="likely", verbose="quiet", cache_dir=os.devnull):
        assert ran() == ("cpu.only", "rank")  # nothing else is near


@pytest.mark.gpu
def test_on_a_gpu_likely_ways_and_cudnns_first_engines_are_timed(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    last_axes = {"memory_format": torch.channels_last}
    x = torch.randint(-2, 3, (8, 64, 28, 28), device="cuda").half().contiguous(**last_axes)
    w = torch.randint(-1, 2, (64, 64, 3, 3), device="cuda").half().contiguous(**last_axes)
    with numbadnn.using(tune="likely"):
        found = numbadnn.conv2d(x, w, border_mode="half", filter_flip=False)
    assert last().decided_by.startswith("measured, ")
    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    assert torch.equal(found.double(), expected)
    document = json.loads((folder / "choices" / machine.file_name(0)).read_text())
    ((policies,),) = [problems.values() for problems in document["choices"].values()]
    (record,) = policies.values()
    names = {entry["impl"] for entry in record["fastest"]}
    assert record["likely"] and len(names) <= 4 < len(record["considered"])
    numbadnn.clear_caches()
    assert torch.equal(numbadnn.conv2d(x, w, border_mode="half", filter_flip=False), found)
    assert last().decided_by.startswith("tuned, ")


def test_of_cudnns_engines_the_first_few_are_likely_each_once() -> None:
    def listed(engine: int, knob: int) -> dict[str, Any]:
        return {"form": "nhwc", "engine": engine, "knobs": {"2": knob}}

    configs = [listed(5, 0), listed(5, 1), listed(9, 3), {"sleep_us": 3}, None, *(listed(20 + n, 0) for n in range(9))]
    assert tune._first_engines(configs) == [listed(5, 0), listed(9, 3), listed(20, 0), listed(21, 0)]


def test_nothing_measured_decides_where_batch_and_machine_must_not_matter(folder: Path) -> None:
    with planted(tiled(rank=0.0)), numbadnn.using(tune="measure", determinism="gpu_to_gpu"):
        numbadnn.softmax(X)
        assert last().impl == "cpu.loops" and last().decided_by == "rank" and not choice_file(folder).exists()


def test_a_configuration_that_cannot_be_had_any_more_is_chosen_anew_and_said(folder: Path) -> None:
    with planted(tiled([Tile(0), Tile(-1)])), numbadnn.using(exclude="cpu.loops"):
        with numbadnn.using(tune="measure"):
            numbadnn.softmax(X)
        path = choice_file(folder)
        path.write_text(path.read_text().replace('"sleep_us": 0', '"sleep_us": -1'))
        numbadnn.clear_caches()
        numbadnn.softmax(X)
        assert last().facts["config"] == SPACE[0] and "not as remembered: cannot be built any more" in last().decided_by


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "damaged"),
        ("[1, 2]", "expected the format"),
        ('{"format": "other"}', "expected the format"),
        (HEAD + '"device": "abacus", "choices": {}}', "got those of abacus"),
        (HEAD + '"device": DEVICE, "choices": [1]}', "expected choices"),
        (HEAD + '"device": DEVICE, "choices": {VERSIONS: {LINE: {POLICY: {"considered": []}}}}}', "is damaged"),
    ],
    ids=["half", "list", "format", "device", "nesting", "record"],
)  # fmt: skip
def test_a_damaged_or_foreign_file_is_reported_once_and_ignored(folder: Path, text: str, why: str) -> None:
    policy = machine.policy_text(Policy())
    for word, value in (
        ("DEVICE", machine.device_name(-1)),
        ("VERSIONS", machine.versions(-1)),
        ("LINE", LINE),
        ("POLICY", policy),
    ):
        text = text.replace(word, json.dumps(value))
    path = choice_file(folder)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.warns(RuntimeWarning, match=why):
        numbadnn.softmax(X)
    assert last().decided_by == "rank"
    numbadnn.clear_caches()
    numbadnn.softmax(X)  # warnings are errors here: it is reported once
    aside = why in ("damaged", "expected the format")
    said = pytest.warns(RuntimeWarning, match="what it held is kept in") if aside else contextlib.nullcontext()
    with numbadnn.using(tune="measure"), said:
        numbadnn.softmax(X)
    numbadnn.clear_caches()
    numbadnn.softmax(X)
    assert last().decided_by.startswith("tuned")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_ignored(folder: Path) -> None:
    with numbadnn.using(tune="measure"):
        numbadnn.softmax(X)
    os.chown(choice_file(folder), 12345, -1)
    numbadnn.clear_caches()
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        numbadnn.softmax(X)
    assert last().decided_by == "rank"


def test_what_cannot_be_written_is_reported_and_holds_for_the_process(tmp_path: Path) -> None:
    numbadnn.clear_caches()
    blocked = tmp_path / "file"
    blocked.write_text("")
    with numbadnn.using(cache_dir=str(blocked), tune="measure"):
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            numbadnn.softmax(X)
        assert last().decided_by.startswith("measured")
    numbadnn.clear_caches()


def test_two_writers_keep_each_others_entries(folder: Path) -> None:
    path = folder / "both.json"
    for i in range(5):
        stored.update(path, "f", lambda d, i=i: d.update({str(i): i}))
    assert json.loads(path.read_text()) == {"format": "f", **{str(i): i for i in range(5)}}
    assert [p.name for p in folder.iterdir()] == ["both.json"]


def test_seconds_are_bounded() -> None:
    problem, policy = parse(LINE), Policy()
    slow = tiled([Tile(30000 + i) for i in range(100)])
    begin = time.perf_counter()
    outcome = tune.measure(problem, policy, [slow], [slow.name], seconds=0.3)
    assert time.perf_counter() - begin < 3 and outcome.unfinished > 50 and outcome.timed
    assert all("not reached in 0.3 s" in c.reason for c in outcome.candidates if c.time_us is None)


def test_what_is_ready_is_measured_however_long_others_are_compiled() -> None:
    def named(name: str, seconds: float) -> Impl:
        def plan(problem: Any, policy: Any, tile: Tile | None) -> Executable:
            time.sleep(seconds)
            return planned(problem, policy, tile or Tile(200))

        return dataclasses.replace(tiled([Tile(200 + i) for i in range(20)], name), plan=plan)

    impls = [named("cpu.compiled", 2.0), named("cpu.ready", 0.0)]
    outcome = tune.measure(parse(LINE), Policy(), impls, [], seconds=1.5)
    measured = [c.impl for c in outcome.timed]
    assert measured.count("cpu.ready") == 20 and measured.count("cpu.compiled") <= 2


def test_what_loads_its_kernels_when_it_is_launched_is_not_slow_for_that() -> None:
    def plan(problem: Any, policy: Any, tile: Tile | None) -> Executable:
        slow, fast, calls = planned(problem, policy, Tile(9000)), planned(problem, policy, tile or Tile(20)), []

        def run(*arguments: Any) -> None:
            calls.append(None)
            (slow if len(calls) <= 2 and tile else fast).run(*arguments)

        return Executable(run, facts={"config": tile or Tile(20)})

    impl = dataclasses.replace(tiled([Tile(20), Tile(21)]), plan=plan)
    outcome = tune.measure(parse(LINE), Policy(), [impl], [])
    assert len(outcome.timed) == 2 and all((c.time_us or 1e9) < 3000 for c in outcome.timed)


def test_a_candidate_that_fails_is_left_out_with_its_reason() -> None:
    def fails(problem: Any, policy: Any, tile: Tile | None) -> Executable:
        def run(*arguments: Any) -> None:
            raise numbadnn.NumbaDNNError("launching failed")

        return Executable(run, facts={"config": tile or Tile(1)})

    impls = [dataclasses.replace(tiled(), plan=fails, name="cpu.broken"), tiled([Tile(20)])]
    outcome = tune.measure(parse(LINE), Policy(), impls, [])
    assert {c.impl for c in outcome.timed} == {"cpu.tiled"}
    assert {c.reason for c in outcome.candidates if c.impl == "cpu.broken"} == {"failed: launching failed"}


def test_what_would_run_untuned_comes_first_where_nothing_is_faster_by_more_than_noise() -> None:
    def order(*times: float) -> list[float | None]:
        candidates = [Measured("cpu.tiled", "cpu", None, t == 10.0, t) for t in times]
        outcome = Outcome(None, Policy(), candidates, [])
        tune.prefer_untuned(outcome)
        return [c.time_us for c in outcome.candidates]

    assert order(9.99, 10.0, 12.0) == [10.0, 9.99, 12.0]
    assert order(9.0, 10.0, 12.0) == [9.0, 10.0, 12.0]


CLASSES = ("float32 rows of 50", "float32 rows", "float32")


def test_classes_are_nested_and_only_convolutions_have_them() -> None:
    line = "conv2d x=float32:16x{0}x64x64{2} w=float32:{0}x{1}x3x3 groups={3} pad=1,1,1,1"
    found = {
        "3x3": ranks.keys_of(parse(line.format(8, 8, ":nhwc", 1))),
        "grouped": ranks.keys_of(parse(line.format(8, 2, "", 4))),
        "depthwise": ranks.keys_of(parse(line.format(8, 1, "", 8))),
        "image": ranks.keys_of(parse(line.format(3, 3, "", 1))),
    }
    for kind, (fine, middle, coarse) in found.items():
        assert fine == f"{middle} small" and middle == f"{coarse} {kind}"
    assert found["3x3"][2] == "float32 nhwc" and found["image"][2] == "float32 nchw"
    large = parse("conv2d x=float32:32x256x56x56 w=float32:256x256x3x3 stride=2,2")
    assert ranks.floor_us(large) > ranks.MIDDLE_US and ranks.keys_of(large)[0] == "float32 nchw 3x3/2 large"
    assert ranks.keys_of(parse(LINE)) == ()
    assert ranks.keys_of(parse("conv2d x=float32:1x8x8x8 w=float32:8x8x3x3")) == ()  # a launch and little else


def test_an_engine_that_was_learned_to_be_faster_is_taken_and_another_where_it_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines = [{"form": "rows", "engine": 2}, {"form": "rows", "engine": 74}, {"form": "copied", "engine": 1}]

    broken: list[int] = []

    def plan(problem: Any, policy: Any, config: Any) -> Executable:
        if config is not None and config["engine"] in broken:
            raise NotSupportedError("cuDNN does not build it")
        return dataclasses.replace(
            planned(problem, policy, Tile(0)), facts={"engine": (config or engines[0])["engine"]}
        )

    impl = dataclasses.replace(tiled(), plan=plan, space=lambda p, q: engines)
    row = {
        "cpu.tiled own": 1.5,
        "cpu.tiled copied 1": 2.5,
        "cpu.tiled rows 2": 3.3,
        "cpu.tiled rows 74": 1.0,
        "cpu.other rows 2": 0.5,
    }
    monkeypatch.setattr(ranks, "table", lambda: {"cpu": {"engines": {"softmax": {"float32 rows": row}}}})
    monkeypatch.setattr(ranks, "keys_of", lambda p: CLASSES)
    for broken, taken in (([], 74), ([74], 2)):  # noqa: B007  plan reads it
        with planted(impl), numbadnn.using(exclude="cpu.loops"):
            numbadnn.softmax(X)
            assert last().facts["engine"] == taken and last().decided_by.startswith("rank")
            explained = next(c for c in numbadnn.explain(numbadnn.softmax, X).candidates if c.state == "chosen")
            assert explained.facts["engine"] == taken
            with numbadnn.using(determinism="not_guaranteed"):  # it was learned under other rules
                numbadnn.softmax(X)
            assert last().facts["engine"] == 2


def test_explain_shows_measured_times_and_estimates(folder: Path) -> None:
    with planted(tiled()):
        with numbadnn.using(tune="measure"):
            numbadnn.softmax(X)
        found = numbadnn.explain(numbadnn.softmax, X)
        by_name = {c.impl: c for c in found.candidates}
        assert by_name["cpu.tiled"].timing == "measured" and by_name["cpu.tiled"].time_us < 3000
        assert by_name["cpu.loops"].state == "chosen" and "tuned" in found.decided_by
        assert json.loads(json.dumps(found.as_dict()))["candidates"][0]["impl"]
    found = numbadnn.explain(numbadnn.softmax, X[:3])
    assert {c.impl: c.timing for c in found.candidates}["cpu.loops"] == "estimated" and " us estimated" in str(found)


def test_explain_shows_no_time_where_an_estimate_only_puts_it_last() -> None:
    x, w = np.ones((2, 3, 16, 16), "float32"), np.ones((4, 3, 3, 3), "float32")
    found = numbadnn.explain(numbadnn.conv2d, x, w)
    times = {c.impl: (c.time_us, c.timing) for c in found.candidates if not c.reason}
    assert times["cpu.fft"] == (None, "") and times["cpu.im2col"][1] == "estimated"
    assert not any("cpu.fft" in line and "estimated" in line for line in str(found).splitlines())


def test_the_command_tunes_cases_and_writes_every_candidate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "all.json"
    with planted(tiled()):
        assert command.main(["tune", LINE, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "cpu.loops" in out and "1 cases in" in out and str(choice_file(folder)) in out
    (case,) = json.loads(file.read_text())["cases"]
    assert len(case["candidates"]) == 1 + len(SPACE) and case["untuned_us"] > 0
    with numbadnn.using(exclude="*"):
        assert command.main(["tune", LINE]) == 3
    numbadnn.softmax(X)
    assert last().decided_by.startswith("tuned")


@pytest.mark.slow
def test_processes_tune_side_by_side(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBADNN_CACHE_DIR", str(folder))
    file = folder / "all.json"
    lines = [LINE, "conv2d x=float32:1x1x4x4 w=float32:1x1x2x2"]
    assert command.main(["tune", *lines, "--jobs", "2", "--json", str(file)]) == 0
    assert "2 cases in" in capsys.readouterr().out
    assert len(json.loads(file.read_text())["cases"]) == 2
    monkeypatch.delenv("NUMBADNN_CACHE_DIR")
    with numbadnn.using(cache_dir=str(folder)):
        numbadnn.clear_caches()
        numbadnn.softmax(X)
        assert last().decided_by.startswith("tuned")


def test_what_is_wrong_and_slow_is_not_kept_either() -> None:
    """It is timed before it is looked at, since it is far from the fastest; but the fastest few are all looked at."""
    space = [Tile(20), Tile(2000, 1.5), Tile(3000)]
    outcome = tune.measure(parse(LINE), Policy(), [tiled(space)], [])
    assert [c.config["sleep_us"] for c in outcome.timed] == [20, 3000] and all(c.agreed for c in outcome.timed)
    (wrong,) = [c for c in outcome.candidates if c.time_us is None]
    assert wrong.config["factor"] == 1.5 and "does not agree with cpu.tiled" in wrong.reason and wrong.number == 1


def test_the_configurations_of_what_is_fast_come_before_those_of_what_is_hopeless() -> None:
    asked: list[str] = []
    fast, slow = tiled([Tile(20), Tile(21), Tile(22)], "cpu.fast"), tiled([Tile(9000), Tile(9001)], "cpu.slow")

    def noted(impl: Impl) -> Impl:
        def plan(problem: Any, policy: Any, config: Any) -> Executable:
            asked.append(impl.name)
            return planned(problem, policy, config or (Tile(9000) if impl is slow else Tile(20)))

        return dataclasses.replace(impl, plan=plan)

    tune.measure(parse(LINE), Policy(), [noted(slow), noted(fast)], [])
    assert asked == ["cpu.slow", "cpu.fast", "cpu.fast", "cpu.fast", "cpu.slow"]


def test_one_process_measures_at_a_time(tmp_path: Path) -> None:
    """A second process waits for the lock file; the same file is taken again after it was let go."""
    import subprocess
    import sys

    path = tmp_path / "lock"
    code = (
        "import sys, pathlib, numbadnn.host.files as s\nwith s.lock_file(pathlib.Path(sys.argv[1])): print('have it')"
    )
    with stored.lock_file(path):
        other = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1.5)
    assert other.communicate(timeout=60)[0] == "have it\n"
    with stored.lock_file(path):
        pass
    assert machine.lock_name(-1) == machine.lock_name(-1) != machine.lock_name(0)


def test_the_reserve_of_an_rnn_is_not_compared() -> None:
    """``compared`` outputs must agree; what follows them is an implementation's own."""
    plain = find(["rnn_forward"])[0].problem()
    kept = dataclasses.replace(plain, outputs=(*plain.outputs, Spec.of("float32", (10,))))
    assert kept.keeps and not plain.keeps
    assert kept.compared == plain.compared == len(plain.outputs)
