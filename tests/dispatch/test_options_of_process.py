"""``set_options``, ``using`` without ``with``, and what the logger ``numbadnn`` gets."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import config
from numbadnn.gpu import nvtx
from numbadnn.host import log
from numbadnn.option_types import OptionValues

X, W = np.ones((1, 2, 5, 5), "float32"), np.ones((3, 2, 3, 3), "float32")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    numbadnn.set_options(**dict.fromkeys(config.OPTIONS))
    assert config.current() is config.from_environment()


def test_set_options_is_of_every_thread_and_below_using() -> None:
    found = numbadnn.set_options(fallback="error", workspace_limit="2MiB")
    assert (found.fallback, found.workspace_limit, found.origin["fallback"]) == ("error", 2 << 20, "set_options")
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(config.current()))
    thread.start()
    thread.join()
    assert seen == [found] and config.current() is found
    with numbadnn.using(fallback="allow") as inner:
        assert (inner.fallback, inner.workspace_limit) == ("allow", 2 << 20)
        assert numbadnn.set_options(workspace_limit=None, tune="heuristic").workspace_limit == 1 << 30
        now = config.current()
        assert (now.fallback, now.tune, now.origin["fallback"]) == ("allow", "heuristic", "using")
    assert (config.current().fallback, config.current().tune) == ("error", "heuristic")


def test_set_options_decides_warm_calls() -> None:
    for only in ("cpu.corrmm", "cpu.im2col", "cpu.corrmm"):
        numbadnn.set_options(only=only)
        numbadnn.conv2d(X, W)
        last = numbadnn.last_call()
        assert last is not None and last.impl == only


def test_set_options_refuses_and_changes_nothing() -> None:
    before = config.current()
    with pytest.raises(
        TypeError, match=r"set_options\(\): unknown option 'bakend' \('backend' is meant\?\); options are"
    ):
        numbadnn.set_options(bakend="cpu")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"set_options\(fallback=...\): expected one of allow, warn, error, got 'no'"):
        numbadnn.set_options(tune="measure", fallback="no")  # type: ignore[arg-type]
    assert config.current() is before


def test_using_without_with_says_so_at_its_line() -> None:
    with pytest.warns(
        RuntimeWarning, match=r"using\(backend=..., tune=...\) sets nothing by itself: write 'with"
    ) as seen:
        numbadnn.using(backend="cpu", tune="cached")
        gc.collect()
    assert [w.filename for w in seen] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with numbadnn.using(fallback="error"):
            pass

        @numbadnn.using(fallback="error")
        def inner() -> str:
            return config.current().fallback

        assert (inner(), inner(), config.current().fallback) == ("error", "error", "warn")
        with pytest.raises(ValueError, match="expected one of allow"):
            numbadnn.using(fallback="maybe")  # type: ignore[arg-type]
        gc.collect()


def test_the_types_of_options_are_the_options() -> None:
    assert set(OptionValues.__annotations__) == set(config.OPTIONS)


# ---- logging ---------------------------------------------------------------------------------------------------------


def records(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "numbadnn" and r.levelno == level]


def test_choices_and_fallbacks_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "numbadnn")
    numbadnn.clear_caches()
    with numbadnn.using(algo_fwd="winograd", fallback="allow"):
        numbadnn.conv2d(X, W)
        numbadnn.conv2d(X, W)
    assert len(records(caplog, logging.DEBUG)) == 1, "once a problem, not once a call"
    assert "runs on cpu." in records(caplog, logging.DEBUG)[0]
    assert records(caplog, logging.INFO)[-1].startswith("conv2d runs on cpu.im2col instead of algorithm 'winograd'")
    numbadnn.clear_caches()
    with numbadnn.using(algo_fwd="winograd"), pytest.warns(RuntimeWarning, match="instead of algorithm"):
        numbadnn.conv2d(X, W)
    assert len(records(caplog, logging.WARNING)) == 1


def test_a_compilation_is_logged_and_what_was_kept_is_none(tmp_path: Path) -> None:
    program = (
        "import logging, numpy as np, numbadnn; logging.basicConfig(level='INFO')\n"
        "numbadnn.spatialtf_grid(np.ones((1, 2, 3)), (1, 1, 2, 2))"
    )
    env = {**os.environ, "NUMBADNN_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(numbadnn.__file__).parents[1])}
    for compiles in (True, False):
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        assert ("INFO:numbadnn:compiled " in done.stderr) is compiles


def test_nothing_is_shown_unless_logging_is_configured() -> None:
    log.note("debug", "nothing")
    assert any(isinstance(h, logging.NullHandler) for h in logging.getLogger("numbadnn").handlers)


# ---- NVTX ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a stand-in of the package nvtx was told."""
    told: list[str] = []
    fake = types.ModuleType("nvtx")
    fake.push_range = lambda name, domain: told.append(f"{domain}: {name}")  # type: ignore[attr-defined]
    fake.pop_range = lambda domain: told.append("end")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    nvtx.ranges.cache_clear()
    yield told
    nvtx.ranges.cache_clear()


def test_nvtx_ranges_when_asked(said: list[str]) -> None:
    x = np.ones((2, 3), "float32")
    numbadnn.softmax(x)
    assert said == []
    with numbadnn.using(nvtx=True):
        numbadnn.softmax(x)
        numbadnn.softmax(x)
        problem = numbadnn.plan(numbadnn.softmax, x).problem
    assert said == [f"numbadnn: numbadnn cpu.loops {problem}", "end"] * 2
    numbadnn.softmax(x)
    assert len(said) == 4


def test_nvtx_where_nothing_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    for name in ("torch", "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(nvtx.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(f"{name}: no such file")))
    nvtx.ranges.cache_clear()
    with numbadnn.using(nvtx=True), pytest.raises(numbadnn.BackendUnavailableError, match="pip install nvtx"):
        numbadnn.softmax(np.ones((4, 3), "float32"))
    nvtx.ranges.cache_clear()
