"""Faults of cuDNN that the package knows: a list in ``cudnn/errata.json``, with the versions that have them.

An entry's ``effect`` says what follows:

* "refused": an engine is wrong on ordinary data. It never runs.
* "avoided": a call is wrong on some data, such as a channel of one value. It runs where somebody names cuDNN, which is recorded.
* "normwise": its error keeps the bound of its arithmetic, but not each element's. The option ``accuracy`` decides.

Of "refused" every engine is meant where no ``engine`` is named. ``knobs`` are the settings of an engine that have it, where
others of that engine are right: kind of knob -> its values.
``data`` is the kind of data that shows it (``numbadnn validate edge``). An entry holds from the version ``since`` on, up to but
not including ``below`` where a run has shown that a release is free of it.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from dataclasses import dataclass, field
from typing import Any

FORMAT = "numbadnn-shipped-errata-1"
EFFECTS = ("refused", "avoided", "normwise")


@dataclass(frozen=True)
class Erratum:
    """One fault; ``where``: attribute of the problem (or of its output: dtype, layout) -> the values that it has there."""

    id: str
    effect: str
    impl: str
    ops: list[str]
    where: dict[str, list[Any]]
    since: int
    seen: str
    says: str
    data: str = ""
    engine: int | None = None
    knobs: dict[str, list[int]] = field(default_factory=dict)
    below: int | None = None

    def __str__(self) -> str:
        return f"{self.id}: {self.says} (seen: {self.seen})"

    @property
    def conditions(self) -> str:
        """What it is about, in one line."""
        engine = "" if self.engine is None else f" engine {self.engine}"
        engine += "".join(f" knob {kind}={','.join(map(str, values))}" for kind, values in self.knobs.items())
        where = " ".join(f"{name}={','.join(map(str, values))}" for name, values in self.where.items())
        return " ".join(filter(None, [self.impl + engine, ",".join(self.ops), where]))

    def holds(self, version: int) -> bool:
        return self.since <= version and (self.below is None or version < self.below)

    def means(self, impl: str, problem: Any, engine: int | None, knobs: dict[int, int]) -> bool:
        if any(knobs.get(int(kind)) not in values for kind, values in self.knobs.items()):
            return False
        if self.impl != impl or self.engine not in (None, engine) or (self.ops and problem.op not in self.ops):
            return False
        return all(_value(problem, name) in wanted for name, wanted in self.where.items())


def _value(problem: Any, name: str) -> Any:
    """As JSON holds it."""
    value = getattr(problem.output if name in ("dtype", "layout") else problem, name)
    return [list(v) if isinstance(v, tuple) else v for v in value] if isinstance(value, tuple) else value


@functools.cache
def entries() -> tuple[Erratum, ...]:
    """Every fault that is known."""
    text = importlib.resources.files("numbadnn.cudnn").joinpath("errata.json").read_text(encoding="utf-8")
    document = json.loads(text)
    if document["format"] != FORMAT:
        raise ValueError(f"numbadnn/cudnn/errata.json: expected {FORMAT}, got {document['format']}")
    return tuple(Erratum(**entry) for entry in document["entries"])


def find(
    effect: str, impl: str, problem: Any, version: int, engine: int | None = None, knobs: dict[int, int] | None = None
) -> Erratum | None:
    """The fault of this effect that an implementation (or an engine of it, so set) of this cuDNN has on a problem."""
    for entry in entries():
        if entry.effect == effect and entry.means(impl, problem, engine, knobs or {}) and entry.holds(version):
            return entry
    return None
