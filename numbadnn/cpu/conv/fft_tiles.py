"""The tiles of ``fft.py``: how large they are, what they take in memory, and how long. Integers alone, without SciPy.

Outputs are cut into tiles of ``step`` positions an axis; a tile reads ``length = step + reach - 1`` pixels, and transforms of
that length wrap around outside of what is kept (overlap-save). Axes along which filters have one tap are not transformed. The
gradient of the filters takes whole images: its bound is that of sums over images, not over tiles.
"""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass

from numbadnn import config
from numbadnn.host.quota import processors
from numbadnn.problems.conv import ConvProblem

#: numbers of a tile that stay in the second-level cache
IN_CACHE = 1 << 17


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a direction is computed: what is read, the filters that it meets, what results.

    ``reach``: extents of the filters with their dilation; ``low``: padding ahead of what is read; ``length``, ``step``,
    ``count``: of the tiles, an axis each; ``together``: groups that are computed at a time.
    """

    axes: tuple[int, ...]
    reach: tuple[int, ...]
    low: tuple[int, ...]
    length: tuple[int, ...]
    step: tuple[int, ...]
    count: tuple[int, ...]
    sources: int
    results: int
    images: int
    groups: int
    together: int
    itemsize: int

    @property
    def points(self) -> int:
        """Numbers of a plane."""
        return math.prod(self.length)

    @property
    def frequencies(self) -> int:
        """Complex numbers of a plane's transform; they are symmetric along the last axis, which is kept by half."""
        last = self.length[self.axes[-1]]
        return self.points // last * (last // 2 + 1)

    @property
    def planes(self) -> int:
        """Of the filters, for one group."""
        return self.sources * self.results

    def numbers(self) -> int:
        """What a run holds at a time, in real numbers: filters, sources and results, each as planes and transforms."""
        held = 2 * self.planes + self.sources + 3 * self.results
        return self.together * held * (self.points + 2 * self.frequencies)

    def time_us(self) -> float:
        """Microseconds, roughly, on one core: SciPy's transforms, products of planes, and Python between them."""
        tiles = self.images * math.prod(self.count)
        transforms = self.planes + tiles * (self.sources + self.results)
        shares = math.ceil(self.groups / self.together)
        per_point = (FIXED_NS + LOG_NS * math.log2(max(self.points, 2))) * (len(self.axes) + 1) / 3
        if len(self.axes) == 1 and self.together * max(self.sources, self.results) < LINES:
            per_point *= LINE  # SciPy's vectors are of lines side by side
        work = self.groups * self.points * (transforms * per_point + tiles * self.planes * PRODUCT_NS)
        if self.points * (self.sources + self.results + self.planes) > IN_CACHE:
            work *= BEYOND_CACHE
        return START_US + shares * (tiles * TILE_US + FILTERS_US) + self.itemsize / 4 * work / 1e3


#: what ``time_us`` counts: nanoseconds of a transform by point and by doubling, of a product; microseconds of Python
FIXED_NS, LOG_NS, PRODUCT_NS, BEYOND_CACHE = 0.5, 0.08, 1.7, 2.0
START_US, TILE_US, FILTERS_US = 40.0, 30.0, 30.0
#: a line alone takes so many times as long as one of at least so many side by side
LINE, LINES = 3.0, 4


@functools.cache
def smooth_lengths() -> tuple[int, ...]:
    """The lengths up to 2^17 that transform fast: 2^a times a product of 3, 5 and 7."""
    odds = (1, 3, 5, 7, 9, 15, 21, 25, 27, 35, 45)
    found = {odd << a for odd in odds for a in range(1, 17) if odd << a <= 1 << 17}
    return tuple(sorted(found))


def fast_length(least: int) -> int:
    """The first of them that is no smaller, or the number itself."""
    known = smooth_lengths()
    at = bisect_left(known, least)
    return known[at] if at < len(known) else least


