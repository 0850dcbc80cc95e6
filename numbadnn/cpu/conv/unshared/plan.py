"""Plans for ``unshared.py``: where a filter's terms lie, and what a thread gathers. Integers alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.cpu.conv.terms import named, scalars, tap_list
from numbadnn.cpu.conv.unshared.geometry import Geometry
from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import STORED, address, kernel_of, most_scratch, scratch, thread_count
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

#: images whose patches lie together in a buffer of the forward direction
IMAGES_TOGETHER = 32


def plan_unshared(problem: ConvProblem) -> Executable:
    """Any direction, by ``unshared.py``."""
    _unshared = later.module("numbadnn.cpu.conv.unshared.unshared")
    VECTOR_BYTES = later.names("numbadnn.cpu.lang.vector", "VECTOR_BYTES")

    x, w, y, G = problem.x, problem.w, problem.y, problem.groups
    (N, _, H, W), (_, K, P, Q) = x.shape, y.shape
    C, real = w.shape[3], np.float64 if x.dtype == "float64" else np.float32
    like, slack = np.empty(1, STORED[x.dtype]), VECTOR_BYTES // real().itemsize
    taps = np.array(tap_list(problem), np.int64)
    channel = np.repeat(np.arange(C, dtype=np.int64), len(taps))
    # channel, row and column it adds, offset in the filter
    terms = np.column_stack([channel, np.tile(taps[:, :2], (C, 1)), channel * w.strides[3] + np.tile(taps[:, 2], C)])
    steps = set(np.diff(terms[:, 3]).tolist()) or {1}
    pitch = -(-len(terms) // slack) * slack
    geo = Geometry(
        N=N,
        G=G,
        C=C,
        K=K // G,
        terms=len(terms),
        pitch=pitch,
        **named("", "HWPQ", (H, W, P, Q)),
        **named("step_", "hw", problem.stride),
        **named("x_", "nchw", x.strides),
        **named("y_", "nkhw", y.strides),
        **named("w_", "khw", w.strides[:3]),
        w_step=steps.pop() if len(steps) == 1 else 0,
    )
    body = {"forward": _unshared.forward, "grad_inputs": _unshared.inputs, "grad_weights": _unshared.filters}
    kernel, work, direction = kernel_of(body[problem.direction]), problem.flops, problem.direction
    alpha, beta = scalars(problem)
    order = [("x", "w", "y").index(name) for name in (*problem.input_names, problem.output_name)]

    def shares(threads: int) -> tuple[int, int]:
        """Images or channels that a thread takes together, and elements that it works in."""
        together = N if direction == "grad_weights" else min(N, IMAGES_TOGETHER)
        if direction == "grad_inputs":  # channels of a job: such that there are as many jobs as threads
            together = -(-C // min(C, max(1, -(-threads // (N * G)))))
        size = (together * H * W + 2 * pitch if direction == "grad_inputs" else (together + 1) * pitch) + 2 * slack
        return together, -(-size // 16) * 16

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(work)
        together, size = shares(threads)
        addresses = [0, 0, 0]
        for which, array in zip(order, (*inputs, *outputs), strict=True):
            addresses[which] = address(array)
        nbytes = threads * size * real().itemsize
        planes = scratch(nbytes)[:nbytes]
        rows = planes.view(real).reshape(threads, size)
        kernel(threads, *addresses, like, geo, terms, rows, address(planes), together, alpha, beta)

    most = most_scratch(work, lambda threads: threads * shares(threads)[1] * real().itemsize)
    return Executable(
        run, determinism="gpu_to_gpu", facts={"kernel": "unshared"}, summation=SEQUENCE, scratch_bytes=most
    )
