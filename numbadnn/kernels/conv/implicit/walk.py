"""A convolution as a walk over pixels: what implicit GEMM reads of an image for each pixel that it writes.

Rows of the product are pixels of the *target*, terms are taps and channels of the *source*. Along each axis

    source = lower + move * position + right(tap),    right(tap) = (phase + base + tap * slope) / spread

for position 0, 1, ... of the target, which lies at ``spread * position + phase``. Forward: the target is y, spread 1, move
the stride, right(tap) = tap * dilation. Gradient with respect to the image: the target is x, move 1, and spread is the
stride: x splits into phases, each of which is met by its own taps only, those for which right is a whole number.
``Window`` and ``Boxes`` say how the copy engine reads the operands.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from numbadnn.problem import Spec
from numbadnn.problems.conv import ConvProblem

#: spatial axes -> what the copy engine's windows of them can express: corners from, to, and offsets of a tap up to
LIMITS = {2: (-128, 127, 255), 3: (-16, 15, 31)}
STEPS = 8


class Axis(NamedTuple):
    """One spatial axis of a walk, as above; every ``hop``-th tap meets the same phase.

    ``lacks``: of the gradient with respect to the image, whether a tap may meet no pixel of the source.
    """

    positions: int
    move: int
    lower: int
    upper: int
    taps: int
    base: int
    slope: int
    spread: int
    hop: int
    lacks: bool


def axes_of(problem: ConvProblem, forward: bool) -> tuple[Axis, ...]:
    """The walk over y (forward; the weights' gradient walks so too), or over x."""
    source, target = (problem.x, problem.y) if forward else (problem.y, problem.x)
    found = []
    for i in range(problem.axes):
        n, m, taps = source.shape[2 + i], target.shape[2 + i], problem.taps[i]
        pad, stride, dilation = problem.padding[i][0], problem.stride[i], problem.dilation[i]
        if taps == 1:
            dilation = 1
        if forward:
            positions, move, lower, base, slope, spread, hop = m, stride, -pad, 0, dilation, 1, 1
        else:
            positions, move, lower = -(-m // stride), 1, (pad - (taps - 1) * dilation) // stride
            base, slope, spread, hop = pad - stride * lower, -dilation, stride, stride // math.gcd(dilation, stride)
        upper = (positions - 1) * move + lower - (n - 1)
        lacks = not forward and _lacks(n, m, taps, pad, stride, dilation)
        found.append(Axis(positions, move, lower, upper, taps, base, slope, spread, hop, lacks))
    return tuple(found)


def _lacks(outputs: int, pixels: int, taps: int, pad: int, stride: int, dilation: int) -> bool:
    """Whether a tap meets a place at a multiple of the stride where no output lies."""
    for lowest in range(pad, pad - taps * dilation, -dilation):
        first, last = -(-lowest // stride), (lowest + pixels - 1) // stride
        if first <= last and (first < 0 or last >= outputs):
            return True
    return False


def axes_reason(axes: tuple[Axis, ...]) -> str:
    """Why the copy engine's windows cannot walk so, "" if they can."""
    low, high, offsets = LIMITS[len(axes)]
    for axis in axes:
        last = max((axis.base + axis.spread - 1) // axis.spread, (axis.taps - 1) * axis.slope)
        if not (low <= axis.lower <= high and low <= axis.upper <= high and last <= offsets and axis.move <= STEPS):
            return (
                f"needs padding, cropping and reach of the filters below {high + 1} pixels on {len(axes)} axes, "
                f"and strides of at most {STEPS}"
            )
    return ""


class Window(NamedTuple):
    """Images for copies of ``box`` (channels, pixels): extents and byte strides as (channels, width, height, images).

    With three spatial axes a depth comes after the height.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]
    box: tuple[int, int]


class Boxes(NamedTuple):
    """Filters for copies of boxes: extents, and byte strides of all but the first, as (channels, filters, taps)."""

    extents: tuple[int, int, int]
    strides: tuple[int, int]
    box: tuple[int, int, int]


def window(image: Spec, axes: tuple[Axis, ...] | None, box: tuple[int, int]) -> Window:
    """An image as the walk reads it; without ``axes`` every pixel in turn."""
    n, c, *sizes = image.shape
    extents = (c, *reversed(sizes), n)
    strides = tuple(step * image.itemsize for step in reversed(image_steps(image)))
    if axes is None:
        none, one = (0,) * len(sizes), (1,) * len(sizes)
        return Window(extents, strides, none, none, one, box)
    inner = axes[::-1]
    lower, upper = tuple(a.lower for a in inner), tuple(a.upper for a in inner)
    return Window(extents, strides, lower, upper, tuple(a.move for a in inner), box)


def image_steps(image: Spec) -> tuple[int, ...]:
    """Element strides of images, (planes,) rows and columns; of an axis of length 1 what a packed one would have."""
    n, c, *sizes = image.shape
    vector = 16 // image.itemsize
    packed, found = -(-c // vector) * vector, []
    for size, stride in zip((*sizes[::-1], n), (*image.strides[:1:-1], image.strides[0]), strict=True):
        found.append(stride if size > 1 else packed)
        packed = found[-1] * size
    return tuple(found[::-1])


def rows_step(image: Spec) -> int:
    """The element stride between pixels where those of all images are one axis of memory, else 0."""
    n, _, *sizes = image.shape
    steps = image_steps(image)
    expected = steps[-1]
    for size, step in zip((*sizes[::-1], n), steps[::-1], strict=True):
        if size > 1 and step != expected:
            return 0
        expected *= size
    return steps[-1]


def image_reason(image: Spec, name: str) -> str:
    """Why the copy engine cannot read an image, "" if it can."""
    vector = 16 // image.itemsize
    if image.strides[1] != 1 and image.shape[1] > 1:
        return f"needs {name} with its channels next to each other in memory"
    if not image.aligned or any(step <= 0 or step % vector or step >= 2**36 for step in image_steps(image)):
        return f"needs pixels of {name} that start at multiples of 16 bytes"
    return ""


def filter_steps(w: Spec) -> tuple[int, int] | None:
    """Element strides of filters and of taps, if the copy engine can read them where they are, else None."""
    k, c, *taps = w.shape
    vector = 16 // w.itemsize
    tap = reach = 0
    for size, stride in zip(taps[::-1], w.strides[:1:-1], strict=True):
        if size > 1 and (stride <= 0 or (tap and stride != reach)):
            return None  # taps are one axis of what it reads, and each is another
        if size > 1:
            tap, reach = tap or stride, stride * size
    filters = w.strides[0] if k > 1 else -(-c // vector) * vector * math.prod(taps)
    tap = tap or filters * k
    fits = all(0 < step < 2**36 and step % vector == 0 for step in (filters, tap))
    return (filters, tap) if w.aligned and fits and (w.strides[1] == 1 or c == 1) else None


def packed_steps(w: Spec) -> tuple[int, int]:
    """The same of the copy that the kernels make: filter, tap, channel."""
    vector = 16 // w.itemsize
    tap = -(-w.shape[1] // vector) * vector
    return tap * math.prod(w.shape[2:]), tap


def filter_boxes(w: Spec, steps: tuple[int, int], box: tuple[int, int]) -> Boxes:
    """Filters for boxes of channels by filters."""
    k, c, *taps = w.shape
    return Boxes((c, k, math.prod(taps)), (steps[0] * w.itemsize, steps[1] * w.itemsize), (*box, 1))