@functools.lru_cache(256)
def tiles_of(problem: ConvProblem) -> Tiles:
    """The tiles that take least time."""
    x, w, y, groups = problem.x, problem.w, problem.y, problem.groups
    filters, channels = w.shape[0] // groups, w.shape[1]
    reach = tuple((n - 1) * d + 1 for n, d in zip(problem.taps, problem.dilation, strict=True))
    ahead = tuple(low for low, _ in problem.padding)
    whole = problem.direction == "grad_weights"
    axes = tuple(a for a, n in enumerate(reach) if n > 1 or whole)
    sources, results, extents, low = channels, filters, y.shape[2:], ahead
    if problem.direction == "grad_inputs":
        sources, results, extents = filters, channels, x.shape[2:]
        low = tuple(n - 1 - p for n, p in zip(reach, ahead, strict=True))
    choices = [
        [n] if a not in axes else [fast_length(n + k - 1)] if whole else _lengths(n, k, 8 - len(axes))
        for a, (n, k) in enumerate(zip(extents, reach, strict=True))
    ]

    def made(length: tuple[int, ...]) -> Tiles:
        step = tuple(l - k + 1 for l, k in zip(length, reach, strict=True))
        count = tuple(-(-n // s) for n, s in zip(extents, step, strict=True))
        together = min(groups, max(1, IN_CACHE // (math.prod(length) * (sources + results))))
        itemsize = 8 if x.dtype == "float64" else 4
        return Tiles(axes, reach, low, length, step, count, sources, results, x.shape[0], groups, together, itemsize)

    return min((made(length) for length in itertools.product(*choices)), key=Tiles.time_us)


def _lengths(extent: int, reach: int, most: int) -> list[int]:
    """A few lengths for an axis: for one tile, two, three and so on, each a fast one, down to twice the reach."""
    found, count = [fast_length(extent + reach - 1)], 2
    while (step := -(-extent // count)) >= reach and len(found) < most:
        length = fast_length(step + reach - 1)
        if length < found[-1]:
            found.append(length)
        count = max(count + 1, count * 5 // 4)
    return found


#: operations of a core in a microsecond, at best: of products in register tiles, and of groups of few channels
DENSE, THIN = 200e3, 120e3
#: filters of a register tile, of which a problem with fewer leaves some idle; in the gradient of the filters vectors of them
ROWS, VECTORS = 8, 32
#: how much faster a transform must look to be taken
MARGIN = 1.3


def how_much_longer(problem: ConvProblem) -> float:
    """Times that a transform takes as long as the sum itself: an estimate; where that is hopeless, no more than a lower bound."""
    groups = problem.groups
    filters, channels = problem.w.shape[0] // groups, problem.w.shape[1]
    work = problem.x.shape[0] * groups * math.prod(problem.y.shape[2:])
    least = START_US + work * ((channels + filters) * FIXED_NS + channels * filters * PRODUCT_NS) / 1e3
    direct = direct_us(problem)
    return MARGIN * (least if MARGIN * least > direct else tiles_of(problem).time_us()) / direct


def direct_us(problem: ConvProblem) -> float:
    """Microseconds of the sum itself at its best, on all cores of the process; what was measured takes as long or longer."""
    groups = problem.groups
    rows = problem.w.shape[1] if problem.direction == "grad_inputs" else problem.w.shape[0] // groups
    rate = THIN if groups > 1 and max(problem.w.shape[1], problem.w.shape[0] // groups) <= 32 else DENSE
    tile = VECTORS if problem.direction == "grad_weights" and not problem.x.layout else ROWS
    idle = 1.0 if groups > 1 else -(-rows // tile) * tile / max(rows, 1)
    size = 2 if problem.x.dtype == "float64" else 1
    return 20 + problem.flops * idle * size / (rate * cores())


def cores() -> int:
    """Cores that a call may use."""
    return config.current().threads or processors()
