"""Sizes and padding against tables of literals, and against counting by brute force.

The literals are Theano's own golden values and hand-made ones. The sweeps are those of Theano's tests (6,156 checks and
2,052 inversions); each is verified against a count of the positions a dilated kernel really has on a padded line.
"""

import itertools

import numpy as np
import pytest

from numbadnn import shapes


def positions(i, k, border, s, d):
    """How many places a kernel of k taps, d apart, has on a padded line of i cells, moving s cells a step."""
    taps = [t * d for t in range(k)]
    reach = taps[-1]
    pad = {"valid": 0, "full": reach, "half": (reach + 1) // 2}.get(border, border)
    line = range(-pad, i + pad)
    return sum(1 for start in line[::s] if all(start + t in line for t in taps))


GOLDEN_2D = [("valid", (3, 4, 4, 2)), ("half", (3, 4, 12, 5)), ("full", (3, 4, 20, 7)), ((1, 2), (3, 4, 6, 4))]
GOLDEN_3D = [
    ("valid", (3, 4, 4, 2, 2)),
    ("half", (3, 4, 12, 5, 10)),
    ("full", (3, 4, 20, 7, 18)),
    ((1, 2, 3), (3, 4, 6, 4, 8)),
]


@pytest.mark.parametrize(("border", "expected"), GOLDEN_2D)
def test_output_shape_2d(border, expected):
    assert shapes.get_conv_output_shape((3, 2, 12, 9), (4, 2, 5, 6), border, (1, 2), (2, 1)) == expected


@pytest.mark.parametrize(("border", "expected"), GOLDEN_3D)
def test_output_shape_3d(border, expected):
    # third axis: 10 cells, 5 taps 2 apart: extent 9, moving 1
    result = shapes.get_conv_output_shape((3, 2, 12, 9, 10), (4, 2, 5, 6, 5), border, (1, 2, 1), (2, 1, 2))
    assert result == expected


def test_output_shape_of_unknown_sizes_and_unshared_kernels():
    assert shapes.get_conv_output_shape((None, 2, None, 9), (None, 2, 5, 6), "valid", (1, 2)) == (None, None, None, 2)
    assert shapes.get_conv_output_shape((3, 2, 8, 8), (4, 6, 6, 2, 3, 3), "valid", (1, 1)) == (3, 4, 6, 6)
    assert shapes.get_conv_output_shape((3, 2, 8, 8), (4, 2, 3, 3), (1, (2, 0)), (1, 1)) == (3, 4, 8, 8)
    assert shapes.get_conv_output_shape((3, 2, 8, 8), (4, 2, 3, 3), 1, (1, 1)) == (3, 4, 8, 8)


def test_strides_and_dilations_that_are_not_known():
    """As for sizes: None on an axis gives None on that axis."""
    image, kernel, top = (3, 2, 9, 8), (4, 2, 3, 2), (3, 4, 7, 7)
    for subsample, dilation in (((None, 1), None), ([None, 1], (1, 1)), ((1, 1), (None, 1)), ((1, 1), [None, 1])):
        assert shapes.get_conv_output_shape(image, kernel, "valid", subsample, dilation) == (3, 4, None, 7)
        assert shapes.get_conv_gradweights_shape(image, top, "valid", subsample, dilation) == (4, 2, None, 2)
        assert shapes.get_conv_gradinputs_shape(kernel, top, "valid", subsample, dilation) == (3, 2, None, 8)
        assert shapes.check_conv_gradinputs_shape(image, kernel, (3, 4, 5, 7), "valid", subsample, dilation)
        assert not shapes.check_conv_gradinputs_shape(image, kernel, (3, 4, 5, 8), "valid", subsample, dilation)


WHOLE_SHAPES = {"image_shape": (3, 2, 9, 9), "kernel_shape": (4, 2, 3, 2), "top_shape": (3, 4, 7, 8)}
SIZES = {"image_shape": 9, "kernel_shape": 3, "top_shape": 7}
WANTS = {
    "get_conv_output_shape": ("image_shape", "kernel_shape"),
    "get_conv_gradweights_shape": ("image_shape", "top_shape"),
    "get_conv_gradinputs_shape": ("kernel_shape", "top_shape"),
}


@pytest.mark.parametrize(
    "bad", (None, 4, "2299", (), (1, 2), (1, 2, 3, 4, 5), (3, 2, 9.5, 9), (3, "2", 9, 9), {2: 3}), ids=str
)
@pytest.mark.parametrize("name", WANTS)
def test_shapes_that_are_none(name, bad):
    """Too short a kernel gave the sizes of other axes, one too long a shape of its own, a fraction a fraction."""
    for wrong in WANTS[name]:
        given = [bad if which == wrong else WHOLE_SHAPES[which] for which in WANTS[name]]
        with pytest.raises(ValueError, match="^(image|kernel|top)_shape: expected|^subsample: expected a tuple of 3"):
            getattr(shapes, name)(*given, "valid", (1, 1))
        if name == "get_conv_output_shape" and not isinstance(bad, tuple):
            with pytest.raises(ValueError, match=f"^{wrong}: expected a tuple of integers or None"):
                shapes.check_conv_gradinputs_shape(*given, (3, 4, 7, 8), "valid", (1, 1))


@pytest.mark.parametrize(
    "name", ("get_conv_shape_1axis", "get_conv_gradweights_shape_1axis", "get_conv_gradinputs_shape_1axis")
)
def test_sizes_and_steps_that_are_none(name):
    wants = WANTS[name.replace("_1axis", "").replace("conv_shape", "conv_output_shape")]
    sizes = [SIZES[which] for which in wants]
    for bad in (0, -1, 1.5, "1", (1, 1)):
        with pytest.raises(ValueError, match="^subsample: expected an integer >= 1"):
            getattr(shapes, name)(*sizes, "valid", bad, 1)
        with pytest.raises(ValueError, match="^dilation: expected an integer >= 1"):
            getattr(shapes, name)(*sizes, "valid", 1, bad)
    for number, which in enumerate(wants):
        for bad in (2.5, "5", (5, 5)):
            given = [bad if n == number else size for n, size in enumerate(sizes)]
            with pytest.raises(ValueError, match=f"^{which}: expected an integer or None, got"):
                getattr(shapes, name)(*given, "valid", 1, 1)


def test_integers_of_numpy_give_pythons():
    image, kernel = np.array((3, 2, 9, 9)), [np.int8(4), 2, np.array(3), np.int64(2)]
    found = shapes.get_conv_output_shape(image, kernel, np.int16(1), (np.int8(1), np.array(2)))
    assert found == (3, 4, 9, 5) and {type(n) for n in found} == {int}
    assert {type(n) for n in shapes.assert_conv_shape(image)} == {int}
    with pytest.raises(ValueError, match="shape: expected an integer or None, got 1.5"):
        shapes.assert_conv_shape((1, 1, 1.5, 1))
    with pytest.raises(ValueError, match="convdim: expected an integer >= 1"):
        shapes.border_mode_to_pad("half", None, (3, 3))
    with pytest.raises(ValueError, match="kshp: expected a tuple of 2"):
        shapes.border_mode_to_pad("half", 2, 3)
    with pytest.raises(ValueError, match="kshp"):  # at once: there is no tuple of so many modes
        shapes.border_mode_to_pad("half", 2**39, (3, 3))


def test_shapes_as_vectors_of_other_libraries():
    class Vector:
        ndim = 1

        def __init__(self, *sizes):
            self.sizes = sizes

        def tolist(self):
            return list(self.sizes)

    found = shapes.get_conv_output_shape(Vector(3, 2, 9, 9), Vector(4, 2, 2, 3), "valid", Vector(1, 2))
    assert found == shapes.get_conv_output_shape((3, 2, 9, 9), (4, 2, 2, 3), "valid", (1, 2))


def test_strides_and_dilations_as_vectors():
    steps = np.array([1, 2])
    assert shapes.get_conv_output_shape((3, 2, 9, 9), (4, 2, 3, 2), "valid", steps, steps) == (3, 4, 7, 4)
    assert shapes.padding_pairs("half", (3, 4), steps) == ((1, 1), (3, 3))
    for bad in (np.array([1, 0]), np.array([[1, 2]]), np.array([1, 2, 3]), np.array(2), np.array([1.0, 1.5])):
        with pytest.raises(ValueError, match="subsample: expected"):
            shapes.get_conv_output_shape((3, 2, 9, 9), (4, 2, 3, 2), "valid", bad)


@pytest.mark.parametrize(
    ("i", "k", "border", "s", "d", "o"),
    [
        (5, 3, "valid", 1, 1, 3),
        (5, 4, "half", 1, 1, 6),  # an even kernel: one more than the image, not 'same'
        (5, 3, "half", 1, 2, 5),
        (5, 3, "full", 1, 2, 9),
        (5, 3, (2, 0), 2, 1, 3),
        (2, 4, "valid", 1, 1, -1),
        (2, 4, "valid", 3, 1, 0),  # floor((2 - 4) / 3) + 1: downwards, not towards zero
        (None, 4, "valid", 1, 1, None),
        (3, None, "valid", 1, 1, None),
    ],
)
def test_output_size_of_one_axis(i, k, border, s, d, o):
    assert shapes.get_conv_shape_1axis(i, k, border, s, d) == o


SWEEP = list(itertools.product(range(1, 20), range(1, 10), ("valid", "half", "full", (0, 2))))


def rejects(image, kernel, border, s, d, output):
    return not shapes.check_conv_gradinputs_shape(image, kernel, output, border, s, d)


def test_check_gradinputs_shape_sweep():
    """19 sizes x 9 kernels x 4 borders x 3 strides x 3 dilations, nine claims each."""
    checked = 0
    for (i, k, border), s, d in itertools.product(SWEEP, (1, 2, 3), (1, 2, 3)):
        image, kernel, stride, dilation = (59, 61, i, i), (67, 61, k, k), (s, s), (d, d)
        n, f, h, w = shapes.get_conv_output_shape(image, kernel, border, stride, dilation)
        axes = (border, border) if isinstance(border, str) else border
        brute = [positions(i, k, b, s, d) for b in axes]
        # where no position exists the formula gives a size <= 0, never a positive one
        assert (n, f) == (59, 67)
        assert [max(h, 0), max(w, 0)] == brute
        assert shapes.check_conv_gradinputs_shape(image, kernel, (n, f, h, w), border, stride, dilation)
        assert shapes.check_conv_gradinputs_shape(image, kernel, (None, None, h, None), border, stride, dilation)
        assert rejects(image, kernel, border, stride, dilation, (1, 1, h, w))
        for o in (-3, -2, -1, 1, 2, 3):
            assert rejects(image, kernel, border, stride, dilation, (n, f, h + o, w + o))
        checked += 1
    assert checked == 6156


def test_get_gradient_shapes_sweep():
    """19 sizes x 9 kernels x 4 borders x 3 dilations: image and kernel recovered from the output's shape."""
    checked = 0
    for (i, k, border), d in itertools.product(SWEEP, (1, 2, 3)):
        image, kernel, dilation = (59, 61, i, i), (67, 61, k, k), (d, d)
        top = shapes.get_conv_output_shape(image, kernel, border, (1, 1), dilation)
        assert shapes.get_conv_gradinputs_shape(kernel, top, border, (1, 1), dilation) == image
        assert shapes.get_conv_gradinputs_shape(kernel, top, border, (2, 3), dilation) == (59, 61, None, None)
        found = shapes.get_conv_gradweights_shape(image, top, border, (1, 1), dilation)
        assert found == ((67, 61, None, None) if border == "half" else kernel)
        assert all(n is None or type(n) is int for n in found)
        assert shapes.get_conv_gradweights_shape(image, top, border, (2, 3), dilation) == (67, 61, None, None)
        checked += 1
    assert checked == 2052


def test_gradient_shapes_where_theano_was_wrong():
    assert shapes.get_conv_gradweights_shape((3, 4, 9, 9), (3, 6, 5, 4), "valid", (1, 1), num_groups=2) == (6, 2, 5, 6)
    unshared = shapes.get_conv_gradweights_shape(
        (3, 4, 9, 9), (3, 6, 5, 4), "valid", (1, 1), num_groups=2, unshared=True
    )
    assert unshared == (6, 5, 4, 2, 5, 6)
    assert shapes.get_conv_gradinputs_shape((6, 5, 4, 2, 5, 6), (3, 6, 5, 4), "valid", (1, 1), num_groups=2) == (
        3,
        4,
        9,
        9,
    )
    k = shapes.get_conv_gradweights_shape_1axis(12, 8, "valid", 1, 2)
    assert (k, type(k)) == (3, int)
    with pytest.raises(ValueError, match="no kernel of dilation 2"):
        shapes.get_conv_gradweights_shape_1axis(12, 7, "valid", 1, 2)
    with pytest.raises(ValueError, match="multiple of num_groups = 3, got 4"):
        shapes.get_conv_gradweights_shape((3, 4, 9, 9), (3, 6, 5, 4), "valid", (1, 1), num_groups=3)
    with pytest.raises(NotImplementedError, match="unshared"):
        shapes.get_conv_gradweights_shape((1,) * 5, (1,) * 5, "valid", (1, 1, 1), unshared=True)


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (shapes.get_conv_gradweights_shape_1axis, (12, 16, "full", 1, 1), 5),
        (shapes.get_conv_gradweights_shape_1axis, (12, 16, "full", 1, 2), 3),
        (shapes.get_conv_gradweights_shape_1axis, (12, 11, (1, 2), 1, 1), 5),
        (shapes.get_conv_gradweights_shape_1axis, (12, 12, "half", 1, 1), None),
        (shapes.get_conv_gradweights_shape_1axis, (12, 4, "valid", 2, 1), None),
        (shapes.get_conv_gradweights_shape_1axis, (None, 4, "valid", 1, 1), None),
        (shapes.get_conv_gradinputs_shape_1axis, (5, 8, "valid", 1, 1), 12),
        (shapes.get_conv_gradinputs_shape_1axis, (3, 16, "full", 1, 2), 12),
        (shapes.get_conv_gradinputs_shape_1axis, (4, 13, "half", 1, 1), 12),
        (shapes.get_conv_gradinputs_shape_1axis, (5, 11, (1, 2), 1, 1), 12),
        (shapes.get_conv_gradinputs_shape_1axis, (5, 4, "valid", 2, 1), None),
        (shapes.get_conv_gradinputs_shape_1axis, (5, None, "valid", 1, 1), None),
    ],
)
def test_gradient_sizes_of_one_axis(function, arguments, expected):
    assert function(*arguments) == expected


