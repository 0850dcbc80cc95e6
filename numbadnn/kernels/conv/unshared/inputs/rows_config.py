"""Tiles of ``rows.py``: which ones fit registers and shared memory, and an estimate of the time of each.

``rows.py`` says when they are taken.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from numbadnn.kernels.build.machine import LARGEST_CAPACITY
from numbadnn.kernels.conv.unshared.inputs.rows_sizes import (
    COPY,
    EIGHT,
    LANES,
    OTHERS,
    ROWS,
    RowsConfig,
    blocks_of,
    boxes_bytes,
    shared_bytes,
    slot_of,
)
from numbadnn.kernels.conv.unshared.parts.tile import vector
from numbadnn.problems.conv import ConvProblem

#: bytes of the rings of a multiprocessor, which keep memory busy
RING = 112 * 1024
#: the same of a ring that a warp of its own fills, by bytes of an element, and its fewest pieces: more were slower on an H200
PREFETCHED_RING, PREFETCHED_DEPTH = {2: 126 * 1024, 4: 84 * 1024}, 4
MOST_DEPTH, MOST_PLACES, MOST_ROWS, MOST_DEEP = 8, 8, 16, 4
LEAST_DEPTH, MULTIPROCESSORS, MANY = 5, 132, 16
#: images from which on y's values are transposed before, where a block has many positions
TRANSPOSED = 16
#: bytes of boxes in a microsecond, written and reduced, by bytes of an element
BOXES = {2: 1.5e6, 4: 1.3e6}
#: cycles of a warp for a piece that is not for it
PASSING = 40


class Parts(NamedTuple):
    """How a lane multiplies: device functions, sums of a column that it has, and bytes of y's values of a piece of filters.

    ``fill(shared, tops, pitch, y, strides, N, K, positions, wide)`` brings y to shared memory, ``pitch`` bytes a position;
    ``place(unit, pitch, have, of_channel)`` is where a lane of the ``unit``-th warp of a row begins in filters and in y's values;
    ``multiply(first)`` makes ``run(total, shared, at_w, at_y, pitch, left, zeros)``, which adds to the sums from ``first`` on
    what a row of taps gives of up to a piece of filters; ``write(total, space, unit, area, have)`` writes a row of pixels.
    """

    fill: Callable[..., None]
    place: Callable[..., tuple[Any, Any]]
    multiply: Callable[[int], Callable[..., None]]
    write: Callable[..., None]
    sums: int
    of_piece: int


@functools.lru_cache(256)
def candidates(problem: ConvProblem) -> list[tuple[float, RowsConfig]]:
    """(estimated microseconds, configuration) of all that fit."""
    C, (P, Q), once = problem.w.shape[3], problem.y.shape[2:], 16 // problem.w.itemsize
    downs = sorted({-(-P // -(-P // n)) for n in range(1, MOST_ROWS + 1)})
    acrosses = sorted({-(-Q // -(-Q // n)) for n in range(1, MOST_PLACES + 1)})
    found = []
    for channels in sorted({-(-C // parts) for parts in (1, 2, 4, 8)}):
        if vector(problem, channels, once) < once:
            continue  # a line of filters is copied 16 bytes at a time
        tiles = itertools.product(downs, acrosses)
        for tile, own, deep in itertools.product(tiles, owns(problem, channels), range(1, MOST_DEEP + 1)):
            if config := fitted(problem, tile, channels, own, deep):
                found.append((rank(problem, config), config))
    return found


def owns(problem: ConvProblem, channels: int) -> list[int]:
    """Images of a thread that are tried: those that leave no lanes without a channel; 0 on tensor cores."""
    if problem.w.itemsize == 2:
        return [0]
    images = 1 << (problem.x.shape[0] - 1).bit_length()
    return [
        own for own in (1, 2, 4, 8, 16) if own <= images and (own == 1 or LANES * own // images <= max(channels, EIGHT))
    ]


def fitted(problem: ConvProblem, tile: tuple[int, int], channels: int, own: int, deep: int = 1) -> RowsConfig | None:
    """With two blocks on a multiprocessor where there are enough and they fit, and a ring of ``RING`` bytes for both."""
    if deep > tile[0] or (deep > 1 and problem.x.shape[0] <= EIGHT and math.prod(tile) < MANY):
        return None  # what groups of rows save is less than the passing by costs
    for resident in (2, 1):
        config = configured(problem, tile, channels, 2, resident, own, deep)
        if resident == 2 and blocks_of(problem, config) <= MULTIPROCESSORS:
            continue
        capacity = LARGEST_CAPACITY if resident == 1 else LARGEST_CAPACITY // 2 - 1024
        least, ring = 2 if deep == 1 else LEAST_DEPTH, RING
        if config.prefetched:
            least, ring = PREFETCHED_DEPTH, PREFETCHED_RING[problem.w.itemsize]
        depth = min(MOST_DEPTH, max(least, ring // resident // slot_of(problem, config)))
        fits = [
            c for c in (replace(config, depth=n) for n in range(2, depth + 1)) if shared_bytes(problem, c) <= capacity
        ]
        if fits and config.sums + OTHERS <= config.registers:
            return fits[-1]
    return None


def configured(
    problem: ConvProblem,
    tile: tuple[int, int],
    channels: int,
    depth: int,
    resident: int = 1,
    own: int = 0,
    deep: int = 1,
) -> RowsConfig:
    """As many warps as ``channels`` of every row of taps need."""
    kept, K = 1 << (problem.x.shape[0] - 1).bit_length(), problem.w.shape[0] // problem.groups
    images, taps = max(16, kept) if own == 0 else kept, (problem.taps[0], problem.taps[1])
    units = -(-channels // (EIGHT if own == 0 else LANES * own // images))
    turns, piece = -(-channels * math.prod(taps) * problem.w.itemsize // (LANES * 16)), ROWS
    if own and deep > 1:  # so that a ring has some for every row of a group
        piece = ROWS // 2 if turns < 9 else ROWS // 4
    stride, flip = (problem.stride[0], problem.stride[1]), bool(problem.flip)
    many, ragged = math.prod(tile) >= MANY, K % piece > 0
    shape = (tile[1], stride, deep, depth, piece, turns, -(-K // piece), flip, ragged, resident, many, own)
    even = problem.y.shape[3] % tile[1] == 0
    found = RowsConfig(images, kept, 0, taps, *shape, False, even, rows=tile[0], channels=channels)
    found = replace(found, warps=found.high * units)
    # tensor cores would multiply what lies behind the last filter's values
    found = replace(found, transposed=found.prefetched and kept >= TRANSPOSED and not (ragged and own == 0))
    return found if own else laid_out(problem, found)


def laid_out(problem: ConvProblem, config: RowsConfig) -> RowsConfig:
    """With filters where bulk copies bring them fastest: the two ends of one should have up to 128 bytes' place in common.

    That takes a pitch that differs from the filters' distance in memory by a multiple of those; and of such pitches, one by
    which no more than two lanes meet in a bank of shared memory.
    """
    of_channel = math.prod(config.taps) * problem.w.itemsize
    length = config.channels * of_channel
    apart = problem.w.strides[0] * problem.w.itemsize
    tried = [(COPY, (length - 16 + 127) // 128 * 128 + 16)]
    if config.prefetched:
        pitches = {align: range(length + (apart - length) % align, length + 129, align) for align in (128, 32)}
        tried = [(align, pitch) for align in pitches for pitch in pitches[align]] + tried
    found = ((align, pitch, *spread(pitch, of_channel)) for align, pitch in tried)
    align, pitch, _, pair = next((f for f in found if f[2] <= 2), (*tried[-1], *spread(tried[-1][1], of_channel)))
    return replace(config, align=align, pitch=pitch, pair=pair)


@functools.lru_cache(1024)
def spread(pitch: int, of_channel: int) -> tuple[int, int]:
    """(lanes of a warp that meet in a bank of shared memory, ``pair``): which filters a lane should have so that few do."""

    def fullest(pair: int) -> int:
        low, high = sorted({1, 2, 4} - {pair})
        starts = [(lane % 2 * low + lane // 2 % 2 * high) * pitch + lane // 4 * of_channel for lane in range(LANES)]
        banks = [start // 4 % 32 for start in starts]
        return max(banks.count(bank) for bank in banks)

    return min((fullest(pair), pair) for pair in (1, 2, 4))


def busiest(config: RowsConfig) -> float:
    """How many warps multiply for a position on the fullest quarter of a multiprocessor, on average over a group's rows."""
    units, quarters = config.warps // config.high, [0, 0, 0, 0]
    if config.deep == 1:
        return -(-config.warps * config.resident // 4)
    for row, a, unit in itertools.product(range(config.high), range(config.deep), range(units)):
        quarters[(unit * config.high + row) % 4] += 0 <= row - a * config.stride[0] < config.taps[0]
    return max(quarters) * config.resident / config.deep


def rank(problem: ConvProblem, config: RowsConfig) -> float:
    """An estimate from an H200: launches, filters or what the fullest quarter of a multiprocessor issues, y's values, boxes."""
    K, taps, positions = problem.w.shape[0] // problem.groups, config.taps[1], math.prod(config.tile)
    if config.own:
        position, rate = K * (taps * (config.own + 3) + config.own / 4 + 6) + config.steps * 150, 1.0
    else:
        position, rate = config.steps * (taps * (6 + config.tiles) + 140), 0.55
    blocks, at_once = blocks_of(problem, config), MULTIPROCESSORS * config.resident
    waves = -(-blocks // at_once)
    passing = config.warps - config.warps // config.high * config.taps[0]  # warps that a piece is not for
    cycles = position * busiest(config) + config.steps * PASSING * passing * config.resident / 4
    own = waves * positions * cycles / (1755 * rate)
    stream = problem.w.size * problem.w.itemsize / 3.6e6 * (1.3 - 0.3 * blocks / (waves * at_once))
    loads = waves * positions * K * config.kept / (LANES * config.warps)
    # of two blocks of threads one's beginning is hidden behind the other's products
    start = 5.0 if config.own and config.resident == 2 else 6.0
    return (
        start
        + max(own, stream)
        + 0.1 * min(own, stream)
        + 0.1 * loads
        + boxes_bytes(problem, config) / BOXES[problem.w.itemsize]
    )
