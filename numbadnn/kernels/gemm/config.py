"""Which kernel and which tiles compute a matrix product on a GPU. C is packed along n, if along either axis."""

from __future__ import annotations

from dataclasses import replace

from numbadnn.kernels.build import simulate
from numbadnn.kernels.gemm.problem import AsyncConfig, Config, GemmProblem, Operand, TilesConfig, WgmmaConfig
from numbadnn.problem import ITEMSIZE

#: multiprocessors of an H200: fewer tiles leave some idle
FEW_TILES = 132

# ---- how operands are read


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


def _tiles(problem: GemmProblem, m: int, n: int) -> int:
    return -(-problem.m // m) * -(-problem.n // n) * problem.batch


# ---- numbers that are multiplied as they lie, and those converted on the way


#: (m, n, k, tall, wide, stages, blocks a multiprocessor) of tiles, the largest first; a smaller one where the larger are too
#: few for the GPU. A thread with 128 sums reads three quarters as much shared memory for its arithmetic as one with 64.
ASYNC_TILES = {
    ("float32", "ieee"): (
        (128, 128, 16, 16, 8, 3, 2), (128, 128, 16, 8, 8, 3, 2), (64, 128, 16, 8, 8, 3, 4), (64, 64, 16, 8, 4, 3, 4),
    ),
    ("float32", "tf32"): ((128, 128, 16, 64, 32, 4, 2), (64, 64, 16, 32, 32, 4, 2)),
    ("float64", "ieee"): ((64, 64, 16, 32, 32, 4, 2), (64, 32, 16, 32, 16, 4, 2)),
}  # fmt: skip
#: (m, n, k, tall, wide, blocks) of tiles for 16-bit types, which become float32 on the way to shared memory
WARP_TILES = ((128, 128, 16, 64, 32, 2), (64, 64, 16, 32, 16, 1))
#: the same for the simulator: one warp
_SIMULATED_ASYNC = {False: (16, 32, 8, 4, 4, 3, 1), True: (16, 16, 8, 16, 16, 3, 1)}
_SIMULATED_TILES = (16, 16, 8, 16, 16, 1)
#: bytes of shared memory that a block may have, where more than 99 KB
_SHARED = {(8, 0): 163 << 10, (8, 7): 163 << 10, (9, 0): 227 << 10, (10, 0): 227 << 10, (10, 3): 227 << 10}


def _choices(problem: GemmProblem) -> tuple[tuple[int, ...], ...]:
    """The tiles there are for a problem, without the simulator's."""
    if _converted(problem):
        return WARP_TILES
    return ASYNC_TILES[problem.dtype, problem.precision if problem.dtype == "float32" else "ieee"]


def _converted(problem: GemmProblem) -> bool:
    return ITEMSIZE[problem.dtype] == 2


def tiles_config(
    problem: GemmProblem, capability: tuple[int, int], index: int | None = None
) -> TilesConfig | AsyncConfig:
    """The largest tiles that give every multiprocessor one; ``index`` picks one, counted from the largest."""
    choices = _choices(problem)
    if index is None:
        index = 0
        while index + 1 < len(choices) and _tiles(problem, *choices[index][:2]) < FEW_TILES:
            index += 1
    return _of_tiles(problem, capability, choices[index])


def _of_tiles(problem: GemmProblem, capability: tuple[int, int], choice: tuple[int, ...]) -> TilesConfig | AsyncConfig:
    if _converted(problem):
        m, n, k, tall, wide, resident = _SIMULATED_TILES if simulate.active() else choice
        a, b = _operand(problem, 0, 4), _operand(problem, 1, 4)
        return TilesConfig(m, n, k, tall, wide, a, b, _store(problem, 2), resident=resident)
    chunk = 16 // ITEMSIZE[problem.dtype]
    warps = problem.dtype == "float64" or problem.precision == "tf32"
    m, n, k, tall, wide, stages, resident = _SIMULATED_ASYNC[warps] if simulate.active() else choice
    # copies of 16 bytes or of single numbers: there is nothing between that saves much
    a, b = (o if o.vector == chunk else replace(o, vector=1) for o in (_operand(problem, i, chunk) for i in (0, 1)))
    if not warps and a.along_k and b.along_k and tall == 16 and 1 in (a.vector, b.vector):
        tall = 8  # beside 128 sums there is no room for the addresses of single numbers
    if b.along_k and not warps and tall * wide == 64:
        resident = resident * 3 // 4  # what a holds meanwhile would not fit 128 registers
    terms = 4 if problem.dtype == "float64" and capability < (9, 0) else 8
    config = AsyncConfig(
        m, n, k, tall, wide, warps, stages, a, b, _store(problem, 2 if warps else chunk), terms, resident=resident
    )
    capacity = _SHARED.get(capability, 99 << 10)
    while config.stages > 2 and config.ring_bytes(ITEMSIZE[problem.dtype]) > capacity:
        config = replace(config, stages=config.stages - 1)
    return config


def reads_better_transposed(problem: GemmProblem) -> bool:
    """Whether float32 is read in longer pieces as c' = b' a': b is packed along k and a is not. What is written costs less."""
    if problem.dtype != "float32" or problem.precision != "ieee" or problem.batch * problem.m * problem.n < 1 << 20:
        return False
    return _operand(problem, 1, 4) == Operand(True, 4) and _operand(problem, 0, 4) == Operand(False, 4)


# ---- the Hopper kernel


def leading(rows: int, s_row: int, s_k: int, terms: int) -> int:
    """The stride between rows of a matrix packed along its other axis, 0 if it is not; free where there is one row."""
    if s_k != 1 and terms > 1:
        return 0
    return s_row if rows > 1 else -(-terms // 8) * 8


def by_tma(problem: GemmProblem, which: int) -> tuple[bool, int] | None:
    """(packed along k, the other stride) of a (0) or b (1), None where the copy engine cannot read it."""
    s_row, s_k = problem.a_strides if which == 0 else problem.b_strides[::-1]
    rows, each = (problem.m if which == 0 else problem.n), 16 // ITEMSIZE[problem.dtype]
    batch = problem.batch_strides[which] if problem.batch > 1 else 0
    for along_k, stride in (
        (True, leading(rows, s_row, s_k, problem.k)),
        (False, leading(problem.k, s_k, s_row, rows)),
    ):
        if stride > 0 and stride % each == 0 and batch % each == 0 and batch >= 0 and problem.aligned[which]:
            return along_k, stride
    return None


def wgmma_reason(problem: GemmProblem, capability: tuple[int, int]) -> str:
    """Why the Hopper kernel cannot, "" if it can."""
    if capability != (9, 0):
        return "needs compute capability 9.0"
    if problem.dtype == "float64" or (problem.dtype == "float32" and problem.precision != "tf32"):
        return "needs float16 or bfloat16, or float32 as TF32"
    a, b = by_tma(problem, 0), by_tma(problem, 1)
    if a is None or b is None:
        return "needs both operands packed along one axis, with other strides of multiples of 16 bytes"
    if problem.dtype == "float32" and not (a[0] and b[0]):
        return "multiplies TF32 where both operands are packed along k"
    return ""


def wgmma_config(problem: GemmProblem, n: int | None = None) -> WgmmaConfig:
    """The widest tile that is not mostly outside and leaves no more multiprocessors idle than a narrower one."""
    a, b = by_tma(problem, 0), by_tma(problem, 1)
    assert a and b
    if n is None:
        waves = {width: -(-_tiles(problem, 128, width) // FEW_TILES) * (width + 32) for width in (256, 128, 64)}
        n = min(waves, key=lambda width: (waves[width], -width))
    store = _store(problem, 8 if problem.out != "float32" else 2)
    return WgmmaConfig(n, {256: 4, 128: 6, 64: 8}[n], a[0], b[0], store if store in (1, 8) else 2)


# ---- the choice


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
    found += [tiles_config(problem, capability, index) for index in range(len(_choices(problem)))]
    return list(dict.fromkeys(found))
