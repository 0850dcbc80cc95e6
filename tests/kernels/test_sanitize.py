"""The run under compute-sanitizer, as far as no GPU is needed: every kernel has a problem, and what is found is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba_cuda")

import sanitize
import sanitize_cases
from simulated import checks_passed

#: in types that no problem chooses them for
WITHOUT_A_PROBLEM = {"implicit_tiles bfloat16"}

#: in the place of compute-sanitizer: problem 3 spoils its process, 5 is wrong, and 8 reads what is not its own
WATCHER = """#!{python}
import sys
at = sys.argv.index("--part")
tool = sys.argv[sys.argv.index("--tool") + 1]
for number in map(int, sys.argv[at + 1:]):
    print("BEGIN", number)
    if number == 3:
        sys.exit(4)
    print(f"WRONG {{number}} '2 elements'" if number == 5 else f"RIGHT {{number}}")
if "8" in sys.argv[at:] and tool == "memcheck":
    print("========= Invalid __global__ read of size 4 bytes\\n=========     at numbadnn_copy_2_bytes+0x10")
    sys.exit(9)
"""


@pytest.mark.slow(20)
def test_every_kernel_is_launched_by_a_problem() -> None:
    numbers, missing = sanitize_cases.needed()
    assert set(missing) <= WITHOUT_A_PROBLEM
    assert 100 < len(numbers) < 500
    impls = {c.impl for n, c in enumerate(sanitize_cases.candidates()) if n in set(numbers)}
    assert {"numba.unshared", "numba.unshared_weights_many", "numba.line", "numba.rnn", "numba.implicit_gemm"} <= impls


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unshared box forward float32 8 4", "unshared box forward float32"),
        ("gemm_tiles float16 float32 64", "gemm_tiles float16"),
        ("rnn_lengths 16", "rnn_lengths"),
        ("transpose pairs", "transpose pairs"),
    ],
)
def test_a_kernel_is_known_by_its_words_and_its_type(name: str, said: str) -> None:
    assert sanitize_cases.known(name) == said


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "compute-sanitizer"
    script.write_text(WATCHER.format(python=sys.executable))
    script.chmod(0o755)
    monkeypatch.setattr(sanitize, "sanitizer", lambda: str(script))
    monkeypatch.setattr(sanitize, "BATCH", 4)


def test_what_is_found_is_told_and_the_rest_is_run(watched: None, capsys: Any) -> None:
    numbers = [sanitize.COPIES, *range(10)]
    watch = sanitize.Watch("memcheck", numbers, 2, 60)
    assert watch.right == {-1, 0, 1, 2, 4, 6, 7, 8, 9} and set(watch.wrong) == {5} and set(watch.ended) == {3}
    assert not watch.show(numbers, 1.0)
    out = capsys.readouterr().out
    assert "Invalid __global__ read" in out and "in numbadnn_copy_2_bytes" in out
    assert (
        "memcheck: 9 of 11 problems right, 1 wrong, 1 ended their process, 0 not run; 1 processes with findings" in out
    )


def test_all_is_well_only_where_all_was_run(watched: None, capsys: Any) -> None:
    assert sanitize.Watch("racecheck", [0, 1, 2], 2, 60).show([0, 1, 2], 1.0)
    assert not sanitize.Watch("racecheck", [0, 1, 2], 2, 0).show([0, 1, 2], 1.0)
    assert "3 not run" in capsys.readouterr().out


@pytest.mark.slow(10)
def test_problems_run_in_memory_of_their_size() -> None:
    assert checks_passed("sanitize") == 10


@pytest.mark.slow(5)
def test_no_kernel_reads_workspace_that_none_has_written() -> None:
    assert checks_passed("unwritten") == 5
