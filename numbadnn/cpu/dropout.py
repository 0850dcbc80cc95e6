"""Dropout and its gradient on the CPU: the plan, which folds axes that follow each other in C order and in memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.cpu._parallel import address, kernel_of, scratch, thread_count
from numbadnn.ops.dropout import DropoutProblem
from numbadnn.problem import Policy
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


def plan(problem: DropoutProblem, policy: Policy, config: Any = None) -> Executable:
    """Either operation: they are one."""
    from numbadnn.cpu import _dropout
    from numbadnn.cpu._typed import CODE

    *outer, (length, *last) = _folded(problem)
    runs, shape = math.prod(a[0] for a in outer), np.array([a[0] for a in outer], np.int64)
    strides = np.array([a[1:] for a in outer], np.int64).reshape(len(outer), 2).T.copy()
    steps, codes = np.array(last, np.int64), np.array([CODE[problem.source.dtype]] * 2, np.int64)
    kernel, chunk = kernel_of(_dropout.drop), _dropout.CHUNK
    threshold, scale, work = problem.threshold, problem.scale, 16 * problem.source.size

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        source, seed, offset = inputs
        threads = thread_count(work)
        nbytes, words = threads * chunk * 8, threads * (chunk + 8) * 4
        memory = scratch(nbytes + words)
        buffers = memory[:nbytes].view(np.float64).reshape(threads, chunk)
        bits = memory[nbytes : nbytes + words].view(np.uint32).reshape(threads, chunk + 8)
        arguments = (codes, np.int64(seed), np.int64(offset), threshold, scale, runs, shape, strides, length, steps)
        kernel(threads, address(source), address(outputs[0]), *arguments, buffers, bits)

    return Executable(run, determinism="gpu_to_gpu", facts={"runs": f"{runs} of {length}"})


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
