"""The matrix product: its problem, its configurations, its kernels under the simulator, assembled, and on a GPU."""

import numpy as np
import pytest
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.errors import NotSupportedError
from numbadnn.kernels.build import assemble as _assemble
from numbadnn.kernels.build import tensormap as _tensormap
from numbadnn.kernels.gemm import gemm
from numbadnn.kernels.gemm.gemm import AsyncConfig, GemmProblem, TilesConfig, WgmmaConfig, plan_gemm

HOPPER = (9, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "checks"), [("tiles", 9), ("wgmma", 3)])
def test_under_the_simulator(part: str, checks: int) -> None:
    assert checks_passed("gemm", part) == checks


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
    for problem, kind in (
        (GemmProblem.of(512, 512, 511, "float16"), TilesConfig),
        (GemmProblem.of(512, 512, 512, "float16", aligned=(False, True, True)), TilesConfig),
        (GemmProblem.of(512, 512, 512, "float32"), AsyncConfig),
        (GemmProblem.of(512, 512, 512, "float32", precision="tf32"), AsyncConfig),
    ):
        assert len(gemm.wgmma_reason(problem, HOPPER).split()) > 3
        assert isinstance(gemm.heuristic(problem, HOPPER), kind)
    along_k = GemmProblem.of(512, 512, 512, "float32", transpose_b=True, precision="tf32")
    assert isinstance(gemm.heuristic(along_k, HOPPER), WgmmaConfig)


def test_copies_are_of_16_bytes_or_of_single_numbers() -> None:
    for n, vector in ((512, 4), (510, 1), (511, 1)):
        config = gemm.tiles_config(GemmProblem.of(n, n, n, "float32"), HOPPER)
        assert isinstance(config, AsyncConfig) and config.a.vector == config.b.vector == vector


def test_stages_fit_the_shared_memory_of_smaller_gpus() -> None:
    problem = GemmProblem.of(4096, 4096, 4096, "float64")
    for capability, most in (((9, 0), 227 << 10), ((8, 0), 163 << 10), ((8, 9), 99 << 10)):
        for index in range(2):
            config = gemm.tiles_config(problem, capability, index)
            assert isinstance(config, AsyncConfig) and config.ring_bytes(8) <= most and config.stages >= 2


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
LAYOUTS = ((False, False), (False, True), (True, False), (True, True))


def exactly(problem: GemmProblem, transposed: tuple[bool, bool], configs: list[gemm.Config]) -> None:
    """Small integers, two matrices, alpha 2 and beta -1: every configuration to the bit."""
    cupy = pytest.importorskip("cupy")
    m, n, k, rng, kind = problem.m, problem.n, problem.k, np.random.default_rng(1), numpy_dtype(problem.dtype)
    a, b = rng.integers(-2, 3, (2, m, k)), rng.integers(-2, 3, (2, k, n))
    old = rng.integers(-2, 3, (2, m, n)).astype(problem.out)
    left, right = (v.swapaxes(1, 2) if t else v for v, t in zip((a, b), transposed, strict=True))
    on_gpu = [cupy.asarray(np.ascontiguousarray(v).astype(kind).view(np.uint8)) for v in (left, right)]
    for config in configs:
        c = cupy.asarray(old)
        plan = plan_gemm(problem, 0, config)
        assert plan.direct is not None
        plan.direct(0, on_gpu[0].data.ptr, on_gpu[1].data.ptr, c.data.ptr)
        assert np.array_equal(cupy.asnumpy(c), 2 * (a @ b) - old), f"{problem} {config}"


def integers(dtype: str, sizes: tuple[int, int, int], transposed: tuple[bool, bool], precision: str) -> GemmProblem:
    out = "float64" if dtype == "float64" else "float32"
    return GemmProblem.of(*sizes, dtype, *transposed, alpha=2, beta=-1, batch=2, out=out, precision=precision)


ARITHMETIC = (("float16", "ieee"), ("bfloat16", "ieee"), ("float32", "ieee"), ("float32", "tf32"), ("float64", "ieee"))


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(len(SIZES)), ids=lambda i: str(SIZES[i]))
@pytest.mark.parametrize(("dtype", "precision"), ARITHMETIC)
def test_small_integers_to_the_bit(dtype: str, precision: str, number: int) -> None:
    """What the heuristic chooses, in two of the four layouts in turn: compiling is what takes long here."""
    for transposed in (LAYOUTS[number % 4], LAYOUTS[(number + 2) % 4]):
        problem = integers(dtype, SIZES[number], transposed, precision)
        exactly(problem, transposed, [gemm.heuristic(problem, _capability())])


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "precision"), ARITHMETIC)
def test_every_configuration_on_small_integers(dtype: str, precision: str) -> None:
    problem = integers(dtype, (200, 136, 384), (False, True), precision)
    exactly(problem, (False, True), gemm.space(problem, _capability()))


def _capability() -> tuple[int, int]:
    from numbadnn.gpu import driver as _driver

    return _driver.compute_capability(0)
