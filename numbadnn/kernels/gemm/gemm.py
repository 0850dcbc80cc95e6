"""C = alpha * A * B + beta * C on the GPU, for other kernels to use: any sizes, strides and batch, sums in a fixed order.

``plan_gemm(problem, device)`` gives an Executable on raw addresses. Three kernels: ``device/wgmma.py`` for float16, bfloat16 and
TF32 on Hopper, fed by TMA; ``device/async_.py`` for float32 and float64, by fused multiply-adds or by warp-wide tensor-core
instructions (TF32, float64), fed by asynchronous copies; ``device/tiles.py`` for 16-bit types elsewhere, which TF32
holds exactly. Sums are kept in float32, those of float64 in float64.

>>> launch = plan_gemm(GemmProblem.of(64, 32, 16, "float32"), device=0)       # doctest: +SKIP
>>> launch.direct(stream, a_address, b_address, c_address)                      # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from numbadnn.errors import NotSupportedError
from numbadnn.gpu import driver as _driver
from numbadnn.kernels.build import simulate
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import multiprocessors
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.gemm.config import (
    FEW_TILES,
    by_tma,
    heuristic,
    reads_better_transposed,
    space,
    tiles_config,
    wgmma_config,
    wgmma_reason,
)
from numbadnn.kernels.gemm.problem import AsyncConfig, Config, GemmProblem, M, Operand, TilesConfig, WgmmaConfig, depth
from numbadnn.problem import ITEMSIZE
from numbadnn.registry import SEQUENCE, Executable

__all__ = [
    "FEW_TILES",
    "AsyncConfig",
    "Config",
    "GemmProblem",
    "Operand",
    "TilesConfig",
    "WgmmaConfig",
    "arithmetic",
    "heuristic",
    "kernel",
    "multiprocessors",
    "plan_gemm",
    "space",
    "tiles_config",
    "wgmma_config",
    "wgmma_reason",
]

# ---- kernels


def kernel(dtype: str, out: str, config: Config) -> Kernel:
    """The kernel of one configuration."""
    if isinstance(config, WgmmaConfig):
        parameters = "map map ptr i32*3 i32 i32*2 i64*2 i64 f32 f32"
        return Kernel.of("gemm_wgmma", "gemm.device.wgmma.gemm", (dtype, out, config), parameters, 384)
    real = "f64" if dtype == "float64" else "f32"
    parameters = f"ptr:3 i32*3 i64*2 i64*2 i64*2 i64*3 {real} {real}"
    if isinstance(config, AsyncConfig):
        made_by = "gemm.device.async_.gemm"
        return Kernel.of("gemm_async", made_by, (dtype, config), parameters, config.threads, config.resident)
    made_by = "gemm.device.tiles.gemm"
    return Kernel.of("gemm_tiles", made_by, (dtype, out, config), parameters, config.threads, config.resident)


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


def plan_gemm(problem: GemmProblem, device: int, config: Config | None = None) -> Executable:
    """A product made ready: ``direct(stream, a, b, c)`` launches it on addresses; for one thread.

    Raises NotSupportedError for sizes of 2**31 or more.
    """
    if max(problem.m, problem.n, problem.k) >= LIMIT32 or problem.batch > 65535:
        raise NotSupportedError(f"needs sizes below 2**31 and at most 65535 matrices, got {problem}")
    swapped = problem.c_strides[1] != 1 and problem.c_strides[0] == 1 and problem.m > 1
    swapped = swapped != (config is None and reads_better_transposed(problem.transposed if swapped else problem))
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

    facts = {"kernel": chosen.name, "config": config}
    return around(direct, facts, 0, arithmetic(problem), "run_to_run", SEQUENCE)


def arithmetic(problem: GemmProblem) -> str:
    """The class of the error: 16-bit types go through tensor cores, float64's multiply and add as any other."""
    if problem.dtype in ("float16", "bfloat16"):
        return "tensor_core"
    return problem.precision if problem.dtype == "float32" else "ieee"


def _swapped(direct: Any) -> Callable[..., None]:
    def swapped(stream: int, a: int, b: int, c: int) -> None:
        direct(stream, b, a, c)

    return swapped


def _prepare_tiles(problem: GemmProblem, device: int, config: TilesConfig | AsyncConfig, chosen: Kernel) -> Any:
    tiles = -(-problem.m // config.m) * -(-problem.n // config.n)
    shared = config.ring_bytes(ITEMSIZE[problem.dtype]) if isinstance(config, AsyncConfig) else config.shared_bytes
    scalars = (
        (problem.m, problem.n, problem.k), problem.a_strides, problem.b_strides[::-1], problem.c_strides,
        problem.batch_strides, problem.alpha, problem.beta,
    )  # fmt: skip
    return chosen.prepare(device, (tiles, problem.batch, 1), (config.threads, 1, 1), scalars, shared)


def _prepare_wgmma(problem: GemmProblem, device: int, config: WgmmaConfig, chosen: Kernel) -> Any:
    from numbadnn.gpu.context import ensure_context
    from numbadnn.kernels.build import tensormap as _tensormap

    maps = []
    kind = "tf32" if problem.dtype == "float32" else problem.dtype
    size, terms = ITEMSIZE[problem.dtype], depth(problem.dtype)
    with ensure_context(device):
        for which, rows, tile in ((0, problem.m, M), (1, problem.n, config.n)):
            found = by_tma(problem, which)
            assert found
            along_k, stride = found
            extents, box = ((problem.k, rows), (terms, tile)) if along_k else ((rows, problem.k), (64, 64))
            step = problem.batch_strides[which] if problem.batch > 1 else 0
            images = problem.batch if step else 1
            strides = (size * stride, size * (step or stride * extents[1]))
            maps.append(_tensormap.encode(kind, (*extents, images), strides, (*box, 1)))
    tiles = -(-problem.m // M) * -(-problem.n // config.n) * problem.batch
    moves = tuple(int(problem.batch > 1 and step != 0) for step in problem.batch_strides[:2])
    scalars = (
        *maps, (problem.m, problem.n, problem.k), problem.batch, moves, problem.c_strides, problem.batch_strides[2],
        problem.alpha, problem.beta,
    )  # fmt: skip
    grid = (min(tiles, multiprocessors(device)), 1, 1)
    return chosen.prepare(device, grid, (384, 1, 1), scalars, config.shared_bytes)
