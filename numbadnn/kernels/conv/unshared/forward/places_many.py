"""Which unshared convolutions of 16-bit types have a warp for each position; the device code is ``device/places_many.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import shared_room
from numbadnn.kernels.conv.unshared.forward.places_many_config import CHUNK, ROWS, PlacesManyConfig
from numbadnn.kernels.conv.unshared.parts import turned as transposed
from numbadnn.kernels.conv.unshared.parts.tile import (
    PARAMETERS,
    blocks_of,
    check_channels,
    places_of,
    seen_of,
    takes,
    tiles_of,
    vector,
)
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable

#: for fewer images a block for each position is faster; fewer filters leave most rows of a product idle
FEWEST_IMAGES, MOST_IMAGES, FEWEST_FILTERS, MOST_FILTERS = 4, 32, 4, 64
#: warps of a block; positions and blocks that keep memory busy, and positions of a block where there are few
MOST_WARPS, ENOUGH_POSITIONS, ENOUGH_BLOCKS, MOST_PLACES = 16, 132 * 7, 100, 8
#: chunks under way of so few warps, each thread of which may have 255 registers, in accesses of 16 bytes; and of others
MOST_AHEAD, FEW_WARPS, FEWER_AHEAD = 13, 8, 8
#: warps of a block of many images where a multiprocessor has one block in all: a second would begin when most have nothing to do
LARGEST, MULTIPROCESSORS = 25, 132


def heuristic(problem: ConvProblem, policy: Policy) -> PlacesManyConfig | None:
    """None where other kernels of ``numba.unshared`` are to do it."""
    w, N, (P, Q) = problem.w, problem.x.shape[0], problem.y.shape[2:]
    K, C, images = w.shape[0] // problem.groups, w.shape[3], max(8, 1 << (N - 1).bit_length())
    if not takes(problem, policy, "forward", 2):
        return None
    if not FEWEST_IMAGES <= N <= MOST_IMAGES or not FEWEST_FILTERS <= K <= MOST_FILTERS:
        return None
    if not Q or not transposed.fits(problem, policy, images):
        return None
    parts, few = -(-K // ROWS), P * Q * problem.groups < ENOUGH_POSITIONS
    places = places_of(Q, min(MOST_PLACES, MOST_WARPS // parts) if few else 4)[0]
    tall = 1 if few else max(1, min(P, MOST_WARPS // (parts * places)))
    if few and -(-Q // places) * P * problem.groups < ENOUGH_BLOCKS:
        return None
    if images > 8 and not few:
        tall, places = tile_of(problem, LARGEST // parts) or (tall, places)
    area = math.prod(problem.taps)
    for channels in (C, *(c for c in (64, 32, 16, 8, 4) if c < C and C % c == 0)):
        vec = vector(problem, channels)
        # few warps prefetch more each; of few terms much would be prefetched in vain
        roomy = parts * places <= FEW_WARPS and vec == 8
        ahead = ahead_of(channels * area, roomy) if few else 3 if images > 8 else 4 if C * area > 512 else 2
        config = PlacesManyConfig(images, tall, places, parts, vec, ahead, 1, channels == C, channels)
        if vec > 1 and shared_bytes(problem, config) <= shared_room(policy.device):
            return config
    return None


def ahead_of(terms: int, roomy: bool) -> int:
    """Chunks under way of a block of few positions: what its registers hold, in turns none of which leaves many idle.

    >>> ahead_of(784, True), ahead_of(784, False), ahead_of(64, True)
    (13, 7, 2)
    """
    chunks = -(-terms // CHUNK)
    return -(-chunks // -(-chunks // (MOST_AHEAD if roomy else FEWER_AHEAD)))


def tile_of(problem: ConvProblem, most: int) -> tuple[int, int] | None:
    """Rows and columns of at most ``most`` positions, the fewest that leave each multiprocessor one block, and see the least."""
    tiles = [(tall, places) for tall in range(1, most + 1) for places in range(1, most // tall + 1)]
    enough = [t for t in tiles if math.prod(tiles_of(problem, t)) * problem.groups <= MULTIPROCESSORS]
    return min(enough, key=lambda t: (math.prod(t), math.prod(seen_of(problem, t)), -t[1]), default=None)


def room_of(problem: ConvProblem, config: PlacesManyConfig) -> int:
    """Terms of a block, whole turns: so no branch stands between the chunks of one."""
    turn = config.ahead * CHUNK
    return -(-config.channels * math.prod(problem.taps) // turn) * turn


def shared_bytes(problem: ConvProblem, config: PlacesManyConfig) -> int:
    box = config.channels * math.prod(seen_of(problem, (config.tall, config.places))) * config.images // 2
    sums = config.tall * config.places * config.place_pitch
    return 4 * (room_of(problem, config) + 4 + max(sums, box * (1 if config.whole else 2)))


def kernel(dtype: str, config: PlacesManyConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import places_many

        return places_many.forward(dtype, config)

    name = f"unshared places many {dtype} " + " ".join(str(int(v)) for v in astuple(config)[:8])
    return Kernel(name, f"ptr ptr ptr {PARAMETERS}", build, config.threads, config.resident, True)


def plan(problem: ConvProblem, policy: Policy, config: PlacesManyConfig) -> Executable:
    check_channels(problem, config)
    chosen, blocks = kernel(problem.x.dtype, config), blocks_of(problem, config)
    sizes = room_of(problem, config), shared_bytes(problem, config)
    return transposed.planned(problem, policy, config, chosen, blocks, sizes, "tensor_core")


def kernels() -> Iterator[Kernel]:
    """Many images, some channels at a time; as many warps as a block has; few positions."""
    yield kernel("float16", PlacesManyConfig(32, 4, 4, 1, 8, 3, 1, False, 1))
    yield kernel("float16", PlacesManyConfig(16, 5, 5, 1, 8, 3, 1, True, 1))
    yield kernel("bfloat16", PlacesManyConfig(8, 1, 5, 1, 8, 13, 1, True, 1))