def test_check_gradinputs_shape_of_ranks():
    image, kernel = (1, 2, 6, 7), (3, 2, 3, 3)
    assert shapes.check_conv_gradinputs_shape(image, kernel, (1, 3, 4, 5), "valid", (1, 1))
    assert not shapes.check_conv_gradinputs_shape(image, kernel, (1, 3, 4), "valid", (1, 1))
    assert not shapes.check_conv_gradinputs_shape(image, (3, 2, 3), (1, 3, 4, 5), "valid", (1, 1))
    for wrong in ((2, 3, 4, 5), (1, 4, 4, 5), (1, 3, 4, 6)):  # batch, filters, a size
        assert not shapes.check_conv_gradinputs_shape(image, kernel, wrong, "valid", (1, 1))
    assert not shapes.check_conv_gradinputs_shape(image, kernel, (1, 3, 4, 5), "valid", (1,))
    assert not shapes.check_conv_gradinputs_shape(image, kernel, (1, 3, 4, 5), "valid", (1, 1), (1,))
    assert shapes.check_conv_gradinputs_shape((None, 2, None, 7), kernel, (1, 3, 99, 5), "valid", (1, 1))
    assert shapes.check_conv_gradinputs_shape(image, (3, 4, 5, 2, 3, 3), (1, 3, 4, 5), "valid", (1, 1))


