"""``numba.implicit_gemm`` for the filters: each block sums some of the pixels, and a second kernel adds these sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, sequence
from numbadnn.kernels.build.plans import around, in_turn
from numbadnn.kernels.build.support import LIMIT32, LONGEST_MMA
from numbadnn.kernels.conv.implicit.walk import (
    Boxes,
    Window,
    axes_of,
    axes_reason,
    filter_boxes,
    filter_steps,
    image_reason,
    rows_step,
    window,
)
from numbadnn.kernels.conv.implicit.weights_config import WIDE, shared_bytes
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable

MULTIPROCESSORS = 132
SHARED_BYTES = 227 * 1024
#: what the kernel is told of each spatial axis
WALK = ("positions", "move", "lower", "taps", "dilation")


@dataclass(frozen=True, slots=True)
class WeightsConfig:
    """A tile of ``m`` taps and channels (128, 256) by ``n`` filters (64, 128, 256); pixels shared by ``splits``.

    ``terms``: pixels a stage (64, 128); ``y_boxes``: y's pixels are one axis of memory. ``direct``:
    the copy engine writes the filters, and there are no partial sums.
    """

    m: int
    n: int
    stages: int
    splits: int
    terms: int = 64
    y_boxes: bool = False
    direct: bool = False


def chunks_of(problem: ConvProblem) -> int:
    """Chunks of 64 channels a tap and group."""
    return -(-problem.w.shape[1] // 64)


def rows_of(problem: ConvProblem) -> int:
    """Rows of a group's partial sums: taps times channels, these in whole chunks."""
    return math.prod(problem.taps) * chunks_of(problem) * 64


