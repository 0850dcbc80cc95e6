"""Who wins how often: the share of cases in which each backend, and each implementation, is the fastest.

``python bench/shares.py FILE.json ...`` reads what ``numbadnn tune --json`` and ``bench_layers.py`` wrote. Times within 3 % of
one another are a tie. From tuning files it also says how the best of each backend stand to each other, as a geometric mean, and
how much slower what runs untuned is.
"""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path
from typing import Any

from harness import geometric_mean, table
from layers_report import NOISE, winners

from numbadnn.cases import parse
from numbadnn.kept import ranks


def best_of(case: dict[str, Any]) -> dict[str, float]:
    """implementation -> the time of its fastest candidate, the fastest first."""
    found: dict[str, float] = {}
    for c in sorted((c for c in case["candidates"] if c["time_us"]), key=lambda c: c["time_us"]):
        found.setdefault(c["impl"], c["time_us"])
    return found


def setting_of(case: dict[str, Any]) -> str:
    """Operation, dtype and layout."""
    problem = parse(case["problem"])
    keys = ranks.keys_of(problem)
    return f"{problem.op} {keys[-1] if keys else problem.output.dtype}"


def shares(cases: list[dict[str, Any]]) -> str:
    """A line a setting: cases, share of each backend, numba over cudnn, untuned over the fastest."""
    groups: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for case in cases:
        if any(c["time_us"] for c in case["candidates"]):
            groups[setting_of(case)].append(case)
            groups["~ all cases"].append(case)
    return table([_line(name, some) for name, some in sorted(groups.items())], COLUMNS)


COLUMNS = ("fastest", "cases", "numba", "cudnn", "cpu", "tie", "cudnn/numba", "untuned/fastest", "untuned within 10 %")


def _line(name: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    wins: collections.Counter[str] = collections.Counter()
    ratios, untuned = [], []
    for case in cases:
        found = best_of(case)
        backends: dict[str, float] = {}
        for impl, time_us in found.items():
            backends.setdefault(impl.split(".")[0], time_us)
        first, *others = backends
        tie = any(backends[other] <= (1 + NOISE) * backends[first] for other in others)
        wins["tie" if tie else first] += 1
        if {"numba", "cudnn"} <= set(backends):
            ratios.append(backends["cudnn"] / backends["numba"])
        if case.get("untuned_us"):
            untuned.append(case["untuned_us"] / min(found.values()))
    line: dict[str, Any] = {"fastest": name.removeprefix("~ "), "cases": len(cases)}
    line |= {backend: f"{wins[backend] / len(cases):.0%}" for backend in ("numba", "cudnn", "cpu", "tie")}
    if ratios:
        line["cudnn/numba"] = geometric_mean(ratios)
    if untuned:
        line["untuned/fastest"] = geometric_mean(untuned)
        line["untuned within 10 %"] = f"{sum(ratio <= 1.1 for ratio in untuned) / len(untuned):.0%}"
    return line


def implementations(cases: list[dict[str, Any]]) -> str:
    """How many cases each implementation is the fastest in."""
    firsts = [next(iter(found)) for case in cases if (found := best_of(case))]
    counts = collections.Counter(firsts)
    return ", ".join(f"{impl} {count} ({count / len(firsts):.0%})" for impl, count in counts.most_common())


def main() -> None:
    for file in sys.argv[1:]:
        document = json.loads(Path(file).read_text())
        print(f"{file}: {document['device']}")
        if "cases" in document:
            print(shares(document["cases"]))
            print("fastest implementation:", implementations(document["cases"]))
        else:
            print(winners(document["rows"]))


if __name__ == "__main__":
    main()
