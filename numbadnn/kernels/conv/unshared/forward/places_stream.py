"""``numba.unshared_places_stream``: 16-bit types, more tiles than multiprocessors; device code: ``device/places_stream.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from typing import Any

from numbadnn.kernels.build import tensormap as _tensormap
from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import LARGEST_CAPACITY
from numbadnn.kernels.conv.unshared.forward.f32x2 import LONGEST, shapes_of
from numbadnn.kernels.conv.unshared.forward.f32x2_config import box_at
from numbadnn.kernels.conv.unshared.forward.places_stream_config import ROWS, TERMS, StreamConfig
from numbadnn.kernels.conv.unshared.parts import transposed
from numbadnn.kernels.conv.unshared.parts.tile import (
    SHARED,
    blocks_of,
    facts_of_tile,
    on_hopper,
    receptive_field,
    takes,
    tiles_of,
    vector,
    wide_of,
)
from numbadnn.kernels.conv.unshared.parts.transposed import CELL, EIGHT, FETCH
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable

#: rows and columns of a tile, of twice 16 filters and of 16
TILES = {2: ((1, 8), (2, 4)), 1: ((2, 8), (4, 4))}
#: fewer terms were not measured
MOST_IMAGES, FEWEST_TERMS, MULTIPROCESSORS = 32, 128, 132
#: images, so few of which a block for each position is faster where half of the multiprocessors would have no tile
FEW = 8


def box_of(problem: ConvProblem, config: StreamConfig) -> tuple[int, int, int]:
    """Channels, rows and columns."""
    return (
        config.channels,
        receptive_field(problem, (config.tall, config.positions))[0],
        wide_of(problem, (config.tall, config.positions)),
    )


def box_bytes(problem: ConvProblem, config: StreamConfig) -> int:
    return config.planes * math.prod(box_of(problem, config)) * CELL


def box_pitch(problem: ConvProblem, config: StreamConfig) -> int:
    """Bytes from buffer to buffer."""
    return -(-box_bytes(problem, config) // 128) * 128


def capacity_of(problem: ConvProblem) -> int:
    """Of the table of terms: half a slot that begins before the last one is looked up whole, wherever the first slot begins."""
    return -(-(math.prod(problem.w.shape[3:]) + TERMS // 2 - 8) // TERMS) * TERMS


def shared_bytes(problem: ConvProblem, config: StreamConfig) -> int:
    """What aligns, barriers and rings; boxes; the table, zeros and sums."""
    boxes, sums = config.boxes * box_pitch(problem, config), config.warps * config.apart
    return 1024 + box_at(config) + boxes + CELL + 4 * (TERMS + capacity_of(problem) + sums)


def images_of(problem: ConvProblem, policy: Policy) -> int:
    """Images that a block keeps, whole vectors of eight; 0 where they or the options keep this from doing it."""
    w, N = problem.w, problem.x.shape[0]
    if not takes(problem, policy, "forward", 2) or not on_hopper(policy):
        return 0
    if not 0 < N <= MOST_IMAGES or math.prod(w.shape[3:]) < FEWEST_TERMS:
        return 0
    images = max(8, 1 << (N - 1).bit_length())
    return images if transposed.fits(problem, policy, images) else 0


def heuristic(problem: ConvProblem, policy: Policy) -> StreamConfig | None:
    """None where other kernels of ``numba.unshared`` are to do it."""
    K, C, images = problem.w.shape[0] // problem.groups, problem.w.shape[3], images_of(problem, policy)
    if not images or not ROWS <= K <= 2 * ROWS or not copied(problem):
        return None
    parts = -(-K // ROWS)
    tile = min(TILES[parts], key=lambda tile: math.prod(tiles_of(problem, tile)))
    vec = vector_of(problem, tile[1])
    tiles = math.prod(tiles_of(problem, tile)) * problem.groups
    if problem.x.shape[0] <= FEW and tiles < MULTIPROCESSORS // 2:
        return None
    for channels, depth, boxes in shapes_of(C, tiles):
        config = StreamConfig(images, *tile, parts, vec, depth, boxes, channels)
        if passes(problem, config):
            return config
    return None


def copied(problem: ConvProblem) -> bool:
    """Whether the copy engine can bring the filters: positions follow each other, by whole chunks of 16 bytes."""
    w = problem.w
    whole = vector(problem, w.shape[3]) * w.itemsize == CELL and all(0 < s * w.itemsize < 2**40 for s in w.strides[:3])
    return whole and w.strides[1] == w.strides[2] * w.shape[2]


def vector_of(problem: ConvProblem, positions: int) -> int:
    """Neighbouring results of a row that are written at once: 16 bytes of them, or one."""
    y, vec = problem.y, CELL // problem.y.itemsize
    rows = y.strides[3] == 1 and not any(s % vec for s in (*y.strides[:3], y.shape[3], positions))
    return vec if rows and y.aligned else 1


def passes(problem: ConvProblem, config: StreamConfig) -> bool:
    """Whether shared memory and a copy hold it, and all boxes that a slot's terms lie in may be there at once."""
    touched = (TERMS - 2) // (config.channels * math.prod(problem.taps)) + 2
    if config.boxes < min(touched, problem.w.shape[3] // config.channels):
        return False
    channels, tall, wide = box_of(problem, config)
    return shared_bytes(problem, config) <= LARGEST_CAPACITY and max(channels, tall, EIGHT * wide) <= LONGEST


def kernel(dtype: str, config: StreamConfig) -> Kernel:
    config = replace(config, channels=1)  # that is an argument

    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import places_stream

        return places_stream.forward(dtype, config)

    name = f"unshared places stream {dtype} " + " ".join(str(v) for v in astuple(config)[:-1])
    parameters = Arguments("map:2", "ptr", "i32 tiles wide box_pitch box_bytes", *SHARED)
    return Kernel(name, parameters, build, config.threads, 1, True)


def filters_map(problem: ConvProblem, device: int) -> Any:
    """Terms, filters, positions; a copy has 64 terms of 16 filters of a position."""
    w = problem.w
    extents = (math.prod(w.shape[3:]), w.shape[0], w.shape[1] * w.shape[2])
    how = extents, (w.itemsize * w.strides[0], w.itemsize * w.strides[2]), (TERMS, ROWS, 1)
    return _tensormap.described(device, w.dtype, how, fetch=FETCH)


def plan(problem: ConvProblem, policy: Policy, config: StreamConfig) -> Executable:
    chosen, device, box = kernel(problem.x.dtype, config), policy.device, box_of(problem, config)
    images = transposed.cells_map(problem, config.images, box, device)
    tiles = blocks_of(problem, config)
    grid, block = (min(tiles, MULTIPROCESSORS), 1, 1), (config.threads, 1, 1)
    scalars = chosen.values(
        facts_of_tile(problem, config),
        tiles=tiles,
        wide=box[2],
        box_pitch=box_pitch(problem, config),
        box_bytes=box_bytes(problem, config),
        capacity=capacity_of(problem),
    )
    values = (images, filters_map(problem, device), *scalars)
    launch = chosen.prepare(device, grid, block, values, shared_bytes(problem, config))
    facts = {"kernel": chosen.name, "config": config}
    return transposed.executable(problem, policy, config.images, launch, "tensor_core", facts, cells=True)


def hopper_kernels() -> Iterator[Kernel]:
    yield kernel("float16", StreamConfig(32, 1, 8, 2, 8, 3, 2, 1))
    yield kernel("bfloat16", StreamConfig(8, 4, 4, 1, 1, 3, 3, 1))
