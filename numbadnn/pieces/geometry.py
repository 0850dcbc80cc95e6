"""From a problem to its axes: which of the caller's axes are spatial, which holds the channels, and how each is walked."""

from __future__ import annotations

from typing import Any, NamedTuple

from numbadnn.pieces.axes import Samples, Windows
from numbadnn.problems.conv import OPERATIONS, ConvProblem
from numbadnn.problems.pool import PoolProblem
from numbadnn.problems.upsample import UpsampleProblem


class Geometry(NamedTuple):
    """``image`` and ``output``: the shapes of the image and of the forward operation's output, in the caller's axes.

    ``axes``: (axis, how it is walked) of each spatial axis; ``channels``: the axis of channels.
    """

    image: tuple[int, ...]
    output: tuple[int, ...]
    channels: int
    axes: tuple[tuple[int, Windows | Samples], ...]


def geometry(problem: Any) -> Geometry:
    """The geometry of a convolution, a pooling, an upsampling or a gradient of them; TypeError for other problems."""
    if isinstance(problem, ConvProblem):
        return _of_convolution(problem)
    if isinstance(problem, PoolProblem):
        x, y = problem.x.shape, problem.y.shape
        walks = map(Windows, x[2:], y[2:], problem.window, problem.stride, (1,) * len(x[2:]), problem.pad)
        return Geometry(x, y, 1, tuple(enumerate(walks, 2)))
    if isinstance(problem, UpsampleProblem):
        x, y = problem.x.shape, problem.y.shape
        samples = (Samples(n, m, p, q) for n, m, (p, q) in zip(x[2:], y[2:], problem.ratio, strict=True))
        return Geometry(x, y, 1, tuple(enumerate(samples, 2)))
    raise TypeError(f"problem: expected that of a convolution, a pooling or an upsampling, got {problem!r}")


def _of_convolution(problem: ConvProblem) -> Geometry:
    x, y = problem.x.shape, problem.y.shape
    before = (low for low, _ in problem.padding)
    walks = [*map(Windows, x[2:], y[2:], problem.taps, problem.stride, problem.dilation, before)]
    arrangement = OPERATIONS[problem.op].arrangement
    if arrangement == "line":  # an image of one row
        return Geometry((*x[:2], x[3]), (*y[:2], y[3]), 1, ((2, walks[1]),))
    if arrangement == "frames":  # time before channels
        image, output = ((n, t, c, *rest) for n, c, t, *rest in (x, y))
        return Geometry(image, output, 2, ((1, walks[0]), (3, walks[1]), (4, walks[2])))
    return Geometry(x, y, 1, tuple(enumerate(walks, 2)))


def ranges(name: str, slices: Any, shape: tuple[int, ...], channels: int) -> tuple[tuple[int, int], ...]:
    """(start, stop) of each axis of a slice of an array of this shape; an Ellipsis and axes left out are whole.

    ValueError for what is no slice of step 1 and for a part of the channels: each output is a sum over all of them.
    """
    given = slices if isinstance(slices, tuple) else (slices,)
    if any(s is Ellipsis for s in given):
        at = next(i for i, s in enumerate(given) if s is Ellipsis)
        given = (*given[:at], *(slice(None),) * (len(shape) - len(given) + 1), *given[at + 1 :])
    given = (*given, *(slice(None),) * (len(shape) - len(given)))
    if len(given) != len(shape):
        raise ValueError(f"{name}: expected at most {len(shape)} slices, got {len(given)}")
    found = []
    for axis, (part, size) in enumerate(zip(given, shape, strict=True)):
        if not isinstance(part, slice):
            raise ValueError(f"{name}: expected a slice for each axis, got {part!r} for axis {axis}")
        start, stop, step = part.indices(size)
        if step != 1:
            raise ValueError(f"{name}: expected slices of step 1, got {part!r} for axis {axis}")
        found.append((start, max(start, stop)))
    if found[channels] != (0, shape[channels]):
        raise ValueError(f"{name}: expected all {shape[channels]} channels (axis {channels}), got {given[channels]!r}")
    return tuple(found)
