"""``numba.softmax_rows``: softmax of rows along memory, held in registers. The host side of ``device/rows.py``."""

from __future__ import annotations

from dataclasses import replace

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.machine import LARGEST_CAPACITY
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.softmax.layout import (
    Prepared,
    aligned,
    capacity,
    layout_of,
    operand_count,
    rows_reason,
    softmax_kernel,
    two,
)
from numbadnn.problems.softmax import SoftmaxProblem


@dataclass(frozen=True, slots=True)
class RowsConfig:
    """``lanes`` threads a row, ``vectors`` pieces of ``vec`` elements a thread; ``stash``: dy in shared memory.

    ``resident`` blocks share a multiprocessor: one computes while the other waits for memory.
    """

    lanes: int
    vectors: int
    vec: int
    peel: bool
    nested: bool
    threads: int
    stash: bool = False
    resident: int = 1


#: bytes of shared memory for the sums of every warp
STATIC = 256


def heuristic(problem: SoftmaxProblem) -> RowsConfig | None:
    """Up to a warp a row while the row fits it, else a block; None where no block's registers hold the row."""
    layout = layout_of(problem)
    outer, inner, reduced = *two(layout.kept), layout.reduced[0]
    vec = 16 // problem.y.itemsize
    strides = [s for axis in (outer, inner) for s in axis.strides]
    same_shift = all(len({s % vec for s in axis.strides}) == 1 for axis in (outer, inner))
    if not (aligned(problem) and same_shift) or reduced.n < 2 * vec:
        vec = 1
    peel = vec > 1 and any(n % vec for n in (reduced.n, *strides))
    pieces = -(-(reduced.n + (vec - 1 if peel else 0)) // vec)
    dtype, held = problem.y.dtype, len(problem.inputs)
    for stash in (False, True)[:held]:  # only the gradient has a second operand to put elsewhere
        found = _lanes(pieces, vec, dtype, 1 if stash else held)
        if found:
            lanes, vectors = found
            if stash and dtype == "float32" and lanes == 1024:  # 91 % of the copy speed, where 1024 threads reach 78
                lanes, vectors = 512, 2 * vectors
            registers = vectors * vec * (1 if stash else held) * (2 if dtype == "float64" else 1) + 16
            resident = 2 if lanes >= 512 and not stash and 2 * lanes * registers <= 65536 else 1
            return RowsConfig(lanes, vectors, vec, peel, len(layout.kept) > 1, max(lanes, 128), stash, resident)
    return None


def space(problem: SoftmaxProblem, most: int = LARGEST_CAPACITY) -> list[RowsConfig]:
    """Every configuration worth timing, the heuristic's first: other numbers of threads a row."""
    best = heuristic(problem)
    if best is None:
        return []
    pieces, operands = best.lanes * best.vectors, 1 if best.stash else len(problem.inputs)
    found = [best]
    for lanes in (2, 4, 8, 16, 32, 128, 256, 512, 1024):
        vectors, threads = -(-pieces // lanes), max(lanes, 128)
        if lanes < 2 * pieces and vectors * best.vec <= capacity(threads, problem.y.dtype, operands):
            found.append(replace(best, lanes=lanes, vectors=vectors, threads=threads))
    return list(dict.fromkeys(c for c in found if _stash_bytes(problem, c) + STATIC <= most))


def _lanes(pieces: int, vec: int, dtype: str, held: int) -> tuple[int, int] | None:
    """(lanes, pieces a lane) for a row of so many pieces: a warp if few hold the row, else the smallest block.

    1024 threads come last: one such block fills a multiprocessor, which then waits whenever the block does.
    """

    def most(lanes: int) -> int:
        return min(8 if vec > 1 else 32, capacity(max(lanes, 128), dtype, held) // vec)

    few = min(4 if vec > 1 else 8, most(32))
    if pieces <= 32 * few:
        shares = [(n, -(-pieces // n)) for n in (1, 2, 4, 8, 16, 32) if -(-pieces // n) <= few and n <= 2 * pieces]
        return max(shares, key=lambda s: (pieces / (s[0] * s[1]), s[0]))
    more = min(2 * few, 32 // vec) if held == 1 else few  # two blocks of 512 fit a multiprocessor up to there
    wider = (
        2 * few if held == 1 and dtype == "float32" and vec > 1 else few
    )  # 256 threads: 99 % of the copy speed, 512: 96
    for lanes, limit in ((128, few), (256, wider), (512, more), (1024, 2 * few)):
        if -(-pieces // lanes) <= min(limit, most(lanes)):
            return lanes, -(-pieces // lanes)
    return None


def reason(problem: SoftmaxProblem, most: int = LARGEST_CAPACITY) -> str:
    """Why this kernel cannot, "" if it can, where a block may have ``most`` bytes of shared memory."""
    layout = layout_of(problem)
    if why := rows_reason(layout):
        return why
    if layout.rows >= LIMIT32 or layout.length >= LIMIT32:
        return "needs fewer than 2**31 rows"
    best = heuristic(problem)
    if best is None:
        return f"rows of {layout.length} {problem.y.dtype} do not fit the registers of a block"
    if _stash_bytes(problem, best) + STATIC > most:
        return f"rows of {layout.length} {problem.y.dtype} do not fit the {most} bytes of shared memory of a block"
    return ""


def speed(problem: SoftmaxProblem) -> float:
    """Bytes a microsecond on an H200."""
    row_bytes, inputs = layout_of(problem).length * problem.y.itemsize, len(problem.inputs)
    if problem.y.itemsize == 2 and row_bytes * inputs > 32 * 1024:
        return 3.8e6 if inputs == 2 else 3.3e6
    return 3.8e6 if inputs == 2 and row_bytes >= 128 * 1024 else 4.0e6


def prepare(problem: SoftmaxProblem, config: RowsConfig) -> Prepared:
    """Kernel, grid and arguments."""
    layout = layout_of(problem)
    outer, inner = two(layout.kept)
    scalars = (layout.rows, layout.length, inner.n, *zip(outer.strides, inner.strides, strict=True))
    chosen = kernel(problem.op, problem.y.dtype, problem.algo, config)
    grid, shared = blocks(layout.rows, config.threads // config.lanes), _stash_bytes(problem, config)
    return Prepared(chosen, grid, config.threads, scalars, shared)


def _stash_bytes(problem: SoftmaxProblem, config: RowsConfig) -> int:
    """Dynamic shared memory: a stretch of odd length for each thread."""
    size = 8 if problem.y.dtype == "float64" else 4
    return config.threads * (config.vectors * config.vec + 1) * size if config.stash else 0


def kernel(op: str, dtype: str, algo: str, config: RowsConfig) -> Kernel:
    """The kernel of one configuration."""
    parameters = "i32 i32 i32" + " i64*2" * operand_count(op)
    return softmax_kernel("rows", op, dtype, algo, config, parameters, config.threads, config.resident)
