"""What a tuning run found: the time of each implementation, and which one is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numbadnn.problem import Policy

#: whether it agrees is looked at, at the latest in the end, of what is within this factor of the best, of the KEPT fastest and of
#: the fastest of each implementation
NEAR, KEPT = 1.5, 6


@dataclass(slots=True)
class Measured:
    """One candidate; ``time_us`` None: left out for ``reason``. ``heuristic``: what its implementation takes untuned.

    ``agreed``: it was held against the others; what is far from the best may not have been. ``number``: its place in the
    implementation's own list.
    """

    impl: str
    backend: str
    config: Any
    heuristic: bool
    time_us: float | None = None
    reason: str = ""
    arithmetic: str = ""
    workspace_bytes: int = 0
    agreed: bool = False
    number: int = -1

    def as_dict(self) -> dict[str, Any]:
        names = ("impl", "config", "time_us", "workspace_bytes", "arithmetic", "heuristic")
        found = {name: getattr(self, name) for name in names}
        return {**found, "time_us": None if self.time_us is None else round(self.time_us, 3)}


@dataclass(slots=True)
class Outcome:
    """All candidates, the timed ones first, the fastest first of all.

    ``considered``: every implementation that could be asked; ``likely``: only those estimated near the fastest were.
    """

    problem: Any
    policy: Policy
    candidates: list[Measured]
    considered: list[str]
    seconds: float = 0.0
    unfinished: int = 0
    likely: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def timed(self) -> list[Measured]:
        return [c for c in self.candidates if c.time_us is not None]
