"""What ``validate --determinism`` found, in plain words: trial by trial, and what the levels mean on one machine."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from numbadnn.validate.determinism import levels

if TYPE_CHECKING:
    from numbadnn.validate.determinism.rows import Row

#: trial -> what was done, in the order in which it is told
TRIALS = {
    "again": "repeats",
    "planned anew": "planned anew",
    "addresses": "moved in memory",
    "workspace": "workspace filled with something else",
    "noise": "beside other work",
    "stream": "on another stream",
    "threads": "with other numbers of threads",
    "process": "in new processes",
    "batch": "as a part of another batch",
}
LEVELS = """\
  not_guaranteed   the same call may give other bits
  run_to_run       the same call gives the same bits again on this machine
  batch_invariant  and an image gives the same bits in whatever batch it stands
  gpu_to_gpu       and the same bits on another GPU, which only two machines can show"""


def found_in(rows: list[Row]) -> str:
    """ "2 of 2 repeats identical; moved in memory: identical; ..." over all these rows."""
    parts = []
    for trial, what in TRIALS.items():
        some = [row for row in rows if trial in row.trials]
        if not some:
            continue
        same, runs = (sum(row.runs[trial][i] for row in some if trial in row.runs) for i in (0, 1))
        other = sum(row.trials[trial] == levels.DIFFERENT for row in some)
        if trial == "again" and runs:
            parts.append(f"{same} of {runs} {what} identical")
        elif not other:
            parts.append(f"{what}: identical")
        else:
            parts.append(f"{what}: other bits" + (f" in {other} of {len(some)} cases" if len(rows) > 1 else ""))
    return "; ".join(parts)


def explained(rows: list[Row]) -> str:
    """What a level means, and why less than ``gpu_to_gpu`` is reached where it is declared."""
    lines = ["Levels of determinism, each with what the one above it says:", LEVELS]
    pairs = collections.Counter((row.declared, row.reached) for row in rows if row.verdict == "ok")
    across = sum(n for (declared, _), n in pairs.items() if declared == "gpu_to_gpu")
    if across:
        lines.append(
            f"declared gpu_to_gpu, reached less ({across}): one machine cannot show more, and nothing contradicts it. "
            "Two reports can: numbadnn validate --determinism --compare A.json B.json"
        )
    return "\n".join(lines)
