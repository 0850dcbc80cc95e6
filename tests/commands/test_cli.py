"""The command line: what it prints, and the exit status of each way it can end."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numbadnn import __main__ as command
from numbadnn import config
from numbadnn.call import info
from numbadnn.commands import bench
from numbadnn.commands import tune as tune_cases
from numbadnn.errors import NotSupportedError
from numbadnn.gpu import devices
from numbadnn.measuring import workers
from numbadnn.registry import FAMILY, Executable, Impl
from numbadnn.validate import check, report
from numbadnn.validate import run as run_
from numbadnn.validate.check import Row
from numbadnn.validate.faults import planted

CASE = "softmax/rows/accurate-channel/float32"


def run(*words: str) -> int:
    """main's exit status, argparse's own included."""
    try:
        return command.main(words)
    except SystemExit as leaving:
        assert isinstance(leaving.code, int)
        return leaving.code


def test_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "numbadnn", "--help"], capture_output=True, text=True, check=True)
    assert "validate" in done.stdout and "tune" in done.stdout
    assert "{info,validate,explain,bench,tune,warm}" in done.stdout
    done = subprocess.run([sys.executable, "-m", "numbadnn", "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2 and "nonsense" in done.stderr


def test_info_prints_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info") == 0
    out = capsys.readouterr().out
    for option in config.OPTIONS.values():
        assert option.name in out and option.environment in out
    for word in (*FAMILY, "cuDNN", "numpy", "cpu.im2col", "numba.direct", "cudnn.graph"):
        assert word in out
    words = set(out.partition("Operations")[2].split())
    assert {"cudnn.graph_by_grad_inputs", "numba.corrmm_by_grad_weights"} <= words  # columns as wide as their names


def test_info_says_where_each_value_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    with config.using(fallback="error"):
        run("info", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert facts["options"]["fallback"]["value"] == "error" and facts["options"]["fallback"]["origin"] == "using"
    assert facts["options"]["tune"]["origin"] == "default"
    assert facts["operations"]["softmax"]["cpu"] == ["cpu.loops"]
    assert facts["gpus"] or facts["no_gpu_reason"]


@pytest.mark.parametrize("words", [("validate", CASE), ("bench", CASE), ("tune", CASE), ("info",)], ids=lambda w: w[0])
def test_an_option_of_the_environment_that_is_none_is_wrong_usage(words: tuple[str, ...]) -> None:
    env = {**os.environ, "NUMBADNN_WORKSPACE_LIMIT": "5"}
    done = subprocess.run([sys.executable, "-m", "numbadnn", *words], capture_output=True, text=True, env=env)
    assert done.returncode == 2 and "NUMBADNN_WORKSPACE_LIMIT: expected a size with a unit" in done.stderr


def test_info_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from numbadnn.call import info; o = info.options()['workspace_limit']; print(o['value'], o['origin'])"
    monkeypatch.setenv("NUMBADNN_WORKSPACE_LIMIT", "3MiB")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(None, 1) == ["3145728", "environment NUMBADNN_WORKSPACE_LIMIT\n"]


def test_info_without_cudnn_shows_the_reason() -> None:
    facts = info.collect() | {"cudnn": {"available": False, "reason": "looked in\n  every drawer: none here"}}
    assert "    every drawer: none here" in info.text(facts).splitlines()


def test_explain_names_the_choice_and_the_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", CASE) == 0
    out = capsys.readouterr().out
    assert "runs on " in out and "cpu.loops" in out and "numba.softmax_rows" in out and "refused" in out


def test_explain_takes_a_problem_line_with_or_without_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("conv2d", "x=float32:1x2x5x5", "w=float32:3x2x3x3", "pad=1,1,1,1")
    assert run("explain", *words) == 0
    first = capsys.readouterr().out
    assert run("explain", " ".join(words)) == 0
    assert capsys.readouterr().out == first and "y=float32:1x3x5x5" in first


def test_validate_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    assert run("validate", CASE, "--backend", "cpu", "--json", str(file)) == 0
    assert CASE in capsys.readouterr().out
    assert json.loads(file.read_text())["rows"][0]["case"] == CASE


def test_validate_own_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((4, 9)).astype("float32"))
    assert run("validate", "softmax", "--backend", "cpu", "--data", str(tmp_path / "x.npy")) == 0
    assert "data softmax" in capsys.readouterr().out


def test_an_empty_file_of_data_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.npy").touch()
    assert run("validate", "softmax", "--data", str(tmp_path / "x.npy")) == 2
    assert "x.npy is not a .npy file: No data left in file" in capsys.readouterr().err
    (tmp_path / "x.npy").write_text("1, 2, 3")
    assert run("validate", "softmax", "--data", str(tmp_path / "x.npy")) == 2
    text = capsys.readouterr().err
    assert (
        "x.npy is not a .npy file: it begins with b'1, 2, ', not as NumPy's files do" in text and "pickle" not in text
    )


@pytest.mark.parametrize(
    ("words", "message"),
    (
        (("validate", "sofmax"), "near it: softmax"),
        (("validate", "softmax/rows/accurate-channel/float23"), CASE),
        (("explain", "conv2"), "near it: conv2d"),
        (("explain", "conv2d x=float32:1x2x5x5 w=float32:3x4x3x3"), "expected 2 channels"),
        (("validate", "softmax", "--data", "/no/such/file.npy"), "/no/such/file.npy"),
        (("validate", "softmax", "--data", "/no/such/file.npy"), "--data: cannot read /no/such/file.npy: No such file"),
        (("validate", "--data", "x.npy"), "expected exactly one operation of conv2d, conv2d_grad_wrt_inputs"),
        (("validate", "--data", "x.npy", "softmax"), "got none; put softmax before --data"),
        (
            ("validate", "softmax", "--data", "x.npy", "--budget", "3"),
            "--budget: expected with cases, got 3 with --data",
        ),
        (("validate", "--budget", "inf"), "expected a number of seconds above 0, got 'inf'"),
        (("tune", "--seconds", "abc"), "expected a number of seconds above 0, got 'abc'"),
        (("validate", "softmax", "--json", ""), "expected the name of a file, got ''"),
        (("validate", "--compare", "/no/a.json", "/no/b.json"), "--compare: cannot read /no/a.json: No such file"),
        (("explain", "nonsense"), "got 'nonsense'; there are: conv2d"),
        (
            ("explain", "conv2d x=float32:1x2x5x5 w=float32:3x2x3x3 pad=a"),
            "pad: expected integers with ',' between them, got 'a'",
        ),
        (
            ("explain", "conv2d x=float32:1x2x5x5 w=float32:3x2x3x3 groups=1,2"),
            "groups: expected an integer, got '1,2'",
        ),
        (("explain", "conv2d x=float32:1x2x5x5 w=float32:3x2x3x3 alpha=zz"), "alpha: expected a number, got 'zz'"),
        (
            ("explain", "pool x=float32:1x2x4x4 window=2,2"),
            "window: expected integers with 'x' between them, got '2,2'",
        ),
        (("explain", "softmax x=float32"), "expected DTYPE:AxBxC"),
        (("explain", "softmax x=float32:axb"), "shape: expected integers with 'x' between them, got 'axb'"),
        (("explain", "bilinear_upsampling x=float32:1x1x2x2 ratio=a"), "ratio: expected integers with '/' between"),
        (("explain", "batch_normalization_train x=float32:2x3 epsilon=-1"), "epsilon: expected a finite number >= 0"),
        (("explain", "batch_normalization_train x=float32:2x3 factor=7"), "factor: expected a number from 0 to 1"),
        (("explain", "dropout x=float32:2x3 p=half"), "p: expected a number, got 'half'"),
        (("validate", "--backend", "gpu"), "invalid choice: 'gpu'"),
        (("validate", "--budget", "-1"), "above 0"),
        (("validate", "--budget", "soon"), "soon"),
        (("validate", "--json", "/no/such/x.json"), "--json: cannot write /no/such/x.json"),
        (("validate", "--determinism", "--json", "/"), "--json: cannot write /"),
        (("tune", "--json", "/"), "--json: cannot write /"),
        (("validate", "--determinism", "--jobs", "0"), "at least 1, got 0"),
        (("validate", "--determinism", "--jobs", "-3"), "at least 1, got -3"),
        (("tune", "--jobs", "two"), "at least 1, got two"),
        (("tune", "--jobs", "9" * 20), "1024 processes at most, got 999"),
        (("validate", "softmax", "--jobs", "0"), "at least 1, got 0"),
        (("validate", "--compare", "a", "b", "--backend", "cpu"), "two files, got --backend too"),
        (("validate", "--determinism", "--data", "x.npy"), "--determinism: expected cases"),
        (("validate", "--determinism", "sofmax"), "near it: softmax"),
        (("validate", "--compare", "/no/a.json", "/no/b.json"), "/no/a.json"),
        (("validate", "--compare", "a.json"), "expected 2 arguments"),
        (("validate", "softmax", "--compare", "a.json", "b.json"), "expected nothing but two files"),
        (("bench", "conv2"), "near it: conv2d"),
        (("bench", "--backend", "gpu"), "invalid choice: 'gpu'"),
        (("bench", "--json", "/"), "--json: cannot write /"),
        (("bench", "softmax x=float32:0x4"), "expected operands with elements"),
        (("tune", "conv2"), "near it: conv2d"),
        (("tune", "--budget", "0"), "above 0"),
        (("explain", CASE, "--export", "matlab"), "invalid choice: 'matlab'"),
        (("info", "everything"), "unrecognized arguments"),
        (("explain", CASE, "--export", "torch", "--json"), "--export: expected no --json"),
    ),
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_wrong_usage_is_2_and_says_why(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert message in capsys.readouterr().err


def test_bench_times_every_implementation_on_the_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, line = tmp_path / "times.json", "conv2d x=float32:1x4x6x6 w=float32:4x4x3x3"
    assert run("bench", line, CASE, "--json", str(file), *((), ("--backend", "cpu"))[not devices.gpus()]) == 0
    out = capsys.readouterr().out
    assert out.startswith("conv2d x=float32:1x4x6x6 ") and out.count("chosen") == 2 and "GFLOP/s" in out
    first, second = json.loads(file.read_text())["cases"]
    assert second["case"] == CASE and [t["impl"] for t in first["timings"] if t["chosen"]] != []
    times = [t["time_us"] for t in first["timings"] if t["time_us"]]
    assert times == sorted(times) and len(times) >= 2
    assert all(0 < t["least_us"] <= t["time_us"] for t in first["timings"] if t["time_us"])


def test_bench_gives_the_reason_of_what_is_refused_or_fails(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(problem: object, policy: object, settings: object) -> Executable:
        raise NotSupportedError("no such engine today\nand more")

    broken = Impl("softmax", "cpu", "cpu.broken", lambda p, q: "", fails, lambda p: 1e9)
    with planted(broken), config.using(exclude="cpu.loops", determinism="not_guaranteed"):
        assert run("bench", "softmax x=float32:2x3", "--backend", "cpu") == 3
    out = capsys.readouterr().out
    assert "cpu.broken" in out and out.count("no such engine today") == 1 and "and more" not in out
    assert "excluded by the option exclude='cpu.loops'" in out and "nothing that was asked for can run here" in out


def test_bench_goes_on_after_a_case_that_cannot_be_set_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, huge = tmp_path / "times.json", "softmax x=float32:1000000000x1000000000"
    assert run("bench", huge, "softmax x=float32:2x3", "--backend", "cpu", "--json", str(file)) == 0
    out = capsys.readouterr().out
    assert out.startswith(huge) and "Error: " in out.splitlines()[1] and "chosen" in out
    failed, case = json.loads(file.read_text())["cases"]
    assert case["case"] == "softmax x=float32:2x3" and case["timings"]
    assert failed["timings"] == [] and "Error: " in failed["reason"]


def test_bench_says_what_is_its_own_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*arguments: Any) -> Any:
        raise KeyError("ours")

    monkeypatch.setattr(bench, "_timed_on", broken)
    assert run("bench", "softmax x=float32:2x3", "--backend", "cpu") == 70
    assert "KeyError: 'ours'" in capsys.readouterr().err


def test_bench_begins_no_case_after_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"softmax x=float32:2x{n}" for n in (3, 4)]
    assert run("bench", *lines, "--budget", "1e-9", "--backend", "cpu") == 4
    left = "incomplete: 2 of 2 cases not run, as the budget of 1e-09 s was spent; to go on, give a larger --budget"
    assert left in capsys.readouterr().out
    assert run("tune", *lines, "--budget", "1e-9") == 4
    assert left in capsys.readouterr().out
    assert run("validate", "--determinism", *lines, "--budget", "1e-9", "--backend", "cpu") == 4
    assert left in capsys.readouterr().out


def interrupted_at(number: int, work: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but Ctrl-C comes in the call of this number."""
    calls = itertools.count(1)

    def worked(*arguments: Any, **named: Any) -> Any:
        if next(calls) == number:
            raise KeyboardInterrupt
        return work(*arguments, **named)

    return worked


