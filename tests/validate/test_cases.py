"""Named problems: each parses back, covers what it says it covers, and gets arrays laid out as its specs say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import cases, dispatch, reference
from numbadnn.measuring.data import EXACT, KINDS, buffer, make_arrays, untouched
from numbadnn.measuring.laws import law
from numbadnn.problem import Spec
from numbadnn.registry import FAMILY
from numbadnn.validate.oracle import expected

ALL = list(cases.all_cases().values())
CONTRACT = cases.find(["contract"])


def test_every_text_parses_back() -> None:
    for case in ALL:
        for small in (False, True):
            problem = case.problem(small)
            assert cases.parse(str(problem)) == problem
        assert str(case.problem()) == case.text


def test_numbers_are_read_back_as_they_were() -> None:
    line = "conv2d x=float32:1x2x5x5 w=float32:3x2x3x3"
    problem = cases.parse(f"{line} alpha=0.12345678 beta=1099511627776")
    assert (problem.alpha, problem.beta) == (0.12345678, 2.0**40)
    assert cases.parse(str(problem)) == problem and " alpha=1 " in str(cases.parse(line))
    text = "batch_normalization_train x=float32:4x3 running_mean=float32:1x3 factor=0.87654321"
    assert cases.parse(str(cases.parse(text))).factor == 0.87654321


@pytest.mark.parametrize(
    ("wrong", "says"),
    [("groups=0", "groups: expected an integer >= 1, got 0"), ("groups=-1", "groups: expected an integer >= 1"),
     ("flip=True", "flip: expected 0 or 1, got 'True'"), ("groups=two", "'two', in 'conv2d x=float32:1x2x5x5 w=.*'")],
)  # fmt: skip
def test_what_is_wrong_with_a_line_is_said(wrong: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cases.parse(f"conv2d x=float32:1x2x5x5 w=float32:3x2x3x3 {wrong}")


def last(*shape: int) -> np.ndarray:
    """An array of this logical shape with its channels last in memory."""
    n, c, *spatial = shape
    return np.moveaxis(np.zeros((n, *spatial, c), np.float32), -1, 1)


@pytest.mark.parametrize(
    ("line", "function", "arrays", "others"),
    [
        ("conv2d x=T:2x64x5x5:nhwc w=T:8x64x1x1:nhwc", "conv2d", (last(2, 64, 5, 5), last(8, 64, 1, 1)), ()),
        ("conv2d x=T:2x4x1x1:nhwc w=T:8x4x1x1:nhwc", "conv2d", (last(2, 4, 1, 1), last(8, 4, 1, 1)), ()),
        ("conv2d x=T:2x1x5x5:nhwc w=T:8x1x1x1:nhwc", "conv2d", (last(2, 1, 5, 5), last(8, 1, 1, 1)), ()),
        ("conv2d x=T:2x4x5x5:nhwc w=T:8x4x1x1:4,1,99,77", "conv2d", (last(2, 4, 5, 5), None), ()),
        (
            "conv2d_grad_wrt_inputs x=T:2x4x5x5:nhwc w=T:8x4x1x1:nhwc y=T:2x8x5x5:nhwc", "conv2d_grad_wrt_inputs",
            (last(2, 8, 5, 5), last(8, 4, 1, 1)), ((2, 4, 5, 5),),
        ),
        (
            "conv2d_grad_wrt_weights x=T:2x4x5x5:nhwc w=T:8x4x1x1:nhwc y=T:2x8x5x5:nhwc", "conv2d_grad_wrt_weights",
            (last(2, 4, 5, 5), last(2, 8, 5, 5)), ((8, 4, 1, 1),),
        ),
        ("conv3d x=T:2x4x3x5x5:nhwc w=T:8x4x1x1x1:nhwc", "conv3d", (last(2, 4, 3, 5, 5), last(8, 4, 1, 1, 1)), ()),
        ("causal_conv1d x=T:2x4x1x9:nhwc w=T:8x4x1x1:nhwc", "causal_conv1d", (last(2, 4, 9), last(8, 4, 1)), ()),
        ("softmax x=T:2x5x1x1:nhwc", "softmax", (last(2, 5, 1, 1),), ()),
        ("softmax_grad dy=T:2x5x1x1:nhwc y=T:2x5x1x1:nhwc", "softmax_grad", (last(2, 5, 1, 1),) * 2, ()),
        ("pool x=T:2x5x2x2:nhwc window=2x2 stride=1x1", "pool", (last(2, 5, 2, 2),), ((2, 2),)),
        (
            "pool_grad x=T:2x5x2x2:nhwc window=2x2 stride=1x1", "pool_grad",
            (last(2, 5, 2, 2), last(2, 5, 1, 1), last(2, 5, 1, 1)), ((2, 2),),
        ),
        ("dropout x=T:2x5x1x1:nhwc p=0.5", "dropout", (last(2, 5, 1, 1),), (0.5,)),
        ("bilinear_upsampling x=T:2x5x1x1:nhwc ratio=2", "bilinear_upsampling", (last(2, 5, 1, 1),), (2,)),
        (
            "batch_normalization_test x=T:2x5x1x1:nhwc gamma=T:1x5x1x1:nhwc mode=spatial", "batch_normalization_test",
            (last(2, 5, 1, 1), *[last(1, 5, 1, 1)] * 4), ("spatial",),
        ),
        (
            "spatialtf_sampler img=T:2x5x1x1:nhwc grid=T:2x3x3x2", "spatialtf_sampler",
            (last(2, 5, 1, 1), np.zeros((2, 3, 3, 2), np.float32)), (),
        ),
    ],
)  # fmt: skip
def test_a_line_written_by_hand_is_the_problem_of_the_call(
    line: str, function: str, arrays: tuple[np.ndarray | None, ...], others: tuple[Any, ...]
) -> None:
    """What is stored under a problem's text is found again, whatever was written for strides that no element depends on."""
    given = [np.zeros((8, 4, 1, 1), np.float32) if a is None else a for a in arrays]
    called = dispatch.intercept("problem", getattr(numbadnn, function), (*given, *others), {})
    assert cases.parse(line.replace("T:", "float32:")) == called
    assert cases.parse(str(called)) == called


