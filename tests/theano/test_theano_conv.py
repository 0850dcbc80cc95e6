"""numbadnn.theano for everything that convolves: ported calls give what numbadnn gives, old names warn, flags are obeyed."""

from __future__ import annotations

import importlib
import importlib.util
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import ROOT

import numbadnn
from numbadnn import reference, theano
from numbadnn.registry import Executable, Impl
from numbadnn.validate.faults import planted

RNG = np.random.default_rng(2)
X, W = RNG.standard_normal((2, 4, 7, 6), "f4"), RNG.standard_normal((6, 4, 3, 3), "f4")
X3, W3 = RNG.standard_normal((2, 2, 5, 6, 4), "f4"), RNG.standard_normal((3, 2, 2, 3, 2), "f4")
TOP = RNG.standard_normal((2, 6, 5, 4), "f4")

DESC = theano.GpuDnnConvDesc("valid")

pytestmark = pytest.mark.filterwarnings("ignore:.* runs on .* instead:RuntimeWarning")  # NumPy arrays: not by cuDNN


@pytest.fixture(autouse=True)
def _flags_as_they_were() -> Any:
    yield
    vars(theano.config.dnn.conv).clear()
    theano.config.dnn.enabled = "auto"


# ---- dnn_ functions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ("conv", "cross"))
def test_dnn_functions(mode: str) -> None:
    for x, w, suffix in ((X, W, ""), (X3, W3, "3d")):
        axes = x.ndim - 2
        same = {"border_mode": "half", "filter_flip": mode == "conv"}
        op = f"conv{axes}d"
        y = getattr(theano, f"dnn_{op if suffix else 'conv'}")(x, w, border_mode="half", conv_mode=mode)
        assert np.array_equal(y, getattr(numbadnn, op)(x, w, **same))
        more = {"border_mode": "half", "conv_mode": mode}
        dx = getattr(theano, f"dnn_gradinput{suffix}")(w, y, x.shape, **more)
        assert np.array_equal(dx, getattr(numbadnn, f"{op}_grad_wrt_inputs")(y, w, x.shape, **same))
        dw = getattr(theano, f"dnn_gradweight{suffix}")(x, y, w.shape, **more)
        assert np.array_equal(dw, getattr(numbadnn, f"{op}_grad_wrt_weights")(x, y, w.shape, **same))


def test_dnn_functions_scale_and_add() -> None:
    for x, w, suffix in ((X, W, ""), (X3, W3, "3d")):
        op = f"conv{x.ndim - 2}d"
        y = getattr(reference, op)(x, w)
        for function, arguments, name, start in (
            (f"dnn_{op if suffix else 'conv'}", (x, w), op, y),
            (f"dnn_gradweight{suffix}", (x, y.astype("f4"), w.shape), f"{op}_grad_wrt_weights", w),
            (f"dnn_gradinput{suffix}", (w, y.astype("f4"), x.shape), f"{op}_grad_wrt_inputs", x),
        ):
            out = start.astype("f4")
            first, second, *shape = arguments
            order = (second, first) if function.startswith("dnn_gradinput") else (first, second)
            expected = getattr(reference, name)(*order, *shape, alpha=2.0, beta=-3.0, out=out)
            assert getattr(theano, function)(*arguments, alpha=2.0, beta=-3.0, out=out) is out
            assert np.allclose(out, expected, rtol=1e-4, atol=1e-3)
            with pytest.raises(ValueError, match="out: required when beta is not 0"):
                getattr(theano, function)(*arguments, beta=1.0)


def test_numpy_arrays_run_without_a_warning() -> None:
    numbadnn.clear_caches()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # before what this module has ignored
        theano.dnn_conv(X, W)
        assert numbadnn.last_call().fallback
        theano.config.dnn.conv.algo_fwd = "time_once"  # says how to choose, and there is nothing to choose from
        theano.dnn_conv(X[:1], W)


def test_workmem_is_an_old_name_of_algo() -> None:
    with pytest.raises(ValueError, match="You can't use both algo and workmem"):
        theano.dnn_conv(X, W, algo="small", workmem="none")
    with pytest.warns(DeprecationWarning, match="^dnn_conv: parameter 'workmem'"):
        theano.dnn_conv(X, W, workmem="small")
    with pytest.warns(DeprecationWarning, match="^dnn_conv3d: parameter 'workmem'"):
        theano.dnn_conv3d(X3, W3, workmem="small")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_deprecations_point_at_the_line_of_the_caller() -> None:
    """Elsewhere Python does not show them."""
    volume, taps = X[:, :, None], W[:, :, None]
    for call in (
        lambda: theano.dnn_conv(X, W, workmem="small"),
        lambda: theano.dnn_conv3d(volume, taps, workmem="small"),
        lambda: theano.GpuDnnConv(workmem="small"),
        lambda: theano.GpuDnnConv3dGradI(workmem="none"),
        lambda: theano.dnn_pool(X, (2, 2), mode="average"),
        lambda: theano.GpuDnnPool("average"),
        lambda: theano.GpuDnnPoolDesc((2, 2), mode="average"),
    ):
        with pytest.warns(DeprecationWarning) as caught:
            call()
        assert {w.filename for w in caught} == {__file__}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_volumes_take_parameters_in_the_order_of_the_later_document() -> None:
    """(..., direction_hint, algo, precision, num_groups), without workmem."""
    volume, taps = X[:, :, None], W[:, :, None]
    ones = (1, 1, 1)
    given = theano.dnn_conv3d(volume, taps, "valid", ones, ones, "cross", None, "none", "float32", 1)
    assert np.array_equal(given, numbadnn.conv3d(volume, taps, filter_flip=False))


