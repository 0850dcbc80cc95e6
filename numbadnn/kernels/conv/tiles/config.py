"""How the product of ``numba.implicit_tiles`` is tiled, and how its operands are read and its result is written.

A configuration follows from a shape of tiles and from how neighbours lie in memory; ``model.py`` picks the shape.
"""

from __future__ import annotations

import math
from dataclasses import replace

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.conv.tiles.product import Product, packed
from numbadnn.problem import Spec

#: threads of the small kernels: of those that make tables, of those that add shares up
TABLE_THREADS, TOTAL_THREADS = 256, 128
#: bytes of a table's entry; of shared memory that every GPU gives a block, of sm_80 and later
ENTRY, SHARED = 16, 99 << 10
#: terms an access of TF32 and float64 may have: more (4, 2) have run in the simulator, and on a GPU in one direction alone
ALONG_TERMS = 1


@dataclass(frozen=True, slots=True)
class Reading:
    """How a tile of an operand is copied: ``vector`` elements an access, neighbours along its units or along terms.

    ``along_terms``: threads follow each other along terms; else along units, which are rows or columns, ``vector`` each.
    """

    along_terms: bool
    vector: int


@dataclass(frozen=True, slots=True)
class ImplicitTilesConfig:
    """A block's tile is ``m`` x ``n``, ``k`` terms at a time; a thread's (with ``warps``: a warp's) is ``tall`` x ``wide``.

    ``resident`` blocks share a multiprocessor, ``splits`` blocks the terms of a tile. An instruction of a warp has
    ``terms`` terms. ``chunk``: rows and columns that lie together in a thread's share; ``padding``: of rows in shared
    memory. ``taps_first``: channels are neighbours among the terms. ``put`` elements are written together, along rows
    where ``along_rows``; there, singly, by threads that follow each other.
    """

    m: int
    n: int
    k: int
    tall: int
    wide: int
    resident: int
    warps: bool
    terms: int
    chunk: int
    padding: int
    stages: int
    splits: int
    a: Reading
    b: Reading
    taps_first: bool
    along_rows: bool
    put: int

    def __post_init__(self) -> None:
        high, across = (16, 8) if self.warps else (self.chunk, self.chunk)
        if self.tall not in (high, 2 * high, 4 * high) or self.wide % across:
            raise ValueError(
                f"expected shares of 1, 2 or 4 times {high} rows and of columns in {across}s, got {self.tall} x {self.wide}"
            )
        down, over = (1, 1) if self.warps else (4, 8)
        if self.m % (down * self.tall) or self.n % (over * self.wide):
            raise ValueError(
                f"expected tiles of {down} x {over} shares of {self.tall} x {self.wide}, got {self.m} x {self.n}"
            )
        for reading, extent in ((self.a, self.m), (self.b, self.n)):
            terms, _, units, _ = shares(self, reading, extent) if reading.vector else (0, 0, 0, 0)
            whole = terms * units * self.threads * reading.vector == extent * self.k
            if not whole or (reading is self.a and terms > 8 and terms != 16):  # some would not be copied
                raise ValueError(
                    f"expected {extent} times {self.k} terms in equal shares of {self.threads} threads, got {reading}"
                )

    @property
    def threads(self) -> int:
        return (self.m // self.tall) * (self.n // self.wide) * (32 if self.warps else 1)

    @property
    def shared_bytes(self) -> int:
        """The ring of tiles, then that of tables."""
        tables = (2 * self.stages - 2) * self.k * ENTRY
        return self.stages * sum(tile_elements(self)) * (16 // self.chunk) + tables

    @property
    def row_padding(self) -> int:
        """That of a tile whose rows are terms: with it eight rows lie in different banks."""
        return 8 if self.chunk == 8 else 4


def shares(config: ImplicitTilesConfig, reading: Reading, extent: int) -> tuple[int, int, int, int]:
    """(places of a thread along terms, terms between them, its units, units between them).

    A unit is a row or column, or ``vector`` of them; read along terms in vectors, ``vector`` terms of one. Threads that
    read single elements along terms take 8 terms of 4 units a warp, else they follow each other along what is packed.
    """
    threads, depth, vector = config.threads, config.k, reading.vector
    if reading.along_terms and vector == 1:
        return depth // 8, 8, extent * 8 // threads, threads // 8
    if reading.along_terms:
        return 1, depth, extent * (depth // vector) // threads, threads // (depth // vector)
    units = extent // vector
    apart = max(1, threads // units)
    return depth // apart, apart, max(1, units // threads), threads


def tile_elements(config: ImplicitTilesConfig) -> tuple[int, int]:
    """Of the two tiles in shared memory, gaps included: vectors of terms make rows of terms."""
    m, n, k, padding = config.m, config.n, config.k, config.padding

    def elements(reading: Reading, extent: int) -> int:
        rows = reading.along_terms and reading.vector > 1
        return extent * (k + config.row_padding) if rows else k * (extent + padding)

    return elements(config.a, m), elements(config.b, n)


def _together(spec: Spec, axes: tuple[int, ...], extent: int, step: int, most: int) -> int:
    """The largest power of two that divides an extent, the strides of ``axes`` and ``step``; 1 where memory is unaligned."""
    width = most if spec.aligned else 1
    strides = [spec.strides[a] for a in axes if spec.shape[a] > 1]
    while width > 1 and any(v % width for v in (extent, step, *strides)):
        width //= 2
    return width


def _readings(p: Product, most: int, along_terms: int) -> tuple[Reading, Reading]:
    """How the two operands are read: at best ``most`` elements an access, ``along_terms`` where terms are neighbours."""
    if most == 8:
        return Reading(not p.weights, 8), Reading(p.direction == "forward", 8)
    spatial = tuple(range(2, len(p.gathered.shape)))
    a_group, _, _ = p.group_steps if p.groups > 1 else (0, 0, 0)
    # positions are neighbours in memory, or channels are
    positions = math.prod(p.extents) if p.plain else 1
    if p.channels_last:
        width = most if p.weights else along_terms
        a = Reading(not p.weights, _together(p.gathered, (0, *spatial), p.channels, a_group, width))
    else:
        width = along_terms if p.weights else most
        a = Reading(p.weights, _together(p.gathered, (0, 1), positions, a_group, width))
    return a, _other_reading(p, most, along_terms)


def _other_reading(p: Product, most: int, along_terms: int) -> Reading:
    """The same of the operand that is not gathered: y for the gradient of the filters, else the filters."""
    other, flip = p.other, p.problem.flip
    group = p.group_steps[1] if p.groups > 1 else 0
    spatial, area = tuple(range(2, len(other.shape))), math.prod(other.shape[2:])
    if p.other_step == 1 or p.columns == 1:
        return Reading(False, _together(other, (0, *spatial), p.columns, group, most))
    neighbours, axes = 1, spatial
    if p.weights and packed(other):
        neighbours, axes = area, (0, 1)
    elif p.direction == "forward" and p.channels_last and other.strides[1] == 1:
        neighbours, axes = p.channels, (0, *spatial)
    elif p.direction == "forward" and not p.channels_last and packed(other) and other.strides[1] == area:
        neighbours, axes = (1 if flip and area > 1 else p.channels * area), (0,)
    return Reading(True, _together(other, axes, neighbours, group, along_terms))


def _put(p: Product, warps: bool, chunk: int, splits: int) -> tuple[bool, int]:
    """(whether neighbours of an access lie along rows of the product, how many they are)."""
    if splits > 1:
        return not warps and (p.weights or p.out_step != 1), chunk
    spatial = tuple(range(2, len(p.out.shape)))
    group = p.group_steps[2] if p.groups > 1 else 0
    if not p.weights and not warps and p.phases == 1 and packed(p.out):
        area = math.prod(p.out.shape[2:])
        if _together(p.out, (0, 1), area, group, chunk) == chunk:
            return True, chunk
    if p.out_step == 1 or p.columns == 1:
        return False, _together(p.out, ((1 if p.weights else 0), *spatial), p.columns, group, chunk)
    return not warps and p.phases > 1, 1  # through shared memory: of one phase it was slower


def _stages(p: Product, shape: tuple[int, ...], tf32: bool) -> int:
    """Two for the gradient of filters and where many blocks share a multiprocessor: the cache needs the memory (measured)."""
    on_threads = p.problem.x.dtype == "float32" and not tf32
    return 2 if on_threads and (p.weights or shape[5] > 4) else 3


def configured(
    p: Product, shape: tuple[int, ...], tf32: bool, splits: int, stages: int = 0, terms: int = 8
) -> ImplicitTilesConfig:
    """The configuration with tiles of one shape; of 0 stages those that are likely the fastest."""
    m, n, k, tall, wide, resident = shape
    stages = stages or _stages(p, shape, tf32)
    chunk = 16 // p.problem.x.itemsize
    warps = tf32 or chunk != 4
    readings = _readings(p, chunk, ALONG_TERMS)
    threads = (m // tall) * (n // wide) * (32 if warps else 1)
    a, b = (
        replace(reading, vector=min(reading.vector, extent * k // threads))  # each thread has a share
        for reading, extent in zip(readings, (m, n), strict=True)
    )
    along_rows, put = _put(p, warps, 2 if warps else chunk, splits)
    padding = 8 if tf32 or chunk == 8 else 4
    frozen = (m, n, k, tall, wide, resident, warps, terms, chunk, padding)
    config = ImplicitTilesConfig(*frozen, stages, splits, a, b, p.channels_last or chunk == 8, along_rows, put)
    return config if config.shared_bytes <= SHARED else replace(config, stages=2)
