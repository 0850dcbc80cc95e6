"""A process that lives on: what interrupts, exhausts or re-enters a first call leaves later calls right."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import re
import resource
import runpy
import signal
import subprocess
import sys
import threading
import time
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import config, registry
from numbadnn.errors import is_passing, warn
from numbadnn.host import files as stored
from numbadnn.host import undisturbed as held
from numbadnn.host.undisturbed import undisturbed
from numbadnn.kept import plan_file, ranks
from numbadnn.measuring import tune
from numbadnn.problems.softmax import SoftmaxProblem

ROOT = Path(numbadnn.__file__).parent
X = np.ones((2, 4), "float32")


@pytest.fixture(autouse=True)
def _no_test_waits_for_ever() -> Iterator[None]:
    faulthandler.dump_traceback_later(240, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def fresh(code: str, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False, **more)


def right(x: np.ndarray = X) -> bool:
    return bool(numbadnn.softmax(x)[0, 0] == np.float32(1 / x.shape[1]))


def test_a_module_that_another_thread_imports_is_not_there_yet(tmp_path, monkeypatch):
    (tmp_path / "slowly.py").write_text("import threading\nbegun, go = threading.Event(), threading.Event()\nbegun.set()\n"
                                        "go.wait(20)\ndef failed(): return True\n")  # fmt: skip
    monkeypatch.syspath_prepend(str(tmp_path))
    assert held.imported("slowly") is None
    importing = threading.Thread(target=importlib.import_module, args=("slowly",))
    importing.start()
    while not hasattr(sys.modules.get("slowly"), "go"):
        time.sleep(0.001)
    half = sys.modules["slowly"]
    assert half.begun.wait(20) and held.imported("slowly") is None
    half.go.set()
    importing.join()
    assert held.imported("slowly") is half and half.failed()
    del sys.modules["slowly"]


# ---- undisturbed -----------------------------------------------------------------------------------------------------


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that were handled: SIGUSR1's handler notes it, SIGUSR2's raises KeyboardInterrupt as Ctrl-C's does."""
    numbers: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        numbers.append(number)
        raise KeyboardInterrupt

    before = {
        signal.SIGUSR1: signal.signal(signal.SIGUSR1, lambda number, frame: numbers.append(number)),
        signal.SIGUSR2: signal.signal(signal.SIGUSR2, interrupt),
    }
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_wait_for_the_outermost_end_and_none_is_lost(came: list[int]) -> None:
    handlers = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)
    reached = []
    with pytest.raises(KeyboardInterrupt), undisturbed():
        with undisturbed():
            signal.raise_signal(signal.SIGUSR2)
            signal.raise_signal(signal.SIGUSR1)
        reached.append(list(came))
    assert reached == [[]] and came == [signal.SIGUSR2, signal.SIGUSR1]
    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)) == handlers
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGUSR2)


def test_an_error_inside_keeps_no_signal_from_its_handler(came: list[int]) -> None:
    with pytest.raises(ZeroDivisionError), undisturbed():
        signal.raise_signal(signal.SIGUSR1)
        raise ZeroDivisionError
    assert came == [signal.SIGUSR1]


def test_a_handler_that_is_set_inside_stays(came: list[int]) -> None:
    with undisturbed():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_no_garbage_is_collected_inside_and_the_users_setting_stays() -> None:
    assert gc.isenabled()
    with undisturbed():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with undisturbed():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_child_forked_by_another_thread_has_its_handlers_and_its_garbage_collector(came: list[int]) -> None:
    code = (
        "import gc, os, signal, threading\n"
        "from numbadnn.host.undisturbed import undisturbed\n"
        "seen = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))\n"
        "def fork():\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os.kill(os.getpid(), signal.SIGUSR1)\n"
        "        for _ in range(100): pass\n"
        "        os._exit(0 if seen and gc.isenabled() else 1)\n"
        "    print(os.waitpid(child, 0)[1])\n"
        "with undisturbed():\n"
        "    thread = threading.Thread(target=fork); thread.start(); thread.join()\n"
    )
    done = fresh(code, "-W", "ignore")
    assert done.stdout == "0\n", done.stderr


def deep(frames: int, what: Any) -> Any:
    return deep(frames - 1, what) if frames else what()


def test_too_deep_for_a_first_call_is_said_before_it_begins() -> None:
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    room = sys.getrecursionlimit() - depth
    for n, left in enumerate((20, 40, 80, 160, 300, held.NEEDED)):
        x = np.ones((3, 7 + n), "float32")
        with pytest.raises(RecursionError):
            deep(room - left, lambda x=x: numbadnn.softmax(x))
        assert right(x)


