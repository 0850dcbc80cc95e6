"""``numba.line``: which lines go to tensor cores, and what these compute, in the simulator."""

from typing import Any

import numpy as np
import pytest
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from large_problems import first, first_config

import numbadnn
from numbadnn.kernels.build import assemble as _assemble
from numbadnn.kernels.conv.line import boxes as line_boxes
from numbadnn.kernels.conv.line import dense as line_dense
from numbadnn.kernels.conv.line import f16 as line_f16
from numbadnn.kernels.conv.line import f32x2 as line_f32x2
from numbadnn.kernels.conv.line import line
from numbadnn.kernels.conv.line import vectors as line_vectors
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.validate.execute import execute
from numbadnn.validate.oracle import Trial

LINE = "causal_conv1d x=float16:8x{c}x1x8000 w=float16:{k}x{c}x1x{s} pad=0,0,{past},0 dilation=1,{d}"
SINGLE = "causal_conv1d x=float32:8x{c}x1x8000 w=float32:{k}x{c}x1x{s} pad=0,0,{past},0 dilation=1,{d}"


@pytest.mark.slow(20)
def test_tensor_cores_under_the_simulator() -> None:
    assert checks_passed("line") >= 47


@pytest.mark.parametrize(("c", "k", "s", "d"), [(16, 16, 3, 4), (32, 32, 2, 512), (64, 64, 3, 1), (256, 512, 3, 2)])
def test_what_tensor_cores_take_fits_shared_memory(c: int, k: int, s: int, d: int) -> None:
    problem = ConvProblem.parse(LINE.format(c=c, k=k, s=s, d=d, past=(s - 1) * d))
    config = line_f16.heuristic(problem, Policy())
    assert config is not None
    assert line_f16.shared_bytes(problem, config) <= line_f16.SHARED_BYTES
    assert config.whole == (c <= 2 * config.pairs)


@pytest.mark.parametrize(("c", "k", "s", "d"), [(16, 16, 3, 4), (32, 48, 2, 512), (64, 64, 3, 1), (64, 128, 4, 2)])
def test_rows_of_8_channels_fit_shared_memory(c: int, k: int, s: int, d: int) -> None:
    problem = ConvProblem.parse(LINE.format(c=c, k=k, s=s, d=d, past=(s - 1) * d))
    config = first_config(line.MEMBERS, problem, Policy())
    assert isinstance(config, line_vectors.VectorsConfig)
    assert line_vectors.shared_bytes(problem, config) <= line_vectors.SHARED_BYTES
    assert line_vectors.plane_of(problem, config) % 128 == 16


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (LINE.format(c=48, k=16, s=3, d=1, past=2), "LineF16Config"),
        (LINE.format(c=64, k=64, s=5, d=1, past=4), "LineF16Config"),
        ("causal_conv1d x=float16:1x4x1x8000 w=float16:4x1x1x32 pad=0,0,31,0 groups=4", "ToeplitzConfig"),
        ("causal_conv1d x=float16:1x4x1x8000 w=float16:4x1x1x16 pad=0,0,15,0 groups=4", "ChannelConfig"),
        ("causal_conv1d x=float16:1x1x1x80000 w=float16:1x1x1x16 pad=0,0,15,0", "ToeplitzConfig"),
        ("causal_conv1d x=float16:1x1x1x80000 w=float16:1x1x1x16 pad=0,0,45,0 dilation=1,3", "LineConfig"),
        ("causal_conv1d x=float32:1x4x1x8000 w=float32:4x1x1x32 pad=0,0,31,0 groups=4", "ChannelConfig"),
        (SINGLE.format(c=32, k=32, s=2, d=16, past=16), "F32x2Config"),
        (SINGLE.format(c=32, k=9, s=2, d=16, past=16), "F32x2Config"),
        (SINGLE.format(c=40, k=16, s=4, d=3, past=9), "F32x2Config"),
        (SINGLE.format(c=16, k=48, s=2, d=16, past=16), "DenseConfig"),
        (SINGLE.format(c=64, k=64, s=3, d=1, past=2), "BoxesConfig"),
        (SINGLE.format(c=96, k=48, s=2, d=16, past=16), "DenseConfig"),
        (SINGLE.format(c=32, k=8, s=2, d=16, past=16), "DenseConfig"),
        (SINGLE.format(c=32, k=32, s=2, d=512, past=512), "DenseConfig"),
        (SINGLE.format(c=32, k=32, s=5, d=4, past=16), "DenseConfig"),
        (SINGLE.format(c=32, k=32, s=2, d=1, past=1).replace("8000", "8002"), "F32x2Config"),
        (SINGLE.format(c=96, k=32, s=2, d=1, past=1).replace("8000", "8002"), "LineConfig"),
    ],
)
def test_which_kernel_takes_a_line(problem: str, kind: str) -> None:
    assert type(first_config(line.MEMBERS, ConvProblem.parse(problem), Policy())).__name__ == kind


