"""What was measured, remembered: a JSON file a device in the cache folder, by versions, problem and policy.

``store`` keeps an outcome of ``tune.measure``, ``lookup`` finds it again. Times of the fastest candidates are kept, so that a
narrower question (a backend, a list of names) has its answer too; and who was asked, so that a choice is taken only where all
that could be chosen now was asked then.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

from numbadnn.config import Options
from numbadnn.host import files as stored
from numbadnn.kept import machine
from numbadnn.kept.outcome import KEPT, Outcome
from numbadnn.problem import Policy

FORMAT = "numbadnn-choices-1"

#: without a lock: a call may come in the middle of another, and two that read one file find the same
_known: dict[Path, dict[str, Any] | None] = {}


def path_of(options: Options, device: int) -> Path:
    """The choice file of a device."""
    return stored.cache_folder(options.cache_dir) / "choices" / machine.file_name(device)


def lookup(problem: Any, policy: Policy, options: Options) -> dict[str, Any] | None:
    """What was stored for this problem under this policy, on this device, with these versions; None if nothing was."""
    if not _known and not os.path.isdir(stored.cache_folder(options.cache_dir) / "choices"):
        return None
    path = path_of(options, policy.device)
    if path not in _known:
        _known.setdefault(path, _read(path, policy.device))
    found = (_known.get(path) or {}).get("choices", {}).get(machine.versions(policy.device), {}).get(str(problem), {})
    record = found.get(machine.policy_text(policy))
    if record is not None and not _is_record(record):
        stored.report(path, f"the entry of {problem} is damaged")
        return None
    return record


def _read(path: Path, device: int) -> dict[str, Any] | None:
    document = stored.read(path, FORMAT)
    if document is None:
        return None
    if document.get("device") != machine.device_name(device) or not _is_nested(document.get("choices")):
        stored.report(path, f"expected choices of {machine.device_name(device)}, got those of {document.get('device')}")
        return None
    return document


def _is_nested(choices: Any) -> bool:
    """Whether objects lie in objects three deep: versions, problem, policy."""
    return isinstance(choices, dict) and all(
        isinstance(problems, dict) and all(isinstance(policies, dict) for policies in problems.values())
        for problems in choices.values()
    )


def _is_record(record: Any) -> bool:
    def good(entry: Any) -> bool:
        return (
            isinstance(entry, dict) and isinstance(entry.get("impl"), str) and isinstance(entry.get("time_us"), float)
        )

    if not isinstance(record, dict) or not isinstance(record.get("considered"), list):
        return False
    if not all(isinstance(name, str) for name in record["considered"]):
        return False
    fastest = record.get("fastest")
    return isinstance(fastest, list) and bool(fastest) and all(map(good, fastest))


def record_of(outcome: Outcome) -> dict[str, Any]:
    """What the file keeps of an outcome: the fastest few and the fastest of each implementation."""
    kept, seen = [], set()
    for n, candidate in enumerate(outcome.timed):
        if n < KEPT or candidate.impl not in seen:
            kept.append(candidate.as_dict())
        seen.add(candidate.impl)
    wrong = [f"{c.impl} {c.config}: {c.reason}" for c in outcome.candidates if "does not agree" in c.reason]
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "considered": outcome.considered,
        "fastest": kept,
    }
    if outcome.likely:
        record["likely"] = True
    return {**record, "disagreed": wrong} if wrong else record


def store(outcome: Outcome, options: Options) -> Path | None:
    """Keep an outcome; the file, or None (reported) where it cannot be written. Nothing is kept of no timed candidate."""
    device = outcome.policy.device
    path, record = path_of(options, device), record_of(outcome)
    if not record["fastest"]:
        return None

    def change(document: dict[str, Any]) -> None:
        if document.get("device") != machine.device_name(device) or not _is_nested(document.get("choices")):
            document["device"], document["choices"] = machine.device_name(device), {}
        problems = document["choices"].setdefault(machine.versions(device), {})
        problems.setdefault(str(outcome.problem), {})[machine.policy_text(outcome.policy)] = record

    try:
        _known[path] = stored.update(path, FORMAT, change)
    except OSError as error:  # the choice holds for this process all the same
        stored.report_unwritten(path, error)
        memory = _known.get(path) or {}
        change(memory)
        _known[path] = memory
        return None
    return path


def forget() -> None:
    """Read the files again when they are next asked."""
    _known.clear()
