"""softmax and softmax_grad on the CPU: plans, which sort the axes into those summed over and those kept.

Axes that all operands walk at one step are merged; then the axis closest in memory decides between the two loops of
``_softmax.py``: over rows, or over strips of columns. ``fast`` subtracts the maximum as ``accurate`` does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.cpu._parallel import STORED, Kernel, address, kernel_of, scratch, thread_count
from numbadnn.ops.softmax import SoftmaxProblem
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl, register

#: an axis: its length, and the element stride of each operand along it
Axis = tuple[int, tuple[int, ...]]


def merged(axes: list[Axis]) -> list[Axis]:
    """The same index set, outermost axis first, with axes joined that every operand walks at one step.

    >>> merged([(4, (6,)), (3, (2,)), (1, (9,)), (2, (1,))])
    [(24, (1,))]
    """
    out: list[Axis] = []
    for n, steps in axes:
        if n == 1:
            continue
        if out and all(s == n * t for s, t in zip(out[-1][1], steps, strict=True)):
            out[-1] = (out[-1][0] * n, steps)
        else:
            out.append((n, steps))
    return out


def reach(axis: Axis) -> int:
    """How far apart neighbours along the axis lie, in the first input and the output."""
    return abs(axis[1][0]) + abs(axis[1][2])


def lists(axes: list[Axis]) -> tuple[np.ndarray, np.ndarray]:
    """Lengths, and strides as (operand, axis)."""
    shape = np.array([n for n, _ in axes], np.int64)
    return shape, np.array([s for _, s in axes], np.int64).reshape(len(axes), 3).T.copy()


def plan(problem: SoftmaxProblem, policy: Policy, config: Any = None) -> Executable:
    """Either operation, by one of the two kernels of ``_softmax.py``."""
    from numbadnn.cpu import _softmax

    a, b = problem.inputs if problem.op == "softmax_grad" else problem.inputs * 2
    kind = (problem.algo == "log") + 2 * (problem.op == "softmax_grad")
    axes: list[Axis] = [
        (n, tuple(steps)) for n, *steps in zip(a.shape, a.strides, b.strides, problem.output.strides, strict=True)
    ]
    summed = [1] if problem.mode == "channel" else list(range(1, len(axes)))
    # the order within either kind is free: nearest neighbours last
    red = merged(sorted((axes[i] for i in summed), key=reach, reverse=True))
    kept = merged(sorted((axes[i] for i in range(len(axes)) if i not in summed), key=reach, reverse=True))
    unit = (1, (1, 1, 1))
    like, real_kind = np.empty(1, STORED[a.dtype]), np.int64(kind)

    inner, row = kept[-1] if kept else unit, red[-1] if red else unit
    by_columns = inner[0] >= 8 and (reach(inner) < reach(row) or row[0] < 8)
    if by_columns:
        kept, outer_red = kept[:-1], red
        length, width, steps = math.prod(n for n, _ in red), inner[0], inner[1]
        jobs = math.prod(n for n, _ in kept)
    else:
        outer_red, length, steps = red[:-1], row[0], row[1]
        width, jobs = 1, math.prod(n for n, _ in kept)
    (shape, strides), (red_shape, red_strides) = lists(kept), lists(outer_red)
    body: Any = _softmax.columns if by_columns else _softmax.rows
    kernel: Kernel = kernel_of(body)
    buffer = (5 + _softmax.KEPT, _softmax.COLUMNS) if by_columns else (2, _softmax.CHUNK)
    sizes = (length, red_shape, red_strides, width) if by_columns else (red_shape, red_strides, length)
    work = 30 * problem.output.size

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(work)
        nbytes = threads * buffer[0] * buffer[1] * 8
        buffers = scratch(nbytes)[:nbytes].view(np.float64).reshape(threads, *buffer)
        first, last = address(inputs[0]), address(inputs[-1])
        kernel(threads, first, last, address(outputs[0]), like, real_kind, jobs, shape, strides, *sizes, steps, buffers)

    return Executable(run, determinism="gpu_to_gpu", facts={"kernel": "columns" if by_columns else "rows"})


def supports(problem: SoftmaxProblem, policy: Policy) -> str:
    """Everything: sums are kept in float64 whatever the option says."""
    return ""


def rank(problem: SoftmaxProblem) -> float:
    """Microseconds, roughly, at 1 ns an element."""
    return 10 + problem.output.size / 1e3


for _op in ("softmax", "softmax_grad"):
    register(
        Impl(
            op=_op,
            backend="cpu",
            name="cpu.loops",
            supports=supports,
            plan=plan,
            rank=rank,
            arithmetic="ieee",
            determinism="gpu_to_gpu",
            complete=True,
        )
    )
