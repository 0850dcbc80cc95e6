"""The CUDA kernels without a GPU: a process of its own runs small cases in Numba's simulator and judges them.

The simulator must be chosen before Numba is imported, hence the process. It reads lines, "CASE" for every implementation on
one case or "OPERATION IMPLEMENTATION" for one or two tiny cases that this kernel takes, and answers each with one line of
JSON a result, then an empty one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

from numbadnn.cases import Case, all_cases, find
from numbadnn.measuring.laws import law
from numbadnn.registry import FAMILY, Impl, implementations
from numbadnn.validate.check import DIRECT, Row
from numbadnn.validate.oracle import Trial

#: the smallest case whose work is not below this shows more than one product; a second case may cost at most the next, the
#: first the last: beyond that the simulator takes minutes
LEAST_WORK, SECOND_WORK, MOST_WORK = 90, 3000, 100_000


def kernels() -> list[tuple[str, str]]:
    """(operation, implementation) of every own kernel: what is run in the simulator."""
    return [(op, impl.name) for op in FAMILY for impl in implementations(op) if impl.backend == "numba"]


def missing() -> str:
    """Why the simulator cannot run ("" = it can)."""
    if importlib.util.find_spec("numba_cuda") is None and importlib.util.find_spec("numba.cuda") is None:
        return "the simulator is part of numba-cuda, which is not installed (pip install numbadnn[cu12])"
    if importlib.util.find_spec("greenlet") is None:
        return "the simulator takes turns by greenlet, which is not installed (pip install numbadnn[cli])"
    return ""


class Simulator:
    """The process; ``check(line)`` gives the rows of a case or a kernel. One that dies gives an error row, then no more."""

    def __init__(self) -> None:
        environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,  # Ctrl-C is the parent's, whose table would call the process's end an error
        )  # fmt: skip

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


def simulate(line: str) -> list[Row]:
    """In the process: one kernel on its cases, or every kernel on one case; random data and small integers."""
    op, _, name = line.partition(" ")
    if (op, name) in kernels():
        return [row for impl in implementations(op) if impl.name == name for row in _simulate_kernel(impl)]
    (case,) = find([line])
    return [_row(case, impl, *_trials(case)) for impl in implementations(case.op) if impl.backend == "numba"]


def _simulate_kernel(impl: Impl) -> list[Row]:
    cases, reason = chosen(impl)
    if not cases:
        return [Row(impl.op, f"{impl.name} (simulator)", "", "refused", reason)]
    return [_row(case, impl, *_trials(case)) for case in cases]


def chosen(impl: Impl) -> tuple[list[Case], str]:
    """The smallest case that the kernel takes, and the smallest of another dtype if it is small; else why it takes none."""
    from numbadnn.problem import Policy

    found: dict[str, Case] = {}
    reason = "no case is small enough"
    for size, case in _by_work(impl.op):
        problem = case.problem()
        dtype = problem.outputs[0].dtype
        if dtype in found or size < LEAST_WORK or (found and size > SECOND_WORK):
            continue
        if refusal := impl.supports(problem, Policy(device=0)):
            reason = refusal
            continue
        if size > MOST_WORK:
            return [], "takes no case that is small enough for the simulator"
        found[dtype] = case
        if len(found) == 2:
            break
    return list(found.values()), reason


def is_small(case: Case) -> bool:
    """Whether the simulator gets through a case in a few seconds."""
    return "simulate" in case.tags or ("contract" in case.tags and work(case.problem()) <= SECOND_WORK)


def work(problem: Any) -> int:
    """Multiplications, or elements where there are more."""
    return int(max(problem.flops, *(s.size for s in (*problem.inputs, *problem.outputs))))


@functools.cache
def _by_work(op: str) -> list[tuple[int, Case]]:
    """The small cases of an operation, the least work first."""
    cases = (c for c in all_cases().values() if c.op == op and c.tags & {"simulate", "contract"})
    return sorted(((work(c.problem()), c) for c in cases), key=lambda pair: pair[0])


@functools.lru_cache(maxsize=2)
def _trials(case: Case) -> tuple[Trial, Trial | None]:
    problem = case.problem()
    exact = law(problem.op).exact_integers(problem)
    return Trial.of(problem), Trial.of(problem, 0, "integers") if exact else None


def _row(case: Case, impl: Impl, trial: Trial, integers: Trial | None) -> Row:
    """The verdict on one kernel; that there is no GPU is why we are here, so it is no reason to refuse."""
    from numbadnn.kernels.build.support import device_reason
    from numbadnn.problem import Policy

    problem, policy = trial.problem, Policy(device=0)
    row = Row(case.name, f"{impl.name} (simulator)", str(problem), "ok", arithmetic=impl.arithmetic)
    reason = impl.supports(problem, policy)
    if reason and reason != device_reason(policy):
        row.status, row.reason = "refused", reason
        return row
    try:
        _judge(row, impl, trial, integers)
    except Exception as error:
        row.status, row.reason = "error", f"{type(error).__name__}: {error}"
    return row


def _judge(row: Row, impl: Impl, trial: Trial, integers: Trial | None) -> None:
    from numbadnn.validate import simulate as kernels

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
