"""Rows of any kind of document, all of one form: what the page, the CSV file and the JUnit file are made of.

A flat row has the keys of its kind's columns, ``problem`` and ``replay`` (a line for the shell), and ``state``: ok, wrong,
known (an erratum), failed or out (refused, skipped, not run).
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from typing import Any

from numbadnn.validate.documents.document import kind_of

Flat = dict[str, Any]
STATES = {
    "ok": "ok",
    "mismatch": "wrong",
    "wanting": "wrong",
    "erratum": "known",
    "error": "failed",
    "failed": "failed",
}


def rows(document: dict[str, Any]) -> list[Flat]:
    """Every row of the document; ValueError for what is no report."""
    kind = kind_of(document)
    try:
        return list(_MAKE[kind](document))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected rows as a report of {kind} has them, got {type(error).__name__}: {error}") from None


def _validate(document: dict[str, Any]) -> Iterator[Flat]:
    arguments = document.get("arguments") or {}
    for row in document["rows"]:
        facts = " ".join(f"{k}={v}" for k, v in (row.get("facts") or {}).items())
        yield {
            **row,
            "result": row["status"],
            "state": STATES.get(row["status"], "out"),
            "where": ",".join(map(str, row.get("where") or ())),
            "speed": _rate(row.get("speed"), row.get("speed_unit", "")),
            "time_us": row.get("time_us") or None,
            "notes": row.get("reason") or facts,
            "replay": row.get("replay") or _validate_line(row, arguments),
        }


def _rate(speed: float | None, unit: str) -> str:
    return f"{speed:.{'0f' if speed >= 100 else '3g'}} {unit}" if speed else ""


def _validate_line(row: Flat, arguments: dict[str, Any]) -> str:
    """The problem alone; data that it does not tell of (a photograph, files of the user's) by what was asked for."""
    if arguments.get("data"):
        return shlex.join(["numbadnn", "validate", *arguments["names"], "--data", *arguments["data"]])
    named = row["case"].startswith("photographs/") or not row.get("problem")
    return shlex.join(["numbadnn", "validate", row["case"] if named else row["problem"]])


def _determinism(document: dict[str, Any]) -> Iterator[Flat]:
    from numbadnn.validate.determinism.rows import Row
    from numbadnn.validate.determinism.words import found_in

    for row in document["rows"]:
        made = Row(**row)
        yield {
            **row,
            "impl": made.who,
            "result": row["verdict"] or "unfinished",
            "state": STATES.get(row["verdict"], "out"),
            "trials": found_in([made]),
            "notes": row["reason"],
            "replay": shlex.join(["numbadnn", "validate", "--determinism", row["problem"]]),
        }


def _bench(document: dict[str, Any]) -> Iterator[Flat]:
    for case in document["cases"]:
        fastest = _least(case["timings"])
        replay = shlex.join(["numbadnn", "bench", case["problem"]])
        for row in case["timings"] or [{"impl": "all", "time_us": None, "reason": case.get("reason", "")}]:
            timed = row["time_us"] is not None
            yield {
                **row,
                "case": case["case"],
                "problem": case["problem"],
                "result": "chosen" if row.get("chosen") and timed else "timed" if timed else "refused",
                "state": "ok" if timed else "out",
                "ratio": row["time_us"] / fastest if timed and fastest else None,
                "notes": row.get("reason") or "",
                "replay": replay,
            }


def _tuning(document: dict[str, Any]) -> Iterator[Flat]:
    for case in document["cases"]:
        fastest = _least(case["candidates"])
        untuned = (case.get("untuned_us") or math.nan) / (fastest or math.nan)
        for row in case["candidates"]:
            timed, reason = row.get("time_us") is not None, row.get("reason") or ""
            wrong = "does not agree" in reason or "failed" in reason
            kept = timed and row["time_us"] == fastest
            yield {
                **row,
                "case": case["case"],
                "problem": case["problem"],
                "config": json.dumps(row["config"], separators=(",", ":")) if row.get("config") else "",
                "result": "kept" if kept else "timed" if timed else "left out",
                "state": "wrong" if wrong else "ok" if timed else "out",
                "ratio": row["time_us"] / fastest if timed and fastest else None,
                "untuned": untuned if kept and untuned == untuned else None,
                "notes": reason,
                "replay": shlex.join(["numbadnn", "tune", case["problem"]]),
            }


def _model(document: dict[str, Any]) -> Iterator[Flat]:
    asked = document.get("arguments") or {}
    options = [
        word for name in ("backend", "input", "against") if asked.get(name) for word in (f"--{name}", asked[name])
    ]
    options += [word for dim in asked.get("dim") or () for word in ("--dim", dim)]
    whole = shlex.join(["numbadnn", "validate", *(asked.get("names") or [document["model"]]), *options])
    for number, row in enumerate(document["nodes"], 1):
        yield {
            **row,
            "number": row.get("number", number),
            "case": row["name"],
            "node_op": row["op"],
            "result": row["status"],
            "state": STATES.get(row["status"], "out"),
            "notes": row.get("reason") or "",
            "problem": row.get("problem") or "",
            "replay": row.get("replay") or whole,
        }


def _least(timed: list[dict[str, Any]]) -> float | None:
    return min((row["time_us"] for row in timed if row.get("time_us") is not None), default=None)


_MAKE = {
    "validate": _validate,
    "check": _validate,
    "determinism": _determinism,
    "bench": _bench,
    "tuning": _tuning,
    "model": _model,
}
