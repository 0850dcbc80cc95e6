"""Batch normalization and its gradients on the CPU: plans, which sort the axes into those averaged over and those kept.

What is a number a channel is worked out here with NumPy, in float64; the kernels of ``_norm.py`` do what is a number an element.
Axes that all operands walk at one step are merged; then the axis closest in memory decides whether a run of
neighbours is one channel's (rows) or crosses channels (columns).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbadnn.cpu._parallel import address, kernel_of, scratch, thread_count
from numbadnn.ops.norm import OPERANDS, TEST, TEST_GRAD, TRAIN, TRAIN_GRAD, NormProblem
from numbadnn.problem import Policy, Spec
from numbadnn.registry import Executable, Impl, register

#: an axis: its length, and the element stride of x, dy and the result along it
Axis = tuple[int, tuple[int, ...]]
#: pieces that all channels are reduced in together, at least
PIECES = 64
#: channels that ``_norm.py`` takes together in columns, and lines of as many elements that a piece there has at least
STRIP, LINES = 1024, 16


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


def _merged(axes: list[Axis]) -> list[Axis]:
    out: list[Axis] = []
    for n, steps in axes:
        if n == 1:
            continue
        if out and all(s == n * t for s, t in zip(out[-1][1], steps, strict=True)):
            out[-1] = (out[-1][0] * n, steps)
        else:
            out.append((n, steps))
    return out


def _reach(axis: Axis) -> int:
    return abs(axis[1][0]) + abs(axis[1][2])


def _lists(axes: list[Axis]) -> tuple[np.ndarray, np.ndarray]:
    shape = np.array([n for n, _ in axes], np.int64)
    return shape, np.array([s for _, s in axes], np.int64).reshape(len(axes), 3).T.copy()


def walk(problem: NormProblem) -> Walk:
    """The walk of a problem; of a training pass x stands in for the dy it lacks."""
    x, result = problem.x, problem.output
    dy = problem.inputs[1] if problem.op in (TRAIN_GRAD, TEST_GRAD) else x
    axes: list[Axis] = [
        (n, tuple(steps)) for n, *steps in zip(x.shape, x.strides, dy.strides, result.strides, strict=True)
    ]
    order = tuple(
        sorted((a for a in range(len(axes)) if a not in problem.axes), key=lambda a: _reach(axes[a]), reverse=True)
    )
    kept = _merged([axes[a] for a in order])
    reduced = _merged(sorted((axes[a] for a in problem.axes), key=_reach, reverse=True))
    unit = (1, (1, 1, 1))
    channels = math.prod(n for n, _ in kept)
    inner, run = kept[-1] if kept else unit, reduced[-1] if reduced else unit
    columns = inner[0] >= 4 and (_reach(inner) < _reach(run) or run[0] < 8)
    if columns:
        kept, (length, steps) = kept[:-1], inner
        rows = math.prod(n for n, _ in reduced)
        jobs = math.prod(n for n, _ in kept) * -(-length // STRIP)
        parts = max(1, min(-(-PIECES // jobs), rows // 64, rows * min(length, STRIP) // (LINES * STRIP)))
    else:
        reduced, (length, steps) = reduced[:-1], run
        parts = max(1, min(-(-PIECES // channels), math.prod(n for n, _ in reduced)))
    return Walk(columns, order, channels, _lists(kept), _lists(reduced), length, np.array(steps, np.int64), parts)


class _Channels:
    """Parameters as float64 vectors in the order of the walk, and results back into arrays."""

    def __init__(self, problem: NormProblem, order: tuple[int, ...]) -> None:
        rest = tuple(a for a in range(len(problem.x.shape)) if a not in order)
        self.order, self.back = (*rest, *order), np.argsort((*rest, *order))
        shape = problem.gamma.shape
        self.shape = tuple(shape[a] for a in self.order)

    def vector(self, parameter: np.ndarray) -> np.ndarray:
        return parameter.transpose(self.order).astype(np.float64).ravel()

    def put(self, target: np.ndarray, values: np.ndarray) -> None:
        target[...] = values.reshape(self.shape).transpose(self.back)


def _codes(*specs: Spec) -> np.ndarray:
    from numbadnn.cpu._typed import CODE

    return np.array([CODE[s.dtype] for s in specs], np.int64)


def _low_part(mean: np.ndarray, like: np.ndarray) -> np.ndarray:
    """What the type of ``like`` loses of a mean: 0 where that is no finite number."""
    high = mean.astype(like.dtype).astype(np.float64)
    return np.where(np.isfinite(high), mean - high, 0.0)


class _Steps:
    """The three kernels (``_norm.py``) of one problem, as functions of addresses. They centre around the mean in the type
    they compute in; what that lacks of the mean is put right here."""

    def __init__(self, problem: NormProblem, way: Walk) -> None:
        from numbadnn.cpu import _norm, _norm_columns, _norm_rows

        x = problem.x
        dy = problem.inputs[1] if problem.op in (TRAIN_GRAD, TEST_GRAD) else x
        self.way, self.codes, self.work = way, _codes(x, dy, problem.output), 8 * x.size
        self.averaged = problem.averaged
        kernels: Any = _norm_columns if way.columns else _norm_rows
        self.moments_of, self.sums_of, self.apply_of = map(kernel_of, (kernels.moments, kernels.sums, kernels.apply))
        double = any(s.dtype == "float64" for s in (*problem.inputs, *problem.outputs))
        self.like = np.empty(1, np.float64 if double else np.float32)
        self.nbytes = _norm.LINES * _norm.PITCH * self.like.itemsize

    def _lines(self, threads: int) -> tuple[int, np.ndarray]:
        return address(scratch(threads * self.nbytes)), self.like

    def _geometry(self, operands: Any) -> tuple[Any, ...]:
        """Kept axes, reduced axes, run: in the order in which either kernel takes them; ``operands`` picks strides."""
        w = self.way
        (kept_n, kept), (red_n, red) = w.kept, w.reduced
        if w.columns:
            outers = int(np.prod(kept_n))
            return (outers, kept_n, kept[operands], w.length, w.steps[operands], red_n, red[operands])
        return (w.channels, kept_n, kept[operands], red_n, red[operands], w.length, w.steps[operands])

    def moments(self, x: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sum of squares around it of every channel: the pieces joined in order."""
        parts, threads = self.way.parts, thread_count(self.work)
        result = np.empty((parts, 3, self.way.channels))
        self.moments_of(threads, x, self.codes[0], *self._geometry(0), parts, result, *self._lines(threads))
        count, mean, m2 = result[0]
        for more, centre, around in result[1:]:
            fresh, delta = count + more, centre - mean
            mean, m2 = mean + delta * (more / fresh), m2 + around + delta * delta * (count * more / fresh)
            count = fresh
        return mean, m2

    def sums(self, x: int, dy: int, mean: np.ndarray) -> np.ndarray:
        """Sums of dy, dy * (x - mean) and x - mean of every channel."""
        parts, threads = self.way.parts, thread_count(self.work)
        result = np.empty((parts, 3, self.way.channels))
        geometry = self._geometry(slice(0, 2))
        self.sums_of(threads, x, dy, self.codes, mean, *geometry, parts, result, *self._lines(threads))
        s1, s2, s3 = result.sum(0)
        low = _low_part(mean, self.like)
        return np.stack((s1, s2 - low * s1, s3 - low * self.averaged))

    def apply(self, x: int, dy: int, out: int, kind: int, *coefficients: np.ndarray) -> None:
        """``coefficients``: m, a, b and c of ``_norm_rows.apply``, those that the kind has."""
        threads = thread_count(self.work)
        table = np.zeros((4, self.way.channels))
        for row, values in zip(table, coefficients, strict=False):
            row[...] = values
        if kind < 2:
            low = _low_part(table[0], self.like)
            table[2 + kind] -= np.where(low == 0, 0.0, low * table[1 + kind])
        geometry = self._geometry(slice(0, 3))
        self.apply_of(threads, x, dy, out, self.codes, table, kind, *geometry, *self._lines(threads))