def test_float16_has_no_backward_convolution() -> None:
    half = X.astype(np.float16)
    y = theano.dnn_conv(half, W.astype(np.float16))  # computed in float32
    assert y.dtype == np.float16
    for call in (
        lambda: theano.dnn_gradweight(X, y.astype("f4"), W.shape, precision="float16"),
        lambda: theano.dnn_gradinput(W.astype(np.float16), y, X.shape, precision="as_input"),
        lambda: theano.dnn_conv(half, W.astype(np.float16), "full", precision="float16"),
        lambda: theano.dnn_conv(half, W.astype(np.float16), direction_hint="bprop weights", precision="float16"),
        lambda: theano.dnn_conv(half, W.astype(np.float16), "full", precision="as_input"),
        lambda: theano.dnn_conv3d(half[:, :, None], W.astype(np.float16)[:, :, None], "full", precision="as_input"),
    ):
        with pytest.raises(TypeError, match="Float16 precision is disabled for cuDNN backward convolutions"):
            call()
    for more in ({"subsample": (2, 1)}, {"direction_hint": "forward!"}):  # Theano went straight
        assert theano.dnn_conv(half, W.astype(np.float16), "full", precision="as_input", **more).dtype == np.float16
    for precision in ("as_input_f32", "float32"):  # float16 data are fine
        dw = theano.dnn_gradweight(half, y, W.shape, precision=precision)
        assert np.array_equal(dw, numbadnn.conv2d_grad_wrt_weights(half, y, W.shape))
        dx = theano.dnn_gradinput(W.astype(np.float16), y, X.shape, precision=precision)
        assert np.array_equal(dx, numbadnn.conv2d_grad_wrt_inputs(y, W.astype(np.float16), X.shape))
    assert theano.dnn_gradinput(W, y, X.shape, precision="as_input").dtype == np.float32  # so is what is mixed


def by_gradient(op: str, name: str) -> Impl:
    """A CPU implementation that is called as a route is: the reference's numbers."""

    def plan(problem: Any, policy: Any, config: Any) -> Executable:
        def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
            outputs[0][...] = getattr(reference, op)(*inputs, **problem.keywords)

        return Executable(run)

    def supports(problem: Any, policy: Any) -> str:
        return f"has no algorithm named {policy.algo!r}" if policy.algo != "auto" else ""

    return Impl(op, "cpu", f"cpu.planted_{name}", supports, plan, lambda problem: 1e12)


#: (border mode, hint, the end of the name of what runs): docs/explanation/semantics.md#theanos-cudnn-functions
HINTS = (
    ("full", "bprop inputs", "by_grad_inputs"),
    ("full", "forward", "by_grad_inputs"),
    ("full", "bprop weights", "by_grad_inputs"),
    ("full", "forward!", ""),
    ("full", None, ""),
    ("valid", "bprop weights", "by_grad_weights"),
    ("valid", "bprop inputs", ""),
    ("half", "bprop weights", ""),
    ((1, 1), "bprop inputs", ""),
)


def test_a_hint_that_was_not_followed_is_replayed(tmp_path: Path) -> None:
    for strict in (False, True):
        numbadnn.clear_caches()
        with numbadnn.using(plan_file=str(tmp_path / "plans.json"), plan_strict=strict):
            theano.dnn_conv(X, W, "full", subsample=[1, 1], direction_hint="bprop inputs")
            assert numbadnn.last_call().decided_by.endswith("direction_hint='bprop inputs' is not to be had")


@pytest.mark.parametrize(("border", "hint", "name"), HINTS, ids=str)
def test_a_direction_hint_selects_the_gradient_that_theano_ran(border: Any, hint: str | None, name: str) -> None:
    for x, w, op in ((X, W, "conv2d"), (X3, W3, "conv3d")):
        function = theano.dnn_conv if op == "conv2d" else theano.dnn_conv3d
        border = (1,) * (x.ndim - 2) if isinstance(border, tuple) else border
        weights, inputs = (by_gradient(op, n) for n in ("by_grad_weights", "by_grad_inputs"))
        for mode in ("conv", "cross"):
            expected = getattr(reference, op)(x, w, border_mode=border, filter_flip=mode == "conv")
            with planted(weights), planted(inputs):
                y = function(x, w, border, conv_mode=mode, direction_hint=hint, algo="small" if name else None)
                last = numbadnn.last_call()
            assert np.allclose(y, expected, atol=1e-4)
            assert last.impl == f"cpu.planted_{name}" if name else "planted" not in last.impl
            assert "direction_hint" not in last.decided_by


