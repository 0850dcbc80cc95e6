"""numbadnn.pieces: the pieces of an output are the output, and read what they see and nothing else."""

from __future__ import annotations

import itertools
import math
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import numbadnn
from numbadnn import cases, dispatch, pieces, reference
from numbadnn.pieces.axes import Samples, Windows

small = st.integers(1, 4)


@st.composite
def windows(draw: Any) -> Windows:
    """One axis of a sliding window; images smaller than padding, gaps between windows and long tails among them."""
    taps, stride, dilation, size = draw(small), draw(st.integers(1, 5)), draw(small), draw(st.integers(1, 12))
    before, after = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    count = (size + before + after - (taps - 1) * dilation - 1) // stride + 1
    hypothesis.assume(count > 0)
    return Windows(size, count, taps, stride, dilation, before)


@st.composite
def samples(draw: Any) -> Samples:
    p, q, size = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 9))
    p, q = p // math.gcd(p, q), q // math.gcd(p, q)
    return Samples(size, -(-size * p // q), p, q)


def sees(walk: Any, output: int) -> set[int]:
    """The elements that an output is made of, from the definition."""
    if isinstance(walk, Windows):
        taps = {output * walk.stride - walk.before + k * walk.dilation for k in range(walk.taps)}
        return {i for i in taps if 0 <= i < walk.size}
    at = min(max((output * walk.q - (walk.p - 1) // 2) / walk.p, 0), walk.size - 1)
    return {math.floor(at), math.ceil(at)}


def hull(numbers: Any) -> tuple[int, int]:
    found = sorted(numbers)
    return (found[0], found[-1] + 1) if found else (0, 0)


@hypothesis.given(st.one_of(windows(), samples()), st.data())
def test_what_is_seen_is_the_smallest_slice(walk: Any, data: Any) -> None:
    low = data.draw(st.integers(0, walk.count))
    high = data.draw(st.integers(low, walk.count))
    start, stop, before, after = walk.seen(low, high)
    expected = hull(set().union(*(sees(walk, o) for o in range(low, high))))
    assert (start, stop) == expected or (start == stop and expected == (0, 0))
    if isinstance(walk, Windows) and low < high:
        assert before >= 0 and after >= 0
        assert before + stop - start + after == (high - low - 1) * walk.stride + walk.extent
        assert start == stop or start - before == walk.start(low)


@hypothesis.given(st.one_of(windows(), samples()), st.data())
def test_what_is_touched_is_the_smallest_slice(walk: Any, data: Any) -> None:
    start = data.draw(st.integers(0, walk.size))
    stop = data.draw(st.integers(start, walk.size))
    low, high, _, _ = walk.touched(start, stop)
    expected = hull(o for o in range(walk.count) if sees(walk, o) & set(range(start, stop)))
    assert (low, high) == expected or (low == high and expected == (0, 0))


@hypothesis.given(windows(), st.data())
def test_what_lies_within_sees_nothing_else(walk: Any, data: Any) -> None:
    start = data.draw(st.integers(0, walk.size - 1))
    stop = data.draw(st.integers(start + 1, walk.size))
    low, high = walk.within(start, stop)
    for output in range(walk.count):
        window = set(range(walk.start(output), walk.start(output) + walk.extent)) & set(range(walk.size))
        # the window with the gaps between its taps; behind an end of the axis there is nothing to see
        before, behind = walk.start(output) < start and start > 0, walk.start(output) + walk.extent > stop < walk.size
        assert (low <= output < high) == (not before and not behind)
        assert not low <= output < high or window <= set(range(start, stop))


def pairs(axes: int) -> Any:
    return st.tuples(*[st.tuples(st.integers(0, 5), st.integers(0, 5))] * axes)


@st.composite
def calls(draw: Any) -> tuple[str, tuple[np.ndarray, ...], dict[str, Any]]:
    """An operation of small integers, whose sums are exact whatever their order: its name, arrays and parameters."""
    op = draw(st.sampled_from(["conv2d", "conv3d", "causal_conv1d", "pool", "bilinear_upsampling"]))
    axes = {"conv3d": 3, "causal_conv1d": 1, "pool": draw(st.integers(2, 3))}.get(op, 2)

    def each(values: Any) -> Any:
        return draw(st.tuples(*[values] * axes))

    def numbers(*shape: int) -> np.ndarray:
        return np.random.default_rng(draw(st.integers(0, 99))).integers(-4, 5, shape).astype(np.float64)

    x = numbers(draw(st.integers(1, 2)), 2, *each(st.integers(1, 8)))
    if op == "bilinear_upsampling":
        ratios = st.tuples(st.integers(1, 4), st.integers(1, 4))
        return op, (x,), {"frac_ratio": (draw(ratios), draw(ratios))}
    if op == "pool":
        ws = each(st.integers(1, 3))
        pad = tuple(draw(st.integers(0, w - 1)) for w in ws)
        hypothesis.assume(all(n + 2 * p >= w for n, p, w in zip(x.shape[2:], pad, ws, strict=True)))
        mode = draw(st.sampled_from(["max", "sum", "average_inc_pad", "average_exc_pad"]))
        return op, (x,), {"ws": ws, "stride": each(st.integers(1, 4)), "mode": mode, "pad": pad}
    w = numbers(4, 1, *each(st.integers(1, 3)))
    stride, dilation = each(st.integers(1, 4)), each(st.integers(1, 3))
    if op == "causal_conv1d":
        return op, (x, w), {"subsample": stride[0], "filter_dilation": dilation[0], "num_groups": 2}
    border = draw(pairs(axes))
    for n, k, d, (a, b) in zip(x.shape[2:], w.shape[2:], dilation, border, strict=True):
        hypothesis.assume(n + a + b > (k - 1) * d)
    parameters = {"border_mode": border, "subsample": stride, "filter_dilation": dilation, "num_groups": 2}
    return op, (x, w), parameters


def cuts(data: Any, n: int) -> list[slice]:
    """An axis cut anywhere, chunks of one element among them."""
    edges = sorted(data.draw(st.sets(st.integers(1, max(n - 1, 1)), max_size=3)) | {0, n})
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def in_pieces(problem: Any, function: Any, arrays: Any, rest: Any, keywords: Any, shape: Any, data: Any) -> np.ndarray:
    """What ``function`` gives, piece by piece."""
    result = np.full(shape, np.nan)
    parts = [cuts(data, n) if axis != 1 else [slice(0, n)] for axis, n in enumerate(shape)]
    for index in np.ndindex(*map(len, parts)):
        where = tuple(cut[i] for cut, i in zip(parts, index, strict=True))
        result[where] = one_piece(pieces.piece(problem, where), function, arrays, rest, keywords)
    return result


def one_piece(piece: pieces.Piece, function: Any, arrays: Any, rest: Any, keywords: Any) -> np.ndarray:
    blocks = []
    for read, array in zip(piece.reads, arrays, strict=False):
        block = np.zeros(read.shape)
        block[tuple(slice(f, f + s.stop - s.start) for f, s in zip(read.front, read.slices, strict=True))] = array[
            read.slices
        ]
        blocks.append(block)
    found = np.zeros(piece.shape)
    if blocks:
        found[piece.place] = function(*blocks, *rest, **{**keywords, **piece.keywords})[piece.crop]
    return found


def problem_of(op: str, *arrays: Any, **keywords: Any) -> Any:
    return dispatch.intercept("problem", getattr(numbadnn, op), arrays, dict(keywords))


@hypothesis.settings(max_examples=150)
@hypothesis.given(calls(), st.data())
def test_pieces_put_together_are_the_output(call: Any, data: Any) -> None:
    op, (x, *rest), keywords = call
    function = getattr(reference, op)
    whole = function(x, *rest, **keywords)
    problem = problem_of(op, x, *rest, **keywords)
    assert (in_pieces(problem, function, [x], rest, keywords, whole.shape, data) == whole).all()


@hypothesis.settings(max_examples=150)
@hypothesis.given(calls(), st.data())
def test_pieces_put_together_are_the_gradient(call: Any, data: Any) -> None:
    op, (x, *rest), keywords = call
    hypothesis.assume(op != "causal_conv1d")
    y = getattr(reference, op)(x, *rest, **keywords)
    g = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-4, 5, y.shape).astype(np.float64)
    if op == "pool":
        name, reads, more = "pool_grad", [x, y, g], {}
    else:
        name, reads, more = f"{op}_grad_wrt_inputs" if rest else f"{op}_grad", [g], {"input_shape": x.shape}
    function = getattr(reference, name)
    whole = function(*reads, *rest, **more, **keywords)
    problem = problem_of(name, *reads, *rest, **more, **keywords)
    found = in_pieces(problem, function, reads, rest, keywords, x.shape, data)
    np.testing.assert_allclose(found, whole, rtol=1e-12, atol=1e-12)


@hypothesis.settings(max_examples=60)
@hypothesis.given(calls(), st.data())
def test_shares_of_pieces_add_up_to_the_weights_gradient(call: Any, data: Any) -> None:
    op, (x, *rest), keywords = call
    hypothesis.assume(op in ("conv2d", "conv3d"))
    y = getattr(reference, op)(x, *rest, **keywords)
    g = np.random.default_rng(1).integers(-4, 5, y.shape).astype(np.float64)
    name, more = f"{op}_grad_wrt_weights", {"filter_shape": rest[0].shape, **keywords}
    function, problem = getattr(reference, name), problem_of(name, x, g, **more)
    found = np.zeros(rest[0].shape)
    parts = [cuts(data, n) if axis != 1 else [slice(0, n)] for axis, n in enumerate(y.shape)]
    for index in np.ndindex(*map(len, parts)):
        piece = pieces.piece(problem, tuple(cut[i] for cut, i in zip(parts, index, strict=True)))
        found += one_piece(piece, function, [x, g], (), more)
    assert (found == function(x, g, **more)).all()


def test_the_border_mode_of_what_is_seen_is_enough() -> None:
    x, w = np.random.default_rng(0).standard_normal((1, 1, 12, 9)), np.ones((1, 1, 4, 2))
    keywords = {"border_mode": ((1, 2), (0, 3)), "subsample": (2, 1)}
    whole = reference.conv2d(x, w, **keywords)
    problem = problem_of("conv2d", x, w, **keywords)
    for part in ((..., slice(0, 2), slice(None)), (..., slice(2, 6), slice(3, 10))):
        taken, border = pieces.seen(problem, part)
        np.testing.assert_allclose(reference.conv2d(x[taken], w, border_mode=border, subsample=(2, 1)), whole[part])


def test_windows_wholly_in_padding_see_nothing() -> None:
    problem = cases.parse("conv2d x=float32:1x1x4x4 w=float32:1x1x2x2 pad=1,2,0,3")
    assert pieces.seen(problem, (..., slice(4, 6)))[0][3] == slice(0, 0)
    (read,) = pieces.piece(problem, (..., slice(4, 6))).reads
    assert read.shape[3] == 1 and read.slices[3] == slice(0, 0)


def test_chunks_follow_the_input() -> None:
    forward = cases.parse("conv2d x=float32:1x1x10x10 w=float32:1x1x3x3 pad=1,1,2,2 stride=2,1")
    assert pieces.follow(forward, ((1,), (1,), (3, 1, 6), (4, 6))) == ((1,), (1,), (2, 3), (4, 8))
    backward = cases.parse("conv2d_grad_wrt_inputs x=float32:1x1x10x10 w=float32:1x1x3x3 pad=1,1,2,2 stride=2,1")
    assert pieces.follow(backward, ((1,), (1,), (2, 3), (4, 8))) == ((1,), (1,), (4, 6), (4, 6))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ((slice(None), slice(0, 1)), r"out_slice: expected all 2 channels \(axis 1\), got slice\(0, 1, None\)"),
        ((0,), "out_slice: expected a slice for each axis, got 0 for axis 0"),
        ((..., slice(None, None, 2)), r"out_slice: expected slices of step 1, got .* for axis 3"),
        ((slice(None),) * 5, "out_slice: expected at most 4 slices, got 5"),
    ],
)
def test_what_is_no_piece_is_refused(part: Any, words: str) -> None:
    problem = cases.parse("conv2d x=float32:1x2x9x9 w=float32:2x2x3x3")
    with pytest.raises(ValueError, match=words):
        pieces.seen(problem, part)


def test_other_problems_are_refused() -> None:
    with pytest.raises(
        TypeError, match="problem: expected that of a convolution, a pooling or an upsampling, got Softmax"
    ):
        pieces.seen(cases.parse("softmax x=float32:2x3"), ())
    with pytest.raises(ValueError, match="problem: expected conv3d, which takes pairs of padding, got conv3d2d"):
        pieces.piece(cases.parse("conv3d2d x=float32:1x2x3x4x4 w=float32:1x2x2x3x3"), ())
    with pytest.raises(ValueError, match="in_chunks: expected sizes that add up to 9 for axis 2, got"):
        pieces.follow(cases.parse("conv2d x=float32:1x2x9x9 w=float32:2x2x3x3"), ((1,), (2,), (4, 4), (9,)))