def test_an_interrupted_run_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, file = [f"softmax x=float32:2x{n}" for n in (3, 4, 5)], tmp_path / "found.json"
    for words, module, name, rows in (
        (("bench", "--backend", "cpu"), bench, "_timed_on", "cases"),
        (("tune",), tune_cases, "worked", "cases"),
        (("validate", "--backend", "cpu"), run_, "_check_case", "rows"),
    ):
        monkeypatch.setattr(module, name, interrupted_at(2, getattr(module, name)))
        with config.using(cache_dir=str(tmp_path)):
            assert run(*words, *lines, "--json", str(file)) == 130
        found = json.loads(file.read_text())[rows]
        assert [row["case"] for row in found if row.get("status") != "not run"] == lines[:1]
        printed = capsys.readouterr()
        assert "interrupted" in printed.out + printed.err and "Traceback" not in printed.err
    assert [row["reason"] for row in found[1:]] == ["interrupted"] * 2


def test_own_arrays_interrupted_keep_what_they_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array, file = tmp_path / "x.npy", tmp_path / "found.json"
    np.save(array, np.ones((2, 2, 3, 3), "float32"))
    monkeypatch.setattr(check, "check", interrupted_at(2, check.check))
    assert run("validate", "conv2d", "--data", str(array), str(array), "--json", str(file)) == 130
    *rows, last = json.loads(file.read_text())["rows"]
    assert "ok" in {row["status"] for row in rows} and (last["status"], last["reason"]) == ("not run", "interrupted")
    assert "interrupted" in capsys.readouterr().out


