"""softmax and softmax_grad on the CPU: plans, which sort the axes into those summed over and those kept.

Axes that all operands walk at one step are merged; then the axis closest in memory decides between the two loops of
``loops.py``: over rows, or over strips of columns. ``fast`` subtracts the maximum as ``accurate`` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.axes import Axis, lists, merged, reach
from numbadnn.cpu.lang.parallel import (
    STORED,
    Kernel,
    address,
    begins_line,
    kernel_of,
    most_scratch,
    past_caches,
    scratch,
    thread_count,
)
from numbadnn.problem import FIXED_LEVELS, Policy
from numbadnn.problems.softmax import SoftmaxProblem
from numbadnn.registry import COMPENSATED, Executable, Impl, register

#: elements of short rows that are taken together; a single row up to ROW is kept whole
CHUNK, ROW = 2048, 32768
#: neighbouring columns that are summed together, and elements of them that are kept in scratch
STRIP, LEAST_STRIP, TABLE = 1024, 64, 131072
#: an axis of one element
UNIT: Axis = (1, (1, 1, 1))


@dataclass(frozen=True)
class Walk:
    """How the elements are walked: ``count`` sums indexed by ``kept``, or strips of ``across`` neighbouring ones.

    Each is over ``red`` and, where ``across`` is 0, a run of ``length`` neighbours, ``steps`` apart.
    """

    count: int
    kept: tuple[np.ndarray, np.ndarray]
    red: tuple[np.ndarray, np.ndarray]
    across: int
    length: int
    steps: tuple[int, ...]


def walk(problem: SoftmaxProblem, images: bool) -> Walk:
    """The walk of a problem; of softmax itself x stands for both inputs.

    Rows and columns add in other orders. ``images``: which it is follows from one image, whatever the batch.
    """
    a, b = problem.inputs if problem.op == "softmax_grad" else problem.inputs * 2
    axes: list[Axis] = [
        (n, tuple(steps)) for n, *steps in zip(a.shape, a.strides, b.strides, problem.output.strides, strict=True)
    ]
    summed = [1] if problem.mode == "channel" else list(range(1, len(axes)))
    # the order within either kind is free: nearest neighbours last
    red = merged(sorted((axes[i] for i in summed), key=reach, reverse=True))
    others = sorted((i for i in range(len(axes)) if i not in summed), key=lambda i: reach(axes[i]), reverse=True)
    kept = merged([axes[i] for i in others])
    nearest = merged([axes[i] for i in others if i or not images])[-1:] or [UNIT]
    row = red[-1] if red else UNIT
    if row[0] < 8 or (nearest[0][0] >= 8 and reach(nearest[0]) < reach(row)):
        # the axis whose neighbours advance together: the nearest, or a long one
        at = len(kept) - 1 if not kept or kept[-1][0] >= 8 else max(range(len(kept)), key=lambda i: kept[i][0])
        inner, outer = kept[at] if kept else UNIT, [axis for i, axis in enumerate(kept) if i != at]
        length = math.prod(n for n, _ in red)
        return Walk(math.prod(n for n, _ in outer), lists(outer), lists(red), inner[0], length, inner[1])
    return Walk(math.prod(n for n, _ in kept), lists(kept), lists(red[:-1]), 0, row[0], row[1])


def plan(problem: SoftmaxProblem, policy: Policy, config: Any = None) -> Executable:
    """Either operation, by one of the kernels of ``loops.py`` or ``gradient.py``."""
    CODE = later.names("numbadnn.cpu.lang.typed", "CODE")
    _softmax_gradient = later.module("numbadnn.cpu.softmax.gradient")
    _softmax = later.module("numbadnn.cpu.softmax.loops")

    way, alone, dtype = walk(problem, policy.determinism in FIXED_LEVELS), walk(problem, True), problem.output.dtype
    item = problem.output.itemsize
    past = past_caches((len(problem.inputs) + 1) * problem.output.size * item, (way.across or way.length) * item)
    kind = (problem.algo == "log") + 2 * (problem.op == "softmax_grad")
    like = np.empty(1, np.float64 if dtype == "float64" else np.float32)
    kept_lines = way.length * len(problem.inputs)
    strip = min(STRIP, max(LEAST_STRIP, TABLE // max(kept_lines, 1) // 16 * 16))
    if kind == 2 and way.steps == (1, 1, 1) and (way.across or (len(way.red[0]) == 0 and way.length <= ROW)):
        kernels: Any = _softmax_gradient
        height, wide = 3 if way.across else 0, strip
        sizes: tuple[Any, ...] = (way.length, *way.red, way.across, strip) if way.across else (way.length,)
        head: tuple[Any, ...] = ()
        tail: tuple[Any, ...] = (like, np.empty(1, STORED[dtype]))
    else:
        kernels, head, tail = _softmax, (np.int64(CODE[dtype]), np.int64(kind)), (like,)
        if way.across:
            whole = kept_lines * strip <= TABLE
            height, wide = 5 + (kept_lines if whole else 2), strip
            sizes = (way.length, *way.red, way.across, way.steps, strip, int(whole), height)
        else:
            height, wide = 3, way.length if CHUNK < way.length <= ROW else CHUNK
            sizes = (*way.red, way.length, way.steps, wide)
    kernel: Kernel = kernel_of(kernels.columns if way.across else kernels.rows)
    given, nbytes, work = (way.count, *way.kept, *sizes), height * wide * like.itemsize, 30 * problem.output.size

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(work)
        lines = (address(scratch(threads * nbytes)),) if nbytes else ()
        out = address(outputs[0])
        ends, now = (address(inputs[0]), address(inputs[-1]), out), past and begins_line(out)
        kernel(threads, *ends, *head, *given, *lines, *tail, now)

    facts = {"kernel": "columns" if way.across else "rows"}
    most = most_scratch(work, lambda threads: threads * nbytes)
    level = "gpu_to_gpu" if bool(way.across) == bool(alone.across) else "run_to_run"
    return Executable(run, determinism=level, facts=facts, summation=COMPENSATED, scratch_bytes=most)


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
