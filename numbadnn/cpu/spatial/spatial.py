"""The spatial transformer on the CPU: what each of its kernels is called with. Sums are kept in the problem's accumulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import STORED, address, kernel_of, most_scratch, thread_count
from numbadnn.problem import Policy, Spec
from numbadnn.problems.spatial import OPERANDS, SpatialProblem
from numbadnn.registry import Executable, Impl, Summation, register

#: accumulators of the gradient in the image that one job holds, about: 4 MB where channels lie next to each other, else 1 MB
RUNS, PLANES = 1 << 20, 1 << 18
#: chains of so many terms at most (``loops._relieve``), which longer sums add with what each addition loses
SUMS = Summation((512,), "compensated")


def _ends(size: int, acc: str) -> np.ndarray:
    """``size`` numbers evenly spaced over [-1, 1]; [0] for one."""
    return ((2.0 * np.arange(size) - (size - 1)) / max(size - 1, 1)).astype(acc)


def _strides(spec: Spec) -> np.ndarray:
    return np.array(spec.strides, np.int64)


def _like(spec: Spec) -> np.ndarray:
    return np.empty(1, STORED[spec.dtype])


def plan(problem: SpatialProblem, policy: Policy, config: Any = None) -> Executable:
    """The executable of any of the four operations."""
    return {
        "spatialtf_grid": _plan_grid,
        "spatialtf_grid_grad": _plan_theta,
        "spatialtf_sampler": _plan_sampler,
        "spatialtf_sampler_grad": _plan_gradients,
    }[problem.op](problem)


def _executable(call: Callable[..., None], work: int = 0, each: int = 0) -> Executable:
    """``each``: a thread's bytes of tables in a call of so much work."""
    most = most_scratch(work, lambda threads: threads * each)
    return Executable(call, determinism="gpu_to_gpu", facts={"kernel": "loops"}, summation=SUMS, scratch_bytes=most)


