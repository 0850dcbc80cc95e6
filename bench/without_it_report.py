"""What ``bench_without_it.py`` measured, as a table: each kernel, its lines, and what is lost without it.

A loss is the fastest of what is left over the fastest of all: 1 where the kernel is not the fastest. What is left may be a
variant, for with a kernel goes the condition that lets it go first. Geometric means are over all rows of the kernel's wing.
"""

from __future__ import annotations

import fnmatch
import json
import re
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness import geometric_mean
from without_it_kernels import HOSTS, PARTS, lines_of

Row = dict[str, Any]


def read(file: Path) -> list[Row]:
    """The rows that were measured, the last of each problem."""
    found = (json.loads(line) for line in file.read_text().splitlines())
    return list({row["problem"]: row for row in found if row.get("us")}.values())


def short(row: Row) -> dict[str, float]:
    return {name.removeprefix("numba."): us for name, us in row["us"].items()}


def gone_with(name: str, row: Row) -> set[str]:
    """The candidates of a row that there are not without a kernel or a part of one."""
    us = short(row)
    if name not in PARTS:
        return {other for other in us if other == name or other.startswith(f"{name} (")}
    pattern, variant, problems, _ = PARTS[name]
    if problems not in row["problem"]:
        return set()
    mine = {other for other in us if fnmatch.fnmatchcase(other.partition(" (")[0], pattern)}
    kept = {other for other in mine if variant and other.endswith(f"({variant})")}
    # a part is felt where there is a variant: elsewhere the kernel is as it would be without
    return mine - kept if kept or not variant else set()


def loss(row: Row, names: Iterable[str]) -> float:
    """The fastest without these over the fastest of what there is today; infinite where nothing is left."""
    us, gone = short(row), set().union(*(gone_with(name, row) for name in names))
    left = [t for name, t in us.items() if name not in gone]
    best = min((t for name, t in us.items() if " (" not in name), default=min(us.values()))
    return max(1.0, min(left) / best) if left else float("inf")


def kernels(rows: list[Row]) -> list[str]:
    """Every own kernel and part that was measured, with more lines of its own first."""
    found = [name for name in (*HOSTS, *PARTS) if any(gone_with(name, row) for row in rows)]
    return sorted(found, key=lambda name: -lines_of([name]))


def line_of(name: str, rows: list[Row], others: list[Row]) -> list[str]:
    takes = [row for row in rows if gone_with(name, row)]
    wings = {row["wing"] for row in takes}
    losses = [loss(row, [name]) for row in takes]
    felt = [value for value in losses if value > 1]
    everywhere = [loss(row, [name]) for row in rows if row["wing"] in wings]
    elsewhere = [loss(row, [name]) for row in others if gone_with(name, row)]
    cells = (
        lines_of([name]), len(takes), len(felt), _number(statistics.median(felt) if felt else 1.0),
        _number(max(losses, default=1.0)), _number(geometric_mean(everywhere) if everywhere else 1.0),
        _number(max(elsewhere)) if elsewhere else "",
    )  # fmt: skip
    return [f"`{name}`", *map(str, cells)]


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 100 else "all lost" if value == float("inf") else f"{value:.0f}"


HEAD = (
    "kernel", "lines that only it needs", "rows it takes", "fastest in", "median loss there", "worst",
    "geometric mean of the wing", "worst in rows of no bench",
)  # fmt: skip


def report(file: Path, without: list[str], no_bench: set[str]) -> str:
    """The table in Markdown; with ``without`` what all of these cost together, row by row. ``no_bench``: problems apart."""
    every = read(file)
    rows, others = ([r for r in every if (r["problem"] in no_bench) == apart] for apart in (False, True))
    table = [HEAD, ["---"] * len(HEAD), *(line_of(name, rows, others) for name in kernels(every))]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    return text if not without else "\n".join((text, "", *together(rows, without), *together(others, without)))


def together(rows: list[Row], names: list[str]) -> Iterator[str]:
    """What is lost without all of these: wing by wing, then the rows that feel it."""
    yield f"Without {', '.join(f'`{n}`' for n in names)} ({lines_of(names)} lines):"
    yield ""
    for wing in dict.fromkeys(row["wing"] for row in rows):
        losses = [loss(row, names) for row in rows if row["wing"] == wing]
        felt, mean = sum(v > 1 for v in losses), _number(geometric_mean(losses))
        yield f"- {wing}: {felt} of {len(losses)} rows slower, worst {_number(max(losses))}, geometric mean {mean}"
    yield ""
    for row in sorted(rows, key=lambda row: -loss(row, names)):
        if loss(row, names) > 1:
            us = short(row)
            left = {n: t for n, t in us.items() if n not in set().union(*(gone_with(name, row) for name in names))}
            best, second = min(us, key=lambda n: us[n]), min(left, key=lambda n: left[n], default="nothing")
            yield f"    {loss(row, names):.3f} {best} {us[best]} -> {second} {left.get(second)}: {_brief(row['problem'])}"


def _brief(problem: str) -> str:
    return re.sub(r" (dilation=1,1|flip=0|groups=1|alpha=1|beta=0|y=\S+)(?= |$)", "", problem)