@pytest.mark.parametrize(
    ("border", "kernel", "dilation", "expected"),
    [
        ("valid", (3, 4), None, ((0, 0), (0, 0))),
        ("full", (3, 4), (2, 1), ((4, 4), (3, 3))),
        ("half", (3, 4), (2, 1), ((2, 2), (2, 2))),
        ("half", (1, 5), (7, 1), ((0, 0), (2, 2))),
        (2, (3, 3), None, ((2, 2), (2, 2))),
        ((1, 2), (3, 3), None, ((1, 1), (2, 2))),
        (((1, 2), (0, 3)), (3, 3), None, ((1, 2), (0, 3))),
        ((1, (0, 3)), (3, 3), None, ((1, 1), (0, 3))),
        ((1, 2, 3), (3, 3, 3), (1, 1, 2), ((1, 1), (2, 2), (3, 3))),
        (np.int64(2), (3, 3), None, ((2, 2), (2, 2))),
    ],
)
def test_padding_pairs(border, kernel, dilation, expected):
    pairs = shapes.padding_pairs(border, kernel, dilation)
    assert pairs == expected
    assert all(type(p) is int for pair in pairs for p in pair)


@pytest.mark.parametrize(
    ("border", "message"),
    [
        ([1, 1], r"border_mode \[1, 1\]: .*got a list"),
        ("same", "border_mode 'same': expected 'valid'"),
        (-1, "border_mode: expected an integer >= 0, got -1"),
        ((1, -2), "border_mode: expected an integer >= 0, got -2"),
        (((0, -1), 0), "border_mode: expected an integer >= 0, got -1"),
        ((1,), "must be a tuple of length 2"),
        ((1, 1, 1), "must be a tuple of length 2"),
        (((1, 2, 3), 0), r"border_mode: expected a pair .* got \(1, 2, 3\)"),
        (("half", "valid"), "border_mode .* got 'half'"),
        (1.5, "border_mode: expected an integer >= 0, got 1.5"),
        (1 + 1j, r"border_mode: expected an integer >= 0, got \(1\+1j\)"),
        (None, "border_mode: .* got None"),
    ],
)
def test_malformed_border_modes(border, message):
    with pytest.raises(ValueError, match=message):
        shapes.padding_pairs(border, (3, 3), (1, 1))
    if border is not None:  # to the shape functions None is an unknown border mode
        with pytest.raises(ValueError, match="border_mode"):
            shapes.get_conv_output_shape((1, 1, 5, 5), (1, 1, 3, 3), border, (1, 1))


