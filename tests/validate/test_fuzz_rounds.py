"""Many random problems, several times each: every planted fault is found, counted and told, and a short run finds none."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_documents
from host_driver import HostDriver, bytes_at, install
from simulated import checks_passed

import numbadnn
from numbadnn import cases
from numbadnn.call import select
from numbadnn.errors import CudnnError, NotSupportedError
from numbadnn.measuring import workers
from numbadnn.registry import Executable, Impl, implementations
from numbadnn.validate.faults import planted
from numbadnn.validate.fuzz import draws, places, rounds, trials
from numbadnn.validate.fuzz.__main__ import document
from numbadnn.validate.fuzz.__main__ import main as fuzz_main


@pytest.fixture(autouse=True)
def one_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "DTYPES", ("float32",))


#: the only problem that the planted implementations are asked to compute, and its GPU
SOFTMAX = "softmax x=float32:3x5 y=float32:3x5 algo=accurate mode=channel"


class Planted:
    """A softmax that is right, on the CPU or on a GPU of the host's memory, but for a fault in one of its calls."""

    def __init__(self, backend: str, fault: Callable[..., None], every: int = 1, workspace: int = 0) -> None:
        self.fault, self.every, self.calls, self.workspace = fault, every, 0, workspace
        self.lock = threading.Lock()
        supports = lambda problem, policy: "" if str(problem) == SOFTMAX else "takes one problem alone"
        self.impl = Impl("softmax", backend, f"{backend}.planted", supports, self.plan, lambda problem: 1e9)

    def plan(self, problem: Any, policy: Any, config: Any) -> Executable:
        def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
            if policy.device >= 0:
                inputs, outputs = (
                    [bytes_at(a, 60).view(np.float32).reshape(3, 5) for a in s] for s in (inputs, outputs)
                )
            wide = np.exp(inputs[0].astype(np.float64))
            outputs[0][...] = wide / wide.sum(1, keepdims=True)
            with self.lock:
                self.calls += 1
                now = self.calls % self.every == 0
            if now:
                self.fault(inputs[0], outputs[0], workspace)

        return Executable(run, workspace_bytes=self.workspace)


def verdicts(planted_one: Planted, device: int, threads: int = 1, problems: int = 1) -> list[trials.Verdict]:
    """What is found of one that is planted, on so many problems."""
    problem = cases.parse(SOFTMAX)
    with planted(planted_one.impl), numbadnn.using(only=planted_one.impl.name):
        found = [
            verdict
            for seed in range(problems)
            for verdict in trials.examine(trials.Subject(problem, seed), planted_one.impl.backend, device, threads)
            if verdict.impl == planted_one.impl.name
        ]
    assert len(found) == problems
    return found


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    """A GPU of the host's memory, and no kernel of ours that would ask for a real one."""
    monkeypatch.setattr(places, "_here", threading.local())
    monkeypatch.setattr(trials, "_threads", [])
    monkeypatch.setattr(select, "unavailable", lambda backend, device: "")
    return install(monkeypatch)


def nothing(x: Any, y: Any, workspace: Any) -> None:
    pass


def a_bit(x: Any, y: Any, workspace: Any) -> None:
    """One unit in the last place: within the bound."""
    y[0, 0] = np.nextafter(y[0, 0], np.float32(0))


def too_much(x: Any, y: Any, workspace: Any) -> None:
    y[-1, -1] *= np.float32(1.01)


def of_cudnn(x: Any, y: Any, workspace: Any) -> None:
    raise CudnnError("CUDNN_STATUS_BAD_PARAM: cudnnSoftmaxForward", 3)


def refuse(x: Any, y: Any, workspace: Any) -> None:
    raise NotSupportedError("after all")


def change_input(x: Any, y: Any, workspace: Any) -> None:
    x[1, 1] += 1


def pass_the_end(x: Any, y: Any, workspace: Any) -> None:
    np.lib.stride_tricks.as_strided(y, (16,), (4,))[-1] = 0


def pass_the_workspace(x: Any, y: Any, workspace: Any) -> None:
    bytes_at(workspace, 65)[64] = 1


def trust_the_workspace(x: Any, y: Any, workspace: Any) -> None:
    """What is read there was never written: one bit of the result depends on it."""
    if bytes_at(workspace, 64)[0] == 0x3C:
        a_bit(x, y, workspace)


