"""When things are short or go wrong: no memory for a workspace, a line of the log replayed, many threads and shapes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import __main__ as command
from numbadnn.arrays import View
from numbadnn.call import verbose
from numbadnn.call.launch import Plan, thread
from numbadnn.call.select import Choice
from numbadnn.cases import parse
from numbadnn.errors import NotSupportedError
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl

PROBLEM = parse("softmax x=float32:4x8")


class OutOfMemoryError(RuntimeError):
    """Named as PyTorch's and CuPy's are."""


def plan_needing(nbytes: int, free: list[int], ran: list[Any], quick: bool, make: Any = object) -> Plan:
    """A plan for a GPU that is not there: its library lends ``free[0]`` bytes at most."""

    def scratch(wanted: int, device: int, stream: int) -> tuple[Any, int]:
        if wanted > free[0]:
            raise OutOfMemoryError(f"tried to allocate {wanted} bytes")
        return object(), 1000 + wanted

    library: Any = SimpleNamespace(
        name="fake", allocator=lambda spec, device: make, finish=None, check=None, address=lambda array: 7,
        address_on_gpu=None, current_stream=lambda device: 5, scratch=scratch,
        outside=False,
    )  # fmt: skip
    view = View(library, "float32", (4, 8), (8, 1), 0, 64)
    impl = Impl("softmax", "numba", f"numba.needs{nbytes}", lambda p, q: "", lambda p, q, c: executable, lambda p: 0.0)

    def run(inputs: Any, outputs: Any, workspace: int, stream: int) -> None:
        ran.append((nbytes, *inputs, *outputs, workspace))

    def direct(stream: int, *words: int) -> None:
        ran.append((nbytes, *words))

    executable = Executable(run, workspace_bytes=nbytes, direct=direct if quick else None)
    made = Plan(PROBLEM, Policy(device=0), Choice(impl, "rank"), executable, [view])

    def replan(limit: int) -> Plan:
        if limit < 10:
            raise NotSupportedError("nothing needs less")
        return plan_needing(nbytes // 10, free, ran, quick, make)

    made.replan = replan
    return made


@pytest.mark.parametrize("quick", [True, False])
def test_no_memory_for_a_workspace_takes_the_next_plan_that_fits_and_records_it(quick: bool) -> None:
    free, ran = [50], []  # type: ignore[var-annotated]
    plan = plan_needing(1000, free, ran, quick)
    assert (plan.quick is not None) == quick

    def call() -> None:
        if plan.quick:
            plan.quick(64)
        else:
            plan.launch((), (64,), (), None, None)

    call()  # 1000 and 100 do not fit, 10 does
    assert ran == [(10, 64, 7, 1010)]
    last = numbadnn.last_call()
    assert last is not None and last.impl == "numba.needs10" and last.workspace_bytes == 10
    assert "numba.needs100 needs a workspace of 100 bytes, out of memory" in last.decided_by
    first = plan.smaller(OutOfMemoryError())
    call()
    assert plan.smaller(OutOfMemoryError()) is first and len(ran) == 2  # made once
    free[0] = 5000
    call()
    assert ran[-1] == (1000, 64, 7, 2000)  # memory is back, and so is the first choice
    free[0] = 0
    with pytest.raises(OutOfMemoryError):
        call()
    thread.last[0] = None


@pytest.mark.parametrize("quick", [True, False])
def test_no_memory_for_the_one_way_that_there_is_is_the_librarys_error(quick: bool) -> None:
    """What heeds no limit is planned again as it was: that must not go on for ever."""
    plan = plan_needing(1000, [50], [], quick)
    plan.replan = lambda limit: plan_needing(1000, [50], [], quick)
    with pytest.raises(OutOfMemoryError, match="1000 bytes"):
        plan.quick(64) if plan.quick else plan.launch((), (64,), (), None, None)


@pytest.mark.parametrize("quick", [True, False])
def test_a_plan_that_does_not_fit_gives_its_results_back_before_the_next_makes_its_own(quick: bool) -> None:
    """Else two sets of results are held at the very moment when memory is short."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Result:
        def __init__(self) -> None:
            assert not alive, "the results of a plan that did not fit are still held"
            alive.add(self)

    plan = plan_needing(1000, [50], [], quick, Result)
    assert plan.quick(64) if plan.quick else plan.launch((), (64,), (), None, None)
    thread.last[0] = None


def test_any_other_error_of_the_allocator_is_passed_on() -> None:
    plan = plan_needing(1000, [0], [], True)
    for error in (RuntimeError("device lost"), KeyError("x")):
        with pytest.raises(type(error)):
            plan.smaller(error)
    plan.replan = None
    with pytest.raises(MemoryError):
        plan.smaller(MemoryError())


