"""``numba.unshared_weights_halves``: which 16-bit grad_weights go to tensor cores; device code: ``device/f16.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.conv.unshared.parts.tile import (
    SHARED,
    blocks_of,
    channel_counts,
    facts_of_tile,
    receptive_field,
    takes,
    vector,
)
from numbadnn.kernels.conv.unshared.weights.f16_config import TILE, WeightsF16Config
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

MOST_IMAGES, MOST_WARPS = 32, 8
#: of a block: two fit a multiprocessor, and one the smallest; blocks that fill the GPU
SHARED_BYTES, ENOUGH_BLOCKS = 99 * 1024, 180
#: fewer leave most rows of a product idle
FEWEST_FILTERS = 4


def capacity_of(problem: ConvProblem, config: WeightsF16Config) -> int:
    """Terms of a block, whole tiles."""
    return -(-config.channels * math.prod(problem.taps) // TILE) * TILE


def shared_bytes(problem: ConvProblem, config: WeightsF16Config) -> int:
    box = config.channels * math.prod(receptive_field(problem, (config.tall, config.positions)))
    tops = config.tall * config.positions * config.filters
    return 4 * (capacity_of(problem, config) + (box + tops) * config.images // 2)


def heuristic(problem: ConvProblem, policy: Policy) -> WeightsF16Config | None:
    """None where the threads of ``numba.unshared`` are to do it."""
    w, N, Q = problem.w, problem.x.shape[0], problem.y.shape[3]
    if not takes(problem, policy, "grad_weights", 2):
        return None
    K, C = w.shape[0] // problem.groups, w.shape[3]
    if N > MOST_IMAGES or K < FEWEST_FILTERS:
        return None
    images, filters = max(8, 1 << (N - 1).bit_length()), 16 if K <= 16 else 32
    rows, few = problem.y.shape[2] * problem.groups, -(-Q // 8) * problem.y.shape[2] * problem.groups < ENOUGH_BLOCKS
    tall = max(
        1, min(4, rows, problem.taps[0] // (2 * problem.stride[0]))
    )  # taps reach over each other: pixels are gathered less often
    found = []
    few = few and images == 8
    for positions in (5, 4, 2, 1) if few else (8, 5, 4, 2, 1):
        for channels in channel_counts(C):
            vec, parts = vector(problem, channels), max(1, round(MOST_WARPS / positions))
            config = WeightsF16Config(images, filters, positions, parts, vec, tall, channels)
            if shared_bytes(problem, config) <= SHARED_BYTES:
                used = Q / (-(-Q // positions) * positions)
                found.append((vec * (used if few else used >= 0.9), channels >= min(C, 8), positions, channels, config))
                break
    return max(found, key=lambda f: f[:4])[4] if found else None


def kernel(dtype: str, config: WeightsF16Config) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.weights.device import f16

        return f16.weights(dtype, config)

    facts = (*astuple(config)[:6], config.resident)
    name = f"unshared weights halves {dtype} " + " ".join(str(v) for v in facts)
    return Kernel(name, Arguments("ptr:3", "i32 slices", *SHARED), build, config.threads, config.resident)


def plan(problem: ConvProblem, policy: Policy, config: WeightsF16Config) -> Executable:
    chosen = kernel(problem.x.dtype, config)
    slices = -(-problem.w.shape[3] // config.channels)
    values = chosen.values(facts_of_tile(problem, config), slices=slices, capacity=capacity_of(problem, config))
    grid = (slices * blocks_of(problem, config), 1, 1)
    launch = chosen.prepare(policy.device, grid, (config.threads, 1, 1), values, shared_bytes(problem, config))
    return one_launch(chosen, launch, config, "tensor_core", "run_to_run", SEQUENCE)


def kernels() -> Iterator[Kernel]:
    """Few images and many."""
    yield kernel("float16", WeightsF16Config(8, 32, 8, 1, 8, 1, 1))
    yield kernel("bfloat16", WeightsF16Config(32, 16, 4, 2, 4, 2, 1))
