"""The plan lock file: it records what ran, replays exactly that, and in strict mode knows everything or says what it lacks."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import ROOT
from test_tune import SPACE, Tile, tiled

import numbadnn
from numbadnn.call import select
from numbadnn.kept import machine, plan_file
from numbadnn.registry import Executable, Impl
from numbadnn.validate.faults import planted

X = np.random.default_rng(0).standard_normal((6, 50)).astype("float32")


@pytest.fixture
def plans(tmp_path: Path) -> Iterator[Path]:
    numbadnn.clear_caches()
    with numbadnn.using(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "plans.json"
    numbadnn.clear_caches()


def last() -> Any:
    found = numbadnn.last_call()
    assert found is not None
    return found


def entries(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text())
    assert document["format"] == plan_file.FORMAT
    return document["plans"]


def test_what_ran_is_recorded_once_a_problem_in_order_and_without_dates(plans: Path) -> None:
    with numbadnn.using(plan_file=str(plans)):
        for _ in range(2):
            numbadnn.softmax(X)
            numbadnn.conv2d(np.ones((1, 2, 5, 5), "f"), np.ones((3, 2, 3, 3), "f"), backend="cpu")
    first, second = entries(plans)
    assert first["problem"].startswith("conv2d ") and first["scope"] == "call:cpu" and first["impl"] == "cpu.im2col"
    assert second["problem"].startswith("softmax ") and second["scope"] == "auto" and second["on"] == "cpu"
    before = plans.read_bytes()
    numbadnn.clear_caches()
    with numbadnn.using(plan_file=str(plans)):
        numbadnn.softmax(X)
        assert last().decided_by == f"plan file {plans}"
    assert plans.read_bytes() == before and not plans.stat().st_mode & 0o022


def test_a_configuration_found_by_measuring_is_replayed_where_nothing_was_measured(plans: Path, tmp_path: Path) -> None:
    with planted(tiled()), numbadnn.using(exclude="cpu.loops"):
        with numbadnn.using(plan_file=str(plans), tune="measure"):
            numbadnn.softmax(X)
        assert entries(plans)[0]["config"] == {"sleep_us": 20, "factor": 1.0}
        numbadnn.clear_caches()
        with numbadnn.using(plan_file=str(plans), plan_strict=True, cache_dir=str(tmp_path / "elsewhere")):
            numbadnn.softmax(X)
            assert last().facts["config"] == Tile(20) and last().decided_by.startswith("plan file")


def test_a_call_of_one_implementation_by_name_has_an_entry_of_its_own(plans: Path) -> None:
    """corr_mm is conv2d by what multiplies by a Toeplitz matrix: neither takes the other's entry."""
    x, w = np.ones((1, 2, 5, 5), "f"), np.ones((3, 2, 3, 3), "f")
    for strict in (False, True):
        numbadnn.clear_caches()
        with numbadnn.using(plan_file=str(plans), plan_strict=strict):
            for _ in range(2):
                numbadnn.corr_mm(x, w)
                assert last().impl == "cpu.im2col"
                numbadnn.conv2d(x, w, filter_flip=False)
                assert last().impl == "cpu.im2col"
    assert [e["scope"] for e in entries(plans)] == ["auto", "auto only=*.corrmm,cpu.im2col"]


def test_strict_names_the_problem_that_is_missing(plans: Path) -> None:
    with numbadnn.using(plan_file=str(plans)):
        numbadnn.softmax(X)
    with numbadnn.using(plan_file=str(plans), plan_strict=True):
        numbadnn.softmax(X)
        with pytest.raises(numbadnn.PlanMissError, match="has no entry for softmax x=float32:3x50"):
            numbadnn.softmax(X[:3])
        with pytest.raises(numbadnn.PlanMissError, match="has no entry for softmax x=float32:6x50"):
            numbadnn.softmax(X, backend="cpu")  # another question
        assert "has no entry" in numbadnn.explain(numbadnn.softmax, X[:3]).decided_by
    with numbadnn.using(plan_strict=True), pytest.raises(numbadnn.PlanMissError, match="no plan_file is set"):
        numbadnn.softmax(X)
    assert len(entries(plans)) == 1


