"""How a batch normalization lies in memory: kept and reduced axes, folded, with the strides of every operand.

Axes that follow each other in the memory of all operands become one, so that most problems are planes (NCHW: one reduced axis of
unit stride, maybe another around the channels) or columns (NHWC, per-activation: channels of unit stride).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.axes import Axis, fold
from numbadnn.kernels.build.launch import Kernel
from numbadnn.problem import Spec
from numbadnn.problems.norm import NormProblem

#: more elements of a channel (or rows) than all blocks take at a time: indices go as far beyond the last
FARTHEST = 1 << 22


class Layout(NamedTuple):
    """Folded axes, the result's smallest stride last; never empty. ``reduced`` has the strides of ``data`` alone.

    ``data`` are the operands with the shape of x (x, dy, result), ``parameters`` the others, in the order of the problem's inputs
    and outputs; ``kept`` has the strides of both, in that order.
    """

    data: tuple[Spec, ...]
    parameters: tuple[Spec, ...]
    kept: tuple[Axis, ...]
    reduced: tuple[Axis, ...]

    @property
    def channels(self) -> int:
        return math.prod(a.n for a in self.kept)

    @property
    def averaged(self) -> int:
        return math.prod(a.n for a in self.reduced)

    @property
    def aligned(self) -> bool:
        return all(s.aligned for s in self.data)


@functools.lru_cache(maxsize=64)
def layout_of(problem: NormProblem) -> Layout:
    """The folded axes of a problem."""
    shape = problem.x.shape
    gradient = problem.op.endswith("_grad")
    data = (*problem.inputs[: 1 + gradient], problem.output)
    parameters = (*problem.inputs[1 + gradient :], *problem.outputs[1:])
    last = len(data) - 1
    kept, reduced = [], []
    for a, n in enumerate(shape):
        strides = tuple(s.strides[a] for s in data)
        if a in problem.axes:
            reduced.append(Axis(n, strides))
        else:
            kept.append(Axis(n, (*strides, *(s.strides[a] for s in parameters))))
    one = tuple(1 for _ in (*data, *parameters))
    return Layout(
        data, parameters, fold(kept, last) or (Axis(1, one),), fold(reduced, last) or (Axis(1, one[: last + 1]),)
    )


def accumulator(problem: NormProblem) -> str:
    """The type computed in: float64 where any operand is, else float32."""
    return "float64" if any(s.dtype == "float64" for s in (*problem.inputs, *problem.outputs)) else "float32"


def uniform_reason(problem: NormProblem) -> str:
    """Why the fast kernels cannot take the operands, "" if they can: one dtype for the data, one for the parameters."""
    layout = layout_of(problem)
    if len({s.dtype for s in layout.data}) > 1 or len({s.dtype for s in layout.parameters}) > 1:
        return "needs one dtype for inputs and dy, and one for all parameters"
    if len(layout.kept) > 1 or any(s != 1 for s in layout.kept[0].strides[len(layout.data) :]):
        return "needs parameters and statistics contiguous, in the order of the channels in memory"
    return ""


def step_kernel(
    stem: str,
    problem: NormProblem,
    name: str,
    parameters: str | tuple[str, ...],
    config: Any,
    threads: int,
    resident: int,
    *more: Any,
) -> Kernel:
    """The kernel ``name`` of the planes or columns for a problem's dtypes; ``{real}`` is the type computed in.

    ``parameters``: text, or the parts of a record (``Arguments``).
    """
    acc = accumulator(problem)
    made_by = f"norm.device.{stem}{'_grad' if name in ('sums', 'backward') else ''}.{name}"
    arguments = (problem.x.dtype, acc, problem.gamma.dtype, config, *more)
    real = "f64" if acc == "float64" else "f32"
    parts = [part.format(real=real) for part in ((parameters,) if isinstance(parameters, str) else parameters)]
    spelled = parts[0] if isinstance(parameters, str) else Arguments(*parts)
    early = name in ("apply", "join_apply", "backward")
    return Kernel.of(f"norm_{name}_{stem}", made_by, arguments, spelled, threads, resident, early)