def test_malformed_strides_dilations_and_kernels():
    for bad in ((1,), (1, 1, 1), (1, 0), (1, 1.5), 1, "11"):
        with pytest.raises(ValueError, match="subsample"):
            shapes.get_conv_output_shape((1, 1, 5, 5), (1, 1, 3, 3), "valid", bad)
        with pytest.raises(ValueError, match="filter_dilation"):
            shapes.padding_pairs("valid", (3, 3), bad)
    with pytest.raises(ValueError, match="kernel shape: expected an integer >= 1, got 0"):
        shapes.padding_pairs("valid", (0, 3))
    with pytest.raises(ValueError, match="shape"):
        shapes.get_conv_output_shape((1, 1), (1, 1), "valid", ())


def test_border_mode_to_pad():
    assert shapes.border_mode_to_pad("valid", 2, (3, 5)) == ((0, 0), (0, 0))
    assert shapes.border_mode_to_pad("full", 2, (3, 5)) == ((2, 2), (4, 4))
    assert shapes.border_mode_to_pad("half", 3, (3, 5, 4)) == ((1, 1), (2, 2), (2, 2))
    assert shapes.border_mode_to_pad((1, (2, 3)), 2, (3, 5)) == ((1, 1), (2, 3))
    with pytest.raises(ValueError, match=r"border_mode 1: expected"):
        shapes.border_mode_to_pad(1, 2, (3, 5))
    with pytest.raises(ValueError, match="tuple of length 2"):
        shapes.border_mode_to_pad((1, 1, 1), 2, (3, 5))
    with pytest.raises(ValueError, match="'same'"):
        shapes.border_mode_to_pad("same", 2, (3, 5))
    with pytest.raises(ValueError, match=r"kshp: expected a tuple of 2 integers >= 1, got \(3, 5, 7\)"):
        shapes.border_mode_to_pad("full", 2, (3, 5, 7))
    with pytest.raises(NotImplementedError, match="pairs"):
        shapes.border_mode_to_pad(((1, 2, 3), 1), 2, (3, 5))


