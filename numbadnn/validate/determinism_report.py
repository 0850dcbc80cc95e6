"""``numbadnn validate --determinism``: the level each implementation and engine reaches, beside the level it declares.

Every operation and dtype on a large case and a small one, every implementation and, inside cuDNN's graph API, every engine that
heuristics offer (whatever level it declares): the trials of ``levels.py`` here, and the same bits from fresh processes. The
report holds a SHA-256 a case, so that ``--compare`` can hold two machines or versions against each other. What is found
wanting goes into the errata file, which the dispatcher obeys.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from numbadnn import config, errata, info, stored
from numbadnn.cases import Case, all_cases, find, parse
from numbadnn.problem import Policy
from numbadnn.registry import DETERMINISM, Impl, implementations
from numbadnn.validate import levels
from numbadnn.validate.check import policy_in_force

FORMAT = "numbadnn-determinism-1"
OK, MISMATCH, CANNOT_RUN = 0, 1, 3
PROCESSES = 2
LARGEST = 48 << 20  # bytes of a case that is taken at its full size


@dataclass
class Row:
    """One implementation, or one engine of it, on one case; ``verdict``: ok, wanting, failed or "" while unfinished."""

    case: str
    problem: str
    impl: str
    config: Any
    dtype: str
    declared: str
    reached: str = ""
    sha256: str = ""
    trials: dict[str, str] = field(default_factory=dict)
    verdict: str = ""
    reason: str = ""

    @property
    def engine(self) -> int | None:
        return self.config["engine"] if isinstance(self.config, dict) and "engine" in self.config else None

    @property
    def who(self) -> str:
        return self.impl + ("" if self.engine is None else f" engine {self.engine}")

    @property
    def key(self) -> tuple[str, str, str]:
        return self.problem, self.impl, json.dumps(self.config, sort_keys=True)


def run(names: list[str], backend: str | None, budget: float | None, json_file: str | None) -> int:
    """Measure, print, write the report and the errata, and give the exit status."""
    begin = time.perf_counter()
    device = 0 if info.gpus() and backend != "cpu" else -1
    rows = examine(cases(names, device), device, backend, budget)
    for row in rows:
        row.verdict, row.reason = judge(row)
    print(table(rows))
    options = config.current()
    if rows:
        path = errata.store(options, device, wanting(rows), measured_levels(rows))
        print(f"{len(wanting(rows))} found wanting, written to {path}")
    seconds = time.perf_counter() - begin
    print(f"{len(rows)} implementations and engines on {len({r.case for r in rows})} cases in {seconds:.0f} s")
    if json_file:
        facts = {
            "device": stored.device_name(device),
            "versions": stored.versions(device),
            "seconds": round(seconds, 1),
        }
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        document = {"format": FORMAT, "date": date, **facts, "rows": [dataclasses.asdict(r) for r in rows]}
        Path(json_file).write_text(json.dumps(document, indent=1) + "\n")
    if not rows:
        return CANNOT_RUN
    return MISMATCH if any(row.verdict in ("wanting", "failed") for row in rows) else OK


def cases(names: list[str], device: int) -> list[Case]:
    """Those named; by default, for each operation and dtype, the first large layer that is not too large and a small one."""
    if names:
        return find(names)
    chosen: dict[tuple[str, str, str], Case] = {}
    for case in all_cases().values():
        tag = "contract" if "contract" in case.tags else "validate" if "validate" in case.tags else ""
        problem = case.problem(small=device < 0) if tag else None
        if problem is None or any(s.size == 0 for s in (*problem.inputs, *problem.outputs)):
            continue
        if tag == "contract" or problem.bytes <= LARGEST:
            chosen.setdefault((case.op, problem.output.dtype, tag), case)
    return list(chosen.values())


def examine(todo: list[Case], device: int, backend: str | None, budget: float | None) -> list[Row]:
    """All rows of all cases; no further case is begun after ``budget`` seconds."""
    from contextlib import nullcontext

    from numbadnn.kernels._context import ensure_context

    begin, rows = time.perf_counter(), []
    with ensure_context(device) if device >= 0 else nullcontext():
        for number, case in enumerate(todo):
            if budget is not None and time.perf_counter() - begin > budget:
                print(f"{len(todo) - number} cases left out: the budget of {budget:g} s was spent", file=sys.stderr)
                break
            rows += list(_rows(case, device, backend))
            if number % 10 == 9:
                print(f"{number + 1}/{len(todo)} {case.name}", file=sys.stderr, flush=True)
    _fresh_processes(rows, device)
    return rows


def _policy(op: str, device: int) -> Policy:
    """The rules in force, but every level is admitted: a level is what is measured."""
    return dataclasses.replace(policy_in_force(op, device), determinism="not_guaranteed")


def _rows(case: Case, device: int, backend: str | None) -> Iterator[Row]:
    problem = case.problem(small=device < 0)
    policy = _policy(problem.op, device)
    for impl in implementations(problem.op):
        if (impl.backend == "cpu") != (device < 0) or backend not in (None, impl.backend):
            continue
        if impl.supports(problem, policy):
            continue
        for setting in _configurations(impl, problem, policy):
            row = Row(case.name, str(problem), impl.name, setting, problem.output.dtype, impl.determinism)
            try:
                row.declared = impl.plan(problem, policy, configured(impl, problem, policy, setting)).determinism
                found = levels.examine(impl, problem, policy, partial(_configured_for, impl, policy, setting))
                row.reached, row.sha256, row.trials = found.level, found.sha256, found.trials
            except Exception as error:  # one that fails must not hide the others
                row.verdict, row.reason = "failed", f"{type(error).__name__}: {str(error).splitlines()[0]}"
                if _not_built(row.reason):
                    continue
            yield row


def _not_built(reason: str) -> bool:
    return "cuDNN does not build it" in reason or "needs a workspace of" in reason


def _configurations(impl: Impl, problem: Any, policy: Policy) -> list[Any]:
    """Each engine once, as heuristics first offer it; what has no engines is taken as it is."""
    if impl.restore is None or impl.space is None:
        return [None]
    first: dict[Any, Any] = {}
    for setting in impl.space(problem, policy):
        first.setdefault((setting["form"], setting["engine"]), setting)
    return list(first.values()) or [None]


def _configured_for(impl: Impl, policy: Policy, setting: Any, problem: Any) -> Any:
    return configured(impl, problem, policy, setting)


def configured(impl: Impl, problem: Any, policy: Policy, setting: Any) -> Any:
    return impl.restore(problem, policy, setting) if setting is not None and impl.restore else None


# ---- fresh processes -------------------------------------------------------------------------------------------------


def _fresh_processes(rows: list[Row], device: int) -> None:
    """The bits of every row from new processes, one after the other."""
    live = [row for row in rows if not row.verdict]
    lines = "".join(json.dumps([row.problem, row.impl, row.config, device]) + "\n" for row in live)
    for _ in range(PROCESSES if live else 0):
        command = [sys.executable, "-m", "numbadnn.validate.determinism_report"]
        done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
        found = [line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("sha256 ", "error "))]
        for row, (kind, text) in zip(live, found, strict=False):
            same = kind == "sha256" and text == row.sha256
            if row.trials.get("process") != levels.DIFFERENT:
                row.trials["process"] = levels.SAME if same else levels.DIFFERENT
            if not same:
                row.reached, row.reason = "not_guaranteed", text if kind == "error" else ""
        if len(found) < len(live):
            ended = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            row = live[len(found)]
            row.verdict, row.reason = "failed", f"a fresh process ended here: {ended}"


def child() -> None:
    """In a fresh process: a line of JSON in, the SHA-256 of the first run out."""
    from contextlib import nullcontext

    from numbadnn.kernels._context import ensure_context
    from numbadnn.validate.data import make_arrays
    from numbadnn.validate.determinism import fingerprint

    for line in sys.stdin:
        text, name, setting, device = json.loads(line)
        problem = parse(text)
        policy = _policy(problem.op, device)
        (impl,) = (i for i in implementations(problem.op) if i.name == name)
        try:
            with ensure_context(device) if device >= 0 else nullcontext():
                executable = impl.plan(problem, policy, configured(impl, problem, policy, setting))
                inputs, old = make_arrays(problem, 0)
                results = levels.run(executable, problem, policy, inputs, old=old)
            print("sha256", fingerprint(*results), flush=True)
        except Exception as error:
            print("error", f"{type(error).__name__}: {str(error).splitlines()[0]}", flush=True)


# ---- verdicts --------------------------------------------------------------------------------------------------------


def judge(row: Row) -> tuple[str, str]:
    """Whether what was reached is less than what was declared, and which trials say so."""
    if row.verdict:
        return row.verdict, row.reason
    failed = [trial for trial, found in row.trials.items() if found == levels.DIFFERENT]
    if not failed or row.declared == "not_guaranteed":
        return "ok", ""
    if failed == ["batch"] and DETERMINISM.index(row.declared) < DETERMINISM.index("batch_invariant"):
        return "ok", ""
    return "wanting", row.reason or f"other bits: {', '.join(failed)}"


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

    A case whose images cannot be split says nothing of batch_invariant: it counts where no other does.
    """
    found: dict[str, list[Row]] = collections.defaultdict(list)
    for row in rows:
        if row.verdict == "ok" and not (row.engine is not None and row.declared == "not_guaranteed"):
            found[f"{row.impl} {row.problem.split()[0]} {row.dtype}"].append(row)
    weakest = {}
    for name, some in found.items():
        split = [row for row in some if "batch" in row.trials] or some
        weakest[name] = min((row.reached for row in split), key=DETERMINISM.index)
    return weakest