def _forward(problem: NormProblem, steps: _Steps, channels: _Channels) -> Callable[..., None]:
    """Training and inference."""
    m, f = problem.averaged, problem.factor

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        x = address(inputs[0])
        gamma, beta, *more = (channels.vector(a) for a in inputs[1:])
        mean, var = more if problem.op == TEST else steps.moments(x)
        if problem.op == TRAIN:
            var = var / m
        with np.errstate(divide="ignore", invalid="ignore"):  # a constant channel without epsilon
            invstd = 1 / np.sqrt(var + problem.epsilon)
            steps.apply(x, x, address(outputs[0]), 0, mean, gamma * invstd, beta)
        if problem.op == TRAIN:
            channels.put(outputs[1], mean)
            channels.put(outputs[2], invstd)
        if problem.running:
            old_mean, old_var = more
            channels.put(outputs[3], old_mean * (1 - f) + mean * f)
            channels.put(outputs[4], old_var * (1 - f) + var * (m / (m - 1)) * f)

    return run


def _backward(problem: NormProblem, steps: _Steps, channels: _Channels) -> Callable[..., None]:
    """The gradients: dx = a * dy + b * (x - mean) + c, and what the sums give."""
    m = problem.averaged

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        x, dy, dx = address(inputs[0]), address(inputs[1]), address(outputs[0])
        gamma, mean, spread = (channels.vector(a) for a in inputs[2:])
        s1, s2, s3 = steps.sums(x, dy, mean)
        train = problem.op == TRAIN_GRAD
        with np.errstate(divide="ignore", invalid="ignore"):
            invstd = spread if train else 1 / np.sqrt(spread + problem.epsilon)
            a = gamma * invstd
            if train:
                b = -a * invstd * invstd * (s2 / m)
                steps.apply(x, dy, dx, 1, mean, a, b, -a * (s1 / m) - b * (s3 / m))
                more: tuple[np.ndarray, ...] = ()
            else:
                steps.apply(x, dy, dx, 2, mean, a)
                more = (-s1 * a, -s2 * a * invstd * invstd / 2)
            results = (s2 * invstd, s1, *more)
        for target, values in zip(outputs[1:], results, strict=True):
            channels.put(target, values)

    return run


def plan(problem: NormProblem, policy: Policy, config: Any = None) -> Executable:
    """Any of the four operations."""
    way = walk(problem)
    build = _forward if problem.op in (TRAIN, TEST) else _backward
    run = build(problem, _Steps(problem, way), _Channels(problem, way.order))
    facts = {"kernel": "columns" if way.columns else "rows", "pieces": way.parts}
    return Executable(run, determinism="gpu_to_gpu", facts=facts)


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
