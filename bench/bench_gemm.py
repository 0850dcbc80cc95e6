"""The matrix product beside torch.matmul (cuBLAS), TFLOP/s in one run: every type, square and odd sizes, all four layouts.

float32 is IEEE on both sides, and TF32 on both where a row says so. Before a speed is printed the result on the arrays
that are timed is held against float64 on the GPU within the bound of validate.compare. ``python bench/bench_gemm.py
[--quick]``.
"""

from __future__ import annotations

import sys
from typing import Any

from harness import device_ms, save, table

from numbadnn.kernels.gemm.gemm import GemmProblem, arithmetic, plan_gemm
from numbadnn.measuring import compare

#: dtype, precision, (m, n, k), transposed a, transposed b
CASES = (
    ("float16", "ieee", (4096, 4096, 4096), False, True),
    ("float16", "ieee", (8192, 8192, 8192), False, True),
    ("bfloat16", "ieee", (4096, 4096, 4096), False, True),
    ("bfloat16", "ieee", (8192, 8192, 8192), False, True),
    ("float16", "ieee", (4096, 4096, 4096), False, False),
    ("float16", "ieee", (8192, 8192, 8192), False, False),
    ("float16", "ieee", (4096, 4096, 4096), True, False),
    ("float16", "ieee", (4096, 4096, 4096), True, True),
    ("float16", "ieee", (4000, 4072, 4120), False, False),
    ("float16", "ieee", (4095, 4097, 4093), False, False),
    ("float16", "ieee", (512, 3136, 576), False, False),
    ("float32", "ieee", (4096, 4096, 4096), False, False),
    ("float32", "ieee", (8192, 8192, 8192), False, False),
    ("float32", "ieee", (4096, 4096, 4096), False, True),
    ("float32", "ieee", (4096, 4096, 4096), True, False),
    ("float32", "ieee", (4095, 4097, 4093), False, False),
    ("float32", "ieee", (4096, 4096, 4096), True, True),
    ("float32", "tf32", (4096, 4096, 4096), False, False),
    ("float32", "tf32", (4096, 4096, 4096), False, True),
    ("float32", "tf32", (8192, 8192, 8192), False, True),
    ("float64", "ieee", (4096, 4096, 4096), False, False),
    ("float64", "ieee", (4096, 4096, 4096), False, True),
    ("float64", "ieee", (4096, 4096, 4096), True, False),
    ("float64", "ieee", (4096, 4096, 4096), True, True),
    ("float64", "ieee", (8192, 8192, 8192), False, False),
    ("float64", "ieee", (4095, 4097, 4093), False, False),
)


def worst(problem: GemmProblem, a: Any, b: Any, c: Any) -> float:
    """The largest |error| / bound, over all elements (of some rows, where float64 itself would take long)."""
    step = max(1, problem.m // 512)
    a, c = a[::step].double(), c[::step].double()
    exact, magnitude = a @ b.double(), a.abs() @ b.double().abs()
    k, kind, u = problem.k, arithmetic(problem), compare.UNIT[compare.accumulator(problem.dtype)]
    if kind == "ieee":
        e = compare.gamma(k, u) * magnitude
    else:
        e = compare.gamma(compare.TENSOR_CORE_LENGTH * k, compare.TENSOR_CORE_UNIT) * magnitude
        e += compare.TF32 * magnitude if kind == "tf32" else 0
    total = e + compare.UNIT[problem.out] * (exact.abs() + e) + compare.SUBNORMAL[problem.out]
    total += compare.gamma(k, 2.0**-53) * magnitude  # the check's own sum
    return float(((c - exact).abs() / total).nan_to_num(float("inf"), float("inf")).max())


def measure(dtype: str, precision: str, sizes: tuple[int, int, int], a_transposed: bool, b_transposed: bool) -> Any:
    import torch

    m, n, k = sizes
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    kind = getattr(torch, dtype)
    a = torch.randn((k, m) if a_transposed else (m, k), device="cuda", dtype=kind)
    b = torch.randn((n, k) if b_transposed else (k, n), device="cuda", dtype=kind)
    a, b = a.t() if a_transposed else a, b.t() if b_transposed else b
    c = torch.full((m, n), float("nan"), device="cuda", dtype=kind)
    problem = GemmProblem.of(m, n, k, dtype, a_transposed, b_transposed, precision=precision)
    plan = plan_gemm(problem, 0)
    addresses = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    assert plan.direct is not None
    plan.direct(torch.cuda.current_stream().cuda_stream, *addresses)
    layout = ("T" if a_transposed else "N") + ("T" if b_transposed else "N")
    row: dict[str, Any] = {"case": f"{m}x{n}x{k} {layout} {dtype} {precision}", "error/bound": worst(problem, a, b, c)}
    row["kernel"] = plan.facts["kernel"]
    if not row["error/bound"] <= 1:
        return row | {"TFLOP/s": "REFUSED"}
    direct = plan.direct
    repeats = 10
    row["TFLOP/s"] = (
        problem.flops / 1e9 / device_ms([lambda: direct(torch.cuda.current_stream().cuda_stream, *addresses)], repeats)
    )
    row["cublas"] = problem.flops / 1e9 / device_ms([lambda: torch.matmul(a, b, out=c)], repeats)
    row["of cublas"] = row["TFLOP/s"] / row["cublas"]
    return row


def main() -> None:
    quick = "--quick" in sys.argv
    rows = [measure(*case) for case in (CASES[::3] if quick else CASES)]
    print(table(rows, ("case", "kernel", "error/bound", "TFLOP/s", "cublas", "of cublas")))
    print("written to", save("gemm", rows, quick=quick))


if __name__ == "__main__":
    main()
