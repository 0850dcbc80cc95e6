"""pool and pool_grad on the CPU: plans, which choose by what lies closest in memory between the loops of ``loops.py``."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import (
    STORED,
    address,
    begins_line,
    kernel_of,
    most_scratch,
    past_caches,
    pixel_bytes,
    scratch,
    thread_count,
)
from numbadnn.cpu.pool.layout import Layout
from numbadnn.cpu.pool.wide import is_wide, one_by_one, one_channel
from numbadnn.problem import Policy, Spec
from numbadnn.problems.pool import PoolProblem
from numbadnn.registry import COMPENSATED, Executable, Impl, register

KINDS = {"max": 0, "max_deterministic": 0, "sum": 1, "average_inc_pad": 2, "average_exc_pad": 3}
#: bytes of the rows of windows that a gradient keeps at once, which stay in the second-level cache
RING_BYTES = 1 << 18
#: rows of the image, of a window that is no taller, whose maxima are kept for the next rows of windows
MOST_KEPT = 16
#: a gradient is cut into so many jobs where images and channels are fewer, in bands of so many rows of windows at least
JOBS, BAND = 32, 8


def _three(values: tuple[int, ...], missing: int) -> list[int]:
    return [missing] * (3 - len(values)) + list(values)


def _strides(*specs: Spec) -> np.ndarray:
    """Element strides of N, C, D, H, W, a row for each."""
    return np.array([[*s.strides[:2], *_three(s.strides[2:], 0)] for s in specs], np.int64)


def _up(n: int, multiple: int = 16) -> int:
    return -(-n // multiple) * multiple


def by_cells(problem: PoolProblem) -> bool:
    """Whether channels are neighbours in the image and in the result."""
    specs = (problem.x, problem.output)
    return problem.x.shape[1] >= 4 and all(s.strides[1] == 1 and abs(s.strides[-1]) > 1 for s in specs)


def _windows_over(n: int, outputs: int, window: int, stride: int, pad: int) -> np.ndarray:
    """The first and the last window that each element of an axis is in; the last is before the first where there is none."""
    u = np.arange(n, dtype=np.int64) + pad
    return np.stack([np.maximum((u - window) // stride + 1, 0), np.minimum(u // stride, outputs - 1)], 1).copy()


def _in_sight(n: int, outputs: int, window: int, stride: int, pad: int) -> tuple[int, int, int]:
    """Window, stride and pad whose windows hold the same elements of an axis; what no window has inside is left out.

    >>> _in_sight(5, 1, 1 << 40, 1 << 40, 1 << 39), _in_sight(9, 5, 3, 2, 1)
    ((5, 5, 0), (3, 2, 1))
    """
    if stride >= n:  # one window at most begins behind the first element and before the last
        first = pad // stride + 1
        start = first * n - min(first * stride - pad, n)
        return start + min(window - pad, n), n, start
    before = max(0, pad - (outputs - 1) * stride)  # so many elements of a window no window has inside
    return min(window - before, pad - before + n), stride, pad - before


class _Geometry:
    """What both operations' kernels are told: see ``loops.py``."""

    def __init__(self, problem: PoolProblem) -> None:
        self.image, self.outputs = _three(problem.x.shape[2:], 1), _three(problem.y.shape[2:], 1)
        whole, stride, pad = _three(problem.window, 1), _three(problem.stride, 1), _three(problem.pad, 0)
        seen = map(_in_sight, self.image, self.outputs, whole, stride, pad)
        self.window, self.stride, self.pad = map(list, zip(*seen, strict=True))
        self.all = np.array([*self.image, *self.outputs, *self.window, *self.stride, *self.pad], np.int64)
        self.acc: Any = np.dtype(np.float64 if problem.x.dtype == "float64" else np.float32)
        kind = KINDS[problem.mode]
        self.like, self.kind = np.empty(1, STORED[problem.x.dtype]), np.int64(kind)
        W, Q, kw, sw, pw = (axis[2] for axis in (self.image, self.outputs, self.window, self.stride, self.pad))
        # per window along a row: its first column, the columns that count (padding: with all rows), the first element inside
        start = np.arange(_up(max(Q, -(-W // sw))) + 16) * sw - pw
        number: Any = np.int32 if self.acc.itemsize == 4 else np.int64
        self.lefts, self.firsts = start.astype(number), np.maximum(-start, 0).astype(number)
        inside = np.minimum(start + kw, W) - np.maximum(start, 0)
        self.spans = (np.maximum({1: 1, 2: float(math.prod(whole))}.get(kind, inside), 1) * np.ones_like(start)).astype(
            self.acc
        )
        # lines of a split row: what precedes the image, the image or the windows, and a vector over
        self.front, self.margin = -(-pw // sw), max((kw - 1 - pw) // sw, 0)
        self.lines, longest = min(kw, sw), _up(max(-(-W // sw), Q))
        self.gap = _up(self.front + longest + self.margin) + 16
        #: bytes of the lines of a row, of what is made of them, and of what that has lost
        self.line_bytes = (2 + self.lines) * self.gap * self.acc.itemsize

    @functools.cached_property
    def columns(self) -> np.ndarray:
        """Where in the lines element k of window 0 is."""
        sw, pw = self.stride[2], self.pad[2]
        k = np.arange(self.window[2], dtype=np.int64)
        return k % sw * self.gap + self.front + (k - pw) // sw

    @functools.cached_property
    def phases(self) -> np.ndarray:
        """Of columns i*sw + s of a row: how many; element r + t*sw of which windows they are, where in a row of windows that is
        for t = 0, and the last t."""
        W, kw, sw, pw = (axis[2] for axis in (self.image, self.window, self.stride, self.pad))
        s = np.arange(sw, dtype=np.int64)
        r = (s + pw) % sw
        found = np.empty((sw, 4), np.int64)  # a number at a time: there may be as many as columns
        found[:, 0], found[:, 1] = (W - s + sw - 1) // sw, r
        found[:, 2], found[:, 3] = self.margin - (r - pw) // sw, np.where(r < kw, (kw - 1 - r) // sw, -1)
        return found

    @functools.cached_property
    def over(self) -> list[np.ndarray]:
        """The first and the last window over each slice, and over each row."""
        axes = zip(self.image, self.outputs, self.window, self.stride, self.pad, strict=True)
        return [_windows_over(*axis) for axis in itertools.islice(axes, 2)]


def plan(problem: PoolProblem, policy: Policy, config: Any = None) -> Executable:
    """Either operation, by one of the kernels of ``loops.py``, ``grad_rows.py`` and ``grad_cells.py``."""
    make, cells = _plan_pool if problem.op == "pool" else _plan_grad, by_cells(problem)
    g = _Geometry(problem)

    def alone() -> tuple[Any, str, int]:
        single, axis = one_channel(problem)
        run, name, most = _sized(single, make(single, g, True))
        return one_by_one(run, axis, problem.x.shape[axis]), name, most

    wide = not cells and is_wide(problem, g.window[2], g.outputs[2], g.line_bytes)
    found = alone() if wide else _sized(problem, make(problem, g, cells))
    if found[2] > policy.workspace_limit and not (cells or wide):
        found = min(found, alone(), key=lambda one: one[2])
    run, name, most = found
    return Executable(run, determinism="gpu_to_gpu", facts={"kernel": name}, summation=COMPENSATED, scratch_bytes=most)


def _sized(problem: PoolProblem, made: tuple[Any, str, int, int]) -> tuple[Any, str, int]:
    """What runs, its name, and the most bytes of scratch that it takes."""
    run, name, held, jobs = made
    return run, name, most_scratch(_work(problem), lambda threads: min(threads, jobs) * held)


def _work(problem: PoolProblem) -> int:
    return 4 * (problem.flops + problem.x.size)


def _plan_pool(problem: PoolProblem, g: _Geometry, cells: bool) -> tuple[Any, str, int, int]:
    """What runs, its kernel's name, a thread's bytes of scratch, and the jobs for threads."""
    _pool = later.module("numbadnn.cpu.pool.loops")

    n, c = problem.x.shape[:2]
    strides, spans, work = _strides(problem.x, problem.y), address(g.spans), _work(problem)
    count = n * g.outputs[0] * g.outputs[1]
    if cells:
        kernel, past = kernel_of(_pool.cells), past_caches(problem.bytes, pixel_bytes(problem.y))

        def run_cells(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
            x, y = address(inputs[0]), address(outputs[0])
            threads = min(thread_count(work), count)
            kernel(threads, x, y, g.like, g.kind, c, count, g.all, strides, spans, past and begins_line(y))

        return run_cells, "cells", 0, count
    rows, held, columns = kernel_of(_pool.rows), g.line_bytes, address(g.columns)

    def run_rows(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = min(thread_count(work), count * c)
        x, y, memory = address(inputs[0]), address(outputs[0]), address(scratch(held * threads))
        rows(threads, x, y, g.like, g.kind, c, count * c, g.all, strides, columns, spans, g.gap, memory, held)

    return run_rows, "rows", held, count * c


def _disjoint(problem: PoolProblem, g: _Geometry, cells: bool) -> bool:
    """Whether ``disjoint.py`` takes it: maxima of windows that neither overlap nor reach into padding, without gaps."""
    apart = g.kind == 0 and g.window == g.stride and set(g.pad) == {0}
    inside = all(0 < o * k <= n for o, k, n in zip(g.outputs, g.window, g.image, strict=True))
    specs = [s for s in (problem.x, problem.dy, problem.dx) if s is not None]
    near = all(s.strides[1 if cells else -1] == 1 for s in specs) and (cells or g.window[2] == 2)
    return apart and inside and near


def _plan_disjoint(problem: PoolProblem, g: _Geometry, cells: bool) -> tuple[Any, str, int, int]:
    _pool_disjoint = later.module("numbadnn.cpu.pool.disjoint")

    assert problem.dy is not None and problem.dx is not None
    kernel = kernel_of(_pool_disjoint.cells_disjoint if cells else _pool_disjoint.pairs_disjoint)
    (n, c), strides = problem.x.shape[:2], _strides(problem.x, problem.dy, problem.dx)
    past = cells and past_caches(problem.bytes, pixel_bytes(problem.dx))
    work, count = 4 * problem.x.size, n * (1 if cells else c) * g.outputs[0] * g.outputs[1]

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        x, dy, dx = address(inputs[0]), address(inputs[2]), address(outputs[0])
        kernel(thread_count(work), x, dy, dx, g.like, g.all, strides, count, c, past and begins_line(dx))

    return run, later.name_of(kernel.body), 0, count


def _plan_grad(problem: PoolProblem, g: _Geometry, cells: bool) -> tuple[Any, str, int, int]:
    _pool_grad = later.module("numbadnn.cpu.pool.grad")
    _pool_grad_cells = later.module("numbadnn.cpu.pool.grad_cells")
    _pool_grad_rows = later.module("numbadnn.cpu.pool.grad_rows")

    assert problem.dy is not None and problem.dx is not None
    n, c = problem.x.shape[:2]
    if _disjoint(problem, g, cells):
        return _plan_disjoint(problem, g, cells)
    strides = _strides(problem.x, problem.dy, problem.dx)
    work, acc = _work(problem), g.acc.itemsize
    overlap = [min(-(-k // s), o) for k, s, o in zip(g.window, g.stride, g.outputs, strict=True)]
    # slices that share no window go in bands of their own
    deep = g.stride[0] if g.stride[0] >= g.window[0] else g.image[0] + g.pad[0]
    slots = (1 if overlap[0] == 1 else g.outputs[0]) * overlap[1]
    reuses = g.image[0] == 1 and g.stride[1] < g.window[1] <= MOST_KEPT
    taken = g.window[1] if reuses else min(math.prod(g.window[:2]), _pool_grad.ROWS)
    strip, slot, lines = 1, 2 * g.gap * acc, (2 + g.lines + 2 * taken) * g.gap * acc
    if cells:
        channel = 2 * g.outputs[2] * acc
        line = max(16, 64 // problem.x.itemsize)  # whole lines of memory
        strip, lines = min(_up(c, line), max(line, RING_BYTES // (slots * channel) // line * line)), 0
        slot = channel * strip
    parts, slices, padded = -(-c // strip), -(-(g.image[0] + g.pad[0]) // deep), g.image[1] + g.pad[1]
    bands = max(1, min(-(-JOBS // max(n * parts * slices, 1)), padded // (BAND * g.stride[1])))
    tall = max(_up(-(-padded // bands), g.stride[1]), _up(g.pad[1] + 1, g.stride[1]))
    rows_over = overlap[0] * overlap[1]
    # windows over a column; lines have some beyond the last
    over = overlap[2] if cells else -(-g.window[2] // g.stride[2])
    words = _up(16 * max(rows_over * (1 + 2 * over), taken), 64)
    held, bands = slots * slot + words + lines, -(-padded // tall)
    jobs = n * parts * slices * bands
    layout = np.array(Layout(
        images=n, parts=parts, strip=strip, channels=c, slices=slices, deep=deep, bands=bands, tall=tall,
        ring=slots * slot, cap=overlap[1], slot=slot, words=words, held=held, gap=g.gap,
        columns=0 if cells else address(g.columns), spans=address(g.spans), firsts=address(g.firsts),
        phases=0 if cells else address(g.phases),
        planes_over=address(g.over[0]), rows_over=address(g.over[1]), front=g.front * acc, margin=g.margin * acc,
        reuses=int(reuses), taken=taken, maxima=g.line_bytes, lefts=address(g.lefts),
    ), np.int64)  # fmt: skip
    past = cells and past_caches(problem.bytes, pixel_bytes(problem.dx))
    kernel = kernel_of(_pool_grad_cells.cells_grad if cells else _pool_grad_rows.rows_grad)

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = min(thread_count(work), jobs)
        x, dy, dx, memory = (
            address(inputs[0]),
            address(inputs[2]),
            address(outputs[0]),
            address(scratch(held * threads)),
        )
        kernel(threads, x, dy, dx, g.like, g.kind, g.all, strides, layout, past and begins_line(dx), memory)

    return run, later.name_of(kernel.body), held, jobs


def supports(problem: PoolProblem, policy: Policy) -> str:
    """Everything; sums are kept in float32, for float64 data in float64."""
    return ""


def rank(problem: PoolProblem) -> float:
    """Microseconds, roughly: memory at 5 GB/s, windows at 1 ns an element."""
    return 10 + problem.bytes / 5e3 + problem.flops / 2e3


for _op in ("pool", "pool_grad"):
    register(Impl(_op, "cpu", "cpu.pool", supports, plan, rank, "ieee", "gpu_to_gpu", complete=True))
