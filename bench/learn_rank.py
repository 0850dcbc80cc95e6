"""Learn what runs untuned from measurements: ``numbadnn/heuristics.json`` from the files of ``numbadnn tune --json``.

Two small tables an architecture. ``operations``: how many times ``ranks.floor_us`` each implementation takes for a kind of
convolution, as a geometric mean. ``engines``: for cuDNN's graph API, how much slower than the best candidate each engine
was, as a geometric mean over the cases that offered it. Both for each kind of problem (``ranks.key_of``). What is printed is how
near the untuned choice comes to the best: of each case by tables that never saw it, and of whole networks with ``--leave-out``.
``python bench/learn_rank.py [--leave-out NETWORK ...] [--write] FILE.json ...``
"""

from __future__ import annotations

import argparse
import collections
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numbadnn import ranks
from numbadnn.cases import parse
from numbadnn.registry import Impl, implementations

LEAST_CASES = 1


def documents(files: list[str]) -> list[dict[str, Any]]:
    """The cases of all files, each with its architecture and its problem parsed."""
    found = []
    for file in files:
        document = json.loads(Path(file).read_text())
        if document.get("format") != "numbadnn-tuning-1":
            raise SystemExit(f"{file}: expected what numbadnn tune --json writes")
        for case in document["cases"]:
            known = {"architecture": document["architecture"], "parsed": parse(case["problem"])}
            found.append({**case, **known, "source": f"{document['device']}, {document['versions']}"})
    return found


def _mean(logs: list[float]) -> float:
    return round(math.exp(sum(logs) / len(logs)), 3)


def learn(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Both tables of every architecture."""
    times: dict[Any, list[float]] = collections.defaultdict(list)
    slower: dict[Any, list[float]] = collections.defaultdict(list)
    for case in cases:
        problem, arch = case["parsed"], case["architecture"]
        for candidate in case["candidates"]:
            if candidate["heuristic"] and candidate["time_us"] and ranks.kind_of(problem):
                key = ranks.key_of(candidate["impl"], problem)
                times[arch, problem.op, key].append(math.log(candidate["time_us"] / ranks.floor_us(problem)))
        for engine, factor in engines_of(case).items():
            slower[arch, problem.op, ranks.key_of("cudnn.graph", problem), engine].append(math.log(factor))
    tables: dict[str, Any] = {}
    for (arch, op, name), logs in sorted(times.items()):
        if len(logs) >= LEAST_CASES:
            place = tables.setdefault(arch, {"operations": {}, "engines": {}})
            place["operations"].setdefault(op, {})[name] = _mean(logs)
    for (arch, op, name, engine), logs in sorted(slower.items(), key=lambda item: (*item[0][:3], _mean(item[1]))):
        if len(logs) >= LEAST_CASES:
            place = tables.setdefault(arch, {"operations": {}, "engines": {}})
            place["engines"].setdefault(op, {}).setdefault(name, {})[str(engine)] = _mean(logs)
    return tables


def known(op: str, name: str) -> Impl | None:
    return next((i for i in implementations(op) if i.name == name), None)


def lookup(tables: dict[str, Any], which: str, case: dict[str, Any], name: str) -> Any:
    rows = tables.get(case["architecture"], {}).get(which, {}).get(case["parsed"].op, {})
    return rows.get(ranks.key_of(name, case["parsed"]))


def engines_of(case: dict[str, Any]) -> dict[int, float]:
    """engine -> its first configuration's time over the best time of the case, in the form that runs untuned."""
    timed = [c for c in case["candidates"] if c["time_us"]]
    graph = [c for c in case["candidates"] if c["impl"] == "cudnn.graph" and isinstance(c["config"], dict)]
    if not graph or not timed:
        return {}
    best, form, found = min(c["time_us"] for c in timed), graph[0]["config"]["form"], {}
    for c in graph:
        if c["config"]["form"] == form and c["time_us"] and c["config"]["engine"] not in found:
            found[c["config"]["engine"]] = c["time_us"] / best
    return found


def untuned(case: dict[str, Any], tables: dict[str, Any]) -> float | None:
    """How much slower than the best what these tables choose is: the implementation, then the engine."""
    timed = [c for c in case["candidates"] if c["time_us"]]
    own = [c for c in timed if c["heuristic"]]
    if not own:
        return None

    def estimate(candidate: dict[str, Any]) -> float:
        factor = lookup(tables, "operations", case, candidate["impl"])
        if factor is not None:
            return ranks.floor_us(case["parsed"]) * factor
        impl = known(case["parsed"].op, candidate["impl"])
        return impl.rank(case["parsed"]) if impl else math.inf

    chosen = min(own, key=estimate)
    if chosen["impl"] == "cudnn.graph" and isinstance(chosen["config"], dict):
        ratios = lookup(tables, "engines", case, "cudnn.graph") or {}
        listed = [
            c["config"] for c in timed if c["impl"] == "cudnn.graph" and c["config"]["form"] == chosen["config"]["form"]
        ]
        # the heuristic's own first, then as they were listed
        listed = [
            chosen["config"],
            *(c["config"] for c in case["candidates"] if c["config"] in listed and c is not chosen),
        ]
        preferred = ranks.preferred(listed, ratios)
        chosen = next(c for c in timed if c["config"] == (preferred or chosen["config"]) and c["impl"] == "cudnn.graph")
    return chosen["time_us"] / min(c["time_us"] for c in timed)


def report(name: str, cases: list[dict[str, Any]], tables: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """How near the untuned choice comes to the best of these cases, each by ``tables(case)``."""
    found = [(ratio, case["case"]) for case in cases if (ratio := untuned(case, tables(case))) is not None]
    if not found:
        return
    near = sum(ratio <= 1.1 for ratio, _ in found) / len(found)
    mean = math.exp(sum(math.log(ratio) for ratio, _ in found) / len(found))
    print(
        f"{name}: {len(found)} cases, within 10 % of the best on {near:.0%}, {mean:.3f} times the best (geometric mean)"
    )
    for ratio, case in sorted(found, reverse=True)[:5]:
        if ratio > 1.1:
            print(f"    {ratio:.2f} {case}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn heuristics.json from what numbadnn tune --json wrote.")
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument(
        "--leave-out", nargs="+", default=[], metavar="NETWORK", help="cases NETWORK/... only test the table"
    )
    parser.add_argument(
        "--write", action="store_true", help=f"write {ranks.TABLE.name} from all cases but those left out"
    )
    options = parser.parse_args()
    cases = documents(options.files)
    out = [c for c in cases if c["case"].split("/")[0] in options.leave_out]
    rest = [c for c in cases if c not in out]
    tables = learn(rest)
    report("the cases themselves", rest, lambda case: tables)
    report("each by the others", rest, lambda case: learn([c for c in rest if c["problem"] != case["problem"]]))
    report("networks left out", out, lambda case: tables)
    report("without any table", cases, lambda case: {})
    if options.write:
        merged = json.loads(ranks.TABLE.read_text()) if ranks.TABLE.exists() else {"architectures": {}}
        merged["architectures"] |= tables
        merged["sources"] = sorted({*merged.get("sources", []), *(c["source"] for c in cases)})
        ranks.TABLE.write_text(json.dumps({"format": "numbadnn-heuristics-1", **merged}, indent=1) + "\n")
        print("written to", ranks.TABLE)


if __name__ == "__main__":
    main()
