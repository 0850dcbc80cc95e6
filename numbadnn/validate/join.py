"""One report of several: ``python -m numbadnn.validate.join TO.json FROM.json ...``, the earliest first.

A run of many cases may be done in parts: the cases that a budget left are named in a second run. The later report's rows
take the place of those of the same case and backend; ``parts`` says when and at which commit each was made, and of how
many cases rows were taken from it. Reports of ``validate`` and of ``validate --determinism``, of one device and versions.
"""

from __future__ import annotations

import collections
import sys
from typing import Any

from numbadnn.validate import report
from numbadnn.validate.check import Row
from numbadnn.validate.determinism import rows as determinism
from numbadnn.validate.documents import document as documents
from numbadnn.validate.documents import words

Document = dict[str, Any]


def join(target: str, sources: list[str]) -> Document:
    """The joined report, written to ``target``; ValueError for reports that do not go together."""
    parts = [documents.read(source) for source in sources]
    kinds = {documents.kind_of(part) for part in parts}
    if len(kinds) != 1 or kinds - {"validate", "determinism"}:
        raise ValueError(f"expected reports of validate, or of validate --determinism, got {', '.join(sorted(kinds))}")
    facts = [{name: part[name] for name in ("format", "device", "versions")} for part in parts]
    if any(fact != facts[0] for fact in facts):
        raise ValueError(f"expected reports of one device and versions, got {facts}")
    found = joined(parts)
    documents.write(target, found)
    return found


def joined(parts: list[Document]) -> Document:
    """The document of all these, which go together."""
    kept: dict[tuple[str, str], tuple[int, list[Document]]] = {}
    for number, part in enumerate(parts):
        fresh: dict[tuple[str, str], list[Document]] = collections.defaultdict(list)
        for row in part["rows"]:
            if row.get("status") != report.NOT_RUN:
                fresh[row["case"], row["impl"].split(".")[0]].append(row)
        kept.update({key: (number, rows) for key, rows in fresh.items()})
    ran = {case for case, _ in kept}
    rows = [row for _, some in kept.values() for row in some]
    missing = {row["case"]: row for part in parts for row in part["rows"] if row["case"] not in ran}
    rows += missing.values()
    cases = max([(part.get("asked") or {}).get("cases", 0) for part in parts] + [len(ran) + len(missing)])
    last = parts[-1]
    return {
        **{name: last[name] for name in ("format", "date", "device", "versions", "arguments", "environment")},
        "seconds": round(sum(part["seconds"] for part in parts), 1),
        "exit_status": _status(documents.kind_of(last), rows, cases - len(ran)),
        "asked": words.asked(cases, len(ran)),
        "parts": [
            {
                "date": part["date"],
                "seconds": part["seconds"],
                "commit": part.get("commit", ""),
                "cases": len({case for (case, _), (taken, _) in kept.items() if taken == number}),
            }
            for number, part in enumerate(parts)
        ],
        "rows": rows,
    }


def _status(kind: str, rows: list[Document], left: int) -> int:
    if kind == "validate":
        status = report.exit_status([Row(**row) for row in rows])
    else:
        status = determinism.exit_status([determinism.Row(**row) for row in rows])
    return report.INCOMPLETE if status == report.OK and left else status


def main(names: list[str]) -> int:
    """The status of the joined report, as ``validate`` has it; 2 where there is none."""
    if len(names) < 2:
        print("usage: python -m numbadnn.validate.join TO.json FROM.json ...", file=sys.stderr)
        return report.USAGE
    try:
        found = join(names[0], names[1:])
    except (ValueError, OSError) as error:
        print(f"numbadnn.validate.join: {error}", file=sys.stderr)
        return report.USAGE
    print(f"{names[0]}: {found['asked']['done']} of {found['asked']['cases']} cases, status {found['exit_status']}")
    return int(found["exit_status"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
