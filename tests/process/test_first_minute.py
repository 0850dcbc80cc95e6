"""The first call: a line says what is compiled, ``numbadnn warm`` compiles it ahead, and no time of a call holds it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import numbadnn
from numbadnn.host import compiling

#: what a process does first, then how many kernels it compiled and how many it found
CALLS = """
import numpy as np, numbadnn
numbadnn.softmax(np.ones((4, 17), "float32"))
numbadnn.softmax(np.ones((4000, 300), "float32"))  # on several threads
from numbadnn.host import compiling
print(compiling.compiled, compiling.found)
"""


def process(words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    environment = inherited | {"NUMBADNN_CACHE_DIR": str(folder), "NUMBA_NUM_THREADS": "2"} | environment
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_after_warm_a_process_compiles_nothing(tmp_path: Path) -> None:
    warmed = process(["-m", "numbadnn", "warm", "softmax x=float32:4x17"], tmp_path)
    assert "2 kernels compiled" in warmed.stdout and str(tmp_path) in warmed.stdout
    assert "compiling softmax" not in warmed.stderr, "it says what it does itself"
    called = process(["-c", CALLS], tmp_path)
    assert called.stdout == "0 2\n" and called.stderr == ""


def test_warm_says_why_it_cannot(tmp_path: Path) -> None:
    from numbadnn import __main__ as command
    from numbadnn.gpu import devices

    if not devices.gpus():
        assert command.main(["warm", "softmax", "--gpu"]) == 3
    tmp_path.joinpath("builds").mkdir(mode=0o755)
    with numbadnn.using(cache_dir=tmp_path):
        assert command.main(["warm", "softmax"]) == 3
    assert command.main(["warm", "no such operation"]) == 2


ALLOCATES = """
import numpy as np
from numbadnn.host import builds, compiling

def body(x):
    y = np.empty(x.size)
    for i in range(x.size):
        y[x.size - 1 - i] = x[i]
    return y

print(builds.compiled(body, "stamp")(np.arange(3.0)), compiling.found)
"""


def test_a_kernel_that_allocates_is_loaded_by_a_process_that_compiles_nothing(tmp_path: Path) -> None:
    tmp_path.joinpath("allocates.py").write_text(ALLOCATES)
    for found in (0, 1):
        called = process([str(tmp_path / "allocates.py")], tmp_path / "cache", PYTHONPATH=os.pathsep.join(sys.path))
        assert called.stdout == f"[2. 1. 0.] {found}\n"


def say_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "PATIENCE", 0.0)
    monkeypatch.setattr(compiling, "_said", set())
    monkeypatch.setattr(compiling, "_silent", False)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")


def compile_for_a_while(op: str = "conv2d") -> None:
    with compiling.operation(op), compiling.compiling("gather", "CPU"):
        time.sleep(0.2)


def test_the_line_names_the_operation_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    say_at_once(monkeypatch)
    compile_for_a_while()
    compile_for_a_while()
    assert capfd.readouterr().err == "numbadnn: compiling conv2d for this CPU, once; `numbadnn warm` does it ahead\n"


def test_there_is_no_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    say_at_once(monkeypatch)
    with numbadnn.using(verbose="quiet"):
        compile_for_a_while()
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "here")
    compile_for_a_while()
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr(compiling, "PATIENCE", 60.0)
    compile_for_a_while()
    assert capfd.readouterr().err == ""


def test_time_spent_compiling_is_not_in_the_time_of_a_call(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from numbadnn.call import verbose
    from numbadnn.host import builds, private

    monkeypatch.setattr(private, "_said", {"that nothing is kept"})
    compile_whole = builds.whole.parts

    def slowly(codegen):
        time.sleep(0.5)
        return compile_whole(codegen)

    monkeypatch.setattr(builds.whole, "parts", slowly)
    x = np.ones((2, 3), "float32")
    before = compiling.compiled
    with numbadnn.using(verbose="exec"):
        build = builds.compiled(lambda x: x, "")
        timed = verbose.timed(_Runs(lambda *arguments: build(x)), lambda spent: spent, -1)
        timed((), (), None, None)
    assert compiling.compiled == before + 1 and float(capfd.readouterr().err) < 4e5


class _Runs:
    def __init__(self, run) -> None:
        self.run = run
