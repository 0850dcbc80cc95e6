"""The CPU's implementations touch nothing before and behind their arrays: there a page begins that nobody may touch."""

import subprocess
import sys

import pytest
from folders import SUPPORT

#: of the contract's cases, each so many-th
EVERY = 40


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="protects pages by Linux's mprotect")
def test_nothing_is_read_or_written_beside_the_arrays() -> None:
    script = SUPPORT / "fenced_cpu.py"
    done = subprocess.run([sys.executable, script, str(EVERY)], capture_output=True, text=True, check=False)
    *_, last = done.stdout.splitlines() or ["nothing"]
    assert done.returncode == 0, f"status {done.returncode} after {last}: {done.stderr[-2000:]}"
    assert int(last.split()[0]) > 150
