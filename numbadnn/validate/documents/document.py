"""One document a run: what it is made of, how it is written, and which kind a file is.

Every document has ``format``, ``date``, ``seconds``, ``device``, ``versions``, ``arguments``, ``exit_status`` (null: the run
was ended before its end), ``asked`` (how many cases, and how many were done), ``environment``, and one list of rows.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numbadnn.host import files as stored

Document = dict[str, Any]
#: kind -> the format that is written, and the name of its list
FORMATS = {
    "validate": ("numbadnn-validate-2", "rows"),
    "check": ("numbadnn-check-1", "rows"),
    "model": ("numbadnn-model-1", "nodes"),
    "determinism": ("numbadnn-determinism-1", "rows"),
    "bench": ("numbadnn-bench-1", "cases"),
    "tuning": ("numbadnn-tuning-1", "cases"),
}
_KINDS: dict[Any, str] = {format: kind for kind, (format, _) in FORMATS.items()} | {1: "validate"}


def make(
    kind: str,
    rows: Sequence[Document],
    *,
    seconds: float,
    device: int,
    arguments: Document,
    status: int | None = None,
    asked: Document | None = None,
    **more: Any,
) -> Document:
    """A document of this kind; ``device``: the GPU's number, -1 for the CPU."""
    from numbadnn.call import info
    from numbadnn.kept import machine

    format, name = FORMATS[kind]
    return {
        "format": format,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "device": machine.device_name(device),
        "versions": machine.versions(device),
        "arguments": arguments,
        "exit_status": status,
        "asked": asked,
        **more,
        "environment": info.collect(),
        name: list(rows),
    }


def kind_of(document: Document) -> str:
    """The kind of a document, of an earlier version too; ValueError for what is no report."""
    format = document.get("format") if isinstance(document, dict) else None
    kind = _KINDS.get(format) if isinstance(format, str | int) else None
    if kind is None or not isinstance(document.get(FORMATS[kind][1]), list):
        raise ValueError(f"expected a report, whose format is one of {', '.join(map(str, _KINDS))}, got {format!r}")
    return kind


def text(document: Document) -> str:
    """As JSON, a row a line, so that it can be committed and compared."""
    name = FORMATS[kind_of(document)][1]
    head = stored.as_json({k: v for k, v in document.items() if k != name}, indent=1, default=str)
    lines = ",\n  ".join(stored.as_json(row, default=str) for row in document[name])
    return f'{head[:-2]},\n "{name}": [\n  {lines}\n ]\n}}\n'


def write(path: str, document: Document) -> None:
    """Write it to ``path`` as JSON."""
    Path(path).write_text(text(document))


def read(path: str) -> Document:
    """The document in a file that ``--json`` wrote; ValueError for a file that is none."""
    try:
        found: Document = json.loads(Path(path).read_bytes())
        kind_of(found)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no report: {error}") from None
    return found
