"""Which unshared convolutions of 16-bit types have several positions a block; the device code is ``device/places.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.conv.unshared.forward.places_config import CHUNK, PlacesConfig
from numbadnn.kernels.conv.unshared.parts.tile import (
    PARAMETERS,
    blocks_of,
    free_order,
    places_of,
    scalars,
    seen_of,
    vector,
)
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

#: for fewer images a block for each position is quicker
FEWEST_IMAGES, MOST_IMAGES = 4, 32
#: of a block, on the multiprocessors that have the least
SHARED_BYTES = 99 * 1024
#: fewer leave most rows of a product idle
FEWEST_FILTERS = 4
#: a warp has one: fewer do not keep memory busy
ENOUGH_POSITIONS, ENOUGH_BLOCKS, MOST_PLACES = 132 * 7, 180, 8


def heuristic(problem: ConvProblem, policy: Policy) -> PlacesConfig | None:
    """None where other kernels of ``numba.unshared`` are to do it."""
    w, N = problem.w, problem.x.shape[0]
    K, C, Q = w.shape[0] // problem.groups, w.shape[3], problem.y.shape[3]
    if not problem.unshared or problem.direction != "forward" or w.itemsize != 2:
        return None
    if not free_order(problem, policy):
        return None  # how tensor cores round differs from one to the next
    if not FEWEST_IMAGES <= N <= MOST_IMAGES or K < FEWEST_FILTERS:
        return None
    images, filters = max(8, 1 << (N - 1).bit_length()), 16 if K <= 16 else 32
    if Q * problem.y.shape[2] * problem.groups < ENOUGH_POSITIONS:
        return None
    # two warps for each of four positions, or all channels do not fit
    for places, parts, whole in ((places_of(Q, 4)[0], 2, True), *((n, 1, False) for n in places_of(Q, MOST_PLACES))):
        for channels in (C, *(c for c in (64, 32, 16, 8) if c < C and not whole)):
            tall = tall_of(problem, places) if whole else 1
            vec, ahead = vector(problem, channels), 2 if filters > 16 else 4 if images == 8 else 3
            config = PlacesConfig(images, filters, places, parts, vec, ahead, 2, channels == C, tall, channels)
            if vec > 1 and shared_bytes(problem, config) <= SHARED_BYTES:
                return config
    return None


def tall_of(problem: ConvProblem, places: int) -> int:
    """Rows of positions of a block: the more, the less often a pixel is gathered, as long as there are blocks enough."""
    row = -(-problem.y.shape[3] // places) * problem.groups
    return next(t for t in (4, 2, 1) if t == 1 or row * -(-problem.y.shape[2] // t) >= ENOUGH_BLOCKS)


def room_of(problem: ConvProblem, config: PlacesConfig) -> int:
    return -(-config.channels * math.prod(problem.taps) // CHUNK) * CHUNK


def shared_bytes(problem: ConvProblem, config: PlacesConfig) -> int:
    box = config.channels * math.prod(seen_of(problem, (config.tall, config.places))) * config.images // 2
    sums = config.tall * config.parts * config.places * config.filters * config.pitch
    return 4 * (room_of(problem, config) + box + 4 + sums)


def kernel(dtype: str, config: PlacesConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import places as _unshared_places

        return _unshared_places.forward(dtype, config)

    name = f"unshared places {dtype} " + " ".join(str(int(v)) for v in astuple(config)[:9])
    return Kernel(name, f"ptr ptr ptr {PARAMETERS}", build, config.threads, config.resident)


def plan(problem: ConvProblem, policy: Policy, config: PlacesConfig) -> Executable:
    chosen = kernel(problem.x.dtype, config)
    told = scalars(problem, config, room_of(problem, config), problem.x.strides)
    grid = (blocks_of(problem, config), 1, 1)
    launch = chosen.prepare(policy.device, grid, (config.threads, 1, 1), told, shared_bytes(problem, config))
    return one_launch(chosen, launch, config, "tensor_core", "run_to_run", SEQUENCE)


def kernels() -> Iterator[Kernel]:
    """Few filters and many; many images, some channels at a time."""
    yield kernel("float16", PlacesConfig(8, 32, 8, 1, 8, 2, 1, True, 1, 1))
    yield kernel("bfloat16", PlacesConfig(8, 16, 8, 1, 8, 3, 2, True, 2, 1))
    yield kernel("float16", PlacesConfig(32, 16, 8, 1, 8, 3, 1, False, 2, 1))
