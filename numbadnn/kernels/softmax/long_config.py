"""The configuration of ``long.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LongConfig:
    """A block of ``threads``, each ``ahead`` pieces of ``vec`` elements at a time; at most ``shared`` bytes of a row kept."""

    threads: int
    vec: int
    ahead: int
    shared: int = 0
