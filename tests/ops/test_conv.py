"""Convolutions of two and three axes through the public functions, with the counts of Theano's own tests as the measure.

Data are small integers, so that every sum is exact and a result must equal the reference to the bit. The CPU backend runs
here; the contract holds every other one to the same reference.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import numbadnn
from numbadnn import reference

RNG = np.random.default_rng(0)

#: (images, filters) of Theano's BaseTestConv2d and BaseTestConv3d; those with an empty axis last
PAIRS_2D = [
    ((8, 1, 6, 6), (5, 1, 2, 2)), ((8, 1, 8, 8), (4, 1, 3, 3)), ((2, 1, 7, 7), (2, 1, 3, 3)),
    ((6, 1, 10, 11), (1, 1, 2, 5)), ((2, 1, 6, 5), (4, 1, 2, 2)), ((1, 5, 9, 9), (4, 5, 2, 2)),
    ((0, 1, 6, 6), (1, 1, 2, 2)), ((1, 0, 6, 6), (1, 0, 2, 2)), ((1, 1, 6, 6), (0, 1, 2, 2)),
]  # fmt: skip
PAIRS_3D = [
    ((2, 1, 5, 5, 5), (2, 1, 2, 2, 2)), ((1, 2, 7, 5, 6), (1, 2, 2, 1, 3)), ((0, 1, 5, 5, 5), (1, 1, 2, 2, 2)),
    ((1, 0, 5, 5, 5), (1, 0, 2, 2, 2)), ((1, 1, 5, 5, 5), (0, 1, 2, 2, 2)),
]  # fmt: skip
STRIDES = {2: [(1, 1), (2, 2), (2, 4)], 3: [(1, 1, 1), (2, 2, 2), (1, 2, 3)]}
DILATIONS = {2: [(1, 1), (1, 2), (2, 1)], 3: [(1, 1, 1), (1, 2, 1), (2, 1, 2)]}
BORDERS = {
    2: ["valid", "half", "full", (0, 0), (1, 1), (5, 5), (5, 2)],
    3: ["valid", "half", "full", (0, 0, 0), (2, 2, 3)],
}


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.integers(-2, 3, shape).astype(dtype)


def configurations(pairs: list[Any], whole: int) -> list[tuple[Any, ...]]:
    """Theano's loop: each pair with and without shape hints; the first ``whole`` under all parameters too."""
    axes = len(pairs[0][0]) - 2
    ones = (1,) * axes
    found = [(x, w, "valid", ones, ones, True, hints) for x, w in pairs for hints in (True, False)]
    for x, w in pairs[:whole]:
        for d, s, b in itertools.product(DILATIONS[axes], STRIDES[axes], BORDERS[axes]):
            found.append((x, w, b, s, d, True, True))
        found += [(x, w, "valid", ones, ones, flip, True) for flip in (True, False)]
    return found


def three_directions(
    x: np.ndarray, w: np.ndarray, hints: bool = False, functions: Any = numbadnn, **parameters: Any
) -> int:
    """Forward and both gradients against the reference, to the bit; how many calls were compared."""
    op = f"conv{x.ndim - 2}d"
    shapes = {"input_shape": x.shape, "filter_shape": w.shape} if hints else {}
    y = getattr(reference, op)(x, w, **parameters)
    g = numbers(*y.shape)
    results = [
        (getattr(functions, op)(x, w, **shapes, **parameters), y),
        (
            getattr(functions, f"{op}_grad_wrt_inputs")(g, w, x.shape, **parameters),
            getattr(reference, f"{op}_grad_wrt_inputs")(g, w, x.shape, **parameters),
        ),
        (
            getattr(functions, f"{op}_grad_wrt_weights")(x, g, w.shape, **parameters),
            getattr(reference, f"{op}_grad_wrt_weights")(x, g, w.shape, **parameters),
        ),
    ]
    for got, expected in results:
        assert got.shape == expected.shape and np.array_equal(got, expected), parameters
    return len(results)


def sweep(cases: list[tuple[Any, ...]]) -> int:
    done = 0
    for x, w, border, stride, dilation, flip, hints in cases:
        done += three_directions(
            numbers(*x),
            numbers(*w),
            hints,
            border_mode=border,
            subsample=stride,
            filter_flip=flip,
            filter_dilation=dilation,
        )
    return done


