"""Determinism measured: what changes bits is seen, what is found wanting is obeyed, two reports can be held together."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import __main__ as command
from numbadnn.cases import all_cases, parse
from numbadnn.kept import errata, machine
from numbadnn.measuring.data import make_arrays
from numbadnn.problem import Policy
from numbadnn.registry import DETERMINISM, FAMILY, Executable, Impl, implementations
from numbadnn.validate.determinism import batches, levels
from numbadnn.validate.determinism import report as determinism_report
from numbadnn.validate.determinism import rows as determinism_rows
from numbadnn.validate.faults import planted

LINE = "softmax x=float32:6x10 y=float32:6x10 algo=accurate mode=channel"
CASE = "softmax/rows/accurate-channel/float32"
FREE = Policy(determinism="not_guaranteed")
X = np.random.default_rng(0).standard_normal((6, 10)).astype("float32")


def softmax_with(
    change: Callable[[np.ndarray], float], declared: str = "gpu_to_gpu", name: str = "cpu.planted"
) -> Impl:
    """softmax whose results are off by ``change(x)``."""

    def plan(problem: Any, policy: Policy, config: Any) -> Executable:
        def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
            e = np.exp(inputs[0] - inputs[0].max(1, keepdims=True))
            outputs[0][...] = e / e.sum(1, keepdims=True) + np.float32(change(inputs[0]))

        return Executable(run, determinism=declared)

    return Impl("softmax", "cpu", name, lambda p, q: "", plan, lambda p: 1e9, determinism=declared)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    numbadnn.clear_caches()
    with numbadnn.using(cache_dir=str(tmp_path)):
        yield tmp_path
    numbadnn.clear_caches()


def changes(which: str) -> Callable[[np.ndarray], float]:
    count = itertools.count()
    return {
        "nothing": lambda x: 0.0,
        "again": lambda x: 1e-6 * next(count),
        "addresses": lambda x: 1e-6 * (x.ctypes.data % 64),
        "batch": lambda x: 1e-6 * len(x),
        "neighbours": lambda x: 1e-3 * abs(float(x[-1].sum())),
        "threads": lambda x: 1e-6 * __import__("numba").get_num_threads(),
        "noise": lambda x: 1e-6 * __import__("threading").active_count(),
    }[which]


@pytest.mark.parametrize(
    ("which", "level"),
    [
        ("nothing", "batch_invariant"),
        ("again", "not_guaranteed"),
        ("addresses", "not_guaranteed"),
        ("batch", "run_to_run"),
        ("neighbours", "run_to_run"),
        ("threads", "not_guaranteed"),
        ("noise", "not_guaranteed"),
    ],
)
def test_what_changes_bits_is_seen_by_its_trial(which: str, level: str) -> None:
    import numba

    if which == "threads" and numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("one thread is all there is")
    found = levels.examine(softmax_with(changes(which)), parse(LINE), FREE)
    assert found.level == level
    seen = {trial for trial, what in found.trials.items() if what == levels.DIFFERENT}
    if which == "nothing":
        assert not seen and set(found.trials) == {"again", "planned anew", "addresses", "noise", "threads", "batch"}
    elif which != "again":
        # images that begin elsewhere in memory lie at other addresses too
        assert seen == {"neighbours": {"batch"}, "addresses": {"addresses", "batch"}}.get(which, {which})


def test_moved_operands_keep_their_values_strides_and_alignment() -> None:
    from numbadnn.measuring.data import buffer, untouched

    b = buffer(parse("softmax x=float32:3x4:8,2").inputs[0], 1.5)
    for shift in levels.SHIFTS:
        m = levels.moved(b, shift)
        assert (m.array == 1.5).all() and m.array.strides == b.array.strides and untouched(m)
        assert m.memory.ctypes.data % 64 == shift % 64 and m.array.ctypes.data % 16 == b.array.ctypes.data % 16


@pytest.mark.parametrize("op", FAMILY)
def test_the_images_of_a_batch_are_a_problem_of_their_own(op: str) -> None:
    cases = [c for c in all_cases().values() if c.op == op and "contract" in c.tags and batches.splits(c.problem())]
    if op not in batches.BATCHED:
        assert not cases and (op in batches.WHOLE or op in batches.UNSPLIT)
        return
    assert cases, "no case of this operation has a batch that can be split"
    problem = cases[0].problem()
    inputs, _ = make_arrays(problem)
    for low, high in batches.splits(problem):
        some = batches.part(problem, inputs, low, high)
        assert some.problem.op == op and some.problem.output.shape == (high - low, *problem.output.shape[1:])
        assert all(np.shares_memory(a, b) for a, b in zip(some.inputs, inputs, strict=True))
    others = batches.other_neighbours(problem, inputs)
    first, second = inputs[0], others[0]
    assert np.array_equal(first[:1], second[:1]) and not np.array_equal(first[1:], second[1:])


@pytest.mark.parametrize("line", [
    "conv2d x=float32:3x4x9x8 w=float32:6x4x3x3 y=float32:3x6x7x6", "conv2d_grad_wrt_inputs x=float32:3x4x9x8 w=float32:6x4x3x3",
    LINE,
])  # fmt: skip
def test_the_cpu_kernels_reach_what_they_declare(line: str) -> None:
    problem = parse(line)
    for impl in implementations(problem.op):
        if impl.backend == "cpu":
            declared = min(DETERMINISM.index(impl.determinism), DETERMINISM.index("batch_invariant"))
            assert DETERMINISM.index(levels.examine(impl, problem, FREE).level) >= declared


def test_what_is_found_wanting_goes_into_the_errata_and_the_dispatcher_obeys(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = folder / "report.json"
    with planted(softmax_with(changes("batch")), softmax_with(changes("nothing"), name="cpu.good")):
        with numbadnn.using(only="cpu.planted"):
            numbadnn.softmax(X)  # it declares gpu_to_gpu and is believed
        with numbadnn.using(exclude="cpu.loops"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(determinism_report, "PROCESSES", 0)  # a fresh process knows nothing of what is planted here
            assert command.main(["validate", "--determinism", CASE, "--backend", "cpu", "--json", str(report)]) == 1
        out = capsys.readouterr().out
        line = next(text for text in out.splitlines() if "cpu.planted" in text)
        assert line.split() == [
            "softmax",
            "float32",
            "cpu.planted",
            "gpu_to_gpu",
            "run_to_run",
            "1",
            "wanting",
        ]
        found = out.splitlines()[out.splitlines().index(line) + 1]
        assert "4 of 4 repeats identical" in found and found.endswith("as a part of another batch: other bits")
        numbadnn.clear_caches()
        for level, refused in (("run_to_run", False), ("batch_invariant", True)):
            with numbadnn.using(determinism=level):
                found = {c.impl: c for c in numbadnn.explain(numbadnn.softmax, X).candidates}
                assert ("measured run_to_run, the option" in found["cpu.planted"].reason) == refused
                assert found["cpu.good"].state != "refused" and found["cpu.good"].measured == "batch_invariant"
        with (
            numbadnn.using(determinism="batch_invariant", only="cpu.planted"),
            pytest.raises(numbadnn.NotSupportedError, match="other bits: batch on softmax x="),
        ):
            numbadnn.softmax(X)
        with numbadnn.using(errata_file=str(folder / "none.json"), determinism="batch_invariant", only="cpu.planted"):
            numbadnn.softmax(X)  # another file, another knowledge
    document = json.loads((folder / "errata" / machine.file_name(-1)).read_text())
    (entry,) = document["entries"]
    assert entry["level"] == "run_to_run" and document["levels"]["cpu.good softmax float32"] == "batch_invariant"
    assert {row["impl"]: row["verdict"] for row in json.loads(report.read_text())["rows"]} == {
        "cpu.loops": "ok", "cpu.planted": "wanting", "cpu.good": "ok"
    }  # fmt: skip


def test_measuring_again_replaces_what_was_known(folder: Path) -> None:
    options = numbadnn.config.current()
    entry = {"impl": "a", "op": "softmax", "dtype": "float32", "level": "wrong", "evidence": "e"}
    errata.store(options, -1, [entry, {**entry, "impl": "b"}], {"a softmax float32": "run_to_run"})
    errata.store(options, -1, [], {"a softmax float32": "batch_invariant"})
    document = json.loads((folder / "errata" / machine.file_name(-1)).read_text())
    assert [e["impl"] for e in document["entries"]] == ["b"]
    assert document["levels"] == {"a softmax float32": "batch_invariant"}


def test_one_engine_of_cudnn_can_be_left_out(folder: Path) -> None:
    problem, options = parse("conv2d x=float16:1x8x4x4 w=float16:8x8x3x3"), numbadnn.config.current()
    entry = {
        "impl": "cudnn.graph",
        "op": "conv2d",
        "dtype": "float16",
        "engine": 7,
        "level": "not_guaranteed",
        "evidence": "e",
    }
    errata.store(options, 0, [entry], {})
    assert errata.against_engine(problem, Policy(0), 7).startswith("measured not_guaranteed, the option determinism")
    assert (
        errata.against_engine(problem, Policy(0, "not_guaranteed"), 7)
        == ""
        == errata.against_engine(problem, Policy(0), 8)
    )
    assert errata.against("cudnn.graph", problem, Policy(0), options) == ""
    errata.store(options, 0, [{**entry, "engine": 8, "level": "wrong"}], {})
    assert "measured to be wrong" in errata.against_engine(problem, Policy(0, "not_guaranteed"), 8)


def test_a_damaged_errata_file_is_reported_and_ignored(folder: Path) -> None:
    file = folder / "mine.json"
    file.write_text('{"format": "numbadnn-errata-1", "entries": [{"impl": "cpu.loops"}]}')
    with numbadnn.using(errata_file=str(file)), pytest.warns(RuntimeWarning, match="an entry lacks"):
        numbadnn.softmax(X)


def test_what_was_measured_is_not_added_to_a_damaged_errata_file(folder: Path) -> None:
    file = folder / "mine.json"
    entry = {"impl": "cpu.loops", "op": "softmax", "dtype": "float32", "level": "wrong", "evidence": "seen"}
    for damaged in ('"entries": ["none"]', '"entries": 3', '"levels": [1]'):
        file.write_text(f'{{"format": "numbadnn-errata-1", {damaged}}}')
        with numbadnn.using(errata_file=str(file)) as options, pytest.warns(RuntimeWarning, match="is kept in"):
            errata.forget()
            errata.store(options, -1, [entry], {})
            errata.forget()
            problem = parse("softmax x=float32:2x3")
            assert "measured to be wrong" in errata.against("cpu.loops", problem, Policy(), options)


def test_fresh_processes_give_the_same_bits_and_one_that_dies_is_said(folder: Path) -> None:
    rows: list[determinism_rows.Row] = []
    assert determinism_report.examine([all_cases()[CASE]], -1, "cpu", None, rows) == 1
    assert [row.trials["process"] for row in rows] == ["same"] and rows[0].reached == "batch_invariant"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(determinism_report.sys, "executable", "/bin/false")
        rows = []
        determinism_report.examine([all_cases()[CASE]], -1, "cpu", None, rows)
    assert rows[0].verdict == "failed" and "a fresh process ended here" in rows[0].reason


def row(declared: str, op: str = "softmax", **trials: str) -> determinism_rows.Row:
    return determinism_rows.Row(
        "case", f"{op} x=..", "cpu.loops", None, "float32", declared, "run_to_run", "ab", trials
    )


@pytest.mark.parametrize(
    ("found", "verdict", "reason"),
    [
        (row("run_to_run"), "not tried", "no trial was made"),
        (row("run_to_run", again="same"), "ok", ""),
        (row("run_to_run", again="same", batch="different"), "ok", ""),
        (row("run_to_run", again="different"), "wanting", "other bits: again"),
        (row("gpu_to_gpu", again="same"), "not tried", "no part of the batch was run alone"),
        (row("batch_invariant", again="same", batch="same"), "ok", ""),
        (row("batch_invariant", again="same", batch="different"), "wanting", "other bits: batch"),
        (row("gpu_to_gpu", "dropout", again="same"), "ok", ""),
        (row("gpu_to_gpu", "rnn_forward", again="same"), "not tried", "run alone: sequences lie on axis 1"),
        (row("gpu_to_gpu", "an_operation_of_its_own", again="same"), "not tried", "no part of the batch was run alone"),
        (row("not_guaranteed", again="different"), "ok", ""),
    ],
)  # fmt: skip
def test_a_promise_that_was_not_put_to_the_test_is_not_ok(
    found: determinism_rows.Row, verdict: str, reason: str
) -> None:
    assert determinism_rows.judge(found)[0] == verdict
    assert determinism_rows.judge(found)[1].endswith(reason)


def test_the_table_says_what_was_not_tried_and_ok_where_another_case_was(folder: Path) -> None:
    def judged(*rows: determinism_rows.Row) -> str:
        for one in rows:
            one.verdict, one.reason = determinism_rows.judge(one)
        return " ".join(determinism_rows.table(list(rows)).split())

    untried, tried = row("gpu_to_gpu", again="same"), row("gpu_to_gpu", again="same", batch="same")
    assert " 1 not tried repeats: identical; no part of the batch" in judged(untried)
    assert " 2 ok repeats: identical;" in judged(untried, tried) and "not tried" not in judged(untried, tried)
    assert determinism_rows.wanting([untried]) == []
    assert determinism_rows.measured_levels([untried]) == {"cpu.loops softmax float32": "run_to_run"}
    unasked = dataclasses.replace(untried, verdict="ok", trials={"batch": levels.DIFFERENT})
    asked = dataclasses.replace(unasked, config={"determinism": "batch_invariant"}, reached="batch_invariant")
    assert determinism_rows.measured_levels([unasked, asked]) == {"cpu.loops softmax float32": "batch_invariant"}


def test_a_run_in_which_no_promise_was_tried_is_not_all_good(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(determinism_report, "PROCESSES", 0)
    one_image = "softmax x=float32:1x4"
    assert command.main(["validate", "--determinism", "--backend", "cpu", one_image]) == 3
    assert "not tried" in capsys.readouterr().out


def test_an_interrupted_run_writes_the_rows_it_has_and_no_errata(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers, file = itertools.count(1), folder / "found.json"
    row_of = determinism_report._row

    def interrupted(*arguments: Any) -> determinism_rows.Row:
        if next(numbers) == 2:
            raise KeyboardInterrupt
        return row_of(*arguments)

    def no_errata(*arguments: Any) -> Path:
        raise AssertionError("an interrupted run says nothing of an implementation")

    monkeypatch.setattr(determinism_report, "_row", interrupted)
    monkeypatch.setattr(errata, "store", no_errata)
    words = ["validate", "--determinism", "--backend", "cpu", "--json", str(file), CASE, "softmax x=float32:2x3"]
    assert command.main(words) == 130
    found = json.loads(file.read_text())
    (row,) = found["rows"]
    assert row["case"] == CASE and row["sha256"] and row["verdict"] == "" and "process" not in row["trials"]
    assert found["exit_status"] == 130
    printed = capsys.readouterr()
    assert (
        "cpu.loops" in printed.out
        and "incomplete: 2 of 2 cases not run" in printed.out
        and "interrupted" in printed.err
    )


def report_file(path: Path, **sha256: str) -> str:
    rows = [
        {"case": name, "problem": f"softmax {name}", "impl": "numba.rows", "config": None, "dtype": "float32",
         "declared": "run_to_run" if name.startswith("loose") else "gpu_to_gpu", "reached": "", "sha256": bits}
        for name, bits in sha256.items()
    ]  # fmt: skip
    text = {"format": determinism_rows.FORMAT, "device": path.stem, "versions": "v", "date": "d", "rows": rows}
    path.write_text(json.dumps(text))
    return str(path)


def test_two_reports_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = report_file(tmp_path / "one.json", a="1", b="2", loose="3", lonely="4")
    same = report_file(tmp_path / "same.json", a="1", b="2", loose="33")
    other = report_file(tmp_path / "other.json", a="1", b="22", loose="3")
    empty = report_file(tmp_path / "empty.json")
    assert command.main(["validate", "--compare", one, same]) == 0
    assert "numba.rows (run_to_run): 0 cases with the same bits, 1 with others" in capsys.readouterr().out
    assert command.main(["validate", "--compare", one, other]) == 1
    assert "gpu_to_gpu, but other bits: numba.rows on softmax b" in capsys.readouterr().out
    assert command.main(["validate", "--compare", one, empty]) == 3
    (tmp_path / "not.json").write_text("{}")
    assert command.main(["validate", "--compare", one, str(tmp_path / "not.json")]) == 2
    lacking = tmp_path / "lacking.json"
    lacking.write_text(json.dumps({k: v for k, v in json.loads(Path(one).read_text()).items() if k != "versions"}))
    assert command.main(["validate", "--compare", one, str(lacking)]) == 2
    assert "is no report of validate --determinism" in capsys.readouterr().err


def test_a_level_that_the_user_set_against_what_was_named_is_an_error_with_both_names() -> None:
    weak = softmax_with(changes("nothing"), declared="run_to_run", name="cpu.weak")
    with planted(weak):
        with (
            numbadnn.using(only="cpu.weak", determinism="batch_invariant"),
            pytest.raises(numbadnn.DeterminismError, match=r"only='cpu.weak' .* determinism='batch_invariant' .using"),
        ):
            numbadnn.softmax(X)
        with numbadnn.using(only="cpu.weak"):
            numbadnn.softmax(X)


def test_batch_invariance_through_the_public_function() -> None:
    x = np.random.default_rng(1).standard_normal((5, 3, 8, 7)).astype("float32")
    w = np.random.default_rng(2).standard_normal((4, 3, 3, 3)).astype("float32")
    with numbadnn.using(determinism="batch_invariant"):
        whole = numbadnn.conv2d(x, w)
        for n in range(5):
            assert np.array_equal(numbadnn.conv2d(x[n : n + 1], w), whole[n : n + 1])


@pytest.mark.slow
def test_chunks_in_processes_give_the_same_report_and_one_that_dies_is_a_row(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = folder / "one.json", folder / "two.json"
    assert command.main(["validate", CASE, "--determinism", "--json", str(one), "--backend", "cpu"]) == 0
    out = capsys.readouterr().out
    assert (
        "    4 of 4 repeats identical; planned anew: identical; moved in memory: identical; beside other work: identical"
        in out
    )
    assert (
        "tried, of 1 rows: repeats 1; planned anew 1" in out
        and "declared gpu_to_gpu, reached less (1): one machine" in out
    )
    assert command.main(["validate", CASE, "--determinism", "--json", str(two), "--backend", "cpu", "--jobs", "2"]) == 0
    rows = [determinism_rows.read_report(str(file))[1] for file in (one, two)]
    assert rows[0] == rows[1] and {row.trials["process"] for row in rows[0].values()} == {"same"}
    monkeypatch.setattr(determinism_report.sys, "executable", "/bin/false")
    assert command.main(["validate", CASE, "--determinism", "--backend", "cpu", "--jobs", "2"]) == 1
    assert "ended with status 1" in capsys.readouterr().out


def test_layers_in_between_are_taken_where_no_case_is_named() -> None:
    names = [case.name for case in determinism_report.cases([], -1)]
    assert len(names) == len(set(names)) and "resnext50/4b-grouped/grad-weights/float16-nhwc" in names