@pytest.mark.parametrize("k", [16, 32, 48, 128])
@pytest.mark.parametrize(
    ("c", "s", "d"), [(16, 3, 4), (24, 4, 8), (32, 2, 16), (40, 2, 1), (64, 1, 1), (64, 3, 1), (64, 4, 5)]
)
def test_float32_in_halves_is_within_its_bound_and_fits_shared_memory(c: int, s: int, d: int, k: int) -> None:
    problem = ConvProblem.parse(SINGLE.format(c=c, k=k, s=s, d=d, past=(s - 1) * d))
    config = line_f32x2.heuristic(problem, Policy())
    assert config is not None
    assert line_f32x2.spread_of(c, s, config.run) >= 28
    assert config.octets % (2 * config.run) == 0 and c <= 8 * config.octets < 2 * max(c, 9)
    assert config.turns * line_f32x2.READERS >= config.octets * (config.span + line_f32x2.halo_of(problem))
    assert config.filters % (config.multipliers // 32) == 0
    assert config.shared_bytes <= line_f32x2.SHARED_BYTES


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (SINGLE.format(c=64, k=64, s=3, d=1, past=2), (3, 8, 4)),
        (SINGLE.format(c=64, k=128, s=4, d=3, past=9), (4, 16, 4)),
        (SINGLE.format(c=48, k=50, s=2, d=24, past=24), (2, 24, 2)),
        (SINGLE.format(c=64, k=64, s=2, d=25, past=25), None),  # more of what is behind than a box has room for
        (SINGLE.format(c=64, k=64, s=3, d=1, past=2).replace("8000", "8002"), None),
        (
            SINGLE.format(c=128, k=96, s=3, d=1, past=2).replace("96x128", "96x64") + " groups=2",
            None,
        ),  # other groups' results
        (SINGLE.format(c=64, k=64, s=3, d=1, past=2).replace("8x64x1x8000", "1x64x1x8000"), None),  # not enough for all
    ],
)
def test_which_boxes_a_line_is_read_in(text: str, sizes: tuple[int, ...] | None) -> None:
    problem = ConvProblem.parse(text)
    config = line_boxes.heuristic(problem, Policy())
    assert config == (sizes and line_boxes.BoxesConfig(*sizes))
    if config:
        taps, C = problem.taps[1], problem.w.shape[1]
        _, shared, _ = line_boxes.arguments(problem, config)
        assert line_f32x2.spread_of(C, taps, config.run) >= line_f32x2.ENOUGH
        assert shared <= line_boxes.SHARED_BYTES and config.boxes >= line_boxes.GROUPS


@pytest.mark.skipif(not _assemble.find_ptxas(), reason="ptxas is not installed")
@pytest.mark.parametrize("kernel", list(line_boxes.hopper_kernels()), ids=lambda k: k.name.replace(" ", "-"))
def test_boxes_assemble_without_spills(kernel: Any) -> None:
    made = _assemble.by_ptxas(kernel.ptx((9, 0, "a")), "sm_90a", _assemble.find_ptxas())
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in made.log, made.log
    assert "wgmma" not in made.log, made.log  # that they run one after the other


