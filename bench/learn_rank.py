"""Learn what runs untuned from measurements: ``numbadnn/heuristics.json`` from the files of ``numbadnn tune --json``.

Three tables an architecture, read by ``ranks.py`` and made for reading. ``operations``: in a class of convolutions, how
many times the fastest an implementation takes, by its own estimate: ``ratio * excess ** slope``. ``engines``: each
engine of cuDNN's, in nested classes (``ranks.keys_of``): a fine one is drawn towards the coarse one around it, the more the
fewer cases it has. ``layers``: the fastest of each case for which those two choose what is SLOWER. How good those two are says
``rank_report.py``: on the cases themselves, and, what counts, on each network by tables that never saw its layers.
``python bench/learn_rank.py [--leave-out NETWORK ...] [--write] FILE.json ...``
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numbadnn.cases import parse
from numbadnn.cudnn.graph import estimate as _estimate
from numbadnn.cudnn.graph.forms import forms
from numbadnn.kept import ranks
from numbadnn.kernels.conv.tiles import model as implicit_tiles_model
from numbadnn.problem import Policy
from numbadnn.problems.conv_routes import ROUTES
from numbadnn.registry import FAMILY, implementations

#: a class of n cases is taken n / (n + PRIOR) at its own word; beside it are so many imagined ones that say ranks.UNKNOWN
PRIOR = 1.0
#: a class of fewer cases is not written among the operations: the ranks know more
FEW = 2
#: what is slower is not written among the engines: it will not be taken
MOST = 3.0
#: engines of cuDNN 9.19 by FFT or Winograd: for convolutions and for gradients of images
TRANSFORMING = (3, 50)
#: times the fastest: what is within it is not worth a line among the layers
SLOWER = 1.02
NOT_NOW = object()
#: whose choice of a configuration needs no GPU and has changed since it was measured
CHOOSES = {"numba.implicit_tiles": implicit_tiles_model.heuristic}
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
            known["made_with"] = document["versions"].split()[0]
            source = f"{document['device']}, {document['versions']}"
            if any(c["time_us"] and c["heuristic"] for c in case["candidates"]):
                found[document["architecture"], case["problem"]] = {**case, **known, "source": source}
    return list(found.values())


# ---- what a case says ------------------------------------------------------------------------------------------------


def timed(case: Case) -> list[dict[str, Any]]:
    return [c for c in case["candidates"] if c["time_us"]]


def fastest_us(case: Case) -> float:
    """Of all candidates, whatever their configuration: what tuning would find."""
    return min(c["time_us"] for c in timed(case))


def engines_of(case: Case, impl: str) -> dict[str, dict[str, Any]]:
    """ "form engine" -> the candidate that cuDNN lists first for it; what is listed first of all comes first."""
    listed = [c for c in timed(case) if c["impl"] == impl and isinstance(c["config"], dict) and "engine" in c["config"]]
    first: dict[str, dict[str, Any]] = {}
    for c in sorted(listed, key=lambda c: (not c["heuristic"], c.get("number", 0))):
        first.setdefault(ranks.engine_name(c["config"]), c)
    return first


def taken(case: Case, impl: str) -> dict[str, Any] | None:
    """The candidate that an implementation takes by itself: by the model of today where that was timed, else as it was."""
    own = next((c for c in timed(case) if c["impl"] == impl and c["heuristic"]), None)
    if own is None or impl not in CHOOSES:
        return own
    now = _tiling(dataclasses.asdict(CHOOSES[impl](case["parsed"], Policy(device=0))))
    return next((c for c in timed(case) if c["impl"] == impl and _tiling(c["config"]) == now), own)


def _tiling(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without how results are written, which follows from the problem and is not chosen."""
    return {name: value for name, value in config.items() if name not in ("along_rows", "put")}


def taken_us(case: Case, impl: str, tables: Tables) -> float | None:
    """The time of what an implementation takes untuned by these tables; None where it did not run."""
    own = taken(case, impl)
    if own is None:
        return None
    engines = engines_of(case, impl)
    if not engines:
        return own["time_us"]
    rows = tables.get(case["architecture"], {}).get("engines", {}).get(case["parsed"].op, {})
    ratios = ranks.merged(rows, case["parsed"], impl)
    preferred = ranks.preferred([c["config"] for c in engines.values()], ratios)
    return own["time_us"] if preferred is None else engines[ranks.engine_name(preferred)]["time_us"]


