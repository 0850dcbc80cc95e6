"""Unshared convolutions of 9 to 32 images and many filters with sums in float64; the device code is ``device/products.py``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import astuple

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import shared_room
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.conv.unshared.forward.box_many import many_images
from numbadnn.kernels.conv.unshared.forward.products_config import BOXES, EIGHT, LANES, PIECE, ProductsConfig
from numbadnn.kernels.conv.unshared.parts import turned as transposed
from numbadnn.kernels.conv.unshared.parts.tile import (
    HOPPER,
    PARAMETERS,
    blocks_of,
    capability_of,
    check_channels,
    places_of,
    seen_of,
    vector,
)
from numbadnn.kernels.conv.unshared.weights.many import QUICK_IN_FLOAT64
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable

#: positions of a block; multiprocessors, on each of which a block stays
MOST_PLACES, MULTIPROCESSORS = 8, 132
#: positions times filters of a warp: fewer keep no memory busy; terms times images of a filter: for fewer start and end outweigh;
#: filters: fewer leave most columns of a product idle
ENOUGH_TASKS, ENOUGH_PRODUCTS, FEWEST_FILTERS = 512, 5000, 5


def heuristic(problem: ConvProblem, policy: Policy) -> ProductsConfig | None:
    """None where other kernels of ``numba.unshared`` are to do it."""
    w, (P, Q), images = problem.w, problem.y.shape[2:], many_images(problem, policy)
    K, C = w.shape[0] // problem.groups, w.shape[3]
    if images is None:
        return None
    if capability_of(policy.device) not in QUICK_IN_FLOAT64 or K < FEWEST_FILTERS:
        return None
    if math.prod(w.shape[3:]) * images < ENOUGH_PRODUCTS:
        return None
    if P * Q * problem.groups * -(-K // 16) < ENOUGH_TASKS:
        return None
    eights, whole = min(64 // images, 1 << (-(-K // EIGHT) - 1).bit_length()), capability_of(policy.device) >= HOPPER
    places, vec = places_of(Q, 4)[0], vector(problem, C, 4)
    tall, found = min(P, MOST_PLACES // places), []
    shared_out = (2, 1) if EIGHT * eights < K else (1, 2)  # a position's filters or terms, by two warps
    room, area = shared_room(policy.device), math.prod(problem.taps)
    # no more than have a word of it each, and a number of 32 bits for terms of a filter times channels of a block
    most = min(C, room // 4, LIMIT32 // max(1, math.prod(w.shape[3:])))
    for channels in (c for c in range(1, most + 1) if C % c == 0 and (c == C or c * area >= PIECE)):
        for (parts, splits), stages in itertools.product((shared_out, (1, 1)), (2, 3, 4)):
            config = ProductsConfig(images, eights, 4, tall, places, parts, splits, vec, whole, stages, channels)
            # a block waits for its whole ring before its first product: for a quarter of the terms, or two slots
            asked_first = 4 * stages * splits * PIECE
            if shared_bytes(problem, config) <= room and (stages == 2 or asked_first <= math.prod(w.shape[3:])):
                found.append((parts * splits, stages > 2, channels, stages, config))
    return max(found, key=lambda f: f[:4])[4] if found else None


def room_of(problem: ConvProblem, config: ProductsConfig) -> int:
    """Of the table: the terms of all boxes, and those of a turn again."""
    return -(-(BOXES * config.channels * math.prod(problem.taps) + 4 * config.steps) // 32) * 32


def shared_bytes(problem: ConvProblem, config: ProductsConfig) -> int:
    """The terms' places, rings, a pixel of zeros, the boxes, where their pixels are, sums."""
    pixels, warps = config.channels * math.prod(seen_of(problem, (config.tall, config.places))), config.threads // LANES
    sums = config.tall * config.places * config.parts * config.across * config.pitch * config.splits
    rings = warps * config.across * config.stages * PIECE
    return 4 * (
        room_of(problem, config) + rings + LANES + BOXES * pixels * config.images + (pixels + 1) // 2 * 4 + sums
    )


def kernel(config: ProductsConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import products

        return products.forward(config)

    name = "unshared products " + " ".join(str(int(v)) for v in astuple(config)[:10])
    return Kernel(name, f"ptr ptr ptr i32 {PARAMETERS}", build, config.threads, 1, True)


def plan(problem: ConvProblem, policy: Policy, config: ProductsConfig) -> Executable:
    check_channels(problem, config)
    tiles, sizes = blocks_of(problem, config), (room_of(problem, config), shared_bytes(problem, config))
    blocks = min(tiles, MULTIPROCESSORS)
    return transposed.planned(problem, policy, config, kernel(config), blocks, sizes, "ieee", tiles)


def kernels() -> Iterator[Kernel]:
    yield kernel(ProductsConfig(32, 2, 4, 2, 4, 1, 2, 4, False, 3, 2))