# ---- a first call that is broken off ---------------------------------------------------------------------------------

BREAK_OFF = """
import sys, signal, errno, numpy as np, numbadnn
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background inherits that it is ignored
class Once:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            {what}
sys.meta_path.insert(0, Once())
x, w = np.ones((1, 1, 4, 4), "f4"), np.ones((1, 1, 2, 2), "f4")
seen = []
for attempt in range(3):
    try: seen.append(float(numbadnn.conv2d(x, w)[0, 0, 0, 0]))
    except BaseException as error: seen.append(type(error).__name__)
print(seen)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "what", "first"),
    [
        (
            "numbadnn.cpu.conv.corrmm",
            "raise KeyboardInterrupt",
            "KeyboardInterrupt",
        ),  # half of the family is registered
        ("numbadnn.cpu.conv.corrmm", "raise MemoryError", "MemoryError"),
        ("numba.core.typing", "raise OSError(errno.EMFILE, 'none')", "OSError"),
        ("numba.np.linalg", "raise MemoryError", "MemoryError"),  # while Numba fills its tables
        ("numba.core.dispatcher", "signal.raise_signal(signal.SIGINT)", "KeyboardInterrupt"),
        ("numba.cpython.unicode", "signal.raise_signal(signal.SIGINT)", "KeyboardInterrupt"),
    ],
)
def test_a_first_call_that_is_broken_off_can_be_repeated(module: str, what: str, first: str, tmp_path: Path) -> None:
    code = BREAK_OFF.format(module=module, what=what)
    if module in ("numba.np.linalg", "numba.cpython.unicode"):  # imported where something is compiled
        code = f"import os; os.environ['NUMBADNN_CACHE_DIR'] = {str(tmp_path)!r}\n{code}"
    elif module.startswith("numba."):  # which a process that finds all on disk does not import
        code = f"from numbadnn.host import images; images.possible = bool\n{code}"
    done = fresh(code)
    assert done.stdout == f"[{first!r}, 4.0, 4.0]\n", done.stdout + done.stderr


AT_A_MOMENT = """
import random, resource, signal, sys, threading, numpy as np, numbadnn
def call(n):
    x, w = np.ones((2, 4, 9, 9), "f4"), np.ones((4, 4, 3, 3), "f4")
    y = numbadnn.softmax(np.ones((3, n), "f4"))[0, 0], numbadnn.conv2d(x, w)[0, 0, 0, 0], numbadnn.pool(x, (2, 2))[0, 0, 0, 0]
    return [float(v) for v in y] == [1 / n, 36, 1]
at, kind = float(sys.argv[1]), sys.argv[2]
limits = {"files": (resource.RLIMIT_NOFILE, 3), "memory": (resource.RLIMIT_AS, 1)}
def shorten():
    which, least = limits[kind]
    now = 0
    if kind == "memory":
        now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(which, (now + least, resource.getrlimit(which)[1]))
try:
    if kind == "interrupt":
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, at)
    else:
        timer = threading.Timer(at, shorten)
        timer.start()
    call(4)
except BaseException as error:
    print(type(error).__name__, file=sys.stderr)
signal.setitimer(signal.ITIMER_REAL, 0)
if kind != "interrupt":
    timer.cancel(), timer.join()
    which = limits[kind][0]
    resource.setrlimit(which, (resource.getrlimit(which)[1],) * 2)
