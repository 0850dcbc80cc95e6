"""Processes that need the same CUDA kernels at the same moment: each is compiled by one of them, and nobody waits for ever."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT

from numbadnn.kernels.build import cache, launch

#: kernels whose compilation is a short sleep; what a process has compiled, and loaded, is printed
PROGRAM = r"""
import contextlib, sys, time
from numbadnn.kernels.build import cache, launch

def assembled(kernel, arch, make):
    time.sleep(0.3)
    sys.stdout.write(f"compiled {kernel.name}\n")  # at once, as several threads come here
    made = cache.Binary(b"code of " + kernel.name.encode(), kernel.entry, "nobody")
    cache.write(*kernel._file(arch), made, kernel=kernel.name)
    return made

launch.Kernel._lowered = lambda kernel, arch: None
launch.Kernel._assembled = assembled
launch._load = lambda binary: print("loaded", binary.image.decode())
launch.ensure_context = lambda device: contextlib.nullcontext()
launch._driver.compute_capability = lambda device: (9, 0)
launch.load_numba = lambda cuda: None
launch.set_cache_folder(sys.argv[1])
kernels = [launch.Kernel(name, "ptr", lambda: None, 32) for name in sys.argv[3:]]
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "together":
    launch.load_together(0, *kernels)
else:
    for kernel in kernels:
        kernel.load(0)
"""


def begun(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no locks of files")
@pytest.mark.parametrize("how", ["one by one", "together"])
def test_a_kernel_is_compiled_by_one_process(how: str, tmp_path: Path) -> None:
    if how == "together":  # which reads numba-cuda's options
        pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    processes = [begun(tmp_path, how, *names) for names in (("a 1", "b 2"), ("b 2", "a 1"))]
    for process in processes:
        assert process.stdout and process.stdout.readline() == "ready\n"
    said = [process.communicate("go\n", timeout=60)[0].splitlines() for process in processes]
    assert sorted(line for lines in said for line in lines if line.startswith("compiled")) == [
        "compiled a 1",
        "compiled b 2",
    ]
    assert all(sorted(lines)[-2:] == ["loaded code of a 1", "loaded code of b 2"] for lines in said)
    assert {path.suffix for path in (tmp_path / "kernels").iterdir()} == {".kernel"}  # no lock is left behind


def test_a_process_that_never_ends_its_turn_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    kernel = launch.Kernel("a 1", "ptr", lambda: print, 32)
    monkeypatch.setattr(cache, "PATIENCE", 0.2)
    monkeypatch.setattr(launch, "_folder", tmp_path)
    monkeypatch.setattr(launch.Kernel, "_lowered", lambda *_: None)
    monkeypatch.setattr(launch.Kernel, "_assembled", lambda *_: cache.Binary(b"code", "a_1", "nobody"))
    folder, key = kernel._file((9, 0, "a"))
    folder.chmod(0o700)
    with open(folder / f"{key}.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        begin = time.monotonic()
        assert kernel.binary((9, 0, "a")).image == b"code"
        assert 0.2 <= time.monotonic() - begin < 10


def test_a_kernel_made_after_it_was_looked_for_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, other = launch.Kernel("a 1", "ptr", lambda: print, 32), cache.Binary(b"code", "a_1", "another")
    monkeypatch.setattr(launch, "_folder", tmp_path)
    tmp_path.chmod(0o700)
    take = cache.turn

    def late(folder: Path, keys: list[str]) -> Any:  # another process ends its turn just before this one takes its own
        cache.write(folder, keys[0], other)
        return take(folder, keys)

    monkeypatch.setattr(cache, "turn", late)
    assert kernel.binary((9, 0, "a")) == other
