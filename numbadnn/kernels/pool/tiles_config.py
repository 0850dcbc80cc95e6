"""The configuration of ``tiles.py`` and its kernels, and what follows from it."""

from __future__ import annotations

import operator
from typing import NamedTuple

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.problem import ITEMSIZE

Three = tuple[int, int, int]
#: mode of a problem -> kind of a kernel
KINDS = {
    "max": "max", "max_deterministic": "max", "sum": "sum",
    "average_inc_pad": "average_inc", "average_exc_pad": "average_exc",
}  # fmt: skip
#: elements of x that a thread may hold: beyond, its registers are all taken
MOST_HELD = 160


class Piece(NamedTuple):
    """The columns j*step + first ... of a row that tile j reads: ``length``, single up to ``head`` and from ``tail`` on.

    Between lie ``body`` accesses of ``vec`` columns. ``past``: some tile reaches past the end of the row.
    """

    first: int
    step: int
    length: int
    vec: int
    past: bool

    @property
    def head(self) -> int:
        return min(max(-self.first, 0), self.length) if self.vec > 1 else 0

    @property
    def body(self) -> int:
        return min(-(-(self.length - self.head) // self.vec), self.step // self.vec) if self.vec > 1 else 0

    @property
    def tail(self) -> int:
        return self.head + self.body * self.vec

    @property
    def capacity(self) -> int:
        """Columns that are written: whole accesses, so that there may be more than ``length``."""
        return max(self.length, self.tail)


@dataclass(frozen=True, slots=True)
class TilesConfig:
    """All that a kernel is built for: ``op`` is pool, choose or pool_grad, ``kind`` max, sum, average_inc or average_exc.

    ``vec`` columns an access of x (and dx), ``vec_y`` of dy; ``lanes`` cells an access where channels are last, else 1.
    ``deep``: planes of codes a thread, of 16-bit numbers. ``whole``: rows of what is written are multiples of a tile's.
    ``check_rows``: a tile reaches outside the rows; ``past_x``, ``past_y``: past the end of one.
    """

    op: str
    kind: str
    window: Three
    stride: Three
    pad: Three
    vec: int
    vec_y: int
    lanes: int
    rows: int
    columns: int
    whole: bool
    check_rows: bool
    past_x: bool
    past_y: bool
    threads: int
    resident: int
    deep: int = 1

    def first_window(self, axis: int) -> int:
        """The first window that reaches a strip of the gradient, from the first whose number the strip has."""
        return -((self.window[axis] - 1 - self.pad[axis]) // self.stride[axis])

    def last_window(self, axis: int) -> int:
        many = (1, 1, self.columns)[axis]
        return (many * self.stride[axis] - 1 + self.pad[axis]) // self.stride[axis]

    def start(self, axis: int, n: int) -> int:
        """Where the n-th window that reaches a strip of the gradient begins, from the strip's first element."""
        return (self.first_window(axis) + n) * self.stride[axis] - self.pad[axis]

    @property
    def many_planes(self) -> int:
        """Planes of windows that reach a strip."""
        return self.last_window(0) - self.first_window(0) + 1

    @property
    def window_rows(self) -> int:
        """Rows of windows that reach a strip."""
        return self.last_window(1) - self.first_window(1) + 1

    @property
    def many_rows(self) -> int:
        """Rows of windows that reach a tile of the gradient."""
        return self.rows + self.window_rows - 1

    @property
    def tall(self) -> int:
        """Rows of a tile of the gradient."""
        return self.rows * self.stride[1]

    @property
    def own(self) -> int:
        """Elements of a tile of the gradient."""
        return self.stride[0] * self.tall * self.columns * self.stride[2] * self.lanes

    @property
    def fused(self) -> bool:
        """Whether the gradient of a maximum finds out itself which element a window chose: each window is one strip's."""
        return alone(self.window, self.stride, self.pad)

    @property
    def x_rows(self) -> int:
        """Rows of x that the windows of a tile see, where they are looked at."""
        many = self.many_rows if self.op == "pool_grad" else self.rows
        return (many - 1) * self.stride[1] + self.window[1]

    def x_piece(self) -> Piece:
        first, many = -self.pad[2], self.columns
        if self.op == "pool_grad":
            low = self.first_window(2)
            first, many = low * self.stride[2] - self.pad[2], self.last_window(2) - low + 1
        count = (many - 1) * self.stride[2] + self.window[2]
        return Piece(first, self.columns * self.stride[2], count, self.vec, self.past_x)

    def y_piece(self) -> Piece:
        low = self.first_window(2)
        return Piece(low, self.columns, self.last_window(2) - low + 1, self.vec_y, self.past_y)


def alone(window: Three, stride: Three, pad: Three) -> bool:
    """Whether each element of the image is in one window at most, and each window in one strip of the gradient."""
    return not any(pad) and all(map(operator.le, window, stride))


def batch(c: TilesConfig, dtype: str) -> int:
    """How many rows of x a thread reads at a time, without the gradient: its tile's, or one where registers do not hold them."""
    return c.x_rows if c.x_rows * c.x_piece().capacity * c.lanes * ITEMSIZE[dtype] <= 4 * MOST_HELD else 1