print(all(call(n) for n in (4, 8, 4, 8)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "at"),
    [("interrupt", 0.02), ("interrupt", 0.2), ("interrupt", 0.5), ("files", 0.02), ("files", 0.3), ("files", 0.6)],
)
def test_a_moment_of_trouble_in_a_first_call_leaves_later_calls_right(tmp_path: Path, kind: str, at: float) -> None:
    script = tmp_path / "at.py"
    script.write_text(AT_A_MOMENT)
    command = [sys.executable, str(script), str(at), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


FROM_THREADS = """
import sys, threading
from numbadnn.host.undisturbed import load_numba
sys.setswitchinterval(1e-6)
together, failed = threading.Barrier(4), []
def first():
    together.wait()
    try:
        load_numba()
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=first) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
import numba
print(failed, numba.njit(lambda x: x + 1)(1))
"""


def test_the_first_calls_of_four_threads_load_numba_once() -> None:
    """Numba's import and the first filling of its tables are not made for several threads."""
    done = subprocess.run([sys.executable, "-c", FROM_THREADS], capture_output=True, text=True, check=False)
    assert done.stdout == "[] 2\n", done.stdout + done.stderr


def test_tables_that_were_not_filled_to_the_end_are_filled_anew() -> None:
    class Context:
        def refresh(self) -> None:
            filled.append(self)
            if len(filled) == 2:
                raise MemoryError

    class Target:
        _known = None

        @property
        def typing_context(self) -> Context:
            self._known = self._known or Context()  # as Numba's: made when it is first asked for
            return self._known

        target_context = typing_context

    filled: list[Context] = []
    target = Target()
    with pytest.raises(MemoryError):
        held.fill_tables(target)
    held.fill_tables(target)
    assert len(filled) == 4 and filled[0] is filled[1] is not filled[2] is filled[3]


def test_a_module_that_is_imported_again_registers_in_its_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_IMPLS", {})
    monkeypatch.setattr(registry, "_BY", {})
    source = (
        "from numbadnn.registry import Impl, register\n"
        "def make(name): return register(Impl('softmax', 'cpu', name, None, None, None))\n"
        "first = make('cpu.first'); second = make('cpu.second')\n"
    )
    once, again, other = ({"__name__": name} for name in ("family", "family", "another"))
    exec(source, once)
    exec(source, again)
    assert registry._IMPLS["softmax"] == [again["first"], again["second"]]
    assert registry._IMPLS["softmax"][0] is again["first"]
    for names in (again, other):
        with pytest.raises(ValueError, match=r"'cpu.first' of 'softmax' is registered twice"):
            exec(source if names is other else "make('cpu.first')", names)


def test_what_passes_is_raised_and_not_remembered(tmp_path: Path) -> None:
    """A plan file that could not be read for lack of descriptors was left out until the process ended."""
    path = tmp_path / "plans.json"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with numbadnn.using(plan_file=str(path)):
        right()
        numbadnn.clear_caches()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                numbadnn.softmax(X)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        right()
        last = numbadnn.last_call()
        assert last is not None and last.decided_by.startswith("plan file")
    assert is_passing(MemoryError()) and not is_passing(OSError("no such file"))


# ---- using -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*sets nothing by itself")  # a block that was interrupted before it began
def test_using_leaves_nothing_behind_at_whatever_line_it_is_interrupted() -> None:
    before, hit = config.current(), set()

    def interrupt_at(wanted: int) -> Any:
        left = [wanted]

        def local(frame: Any, event: str, arg: Any) -> Any:
            if event == "line":
                left[0] -= 1
                if left[0] == 0:
                    sys.settrace(None)
                    hit.add((frame.f_code.co_name, frame.f_lineno))
                    raise KeyboardInterrupt
            return local

        def trace(frame: Any, event: str, arg: Any) -> Any:
            ours = frame.f_code.co_filename in (config.__file__, sys.modules["contextlib"].__file__)
            return local if ours and frame.f_code.co_name != "__del__" else None  # Python prints what that raises

        return trace

    for number in range(1, 200):
        done, tracing = False, sys.gettrace()
        sys.settrace(interrupt_at(number))
        try:
            with numbadnn.using(determinism="gpu_to_gpu"):
                pass
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracing)
        assert config.current() is before and config._blocks.get() == (), (number, hit)
        if done:
            break
    assert done and {"_block", "_end", "__enter__", "__exit__"} <= {name for name, _ in hit}


# ---- a call in the middle of another ---------------------------------------------------------------------------------


def test_a_call_while_another_one_looks_for_its_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a signal's handler: the problem is hashed by Python code, in which it may come."""
    inside, of_its_own = [], SoftmaxProblem.__hash__

    def hashed(self: Any) -> int:
        if not inside:
            inside.append(None)
            inside[0] = right(np.ones((2, 11), "float32"))
        return of_its_own(self)

    monkeypatch.setattr(SoftmaxProblem, "__hash__", hashed)
    assert right(np.ones((2, 12), "float32")) and inside == [True]


def test_a_call_while_another_one_writes_the_plan_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, inside, dump = tmp_path / "plans.json", [], json.dump

    def write(*args: Any, **options: Any) -> None:
        if not inside:
            inside.append(None)
            inside[0] = right(np.ones((2, 13), "float32"))
        dump(*args, **options)

    monkeypatch.setattr(stored.json, "dump", write)
    with numbadnn.using(plan_file=str(path)), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert right(np.ones((2, 14), "float32")) and inside == [True]
    problems = {plan["problem"] for plan in json.loads(path.read_text())["plans"]}
    assert {"2x13", "2x14"} == {text.split(":")[1].split()[0] for text in problems}


