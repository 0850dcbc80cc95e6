"""Gradients of unshared convolutions' images in float32 on tensor cores, of 9 to 32 images: when they are taken, their plans.

The device code is in ``device/split.py``; which tiles fit, and which is the best, in ``split_config.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from typing import Any

from numbadnn.kernels.build.launch import Kernel, reciprocal, sequence
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.conv.unshared.inputs import rows as unshared_inputs_rows
from numbadnn.kernels.conv.unshared.inputs import rows_config as unshared_inputs_rows_config
from numbadnn.kernels.conv.unshared.inputs.split_config import (
    AHEAD,
    COLLECTED,
    COLLECTORS,
    LANES,
    LARGE,
    LINE,
    LOT,
    PIXELS,
    TURNERS,
    Boxed,
    SplitConfig,
    blocks_of,
    box_of,
    boxes_bytes,
    candidates,
    most_boxes,
    pitch_of,
    shared_bytes,
    space_bytes,
    steps_of,
    strips_of,
    y_pitch_of,
)
from numbadnn.kernels.conv.unshared.parts.tile import on_hopper, takes
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

FEWEST_IMAGES, MOST_IMAGES, FEWEST_FILTERS, FEWEST_TERMS, MOST_TAPS = 9, 32, 4, 64, 16
#: of a grid's second and third dimension
MOST_BLOCKS = 65535
#: by how much the estimate may be the longer one: that of the other kernel is too short where taps are few
AS_QUICK = 1.1


def suits(problem: ConvProblem, policy: Policy) -> bool:
    """Whether kernels may do it that have the sums of float32 images in registers, on tensor cores."""
    w, K = problem.w, problem.w.shape[0] // problem.groups
    if not takes(problem, policy, "grad_inputs", 4) or not on_hopper(policy):
        return False
    if not FEWEST_IMAGES <= problem.x.shape[0] <= MOST_IMAGES or K < FEWEST_FILTERS or max(problem.taps) > MOST_TAPS:
        return False
    if any(step > n for step, n in zip(problem.stride, problem.taps, strict=True)) or problem.dilation != (1, 1):
        return False
    return max(problem.x.shape[1], w.shape[0]) <= MOST_BLOCKS


def heuristic(problem: ConvProblem, policy: Policy) -> SplitConfig | None:
    """The least estimate of what fits; None where others are faster, or it cannot be done."""
    if not suits(problem, policy) or problem.w.shape[0] // problem.groups * math.prod(problem.taps) < FEWEST_TERMS:
        return None
    found = candidates(problem)
    if not found:
        return None
    us, best = min(found, key=lambda pair: pair[0])
    rows = unshared_inputs_rows.heuristic(problem, policy)
    if rows and us > AS_QUICK * unshared_inputs_rows_config.rank(problem, rows):
        return None
    return best if space_bytes(problem, best) <= min(policy.workspace_limit, LIMIT32) else None


def kernel(config: SplitConfig) -> Kernel:
    config = replace(config, rows=1, places=1, channels=1)  # those are arguments

    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.inputs.device import split

        return split.boxes(config)

    numbers = (config.images, config.warps, *config.taps, *config.stride, *astuple(config)[4:8])
    name = "unshared split " + " ".join(str(int(v)) for v in numbers)
    parameters = "ptr ptr ptr i32 i32 i32 i32 i32 i32 i32*2 i32*2 i32 i32 i32*2 i64*2 i64*2 i64*2 i64*3 i64*4"
    return Kernel(name, parameters, build, config.threads, 1, not config.filled)


def turn_kernel(images: int) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.inputs.device import split_turn

        return split_turn.turn(images)

    return Kernel(f"unshared split turn {images}", "ptr ptr i32 i32 i32 i32 i32 i64*2 i64*4", build, TURNERS, 4)


def collect_kernel(images: int, ahead: int) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.inputs.device import split_collect

        return split_collect.collect(images, ahead)

    parameters = (
        "ptr ptr ptr ptr i32 i32 i32 i32 "
        + "i32*2 " * 6
        + "i32 i32*2 i32 i32 i32 i32 "
        + "i64*2 " * 4
        + "i64*4 i64*4 i64*3 f32 f32"
    )
    threads = LANES * images // LOT
    return Kernel(f"unshared split collect {images} {ahead}", parameters, build, threads, 1024 // threads, True)


def plan(problem: ConvProblem, policy: Policy, config: SplitConfig) -> Executable:
    """Boxes and their sums, which start before those have ended; before them y is cut, where blocks do not do so."""
    first, w_steps = kernel(config), tuple(4 * step for step in problem.w.strides[:3])
    C, K, (P, Q) = problem.w.shape[3], problem.w.shape[0] // problem.groups, problem.y.shape[2:]
    box = box_of(problem, config)
    scalars = (
        *(-(-C // config.channels), problem.groups, problem.x.shape[0], K, C, config.channels, config.tile, (P, Q)),
        *(pitch_of(problem, config), y_pitch_of(problem, config), box),
        *(reciprocal(n) for n in (config.rows * config.places, config.places, Q)),
        *(w_steps, problem.y.strides),
    )
    grid, block, shared = (blocks_of(problem, config), 1, 1), (config.threads, 1, 1), shared_bytes(problem, config)
    launch = first.prepare(policy.device, grid, block, scalars, shared)
    collect = collecting_boxes(problem, policy, config)
    if config.filled:
        steps = [(launch, "y w space"), (collect, "space x y w")]
    else:
        behind = f"space+{boxes_bytes(problem, config)}"
        turn = _turning(problem, policy, config)
        steps = [(turn, f"y {behind}"), (launch, f"{behind} w space"), (collect, "space x y w")]
    direct = sequence("y w x space", steps)

    facts = {"kernel": first.name, "config": config}
    return around(direct, facts, space_bytes(problem, config), "ieee", "run_to_run", SEQUENCE)


def _turning(problem: ConvProblem, policy: Policy, config: SplitConfig) -> Any:
    """The launch that cuts y."""
    (_, K, P, Q), steps = problem.y.shape, steps_of(problem)
    scalars = (problem.x.shape[0], K // problem.groups, steps, P * Q, Q, reciprocal(Q), problem.y.strides)
    grid = (-(-P * Q // PIXELS), steps, problem.groups)
    return turn_kernel(config.images).prepare(policy.device, grid, (TURNERS, 1, 1), scalars)


def collecting_boxes(problem: ConvProblem, policy: Policy, config: Boxed) -> Any:
    """The launch that adds boxes."""
    (N, C, H, W), w, box = problem.x.shape, problem.w, box_of(problem, config)
    threads = LANES * config.images // LOT
    boxes = most_boxes(problem, config)
    ahead = next((n for n in AHEAD if boxes <= n), AHEAD[-1])
    most = -(-boxes // ahead) * ahead
    each = max(1, min(COLLECTED, C * H * W * threads // LANES // COLLECTORS))
    forgotten = config.images * 4 == LINE and boxes_bytes(problem, config) >= LARGE
    scalars = (
        *(N, w.shape[0] // problem.groups, w.shape[3], problem.groups, (H, W), problem.y.shape[2:]),
        *(tuple(low for low, _ in problem.padding), problem.taps, problem.stride, config.tile),
        *(strips_of(problem, config), box, int(problem.flip), most, each, int(forgotten)),
        *(reciprocal(n) for n in (W, config.rows * problem.stride[0], problem.stride[1], config.places)),
        *(problem.x.strides, tuple(4 * step for step in problem.y.strides), tuple(4 * step for step in w.strides[:3])),
        *(problem.alpha, problem.beta),
    )
    grid, block = (-(-(H * W) // LANES), -(-C // each), 1), (threads, 1, 1)
    shared = 4 * (2 * config.images * (LANES + 1) + LANES * most)
    return collect_kernel(config.images, ahead).prepare(policy.device, grid, block, scalars, shared)


def hopper_kernels() -> Iterator[Kernel]:
    """Filters of several sizes, as many images as a product has and twice as many; y's values cut before, and by a block."""
    far = (1, 1)
    yield kernel(SplitConfig(32, 12, (9, 9), far, 5, True, False))
    yield kernel(SplitConfig(32, 16, (3, 3), far, 9, True, False, True))
    yield kernel(SplitConfig(16, 9, (7, 7), (2, 2), 6, False, True, True))
    for images in (16, 32):
        yield turn_kernel(images)
        yield from (collect_kernel(images, ahead) for ahead in AHEAD)
