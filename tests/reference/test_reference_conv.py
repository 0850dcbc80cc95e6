"""The convolution oracle by law: values worked out by hand, adjoints, linearity, and SciPy where it has the operation.

Nothing here takes a size or a padding from numbadnn.shapes: shapes are literals, padding is ``np.pad`` with numbers.
"""

import ast
import inspect
import itertools
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st

import numbadnn
from numbadnn import reference
from numbadnn.reference import conv2d, conv2d_grad_wrt_inputs, conv2d_grad_wrt_weights


def random(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).uniform(-1, 1, shape)


def close(result, expected):
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


def test_reference_imports_nothing_from_numbadnn():
    standard = {"__future__", "collections.abc", "dataclasses", "functools", "itertools", "math", "operator", "typing"}
    allowed = standard | {"numpy", "numpy.typing"}
    files = sorted(Path(reference.__file__).parent.glob("*.py"))
    assert {f.stem for f in files} >= {"__init__", "conv", "softmax"}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file.name}:{node.lineno}: relative import"
                names = [str(node.module)]
            else:
                assert not (isinstance(node, ast.Name) and node.id in ("__import__", "importlib")), file.name
                continue
            for name in names:
                own = name.startswith("numbadnn.reference.")
                assert own or name in allowed, f"{file.name}:{node.lineno} imports {name}"


def test_every_function_of_arrays_has_a_reference_of_the_same_name():
    others = {"cache_info", "check", "clear_caches", "explain", "last_call", "plan", "set_options", "using"}
    functions = {n for n in numbadnn.__all__ if inspect.isfunction(getattr(numbadnn, n))} - others
    functions = {n for n in functions if not n.startswith("rnn_weights_")}  # they rearrange, and compute nothing
    assert {"spatialtf", "corr_mm", "corr3d_mm_grad_inputs"} <= functions <= set(reference.__all__)
    for name in functions:
        for_users = inspect.signature(getattr(numbadnn, name)).parameters.values()
        named = [p.name for p in for_users if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert list(inspect.signature(getattr(reference, name)).parameters)[: len(named)] == named, name


# ---- by hand ---------------------------------------------------------------------------------------------------------

IMAGE = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])[None, None]
FILTER = np.array([[1.0, 10], [100, 1000]])[None, None]


def test_hand_values():
    # correlation at (0, 0): 1*1 + 2*10 + 4*100 + 5*1000
    close(conv2d(IMAGE, FILTER, filter_flip=False)[0, 0], [[5421, 6532], [8754, 9865]])
    # convolution at (0, 0): 5*1 + 4*10 + 2*100 + 1*1000
    close(conv2d(IMAGE, FILTER)[0, 0], [[1245, 2356], [4578, 5689]])
    full = [[1, 12, 23, 30], [104, 1245, 2356, 3060], [407, 4578, 5689, 6090], [700, 7800, 8900, 9000]]
    close(conv2d(IMAGE, FILTER, border_mode="full")[0, 0], full)
    close(
        conv2d(IMAGE, FILTER, border_mode="half")[0, 0], full
    )  # an even filter: one row and column more than the image
    close(conv2d(IMAGE, FILTER, border_mode=1, subsample=(3, 2))[0, 0], [[1, 23], [700, 8900]])
    close(conv2d(IMAGE, FILTER, filter_dilation=(2, 2))[0, 0], [[9 + 70 + 300 + 1000]])


def test_hand_gradients():
    dy = np.array([[1.0, 0], [0, 2]])[None, None]
    # y[0,0] = x11 + 10 x10 + 100 x01 + 1000 x00, y[1,1] the same one down and right
    close(
        conv2d_grad_wrt_inputs(dy, FILTER, (1, 1, 3, 3))[0, 0],
        [[1000, 100, 0], [10, 1 + 2000, 200], [0, 20, 2]],
    )
    # dw[a, b] = x[1-a, 1-b] + 2 x[2-a, 2-b]
    close(conv2d_grad_wrt_weights(IMAGE, dy, (1, 1, 2, 2))[0, 0], [[5 + 18, 4 + 16], [2 + 12, 1 + 10]])
    flipped = conv2d_grad_wrt_weights(IMAGE, dy, (1, 1, 2, 2), filter_flip=False)
    close(flipped[0, 0], [[11, 14], [20, 23]])


