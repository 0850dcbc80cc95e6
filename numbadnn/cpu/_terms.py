"""The integer lists a convolution is to the CPU kernels: filter taps, terms of the sum, phases; and who computes what.

Plain Python and NumPy, no Numba: a plan makes them once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from numbadnn.ops.conv import ConvProblem


class Terms:
    """The lists of one problem while they grow: taps, terms and phases (``_gather.Phase``)."""

    def __init__(self) -> None:
        self.taps: list[tuple[int, int]] = []
        self.a_offsets: list[np.ndarray] = []
        self.phases: list[tuple[int, ...]] = []
        self.depth = self.packed = 0

    def add_phase(
        self,
        grid: tuple[int, int],
        pixels: int,
        out: int,
        taps: list[tuple[int, int, int]],
        channels: int,
        a_step: int,
        panels: int,
        block: tuple[int, int],
    ) -> None:
        """A phase whose terms are all (channel, tap); a tap is (row, column, offset in the filters)."""
        kc, panel = block
        channel = np.arange(channels, dtype=np.int64)[:, None]
        place = np.array([t[2] for t in taps], np.int64)[None, :]
        depth = channels * len(taps)
        self.phases.append((*grid, pixels, out, len(self.taps), len(taps), self.depth, depth, self.packed))
        self.a_offsets.append((channel * a_step + place).ravel())
        self.taps += [t[:2] for t in taps]
        self.depth += depth
        self.packed += -(-depth // kc) * panels * panel

    def run_length(self) -> int:
        """The largest r such that in every phase, terms r*i ... r*i + r - 1 lie together in the filters."""
        found = 0
        for offsets in self.a_offsets:
            breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
            found = math.gcd(found, int(np.gcd.reduce(np.append(breaks, 0))))
        return found or max(self.depth, 1)

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "phases": np.array(self.phases, np.int64),
            "taps": np.array(self.taps, np.int64).reshape(-1, 2),
            "a_offsets": np.concatenate(self.a_offsets),
        }


def tap_list(problem: ConvProblem) -> list[tuple[int, int, int]]:
    """(row, column, offset in w) of each tap: output pixel (p, q) reads image row p*stride + row, and so on."""
    (top, _), (left, _) = problem.padding
    R, S = problem.w.shape[2:]
    dh, dw = problem.dilation
    _, _, wr, ws = problem.w.strides
    rows = [((R - 1 - r if problem.flip else r) * dh - top, r * wr) for r in range(R)]
    columns = [((S - 1 - s if problem.flip else s) * dw - left, s * ws) for s in range(S)]
    return [(dr, ds, at + bt) for dr, at in rows for ds, bt in columns]


def flattened(problem: ConvProblem) -> ConvProblem:
    """A 1x1 convolution that moves no pixel, as one on images of one row: longer runs of memory."""
    x, y = problem.x, problem.y
    plain = problem.w.shape[2:] == (1, 1) and problem.stride == (1, 1) and not any(map(any, problem.padding))

    def row(spec: Any) -> Any:
        n, c, h, w = spec.shape
        sn, sc, _, sw = spec.strides
        return replace(spec, shape=(n, c, 1, h * w), strides=(sn, sc, h * w * sw, sw))

    if plain and all(s.shape[2] == 1 or s.strides[2] == s.shape[3] * s.strides[3] for s in (x, y)):
        return replace(problem, x=row(x), y=row(y))
    return problem


def split_of(
    columns: int, panels: int, jobs: int, threads: int, widest: int, a: float = 0.75, b: float = 0.0
) -> tuple[int, int]:
    """Columns and rows of tiles that one job computes, such that ``threads`` finish at about the same time.

    ``jobs`` is how many independent products of ``columns`` x ``panels`` tiles there are; packing a column of tiles costs
    about as much as ``a`` tiles, packing a row ``b``. Never changes a result, only who computes it.
    """
    best = (math.inf, 1, 1)
    for r in range(-(-panels // 128), -(-panels // 128) + 2 * threads):
        for c in range(-(-columns // widest), -(-columns // widest) + 2 * threads):
            wide, high = -(-columns // c), -(-panels // r)
            rounds = -(-jobs * -(-columns // wide) * -(-panels // high) // threads)
            best = min(best, (rounds * (wide * (high + a) + b * high + 2), wide, high))
    return best[1:]
