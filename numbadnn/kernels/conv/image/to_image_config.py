"""The configuration of ``to_image.py``, and what the host and the device both know."""

from __future__ import annotations

import math

from numbadnn.kernels.build.frozen import dataclass

#: threads of a block, next to each other and below each other; rows of the result of each, and columns a stride
ACROSS, DOWN, ROWS, COLUMNS = 16, 8, 2, 4
THREADS = ACROSS * DOWN


@dataclass(frozen=True, slots=True)
class ToImageConfig:
    """``first``: (top, left) of the sum. ``chunk`` channels of the source are in shared memory at a time; ``lanes`` threads
    next to each other read neighbouring ones. ``vector``: elements of a row of the result that are written together."""

    channels: int
    taps: tuple[int, int]
    stride: tuple[int, int]
    first: tuple[int, int]
    chunk: int
    lanes: int
    vector: int

    @property
    def patch(self) -> tuple[int, int]:
        """Rows and columns of the result that a thread has."""
        return ROWS, COLUMNS * self.stride[1]

    @property
    def lowest(self) -> tuple[int, int]:
        """The first row and column of the source that a result's row and column 0 reach, which may be negative."""
        return met(self.patch, self.taps, self.stride, self.first)[0]

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns of the source behind a patch."""
        return met(self.patch, self.taps, self.stride, self.first)[1]

    @property
    def tile(self) -> tuple[int, int, int]:
        """(rows, columns with those that only fill up vectors, elements of a channel): what a block reads of the source."""
        rows = (DOWN - 1) * ROWS // self.stride[0] + self.reach[0]
        columns = (ACROSS - 1) * COLUMNS + -(-self.reach[1] // 4) * 4
        apart = (
            32 // self.lanes if self.lanes > 1 else 4
        )  # what a warp writes at a time lies in different banks, in vectors
        plane = -(-(rows * columns) // 32) * 32 + apart
        return rows, columns, plane

    @property
    def stage(self) -> int:
        """Elements of one of two buffers: the source's channels, then their filters, four channels of the result each."""
        return self.chunk * (self.tile[2] + 4 * math.prod(self.taps))

    @property
    def shared_bytes(self) -> int:
        """Two buffers, and where each element of a channel's tile lies."""
        return 4 * (2 * self.stage + self.tile[0] * self.tile[1])


def met(
    extent: tuple[int, int], taps: tuple[int, int], stride: tuple[int, int], first: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """(the first, how many) rows and columns of the source that results up to ``extent`` meet; the first may be negative."""
    lowest = _pair(tuple(-((n - 1 - at) // step) for n, step, at in zip(taps, stride, first, strict=True)))
    ends = zip(extent, first, stride, lowest, strict=True)
    return lowest, _pair(tuple((n - 1 + at) // step - low + 1 for n, at, step, low in ends))


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    first, second = values
    return first, second