def test_conv2d_under_theanos_408_configurations() -> None:
    cases = configurations(PAIRS_2D, 6)
    assert len(cases) == 408
    assert sweep(cases) == 3 * 408


def test_conv3d_under_theanos_104_configurations() -> None:
    cases = configurations(PAIRS_3D, 2)
    assert len(cases) == 104
    assert sweep(cases) == 3 * 104


#: (images, filters, stride, dilation): axes longer than a block of threads has, long lines, kernels of one tap, dilation
VOLUMES = [
    ((16, 3, 5, 5, 5), (8, 3, 1, 2, 4), (1, 1, 1), (1, 1, 1)), ((1, 2, 20, 12, 15), (3, 2, 6, 12, 4), (2, 2, 2), (1, 1, 1)),
    ((1, 1, 20, 12, 15), (3, 1, 6, 12, 4), (3, 3, 3), (1, 1, 1)), ((1, 1, 20, 12, 15), (3, 1, 6, 12, 4), (3, 2, 1), (1, 1, 1)),
    ((2, 1, 20, 12, 15), (5, 1, 6, 3, 4), (1, 1, 2), (3, 2, 1)), ((8, 1, 10, 10, 10), (10, 1, 1, 1, 1), (1, 1, 1), (1, 1, 1)),
    ((2, 3, 9, 8, 10), (4, 3, 3, 3, 3), (2, 1, 3), (1, 2, 2)), ((1025, 1, 2, 3, 4), (5, 1, 1, 2, 3), (1, 1, 1), (1, 1, 1)),
    ((2, 1, 2, 3, 4), (1025, 1, 1, 2, 3), (1, 1, 1), (1, 1, 1)), ((2, 1025, 2, 3, 4), (5, 1025, 1, 1, 2), (1, 1, 1), (1, 1, 1)),
    ((1, 1, 1030, 1, 2), (2, 1, 1025, 1, 1), (1, 1, 1), (1, 1, 1)),
    ((1, 1, 2, 1030, 1), (2, 1, 2, 1025, 1), (1, 1, 1), (1, 1, 1)),
    ((1, 1, 1, 2, 1030), (2, 1, 1, 2, 1025), (1, 1, 1), (1, 1, 1)), ((1, 1, 1, 44800, 1), (6, 1, 1, 1, 1), (1, 1, 1), (1, 1, 1)),
]  # fmt: skip
#: filters larger than the images, under 'full'
LARGER = [
    ((6, 2, 2, 2, 2), (4, 2, 3, 1, 1), (1, 1, 1), (1, 1, 1)), ((6, 2, 2, 2, 2), (4, 2, 1, 3, 1), (1, 1, 1), (1, 1, 1)),
    ((6, 2, 2, 2, 2), (4, 2, 1, 1, 3), (1, 1, 1), (1, 1, 1)), ((6, 2, 2, 2, 2), (4, 2, 5, 5, 5), (1, 1, 1), (1, 1, 1)),
    ((6, 2, 2, 2, 2), (4, 2, 3, 2, 2), (1, 1, 1), (2, 3, 2)),
]  # fmt: skip


@pytest.mark.slow(20)
@pytest.mark.parametrize("flip", (True, False), ids=("conv", "cross"))
def test_conv3d_under_theanos_206_configurations_of_cudnn(flip: bool) -> None:
    """Theano held cuDNN's volumes to Corr3dMM's by these; fewer images here."""
    borders = ("valid", "full", "half", (1, 2, 3), (3, 2, 1), 1, 2)
    cases = [*itertools.product(VOLUMES, borders), *itertools.product(LARGER, ("full",))]
    assert 2 * len(cases) == 206
    for (image, filters, stride, dilation), border in cases:
        x, w = numbers(*image), numbers(*filters)
        with numbadnn.using(accuracy="elementwise"):  # to the bit, which transforms are not
            three_directions(x, w, border_mode=border, subsample=stride, filter_dilation=dilation, filter_flip=flip)


