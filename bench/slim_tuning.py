"""What of ``numbadnn tune --json`` is worth committing: what was timed and is read again.

``python bench/slim_tuning.py FROM.json ... TO.json`` joins files of one device and versions, the last word counts. A case
is a line; of its candidates those remain that are within 1.5 times the fastest, that ran untuned, or that are the first of their
engine: what ``learn_rank.py`` and ``shares.py`` read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NEAR = 1.5
KEPT = ("impl", "config", "time_us", "heuristic", "number")


#: of a run's document: what says nothing of its times
DROPPED = ("cases", "environment", "arguments", "asked", "exit_status")


def slim(case: dict[str, Any]) -> dict[str, Any]:
    """The case with the candidates that remain, the fields that are read, and what was found wrong."""
    timed = sorted((c for c in case["candidates"] if c["time_us"]), key=lambda c: c["time_us"])
    first: dict[Any, dict[str, Any]] = {}
    for c in sorted(timed, key=lambda c: c.get("number", 0)):
        if isinstance(c["config"], dict) and "engine" in c["config"]:
            first.setdefault((c["impl"], c["config"]["form"], c["config"]["engine"]), c)
    firsts = {id(c) for c in first.values()}
    kept = [c for c in timed if c["heuristic"] or id(c) in firsts or c["time_us"] <= NEAR * timed[0]["time_us"]]
    wrong = [
        f"{c['impl']} {c['config']}: {c['reason']}"
        for c in case["candidates"]
        if "does not agree" in c.get("reason", "")
    ]
    return {**case, "candidates": [{name: c[name] for name in KEPT if name in c} for c in kept], "wrong": wrong}


def main() -> None:
    *sources, target = map(Path, sys.argv[1:])
    documents = [json.loads(file.read_text()) for file in sources]
    head = {name: value for name, value in documents[0].items() if name not in DROPPED}
    if any(document["versions"] != head["versions"] or document["device"] != head["device"] for document in documents):
        raise SystemExit("expected files of one device and versions")
    cases = {case["case"]: slim(case) for document in documents for case in document["cases"]}
    lines = ",\n  ".join(json.dumps(case) for case in cases.values())
    target.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "cases": [\n  {lines}\n ]\n}}\n')
    print(f"{len(cases)} cases, {target.stat().st_size} bytes in {target}")


if __name__ == "__main__":
    main()
