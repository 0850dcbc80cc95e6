"""How a run went, in sentences: its verdict, its counts, and how far it came."""

from __future__ import annotations

import collections
import math
from typing import Any

from numbadnn.validate.documents.document import kind_of

#: exit status -> (what the page is headed with, its kind: good, bad or open)
_VERDICTS = {
    0: ("Everything that was compared agrees", "good"),
    1: ("Something does not agree", "bad"),
    3: ("Nothing could run here", "open"),
    4: ("Incomplete", "open"),
    130: ("Interrupted", "open"),
}
_DONE = {"bench": "Timed", "tuning": "Tuned", "determinism": "Every level that is declared was kept"}


def verdict(document: dict[str, Any]) -> tuple[str, str]:
    """A heading, and whether it is good, bad or open."""
    status, kind = document.get("exit_status"), kind_of(document)
    if status == 0 and kind in _DONE:
        return _DONE[kind], "good"
    if status is None:  # reports of earlier versions do not say how it ended
        return ("Stopped before its end" if "asked" in document else "Results"), "open"
    return _VERDICTS.get(status, (f"Ended with status {status}", "open"))


def counts(flat: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """(result, how many rows, state), the most first."""
    found = collections.Counter((row["result"], row["state"]) for row in flat)
    return [(result, n, state) for (result, state), n in found.most_common()]


def asked(cases: int, done: int, sample: bool = False) -> dict[str, Any]:
    """For the document: how many cases there were to do, and how many were done; ``sample``: no more were asked for."""
    return {"cases": cases, "done": done, "sample": sample}


def how_far(found: dict[str, Any] | None, seconds: float, budget: float | None = None) -> str:
    """ "" where all that was asked for was done; otherwise how much was, and how to go on.

    >>> how_far(asked(474, 160, sample=True), 170.0)
    'a sample of 160 of 474 cases; --all runs every case'
    >>> how_far(asked(474, 160), 170.0, 170.0)
    'incomplete: 314 of 474 cases not run, as the budget of 170 s was spent; to go on, give --budget 510 or more, or name the
    cases that are left'
    """
    if not found or found["done"] >= found["cases"]:
        return ""
    if found["sample"]:
        return f"a sample of {found['done']} of {found['cases']} cases; --all runs every case"
    left = f"incomplete: {found['cases'] - found['done']} of {found['cases']} cases not run"
    if budget is None:
        return left
    needed = 10 * math.ceil(seconds / max(found["done"], 1) * found["cases"] / 10)
    more = f"give --budget {needed} or more" if found["done"] else "give a larger --budget"
    return f"{left}, as the budget of {budget:g} s was spent; to go on, {more}, or name the cases that are left"
