"""``numba.corrmm``: convolution as a matrix product over a Toeplitz matrix (im2col), one group of images after another.

The matrix of an image has a row for each channel and tap, a column for each output position. It is written for
``images`` images at a time into one buffer that all groups of images share, never for the whole batch (of more than one
image). Forward: y = W T, by ``gemm``. Gradient of the image: T = W' y, then each pixel adds its own elements of T
(col2im). Gradient of the filters: y T' summed over images, those of a group beside each other, then group upon group.
Unshared filters are a product for each position.

Extra memory: images * matrix_bytes, and for the filters' gradient images (unshared: 1) * the filters in the
accumulator's type; operands whose strides do not fold to a matrix are copied whole. It stays within the workspace
limit.
"""

from __future__ import annotations

import math
from typing import Any

from numbadnn.kernels.build.support import LIMIT32, device_reason, reach_reason
from numbadnn.kernels.conv.corrmm import steps
from numbadnn.kernels.conv.corrmm.matrices import (
    ENOUGH_BYTES,
    CorrmmConfig,
    Matrices,
    heuristic,
    padded,
    space,
    workspace_bytes,
)
from numbadnn.kernels.conv.corrmm.steps import kernels
from numbadnn.problem import Policy
from numbadnn.problems.conv import OPERATIONS, ConvProblem
from numbadnn.problems.conv_routes import routed
from numbadnn.registry import SEQUENCE, Executable, Impl, register

#: rows and columns of a product's tile, and how many of them run at a time, as an H200 has it
TILE, MULTIPROCESSORS = 64, 132

__all__ = ["ENOUGH_BYTES", "CorrmmConfig", "heuristic", "kernels", "space", "workspace_bytes"]


def _supports(problem: ConvProblem, policy: Policy) -> str:
    m = Matrices(problem)
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision in ("float32", "float64") and policy.precision != m.held:
        return f"accumulates {problem.x.dtype} in {m.held}, not in {policy.precision}"
    if max(m.rows, m.columns, m.K, math.prod(problem.x.shape[2:]), m.N) >= LIMIT32:
        return "needs matrices of fewer than 2**31 rows and columns"
    if reason := reach_reason(problem):
        return reason
    if problem.unshared and m.columns > 65535:
        return "needs at most 65535 output positions where filters are unshared"
    if m.workspace(1) > policy.workspace_limit:
        return f"needs {m.workspace(1)} bytes for one image, the workspace limit is {policy.workspace_limit}"
    return device_reason(policy)


def _plan(problem: ConvProblem, policy: Policy, config: CorrmmConfig | None = None) -> Executable:
    m = Matrices(problem)
    config = config or heuristic(problem, policy.workspace_limit)
    partial_at = padded(config.images * m.matrix_bytes)
    copies_at = partial_at + padded((1 if problem.unshared else config.images) * m.partial_bytes)
    before, after, places = steps.copies(m, copies_at, policy.device)
    make = {
        "forward": steps.forward,
        "grad_inputs": steps.grad_inputs,
        "grad_weights": steps.grad_weights,
    }[problem.direction]
    inner, arithmetic = make(m, policy, config, partial_at)
    names = problem.input_names, problem.output_name

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        at = {names[0][0]: inputs[0], names[0][1]: inputs[1], names[1]: outputs[0]}
        for step in before:
            step(stream, at["x"], at["w"], at["y"], workspace)
        w, y = (workspace + places[n] if n in places else at[n] for n in "wy")
        for step in inner:
            step(stream, at["x"], w, y, workspace)
        for step in after:
            step(stream, at["x"], at["w"], at["y"], workspace)

    facts = {"images": config.images, "matrix_bytes": m.matrix_bytes, "copied": sorted(places), "config": config}

    def direct(stream: int, first: int, second: int, out: int, workspace: int) -> None:
        run((first, second), (out,), workspace, stream)

    return Executable(run, m.workspace(config.images), arithmetic, "run_to_run", facts, direct, SEQUENCE)


def _rank(problem: ConvProblem) -> float:
    """Microseconds, as 300 layers on an H200 have them: elements of the matrices, tiles of the products, launches."""
    m = Matrices(problem)
    images = min(m.N, heuristic(problem).images)
    if problem.unshared or problem.op == "causal_conv1d":
        return _special(problem, m, images)
    launches, rows = -(-m.N // images), m.rows // m.G
    high, wide, deep = {
        "forward": (m.K // m.G, m.columns, rows),
        "grad_inputs": (rows, m.columns, m.K // m.G),
        "grad_weights": (m.K // m.G, rows, m.columns),
    }[problem.direction]
    waves = max(1.0, -(-high // TILE) * -(-wide // TILE) * images / MULTIPROCESSORS)  # a product a group
    multiplied = 2 * launches * m.G * waves * MULTIPROCESSORS * TILE * TILE * (-(-deep // 32) * 32)
    elements = m.N * m.rows * m.columns
    moved = 13.5 * elements / 1e6 + (4 * m.N * m.partial_bytes + 2 * m.copied_bytes) / 1e6
    if problem.direction == "grad_inputs":  # a pixel looks for every tap, a warp of channels-last ones has 32 channels
        channels = max(m.C, 32) if m.channels_last else m.C
        moved = 7 * elements / 1e6 + m.N * channels * math.prod(problem.x.shape[2:]) * m.area / 1.5e5
    halves = 2.5e8 if rows % 8 == 0 else 3e7  # rows that begin anywhere no copy engine reads
    return 4 + launches * (9 + 0.6 * m.G) + moved + multiplied / (halves if problem.x.itemsize == 2 else 2.6e7)


def _special(problem: ConvProblem, m: Matrices, images: int) -> float:
    """The same of unshared filters, a product for each position, and of lines, which have few filters."""
    speed = {"float32": 2.2e7, "float64": 2.5e7}.get(problem.x.dtype, 2.0e8)
    launches = m.N * min(m.G, m.N) / images + 2
    time_us = 8 + 4 * launches + 3 * m.N * m.matrix_bytes / 3.0e6 + problem.flops / speed
    if problem.unshared:
        return 13 * time_us  # 9168 us where this says 708 (H200)
    return 4 * time_us  # 179, 251, 398 us where this said 81, 145, 133


_CORRMM = [
    Impl(_op, "numba", "numba.corrmm", _supports, _plan, _rank, "tensor_core", "run_to_run", host_us=11.0)
    for _op in OPERATIONS
]
for _impl in [*_CORRMM, *routed(_CORRMM)]:
    register(_impl)