def table(rows: list[Row]) -> str:
    """A line for each implementation or engine, operation and dtype: declared, reached, trials that gave other bits."""
    groups: dict[tuple[str, ...], list[Row]] = collections.defaultdict(list)
    for row in rows:
        groups[row.problem.split()[0], row.dtype, row.who, row.declared].append(row)
    lines = [("operation", "dtype", "implementation", "declared", "reached", "cases", "verdict", "other bits")]
    for (op, dtype, who, declared), some in groups.items():
        reached = min((r.reached for r in some if r.reached), key=DETERMINISM.index, default="-")
        verdict = max((r.verdict for r in some), key=("", "ok", "wanting", "failed").index)
        failed = sorted({t for r in some for t, found in r.trials.items() if found == levels.DIFFERENT})
        reasons = [r.reason for r in some if r.verdict == "failed"][:1]
        lines.append((op, dtype, who, declared, reached, str(len(some)), verdict, ", ".join(failed + reasons)))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


# ---- two reports -----------------------------------------------------------------------------------------------------


def read_report(file: str) -> tuple[dict[str, Any], dict[tuple[str, str, str], Row]]:
    """A report and its rows; ValueError for a file that is none."""
    try:
        document = json.loads(Path(file).read_text())
        rows = [Row(**row) for row in document["rows"]] if document["format"] == FORMAT else None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--compare: {file} is no report of validate --determinism --json: {error!r}") from None
    if rows is None:
        raise ValueError(f"--compare: expected the format {FORMAT!r} in {file}, got {document['format']!r}")
    return document, {row.key: row for row in rows}


def compare(first: str, second: str) -> int:
    """Print which cases have the same bits in two reports; 1 where one that declares gpu_to_gpu in both has not."""
    (a, rows_a), (b, rows_b) = read_report(first), read_report(second)
    for name, document in ((first, a), (second, b)):
        print(f"{name}: {document['device']}, {document['versions']}, {document['date']}")
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


if __name__ == "__main__":
    child()
