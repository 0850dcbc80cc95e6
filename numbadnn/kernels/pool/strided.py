"""``numba.pool_strided``: pooling and its gradient on any strides and windows. The host side of ``device/strided.py``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.support import LEAF, LIMIT32
from numbadnn.kernels.pool.tiles import KINDS, three
from numbadnn.problem import ITEMSIZE, Spec
from numbadnn.problems.pool import PoolProblem

#: a kernel with its grid and its arguments
Prepared = tuple[Kernel, tuple[int, int, int], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class StridedConfig:
    """``op`` pool, choose or pool_grad; ``index``: the float type that holds a number of an element of a window exactly.

    ``long``: sums have more than LEAF terms, so that roundings are kept account of.
    """

    op: str
    kind: str
    channels_last: bool
    wide: bool
    index: str
    threads: int = 256
    long: bool = False


def heuristic(problem: PoolProblem) -> StridedConfig:
    """Neighbouring threads along channels where those are nearest in memory, 64 bits where 32 are too few."""
    target = problem.output
    channels_last = abs(target.strides[1]) < abs(target.strides[-1]) and target.shape[1] > 1
    padded = math.prod(n + 2 * p for n, p in zip(problem.x.shape[2:], problem.pad, strict=True))
    most = max(math.prod(problem.x.shape[:2]) * padded, math.prod(problem.window), max(problem.stride) + padded)
    index = "float32" if math.prod(problem.window) < 2**24 else "float64"
    long = _terms(problem) > LEAF
    return StridedConfig(problem.op, KINDS[problem.mode], channels_last, most >= LIMIT32, index, long=long)


def _terms(problem: PoolProblem) -> int:
    """How many numbers a sum has: the elements of a window, or the windows that see an element; a maximum is no sum."""
    if problem.op == "pool":
        return 1 if problem.is_max else math.prod(problem.window)
    seen = (-(-size // step) for size, step in zip(problem.window, problem.stride, strict=True))
    return math.prod(map(min, seen, problem.y.shape[2:]))


def workspace_bytes(problem: PoolProblem, config: StridedConfig) -> int:
    """Room for the number of each window's maximum."""
    return problem.y.size * ITEMSIZE[config.index] if config.op == "pool_grad" and problem.is_max else 0


def prepare(problem: PoolProblem, config: StridedConfig, acc: str) -> list[Prepared]:
    """Kernels to launch one after the other: (x, y), or for a maximum's gradient (x, numbers); (numbers, dy, dx)."""
    windows = (three(problem.window, 1), three(problem.stride, 1), three(problem.pad, 0))
    x, y = five(problem.x), five(problem.y)
    dtype = problem.x.dtype
    if config.op == "pool":
        scalars = (problem.y.size, x[0][2:], y[0], *windows, x[1], y[1])
        return [(kernel(dtype, acc, config), blocks(problem.y.size, config.threads), scalars)]
    assert problem.dy is not None and problem.dx is not None
    steps: list[Prepared] = []
    if problem.is_max:
        chosen = replace(config, op="choose", long=False)
        scalars = (problem.y.size, x[0][2:], y[0], *windows, x[1], y[1])
        steps.append((kernel(dtype, acc, chosen), blocks(problem.y.size, config.threads), scalars))
    gradient = (problem.x.size, x[0], y[0][2:], *windows, five(problem.dy)[1], five(problem.dx)[1])
    steps.append((kernel(dtype, acc, config), blocks(problem.x.size, config.threads), gradient))
    return steps


def five(spec: Spec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides with a depth of 1 where there is none."""
    if len(spec.shape) == 5:
        return spec.shape, spec.strides
    return (*spec.shape[:2], 1, *spec.shape[2:]), (*spec.strides[:2], 0, *spec.strides[2:])


def kernel(dtype: str, acc: str, config: StridedConfig) -> Kernel:
    """The kernel of one configuration."""
    i = "i64" if config.wide else "i32"
    extents = f"{i}*5 {i}*3" if config.op == "pool_grad" else f"{i}*3 {i}*5"
    parameters = "ptr " * (3 if config.op == "pool_grad" else 2) + f"i64 {extents} {i}*3 {i}*3 {i}*3 i64*5 i64*5"
    made_by = f"pool.device.strided.{'pool_grad' if config.op == 'pool_grad' else 'pool'}"
    return Kernel.of("pool_strided", made_by, (dtype, acc, config), parameters, config.threads)