def test_an_entry_that_cannot_be_had_is_said_or_in_strict_mode_an_error(plans: Path) -> None:
    with planted(tiled()), numbadnn.using(plan_file=str(plans), exclude="cpu.loops"):
        numbadnn.softmax(X)
        assert last().facts["config"] == SPACE[0]
    with numbadnn.using(plan_file=str(plans)):
        with pytest.warns(RuntimeWarning, match="is not used: there is no implementation 'cpu.tiled'"):
            numbadnn.softmax(X)
        assert last().impl == "cpu.loops"
    numbadnn.clear_caches()
    with (
        numbadnn.using(plan_file=str(plans), plan_strict=True),
        pytest.raises(numbadnn.PlanMissError, match=r"names cpu.tiled, but there is no implementation .* softmax x="),
    ):
        numbadnn.softmax(X)
    with (
        planted(tiled()),
        numbadnn.using(plan_file=str(plans), exclude="cpu.tiled"),
        pytest.warns(RuntimeWarning, match="excluded by the option"),
    ):
        numbadnn.softmax(X)
    with (
        planted(tiled([Tile(5)])),
        numbadnn.using(plan_file=str(plans)),
        pytest.warns(RuntimeWarning, match="cpu.tiled has no configuration"),
    ):
        numbadnn.softmax(X)
    assert entries(plans)[0]["impl"] == "cpu.tiled"  # the file is the user's: it is not rewritten


def test_what_cannot_be_planned_any_more_is_an_error_in_strict_mode(plans: Path) -> None:
    with planted(tiled([Tile(0), Tile(-1)])), numbadnn.using(exclude="cpu.loops"):
        with numbadnn.using(plan_file=str(plans), tune="measure"):
            numbadnn.softmax(X)
        plans.write_text(plans.read_text().replace('"sleep_us": 0', '"sleep_us": -1'))
        numbadnn.clear_caches()
        with (
            numbadnn.using(plan_file=str(plans), plan_strict=True),
            pytest.raises(numbadnn.PlanMissError, match="cannot be followed .cannot be built any more"),
        ):
            numbadnn.softmax(X)


def test_what_was_recorded_under_a_weaker_level_is_not_replayed(plans: Path) -> None:
    """The record is what was seen: an implementation that now promises more does not make it true."""
    with planted(tiled()), numbadnn.using(plan_file=str(plans), exclude="cpu.loops"):
        numbadnn.softmax(X)
        assert entries(plans)[0]["determinism"] == "run_to_run"
    weak = plans.read_text().replace('"determinism": "run_to_run"', '"determinism": "not_guaranteed"')
    plans.write_text(weak)
    with planted(tiled()):
        numbadnn.clear_caches()
        with numbadnn.using(plan_file=str(plans)):
            why = "it was recorded as not_guaranteed, the option determinism asks for run_to_run"
            with pytest.warns(RuntimeWarning, match=f"plan of softmax .* is not used: {why}"):
                numbadnn.softmax(X)
            assert last().impl == "cpu.loops" and last().decided_by == "rank"
            numbadnn.clear_caches()
            with (
                numbadnn.using(plan_strict=True),
                pytest.raises(numbadnn.PlanMissError, match=f"names cpu.tiled, but {why}, for softmax x="),
            ):
                numbadnn.softmax(X)
        plans.write_text(weak.replace("determinism=run_to_run", "determinism=not_guaranteed"))
        numbadnn.clear_caches()
        with numbadnn.using(plan_file=str(plans), plan_strict=True, determinism="not_guaranteed"):
            numbadnn.softmax(X)
            assert last().impl == "cpu.tiled"
    plans.write_text(weak.replace("not_guaranteed", "mostly"))
    with (
        numbadnn.using(plan_file=str(plans)),
        pytest.warns(RuntimeWarning, match="it is damaged"),
        pytest.warns(RuntimeWarning, match="is kept in"),
    ):
        numbadnn.clear_caches()
        numbadnn.softmax(X)


