"""Run one of the scripts ``simulated_*.py`` in a process with Numba's CUDA simulator, which stays what it is for all its life."""

import os
import subprocess
import sys

from folders import ROOT, SUPPORT


def checks_passed(script: str, *parts: str) -> int:
    """How many checks ``simulated_<script>.py`` made; all of them must hold."""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SUPPORT / f"simulated_{script}.py"), *parts]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith("FAIL")]
    assert done.returncode == 0, "\n".join([*failed, done.stderr[-3000:]])
    return sum(line.startswith("ok") for line in lines)
