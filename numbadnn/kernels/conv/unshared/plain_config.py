"""The configuration of ``plain.py`` and the constants that host and device code share."""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass

LANES, MOST_WARPS = 32, 4


@dataclass(frozen=True, slots=True)
class UnsharedConfig:
    """``images`` x ``filters`` sums a thread; ``capacity``: terms in shared memory; ``vec``: terms of an access.

    For the gradient of the filters ``filters`` x ``vec`` sums a thread; ``span``: filters of a block at a time where images pass
    some at a time, 0 where a block has them all.
    """

    images: int
    filters: int
    capacity: int
    vec: int
    warps: int
    resident: int = 4
    span: int = 0

    @property
    def threads(self) -> int:
        return LANES * self.warps
