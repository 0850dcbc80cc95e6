"""The configuration of ``dense.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """A thread has ``pieces`` of ``vec`` steps for ``filters``; ``room``: numbers in shared memory.

    ``taps`` 0: an argument; ``dilation`` 0: a multiple of ``vec``, else it is frozen as the taps are.
    """

    vec: int
    pieces: int
    filters: int
    taps: int
    dilation: int
    room: int

    @property
    def behind(self) -> int:
        """Steps before the own ones that a frozen dilation reaches."""
        return (self.taps - 1) * self.dilation

    @property
    def looks(self) -> int:
        """Pieces read a turn for each piece of results."""
        return -(-self.behind // self.vec) + 1 if self.dilation else max(self.taps, 1)

    @property
    def shift(self) -> int:
        """Where in these the first tap of the first step lies."""
        return -self.behind % self.vec
