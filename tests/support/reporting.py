"""What the scripts ``simulated_*.py`` print of their checks, and how they end: ``simulated.checks_passed`` reads it."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from numbadnn.problems.conv import ConvProblem
from numbadnn.validate.oracle import Trial

failed: list[str] = []


def report(name: str, ok: bool, text: object = "") -> None:
    if not ok:
        failed.append(name)
    print("ok  " if ok else "FAIL", name, text, flush=True)


def agree(line: str, kind: str, run: Callable[[ConvProblem, tuple[Any, ...]], Any], arithmetic: str = "ieee") -> None:
    """Report whether the results that ``run`` has of a convolution's arrays are right, of small integers to the bit."""
    problem = ConvProblem.parse(line)
    trial = Trial.of(problem, kind=kind)
    got = run(problem, (*trial.inputs, *(() if trial.old is None else (trial.old,))))
    found = trial.compare_exactly(got) if kind == "integers" else trial.compare(got, arithmetic)
    report(line, bool(found.ok), found)


def end() -> NoReturn:
    """Exit status 1 if a check failed."""
    print("failures", len(failed))
    sys.exit(bool(failed))
