"""The configuration of ``persist.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.problem import ITEMSIZE
from numbadnn.problems.rnn_network import GATES

THREADS, WARPS = 256, 8
#: counters of a launch, one for each tile of sequences, and the bytes between them
COUNTERS, COUNTER_BYTES = 32, 128


@dataclass(frozen=True, slots=True)
class Persist:
    """A block has ``units`` units of ``rows`` sequences; ``keeps``: the forward pass writes what the gradient needs.

    ``eager``: blocks pass values on one by one, each with the number of its step, and meet at no barrier.
    """

    mode: str
    dtype: str
    hidden: int
    rows: int
    units: int
    has_lengths: bool
    keeps: bool = True
    eager: bool = False

    @property
    def fields(self) -> tuple[Any, ...]:
        return astuple(self)

    @property
    def pitch(self) -> int:
        """Words from row to row of a tile: the padding keeps neighbouring rows out of each other's banks."""
        return self.hidden * ITEMSIZE[self.dtype] // 4 + 4

    def shared_bytes(self, backward: bool) -> int:
        """Dynamic shared memory: the block's part of R (float16 has it in registers) and tiles."""
        gates, half = GATES[self.mode], self.dtype == "float16"
        if backward:
            held, tiles = self.units * (gates * self.hidden + 4), gates if half or self.eager else min(gates, 2)
        else:
            held, tiles = gates * self.units * self.pitch, 1
        return 4 * ((0 if half else held) + tiles * self.rows * self.pitch)

    def mail_bytes(self, backward: bool) -> int:
        """Of a tile of sequences: what its blocks pass on in a step, for two steps."""
        return 2 * (GATES[self.mode] if backward else 1) * self.rows * self.hidden * 8 if self.eager else 0

    def reduced_bytes(self, backward: bool) -> int:
        """Static shared memory: the sums of every warp."""
        columns = self.units * (1 if backward else GATES[self.mode])
        return 4 * WARPS * self.rows * (columns + 8)
