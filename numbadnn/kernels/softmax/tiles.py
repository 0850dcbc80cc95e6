"""``numba.softmax_tiles``: softmax across many NCHW channels, in shared memory. The host side of ``device/tiles.py``."""

from __future__ import annotations

from dataclasses import replace

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.machine import DEFAULT_CAPACITY, LARGEST_CAPACITY
from numbadnn.kernels.softmax.layout import (
    Prepared,
    aligned,
    channels_reason,
    layout_of,
    operand_count,
    shared_bytes,
    shared_limit,
    softmax_kernel,
    two,
)
from numbadnn.problems.softmax import SoftmaxProblem


@dataclass(frozen=True, slots=True)
class TilesConfig:
    """``lanes`` threads of ``vec`` positions x ``parts`` threads that share the channels, each with ``kept`` in registers.

    ``resident`` blocks share a multiprocessor; at most ``shared`` bytes hold the channels that no thread keeps.
    """

    vec: int
    lanes: int
    parts: int
    kept: int
    resident: int
    shared: int


def configuration(
    problem: SoftmaxProblem, vec: int, lanes: int, threads: int, kept: int, resident: int, capacity: int
) -> TilesConfig | None:
    """The configuration with its shared memory, beside the tables; None where the blocks do not fit a multiprocessor."""
    inputs, size = len(problem.inputs), 8 if problem.y.dtype == "float64" else 4
    config = TilesConfig(vec, lanes, threads // lanes, kept, resident, 0)
    needed = _needed(problem, config)
    warps, columns = threads // 32, lanes * vec
    tables = (warps * (columns + 32 // warps) + columns) * (3 - inputs) * size
    registers = kept * vec * inputs * size // 4 + 30
    limit = shared_limit(needed, tables, capacity)
    asked = shared_bytes(needed, limit)
    fits = limit >= needed and resident * (asked + tables + 1024) <= capacity + 1024 and tables <= DEFAULT_CAPACITY
    return replace(config, shared=limit) if fits and threads * resident * registers <= 65536 else None


def _needed(problem: SoftmaxProblem, config: TilesConfig) -> int:
    """Bytes of shared memory for the channels that no thread keeps."""
    others = max(-(-layout_of(problem).length // config.parts) - config.kept, 0)
    return others * config.lanes * config.parts * config.vec * problem.y.itemsize * len(problem.inputs)


def _width(problem: SoftmaxProblem) -> int:
    """Elements an access may have: up to 16 bytes, at least 4; 0 where none fits the strides."""
    outer, inner = two(layout_of(problem).kept)
    numbers = (inner.n, *outer.strides, *layout_of(problem).reduced[0].strides)
    size = problem.y.itemsize
    fit = (v for v in (8, 4, 2, 1) if 4 <= v * size <= 16 and all(n % v == 0 for n in numbers))
    return next(fit, 0) if aligned(problem) else 0


def _threads(problem: SoftmaxProblem, lanes: int) -> int:
    """Of 32 to 512 the most that leave every thread eight channels: more wait for each other longer than they work."""
    return next((t for t in (512, 256, 128, 64) if layout_of(problem).length * lanes > 8 * t - lanes), 32)


def _fitted(problem: SoftmaxProblem, vec: int, lanes: int, threads: int, capacity: int) -> TilesConfig | None:
    """Several blocks a multiprocessor where 32 registers of channels kept are enough for that, else one; the fewest kept."""
    each = vec * len(problem.inputs) * (2 if problem.y.dtype == "float64" else 1)
    for resident in (16, 12, 10, 8, 7, 6, 5, 4, 3):
        if resident * threads <= 1536 and (found := configuration(problem, vec, lanes, threads, 0, resident, capacity)):
            return found
    for resident, most in ((2, 32), (1, 64)):
        for kept in range(most // each + 1):
            if found := configuration(problem, vec, lanes, threads, kept, resident, capacity):
                return found
    return None


def heuristic(problem: SoftmaxProblem, capacity: int = LARGEST_CAPACITY) -> TilesConfig | None:
    """128 bytes of each channel, 256 of few channels, 64 or 32 of so many that no more fit (measured on an H200).

    ``vec``, ``lanes`` and ``parts``, which the bits depend on, are chosen for the largest multiprocessor there is.
    """
    vec, channels = _width(problem), layout_of(problem).length
    for wide in (128, 64, 32) if vec else ():
        if wide == 128 and channels <= 64:
            wide = 256
        lanes = max(2, min(32, wide // (vec * problem.y.itemsize)))
        while lanes < 32 and channels * lanes < 8 * 32:
            lanes *= 2
        threads = _threads(problem, lanes)
        best = _fitted(problem, vec, lanes, threads, LARGEST_CAPACITY)
        alone = threads >= 512 and channels <= 16 * threads // lanes  # a block that has a multiprocessor to itself
        if best and (best.resident > 1 or alone or wide == 32):
            return best if capacity == LARGEST_CAPACITY else _fitted(problem, vec, lanes, threads, capacity)
    return None


def space(problem: SoftmaxProblem, capacity: int = LARGEST_CAPACITY) -> list[TilesConfig]:
    """Every configuration worth timing, the heuristic's first."""
    vec = _width(problem)
    found = [heuristic(problem, capacity)]
    for lanes in (2, 4, 8, 16, 32) if vec else ():
        for threads in (32, 64, 128, 256, 512, 1024):
            if threads <= layout_of(problem).length * lanes and lanes * vec * problem.y.itemsize >= 32:
                found.append(_fitted(problem, vec, lanes, threads, capacity))
    return list(dict.fromkeys(config for config in found if config))


def reason(problem: SoftmaxProblem, capacity: int = LARGEST_CAPACITY) -> str:
    """Why this kernel cannot, "" if it can."""
    layout = layout_of(problem)
    if why := channels_reason(layout):
        return why
    if not _width(problem):
        return "needs operands and strides aligned to at least 4 bytes"
    if heuristic(problem, capacity) is None:
        return (
            f"{layout.length} channels of {problem.y.dtype} do not fit the {capacity} bytes of shared memory of a block"
        )
    return ""


def speed(problem: SoftmaxProblem) -> float:
    """Bytes a microsecond on an H200."""
    channels, size = layout_of(problem).length, problem.y.itemsize
    least = 32 if len(problem.inputs) == 2 else 16 if size == 2 else 257
    return 3.7e6 if channels >= least else 3.5e6


def prepare(problem: SoftmaxProblem, config: TilesConfig) -> Prepared:
    """Kernel, grid and arguments."""
    layout = layout_of(problem)
    outer, inner = two(layout.kept)
    positions, channels = layout.rows // config.vec, layout.reduced[0]
    scalars = (positions, channels.n, inner.n // config.vec, *zip(outer.strides, channels.strides, strict=True))
    chosen = kernel(problem.op, problem.y.dtype, problem.algo, config)
    grid, threads = blocks(positions, config.lanes), config.lanes * config.parts
    return Prepared(chosen, grid, threads, scalars, shared_bytes(_needed(problem, config), config.shared))


def kernel(op: str, dtype: str, algo: str, config: TilesConfig) -> Kernel:
    """The kernel of one configuration."""
    parameters = "i32 i32 i32" + " i64*2" * operand_count(op)
    threads = config.lanes * config.parts
    return softmax_kernel("tiles", op, dtype, algo, config, parameters, threads, config.resident)