def test_a_hint_that_cannot_be_followed_is_recorded() -> None:
    y = theano.dnn_conv(X, W, "full")
    numbadnn.clear_caches()
    for _ in range(2):
        assert np.array_equal(theano.dnn_conv(X, W, "full", direction_hint="bprop inputs"), y)
        last = numbadnn.last_call()
        assert last.fallback and last.decided_by.endswith("direction_hint='bprop inputs' is not to be had")
        assert any(r.impl == "numba.*" and "on the CPU" in r.reason for r in last.refusals)
    theano.dnn_conv(X, W, "full")
    assert "direction_hint" not in numbadnn.last_call().decided_by  # the plan was another call's too
    with planted(by_gradient("conv2d", "by_grad_inputs")):
        for more in ({"subsample": (2, 1)}, {"num_groups": 2}):
            w = W[:, :2] if more.get("num_groups") else W
            theano.dnn_conv(X, w, "full", direction_hint="bprop inputs", **more)
            assert "direction_hint" not in numbadnn.last_call().decided_by  # Theano went straight
        theano.config.dnn.conv.algo_bwd_data = "deterministic"
        theano.dnn_conv(X, W, "full", direction_hint="bprop inputs")
        assert any("the flags name 'deterministic'" in r.reason for r in numbadnn.last_call().refusals)
        theano.config.dnn.conv.algo_bwd_data = "auto"
        with numbadnn.using(only="cpu.corrmm"):
            assert np.allclose(theano.dnn_conv(X, W, "full", direction_hint="bprop inputs"), y, atol=1e-4)
            assert numbadnn.last_call().impl == "cpu.corrmm"
        with numbadnn.using(exclude="cpu.im2col,cpu.corrmm,cpu.fft"):
            theano.dnn_conv(X, W, "full")
            assert numbadnn.last_call().impl == "cpu.planted_by_grad_inputs"
            with pytest.raises(numbadnn.NotSupportedError):
                theano.dnn_conv(X, W, "full", direction_hint="forward!")
    theano.config.dnn.enabled = "True"
    with pytest.raises(numbadnn.NotSupportedError):
        theano.dnn_conv(X, W, "full", direction_hint="bprop inputs")


def test_the_gradient_in_the_filters_takes_no_dilation() -> None:
    from numbadnn.theano._direction import ROUTES, route

    for dilation, way in (((1, 1), ROUTES[1]), ((1, 2), ""), ((2, 1), "")):
        assert route("valid", (1, 1), dilation, 1, "bprop weights") == way
        assert route("full", (1, 1), dilation, 1, "bprop weights") == ROUTES[0]


@pytest.mark.gpu
@pytest.mark.parametrize(("border", "hint", "name"), HINTS, ids=str)
def test_a_direction_hint_on_the_gpu(border: Any, hint: str | None, name: str) -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.tensor(X, device="cuda"), torch.tensor(W, device="cuda")
    y = theano.dnn_conv(x, w, border, direction_hint=hint)
    assert np.allclose(y.cpu().numpy(), reference.conv2d(X, W, border_mode=border), atol=1e-4)
    last = numbadnn.last_call()
    assert last.impl.endswith(name) and (bool(name) == ("_by_grad_" in last.impl))


@pytest.mark.parametrize(
    ("message", "call"),
    (
        (r"direction_hint: expected one of None, 'forward'", lambda: theano.dnn_conv(X, W, direction_hint="back")),
        (r"conv_mode: expected 'conv' or 'cross'", lambda: theano.dnn_conv(X, W, conv_mode="same")),
        (r"algo: expected one of .*small", lambda: theano.dnn_conv(X, W, algo="fastest")),
        (r"algo: expected one of none, small, fft_tiling", lambda: theano.dnn_conv3d(X3, W3, algo="winograd")),
        (r"kerns_shp: expected a tuple of 4 integers", lambda: theano.dnn_gradweight(X, X, (3, 3))),
        (r"^img_shp: expected an integer >= 0, got None", lambda: theano.dnn_gradinput(W, X, (2, None, 7, 6))),
        (r"^num_groups must .* got 'small'", lambda: theano.GpuDnnConv(None, False, "small")),
        (r"img_shp: expected a tuple of 5 integers", lambda: theano.dnn_gradinput3d(W3, X3, (3, 3, 3))),
        (r"border_mode", lambda: theano.dnn_conv(X, W, border_mode=(-1, 0))),
        (r"^kerns: expected 3 channels \(3 channels of img in 1 groups\), got 4", lambda: theano.dnn_conv(X[:, :3], W)),
        (r"^img: expected 5 dimensions, got 4", lambda: theano.dnn_conv3d(X, W3)),
        (r"^dilation: expected an integer >= 1, got 0", lambda: theano.dnn_conv(X, W, dilation=0)),
        (
            r"^topgrad: expected shape \(2, 4, 5, 4\), got \(2, 4, 7, 6\)",
            lambda: theano.dnn_gradweight(X, X, (4, 4, 3, 3)),
        ),
        (r"^kerns_shp: expected .*\(4, 4, 3, 3\)", lambda: theano.dnn_gradweight(X, X[..., 1:-1, 1:-1], W.shape)),
        (
            r"^invalid img_shp for gradInputs: .* \(2, 6, 6, 4\), but .* \(2, 6, 5, 4\)",
            lambda: theano.dnn_gradinput(W, np.ones((2, 6, 5, 4), "f4"), (2, 4, 8, 6)),
        ),
        (
            "^num_groups: expected the GpuDnnConv's and the GpuDnnConvDesc's to agree, got 2 and 4",
            lambda: theano.GpuDnnConv(num_groups=2)(X, W, None, theano.GpuDnnConvDesc("valid", num_groups=4)),
        ),
        (r"^output: expected an array with beta=2", lambda: theano.GpuDnnConv()(X, W, None, DESC, 1, 2)),
        (r"^output: expected an array with .*inplace=True", lambda: theano.GpuDnnConv(inplace=True)(X, W, None, DESC)),
    ),
)
def test_dnn_bad_input(message: str, call: Any) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# ---- op classes ------------------------------------------------------------------------------------------------------


