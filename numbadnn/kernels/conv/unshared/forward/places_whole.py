"""Unshared convolutions of 16-bit types whose tiles fit shared memory with all their filters; see ``device/places_whole.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace

from numbadnn.gpu import driver as _driver
from numbadnn.kernels.build import simulate
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import LARGEST_ROOM
from numbadnn.kernels.conv.unshared.forward.places_many_config import ROWS
from numbadnn.kernels.conv.unshared.forward.places_whole_config import BARRIERS, CELL, PIECE, WholeConfig
from numbadnn.kernels.conv.unshared.parts import turned as unshared_turned
from numbadnn.kernels.conv.unshared.parts.tile import (
    PARAMETERS,
    blocks_of,
    free_order,
    scalars,
    seen_of,
    tiles_of,
    vector,
    wide_of,
)
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable

#: rows and columns of a tile
TILES = ((1, 8), (2, 4))
#: nearly one tile for each multiprocessor: of more the next would be asked for when one is done; fewer terms were not measured
MOST_IMAGES, FEWEST_TERMS, HOPPER, ENOUGH_TILES, MULTIPROCESSORS = 32, 128, (9, 0), 96, 132


def plane_words(problem: ConvProblem, config: WholeConfig) -> int:
    """Of a box of eight images, and a cell of zeros behind it."""
    tall, _ = seen_of(problem, (config.tall, config.places))
    return (config.channels * tall * wide_of(problem, (config.tall, config.places)) + 1) * CELL // 4


def pitch_of(problem: ConvProblem, config: WholeConfig) -> int:
    """Bytes between filters: so many that neighbours meet all banks."""
    return config.tall * config.places * math.prod(problem.w.shape[3:]) * 2 | CELL


def room_of(problem: ConvProblem) -> int:
    """Of the table of terms."""
    return -(-math.prod(problem.w.shape[3:]) // PIECE) * PIECE


def shared_bytes(problem: ConvProblem, config: WholeConfig) -> int:
    """The table, barriers, and either filters and images or sums."""
    filters = config.parts * ROWS * pitch_of(problem, config) + 2 * PIECE
    held = filters + 4 * config.planes * plane_words(problem, config)
    sums = 4 * config.tall * config.places * config.place_pitch
    return 4 * room_of(problem) + BARRIERS + max(held, sums)


def images_of(problem: ConvProblem, policy: Policy) -> int:
    """Images that have a place, whole eights; 0 for what keeps both this and ``unshared_places_stream`` from doing it."""
    w, N = problem.w, problem.x.shape[0]
    if not problem.unshared or problem.direction != "forward" or w.itemsize != 2 or simulate.active():
        return 0
    if not free_order(problem, policy) or not 0 < N <= MOST_IMAGES or math.prod(w.shape[3:]) < FEWEST_TERMS:
        return 0
    if policy.device >= 0 and _driver.compute_capability(policy.device) != HOPPER:
        return 0
    images = max(8, 1 << (N - 1).bit_length())
    return images if unshared_turned.fits(problem, policy, images) else 0


def heuristic(problem: ConvProblem, policy: Policy) -> WholeConfig | None:
    """None where other kernels of ``numba.unshared`` are to do it."""
    w, K, images = problem.w, problem.w.shape[0] // problem.groups, images_of(problem, policy)
    if not images or not ROWS < K <= 2 * ROWS or not copied(problem):
        return None
    tile = min(TILES, key=lambda tile: math.prod(tiles_of(problem, tile)))
    config = WholeConfig(images, *tile, -(-K // ROWS), vector_of(problem, tile), w.shape[3])
    fits = ENOUGH_TILES <= blocks_of(problem, config) <= MULTIPROCESSORS
    return config if fits and shared_bytes(problem, config) <= LARGEST_ROOM else None


def vector_of(problem: ConvProblem, tile: tuple[int, int]) -> int:
    """Neighbouring results that are written at once: all of a row, or one."""
    y, whole = problem.y, tile[1] * problem.y.itemsize == CELL
    rows = y.strides[3] == 1 and not any(s % tile[1] for s in (*y.strides[:3], y.shape[3]))
    return tile[1] if whole and rows and y.aligned else 1


def copied(problem: ConvProblem) -> bool:
    """Whether neighbouring positions of a filter are one copy of whole pieces of 16 bytes."""
    w = problem.w
    return vector(problem, w.shape[3]) * w.itemsize == CELL and w.strides[2] == math.prod(w.shape[3:])


def kernel(dtype: str, config: WholeConfig) -> Kernel:
    config = replace(config, channels=1)  # that is an argument

    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import places_whole as _unshared_places_whole

        return _unshared_places_whole.forward(dtype, config)

    name = f"unshared places whole {dtype} " + " ".join(str(v) for v in astuple(config)[:-1])
    return Kernel(name, f"ptr ptr ptr i32 i32 i32 {PARAMETERS}", build, config.threads, 1, True)


def plan(problem: ConvProblem, policy: Policy, config: WholeConfig) -> Executable:
    chosen = kernel(problem.x.dtype, config)
    turned = unshared_turned.strides(problem.x.shape, config.images)
    sizes = wide_of(problem, (config.tall, config.places)), plane_words(problem, config), pitch_of(problem, config)
    told = scalars(problem, config, room_of(problem), turned)
    grid, block = (blocks_of(problem, config), 1, 1), (config.threads, 1, 1)
    launch = chosen.prepare(policy.device, grid, block, (*sizes, *told), shared_bytes(problem, config))
    facts = {"kernel": chosen.name, "config": config}
    return unshared_turned.executable(problem, policy, config.images, launch, "tensor_core", "run_to_run", facts)


def hopper_kernels() -> Iterator[Kernel]:
    yield kernel("float16", WholeConfig(32, 1, 8, 2, 8, 1))
    yield kernel("bfloat16", WholeConfig(8, 2, 4, 2, 1, 1))
