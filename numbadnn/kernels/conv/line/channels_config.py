"""The configuration of ``channels.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

THREADS = 128


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """A thread has ``pieces`` of ``vec`` steps; taps and dilation are frozen, or 0: then it is a multiple of ``vec``.

    ``near``: the pieces are neighbours, not a block apart.
    """

    vec: int
    pieces: int
    taps: int
    dilation: int
    near: bool = False
