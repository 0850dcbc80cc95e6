"""What the scripts ``simulated_*.py`` print of their checks, and how they end: ``simulated.checks_passed`` reads it."""

import sys
from typing import NoReturn

failed: list[str] = []


def report(name: str, ok: bool, text: object = "") -> None:
    if not ok:
        failed.append(name)
    print("ok  " if ok else "FAIL", name, text, flush=True)


def end() -> NoReturn:
    """Exit status 1 if a check failed."""
    print("failures", len(failed))
    sys.exit(bool(failed))
