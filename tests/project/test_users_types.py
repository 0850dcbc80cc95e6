"""What mypy says of a user's program: the package is typed, and a misspelt word is found before the program runs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import numbadnn

PROGRAM = """
import numpy as np
import numbadnn

x = np.ones((1, 1, 4, 4), "float32")
with numbadnn.using(backend="cudnn,numba", determinism="gpu_to_gpu", workspace_limit="1MiB") as options:
    numbadnn.conv2d(x, x, border_mode="half", subsample=2, algo="fft", backend="cpu")
numbadnn.set_options(fallback="error", tune=None, plan_strict=True)
numbadnn.softmax(x, "log", axis=-1)
numbadnn.pool(x, 2, mode="sum")
numbadnn.using(bakend="cpu")
numbadnn.using(backend="cudn")
numbadnn.set_options(determinism="gpu2gpu")
numbadnn.conv2d(x, x, backend="gpu")
numbadnn.conv2d(x, x, stride=2)
numbadnn.conv1d(x, x, precision="double")
numbadnn.softmax(x, algo="logarithm")
numbadnn.pool(x, 2, mode="average_pool")
numbadnn.batch_normalization_train(x, x, x, "channel")
"""
#: line -> what stands in mypy's error
WRONG = {
    11: "bakend", 12: "cudn", 13: "gpu2gpu", 14: "gpu", 15: '"stride"|Never', 16: "double", 17: "logarithm", 18: "average_pool",
    19: "channel",
}  # fmt: skip


@pytest.mark.slow(seconds=15)
def test_mypy_finds_misspelt_options(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    root = Path(numbadnn.__file__).parents[1]
    words = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(tmp_path),
        "program.py",
    ]
    env = {**os.environ, "MYPYPATH": str(root)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("program.py:") and ": error: " in line]
    found = {int(line.split(":")[1]): line for line in lines}
    assert set(found) == set(WRONG), done.stdout + done.stderr
    for number, word in WRONG.items():
        assert any(w in found[number] for w in word.split("|")), found[number]
