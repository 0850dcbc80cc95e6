"""pool and pool_grad on the CPU: plans, which choose by what lies closest in memory between the loops of ``_pool.py``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.cpu._parallel import STORED, Kernel, address, kernel_of, scratch, thread_count
from numbadnn.ops.pool import PoolProblem
from numbadnn.problem import Policy, Spec
from numbadnn.registry import Executable, Impl, register

KINDS = {"max": 0, "max_deterministic": 0, "sum": 1, "average_inc_pad": 2, "average_exc_pad": 3}
#: channels that are reduced together: as many as stay in the first-level cache with all else; in a gradient as many
#: as keep the buffer of an image in the second level
STRIP, IMAGE_BYTES = 512, 1 << 22


def _three(values: tuple[int, ...], missing: int) -> list[int]:
    return [missing] * (3 - len(values)) + list(values)


def _strides(spec: Spec) -> np.ndarray:
    """Element strides of N, C, D, H, W."""
    n, c, *rest = spec.strides
    return np.array([n, c, *_three(tuple(rest), 0)], np.int64)


def by_cells(problem: PoolProblem) -> bool:
    """Whether channels lie closer in memory than columns, in what moves most: the image read, or the gradient written."""
    spec = problem.x if problem.op == "pool" or problem.is_max else problem.output
    return spec.shape[1] >= 4 and abs(spec.strides[1]) < abs(spec.strides[-1])


def plan(problem: PoolProblem, policy: Policy, config: Any = None) -> Executable:
    """Either operation, by one of the four kernels of ``_pool.py``."""
    from numbadnn.cpu import _pool

    cells, gradient = by_cells(problem), problem.op == "pool_grad"
    image, outputs = _three(problem.x.shape[2:], 1), _three(problem.y.shape[2:], 1)
    axes = [_three(problem.window, 1), _three(problem.stride, 1), _three(problem.pad, 0)]
    geo = np.array([*image, *outputs, *axes[0], *axes[1], *axes[2]], np.int64)
    n, c = problem.x.shape[:2]
    acc: Any = np.float64 if problem.x.dtype == "float64" else np.float32
    like, kind, one = np.empty(1, STORED[problem.x.dtype]), np.int64(KINDS[problem.mode]), np.dtype(acc).itemsize
    volume = math.prod(image)
    strip = min(c, max(16, IMAGE_BYTES // (volume * one) // 16 * 16) if gradient else STRIP) if cells else 1
    strip = min(strip, STRIP)
    strips = -(-c // strip)
    images = n * strips if gradient else n * strips * outputs[0] * outputs[1]
    count, sizes = (
        (images, (strips, strip, c)) if cells else (n * c if gradient else n * c * outputs[0] * outputs[1], (c,))
    )
    width = -(-(strip if cells else max(image[2], outputs[2])) // 16) * 16
    held = -(-volume * strip // 16) * 16 if gradient else 0
    names = ("cells_grad" if cells else "rows_grad") if gradient else ("cells" if cells else "rows")
    kernel: Kernel = kernel_of(getattr(_pool, names))
    strides = [_strides(s) for s in (problem.x, *((problem.dy, problem.dx) if gradient else (problem.y,))) if s]
    work = 4 * (problem.flops + problem.x.size)
    number: Any = np.dtype(np.int32 if volume < 2**31 else np.int64)
    # per thread: an image, four lines, and three lines of numbers
    nbytes = (held + 4 * width) * one + 3 * width * number.itemsize

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(work)
        memory = scratch(nbytes * threads)
        cut = 4 * width * one * threads
        lines = memory[:cut].view(acc).reshape(threads, 4, width)
        first, last = address(inputs[0]), address(outputs[0])
        if not gradient:
            kernel(threads, first, last, like, kind, *sizes, count, geo, *strides, lines)
            return
        end = cut + 3 * width * number.itemsize * threads
        numbers = memory[cut:end].view(number).reshape(threads, 3, width)
        buffers = memory[end : end + held * one * threads].view(acc).reshape(threads, held)
        dy = address(inputs[2])
        kernel(threads, first, dy, last, like, kind, *sizes, count, geo, *strides, buffers, lines, numbers)

    return Executable(run, determinism="gpu_to_gpu", facts={"kernel": names})


def supports(problem: PoolProblem, policy: Policy) -> str:
    """Everything; sums are kept in float32, for float64 data in float64."""
    return ""


def rank(problem: PoolProblem) -> float:
    """Microseconds, roughly: memory at 5 GB/s, windows at 1 ns an element."""
    return 10 + problem.bytes / 5e3 + problem.flops / 2e3


for _op in ("pool", "pool_grad"):
    register(Impl(_op, "cpu", "cpu.pool", supports, plan, rank, "ieee", "gpu_to_gpu", complete=True))