def test_rows_that_no_tap_meets_get_zero():
    dx = conv2d_grad_wrt_inputs(np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)), (1, 1, 6, 5), subsample=(3, 3))
    close(dx[0, 0], [[1, 1, 0, 1, 1], [1, 1, 0, 1, 1], [0] * 5, [1, 1, 0, 1, 1], [1, 1, 0, 1, 1], [0] * 5])


def test_transposed_convolution_of_ones():
    """Theano's golden value of conv2d_transpose with stride 2: rows and columns count the overlaps."""
    dx = conv2d_grad_wrt_inputs(np.ones((2, 2, 4, 4)), np.ones((2, 1, 4, 4)), (2, 1, 10, 10), subsample=(2, 2))
    overlaps = np.array([1, 1, 2, 2, 2, 2, 2, 2, 1, 1])
    close(dx, np.broadcast_to(2 * np.outer(overlaps, overlaps), (2, 1, 10, 10)))


# ---- shapes: literals of Theano's tests ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("border", "shape"),
    [("valid", (3, 4, 4, 2)), ("half", (3, 4, 12, 5)), ("full", (3, 4, 20, 7)), ((1, 2), (3, 4, 6, 4))],
)
def test_golden_output_shapes(border, shape):
    x, w = random(3, 2, 12, 9), random(4, 2, 5, 6)
    options = {"border_mode": border, "subsample": (1, 2), "filter_dilation": (2, 1)}
    y = conv2d(x, w, **options)
    assert y.shape == shape
    assert conv2d_grad_wrt_inputs(y, w, x.shape, **options).shape == x.shape
    assert conv2d_grad_wrt_weights(x, y, w.shape, **options).shape == w.shape


@pytest.mark.parametrize(
    ("x", "w", "y"),
    [
        ((0, 2, 5, 5), (3, 2, 2, 2), (0, 3, 4, 4)),
        ((2, 0, 5, 5), (3, 0, 2, 2), (2, 3, 4, 4)),
        ((2, 2, 5, 5), (0, 2, 2, 2), (2, 0, 4, 4)),
    ],
)
def test_empty_batch_channels_filters(x, w, y):
    assert conv2d(np.ones(x), np.ones(w)).shape == y
    assert not conv2d(np.ones(x), np.ones(w)).any()
    dx = conv2d_grad_wrt_inputs(np.ones(y), np.ones(w), x)
    dw = conv2d_grad_wrt_weights(np.ones(x), np.ones(y), w)
    assert (dx.shape, dw.shape) == (x, w)
    assert not dx.any()
    assert not dw.any()
    old = np.full(y, 3.0)
    close(conv2d(np.ones(x), np.ones(w), alpha=7, beta=2, out=old), 2 * old)


# ---- SciPy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("border", ["valid", "full"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 4), (5, 2)])
@pytest.mark.parametrize("flip", [True, False])
def test_equals_scipy(border, kernel, flip):
    x, w = random(2, 3, 7, 6), random(4, 3, *kernel)
    scipy_op = scipy.signal.convolve2d if flip else scipy.signal.correlate2d
    expected = [[sum(scipy_op(x[n, c], w[k, c], mode=border) for c in range(3)) for k in range(4)] for n in range(2)]
    close(conv2d(x, w, border_mode=border, filter_flip=flip), np.array(expected))


@pytest.mark.parametrize("kernel", [(1, 3), (3, 3), (5, 7)])
def test_half_equals_scipy_same_for_odd_filters(kernel):
    x, w = random(1, 1, 8, 9), random(1, 1, *kernel)
    same = scipy.signal.convolve2d(x[0, 0], w[0, 0], mode="same")
    close(conv2d(x, w, border_mode="half")[0, 0], same)


