"""What ``bench_layers.py`` measured: the table, geometric means, who wins how often, the file, and the plot where matplotlib is.

Ratios are of times, above 1 where ours is faster: ``torch/auto``; ``cudnn/numba``, the kernels of this project beside cuDNN; and
``best/auto``, the fastest of all columns that are ours over what was chosen.
"""

from __future__ import annotations

import collections
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness import RESULTS, commit, device_name, geometric_mean, table, versions

FORMAT = "numbadnn-layers-1"
NOISE = 0.03  # two times that differ by less are one
Row = dict[str, Any]


def ratio(row: Row, over: str, under: str) -> float | None:
    """The time of one column over another's, None where either was not measured."""
    a, b = row["us"].get(over), row["us"].get(under)
    return a / b if a and b else None


def best_over_auto(row: Row) -> float | None:
    """The fastest of our backends over what was chosen: below 1 where the choice was not the best."""
    ours = [row["us"][name] for name in ("auto", "numba", "cudnn") if row["us"].get(name)]
    return min(ours) / row["us"]["auto"] if row["us"].get("auto") else None


RATIOS: dict[str, Callable[[Row], float | None]] = {
    "torch/auto": lambda row: ratio(row, "torch", "auto"),
    "cudnn/numba": lambda row: ratio(row, "cudnn", "numba"),
    "best/auto": best_over_auto,
}


def roof_us(row: Row, roofs: dict[str, float]) -> float:
    """Microseconds that the copy speed or the matrix-product rate of the machine allow at best."""
    return max(row["bytes"] / roofs["copy"] / 1e3, row["flops"] / roofs[row["arithmetic"]] / 1e6)


def report(file: Path | None, rows: list[Row], roofs: dict[str, float], facts: dict[str, Any] | None = None) -> int:
    """Print everything, write JSON and the plot; the exit status: 1 where a result was refused, 3 where there is none."""
    if not rows:
        print("nothing was measured")
        return 3
    rows.sort(key=lambda r: (r["network"], r["layer"], r["direction"], r["arithmetic"], r["layout"]))
    print_table(rows, roofs)
    print(means(rows))
    print(winners(rows))
    path = write(file, rows, roofs, facts)
    print("written to", path)
    try:
        from plot_layers import plot

        print("drawn in", plot(path))
    except ImportError:
        print(f"matplotlib is missing: python bench/plot_layers.py {path} draws it where it is installed")
    return 1 if any("times the bound" in why for row in rows for why in row["refused"].values()) else 0


COLUMNS = ("layer", "direction", "arithmetic", "layout", "chosen", "auto", "numba", "cudnn", "torch")


def _cells(row: Row, roofs: dict[str, float]) -> Row:
    cells: Row = {name: row[name] for name in ("direction", "arithmetic", "layout")}
    cells |= {"layer": f"{row['network']}/{row['layer']}", "chosen": row["impl"].get("auto", "nothing")}
    for name in ("auto", "numba", "cudnn", "torch", "torch-deterministic"):
        if name in row["us"]:
            cells[name] = row["us"][name]
        elif name in row["refused"]:
            cells[name] = "REFUSED" if "times the bound" in row["refused"][name] else "-"
    cells |= {name: found for name, make in RATIOS.items() if (found := make(row)) is not None}
    if row["us"].get("auto"):
        cells["of roof"] = roof_us(row, roofs) / row["us"]["auto"]
    return cells


def print_table(rows: list[Row], roofs: dict[str, float]) -> None:
    """Microseconds and ratios, with colours where rich is installed."""
    cells = [_cells(row, roofs) for row in rows]
    promise = ("torch-deterministic",) if any("torch-deterministic" in row["us"] for row in rows) else ()
    columns = (*COLUMNS, *promise, *RATIOS, "of roof")
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(table(cells, columns))
        return
    shown = Table(title="microseconds, and ratios of times", row_styles=("", "dim"))
    for name in columns:
        shown.add_column(name, justify="left" if name in COLUMNS[:5] else "right", no_wrap=True)
    for line in cells:
        shown.add_row(*(_styled(name, line.get(name)) for name in columns))
    Console(width=None if os.isatty(1) else 200).print(shown)


def _styled(name: str, value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)
    if name in RATIOS and isinstance(value, float):
        return f"[{'green' if value >= 1 - NOISE else 'yellow' if value >= 0.8 else 'red'}]{text}[/]"
    return f"[bold red]{text}[/]" if text == "REFUSED" else text


def means(rows: list[Row]) -> str:
    """Geometric means of the ratios by arithmetic, layout and direction, by network, and of everything."""
    keys: dict[str, Callable[[Row], str]] = {
        "setting": lambda r: f"{r['arithmetic']} {r['layout']} {r['direction']}",
        "network": lambda r: r["network"],
        "all": lambda r: "all cases",
    }
    lines = []
    for key in keys.values():
        groups: dict[str, list[Row]] = collections.defaultdict(list)
        for row in rows:
            groups[key(row)].append(row)
        lines += [_mean_line(name, some) for name, some in sorted(groups.items())]
    columns = ["geometric mean of", "cases"]
    for name in RATIOS:
        columns += [name, f"{name} least", f"{name} >= {'0.98' if name == 'best/auto' else '0.97'}"]
    return table(lines, columns)


def _mean_line(name: str, rows: list[Row]) -> Row:
    line: Row = {"geometric mean of": name, "cases": len(rows)}
    for which, make in RATIOS.items():
        found = [value for row in rows if (value := make(row)) is not None]
        limit = 0.98 if which == "best/auto" else 0.97
        if found:
            line |= {which: geometric_mean(found), f"{which} least": min(found)}
            line[f"{which} >= {limit}"] = f"{sum(v >= limit for v in found) / len(found):.0%}"
    return line


def winners(rows: Iterable[Row]) -> str:
    """The share of cases that each backend wins, by arithmetic and layout; a tie is within NOISE."""
    groups: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in rows:
        times = {name: row["us"].get(name) for name in ("numba", "cudnn")}
        known = {name: time for name, time in times.items() if time}
        if not known:
            continue
        first = min(known, key=lambda name: known[name])
        tie = len(known) == 2 and max(known.values()) <= (1 + NOISE) * min(known.values())
        for group in (f"{row['arithmetic']} {row['layout']} {row['direction']}", "all cases"):
            groups[group]["tie" if tie else first] += 1
    lines = []
    for group, counts in sorted(groups.items(), key=lambda item: (item[0] == "all cases", item[0])):
        total = sum(counts.values())
        shares = {name: f"{counts[name] / total:.0%}" for name in ("numba", "cudnn", "tie")}
        lines.append({"fastest": group, "cases": total, **shares})
    return table(lines, ("fastest", "cases", "numba", "cudnn", "tie"))


def write(file: Path | None, rows: list[Row], roofs: dict[str, float], facts: dict[str, Any] | None = None) -> Path:
    """All rows as JSON, a row a line; ``facts``: of the run that they come from, where it was another."""
    folder = Path(os.environ.get("NUMBADNN_BENCH_RESULTS", RESULTS))
    name = (facts or {}).get("device") or device_name()
    path = file or folder / (re.sub(r"\W+", "_", name).strip("_").lower() + "_layers.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {"format": FORMAT, "device": name, "commit": commit(), "versions": versions(), "ceilings": roofs}
    known |= {key: facts[key] for key in known if facts and key in facts}
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    path.write_text(f'{json.dumps(known, indent=1)[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n')
    return path