def foretold(case: Case, impl: str) -> float | None:
    """What ``cudnn.conv.foretell`` says: of an engine by FFT or Winograd where the heuristics named one first."""
    straight = straight_of(case["parsed"], impl) if impl.startswith("cudnn.graph") else None
    if straight is None or not _estimate.may_transform(straight):
        return None
    own = taken(case, impl)
    named = own is not None and own["config"]["engine"] in TRANSFORMING
    return _estimate.transformed(straight) + _estimate.copies(next(forms(straight))) if named else None


def straight_of(problem: Any, impl: str) -> Any:
    """The problem that a route makes of one, the problem itself where it goes none, None where there is no such route."""
    route = next((find for name, (_, find) in ROUTES.items() if impl.endswith(name)), None)
    return route(problem).problem if route else problem


# ---- implementations -------------------------------------------------------------------------------------------------


def line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """(ratio, slope) of times the fastest by excess: least squares of logarithms, a slope being held to be little.

    ``points``: (excess, times the fastest) of each case, which counts the less the slower it was: what is far from
    the fastest is not taken, however far.
    """
    pairs = [(math.log(excess), math.log(times), times**-0.5) for excess, times in points]
    n = PRIOR + sum(w for _, _, w in pairs)
    x = sum(w * a for a, _, w in pairs)
    y = PRIOR * math.log(ranks.UNKNOWN) + sum(w * b for _, b, w in pairs)
    xx = PRIOR + sum(w * a * a for a, _, w in pairs)
    xy = sum(w * a * b for a, b, w in pairs)
    slope = (n * xy - x * y) / (n * xx - x * x)
    return math.exp((y - slope * x) / n), slope


def operations(cases: list[Case], tables: Tables) -> dict[tuple[str, str], ranks.Rows]:
    """(architecture, family) -> class -> the row of ``ranks.estimate_by``, the least ratio first."""
    points: dict[Any, list[tuple[float, float]]] = collections.defaultdict(list)
    floors: dict[Any, list[float]] = collections.defaultdict(list)
    for case in cases:
        problem, best = case["parsed"], fastest_us(case)
        key, floor = ranks.class_of(problem), ranks.floor_us(problem)
        if not key:
            continue
        place = (case["architecture"], FAMILY[problem.op]), key
        floors[place].append(best / floor)
        for impl in implementations(problem.op):
            time_us = taken_us(case, impl.name, tables)
            if time_us is not None and foretold(case, impl.name) is None:
                excess = ranks.excess(impl, problem, impl.rank(problem))
                points[place, impl.name].append((excess, time_us / best))
    found: dict[tuple[str, str], ranks.Rows] = {}
    for place, key in sorted(floors):
        if len(floors[place, key]) < FEW:
            continue
        fastest = math.exp(sum(map(math.log, floors[place, key])) / len(floors[place, key]))
        lines = {name: line(at) for (where, name), at in points.items() if where == (place, key)}
        row = {name: [round(v, 3) for v in lines[name]] for name in sorted(lines, key=lambda n: lines[n])}
        found.setdefault(place, {})[key] = {ranks.FASTEST: round(fastest, 3), **row}
    return found


# ---- engines ---------------------------------------------------------------------------------------------------------


class Means:
    """Geometric means by (place, key, name), each drawn towards that of the key around it."""

    def __init__(self) -> None:
        self.logs: dict[Any, list[float]] = collections.defaultdict(list)

    def add(self, place: Any, keys: tuple[str, ...], name: str, ratio: float) -> None:
        for level, key in enumerate(keys):
            around = keys[level + 1] if level + 1 < len(keys) else None
            self.logs[place, key, around, name].append(math.log(ratio))

    def tables(self) -> dict[Any, ranks.Engines]:
        """place -> key -> name -> mean, names in order of it."""
        means: dict[Any, float] = {}
        for place, key, around, name in sorted(self.logs, key=lambda k: len(k[1].split())):  # outer classes first
            logs = self.logs[place, key, around, name]
            outer = means.get((place, around, name))
            total = sum(logs) + (0 if outer is None else PRIOR * outer)
            means[place, key, name] = total / (len(logs) + (0 if outer is None else PRIOR))
        found: dict[Any, ranks.Engines] = {}
        for (place, key, name), mean in sorted(means.items(), key=lambda item: (*item[0][:2], item[1])):
            if math.exp(mean) <= MOST:
                found.setdefault(place, {}).setdefault(key, {})[name] = round(math.exp(mean), 3)
        return found


