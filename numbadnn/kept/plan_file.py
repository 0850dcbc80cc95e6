"""The plan lock file (``NUMBADNN_PLAN_FILE``): what ran for every problem of a program, to be committed, reviewed and replayed.

A problem met for the first time is chosen as usual and written down: implementation, engine and knobs or configuration, what it
guarantees. A problem that the file knows runs exactly as it says. ``plan_strict`` turns a problem that it does not know, or
whose entry cannot be had here, into ``PlanMissError``. The file holds no time and no date, so that it changes only when plans do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numbadnn.errors import PlanMissError
from numbadnn.host import files as stored
from numbadnn.kept import machine
from numbadnn.problem import Policy
from numbadnn.registry import DETERMINISM, Executable

FORMAT = "numbadnn-plans-1"
Key = tuple[str, str, str, str]
Entry = dict[str, Any]

#: without a lock: a call may come in the middle of another, and two that read one file find the same
_known: dict[Path, dict[Key, Entry]] = {}


def key_of(problem: Any, policy: Policy, scope: str) -> Key:
    """What an entry is found by: where, the problem, the rules, and the backends that were asked for."""
    return ("gpu" if policy.device >= 0 else "cpu", str(problem), machine.policy_text(policy), scope)


def lookup(path: str, key: Key) -> Entry | None:
    """The entry of a key, None where the file has none."""
    return _entries(stored.absolute(path)).get(key)


def _entries(path: Path) -> dict[Key, Entry]:
    known = _known.get(path)
    if known is None:
        known = _known.setdefault(path, _checked(path, stored.read(path, FORMAT, private=False)))
    return known


NAMES = ("on", "problem", "policy", "scope")


def _checked(path: Path, document: Any) -> dict[Key, Entry]:
    if document is None:
        return {}
    if not _is_whole(document):
        stored.report(path, "expected plans, each with its problem and implementation; it is damaged")
        return {}
    return {_key(entry): entry for entry in document["plans"]}


def _is_whole(document: stored.Document) -> bool:
    plans = document.get("plans")
    return isinstance(plans, list) and all(map(_is_entry, plans))


def _is_entry(entry: Any) -> bool:
    whole = isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in (*NAMES, "impl", "made_with"))
    return whole and entry.get("determinism") in (None, *DETERMINISM)


def _key(entry: Entry) -> Key:
    on, problem, policy, scope = (entry[name] for name in NAMES)
    return on, problem, policy, scope


def stale(entry: Entry, device: int) -> str:
    """Why an entry cannot mean here what it meant where it was made ("" = it does): engines belong to one cuDNN."""
    if not entry["impl"].startswith("cudnn."):
        return ""
    made, here = (text.split(" ")[0] for text in (entry["made_with"], machine.versions(device)))
    return "" if made == here else f"it was made with {made}, here is {here}"


def weaker(entry: Entry, policy: Policy) -> str:
    """Why an entry may not be followed under the level of determinism in force ("" = it may): it was seen to give less."""
    level = entry.get("determinism")  # None: written by hand, what the implementation says of itself counts
    if level is not None and DETERMINISM.index(level) < DETERMINISM.index(policy.determinism):
        return f"it was recorded as {level}, the option determinism asks for {policy.determinism}"
    return ""


def miss(path: str, problem: Any, why: str) -> PlanMissError:
    """The error of ``plan_strict``."""
    return PlanMissError(f"plan_strict: {path} {why} {problem}")


def record(path: str, key: Key, choice: Any, executable: Executable, device: int) -> None:
    """Write down what runs for a key that the file does not know yet; reported where the disk refuses."""
    place = stored.absolute(path)
    entries = _entries(place)
    if key in entries:
        return
    entry: Entry = {
        **dict(zip(NAMES, key, strict=True)),
        "impl": choice.impl.name,
        "config": machine.configuration(executable) if choice.impl.space or choice.impl.restore else None,
        "determinism": executable.determinism,
        "arithmetic": executable.arithmetic,
        "workspace_bytes": executable.workspace_bytes,
        "made_with": machine.versions(device),
    }
    entries[key] = entry

    def change(document: stored.Document) -> None:
        theirs = _checked(place, document) if "plans" in document else {}
        document["plans"] = [both[k] for both in ({**theirs, **entries},) for k in sorted(both)]

    written = 0
    try:
        while written < len(entries):  # a call that came in the middle of this one has left its own to be written
            written = len(entries)
            stored.update(place, FORMAT, change, private=False, whole=_is_whole)
    except stored.InUse:
        pass
    except OSError as error:
        stored.report_unwritten(place, error)
    except BaseException:
        entries.pop(key, None)  # broken off: the next call writes it
        raise


def forget() -> None:
    """Read the files again when they are next asked."""
    _known.clear()
