"""Which unshared convolutions of many images have filters in shared memory; the device code is ``device/places_ring.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import shared_room
from numbadnn.kernels.conv.unshared.forward import places_many as unshared_places_many
from numbadnn.kernels.conv.unshared.forward.places_many import MOST_IMAGES, MULTIPROCESSORS
from numbadnn.kernels.conv.unshared.forward.places_many_config import LANES
from numbadnn.kernels.conv.unshared.forward.places_ring_config import LAP, SLOT_BYTES, STAGES, TERMS, RingConfig
from numbadnn.kernels.conv.unshared.parts import turned as unshared_turned
from numbadnn.kernels.conv.unshared.parts.tile import PARAMETERS, blocks_of, scalars, seen_of, vector
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable

#: words of 8 images of a pixel
PIXEL_WORDS = 4
#: of pixels of a block, with more of which its multiprocessor has too little L1 cache for filters under way
MOST_PIXEL_BYTES = 128 * 1024


def heuristic(problem: ConvProblem, policy: Policy) -> RingConfig | None:
    """Where ``unshared_places_many`` would have one large block a multiprocessor; None where others are to do it."""
    many = unshared_places_many.heuristic(problem, policy)
    if many is None or many.images < MOST_IMAGES or blocks_of(problem, many) > MULTIPROCESSORS:
        return None
    if not many.whole or unshared_places_many.shared_bytes(problem, many) <= MOST_PIXEL_BYTES:
        return None
    vec, around = vector(problem, problem.w.shape[3]), around_of(problem)
    for stages in STAGES:
        config = RingConfig(many.images, many.tall, many.places, many.parts, vec, stages, around)
        if shared_bytes(problem, config) <= shared_room(policy.device):
            return config
    return None


def around_of(problem: ConvProblem) -> int:
    """The most channels that two laps see."""
    C, area, lap = problem.w.shape[3], math.prod(problem.taps), LAP * TERMS
    return max(min(C, (m + 2 * lap - 1) // area + 1) - m // area for m in range(0, C * area, lap))


def room_of(problem: ConvProblem) -> int:
    """Terms, whole slots."""
    return -(-math.prod(problem.w.shape[3:]) // TERMS) * TERMS


def pitch_of(problem: ConvProblem, config: RingConfig) -> int:
    """Pixels of 8 images from row to row: 8 neighbouring terms of a channel meet all banks, where taps are neighbours."""
    row = seen_of(problem, (config.tall, config.places))[1] * (config.images // 8)
    return row + (problem.taps[1] - row) % 8


def shared_bytes(problem: ConvProblem, config: RingConfig) -> int:
    """The rings, where terms are, what is seen past the last one, and boxes, or the sums."""
    rows = seen_of(problem, (config.tall, config.places))[0]
    boxes = config.channels * rows * pitch_of(problem, config) * PIXEL_WORDS
    sums, rings = config.tall * config.places * config.place_pitch, config.threads // LANES * config.stages * SLOT_BYTES
    return rings + 4 * (room_of(problem) + 4 + max(boxes, sums))


def kernel(dtype: str, config: RingConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import places_ring as _unshared_places_ring

        return _unshared_places_ring.forward(dtype, config)

    name = f"unshared places ring {dtype} " + " ".join(str(v) for v in astuple(config)[:6])
    return Kernel(name, f"ptr ptr ptr {PARAMETERS} i32", build, config.threads, 1, True)


def plan(problem: ConvProblem, policy: Policy, config: RingConfig) -> Executable:
    chosen = kernel(problem.x.dtype, config)
    told = scalars(problem, config, room_of(problem), unshared_turned.strides(problem.x.shape, config.images))
    grid, told = (blocks_of(problem, config), 1, 1), (*told, pitch_of(problem, config))
    launch = chosen.prepare(policy.device, grid, (config.threads, 1, 1), told, shared_bytes(problem, config))
    facts = {"kernel": chosen.name, "config": config}
    return unshared_turned.executable(problem, policy, config.images, launch, "tensor_core", "run_to_run", facts)


def kernels() -> Iterator[Kernel]:
    """As many warps as a block has, of which each has the fewest registers."""
    yield kernel("float16", RingConfig(32, 5, 5, 1, 8, 3, 6))
