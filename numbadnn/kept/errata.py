"""What was measured to be less than it declares, on this machine: a file that the dispatcher obeys (``errata_file``).

``numbadnn validate --determinism`` writes it: an entry names an implementation (or one engine of cuDNN), an operation and a
dtype, the level that was reached, and the evidence. An implementation is then held to that level instead of its own
declaration; one found ``wrong`` is not used at all. ``levels`` in the same file is what was measured, found wanting or not.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from numbadnn import config
from numbadnn.host import files as stored
from numbadnn.kept import machine
from numbadnn.problem import Policy
from numbadnn.registry import DETERMINISM

FORMAT = "numbadnn-errata-1"
WRONG = "wrong"

#: without a lock: a call may come in the middle of another, and two that read one file find the same
_known: dict[Path, dict[str, Any]] = {}


def path_of(options: config.Options, device: int) -> Path:
    """The file in force for a device."""
    if options.errata_file:
        return stored.absolute(options.errata_file)
    return stored.cache_folder(options.cache_dir) / "errata" / machine.file_name(device)


def _document(options: config.Options, device: int) -> dict[str, Any]:
    if not options.errata_file and not os.path.isdir(stored.cache_folder(options.cache_dir) / "errata"):
        return {}
    path = path_of(options, device)
    known = _known.get(path)
    if known is None:
        known = stored.read(path, FORMAT, private=not options.errata_file) or {}
        if not _is_whole(known):
            stored.report(path, "an entry lacks its implementation, operation, dtype, level or evidence")
            known = {}
        known = _known.setdefault(path, known)
    return known


def _is_whole(document: stored.Document) -> bool:
    entries = document.get("entries", [])
    return isinstance(entries, list) and all(map(_is_entry, entries)) and isinstance(document.get("levels", {}), dict)


def _is_entry(entry: Any) -> bool:
    names = ("impl", "op", "dtype", "level", "evidence")
    whole = isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in names)
    return whole and entry["level"] in (*DETERMINISM, WRONG)


def against(impl: str, problem: Any, policy: Policy, options: config.Options, engine: int | None = None) -> str:
    """Why the errata leave out this implementation, or this engine of it ("" = they do not)."""
    for entry in _document(options, policy.device).get("entries", []):
        same = (entry["impl"], entry["op"], entry["dtype"]) == (impl, problem.op, problem.output.dtype)
        if not same or entry.get("engine") != engine:
            continue
        where = f"(errata {path_of(options, policy.device).name}: {entry['evidence']})"
        if entry["level"] == WRONG:
            return f"measured to be wrong {where}"
        if DETERMINISM.index(entry["level"]) < DETERMINISM.index(policy.determinism):
            return f"measured {entry['level']}, the option determinism asks for {policy.determinism} {where}"
    return ""


def against_engine(problem: Any, policy: Policy, engine: int) -> str:
    """``against`` for one engine of cuDNN's graph API, under the options in force."""
    return against("cudnn.graph", problem, policy, config.current(), engine)


def measured_level(impl: str, problem: Any, policy: Policy, options: config.Options) -> str:
    """The level that was measured for an implementation on this operation and dtype, "" where none was."""
    levels = _document(options, policy.device).get("levels", {})
    found = levels.get(f"{impl} {problem.op} {problem.output.dtype}", "")
    return found if isinstance(found, str) else ""


def store(options: config.Options, device: int, entries: list[dict[str, Any]], levels: dict[str, str]) -> Path:
    """Replace what is known of the implementations that were measured; all else stays."""
    path = path_of(options, device)
    asked = {tuple(name.split(" ")) for name in levels}

    def change(document: stored.Document) -> None:
        kept = [e for e in document.get("entries", []) if (e.get("impl"), e.get("op"), e.get("dtype")) not in asked]
        document["device"] = machine.device_name(device)
        document["entries"] = [*kept, *entries]
        document["levels"] = {**document.get("levels", {}), **levels}

    _known[path] = stored.update(path, FORMAT, change, private=not options.errata_file, whole=_is_whole)
    return path


def forget() -> None:
    """Read the files again when they are next asked."""
    _known.clear()
