"""bilinear_upsampling and its gradient on the CPU: tables of samples and weights, and how images are cut into jobs.

Where channels lie next to each other in memory (NHWC) a pixel is taken whole, by ``channels.py``; else each channel
is a plane of its own, by ``planes.py``. Nothing depends on the number of threads but which of them does a job.
"""

from __future__ import annotations

import functools
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
from numbadnn.problem import Policy, Spec
from numbadnn.problems.upsample import UpsampleProblem
from numbadnn.registry import COMPENSATED, Executable, Impl, register

#: fewer channels than these are planes: 3 are three times faster so
CHANNELS = 8
#: jobs that there are at least, if there are rows enough
JOBS = 16
#: the largest whole ratio whose gradient adds up along a row without tables, in one chain
WHOLE = 64


def forward_table(n: int, p: int, q: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """For each output its two samples and their weights, each (2, outputs)."""
    first, second, f = _sources(n, p, q)
    return np.stack([first, second]), np.stack([(p - f) / p, f / p]).astype(dtype)


def backward_table(n: int, p: int, q: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The outputs that take of each sample and their weights; those of sample i are starts[i] to starts[i + 1]."""
    first, second, f = _sources(n, p, q)
    outputs, both = np.arange(len(f)), f > 0
    samples = np.concatenate([first, second[both]])
    taken, weights = np.concatenate([outputs, outputs[both]]), np.concatenate([(p - f) / p, (f / p)[both]])
    order = np.lexsort((taken, samples))
    starts = np.concatenate([[0], np.cumsum(np.bincount(samples, minlength=n))]).astype(np.int64)
    return starts, taken[order], weights[order].astype(dtype)


def _sources(n: int, p: int, q: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``source`` of every output of an axis."""
    place = np.clip(np.arange(-(-n * p // q), dtype=np.int64) * q - (p - 1) // 2, 0, (n - 1) * p)
    first, f = np.divmod(place, p)
    return first, np.minimum(first + 1, n - 1), f


class _Tables:
    """The tables of both axes, made when they are first asked for: planning must not take what the call will."""

    def __init__(self, problem: UpsampleProblem, acc: str) -> None:
        self._problem, self._acc = problem, acc

    @functools.cached_property
    def all(self) -> tuple[np.ndarray, ...]:
        make = forward_table if self._problem.op == "bilinear_upsampling" else backward_table
        axes = zip(self._problem.x.shape[2:], self._problem.ratio, strict=True)
        return tuple(table for n, (p, q) in axes for table in make(n, p, q, self._acc))


def _lies_in_channels(problem: UpsampleProblem) -> bool:
    """Whether the channels of a pixel lie next to each other in both images, and enough of them to fill vectors."""
    return problem.x.shape[1] >= CHANNELS and problem.x.strides[1] == 1 == problem.y.strides[1]


def plan(problem: UpsampleProblem, policy: Policy, config: Any = None) -> Executable:
    """Tables, and the kernel of the layout and direction."""
    acc = "float64" if problem.x.dtype == "float64" else "float32"
    return (_plan_channels if _lies_in_channels(problem) else _plan_planes)(problem, acc, _Tables(problem, acc))


def _strides(spec: Spec, *axes: int) -> np.ndarray:
    return np.array([spec.strides[axis] for axis in axes], np.int64)


def _plan_channels(problem: UpsampleProblem, acc: str, tables: _Tables) -> Executable:
    _upsample_channels = later.module("numbadnn.cpu.upsample.channels")

    x, work = problem.x, 4 * problem.y.size
    forward = problem.op == "bilinear_upsampling"
    kernel = kernel_of(_upsample_channels.forward if forward else _upsample_channels.backward)
    like, past = np.empty(1, STORED[x.dtype]), past_caches(problem.bytes, pixel_bytes(problem.output))
    fixed = (
        np.array(x.shape[:2], np.int64), _strides(problem.inputs[0], 0, 2, 3), _strides(problem.output, 0, 2, 3),
    )  # fmt: skip

    def call(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        target = address(outputs[0])
        kernel(thread_count(work), address(inputs[0]), target, like, past and begins_line(target), *fixed, *tables.all)

    return Executable(call, determinism="gpu_to_gpu", facts={"kernel": "channels"}, summation=COMPENSATED)


def _plan_planes(problem: UpsampleProblem, acc: str, tables: _Tables) -> Executable:
    _upsample_planes = later.module("numbadnn.cpu.upsample.planes")

    x, y, source = problem.x, problem.y, problem.inputs[0]
    forward = problem.op == "bilinear_upsampling"
    planes = x.shape[0] * x.shape[1]
    bands = max(1, min(problem.output.shape[2] // 4, -(-JOBS // planes)))
    p, q = problem.ratio[1]
    whole = p if q == 1 and (forward or p <= WHOLE) else 0
    fixed = (
        np.empty(1, STORED[x.dtype]), np.array([planes, x.shape[1], bands, source.shape[3]], np.int64),
        _strides(source, 0, 1, 2, 3), _strides(problem.output, 0, 1, 2, 3),
    )  # fmt: skip
    past = past_caches(problem.bytes, problem.output.shape[3] * x.itemsize)
    kernel, work = kernel_of(_upsample_planes.forward if forward else _upsample_planes.backward), 4 * y.size
    length = -(-max(x.shape[3], y.shape[3]) // 16) * 16
    each = 6 * length * np.dtype(acc).itemsize

    def call(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(work)
        nbytes = threads * each
        rows = scratch(nbytes)[:nbytes].view(acc).reshape(threads, 6, length)
        target, phases = address(outputs[0]), (np.arange(whole + 1) / max(whole, 1)).astype(acc)
        kernel(
            threads, address(inputs[0]), target, *fixed, *tables.all, whole, phases, rows, past and begins_line(target)
        )

    most = most_scratch(work, lambda threads: threads * each)
    return Executable(
        call, determinism="gpu_to_gpu", facts={"kernel": "planes"}, summation=COMPENSATED, scratch_bytes=most
    )


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
