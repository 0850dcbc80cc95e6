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

from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import Spec

#: what the copy engine's windows can express: corners, offsets of a tap, steps
CORNERS, OFFSETS, STEPS = (-128, 127), 255, 8


class Axis(NamedTuple):
    """One spatial axis of a walk, as above; every ``hop``-th tap meets the same phase."""

    positions: int
    move: int
    lower: int
    upper: int
    taps: int
    base: int
    slope: int
    spread: int
    hop: int


def axes_of(problem: ConvProblem, forward: bool) -> tuple[Axis, Axis]:
    """The walk over y (forward; the weights' gradient walks so too), or over x."""
    source, target = (problem.x, problem.y) if forward else (problem.y, problem.x)
    found = []
    for i in range(2):
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
        found.append(Axis(positions, move, lower, upper, taps, base, slope, spread, hop))
    return found[0], found[1]


def axes_reason(axes: tuple[Axis, Axis]) -> str:
    """Why the copy engine's windows cannot walk so, "" if they can."""
    low, high = CORNERS
    for axis in axes:
        last = max((axis.base + axis.spread - 1) // axis.spread, (axis.taps - 1) * axis.slope)
        if not (low <= axis.lower <= high and low <= axis.upper <= high and last <= OFFSETS and axis.move <= STEPS):
            return "needs padding, cropping and reach of the filters below 128 pixels, and strides of at most 8"
    return ""


class Window(NamedTuple):
    """Images for copies of ``box`` (channels, pixels): extents and byte strides as (channels, width, height, images)."""

    extents: tuple[int, int, int, int]
    strides: tuple[int, int, int]
    lower: tuple[int, int]
    upper: tuple[int, int]
    steps: tuple[int, int]
    box: tuple[int, int]


class Boxes(NamedTuple):
    """Filters for copies of boxes: extents, and byte strides of all but the first, as (channels, filters, taps)."""

    extents: tuple[int, int, int]
    strides: tuple[int, int]
    box: tuple[int, int, int]


def window(image: Spec, axes: tuple[Axis, Axis] | None, box: tuple[int, int]) -> Window:
    """An image as the walk reads it; without ``axes`` every pixel in turn."""
    n, c, h, w = image.shape
    size, steps = image.itemsize, image_steps(image)
    if axes is None:
        return Window((c, w, h, n), (steps[2] * size, steps[1] * size, steps[0] * size), (0, 0), (0, 0), (1, 1), box)
    down, right = axes
    return Window(
        (c, w, h, n), (steps[2] * size, steps[1] * size, steps[0] * size),
        (right.lower, down.lower), (right.upper, down.upper), (right.move, down.move), box,
    )  # fmt: skip


def image_steps(image: Spec) -> tuple[int, int, int]:
    """Element strides of images, rows and columns; of an axis of length 1 what a packed one would have."""
    n, c, h, w = image.shape
    column = image.strides[3] if w > 1 else -(-c * image.itemsize // 16) * 16 // image.itemsize
    row = image.strides[2] if h > 1 else column * w
    return (image.strides[0] if n > 1 else row * h), row, column


def rows_step(image: Spec) -> int:
    """The element stride between pixels where those of all images are one axis of memory, else 0."""
    n, _, h, w = image.shape
    images, row, step = image_steps(image)
    return step if (row == step * w or h == 1) and (images == step * w * h or n == 1) else 0


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
    k, c, r, s = w.shape
    packed = -(-c * w.itemsize // 16) * 16 // w.itemsize
    if r > 1 and s > 1 and w.strides[2] != s * w.strides[3]:
        return None
    tap = w.strides[3] if s > 1 else w.strides[2] if r > 1 else 0
    filters = w.strides[0] if k > 1 else packed * r * s
    tap = tap or filters * k
    vector = 16 // w.itemsize
    fits = all(0 < step < 2**36 and step % vector == 0 for step in (filters, tap))
    return (filters, tap) if w.aligned and fits and (w.strides[1] == 1 or c == 1) else None


def packed_steps(w: Spec) -> tuple[int, int]:
    """The same of the copy that the kernels make: filter, tap, channel."""
    vector = 16 // w.itemsize
    tap = -(-w.shape[1] // vector) * vector
    return tap * w.shape[2] * w.shape[3], tap


def filter_boxes(w: Spec, steps: tuple[int, int], box: tuple[int, int]) -> Boxes:
    """Filters for boxes of channels by filters."""
    k, c, r, s = w.shape
    return Boxes((c, k, r * s), (steps[0] * w.itemsize, steps[1] * w.itemsize), (*box, 1))
