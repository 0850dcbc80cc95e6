"""How ``numba.grouped_halves`` walks an image: which pixels each result needs along each axis, and in which phase.

A gradient of strides is computed in phases: results whose coordinates leave the same remainders meet the same taps, and are
a convolution without stride of their own. ``Axis`` says where these begin, for each of at most two phases.
"""

from __future__ import annotations

import math

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.problem import Spec
from numbadnn.problems.conv import ConvProblem


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the image read: result i of phase f meets i * stride + lows[f] + j * step for j < counts[f].

    The j-th tap is firsts[f] + j * turn of the filters; results of a phase lie ``apart``.
    """

    stride: int
    step: int
    apart: int
    turn: int
    lows: tuple[int, int]
    counts: tuple[int, int]
    firsts: tuple[int, int]

    @property
    def origin(self) -> int:
        return min(self.lows)

    @property
    def reach(self) -> int:
        """From the first to the last place that the phases of one result meet, both counted."""
        ends = (low + (max(count, 1) - 1) * self.step for low, count in zip(self.lows, self.counts, strict=True))
        return max(ends) - self.origin + 1


def axis(problem: ConvProblem, i: int) -> Axis:
    """The i-th spatial axis; two phases that are the same where there is one."""
    taps, stride, dilation, (low, _) = problem.taps[i], problem.stride[i], problem.dilation[i], problem.padding[i]
    flipped, turn = (taps - 1 if problem.flip else 0), (-1 if problem.flip else 1)
    if problem.direction == "forward":
        return Axis(stride, dilation, 1, turn, (-low, -low), (taps, taps), (flipped, flipped))
    common = math.gcd(stride, dilation)
    lows, counts, firsts = [], [], []
    for phase in range(2):
        met = [t for t in range(taps) if (phase % stride + low - t * dilation) % stride == 0]
        last = met[-1] if met else 0  # it meets the lowest place of y
        lows.append((phase % stride + low - last * dilation) // stride)
        counts.append(len(met))
        firsts.append(flipped + turn * last)
    if 0 in counts:  # a phase without taps reads nothing, wherever that is
        lows = [lows[j] if counts[j] else lows[1 - j] for j in range(2)]
    return Axis(
        1, dilation // common, stride, -turn * (stride // common),
        (lows[0], lows[1]), (counts[0], counts[1]), (firsts[0], firsts[1]),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Walk:
    """A problem as the kernel sees it: the image it reads, the results it writes, both in groups."""

    source: Spec
    result: Spec
    groups: int
    rows: Axis
    columns: Axis

    @staticmethod
    def of(problem: ConvProblem) -> Walk:
        forward = problem.direction == "forward"
        source, result = (problem.x, problem.y) if forward else (problem.y, problem.x)
        return Walk(source, result, problem.groups, axis(problem, 0), axis(problem, 1))

    @property
    def channels(self) -> int:
        return self.source.shape[1] // self.groups

    @property
    def results(self) -> int:
        return self.result.shape[1] // self.groups

    @property
    def positions(self) -> tuple[int, int]:
        """Rows and columns of results of the largest phase."""
        _, _, height, width = self.result.shape
        return -(-height // self.rows.apart), -(-width // self.columns.apart)

    @property
    def taps(self) -> int:
        """The most of a phase."""
        return max(self.rows.counts) * max(self.columns.counts)