def test_assert_conv_shape():
    assert shapes.assert_conv_shape([0, 0, 1, 1]) == (0, 0, 1, 1)
    assert shapes.assert_conv_shape((None, 4, None, 1)) == (None, 4, None, 1)
    with pytest.raises(ValueError, match=r"invalid shape \(dim\[2\]: 0 <= 0\)"):
        shapes.assert_conv_shape((1, 1, 0, 1))
    with pytest.raises(ValueError, match=r"invalid shape \(dim\[3\]: -2 <= 0\)"):
        shapes.assert_conv_shape((1, 1, 1, -2))
    with pytest.raises(ValueError, match=r"invalid shape \(dim\[0\]: -1 < 0\)"):
        shapes.assert_conv_shape((-1, 1, 1, 1))


def test_what_is_no_shape_border_or_array_is_named():
    for modes, dilation in (((None, None), None), ("valid", (None, None))):
        with pytest.raises(ValueError, match="border_mode, subsample and filter_dilation: expected all of them known"):
            shapes.conv_flops((2, 4, 9, 8), (6, 4, 3, 2), modes, (1, 1), dilation)
    with pytest.raises(ValueError, match="border_mode: expected an integer >= 0"):
        shapes.get_conv_shape_1axis(9, 3, np.array([1, 1]), 1)
    with pytest.raises(TypeError, match="x: expected an array, got list"):
        shapes.assert_shape([1, 2], (2,))
    with pytest.raises(ValueError, match="expected_shape: expected a tuple"):
        shapes.assert_shape(np.ones(2), 3)