def test_what_they_do_not_take() -> None:
    line = LINE.format(c=16, k=16, s=3, d=1, past=2)
    for policy in (
        Policy(determinism="gpu_to_gpu"),
        Policy(determinism="batch_invariant"),
        Policy(precision="float64"),
    ):
        assert line_f16.heuristic(ConvProblem.parse(line), policy) is None
    assert line_f16.heuristic(ConvProblem.parse(line), Policy()) is not None
    for other in (
        line.replace("8000", "8004"),
        line.replace("float16", "float32"),
        LINE.format(c=16, k=2, s=3, d=1, past=2),
    ):
        assert line_f16.heuristic(ConvProblem.parse(other), Policy()) is None


@pytest.mark.parametrize("determinism", ["gpu_to_gpu", "batch_invariant"])
def test_float32_stays_with_plain_sums_where_every_gpu_must_agree(determinism: str) -> None:
    problem = ConvProblem.parse(SINGLE.format(c=64, k=64, s=3, d=1, past=2))
    assert not isinstance(first_config(line.MEMBERS, problem, Policy()), line_dense.DenseConfig)
    assert isinstance(first_config(line.MEMBERS, problem, Policy(determinism=determinism)), line_dense.DenseConfig)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["random", "integers", "positive", "far apart", "not finite"])
@pytest.mark.parametrize(
    "text",
    [
        "x=float32:3x64x1x2001 w=float32:64x64x1x3 pad=0,0,2,0",
        "x=float32:2x90x1x508 w=float32:70x45x1x2 pad=0,0,16,0 dilation=1,16 flip=0 groups=2",
        "x=float32:2x16x1x4000 w=float32:16x16x1x3 pad=0,0,8,0 dilation=1,4",
        "x=float32:9x64x1x2000 w=float32:100x64x1x3 pad=0,0,8,0 dilation=1,4",
        "x=float32:2x128x1x8004 w=float32:128x64x1x2 pad=0,0,16,0 dilation=1,16 flip=0 groups=2",
        "x=float32:3x50x1x6000 w=float32:64x50x1x4 pad=0,0,3,0",
    ],
)
def test_float32_on_tensor_cores_is_within_the_bound_of_plain_sums(text: str, kind: str) -> None:
    problem = ConvProblem.parse("causal_conv1d " + text)
    trial = Trial.of(problem, kind="integers" if kind == "integers" else "random")
    x, w = trial.inputs
    if kind == "positive":
        np.abs(x, out=x), np.abs(w, out=w)
    elif kind == "far apart":
        x[0, 0, :8], x[:, :, 330:336], x[0, 1, 20], x[1] = 1e-30, 1e-38, 3e30, np.exp(20 * np.minimum(x[1], 4))
        w[3, 1, 0], w[5] = 1e-20, w[5] * 1e-30
    elif kind == "not finite":
        x[0, 0, 3], x[-1, -1, -9], w[7, 1, 1], w[8, 0, 0] = np.nan, np.inf, -np.inf, np.nan
    impl = first("numba.line", problem, Policy(device=0))
    found = execute(impl, problem, Policy(device=0), trial.inputs)
    assert isinstance(found.executable.facts["config"], line_f32x2.F32x2Config | line_boxes.BoxesConfig)
    assert found.same_bits and not found.damage
    with np.errstate(invalid="ignore"):
        compared = trial.compare_exactly(found.results) if kind == "integers" else trial.compare(found.results, "ieee")
    assert compared.ok, compared


@pytest.mark.gpu
def test_lines_of_one_kernel_take_turns_whose_shared_memory_differs() -> None:
    """A kernel has one limit for all its launches: the later, smaller one must not take it from the earlier."""
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 32, 4000, device="cuda").half()
    w = torch.randn(32, 32, 2, device="cuda").half()

    def line(dilation: int) -> Any:
        return numbadnn.causal_conv1d(x, w, filter_dilation=dilation, backend="numba")

    first, _ = line(512), line(64)
    assert torch.equal(line(512), first)
