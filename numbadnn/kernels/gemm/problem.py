"""A matrix product as a problem, C = alpha * A * B + beta * C, and the configurations of the kernels that compute it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.problem import ITEMSIZE


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """a (m, k) times b (k, n) to c (m, n), ``batch`` times; strides in elements of any sign, those of a batch may be 0.

    ``dtype`` is that of a and b, ``out`` that of c: the same, or float32. ``precision`` "tf32" lets float32 round its
    inputs to 11 bits. ``aligned``: a, b and c start at multiples of 16 bytes. c's elements must lie apart.
    """

    m: int
    n: int
    k: int
    dtype: str
    out: str
    a_strides: tuple[int, int]
    b_strides: tuple[int, int]
    c_strides: tuple[int, int]
    batch: int = 1
    batch_strides: tuple[int, int, int] = (0, 0, 0)
    alpha: float = 1.0
    beta: float = 0.0
    precision: str = "ieee"
    aligned: tuple[bool, bool, bool] = (True, True, True)

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k, self.batch) < 1:
            raise ValueError(f"expected sizes of at least 1, got {self.m} x {self.n} x {self.k}, batch {self.batch}")
        if self.dtype not in ITEMSIZE or self.out not in (self.dtype, "float32"):
            raise ValueError(f"expected a float type, and float32 or the same for c, got {self.dtype} to {self.out}")
        if self.precision not in ("ieee", "tf32"):
            raise ValueError(f"precision: expected ieee or tf32, got {self.precision!r}")

    @staticmethod
    def of(
        m: int, n: int, k: int, dtype: str, transpose_a: bool = False, transpose_b: bool = False, **more: Any
    ) -> GemmProblem:
        """Packed row-major operands, or transposed ones: then a is stored (k, m), b (n, k).

        >>> GemmProblem.of(2, 3, 4, "float32", transpose_b=True).b_strides
        (1, 4)
        """
        fields = {"out": dtype, "batch_strides": (m * k, k * n, m * n), **more}
        a, b = (1, m) if transpose_a else (k, 1), (1, k) if transpose_b else (n, 1)
        return GemmProblem(m, n, k, dtype, a_strides=a, b_strides=b, c_strides=(n, 1), **fields)

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def transposed(self) -> GemmProblem:
        """The same product read the other way: c' = b' a'."""
        a, b, c = self.batch_strides
        return replace(
            self,
            m=self.n,
            n=self.m,
            a_strides=self.b_strides[::-1],
            b_strides=self.a_strides[::-1],
            c_strides=self.c_strides[::-1],
            batch_strides=(b, a, c),
            aligned=(self.aligned[1], self.aligned[0], self.aligned[2]),
        )

    def __str__(self) -> str:
        def pair(strides: tuple[int, ...]) -> str:
            return ",".join(map(str, strides))

        return (
            f"gemm {self.m}x{self.n}x{self.k} {self.dtype}>{self.out} a={pair(self.a_strides)} b={pair(self.b_strides)} "
            f"c={pair(self.c_strides)} batch={self.batch}:{pair(self.batch_strides)} alpha={self.alpha:g} "
            f"beta={self.beta:g} {self.precision}"
        )


#: of a tile of ``device/wgmma.py``; 64 elements of 16 bits, 32 of float32, are the 128 bytes of the swizzle
M, K = 128, 64


@dataclass(frozen=True, slots=True)
class WgmmaConfig:
    """A tile of 128 x ``n``, a ring of ``stages``; which operands are packed along k; elements c takes at a time (1, 2, 8)."""

    n: int
    stages: int
    a_by_rows: bool
    b_by_rows: bool
    store: int

    @property
    def shared_bytes(self) -> int:
        """The ring, its barriers, and what aligning it takes."""
        return 1024 + self.stages * (stage_bytes(self.n) + 16)


def stage_bytes(n: int) -> int:
    """A stage of the ring: both operands."""
    return (M + n) * K * 2


def depth(dtype: str) -> int:
    """Terms of a stage."""
    return 2 * K // ITEMSIZE[dtype]


@dataclass(frozen=True, slots=True)
class Operand:
    """How a tile is read: packed along k or along its other axis, ``vector`` elements an access."""

    along_k: bool
    vector: int


@dataclass(frozen=True, slots=True)
class TilesConfig:
    """A block's tile is ``m`` x ``n``, ``k`` terms at a time; a warp's is ``tall`` x ``wide``."""

    m: int
    n: int
    k: int
    tall: int
    wide: int
    a: Operand
    b: Operand
    store: int
    padding: int = 8
    raster: int = 8
    resident: int = 1

    @property
    def threads(self) -> int:
        return (self.m // self.tall) * (self.n // self.wide) * 32

    @property
    def shared_bytes(self) -> int:
        """Two buffers of both operands, in float32."""
        return 2 * self.k * (self.m + self.n + 2 * self.padding) * 4


class Tile(NamedTuple):
    """How an operand's tile lies in shared memory: ``pitch`` numbers from one row (along_k) or one term to the next.

    A thread's rows (a warp's, for tensor cores) come in runs of ``run`` neighbours, ``apart`` from one run to the next.
    """

    along_k: bool
    pitch: int
    run: int
    apart: int

    def at(self, row: int, k: int) -> int:
        """Where a thread's ``row``-th row has term ``k``, from the thread's own place on."""
        across = row // self.run * self.apart + row % self.run
        return across * self.pitch + k if self.along_k else k * self.pitch + across

    def numbers(self, extent: int, depth: int) -> int:
        """How much of shared memory a tile of ``extent`` rows takes."""
        return self.pitch * (extent if self.along_k else depth)


@dataclass(frozen=True, slots=True)
class AsyncConfig:
    """As TilesConfig, for numbers that are multiplied as they lie in memory: a ring of ``stages`` pairs of tiles.

    Without ``warps`` it is a thread's tile that is ``tall`` x ``wide``. A warp's instruction has ``terms`` terms; 4: what
    float64 has on sm_80.
    """

    m: int
    n: int
    k: int
    tall: int
    wide: int
    warps: bool
    stages: int
    a: Operand
    b: Operand
    store: int
    terms: int = 8
    raster: int = 8
    resident: int = 1

    @property
    def threads(self) -> int:
        return (self.m // self.tall) * (self.n // self.wide) * (32 if self.warps else 1)

    @property
    def sums(self) -> int:
        """Numbers of C that a thread has."""
        return self.tall * self.wide // (32 if self.warps else 1)

    def tiles(self, itemsize: int) -> tuple[Tile, Tile]:
        """How the tiles of a and b lie in shared memory, without bank conflicts, and which rows a thread has."""
        count = 16 // itemsize

        def tile(operand: Operand, extent: int, each: int) -> Tile:
            along_k = operand.along_k
            if self.warps:
                return Tile(along_k, self.k + 4 if along_k else extent + (8 if count == 4 else 4), 1, 1)
            if along_k:
                return Tile(True, self.k + count, 1, extent // each)
            return Tile(False, extent, count, extent // each * count)

        return tile(self.a, self.m, self.tall), tile(self.b, self.n, self.wide)

    def ring_bytes(self, itemsize: int) -> int:
        """The ring in shared memory."""
        a, b = self.tiles(itemsize)
        return self.stages * (a.numbers(self.m, self.k) + b.numbers(self.n, self.k)) * itemsize


Config = WgmmaConfig | AsyncConfig | TilesConfig