def _plan_grid(problem: SpatialProblem) -> Executable:
    _spatial = later.module("numbadnn.cpu.spatial.loops")

    theta, grid = problem.inputs[0], problem.output
    n, h, w, _ = grid.shape
    ends = _ends(w, problem.accumulator), _ends(h, problem.accumulator)
    fixed = (_like(theta), _like(grid), np.array((n, h, w), np.int64), *ends, _strides(theta), _strides(grid))
    kernel, work = kernel_of(_spatial.make_grid), 4 * grid.size

    def call(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        kernel(thread_count(work), address(inputs[0]), address(outputs[0]), *fixed)

    return _executable(call)


def _plan_theta(problem: SpatialProblem) -> Executable:
    _spatial = later.module("numbadnn.cpu.spatial.loops")

    dgrid, dtheta, acc = problem.inputs[0], problem.output, problem.accumulator
    n, h, w, _ = dgrid.shape
    fixed = (
        _like(dgrid), np.array((n, h, w), np.int64), _ends(w, acc), _ends(h, acc), _strides(dgrid), _strides(dtheta)
    )  # fmt: skip
    kernel, work = kernel_of(_spatial.sum_grid), 4 * dgrid.size

    def call(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(work)
        lanes = np.empty((threads, 2, _spatial.LANES), acc)
        kernel(threads, address(inputs[0]), address(outputs[0]), *fixed, lanes)

    return _executable(call, work, 2 * _spatial.LANES * np.dtype(acc).itemsize)


class _Sampling:
    """What the sampler and its gradients share: sizes, how channels lie, and tables for each thread."""

    def __init__(self, problem: SpatialProblem) -> None:
        img, grid, y = problem.img, problem.grid, problem.y or problem.dy
        assert img is not None and grid is not None and y is not None
        self.acc = problem.accumulator
        self.sizes = np.array((*img.shape, *y.shape[2:]), np.int64)
        own = "float64" if img.dtype == "float64" else "float32"
        self.runs = img.shape[1] > 1 and img.strides[1] == 1 == y.strides[1] and self.acc == own
        self.pairs = img.strides[3] == 1 == y.strides[3] and y.strides[2] == y.shape[3] and self.acc == own
        self.likes = _like(img), _like(grid)
        self.work = 8 * y.size
        self.strides = {name: _strides(s) for name, s in (("x", img), ("g", grid), ("y", y))}

    def tables(self, threads: int) -> tuple[np.ndarray, ...]:
        """Offsets, weights, whether inside, (u, v, 0 or NaN), and where results lie."""
        TILE = later.names("numbadnn.cpu.spatial.loops", "TILE")

        return (
            np.empty((threads, 4, TILE), np.int64),
            np.empty((threads, 4, TILE), self.acc),
            np.empty((threads, 4, TILE), np.bool_),
            np.empty((threads, 3, TILE), self.acc),
            np.empty((threads, TILE), np.int64),
        )

    def table_bytes(self) -> int:
        """What ``tables`` takes for one thread."""
        return sum(table.nbytes for table in self.tables(1))


def _plan_sampler(problem: SpatialProblem) -> Executable:
    _spatial = later.module("numbadnn.cpu.spatial.loops")

    s, kernel = _Sampling(problem), kernel_of(_spatial.sampler)
    fixed = (*s.likes, s.sizes, s.runs, s.pairs, s.strides["x"], s.strides["g"], s.strides["y"])

    def call(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(s.work)
        flags = np.empty((threads, _spatial.TILE), np.bool_)
        kernel(threads, *map(address, (*inputs, *outputs)), *fixed, *s.tables(threads), flags)

    return _executable(call, s.work, s.table_bytes() + _spatial.TILE)


def _plan_gradients(problem: SpatialProblem) -> Executable:
    _spatial = later.module("numbadnn.cpu.spatial.loops")

    s = _Sampling(problem)
    assert problem.dimg is not None and problem.dgrid is not None
    slopes, pixels = kernel_of(_spatial.slopes), kernel_of(_spatial.pixels)
    x, g, y = s.strides["x"], s.strides["g"], s.strides["y"]
    dimg, dgrid = _strides(problem.dimg), _strides(problem.dgrid)
    n, c, h, w = problem.dimg.shape
    chunk = max(1, min(c, (RUNS if s.runs else PLANES) // (h * w), -(-c * n // 4)))
    chunk = -(-chunk // 16) * 16  # whole vectors

    def call(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(s.work)
        img, grid, dy, to_img, to_grid = map(address, (*inputs, *outputs))
        tables = s.tables(threads)
        sums, flags = np.empty((threads, 3, 4, _spatial.TILE), s.acc), np.empty((threads, _spatial.TILE), np.bool_)
        both = (*s.likes, s.sizes, s.runs)
        slopes(threads, img, grid, dy, to_grid, *both, s.pairs, x, g, y, dgrid, *tables, sums, flags)
        planes, counts = (
            np.empty((threads, 3, chunk * h * w), s.acc),
            np.empty((threads, 2, chunk * h * w // 2), np.int32),
        )
        lines = np.empty((threads, chunk * _spatial.TILE), s.acc)
        pixels(threads, grid, dy, to_img, *both, chunk, g, y, dimg, *tables, planes, counts, lines)

    wide = np.dtype(s.acc).itemsize
    sums = 12 * _spatial.TILE * wide + _spatial.TILE
    return _executable(call, s.work, s.table_bytes() + sums + chunk * (h * w * (3 * wide + 4) + _spatial.TILE * wide))


def supports(problem: SpatialProblem, policy: Policy) -> str:
    """Everything."""
    return ""


def rank(problem: SpatialProblem) -> float:
    """Microseconds, roughly, at 1 GB/s."""
    return 10 + problem.bytes / 1e3


for _op in OPERANDS:
    register(
        Impl(_op, "cpu", "cpu.loops", supports, plan, rank, arithmetic="ieee", determinism="gpu_to_gpu", complete=True)
    )
