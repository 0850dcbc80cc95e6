"""Learn what runs untuned from measurements: ``numbadnn/heuristics.json`` from the files of ``numbadnn tune --json``.

Two tables an architecture, both read by ``ranks.py`` and made for reading: for an operation and a class of problems, how many
times the fastest each implementation takes (``operations``, with ``fastest`` itself in times ``ranks.floor_us``), and each
engine of cuDNN's (``engines``). Classes are nested (``ranks.keys_of``): a fine one is drawn towards the coarse one around
it, the more the fewer cases it has. What is printed is how near the untuned choice comes to the fastest: on the cases
themselves, and, what counts, on each network by tables that never saw it.
``python bench/learn_rank.py [--leave-out NETWORK ...] [--write] FILE.json ...``
"""

from __future__ import annotations

import argparse
import collections
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from numbadnn import ranks
from numbadnn.cases import parse
from numbadnn.registry import implementations

#: a class of n cases is taken n / (n + PRIOR) at its own word
PRIOR = 1.0
FASTEST = "fastest"
Case = dict[str, Any]
Tables = dict[str, Any]


def documents(files: Iterable[str]) -> list[Case]:
    """The cases of all files, each problem once (the last file counts), with its architecture and its problem parsed."""
    found: dict[tuple[str, str], Case] = {}
    for file in files:
        document = json.loads(Path(file).read_text())
        if document.get("format") != "numbadnn-tuning-1":
            raise SystemExit(f"{file}: expected what numbadnn tune --json writes")
        for case in document["cases"]:
            known = {"architecture": document["architecture"], "parsed": parse(case["problem"])}
            source = f"{document['device']}, {document['versions']}"
            if any(c["time_us"] and c["heuristic"] for c in case["candidates"]):
                found[document["architecture"], case["problem"]] = {**case, **known, "source": source}
    return list(found.values())


# ---- what a case says ------------------------------------------------------------------------------------------------


def timed(case: Case) -> list[dict[str, Any]]:
    return [c for c in case["candidates"] if c["time_us"]]


def fastest_us(case: Case) -> float:
    return min(c["time_us"] for c in timed(case))


def engines_of(case: Case, impl: str) -> dict[str, dict[str, Any]]:
    """ "form engine" -> the candidate that cuDNN lists first for it; what is listed first of all comes first."""
    listed = [c for c in timed(case) if c["impl"] == impl and isinstance(c["config"], dict) and "engine" in c["config"]]
    first: dict[str, dict[str, Any]] = {}
    for c in sorted(listed, key=lambda c: (not c["heuristic"], c.get("number", 0))):
        first.setdefault(ranks.engine_name(c["config"]), c)
    return first


def taken_us(case: Case, impl: str, tables: Tables) -> float | None:
    """The time of what an implementation takes untuned by these tables."""
    own = next((c for c in timed(case) if c["impl"] == impl and c["heuristic"]), None)
    if own is None:
        return None
    engines = engines_of(case, impl)
    if not engines:
        return own["time_us"]
    rows = tables.get(case["architecture"], {}).get("engines", {}).get(case["parsed"].op, {})
    ratios = ranks.merged(rows, case["parsed"], impl)
    preferred = ranks.preferred([c["config"] for c in engines.values()], ratios)
    return own["time_us"] if preferred is None else engines[ranks.engine_name(preferred)]["time_us"]


def untuned(case: Case, tables: Tables) -> float | None:
    """How many times the fastest what these tables choose takes."""
    problem, op = case["parsed"], case["parsed"].op
    rows = tables.get(case["architecture"], {}).get("operations", {}).get(op, {})
    estimates = {}
    for impl in implementations(op):
        time_us = taken_us(case, impl.name, tables)
        if time_us is not None:
            estimates[impl.name] = (ranks.estimate_by(rows, impl, problem), time_us)
    return min(estimates.values())[1] / fastest_us(case) if estimates else None


# ---- learning --------------------------------------------------------------------------------------------------------


class Means:
    """Geometric means by (place, key, name), each drawn towards that of the key around it."""

    def __init__(self, most: float) -> None:
        self.most = most  # what is slower is not written: it will not be taken
        self.logs: dict[Any, list[float]] = collections.defaultdict(list)

    def add(self, place: Any, keys: tuple[str, ...], name: str, ratio: float) -> None:
        for level, key in enumerate(keys):
            around = keys[level + 1] if level + 1 < len(keys) else None
            self.logs[place, key, around, name].append(math.log(ratio))

    def tables(self) -> dict[Any, dict[str, dict[str, float]]]:
        """place -> key -> name -> mean, names in order of it."""
        means: dict[Any, float] = {}
        for place, key, around, name in sorted(self.logs, key=lambda k: -self._breadth(k)):
            logs = self.logs[place, key, around, name]
            outer = means.get((place, around, name))
            total = sum(logs) + (0 if outer is None else PRIOR * outer)
            means[place, key, name] = total / (len(logs) + (0 if outer is None else PRIOR))
        found: dict[Any, dict[str, dict[str, float]]] = {}
        for (place, key, name), mean in sorted(
            means.items(), key=lambda item: (*item[0][:2], item[0][2] != FASTEST, item[1])
        ):
            if name == FASTEST or math.exp(mean) <= self.most:
                found.setdefault(place, {}).setdefault(key, {})[name] = round(math.exp(mean), 3)
        return found

    @staticmethod
    def _breadth(key: Any) -> int:
        """Outer classes first: a class within none, then those within it."""
        return -len(key[1].split())