def test_an_error_that_costs_the_context_names_the_call_before_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from numbadnn.gpu import driver as _driver

    monkeypatch.setattr(_driver, "library", lambda: None)
    monkeypatch.setattr(_driver, "_lost_by", "")
    numbadnn.softmax(np.ones((2, 3), "float32"))
    with pytest.raises(
        numbadnn.NumbaDNNError, match=r"launching a: .* last call of this thread was cpu.loops on softmax x="
    ):
        _driver.check(700, "launching a")
    with pytest.raises(numbadnn.NumbaDNNError, match=r"launching b: .* was lost before, by cpu.loops on softmax x="):
        _driver.check(700, "launching b")
    with pytest.raises(numbadnn.NumbaDNNError, match="launching c: CUDA driver status 1$"):
        _driver.check(1, "launching c")


def test_a_line_of_the_log_is_parsed_and_its_case_replayed(capfd: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 5)).astype("float32")
    with numbadnn.using(verbose="exec"):
        y = numbadnn.conv2d(x, x[:, :, :3, :3].copy(), border_mode=(1, 0))
        numbadnn.softmax(y, out=np.empty_like(y))
    out, err = capfd.readouterr()
    assert not out
    lines = [verbose.parse(line) for line in err.splitlines()]
    assert [line["impl"] for line in lines] == ["cpu.im2col", "cpu.loops"]
    assert all(
        float(line["time_us"]) > 0 and line["decided_by"] == "rank" and line["backend"] == "cpu" for line in lines
    )
    last = numbadnn.last_call()
    assert last is not None and lines[1]["case"] == last.problem
    for line in lines:
        assert str(parse(line["case"])) == line["case"]
        assert command.main(["explain", line["case"]]) == 0
        assert f"runs on {line['impl']}, decided by rank" in capfd.readouterr().out
        assert command.main(["validate", line["case"], "--backend", "cpu"]) == 0
    with numbadnn.using(verbose="all"):
        numbadnn.softmax(y)
    said = capfd.readouterr().err.splitlines()[-2:]
    assert said[0].startswith("numbadnn exec ") and said[1].startswith("numbadnn: cpu.loops softmax x=")
    with pytest.raises(ValueError, match="begins with 'numbadnn exec'"):
        verbose.parse(said[1])


def test_eight_threads_give_the_serial_bits_on_mixed_problems() -> None:
    rng = np.random.default_rng(0)
    work = [rng.standard_normal((2, 3, 5 + i % 5, 7)).astype("float32") for i in range(8)]
    w = rng.standard_normal((4, 3, 3, 3)).astype("float32")

    def compute(x: np.ndarray) -> bytes:
        return numbadnn.softmax(numbadnn.conv2d(x, w, border_mode="half")).tobytes()

    serial, found = [compute(x) for x in work], {}

    def run(number: int) -> None:
        found[number] = [compute(work[(number + i) % 8]) for i in range(24)]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(found[n][i] == serial[(n + i) % 8] for n in range(8) for i in range(24))


def _fresh(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)


def test_fork_after_import_computes() -> None:
    code = (
        "import multiprocessing as m, numpy as np, numbadnn\n"
        "def f(x): return float(numbadnn.softmax(x).sum())\n"
        "x = np.ones((4, 5), 'float32')\n"
        "with m.get_context('fork').Pool(2) as pool: print(pool.map(f, [x] * 4))\n"
    )
    done = _fresh(code)
    assert done.stdout == "[4.0, 4.0, 4.0, 4.0]\n", done.stderr


