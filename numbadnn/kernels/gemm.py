"""C = alpha * A * B + beta * C on the GPU, for other kernels to stand on: any sizes, strides, batch, a fixed order of sums.

``plan_gemm(problem, device)`` gives an Executable on raw addresses. Two kernels: ``_gemm_wgmma`` for float16 and
bfloat16 on Hopper, fed by TMA; ``_gemm_tiles`` for everything, by fused multiply-adds (float32 under ieee) or by
warp-wide tensor-core instructions (TF32, which holds 16-bit types exactly, and float64). Sums are kept in float32,
those of float64 in float64.

>>> launch = plan_gemm(GemmProblem.of(64, 32, 16, "float32"), device=0)       # doctest: +SKIP
>>> launch.direct(stream, a_address, b_address, c_address)                      # doctest: +SKIP
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

from numbadnn.errors import NotSupportedError
from numbadnn.kernels import _driver, simulate
from numbadnn.kernels._launch import Kernel
from numbadnn.kernels._support import LIMIT32
from numbadnn.problem import ITEMSIZE
from numbadnn.registry import Executable


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


@dataclass(frozen=True, slots=True)
class WgmmaConfig:
    """A tile of 128 x ``n``, a ring of ``stages``; which operands are packed along k; elements c takes at a time (1, 2, 8)."""

    n: int
    stages: int
    a_by_rows: bool
    b_by_rows: bool
    store: int


@dataclass(frozen=True, slots=True)
class Operand:
    """How a tile is read: packed along k or along its other axis, ``vector`` elements an access."""

    along_k: bool
    vector: int


@dataclass(frozen=True, slots=True)
class TilesConfig:
    """A block's tile is ``m`` x ``n``, ``k`` terms at a time; a thread's (with ``warps``: a warp's) is ``tall`` x ``wide``.

    A warp's instruction has ``terms`` terms; 4: what float64 has on sm_80.
    """

    m: int
    n: int
    k: int
    tall: int
    wide: int
    warps: bool
    chunk: int
    a: Operand
    b: Operand
    store: int
    terms: int = 8
    padding: int = 4
    raster: int = 8
    resident: int = 1

    @property
    def threads(self) -> int:
        return (self.m // self.tall) * (self.n // self.wide) * (32 if self.warps else 1)

    @property
    def shared_bytes(self) -> int:
        """Two buffers of both operands; a chunk is 16 bytes."""
        return 2 * self.k * (self.m + self.n + 2 * self.padding) * (16 // self.chunk)


Config = WgmmaConfig | TilesConfig


# ---- configurations


def _accumulator(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def _vector(dtype: str, extent: int, other: int, batch: int, aligned: bool, most: int) -> int:
    """Elements an access along a packed axis may have: they divide its extent and every other stride."""
    width = min(most, 16 // ITEMSIZE[dtype]) if aligned else 1
    while width > 1 and (extent % width or other % width or batch % width):
        width //= 2
    return width


def _operand(problem: GemmProblem, which: int, chunk: int) -> Operand:
    """How a (0) or b (1) is read; b's strides are (k, n)."""
    s_row, s_k = problem.a_strides if which == 0 else problem.b_strides[::-1]
    rows = problem.m if which == 0 else problem.n
    batch, aligned = (problem.batch_strides[which] if problem.batch > 1 else 0), problem.aligned[which]
    if s_k == 1 or problem.k == 1:
        along_k = s_k == 1 and not (s_row == 1 and rows > problem.k)
    else:
        along_k = s_row != 1
    packed, other, extent = (s_k, s_row, problem.k) if along_k else (s_row, s_k, rows)
    width = _vector(problem.dtype, extent, other, batch, aligned, chunk) if packed == 1 else 1
    return Operand(along_k, width)


def _store(problem: GemmProblem, most: int) -> int:
    if problem.c_strides[1] != 1 and problem.n > 1:
        return 1
    batch = problem.batch_strides[2] if problem.batch > 1 else 0
    return _vector(problem.out, problem.n, problem.c_strides[0], batch, problem.aligned[2], most)


#: (m, n, k, tall, wide, blocks a multiprocessor) of tiles, the largest first; a smaller one where the larger are too few for the
#: GPU. A thread with 128 sums reads half as much shared memory for its arithmetic as one with 64.
_THREAD_TILES = {"float32": ((128, 128, 16, 16, 8, 2), (128, 128, 16, 8, 8, 2), (64, 64, 16, 4, 4, 1))}
_WARP_TILES = {
    "float32": ((128, 128, 16, 64, 32, 2), (64, 64, 16, 32, 16, 1)),
    "float64": ((128, 128, 16, 64, 32, 1), (128, 64, 16, 32, 32, 1), (64, 64, 16, 32, 32, 3), (64, 32, 16, 32, 16, 1)),
}
#: the same for the simulator: one warp
_SIMULATED_TILES = {False: (16, 32, 8, 4, 4, 1), True: (16, 16, 8, 16, 16, 1)}
FEW_TILES = 132


def tiles_config(problem: GemmProblem, capability: tuple[int, int], index: int | None = None) -> TilesConfig:
    """The largest tiles that give every multiprocessor one; ``index`` picks one, counted from the largest."""
    acc = _accumulator(problem.dtype)
    warps = problem.dtype != "float32" or problem.precision == "tf32"
    chunk = 2 if acc == "float64" else 4
    choices = (_WARP_TILES if warps else _THREAD_TILES)[acc]
    if index is None:
        index = 0
        while index + 1 < len(choices) and _tiles(problem, *choices[index][:2]) < FEW_TILES:
            index += 1
    m, n, k, tall, wide, resident = _SIMULATED_TILES[warps] if simulate.active() else choices[index]
    a, b = _operand(problem, 0, chunk), _operand(problem, 1, chunk)
    padding = 8 if warps and acc == "float32" else 4
    terms = 8 if acc == "float32" else 4 if capability < (9, 0) else 8
    store = _store(problem, 2 if warps else chunk)
    return TilesConfig(m, n, k, tall, wide, warps, chunk, a, b, store, terms, padding, resident=resident)


def _choices(problem: GemmProblem) -> int:
    """How many tiles there are to pick from."""
    warps = problem.dtype != "float32" or problem.precision == "tf32"
    return len((_WARP_TILES if warps else _THREAD_TILES)[_accumulator(problem.dtype)])


def _tiles(problem: GemmProblem, m: int, n: int) -> int:
    return -(-problem.m // m) * -(-problem.n // n) * problem.batch


def _leading(rows: int, s_row: int, s_k: int, terms: int) -> int:
    """The stride between rows of a matrix packed along its other axis, 0 if it is not; free where there is one row."""
    if s_k != 1 and terms > 1:
        return 0
    return s_row if rows > 1 else -(-terms // 8) * 8


def _by_tma(problem: GemmProblem, which: int) -> tuple[bool, int] | None:
    """(packed along k, the other stride) of a (0) or b (1), None where the copy engine cannot read it."""
    s_row, s_k = problem.a_strides if which == 0 else problem.b_strides[::-1]
    rows = problem.m if which == 0 else problem.n
    batch = problem.batch_strides[which] if problem.batch > 1 else 0
    for along_k, stride in (
        (True, _leading(rows, s_row, s_k, problem.k)),
        (False, _leading(problem.k, s_k, s_row, rows)),
    ):
        if stride > 0 and stride % 8 == 0 and batch % 8 == 0 and batch >= 0 and problem.aligned[which]:
            return along_k, stride
    return None


def wgmma_reason(problem: GemmProblem, capability: tuple[int, int]) -> str:
    """Why the Hopper kernel cannot, "" if it can."""
    if capability != (9, 0):
        return "needs compute capability 9.0"
    if problem.dtype not in ("float16", "bfloat16"):
        return "needs float16 or bfloat16"
    if _by_tma(problem, 0) is None or _by_tma(problem, 1) is None:
        return "needs both operands packed along one axis, with other strides of multiples of 16 bytes"
    return ""


def wgmma_config(problem: GemmProblem, n: int | None = None) -> WgmmaConfig:
    """The widest tile that is not mostly outside and leaves no more multiprocessors idle than a narrower one."""
    a, b = _by_tma(problem, 0), _by_tma(problem, 1)
    assert a and b
    if n is None:
        waves = {width: -(-_tiles(problem, 128, width) // FEW_TILES) * (width + 32) for width in (256, 128, 64)}
        n = min(waves, key=lambda width: (waves[width], -width))
    store = _store(problem, 8 if problem.out != "float32" else 2)
    return WgmmaConfig(n, {256: 4, 128: 6, 64: 8}[n], a[0], b[0], store if store in (1, 8) else 2)


def heuristic(problem: GemmProblem, capability: tuple[int, int]) -> Config:
    """The configuration for a GPU of this compute capability; c must be packed along n if along either."""
    if not simulate.active() and not wgmma_reason(problem, capability):
        return wgmma_config(problem)
    return tiles_config(problem, capability)


def space(problem: GemmProblem, capability: tuple[int, int]) -> list[Config]:
    """Every configuration worth timing, the heuristic's first."""
    found: list[Config] = [heuristic(problem, capability)]
    if not wgmma_reason(problem, capability):
        found += [wgmma_config(problem, n) for n in (256, 128, 64)]
    found += [tiles_config(problem, capability, index) for index in range(_choices(problem))]
    return list(dict.fromkeys(found))


# ---- kernels


def _text(config: Config) -> str:
    def flat(value: Any) -> Iterator[Any]:
        if isinstance(value, tuple):
            for v in value:
                yield from flat(v)
        else:
            yield value

    return " ".join(str(int(v)) for v in flat(astuple(config)))


def kernel(dtype: str, out: str, config: Config) -> Kernel:
    """The kernel of one configuration."""
    if isinstance(config, WgmmaConfig):
        wgmma = config

        def build_wgmma() -> Callable[..., None]:
            from numbadnn.kernels import _gemm_wgmma

            return _gemm_wgmma.gemm(dtype, out, wgmma)

        parameters = "map map ptr i32*3 i32 i32*2 i64*2 i64 f32 f32"
        return Kernel(f"gemm_wgmma {dtype} {out} {_text(config)}", parameters, build_wgmma, 384)
    tiles, acc = config, _accumulator(dtype)

    def build_tiles() -> Callable[..., None]:
        from numbadnn.kernels import _gemm_tiles

        return _gemm_tiles.gemm(dtype, out, acc, tiles)

    real = "f64" if acc == "float64" else "f32"
    parameters = f"ptr ptr ptr i32*3 i64*2 i64*2 i64*2 i64*3 {real} {real}"
    name = f"gemm_tiles {dtype} {out} {_text(config)}"
    return Kernel(name, parameters, build_tiles, config.threads, config.resident)


def kernels() -> Iterator[Kernel]:
    """Each kind of arithmetic, layouts in turn."""
    for problem in (
        GemmProblem.of(512, 512, 512, "float32"),
        GemmProblem.of(512, 511, 511, "bfloat16", out="float32"),
        GemmProblem.of(512, 512, 512, "float64", transpose_a=True),
    ):
        yield kernel(problem.dtype, problem.out, tiles_config(problem, (8, 0), 0))


def hopper_kernels() -> Iterator[Kernel]:
    """Those that sm_90a has the instructions for."""
    for dtype, n, layouts in (("float16", 256, (True, False)), ("bfloat16", 64, (False, True))):
        yield kernel(dtype, dtype, WgmmaConfig(n, {256: 4, 64: 8}[n], *layouts, store={256: 8, 64: 1}[n]))
    yield kernel("float64", "float64", tiles_config(GemmProblem.of(512, 512, 512, "float64"), (9, 0), 0))


# ---- plans


@functools.cache
def multiprocessors(device: int) -> int:
    """How many a device has."""
    handle, count = ctypes.c_int(), ctypes.c_int()
    _driver.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
    _driver.call("cuDeviceGetAttribute", ctypes.byref(count), ctypes.c_int(16), handle)
    return count.value


def plan_gemm(problem: GemmProblem, device: int, config: Config | None = None) -> Executable:
    """A product made ready: ``direct(stream, a, b, c)`` launches it on addresses; for one thread.

    Raises NotSupportedError for sizes of 2**31 or more.
    """
    if max(problem.m, problem.n, problem.k) >= LIMIT32 or problem.batch > 65535:
        raise NotSupportedError(f"needs sizes below 2**31 and at most 65535 matrices, got {problem}")
    swapped = problem.c_strides[1] != 1 and problem.c_strides[0] == 1 and problem.m > 1
    if swapped:
        problem = problem.transposed
    capability = (8, 0) if simulate.active() else _driver.compute_capability(device)
    config = config or heuristic(problem, capability)
    chosen = kernel(problem.dtype, problem.out, config)
    if isinstance(config, WgmmaConfig):
        launch = _prepare_wgmma(problem, device, config, chosen)
    else:
        launch = _prepare_tiles(problem, device, config, chosen)
    direct = _swapped(launch.direct) if swapped else launch.direct

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        direct(stream, inputs[0], inputs[1], outputs[0])

    facts = {"kernel": chosen.name, "config": config}
    return Executable(run, 0, arithmetic(problem), "run_to_run", facts, direct)


def arithmetic(problem: GemmProblem) -> str:
    """The class of the error: 16-bit types go through tensor cores, float64's multiply and add as any other."""
    if problem.dtype in ("float16", "bfloat16"):
        return "tensor_core"
    return problem.precision if problem.dtype == "float32" else "ieee"


def _swapped(direct: Any) -> Callable[..., None]:
    def swapped(stream: int, a: int, b: int, c: int) -> None:
        direct(stream, b, a, c)

    return swapped


def _prepare_tiles(problem: GemmProblem, device: int, config: TilesConfig, chosen: Kernel) -> Any:
    tiles = -(-problem.m // config.m) * -(-problem.n // config.n)
    scalars = (
        (problem.m, problem.n, problem.k), problem.a_strides, problem.b_strides[::-1], problem.c_strides,
        problem.batch_strides, problem.alpha, problem.beta,
    )  # fmt: skip
    return chosen.prepare(device, (tiles, problem.batch, 1), (config.threads, 1, 1), scalars, config.shared_bytes)


def _prepare_wgmma(problem: GemmProblem, device: int, config: WgmmaConfig, chosen: Kernel) -> Any:
    from numbadnn.kernels import _gemm_wgmma, _tensormap
    from numbadnn.kernels._context import ensure_context

    maps = []
    with ensure_context(device):
        for which, rows, tile in ((0, problem.m, _gemm_wgmma.M), (1, problem.n, config.n)):
            found = _by_tma(problem, which)
            assert found
            along_k, stride = found
            extents, box = ((problem.k, rows), (64, tile)) if along_k else ((rows, problem.k), (64, 64))
            step = problem.batch_strides[which] if problem.batch > 1 else 0
            images = problem.batch if step else 1
            strides = (2 * stride, 2 * (step or stride * extents[1]))
            maps.append(_tensormap.encode(problem.dtype, (*extents, images), strides, (*box, 1)))
    tiles = _tiles(problem, _gemm_wgmma.M, config.n)
    moves = tuple(int(problem.batch > 1 and step != 0) for step in problem.batch_strides[:2])
    scalars = (
        *maps, (problem.m, problem.n, problem.k), problem.batch, moves, problem.c_strides, problem.batch_strides[2],
        problem.alpha, problem.beta,
    )  # fmt: skip
    grid = (min(tiles, multiprocessors(device)), 1, 1)
    return chosen.prepare(device, grid, (384, 1, 1), scalars, _gemm_wgmma.shared_bytes(config.n, config.stages))