def test_interrupted_processes_leave_the_simulator_out_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [run_.Job(name, list) for name in "abc"]
    monkeypatch.setattr(run_, "jobs", lambda names, backend: jobs[:1])
    monkeypatch.setattr(run_, "simulator_jobs", lambda names, backend, stack: jobs[1:])
    monkeypatch.setattr(run_, "in_processes", lambda todo, *rest: [run_._not_run(todo[0], report.BY_CTRL_C)])
    shown: list[Any] = []
    monkeypatch.setattr(report, "show", lambda rows, seconds, how_far: shown.append((report.left_out(rows), how_far)))
    assert run_.validate(["softmax"], processes=2) == 130 and shown == [(3, "incomplete: 3 of 3 cases not run")]


def test_a_case_that_memory_does_not_suffice_for_is_no_mismatch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "conv2d x=float32:9999999x99999x99x99 w=float32:1x99999x5x5"
    assert run("validate", line, "--backend", "cpu") == 3
    assert "skipped 1 x all: not enough memory" in capsys.readouterr().out

    def execute(*arguments: Any) -> Any:
        raise MemoryError("no room for it")

    monkeypatch.setattr(check, "execute", execute)
    assert run("validate", "softmax x=float32:4x5", "--backend", "cpu") == 3
    assert "skipped 1 x cpu.loops: not enough memory: no room for it" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(closed: str) -> None:
    line = f"exec {sys.executable} -m numbadnn validate 'softmax x=float32:4x5' --backend cpu {closed}"
    assert subprocess.run(["sh", "-c", line], capture_output=True, check=False).returncode == 0
    line = (
        "import sys, numpy, numbadnn; sys.stderr = None\n"
        "with numbadnn.using(tune='measure', verbose='all'): numbadnn.softmax(numpy.ones((2, 9)))"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no file that is always full")
def test_a_full_disk_and_a_warning_are_no_errors_of_ours() -> None:
    words = [sys.executable, "-W", "error", "-m", "numbadnn", "info"]
    with open("/dev/full", "w") as full:
        assert subprocess.run(words, stdout=full, stderr=subprocess.PIPE, check=False).returncode == 3
    environment = {**os.environ, "NUMBADNN_BACKENDS": "cpu"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2 and "NUMBADNN_BACKEND is meant?" in done.stderr and "Traceback" not in done.stderr


def test_a_reader_that_closes_the_pipe_is_no_wrong_usage() -> None:
    words = [sys.executable, "-m", "numbadnn", "explain", "conv2d/*"]  # 240 KB, more than a pipe holds
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shown:
        assert shown.stdout is not None and shown.stderr is not None
        shown.stdout.readline()
        shown.stdout.close()
        assert shown.stderr.read() == "" and shown.wait() == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no file that is always full")
def test_a_report_that_cannot_be_written_does_not_hide_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("validate", "--backend", "cpu", "softmax x=float32:2x3", "--json", "/dev/full") == 3
    printed = capsys.readouterr()
    assert "1 agree" in printed.out and "--json: cannot write /dev/full: No space left" in printed.err
    nowhere = str(tmp_path / "file")
    Path(nowhere).touch()
    with config.using(cache_dir=nowhere):  # no folder, so that errata cannot be written there
        words = ("validate", "--determinism", "--backend", "cpu", "softmax x=float32:2x3", "--json", "/dev/full")
        assert run(*words) == 3
    printed = capsys.readouterr()
    assert "1 implementations and engines on 1 cases" in printed.out and "cpu.loops" in printed.out
    assert "--json: cannot write /dev/full" in printed.err and "the errata cannot be written" in printed.err


def test_an_error_of_our_own_is_no_mismatch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> str:
        raise KeyError("a name that is missing")

    monkeypatch.setattr(info, "text", broken)
    assert run("info") == 70
    printed = capsys.readouterr().err
    assert "KeyError: 'a name that is missing'" in printed and "an error of numbadnn's own" in printed


def test_processes_interrupted_keep_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def each(tasks: Any, *rest: Any) -> Any:
        yield tasks[1], [Row(tasks[1][1].name, "cpu.loops", "", "ok")]
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "each", each)
    rows = run_.in_processes([run_.Job(name, list) for name in "abc"], None, 0.0, 2)
    assert [(row.case, row.status, row.reason) for row in rows] == [
        ("a", "not run", "interrupted"), ("b", "ok", ""), ("c", "not run", "interrupted"),
    ]  # fmt: skip
    assert report.exit_status(rows) == 130


@pytest.mark.skipif(bool(devices.gpus()), reason="this machine has a GPU")
def test_what_cannot_run_here_is_3(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("validate",), ("bench",), ("validate", "--determinism")):
        assert run(*words, CASE, "--backend", "numba") == 3
        assert capsys.readouterr().out == f"backend numba cannot be used here: {devices.no_gpu_reason()}\n"


def test_help_offers_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("validate", "--help") == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("--budget", "--determinism", "--compare", "--data"))
