"""What ``validate --determinism`` found, row by row: verdicts, the errata that follow, the table, and two reports held together.

A row is one implementation, or one engine of cuDNN's, on one case: the level it declares, the level it reached, which trials it
went through and how often the bits were the same, and a SHA-256 of the bytes. A report is JSON with a row a line, so that it can
be committed and compared.
"""

from __future__ import annotations

import collections
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numbadnn.registry import DETERMINISM
from numbadnn.validate.determinism import batches, levels
from numbadnn.validate.determinism.words import TRIALS, found_in
from numbadnn.validate.documents import document
from numbadnn.validate.documents.columns import aligned

FORMAT = document.FORMATS["determinism"][0]
OK, MISMATCH, CANNOT_RUN, INCOMPLETE = 0, 1, 3, 4

#: of a row, and of several in this order: the last of them that any has
VERDICTS = ("", NOT_TRIED := "not tried", "ok", "wanting", "failed")


@dataclass
class Row:
    """One implementation, or one engine of it, on one case; ``verdict``: one of VERDICTS, "" while unfinished."""

    case: str
    problem: str
    impl: str
    config: Any
    dtype: str
    declared: str
    reached: str = ""
    sha256: str = ""
    trials: dict[str, str] = field(default_factory=dict)
    runs: dict[str, list[int]] = field(default_factory=dict)
    verdict: str = ""
    reason: str = ""

    @property
    def engine(self) -> int | None:
        return self.config["engine"] if isinstance(self.config, dict) and "engine" in self.config else None

    @property
    def asked(self) -> str:
        """The level that it was asked for, "" for what it is unasked."""
        return self.config["determinism"] if isinstance(self.config, dict) and "determinism" in self.config else ""

    @property
    def who(self) -> str:
        asked = f" at {self.asked}" if self.asked else ""
        return self.impl + asked + ("" if self.engine is None else f" engine {self.engine}")

    @property
    def key(self) -> tuple[str, str, str]:
        return self.problem, self.impl, json.dumps(self.config, sort_keys=True)


def judge(row: Row) -> tuple[str, str]:
    """Whether what was reached is less than what was declared, and which trials say so; "not tried" where none could."""
    if row.verdict:
        return row.verdict, row.reason
    failed = [trial for trial, found in row.trials.items() if found == levels.DIFFERENT]
    batches_too = DETERMINISM.index(row.declared) >= DETERMINISM.index("batch_invariant")
    if failed and row.declared != "not_guaranteed" and (batches_too or failed != ["batch"]):
        return "wanting", row.reason or f"other bits: {', '.join(failed)}"
    untried = batches.untried(row.problem.split()[0], row.trials, batches_too)
    return (NOT_TRIED, untried) if untried else ("ok", "")


def wanting(rows: list[Row]) -> list[dict[str, Any]]:
    """The errata entries that follow."""
    return [
        {
            "impl": row.impl,
            "op": row.problem.split()[0],
            "dtype": row.dtype,
            **({} if row.engine is None else {"engine": row.engine}),
            "level": row.reached,
            "evidence": f"{row.reason} on {row.problem}",
        }
        for row in rows
        if row.verdict == "wanting"
    ]


def measured_levels(rows: list[Row]) -> dict[str, str]:
    """ "implementation operation dtype" -> the weakest level that any of its cases reached; engines found wanting are out.

    A case whose images cannot be split says nothing of batch_invariant: it counts where no other does. What was asked for its
    level counts, not what it reached unasked.
    """
    found: dict[str, list[Row]] = collections.defaultdict(list)
    asked = {(row.problem, row.impl) for row in rows if row.asked}
    for row in rows:
        if (
            row.verdict in ("ok", NOT_TRIED)
            and (row.asked or (row.problem, row.impl) not in asked)
            and row.reached
            and not (row.engine is not None and row.declared == "not_guaranteed")
        ):
            found[f"{row.impl} {row.problem.split()[0]} {row.dtype}"].append(row)
    weakest = {}
    for name, some in found.items():
        split = [row for row in some if "batch" in row.trials] or some
        weakest[name] = min((row.reached for row in split), key=DETERMINISM.index)
    return weakest