FOUND = (
    (nothing, "right", ""),
    (too_much, "wrong", "elements wrong"),
    (a_bit, "other bits", "gave 2 results"),
    (of_cudnn, "CudnnError", "BAD_PARAM"),
    (refuse, "error", "admitted, then refused: after all"),
    (change_input, "wrong", "input 1 .or memory around it"),
    (pass_the_end, "wrong", "memory around"),
)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(("fault", "kind", "text"), FOUND, ids=lambda v: getattr(v, "__name__", ""))
@pytest.mark.parametrize("device", [-1, 0])
def test_a_fault_in_one_of_a_problems_runs_is_found(
    device: int, fault: Callable[..., None], kind: str, text: str, threads: int, on_host: HostDriver
) -> None:
    (found,) = verdicts(Planted("cpu" if device < 0 else "numba", fault, 3), device, threads)
    assert found.kind == kind and re.search(text, found.text), found


def test_a_fault_in_one_of_fifty_calls_is_found() -> None:
    kinds = [verdict.kind for verdict in verdicts(Planted("cpu", too_much, 50), -1, problems=50)]
    assert kinds.count("wrong") == 3 and kinds.count("right") == 47


@pytest.mark.parametrize(
    ("fault", "kind"), [(pass_the_workspace, "wrong"), (trust_the_workspace, "other bits"), (nothing, "right")]
)
def test_a_workspace_holds_anything_and_has_an_end(fault: Any, kind: str, on_host: HostDriver) -> None:
    (found,) = verdicts(Planted("numba", fault, workspace=64), 0)
    assert found.kind == kind, found


