"""softmax and softmax_grad on the CPU: plans, which sort the axes into those summed over and those kept.

Axes that all operands walk at one step are merged; then the axis closest in memory decides between the two loops of
``_softmax.py``: over rows, or over strips of columns. ``fast`` subtracts the maximum as ``accurate`` does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.cpu._axes import Axis, lists, merged, reach
from numbadnn.cpu._parallel import Kernel, address, kernel_of, scratch, thread_count
from numbadnn.ops.softmax import SoftmaxProblem
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl, register

#: elements of short rows that are taken together; a single row up to ROW is kept whole
CHUNK, ROW = 2048, 32768
#: neighbouring columns that are summed together, and elements of them that are kept in scratch
STRIP, LEAST_STRIP, TABLE = 1024, 64, 131072


def plan(problem: SoftmaxProblem, policy: Policy, config: Any = None) -> Executable:
    """Either operation, by one of the two kernels of ``_softmax.py``."""
    from numbadnn.cpu import _softmax
    from numbadnn.cpu._typed import CODE

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
    inner, row = kept[-1] if kept else unit, red[-1] if red else unit
    by_columns = inner[0] >= 8 and (reach(inner) < reach(row) or row[0] < 8)
    like = np.empty(1, np.float64 if a.dtype == "float64" else np.float32)
    head: tuple[Any, ...] = (np.int64(CODE[a.dtype]), np.int64(kind))
    if by_columns:
        length, jobs = math.prod(n for n, _ in red), math.prod(n for n, _ in kept[:-1])
        kept_lines = length * len(problem.inputs)
        strip = min(STRIP, max(LEAST_STRIP, TABLE // max(kept_lines, 1) // 16 * 16))
        whole = kept_lines * strip <= TABLE
        height = 4 + (kept_lines if whole else 2)
        nbytes = height * strip * like.itemsize
        sizes: tuple[Any, ...] = (length, *lists(red), inner[0], inner[1], strip, int(whole), height)
        kept = kept[:-1]
    else:
        length, jobs = row[0], math.prod(n for n, _ in kept)
        chunk = length if CHUNK < length <= ROW else CHUNK
        nbytes = 3 * chunk * like.itemsize
        sizes = (*lists(red[:-1]), length, row[1], chunk)
    kernel: Kernel = kernel_of(_softmax.columns if by_columns else _softmax.rows)
    geometry = (jobs, *lists(kept), *sizes)
    work = 30 * problem.output.size

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(work)
        lines = address(scratch(threads * nbytes))
        kernel(threads, address(inputs[0]), address(inputs[-1]), address(outputs[0]), *head, *geometry, lines, like)

    return Executable(run, determinism="gpu_to_gpu", facts={"kernel": "columns" if by_columns else "rows"})


def supports(problem: SoftmaxProblem, policy: Policy) -> str:
    """Everything: sums are kept in float32 at least whatever the option says."""
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