def test_fork_while_another_thread_writes_the_plan_file_computes(tmp_path: Path) -> None:
    """The child has no such thread, but had its locks, and waited for them for ever."""
    code = (
        "import os, signal, numpy as np, numbadnn\n"
        "from numbadnn.host import files as stored\n"
        "from numbadnn.measuring import tune\n"
        "from numbadnn.cudnn import lib\n"
        "x = np.ones((4, 5), 'float32'); numbadnn.softmax(x)\n"
        "old = lib._LOCK\n"
        f"with stored.lock_folder({str(tmp_path)!r}), tune._one_at_a_time(), lib._LOCK:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        signal.alarm(20)\n"
        f"        with numbadnn.using(plan_file={str(tmp_path / 'plans.json')!r}): numbadnn.softmax(x[:3])\n"
        "        assert not tune._alone.locked() and not tune.measuring() and lib._LOCK is not old\n"
        "        os._exit(0)\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    done = _fresh(code)
    assert done.stdout == "0\n", done.stderr


def test_a_fork_waits_for_what_another_thread_compiles() -> None:
    """The child would find Numba's compiler locked for ever."""
    code = (
        "import os, signal, threading, time, numpy as np, numbadnn\n"
        "from numba.core.compiler_lock import global_compiler_lock\n"
        "numbadnn.softmax(np.ones((4, 5), 'float32'))\n"
        "held = threading.Event()\n"
        "def compile():\n"
        "    with global_compiler_lock: held.set(); time.sleep(0.5)\n"
        "threading.Thread(target=compile).start(); held.wait()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(60)\n"
        "    numbadnn.softmax(np.ones((4, 5), 'float64')); os._exit(0)\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    done = _fresh(code)
    assert done.stdout == "0\n", done.stderr


def test_without_numbas_compiler_there_is_an_error_that_names_the_variable() -> None:
    code = "import numpy, numbadnn; numbadnn.pool(numpy.ones((1, 1, 4, 4)), (2, 2))"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert "NumbaDNNError: NUMBA_DISABLE_JIT is set" in done.stderr
    words = [sys.executable, "-m", "numbadnn", "bench", "softmax x=float32:4x5"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 3 and done.stderr.startswith("numbadnn bench: NUMBA_DISABLE_JIT is set")


# ---- with a GPU ------------------------------------------------------------------------------------------------------


def test_what_the_caller_has_numpy_do_about_infinities_stops_no_call() -> None:
    x, w, one = (
        np.full((1, 2, 3, 3), np.inf, "float32"),
        np.zeros((2, 2, 3, 3), "float32"),
        np.ones((1, 1, 1), "float32"),
    )
    with np.errstate(all="raise"):
        for name in ("cpu.im2col", "cpu.corrmm"):
            with numbadnn.using(only=name):
                assert np.isnan(numbadnn.conv2d(x, w)).all()
                assert np.isnan(numbadnn.conv2d_grad_wrt_inputs(x[:, :, :1, :1], w, x.shape)).all()
                assert np.isnan(numbadnn.conv2d_grad_wrt_weights(x, w[:1, :, :1, :1], w.shape)).all()
        zeros, network = np.zeros(4, "float32"), {"hidden_size": 1, "num_layers": 1, "rnn_mode": "rnn_tanh"}
        assert np.isnan(numbadnn.rnn_forward(zeros, np.inf * one, one, **network)[0]).all()


@pytest.mark.gpu
def test_eight_threads_on_eight_streams_give_the_serial_bits() -> None:
    torch = pytest.importorskip("torch")
    w = torch.randn(8, 4, 3, 3, device="cuda")
    work = [torch.randn(2, 4, 9 + i % 4, 8, device="cuda") for i in range(8)]
    torch.cuda.synchronize()

    def compute(x: Any) -> Any:
        return numbadnn.softmax(numbadnn.conv2d(x, w, border_mode="half"))

    serial, failed = [compute(x).cpu() for x in work], []

    def run(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in range(40):
                n = (number + i) % 8
                if not torch.equal(compute(work[n]).cpu(), serial[n]):
                    failed.append((number, i))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


@pytest.mark.gpu
def test_a_choice_measured_on_a_gpu_is_replayed_bit_for_bit(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.randn(4, 32, 14, 14, device="cuda"), torch.randn(64, 32, 3, 3, device="cuda")
    numbadnn.clear_caches()
    with numbadnn.using(cache_dir=str(tmp_path)):
        with numbadnn.using(tune="measure", plan_file=str(tmp_path / "plans.json")):
            measured = numbadnn.conv2d(x, w)
            first = numbadnn.last_call()
        numbadnn.clear_caches()
        again = numbadnn.conv2d(x, w)
        assert first is not None and numbadnn.last_call().decided_by.startswith("tuned")  # type: ignore[union-attr]
        assert torch.equal(measured, again)
    with numbadnn.using(plan_file=str(tmp_path / "plans.json"), plan_strict=True):
        assert torch.equal(numbadnn.conv2d(x, w), measured)
        with pytest.raises(numbadnn.PlanMissError):
            numbadnn.conv2d(x[:1], w)
    numbadnn.clear_caches()


@pytest.mark.gpu
def test_verbose_exec_times_the_device_and_does_not_spoil_a_capture(capfd: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(64, 1000, device="cuda")
    with numbadnn.using(verbose="exec"):
        expected = numbadnn.softmax(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = numbadnn.softmax(x)
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected)
    first, second = (verbose.parse(t) for t in capfd.readouterr().err.splitlines() if t.startswith("numbadnn exec"))
    assert float(first["time_us"]) > 0 and second["time_us"] == "captured"
