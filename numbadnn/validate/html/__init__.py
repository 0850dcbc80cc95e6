"""A report as one page that needs no network: ``write(path, document)``.

``python -m numbadnn.validate.html REPORT.json PAGE.html`` makes the page of a report that was written before. Everything that
comes from data is escaped, and the page's policy admits no script but its own. Needs jinja2 and matplotlib
(``pip install numbadnn[report]``), which are imported when a page is made.
"""

from __future__ import annotations

import base64
import collections
import hashlib
import importlib.util
import math
from pathlib import Path
from typing import Any

from numbadnn.validate.documents import words
from numbadnn.validate.documents.columns import COLUMNS, Column
from numbadnn.validate.documents.document import kind_of
from numbadnn.validate.documents.flat import Flat, rows

TITLES = {
    "validate": "numbadnn validate",
    "check": "numbadnn check",
    "model": "numbadnn validate, a model",
    "determinism": "numbadnn validate --determinism",
    "bench": "numbadnn bench",
    "tuning": "numbadnn tune",
}
_HERE = Path(__file__).parent


def write(path: str, document: dict[str, Any]) -> None:
    """Write the page of a document (as ``--json`` writes it) to ``path``.

    Raises ImportError without jinja2 or matplotlib, ValueError for what is no document, OSError where it cannot be written.
    """
    Path(path).write_text(page(document), encoding="utf-8", errors="backslashreplace")


def lacking() -> str:
    """What is not installed that a page is made with, and the cure ("" = nothing)."""
    names = [name for name in ("jinja2", "matplotlib") if importlib.util.find_spec(name) is None]
    return f"a page needs {' and '.join(names)}: pip install numbadnn[report]" if names else ""


def page(document: dict[str, Any]) -> str:
    """The page of a document, as text."""
    if why := lacking():
        raise ImportError(why)
    import jinja2

    from numbadnn.validate.html import plots

    kind, flat = kind_of(document), rows(document)
    ran = [row for row in flat if row["state"] != "out" or kind in ("model", "determinism")]
    listed = _together(ran)
    columns = _used(COLUMNS[kind], listed)
    script = _HERE.joinpath("page.js").read_text()
    places = _places(flat)
    heading, mood = words.verdict(document)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    return environment.get_template("page.html.j2").render(
        title=TITLES[kind],
        subject=document.get("model"),
        where=" · ".join(_where(document)),
        heading=heading,
        mood=mood,
        how_far=words.how_far(document.get("asked"), document.get("seconds") or 0, _budget(document)),
        counts=words.counts(flat),
        columns=columns,
        rows=listed,
        wrong=[row for row in flat if row["state"] in ("wrong", "failed", "known")],
        out=_out(flat),
        places=places,
        plots=plots.of(kind, ran),
        facts=facts(document),
        style=_HERE.joinpath("page.css").read_text(),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def shown(value: Any) -> str:
    """A cell's text: four digits of a measured number, yes and no, nothing where nothing was measured.

    >>> [shown(value) for value in (None, True, 0.0764413, 63, 1.25e7, "ok")]
    ['', 'yes', '0.07644', '63', '1.25e+07', 'ok']
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int) and abs(value) < 10**5:
        return str(value)
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Where and how it ran, without a path; of the options those that are not at their default."""
    here = document.get("environment") or {}
    versions = here.get("versions") or document.get("versions") or {}
    cudnn, driver = here.get("cudnn") or {}, here.get("cuda_driver")
    found = [
        ("date", document.get("date")),
        ("made in parts", "; ".join(_part(part) for part in document.get("parts") or ())),
        ("commit", document.get("commit")),
        ("device", document.get("device")),
        (
            "GPU",
            "; ".join(f"{g['name']}, compute capability {g['compute_capability']}" for g in here.get("gpus") or ()),
        ),
        ("no GPU", here.get("no_gpu_reason")),
        ("cuDNN", cudnn.get("version")),
        ("CUDA driver", driver if here.get("gpus") else None),
        ("platform", here.get("platform")),
        ("CPUs", here.get("cpus")),
        ("asked for", ", ".join(f"{k} {v}" for k, v in (document.get("arguments") or {}).items() if v)),
        ("exit status", document.get("exit_status")),
        *(versions.items() if isinstance(versions, dict) else [("versions", versions)]),
        *(_options(here.get("options") or {})),
    ]
    return [(name, str(value)) for name, value in found if value not in (None, "")]


def _part(part: dict[str, Any]) -> str:
    at = f" at {part['commit']}" if part.get("commit") else ""
    return f"{part['cases']} cases on {part['date']}{at}"


def _where(document: dict[str, Any]) -> list[str]:
    """The device, the day, and how long it took."""
    gpus = (document.get("environment") or {}).get("gpus") or [{}]
    found = [document.get("device") or gpus[0].get("name"), document.get("date")]
    found.append(f"{document['seconds']:g} s" if document.get("seconds") else None)
    return [str(part) for part in found if part]


def _options(options: dict[str, Any]) -> list[tuple[str, Any]]:
    """Those that somebody set; reports of earlier versions hold bare values, of which nothing is known."""
    given = [(name, o) for name, o in options.items() if isinstance(o, dict) and o.get("origin") != "default"]
    return [
        (f"option {name}", f"{o['value']} ({o['origin']})") for name, o in given if not name.endswith(("dir", "file"))
    ]


def _budget(document: dict[str, Any]) -> float | None:
    budget = (document.get("arguments") or {}).get("budget")
    return float(budget) if budget else None


def _used(columns: tuple[Column, ...], flat: list[Flat]) -> list[Column]:
    """The columns in which something stands; notes have sections of their own."""
    return [c for c in columns if c.key != "notes" and any(row.get(c.key) not in (None, "") for row in flat)]


def _out(flat: list[Flat]) -> list[tuple[int, str, str, str]]:
    """What was refused, skipped or not run: (rows, result, reason, implementations), the most first."""
    names: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for row in flat:
        if row["state"] == "out":
            key = row["result"], row["notes"]
            names[key].add(row.get("impl") or "")
            counts[key] += 1
    return [(n, result, why, ", ".join(sorted(names[result, why]))) for (result, why), n in counts.most_common()]


def _together(flat: list[Flat]) -> list[Flat]:
    """Engines of an implementation that did alike on a case in one row: thousands of rows are nothing to read."""
    found: dict[Any, Flat] = {}
    engines: dict[Any, list[str]] = collections.defaultdict(list)
    for number, row in enumerate(flat):
        who, _, engine = (row.get("impl") or "").partition(" engine ")
        alike = [row.get(name) for name in ("case", "problem", "declared", "reached", "trials", "notes", "result")]
        key = (who, *alike) if engine else number
        engines[key].append(engine)
        found.setdefault(key, {**row})
    for key, row in found.items():
        if (n := len(engines[key])) > 1:
            names = sorted(set(engines[key]), key=int)
            forms = (
                f" in {n} forms" if n > len(names) else ""
            )  # an engine that takes several layouts has a row for each
            row["impl"] = f"{key[0]} engine{'s' * (len(names) > 1)} {', '.join(names)}{forms}"
    return list(found.values())


def _places(flat: list[Flat]) -> dict[tuple[str, str], int]:
    """(case, line that replays it) -> its number on the page, in order."""
    found: dict[tuple[str, str], int] = {}
    for row in flat:
        if row["replay"] and row["state"] != "out":
            found.setdefault((row["case"], row["replay"]), len(found) + 1)
    return found
