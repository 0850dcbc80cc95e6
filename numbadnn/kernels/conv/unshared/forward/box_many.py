"""Unshared convolutions of 9 to 32 images with sums in float32; the device code is ``device/box_many.py``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import astuple

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import shared_room
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.conv.unshared.forward.box_many_config import ALONG, EIGHT, LANES, PIECE, ManyConfig
from numbadnn.kernels.conv.unshared.parts import turned as transposed
from numbadnn.kernels.conv.unshared.parts.tile import (
    PARAMETERS,
    blocks_of,
    check_channels,
    places_of,
    seen_of,
    takes,
    vector,
)
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable

#: warps of a block, and fewer than keep memory busy; multiprocessors, on each of which a block stays
MOST_IMAGES, MOST_WARPS, ENOUGH_WARPS, MULTIPROCESSORS = 32, 8, 132 * 8, 132


def many_images(problem: ConvProblem, policy: Policy) -> int | None:
    """Images that a block has, of forward convolutions of 9 to 32 in float32; None of others."""
    N, images = problem.x.shape[0], max(16, 1 << (problem.x.shape[0] - 1).bit_length())
    fits = takes(problem, policy, "forward", 4)
    return images if fits and EIGHT < N <= MOST_IMAGES and transposed.fits(problem, policy, images) else None


def heuristic(problem: ConvProblem, policy: Policy) -> ManyConfig | None:
    """None where other kernels of ``numba.unshared`` are to do it."""
    w, (P, Q), images = problem.w, problem.y.shape[2:], many_images(problem, policy)
    K, C = w.shape[0] // problem.groups, w.shape[3]
    if images is None:
        return None
    if P * Q * problem.groups * -(-K // 16) < ENOUGH_WARPS:
        return None
    apart = LANES * EIGHT // (ALONG * images)
    filters = max(2, min(images // 4, 1 << (-(-K // apart) - 1).bit_length()))
    parts, places = max(1, min(2, -(-K // (filters * apart)))), places_of(Q, 4)[0]
    tall, found = max(1, min(P, MOST_WARPS // (parts * places))), []
    room = shared_room(policy.device)
    # no more than have a word of it each, and a number of 32 bits for terms of a filter times channels of a block
    most = min(C, room // 4, LIMIT32 // max(1, math.prod(w.shape[3:])))
    for channels in (c for c in range(1, most + 1) if C % c == 0):
        vec = vector(problem, channels, 4)
        for stages, resident in itertools.product((2, 3, 4), (1, MOST_IMAGES // images)):
            config = ManyConfig(images, filters, tall, places, parts, vec, stages, resident, channels)
            if shared_bytes(problem, config) <= room // resident - 1024 * (resident - 1):
                found.append((vec, resident, stages > 2, channels, stages, config))
    return max(found, key=lambda f: f[:5])[5] if found else None


def room_of(problem: ConvProblem, config: ManyConfig) -> int:
    return -(-config.channels * math.prod(problem.taps) // 32) * 32


def shared_bytes(problem: ConvProblem, config: ManyConfig) -> int:
    """The terms' places, rings, two boxes of pixels, each before as many zeros as positions are apart, where pixels are, sums."""
    seen, step = seen_of(problem, (config.tall, config.places)), problem.stride
    pixels, warps = config.channels * math.prod(seen), config.threads // LANES
    reach = (config.tall - 1) * step[0] * seen[1] + (config.places - 1) * step[1] + 1
    words = warps * config.across * (config.stages * PIECE + config.pitch) + 2 * (pixels + reach) * config.cell
    return 4 * (room_of(problem, config) + words + 2 * pixels)


def kernel(config: ManyConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import box_many

        return box_many.forward(config)

    name = "unshared box many " + " ".join(str(int(v)) for v in astuple(config)[:8])
    return Kernel(name, f"ptr ptr ptr i32 {PARAMETERS}", build, config.threads, config.resident, True)


def plan(problem: ConvProblem, policy: Policy, config: ManyConfig) -> Executable:
    check_channels(problem, config)
    tiles, sizes = blocks_of(problem, config), (room_of(problem, config), shared_bytes(problem, config))
    blocks = min(tiles, MULTIPROCESSORS * config.resident)
    return transposed.planned(problem, policy, config, kernel(config), blocks, sizes, "ieee", tiles)


def kernels() -> Iterator[Kernel]:
    yield kernel(ManyConfig(32, 8, 2, 4, 1, 4, 4, 1, 4))
