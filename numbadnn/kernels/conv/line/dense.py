"""``numba.line_dense``: how many steps and filters a thread computes; device code: ``device/dense.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.conv.line.channels import THREADS, facts_of, whole
from numbadnn.problem import ITEMSIZE
from numbadnn.problems.conv import ConvProblem


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """A thread has ``pieces`` of ``vec`` steps for ``filters``; ``capacity``: numbers in shared memory.

    ``taps`` 0: an argument; ``dilation`` 0: a multiple of ``vec``, else it is frozen as the taps are.
    """

    vec: int
    pieces: int
    filters: int
    taps: int
    dilation: int
    capacity: int

    @property
    def behind(self) -> int:
        """Steps before the own ones that a frozen dilation reaches."""
        return (self.taps - 1) * self.dilation

    @property
    def looks(self) -> int:
        """Pieces read a turn for each piece of results."""
        return -(-self.behind // self.vec) + 1 if self.dilation else max(self.taps, 1)

    @property
    def shift(self) -> int:
        """Where in these the first tap of the first step lies."""
        return -self.behind % self.vec


SHARED_BYTES = 32 * 1024
MOST_FROZEN_TAPS = 4
#: products that are written out for a turn
MOST_PRODUCTS = 512
MULTIPROCESSORS = 132
#: steps behind of each of many channels; sums of a thread, and elements that it reads in a turn; blocks that fill the GPU
MOST_DENSE_BEHIND, MOST_SUMS, MOST_SEEN, ENOUGH_BLOCKS = 12, 64, 32, 3 * MULTIPROCESSORS
#: so many terms keep the multiprocessors at their products, and twice the sums a thread cost less than they save
LONG, MOST_OF_LONG, ENOUGH_OF_LONG = 128, 128, MULTIPROCESSORS * 3 // 2


def heuristic(problem: ConvProblem, acc: str = "float32") -> DenseConfig | None:
    """Up to 16 filters; the fewer, the more pieces, as many as the registers hold and as leave blocks enough."""
    vec = 2 if problem.x.itemsize == 8 else 4
    if not whole(problem, vec):
        return None
    (K, C), taps, dilation = problem.w.shape[:2], problem.taps[1], problem.dilation[1]
    K //= problem.groups
    if dilation % vec == 0 or taps == 1:
        taps, dilation = taps if taps <= MOST_FROZEN_TAPS else 0, 0
    elif (taps - 1) * dilation > MOST_DENSE_BEHIND:
        return None
    filters = filters_of(K, C * problem.taps[1], acc)
    while filters * vec * max(taps, 1) > MOST_PRODUCTS:
        filters //= 2
    config = DenseConfig(vec, 1, filters, taps, dilation, capacity_of(C * problem.taps[1], filters))
    blocks = problem.x.shape[0] * problem.groups * -(-K // filters) * problem.y.shape[3] // (THREADS * vec)
    long = acc == "float32" and filters == 16 and C * problem.taps[1] >= LONG
    sums, enough = (MOST_OF_LONG, ENOUGH_OF_LONG) if long else (MOST_SUMS, ENOUGH_BLOCKS)
    most = (
        *(sums // (vec * filters), MOST_SEEN // (vec * config.looks), blocks // enough, 4),
        MOST_PRODUCTS // (vec * filters * max(taps, 1)),
    )
    return replace(config, pieces=1 << max(min(most), 1).bit_length() - 1)


def filters_of(K: int, terms: int, acc: str) -> int:
    """Up to 16 filters, as many as the filters of a group fill and shared memory holds."""
    filters = min(16, 1 << (K - 1).bit_length())
    while filters > 1 and capacity_of(terms, filters) * ITEMSIZE[acc] > SHARED_BYTES:
        filters //= 2
    return filters


def capacity_of(terms: int, filters: int) -> int:
    """Rounded up, so that few kernels are compiled: a power of two, at least 256."""
    return max(256, 1 << (terms * filters - 1).bit_length())


def estimate(problem: ConvProblem, config: DenseConfig) -> float:
    """Microseconds on an H200: memory, or the products of whole blocks, of which a multiprocessor has one at least."""
    (N, _, _, Q), (K, C), taps = problem.x.shape, problem.w.shape[:2], problem.taps[1]
    span, groups = THREADS * config.vec * config.pieces, problem.groups
    blocks = N * groups * -(-Q // span) * -(-K // (groups * config.filters))
    products = max(blocks, MULTIPROCESSORS) * span * config.filters * C * taps
    many_sums = config.vec * config.pieces * config.filters > MOST_SUMS
    return 4 + max(problem.bytes / 3.0e6, 2 * products / (3.6e7 if many_sums else 2.4e7))


def kernel(dtype: str, acc: str, config: DenseConfig) -> Kernel:
    """Many channels, or many filters."""
    crowded = acc == "float32" and (config.pieces, config.filters) == (1, 16)  # 64 sums: four blocks have the registers
    parameters = Arguments(
        *("ptr:3", "i32 blocks_of_filters tiles groups K C S Q past dilation"),
        *("i64*2 x_strides", "i64 w_start", "i64*3 w_strides", "i64*2 y_strides"),
    )
    made_by, resident = "conv.line.device.dense.forward", 4 if crowded else 1
    return Kernel.of("line_dense", made_by, (dtype, acc, config), parameters, THREADS, resident)


def prepare(problem: ConvProblem, device: int, config: DenseConfig, chosen: Kernel) -> Any:
    (N, _, _, Q), K = problem.x.shape, problem.w.shape[0] // problem.groups
    tiles, blocks_of_filters = -(-Q // (THREADS * config.vec * config.pieces)), -(-K // config.filters)
    scalars = chosen.values(facts_of(problem), blocks_of_filters=blocks_of_filters, tiles=tiles)
    grid = (blocks_of_filters * tiles * problem.groups * N, 1, 1)
    return chosen.prepare(device, grid, (THREADS, 1, 1), scalars)


def kernels() -> Iterator[Kernel]:
    yield kernel("float32", "float32", DenseConfig(4, 1, 16, 3, 1, 4096))
    yield kernel("float32", "float32", DenseConfig(4, 2, 16, 3, 1, 4096))
    yield kernel("float16", "float32", DenseConfig(4, 2, 8, 3, 0, 1024))
