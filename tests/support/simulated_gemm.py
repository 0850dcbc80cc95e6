"""Run the matrix products under the CUDA simulator, with instruction twins where the hardware has none; test_gemm.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

import sys

import numpy as np
from reporting import end, report

from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.kernels.build.simulated_block import launch
from numbadnn.kernels.gemm.device import wgmma as _gemm_wgmma
from numbadnn.kernels.gemm.gemm import GemmProblem, WgmmaConfig, plan_gemm, wgmma_config
from numbadnn.kernels.lang import access as _access
from numbadnn.kernels.lang import hopper_twins as _hopper_twins
from numbadnn.kernels.lang.cuda import f32


def operands(problem: GemmProblem, transposed: tuple[bool, bool]) -> tuple[np.ndarray, ...]:
    """Small integers, so that every sum is exact: a and b as they lie in memory, c, and what it must become."""
    rng = np.random.default_rng(0)
    p, kind, out = problem, numpy_dtype(problem.dtype), numpy_dtype(problem.out)
    a = rng.integers(-3, 4, (p.batch, p.k, p.m) if transposed[0] else (p.batch, p.m, p.k))
    b = rng.integers(-3, 4, (p.batch, p.n, p.k) if transposed[1] else (p.batch, p.k, p.n))
    old = rng.integers(-3, 4, (p.batch, p.m, p.n))
    left, right = (v.swapaxes(1, 2) if t else v for v, t in zip((a, b), transposed, strict=True))
    expected = (p.alpha * (left @ right) + p.beta * old).astype(out)
    c = old.astype(out) if p.beta else np.full(old.shape, np.nan, out)
    return a.astype(kind), b.astype(kind), c, expected


def allow(*arrays: np.ndarray) -> None:
    """Only these may be touched."""
    _access.MEMORY[:] = [(v.ctypes.data, v.ctypes.data + v.nbytes) for v in arrays]


def tiles() -> None:
    """Every arithmetic, each layout, tails on all sides, a batch, alpha and beta, copies of 16 bytes; c transposed."""
    cases = (
        ("float32", (20, 36, 12), (False, False), {}),
        ("float64", (18, 20, 10), (False, True), {}),
        ("float32", (17, 33, 9), (False, False), {"alpha": 2.0, "beta": -1.0}),
        ("float32", (16, 32, 8), (True, True), {"batch": 2}),
        ("float32", (5, 3, 7), (False, True), {"precision": "tf32"}),
        ("float64", (18, 17, 10), (True, False), {}),
        ("float16", (9, 20, 12), (False, True), {"out": "float32", "beta": 1.0}),
        ("bfloat16", (16, 16, 8), (True, False), {"batch": 2}),
    )
    for dtype, sizes, transposed, more in cases:
        problem = GemmProblem.of(*sizes, dtype, *transposed, **more)
        a, b, c, expected = operands(problem, transposed)
        allow(a, b, c)
        plan_gemm(problem, 0).direct(0, *(v.ctypes.data for v in (a, b, c)))
        report(str(problem), np.array_equal(c, expected))
    problem = GemmProblem(6, 5, 4, "float32", "float32", (4, 1), (5, 1), (1, 6))
    a, b, c, expected = operands(problem, (False, False))
    c = np.full((1, 5, 6), np.nan, "float32")
    allow(a, b, c)
    plan_gemm(problem, 0).direct(0, *(v.ctypes.data for v in (a, b, c)))
    report(f"transposed {problem}", np.array_equal(c.swapaxes(1, 2), expected))


def wgmma() -> None:
    """The Hopper kernel itself: swizzled copies, barriers of both kinds through more than one phase, tails, all four layouts."""
    cases = (
        ((40, 72, 72), (False, True), "float16"),
        ((72, 64, 72), (True, False), "float16"),
        ((40, 72, 72), (False, True), "float32"),
    )
    for sizes, transposed, dtype in cases:
        n, depth = 64, _gemm_wgmma.depth(dtype)
        problem = GemmProblem.of(*sizes, dtype, *transposed)
        chosen = wgmma_config(problem, n)
        config = WgmmaConfig(n, 2, chosen.a_by_rows, chosen.b_by_rows, chosen.store)
        a, b, c, expected = operands(problem, transposed)
        maps = [
            _hopper_twins.Map(v, (depth, size) if by_rows else (64, 64))
            for v, size, by_rows in ((a, _gemm_wgmma.M, config.a_by_rows), (b, n, config.b_by_rows))
        ]
        allow(c)
        scalars = sizes, 1, (1, 1), problem.c_strides, c[0].size, f32(1), f32(0)
        kernel = _gemm_wgmma.gemm(dtype, dtype, config)
        launch(kernel, (1, 1, 1), (384, 1, 1), 0, *maps, c.ctypes.data, *scalars)
        report(f"wgmma {problem} {config}", np.array_equal(c, expected))


if __name__ == "__main__":
    for part in sys.argv[1:]:
        globals()[part]()
    end()