@pytest.mark.parametrize("axes", (2, 3))
def test_shapes_of_gradients_that_no_image_has(axes: int) -> None:
    """Theano's 168 shapes, each with an output off by -3, -1, 1 and 2."""
    sizes = [(2, 3), (3, 2), (5, 2), (6, 3), (8, 5), (9, 4), (12, 3)]
    steps = [(1, 1), (2, 1), (3, 1), (1, 2), (1, 3), (2, 2)]
    refused = 0
    for (i, k), border, (s, d) in itertools.product(sizes, ("valid", "full", "half", (0, 2)), steps):
        pads = border if isinstance(border, str) else (border,) * axes
        o = numbadnn.shapes.get_conv_shape_1axis(i, k, border, s, d)
        for off in (-3, -1, 1, 2):
            if o + off < 1:
                continue
            top = np.ones((1, 1, *(o + off,) * axes), np.float32)
            more = {"border_mode": pads, "subsample": (s,) * axes, "filter_dilation": (d,) * axes}
            with pytest.raises(ValueError, match=r"input_shape|window no larger than the padded image"):
                getattr(numbadnn, f"conv{axes}d_grad_wrt_inputs")(
                    top, np.ones((1, 1, *(k,) * axes), np.float32), (1, 1, *(i,) * axes), **more
                )
            refused += 1
    assert refused > 450