def engines(cases: list[Case]) -> dict[tuple[str, str], ranks.Engines]:
    """(architecture, operation) -> class -> implementation and engine -> times the fastest of the implementation."""
    means = Means()
    for case in cases:
        place, keys = (case["architecture"], case["parsed"].op), ranks.keys_of(case["parsed"])[:-1]
        for impl in {c["impl"] for c in timed(case)}:
            best = min(c["time_us"] for c in timed(case) if c["impl"] == impl)
            for name, c in engines_of(case, impl).items():
                means.add(place, keys, f"{impl} {name}", c["time_us"] / best)
                if c["heuristic"]:
                    means.add(place, keys, f"{impl} {ranks.OWN}", c["time_us"] / best)
    return means.tables()


def learn(cases: list[Case]) -> Tables:
    """Both tables of every architecture."""
    tables: Tables = {case["architecture"]: {"operations": {}, "engines": {}} for case in cases}
    for (architecture, op), rows in engines(cases).items():
        tables[architecture]["engines"][op] = rows
    for (architecture, family), rows in operations(cases, tables).items():
        tables[architecture]["operations"][family] = rows
    return tables


def with_layers(cases: list[Case]) -> Tables:
    """``learn``, and the fastest of each case for which that chooses what takes more than SLOWER times as long."""
    import rank_report

    tables = learn(cases)
    for case in cases:
        choice = rank_report.chosen(case, tables)
        best = min(timed(case), key=lambda c: c["time_us"])
        if choice is not None and choice.times > SLOWER and (config := _today(case, best)) is not NOT_NOW:
            entry = {"impl": best["impl"], "config": config, "time_us": round(best["time_us"], 1)}
            if best["impl"].startswith("cudnn."):
                entry["made_with"] = case["made_with"]  # its engines are of one version
            tables[case["architecture"]].setdefault("layers", {})[str(case["parsed"])] = entry
    return tables


def _today(case: Case, candidate: dict[str, Any]) -> Any:
    """The configuration as it is called today, NOT_NOW where there is none such any more."""
    if candidate["impl"] not in CHOOSES or candidate["config"] is None:
        return candidate["config"]
    impl = next(i for i in implementations(case["parsed"].op) if i.name == candidate["impl"])
    assert impl.space is not None
    plain = [dataclasses.asdict(c) for c in impl.space(case["parsed"], Policy(device=0))]
    return next((c for c in plain if _tiling(c) == _tiling(candidate["config"])), NOT_NOW)


def readable(tables: Any, depth: int = 0) -> str:
    """JSON with a class a line, or a layer."""
    deepest = not isinstance(tables, dict) or not any(isinstance(value, dict) for value in tables.values())
    if deepest or "impl" in tables:
        return json.dumps(tables)
    inner = ",".join(
        f"\n{' ' * (depth + 1)}{json.dumps(key)}: {readable(value, depth + 1)}" for key, value in tables.items()
    )
    return f"{{{inner}\n{' ' * depth}}}" + ("" if depth else "\n")


def main() -> None:
    import rank_report

    parser = argparse.ArgumentParser(description="Learn heuristics.json from what numbadnn tune --json wrote.")
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("--leave-out", nargs="+", metavar="NETWORK", help="default: each network in its turn")
    parser.add_argument("--write", action="store_true", help=f"write {ranks.TABLE.name}, from all cases")
    options = parser.parse_args()
    cases = documents(options.files)
    rank_report.report(cases, learn, options.leave_out)
    if options.write:
        merged = json.loads(ranks.TABLE.read_text()) if ranks.TABLE.exists() else {}
        known = merged["architectures"] if merged.get("format") == ranks.FORMAT else {}
        merged = {"format": ranks.FORMAT, "architectures": known | with_layers(cases)}
        ranks.TABLE.write_text(readable(merged | {"sources": sorted({c["source"] for c in cases})}))
        print("written to", ranks.TABLE)


if __name__ == "__main__":
    main()
