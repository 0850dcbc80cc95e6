"""``numba.unshared_weights_many``: grad_weights over 9 to 32 images with float64 sums; device code: ``device/many.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import shared_capacity
from numbadnn.kernels.conv.unshared.parts import transposed
from numbadnn.kernels.conv.unshared.parts.tile import (
    HOPPER,
    SHARED,
    blocks_of,
    capability_of,
    facts_of_tile,
    places_of,
    receptive_field,
    takes,
    vector,
)
from numbadnn.kernels.conv.unshared.weights.many_config import FILTERS, WeightsManyConfig
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable

#: fewer filters leave most rows of a product idle, fewer images are not worth transposing
FEWEST_FILTERS, FEWEST_IMAGES, MOST_IMAGES = 4, 9, 32
#: the devices whose tensor cores multiply float64 about as quickly as their other units float32
QUICK_IN_FLOAT64 = ((8, 0), (9, 0), (10, 0))
#: of all filters, that transposing 16 images is worth while; warps of a multiprocessor
ENOUGH_BYTES, MOST_WARPS = 1 << 25, 16
#: of an H200, and terms in whose time a block starts
MULTIPROCESSORS, START = 132, 64
#: of a filter that a warp has at once
TILE = 64


def heuristic(problem: ConvProblem, policy: Policy) -> WeightsManyConfig | None:
    """None where other kernels of ``numba.unshared`` are to do it."""
    w, N, (P, Q) = problem.w, problem.x.shape[0], problem.y.shape[2:]
    K, C, images = w.shape[0] // problem.groups, w.shape[3], max(16, 1 << (N - 1).bit_length())
    if not takes(problem, policy, "grad_weights", 2, 4) or not FEWEST_IMAGES <= N <= MOST_IMAGES or not P * Q:
        return None
    if w.itemsize == 4 and capability_of(policy.device) not in QUICK_IN_FLOAT64:
        return None
    if K < FEWEST_FILTERS or not transposed.fits(problem, policy, images):
        return None
    if images < MOST_IMAGES and w.size * w.itemsize < ENOUGH_BYTES:
        return None
    tall, positions, whole = min(P, w.itemsize), places_of(Q, 4)[0], capability_of(policy.device) >= HOPPER
    resident, vec = MOST_WARPS // (tall * positions), vector(problem, C, 16 // w.itemsize)
    filter_tiles = (
        2 if w.itemsize == 2 and K > FILTERS else 1
    )  # of float32 the sums of one are all there are registers for
    config = WeightsManyConfig(images, tall, positions, resident, vec, whole, filter_tiles, 0, 0)
    return sliced(problem, config, shared_capacity(policy.device) // resident - 1024)


def sliced(problem: ConvProblem, config: WeightsManyConfig, most: int) -> WeightsManyConfig | None:
    """The slices of a filter, in whole ``TILE`` bytes, that are done first; a block may have ``most`` bytes of shared memory.

    Of 32 bytes that hold terms of two blocks memory is read as well, which takes longer than all that is written.
    """
    area, tile, tiles = math.prod(problem.taps), TILE // problem.w.itemsize, blocks_of(problem, config)
    terms, found = math.prod(problem.w.shape[3:]), []
    fewest = max(1, terms // (area * max(1, most // shared_bytes(problem, replace(config, channels=1)))))
    for slices in range(fewest, fewest + 16):
        length = -(-terms // (slices * tile)) * tile
        channels = min(problem.w.shape[3], (area - math.gcd(area, length) + length - 1) // area + 1)
        one = replace(config, terms=length, channels=channels)
        turns = -(-slices * tiles // (MULTIPROCESSORS * config.resident))
        if shared_bytes(problem, one) <= most:
            found.append((turns * (length + START), -slices, one))
    return min(found, key=lambda f: f[:2])[2] if found else None


def capacity_of(problem: ConvProblem, config: WeightsManyConfig) -> int:
    """Of the table: all terms of the channels, and what a warp reads past the last, one tile ahead."""
    return (config.channels * math.prod(problem.taps) // 32 + 3) * 32


def shared_bytes(problem: ConvProblem, config: WeightsManyConfig) -> int:
    box = config.channels * math.prod(receptive_field(problem, (config.tall, config.positions))) * config.images
    return 4 * capacity_of(problem, config) + box * problem.x.itemsize


def kernel(dtype: str, config: WeightsManyConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.weights.device import many

        return many.weights(dtype, config)

    name = f"unshared weights many {dtype} " + " ".join(str(v) for v in astuple(config)[:7])
    parameters = Arguments("ptr:3", "i32 slices length", *SHARED)
    return Kernel(name, parameters, build, config.threads, config.resident, True)


def plan(problem: ConvProblem, policy: Policy, config: WeightsManyConfig) -> Executable:
    slices = -(-math.prod(problem.w.shape[3:]) // config.terms)
    arithmetic = "ieee" if problem.x.itemsize == 4 else "tensor_core"
    chosen, shared = kernel(problem.x.dtype, config), shared_bytes(problem, config)
    x_strides, y_strides = (transposed.strides(array.shape, config.images) for array in (problem.x, problem.y))
    scalars = chosen.values(
        facts_of_tile(problem, config),
        slices=slices,
        length=config.terms,
        capacity=capacity_of(problem, config),
        x_strides=x_strides,
        y_strides=y_strides,
    )
    grid, block = (slices * blocks_of(problem, config), 1, 1), (config.threads, 1, 1)
    launch = chosen.prepare(policy.device, grid, block, scalars, shared)
    facts = {"kernel": chosen.name, "config": config}
    return transposed.executable(problem, policy, config.images, launch, arithmetic, facts)


def kernels() -> Iterator[Kernel]:
    """Of float32 what sm_80 has as well."""
    yield kernel("float32", WeightsManyConfig(32, 2, 4, 2, 4, False, 1, 4, 36))
    yield kernel("bfloat16", WeightsManyConfig(16, 2, 4, 2, 8, True, 2, 4, 36))