@pytest.mark.parametrize("axes", (2, 3))
@pytest.mark.parametrize(
    ("channels", "filters", "groups"), ((6, 9, 3), (4, 6, 2), (8, 4, 4), (4, 8, 4)), ids=["g3", "g2", "g4", "depthwise"]
)
def test_groups_equal_separate_convolutions(axes: int, channels: int, filters: int, groups: int) -> None:
    x = numbers(2, channels, *(5, 6, 7)[:axes])
    w = numbers(filters, channels // groups, *(2, 3, 2)[:axes])
    conv = getattr(numbadnn, f"conv{axes}d")
    got = conv(x, w, border_mode=1, num_groups=groups)
    parts = [conv(a, b, border_mode=1) for a, b in zip(np.split(x, groups, 1), np.split(w, groups), strict=True)]
    assert np.array_equal(got, np.concatenate(parts, 1))
    three_directions(x, w, border_mode=1, num_groups=groups, subsample=(2,) * axes)


@pytest.mark.parametrize("pads", (((1, 2), (2, 1)), ((1, 1), (0, 3)), ((2, 1), (0, 0))), ids=str)
@pytest.mark.parametrize("axes", (2, 3))
def test_asymmetric_padding_equals_explicit_zeros(axes: int, pads: Any) -> None:
    pads = (*pads, (0, 2))[:axes]
    x, w = numbers(2, 3, *(6, 5, 4)[:axes]), numbers(4, 3, *(3, 2, 3)[:axes])
    padded = np.pad(x, ((0, 0), (0, 0), *pads))
    conv = getattr(numbadnn, f"conv{axes}d")
    assert np.array_equal(conv(x, w, border_mode=pads), conv(padded, w))
    three_directions(x, w, border_mode=pads)


@pytest.mark.parametrize("axes", (2, 3))
@pytest.mark.parametrize("n", (65536, 65537))
def test_more_images_than_a_grid_has_rows(n: int, axes: int) -> None:
    x, w = numbers(n, 2, *(2, 1, 2)[:axes]), numbers(2, 2, *(1,) * axes)
    y = getattr(numbadnn, f"conv{axes}d")(x, w)
    for few in (slice(0, 5), slice(n - 5, n)):
        assert np.array_equal(y[few], getattr(reference, f"conv{axes}d")(x[few], w))


@pytest.mark.parametrize("axes", (2, 3))
@pytest.mark.parametrize(
    ("channels", "filters", "groups"), ((65600, 2, 1), (2, 65600, 1), (65600, 65600, 65600)), ids=str
)
def test_more_channels_filters_or_groups_than_a_grid_has_rows(
    channels: int, filters: int, groups: int, axes: int
) -> None:
    x, w = numbers(1, channels, *(1, 2, 1)[:axes]), numbers(filters, channels // groups, *(1,) * axes)
    three_directions(x, w, num_groups=groups)


@pytest.mark.parametrize("op", ("conv2d", "conv3d"))
@pytest.mark.parametrize(
    "dtypes",
    [*itertools.product((np.float32, np.float64), repeat=2), (np.float16, np.float32), (bfloat16, np.float16)],
    ids=lambda d: "-".join(t.__name__ for t in d),
)
def test_mixed_dtypes_upcast(op: str, dtypes: Any) -> None:
    axes = int(op[4])
    x, w = numbers(2, 2, *(5, 4, 3)[:axes], dtype=dtypes[0]), numbers(3, 2, *(2, 2, 2)[:axes], dtype=dtypes[1])
    wide = np.float32 if bfloat16 in dtypes else np.result_type(*dtypes)
    y = getattr(numbadnn, op)(x, w)
    assert y.dtype == wide and np.array_equal(y, getattr(reference, op)(x, w))
    g = y.astype(dtypes[0])
    assert getattr(numbadnn, f"{op}_grad_wrt_inputs")(g, w, x.shape).dtype == wide
    assert getattr(numbadnn, f"{op}_grad_wrt_weights")(x, g.astype(dtypes[1]), w.shape).dtype == wide


@pytest.mark.parametrize("axes", (2, 3))
def test_negative_strides_and_views(axes: int) -> None:
    turned = (slice(None, None, -1),) * (axes + 2)
    x, w = numbers(2, 3, *(5, 6, 4)[:axes])[turned], numbers(4, 3, *(2, 3, 2)[:axes])[turned]
    three_directions(x, w, border_mode="half")
    three_directions(np.asfortranarray(x), w[:, :, ...][::-1], border_mode=1)


@pytest.mark.parametrize("axes", (2, 3))
def test_shapes_that_the_arrays_say_already_may_be_left_out(axes: int) -> None:
    op, unknown = f"conv{axes}d", (None, None)
    x, w = numbers(2, 4, *(6, 7, 5)[:axes]), numbers(6, 2, *(2, 3, 2)[:axes])
    more = {"subsample": (2,) * axes, "num_groups": 2}
    g = getattr(reference, op)(x, w, **more).astype(np.float32)
    dx = getattr(numbadnn, f"{op}_grad_wrt_inputs")(g, w, (*unknown, *x.shape[2:]), (*unknown, *w.shape[2:]), **more)
    assert np.array_equal(dx, getattr(reference, f"{op}_grad_wrt_inputs")(g, w, x.shape, **more))
    dw = getattr(numbadnn, f"{op}_grad_wrt_weights")(x, g, (*unknown, *w.shape[2:]), (*unknown, *x.shape[2:]), **more)
    assert np.array_equal(dw, getattr(reference, f"{op}_grad_wrt_weights")(x, g, w.shape, **more))


@pytest.mark.parametrize("axes", (2, 3))
def test_alpha_beta_and_out(axes: int) -> None:
    op = f"conv{axes}d"
    x, w = numbers(2, 2, *(5, 4, 3)[:axes]), numbers(3, 2, *(2, 2, 2)[:axes])
    g = numbers(*getattr(reference, op)(x, w).shape)
    for name, args in (
        (op, (x, w)),
        (f"{op}_grad_wrt_inputs", (g, w, x.shape)),
        (f"{op}_grad_wrt_weights", (x, g, w.shape)),
    ):
        start = numbers(*getattr(reference, name)(*args).shape)
        expected = getattr(reference, name)(*args, alpha=2.0, beta=-3.0, out=start)
        out = start.copy()
        assert getattr(numbadnn, name)(*args, alpha=2.0, beta=-3.0, out=out) is out
        assert np.array_equal(out, expected)
        with pytest.raises(ValueError, match="out: required when beta is not 0"):
            getattr(numbadnn, name)(*args, beta=1.0)


@pytest.mark.parametrize("empty", ("images", "channels", "filters"))
@pytest.mark.parametrize("axes", (2, 3))
def test_of_an_empty_axis_the_old_output_is_what_is_left(axes: int, empty: str) -> None:
    n, c, k = ((0, 4, 6), (2, 0, 6), (2, 4, 0))[("images", "channels", "filters").index(empty)]
    op, more = f"conv{axes}d", {"num_groups": 2, "alpha": 3.0}
    x, w = numbers(n, c, *(5, 4, 3)[:axes]), numbers(k, c // 2, *(2, 3, 1)[:axes])
    g = numbers(*getattr(reference, op)(x, w, num_groups=2).shape)
    for name, args in (
        (op, (x, w)),
        (f"{op}_grad_wrt_inputs", (g, w, x.shape)),
        (f"{op}_grad_wrt_weights", (x, g, w.shape)),
    ):
        shape = getattr(reference, name)(*args, num_groups=2).shape
        for beta in (0.0, -2.0):
            out = numbers(*shape) if beta else np.full(shape, np.nan, np.float32)
            left = beta * out if beta else np.zeros(shape)
            assert np.array_equal(getattr(numbadnn, name)(*args, **more, beta=beta, out=out), left), (name, beta)


# ---- unshared --------------------------------------------------------------------------------------------------------

UNSHARED = [
    ((2, 2, 5, 5), (4, 2, 3, 3), (1, 1), 1), ((3, 2, 6, 6), (2, 2, 2, 2), (2, 2), 1),
    ((1, 6, 7, 5), (3, 2, 2, 3), (2, 1), 3), ((2, 4, 8, 7), (6, 2, 3, 2), (3, 2), 2),
]  # fmt: skip


@pytest.mark.parametrize(("image", "filters", "stride", "groups"), UNSHARED)
@pytest.mark.parametrize("border", ("valid", "full"))
def test_unshared_in_three_directions(image: Any, filters: Any, stride: Any, groups: int, border: str) -> None:
    out = numbadnn.shapes.get_conv_output_shape(image, filters, border, stride)[2:]
    x, w = numbers(*image), numbers(filters[0], *out, *filters[1:])
    for flip in (True, False):
        three_directions(x, w, border_mode=border, subsample=stride, num_groups=groups, filter_flip=flip, unshared=True)
    region = numbadnn.conv2d(
        x, np.ascontiguousarray(w[:, 0, 0]), border_mode=border, subsample=stride, num_groups=groups
    )
    y = numbadnn.conv2d(x, w, border_mode=border, subsample=stride, num_groups=groups, unshared=True)
    assert np.array_equal(y[..., 0, 0], region[..., 0, 0])


@pytest.mark.parametrize("border", ("half", 1, ((2, 0), (1, 3))), ids=str)
@pytest.mark.parametrize("image", ((2, 4, 7, 8), (1, 4, 1, 1), (0, 4, 7, 8)), ids=("whole", "pixel", "none"))
def test_unshared_with_groups_dilation_and_uneven_padding(image: Any, border: Any) -> None:
    more = {"subsample": (2, 1), "filter_dilation": (1, 2), "num_groups": 2}
    taps = (3, 2) if image[2] > 1 else (1, 1)
    out = reference.conv2d(np.ones(image), np.ones((6, 2, *taps)), border_mode=border, **more).shape[2:]
    x, w = numbers(*image), numbers(6, *out, 2, *taps)
    for flip in (True, False):
        three_directions(x, w, border_mode=border, filter_flip=flip, unshared=True, **more)


def test_unshared_has_no_place_in_cudnn_and_says_so() -> None:
    from numbadnn.cudnn.graph.around import static_refusal
    from numbadnn.problem import Policy
    from numbadnn.problems.conv import ConvProblem

    problem = ConvProblem.parse("conv2d x=float32:1x2x4x4 w=float32:3x3x3x2x2x2")
    assert "no unshared convolution" in static_refusal(problem, Policy(device=0))
    x, w = np.ones((1, 2, 4, 4), np.float32), np.ones((3, 3, 3, 2, 2, 2), np.float32)
    explanation = numbadnn.explain(numbadnn.conv2d, x, w, unshared=True)
    assert explanation.chosen == "cpu.im2col"


@pytest.mark.parametrize("channels", (0, 2))
@pytest.mark.parametrize("alpha", (np.inf, -np.inf, np.nan, 1e39))
def test_alpha_that_float32_does_not_hold(alpha: float, channels: int) -> None:
    """Infinity times a sum of zeros, or of nothing, is NaN."""
    x, w = np.zeros((1, channels, 4, 4), "float32"), np.zeros((2, channels, 3, 3), "float32")
    w[1] = 1
    if channels:
        x[0, 0, :2] = 1
    for beta in (0.0, 0.5):
        for impl in ("cpu.im2col", "cpu.corrmm"):
            out = np.ones((1, 2, 2, 2), "float32")
            with np.errstate(invalid="ignore"):
                expected = reference.conv2d(x, w, alpha=alpha, beta=beta, out=out)
            with np.errstate(all="raise"), numbadnn.using(only=impl):
                got = numbadnn.conv2d(x, w, alpha=alpha, beta=beta, out=out)
            if np.isfinite(alpha):
                assert channels == 0 or (got[0, 1] == np.inf).any()
            else:
                assert np.isnan(expected).any() and np.array_equal(got, expected, equal_nan=True)