def test_an_algorithm_that_beat_the_default_level_is_replayed_and_not_against_the_users(plans: Path) -> None:
    """As without a plan file: a named algorithm runs under the default level, and is an error against one that was set."""
    x, w = np.ones((1, 2, 5, 5), "f"), np.ones((3, 2, 3, 3), "f")

    def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
        outputs[0][...] = 18.0

    atomic = Impl(
        "conv2d", "cpu", "cpu.atomic", lambda p, q: "",
        lambda p, q, c: Executable(run, determinism="not_guaranteed"), lambda p: 0.0, determinism="not_guaranteed",
    )  # fmt: skip
    with planted(atomic), pytest.MonkeyPatch.context() as patch:
        refuse_names = select.refusal

        def cpu_has_names(impl: Any, problem: Any, policy: Any, *more: Any, **others: Any) -> str:
            named = dataclasses.replace(policy, algo="auto") if impl.name == "cpu.atomic" else policy
            return refuse_names(impl, problem, named, *more, **others)

        patch.setattr(select, "refusal", cpu_has_names)
        with numbadnn.using(plan_file=str(plans)):
            numbadnn.conv2d(x, w, algo="fft")
            assert last().impl == "cpu.atomic" and "'fft' beats the default" in last().decided_by
            assert [e["determinism"] for e in entries(plans)] == ["not_guaranteed"]
            numbadnn.clear_caches()
            with numbadnn.using(plan_strict=True):
                numbadnn.conv2d(x, w, algo="fft")
                assert last().impl == "cpu.atomic" and last().decided_by == f"plan file {plans}"
            numbadnn.clear_caches()
            with (
                numbadnn.using(plan_strict=True, determinism="run_to_run"),
                pytest.raises(numbadnn.PlanMissError, match="recorded as not_guaranteed"),
            ):
                numbadnn.conv2d(x, w, algo="fft")


def test_a_fallback_is_said_again_when_it_is_replayed(plans: Path) -> None:
    """As without a plan file: recorded in last_call, warned of, and an error where the option says so."""
    x, w = np.ones((1, 2, 5, 5), "f"), np.ones((3, 2, 3, 3), "f")
    for options, algo, decided in (({}, "fft", "; algorithm 'fft' is not to be had"), ({"backend": "cudnn"}, None, "")):
        numbadnn.clear_caches()
        plans.unlink(missing_ok=True)
        for strict in (False, True):
            numbadnn.clear_caches()
            with numbadnn.using(plan_file=str(plans), plan_strict=strict, **options):
                said = pytest.warns(RuntimeWarning, match="runs on cpu.im2col instead") if algo else nullcontext()
                with said:  # arrays on the CPU have no other backend: that is recorded alone
                    numbadnn.conv2d(x, w, algo=algo)
                assert last().fallback and last().refusals and last().decided_by.endswith(decided)
        assert last().decided_by == f"plan file {plans}{decided}"
        with (
            numbadnn.using(plan_file=str(plans), fallback="error", **options),
            pytest.raises(numbadnn.NotSupportedError, match="fallback is 'error'"),
        ):
            numbadnn.conv2d(x, w, algo=algo)


@pytest.mark.parametrize("text", ["", "{}", '{"format": "numbadnn-plans-1", "plans": [{"problem": 3}]}'])
def test_a_damaged_file_is_reported_and_begun_anew(plans: Path, text: str) -> None:
    plans.write_text(text)
    with numbadnn.using(plan_file=str(plans)), pytest.warns(RuntimeWarning, match="is ignored"):
        numbadnn.softmax(X)
    assert [e["impl"] for e in entries(plans)] == ["cpu.loops"]