def test_convolution_ops_with_alpha_beta_and_inplace() -> None:
    desc = theano.GpuDnnConvDesc("half", precision="as_input_f32")(W.shape)
    shape = theano.GpuDnnConv.get_out_shape(X.shape, W.shape, "half", (1, 1))
    y = theano.GpuDnnConv()(X, W, None, desc)
    assert y.shape == shape
    start = RNG.standard_normal(shape, "f4")
    expected = reference.conv2d(X, W, border_mode="half", alpha=0.5, beta=2.0, out=start)
    kept = start.copy()
    scaled = theano.GpuDnnConv(algo="small")(X, W, start, desc, 0.5, 2.0)
    assert np.array_equal(start, kept) and np.allclose(scaled, expected, rtol=1e-5, atol=1e-5)
    assert theano.GpuDnnConv(inplace=True)(X, W, start, desc, 0.5, 2.0) is start
    assert np.array_equal(start, scaled)
    dw = theano.GpuDnnConvGradW()(X, y, np.empty_like(W), desc)
    assert np.array_equal(dw, numbadnn.conv2d_grad_wrt_weights(X, y, W.shape, border_mode="half"))
    image = np.empty_like(X)
    assert theano.GpuDnnConvGradI(inplace=True)(W, y, image, desc) is image
    assert np.array_equal(image, numbadnn.conv2d_grad_wrt_inputs(y, W, X.shape, border_mode="half"))


def test_convolution_ops_of_volumes() -> None:
    desc = theano.GpuDnnConvDesc("valid", (1, 1, 1), precision="as_input_f32")
    y = theano.GpuDnnConv3d()(X3, W3, None, desc)
    assert np.array_equal(y, theano.GpuDnnConv()(X3, W3, None, desc))
    assert theano.GpuDnnConv3dGradW()(X3, y, np.empty_like(W3), desc).shape == W3.shape
    assert theano.GpuDnnConv3dGradI()(W3, y, np.empty_like(X3), desc).shape == X3.shape
    flat = theano.GpuDnnConvDesc("valid")
    with pytest.raises(TypeError, match="GpuDnnConv3d: expected two arrays of 5 dimensions"):
        theano.GpuDnnConv3d()(X, W, None, flat)
    with pytest.raises(TypeError, match="expected two arrays of 4 or 5 dimensions"):
        theano.GpuDnnConv()(X, W3, None, flat)
    with pytest.raises(TypeError, match="desc: expected a GpuDnnConvDesc"):
        theano.GpuDnnConv()(X, W, None, None)
    with pytest.raises(TypeError, match="output: expected an array .* got builtins.tuple"):
        theano.GpuDnnConv()(X, W, (2, 6, 5, 4), flat)  # the shape in place of an array
    with pytest.raises(ValueError, match="impossible convolution output dim: expected .* but received"):
        theano.GpuDnnConv()(X, W, np.empty((1, 1, 1, 1), "f4"), flat)
    with pytest.raises(ValueError, match="dilation"):
        theano.GpuDnnConvDesc("valid", (1, 1), (1, 1, 1))


def test_abstract_ops_close_under_gradients() -> None:
    for x, w in ((X, W), (X3, W3)):
        axes = x.ndim - 2
        forward = getattr(theano, f"AbstractConv{axes}d")(border_mode=1)
        y = forward(x, w)
        assert np.array_equal(y, getattr(numbadnn, f"conv{axes}d")(x, w, border_mode=1))
        dx = getattr(theano, f"AbstractConv{axes}d_gradInputs")(border_mode=1)(w, y, x.shape[2:])
        assert dx.shape == x.shape
        dw = theano.AbstractConv_gradWeights(axes, border_mode=1)(x, y, w.shape[2:])
        assert dw.shape == w.shape
        assert forward.flops([x.shape, w.shape], [y.shape]) == numbadnn.shapes.conv_flops(x.shape, w.shape, 1)


def test_a_whole_shape_may_leave_open_what_the_arrays_say() -> None:
    wanted = theano.AbstractConv2d_gradWeights()(X, TOP, (3, 3))
    for hint, shape in ((None, (None, None, 3, 3)), ((6, None, 3, None), (None, 4, 3, 3)), (W.shape, [6, 4, 3, 3])):
        assert np.array_equal(theano.AbstractConv2d_gradWeights(kshp=hint)(X, TOP, shape), wanted)


def test_shapes_may_be_lists_or_vectors_of_any_integers() -> None:
    """What NumPy has for an integer, too, wherever a shape or steps are given."""
    y = numbadnn.conv2d(X, W, subsample=(1, 2))
    dx = numbadnn.conv2d_grad_wrt_inputs(y, W, X.shape, subsample=(1, 2))
    dw = numbadnn.conv2d_grad_wrt_weights(X, y, W.shape, subsample=(1, 2))
    for kind in (
        list,
        np.array,
        lambda values: tuple(map(np.int16, values)),
        lambda values: list(map(np.array, values)),
    ):
        step = {"subsample": kind((1, 2))}
        assert np.array_equal(theano.dnn_conv(X, W, **step), y)
        assert np.array_equal(theano.dnn_gradinput(W, y, kind(X.shape), **step), dx)
        assert np.array_equal(theano.dnn_gradweight(X, y, kind(W.shape), **step), dw)
        assert np.array_equal(theano.AbstractConv2d(**step)(X, W), y)
        assert np.array_equal(theano.AbstractConv2d_gradInputs(**step)(W, y, kind(X.shape[2:])), dx)
        assert np.array_equal(theano.AbstractConv2d_gradWeights(**step)(X, y, kind(W.shape[2:])), dw)
        assert np.array_equal(theano.GpuDnnConv()(X, W, None, theano.GpuDnnConvDesc("valid", **step)), y)
        assert theano.CorrMM(**step)(X, W).shape == y.shape
    assert np.array_equal(theano.dnn_conv(X, W, np.array((0, 0)), kind((1, 2))), y)
    for dilation in (2, np.int64(2), np.array(2), np.array((2, 2)), [2, np.int8(2)]):
        wide = theano.BaseAbstractConv(2).conv(X, W, dilation=dilation)
        assert np.allclose(wide, numbadnn.conv2d(X, W, filter_dilation=(2, 2)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        getattr(theano, f"{name}{gradient}")
        for name in ("CorrMM", "Corr3dMM", "AbstractConv2d", "AbstractConv3d")
        for gradient in ("", "_gradInputs", "_gradWeights")
    ]
    + [theano.GpuDnnConvDesc],
)
def test_what_no_convolution_has_is_refused_when_an_operation_is_made(make: Any) -> None:
    dilation = "dilation" if make is theano.GpuDnnConvDesc else "filter_dilation"
    for border in ("same", -1, (1, -1), [1, 1], (1,), (1, 1, 1, 1), None):
        with pytest.raises(ValueError, match="border_mode"):
            make(border_mode=border)
    for name in ("subsample", dilation):
        for steps in (2, (1,), (1, 0), (1, 1, 1, 1), "cross"):
            with pytest.raises(ValueError, match=f"^{name}: expected .*{re.escape(repr(steps))}|got 0$"):
                make(**{"border_mode": "valid", name: steps})
    for groups in (0, -1, 1.5, "small"):
        with pytest.raises(ValueError, match="^num_groups must have value greater than zero.*got"):
            make(border_mode="valid", num_groups=groups)


