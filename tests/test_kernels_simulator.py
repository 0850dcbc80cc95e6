"""Own kernels without a GPU, held against the reference: the same source under Numba's CUDA simulator, in its own process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    ("part", "checks"),
    [("convolutions", 51), ("softmaxes", 140), ("configurations", 32), ("special_values", 8), ("copies", 72)],
)
def test_kernels_under_the_simulator(part: str, checks: int) -> None:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(TESTS.parent)}
    command = [sys.executable, str(TESTS / "simulated_kernels.py"), part]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith("FAIL")]
    assert done.returncode == 0, "\n".join([*failed, done.stderr[-3000:]])
    assert sum(line.startswith("ok") for line in lines) >= checks


def test_simulate_refuses_outside_the_simulator() -> None:
    from numbadnn.kernels import simulate

    with pytest.raises(RuntimeError, match="NUMBA_ENABLE_CUDASIM"):
        simulate.run(None, ())