def test_a_record_that_is_broken_off_is_written_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "plans.json"

    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with numbadnn.using(plan_file=str(path)):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(stored.json, "dump", interrupted)
            numbadnn.softmax(np.ones((2, 15), "float32"))
        assert right(np.ones((2, 15), "float32"))
    assert "2x15" in path.read_text()


def test_a_lock_that_this_thread_holds_is_an_error_and_no_wait(tmp_path: Path) -> None:
    with stored.lock_folder(tmp_path), pytest.raises(stored.InUse), stored.lock_folder(tmp_path):
        pass
    with stored.lock_folder(tmp_path):  # it is free again
        pass


def test_a_call_while_another_one_measures_takes_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, look = [], tune._first_look

    def first_look(*args: Any) -> bool:
        if not inside:
            inside.append(None)
            inside[0] = right(np.ones((2, 16), "float32"))
        return look(*args)

    monkeypatch.setattr(tune, "_first_look", first_look)
    with numbadnn.using(tune="measure", cache_dir=os.devnull), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert right(np.ones((2, 17), "float32")) and inside == [True]


# ---- files and streams that are not there ----------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["plan_file", "errata_file"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_said_once_and_not_waited_for(tmp_path: Path, option: str, kind: str) -> None:
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/full")
    else:
        path.mkdir()
    plan_file.forget()
    with warnings.catch_warnings(record=True) as said, config.using(**{option: str(path)}):
        warnings.simplefilter("always")
        assert right(np.ones((2, 18), "float32")) and right(np.ones((2, 19), "float32"))
    assert [str(w.message).partition(": ")[2] for w in said] == ["it is not a regular file"]


def test_relative_files_in_a_folder_that_was_deleted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    try:
        for n, option in enumerate(("plan_file", "errata_file", "cache_dir")):
            with warnings.catch_warnings(), config.using(**{option: "it"}):
                warnings.simplefilter("ignore")
                assert right(np.ones((2, 20 + n), "float32"))
    finally:
        os.chdir(tmp_path)