def test_other_bits_beside_other_work_are_found(on_host: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [0]

    def if_busy(x: Any, y: Any, workspace: Any) -> None:
        if on_host.busy > seen[0]:
            a_bit(x, y, workspace)
        seen[0] = on_host.busy

    (found,) = verdicts(Planted("numba", if_busy), 0)
    assert found.kind == "other bits", found
    monkeypatch.setattr(places.Gpu, "make_busy", lambda self: None)
    assert verdicts(Planted("numba", if_busy), 0)[0].kind == "right"


def test_gradients_by_way_of_a_reserve_are_held_too() -> None:
    """A network's gradients that are wrong only where a forward pass kept something for them."""
    case = next(c for c in cases.find(["contract"]) if c.name == "rnn_backward/tiny/rnn_tanh/float32").text

    def impl_of(op: str, faulty: bool) -> Impl:
        (real,) = (i for i in implementations(op) if i.name == "cpu.rnn")

        def plan(problem: Any, policy: Any, config: Any) -> Executable:
            made = real.plan(problem, policy, config)

            def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
                made.run(inputs, outputs, workspace, stream)
                outputs[0][...] *= 1 + (faulty and "reserve" in problem.names)

            return dataclasses.replace(made, run=run, facts={"reserve": "cpu.rnn"})

        return dataclasses.replace(real, name="cpu.planted", plan=plan)

    for faulty, kind in ((False, "right"), (True, "wrong")):
        impls = [impl_of(op, faulty) for op in ("rnn_forward", "rnn_backward")]
        with planted(*impls), numbadnn.using(only="cpu.planted"):
            found = list(trials.examine(trials.Subject(cases.parse(case), 0), "cpu", -1))
        (one,) = (v for v in found if v.impl == "cpu.planted")
        assert one.kind == kind and ("by way of a reserve" in one.text) == faulty, one


@pytest.mark.parametrize(
    ("complete", "reason", "kind"),
    [(False, "has no such thing", "refused"), (False, "no", "error"), (True, "has no such thing", "error")],
)
def test_a_refusal_has_a_reason_and_none_where_everything_is_taken(complete: bool, reason: str, kind: str) -> None:
    impl = dataclasses.replace(Planted("cpu", nothing).impl, supports=lambda p, q: reason, complete=complete)
    with planted(impl), numbadnn.using(only=impl.name):
        found = list(trials.examine(trials.Subject(cases.parse(SOFTMAX), 0), "cpu", -1))
    assert [(v.kind, v.text) for v in found if v.impl == impl.name] == [(kind, reason)]


@pytest.mark.slow(10)
def test_what_is_counted_written_and_shown(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on the CPU with a fault in one of its calls: exit status 1, a line that shows it again, and a file."""
    one = cases.parse(SOFTMAX)
    bad = Planted("cpu", too_much, 20)
    monkeypatch.setattr(rounds, "drawn", lambda seed, number: one)
    monkeypatch.setattr(rounds, "form_of", lambda number: 1)
    command = [
        "fuzz",
        "--backend",
        "cpu",
        "--count",
        "12",
        "--seed",
        "5",
        "--jobs",
        "0",
        "--json",
        str(tmp_path / "a.json"),
    ]
    monkeypatch.setattr("sys.argv", command)
    with planted(bad.impl):
        assert fuzz_main() == 1
    out, found = capsys.readouterr().out, json.loads((tmp_path / "a.json").read_text())
    report_documents.validator().validate(found)
    assert found["verdicts"]["softmax"]["cpu.planted"] == {"right": 11, "wrong": 1}
    assert found["verdicts"]["softmax"]["cpu.loops"] == {"right": 12} and found["problems"] == {"softmax": 12}
    (finding,) = found["findings"]
    assert (finding["case"], finding["seed"], finding["kind"]) == (SOFTMAX, 50_000_006, "wrong")
    line = f"--backend cpu --seed 50000006 --threads 1 --case '{SOFTMAX}'"
    assert line in out and "12 problems, 1 findings" in out
    bad.calls, bad.every = 0, 2
    monkeypatch.setattr("sys.argv", ["fuzz", *shlex.split(line)])
    with planted(bad.impl):
        assert fuzz_main() == 1
    assert "cpu.planted: wrong" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", command)
    assert fuzz_main() == 0


def test_a_file_keeps_the_most_frequent_reasons_and_some_findings() -> None:
    total = rounds.Tally()
    for number in range(8):
        total.refusals["softmax", "cpu.a", f"reason {number}"] = 10 - number
    total.findings = [rounds.Finding("cpu", "wrong", "softmax", "cpu.a", SOFTMAX, n, 1, {}, "") for n in range(501)]
    found = document(total, {"seed": 3})
    kept = found["reasons"]["softmax"]["cpu.a"]
    assert kept == {"reason 0": 10, "reason 1": 9, "reason 2": 8, "reason 3": 7, "reason 4": 6, "other reasons": 12}
    assert (len(found["findings"]), found["findings_left_out"], found["seed"]) == (500, 1, 3)


def test_a_process_that_ends_is_a_finding_and_the_rest_is_done() -> None:
    lost: list[rounds.Finding] = []
    task, ended = (
        rounds.Task("cudnn", 0, 2, 50, 75),
        workers.Ended("its process ended with status -11", f"53 4 {SOFTMAX}"),
    )
    assert rounds.again(task, ended, lost.append) == task._replace(first=54)
    assert (lost[0].kind, lost[0].op, lost[0].case, lost[0].seed, lost[0].threads) == (
        "ended",
        "softmax",
        SOFTMAX,
        20_000_053,
        4,
    )
    assert "--backend cudnn --seed 20000053 --threads 4" in str(lost[0])
    assert rounds.again(task, ended._replace(at=f"74 1 {SOFTMAX}"), lost.append) is None


@pytest.mark.slow(10)
def test_random_problems_by_processes() -> None:
    """A few seconds of what a GPU does for minutes: public functions, in two processes."""
    total = rounds.all_of(rounds.tasks("auto", -1, 0, 20, time.time() + 60), 2, print)
    assert not total.findings and sum(total.problems.values()) > 0


@pytest.mark.slow(20)
def test_random_problems_on_a_gpu_of_the_simulator() -> None:
    assert checks_passed("fuzz") > 20


@pytest.mark.gpu
@pytest.mark.slow(30)
@pytest.mark.parametrize("backend", ["numba", "cudnn", "auto"])
def test_random_problems_on_a_gpu(backend: str) -> None:
    total = rounds.all_of(rounds.tasks(backend, 0, 1, 10**6, time.time() + 25, 2), 2, print)
    assert not total.findings and sum(total.problems.values()) > 20