# ---- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unshared", [False, True])
def test_groups_equal_separate_convolutions(unshared):
    x, w = random(2, 6, 7, 7), random(9, *((5, 6) if unshared else ()), 2, 3, 2)
    options = {"unshared": unshared}
    whole = conv2d(x, w, num_groups=3, **options)
    parts = [conv2d(a, b, **options) for a, b in zip(np.split(x, 3, 1), np.split(w, 3, 0), strict=True)]
    close(whole, np.concatenate(parts, axis=1))
    dy = random(*whole.shape, seed=1)
    dys = np.split(dy, 3, 1)
    dx = [conv2d_grad_wrt_inputs(a, b, (2, 2, 7, 7), **options) for a, b in zip(dys, np.split(w, 3), strict=True)]
    close(conv2d_grad_wrt_inputs(dy, w, x.shape, num_groups=3, **options), np.concatenate(dx, axis=1))
    part = (3, *w.shape[1:])
    dw = [conv2d_grad_wrt_weights(a, b, part, **options) for a, b in zip(np.split(x, 3, 1), dys, strict=True)]
    close(conv2d_grad_wrt_weights(x, dy, w.shape, num_groups=3, **options), np.concatenate(dw, axis=0))


def test_depthwise_output_channels_are_channel_times_multiplier():
    x, w = random(1, 2, 5, 5), random(6, 1, 3, 3)
    y = conv2d(x, w, num_groups=2)
    for c, m in itertools.product(range(2), range(3)):
        close(y[0, 3 * c + m], scipy.signal.convolve2d(x[0, c], w[3 * c + m, 0], mode="valid"))