def test_abstract_convolutions_of_debugging() -> None:
    base = theano.BaseAbstractConv(2)
    for mode in ("valid", "full"):
        assert np.allclose(base.conv(X, W, mode), numbadnn.conv2d(X, W, border_mode=mode), rtol=1e-4, atol=1e-4)
    for x, w in ((X, W[:, :2]), (X3, W3[:2, :1])):  # groups and dilation, of both dimensions
        axes = x.ndim - 2
        for dilation, steps in ((2, (2,) * axes), ((1, 2, 1)[:axes], (1, 2, 1)[:axes])):
            whole = theano.BaseAbstractConv(axes).conv(x, w, "full", dilation, 2)
            expected = numbadnn.reference.conv2d if axes == 2 else numbadnn.reference.conv3d
            wanted = expected(x, w, border_mode="full", filter_dilation=steps, num_groups=2)
            assert whole.dtype == x.dtype and np.allclose(whole, wanted, rtol=1e-4, atol=1e-4)
    image, kernels = X[0, 0].astype("f8"), RNG.standard_normal((5, 4, 3, 3))
    one = base.unshared2d(image, kernels, (5, 4))
    shared = base.conv(image[None, None], kernels[None, :, :, None], unshared=True)
    assert np.allclose(one, shared[0, 0])
    top = RNG.standard_normal((5, 4))
    back = base.unshared2d(top, kernels, (7, 6), "backprop inputs")
    weights = base.unshared2d(image, top, (5, 4, 3, 3), "backprop weights")
    assert np.isclose((one * top).sum(), (back * image).sum()) and np.isclose(
        (one * top).sum(), (weights * kernels).sum()
    )
    whole = base.conv(image[None, None], top[None, None], unshared=True, direction="backprop weights")
    assert np.allclose(whole[0, :, :, 0], weights)
    whole = base.conv(top[None, None], kernels[None, :, :, None], unshared=True, direction="backprop inputs")
    assert np.allclose(whole[0, 0], back)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    (
        (ValueError, "convolution dimension 1 is not supported", lambda: theano.BaseAbstractConv(1)),
        (NotImplementedError, "Unshared 3D", lambda: theano.BaseAbstractConv(3, unshared=True)),
        (ValueError, "border_mode", lambda: theano.AbstractConv2d(border_mode="same")),
        (ValueError, "subsample", lambda: theano.AbstractConv3d(subsample=(1, 1))),
        (ValueError, "num_groups", lambda: theano.AbstractConv2d(num_groups=0)),
        (ValueError, r"^imshp: expected the array's own shape", lambda: theano.AbstractConv2d((2, 4, 7, 7))(X, W)),
        (ValueError, r"^kshp: expected", lambda: theano.AbstractConv3d(kshp=(3, 3, 3))(X3, W3)),
        (ValueError, r"^kern: expected 3 channels \(3 channels of img", lambda: theano.AbstractConv2d()(X[:, :3], W)),
        (ValueError, r"^shape: expected \(batch,", lambda: theano.AbstractConv2d_gradInputs()(W, X[:, [0] * 6])),
        (
            ValueError,
            r"^invalid shape for gradInputs",
            lambda: theano.AbstractConv2d_gradInputs()(W, X[:, [0] * 6], (7, 6)),
        ),
        (ValueError, "^shape: .* 2 .*, got .2, 4, 7, 6", lambda: theano.AbstractConv2d_gradInputs()(W, X, X.shape)),
        (ValueError, "^shape: .* >= 0, got 6.5", lambda: theano.AbstractConv2d_gradInputs()(W, X, (7, 6.5))),
        (ValueError, "^shape: .* >= 0, got 3.5", lambda: theano.AbstractConv2d_gradWeights()(X, X, (3, 3.5))),
        (ValueError, "^shape: .* of 2 integers", lambda: theano.AbstractConv2d_gradWeights()(X, X, 3)),
        (ValueError, r"^topgrad: expected shape", lambda: theano.AbstractConv2d_gradWeights()(X, X, (3, 3))),
        (
            ValueError,
            r"^imshp: expected what shape says, \(2, 4, 7, 6\) .*, got \(2, 4, 9, 9\)",
            lambda: theano.AbstractConv2d_gradInputs((2, 4, 9, 9))(W, TOP, (7, 6)),
        ),
        (ValueError, "^imshp: .* length 4, got", lambda: theano.AbstractConv2d_gradInputs((2, 4, 7))(W, TOP, (7, 6))),
        (
            ValueError,
            "^kshp: expected what",
            lambda: theano.AbstractConv2d_gradWeights(kshp=(6, 4, 7, 7))(X, TOP, (3, 3)),
        ),
        (ValueError, "^kshp: .* length 4, got", lambda: theano.AbstractConv2d_gradWeights(kshp=(6, 4))(X, TOP, (3, 3))),
        (ValueError, r"^shape: .*\(6, 4, 3, 3\)", lambda: theano.AbstractConv2d_gradWeights()(X, TOP, (99, 98, 3, 3))),
        (ValueError, r"^kshp: ", lambda: theano.AbstractConv2d_gradWeights(kshp=(9, 4, 3, 3))(X, TOP, (6, None, 3, 3))),
        (ValueError, "^shape: .* of 2 int", lambda: theano.AbstractConv2d_gradWeights()(X, TOP, (1, 2, 3, 3, 3))),
        (ValueError, "^direction", lambda: theano.BaseAbstractConv(2).conv(X, W, direction="junk")),
        (ValueError, "^direction", lambda: theano.BaseAbstractConv(3).conv(X3, W3, direction="junk")),
        (ValueError, "invalid mode half", lambda: theano.BaseAbstractConv(2).conv(X, W, "half")),
        (ValueError, "direction", lambda: theano.BaseAbstractConv(2).unshared2d(X, W, (1, 1), "back")),
        (NotImplementedError, "Unshared 3D", lambda: theano.BaseAbstractConv(3).unshared2d(X, W, (1, 1))),
    ),
)
def test_abstract_bad_input(error: type[Exception], message: str, call: Any) -> None:
    with pytest.raises(error, match=message):
        call()


