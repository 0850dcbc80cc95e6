"""Which gradients of unshared convolutions' images go to tensor cores; the device code is ``_unshared_inputs_halves``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

from numbadnn.kernels import unshared_inputs
from numbadnn.kernels._launch import Kernel, sequence
from numbadnn.kernels._softmax_layout import shared_room
from numbadnn.kernels._support import accumulator_of
from numbadnn.kernels.unshared_inputs import box_of, tiles_of
from numbadnn.kernels.unshared_weights_halves import vector
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import Policy
from numbadnn.registry import Executable

#: terms that a warp has at once
LANES, TILE = 32, 64
#: of a multiprocessor
ALL_SHARED, MULTIPROCESSORS = 227 * 1024, 132
MOST_IMAGES, MOST_WARPS, MOST_STEPS = 32, 12, 4
#: fewer leave most terms of a product idle
FEWEST_FILTERS = 4
#: words of a piece of 16 filters in shared memory
SLOT = 16 * 36


@dataclass(frozen=True, slots=True)
class InputsHalvesConfig:
    """A warp has ``rounds`` times 64 terms of a position, of 16 times ``steps`` filters; ``vec``: terms of an access.

    ``ahead``: pieces under way. A block has ``tile`` positions and ``channels`` channels of a group.
    """

    images: int
    warps: int
    rounds: int
    steps: int
    vec: int
    ahead: int
    resident: int
    tile: tuple[int, int] = (1, 1)
    channels: int = 1

    @property
    def threads(self) -> int:
        return LANES * self.warps


def heuristic(problem: ConvProblem, policy: Policy) -> InputsHalvesConfig | None:
    """The least estimate of what fits; None where the threads of ``unshared_inputs`` are to do it."""
    w, N = problem.w, problem.x.shape[0]
    if not problem.unshared or problem.direction != "grad_inputs" or w.itemsize != 2:
        return None
    if accumulator_of(w.dtype, policy) != "float32" or policy.determinism not in ("run_to_run", "not_guaranteed"):
        return None  # how tensor cores round differs from one to the next
    if N > MOST_IMAGES or w.shape[0] // problem.groups < FEWEST_FILTERS:
        return None
    C, (P, Q), room = w.shape[3], problem.y.shape[2:], shared_room(policy.device)
    found = []
    for channels in (C, *(c for c in (32, 16, 8, 4, 2, 1) if c < C)):
        for tile in ((p, q) for p in range(1, min(P, 4) + 1) for q in range(1, min(Q, 8) + 1)):
            config = configured(problem, tile, channels)
            if config.vec > 1 and shared_bytes(problem, config) <= room:
                found.append((_microseconds(problem, config), config))
    if not found:
        return None
    _, best = min(found, key=lambda f: f[0])
    return best if space_bytes(problem, best) <= policy.workspace_limit else None


def configured(
    problem: ConvProblem, tile: tuple[int, int], channels: int, rounds: int = 0, ahead: int = 2, resident: int = 0
) -> InputsHalvesConfig:
    """As many warps as have every position's terms in as few rounds as possible."""
    K, images = problem.w.shape[0] // problem.groups, max(8, 1 << (problem.x.shape[0] - 1).bit_length())
    tiles = -(-channels * math.prod(problem.taps) // TILE)
    rounds = rounds or -(-tiles // MOST_WARPS)
    vec, steps, warps = vector(problem, channels), min(MOST_STEPS, -(-K // 16)), -(-tiles // rounds)
    resident = resident or max(1, (24 if images == 8 else 16) // (-(-warps // 4) * 4))
    return InputsHalvesConfig(images, warps, rounds, steps, vec, ahead, resident, tile, channels)


def _microseconds(problem: ConvProblem, config: InputsHalvesConfig) -> float:
    """An estimate from an H200: what all wait for, filters that a multiprocessor has turn by turn, and boxes.

    A turn's positions are those of a whole tile, however few of the blocks are left for it.
    """
    positions, slices = math.prod(config.tile), -(-problem.w.shape[3] // config.channels)
    resident = max(1, min(config.resident, ALL_SHARED // (shared_bytes(problem, config) + 1024)))
    blocks = math.prod(problem.y.shape[2:]) * problem.groups * slices / positions
    turns = math.ceil(blocks / (MULTIPROCESSORS * resident))
    filters = 2 * problem.w.shape[0] // problem.groups * config.channels * math.prod(problem.taps)
    busy = config.channels * math.prod(problem.taps) / (config.warps * config.rounds * TILE)
    slow = (1 + 0.15 * math.log2(8 / config.vec)) * max(1.0, 10 / (resident * config.warps)) ** 0.5
    own = (
        turns
        * positions
        * resident
        * filters
        / 4.5e4
        * slow
        * config.rounds**0.3
        * (0.5 + config.images / 16)
        / busy**2
    )
    return problem.w.size * 2 / 2.8e6 * slow + own + space_bytes(problem, config) / 8.0e6


def rank(problem: ConvProblem, config: InputsHalvesConfig) -> float:
    """Microseconds: the estimate that chooses the configuration, and what two launches take."""
    return 8 + _microseconds(problem, config)


def space_bytes(problem: ConvProblem, config: InputsHalvesConfig) -> int:
    """The boxes of all images."""
    pixels = math.prod(box_of(problem, config.tile)) * math.prod(tiles_of(problem, config.tile)) * problem.x.shape[1]
    return pixels * -(-problem.x.shape[0] // config.images) * config.images * 4


def room_of(problem: ConvProblem, config: InputsHalvesConfig) -> int:
    """Terms of a block, whole tiles."""
    return -(-config.channels * math.prod(problem.taps) // TILE) * TILE


def shared_bytes(problem: ConvProblem, config: InputsHalvesConfig) -> int:
    box = (config.channels + 1) * math.prod(box_of(problem, config.tile)) * config.images
    tops = math.prod(config.tile) * 8 * config.steps * config.images
    return 4 * (room_of(problem, config) + box + tops + config.warps * config.ahead * SLOT)


def kernel(dtype: str, config: InputsHalvesConfig) -> Kernel:
    config = replace(config, tile=(1, 1), channels=1)  # those are arguments

    def build() -> Callable[..., None]:
        from numbadnn.kernels import _unshared_inputs_halves

        return _unshared_inputs_halves.boxes(dtype, config)

    parameters = (
        "ptr ptr ptr i32 i32 i32 i32 i32 i32 i32 i32 i32 i32*2 i32*2 i32*2 i32*2 i32*2 i32 i32*2 i32 i64*3 i64*4"
    )
    name = f"unshared boxes halves {dtype} " + " ".join(str(int(v)) for v in astuple(config)[:7])
    return Kernel(name, parameters, build, config.threads, config.resident)


def plan(problem: ConvProblem, policy: Policy, config: InputsHalvesConfig) -> Executable:
    """Two launches."""
    dtype, device, w, box = problem.x.dtype, policy.device, problem.w, box_of(problem, config.tile)
    N, slices, tiles = problem.x.shape[0], -(-w.shape[3] // config.channels), tiles_of(problem, config.tile)
    chunks = -(-N // config.images)
    space = space_bytes(problem, config)
    first, second = kernel(dtype, config), unshared_inputs.collect_kernel(dtype, "float32", 4)
    scalars = (
        *(chunks, slices, problem.groups, 0, N, w.shape[0] // problem.groups, w.shape[3], config.channels, tiles[1]),
        *(config.tile, problem.y.shape[2:], problem.taps, problem.stride, problem.dilation, int(problem.flip)),
        *(box, room_of(problem, config), w.strides[:3], problem.y.strides),
    )
    grid = (math.prod(tiles) * problem.groups * slices * chunks, 1, 1)
    launch = first.prepare(device, grid, (config.threads, 1, 1), scalars, shared_bytes(problem, config))
    scalars, grid = unshared_inputs._collect_arguments(problem, config, "float32", chunks, 0, box)
    collected = second.prepare(device, grid, (unshared_inputs.COLLECTORS, 1, 1), scalars)
    direct = sequence("y w x space", [(launch, "y w space"), (collected, "space x")])

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        direct(stream, *inputs, *outputs, workspace)

    facts = {"kernel": first.name, "config": config}
    return Executable(run, space, "tensor_core", "run_to_run", facts, direct)


def kernels() -> Iterator[Kernel]:
    """Few images and many."""
    yield kernel("float16", InputsHalvesConfig(8, 5, 1, 2, 8, 2, 3))
    yield kernel("bfloat16", InputsHalvesConfig(32, 5, 1, 2, 4, 2, 1))
