"""``numba.depthwise``: convolutions with one channel a group, at the speed of their bytes.

Each thread slides down a strip of rows with a small tile of columns (NCHW) or channels (NHWC) in registers; the device
code is in ``device/``. Taps, stride, left padding and tile are frozen into a kernel, all else is an argument. No
atomics: the gradient of the filters is two sums in a fixed order, and its bits depend on the problem alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.plans import in_turn, one_launch
from numbadnn.kernels.build.support import LIMIT32, accumulator_of, device_reason
from numbadnn.kernels.conv.depthwise.config import (
    FINISHERS,
    THREADS,
    DepthwiseConfig,
    channels_last,
    complete,
    heuristic,
    space,
    unit,
)
from numbadnn.kernels.conv.parts import in_parts
from numbadnn.problem import ITEMSIZE, Policy
from numbadnn.problems.conv import OPERATIONS, ConvProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register

MOST_TAPS = 7  # along an axis
MOST_OF_ROW = 31  # of a filter of one row, forwards: a thread's sums are few


def kernel(direction: str, dtype: str, acc: str, config: DepthwiseConfig, adds: bool = False) -> Kernel:
    """The kernel of one direction; strips and splits are arguments and no part of it.

    ``adds``: whether beta is not 0, which the images' gradient has to know.
    """
    real = "f64" if acc == "float64" else "f32"
    of_y, written = ("i64*2 y_planes", "i32*2 y_strides"), direction != "grad_weights"
    parameters = Arguments(
        *("ptr:3", f"i32 {'count' if written else 'items'} multiplier groups strips rows"),
        *("i32 C" if direction == "grad_inputs" else "i32 K", "i32*2 image output", "i32 top"),
        *("i64*2 x_planes", "i32*2 x_strides", *(("i64 w_start", "i64*3 w_strides") if written else ())),
        *(*of_y, *((f"{real} alpha beta",) if written else ())),
    )
    module = {"forward": "kernels.forward", "grad_inputs": "kernels.inputs", "grad_weights": "weights.weights"}
    made_by = f"conv.depthwise.device.{module[direction]}"
    # how many rows and splits is an argument of the kernel
    arguments = (dtype, acc, replace(config, rows=1, splits=1), *((adds,) if direction == "grad_inputs" else ()))
    return Kernel.of(f"depthwise_{direction}", made_by, arguments, parameters, THREADS, config.resident)


def finish_kernel(dtype: str, acc: str, taps: tuple[int, int]) -> Kernel:
    """The second sum of the weights' gradient."""
    real = "f64" if acc == "float64" else "f32"
    made_by = "conv.depthwise.device.weights.finish"
    parameters = Arguments(
        *("ptr:4", "i32 count splits K", "i64 w_start", "i64*3 w_strides", f"{real} alpha beta", "i32 multiplier"),
        *("i32*5 sizes", "i32*2 corner stride", "i64 x_plane", "i64*3 x_strides", "i64 y_plane", "i64*3 y_strides"),
    )
    return Kernel.of("depthwise_finish", made_by, (dtype, acc, *taps), parameters, THREADS)


def _supports(problem: ConvProblem, policy: Policy) -> str:
    if problem.axes != 2 or problem.unshared:
        return "needs two spatial axes and shared filters"
    if problem.w.shape[1] != 1 or problem.groups != problem.x.shape[1]:
        return "needs as many groups as channels"
    if any(d != 1 and n > 1 for d, n in zip(problem.dilation, problem.taps, strict=True)):
        return "has no kernel for dilated filters"
    of_row = problem.taps[0] == 1 and problem.direction == "forward" and not OPERATIONS[problem.op].arrangement
    most = MOST_OF_ROW if of_row else MOST_TAPS  # causal lines have kernels of their own
    if max(problem.stride) > 2 or max(problem.taps) > most:
        return f"needs strides of 1 or 2 and at most {MOST_TAPS} taps an axis, {MOST_OF_ROW} of a row forwards"
    if not (unit(problem, 3) or unit(problem, 1)):
        return "needs neighbouring columns or neighbouring channels next to each other in memory"
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision == "float32" and problem.x.dtype == "float64":
        return "accumulates float64 data in float64, not in float32"
    rows = [abs(s.strides[2]) * s.shape[2] + abs(s.strides[3]) * s.shape[3] for s in (problem.x, problem.y)]
    if max(problem.x.size, problem.y.size, *rows) >= LIMIT32:
        return "needs images of fewer than 2**31 elements"
    if problem.direction == "grad_weights":
        needed = table_bytes(problem, accumulator_of(problem.x.dtype, policy), heuristic(problem).splits)
        if needed > policy.workspace_limit:
            return f"needs {needed} bytes, the workspace limit is {policy.workspace_limit}"
    return device_reason(policy)