def test_names_are_op_or_network_and_distinct_problems() -> None:
    assert len({case.name for case in ALL}) == len(ALL)
    assert all(case.tags <= {"contract", "simulate", "validate", "bench", "edge"} and case.tags for case in ALL)


def test_contract_covers_what_the_operations_offer() -> None:
    conv = [case.problem() for case in CONTRACT if FAMILY[case.op] == "conv"]
    for op in ("conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights"):
        mine = [p for p in conv if p.op == op]
        assert {p.output.dtype for p in mine} == {"float16", "bfloat16", "float32", "float64"}
        assert {True, False} == {p.flip for p in mine} == {p.symmetric for p in mine}
        assert any(p.groups > 1 for p in mine) and any(p.w.shape[1] == 1 < p.groups for p in mine)
        assert any(max(p.stride) > 1 for p in mine) and any(max(p.dilation) > 1 for p in mine)
        assert any(p.beta for p in mine) and any(p.alpha != 1 for p in mine) and any(p.alpha == 0 for p in mine)
        assert any(p.stride[0] != p.stride[1] for p in mine)
        for specs in ([s for p in mine for s in p.inputs], [p.output for p in mine]):
            assert any(min(s.strides) < 0 for s in specs), "no negative stride"
            assert any(s.is_channels_last and not s.is_contiguous for s in specs)
            assert any(not s.aligned for s in specs)
        assert any(0 in s.strides for p in mine for s in p.inputs) and not any(0 in p.output.strides for p in mine)
        assert len({p.padding for p in mine}) > 8
    softmax = [case.problem() for case in CONTRACT if FAMILY[case.op] == "softmax"]
    for op in ("softmax", "softmax_grad"):
        mine = [p for p in softmax if p.op == op]
        choices = {(p.algo, p.mode, p.output.dtype) for p in mine}
        assert len(choices) == 3 * 2 * 4
        assert {len(p.y.shape) for p in mine} == {2, 3, 4, 5, 6}
        assert any(min(p.y.strides) < 0 for p in mine) and any(not p.y.aligned for p in mine)


def test_small_copies_are_the_same_layer() -> None:
    for case in cases.find(["validate"]):
        full, small = case.problem(), case.problem(small=True)
        assert small.flops <= full.flops and small.output.dtype == full.output.dtype
        if FAMILY[case.op] == "conv":
            same = ("padding", "stride", "dilation", "flip", "groups")
            assert all(getattr(full, name) == getattr(small, name) for name in same)
            assert full.w.shape[1:] == small.w.shape[1:] or full.unshared
            assert small.x.shape[1] == full.x.shape[1]


