"""The matrix product: its problem, its configurations, its kernels under the simulator, assembled, and on a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.errors import NotSupportedError
from numbadnn.kernels import _assemble, _tensormap, gemm
from numbadnn.kernels.gemm import GemmProblem, TilesConfig, WgmmaConfig, plan_gemm

TESTS = Path(__file__).parent
HOPPER = (9, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "checks"), [("tiles", 7), ("wgmma", 2)])
def test_under_the_simulator(part: str, checks: int) -> None:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(TESTS.parent)}
    command = [sys.executable, str(TESTS / "simulated_gemm.py"), part]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert sum(line.startswith("ok") for line in done.stdout.splitlines()) == checks


@pytest.mark.skipif(not _assemble.find_ptxas(), reason="ptxas is not installed")
@pytest.mark.parametrize("kernel", list(gemm.hopper_kernels()), ids=lambda k: k.name.replace(" ", "-"))
def test_hopper_kernels_assemble_without_spills(kernel: gemm.Kernel) -> None:
    made = _assemble.by_ptxas(kernel.ptx((9, 0, "a")), "sm_90a", _assemble.find_ptxas())
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in made.log, made.log


def test_descriptors_become_one_parameter() -> None:
    entry = ",\n".join(f"\t.param .u64 k_param_{i}" for i in range(34)) + ",\n\t.param .u32 k_param_34"
    ptx = f".visible .entry k(\n{entry}\n)\n{{ mov.b64 at, NUMBADNN_MAP_1; }}"
    text = _tensormap.by_value(ptx, "map map ptr i64 i32")
    assert text.count(".param") == 5
    assert ".param .align 64 .b8 k_param_16[128]" in text and "mov.b64 at, k_param_16;" in text
    with pytest.raises(ValueError, match="1 more"):
        _tensormap.by_value(ptx, "map map ptr i64")


def test_the_largest_tiles_where_there_is_work_enough() -> None:
    large, small = (GemmProblem.of(n, n, n, "float32") for n in (4096, 256))
    wide, narrow = (gemm.tiles_config(p, HOPPER) for p in (large, small))
    assert wide.m * wide.n > narrow.m * narrow.n
    assert gemm.heuristic(large, HOPPER) == wide == gemm.space(large, HOPPER)[0]


def test_hopper_kernel_takes_what_the_copy_engine_can_read() -> None:
    assert isinstance(gemm.heuristic(GemmProblem.of(512, 512, 512, "float16"), HOPPER), WgmmaConfig)
    assert isinstance(gemm.heuristic(GemmProblem.of(512, 512, 512, "float16"), (8, 0)), TilesConfig)
    for problem in (
        GemmProblem.of(512, 512, 511, "float16"),
        GemmProblem.of(512, 512, 512, "float16", aligned=(False, True, True)),
        GemmProblem.of(512, 512, 512, "float32"),
    ):
        assert len(gemm.wgmma_reason(problem, HOPPER).split()) > 3
        assert isinstance(gemm.heuristic(problem, HOPPER), TilesConfig)


def test_transposed_is_the_same_product() -> None:
    problem = GemmProblem.of(3, 5, 7, "float32", transpose_a=True, batch=2)
    other = problem.transposed
    assert (other.m, other.n, other.c_strides) == (5, 3, (1, 5))
    assert other.a_strides == problem.b_strides[::-1]
    assert other.transposed == problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": 0}, "sizes of at least 1"),
        ({"dtype": "int8"}, "float type"),
        ({"out": "float64"}, "float32 or the same"),
        ({"precision": "fast"}, "ieee or tf32"),
    ],
)
def test_bad_problems(change: dict[str, object], message: str) -> None:
    fields = {"m": 2, "n": 3, "k": 4, "dtype": "float16", "out": "float16", "precision": "ieee", **change}
    with pytest.raises(ValueError, match=message):
        GemmProblem(a_strides=(4, 1), b_strides=(3, 1), c_strides=(3, 1), **fields)  # type: ignore[arg-type]


def test_too_many_matrices() -> None:
    with pytest.raises(NotSupportedError, match="65535"):
        plan_gemm(GemmProblem.of(1, 1, 1, "float32", batch=65536), 0)


SIZES = ((1, 1, 1), (128, 256, 64), (130, 264, 72), (129, 67, 33), (200, 136, 384), (1, 64, 64), (64, 1, 9))


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32", "float64"))
def test_small_integers_to_the_bit(dtype: str, sizes: tuple[int, int, int]) -> None:
    cupy = pytest.importorskip("cupy")
    m, n, k = sizes
    rng = np.random.default_rng(1)
    kind = numpy_dtype(dtype)
    for transposed in ((False, False), (False, True), (True, False), (True, True)):
        problem = GemmProblem.of(m, n, k, dtype, *transposed, alpha=2, beta=-1, batch=2, out="float32")
        if dtype == "float64":
            problem = GemmProblem.of(m, n, k, dtype, *transposed, alpha=2, beta=-1, batch=2)
        a, b = rng.integers(-2, 3, (2, m, k)), rng.integers(-2, 3, (2, k, n))
        old = rng.integers(-2, 3, (2, m, n)).astype(problem.out)
        left, right = (v.swapaxes(1, 2) if t else v for v, t in zip((a, b), transposed, strict=True))
        on_gpu = [cupy.asarray(np.ascontiguousarray(v).astype(kind).view(np.uint8)) for v in (left, right)]
        for config in gemm.space(problem, _capability()):
            c = cupy.asarray(old)
            plan = plan_gemm(problem, 0, config)
            assert plan.direct is not None
            plan.direct(0, on_gpu[0].data.ptr, on_gpu[1].data.ptr, c.data.ptr)
            assert np.array_equal(cupy.asnumpy(c), 2 * (a @ b) - old), f"{problem} {config}"


def _capability() -> tuple[int, int]:
    from numbadnn.kernels import _driver

    return _driver.compute_capability(0)
