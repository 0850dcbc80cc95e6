"""A convolution in the forms that cuDNN can express, and the copies each form costs.

cuDNN wants packed NCHW or NHWC operands and padding that is the same on both sides of an axis; engines for true
convolution may be missing where those for correlation exist. A ``Form`` is the problem rewritten that way, with the
strided copies between the caller's arrays and buffers in the workspace: x padded by what one side has more than the
other (the gradient cropped by as much), the filter turned by 180 degrees, strides packed. Pure arithmetic on specs:
nothing here needs a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numbadnn.problem import Spec, channels_last_strides, contiguous_strides
from numbadnn.problems.conv import ConvProblem
from numbadnn.problems.conv_routes import turned

#: cuDNN's engines count a padded axis and the steps of a filter in 32 bits
INT_MAX = 2**31 - 1
LAYOUTS = {"nchw": contiguous_strides, "nhwc": channels_last_strides}
BUFFER_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Buffer:
    """An operand that lives in the workspace: its specs outside and inside, and how the two are related.

    The caller's array is ``outer``, read ``outer_offset`` bytes from its address (a flipped view starts at its last
    element); ``inner[i] = outer[i - shift]``, 0 where that is outside.
    """

    name: str
    outer: Spec
    outer_offset: int
    inner: Spec
    shift: tuple[int, ...]
    reason: str

    @property
    def nbytes(self) -> int:
        return -(-self.inner.size * self.inner.itemsize // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT


@dataclass(frozen=True, slots=True)
class Form:
    """A problem that cuDNN takes, and the operands that must be copied for it."""

    name: str
    problem: ConvProblem
    buffers: tuple[Buffer, ...]

    @property
    def buffer_bytes(self) -> int:
        return sum(b.nbytes for b in self.buffers)

    def room(self, limit: int) -> int:
        """What a limit leaves to an engine's workspace, which copies that follow it round up; negative where they exceed it."""
        left = limit - self.buffer_bytes
        return left // BUFFER_ALIGNMENT * BUFFER_ALIGNMENT if self.buffers else left

    @property
    def copies(self) -> list[str]:
        """What is copied each call, in words; an output that is read (beta) is copied both ways."""
        output = self.problem.output_name
        lines = []
        for b in self.buffers:
            if b.name != output:
                lines.append(f"{b.name} -> workspace ({b.reason}, {b.nbytes} bytes)")
                continue
            if self.problem.beta:
                lines.append(f"old {b.name} -> workspace (beta, {b.nbytes} bytes)")
            lines.append(f"workspace -> {b.name} ({b.reason}, {b.nbytes} bytes)")
        return lines


def uncountable(problem: ConvProblem) -> str:
    """Why cuDNN's engines cannot count this problem's axes ("" = they can): plans are built, and fail where they run.

    A dilated filter reaches no further than the padded image.
    """
    spatial = problem.x.shape[2:]
    padded = [n + low + high for n, (low, high) in zip(spatial, problem.padding, strict=True)]
    for what, values in (("padded image", padded), ("stride", problem.stride)):
        if max(values) > INT_MAX:
            return f"cuDNN counts in 32 bits, a {what} has {max(values)} on an axis"
    return ""


def forms(problem: ConvProblem) -> Iterator[Form]:
    """The forms to try, cheapest copies first: layouts, then true convolution before a turned filter."""
    flips = problem.flip and any(n > 1 for n in problem.taps)
    unaligned = not all(s.aligned for s in (problem.x, problem.w, problem.y))
    for layout in sorted(LAYOUTS, key=lambda layout: _layout_cost(problem, layout)):
        for turn in (False, True) if flips else (False,):
            # an engine that needs 16-byte alignment gets it from a copy, where none does without
            for align in (False, True) if unaligned else (False,):
                yield form(problem, layout, flips and not turn, turn, align)
    # cuDNN 9.19 and 9.28 also offer engines for the problem as it is, uneven padding and all. They are not asked: on an
    # H200 the gradients of some (engines 1, 18, 50) were wrong by 60 to 10^13 times the bound.


def form(problem: ConvProblem, layout: str, convolve: bool, turn: bool, align: bool) -> Form:
    """One form: operands packed in ``layout``, cuDNN's convolution mode, the filter turned by us, addresses aligned."""
    excess = [(low - min(low, high), high - min(low, high)) for low, high in problem.padding]
    operands: dict[str, Any] = {}
    buffers = []
    for name in ("x", "w", "y"):
        spec: Spec = getattr(problem, name)
        shape, shift, reasons = spec.shape, (0,) * len(spec.shape), []
        outer, outer_offset = spec, 0
        if name == "x" and any(low or high for low, high in excess):
            shape = (*shape[:2], *(n + low + high for n, (low, high) in zip(shape[2:], excess, strict=True)))
            shift = (0, 0, *(low for low, _ in excess))
            reasons.append("padding differs between the sides")
        if name == "w" and turn:
            outer, outer_offset = turned(spec)
            reasons.append("filter turned by 180 degrees")
        if not fits(spec, layout):
            reasons.append(f"packed as {layout}")
        if align and not spec.aligned:
            reasons.append("aligned to 16 bytes")
        operands[name] = Spec(spec.dtype, shape, LAYOUTS[layout](shape), spec.aligned or bool(reasons))
        if reasons:
            buffers.append(Buffer(name, outer, outer_offset, operands[name], shift, ", ".join(reasons)))
    padding = tuple((min(pair), min(pair)) for pair in problem.padding)
    dilation = tuple(1 if taps == 1 else step for taps, step in zip(problem.taps, problem.dilation, strict=True))
    name = "-".join([layout, *(["turned"] if turn else []), *(["aligned"] if align else [])])
    asked = dataclasses.replace(problem, **operands, padding=padding, dilation=dilation, flip=convolve)
    return Form(name, asked, tuple(buffers))


def fits(spec: Spec, layout: str) -> bool:
    """Whether the operand already is packed in this layout; axes of size 1 fit any stride."""
    strides = LAYOUTS[layout](spec.shape)
    return all(n == 1 or s == t for n, s, t in zip(spec.shape, spec.strides, strides, strict=True))


def _layout_cost(problem: ConvProblem, layout: str) -> tuple[int, bool]:
    """Bytes to copy for this layout; at equal bytes 16-bit data prefers NHWC, which tensor cores read directly."""
    wrong = [s for s in (problem.x, problem.w, problem.y) if not fits(s, layout)]
    prefers = "nhwc" if problem.x.itemsize == 2 else "nchw"
    return sum(s.size * s.itemsize for s in wrong), layout != prefers
