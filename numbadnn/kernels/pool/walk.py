"""``numba.pool_argmax``: the gradient of a maximum over windows that overlap. The host side of ``device/walk.py``.

A thread walks down some columns and keeps all that it needs in registers: it looks at each window once.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.problem import Spec
from numbadnn.problems.pool import PoolProblem

Two = tuple[int, int]
THREADS = 128
#: registers that a thread may hold; up to each of ``MANY_HELD`` so many blocks share a multiprocessor
MOST_HELD, MANY_HELD = 154, {7: 50, 6: 60, 5: 89, 4: 116, 3: 154}
#: the same of pairs, which spill beyond it: channels last; else on Hopper, and on others, whose assembler spills earlier. (Three
#: blocks may spill a dozen bytes on Hopper: 3x3 windows of stride 1 ran at 62 % of a copy, with none of it spilled at 50 %.)
CLEAN_LAST = {7: 40, 6: 50, 5: 66, 4: 95, 3: 140}
CLEAN_HOPPER = {7: 50, 6: 60, 5: 84, 4: 116, 3: 150}
CLEAN_ELSEWHERE = {7: 50, 6: 60, 5: 84, 4: 110, 3: 120}
HOPPER = (9, 0)
#: tests of an element against a maximum in one step
MOST_TESTS = 160
#: accesses of a row: a word has a bit for each that is outside, and one more
MOST_PIECES = 30
#: strips that a thread may walk down
DROPS = (2, 3, 4, 6, 10, 14, 29)
#: blocks an H200 has at a time
SLOTS = 660


@dataclass(frozen=True, slots=True)
class Columns:
    """``length`` columns, ``lanes`` elements each, from number j*step + first on, of a row of ``width``, as thread j reads them.

    ``pieces`` are (first column, columns) of its accesses, each of them all inside the row or all outside.
    """

    first: int
    length: int
    step: int
    width: int
    lanes: int
    most: int
    across: int

    @property
    def pieces(self) -> list[Two]:
        """The longest aligned accesses."""
        found, c = [], 0
        while c < self.length:
            v = self.most
            while v > 1 and (c + v > self.length or any(n % v for n in (self.first + c, self.step, self.width))):
                v //= 2
            found.append((c, v))
            c += v
        return found

    def leaves(self, c: int, v: int) -> bool:
        """Whether the access is outside for some thread."""
        return self.first + c < 0 or (self.across - 1) * self.step + self.first + c + v > self.width

    def words(self, size: int) -> int:
        """Registers that hold what one row's accesses read."""
        return sum(-(-v * self.lanes * size // 4) for _, v in self.pieces)


@dataclass(frozen=True, slots=True)
class WalkConfig:
    """All that a kernel is built for.

    A thread takes ``spread`` cells (of ``stride`` columns) side by side, ``lanes`` channels of them, and walks down ``drop``
    strips, of ``stride`` rows each. ``most``, ``vec_dx``: columns an access of x and dy, of dx. ``ahead``: the next strip is read
    before this one is used. ``paired``: two 16-bit numbers go together (``device/walk_pairs.py``). The extents of an
    image, ``cells`` channels together, are frozen too.
    """

    window: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    last: bool
    lanes: int
    spread: int
    drop: int
    ahead: bool
    most: int
    vec_dx: int
    image: Two
    outputs: Two
    cells: int
    threads: int
    resident: int
    paired: bool

    @property
    def words(self) -> int:
        """Words that hold a column of a thread's, where ``paired``: in C order a word has a number of each of two planes."""
        return self.lanes // 2 if self.last else 1

    @property
    def low(self) -> int:
        """The first window that reaches a cell, from the window of the cell's number."""
        return -((self.window[1] - 1 - self.pad[1]) // self.stride[1])

    @property
    def windows(self) -> int:
        """How many windows reach a thread's cells."""
        return (self.spread * self.stride[1] - 1 + self.pad[1]) // self.stride[1] - self.low + 1

    @property
    def x(self) -> Columns:
        sw = self.stride[1]
        first, length = self.low * sw - self.pad[1], (self.windows - 1) * sw + self.window[1]
        return Columns(first, length, self.spread * sw, self.image[1], self.lanes, self.most, self.across)

    @property
    def y(self) -> Columns:
        return Columns(self.low, self.windows, self.spread, self.outputs[1], self.lanes, self.most, self.across)

    @property
    def across(self) -> int:
        """Threads side by side."""
        return -(-self.image[1] // (self.spread * self.stride[1]))

    @property
    def strip(self) -> int:
        """The strip (of the rows from a window's first to the next window's) where the image begins."""
        return self.pad[0] // self.stride[0]

    @property
    def strips(self) -> int:
        return (self.image[0] - 1 + self.pad[0]) // self.stride[0] - self.strip + 1

    @property
    def down(self) -> int:
        """Threads one above the other."""
        return -(-self.strips // self.drop)

    @property
    def warm(self) -> int:
        """Strips above a thread's first whose windows reach it."""
        return (self.window[0] - 1) // self.stride[0]

    @property
    def tests(self) -> int:
        return self.windows * math.prod(self.window) * self.lanes

    def held(self, size: int) -> int:
        """About how many registers a thread needs, but for a dozen."""
        words, (kh, _), (sh, sw) = 2 if size == 8 else 1, self.window, self.stride
        totals = max(kh, sh) * self.spread * sw
        raw = self.ahead * (min(kh, sh) * self.x.words(size) + self.y.words(size))
        addresses = 2 * sum(columns.leaves(c, v) for columns in (self.x, self.y) for c, v in columns.pieces)
        if self.paired:  # a quarter of the sums takes two words
            values = (kh * self.x.length + totals * 5 // 4 + 2 * self.windows) * self.words
            return values + raw * (1 if self.last else 2) + addresses + 7
        values = (kh * self.x.length + totals + 2 * self.windows) * words * self.lanes
        return values + raw + addresses + (16 if self.last else 0)


def _operands(problem: PoolProblem) -> tuple[Spec, Spec, Spec]:
    assert problem.dy is not None and problem.dx is not None
    return problem.x, problem.dy, problem.dx


def reason(problem: PoolProblem) -> str:
    """Why this kernel cannot, "" if it can."""
    if problem.op != "pool_grad" or not problem.is_max or len(problem.window) != 2:
        return "needs the gradient of a maximum over two axes"
    if not any(k > s for k, s in zip(problem.window, problem.stride, strict=True)):
        return "needs windows that overlap: others are quicker without a second look"
    specs = _operands(problem)
    if not (all(s.is_contiguous for s in specs) or all(s.is_channels_last for s in specs)):
        return "needs operands that are all packed, in C order or channels last"
    if not space(problem):
        return "needs windows that fit the registers of a thread"
    if max(math.prod(s.shape[1:]) for s in specs) * problem.x.itemsize >= LIMIT32 or problem.x.size >= 2**36:
        return "needs images of less than 2 GiB"
    return ""


def config(problem: PoolProblem, lanes: int, spread: int, drop: int, ahead: bool, paired: bool = False) -> WalkConfig:
    """A configuration with what depends on the problem filled in."""
    specs = _operands(problem)
    last, size = not all(s.is_contiguous for s in specs), problem.x.itemsize
    aligned = all(s.aligned for s in specs)
    most = 16 // size if aligned and not last else 1
    W = problem.x.shape[3]
    vec_dx = math.gcd(most, W, spread * problem.stride[1])
    blank = WalkConfig(
        problem.window, problem.stride, problem.pad, last, lanes, spread, drop, ahead, most, vec_dx,
        (problem.x.shape[2], W), (problem.y.shape[2], problem.y.shape[3]), problem.x.shape[1] if last else 1, THREADS, 1, paired,
    )  # fmt: skip
    return _held_by(blank, size, CLEAN_LAST if last else CLEAN_HOPPER)


def _held_by(c: WalkConfig, size: int, clean: dict[int, int]) -> WalkConfig:
    """With as many blocks a multiprocessor as registers allow; of pairs that would spill, the next strip is not read before."""
    many = next((n for n, held in MANY_HELD.items() if c.held(size) <= held), 2)
    later = replace(c, ahead=False, resident=many)
    if c.paired and many in clean and c.held(size) > clean[many]:
        return later if c.ahead and later.held(size) <= clean[many] else replace(c, resident=many - 1)
    return replace(c, resident=many)


def possible(problem: PoolProblem, c: WalkConfig, acc: str, capability: tuple[int, int]) -> WalkConfig:
    """The configuration for a GPU, not paired where sums are float64 or one before Hopper would compare bfloat16 in pairs."""
    if c.paired and (acc != "float32" or (problem.x.dtype == "bfloat16" and capability < HOPPER)):
        return config(problem, c.lanes, c.spread, c.drop, c.ahead)
    if c.paired and not c.last and capability != HOPPER:
        return _held_by(c, problem.x.itemsize, CLEAN_ELSEWHERE)
    return c


@functools.lru_cache(maxsize=256)
def space(problem: PoolProblem) -> tuple[WalkConfig, ...]:
    """Configurations that fit registers; all give the same bits. The first is the heuristic's."""
    specs = _operands(problem)
    most, sw, aligned = 16 // problem.x.itemsize, problem.stride[1], all(s.aligned for s in specs)
    shapes: list[tuple[int, int, bool]] = []  # lanes, spread, paired
    planes, short = all(s.is_contiguous for s in specs), problem.x.itemsize == 2
    # float32 of large windows is best off with 8 columns a thread, and without what would take their registers
    eight = planes and problem.x.itemsize == 4 and problem.window[0] > 2 and problem.x.shape[3] % 2 == 0
    if planes:
        # 16-bit rows that begin anywhere: the wider a thread, the further apart is what its neighbours write with it
        first = (8,) if eight else (1,) if short and problem.x.shape[3] % 2 else ()
        spreads = dict.fromkeys(max(1, wide // sw) for wide in (*first, most, 2 * most, most // 2, 2, 1))
        shapes = [(1, s, short) for s in spreads]
    else:
        fitting = [n for n in (2, 4, 1, most) if problem.x.shape[1] % n == 0] if aligned else [1]
        for n in dict.fromkeys(fitting):
            paired = short and n % 2 == 0
            shapes += [(n, s, paired) for s in ((4, 2, 1) if paired and n == 2 else (2, 1))]
    found = [
        c
        for lanes, spread, paired in shapes
        for ahead in ((False, True) if eight else (True, False))
        for c in sorted(
            (config(problem, lanes, spread, d, ahead, paired) for d in DROPS), key=lambda c: _cost(problem, c)
        )
    ]
    size = problem.x.itemsize
    return tuple(
        c
        for c in dict.fromkeys(found)
        if c.held(size) <= MOST_HELD
        and c.tests <= MOST_TESTS
        and units(problem, c) < 2**31
        and max(len(c.x.pieces), len(c.y.pieces)) <= MOST_PIECES
    )


def _cost(problem: PoolProblem, c: WalkConfig) -> float:
    """Strips that a thread has time for, for one that is written, and multiprocessors that wait for the last blocks.

    The further threads walk, the further apart lies what is read at the same time: as measured for 3x3 windows of stride 2.
    """
    steps = c.down * (c.drop + c.warm) / c.strips * (1 + 0.12 * math.log2(c.drop))
    return steps * (1 + 0.3 * SLOTS * c.threads / units(problem, c))


def units(problem: PoolProblem, c: WalkConfig) -> int:
    """Threads in all."""
    n, channels = problem.x.shape[:2]
    if c.last:
        return n * c.down * c.across * (channels // c.lanes)
    return -(-n * channels // (2 if c.paired else 1)) * c.down * c.across


def prepare(problem: PoolProblem, c: WalkConfig, acc: str) -> tuple[Kernel, tuple[int, int, int], tuple[Any, ...]]:
    """Kernel, grid and arguments."""
    many, (n, channels) = units(problem, c), problem.x.shape[:2]
    scalars = (many, n if c.last else n * channels) if c.paired else (many,)
    return kernel(problem.x.dtype, acc, c), blocks(many, c.threads), scalars


def kernel(dtype: str, acc: str, config: WalkConfig) -> Kernel:
    """The kernel of one configuration."""
    arguments = (dtype, config) if config.paired else (dtype, acc, config)
    made_by = f"pool.device.walk{'_pairs' if config.paired else ''}.pool_grad"
    parameters = "ptr:3 i64 i64" if config.paired else "ptr:3 i64"
    return Kernel.of("pool_walk", made_by, arguments, parameters, config.threads, config.resident)
