"""validate finds what is wrong: wrong results, NaN left, bits that change, memory that must not be touched, errors."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numbadnn import cases, registry
from numbadnn.gpu import devices
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl
from numbadnn.validate import photographs, report, run, simulator
from numbadnn.validate.check import Row, Subject, check
from numbadnn.validate.documents.files import Files, check_writable
from numbadnn.validate.execute import execute
from numbadnn.validate.faults import planted
from numbadnn.validate.oracle import Trial, expected

CONV = "conv2d x=float32:2x3x6x6 w=float32:4x3x3x3 pad=1,1,1,1"
SOFTMAX = "softmax x=float32:3x17"

Spoil = Callable[[Any, tuple[np.ndarray, ...], np.ndarray], None]


def honest(problem: Any, inputs: tuple[np.ndarray, ...], output: np.ndarray) -> None:
    old = output.copy() if getattr(problem, "beta", 0) else None
    output[...] = expected(problem, inputs, old)[0]


def implementation(spoil: Spoil | None = None, problem_line: str = CONV, determinism: str = "run_to_run") -> Impl:
    """An implementation that computes the reference, and then does something wrong."""

    def plan(problem: Any, policy: Policy, config: Any) -> Executable:
        def go(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
            honest(problem, inputs, outputs[0])
            if spoil:
                spoil(problem, inputs, outputs[0])

        return Executable(go, determinism=determinism)

    op = problem_line.split()[0]
    return Impl(op, "cpu", "cpu.fake", lambda p, q: "", plan, lambda p: 1.0, determinism=determinism)


def judged(spoil: Spoil | None = None, line: str = CONV, determinism: str = "run_to_run") -> Row:
    subject = Subject("a case", cases.parse(line))
    return check(implementation(spoil, line, determinism), subject, Policy(), timed=False)


@pytest.mark.parametrize("line", (CONV, CONV + " beta=0.5 alpha=2", SOFTMAX, CONV.replace("float32", "bfloat16")))
def test_what_is_right_passes(line: str) -> None:
    row = judged(None, line)
    assert (row.status, row.reason) == ("ok", "")
    assert row.worst is not None and row.worst < 1 and row.same_bits
    assert row.exact is (True if line.startswith("conv") else None)


def test_how_often_each_was_run_is_said() -> None:
    rows = [judged(), judged(None, SOFTMAX), Row("a", "i", "p", "refused", "takes no Tuesdays")]
    assert {row.runs for row in rows} == {3, 0}
    assert "  3 runs, same bits: 2 results\n" in report.summary(rows, 1.0) + "\n"
    rows[1].same_bits = False
    assert "  3 runs, same bits: 1 results; other bits: 1\n" in report.summary(rows, 1.0)


def test_networks_of_several_layers_are_validated() -> None:
    problems = [case.problem() for case in cases.find(["validate"]) if case.op.startswith("rnn_")]
    for op in ("rnn_forward", "rnn_backward"):
        networks = [p.network for p in problems if p.op == op]
        assert {1, 2, 3, 4} <= {n.num_layers for n in networks}
        assert {n.rnn_mode for n in networks if n.num_layers > 1} >= {"lstm", "gru", "rnn_tanh"}
        assert any(n.num_layers == 3 and n.directions == 2 for n in networks)


@pytest.mark.parametrize("line", (CONV, SOFTMAX))
def test_one_element_beyond_the_bound_is_a_mismatch(line: str) -> None:
    problem = cases.parse(line)
    trial = Trial.of(problem)
    flat_index = trial.value.size // 2
    at = tuple(int(i) for i in np.unravel_index(flat_index, trial.value.shape))
    step = 2 * trial.bounds("ieee")[0].total(trial.value)[at]

    def one_off(problem: Any, inputs: Any, output: np.ndarray) -> None:
        output[at] += np.float32(step)

    row = judged(one_off, line)
    assert row.status == "mismatch" and row.where == at
    assert row.worst == pytest.approx(2, rel=0.2)
    assert report.exit_status([row]) == report.MISMATCH


def test_a_nan_left_in_the_output_is_a_mismatch() -> None:
    def skip_one(problem: Any, inputs: Any, output: np.ndarray) -> None:
        output[1, 2, 3, 4] = np.nan

    row = judged(skip_one)
    assert row.status == "mismatch" and row.where == (1, 2, 3, 4) and "got nan" in row.reason


def test_an_error_within_the_bound_still_fails_on_integers() -> None:
    def slightly(problem: Any, inputs: Any, output: np.ndarray) -> None:
        output[...] = np.nextafter(output, np.float32(np.inf))

    row = judged(slightly)
    assert row.status == "mismatch" and row.exact is False
    assert row.worst is not None and row.worst < 1, "meant to be seen on integers alone"
    assert "small integers" in row.reason


def test_bits_that_change_from_run_to_run_are_a_mismatch_unless_declared() -> None:
    counter = iter(range(1000))

    def drift(problem: Any, inputs: Any, output: np.ndarray) -> None:
        for _ in range(next(counter) % 2):
            output[0, 0, 0, 0] = np.nextafter(output[0, 0, 0, 0], np.float32(9))

    row = judged(drift, "conv2d x=float32:2x3x6x6 w=float32:4x3x3x3 alpha=0.3")
    assert row.status == "mismatch" and row.same_bits is False and "gave different bits" in row.reason
    outcome = execute(implementation(drift, CONV), cases.parse(CONV), Policy(), Trial.of(cases.parse(CONV)).inputs)
    assert not outcome.same_bits


def test_a_changed_input_and_a_write_beside_the_output_are_mismatches() -> None:
    def change_input(problem: Any, inputs: Any, output: np.ndarray) -> None:
        inputs[1][0, 0, 0, 0] += 1

    def write_beside(problem: Any, inputs: Any, output: np.ndarray) -> None:
        np.lib.stride_tricks.as_strided(output, (output.size + 1,), (4,))[-1] = 0

    row = judged(change_input)
    assert row.status == "mismatch" and "input 2" in row.reason
    row = judged(write_beside)
    assert row.status == "mismatch" and "memory around output 1 was written" in row.reason


def test_reading_a_gap_between_rows_gives_nan() -> None:
    line = "conv2d x=float32:1x1x4x4:48,48,6,1 w=float32:1x1x1x1"

    def from_gaps(problem: Any, inputs: Any, output: np.ndarray) -> None:
        output[0, 0] = np.lib.stride_tricks.as_strided(inputs[0], (4, 4), (20, 4)) * inputs[1].item()

    assert judged(from_gaps, line).worst == np.inf


def test_reading_the_output_when_beta_is_zero_gives_nan() -> None:
    def accumulate(problem: Any, inputs: Any, output: np.ndarray) -> None:
        output[...] += before[0] * 0

    before: list[np.ndarray] = []
    original = honest

    def plan(problem: Any, policy: Policy, config: Any) -> Executable:
        def go(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
            before[:] = [outputs[0].copy()]
            original(problem, inputs, outputs[0])
            accumulate(problem, inputs, outputs[0])

        return Executable(go)

    impl = Impl("conv2d", "cpu", "cpu.fake", lambda p, q: "", plan, lambda p: 1.0)
    row = check(impl, Subject("a case", cases.parse(CONV)), Policy(), timed=False)
    assert row.status == "mismatch" and row.worst == np.inf


def test_an_exception_is_an_error_row_and_status_1() -> None:
    def burst(problem: Any, inputs: Any, output: np.ndarray) -> None:
        raise ZeroDivisionError("in the kernel")

    row = judged(burst)
    assert row.status == "error" and row.reason == "ZeroDivisionError: in the kernel"
    assert report.exit_status([row, Row("b", "i", "p", "ok")]) == 1


def test_a_refusal_is_counted_with_its_reason() -> None:
    impl = Impl("conv2d", "cpu", "cpu.fake", lambda p, q: "takes no Tuesdays", lambda *a: 1 / 0, lambda p: 1.0)  # type: ignore[arg-type,return-value]
    row = check(impl, Subject("a case", cases.parse(CONV)), Policy())
    assert (row.status, row.reason) == ("refused", "takes no Tuesdays")
    assert "1 refused" in report.summary([row], 1.0) and "takes no Tuesdays" in report.summary([row], 1.0)


@pytest.mark.parametrize(
    ("statuses", "code"),
    (
        (("ok", "refused"), 0),
        (("ok", "mismatch"), 1),
        (("ok", "error"), 1),
        (("refused", "skipped"), 3),
        ((), 3),
        (("skipped", "mismatch"), 1),
        (("ok", "not run"), 4),
        (("refused", "not run"), 4),
        (("mismatch", "not run"), 1),
    ),
)
def test_exit_status(statuses: tuple[str, ...], code: int) -> None:
    assert report.exit_status([Row("c", "i", "p", status) for status in statuses]) == code


# ---- the whole command ------------------------------------------------------------------------------------------------

needs_cpu_only = pytest.mark.skipif(bool(devices.gpus()), reason="with a GPU its implementations run too")


@pytest.fixture
def wrong_softmax() -> Iterator[None]:
    """One more implementation of softmax on the CPU, off by a thousandth."""

    def spoil(problem: Any, inputs: Any, output: np.ndarray) -> None:
        output *= 1.001

    registry.implementations("softmax")
    impl = registry.register(implementation(spoil, SOFTMAX))
    yield
    registry._IMPLS["softmax"].remove(impl)


def test_validate_gives_0_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    assert run.validate([SOFTMAX], backend="cpu", files=Files(json=str(file))) == 0
    out = capsys.readouterr().out
    assert "cpu.loops" in out and "1 agree" in out
    document = json.loads(file.read_text())
    (row,) = document["rows"]
    assert row["status"] == "ok" and row["worst"] < 1 and row["time_us"] > 0 and row["speed_unit"] == "GB/s"
    assert document["exit_status"] == 0 and "numpy" in document["environment"]["versions"]


def test_a_report_is_json_whatever_was_found(tmp_path: Path) -> None:
    """JSON has no word for infinity, which is how far from the truth a NaN is."""

    def spoil(problem: Any, inputs: Any, output: np.ndarray) -> None:
        output[...] = np.nan

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    file = tmp_path / "out.json"
    with planted(implementation(spoil, SOFTMAX)):
        assert run.validate([SOFTMAX], backend="cpu", files=Files(json=str(file))) == 1
    rows = json.loads(file.read_text(), parse_constant=refuse)["rows"]
    assert [row["worst"] for row in rows if row["status"] == "mismatch"] == [None]


def test_validate_gives_1_for_a_wrong_implementation(wrong_softmax: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.validate([SOFTMAX], backend="cpu") == 1
    out = capsys.readouterr().out
    assert "1 agree, 1 DISAGREE" in out and "cpu.fake" in out and SOFTMAX in out


@needs_cpu_only
@pytest.mark.parametrize("backend", ("cudnn", "numba"))
def test_validate_gives_3_where_the_backend_cannot_run(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.validate([SOFTMAX], backend=backend) == 3
    assert f"backend {backend} cannot be used here" in capsys.readouterr().out


def test_a_budget_that_is_spent_skips_and_never_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.validate([SOFTMAX, CONV], backend="cpu", budget=1e-9) == 4
    assert "the budget of 1e-09 s was spent" in capsys.readouterr().out


@needs_cpu_only
def test_what_the_time_left_out_is_said_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def slow() -> list[Row]:
        time.sleep(0.05)
        return [Row("slow", "i", "p", "ok")]

    monkeypatch.setattr(run, "jobs", lambda names, backend: [run.Job("slow", slow), run.Job("late", list)])
    monkeypatch.setattr(run, "simulator_jobs", lambda names, backend, stack: [])
    assert run.validate(["softmax"], budget=0.04) == 4
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        "incomplete: 1 of 2 cases not run, as the budget of 0.04 s was spent; to go on, give --budget "
    )
    file = tmp_path / "sample.json"
    assert run.validate([], sample=0.04, files=Files(json=str(file))) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "a sample of 1 of 2 cases; --all runs every case"
    found = json.loads(file.read_text())
    assert found["asked"] == {"cases": 2, "done": 1, "sample": True} and [row["case"] for row in found["rows"]] == [
        "slow"
    ]


@needs_cpu_only
def test_a_sample_is_taken_where_nothing_is_asked_for() -> None:
    assert run.seconds_of_sample([], None, every=False) == run.SECONDS_WITHOUT_GPU
    assert {run.seconds_of_sample(["softmax"], None, False), run.seconds_of_sample([], 9.0, False)} == {None}
    assert run.seconds_of_sample([], None, every=True) is None


def test_the_simulator_runs_beside_the_cases() -> None:
    here, there = threading.Event(), threading.Event()

    def meet(mine: threading.Event, other: threading.Event) -> list[Row]:
        mine.set()
        return [Row("c", "i", "p", "ok" if other.wait(20) else "error")]

    rows = run.run_jobs([run.Job("a", lambda: meet(here, there))], None, 0.0, [run.Job("b", lambda: meet(there, here))])
    assert [row.status for row in rows] == ["ok", "ok"]


def test_as_many_processes_as_have_a_core_and_memory_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "cores", lambda: 16)
    monkeypatch.setattr(run, "CONTAINER_BYTES", tmp_path / "memory.max")
    monkeypatch.setattr(run.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 128 << 18}.get, raising=False)
    for gpus, fit in (((), 1), (({"memory_bytes": 140 << 30},), 16), (({"memory_bytes": 9 << 30},), 2)):
        monkeypatch.setattr(devices, "gpus", lambda gpus=gpus: gpus)
        assert run.fitting() == fit
    monkeypatch.setattr(run.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 4 << 18}.get, raising=False)
    assert run.fitting() == 1
    monkeypatch.setattr(run.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 128 << 18}.get, raising=False)
    monkeypatch.setattr(devices, "gpus", lambda: ({"memory_bytes": 140 << 30},))
    for said, fit in (("max", 16), (str(20 << 30), 3)):
        run.CONTAINER_BYTES.write_text(said + "\n")
        assert run.fitting() == fit


def test_processes_beside_each_other_say_the_same() -> None:
    jobs = [job for job in run.jobs(["softmax/attention/*", "pool/c3d/*"], "cpu")]
    alone, beside = run.run_jobs(jobs, None, 0.0), run.in_processes(jobs, None, 0.0, 2)
    assert [(r.case, r.impl, r.status, r.worst) for r in alone] == [(r.case, r.impl, r.status, r.worst) for r in beside]
    assert len(alone) >= 4 and all(row.status == "ok" for row in alone)


def test_a_case_that_ends_its_process_has_a_row_and_those_too_late_have_one() -> None:
    jobs = [run.Job("fatal", partial(os._exit, 3)), run.Job("well", partial(run._skipped, ["well"], "all", "because"))]
    fatal, well = run.in_processes(jobs, None, 0.0, 1)
    assert (fatal.case, fatal.status) == ("fatal", "error") and "ended with status 3, at fatal" in fatal.reason
    assert (well.status, well.reason) == ("skipped", "because")
    late = run.in_processes(jobs, 1.0, time.perf_counter() - 2, 1)
    assert [row.status for row in late] == [report.NOT_RUN] * 2


def test_a_report_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "none" / "x.json"):
        with pytest.raises(OSError, match="--json"):
            run.validate([SOFTMAX], backend="cpu", files=Files(json=str(file)))
    old = tmp_path / "old.json"
    old.write_text("kept")
    check_writable(str(old))
    check_writable(str(tmp_path / "new.json"))
    assert [f.name for f in tmp_path.iterdir()] == ["old.json"] and old.read_text() == "kept"


@pytest.mark.parametrize(("kind", "status"), [(ValueError, "error"), (MemoryError, "skipped")])
def test_a_case_that_cannot_be_set_up_has_a_row(kind: type[Exception], status: str) -> None:
    def job() -> list[Row]:
        raise kind("too large")

    (row,) = run.run_jobs([run.Job("huge", job)], None, 0.0)
    assert row.status == status and "too large" in row.reason


def test_plain_table_lines_up() -> None:
    rows = [
        Row("a", "impl", "p", "ok", worst=0.5, where=(1, 2), ulp=3, exact=True, same_bits=True),
        Row("b", "i", "p", "mismatch"),
    ]
    header, first, second = report.plain_table(rows).splitlines()
    assert header.index("result") == first.index("ok") == second.index("mismatch")
    assert "0.500" in first and "1,2" in first


def test_a_narrow_terminal_keeps_what_a_row_is_about() -> None:
    rows = [Row("c" * 30, "cpu.loops", "", "ok", "", 0.5, (1, 2), 3, True, True, speed=2.0, speed_unit="GB/s")]
    everything = report.fitting_columns(rows, 200)
    assert [report.HEADER[i] for i in everything] == list(report.HEADER)
    assert [report.HEADER[i] for i in report.fitting_columns(rows, 80)][:4] == list(report.HEADER[:4])
    assert [report.HEADER[i] for i in report.fitting_columns(rows, 10)] == list(report.HEADER[:3])
    for width in range(65, 130):
        widths = [
            max(len(report.HEADER[i]), len(report.cells(rows[0])[i])) for i in report.fitting_columns(rows, width)
        ]
        assert len(widths) == 4 or sum(widths) + 2 * (len(widths) - 1) <= width


@pytest.mark.gpu
def test_a_wrong_result_on_a_gpu_is_seen() -> None:
    """The executor's own copies: a kernel that writes nothing leaves the NaN it started from."""
    impl = Impl(
        "softmax", "numba", "numba.fake", lambda p, q: "", lambda *a: Executable(lambda *b: None), lambda p: 1.0
    )
    row = check(impl, Subject("a case", cases.parse(SOFTMAX)), Policy(device=0), timed=False)
    assert row.status == "mismatch" and row.worst == np.inf


