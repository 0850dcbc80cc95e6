"""A convolution as the matrix product of ``numba.implicit_tiles``: sizes, and strides through its operands.

Rows of the product are output positions, terms are taps of channels, columns are filters; the gradient of the filters
has rows and terms exchanged, that of the image its own positions for rows and its channels for columns.
"""

from __future__ import annotations

import math

from numbadnn.problem import Spec
from numbadnn.problems.conv import ConvProblem


class Product:
    """A problem as a matrix product: its sizes, and what the tables are made of."""

    def __init__(self, problem: ConvProblem) -> None:
        x, w, y = problem.x, problem.w, problem.y
        self.problem, self.direction, self.groups = problem, problem.direction, problem.groups
        self.inputs, self.weights = self.direction == "grad_inputs", self.direction == "grad_weights"
        self.accumulator = "float64" if x.dtype == "float64" else "float32"
        channels, filters = x.shape[1] // self.groups, y.shape[1] // self.groups
        #: ``gathered`` is read through the tables, positions are counted in ``placed``
        self.gathered, self.placed = (y, x) if self.inputs else (x, y)
        self.other, self.out = y if self.weights else w, getattr(problem, problem.output_name)
        self.taps, self.stride, self.dilation = (three(v) for v in (problem.taps, problem.stride, problem.dilation))
        self.padding = three(tuple(low for low, _ in problem.padding), 0)
        self.limits, self.extents = three(self.placed.shape[2:]), three(self.gathered.shape[2:])
        self.channels, self.columns = (filters, channels) if self.inputs else (channels, filters)
        self.places, self.phases, area = self.limits, 1, self.taps
        if self.inputs:
            self.places = tuple(-(-n // s) for n, s in zip(self.limits, self.stride, strict=True))
            self.phases = math.prod(self.stride)
            sets = zip(self.taps, self.stride, self.dilation, strict=True)
            area = tuple(-(-n // (s // math.gcd(s, d))) for n, s, d in sets)
        #: the phases from the first that meets a tap to the last: what lies outside is 0, and ``clears`` says who writes it
        self.begin, self.end = self._met() if self.inputs and self.clears else (0, self.phases)
        self.met = self.end - self.begin
        self.positions = y.shape[0] * math.prod(self.places)
        terms = self.channels * math.prod(area)  # the most that a phase has
        self.rows, self.terms = (terms, self.positions) if self.weights else (self.positions, terms)
        k_step, c_step, *tap_steps = w.strides[0], w.strides[1], *three(w.strides[2:], 0)
        self.w_start = 0
        if problem.flip:
            self.w_start = sum((n - 1) * s for n, s in zip(self.taps, tap_steps, strict=True))
            tap_steps = [-s for s in tap_steps]
        self.w_strides = (k_step if self.inputs else c_step, *tap_steps)
        #: from a column to the next, and from a group to the next of: what is gathered, the other, the result
        self.other_step = y.strides[1] if self.weights else c_step if self.inputs else k_step
        self.out_step = k_step if self.weights else self.out.strides[1]
        self.group_steps = (
            self.channels * self.gathered.strides[1],
            filters * (y.strides[1] if self.weights else k_step),
            filters * k_step if self.weights else self.columns * self.out.strides[1],
        )
        self.channels_last = self.gathered.strides[1] == 1 and self.gathered.strides[-1] != 1 and self.channels > 1

    @property
    def clears(self) -> bool:
        """Whether the result can be set to 0 as a whole before phases are computed: nothing of it counts, nothing is between."""
        return not self.problem.beta and self.out.span == (0, math.prod(self.out.shape) - 1)

    def _axes(self) -> list[tuple[int, int, int, int]]:
        return list(zip(self.taps, self.stride, self.dilation, self.padding, strict=True))

    def _met(self) -> tuple[int, int]:
        """Their numbers by the lowest and the highest place that meets a tap along each axis: strides may be long."""
        first = last = 0
        for n, s, d, pad in self._axes():
            met = {(t * d - pad) % s for t in range(n)}
            first, last = first * s + min(met), last * s + max(met)
        return first, last + 1

    def _taps_of(self, phase: int) -> int:
        found = 1
        for n, s, d, pad in reversed(self._axes()):
            phase, place = divmod(phase, s)
            found *= sum((t * d - pad - place) % s == 0 for t in range(n))
        return found

    @property
    def heavier_last(self) -> bool:
        """Whether the last phase of a gradient of strides has more to do than the first: blocks that take long begin first."""
        return self.phases > 1 and self._taps_of(self.end - 1) > self._taps_of(self.begin)

    @property
    def plain(self) -> bool:
        """Whether positions lie in memory as they are counted, and none meets padding: 1x1 filters, stride 1."""
        unit = set(self.taps) | set(self.stride) == {1}
        return unit and set(self.padding) == {0} and self.limits == self.extents and packed(self.gathered)

    def padded_rows(self, m: int) -> int:
        return -(-self.rows // m) * m

    def padded_terms(self, k: int) -> int:
        return -(-self.terms // k) * k

    def tiles(self, m: int, n: int) -> int:
        return self.met * -(-self.rows // m) * -(-self.columns // n) * self.groups


def three(values: tuple[int, ...], neutral: int = 1) -> tuple[int, ...]:
    """Values of two or three spatial axes as those of three."""
    return (neutral,) * (3 - len(values)) + tuple(values)


def packed(spec: Spec) -> bool:
    """Whether the spatial axes follow each other in memory without gaps."""
    area = 1
    for size, step in zip(reversed(spec.shape[2:]), reversed(spec.strides[2:]), strict=True):
        if size > 1 and step != area:
            return False
        area *= size
    return True


def in_vectors(p: Product) -> bool:
    """Whether 16-bit operands can be copied by 16 bytes: channels (and filters) in eights, next to each other in memory."""
    x, w, y = p.problem.x, p.problem.w, p.problem.y
    sizes = (w.shape[1], w.shape[0] // p.groups)
    strides = [s for spec in (x, w, y) for a, s in enumerate(spec.strides) if a != 1 and spec.shape[a] > 1]
    unit = all(spec.strides[1] == 1 and spec.aligned for spec in (x, w, y))
    return unit and all(v % 8 == 0 for v in (*sizes, *strides))