def table_bytes(problem: ConvProblem, acc: str, splits: int) -> int:
    """The sums of each split for every tap of the filters."""
    return splits * problem.w.size * ITEMSIZE[acc]


def _flipped(problem: ConvProblem) -> tuple[int, tuple[int, int, int]]:
    """Where the first tap lies, and the filters' strides along filters, rows and columns."""
    k, _, *taps = problem.w.strides
    if not problem.flip:
        return 0, (k, taps[0], taps[1])
    start = sum((n - 1) * s for n, s in zip(problem.taps, taps, strict=True))
    return start, (k, -taps[0], -taps[1])


def _plan(problem: ConvProblem, policy: Policy, config: DepthwiseConfig | None = None) -> Executable:
    config = config or heuristic(problem)
    acc, dtype = accumulator_of(problem.x.dtype, policy), problem.x.dtype
    if problem.direction == "grad_weights":
        return _plan_weights(problem, policy, config, acc)
    chosen = kernel(problem.direction, dtype, acc, config, problem.beta != 0)
    N, K, P, Q = problem.y.shape
    _, C, H, W = problem.x.shape
    forward = problem.direction == "forward"
    (channels, steps, width) = (K, P, Q) if forward else (C, complete(problem), W)
    groups, strips = -(-width // config.tile.columns), -(-steps // config.rows)
    count = N * (channels // config.tile.channels) * groups * strips
    start, w_strides = _flipped(problem)
    tile, scaled = {"count": count, "groups": groups, "strips": strips}, {"alpha": problem.alpha, "beta": problem.beta}
    scalars = chosen.values(_sizes(problem, config), **tile, w_start=start, w_strides=w_strides, **scaled)
    launch = chosen.prepare(policy.device, blocks(count, THREADS), (THREADS, 1, 1), scalars)
    return one_launch(chosen, launch, config, summation=SEQUENCE)


def _sizes(problem: ConvProblem, config: DepthwiseConfig) -> dict[str, Any]:
    """What the kernels of all directions take of the problem."""
    x, y = problem.x, problem.y
    return {
        "multiplier": y.shape[1] // x.shape[1],
        "rows": config.rows,
        "K": y.shape[1],
        "C": x.shape[1],
        "image": x.shape[2:],
        "output": y.shape[2:],
        "top": problem.padding[0][0],
        "x_planes": x.strides[:2],
        "x_strides": x.strides[2:],
        "y_planes": y.strides[:2],
        "y_strides": y.strides[2:],
    }


def _plan_weights(problem: ConvProblem, policy: Policy, config: DepthwiseConfig, acc: str) -> Executable:
    """Two launches; the table between them is the workspace."""
    N, K, P, Q = problem.y.shape
    _, C, H, W = problem.x.shape
    groups, strips = -(-Q // config.tile.columns), -(-P // config.rows)
    chosen = kernel(problem.direction, problem.x.dtype, acc, config)
    scalars = chosen.values(_sizes(problem, config), items=N * groups * strips, groups=groups, strips=strips)
    grid = (-(-(K // config.tile.channels) // config.lanes), config.splits, 1)
    first = chosen.prepare(policy.device, grid, (THREADS, 1, 1), scalars)
    return with_finish(problem, policy, first, acc, config.splits, {"kernel": chosen.name, "config": config})


def with_finish(
    problem: ConvProblem, policy: Policy, first: Any, acc: str, splits: int, facts: dict[str, Any]
) -> Executable:
    """A gradient of filters: ``first(stream, x, y, table)``, then the sums over the table's splits into the filters."""
    K, _, R, S = problem.w.shape
    N, _, P, Q = problem.y.shape
    count = K * R * S
    start, w_strides = _flipped(problem)
    finish, x, y = finish_kernel(problem.x.dtype, acc, (R, S)), problem.x.strides, problem.y.strides
    scalars = finish.values(
        count=count,
        splits=splits,
        K=K,
        w_start=start,
        w_strides=w_strides,
        alpha=problem.alpha,
        beta=problem.beta,
        multiplier=K // problem.groups,
        sizes=(*problem.x.shape[2:], N, P, Q),
        corner=tuple(low for low, _ in problem.padding),
        stride=problem.stride,
        x_plane=x[1],
        x_strides=(x[0], *x[2:]),
        y_plane=y[1],
        y_strides=(y[0], *y[2:]),
    )
    second = finish.prepare(policy.device, blocks(count, THREADS // FINISHERS), (THREADS, 1, 1), scalars)

    def direct(stream: int, x: int, y: int, w: int, workspace: int) -> None:
        first(stream, x, y, workspace)
        second(stream, workspace, w, x, y)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        direct(stream, inputs[0], inputs[1], outputs[0], workspace)

    added = in_turn(N * P * Q, splits)
    return Executable(run, table_bytes(problem, acc, splits), "ieee", "gpu_to_gpu", facts, direct, added)


def _space(problem: ConvProblem, policy: Policy) -> list[DepthwiseConfig]:
    return space(problem)


def _rank(problem: ConvProblem) -> float:
    """Microseconds as layers and random problems on an H200 have them: launches, bytes or sums, the taps that a thread adds.

    Rows that are whole vectors of 16 bytes are read two to three times as fast as others, and so is a filter a channel.
    """
    taps, filters, last = math.prod(problem.taps), problem.w.shape[0] // problem.groups, channels_last(problem)
    whole = filters == 1 and problem.x.shape[-1] * problem.x.itemsize % 16 == 0
    if problem.direction == "grad_weights":  # two launches
        planes = 0 if last else problem.x.shape[0] * problem.w.shape[0]
        rate, memory = (1e7, 3.5e6) if whole and not last else (4.5e6, 1.6e6)
        return 9 + (0.25 + planes / 3e4) * taps + max(problem.flops / rate, problem.bytes / memory)
    if OPERATIONS[problem.op].arrangement:  # one row: a strip ends where it begins
        filled = 1.6e6 if filters > 1 else 2.2e6
        return 2 + problem.bytes / (filled if problem.x.itemsize > 2 else 0.8 * filled)
    serial = 0.03 * taps + (0.1 * taps * (filters - 1) if problem.direction == "grad_inputs" else 0.0)
    rate = 1.5e7 if whole else 1.1e7 if last else 6.5e6
    return 6 + serial + max(problem.flops / rate, problem.bytes / (3e6 if filters == 1 else 1.6e6))


def kernels() -> Iterator[Kernel]:
    """Each direction, both layouts, 3x3 and 5x5, strides 1 and 2."""
    for op, dtype, layout, taps, stride in (
        ("conv2d", "float32", "", 3, 1),
        ("conv2d_grad_wrt_inputs", "float16", ":nhwc", 5, 2),
        ("conv2d_grad_wrt_weights", "float32", "", 3, 1),
        ("conv2d_grad_wrt_weights", "bfloat16", ":nhwc", 3, 2),
    ):
        line = f"{op} x={dtype}:2x64x32x32{layout} w={dtype}:64x1x{taps}x{taps} groups=64 stride={stride},{stride}"
        problem = ConvProblem.parse(f"{line} pad={taps // 2},{taps // 2},{taps // 2},{taps // 2}")
        yield kernel(problem.direction, dtype, "float64" if dtype == "float64" else "float32", heuristic(problem))
    yield finish_kernel("float32", "float32", (3, 3))


for _op, _operation in OPERATIONS.items():
    if _operation.axes == 2:
        _how = ("numba", "numba.depthwise", _supports, _plan, _rank, "ieee", "gpu_to_gpu")
        register(in_parts(Impl(_op, *_how, space=_space)))
