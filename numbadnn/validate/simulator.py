"""The CUDA kernels without a GPU: a process of its own runs small cases in Numba's simulator and judges them.

The simulator must be chosen before Numba is imported, hence the process. It reads names of cases, one a line, and writes one
line of JSON for each implementation, then an empty one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

from numbadnn.cases import all_cases, find
from numbadnn.registry import implementations
from numbadnn.validate.check import DIRECT, Row
from numbadnn.validate.laws import law
from numbadnn.validate.oracle import Trial

#: cases of some hundred results: the simulator runs every thread as Python
CONVOLUTIONS = (
    "valid/float32", "valid/float64", "asymmetric/float16", "stride2/float32", "dilation2/float16", "correlation/bfloat16",
    "groups2/float32", "depthwise/float16", "beta/float32", "rows-padded/bfloat16", "reversed/float32", "full/float32",
    "broadcast-filters/float32", "one-pixel/float32",
)  # fmt: skip
WEIGHTS = ("valid/float32", "one-pixel/float32")  # the slowest in the simulator
SOFTMAX = (
    "rows/accurate-channel/float32", "rows/log-channel/float16", "rows/fast-channel/bfloat16",
    "rows/accurate-channel/float64", "one-column/accurate-channel/float32", "images/accurate-channel/float32",
    "images/log-channel/float16", "images/accurate-instance/float32", "rank5/fast-channel/float32",
    "nhwc/accurate-channel/float32", "rows-padded/log-channel/float32", "reversed/accurate-channel/float32",
)  # fmt: skip


def names() -> list[str]:
    """The cases that are run in the simulator."""
    conv = [f"{op}/{name}" for op in ("conv2d", "conv2d_grad_wrt_inputs") for name in CONVOLUTIONS]
    conv += [f"conv2d_grad_wrt_weights/{name}" for name in WEIGHTS]
    softmax = [f"{op}/{name}" for op in ("softmax", "softmax_grad") for name in SOFTMAX]
    return conv + softmax + [case.name for case in all_cases().values() if "simulate" in case.tags]


def missing() -> str:
    """Why the simulator cannot run ("" = it can)."""
    if importlib.util.find_spec("numba_cuda") is None and importlib.util.find_spec("numba.cuda") is None:
        return "the simulator is part of numba-cuda, which is not installed (pip install numbadnn[cu12])"
    return ""


class Simulator:
    """The process; ``check(name)`` gives the rows of one case. A process that dies gives an error row, then no more."""

    def __init__(self) -> None:
        environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def check(self, name: str) -> list[Row]:
        process = self._process
        rows: list[Row] = []
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(name + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return [Row(name, "numba (simulator)", "", "error", "the simulator's process has ended")]
        for line in process.stdout:
            if not line.strip():
                return rows
            if line.startswith("{"):
                row = Row(**json.loads(line))
                row.where = tuple(row.where)
                rows.append(row)
        return [*rows, Row(name, "numba (simulator)", "", "error", f"the simulator ended with status {process.wait()}")]

    def close(self) -> None:
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):  # what was not read by a process that died
                self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


def simulate(name: str) -> list[Row]:
    """In the process: every Numba implementation on one case, random data and small integers."""
    from numbadnn.kernels._support import device_reason
    from numbadnn.problem import Policy

    (case,) = find([name])
    problem, policy = case.problem(), Policy(device=0)
    trial = Trial.of(problem)
    integers = Trial.of(problem, 0, "integers") if law(problem.op).exact_integers(problem) else None
    rows = []
    for impl in implementations(problem.op):
        if impl.backend != "numba":
            continue
        row = Row(name, f"{impl.name} (simulator)", str(problem), "ok", arithmetic=impl.arithmetic)
        rows.append(row)
        reason = impl.supports(problem, policy)
        if reason and reason != device_reason(policy):  # that there is no GPU is why we are here
            row.status, row.reason = "refused", reason
            continue
        try:
            _judge(row, impl, trial, integers)
        except Exception as error:
            row.status, row.reason = "error", f"{type(error).__name__}: {error}"
    return rows


def _judge(row: Row, impl: Any, trial: Trial, integers: Trial | None) -> None:
    from numbadnn.kernels import simulate as kernels

    def run(t: Trial) -> Any:
        return kernels.run(t.problem, t.inputs if t.old is None else (*t.inputs, t.old), impl.name)

    found = trial.compare(run(trial), impl.arithmetic)
    row.worst, row.where, row.ulp = found.worst, found.where, found.ulp
    wrong = [] if found.ok else [str(found)]
    if integers is not None and impl.arithmetic in DIRECT:
        exactly = integers.compare_exactly(run(integers))
        row.exact = exactly.ok
        wrong += [] if exactly.ok else [f"small integers: {exactly}"]
    if wrong:
        row.status, row.reason = "mismatch", "; ".join(wrong)


def main() -> None:
    for line in sys.stdin:
        for row in simulate(line.strip()):
            print(json.dumps(row.as_dict()))
        print(flush=True)


if __name__ == "__main__":
    main()
