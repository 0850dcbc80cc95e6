"""The tiled implicit products: what they take, how they are configured, and their kernels under the simulator and on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
from configured import check_configurations
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

import numbadnn
from numbadnn.kernels.conv.tiles import model
from numbadnn.kernels.conv.tiles import tiles as implicit_tiles
from numbadnn.kernels.conv.tiles.config import SHARED, Reading, configured
from numbadnn.kernels.conv.tiles.product import Product
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import implementations

POLICY = Policy(device=0)
LAYER = "x=float32:32x128x28x28 w=float32:128x128x3x3 pad=1,1,1,1"
DIRECTIONS = ("conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights")


def problem(text: str, op: str = "conv2d") -> ConvProblem:
    return ConvProblem.parse(f"{op} {text}")


def test_under_the_simulator() -> None:
    assert checks_passed("implicit_tiles") == 39


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x=float16:1x8x8x8 w=float16:8x8x3x3", "multiples of 8 channels"),
        ("x=float16:1x12x8x8:nhwc w=float16:8x12x3x3:nhwc", "multiples of 8 channels"),
        ("x=float32:1x2x5x5 w=float32:3x3x3x2x3x3", "all positions share"),
        ("x=float32:1x1x20x40 w=float32:1x1x16x16", "at most 31 taps"),
    ],
)
def test_refuses_with_a_reason(text: str, reason: str) -> None:
    assert reason in implicit_tiles.supports(problem(text), POLICY)


def test_refuses_a_workspace_past_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implicit_tiles, "device_reason", lambda policy: "")
    assert implicit_tiles.supports(problem(LAYER), POLICY) == ""
    assert "workspace limit is 1000" in implicit_tiles.supports(problem(LAYER), replace(POLICY, workspace_limit=1000))


def test_sizes_of_the_product() -> None:
    rows = 32 * 28 * 28
    sizes = {"conv2d": (rows, 1152), "conv2d_grad_wrt_inputs": (rows, 1152), "conv2d_grad_wrt_weights": (1152, rows)}
    for op, expected in sizes.items():
        p = Product(problem(LAYER, op))
        assert (p.rows, p.terms, p.columns, p.phases) == (*expected, 128, 1)


def test_phases_of_the_gradient_of_the_image() -> None:
    p = Product(problem("x=float32:2x3x9x8 w=float32:4x3x3x3 stride=2,3", "conv2d_grad_wrt_inputs"))
    assert p.phases == 6
    assert p.places == (1, 5, 3)
    assert p.terms == 4 * 2 * 1


def test_phases_of_long_strides_are_not_counted_one_by_one() -> None:
    text = "conv2d_grad_wrt_inputs x=float32:1x2x6x5 w=float32:3x2x2x2 pad=1,0,0,0 stride=1099511627776,1099511627776"
    p = Product(ConvProblem.parse(text))
    assert (p.begin, p.end) == (0, (2**40 - 1) * 2**40 + 2)  # taps 0 and 1 meet rows -1 and 0, columns 0 and 1
    assert not p.heavier_last
    x, w = np.ones((1, 2, 6, 5), np.float32), np.ones((3, 2, 2, 2), np.float32)
    y = numbadnn.conv2d(x, w, subsample=(2**40, 2**40))
    dx = numbadnn.conv2d_grad_wrt_inputs(y, w, x.shape, subsample=(2**40, 2**40))
    assert dx.sum() == y.sum() * w[0].sum()


def test_phases_that_meet_no_tap_are_cleared_where_the_result_lies_without_gaps() -> None:
    line = "x=float32:2x3x9x8{} w=float32:4x3x{} {}stride=2,3"
    for x, taps, rest, span in (
        ("", "1x1", "", (0, 1)),
        ("", "1x1", "pad=1,0,2,0 ", (4, 5)),
        ("", "2x1", "", (0, 4)),  # between them some that meet none
        ("", "3x3", "", (0, 6)),
        (":nhwc", "1x1", "", (0, 1)),
        (":300,90,9,1", "1x1", "", (0, 6)),  # what lies in the gaps is not ours
        ("", "1x1", "beta=1 ", (0, 6)),
    ):
        p = Product(problem(line.format(x, taps, rest), "conv2d_grad_wrt_inputs"))
        assert (p.begin, p.end) == span, (x, taps, rest)
        assert p.tiles(1000, 1000) == span[1] - span[0]
    orders = {
        pad: problem(f"x=float32:2x3x9x9 w=float32:4x3x3x3 pad={pad} stride=2,2", DIRECTIONS[1])
        for pad in ("0,0,0,0", "1,1,1,1")
    }
    assert [Product(p).heavier_last for p in orders.values()] == [
        False,
        True,
    ]  # 4, 2, 2, 1 taps, and the other way round


def test_as_many_elements_an_access_as_memory_is_aligned() -> None:
    last = LAYER.replace("28x28 w", "28x28:nhwc w").replace("3x3 pad", "3x3:nhwc pad")
    by_direction = {
        "conv2d": (Reading(True, 1), Reading(True, 1)),
        "conv2d_grad_wrt_inputs": (Reading(True, 1), Reading(False, 4)),
        "conv2d_grad_wrt_weights": (Reading(False, 4), Reading(False, 4)),
    }
    for op, expected in by_direction.items():
        config = model.heuristic(problem(last, op), POLICY)
        assert (config.a, config.b) == expected
    plain = "x=float32:2x8x6x6 w=float32:12x8x1x1"
    assert model.heuristic(problem(plain), POLICY).a == Reading(False, 4)
    assert model.heuristic(problem(f"{plain} pad=0,1,0,0"), POLICY).a == Reading(False, 1)
    assert model.heuristic(problem("x=float32:2x8x5x5 w=float32:12x8x1x1"), POLICY).a == Reading(False, 1)


def test_16_bit_numbers_are_copied_by_eight() -> None:
    line = "x=float16:2x64x14x14:nhwc w=float16:128x64x3x3:nhwc pad=1,1,1,1"
    readings = {op: model.heuristic(problem(line, op), POLICY) for op in DIRECTIONS}
    along = [(c.a.along_terms, c.b.along_terms) for c in readings.values()]
    assert along == [(True, True), (True, False), (False, False)]
    assert all(c.a.vector == c.b.vector == 8 and c.taps_first for c in readings.values())


def test_terms_are_split_where_tiles_are_few() -> None:
    assert model.heuristic(problem(LAYER), POLICY).splits == 1
    weights = model.heuristic(problem(LAYER, DIRECTIONS[2]), POLICY)
    assert weights.splits > 1
    assert weights == model.heuristic(problem(LAYER, DIRECTIONS[2]), POLICY)
    few = model.heuristic(problem("x=float32:1x512x7x7 w=float32:512x512x3x3 pad=1,1,1,1"), POLICY)
    assert few.splits > 4


@pytest.mark.parametrize("op", DIRECTIONS)
def test_space_begins_with_the_heuristic(op: str) -> None:
    found = model.space(problem(LAYER, op), POLICY)
    assert found[0] == model.heuristic(problem(LAYER, op), POLICY)
    assert len(set(found)) == len(found) > 5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", DIRECTIONS)
def test_every_configuration_fits_the_shared_memory_of_any_gpu(op: str, dtype: str) -> None:
    for terms in (4, 8):
        for config in model.space(problem(LAYER.replace("float32", dtype), op), POLICY, terms):
            assert config.shared_bytes <= SHARED, config


@pytest.mark.parametrize(
    ("tile", "reason"),
    [
        ((64, 16, 16, 8, 2, 4), "expected shares of 1, 2 or 4 times 4 rows and of columns in 4s, got 8 x 2"),
        ((96, 32, 16, 12, 4, 4), "expected shares of 1, 2 or 4 times 4 rows and of columns in 4s, got 12 x 4"),
        ((64, 16, 16, 8, 4, 4), "expected tiles of 4 x 8 shares of 8 x 4, got 64 x 16"),
        ((512, 32, 16, 8, 4, 4), "expected 32 times 16 terms in equal shares of 512 threads, got Reading"),
        ((512, 32, 1, 4, 4, 4), "expected 512 times 1 terms in equal shares of 1024 threads, got Reading"),
    ],
)
def test_refuses_tiles_that_threads_would_not_cover(tile: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        configured(Product(problem(LAYER)), tile, False, 1)


@pytest.mark.parametrize("op", DIRECTIONS)
def test_ranks_before_the_direct_kernel(op: str) -> None:
    ranks = {impl.name: impl.rank(problem(LAYER, op)) for impl in implementations(op)}
    assert ranks["numba.implicit_tiles"] < min(ranks["numba.direct"], ranks["numba.corrmm"])


GPU_LINES = (
    "x={t}:3x20x17x19 w={t}:36x20x3x3 pad=1,1,1,1",
    "x={t}:2x32x16x12:nhwc w={t}:72x16x3x2:nhwc pad=1,0,0,2 stride=2,1 groups=2 alpha=0.5 beta=2",
    "x={t}:2x24x16x16 w={t}:40x24x1x1",
    "x={t}:2x6x21x20 w={t}:16x6x4x5 pad=3,2,1,4 stride=3,2 dilation=2,1 flip=0",
    "x=bfloat16:2x32x17x11:nhwc w=bfloat16:48x16x3x2:nhwc pad=1,1,0,1 stride=2,1 groups=2",
    "x={t}:3x24x14x14 w={t}:136x24x1x1 stride=2,2",
    "x=float16:3x72x9x9:nhwc w=float16:136x72x1x1:nhwc alpha=2 beta=-1",
)


@pytest.mark.gpu
@pytest.mark.slow(10)
@pytest.mark.parametrize("op", DIRECTIONS)
@pytest.mark.parametrize("number", range(len(GPU_LINES)))
def test_every_configuration_agrees_to_the_bit(number: int, op: str) -> None:
    case = problem(GPU_LINES[number].format(t=("float64" if number in (1, 3) else "float32")), op)
    configs = implicit_tiles.space(case, POLICY)[number % 3 :: 3]
    check_configurations("numba.implicit_tiles", case, "integers", configs)
