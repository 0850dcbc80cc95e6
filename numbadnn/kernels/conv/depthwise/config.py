"""How ``numba.depthwise`` tiles a convolution: a thread's columns or channels and its strip of rows.

Widths follow from what is aligned, tiles from what the taps leave of the registers, strips from how many threads fill a GPU:
as measured on an H200.
"""

from __future__ import annotations

import math
from dataclasses import replace

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.problem import Spec
from numbadnn.problems.conv import ConvProblem

THREADS = 128
FINISHERS = 16  # threads that share an element of the weights' gradient in the second sum
#: threads that fill a GPU, fewer of those with more than MUCH elements; blocks that fill 132 multiprocessors twice over
ENOUGH_THREADS, ENOUGH_LARGE, MUCH, ENOUGH_BLOCKS = 1 << 17, 1 << 15, 8, 2 * 132 * 8


@dataclass(frozen=True, slots=True)
class Tile:
    """What a thread has of one output row; ``load`` and ``store``: elements an access of its operand may have."""

    channels_last: bool
    columns: int
    channels: int
    load: int
    store: int


@dataclass(frozen=True, slots=True)
class DepthwiseConfig:
    """``rows``: a strip's rows of y. For the weights' gradient ``lanes``: channel groups of a block, ``splits``: of positions."""

    taps: tuple[int, int]
    stride: tuple[int, int]
    left: int
    tile: Tile
    many: bool
    rows: int
    lanes: int = 1
    splits: int = 1
    resident: int = 1


