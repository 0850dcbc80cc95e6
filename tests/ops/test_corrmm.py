"""corr_mm, corr3d_mm and their gradients: never flipped, by that implementation, within the memory that is documented."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from simulated import checks_passed

import numbadnn
from numbadnn import reference
from numbadnn.cpu.conv import corrmm as cpu
from numbadnn.problems.conv import ConvProblem
from numbadnn.theano import corrmm as theano


def arrays(*shapes: tuple[int, ...], dtype: str = "float64") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, shape).astype(dtype) for shape in shapes]


BORDERS = ("valid", "half", "full", (1, 2), ((1, 0), (0, 2)))


@pytest.mark.parametrize("border", BORDERS, ids=str)
@pytest.mark.parametrize(("stride", "dilation", "groups"), [((1, 1), (1, 1), 1), ((2, 1), (1, 2), 2)])
def test_three_directions(border: Any, stride: tuple[int, int], dilation: tuple[int, int], groups: int) -> None:
    x, w = arrays((2, 4, 9, 8), (6, 4 // groups, 3, 2))
    same = {"border_mode": border, "subsample": stride, "filter_dilation": dilation, "num_groups": groups}
    padded = {**same, "border_mode": numbadnn.shapes.padding_pairs(border, (3, 2), dilation)}
    y = numbadnn.corr_mm(x, w, **same)
    assert np.array_equal(y, reference.conv2d(x, w, filter_flip=False, **padded))
    (top,) = arrays(y.shape)
    dw = numbadnn.corr_mm_grad_weights(x, top, (3, 2), **same)
    assert np.array_equal(dw, reference.conv2d_grad_wrt_weights(x, top, w.shape, filter_flip=False, **padded))
    dx = numbadnn.corr_mm_grad_inputs(w, top, (9, 8), **same)
    assert np.array_equal(dx, reference.conv2d_grad_wrt_inputs(top, w, x.shape, filter_flip=False, **padded))
    last = numbadnn.last_call()
    assert last is not None and last.impl == "cpu.im2col"


def test_shapes_are_inferred_where_they_are_unique() -> None:
    x, w = arrays((1, 2, 9, 8), (4, 2, 3, 2))
    for border, dilation in (("valid", (1, 1)), ("full", (1, 1)), ((1, 2), (2, 1))):
        same = {"border_mode": border, "filter_dilation": dilation}
        y = numbadnn.corr_mm(x, w, **same)
        assert numbadnn.corr_mm_grad_weights(x, y, **same).shape == w.shape
        assert numbadnn.corr_mm_grad_inputs(w, y, **same).shape == x.shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w, y: numbadnn.corr_mm_grad_weights(x, y, subsample=(2, 1)), "shape: required"),
        (lambda x, w, y: numbadnn.corr_mm_grad_weights(x, y, border_mode="half"), "shape: required"),
        (lambda x, w, y: numbadnn.corr_mm_grad_inputs(w, y, subsample=(1, 2)), "shape: required"),
        (lambda x, w, y: numbadnn.corr_mm_grad_weights(x, y, (3,)), "the 2 sizes of the filters"),
        (lambda x, w, y: numbadnn.corr_mm_grad_inputs(w, y, (9, 9, 9)), "the 2 sizes of the images"),
        (lambda x, w, y: numbadnn.corr_mm_grad_inputs(w, y, (7, 7)), "would produce an output"),
        (lambda x, w, y: numbadnn.corr_mm_grad_weights(x, y, border_mode=None), "border_mode: .* got None"),
        (lambda x, w, y: numbadnn.corr_mm_grad_inputs(w, y, border_mode=None), "border_mode: .* got None"),
        (
            lambda x, w, y: numbadnn.corr_mm_grad_weights(x, y, num_groups=3),
            "num_groups: .* the 2 channels of img, got 3",
        ),
        (lambda x, w, y: numbadnn.corr_mm_grad_weights(x, y, num_groups=0), "num_groups must .* got 0"),
        (
            lambda x, w, y: numbadnn.corr_mm_grad_weights(x, y, filter_dilation=(3, 1)),
            "^topgrad: no kernel of dilation 3",
        ),
        (lambda x, w, y: numbadnn.corr_mm(x, w[:, :1]), "kern: expected 2 channels .* got 1"),
        (lambda x, w, y: numbadnn.corr_mm(x, w[:3, :1], num_groups=2), "num_groups: .* 3 filters of kern, got 2"),
        (lambda x, w, y: numbadnn.corr_mm(x[0], w), "img: expected 4 dimensions"),
        (lambda x, w, y: numbadnn.corr_mm(x[:, :, :2], w), "window no larger"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    x, w, y = arrays((2, 2, 6, 6), (4, 2, 3, 3), (2, 4, 4, 4))
    with pytest.raises(ValueError, match=message):
        call(x, w, y)


def test_unshared_filters_need_six_axes() -> None:
    x, w = arrays((2, 2, 6, 6), (4, 2, 3, 3))
    with pytest.raises(TypeError, match="6 dimensions"):
        numbadnn.corr_mm(x, w, unshared=True)


def test_unshared() -> None:
    x, w = arrays((2, 4, 5, 6), (6, 3, 2, 2, 3, 2))
    same = {"subsample": (1, 2), "border_mode": ((0, 0), (0, 0)), "num_groups": 2, "unshared": True}
    w = arrays((6, 3, 3, 2, 3, 2))[0]
    y = numbadnn.corr_mm(x, w, **same)
    assert np.array_equal(y, reference.conv2d(x, w, filter_flip=False, **same))
    dw = numbadnn.corr_mm_grad_weights(x, y, (3, 2), **same)
    assert np.array_equal(dw, reference.conv2d_grad_wrt_weights(x, y, w.shape, filter_flip=False, **same))
    dx = numbadnn.corr_mm_grad_inputs(w, y, (5, 6), **same)
    assert np.array_equal(dx, reference.conv2d_grad_wrt_inputs(y, w, x.shape, filter_flip=False, **same))


@pytest.mark.parametrize("border", BORDERS, ids=str)
def test_the_reference_of_the_same_name(border: Any) -> None:
    x, w = arrays((2, 4, 9, 8), (6, 2, 3, 2))
    same = {"border_mode": border, "filter_dilation": (1, 2), "num_groups": 2}
    y = numbadnn.corr_mm(x, w, **same)
    assert np.array_equal(y, reference.corr_mm(x, w, **same))
    dx = numbadnn.corr_mm_grad_inputs(w, y, **same)
    assert np.array_equal(dx, reference.corr_mm_grad_inputs(w, y, **same)) and dx.shape == x.shape
    sizes = (3, 2) if border == "half" else None
    dw = numbadnn.corr_mm_grad_weights(x, y, sizes, **same)
    assert np.array_equal(dw, reference.corr_mm_grad_weights(x, y, sizes, **same)) and dw.shape == w.shape
    if border == "half":
        with pytest.raises(ValueError, match="shape: required where subsample is not 1 or border_mode is 'half'"):
            reference.corr_mm_grad_weights(x, y, **same)
    strided = {**same, "subsample": (2, 1)}
    y = reference.corr_mm(x, w, **strided)
    assert np.array_equal(
        reference.corr_mm_grad_inputs(w, y, (9, 8), **strided), numbadnn.corr_mm_grad_inputs(w, y, (9, 8), **strided)
    )
    with pytest.raises(ValueError, match="shape: required where subsample is not 1"):
        reference.corr_mm_grad_inputs(w, y, **strided)


def test_the_reference_of_the_same_name_with_three_axes_or_unshared_filters() -> None:
    x, w = arrays((2, 2, 4, 5, 6), (3, 2, 2, 3, 2))
    y = reference.corr3d_mm(x, w, "full")
    assert np.array_equal(y, numbadnn.corr3d_mm(x, w, "full"))
    assert np.array_equal(
        reference.corr3d_mm_grad_weights(x, y, border_mode="full"),
        numbadnn.corr3d_mm_grad_weights(x, y, border_mode="full"),
    )
    assert np.array_equal(
        reference.corr3d_mm_grad_inputs(w, y, border_mode="full"),
        numbadnn.corr3d_mm_grad_inputs(w, y, border_mode="full"),
    )
    x, w = arrays((2, 4, 5, 6), (6, 3, 5, 2, 3, 2))
    y = reference.corr_mm(x, w, num_groups=2, unshared=True)
    assert np.array_equal(y, numbadnn.corr_mm(x, w, num_groups=2, unshared=True))
    for name, arguments in (("weights", (x, y)), ("inputs", (w, y))):
        function = f"corr_mm_grad_{name}"
        expected = getattr(numbadnn, function)(*arguments, num_groups=2, unshared=True)
        assert np.array_equal(expected, getattr(reference, function)(*arguments, num_groups=2, unshared=True))


def test_three_axes() -> None:
    x, w = arrays((2, 2, 4, 5, 6), (3, 2, 2, 3, 2))
    y = numbadnn.corr3d_mm(x, w, "full")
    padded = {"border_mode": ((1, 1), (2, 2), (1, 1)), "filter_flip": False}
    assert np.array_equal(y, reference.conv3d(x, w, **padded))
    dw = numbadnn.corr3d_mm_grad_weights(x, y, border_mode="full")
    assert np.array_equal(dw, reference.conv3d_grad_wrt_weights(x, y, w.shape, **padded))
    dx = numbadnn.corr3d_mm_grad_inputs(w, y, border_mode="full")
    assert np.array_equal(dx, reference.conv3d_grad_wrt_inputs(y, w, x.shape, **padded))


def test_three_axes_with_groups_strides_and_uneven_padding() -> None:
    x, w = arrays((2, 4, 5, 6, 7), (6, 2, 2, 3, 2))
    same = {
        "border_mode": ((1, 0), (0, 2), (2, 1)),
        "subsample": (2, 1, 3),
        "filter_dilation": (1, 2, 1),
        "num_groups": 2,
    }
    y = numbadnn.corr3d_mm(x, w, **same)
    assert np.array_equal(y, reference.conv3d(x, w, filter_flip=False, **same))
    dw = numbadnn.corr3d_mm_grad_weights(x, y, (2, 3, 2), **same)
    assert np.array_equal(dw, reference.conv3d_grad_wrt_weights(x, y, w.shape, filter_flip=False, **same))
    dx = numbadnn.corr3d_mm_grad_inputs(w, y, (5, 6, 7), **same)
    assert np.array_equal(dx, reference.conv3d_grad_wrt_inputs(y, w, x.shape, filter_flip=False, **same))


def test_mixed_types_and_negative_strides() -> None:
    x, w = arrays((2, 2, 6, 6), (4, 2, 3, 3))
    y = numbadnn.corr_mm(x.astype("float32")[:, :, ::-1, ::-1], w[::-1, :, ::-1])
    assert y.dtype == "float64"
    assert np.array_equal(y, reference.conv2d(x[:, :, ::-1, ::-1], w[::-1, :, ::-1], filter_flip=False))


def test_named_whatever_the_options_prefer() -> None:
    x, w = arrays((1, 1, 4, 4), (1, 1, 2, 2))
    with numbadnn.using(only="cpu.fft"):
        assert numbadnn.explain(numbadnn.corr_mm, x, w).chosen == "cpu.im2col"
    with numbadnn.using(backend="cpu", exclude="cpu.im2col"):
        assert numbadnn.explain(numbadnn.corr3d_mm, x[None], w[None]).chosen == "cpu.corrmm"
    with numbadnn.using(only="cpu.fft"):
        assert numbadnn.explain(numbadnn.conv2d, x, w).chosen == "cpu.fft"


@pytest.mark.parametrize("axes", (2, 3))
def test_a_plan_takes_the_arrays_in_the_order_of_its_function(axes: int) -> None:
    """Also where both have one shape, and nothing else would tell them apart."""
    kern, top = arrays((2, 2, 3, 3, 3)[: axes + 2], (2, 2, 3, 3, 3)[: axes + 2])
    function = numbadnn.corr_mm_grad_inputs if axes == 2 else numbadnn.corr3d_mm_grad_inputs
    y, plan = function(kern, top), numbadnn.plan(function, kern, top)
    assert not np.array_equal(y, function(top, kern))
    out = np.full_like(y, np.nan)
    assert np.array_equal(plan(kern, top), y) and plan(kern, top, out=out) is out and np.array_equal(out, y)
    assert np.array_equal(function(kern, top), y)  # a call's own plan is another


def test_extra_memory_is_one_toeplitz_matrix() -> None:
    images, channels, side = 16, 8, 64
    x, w = arrays((images, channels, side, side), (4, channels, 5, 5), dtype="float32")
    problem = ConvProblem.parse(
        f"conv2d x=float32:{images}x{channels}x{side}x{side} w=float32:4x{channels}x5x5 pad=2,2,2,2 flip=0"
    )
    out = np.empty(problem.y.shape, "float32")
    with numbadnn.using(only="cpu.corrmm"):
        numbadnn.conv2d(x, w, border_mode="half", filter_flip=False, out=out)
        tracemalloc.start()
        numbadnn.conv2d(x, w, border_mode="half", filter_flip=False, out=out)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    matrix = cpu.toeplitz_bytes(problem)
    assert matrix == channels * 25 * side * side * 4
    # beside the matrix: the padded image, and the product of one image before it is written
    assert matrix <= peak < matrix + 2 * x[0].nbytes + 2 * out[0].nbytes + w.nbytes + 65536


def test_the_names_of_the_specification() -> None:
    x, w = arrays((2, 2, 6, 6), (4, 2, 3, 3))
    op = theano.CorrMM("half", (2, 2))
    y = op(x, w)
    assert repr(op).startswith("CorrMM('half', (2, 2)")
    assert np.array_equal(theano.CorrMM_gradWeights("half", (2, 2))(x, y, (3, 3)).shape, w.shape)
    assert theano.CorrMM_gradInputs("half", (2, 2))(w, y, (6, 6)).shape == x.shape
    assert theano.GpuCorr3dMM is theano.Corr3dMM
    x, w = x[:, :, None], w[:, :, None]
    top = theano.Corr3dMM()(x, w)
    assert theano.Corr3dMM_gradInputs()(w, top).shape == x.shape
    assert theano.Corr3dMM_gradWeights()(x, top).shape == w.shape


# ---- on the GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_under_the_simulator() -> None:
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    assert checks_passed("depthwise", "corrmm") == 17


LAYER = "x=float32:32x64x28x28 w=float32:64x64x3x3 pad=1,1,1,1"


@pytest.mark.parametrize("op", ["conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights"])
def test_workspace_is_what_is_documented(op: str) -> None:
    from numbadnn.kernels.conv.corrmm import corrmm

    problem = ConvProblem.parse(f"{op} {LAYER}")
    matrix = 64 * 9 * 28 * 28 * 4
    partial = problem.w.size * 4 if op == "conv2d_grad_wrt_weights" else 0
    assert corrmm.workspace_bytes(problem, 1) == -(-matrix // 256) * 256 + partial
    config = corrmm.heuristic(problem)
    assert 1 <= config.images < 32  # a group of images, never the whole batch of a real layer
    assert corrmm.workspace_bytes(problem, config.images) <= corrmm.ENOUGH_BYTES + 512
    tight = corrmm.heuristic(problem, 3 * (matrix + partial) + 1024)
    assert tight.images <= 3


def test_a_matrix_beyond_the_limit_is_refused() -> None:
    from numbadnn.kernels.conv.corrmm import corrmm
    from numbadnn.problem import Policy

    reason = corrmm._supports(ConvProblem.parse(f"conv2d {LAYER}"), Policy(device=0, workspace_limit=1 << 20))
    assert "workspace limit is 1048576" in reason


def test_a_matrix_beyond_the_limit_is_refused_on_the_cpu() -> None:
    x, w = arrays((1, 2, 6, 6), (4, 2, 3, 3))
    with numbadnn.using(only="cpu.corrmm"):
        with numbadnn.using(workspace_limit="1KiB"), pytest.raises(numbadnn.NotSupportedError, match="limit is 1024"):
            numbadnn.conv2d(x, w)
        with pytest.raises(numbadnn.NotSupportedError, match=r"cpu\.corrmm.* needs \d+ bytes for one image"):
            numbadnn.conv2d(x, w, border_mode="half", filter_dilation=(2**34, 1))  # the padded image alone


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ("float16", "float32", "float64"))
def test_on_a_gpu_by_name(dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    x, w = arrays((8, 16, 12, 12), (24, 16, 3, 3), dtype=dtype)
    y = numbadnn.corr_mm(cupy.asarray(x), cupy.asarray(w), 1)
    last = numbadnn.last_call()
    assert last is not None and last.impl == "numba.corrmm"
    assert last.workspace_bytes <= 8 * 16 * 9 * 144 * x.itemsize + 256
    expected = reference.conv2d(x, w, border_mode=((1, 1), (1, 1)), filter_flip=False)
    assert np.array_equal(cupy.asnumpy(y), expected.astype(dtype))
