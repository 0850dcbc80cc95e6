"""The configuration of ``channels.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelsConfig:
    """``lanes`` threads of ``vec`` positions x ``parts`` threads of ``count`` channels; see ``device/channels.py``."""

    vec: int
    lanes: int
    parts: int
    count: int