def test_assert_shape():
    x = np.zeros((2, 3))
    assert shapes.assert_shape(x, (None, 3)) is x
    for nothing in (None, (None, None), (None,)):  # as specified: no rank is expected either
        assert shapes.assert_shape(x, nothing) is x
    with pytest.raises(AssertionError, match=r"Unexpected shape. Expected \(2, 4\), got \(2, 3\)"):
        shapes.assert_shape(x, (2, 4))
    with pytest.raises(AssertionError, match="mine"):
        shapes.assert_shape(x, (2, 3, 1), "mine")


def test_conv_flops():
    # one product and one addition a term: 1*1 filters, 2x2 outputs, 2x2 taps
    assert shapes.conv_flops((1, 1, 3, 3), (1, 1, 2, 2)) == 2 * 4 * 4
    assert shapes.conv_flops((2, 4, 8, 8), (6, 2, 3, 3), "half", (2, 2), None, 2) == 2 * 2 * 6 * 16 * 2 * 9
    assert shapes.conv_flops((1, 2, 5, 5, 5), (3, 2, 1, 1, 1)) == 2 * 3 * 125 * 2
    assert shapes.conv_flops((0, 2, 5, 5), (3, 2, 1, 1)) == 0
    with pytest.raises(ValueError, match=r"image_shape\[1\]: expected .* = 4, got 3"):
        shapes.conv_flops((1, 3, 5, 5), (3, 2, 1, 1), num_groups=2)
    with pytest.raises(ValueError, match="invalid shape"):
        shapes.conv_flops((1, 2, 2, 2), (3, 2, 3, 3))
    assert shapes.conv_flops((1, 4, 8, 8), (3, 6, 6, 4, 3, 3)) == 2 * 3 * 36 * 4 * 9
    for message, arguments in (
        (
            "^num_groups: expected a divisor of the kernel's 3 filters, got 2",
            ((1, 4, 8, 8), (3, 2, 3, 3), "valid", None, None, 2),
        ),
        (r"^kernel_shape: expected a filter for each .* \(6, 6\), got \(9, 9\)", ((1, 4, 8, 8), (3, 9, 9, 4, 3, 3))),
        (r"^image_shape: expected integers, got \(None, 4", ((None, 4, 8, 8), (3, 4, 3, 3))),
        ("^kernel_shape: expected 4 entries, or 6", ((1, 4, 8, 8), (3, 4))),
    ):
        with pytest.raises(ValueError, match=message):
            shapes.conv_flops(*arguments)