def test_engines_of_another_cudnn_are_not_followed() -> None:
    entry = {"impl": "cudnn.graph", "made_with": "cudnn=91900 numba=1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "versions", lambda device: "cudnn=92800 numba=1")
        assert plan_file.stale(entry, 0) == "it was made with cudnn=91900, here is cudnn=92800"
        assert plan_file.stale({**entry, "impl": "numba.direct"}, 0) == ""
        patch.setattr(machine, "versions", lambda device: "cudnn=91900 numba=2")
        assert plan_file.stale(entry, 0) == ""


def test_a_fresh_process_replays_the_same_bits(plans: Path) -> None:
    code = (
        "import hashlib, numpy as np, numbadnn\n"
        "rng = np.random.default_rng(0); f = 'float32'\n"
        "x, w = rng.standard_normal((2, 3, 9, 9)).astype(f), rng.standard_normal((4, 3, 3, 3)).astype(f)\n"
        "y = numbadnn.conv2d(x, w); z = numbadnn.softmax(y)\n"
        "print(hashlib.sha256(y.tobytes() + z.tobytes()).hexdigest(), numbadnn.last_call().decided_by)"
    )
    out = []
    for strict in ("false", "true"):
        env = {**os.environ, "NUMBADNN_PLAN_FILE": str(plans), "NUMBADNN_PLAN_STRICT": strict}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        out.append(done.stdout.split(None, 1))
    assert out[0][0] == out[1][0] and out[0][1] == "rank\n" and out[1][1].startswith("plan file")


def test_what_is_not_a_plan_file_is_left_as_it_is(tmp_path: Path) -> None:
    folder, foreign, link, target = (tmp_path / n for n in ("folder", "foreign.json", "link", "target"))
    folder.mkdir()
    foreign.write_text('{"name": "another program"}')
    link.symlink_to(target)
    for place, left in ((folder, folder.is_dir), (foreign, lambda: "another" in foreign.read_text())):
        with numbadnn.using(plan_file=str(place)), pytest.warns(RuntimeWarning, match="is ignored"):
            numbadnn.clear_caches()
            numbadnn.softmax(X)
        assert left()
    with numbadnn.using(plan_file=str(link)):
        numbadnn.softmax(X)
    assert link.is_symlink() and len(entries(target)) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "foreign.json", "link", "target"]


def test_each_damaged_file_is_kept(plans: Path) -> None:
    for text in ("", "{}"):
        plans.write_text(text)
        with numbadnn.using(plan_file=str(plans)), pytest.warns(RuntimeWarning):
            numbadnn.clear_caches()
            numbadnn.softmax(X)
    kept = [plans.with_name(plans.name + end).read_text() for end in (".damaged", ".damaged.1")]
    assert kept == ["", "{}"]


def test_the_plans_of_a_file_with_one_damaged_entry_are_kept(plans: Path) -> None:
    with numbadnn.using(plan_file=str(plans)):
        numbadnn.softmax(X)
        damaged = plans.read_text().replace('"gpu_to_gpu"', '"for ever"')
        plans.write_text(damaged)
        numbadnn.clear_caches()
        with pytest.warns(RuntimeWarning, match="it is damaged"), pytest.warns(RuntimeWarning, match="is kept in"):
            numbadnn.softmax(X[:1])
    assert plans.with_name(plans.name + ".damaged").read_text() == damaged
    assert len(entries(plans)) == 1


RESULTS = ROOT / "bench" / "results"


def test_the_committed_plan_of_resnet50_parses_and_knows_every_layer() -> None:
    from numbadnn.cases import networks, parse
    from numbadnn.registry import implementations

    plan, hashes = (RESULTS / f"resnet50_nvidia_h200.{kind}.json" for kind in ("plan", "sha256"))
    plan_file.forget()
    known = plan_file._entries(plan)  # a warning, which is an error here, says what is damaged
    wanted = {case.text for case in networks.cases("resnet50")}
    assert {problem for _, problem, _, _ in known} == wanted
    for entry in known.values():
        names = {impl.name for impl in implementations(parse(entry["problem"]).op)}
        assert entry["impl"] in names and entry["on"] == "gpu" and entry["scope"] == "auto"
        assert entry["determinism"] in ("run_to_run", "batch_invariant", "gpu_to_gpu")
    recorded = json.loads(hashes.read_text())["sha256"]
    assert len(recorded) == len(known) and all(len(bits) == 64 for bits in recorded.values())


@pytest.mark.gpu
@pytest.mark.slow
def test_the_committed_plan_of_resnet50_is_replayed_bit_for_bit() -> None:
    """Where it was made: engines are cuDNN's of one version, bits those of one kind of GPU and of kernels that did not change."""
    from numbadnn.kernels.build.cache import source_hash

    pytest.importorskip("torch")
    made = json.loads((RESULTS / "resnet50_nvidia_h200.sha256.json").read_text())
    here = {"device": machine.device_name(0), "versions": machine.versions(0), "kernels": source_hash()}
    if other := {name: value for name, value in here.items() if made.get(name) != value}:
        pytest.skip(f"it was made with others than {other}: python bench/resnet50_plan.py makes it again")
    script = RESULTS.parent / "resnet50_plan.py"
    path = os.pathsep.join([str(RESULTS.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, script, "replay"], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
