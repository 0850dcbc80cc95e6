"""How a softmax lies in memory: its kept and its reduced axes, folded, with the strides of every operand.

Channel mode reduces axis 1, instance mode all axes but 0. Axes that follow each other in the memory of all operands
become one, so that most problems are rows (one reduced axis of unit stride) or channels (one reduced axis, kept
positions of unit stride inside it), whatever their rank.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numbadnn.kernels.build.axes import Axis, fold
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import DEFAULT_CAPACITY, LARGEST_CAPACITY
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.problem import Spec
from numbadnn.problems.softmax import SoftmaxProblem


class Prepared(NamedTuple):
    """What a launch is made of, besides addresses."""

    kernel: Kernel
    grid: tuple[int, int, int]
    threads: int
    scalars: tuple[Any, ...]
    shared_bytes: int = 0


class Layout(NamedTuple):
    """Folded kept and reduced axes, the output's smallest stride last; never empty."""

    kept: tuple[Axis, ...]
    reduced: tuple[Axis, ...]

    @property
    def rows(self) -> int:
        return math.prod(a.n for a in self.kept)

    @property
    def length(self) -> int:
        return math.prod(a.n for a in self.reduced)


def operands(problem: SoftmaxProblem) -> tuple[Spec, ...]:
    """Inputs in call order, then the output: the order of every kernel's addresses."""
    return (*problem.inputs, problem.output)


def layout_of(problem: SoftmaxProblem) -> Layout:
    """The folded axes of a problem."""
    specs = operands(problem)
    axes = [Axis(n, tuple(s.strides[i] for s in specs)) for i, n in enumerate(specs[0].shape)]
    reduced = axes[1:2] if problem.mode == "channel" else axes[1:]
    kept = axes[:1] + (axes[2:] if problem.mode == "channel" else [])
    one = Axis(1, tuple(1 for _ in specs))
    return Layout(fold(kept) or (one,), fold(reduced) or (one,))


def rows_reason(layout: Layout) -> str:
    """Why kernels of rows cannot, "" if they can."""
    if len(layout.reduced) > 1 or any(s != 1 for s in layout.reduced[0].strides):
        return "needs the softmax axis contiguous in every operand"
    return "needs rows at no more than two strides" if len(layout.kept) > 2 else ""


def channels_reason(layout: Layout) -> str:
    """Why kernels of channels cannot, "" if they can."""
    _, inner = two(layout.kept)
    if len(layout.reduced) > 1 or len(layout.kept) > 2 or any(s != 1 for s in inner.strides):
        return "needs the kept positions contiguous in every operand, and one stride from channel to channel"
    return "needs fewer than 2**31 positions" if layout.rows >= LIMIT32 else ""


def aligned(problem: SoftmaxProblem) -> bool:
    """Whether every operand starts at a multiple of 16 bytes."""
    return all(s.aligned for s in operands(problem))


def two(axes: tuple[Axis, ...]) -> tuple[Axis, Axis]:
    """An outer and an inner axis, the outer of one element where there is one axis."""
    return (Axis(1, tuple(0 for _ in axes[0].strides)), axes[0]) if len(axes) == 1 else (axes[0], axes[1])


def capacity(threads: int, dtype: str, held: int) -> int:
    """Elements of each of ``held`` operands that a thread of such a block can keep in registers.

    A multiprocessor has 65536 registers of 32 bits, a thread at most 255; some are for the rest.
    """
    words = 2 if dtype == "float64" else 1
    registers = {1024: 24 if words == 2 else 32, 512: 64}.get(threads, 64 if threads > 128 else 128)
    return registers // (words * held)


def shared_limit(needed: int, static: int, capacity: int) -> int:
    """The most bytes that a kernel will ask for where ``needed`` are wanted beside ``static`` ones, at best all of them.

    One of a few numbers, which belong to the kernel's configuration: so a length does not make a kernel of its own.
    """
    shares = [min(capacity, (LARGEST_CAPACITY + 1024) // blocks - 1024) for blocks in (4, 3, 2, 1)]
    return next((s - static for s in (DEFAULT_CAPACITY, *shares) if s >= needed + static), max(shares[-1] - static, 0))


def shared_bytes(needed: int, limit: int) -> int:
    """What a launch asks for: where that is more than any kernel may have, always the whole limit.

    Such a kernel is held to what it was last allowed, so that two of its launches must not ask for different sizes.
    """
    return min(needed, limit) if limit <= DEFAULT_CAPACITY else limit


def softmax_kernel(
    stem: str, op: str, dtype: str, algo: str, config: Any, parameters: str, threads: int, resident: int = 1
) -> Kernel:
    """The kernel ``op`` of ``device/<stem>.py`` for one dtype, algorithm and configuration; the addresses are added."""
    acc = "float64" if dtype == "float64" else "float32"
    kind = "log" if algo == "log" else "accurate"  # fast and accurate are the same code
    title, made_by = f"{op}_{stem}", f"softmax.device.{stem}.{op}"
    parameters = f"ptr:{operand_count(op)} {parameters}"
    return Kernel.of(title, made_by, (dtype, acc, kind, config), parameters, threads, resident)


def operand_count(op: str) -> int:
    """x and y, or dy, y and dx."""
    return 2 if op == "softmax" else 3