def heuristic(problem: ConvProblem) -> DepthwiseConfig:
    """The widest aligned tile whose taps fit the registers; strips as measured on an H200, shorter where threads are few."""
    taps, (down, across) = pair(problem.taps), pair(problem.stride)
    weights, few = problem.direction == "grad_weights", math.prod(taps) <= 9
    many = problem.w.shape[0] > problem.groups
    tile = _tile(problem, taps, (down, across), many)
    N, K, P, Q = problem.y.shape
    lines, steps = N * K // tile.channels * -(-Q // tile.columns), P
    if problem.direction == "grad_inputs":
        lines, steps = (
            N * problem.x.shape[1] // tile.channels * -(-problem.x.shape[3] // tile.columns),
            complete(problem),
        )
    halves = problem.x.itemsize == 2 and tile.channels_last
    if weights:
        rows = 28 if few else 14
    else:
        rows = 28 if not few or halves or (down > 1 and problem.direction == "forward") else 7
    wanted = ENOUGH_LARGE if tile.columns * tile.channels > MUCH else ENOUGH_THREADS
    # many taps of 16-bit channels: what a strip reads above its first row costs more than idle multiprocessors
    shortest = rows if halves and not few and not weights else 4
    strips = max(1, -(-steps // rows), min(-(-wanted // lines), -(-steps // shortest)))
    lanes = splits = 1
    if weights:
        channel_groups = K // tile.channels
        while tile.channels_last and lanes < min(32, channel_groups):
            lanes *= 2
        items = N * -(-Q // tile.columns) * strips
        wanted = ENOUGH_BLOCKS // -(-channel_groups // lanes)
        splits = max(1, min(wanted, -(-items * lanes // THREADS), 65535))
    resident = _resident(problem, tile) if few else 1
    return DepthwiseConfig(
        taps, (down, across), problem.padding[1][0], tile, many, -(-steps // strips), lanes, splits, resident
    )


def space(problem: ConvProblem) -> list[DepthwiseConfig]:
    """Every configuration worth timing, the heuristic's first: other strips, and other tiles of 16-bit channels."""
    best = heuristic(problem)
    found = [best]
    for columns, channels in _tiles(problem, best):
        tile = replace(best.tile, columns=columns, channels=channels, load=channels, store=channels)
        found += [replace(best, tile=tile, rows=rows) for rows in (4, 7, 14, 28, 56)]
    return list(dict.fromkeys(found))


def _tiles(problem: ConvProblem, best: DepthwiseConfig) -> list[tuple[int, int]]:
    """(columns, channels) of tiles worth timing, the heuristic's first."""
    found = [(best.tile.columns, best.tile.channels)]
    few = math.prod(best.taps) <= 9
    if few and problem.x.itemsize == 2 and best.tile.channels_last and problem.direction != "grad_weights":
        widest = 1 if best.many else min(_aligned(problem.x, 1, 4), _aligned(problem.y, 1, 4))
        found += [tile for tile in ((4, 2), (2, 4), (4, 4)) if tile[1] <= widest]
    return list(dict.fromkeys(found))


def pair(values: tuple[int, ...]) -> tuple[int, int]:
    first, second = values
    return first, second


def _resident(problem: ConvProblem, tile: Tile) -> int:
    """Blocks a multiprocessor: fewer registers a thread and more threads, as far as nothing spills."""
    size, stride = problem.x.itemsize, problem.stride[1]
    if problem.direction == "grad_inputs" and size == 4 and stride == 1:
        return 5 if tile.channels_last else 8
    if problem.direction != "grad_weights":
        return 6 if size == 2 and not tile.channels_last else 1
    if stride > 1 or (size == 2 and tile.channels_last):
        return 1
    return {2: 6, 4: 8, 8: 1}[size]


def complete(problem: ConvProblem) -> int:
    """How many rows of y complete a row of the image: the steps of the gradient with respect to it."""
    top, down = problem.padding[0][0], problem.stride[0]
    return (problem.x.shape[2] - 1 + top) // down - top // down + 1


def _tile(problem: ConvProblem, taps: tuple[int, int], stride: tuple[int, int], many: bool) -> Tile:
    """Up to 16 bytes of the operand read; fewer where the taps need the registers or the memory is not aligned."""
    source, target = (problem.y, problem.x) if problem.direction == "grad_inputs" else (problem.x, problem.y)
    size, across = source.itemsize, stride[1]
    area = math.prod(taps) if taps[0] > 1 else min(math.prod(taps), 25)  # sums of one row at a time are few
    weights, grad_inputs = problem.direction == "grad_weights", problem.direction == "grad_inputs"
    if not channels_last(problem):
        most = {2: 8 if area <= 9 else 4, 4: 4, 8: 2}[size] if area <= 25 else 2 if size < 8 else 1
        if weights and across > 1 and area <= 9:
            most = min(most, 2 if size == 4 else 4)
        columns = max(_aligned(target, 3, most), across if grad_inputs else 1)
        reach = columns // across if grad_inputs else columns * across
        return Tile(False, columns, 1, _aligned(source, 3, min(reach, 16 // size)), _aligned(target, 3, columns))
    most, columns = (2, 4) if area <= 9 and size < 8 else (2, 2) if area <= 25 and size < 8 else (1, 2)
    if weights:
        most, columns = (2 if size == 2 and area <= 9 and across == 1 else 1), (4 if area <= 25 and size < 8 else 1)
    elif size == 2 and area <= 9:
        most = 4
    if grad_inputs and size == 4 and across > 1:
        most, columns = (2 if area <= 9 else 1), 2
    width = 1 if many else min(_aligned(source, 1, most), _aligned(target, 1, most))
    if width > 2 and across > 1 and not grad_inputs:
        columns = 2
    return Tile(True, max(columns, across if grad_inputs else 1), width, width, width)


def _aligned(spec: Spec, axis: int, most: int) -> int:
    """The largest power of two up to ``most`` that divides the extent along ``axis`` and every other stride."""
    width = most if spec.aligned else 1
    others = [s for i, s in enumerate(spec.strides) if i != axis and spec.shape[i] > 1]
    while width > 1 and any(v % width for v in (spec.shape[axis], *others)):
        width //= 2
    return width


def channels_last(problem: ConvProblem) -> bool:
    """Whether both images have neighbouring channels next to each other, rather than neighbouring columns."""
    return unit(problem, 1) and not unit(problem, 3)


def unit(problem: ConvProblem, axis: int) -> bool:
    return all(s.strides[axis] == 1 or s.shape[axis] == 1 for s in (problem.x, problem.y))
