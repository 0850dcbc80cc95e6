"""The integer lists a convolution is to the CPU kernels: filter taps, terms of the sum, phases; and who computes what.

Plain Python and NumPy, no Numba: a plan makes them once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from numbadnn.problems.conv import ConvProblem


class Planes(NamedTuple):
    """Copies of an image in which every term of a sum over taps finds its pixels side by side, as a plane and a shift.

    A plane is what one tap reads, and what the pixels below and to the right of the last one would: a tap that lies whole steps
    away reads the same plane, so many elements further. Rows are ``pitch`` long: pixels beyond a row's end belong to no output.
    """

    taps: Sequence[tuple[int, ...]]  # of each plane
    terms: list[tuple[int, int]]  # of each tap: plane and shift
    rows: int
    pitch: int
    reach: int  # the largest shift


def planes_of(grid: tuple[int, ...], step: tuple[int, ...], taps: Sequence[tuple[int, ...]]) -> Planes:
    """The planes of a phase of ``grid`` pixels, ``step`` apart in the image, under ``taps``."""
    _, P, Q = grid
    top, left = min((t[1] for t in taps), default=0), min((t[2] for t in taps), default=0)
    found = []
    for t, r, s, _ in taps:
        (down, row), (right, column) = divmod(r - top, step[1]), divmod(s - left, step[2])
        found.append(((t, top + row, left + column), down, right))
    planes = list(dict.fromkeys(plane for plane, _, _ in found))
    number = {plane: i for i, plane in enumerate(planes)}
    pitch = Q + max((right for *_, right in found), default=0)
    terms = [(number[plane], down * pitch + right) for plane, down, right in found]
    rows = P + max((down for _, down, _ in found), default=0)
    return Planes(planes, terms, rows, pitch, max((shift for _, shift in terms), default=0))


def planes_of_taps(grid: tuple[int, ...], taps: Sequence[tuple[int, ...]]) -> Planes:
    """A plane for each tap: every term is laid out."""
    return Planes([t[:3] for t in taps], [(i, 0) for i in range(len(taps))], grid[1], grid[2], 0)


class Terms:
    """The lists of one problem while they grow: taps that are laid out, terms and phases (``gather.Phase``)."""

    def __init__(self, images: int, step: tuple[int, ...] | None) -> None:
        """``step``: between neighbouring pixels where images are laid out as planes, None where every term is."""
        self.images, self.step = images, step
        self.taps: list[tuple[int, ...]] = []
        self.term_taps: list[tuple[int, ...]] = []
        self.places: list[tuple[int, list[tuple[int, int]]]] = []
        self.a_offsets: list[np.ndarray] = []
        self.phases: list[tuple[int, ...]] = []
        self.depth = self.packed = 0

    def add_phase(
        self,
        grid: tuple[int, ...],
        out: int,
        taps: list[tuple[int, ...]],
        channels: int,
        a_step: int,
        panels: int,
        block: tuple[int, int],
    ) -> None:
        """A phase whose terms are all (channel, tap); a tap is (slice, row, column, offset in the filters)."""
        kc, panel = block
        channel = np.arange(channels, dtype=np.int64)[:, None]
        place = np.array([t[3] for t in taps], np.int64)[None, :]
        depth = channels * len(taps)
        O, P, Q = grid
        if self.step is None:
            read = [t[:3] for t in taps]
            slices, layout = 1, (self.images * O * P * Q, P, Q, 0)
        else:
            planes = planes_of(grid, self.step, taps)
            read = list(planes.taps)
            slices, layout = self.images * O, (P * planes.pitch, planes.rows, planes.pitch, planes.reach)
            self.places.append((channels, planes.terms))
        first = len(self.taps)
        self.phases.append((O, P, Q, out, first, len(read), len(taps), self.depth, depth, self.packed, slices, *layout))
        self.a_offsets.append((channel * a_step + place).ravel())
        self.taps += read
        self.term_taps += [t[:3] for t in taps]
        self.depth += depth
        self.packed += -(-depth // kc) * panels * panel

    def run_length(self) -> int:
        """The largest r such that in every phase, terms r*i ... r*i + r - 1 lie together in the filters."""
        found = 0
        for offsets in self.a_offsets:
            breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
            found = math.gcd(found, int(np.gcd.reduce(breaks)))
        return found or max(self.depth, 1)

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "phases": np.array(self.phases, np.int64),
            "taps": np.array(self.taps, np.int64).reshape(-1, 3),
            "term_taps": np.array(self.term_taps, np.int64).reshape(-1, 3),
            "a_offsets": np.concatenate(self.a_offsets),
        }

    def pixels_wasted(self, tile: int) -> float:
        """Pixels that are computed, in tiles of so many, beyond those of the outputs: as a part of these."""
        wanted = sum(O * P * Q * self.images for O, P, Q, *_ in self.phases)
        return sum(slices * -(-pixels // tile) * tile for *_, slices, pixels, _, _, _ in self.phases) / wanted - 1

    def laid_out(self, stretch: int) -> float:
        """Pixels that are laid out for each term of a pixel, a stretch of so many at a time."""
        laid = [
            taps * (1 + reach / min(pixels, stretch)) for _, _, _, _, _, taps, *_, pixels, _, _, reach in self.phases
        ]
        return sum(laid) / max(sum(p[6] for p in self.phases), 1)

    def most_planes(self, kc: int) -> int:
        """Planes that ``kc`` terms in succession can lie in."""
        return max(
            (
                min((kc - 2) // terms + 2, depth // terms) * planes
                for _, _, _, _, _, planes, terms, _, depth, *_ in self.phases
                if terms
            ),
            default=1,
        )

    def places_of(self, row: int) -> np.ndarray:
        """Where each term's pixels begin behind those of channel 0, in planes that lie ``row`` elements apart."""
        found = [np.zeros(0, np.int64)]
        for channels, terms in self.places:
            plane, shift = np.array(terms, np.int64).reshape(-1, 2).T
            channel = np.arange(channels, dtype=np.int64)[:, None]
            found.append((row * (channel * (plane.max(initial=-1) + 1) + plane) + shift).ravel())
        return np.concatenate(found)


