"""``numba.line``: which lines go to tensor cores, and what these compute, in the simulator."""

from typing import Any

import pytest
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

import numbadnn
from numbadnn.kernels import line, line_halves, line_octets, line_tiles
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import Policy

LINE = "causal_conv1d x=float16:8x{c}x1x8000 w=float16:{k}x{c}x1x{s} pad=0,0,{past},0 dilation=1,{d}"
TILES = "causal_conv1d x=float32:8x{c}x1x8000 w=float32:{k}x{c}x1x{s} pad=0,0,{past},0 dilation=1,{d}"


@pytest.mark.slow(20)
def test_tensor_cores_under_the_simulator() -> None:
    assert checks_passed("line") >= 32


@pytest.mark.parametrize(("c", "k", "s", "d"), [(16, 16, 3, 4), (32, 32, 2, 512), (64, 64, 3, 1), (256, 512, 3, 2)])
def test_what_tensor_cores_take_fits_shared_memory(c: int, k: int, s: int, d: int) -> None:
    problem = ConvProblem.parse(LINE.format(c=c, k=k, s=s, d=d, past=(s - 1) * d))
    config = line_halves.heuristic(problem, Policy())
    assert config is not None
    assert line_halves.shared_bytes(problem, config) <= line_halves.SHARED_BYTES
    assert config.whole == (c <= 2 * config.pairs)


@pytest.mark.parametrize(("c", "k", "s", "d"), [(16, 16, 3, 4), (32, 48, 2, 512), (64, 64, 3, 1), (64, 128, 4, 2)])
def test_rows_of_8_channels_fit_shared_memory(c: int, k: int, s: int, d: int) -> None:
    problem = ConvProblem.parse(LINE.format(c=c, k=k, s=s, d=d, past=(s - 1) * d))
    config = line.heuristic(problem, Policy())
    assert isinstance(config, line_octets.OctetsConfig)
    assert line_octets.shared_bytes(problem, config) <= line_octets.SHARED_BYTES
    assert line_octets.plane_of(problem, config) % 128 == 16


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (LINE.format(c=48, k=16, s=3, d=1, past=2), "LineHalvesConfig"),
        (LINE.format(c=64, k=64, s=5, d=1, past=4), "LineHalvesConfig"),
        ("causal_conv1d x=float16:1x4x1x8000 w=float16:4x1x1x32 pad=0,0,31,0 groups=4", "ToeplitzConfig"),
        ("causal_conv1d x=float16:1x4x1x8000 w=float16:4x1x1x16 pad=0,0,15,0 groups=4", "ChannelConfig"),
        ("causal_conv1d x=float16:1x1x1x80000 w=float16:1x1x1x16 pad=0,0,15,0", "ToeplitzConfig"),
        ("causal_conv1d x=float16:1x1x1x80000 w=float16:1x1x1x16 pad=0,0,45,0 dilation=1,3", "LineConfig"),
        ("causal_conv1d x=float32:1x4x1x8000 w=float32:4x1x1x32 pad=0,0,31,0 groups=4", "ChannelConfig"),
        (TILES.format(c=32, k=32, s=2, d=16, past=16), "TilesConfig"),
        (TILES.format(c=32, k=24, s=2, d=16, past=16), "TilesConfig"),
        (TILES.format(c=32, k=48, s=2, d=16, past=16), "TilesConfig"),
        (TILES.format(c=32, k=8, s=2, d=16, past=16), "DenseConfig"),
        (TILES.format(c=32, k=32, s=2, d=512, past=512), "DenseConfig"),
        (TILES.format(c=32, k=32, s=5, d=4, past=16), "DenseConfig"),
        (TILES.format(c=32, k=32, s=2, d=1, past=1).replace("8000", "8002"), "LineConfig"),
    ],
)
def test_which_kernel_takes_a_line(problem: str, kind: str) -> None:
    assert type(line.heuristic(ConvProblem.parse(problem), Policy())).__name__ == kind


@pytest.mark.parametrize(("n", "k"), [(1, 64), (8, 64), (8, 48)])
@pytest.mark.parametrize(("s", "d"), [(1, 1), (2, 16), (3, 1), (4, 3), (3, 8)])
def test_tiles_of_a_multiprocessor_fit_its_shared_memory(s: int, d: int, n: int, k: int) -> None:
    problem = ConvProblem.parse(TILES.format(c=64, k=k, s=s, d=d, past=(s - 1) * d).replace("8x64", f"{n}x64"))
    config = line.heuristic(problem, Policy())
    assert isinstance(config, line_tiles.TilesConfig)
    assert (config.high, config.warps) == (16 if k == 48 else 32, 4 if n == 8 else 2)
    assert config.resident * (2 * line_tiles.stage_bytes(problem, config) + 1024) <= 164 * 1024  # sm_80's
    assert config.high * config.wide == 64 * config.threads  # sums
    assert line_tiles.halo_of(problem) * line_tiles.CHANNELS <= config.threads


def test_what_they_do_not_take() -> None:
    line = LINE.format(c=16, k=16, s=3, d=1, past=2)
    for policy in (
        Policy(determinism="gpu_to_gpu"),
        Policy(determinism="batch_invariant"),
        Policy(precision="float64"),
    ):
        assert line_halves.heuristic(ConvProblem.parse(line), policy) is None
    assert line_halves.heuristic(ConvProblem.parse(line), Policy()) is not None
    for other in (
        line.replace("8000", "8004"),
        line.replace("float16", "float32"),
        LINE.format(c=16, k=2, s=3, d=1, past=2),
    ):
        assert line_halves.heuristic(ConvProblem.parse(other), Policy()) is None


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