def table(rows: list[Row]) -> str:
    """For each implementation or engine, operation and dtype: declared and reached, and below it what each trial found."""
    groups: dict[tuple[str, ...], list[Row]] = collections.defaultdict(list)
    for row in rows:
        groups[row.problem.split()[0], row.dtype, row.who, row.declared].append(row)
    lines = [("operation", "dtype", "implementation", "declared", "reached", "cases", "verdict")]
    below = [""]
    for (op, dtype, who, declared), some in groups.items():
        reached = min((r.reached for r in some if r.reached), key=DETERMINISM.index, default="-")
        verdict = max((r.verdict for r in some), key=VERDICTS.index)
        lines.append((op, dtype, who, declared, reached, str(len(some)), verdict))
        reasons = [r.reason for r in some if r.verdict == verdict and verdict in ("failed", NOT_TRIED)][:1]
        below.append("; ".join(filter(None, (found_in(some), *reasons))))
    return "\n".join(
        f"{text}\n    {found}" if found else text for text, found in zip(aligned(lines), below, strict=True)
    )


def exercised(rows: list[Row]) -> str:
    """How many rows went through each trial: what was not tried says nothing."""
    counts = collections.Counter(trial for row in rows for trial in row.trials)
    different = collections.Counter(t for row in rows for t, found in row.trials.items() if found == levels.DIFFERENT)
    parts = [
        f"{what} {counts[trial]}" + (f", other bits in {different[trial]}" if different[trial] else "")
        for trial, what in TRIALS.items()
        if counts[trial]
    ]
    return f"tried, of {len(rows)} rows: " + "; ".join(parts)


def exit_status(rows: list[Row]) -> int:
    """Of rows that were all judged: 1 for one that is wanting or failed, 3 where none could be tried."""
    if any(row.verdict in ("wanting", "failed") for row in rows):
        return MISMATCH
    return OK if any(row.verdict == "ok" for row in rows) else CANNOT_RUN


# ---- two reports -----------------------------------------------------------------------------------------------------


def read_report(file: str) -> tuple[dict[str, Any], dict[tuple[str, str, str], Row]]:
    """A report and its rows; ValueError for a file that is none."""
    try:
        text = Path(file).read_bytes()
    except OSError as error:
        raise ValueError(f"--compare: cannot read {file}: {error.strerror}") from None
    try:
        report = json.loads(text)
        rows = [Row(**row) for row in report["rows"]] if report["format"] == FORMAT else []
        found = {row.key: row for row in rows}
        if lacking := [name for name in ("device", "versions", "date") if name not in report]:
            raise KeyError(*lacking)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"--compare: {file} is no report of validate --determinism --json: {type(error).__name__}: {error}"
        ) from None
    if report["format"] != FORMAT:
        raise ValueError(f"--compare: expected the format {FORMAT!r} in {file}, got {report['format']!r}")
    return report, found


def compare(first: str, second: str) -> int:
    """Print which cases have the same bits in two reports; 1 where one that declares gpu_to_gpu in both has not."""
    (a, rows_a), (b, rows_b) = read_report(first), read_report(second)
    for name, report in ((first, a), (second, b)):
        print(f"{name}: {report['device']}, {report['versions']}, {report['date']}")
    both = [key for key in rows_a if key in rows_b and rows_a[key].sha256 and rows_b[key].sha256]
    broken = []
    counts: dict[tuple[str, str], list[int]] = collections.defaultdict(lambda: [0, 0])
    for key in both:
        one, other = rows_a[key], rows_b[key]
        same = one.sha256 == other.sha256
        counts[one.who, one.declared][0 if same else 1] += 1
        if not same and one.declared == other.declared == "gpu_to_gpu":
            broken.append(one)
    for (who, declared), (equal, different) in sorted(counts.items()):
        print(f"  {who} ({declared}): {equal} cases with the same bits, {different} with others")
    print(f"{len(both)} cases in both, {len(rows_a) - len(both)} and {len(rows_b) - len(both)} in one alone")
    for row in broken:
        print(f"gpu_to_gpu, but other bits: {row.who} on {row.problem}")
    if not both:
        return CANNOT_RUN
    return MISMATCH if broken else OK