@pytest.mark.parametrize("border", ["valid", "full", "half", (2, 1)])
@pytest.mark.parametrize("dilation", [(2, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("flip", [True, False])
def test_dilation_equals_a_filter_stuffed_with_zeros(border, dilation, flip):
    x, w = random(2, 2, 11, 12), random(3, 2, 3, 2)
    stuffed = np.zeros((3, 2, 2 * dilation[0] + 1, dilation[1] + 1))
    stuffed[..., :: dilation[0], :: dilation[1]] = w
    options = {"border_mode": border, "filter_flip": flip}
    y = conv2d(x, w, filter_dilation=dilation, **options)
    close(y, conv2d(x, stuffed, **options))
    dy = random(*y.shape)
    dx = conv2d_grad_wrt_inputs(dy, w, x.shape, filter_dilation=dilation, **options)
    close(dx, conv2d_grad_wrt_inputs(dy, stuffed, x.shape, **options))
    dw = conv2d_grad_wrt_weights(x, dy, w.shape, filter_dilation=dilation, **options)
    dense = conv2d_grad_wrt_weights(x, dy, stuffed.shape, **options)
    close(dw, dense[..., :: dilation[0], :: dilation[1]])


@pytest.mark.parametrize("stride", [(2, 1), (1, 3), (2, 3), (9, 9)])
@pytest.mark.parametrize("border", ["valid", "full", "half", ((1, 2), (0, 3))])
def test_subsample_equals_slicing(stride, border):
    x, w = random(2, 2, 10, 9), random(3, 2, 3, 4)
    dense = conv2d(x, w, border_mode=border)
    y = conv2d(x, w, border_mode=border, subsample=stride)
    close(y, dense[:, :, :: stride[0], :: stride[1]])
    # the adjoint of slicing is spreading
    dy, spread = random(*y.shape), np.zeros(dense.shape)
    spread[:, :, :: stride[0], :: stride[1]] = dy
    options = {"border_mode": border}
    dx = conv2d_grad_wrt_inputs(dy, w, x.shape, subsample=stride, **options)
    close(dx, conv2d_grad_wrt_inputs(spread, w, x.shape, **options))
    dw = conv2d_grad_wrt_weights(x, dy, w.shape, subsample=stride, **options)
    close(dw, conv2d_grad_wrt_weights(x, spread, w.shape, **options))


@pytest.mark.parametrize(
    ("border", "rows", "cols"),
    [
        (((1, 2), (2, 1)), (1, 2), (2, 1)),
        (((1, 1), (0, 3)), (1, 1), (0, 3)),
        (((2, 1), (0, 0)), (2, 1), (0, 0)),
        ((2, (0, 1)), (2, 2), (0, 1)),
        ((1, 2), (1, 1), (2, 2)),
        (2, (2, 2), (2, 2)),
        ("full", (4, 4), (2, 2)),
        ("half", (2, 2), (1, 1)),
    ],
)
def test_padding_equals_explicit_zeros(border, rows, cols):
    """With a filter of 3x3 whose rows are 2 apart: extent 5 by 3."""
    x, w = random(2, 2, 6, 7), random(3, 2, 3, 3)
    options = {"subsample": (2, 1), "filter_dilation": (2, 1)}
    padded = np.pad(x, ((0, 0), (0, 0), rows, cols))
    y = conv2d(x, w, border_mode=border, **options)
    close(y, conv2d(padded, w, **options))
    dy = random(*y.shape)
    dx = conv2d_grad_wrt_inputs(dy, w, padded.shape, **options)[:, :, rows[0] : rows[0] + 6, cols[0] : cols[0] + 7]
    close(conv2d_grad_wrt_inputs(dy, w, x.shape, border_mode=border, **options), dx)
    dw = conv2d_grad_wrt_weights(padded, dy, w.shape, **options)
    close(conv2d_grad_wrt_weights(x, dy, w.shape, border_mode=border, **options), dw)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(
    ("stride", "border", "groups"),
    [((1, 1), "valid", 1), ((2, 2), "full", 1), ((2, 1), "valid", 3), ((3, 2), "full", 2)],
)
def test_unshared_equals_each_region_alone(flip, stride, border, groups):
    x, taps = random(2, 6, 5, 6), (6, 6 // groups, 2, 3)
    options = {"border_mode": border, "subsample": stride, "filter_flip": flip, "num_groups": groups}
    p, q = conv2d(x, np.ones(taps), **options).shape[2:]
    w = random(6, p, q, *taps[1:])
    y = conv2d(x, w, unshared=True, **options)
    dy = random(*y.shape, seed=1)
    dx, dw = np.zeros(x.shape), np.zeros(w.shape)
    for i, j in itertools.product(range(p), range(q)):
        close(y[:, :, i, j], conv2d(x, w[:, i, j], **options)[:, :, i, j])
        only = np.zeros(dy.shape)
        only[:, :, i, j] = dy[:, :, i, j]
        dx += conv2d_grad_wrt_inputs(only, w[:, i, j], x.shape, **options)
        dw[:, i, j] = conv2d_grad_wrt_weights(x, only, taps, **options)
    close(conv2d_grad_wrt_inputs(dy, w, x.shape, unshared=True, **options), dx)
    close(conv2d_grad_wrt_weights(x, dy, w.shape, unshared=True, **options), dw)


sizes = st.tuples(st.integers(1, 3), st.integers(1, 3))
borders = st.one_of(
    st.sampled_from(["valid", "full", "half"]),
    st.integers(0, 3),
    st.tuples(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.integers(0, 2)),
)


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(0, 2),
    groups=st.integers(1, 3),
    channels=st.integers(0, 2),
    filters=st.integers(0, 2),
    image=st.tuples(st.integers(7, 10), st.integers(7, 9)),
    kernel=sizes,
    stride=sizes,
    dilation=sizes,
    border=borders,
    flip=st.booleans(),
    seed=st.integers(0, 99),
)
def test_adjoint_and_linearity(n, groups, channels, filters, image, kernel, stride, dilation, border, flip, seed):
    """<conv(x, w), g> = <x, grad_x(g, w)> = <w, grad_w(x, g)>, and conv is linear in x and in w."""
    options = {
        "border_mode": border,
        "subsample": stride,
        "filter_flip": flip,
        "filter_dilation": dilation,
        "num_groups": groups,
    }
    x, w = random(n, groups * channels, *image, seed=seed), random(groups * filters, channels, *kernel, seed=seed)
    y = conv2d(x, w, **options)
    g = random(*y.shape, seed=seed + 1)
    dx = conv2d_grad_wrt_inputs(g, w, x.shape, **options)
    dw = conv2d_grad_wrt_weights(x, g, w.shape, **options)
    inner = np.vdot(y, g)
    np.testing.assert_allclose([np.vdot(x, dx), np.vdot(w, dw)], inner, rtol=1e-10, atol=1e-10)
    x2, w2 = random(*x.shape, seed=seed + 2), random(*w.shape, seed=seed + 2)
    close(conv2d(2 * x - x2, w, **options), 2 * y - conv2d(x2, w, **options))
    close(conv2d(x, 3 * w + w2, **options), 3 * y + conv2d(x, w2, **options))
    close(
        conv2d_grad_wrt_weights(2 * x - x2, g, w.shape, **options),
        2 * dw - conv2d_grad_wrt_weights(x2, g, w.shape, **options),
    )


def test_gradients_by_differences():
    """conv is bilinear, so a difference quotient with step 1 is exact up to rounding."""
    x, w = random(1, 2, 5, 4), random(2, 1, 2, 3)
    options = {"border_mode": ((1, 0), (2, 1)), "subsample": (2, 1), "num_groups": 2}
    y = conv2d(x, w, **options)
    g = random(*y.shape, seed=1)
    for which, grad in ((x, conv2d_grad_wrt_inputs(g, w, x.shape, **options)),
                        (w, conv2d_grad_wrt_weights(x, g, w.shape, **options))):  # fmt: skip
        for index in np.ndindex(which.shape):
            which[index] += 1
            moved = conv2d(x, w, **options)
            which[index] -= 1
            assert abs(np.vdot(moved - y, g) - grad[index]) < 1e-12


# ---- types, scaling, companions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.int32])
def test_any_real_type_gives_float64(dtype):
    x, w = (8 * random(1, 2, 4, 4)).astype(dtype), (8 * random(3, 2, 2, 2)).astype(dtype)
    kept = x.copy()
    y = conv2d(x, w)
    close(y, conv2d(x.astype(np.float64), w.astype(np.float64)))
    np.testing.assert_array_equal(x, kept)
    assert conv2d_grad_wrt_inputs(y.astype(dtype), w, x.shape).dtype == np.float64
    assert conv2d_grad_wrt_weights(x, y.astype(dtype), w.shape).dtype == np.float64


def test_strided_views_are_read_as_they_stand():
    x, w = random(4, 2, 6, 12)[::-2, :, :, ::2], random(3, 2, 3, 3)[:, ::-1]
    close(conv2d(x, w), conv2d(np.ascontiguousarray(x), np.ascontiguousarray(w)))


def test_alpha_beta_out():
    x, w = random(2, 2, 5, 5), random(3, 2, 3, 3)
    y = conv2d(x, w)
    calls = (
        (conv2d, (x, w)),
        (conv2d_grad_wrt_inputs, (y, w, x.shape)),
        (conv2d_grad_wrt_weights, (x, y, w.shape)),
    )
    for op, arguments in calls:
        plain = op(*arguments)
        old = random(*plain.shape, seed=5).astype(np.float32)
        kept = old.copy()
        close(op(*arguments, alpha=0.5, beta=-3.0, out=old), 0.5 * plain - 3.0 * old.astype(np.float64))
        np.testing.assert_array_equal(old, kept)
        close(op(*arguments, alpha=2.0, out=np.full(plain.shape, np.nan)), 2 * plain)
        with pytest.raises(ValueError, match=r"out: expected an array of shape .* because beta = 1.0"):
            op(*arguments, beta=1.0)
        with pytest.raises(ValueError, match=r"out: expected shape .*, got \(1, 1\)"):
            op(*arguments, out=np.zeros((1, 1)))


def test_magnitudes_and_lengths():
    x, w = random(2, 4, 5, 5), random(6, 2, 3, 3)
    y = conv2d(x, w, num_groups=2)
    close(reference.conv2d_magnitude(x, w, num_groups=2), conv2d(abs(x), abs(w), num_groups=2))
    close(
        reference.conv2d_magnitude(x, w, num_groups=2, alpha=-2.0, beta=-1.0, out=y),
        2 * conv2d(abs(x), abs(w), num_groups=2) + abs(y),
    )
    close(
        reference.conv2d_grad_wrt_inputs_magnitude(y, w, x.shape, num_groups=2),
        conv2d_grad_wrt_inputs(abs(y), abs(w), x.shape, num_groups=2),
    )
    close(
        reference.conv2d_grad_wrt_weights_magnitude(x, y, w.shape, num_groups=2),
        conv2d_grad_wrt_weights(abs(x), abs(y), w.shape, num_groups=2),
    )
    # on ones, an element is the number of its terms
    lengths = {
        "conv2d": conv2d(np.ones(x.shape), np.ones(w.shape), num_groups=2),
        "conv2d_grad_wrt_inputs": conv2d_grad_wrt_inputs(np.ones(y.shape), np.ones(w.shape), x.shape, num_groups=2),
        "conv2d_grad_wrt_weights": conv2d_grad_wrt_weights(np.ones(x.shape), np.ones(y.shape), w.shape, num_groups=2),
    }
    for op, terms in lengths.items():
        assert reference.conv2d_reduction_length(op, w.shape, y.shape, 2) == terms.max()
    unshared = reference.conv2d_reduction_length("conv2d_grad_wrt_weights", (6, 3, 3, 2, 3, 3), y.shape, 2)
    assert unshared == 2
    with pytest.raises(ValueError, match="op: expected one of"):
        reference.conv2d_reduction_length("conv", w.shape, y.shape)


# ---- malformed arguments ---------------------------------------------------------------------------------------------

X, W = np.ones((2, 4, 5, 6)), np.ones((6, 4, 3, 2))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((X[0], W), {}, r"input: expected 4 axes, got shape \(4, 5, 6\)"),
        ((X, W[0]), {}, r"filters: expected 4 axes, got shape \(4, 3, 2\)"),
        ((X, W), {"unshared": True}, "filters: expected 6 axes"),
        ((X, np.ones((6, 3, 3, 2))), {}, "input: expected 3 channels of a filter .* got 4"),
        (
            (X, np.ones((5, 2, 3, 2))),
            {"num_groups": 2},
            "filters: expected a number divisible by num_groups = 2, got 5",
        ),
        ((X, W), {"num_groups": 0}, "num_groups must have value greater than zero"),
        ((X, W), {"num_groups": 2}, "input: expected 4 channels of a filter .* got 4"),
        ((X, W), {"border_mode": "same"}, "border_mode: expected one of valid, full, half.* got 'same'"),
        ((X, W), {"border_mode": [1, 1]}, r"border_mode: expected .* got \[1, 1\]"),
        ((X, W), {"border_mode": -1}, "border_mode: expected an integer >= 0, got -1"),
        ((X, W), {"border_mode": (0, (1, -1))}, "border_mode: expected an integer >= 0, got -1"),
        ((X, W), {"border_mode": (1,)}, "border_mode must be a tuple of length 2"),
        ((X, W), {"border_mode": ((1, 1, 1), 0)}, "border_mode: expected 2 integers"),
        ((X, W), {"subsample": (1,)}, "subsample: expected 2 integers >= 1"),
        ((X, W), {"subsample": (0, 1)}, "subsample: expected an integer >= 1, got 0"),
        ((X, W), {"filter_dilation": (1, 0)}, "filter_dilation: expected an integer >= 1, got 0"),
        ((X, np.ones((6, 4, 6, 2))), {}, r"filters: expected to fit the padded image \(5, 6\), got .* \(6, 2\)"),
        ((X, W), {"filter_dilation": (3, 1)}, r"filters: expected to fit the padded image \(5, 6\), got .* \(7, 2\)"),
        ((X, np.ones((6, 4, 0, 2))), {}, "filters' sizes: expected an integer >= 1, got 0"),
        ((X, W), {"input_shape": (2, 4, 5, 7)}, "input_shape: expected"),
        ((X, W), {"filter_shape": (6, 4, 3)}, "filter_shape: expected"),
        (
            (X, np.ones((6, 3, 4, 4, 3, 2))),
            {"unshared": True},
            r"one filter for each output position \(3, 5\), got \(3, 4\)",
        ),
    ],
)
def test_malformed_forward(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        conv2d(*arguments, **options)


def test_hints_with_none_say_nothing():
    close(conv2d(X, W, (None, 4, None, 6), (6, None, 3, 2)), conv2d(X, W))


@pytest.mark.parametrize("value", [X.astype(complex), X.astype(bool), X.astype(str), np.full(X.shape, None)])
def test_not_real_numbers(value):
    with pytest.raises(TypeError, match="input: expected real numbers, got dtype"):
        conv2d(value, W)


@pytest.mark.parametrize(("i", "k"), [(5, 3), (6, 3), (7, 2), (4, 4)])
@pytest.mark.parametrize("border", ["valid", "half", "full", (0, 2)])
@pytest.mark.parametrize(("s", "d"), [(1, 1), (2, 1), (1, 2), (3, 1)])
def test_an_output_of_another_size_has_no_gradients(i, k, border, s, d):
    options = {"border_mode": border, "subsample": (s, s), "filter_dilation": (d, d)}
    x, w = np.ones((1, 1, i + d, i + d)), np.ones((1, 1, k, k))
    if border in ("valid", (0, 2)) and (k - 1) * d + 1 > i + d:  # (0, 2) pads no rows
        with pytest.raises(ValueError, match="expected to fit"):
            conv2d(x, w, **options)
        return
    y = conv2d(x, w, **options)
    for off, axis in itertools.product((-3, -2, -1, 1, 2), (2, 3)):
        shape = list(y.shape)
        shape[axis] = max(shape[axis] + off, 0)
        with pytest.raises(ValueError, match="would produce an output of shape"):
            conv2d_grad_wrt_inputs(np.ones(shape), w, x.shape, **options)
        with pytest.raises(ValueError, match="output_grad: expected shape"):
            conv2d_grad_wrt_weights(x, np.ones(shape), w.shape, **options)


def test_malformed_gradients():
    y = conv2d(X, W)
    for shape in (None, (2, 4, 5), (2, 4, None, 6), 5):
        with pytest.raises(ValueError, match="input_shape: expected"):
            conv2d_grad_wrt_inputs(y, W, shape)
        with pytest.raises(ValueError, match="filter_shape: expected"):
            conv2d_grad_wrt_weights(X, y, shape)
    with pytest.raises(ValueError, match="input_shape: expected"):
        conv2d_grad_wrt_inputs(y, W, (2, 3, 5, 6))
    with pytest.raises(ValueError, match="filter_shape: expected"):
        conv2d_grad_wrt_weights(X, y, (6, 3, 3, 2))
    with pytest.raises(ValueError, match="input: expected a number of channels divisible by num_groups = 3, got 4"):
        conv2d_grad_wrt_weights(X, y, W.shape, num_groups=3)
    with pytest.raises(ValueError, match="filter_shape: expected"):
        conv2d_grad_wrt_inputs(y, W, X.shape, filter_shape=(6, 4, 3, 3))
    close(conv2d_grad_wrt_inputs(y, W, (None, None, 5, 6)), conv2d_grad_wrt_inputs(y, W, X.shape))
    close(conv2d_grad_wrt_weights(X, y, (None, None, 3, 2)), conv2d_grad_wrt_weights(X, y, W.shape))