# ---- old names -------------------------------------------------------------------------------------------------------


def test_nnet_conv2d_and_what_it_had_deprecated() -> None:
    y = theano.conv2d(X, W, X.shape, W.shape, "half", (1, 1), True, None, (2, 2))
    assert np.array_equal(y, numbadnn.conv2d(X, W, border_mode="half", filter_dilation=(2, 2)))
    with pytest.warns(DeprecationWarning, match="renamed to `input_shape`"):
        theano.conv2d(X, W, image_shape=X.shape)
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="at the same time"):
        theano.conv2d(X, W, X.shape, image_shape=X.shape)
    for logical in ("imshp_logical", "kshp_logical"):
        with pytest.raises(ValueError, match=f"'{logical}' for conv2d is not supported"):
            theano.conv2d(X, W, **{logical: (1, 2)})
    with pytest.warns(UserWarning, match=r"\['colour'\] for conv2d are ignored"):
        theano.conv2d(X, W, colour="red")


def test_the_oldest_conv2d() -> None:
    from numbadnn.theano import conv, conv3d2d

    with pytest.warns(DeprecationWarning, match=r"conv\.conv2d is deprecated"):
        y = conv.conv2d(X, W, X.shape, W.shape, "full", (2, 1), unroll_batch=2, openmp=True)
    assert np.array_equal(y, numbadnn.conv2d(X, W, border_mode="full", subsample=(2, 1)))
    assert np.array_equal(conv.ConvOp(X.shape[1:], W.shape[2:], 6, 2, 2, 1, "full")(X, W), y)
    for error, options in (
        (ValueError, {"border_mode": "half"}), (ValueError, {"kshp_logical": (1, 1)}), (TypeError, {"num_groups": 2}),
    ):  # fmt: skip
        with pytest.warns(DeprecationWarning), pytest.raises(error, match=next(iter(options))):
            conv.conv2d(X, W, **options)
    for message, hints in (
        (r"^imshp: expected the array's own shape \(2, 4, 7, 6\) .*, got \(None, None, 9, 9\)", {"imshp": (9, 9)}),
        ("^imshp: expected the array's own", {"bsize": 3}),
        ("^imshp: expected None or 2 or 3 sizes, got", {"imshp": (9,)}),
        (r"^kshp: expected the array's own .*, got \(77, None, 3, 3\)", {"kshp": (3, 3), "nkern": 77}),
        ("^kshp: expected None or 2 sizes, got", {"kshp": (4, 3, 3)}),
    ):
        with pytest.raises(ValueError, match=message):
            conv.ConvOp(**hints)(X, W)
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="^image_shape: expected the array's own"):
        conv.conv2d(X, W, image_shape=(2, 4, 7, 7))
    frames, filters = X3.swapaxes(1, 2), W3.swapaxes(1, 2)
    assert np.array_equal(conv3d2d.conv3d(frames, filters), numbadnn.conv3d2d(frames, filters))
    for same in ("same", ("valid", "same", "same")):
        with pytest.raises(NotImplementedError, match="^border_mode: 'same' is not implemented, use 'half', got"):
            conv3d2d.conv3d(frames, filters, border_mode=same)


# ---- flags -----------------------------------------------------------------------------------------------------------


def test_flags() -> None:
    dnn = theano.config.dnn
    assert (dnn.enabled, dnn.conv.algo_fwd, dnn.conv.precision, dnn.conv.algo_bwd) == (
        "auto",
        "auto",
        "as_input_f32",
        "",
    )
    dnn.conv.algo_bwd_data = "deterministic"
    assert dnn.conv.algo_bwd_data == "deterministic"
    with pytest.raises(ValueError, match=r"dnn\.conv\.algo_bwd_data: expected one of .* got 'small'"):
        dnn.conv.algo_bwd_data = "small"
    with pytest.raises(ValueError, match=r"dnn\.enabled: expected one of auto, True, False, no_check"):
        dnn.enabled = "perhaps"
    for removed in ("algo_bwd", "workmem", "workmem_bwd"):
        with pytest.raises(RuntimeError, match=f"dnn.conv.{removed}` has been removed"):
            setattr(dnn.conv, removed, "fft")
        setattr(dnn.conv, removed, "")