def steps_of(problem: ConvProblem, terms: int = 64) -> int:
    """Pixels of y, ``terms`` at a time."""
    return -(-problem.y.size // problem.y.shape[1] // terms)


def _tiles(problem: ConvProblem, m: int, n: int) -> tuple[int, int, int]:
    return -(-rows_of(problem) // m), -(-problem.y.shape[1] // problem.groups // n), problem.groups


def partial_bytes(problem: ConvProblem) -> int:
    """Those of one split."""
    return 4 * rows_of(problem) * problem.y.shape[1]


#: microseconds that 64 pixels of a tile were measured to take on an H200, and how many pixels a stage it is fastest with
STEPS = {
    (128, 64): (0.26, 128),
    (128, 128): (0.47, 128),
    (256, 64): (0.6, 64),
    (128, 256): (0.8, 64),
    (256, 128): (0.8, 64),
}


def _microseconds(problem: ConvProblem, m: int, n: int, splits: int) -> float:
    """An estimate: steps, the writing of tiles, and the second kernel where there is one."""
    waves = -(-math.prod(_tiles(problem, m, n)) * splits // MULTIPROCESSORS)
    time_us = waves * (math.ceil(steps_of(problem) / splits) * STEPS[m, n][0] + 1.1 + 7.3e-5 * m * n)
    moved = (problem.x.size + problem.y.size) * problem.x.itemsize / 4.0e6
    adding = 0.0 if splits == 1 and can_write(problem) else 2.0 + partial_bytes(problem) * splits / 3.0e6
    return max(time_us, moved) + adding


def _candidates(problem: ConvProblem, limit: int) -> Iterator[tuple[int, int, int]]:
    steps, width = steps_of(problem), problem.y.shape[1] // problem.groups
    fewest = max(1, min(-(-64 * steps // LONGEST_MMA), limit // (2 * partial_bytes(problem))))
    for m, n in STEPS:
        if n > 64 and n >= 2 * width:
            continue
        tiles = math.prod(_tiles(problem, m, n))
        filling = {max(1, waves * MULTIPROCESSORS // tiles) for waves in (1, 2, 3)}
        for splits in sorted({fewest, 1, 2, *filling}):
            if fewest <= splits <= max(1, steps // 4) and splits * partial_bytes(problem) <= limit:
                yield m, n, splits


def space(problem: ConvProblem, limit: int = 1 << 30) -> list[WeightsConfig]:
    """Every configuration worth timing, the heuristic's first."""
    found = sorted(_candidates(problem, limit), key=lambda c: _microseconds(problem, *c))
    best = [config_of(problem, *c, STEPS[c[0], c[1]][1]) for c in found[:6]]
    return [*best, *(config_of(problem, *c, 192 - STEPS[c[0], c[1]][1]) for c in found[:2])]


def config_of(problem: ConvProblem, m: int, n: int, splits: int, terms: int = 64) -> WeightsConfig:
    """With as many stages as shared memory holds, eight at most."""
    direct = splits == 1 and can_write(problem)
    stages = min(8, (SHARED_BYTES - 1024 - (32768 if direct else 0)) // ((m + n) * terms * 2 + 16))
    return WeightsConfig(m, n, stages, splits, terms, rows_step(problem.y) > 0, direct)


def can_write(problem: ConvProblem) -> bool:
    """Whether the copy engine can write the filters."""
    width = problem.y.shape[1] // problem.groups
    return not problem.beta and filter_steps(problem.w) is not None and (problem.groups == 1 or width % 64 == 0)


# ---- kernels


def weights_kernel(dtype: str, axes: int, config: WeightsConfig) -> Kernel:
    """The kernel of one configuration, for two or three spatial axes."""
    arguments = (dtype, axes, replace(config, splits=1))  # how many is an argument
    made_by = "conv.implicit.device.weights.weights"
    return Kernel.of("implicit_weights", made_by, arguments, _taken(axes, config), 384)


def _taken(axes: int, config: WeightsConfig) -> Arguments:
    return Arguments(
        *("map:2", "map" if config.direct else "ptr", "i32*3 tiles", "i32 count splits steps chunks rows depth width"),
        *(f"i32*{axes} {' '.join(WALK)}", "i64 split_stride", "i32 tap_start tap_step", "f32 alpha"),
    )


def total_kernel(dtype: str, axes: int, high: int, lanes: int, vector: bool) -> Kernel:
    """The sum over splits, ``high`` channels a block; ``lanes`` threads share the splits of an element."""
    parameters = f"ptr ptr i32 i64 i32:4 i32*{axes} i32 i32 i64*{axes + 2} f32"
    made_by, arguments = "conv.implicit.device.weights.total", (dtype, axes, high, lanes, vector)
    return Kernel.of("implicit_weights_total", made_by, arguments, parameters, 4 * high * lanes)


def kernels() -> Iterator[Kernel]:
    """Those that every architecture has the instructions for."""
    yield total_kernel("float16", 2, 64, 4, True)
    yield total_kernel("bfloat16", 3, 64, 4, True)


def hopper_kernels() -> Iterator[Kernel]:
    """Those of sm_90a."""
    yield weights_kernel("float16", 2, WeightsConfig(128, 128, 3, 1, 128, True))
    yield weights_kernel("float16", 2, WeightsConfig(128, 256, 3, 1, 64, True, True))
    yield weights_kernel("bfloat16", 3, WeightsConfig(128, 128, 3, 1, 128, True, True))
    yield weights_kernel("float16", 3, WeightsConfig(256, 64, 5, 1, 64, False))


# ---- plans


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can; what all directions ask for is asked elsewhere."""
    if problem.x.dtype == "float32":
        return "multiplies TF32 packed along the terms only, and these are pixels"
    reason = image_reason(problem.x, "x") or image_reason(problem.y, "y") or axes_reason(axes_of(problem, True))
    if reason:
        return reason
    if (
        problem.groups > 1 and problem.w.shape[1] % 64
    ):  # 8 channels a group: an illegal instruction on an H200, not explained
        return "needs a multiple of 64 channels a group, or one group"
    if (problem.y.shape[1] // problem.groups) % 4:
        return "needs a multiple of 4 filters a group"
    if max(problem.x.size, rows_of(problem) * problem.y.shape[1], problem.y.size) >= LIMIT32:
        return "needs operands of fewer than 2**31 elements"
    if partial_bytes(problem) > policy.workspace_limit:
        return f"needs {partial_bytes(problem)} bytes for sums, the workspace limit is {policy.workspace_limit}"
    return ""


def maps(problem: ConvProblem, config: WeightsConfig) -> tuple[Window | Boxes, ...]:
    """What the copy engine is told of x, of y and, where it writes them, of the filters."""
    out: tuple[Boxes, ...] = ()
    if config.direct and (steps := filter_steps(problem.w)):
        out = (filter_boxes(problem.w, steps, (64, 64)),)
    x, y, box = window(problem.x, axes_of(problem, True), (64, config.terms)), problem.y, (64, config.terms)
    if not config.y_boxes:
        return x, window(y, None, box), *out
    k, step = y.shape[1], rows_step(y) * y.itemsize
    pixels = y.size // k
    return x, Boxes((k, pixels, 1), (step, step * pixels), (*box, 1)), *out


def arguments(problem: ConvProblem, config: WeightsConfig) -> tuple[Any, ...]:
    """Everything the kernel takes after its maps and addresses."""
    axes, tiles = axes_of(problem, True), _tiles(problem, config.m, config.n)
    return _taken(problem.axes, config)(
        {name: tuple(getattr(axis, "slope" if name == "dilation" else name) for axis in axes) for name in WALK},
        tiles=tiles,
        count=math.prod(tiles) * config.splits,
        splits=config.splits,
        steps=steps_of(problem, config.terms),
        chunks=chunks_of(problem),
        rows=rows_of(problem),
        depth=problem.w.shape[1],
        width=problem.y.shape[1] // problem.groups,
        split_stride=partial_bytes(problem),
        tap_start=math.prod(problem.taps) - 1 if problem.flip else 0,
        tap_step=-1 if problem.flip else 1,
        alpha=problem.alpha,
    )


def total_arguments(problem: ConvProblem, splits: int) -> tuple[Any, ...]:
    """The same of the second kernel, after its addresses."""
    last = math.prod(problem.taps) - 1
    return (
        *(splits, partial_bytes(problem), rows_of(problem), chunks_of(problem), problem.w.shape[1]),
        *(problem.y.shape[1] // problem.groups, problem.taps, last if problem.flip else 0, -1 if problem.flip else 1),
        *(problem.w.strides, problem.beta),
    )


def total_launch(problem: ConvProblem, splits: int, device: int) -> Any:
    """The second kernel made ready."""
    w, wide, rows = problem.w, -(-problem.y.shape[1] // problem.groups // WIDE), rows_of(problem)
    # few elements: smaller tiles and more threads an element, so that memory is asked for enough at a time
    tiles = wide * rows // 64 * problem.groups
    high, lanes = 64, 4 if splits >= 4 and tiles < 4 * MULTIPROCESSORS else 1
    if splits >= 32 and tiles < MULTIPROCESSORS // 2:
        high, lanes = 16, 16
    grid = (wide, rows // high, problem.groups)
    others = (w.shape[1], *(s for i, s in enumerate(w.strides) if i != 1 and w.shape[i] > 1))
    vector = w.aligned and w.strides[1] == 1 and all(step % 8 == 0 for step in others)
    chosen = total_kernel(w.dtype, problem.axes, high, lanes, vector)
    scalars, shared = total_arguments(problem, splits), lanes * WIDE * (high + 2) * 4
    return chosen.prepare(device, grid, (4 * high * lanes, 1, 1), scalars, shared)


def plan(problem: ConvProblem, policy: Policy, config: WeightsConfig | None = None) -> Executable:
    """Two launches, and the partial sums between them as workspace; one where the copy engine writes the filters."""
    from numbadnn.gpu.context import ensure_context
    from numbadnn.kernels.build import tensormap as _tensormap
    from numbadnn.kernels.build.machine import multiprocessors

    config, device = config or space(problem, policy.workspace_limit)[0], policy.device
    with ensure_context(device):
        descriptors = tuple(
            (_tensormap.encode_window if isinstance(found, Window) else _tensormap.encode)(problem.x.dtype, *found)
            for found in maps(problem, config)
        )
    scalars = arguments(problem, config)
    chosen = weights_kernel(problem.x.dtype, problem.axes, config)
    shared = shared_bytes(config)
    grid = (min(scalars[1], multiprocessors(device)), 1, 1)
    main = chosen.prepare(device, grid, (384, 1, 1), (*descriptors, *scalars), shared)
    nbytes, direct = 0, main.direct
    if not config.direct:
        nbytes, second = config.splits * partial_bytes(problem), total_launch(problem, config.splits, device)
        direct = sequence("x y w space", [(main, "x y space"), (second, "space w")])

    added = in_turn(64 * steps_of(problem), config.splits)
    return around(direct, {"kernel": chosen.name, "config": config}, nbytes, "tensor_core", "run_to_run", added)


def rank(problem: ConvProblem) -> float:
    """Microseconds by the estimate that chooses the configuration, and what two launches take."""
    found = (_microseconds(problem, *c) for c in _candidates(problem, 1 << 30))
    return 3.7 + min(found, default=math.inf)
