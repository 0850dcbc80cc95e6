"""bilinear_upsampling and its gradient on the CPU: tables of samples and weights, and how images are cut into jobs.

Channels that lie closest in memory (NHWC) are taken in runs; else each channel is a plane of its own. Nothing depends on
the number of threads but which of them does a job.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.cpu._parallel import STORED, address, kernel_of, scratch, thread_count
from numbadnn.ops.upsample import UpsampleProblem, source
from numbadnn.problem import Policy, Spec
from numbadnn.registry import Executable, Impl, register

#: values of a row held in scratch, about: four rows of them stay in the second-level cache
ROW = 16384
#: jobs that there are at least, if there are rows enough
JOBS = 16


def forward_table(n: int, p: int, q: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """For each output its two samples and their weights, each (2, outputs)."""
    taps = [source(o, n, p, q) for o in range(-(-n * p // q))]
    samples = np.array([[i for i, _, _ in taps], [j for _, j, _ in taps]], np.int64)
    weights = np.array([[(p - f) / p for _, _, f in taps], [f / p for _, _, f in taps]], dtype)
    return samples, weights


def backward_table(n: int, p: int, q: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The outputs that take of each sample and their weights; those of sample i are starts[i] to starts[i + 1]."""
    found: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    for o in range(-(-n * p // q)):
        i, j, f = source(o, n, p, q)
        found[i].append((o, (p - f) / p))
        if f:
            found[j].append((o, f / p))
    starts = np.cumsum([0, *map(len, found)], dtype=np.int64)
    flat = [entry for entries in found for entry in entries] or [(0, 0.0)]
    return starts, np.array([o for o, _ in flat], np.int64), np.array([w for _, w in flat], dtype)


def _cut(problem: UpsampleProblem) -> tuple[bool, int, int]:
    """(channels are taken in runs, length of a run, number of runs)."""
    c, width = problem.x.shape[1], max(problem.x.shape[3], problem.y.shape[3])
    reach = [abs(s.strides[1]) - abs(s.strides[3]) for s in (problem.x, problem.y)]
    if c == 1 or sum(reach) >= 0:
        return False, 1, 1
    run = min(c, max(16, ROW // width))
    return True, run, -(-c // run)


def _strides(spec: Spec, runs: bool) -> np.ndarray:
    """Image, plane, row, column, value."""
    n, c, h, w = spec.strides
    return np.array([n, 0 if runs else c, h, w, c if runs else 0], np.int64)


def plan(problem: UpsampleProblem, policy: Policy, config: Any = None) -> Executable:
    """Tables, jobs, and the kernel of the direction."""
    from numbadnn.cpu import _upsample

    forward = problem.op == "bilinear_upsampling"
    x, y, acc = problem.x, problem.y, "float64" if problem.x.dtype == "float64" else "float32"
    runs, run, chunks = _cut(problem)
    planes, channels = (x.shape[0], 1) if runs else (x.shape[0] * x.shape[1], x.shape[1])
    height = problem.output.shape[2]
    bands = max(1, min(height // 4, -(-JOBS // (planes * chunks))))
    counts = np.array([planes, channels, chunks, bands, problem.inputs[0].shape[3]], np.int64)
    last = (x.shape[1] if runs else 1) - (chunks - 1) * run
    make = forward_table if forward else backward_table
    axes = zip(x.shape[2:], problem.ratio, strict=True)
    tables = tuple(table for n, (p, q) in axes for table in make(n, p, q, acc))
    p, q = problem.ratio[1]
    whole, phases = (p if q == 1 else 0), (np.arange(p + 1) / p).astype(acc)
    a, b = _strides(problem.inputs[0], runs), _strides(problem.output, runs)
    like = np.empty(1, STORED[x.dtype])
    length = -(-max(x.shape[3], y.shape[3]) * run // 16) * 16
    kernel = kernel_of(_upsample.forward if forward else _upsample.backward)
    work = 4 * y.size

    def call(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(work)
        nbytes = threads * 4 * length * np.dtype(acc).itemsize
        rows = scratch(nbytes)[:nbytes].view(acc).reshape(threads, 4, length)
        kernel(
            threads,
            address(inputs[0]),
            address(outputs[0]),
            like,
            counts,
            run,
            last,
            a,
            b,
            *tables,
            whole,
            phases,
            rows,
        )

    return Executable(call, determinism="gpu_to_gpu", facts={"channels a run": run if runs else 1})


def supports(problem: UpsampleProblem, policy: Policy) -> str:
    """Everything: sums are kept in float32, float64 for float64 data."""
    return ""


def rank(problem: UpsampleProblem) -> float:
    """Microseconds, roughly, at 4 GB/s."""
    return 10 + problem.bytes / 4e3


for _op in ("bilinear_upsampling", "bilinear_upsampling_grad"):
    register(
        Impl(_op, "cpu", "cpu.loops", supports, plan, rank, arithmetic="ieee", determinism="gpu_to_gpu", complete=True)
    )