def test_find() -> None:
    assert [c.name for c in cases.find(["resnet50/conv1/forward/float32"])] == ["resnet50/conv1/forward/float32"]
    assert {c.op for c in cases.find(["softmax"])} == {"softmax"}
    assert {c.name.split("/")[0] for c in cases.find(["vgg16/*", "unet/*"])} == {"vgg16", "unet"}
    assert cases.find([]) == cases.find(["validate"])
    assert cases.find(["conv2d"], tag="contract") == [c for c in CONTRACT if c.op == "conv2d"]
    (line,) = cases.find(["softmax x=float32:2x5"])
    assert line.problem().y.shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "words"),
    (
        ("resnet50/conv1/forward/float23", "resnet50/conv1/forward/float32"),
        ("sotfmax", "softmax"),
        ("conv2d x=float32:2x5", "w=SPEC is missing"),
        ("conv2d x=float32:1x1x5x5 w=float32:1x1x3x3 padding=1", "there is no 'padding'"),
        ("conv2d x=float32:1x1x5x5 w=float32:1x1x3x3 pad", "'pad' has no value"),
        ("conv2d x=float32:1x1x5x5 w=float32:1x1x3x3 flip=0 flip=1", "'flip' is there twice"),
        ("pull x=float32:2x5", "begins with one of"),
    ),
)
def test_unknown_names_are_errors_that_suggest(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cases.find([name])


# ---- arrays ----------------------------------------------------------------------------------------------------------

LAYOUTS = (
    "float32:3x4",
    "float16:2x3x4x5:nhwc",
    "bfloat16:3x4:-9,2",
    "float64:3x4:unaligned",
    "float16:3x5:unaligned",
    "float32:3x4:0,1",
    "bfloat16:2x3x4:-20,-6,-1:unaligned",
)


@pytest.mark.parametrize("text", LAYOUTS)
def test_buffer_is_laid_out_as_the_spec_says(text: str) -> None:
    spec = Spec.parse(text)
    values = np.arange(spec.size).reshape(spec.shape)
    if 0 in spec.strides:
        values = np.broadcast_to(values[:1], spec.shape)
    b = buffer(spec, values)
    assert b.array.strides == tuple(s * spec.itemsize for s in spec.strides)
    assert (b.array.__array_interface__["data"][0] % 16 == 0) == spec.aligned
    assert b.array.dtype.name == spec.dtype and (b.array.astype(float) == values).all()
    assert untouched(b)


@pytest.mark.parametrize("text", LAYOUTS)
def test_a_write_next_to_the_operand_is_seen(text: str) -> None:
    spec = Spec.parse(text)
    low, high = spec.span
    for outside in (low - 1, high + 1):
        b = buffer(spec, np.zeros(spec.shape))
        b.memory[b.offset // spec.itemsize + outside] = 0
        assert not untouched(b)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_the_same_for_the_same_seed(kind: str) -> None:
    problem = cases.parse("softmax_grad dy=float32:3x7")
    first, again, other = (make_arrays(problem, seed, kind)[0] for seed in (4, 4, 5))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any((a != b).any() for a, b in zip(first, other, strict=True))


def test_random_inputs_are_finite_and_never_zero() -> None:
    for case in CONTRACT:
        if FAMILY[case.op] == "conv":
            inputs, old = make_arrays(case.problem())
            assert (old is not None) == bool(case.problem().beta)
            for array in (*inputs, *([] if old is None else [old])):
                values = array.astype(np.float64)
                assert np.isfinite(values).all() and (values != 0).all()


SMALL = [c for c in ALL if "bench" not in c.tags]
WHOLE = [c for c in SMALL if law(c.op).exact_integers(c.problem())]


def test_sums_have_integer_data_unless_there_is_a_reason() -> None:
    for case in SMALL:
        problem = case.problem()
        if FAMILY[case.op] == "conv" and case not in WHOLE:
            assert getattr(problem, "alpha", 1) % 0.25 or getattr(problem, "beta", 0) % 0.25
        if FAMILY[case.op] == "softmax":
            assert (case in WHOLE) == (problem.op == "softmax_grad" and problem.algo != "log")
    assert {FAMILY[c.op] for c in WHOLE} >= {"conv", "softmax", "pool"}


#: work from which on the sums of one filter stand for those of all
LARGE = 1e9


def largest_sum(problem: Any, inputs: Any, keywords: dict[str, Any]) -> float:
    """The largest sum of magnitudes of a convolution's products; of large ones a number that none exceeds.

    Sums of one filter do: at each place it has the largest magnitude of all filters, which is 1 in all where data are sparse.
    """
    operation = getattr(reference, problem.op)
    if problem.flops > LARGE:
        first, second = (np.abs(a.astype(np.float32)) for a in inputs)
        assert problem.groups == 1 and not problem.unshared and "out" not in keywords
        # filters, filters' channels, channels of the output's gradient: what results are told apart by
        one = {"forward": 0, "grad_inputs": 1, "grad_weights": 1}[problem.direction]
        shapes = {"grad_inputs": ("input_shape", 1), "grad_weights": ("filter_shape", 0)}
        if problem.direction in shapes:
            name, axis = shapes[problem.direction]
            whole = list(keywords[name])
            whole[axis] = 1
            keywords = keywords | {name: tuple(whole)}
        inputs = first, second.max(axis=one, keepdims=True)
    return float(reference.conv_magnitude(operation, *inputs, **keywords).max())


@pytest.mark.parametrize("case", WHOLE, ids=lambda c: c.name)
def test_small_integers_are_exact_in_any_order(case: cases.Case) -> None:
    problem = case.problem()
    inputs, old = make_arrays(problem, 0, "integers")
    arrays = [a.astype(np.float64) for a in (*inputs, *([] if old is None else [old]))]
    assert any(np.count_nonzero(a) for a in arrays[: len(inputs)])
    if FAMILY[case.op] not in ("conv", "softmax"):  # the results at least are exact in the type that sums are kept in
        assert all((v.astype(np.float32).astype(np.float64) == v).all() for v in expected(problem, inputs, old))
        return
    assert all((a == np.round(a)).all() for a in arrays)
    if problem.op == "softmax_grad":
        dy, sm = arrays
        axes = (1,) if problem.mode == "channel" else tuple(range(1, sm.ndim))
        t = np.abs(dy * sm).sum(axis=axes, keepdims=True)
        largest, fraction = (np.abs(sm) * (np.abs(dy) + t)).max(), 1
    else:
        more = {} if old is None else {"out": old}
        unscaled = {k: v for k, v in problem.keywords.items() if k not in ("alpha", "beta")}
        largest, fraction = largest_sum(problem, inputs, unscaled), 4  # alpha and beta are multiples of 1/4
        if more or problem.alpha != 1:
            largest = max(largest, largest_sum(problem, inputs, problem.keywords | more))
    assert 0 < largest * fraction <= EXACT[problem.output.dtype] or problem.alpha == 0


def test_integers_of_long_sums_in_bfloat16_are_sparse_but_not_zero() -> None:
    problem = cases.parse("conv2d x=bfloat16:1x512x6x6 w=bfloat16:8x512x3x3 pad=1,1,1,1")
    (x, w), _ = make_arrays(problem, 0, "integers")
    assert 0 < np.count_nonzero(x.astype(float)) < x.size / 20
    assert (np.abs(w.astype(float)) == 1).all()
    y = reference.conv2d(x, w, border_mode=1)
    assert np.abs(y).max() <= 256 and np.count_nonzero(y) > 0


def test_integers_that_cannot_be_exact_are_refused() -> None:
    with pytest.raises(ValueError, match="no exact integers"):
        make_arrays(cases.parse("softmax x=float32:2x5"), 0, "integers")
    with pytest.raises(ValueError, match="kind: expected one of"):
        make_arrays(cases.parse("softmax x=float32:2x5"), 0, "zeros")


def test_functions_that_run_as_other_operations_are_said_to() -> None:
    for name, other in cases.RUNS_AS.items():
        assert hasattr(numbadnn, name) and other.removeprefix("two of ").partition(" ")[0] in FAMILY
        for text in (name, f"{name} x=float32:1x1x9 w=float32:1x1x3"):
            with pytest.raises(ValueError, match=f"; {name} runs as {other}"):
                cases.find([text])