# ---- photographs and the simulator ------------------------------------------------------------------------------------

needs_photographs = pytest.mark.skipif(bool(photographs.missing()), reason=photographs.missing())


def test_missing_photographs_are_skipped_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photographs, "missing", lambda: "no pictures today")
    (job,) = run._photograph_jobs(["photographs/blur/float32"], None, 16)
    (row,) = job.run()
    assert (row.status, row.reason) == ("skipped", "no pictures today")


@needs_photographs
def test_photographs_are_two_real_pictures() -> None:
    images = photographs.photographs(32)
    assert images.shape == (2, 3, 32, 32) and (images == np.round(images)).all()
    assert images.min() >= 0 and images.max() <= 255 and (images.std(axis=(2, 3)) > 20).all()
    assert photographs.blur().sum() == pytest.approx(3)
    assert np.abs(photographs.edges().sum(axis=(1, 2, 3))).max() == 0  # edges of nothing are nothing


@needs_photographs
@pytest.mark.parametrize("name", photographs.names())
def test_photographs_on_the_cpu(name: str) -> None:
    (subject,) = photographs.subjects([name], 24)
    assert subject.problem.op == photographs.operation(name)
    rows = list(run.check_all(subject, "cpu"))
    assert rows and all(row.status == "ok" for row in rows), rows[0].reason
    assert (rows[0].exact is True) == (name.startswith("photographs/edges/float32"))