def volume(problem: ConvProblem) -> ConvProblem:
    """A convolution of images as one of volumes of one slice; one of volumes as it is. The same memory."""
    if problem.axes == 3:
        return problem

    def deeper(spec: Any, ahead: int) -> Any:
        shape, strides = spec.shape, spec.strides
        return replace(spec, shape=(*shape[:ahead], 1, *shape[ahead:]), strides=(*strides[:ahead], 0, *strides[ahead:]))

    return replace(
        problem,
        x=deeper(problem.x, 2),
        w=deeper(problem.w, 4 if problem.unshared else 2),
        y=deeper(problem.y, 2),
        padding=((0, 0), *problem.padding),
        stride=(1, *problem.stride),
        dilation=(1, *problem.dilation),
    )


def tap_list(problem: ConvProblem) -> list[tuple[int, ...]]:
    """(slice, row, column, offset in w) of each tap: output pixel (o, p, q) reads image row p*stride + row, and so on.

    Without the slice for a problem of two axes.
    """
    axes = zip(problem.taps, problem.dilation, problem.padding, problem.w.strides[-problem.axes :], strict=True)
    places = [
        [((n - 1 - i if problem.flip else i) * dilation - low, i * stride) for i in range(n)]
        for n, dilation, (low, _), stride in axes
    ]
    return [(*(at for at, _ in tap), sum(offset for _, offset in tap)) for tap in itertools.product(*places)]


#: more phases than these are not all computed by the kernels: where no tap reaches, ``fill_unreached`` does
MANY_PHASES = 64


def phases_of(problem: ConvProblem) -> list[list[int]]:
    """Of the gradient with respect to the inputs: for each axis, the places modulo the stride whose pixels are computed.

    These are all, or where that makes many phases, those that a tap reaches; at least one.
    """
    axes = list(zip(problem.x.shape[-problem.axes :], problem.stride, strict=True))
    if math.prod(min(s, n) for n, s in axes) <= MANY_PHASES:
        return [list(range(min(s, n))) for n, s in axes]
    found = []
    for (n, s), taps, dilation, (low, _) in zip(axes, problem.taps, problem.dilation, problem.padding, strict=True):
        reached = {(i * dilation - low) % s for i in range(taps)}  # flipped or not
        found.append(sorted(a for a in reached if a < n) or [0])
    return found


def fill_unreached(problem: ConvProblem) -> Callable[[Any], None] | None:
    """A function that sets what the kernels leave of the gradient with respect to the inputs; None where that is nothing.

    No tap reaches such a pixel: it is alpha * 0 + beta * out.
    """
    if problem.direction != "grad_inputs":
        return None
    reached, axes = phases_of(problem), range(problem.axes)
    extents = problem.x.shape[-problem.axes :]
    inside = [np.isin(np.arange(n) % s, at) for n, s, at in zip(extents, problem.stride, reached, strict=True)]
    if all(where.all() for where in inside):
        return None
    places = []  # each pixel once: the first of its axes on which nothing is reached
    for axis in axes:
        masks = [inside[a] if a < axis else ~inside[a] if a == axis else np.ones(extents[a], bool) for a in axes]
        places.append(tuple(np.flatnonzero(mask) for mask in masks))
    spec, (alpha, beta) = problem.x, scalars(problem)

    def fill(out: Any) -> None:
        array = np.lib.stride_tricks.as_strided(out, spec.shape, [s * out.itemsize for s in spec.strides])
        for image in np.ndindex(*spec.shape[:2]):
            for at in places:
                where = (*image, *np.ix_(*at))
                with np.errstate(all="ignore"):
                    nothing = alpha * alpha.dtype.type(0)
                    array[where] = nothing + beta * array[where].astype(alpha.dtype) if beta else nothing

    return fill


def flattened(problem: ConvProblem) -> ConvProblem:
    """A 1x1x1 convolution of volumes that moves no pixel, as one on images of fewer rows: longer runs of memory."""
    if problem.taps != (1, 1, 1) or problem.stride != (1, 1, 1) or any(map(any, problem.padding)):
        return problem

    def joins(spec: Any, axis: int) -> bool:
        return spec.shape[axis] == 1 or spec.strides[axis] == spec.shape[4] * spec.strides[4]

    def joined(spec: Any, axis: int) -> Any:
        shape, strides = list(spec.shape), list(spec.strides)
        shape[4] *= shape[axis]
        shape[axis], strides[axis] = 1, 0
        return replace(spec, shape=tuple(shape), strides=tuple(strides))

    for axis in (3, 2):
        if not (joins(problem.x, axis) and joins(problem.y, axis)):
            break
        problem = replace(problem, x=joined(problem.x, axis), y=joined(problem.y, axis))
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


def scalars(problem: ConvProblem) -> tuple[Any, Any]:
    """alpha and beta in the sums' type: infinite, or zero, where it does not reach so far."""
    real = np.float64 if problem.x.dtype == "float64" else np.float32
    with np.errstate(all="ignore"):
        return real(problem.alpha), real(problem.beta)


def named(prefix: str, letters: str, values: Any) -> dict[str, int]:
    """{prefix + letter: value}, one an axis."""
    return {prefix + letter: value for letter, value in zip(letters, values, strict=True)}
