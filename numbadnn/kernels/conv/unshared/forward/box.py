"""``numba.unshared_box``: forward and grad_weights, several positions a block; device code: ``device/box.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import shared_capacity
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.build.support import accumulator_of
from numbadnn.kernels.conv.unshared.forward.box_config import ROWS, BoxConfig
from numbadnn.kernels.conv.unshared.parts.tile import (
    HOPPER,
    capability_of,
    channel_counts,
    facts_of,
    free_order,
    places_of,
    receptive_field,
    vector,
)
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

MOST_IMAGES = 32
#: of a block, on the multiprocessors that have the least; warps below which memory is not busy, and of a block
SHARED_BYTES, ENOUGH_WARPS, MOST_WARPS, ENOUGH_BLOCKS = 99 * 1024, 132 * 8, 8, 100
#: of a gradient of filters; with 90, 64 and 20 a block for each position was faster on an H200, with 98 and more slower
FEWEST_BLOCKS = 96


def heuristic(problem: ConvProblem, policy: Policy) -> BoxConfig | None:
    """None where other kernels of ``numba.unshared`` are to do it."""
    w, N = problem.w, problem.x.shape[0]
    if not problem.unshared or problem.direction == "grad_inputs" or accumulator_of(w.dtype, policy) != "float32":
        return None
    if problem.direction == "forward" and not free_order(problem, policy):
        return None  # the order of the terms depends on how many images there are
    if N > MOST_IMAGES:
        return None
    return _of_weights(problem, policy) if problem.direction == "grad_weights" else _of_products(problem, policy)


def _of_products(problem: ConvProblem, policy: Policy) -> BoxConfig | None:
    """Not where there are few positions: too few warps would prefetch filters."""
    (N, _, _, _), (K, C) = problem.x.shape, (problem.w.shape[0] // problem.groups, problem.w.shape[3])
    Q = problem.y.shape[3]
    images = max(8, 1 << (N - 1).bit_length())
    positions = Q * problem.y.shape[2] * problem.groups
    if positions * -(-K // 16) < ENOUGH_WARPS:
        return _of_few_positions(problem) if images == 8 else None
    filters = min(8 if images > 8 else 4, 1 << K.bit_length() - 1)  # no more than there are
    parts = max(1, min(2, -(-K // (filters * 32 // images))))
    large = (MOST_WARPS // parts, 2, 1 if images > 8 else 2, SHARED_BYTES)
    small = (4, 4, 3, SHARED_BYTES // 2)  # of several small blocks some gather while others multiply
    for most, ahead, resident, limit in (small, large) if images == 8 and parts == 1 else (large,):
        for columns in places_of(Q, most):
            for channels in (C, *(c for c in (64, 32, 16, 8, 4) if c < C)):
                vec, whole = vector(problem, channels, 4), channels == C
                config = BoxConfig(images, filters, columns, columns * parts, vec, ahead, resident, whole, channels)
                capacity = min(
                    shared_capacity(policy.device), limit + sums_bytes(config)
                )  # these beside it, where there is more
                if vec * problem.w.itemsize >= 4 and shared_bytes(problem, config) <= capacity:
                    return config
    return None


def _of_few_positions(problem: ConvProblem) -> BoxConfig | None:
    """A block a multiprocessor, all of whose warps prefetch as much as they can; not where there are fewer."""
    K, C, (P, Q) = problem.w.shape[0] // problem.groups, problem.w.shape[3], problem.y.shape[2:]
    if problem.w.dtype != "float32" or not Q:
        return None
    filters, columns = min(2, K), places_of(Q, MOST_WARPS)[0]
    parts = max(1, min(10 // columns, -(-K // (4 * filters))))
    config = BoxConfig(8, filters, columns, columns * parts, vector(problem, C, 4), 3, 1, True, C)
    enough = -(-Q // columns) * P * problem.groups >= ENOUGH_BLOCKS
    return config if enough and shared_bytes(problem, config) <= SHARED_BYTES else None


def _of_weights(problem: ConvProblem, policy: Policy) -> BoxConfig | None:
    """As many channels as leave room for a second block; of many images more filters for what a thread holds of them."""
    (N, _, _, _), K, C = problem.x.shape, problem.w.shape[0] // problem.groups, problem.w.shape[3]
    images, Q = max(8, 1 << (N - 1).bit_length()), problem.y.shape[3]
    few = images == 8
    # sm_100's compiler leaves the sums of 16 filters in memory
    most = 16 if images == MOST_IMAGES and capability_of(policy.device) <= HOPPER else 8
    filters = 4 if few or K <= 4 else min(most, 8 if K <= 8 else 16)
    found = []
    for columns in (8, 5, 4, 2, 1) if few else (4, 2, 1) if images == MOST_IMAGES else (8, 4, 2, 1):
        for channels in channel_counts(C):
            vec, warps = vector(problem, channels, 4), columns * max(1, round(MOST_WARPS / columns))
            config = BoxConfig(images, filters, columns, warps, vec, 1, 2, channels == C, channels)
            if shared_bytes(problem, config) <= SHARED_BYTES:
                used = Q / (-(-Q // columns) * columns)
                found.append((vec * (used >= 0.9), columns, channels, config))
                break
    return max(found, key=lambda f: f[:3])[3] if found else None


def yields(problem: ConvProblem, config: BoxConfig) -> bool:
    """Whether so few blocks are slower than one for each position."""
    return config.images < MOST_IMAGES and math.prod(grid_of(problem, config)) < FEWEST_BLOCKS


def grid_of(problem: ConvProblem, config: BoxConfig) -> tuple[int, int, int]:
    """Blocks: of each row of positions, and of slices of channels for a gradient."""
    across = -(-problem.y.shape[3] // config.positions) * problem.groups * problem.y.shape[2]
    return (across if problem.direction == "forward" else -(-problem.w.shape[3] // config.channels) * across), 1, 1


def capacity_of(problem: ConvProblem, config: BoxConfig) -> int:
    """Terms of a block, rounded up."""
    return -(-config.channels * math.prod(problem.taps) // 32) * 32


def shared_bytes(problem: ConvProblem, config: BoxConfig) -> int:
    box = config.channels * problem.taps[0] * receptive_field(problem, (1, config.positions))[1] * config.cell
    tops = config.positions * (ROWS * config.images + 4) if problem.direction == "grad_weights" else 0
    return 4 * (capacity_of(problem, config) + box + tops) + (0 if tops else sums_bytes(config))


def sums_bytes(config: BoxConfig) -> int:
    """Of products, from where they are written."""
    return 4 * config.positions * config.parts * config.across * config.pitch


def kernel(direction: str, dtype: str, config: BoxConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import box, box_weights

        return (box.forward if direction == "forward" else box_weights.weights)(dtype, config)

    slices = "" if direction == "forward" else "slices "
    parameters = Arguments(
        *("ptr:3", f"i32 {slices}blocks groups N K C channels Q capacity", "i32*2 image taps padding stride dilation"),
        *("i32 flip wide", "i64*4 x_strides", "i64*3 w_strides", "i64*4 y_strides", "f32 alpha beta"),
    )
    name = f"unshared box {direction} {dtype} " + " ".join(str(int(v)) for v in astuple(config)[:8])
    return Kernel(name, parameters, build, config.threads, config.resident)


def plan(problem: ConvProblem, policy: Policy, config: BoxConfig) -> Executable:
    chosen = kernel(problem.direction, problem.x.dtype, config)
    across, forward = -(-problem.y.shape[3] // config.positions), problem.direction == "forward"
    slices = 1 if forward else -(-problem.w.shape[3] // config.channels)
    scalars = chosen.values(
        {**facts_of(problem), "slices": slices},
        blocks=across,
        channels=config.channels,
        capacity=capacity_of(problem, config),
        wide=receptive_field(problem, (1, config.positions))[1],
    )
    grid, block = grid_of(problem, config), (config.threads, 1, 1)
    launch = chosen.prepare(policy.device, grid, block, scalars, shared_bytes(problem, config))
    level = "run_to_run" if forward else "gpu_to_gpu"
    return one_launch(chosen, launch, config, "ieee", level, SEQUENCE)


def kernels() -> Iterator[Kernel]:
    """Few images and many, 32 bits and 16."""
    yield kernel("forward", "float32", BoxConfig(8, 4, 4, 8, 4, 2, 2, True, 1))
    # more than 8 images forward are not among these: sm_100's code has a stack frame of 256 bytes (sm_80's and sm_90a's none)
    yield kernel("grad_weights", "float32", BoxConfig(8, 4, 8, 8, 4, 1, 2, False, 1))
    yield kernel("grad_weights", "bfloat16", BoxConfig(32, 8, 4, 8, 2, 1, 2, False, 1))