def test_a_closed_standard_error_costs_no_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = open(tmp_path / "it", "w")  # noqa: SIM115
    file.close()
    monkeypatch.setattr(sys, "stderr", file)
    with numbadnn.using(verbose="all", tune="measure", cache_dir=os.devnull), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert right(np.ones((2, 24), "float32"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda *args, **more: print("", file=sys.stderr))
        warn("said to nobody")


def test_damaged_heuristics_are_named_and_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "heuristics.json"
    path.write_bytes(ranks.TABLE.read_bytes()[:1000])
    monkeypatch.setattr(ranks, "TABLE", path)
    ranks.table.cache_clear()
    numbadnn.clear_caches()
    try:
        with pytest.warns(RuntimeWarning, match=f"{path} is ignored: it is damaged"):
            y = numbadnn.conv2d(np.ones((1, 1, 4, 4), "float32"), np.ones((1, 1, 2, 2), "float32"))
        assert y[0, 0, 0, 0] == 4
    finally:
        ranks.table.cache_clear()
        numbadnn.clear_caches()


def test_plan_takes_functions_and_no_class() -> None:
    for ask in (numbadnn.plan, numbadnn.explain):
        with pytest.raises(TypeError, match="expected one of numbadnn's compute functions, got .*RNNBlock"):
            ask(numbadnn.RNNBlock, "float32", 2, 1, "gru")


def test_device_memory_that_outlives_its_module_is_left_in_silence() -> None:
    code = (
        "import os\n"
        "from numbadnn.gpu import memory\n"
        "one = memory.DeviceMemory.__new__(memory.DeviceMemory); one.address, one.key = 64, None\n"
        "os.kept = memory, one; del one\n"
    )
    done = fresh(code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_an_install_path_that_is_not_utf_8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    os.symlink(os.path.dirname(os.path.dirname(numbadnn.__file__)) + "/numbadnn", folder + b"/numbadnn")
    code = (
        "import numpy as np, numbadnn as nd; nd.__file__.encode('utf-8', 'strict') if 0 else None\n"
        "x = np.ones((1, 2, 5, 5), 'f4')\n"
        "print(ascii(nd.__file__)[-24:], nd.softmax(np.ones((2, 4), 'f4'))[0, 0], nd.conv2d(x, x[:, :, :2, :2])[0, 0, 0, 0])\n"
    )
    environment = {**os.environb, b"PYTHONPATH": folder, b"NUMBA_CACHE_DIR": os.fsencode(tmp_path / "cache")}
    done = fresh(code, "-W", "error", env=environment, cwd=tmp_path)
    assert done.stdout == "udcff/numbadnn/__init__.py'"[-24:] + " 0.25 8.0\n", done.stderr


def test_registering_every_implementation_imports_no_numba() -> None:
    """Without numba-cuda, which the CPU does not need, no convolution could be computed; with it, each first call waited."""
    code = (
        "import sys; sys.modules['numba'] = sys.modules['numba_cuda'] = sys.modules['cuda'] = None\n"
        "from numbadnn.registry import FAMILY, implementations\n"
        "print(all(implementations(op) for op in FAMILY))\n"
    )
    done = fresh(code)
    assert done.stdout == "True\n", done.stderr


def test_a_first_call_of_numpy_arrays_imports_nothing_of_a_gpu() -> None:
    """It imported the host side of every kernel of the family, and ranked them all before it asked where the arrays are."""
    code = (
        "import sys, numpy as np, numbadnn\n"
        "x, w = np.ones((1, 2, 6, 6), 'f'), np.ones((2, 2, 3, 3), 'f')\n"
        "y = numbadnn.conv2d(x, w)\n"
        "numbadnn.conv2d_grad_wrt_inputs(y, w, input_shape=x.shape)\n"
        "numbadnn.softmax(x)\n"
        "numbadnn.pool(x, (2, 2))\n"
        "with numbadnn.using(exclude='cpu.corrmm', determinism='gpu_to_gpu'):\n"
        "    numbadnn.conv2d(x, w)\n"
        "with numbadnn.using(backend='cudnn', fallback='allow'):\n"
        "    numbadnn.conv2d(x, w)\n"
        "names = ('numbadnn.kernels.', 'numbadnn.cudnn.', 'numba.cuda.', 'numba_cuda.')\n"
        "print([name for name in sys.modules if f'{name}.'.startswith(names)])\n"
        "last = numbadnn.last_call()\n"
        "print(last.backend, last.fallback, *(r.impl for r in last.refusals))\n"
        "print(sum(c.backend != 'cpu' for c in numbadnn.explain(numbadnn.conv2d, x, w).candidates) > 20)\n"
    )
    done = fresh(code)
    assert done.stdout == "[]\ncpu True cudnn.* numba.*\nTrue\n", done.stdout + done.stderr


# ---- frozen by PyInstaller -------------------------------------------------------------------------------------------


def test_pyinstallers_hook_lists_what_is_imported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def collect_submodules(package: str, filter: Any) -> list[str]:
        found = pkgutil.walk_packages(numbadnn.__path__, f"{package}.", onerror=lambda name: None)
        return [package, *(module.name for module in found if filter(module.name))]

    def collect_data_files(package: str, includes: list[str]) -> list[tuple[str, str]]:
        return [(str(path), package) for pattern in includes for path in ROOT.rglob(pattern)]

    hooks: Any = ModuleType("PyInstaller.utils.hooks")
    hooks.collect_submodules, hooks.collect_data_files = collect_submodules, collect_data_files
    monkeypatch.setitem(sys.modules, "PyInstaller.utils.hooks", hooks)
    names = runpy.run_path(str(ROOT / "__pyinstaller" / "hook-numbadnn.py"))
    listed = set(names["hiddenimports"])
    for text in _imported_by_name():
        pattern = re.sub(r"\\\{[^}]*\\\}", r"[\\w.]+", re.escape(text))
        assert any(re.fullmatch(pattern, name) for name in listed), text
    assert {str(ranks.TABLE)} <= {source for source, _ in names["datas"]}
    entries = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]["entry-points"]["pyinstaller40"]
    module, _, function = entries["hook-dirs"].partition(":")
    assert getattr(importlib.import_module(module), function)() == [str(ROOT / "__pyinstaller")]


def _imported_by_name() -> set[str]:
    """The names given to ``import_module`` in the package, with {...} for what is known when it runs; and those of tables."""
    found = {pattern.format("softmax") for pattern in registry.MODULES.values()}
    for path in ROOT.rglob("*.py"):
        package = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        for text in re.findall(r"import_module\(f?\"([^\"]+)\"", path.read_text()):
            found.add(text.replace("{__name__}", package))
    assert len(found) > 10
    return found