needs_simulator = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda, which has the simulator, is not installed"
)


def test_named_cases_that_are_simulated_are_small() -> None:
    small = [case for case in cases.all_cases().values() if simulator.is_small(case)]
    assert len({case.op for case in small}) == len(registry.FAMILY)
    assert all(case.problem().output.size < 5000 for case in small)


CHOSEN = """
from numbadnn.registry import implementations
from numbadnn.validate import simulator
for op, name in simulator.kernels():
    (impl,) = (i for i in implementations(op) if i.name == name)
    cases, reason = simulator.chosen(impl)
    print(op, name, max((simulator.work(c.problem()) for c in cases), default=0), reason, sep="|")
"""


@needs_simulator
def test_every_kernel_is_simulated_on_a_tiny_case_or_says_that_it_cannot_be() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHOSEN], env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    rows = [line.split("|") for line in done.stdout.splitlines()]
    assert {(op, name) for op, name, *_ in rows} == set(simulator.kernels())
    without = [row for row in rows if row[2] == "0"]
    # kernels of large tiles take no tiny case; simulated_unshared.py and simulated_line.py run them with small tiles
    others = [row for row in without if not row[1].startswith(("numba.unshared_", "numba.line_"))]
    assert all("the simulator has not" in row[3] for row in others), others
    assert {"numba.unshared", "numba.line"} <= {name for _, name, work, _ in rows if work != "0"}
    assert max(int(work) for _, _, work, _ in rows) < 100_000


