"""Plans for ``unshared.py``: where a filter's terms lie, and what a thread gathers. Integers alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.cpu.conv.terms import named, scalars, tap_list
from numbadnn.cpu.conv.unshared.geometry import Geometry
from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import STORED, address, kernel_of, most_scratch, scratch, thread_count
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

#: images that a filter is read once for
IMAGES_TOGETHER = 32
#: bytes of the images' gradient that a thread adds to, of which a position meets a few lines, and of the filters that it
#: holds for a position, about
PLANES, ROWS = 1 << 20, 1 << 16


def _even(whole: int, most: int) -> int:
    """What shares of the same size have at most, where ``most`` may be in one."""
    return -(-whole // -(-whole // max(1, min(whole, most))))


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
    rows, columns, within = (np.tile(taps[:, i], C) for i in range(3))
    # channel, row and column it adds, offset in the filter, in planes of an image and in x
    in_x = channel * x.strides[1] + rows * x.strides[2] + columns * x.strides[3]
    offsets = channel * w.strides[3] + within, (channel * H + rows) * W + columns, in_x
    terms = np.column_stack([channel, rows, columns, *offsets])
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

    def shares(threads: int) -> tuple[int, int, int]:
        """Images and channels that a thread takes together, and elements that it works in."""
        images, channels = N if direction == "grad_weights" else min(N, IMAGES_TOGETHER), C
        together = 4 if direction == "grad_weights" else 2  # filters at a time
        size = (images + together) * pitch + together * images
        if direction == "grad_inputs":
            planes, rows = PLANES // (H * W * real().itemsize), ROWS // (geo.K * len(taps) * real().itemsize)
            images = _even(N, min(images, math.isqrt(planes)))  # more read filters less often, more channels y
            channels = _even(C, min(rows, planes // images))
            channels = min(channels, -(-C // -(-threads // (G * -(-N // images)))))  # as many jobs as threads
            images = min(images, -(-N // -(-threads // (G * -(-C // channels)))))
            row = -(-channels * len(taps) // slack) * slack
            size = images * channels * H * W + (geo.K + 4) * row + images * geo.K
        return images, channels, -(-(size + 2 * slack) // 16) * 16

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(work)
        images, channels, size = shares(threads)
        addresses = [0, 0, 0]
        for which, array in zip(order, (*inputs, *outputs), strict=True):
            addresses[which] = address(array)
        nbytes = threads * size * real().itemsize
        planes = scratch(nbytes)[:nbytes]
        planes_of = planes.view(real).reshape(threads, size)
        kernel(threads, *addresses, like, geo, terms, planes_of, address(planes), images, channels, alpha, beta)

    most = most_scratch(work, lambda threads: threads * shares(threads)[2] * real().itemsize)
    return Executable(
        run, determinism="gpu_to_gpu", facts={"kernel": "unshared"}, summation=SEQUENCE, scratch_bytes=most
    )
