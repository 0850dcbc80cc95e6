"""``numba.unshared_inputs_twofold``: float32 grad_inputs as two float16 (``lang/scaled_halves.py``), which tiles, their plans.

A block cuts the values of y of its positions itself, a row of them at a time. Filters of more rows than registers hold sums of
are ``rows.py``'s. The device code is in ``device/f32x2.py``; a second kernel adds the boxes (``f32x2_boxes.py``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel, sequence
from numbadnn.kernels.build.machine import LARGEST_CAPACITY
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.conv.unshared.forward.f32x2 import floor_of, spread_of
from numbadnn.kernels.conv.unshared.inputs import rows as unshared_inputs_rows
from numbadnn.kernels.conv.unshared.inputs.f32x2_boxes import (
    blocks_of,
    box_of,
    boxes_bytes,
    reduce_kernel,
    reducing_boxes,
)
from numbadnn.kernels.conv.unshared.inputs.f32x2_config import (
    AHEAD,
    AHEAD_OF_SUMS,
    CHUNKS,
    EIGHT,
    FILLERS,
    LEAST_DEPTH,
    MOST_DEPTH,
    MOST_WARPS,
    OTHERS,
    PIECE,
    RINGS,
    InputsF32x2Config,
)
from numbadnn.kernels.conv.unshared.inputs.rows_config import rank as rank_of_rows
from numbadnn.kernels.conv.unshared.parts.tile import facts_of, on_hopper, receptive_field, takes, vector
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

FEWEST_IMAGES, MOST_IMAGES, FEWEST_FILTERS, MOST_TAPS, MULTIPROCESSORS = 9, 32, 4, 16, 132
#: of a grid's second and third dimension
MOST_BLOCKS = 65535
#: cycles of a quarter of a multiprocessor for a tap of eight channels and what belongs to it, for a column of taps, for a
#: slot
TAP, COLUMN_OF_TAPS, PASSING = 75, 100, 60
#: cycles of a copy of a filter; of a position whose values of y are copied one by one
COPYING, UNALIGNED = 90, 2000


def _suits(problem: ConvProblem, policy: Policy) -> bool:
    """Whether it is a gradient of so many images, by filters that these kernels are made for."""
    w, K = problem.w, problem.w.shape[0] // problem.groups
    if not takes(problem, policy, "grad_inputs", 4) or not on_hopper(policy):
        return False
    if not FEWEST_IMAGES <= problem.x.shape[0] <= MOST_IMAGES or K < FEWEST_FILTERS or max(problem.taps) > MOST_TAPS:
        return False
    if any(step > n for step, n in zip(problem.stride, problem.taps, strict=True)) or problem.dilation != (1, 1):
        return False
    return max(problem.x.shape[1], w.shape[0]) <= MOST_BLOCKS


def heuristic(problem: ConvProblem, policy: Policy) -> InputsF32x2Config | None:
    """The least estimate of what fits; None where sums on threads are estimated faster, or it cannot be done.

    Of the four problems known whose estimate is up to 1.1 times the other's, the other was faster in each (H200).
    """
    found = candidates(problem) if _suits(problem, policy) and _spread(problem) else []
    if not found:
        return None
    us, best = min(found, key=lambda pair: pair[0])
    other = unshared_inputs_rows.heuristic(problem, policy)
    if other and us > rank_of_rows(problem, other):
        return None
    return best if boxes_bytes(problem, best) <= min(policy.workspace_limit, LIMIT32) else None


@functools.lru_cache(256)
def candidates(problem: ConvProblem) -> list[tuple[float, InputsF32x2Config]]:
    """(estimated microseconds, configuration) of all that fit."""
    C, (P, Q), found = problem.w.shape[3], problem.y.shape[2:], []
    for channels in sorted({-(-C // parts) for parts in (1, 2, 4, 8)}):
        if vector(problem, channels, 4) < 4:
            continue  # a line of filters is copied 16 bytes at a time
        for columns in (n for n in range(1, min(Q, MOST_WARPS) + 1) if Q % n == 0):
            beside = Q // columns * problem.groups * -(-C // channels)
            for rows in {min(P, -(-P * beside // (MULTIPROCESSORS * waves))) for waves in (1, 2, 3)}:
                tried = (configured(problem, (rows, columns), channels, vectors) for vectors in (1, 2))
                found += [(rank(problem, config), config) for config in tried if config]
    return found


def configured(
    problem: ConvProblem, tile: tuple[int, int], channels: int, vectors: int, depth: int = 0
) -> InputsF32x2Config | None:
    """With as many slots as fit, if not said how many."""
    images, K = max(16, 1 << (problem.x.shape[0] - 1).bit_length()), problem.w.shape[0] // problem.groups
    warps = receptive_field(problem, tile)[1] * -(-channels // (EIGHT * vectors))
    taps, stride, y = (problem.taps[0], problem.taps[1]), (problem.stride[0], problem.stride[1]), problem.y
    rows = y.aligned and y.strides[3] == 1 and not any(s % 4 for s in (*y.strides[:3], tile[1]))
    shape = (bool(problem.flip), K % PIECE > 0, vectors, tile[1], 4 if rows else 1, CHUNKS, tile[0], channels)
    config = InputsF32x2Config(images, warps, taps, stride, 0, *shape)
    slot = PIECE * pitch_of(problem, channels)
    depth = depth or min(MOST_DEPTH, (LARGEST_CAPACITY - shared_bytes(problem, config)) // slot)
    fits = warps <= MOST_WARPS and taps[0] * vectors * config.of_vector + OTHERS <= min(config.registers, config.begun)
    return replace(config, depth=depth) if fits and depth >= LEAST_DEPTH else None


def pitch_of(problem: ConvProblem, channels: int) -> int:
    """Bytes from one filter's line in a slot to the next: neighbours begin in other banks, and 32 bytes as they do in memory.

    A copy is the faster the more its two ends have in common.
    """
    length = channels * math.prod(problem.taps) * 4
    return length + (32 - length) % 128


def shared_bytes(problem: ConvProblem, config: InputsF32x2Config) -> int:
    of_y = config.chunks * config.positions * config.of_y + FILLERS * AHEAD * config.raw_bytes
    return RINGS + config.depth * PIECE * pitch_of(problem, config.channels) + of_y


def rank(problem: ConvProblem, config: InputsF32x2Config) -> float:
    """An estimate from an H200: launches, what copies of filters, memory or products take, boxes written and added."""
    K, taps, blocks = problem.w.shape[0] // problem.groups, config.taps, blocks_of(problem, config)
    waves, positions = -(-blocks // MULTIPROCESSORS), config.rows * config.positions
    column = taps[0] * config.vectors * TAP * config.tiles / 2 + COLUMN_OF_TAPS
    units = -(-config.channels // (EIGHT * config.vectors))
    multiplying = (taps[1] * units * column + config.warps * PASSING) / 4
    passed = (
        positions * -(-K // PIECE) * max(multiplying, PIECE * COPYING)
        + (UNALIGNED if config.vec == 1 else 0) * positions
    )
    stream = (problem.w.size + problem.y.size) * 4 / 3.9e6
    boxes = blocks * math.prod(box_of(problem, config)) * config.channels * config.images * 4
    return 5 + max(waves * passed / 1755, stream) + boxes / 1.6e6


def kernel(config: InputsF32x2Config) -> Kernel:
    config = replace(config, rows=1, channels=1)  # those are arguments

    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.inputs.device import f32x2

        return f32x2.boxes(config)

    numbers = (config.images, config.warps, *config.taps, *config.stride, *astuple(config)[4:11])
    name = "unshared inputs twofold " + " ".join(str(int(v)) for v in numbers)
    parameters = Arguments(
        *(
            "ptr:3",
            "i32 slices groups N K C channels",
            "i32*2 tile output",
            "i32 pitch",
            "i32*2 box",
            "i32 floor spread",
        ),
        *("i64*3 w_steps", "i64*4 y_strides"),
    )
    return Kernel(name, parameters, build, config.threads)


def plan(problem: ConvProblem, policy: Policy, config: InputsF32x2Config) -> Executable:
    """Boxes and their sums, which start before those have ended."""
    first, spread = kernel(config), _spread(problem)
    scalars = first.values(
        facts_of(problem),
        slices=-(-problem.w.shape[3] // config.channels),
        channels=config.channels,
        tile=config.tile,
        pitch=pitch_of(problem, config.channels),
        box=box_of(problem, config),
        floor=floor_of(spread),
        spread=spread,
        w_steps=tuple(4 * step for step in problem.w.strides[:3]),
    )
    grid, block = (blocks_of(problem, config), 1, 1), (config.threads, 1, 1)
    launch = first.prepare(policy.device, grid, block, scalars, shared_bytes(problem, config))
    steps = [(launch, "y w space"), (reducing_boxes(problem, policy, config), "space x y w")]
    facts = {"kernel": first.name, "config": config}
    return around(sequence("y w x space", steps), facts, boxes_bytes(problem, config), "ieee", "run_to_run", SEQUENCE)


def _spread(problem: ConvProblem) -> int:
    """Of as many terms as inner pixels have, less what the last filters' products leave empty: each is an addition as well."""
    K = problem.w.shape[0] // problem.groups
    reached = math.prod(taps // step for taps, step in zip(problem.taps, problem.stride, strict=True))
    return spread_of(K * reached - reached * (-(-K // PIECE) - K // PIECE))


def hopper_kernels() -> Iterator[Kernel]:
    """Filters of several sizes, as many images as a product has and twice as many."""
    far = (1, 1)
    yield kernel(InputsF32x2Config(32, 12, (3, 3), far, 7, False, False, 2, 4, 4))
    yield kernel(InputsF32x2Config(32, 12, (5, 5), far, 5, True, False, 1, 2, 1))
    yield kernel(InputsF32x2Config(16, 9, (7, 7), (2, 2), 6, False, True, 1, 2, 1))
    yield from (reduce_kernel(images, ahead) for images in (16, 32) for ahead in AHEAD_OF_SUMS)
