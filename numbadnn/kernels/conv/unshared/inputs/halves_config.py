"""The configuration of ``halves.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

#: terms that a warp has at once
LANES, TILE = 32, 64


@dataclass(frozen=True, slots=True)
class InputsHalvesConfig:
    """A warp has ``rounds`` times 64 terms of a position, of 16 times ``steps`` filters; ``vec``: terms of an access.

    ``depth``: positions under way; ``kept``: images that leave a block. A block has ``tile`` positions and ``channels``
    channels of a group, of which a warp has ``own``.
    """

    images: int
    kept: int
    warps: int
    rounds: int
    steps: int
    vec: int
    depth: int
    resident: int
    tile: tuple[int, int] = (1, 1)
    channels: int = 1
    own: int = 1

    @property
    def threads(self) -> int:
        return LANES * self.warps
