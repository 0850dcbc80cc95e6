"""Dropout and its gradient on the CPU: the plan, which folds axes that follow each other in C order and in memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import address, kernel_of, most_scratch, scratch, thread_count
from numbadnn.problem import Policy
from numbadnn.problems.dropout import DropoutProblem
from numbadnn.registry import Executable, Impl, register


def _folded(problem: DropoutProblem) -> list[tuple[int, int, int]]:
    """(length, source stride, target stride) of each axis, in C order, joined where both operands walk on at one step."""
    axes: list[tuple[int, int, int]] = []
    for n, s, t in zip(problem.source.shape, problem.source.strides, problem.output.strides, strict=True):
        if n == 1:
            continue
        if axes and axes[-1][1:] == (n * s, n * t):
            axes[-1] = (axes[-1][0] * n, s, t)
        else:
            axes.append((n, s, t))
    return axes or [(1, 1, 1)]


def _lane(axes: list[tuple[int, int, int]]) -> int | None:
    """The axis, not the last, whose neighbours lie next to each other in both operands, if it is long enough for vectors."""
    found = [d for d, (n, s, t) in enumerate(axes[:-1]) if s == 1 == t and n >= 16]
    return found[0] if found else None


def plan(problem: DropoutProblem, policy: Policy, config: Any = None) -> Executable:
    """Either operation: they are one."""
    _dropout = later.module("numbadnn.cpu.dropout.loops")
    CODE = later.names("numbadnn.cpu.lang.typed", "CODE")

    axes = _folded(problem)
    worth = [math.prod(n for n, _, _ in axes[d + 1 :]) for d in range(len(axes))]
    lane = _lane(axes)
    outer = [d for d in range(len(axes) - 1) if d != lane]
    runs, shape = math.prod(axes[d][0] for d in outer), np.array([axes[d][0] for d in outer], np.int64)
    strides = np.array([(*axes[d][1:], worth[d]) for d in outer], np.int64).reshape(len(outer), 3).T.copy()
    length, *last = axes[-1]
    fixed: tuple[Any, ...] = (problem.threshold, problem.scale, runs, shape, strides, length, np.array(last, np.int64))
    if lane is None:
        kernel, chunk, rows = kernel_of(_dropout.drop), _dropout.CHUNK, [_dropout.CHUNK + 8]
    else:
        kernel, chunk = kernel_of(_dropout.drop_across), _dropout.WIDTH
        rows = [_dropout.LENGTH + 8, _dropout.WIDTH]
        fixed += (np.array((axes[lane][0], worth[lane]), np.int64),)
    each = chunk * 8 + math.prod(rows) * 4
    work, codes = 16 * problem.source.size, np.array([CODE[problem.source.dtype]] * 2, np.int64)

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        source, seed, offset = inputs
        threads = thread_count(work)
        nbytes, words = threads * chunk * 8, threads * math.prod(rows) * 4
        memory = scratch(threads * each)
        buffers = memory[:nbytes].view(np.float64).reshape(threads, chunk)
        bits = memory[nbytes : nbytes + words].view(np.uint32).reshape(threads, *rows)
        ends = address(source), address(outputs[0]), codes, np.int64(seed), np.int64(offset)
        kernel(threads, *ends, *fixed, buffers, bits)

    most = most_scratch(work, lambda threads: threads * each)
    return Executable(run, determinism="gpu_to_gpu", facts={"runs": f"{runs} of {length}"}, scratch_bytes=most)


def supports(problem: DropoutProblem, policy: Policy) -> str:
    """Everything but cuDNN's random numbers."""
    return "" if problem.generator == "philox" else "cuDNN's own random numbers come from cuDNN alone"


def rank(problem: DropoutProblem) -> float:
    """Microseconds, roughly, at 4 GB/s."""
    return 20 + problem.bytes / 4e3


for _op in ("dropout", "dropout_grad"):
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
