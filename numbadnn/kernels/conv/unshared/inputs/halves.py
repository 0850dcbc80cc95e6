"""Which gradients of unshared convolutions' images go to tensor cores; the device code is ``device/halves.py``."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace

from numbadnn.kernels.build.launch import Kernel, sequence
from numbadnn.kernels.build.machine import shared_room
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.conv.unshared.inputs.boxes import collecting
from numbadnn.kernels.conv.unshared.inputs.boxes_config import lot_of
from numbadnn.kernels.conv.unshared.inputs.halves_config import TILE, InputsHalvesConfig
from numbadnn.kernels.conv.unshared.parts.tile import seen_of, takes, tiles_of, vector
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

#: of a multiprocessor
ALL_SHARED, MULTIPROCESSORS = 227 * 1024, 132
MOST_IMAGES, MOST_STEPS, MOST_ROUNDS, MOST_RESIDENT, MOST_AHEAD = 32, 4, 4, 4, 4
#: channels of a warp that are tried
OWN = (1, 2, 3, 4, 6, 8)
#: fewer leave most terms of a product idle
FEWEST_FILTERS = 4
#: words of a piece of 16 filters in shared memory
SLOT = 16 * 36


def heuristic(problem: ConvProblem, policy: Policy) -> InputsHalvesConfig | None:
    """The least estimate of what fits; None where the threads of ``boxes.py`` are to do it."""
    w, N = problem.w, problem.x.shape[0]
    if not takes(problem, policy, "grad_inputs", 2):
        return None
    if N > MOST_IMAGES or w.shape[0] // problem.groups < FEWEST_FILTERS:
        return None
    found = candidates(problem, shared_room(policy.device))
    best = min(found, key=lambda pair: pair[0])[1] if found else None
    return best if best and space_bytes(problem, best) <= policy.workspace_limit else None


@functools.lru_cache(256)
def candidates(problem: ConvProblem, room: int) -> list[tuple[float, InputsHalvesConfig]]:
    """(estimated microseconds, configuration) of all that fit ``room`` bytes of shared memory."""
    C, (P, Q) = problem.w.shape[3], problem.y.shape[2:]
    tiles = [(p, q) for p in range(1, min(P, 5) + 1) for q in range(1, min(Q, 8) + 1)]
    found = []
    for channels in sorted({-(-C // parts) for parts in (1, 2, 4, 8, C)}):
        for tile, own in itertools.product(tiles, (own for own in OWN if own <= channels)):
            config = fitted(problem, room, tile, channels, own)
            if config:
                found.append((_microseconds(problem, config), config))
    return found


def fitted(
    problem: ConvProblem, room: int, tile: tuple[int, int], channels: int, own: int
) -> InputsHalvesConfig | None:
    """With as many blocks on a multiprocessor as there are and fit with two positions under way, then as many of those."""
    config = configured(problem, tile, channels, own, min(2, math.prod(tile)))
    if config.vec == 1 or config.rounds > MOST_ROUNDS or shared_bytes(problem, config) > room:
        return None
    resident = most_warps(config) // config.warps
    resident = min(resident, ALL_SHARED // (shared_bytes(problem, config) + 1024), MOST_RESIDENT)
    resident = min(resident, -(-blocks_of(problem, config) // MULTIPROCESSORS))
    if not resident:
        return None
    depths = (config.depth, *range(3, min(MOST_AHEAD, math.prod(tile)) + 1))
    deeper = [replace(config, depth=depth, resident=resident) for depth in depths]
    return [c for c in deeper if shared_bytes(problem, c) + 1024 <= min(room + 1024, ALL_SHARED // resident)][-1]


def configured(
    problem: ConvProblem, tile: tuple[int, int], channels: int, own: int, depth: int = 2, resident: int = 1
) -> InputsHalvesConfig:
    """As many rounds as the terms of a warp's channels need, with those of the access that the first is in."""
    K, kept = problem.w.shape[0] // problem.groups, 1 << (problem.x.shape[0] - 1).bit_length()
    images, per_channel, vec = max(8, kept), math.prod(problem.taps), vector(problem, problem.w.shape[3])
    firsts = (c for c0 in range(0, problem.w.shape[3], channels) for c in range(c0, c0 + channels, own))
    longest = max(own * per_channel + c * per_channel % vec for c in firsts)
    steps, warps = min(MOST_STEPS, -(-K // 16)), -(-channels // own)
    return InputsHalvesConfig(
        images, kept, warps, -(-longest // TILE), steps, vec, depth, resident, tile, channels, own
    )


def most_warps(config: InputsHalvesConfig) -> int:
    """Of a multiprocessor, for which registers suffice."""
    if config.images > 8:
        return 12 if config.images == 16 else 8
    return 12 if config.rounds > 2 else 16


def blocks_of(problem: ConvProblem, config: InputsHalvesConfig) -> int:
    return math.prod(tiles_of(problem, config.tile)) * problem.groups * -(-problem.w.shape[3] // config.channels)


def _microseconds(problem: ConvProblem, config: InputsHalvesConfig) -> float:
    """An estimate from an H200: a launch, filters, the instructions of a multiprocessor's warps, and boxes.

    Eight warps issue all that there is shared memory for; a turn's positions are those of a whole tile, however few of the
    blocks are left for it.
    """
    blocks, K = blocks_of(problem, config), problem.w.shape[0] // problem.groups
    live = min(config.resident, -(-blocks // MULTIPROCESSORS))
    turns = -(-blocks // (MULTIPROCESSORS * config.resident))
    passes, planes = -(-K // (16 * config.steps)), config.images // 8
    position = 30 + config.rounds * ((30 + 10 * planes) * config.steps + 50 * planes)
    warps = live * config.warps
    loads = -(-math.prod(config.tile) * config.images * config.steps // config.threads)  # of 16 filters each
    issued = turns * warps * (500 + passes * (math.prod(config.tile) * position + 120 * loads))
    own = issued / min(1.4, 0.19 * warps) / 1800
    stream = problem.w.size * 2 / 4.2e6
    return 5 + max(own, stream) + 0.3 * min(own, stream) + space_bytes(problem, config) / 2.7e6


def rank(problem: ConvProblem, config: InputsHalvesConfig) -> float:
    """Microseconds: the estimate that chooses the configuration."""
    return 1 + _microseconds(problem, config)


def space_bytes(problem: ConvProblem, config: InputsHalvesConfig) -> int:
    """The boxes of all images."""
    pixels = math.prod(seen_of(problem, config.tile)) * math.prod(tiles_of(problem, config.tile)) * problem.x.shape[1]
    return pixels * config.kept * 4


def shared_bytes(problem: ConvProblem, config: InputsHalvesConfig) -> int:
    box = config.channels * math.prod(seen_of(problem, config.tile)) * config.images
    tops = math.prod(config.tile) * (8 * config.steps * config.images + 2)  # and against conflicts of banks
    rings = config.warps * config.depth * config.rounds * config.steps * SLOT
    return 4 * (config.warps * config.rounds * TILE + box + tops + rings)


def kernel(dtype: str, config: InputsHalvesConfig) -> Kernel:
    config = replace(config, tile=(1, 1), channels=1, own=1)  # those are arguments

    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.inputs.device import halves

        return halves.boxes(dtype, config)

    parameters = "ptr ptr ptr i32 i32 i32 i32 i32 i32 i32 i32 i32*2 i32*2 i32*2 i32*2 i32*2 i32 i32*2 i64*3 i64*4"
    name = f"unshared boxes halves {dtype} " + " ".join(str(int(v)) for v in astuple(config)[:8])
    return Kernel(name, parameters, build, config.threads, config.resident)


def plan(problem: ConvProblem, policy: Policy, config: InputsHalvesConfig) -> Executable:
    """Two launches, the second of which starts before the first has ended, and waits for it."""
    dtype, device, w, lot = problem.x.dtype, policy.device, problem.w, lot_of(config.kept, "float32")
    N, slices, tiles = problem.x.shape[0], -(-w.shape[3] // config.channels), tiles_of(problem, config.tile)
    first = kernel(dtype, config)
    scalars = (
        *(slices, problem.groups, N, w.shape[0] // problem.groups, w.shape[3], config.channels, config.own, tiles[1]),
        *(config.tile, problem.y.shape[2:], problem.taps, problem.stride, problem.dilation, int(problem.flip)),
        *(seen_of(problem, config.tile), w.strides[:3], problem.y.strides),
    )
    grid = (math.prod(tiles) * problem.groups * slices, 1, 1)
    launch = first.prepare(device, grid, (config.threads, 1, 1), scalars, shared_bytes(problem, config))
    added = collecting(problem, "float32", device, config.tile, 0, config.kept, lot)
    direct = sequence("y w x space", [(launch, "y w space"), (added, "space x")])

    facts = {"kernel": first.name, "config": config}
    return around(direct, facts, space_bytes(problem, config), "tensor_core", "run_to_run", SEQUENCE)


def kernels() -> Iterator[Kernel]:
    """Few images and many."""
    yield kernel("float16", InputsHalvesConfig(8, 8, 6, 1, 2, 8, 3, 2))
    yield kernel("bfloat16", InputsHalvesConfig(32, 32, 5, 2, 1, 4, 2, 1))
    yield kernel("float16", InputsHalvesConfig(8, 1, 8, 3, 1, 8, 2, 1))
