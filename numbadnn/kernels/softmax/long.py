"""``numba.softmax_long``: softmax of long rows along memory, in shared memory. The host side of ``device/long.py``."""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import LARGEST_CAPACITY
from numbadnn.kernels.softmax.layout import (
    Prepared,
    aligned,
    layout_of,
    operand_count,
    rows_reason,
    shared_bytes,
    shared_limit,
    softmax_kernel,
    two,
)
from numbadnn.problems.softmax import SoftmaxProblem


@dataclass(frozen=True, slots=True)
class LongConfig:
    """A block of ``threads``, each ``ahead`` pieces of ``vec`` elements at a time; at most ``shared`` bytes of a row kept."""

    threads: int
    vec: int
    ahead: int
    shared: int = 0


LENGTH_LIMIT = 2**30
STATIC = 2 * 32 * 8  # of the reductions


def _share(problem: SoftmaxProblem, vec: int, capacity: int) -> int:
    """Shared memory for a whole row, else as much as there is; 0 where elements are moved one by one."""
    return shared_limit(_row_bytes(problem), STATIC, capacity) if vec > 1 else 0


def _row_bytes(problem: SoftmaxProblem) -> int:
    """Of all inputs."""
    return layout_of(problem).length * problem.y.itemsize * len(problem.inputs)


def _width(problem: SoftmaxProblem) -> int:
    """Elements a piece: 16 bytes where all operands of a row start equally far from a multiple of 16 bytes, else one."""
    vec = 16 // problem.y.itemsize
    same = all(len({s % vec for s in axis.strides}) == 1 for axis in layout_of(problem).kept)
    return vec if aligned(problem) and same and layout_of(problem).length >= 2 * vec else 1


def heuristic(problem: SoftmaxProblem, capacity: int = LARGEST_CAPACITY) -> LongConfig:
    """Small blocks where several rows fit a multiprocessor's shared memory, of 1024 where one row has it alone."""
    vec, row_bytes = _width(problem), _row_bytes(problem)
    threads = 512 if row_bytes <= 74 * 1024 else 1024
    if row_bytes <= 32 * 1024:
        threads = max(32, min(256, 1 << (layout_of(problem).length // (4 * vec)).bit_length()))  # four pieces a thread
    return LongConfig(threads, vec, 2 if len(problem.inputs) == 1 else 1, _share(problem, vec, capacity))


def space(problem: SoftmaxProblem, capacity: int = LARGEST_CAPACITY) -> list[LongConfig]:
    """Every configuration worth timing, the heuristic's first."""
    vec = _width(problem)
    shared, most = _share(problem, vec, capacity), 32 // len(problem.inputs)
    found = [LongConfig(threads, vec, ahead, shared) for threads in (256, 512, 1024) for ahead in (1, 2, 4)]
    return list(dict.fromkeys([heuristic(problem, capacity), *(c for c in found if c.ahead * vec <= most)]))


def reason(problem: SoftmaxProblem, capacity: int = LARGEST_CAPACITY) -> str:
    """Why this kernel cannot, "" if it can."""
    layout = layout_of(problem)
    if why := rows_reason(layout):
        return why
    if layout.length >= LENGTH_LIMIT or layout.rows >= 2**31 - 1:
        return "needs rows of fewer than 2**30 elements and fewer than 2**31 - 1 of them"
    return ""


def speed(problem: SoftmaxProblem) -> float:
    """Bytes a microsecond on an H200."""
    row_bytes = _row_bytes(problem)
    if _width(problem) == 1:
        return 1.2e6
    if row_bytes <= 32 * 1024:
        return 2.0e6
    return 3.9e6 if row_bytes <= 256 * 1024 else 2.8e6


def prepare(problem: SoftmaxProblem, config: LongConfig) -> Prepared:
    """Kernel, grid and arguments: as many steps streamed as leave the rest to fit the shared memory."""
    layout = layout_of(problem)
    outer, inner = two(layout.kept)
    pieces, step = -(-layout.length // config.vec), config.ahead * config.threads
    fits = config.shared // (config.vec * problem.y.itemsize * len(problem.inputs))
    streamed = 0 if pieces <= fits else -(-(pieces - fits) // step) * step
    scalars = (streamed, layout.length, inner.n, *zip(outer.strides, inner.strides, strict=True))
    chosen = kernel(problem.op, problem.y.dtype, problem.algo, config)
    asked = shared_bytes(_row_bytes(problem), config.shared)
    return Prepared(chosen, (layout.rows, 1, 1), config.threads, scalars, asked)


def kernel(op: str, dtype: str, algo: str, config: LongConfig) -> Kernel:
    """The kernel of one configuration."""
    return softmax_kernel("long", op, dtype, algo, config, "i32 i32 i32" + " i64*2" * operand_count(op), config.threads)
