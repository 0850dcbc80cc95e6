"""Which tiles of ``numba.implicit_tiles`` are likely the fastest.

A short model decides: rounds of blocks on the multiprocessors, of which the last takes hardly less time for being half
empty unless it is the only one, multiplications of a block, and the price of splitting the terms. Its constants are
measurements of an H200.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from numbadnn.kernels.build import simulate
from numbadnn.kernels.build.support import LONGEST, LONGEST_MMA
from numbadnn.kernels.conv.tiles.config import SHARED, ImplicitTilesConfig, configured
from numbadnn.kernels.conv.tiles.product import Product
from numbadnn.problem import ITEMSIZE, Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.problems.images import is_invariant, of_images

MULTIPROCESSORS = 132
#: (m, n, k, tall, wide, blocks a multiprocessor), and how much more time an element takes than one of the first:
#: neighbouring positions, then neighbouring channels; of the gradient of the filters, the same
THREAD_TILES = (
    ((128, 128, 16, 16, 8, 2), (1.0, 1.0, 1.02, 1.0)),
    ((256, 64, 16, 16, 8, 2), (1.02, 1.05, 1.05, 1.06)),
    ((128, 64, 16, 16, 8, 4), (1.0, 1.04, 1.0, 1.02)),
    ((64, 64, 16, 16, 8, 8), (1.06, 1.1, 1.25, 1.0)),
    ((256, 32, 16, 16, 4, 3), (1.15, 1.22, 1.3, 1.25)),
    ((32, 32, 16, 8, 4, 16), (2.4, 2.4, 2.1, 1.4)),
)
WARP_TILES = {
    "float32": (
        ((128, 128, 16, 64, 32, 2), (1.0,) * 4),
        ((128, 64, 16, 32, 32, 3), (1.1,) * 4),
        ((64, 64, 16, 32, 16, 3), (1.3,) * 4),
        ((64, 32, 16, 16, 16, 4), (1.6,) * 4),
    ),
    "float64": (
        ((64, 64, 16, 32, 32, 3), (1.0, 1.0, 1.05, 1.05)),
        ((128, 128, 16, 64, 32, 1), (1.05, 1.05, 1.0, 1.0)),
        ((64, 32, 16, 32, 16, 4), (1.05, 1.05, 1.3, 1.3)),
    ),
}
HALF_TILES = (
    ((128, 128, 32, 64, 32, 2), (1.0,) * 4),
    ((256, 64, 32, 64, 32, 2), (1.05,) * 4),
    ((128, 64, 32, 64, 32, 3), (1.1,) * 4),
    ((64, 64, 32, 32, 32, 4), (1.3,) * 4),
)
#: of one warp
SIMULATED_TILES = {
    "threads": (((16, 32, 8, 4, 4, 1), (1.0,) * 4),),
    "warps": (((16, 16, 8, 16, 16, 1), (1.0,) * 4),),
    "halves": (((16, 16, 32, 16, 16, 1), (1.0,) * 4),),
}
#: multiplications a microsecond of a multiprocessor, by the size of an element: measured on an H200, of 16 bits assumed
SPEED = {2: 4.0e5, 4: 1.5e5, 8: 1.0e5}
#: microseconds that a round of blocks takes to begin and to end
ROUND = 4.0
#: how much longer a multiplication takes where schedulers have fewer warps than they could have
LONELY = 1.15
SCHEDULERS = 4
#: elements of the product that a thread has at most: a larger tile is a warp's
THREAD_SHARE = 128
#: blocks of terms that a split has at least
FEW_BLOCKS = 8


def is_tf32(problem: ConvProblem, policy: Policy) -> bool:
    return problem.x.dtype == "float32" and policy.fp32_precision == "tf32"


def candidates(dtype: str, tf32: bool) -> Any:
    """The tiles of one type, each with its factors."""
    kind = "halves" if ITEMSIZE[dtype] == 2 else "warps" if tf32 or dtype == "float64" else "threads"
    if simulate.active():
        return SIMULATED_TILES[kind]
    return {"halves": HALF_TILES, "warps": WARP_TILES.get(dtype), "threads": THREAD_TILES}[kind]


def rounds(shape: tuple[int, ...], count: int) -> float:
    """How many times as long as a full round so many blocks take.

    The last of several is hardly shorter for being half empty. One that is alone takes what the schedulers with the most
    warps take: measured of float32, for the tiles of tensor cores it counts as one of several.
    """
    m, n, _, tall, wide, resident = shape
    whole, rest = divmod(count, MULTIPROCESSORS * resident)
    if not rest:
        return whole
    blocks = -(-rest // MULTIPROCESSORS)
    if whole or tall * wide > THREAD_SHARE:
        return whole + 0.82 + 0.18 * blocks / resident
    warps = (m // tall) * (n // wide) / 32
    most, turns = (max(1, math.ceil(b * warps / SCHEDULERS)) for b in (resident, blocks))
    return turns / most * (LONELY if turns < most else 1.0)


def _time(p: Product, shape: tuple[int, ...], factor: float, splits: int) -> float:
    """Microseconds: rounds of blocks, multiplications, partial sums."""
    m, n, k, _, _, resident = shape
    taken = rounds(shape, p.tiles(m, n) * splits)
    blocks = -((-p.terms // k) // splits)
    partial = 2 * splits * p.met * p.rows * p.columns * p.groups * ITEMSIZE[p.accumulator] if splits > 1 else 0
    summed = 3 + partial / 2.5e6 if splits > 1 else 0
    rounds_us = ROUND * math.ceil(taken)
    return rounds_us + taken * resident * m * n * k * blocks * factor / SPEED[p.problem.x.itemsize] + summed


def best_splits(p: Product, shape: tuple[int, ...], factor: float = 1.0, capacity: int = 1 << 29) -> int:
    """How many blocks best share the terms of a tile: such that they come out even on the multiprocessors.

    As many at least as keep a block's sums short, of partial sums that fit ``capacity``.
    """
    m, n, k, tall, wide, resident = shape
    tiles = p.tiles(m, n)
    most = max(1, min(-(-p.terms // k) // FEW_BLOCKS, 65535 // p.groups))
    longest = LONGEST if tall * wide <= THREAD_SHARE else LONGEST_MMA
    each = p.met * p.rows * p.columns * p.groups * ITEMSIZE[p.accumulator]
    fewest = max(1, min(-(-p.terms // longest), most, capacity // each)) if p.accumulator == "float32" else 1
    options = {fewest, most, *(MULTIPROCESSORS * turns // tiles for turns in range(1, 3 * resident + 1))}
    return min((s for s in options if fewest <= s <= most), key=lambda s: (_time(p, shape, factor, s), s))


def estimated(p: Product, tf32: bool, capacity: int = 1 << 29) -> list[tuple[float, tuple[int, ...], int]]:
    """(microseconds, tiles, splits) of each tile, the fastest first."""
    found = []
    for shape, factors in candidates(p.problem.x.dtype, tf32):
        factor = factors[2 * p.weights + p.channels_last]
        splits = best_splits(p, shape, factor, capacity)
        found.append((_time(p, shape, factor, splits), shape, splits))
    return sorted(found)


def fixed_splits(problem: ConvProblem, policy: Policy) -> int:
    """How many blocks share the terms of a tile in any batch of this layer: as is best for NOMINAL images."""
    nominal = Product(of_images(problem))
    return estimated(nominal, is_tf32(problem, policy))[0][2]


def invariant(problem: ConvProblem, policy: Policy, terms: int = 8) -> list[ImplicitTilesConfig]:
    """Configurations that all add in the same order, in any batch of this layer, the fastest first.

    A tile of any shape adds the terms of an element one after the other, ``k`` of which are a step; only where the terms are
    split does the order change, and steps are of one length.
    """
    p, tf32, splits = Product(problem), is_tf32(problem, policy), fixed_splits(problem, policy)
    found = []
    for shape, factors in candidates(problem.x.dtype, tf32):
        found.append((_time(p, shape, factors[2 * p.weights + p.channels_last], splits), shape))
    return [configured(p, shape, tf32, splits, terms=terms) for _, shape in sorted(found)]


def heuristic(problem: ConvProblem, policy: Policy, terms: int = 8) -> ImplicitTilesConfig:
    """The configuration that should be fastest."""
    if is_invariant(problem, policy):
        return invariant(problem, policy, terms)[0]
    p, tf32 = Product(problem), is_tf32(problem, policy)
    _, shape, splits = estimated(p, tf32, policy.workspace_limit // 2)[0]
    return configured(p, shape, tf32, splits, terms=terms)


def space(problem: ConvProblem, policy: Policy, terms: int = 8) -> list[ImplicitTilesConfig]:
    """Every configuration worth timing, the heuristic's first."""
    if is_invariant(problem, policy):
        return invariant(problem, policy, terms)
    p, tf32 = Product(problem), is_tf32(problem, policy)
    ordered = estimated(p, tf32, policy.workspace_limit // 2)
    found = [configured(p, shape, tf32, splits, terms=terms) for _, shape, splits in ordered]
    for _, shape, splits in ordered[:2]:
        for other in (max(1, splits // 2), splits + 1, 2 * splits):
            if other * p.groups <= 65535 and other <= p.padded_terms(shape[2]) // shape[2]:
                found.append(configured(p, shape, tf32, other, terms=terms))
    others = [replace(c, stages=5 - c.stages) for c in found[:2]]
    return list(dict.fromkeys([*found, *(c for c in others if c.shared_bytes <= SHARED)]))
