"""``numba.softmax_strided``: softmax over any strides, rows of any length. The host side of ``device/strided.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.support import LEAF, LIMIT32
from numbadnn.kernels.softmax.layout import Axis, Prepared, layout_of, operand_count, operands, softmax_kernel
from numbadnn.problems.softmax import SoftmaxProblem


@dataclass(frozen=True, slots=True)
class StridedConfig:
    """``lanes`` rows x ``parts`` threads a row, axes the kernel is built for; see ``device/strided.py``.

    ``long``, which follows from the problem: a thread adds more than LEAF terms, with account of what it rounds off.
    """

    kept: int
    reduced: int
    wide: bool
    lanes: int
    parts: int
    long: bool = False


def heuristic(problem: SoftmaxProblem) -> StridedConfig:
    """Neighbouring threads along whichever axis has the smaller stride; a block a row where that is the row itself."""
    layout = layout_of(problem)
    nearest_row, nearest_element = abs(layout.kept[-1].strides[0]), abs(layout.reduced[-1].strides[0])
    along = nearest_element <= nearest_row or layout.kept[-1].n == 1
    lanes, parts = (1, 256) if along and layout.length > 64 and layout.rows < LIMIT32 else (32, 8)
    if lanes == 1 and layout.length > 8192:
        parts = 1024
    reach = max(abs(end) for s in operands(problem) for end in s.span)
    wide = max(reach, layout.rows * 2, layout.length * 2) >= LIMIT32
    return StridedConfig(_rank(layout.kept), _rank(layout.reduced), wide, lanes, parts)


def space(problem: SoftmaxProblem) -> list[StridedConfig]:
    """Every configuration worth timing, the heuristic's first."""
    best = heuristic(problem)
    shapes = ((1, 256), (1, 1024), (8, 32), (32, 8), (32, 32), (128, 1))
    rows = layout_of(problem).rows
    fitting = [(lanes, parts) for lanes, parts in shapes if rows < LIMIT32 * lanes]
    return list(dict.fromkeys([best, *(replace(best, lanes=lanes, parts=parts) for lanes, parts in fitting)]))


def _rank(axes: tuple[Axis, ...]) -> int:
    return len(axes) if len(axes) <= 2 else max(4, len(axes))


def speed(problem: SoftmaxProblem) -> float:
    """Bytes a microsecond on an H200."""
    return 1.0e6


def prepare(problem: SoftmaxProblem, config: StridedConfig) -> Prepared:
    """Kernel, grid and arguments."""
    layout = layout_of(problem)
    kept, reduced = _padded(layout.kept, config.kept), _padded(layout.reduced, config.reduced)
    scalars: list[Any] = [layout.rows, layout.length, tuple(a.n for a in kept), tuple(a.n for a in reduced)]
    for i in range(operand_count(problem.op)):
        scalars += [tuple(a.strides[i] for a in kept), tuple(a.strides[i] for a in reduced)]
    config = replace(config, long=layout.length > LEAF * config.parts)
    chosen = kernel(problem.op, problem.y.dtype, problem.algo, config)
    return Prepared(chosen, blocks(layout.rows, config.lanes), config.lanes * config.parts, tuple(scalars))


def reason(problem: SoftmaxProblem) -> str:
    """There is nothing that this kernel cannot do."""
    return ""


def _padded(axes: tuple[Axis, ...], rank: int) -> tuple[Axis, ...]:
    return (Axis(1, tuple(0 for _ in axes[0].strides)),) * (rank - len(axes)) + axes


def kernel(op: str, dtype: str, algo: str, config: StridedConfig) -> Kernel:
    """The kernel of one configuration."""
    i = "i64" if config.wide else "i32"
    parameters = f"{i} {i}" + f" {i}*{config.kept} {i}*{config.reduced}" * (1 + operand_count(op))
    return softmax_kernel("strided", op, dtype, algo, config, parameters, config.lanes * config.parts)