def test_what_is_no_flag_is_not_set() -> None:
    dnn = theano.config.dnn
    with pytest.raises(AttributeError, match=r"dnn\.conv\.algo_fdw is not a flag: expected one of .*algo_fwd"):
        dnn.conv.algo_fdw = "small"
    with pytest.raises(AttributeError, match=r"dnn\.enable_it is not a flag: expected one of conv, enable, enabled"):
        dnn.enable_it = True
    dnn.enable = False  # as the page of nnet.conv has it
    assert dnn.enabled == "False"
    with pytest.raises(AttributeError, match="^dnn holds flags"):
        theano.config.dnn = 5
    assert theano.config.dnn is dnn


def test_flags_as_the_later_document_spells_them() -> None:
    config = theano.config
    config.dnn__conv__algo_fwd, config.dnn__enabled = "small", "False"
    assert (config.dnn.conv.algo_fwd, config.dnn.enabled) == ("small", "False")
    config.dnn.conv.precision = "float32"
    assert (config.dnn__conv__precision, config.dnn__conv__algo_bwd_data) == ("float32", "auto")
    del config.dnn__conv__algo_fwd
    assert config.dnn.conv.algo_fwd == "auto"
    config.dnn__conv__algo_fwd = "small"
    for name, value, error in (
        ("dnn__conv__algo_bwd_data", "small", ValueError),
        ("dnn__conv__algo_bwd", "fft", RuntimeError),
        ("dnn__conv__algo_fdw", "small", AttributeError),
        ("dnn__pool__algo", "small", AttributeError),
    ):
        with pytest.raises(error):
            setattr(config, name, value)
    with pytest.raises(AttributeError, match=r"numbadnn\.theano\.config' has no attribute 'dnnconv'"):
        _ = config.dnnconv


def test_flag_floatX() -> None:
    config = theano.config
    assert config.floatX == "float64"  # Theano's own default
    block = theano.RNNBlock(config.floatX, 4, 1, "gru")  # as the page of gpuarray.dnn has it
    assert block.split_params(np.zeros((block.get_param_size([2, 3]),), dtype=config.floatX), 0, [2, 3])[0].shape == (
        3,
        4,
    )
    try:
        for name in ("float32", "float16", "float64"):
            config.floatX = name
            assert config.floatX == name
            assert theano.bilinear_kernel_1D(3).dtype == theano.bilinear_kernel_2D(2, normalize=False).dtype == name
        with pytest.raises(ValueError, match="floatX: expected one of float64, float32, float16, got 'int32'"):
            config.floatX = "int32"
    finally:
        config.floatX = "float64"


def test_flag_enabled() -> None:
    theano.config.dnn.enabled = True
    with pytest.raises(numbadnn.NotSupportedError, match="fallback is 'error'"):
        theano.dnn_conv(X, W)
    for enabled in (False, "no_check", "auto"):
        theano.config.dnn.enabled = enabled
        theano.dnn_conv(X, W)
        last = numbadnn.last_call()
        asked = any(r.backend == "cudnn" and "exclude=" not in r.reason for r in last.refusals)
        assert last.impl == "cpu.im2col" and asked is (enabled is not False)


def test_who_switched_cudnn_off_is_not_warned_of_its_absence() -> None:
    theano.config.dnn.enabled = False
    with warnings.catch_warnings(), numbadnn.using(fallback="error"):
        warnings.simplefilter("error")
        theano.dnn_conv(X, W, alpha=0.75)  # a problem that nothing has warned of yet
        with pytest.raises(numbadnn.NotSupportedError, match="fallback is 'error'"):  # that is another matter
            theano.dnn_conv(X, W, algo="winograd")
    with pytest.warns(RuntimeWarning, match="algorithm named 'fft'"):
        theano.dnn_conv(X, W, alpha=0.625, algo="fft")


def test_flag_precision_and_algorithm_reach_the_call() -> None:
    theano.config.dnn.conv.precision = "float16"
    for call in (lambda: theano.dnn_gradweight(X, X, W.shape), lambda: theano.dnn_conv(X, W, "full")):
        with pytest.raises(TypeError, match="Float16 precision is disabled"):
            call()
    theano.config.dnn.conv.precision = "float64"
    with pytest.raises(numbadnn.NotSupportedError, match="float64"):
        theano.dnn_conv(X, W)
    theano.config.dnn.conv.precision = "as_input_f32"
    y = theano.dnn_conv(X, W)
    for flag, algo, call in (
        ("algo_fwd", "large", lambda: theano.dnn_conv(X, W)),
        ("algo_bwd_filter", "small", lambda: theano.dnn_gradweight(X, y, W.shape)),
        ("algo_bwd_data", "fft", lambda: theano.dnn_gradinput(W, y, X.shape)),
        ("algo_bwd_data", "winograd", lambda: theano.GpuDnnConvGradI()(W, y, X, theano.GpuDnnConvDesc("valid"))),
    ):
        setattr(theano.config.dnn.conv, flag, algo)
        call()
        assert f"algorithm {algo!r} is not to be had" in numbadnn.last_call().decided_by


# ---- softmax and version ---------------------------------------------------------------------------------------------


