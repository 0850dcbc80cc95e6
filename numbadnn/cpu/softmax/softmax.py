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
from numbadnn.problem import Policy
from numbadnn.problems.softmax import SoftmaxProblem
from numbadnn.registry import COMPENSATED, Executable, Impl, register

#: elements of short rows that are taken together; a single row up to ROW is kept whole
CHUNK, ROW = 2048, 32768
#: neighbouring columns that are summed together, and elements of them that are kept in scratch
STRIP, LEAST_STRIP, TABLE = 1024, 64, 131072


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


def walk(problem: SoftmaxProblem) -> Walk:
    """The walk of a problem; of softmax itself x stands for both inputs."""
    a, b = problem.inputs if problem.op == "softmax_grad" else problem.inputs * 2
    axes: list[Axis] = [
        (n, tuple(steps)) for n, *steps in zip(a.shape, a.strides, b.strides, problem.output.strides, strict=True)
    ]
    summed = [1] if problem.mode == "channel" else list(range(1, len(axes)))
    # the order within either kind is free: nearest neighbours last
    red = merged(sorted((axes[i] for i in summed), key=reach, reverse=True))
    kept = merged(sorted((axes[i] for i in range(len(axes)) if i not in summed), key=reach, reverse=True))
    unit = (1, (1, 1, 1))
    inner, row = kept[-1] if kept else unit, red[-1] if red else unit
    if inner[0] >= 8 and (reach(inner) < reach(row) or row[0] < 8):
        length, outer = math.prod(n for n, _ in red), kept[:-1]
        return Walk(math.prod(n for n, _ in outer), lists(outer), lists(red), inner[0], length, inner[1])
    return Walk(math.prod(n for n, _ in kept), lists(kept), lists(red[:-1]), 0, row[0], row[1])


def plan(problem: SoftmaxProblem, policy: Policy, config: Any = None) -> Executable:
    """Either operation, by one of the kernels of ``loops.py`` or ``gradient.py``."""
    CODE = later.names("numbadnn.cpu.lang.typed", "CODE")
    _softmax_gradient = later.module("numbadnn.cpu.softmax.gradient")
    _softmax = later.module("numbadnn.cpu.softmax.loops")

    way, dtype = walk(problem), problem.output.dtype
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
    return Executable(run, determinism="gpu_to_gpu", facts=facts, summation=COMPENSATED, scratch_bytes=most)


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
