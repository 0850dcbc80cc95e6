"""``numba.unshared_twofold``: 9 to 32 float32 images on tensor cores; device code: ``device/f32x2.py``.

A launch has up to 32 filters of each group; of one group there may be several launches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from typing import Any

from numbadnn.kernels.build import tensormap as _tensormap
from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel, reciprocal, sequence
from numbadnn.kernels.build.machine import LARGEST_CAPACITY
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.conv.unshared.forward.f32x2_config import (
    FILTERS,
    IMAGES,
    LOOKS,
    PIECE,
    PIXEL,
    TRANSPOSED,
    TRANSPOSED_PIXELS,
    TRANSPOSERS,
    TRANSPOSING,
    F32x2Config,
    box_at,
)
from numbadnn.kernels.conv.unshared.parts.tile import (
    SHARED,
    blocks_of,
    facts_of_tile,
    on_hopper,
    receptive_field,
    takes,
    tiles_of,
)
from numbadnn.kernels.conv.unshared.parts.transposed import FETCH
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

#: boxes of a block's only tile
BOXES = 4
#: rows and columns of a tile; terms and positions times filters of a warp: of fewer, start and end outweigh
TILES, FEWEST_TERMS, ENOUGH_TASKS = ((1, 8), (2, 4)), 128, 512
#: fewer leave most of a product idle; more filters were not measured
FEWEST_IMAGES, MOST_FILTERS = 9, 16 * FILTERS
#: of an axis of a copy's box; exponents of a block, more of which a float16 that is not 0 cannot tell
LONGEST, MOST_SPREAD = 256, 39
MULTIPROCESSORS = 132


def spread_of(k: int) -> int:
    """Exponents from the least number that may be to the largest of a block; 0 where sums are too short for their bound.

    As in ``conv/line/f32x2.py``, with the two instructions of a slot between two additions. Each slot adds one more, for its
    scale may differ, and so do terms that warps share.

    >>> [spread_of(k) for k in (84, 85, 288, 1296, 25600)]
    [0, 28, 33, 36, 39]
    """
    spare = k - 79 - k / 32 - k / 32 - k / 128
    return min(MOST_SPREAD, 28 + int(math.log2(spare / 4 + 1))) if spare >= 0 else 0


def floor_of(spread: int) -> int:
    """The least upper half that a filter of the scale may have, as float16, twice in a word.

    >>> hex(floor_of(28)), hex(floor_of(MOST_SPREAD))
    ('0x8000800', '0x10001')
    """
    return (0x0800 >> (spread - 28)) * 0x10001


def box_of(problem: ConvProblem, config: F32x2Config) -> int:
    """Bytes of a box."""
    return config.channels * math.prod(receptive_field(problem, (config.tall, config.positions))) * PIXEL


def capacity_of(problem: ConvProblem) -> int:
    """Of the table of terms."""
    return -(-math.prod(problem.w.shape[3:]) // PIECE) * PIECE


def shared_bytes(problem: ConvProblem, config: F32x2Config) -> int:
    boxes, sums = config.boxes * box_of(problem, config), 4 * config.of_turn * config.pitch
    return 1024 + box_at(config) + 4 * capacity_of(problem) + boxes + sums


def heuristic(problem: ConvProblem, policy: Policy) -> F32x2Config | None:
    """None where other kernels of ``numba.unshared`` are to do it."""
    if not takes(problem, policy, "forward", 4) or not on_hopper(policy):
        return None
    if not problem.groups * FILTERS <= problem.w.shape[0] <= MOST_FILTERS * problem.groups:
        return None
    problem = slices_of(problem)[0][1]
    w, K = problem.w, problem.w.shape[0] // problem.groups
    if problem.dilation != (1, 1) or not FEWEST_IMAGES <= problem.x.shape[0] <= IMAGES:
        return None
    if K > 2 * FILTERS or math.prod(w.shape[3:]) < FEWEST_TERMS or not _copied(problem):
        return None
    if not _dense(problem.x) or space_bytes(problem) > min(policy.workspace_limit, LIMIT32):
        return None
    if math.prod(problem.y.shape[2:]) * problem.groups * -(-K // FILTERS) < ENOUGH_TASKS:
        return None
    parts, C = -(-K // FILTERS), w.shape[3]
    tile = min(TILES, key=lambda tile: math.prod(tiles_of(problem, tile)))
    for channels, depth, boxes in shapes_of(C, math.prod(tiles_of(problem, tile)) * problem.groups):
        config = F32x2Config(*tile, parts, 2 // parts, depth, boxes, channels)
        if _passes(problem, config):
            return config
    return None


def slices_of(problem: ConvProblem) -> list[tuple[int, ConvProblem]]:
    """What each launch has, from which filter on: about as many as the next one, of one group up to 32."""
    K = problem.w.shape[0]
    size = K if problem.groups > 1 else -(-K // -(-K // (2 * FILTERS)))

    def of(first: int) -> ConvProblem:
        count = min(size, K - first)
        w, y = problem.w, problem.y
        return replace(
            problem,
            w=replace(w, shape=(count, *w.shape[1:])),
            y=replace(y, shape=(y.shape[0], count, *y.shape[2:])),
        )

    return [(first, of(first)) for first in range(0, K, size)]


def shapes_of(C: int, tiles: int) -> Iterator[tuple[int, int, int]]:
    """Channels of a box, slots of a ring and boxes, the best first.

    With several tiles a block copies what the next one needs while it multiplies one: then a tile has several boxes, and the
    buffer of the first is free before its end. With one tile each box has a buffer, and the first is multiplied while the others
    come.
    """
    counts = [c for c in range(C, 0, -1) if C % c == 0]
    if tiles > MULTIPROCESSORS:
        yield from ((c, depth, boxes) for depth in (3, 2) for boxes in (2, 3) for c in counts if c * boxes <= C)
    else:
        yield from ((c, depth, BOXES) for depth in (3, 2) for c in counts if c * BOXES == C)
    for c, depth, boxes in itertools.product(counts, (3, 2), (3, 2)):
        yield c, depth, min(boxes, C // c)


def _passes(problem: ConvProblem, config: F32x2Config) -> bool:
    """Whether shared memory and a copy hold it, and all boxes that a slot's terms lie in may be there at once."""
    box_terms = config.channels * math.prod(problem.taps)
    if config.splits > 1 and box_terms <= PIECE:
        return False  # a warp would leave boxes of the others' terms that it has not awaited
    touched = (PIECE - 2) // box_terms + 2
    if config.boxes < min(touched, problem.w.shape[3] // config.channels):
        return False
    if shared_bytes(problem, config) > LARGEST_CAPACITY:
        return False
    return max(config.channels, *receptive_field(problem, (config.tall, config.positions))) <= LONGEST


def _copied(problem: ConvProblem) -> bool:
    """Whether the copy engine can bring the filters: positions follow each other."""
    w = problem.w
    _, step_p, step_q = w.strides[:3]
    fits = w.aligned and all(0 < step * 4 < 2**40 and step % 4 == 0 for step in w.strides[:3])
    return fits and step_p == step_q * w.shape[2] and math.prod(w.shape[3:]) < LIMIT32


def _dense(x: Spec) -> bool:
    """Whether its numbers follow each other in memory, in whatever order."""
    return x.span == (0, math.prod(x.shape) - 1) and 0 not in x.strides


def space_bytes(problem: ConvProblem) -> int:
    return TRANSPOSED + math.prod(problem.x.shape[1:]) * PIXEL


def kernel(config: F32x2Config) -> Kernel:
    config = replace(config, channels=1)  # that is an argument

    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import f32x2

        return f32x2.forward(config)

    name = "unshared twofold " + " ".join(str(v) for v in astuple(config)[:6])
    parameters = Arguments("map:2", "ptr:4", "i32 tiles floor spread", *SHARED)
    return Kernel(name, parameters, build, config.threads, 1, True)


def transpose_kernel(vec: int) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import f32x2_transpose

        return f32x2_transpose.transpose(vec)

    parameters = "ptr ptr ptr i32 i32 i32 i32 i64*2 i64*2 i32*2 i32*2 i32 i32 i64*4"
    return Kernel(f"unshared twofold transpose {vec}", parameters, build, TRANSPOSERS, TRANSPOSING)


def filters_map(problem: ConvProblem, device: int) -> Any:
    """Terms, filters, positions; a copy has 32 terms of 16 filters of a position."""
    w = problem.w
    extents = (math.prod(w.shape[3:]), w.shape[0], w.shape[1] * w.shape[2])
    how = extents, (4 * w.strides[0], 4 * w.strides[2]), (PIECE, FILTERS, 1)
    return _tensormap.described(device, "float32", how, fetch=FETCH)


def images_map(problem: ConvProblem, config: F32x2Config, device: int) -> Any:
    """Words of a pixel, columns, rows, channels; a copy has a box, with zeros outside the image."""
    _, C, H, W = problem.x.shape
    tall, wide = receptive_field(problem, (config.tall, config.positions))
    strides = (PIXEL, W * PIXEL, H * W * PIXEL)
    how = (PIXEL // 4, W, H, C), strides, (PIXEL // 4, wide, tall, config.channels)
    return _tensormap.described(device, "float32", how, swizzled=False, fetch=FETCH)


def plan(problem: ConvProblem, policy: Policy, config: F32x2Config) -> Executable:
    chosen, device = kernel(config), policy.device
    spread, transposed = spread_of(math.prod(problem.w.shape[3:])), f"space+{TRANSPOSED}"
    steps = [(_transposing(problem, device, spread), f"x space {transposed}")]
    for first, one in slices_of(problem):
        launch = _launch(one, config, chosen, device, spread)
        w, result = (
            f"{name}+{4 * first * step}" for name, step in (("w", one.w.strides[0]), ("result", one.y.strides[1]))
        )
        steps.append((launch, f"{w} {transposed} x {w} space {result}"))
    facts = {"kernel": chosen.name, "config": config}
    return around(sequence("x w result space", steps), facts, space_bytes(problem), "ieee", "run_to_run", SEQUENCE)


def _launch(problem: ConvProblem, config: F32x2Config, chosen: Kernel, device: int, spread: int) -> Any:
    tiles, filters = blocks_of(problem, config), filters_map(problem, device)
    own = {"tiles": tiles, "floor": floor_of(spread), "spread": spread, "capacity": capacity_of(problem)}
    scalars = chosen.values(facts_of_tile(problem, config), **own)
    values = (filters, images_map(problem, config, device), *scalars)
    grid, block = (min(tiles, MULTIPROCESSORS), 1, 1), (config.threads, 1, 1)
    return chosen.prepare(device, grid, block, values, shared_bytes(problem, config))


def _transposing(problem: ConvProblem, device: int, spread: int) -> Any:
    """The launch that cuts the images, by the scale of some of their numbers."""
    x, (N, C, H, W) = problem.x, problem.x.shape
    vec = 4 if x.aligned and math.prod(x.shape) % 4 == 0 else 1
    count = math.prod(x.shape) // vec
    looked = (count, -(-count // (LOOKS * TRANSPOSERS)))
    values = (N, C * H * W, reciprocal(H), reciprocal(W), (H, W), problem.taps, int(problem.flip), spread, x.strides)
    grid = (min(-(-C * H * W // TRANSPOSED_PIXELS), TRANSPOSING * MULTIPROCESSORS), 1, 1)
    return transpose_kernel(vec).prepare(device, grid, (TRANSPOSERS, 1, 1), (*looked, *values))


def hopper_kernels() -> Iterator[Kernel]:
    yield kernel(F32x2Config(1, 8, 2, 1, 3, 3, 1))
    yield kernel(F32x2Config(1, 8, 1, 2, 3, 3, 1))
    yield transpose_kernel(4)
    yield transpose_kernel(1)
