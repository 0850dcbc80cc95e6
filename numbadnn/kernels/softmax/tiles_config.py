"""The configuration of ``tiles.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TilesConfig:
    """``lanes`` threads of ``vec`` positions x ``parts`` threads that share the channels, each with ``kept`` in registers.

    ``resident`` blocks share a multiprocessor; at most ``shared`` bytes hold the channels that no thread keeps.
    """

    vec: int
    lanes: int
    parts: int
    kept: int
    resident: int
    shared: int