@needs_simulator
def test_simulator_runs_the_kernels_in_a_process_of_its_own() -> None:
    simulated = simulator.Simulator()
    try:
        found = {row.impl: row for row in simulated.check("conv2d/one-pixel/float32")}
        row = found["numba.direct (simulator)"]
        assert row.status == "ok" and row.exact, row.reason
        assert all(r.status in ("ok", "refused") for r in found.values())
        rows = simulated.check("softmax/one-column/accurate-channel/float32")
        assert any(r.status == "ok" for r in rows) and all(r.status in ("ok", "refused") for r in rows)
        both = simulated.check("softmax numba.softmax_strided")
        assert [r.status for r in both] == ["ok", "ok"] and len({r.problem.split()[1].split(":")[0] for r in both}) == 2
        simulated._process.kill()
        simulated._process.wait()
        assert [r.status for r in simulated.check("conv2d/one-pixel/float32")] == ["error"]
    finally:
        simulated.close()


def test_keywords_reach_the_public_function() -> None:
    import numbadnn

    problem = cases.parse(CONV + " beta=0.5")
    inputs, old = cases.make_arrays(problem)
    assert old is not None
    numbadnn.conv2d(*inputs, **problem.keywords, out=old.copy())
    assert numbadnn.last_call().problem == str(problem)  # type: ignore[union-attr]