def test_softmax_ops() -> None:
    y = theano.GpuDnnSoftmax("bc01", "log", "instance")(X)
    assert np.array_equal(y, numbadnn.softmax(X, "log", "instance"))
    dx = theano.GpuDnnSoftmaxGrad("accurate", "channel")(X, y)
    assert np.array_equal(dx, numbadnn.softmax_grad(X, y))
    for bad in (("exact", "channel"), ("fast", "row"), ("b01c", "fast", "channel")):
        with pytest.raises(ValueError, match="expected"):
            theano.GpuDnnSoftmax(*bad)


def test_version() -> None:
    found = theano.version(raises=False)
    assert found == numbadnn.cudnn.version(raises=False)
    if found > 0:
        assert theano.DnnVersion()() == (found, found)


# ---- a ported network ------------------------------------------------------------------------------------------------


def lenet() -> Any:
    path = ROOT / "examples" / "lenet_theano_port.py"
    spec = importlib.util.spec_from_file_location("lenet_theano_port", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("library", ("numpy", pytest.param("cupy", marks=pytest.mark.gpu)))
def test_lenet_learns(library: str) -> None:
    pytest.importorskip(library)
    costs = lenet().train(library, 25, report=lambda line: None)
    assert costs[0] > 2 and np.mean(costs[-5:]) < 0.6 * costs[0]


@pytest.fixture
def _one_thread() -> Any:
    before = theano.config.openmp
    theano.config.openmp = False
    assert not theano.config.openmp
    yield
    theano.config.openmp = before


@pytest.mark.usefixtures("_one_thread")
def test_lenets_gradients_by_differences() -> None:
    port = lenet()
    p = {name: value.astype(np.float64) for name, value in port.parameters(np).items()}
    images, digits = port.batch(4)
    images = images.astype(np.float64)
    cost, grads = port.cost_and_gradients(np, p, images, digits)
    rng, tiny = np.random.default_rng(3), 1e-7  # so small that no maximum of a window passes to another pixel
    for name in ("w0", "b0", "w1", "b1", "w2", "b3"):
        step = rng.standard_normal(p[name].shape)
        moved = [port.cost_and_gradients(np, {**p, name: p[name] + e * step}, images, digits)[0] for e in (tiny, -tiny)]
        assert np.isclose((moved[0] - moved[1]) / (2 * tiny), (grads[name] * step).sum(), rtol=1e-5, atol=1e-7), name


def test_options_in_force_are_the_flags_that_are_not_set() -> None:
    """``using`` and the environment say the algorithm and the precision where no flag does."""
    with numbadnn.using(algo_fwd="winograd", precision="float16", fallback="allow"):
        assert theano.config.dnn.conv.algo_fwd == "winograd"
        with pytest.raises(TypeError, match="Float16 precision is disabled"):
            theano.dnn_gradweight(X, TOP, W.shape)
    with numbadnn.using(algo_fwd="winograd", fallback="allow"):
        theano.dnn_conv(X, W)
        assert "algorithm 'winograd'" in str(numbadnn.last_call())
    assert theano.config.dnn.conv.precision == "as_input_f32"


def test_flags_can_be_unset() -> None:
    """By None and by ``del``: what was read before and set again would stay where the option in force has gone."""
    flags = theano.config.dnn.conv
    flags.precision, flags.algo_fwd = "float32", "small"
    flags.precision = None
    del flags.algo_fwd, flags.algo_bwd_data
    with numbadnn.using(precision="float64", algo_fwd="fft"):
        assert (flags.precision, flags.algo_fwd) == ("float64", "fft")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: theano.GpuDnnConv(algo="foo"), ValueError, "^algo: .*'foo'"),
        (lambda: theano.GpuDnnConvGradI(algo="small"), ValueError, "^algo: .*'small'"),
        (lambda: theano.GpuDnnConv3d(algo="winograd"), ValueError, "^algo: .*'winograd'"),
        (lambda: theano.GpuDnnConvDesc("valid", precision="foo"), ValueError, "^precision: .*'foo'"),
        (lambda: theano.CorrMM(unshared="yes"), TypeError, "^unshared: .*'yes'"),
        (lambda: theano.AbstractConv2d(filter_flip="no"), TypeError, "^filter_flip: .*'no'"),
        (lambda: theano.GpuDnnPoolDesc((2, 2), (1, 1), "max", (-1, 0)), ValueError, r"^pad: .*\(-1, 0\)"),
        (lambda: theano.GpuDnnBatchNorm("spatial", epsilon=1e-7), ValueError, "^epsilon must be at least 1e-5"),
    ],
)
def test_operations_look_at_their_parameters_when_they_are_made(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def test_theanos_modules_are_this_packages() -> None:
    """Imported from below nnet they are the same; dnn and nnet are no packages of copies."""
    import numbadnn.theano.nnet.corr3d
    from numbadnn.theano.nnet.abstract_conv import AbstractConv2d
    from numbadnn.theano.nnet.corr import CorrMM

    assert AbstractConv2d is theano.AbstractConv2d
    assert CorrMM is theano.CorrMM
    assert numbadnn.theano.nnet.corr3d.Corr3dMM is theano.Corr3dMM
    assert issubclass(AbstractConv2d, theano.BaseAbstractConv)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("numbadnn.theano.dnn.config")


def test_hints_and_shapes_may_be_vectors() -> None:
    torch = pytest.importorskip("torch")
    top = np.ones((2, 6, 4, 6))
    image, kernel = (2, 4, 6, 7), np.ones((6, 4, 3, 2))
    operation = theano.AbstractConv2d_gradInputs(imshp=np.array(image))
    assert operation(kernel, top, (6, 7)).shape == image
    with numbadnn.using(fallback="allow"):
        assert theano.dnn_gradweight(np.ones(image), top, torch.tensor(kernel.shape)).shape == kernel.shape
