"""The configuration of ``rows.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowsConfig:
    """``lanes`` threads a row, ``vectors`` pieces of ``vec`` elements a thread; ``stash``: dy in shared memory.

    ``resident`` blocks share a multiprocessor: one computes while the other waits for memory.
    """

    lanes: int
    vectors: int
    vec: int
    peel: bool
    nested: bool
    threads: int
    stash: bool = False
    resident: int = 1
