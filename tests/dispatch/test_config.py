"""Options: precedence, parsing, the error for an unknown value, and where each value came from."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import numbadnn
from numbadnn import NotSupportedError, config
from numbadnn.host import files as stored

GIVEN = {
    "backend": "cudnn,numba",
    "fallback": "error",
    "determinism": "gpu_to_gpu",
    "fp32_precision": "tf32",
    "accuracy": "elementwise",
    "precision": "float64",
    "algo_fwd": "winograd",
    "algo_bwd_data": "deterministic",
    "algo_bwd_filter": "small",
    "workspace_limit": "1.5MiB",
    "tune": "measure",
    "plan_file": "plans.json",
    "plan_strict": "true",
    "cache_dir": "cache",
    "cudnn_library": "libcudnn.so.9",
    "only": "numba.*",
    "exclude": "cudnn.graph,cpu.*",
    "errata_file": "errata.json",
    "verbose": "dispatch",
    "nvtx": "false",
    "threads": "3",
}


def test_every_option_of_the_interface_exists() -> None:
    assert set(config.OPTIONS) == set(GIVEN)


def _fresh(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("NUMBADNN_")} | environment
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_environment_sets_every_option_and_says_so() -> None:
    code = "from numbadnn import config; o = config.current()\nfor n in config.OPTIONS: print(n, getattr(o, n), o.origin[n])"
    done = _fresh(code, **{f"NUMBADNN_{k.upper()}": v for k, v in GIVEN.items()})
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert lines["workspace_limit"] == f"{3 << 19} environment NUMBADNN_WORKSPACE_LIMIT"
    assert lines["backend"] == "('cudnn', 'numba') environment NUMBADNN_BACKEND"
    assert all(f"environment NUMBADNN_{n.upper()}" in text for n, text in lines.items()) and len(lines) == len(GIVEN)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", "cuda"), ("backend", "cudnn,cudnn"), ("backend", ""), ("fallback", "maybe"), ("determinism", "1"),
        ("workspace_limit", "512"), ("workspace_limit", "5 parsecs"), ("workspace_limit", "9" * 40 + "GiB"),
        ("plan_strict", "1"), ("algo_bwd_data", "small"),
        ("threads", "0"), ("threads", "-1"), ("threads", "many"), ("threads", "1.5"),
        ("only", "numba direct"), ("verbose", "2"), ("cache_dir", ""),
    ],
)  # fmt: skip
def test_an_unknown_value_in_the_environment_names_the_variable_the_values_and_what_came(name: str, value: str) -> None:
    done = _fresh("import numbadnn; numbadnn.config.current()", **{f"NUMBADNN_{name.upper()}": value})
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ValueError: NUMBADNN_{name.upper()}: expected") and last.endswith(f"got {value!r}")


def test_using_beats_the_environment_and_nests() -> None:
    code = (
        "import numbadnn; from numbadnn import config\n"
        "with numbadnn.using(fallback='allow'):\n"
        "    with numbadnn.using(determinism='gpu_to_gpu') as o: print(o.fallback, o.origin['fallback'], o.determinism)\n"
        "print(config.current().fallback)"
    )
    done = _fresh(code, NUMBADNN_FALLBACK="error")
    assert done.stdout.splitlines() == ["allow using gpu_to_gpu", "error"], done.stderr


def test_using_refuses_unknown_options_and_values_and_changes_nothing() -> None:
    before = config.current()
    with pytest.raises(TypeError, match="unknown option 'bakend'"), numbadnn.using(bakend="cpu"):
        pass
    with pytest.raises(ValueError, match=r"using\(backend=...\): expected auto"), numbadnn.using(backend="gpu"):
        pass
    assert config.current() is before


def test_the_same_values_are_the_same_object_so_that_plans_are_found_again() -> None:
    with numbadnn.using(workspace_limit="1MiB") as one:
        pass
    with numbadnn.using(workspace_limit="1024KiB") as two:
        assert one is two


def test_a_block_that_has_ended_begins_again_and_one_in_force_does_not() -> None:
    default, block = config.current().determinism, numbadnn.using(determinism="gpu_to_gpu")
    for _ in range(3):
        with block as options:
            assert options.determinism == config.current().determinism == "gpu_to_gpu"
            with pytest.raises(RuntimeError, match="in force: make another"), block:
                raise AssertionError
            assert config.current().determinism == "gpu_to_gpu"
        assert config.current().determinism == default
        with pytest.raises(KeyError), block:
            raise KeyError


def test_a_block_that_could_not_begin_leaves_nothing_behind() -> None:
    code = (
        "import os, numbadnn; from numbadnn import config\n"
        "try:\n"
        "    with numbadnn.using(backend='cpu'): pass\n"
        "except ValueError: del os.environ['NUMBADNN_TUNE']\n"
        "with numbadnn.using(verbose='none'): pass\n"
        "print(config.current())"
    )
    assert _fresh(code, NUMBADNN_TUNE="bogus").stdout == "Options()\n"


def test_a_generators_block_may_end_within_one_that_began_later() -> None:
    before = config.current()

    def numbers() -> Iterator[int]:
        with numbadnn.using(determinism="gpu_to_gpu"):
            yield 1
            yield 2

    begun = numbers()
    next(begun)
    with numbadnn.using(determinism="batch_invariant"):
        assert list(begun) == [2]
        assert config.current().determinism == "batch_invariant"
    assert config.current() is before


def test_using_is_of_one_thread() -> None:
    seen = []
    with numbadnn.using(fallback="allow"):
        thread = threading.Thread(target=lambda: seen.append(config.current().fallback))
        thread.start()
        thread.join()
    assert seen == [config.from_environment().fallback]


@pytest.mark.parametrize("name", ["backend", "only", "plan_file", "workspace_limit", "determinism"])
def test_values_of_no_type_that_an_option_has(name: str) -> None:
    with pytest.raises(ValueError, match=rf"using\({name}=...\): expected .*got 5"), numbadnn.using(**{name: 5}):
        pass


def test_a_path_holds_no_null_byte() -> None:
    with pytest.raises(ValueError, match=r"using\(plan_file=...\): expected a path"), numbadnn.using(plan_file="a\0b"):
        pass


def test_the_home_folder_by_its_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    with numbadnn.using(plan_file="~/plan.json", cache_dir="/tmp/~") as inner:
        assert (inner.plan_file, inner.cache_dir) == ("/home/somebody/plan.json", "/tmp/~")


def test_a_name_of_no_implementation_that_is_excluded_is_said() -> None:
    x = np.ones((2, 3), "float32")
    for ask in (lambda: numbadnn.explain(numbadnn.softmax, x), lambda: numbadnn.softmax(x)):
        with numbadnn.using(exclude="cpu.lop"), pytest.warns(RuntimeWarning, match="'cpu.lop' .* nothing: cpu.loops"):
            ask()
    with warnings.catch_warnings(), numbadnn.using(exclude="cpu.lin*,cudnn.*,numba.direct"):
        warnings.simplefilter("error")
        with pytest.warns(RuntimeWarning, match=r"'cpu.lin\*' is the name of no implementation"):
            numbadnn.softmax(x)


def test_a_name_of_no_implementation_that_alone_may_run_is_said() -> None:
    x = np.ones((2, 3), "float32")
    meant = "only='cpu.lop' is the name of no implementation: cpu.loops is meant"
    with numbadnn.using(only="cpu.lop"), pytest.raises(NotSupportedError, match=meant):
        numbadnn.softmax(x)
    for ask in (lambda: numbadnn.explain(numbadnn.softmax, x), lambda: numbadnn.softmax(x)):
        with numbadnn.using(only="cpu.lop,cpu.loops"), pytest.warns(RuntimeWarning, match=meant):
            ask()
    with numbadnn.using(only="cpu.*,numba.direct"):
        numbadnn.softmax(x)


def test_none_is_the_default() -> None:
    with numbadnn.using(plan_file="somewhere", backend="cpu"), numbadnn.using(plan_file=None, backend=None) as inner:
        assert (inner.plan_file, inner.backend) == ("", ())


def test_an_empty_variable_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBADNN_TUNE", "")
    with pytest.raises(ValueError, match="NUMBADNN_TUNE: expected heuristic, .*, or unset for the default, got ''"):
        config.from_environment.__wrapped__()


@pytest.mark.parametrize("name", ("NUMBADNN_BACKND", "NUMBADNN_backend", "numbadnn_backend"))
def test_a_misspelt_variable_is_said(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "cpu")
    with pytest.warns(RuntimeWarning, match=f"{name} is not an option .* NUMBADNN_BACKEND is meant"):
        config.from_environment.__wrapped__()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config.from_environment.__wrapped__()
    assert [w.filename for w in caught] == [__file__]  # at the caller's line


@pytest.mark.parametrize(
    ("home", "named", "found"),
    [
        ("/home/a", "", "/home/a/.cache/numbadnn"),
        ("/home/a", "/b", "/b/numbadnn"),
        ("/home/a", "b", "/home/a/.cache/numbadnn"),  # a relative one is to be ignored
        ("~", "", f"{os.devnull}/numbadnn"),  # as of a user without a home: no folder of that name where one stands
    ],
)
def test_where_the_users_cache_is(monkeypatch: pytest.MonkeyPatch, home: str, named: str, found: str) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: home)
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert stored.cache_folder() == Path(found)


def test_a_relative_cache_folder_is_of_the_folder_that_one_is_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert stored.cache_folder("c") == tmp_path / name / "c"


def test_options_show_what_is_not_the_default() -> None:
    with numbadnn.using(fallback="error", only="cpu.*") as options:
        assert "fallback='error'" in repr(options)
        assert "only=('cpu.*',)" in repr(options)
        assert "determinism" not in repr(options)
