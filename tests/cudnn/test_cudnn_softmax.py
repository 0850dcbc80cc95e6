"""cudnn.softmax without a GPU: folding, refusals, and the call through the fake library, against the reference."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest
from fake_cudnn import FakeCudnn, view

from numbadnn import cases, reference
from numbadnn.cudnn import softmax
from numbadnn.errors import CudnnError
from numbadnn.problem import Policy, Spec
from numbadnn.problems.softmax import SoftmaxProblem
from numbadnn.registry import implementations

GPU = Policy(device=0)
NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}


@pytest.fixture
def fake(monkeypatch):
    made = FakeCudnn().install(monkeypatch)
    yield made
    assert not made.problems


def array(spec, values):
    """(address, keeper, view) of an operand with these values."""
    store = np.zeros((spec.span[1] + 1) * spec.itemsize + 16, np.uint8)
    made = view(store.ctypes.data, NUMPY[spec.dtype], spec.shape, spec.strides)
    made[...] = values
    return store.ctypes.data, store, made


STRIDED = Spec("float32", (2, 3, 4, 5), (300, 90, 20, 2))
SPECS = {
    "rank 2": Spec.of("float32", (3, 5)),
    "rank 3": Spec.of("float64", (2, 3, 4)),
    "nchw": Spec.of("float32", (2, 3, 4, 5)),
    "nhwc": Spec.of("float32", (2, 3, 4, 5), "nhwc"),
    "strided": STRIDED,
    "rank 6": Spec.of("float32", (2, 3, 2, 2, 3, 1)),
    "one channel": Spec.of("float32", (2, 1, 4, 5)),
}


@pytest.mark.parametrize("mode", ["channel", "instance"])
@pytest.mark.parametrize("algo", ["fast", "accurate", "log"])
@pytest.mark.parametrize("name", SPECS)
def test_equals_the_reference(fake, name, algo, mode):
    spec = SPECS[name]
    rng = np.random.default_rng(3)
    x, y = array(spec, rng.normal(size=spec.shape)), array(spec, np.nan)
    problem = SoftmaxProblem("softmax", y=spec, x=spec, algo=algo, mode=mode)
    assert softmax.supports(problem, GPU) == ""
    softmax.plan(problem, GPU, None).run((x[0],), (y[0],), None, 5)
    tolerance = 1e-6 if spec.dtype == "float32" else 1e-14
    want = reference.softmax(x[2], algo, mode)
    np.testing.assert_allclose(y[2], want, rtol=tolerance, atol=tolerance)

    dy, dx = array(spec, rng.normal(size=spec.shape)), array(spec, np.nan)
    problem = SoftmaxProblem("softmax_grad", y=spec, dy=spec, dx=spec, algo=algo, mode=mode)
    assert softmax.supports(problem, GPU) == ""
    softmax.plan(problem, GPU, None).run((dy[0], y[0]), (dx[0],), None, 5)
    want = reference.softmax_grad(dy[2], y[2], algo, mode)
    np.testing.assert_allclose(dx[2], want, rtol=tolerance, atol=tolerance)
    assert [c[2] for c in fake.calls if c[0] == "cudnnSetStream"] == [5]


@pytest.mark.parametrize(("dtype", "number", "scalar"), [
    ("float16", 2, ctypes.c_float), ("bfloat16", 9, ctypes.c_float),
    ("float32", 0, ctypes.c_float), ("float64", 1, ctypes.c_double),
])  # fmt: skip
def test_what_the_c_call_gets(fake, dtype, number, scalar):
    seen = []

    def forward(handle, algo, mode, alpha, x_desc, x, beta, y_desc, y):
        seen.append((algo, mode, scalar.from_address(alpha).value, scalar.from_address(beta).value, x, y))

    kind = type(fake.functions.cudnnSoftmaxForward)
    fake.functions.cudnnSoftmaxForward = kind(fake._guard("cudnnSoftmaxForward", forward))
    x, y = Spec.of(dtype, (2, 3, 4, 5)), Spec.of(dtype, (2, 3, 4, 5), "nhwc")
    problem = SoftmaxProblem("softmax", y=y, x=x, algo="log", mode="instance")
    softmax.plan(problem, GPU, None).run((0x100,), (0x200,), None, 0)
    assert seen == [(2, 0, 1.0, 0.0, 0x100, 0x200)]
    assert fake.tensors == [(number, [2, 3, 20, 1], [60, 20, 1, 1]), (number, [2, 3, 20, 1], [60, 1, 3, 1])]


def spec(shape, strides, dtype="float32"):
    return Spec(dtype, shape, strides)


@pytest.mark.parametrize(("operand", "mode", "says"), [
    (spec((5,), (1,)), "channel", "has 1 axes"),
    (spec((2, 3, 4), (12, 4, -1)), "channel", "positive strides"),
    (spec((2, 3, 4), (12, 0, 1)), "channel", "positive strides"),
    (spec((2, 3, 4, 5, 6), (10000, 2000, 200, 20, 2)), "channel", "fold to 5 axes"),
    (spec((2, 3, 2, 2, 2), (10000, 2000, 200, 20, 2)), "instance", "fold to 5 axes"),
    (spec((2, 2), (2**31, 1)), "channel", "more than 2**31"),
])  # fmt: skip
def test_refusals(fake, operand, mode, says):
    assert says in softmax.supports(SoftmaxProblem("softmax", y=operand, x=operand, mode=mode), GPU)


def test_refusals_by_policy_and_uneven_strides(fake):
    x = Spec.of("float32", (2, 3, 4, 5))
    problem = SoftmaxProblem("softmax", y=x, x=x)
    assert "batch_invariant" in softmax.supports(problem, Policy(device=0, determinism="batch_invariant"))
    assert "float64" in softmax.supports(problem, Policy(device=0, precision="float64"))
    other = Spec.of("float32", (2, 3, 4, 5), "nhwc")
    gradient = SoftmaxProblem("softmax_grad", y=x, dy=other, dx=x)
    assert "same strides" in softmax.supports(gradient, GPU)
    assert "same strides" in softmax.supports(SoftmaxProblem("softmax_grad", y=x, dy=x, dx=other), GPU)
    assert softmax.supports(SoftmaxProblem("softmax_grad", y=other, dy=other, dx=other), GPU) == ""


def test_axes_merge_only_where_every_operand_lets_them():
    x, y = Spec.of("float32", (2, 3, 4, 5)), spec((2, 3, 4, 5), (150, 50, 10, 1))
    assert softmax.fold("channel", (x, y)) == ((2, 3, 4, 5), ((60, 20, 5, 1), (150, 50, 10, 1)))
    assert softmax.fold("instance", (x,)) == ((2, 60, 1, 1), ((60, 1, 1, 1),))


def test_an_error_is_a_cudnn_error(fake):
    x = Spec.of("float32", (2, 3))
    executable = softmax.plan(SoftmaxProblem("softmax", y=x, x=x), GPU, None)
    fake.failing["cudnnSoftmaxForward"] = 3000
    with pytest.raises(CudnnError, match="softmax: cudnnSoftmaxForward: CUDNN_STATUS_3000"):
        executable.run((0,), (0,), None, 0)


def test_another_context_is_entered_for_the_call(fake):
    x = Spec.of("float32", (1, 2))
    executable = softmax.plan(SoftmaxProblem("softmax", y=x, x=x), GPU, None)
    source, target = array(x, [[0.0, 0.0]]), array(x, np.nan)
    fake.context = 1
    executable.run((source[0],), (target[0],), None, 0)
    assert target[2].tolist() == [[0.5, 0.5]]
    assert fake.context == 1


@pytest.mark.parametrize(("line", "says"), [
    ("batch_normalization_train x=float32:880802x2x1x1 mode=spatial", "takes up to 880801 images here, got 880802"),
    ("batch_normalization_train_grad x=float32:131071x2 mode=per-activation", "up to 131070 images"),
    ("batch_normalization_test x=float32:65536x2x3x1 mode=spatial", "up to 65535 images"),
    ("batch_normalization_test x=float32:262137x2x1x1 mode=per-activation", "up to 262136 images"),
    ("batch_normalization_test x=float32:65535x2x3x1 mode=spatial", ""),
    ("spatialtf_sampler img=float32:1x1025x3x4 grid=float32:1x5x6x2", "up to 1024 channels, got 1025"),
    ("spatialtf_sampler img=float32:1x1024x3x4 grid=float32:1x5x6x2", ""),
    ("spatialtf_grid theta=float32:65536x2x3 grid=float32:65536x2x2x2", "up to 65535 grids, got 65536"),
    ("spatialtf_grid theta=float32:65535x2x3 grid=float32:65535x2x2x2", ""),
    ("batch_normalization_train x=bfloat16:4x3x4x4:unaligned gamma=float32:1x3x1x1 mode=spatial", "not aligned to 16 bytes"),
    ("batch_normalization_test x=float32:4x3x4x4 y=float32:4x3x4x4:unaligned mode=spatial", "not aligned to 16 bytes"),
    ("softmax x=float32:2x3:2147483646,1 y=float32:2x3:2147483646,1", "spans more than 2"),
])  # fmt: skip
def test_sizes_that_cudnn_is_known_to_refuse(line, says):
    """The limits that PyTorch keeps to with cuDNN; "not supported" at execution is too late for another backend."""
    problem = cases.parse(line)
    (impl,) = (i for i in implementations(problem.op) if i.backend == "cudnn")
    refused = impl.supports(problem, GPU)
    assert says in refused if says else refused == ""