def test_a_budget_reaches_every_group_of_cases() -> None:
    from numbadnn.validate.run import Job, interleaved

    names = ["a/1", "a/2", "a/3", "b/1", "c/1", "c/2"]
    order = [job.name for job in interleaved([Job(name, list) for name in names])]
    assert order == ["a/1", "b/1", "c/1", "a/2", "c/2", "a/3"]


def test_the_longest_jobs_are_begun_first_where_no_budget_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end one process was alone with a network of minutes; the rows keep the order of the jobs."""
    begun: list[str] = []

    def each(tasks: Any, *rest: Any) -> Iterator[Any]:
        for task in tasks:
            begun.append(task[1].name)
            yield task, [Row(task[1].name, "all", "", "ok")]

    monkeypatch.setattr(run.workers, "each", each)
    todo = [job for job in run.jobs(["rnn_forward", "softmax"], "cpu") if "/float32" in job.name]
    rows = run.in_processes(todo, None, 0.0, 2)
    assert [row.case for row in rows] == [job.name for job in todo] and len(set(begun)) == len(todo) > 9
    long = {job.name: job.seconds for job in todo}
    assert [long[name] for name in begun] == sorted(long.values(), reverse=True)
    begun.clear()
    run.in_processes(todo, 1e9, time.perf_counter(), 2)
    assert begun == [job.name for job in todo]
