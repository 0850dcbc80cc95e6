"""Batch normalization and its gradients on the CPU: plans, which sort the axes into those averaged over and those kept.

``table.py`` does what is a number a channel, in float64, the kernels of ``loops.py`` what is a number an element. Axes
that all operands walk at one step are merged; then the axis closest in memory decides whether a run of neighbours is one
channel's (rows) or crosses channels (columns).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.axes import Axis, lists, merged, reach
from numbadnn.cpu.lang.parallel import (
    STORED,
    address,
    begins_line,
    kernel_of,
    most_scratch,
    past_caches,
    scratch,
    thread_count,
)
from numbadnn.problem import Policy, Spec
from numbadnn.problems.norm import OPERANDS, TEST, TEST_GRAD, TRAIN, TRAIN_GRAD, NormProblem
from numbadnn.registry import COMPENSATED, Executable, Impl, Summation, register

#: pieces that all channels are reduced in together, at least
PIECES = 64
#: channels that ``loops.py`` takes together in columns, and lines of as many elements that a piece there has at least
STRIP, LINES = 1024, 64


@dataclass(frozen=True)
class Walk:
    """How the elements are walked: ``columns`` or rows, the order of the kept axes, lists of lengths and strides."""

    columns: bool
    order: tuple[int, ...]
    channels: int
    kept: tuple[np.ndarray, np.ndarray]
    reduced: tuple[np.ndarray, np.ndarray]
    length: int
    steps: np.ndarray
    parts: int


def walk(problem: NormProblem) -> Walk:
    """The walk of a problem; of a training pass x stands in for the dy it lacks."""
    x, result = problem.x, problem.output
    dy = problem.inputs[1] if problem.op in (TRAIN_GRAD, TEST_GRAD) else x
    axes: list[Axis] = [
        (n, tuple(steps)) for n, *steps in zip(x.shape, x.strides, dy.strides, result.strides, strict=True)
    ]
    order = tuple(
        sorted((a for a in range(len(axes)) if a not in problem.axes), key=lambda a: reach(axes[a]), reverse=True)
    )
    kept = merged([axes[a] for a in order])
    reduced = merged(sorted((axes[a] for a in problem.axes), key=reach, reverse=True))
    unit = (1, (1, 1, 1))
    channels = math.prod(n for n, _ in kept)
    inner, run = kept[-1] if kept else unit, reduced[-1] if reduced else unit
    columns = inner[0] >= 4 and (reach(inner) < reach(run) or run[0] < 8)
    if columns:
        kept, (length, steps) = kept[:-1], inner
        rows = math.prod(n for n, _ in reduced)
        jobs = math.prod(n for n, _ in kept) * -(-length // STRIP)
        parts = max(1, min(-(-PIECES // jobs), rows // 64, rows * min(length, STRIP) // (LINES * STRIP)))
    else:
        reduced, (length, steps) = reduced[:-1], run
        parts = max(1, min(-(-PIECES // channels), math.prod(n for n, _ in reduced)))
    return Walk(columns, order, channels, lists(kept), lists(reduced), length, np.array(steps, np.int64), parts)


def _codes(*specs: Spec) -> np.ndarray:
    CODE = later.names("numbadnn.cpu.lang.typed", "CODE")

    return np.array([CODE[s.dtype] for s in specs], np.int64)


class _Steps:
    """The kernels (``loops.py``) of one problem, as functions of addresses."""

    def __init__(self, problem: NormProblem, way: Walk, double: bool) -> None:
        """``double``: lines are of float64."""
        _norm_columns = later.module("numbadnn.cpu.norm.columns")
        _norm = later.module("numbadnn.cpu.norm.loops")
        _norm_rows = later.module("numbadnn.cpu.norm.rows")

        x = problem.x
        dy = problem.inputs[1] if problem.op in (TRAIN_GRAD, TEST_GRAD) else x
        self.way, self.codes, self.work = way, _codes(x, dy, problem.output), 8 * x.size
        kernels: Any = _norm_columns if way.columns else _norm_rows
        self.moments_of, self.sums_of, self.apply_of = map(kernel_of, (kernels.moments, kernels.sums, kernels.apply))
        self.like = np.empty(1, np.float64 if double else np.float32)
        alike = {x.dtype, dy.dtype, problem.output.dtype} == {x.dtype} and (x.dtype == "float64") == double
        self.direct = bool(alike and (way.steps == 1).all())
        large = {id(s): s for s in (x, dy, problem.output)}.values()
        run = x.itemsize * (way.length if not way.columns else STRIP)
        self.past = self.direct and past_caches(sum(s.size * s.itemsize for s in large), run)
        self.stored = np.empty(1, STORED[x.dtype]) if self.direct else self.like
        self.nbytes = _norm.LINES * _norm.PITCH * self.like.itemsize

    def _lines(self, threads: int) -> tuple[Any, ...]:
        return address(scratch(threads * self.nbytes)), self.like, self.direct, self.stored

    def _geometry(self, operands: Any) -> tuple[Any, ...]:
        """Kept axes, reduced axes, run: in the order in which either kernel takes them; ``operands`` picks strides."""
        w = self.way
        (kept_n, kept), (red_n, red) = w.kept, w.reduced
        if w.columns:
            outers = int(np.prod(kept_n))
            return (outers, kept_n, kept[operands], w.length, w.steps[operands], red_n, red[operands])
        return (w.channels, kept_n, kept[operands], red_n, red[operands], w.length, w.steps[operands])

    def moments(self, x: int) -> np.ndarray:
        """Of every piece of every channel: count, mean and sum of squares around it."""
        parts, threads = self.way.parts, thread_count(self.work)
        result = np.empty((parts, 3, self.way.channels))
        self.moments_of(threads, x, self.codes[0], *self._geometry(0), parts, result, *self._lines(threads))
        return result

    def sums(self, x: int, dy: int, mean: np.ndarray) -> np.ndarray:
        """Of every piece of every channel: sums of dy, dy * (x - mean) and x - mean."""
        parts, threads = self.way.parts, thread_count(self.work)
        result = np.empty((parts, 3, self.way.channels))
        geometry = self._geometry(slice(0, 2))
        self.sums_of(threads, x, dy, self.codes, mean, *geometry, parts, result, *self._lines(threads))
        return result

    def apply(self, x: int, dy: int, out: int, kind: int, table: np.ndarray) -> None:
        """``table``: m, a, b and c of ``rows.apply``, those that the kind has."""
        threads = thread_count(self.work)
        geometry, past = self._geometry(slice(0, 3)), self.past and begins_line(out)
        self.apply_of(threads, x, dy, out, self.codes, table, kind, *geometry, *self._lines(threads), past)


def _parameters(problem: NormProblem, order: tuple[int, ...], specs: tuple[Spec, ...]) -> tuple[np.ndarray, ...]:
    """Types of parameters, the axes that are kept in the order of the walk, and element strides along them."""
    axes = merged([(problem.x.shape[a], tuple(s.strides[a] for s in specs)) for a in order])
    axes = axes or [(1, (0,) * len(specs))]
    strides = np.array([steps for _, steps in axes], np.int64).T.copy()
    return _codes(*specs), np.array([n for n, _ in axes], np.int64), strides


def _forward(problem: NormProblem, ways: list[_Steps], way: Walk) -> Callable[..., None]:
    """Training and inference; ``ways``: in float32 and, where that cannot hold it, in float64."""
    _norm_table = later.module("numbadnn.cpu.norm.table")

    training, rows = problem.op == TRAIN, (_norm_table.ROWS, way.channels)
    table_of = kernel_of(_norm_table.train if training else _norm_table.test)
    places = _parameters(problem, way.order, (*problem.inputs[1:], *problem.outputs[1:]))
    epsilon, factor = float(problem.epsilon), float(problem.factor)

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        x, table = address(inputs[0]), np.empty(rows)
        known, found = (tuple([address(a) for a in arrays[1:]]) for arrays in (inputs, outputs))
        for steps in ways:
            lost = np.zeros(1, np.int64)
            if training:
                table_of(1, known, found, *places, steps.moments(x), epsilon, factor, table, steps.like, lost)
            else:
                table_of(1, known, *places, epsilon, table, steps.like, lost)
            if not lost[0]:
                break
        steps.apply(x, x, address(outputs[0]), 0, table)

    return run


def _backward(problem: NormProblem, ways: list[_Steps], way: Walk) -> Callable[..., None]:
    """The gradients: dx = a * dy + b * (x - mean) + c, and what the sums give; ``ways`` as in ``_forward``."""
    _norm_table = later.module("numbadnn.cpu.norm.table")

    of_training, rows = problem.op == TRAIN_GRAD, (_norm_table.ROWS, way.channels)
    read, table_of = kernel_of(_norm_table.read), kernel_of(_norm_table.gradient)
    known, found = (_parameters(problem, way.order, s) for s in (problem.inputs[2:], problem.outputs[1:]))
    averaged, epsilon = float(problem.averaged), float(problem.epsilon)

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        x, dy, dx = address(inputs[0]), address(inputs[1]), address(outputs[0])
        table = np.empty(rows)
        given, at = (tuple([address(a) for a in arrays]) for arrays in (inputs[2:], outputs[1:]))
        for steps in ways:
            lost = np.zeros(1, np.int64)
            read(1, given, *known, (4, 0, 5), table)
            pieces = steps.sums(x, dy, table[0])
            table_of(1, at, *found, pieces, averaged, of_training, epsilon, table, steps.like, lost)
            if not lost[0]:
                break
        steps.apply(x, dy, dx, 1 if of_training else 2, table)

    return run


def plan(problem: NormProblem, policy: Policy, config: Any = None) -> Executable:
    """Any of the four operations."""
    ROWS = later.names("numbadnn.cpu.norm.table", "ROWS")
    way = walk(problem)
    build = _forward if problem.op in (TRAIN, TEST) else _backward
    double = any(s.dtype == "float64" for s in (*problem.inputs, *problem.outputs))
    ways = [_Steps(problem, way, wide) for wide in sorted({double, True})]
    run = build(problem, ways, way)
    facts = {"kernel": "columns" if way.columns else "rows", "pieces": way.parts}
    # lines of 64 rows or lanes, whose sums are added in float64
    summation = Summation((64,), "sequence") if double else COMPENSATED
    most = most_scratch(ways[0].work, lambda threads: threads * max(steps.nbytes for steps in ways))
    most += 8 * (ROWS + (0 if problem.op == TEST else 3 * way.parts)) * way.channels
    return Executable(run, determinism="gpu_to_gpu", facts=facts, summation=summation, scratch_bytes=most)


def supports(problem: NormProblem, policy: Policy) -> str:
    """Everything: sums are kept in float32 at least whatever the option says."""
    return ""


def rank(problem: NormProblem) -> float:
    """Microseconds, roughly, at 2 GB/s."""
    return 20 + problem.bytes / 2e3


for _op in OPERANDS:
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
