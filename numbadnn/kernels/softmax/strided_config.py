"""The configuration of ``strided.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StridedConfig:
    """``lanes`` rows x ``parts`` threads a row, axes the kernel is built for; see ``device/strided.py``.

    ``long``, which follows from the problem: a thread adds more than LEAF terms, with account of what it rounds off.
    """

    kept: int
    reduced: int
    wide: bool
    lanes: int
    parts: int
    long: bool = False