def learn(cases: list[Case]) -> Tables:
    """Both tables of every architecture."""
    engines, operations = Means(3.0), Means(math.inf)
    for case in cases:
        problem = case["parsed"]
        place, keys = (case["architecture"], problem.op), ranks.keys_of(problem)[:-1]
        for impl in {c["impl"] for c in timed(case)}:
            best = min(c["time_us"] for c in timed(case) if c["impl"] == impl)
            for name, c in engines_of(case, impl).items():
                engines.add(place, keys, f"{impl} {name}", c["time_us"] / best)
                if c["heuristic"]:
                    engines.add(place, keys, f"{impl} {ranks.OWN}", c["time_us"] / best)
    tables: Tables = {}
    for (arch, op), rows in engines.tables().items():
        tables.setdefault(arch, {"operations": {}, "engines": {}})["engines"][op] = rows
    for case in cases:
        problem = case["parsed"]
        place, keys = (case["architecture"], problem.op), ranks.keys_of(problem)
        best = fastest_us(case)
        operations.add(place, keys, FASTEST, best / ranks.floor_us(problem))
        for impl in {c["impl"] for c in timed(case)}:
            time_us = taken_us(case, impl, tables)
            if time_us is not None:
                operations.add(place, keys, impl, time_us / best)
    for (arch, op), rows in operations.tables().items():
        tables.setdefault(arch, {"operations": {}, "engines": {}})["operations"][op] = rows
    return tables


# ---- how good it is --------------------------------------------------------------------------------------------------


def report(name: str, cases: list[Case], tables: Callable[[Case], Tables], worst: int = 5) -> None:
    """How near the untuned choice comes to the fastest of these cases, each by ``tables(case)``."""
    found = [(ratio, case["case"]) for case in cases if (ratio := untuned(case, tables(case))) is not None]
    if not found:
        return
    near = sum(ratio <= 1.1 for ratio, _ in found) / len(found)
    mean = math.exp(sum(math.log(ratio) for ratio, _ in found) / len(found))
    print(
        f"{name}: {len(found)} cases, within 10 % of the fastest on {near:.0%}, {mean:.3f} times the fastest (geometric mean)"
    )
    for ratio, case in sorted(found, reverse=True)[:worst]:
        if ratio > 1.1:
            print(f"    {ratio:.2f} {case}")


def network_of(case: Case) -> str:
    """The network of a case, or the case itself where it is a problem line."""
    return case["case"].split("/")[0]


def readable(tables: Any, depth: int = 0) -> str:
    """JSON with a class a line: what lies deepest is not broken."""
    if not isinstance(tables, dict) or not any(isinstance(value, dict) for value in tables.values()):
        return json.dumps(tables)
    inner = ",".join(
        f"\n{' ' * (depth + 1)}{json.dumps(key)}: {readable(value, depth + 1)}" for key, value in tables.items()
    )
    return f"{{{inner}\n{' ' * depth}}}" + ("" if depth else "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn heuristics.json from what numbadnn tune --json wrote.")
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("--leave-out", nargs="+", metavar="NETWORK", help="default: each network in its turn")
    parser.add_argument("--write", action="store_true", help=f"write {ranks.TABLE.name}, from all cases")
    options = parser.parse_args()
    cases = documents(options.files)
    tables = learn(cases)
    report("the cases themselves", cases, lambda case: tables)
    names = options.leave_out or sorted({network_of(case) for case in cases})
    without = {name: learn([c for c in cases if network_of(c) != name]) for name in names}
    out = [case for case in cases if network_of(case) in names]
    for name in names if len(names) > 1 else ():
        report(f"  {name}, left out", [c for c in out if network_of(c) == name], lambda c: without[network_of(c)], 3)
    report("networks left out", out, lambda case: without[network_of(case)])
    report("without any table", cases, lambda case: {}, 0)
    if options.write:
        merged = json.loads(ranks.TABLE.read_text()) if ranks.TABLE.exists() else {"architectures": {}}
        merged["architectures"] |= tables
        merged |= {"format": ranks.FORMAT, "sources": sorted({c["source"] for c in cases})}
        ranks.TABLE.write_text(readable(merged))
        print("written to", ranks.TABLE)


if __name__ == "__main__":
    main()
