"""Arrays of every library that needs no GPU: same library back, layout rules, protocols, refusals."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numbadnn
import numbadnn.reference as reference
from numbadnn.arrays import dlpack, numpy_
from numbadnn.problem import Spec, normalised_strides

RANDOM = np.random.default_rng(2)
X = RANDOM.standard_normal((2, 4, 6, 5)).astype("float32")
W = RANDOM.standard_normal((6, 4, 3, 3)).astype("float32")
EXPECTED = reference.conv2d(X, W)


class Foreign:
    """An array of an unknown library: nothing but DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_numpy_subclasses_and_views_are_arrays(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    mapped[...] = X
    result = numbadnn.conv2d(mapped, W)
    assert type(result) is np.ndarray and np.allclose(result, EXPECTED, atol=1e-4)
    readonly = X.copy()
    readonly.flags.writeable = False
    assert np.allclose(numbadnn.conv2d(readonly, W), EXPECTED, atol=1e-4)


def test_channels_last_in_is_channels_last_out() -> None:
    last = np.ascontiguousarray(X.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    result = numbadnn.conv2d(last, W)
    assert result.transpose(0, 2, 3, 1).flags.c_contiguous and np.allclose(result, EXPECTED, atol=1e-4)
    assert numbadnn.conv2d(X, W).flags.c_contiguous
    ambiguous = last[:, :1]  # one channel: either layout describes it
    assert numbadnn.conv2d(np.ascontiguousarray(ambiguous), W[:, :1]).flags.c_contiguous


def test_strides_of_any_kind_are_honoured() -> None:
    flipped = X[:, ::-1, ::-1, ::-1]
    assert np.allclose(numbadnn.conv2d(flipped, W), reference.conv2d(flipped, W), atol=1e-4)
    broadcast = np.broadcast_to(X[:1], X.shape)
    assert np.allclose(numbadnn.conv2d(broadcast, W), reference.conv2d(broadcast, W), atol=1e-4)
    out = np.full((2, 6, 4, 6), np.nan, "float32")[:, :, ::-1, ::2]
    assert numbadnn.conv2d(X, W, out=out) is out and np.allclose(out, EXPECTED, atol=1e-4)


def test_mixed_dtypes_upcast_and_half_types_meet_in_float32() -> None:
    half, brain = X.astype("float16"), W.astype(ml_dtypes.bfloat16)
    assert numbadnn.conv2d(half, brain).dtype == np.float32
    assert numbadnn.conv2d(half, W).dtype == np.float32
    assert numbadnn.conv2d(X.astype("float64"), W).dtype == np.float64
    last = numbadnn.last_call()
    assert last is not None and last.facts["casts"] == ["float32 -> float64:6x4x3x3"]
    assert np.allclose(numbadnn.conv2d(half, brain), reference.conv2d(half, brain), atol=1e-4)


def test_dlpack_of_an_unknown_library_gives_numpy() -> None:
    result = numbadnn.conv2d(Foreign(X), Foreign(W))
    assert type(result) is np.ndarray and np.allclose(result, EXPECTED, atol=1e-4)


def test_functions_of_several_steps_take_arrays_that_show_no_shape() -> None:
    f = np.ones
    calls = (
        (numbadnn.separable_conv2d_grad_wrt_inputs, (f((2, 4, 4, 3)), f((6, 1, 3, 3)), f((4, 6, 1, 1))), (3, (2, 3, 6, 5))),
        (numbadnn.spatialtf, (f((2, 3, 4, 5)), f((2, 2, 3))), ()),
        (numbadnn.dropout, (f((3, 4)),), (0.5,)),
    )  # fmt: skip
    for function, arrays, more in calls:
        first, same = function(*arrays, *more), function(*map(Foreign, arrays), *more)
        if function is numbadnn.dropout:
            (first, state), (same, other) = first, same
            assert state == other
        np.testing.assert_array_equal(first, same)
    x, g = f((2, 3, 6, 5)), Foreign(f((2, 4, 4, 3)))
    filters = Foreign(f((6, 1, 3, 3))), Foreign(f((4, 6, 1, 1)))
    assert numbadnn.separable_conv2d_grad_wrt_weights(x, *filters, g, 3)[1].shape == (4, 6, 1, 1)


def test_dlpack_capsules_can_be_read_and_made() -> None:
    tensor = dlpack.read(X[:, ::2].__dlpack__())
    assert (tensor.dtype, tensor.shape, tensor.device) == ("float32", (2, 2, 6, 5), -1)
    assert tensor.strides == (120, 60, 5, 1) and tensor.address == X.ctypes.data
    alive = len(dlpack._alive)
    capsule = dlpack.capsule(X, X.ctypes.data, X.shape, (120, 30, 5, 1), "float32", 3)
    assert dlpack.read(capsule) == ("float32", X.shape, (120, 30, 5, 1), 3, X.ctypes.data, False)
    del capsule  # nobody took it: its destructor lets go of the owner
    assert len(dlpack._alive) == alive


def test_empty_operands_have_defined_results() -> None:
    for x, w in ((X[:0], W), (X, W[:0]), (X[:, :0], W[:, :0])):
        result = numbadnn.conv2d(x, w)
        assert result.shape == (x.shape[0], w.shape[0], 4, 3) and not result.any()
    out = np.full((2, 6, 4, 3), 2.0, "float32")
    numbadnn.conv2d(X[:, :0], W[:, :0], beta=0.5, out=out)
    assert (out == 1).all()
    assert not numbadnn.conv2d_grad_wrt_weights(X[:0], np.ones((0, 6, 4, 3), "float32"), W.shape).any()
    assert numbadnn.conv2d_grad_wrt_inputs(np.ones((0, 6, 4, 3), "float32"), W, (0, 4, 6, 5)).shape == (0, 4, 6, 5)
    assert numbadnn.softmax(np.ones((2, 0, 4, 5), "float16")).shape == (2, 0, 4, 5)
    assert numbadnn.softmax_grad(np.ones((2, 0, 4)), np.ones((2, 0, 4))).shape == (2, 0, 4)


def test_specs_parse_back_and_free_strides_are_normal() -> None:
    for text in (
        "float32:2x3x4x5",
        "bfloat16:2x3x4x5:nhwc",
        "float64:2x3:7,1",
        "float16:2x3:unaligned",
        "float32:3x2:-2,1",
    ):
        assert str(Spec.parse(text)) == text
    assert normalised_strides((1, 3, 4, 5), (99, 20, 5, 1)) == (60, 20, 5, 1)
    assert normalised_strides((2, 3, 1, 1), (3, 1, 7, 7)) == (3, 1, 1, 1)
    assert normalised_strides((2, 3, 4, 5), (60, 1, 15, 3)) == (60, 1, 15, 3)
    assert normalised_strides((0, 3), (8, 8)) == (3, 1)
    for wrong in ("int8:2x2", "float32:2x2:1", "float32:2x2:nhwc:nhwc:1", "float32"):
        with pytest.raises(ValueError):
            Spec.parse(wrong)


torch = pytest.importorskip("torch")


def test_a_tensor_given_as_a_parameter_counts_by_what_it_holds_at_each_call() -> None:
    one = np.ones((1, 1, 2, 2), np.float32)
    alpha, p, ratio = torch.tensor(2.0), torch.tensor(0.0), torch.tensor(2)
    numbadnn.conv2d(one, one, alpha=alpha)
    numbadnn.dropout(one, p)
    numbadnn.bilinear_upsampling(one, ratio)
    alpha.fill_(3)
    p.fill_(1)
    ratio.fill_(3)
    assert numbadnn.conv2d(one, one, alpha=alpha).item() == 12
    assert not numbadnn.dropout(one, p)[0].any()
    assert numbadnn.bilinear_upsampling(one, ratio).shape == (1, 1, 6, 6)
    assert numbadnn.conv2d(one, one, subsample=torch.tensor([1, 1])).item() == 4
    with pytest.raises(ValueError, match=r"subsample: .* got an array of torch.float32 \(2, 2\)"):
        numbadnn.conv2d(one, one, subsample=torch.ones(2, 2))


def test_cpu_tensors_run_on_the_cpu_and_come_back_as_tensors() -> None:
    x, w = torch.from_numpy(X), torch.from_numpy(W)
    result = numbadnn.conv2d(x, w)
    assert type(result) is torch.Tensor and np.allclose(result.numpy(), EXPECTED, atol=1e-4)
    out = torch.full((2, 6, 4, 3), float("nan"))
    assert numbadnn.conv2d(x, w, out=out) is out and torch.equal(out, result)
    last = numbadnn.conv2d(x.to(memory_format=torch.channels_last), w)
    assert last.is_contiguous(memory_format=torch.channels_last) and torch.allclose(last, result, atol=1e-5)
    assert numbadnn.conv2d(x, W).shape == (2, 6, 4, 3)  # mixed libraries on one device: the first one's comes back


def test_bfloat16_tensors() -> None:
    x, w = torch.from_numpy(X).bfloat16(), torch.from_numpy(W).bfloat16()
    result = numbadnn.conv2d(x, w)
    assert result.dtype is torch.bfloat16
    exact = reference.conv2d(x.double().numpy(), w.double().numpy())
    assert np.abs(result.double().numpy() - exact).max() <= 2**-8 * np.abs(exact).max()


def test_tensors_whose_meaning_would_be_lost_are_refused() -> None:
    w = torch.from_numpy(W)
    x = torch.from_numpy(X.copy())
    numbadnn.conv2d(x, w)
    x.requires_grad_()
    with pytest.raises(TypeError, match="input: expected a tensor that does not require grad"):
        numbadnn.conv2d(x, w)
    with pytest.raises(TypeError, match="filters: expected a tensor that does not require grad"):
        numbadnn.conv2d(x.detach(), torch.nn.Parameter(w))
    with torch.no_grad():
        assert numbadnn.conv2d(x, torch.nn.Parameter(w)).shape == (2, 6, 4, 3)
    complex_image = torch.randn(2, 4, 6, 5, dtype=torch.complex64)
    with pytest.raises(TypeError, match="negation"):
        numbadnn.conv2d(complex_image.conj().imag, w)
    with pytest.raises(TypeError, match="array 1: .*negation"):
        numbadnn.plan(numbadnn.conv2d, complex_image.imag, w)(complex_image.conj().imag, w)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's own, that they are new
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    with pytest.raises(TypeError, match="x: expected a plain tensor, got a nested one"):
        numbadnn.softmax(nested)
    with pytest.raises(TypeError, match="dense tensor"):
        numbadnn.softmax(torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match="expected dtype .* got int64"):
        numbadnn.conv2d(torch.ones(2, 4, 6, 5, dtype=torch.int64), w)
    with pytest.raises(TypeError, match="on cpu or cuda, got device meta"):
        numbadnn.conv2d(torch.ones(2, 4, 6, 5, device="meta"), w)
    whole = torch.ones(100, 1000)
    numbadnn.softmax(torch.ones(2, 1000))
    for freed in (
        whole,
        whole[1:3],
        whole[90:92],
    ):  # an address of 0, of a few bytes, and past all that no program can have
        whole.untyped_storage().resize_(0)
        with pytest.raises(TypeError, match="x: expected a tensor with memory of its own: that of this one was freed"):
            numbadnn.softmax(freed)
    assert numbadnn.softmax(torch.ones(0, 3)).shape == (0, 3)
    nothing = torch._efficientzerotensor((2, 1000))  # forward mode makes them
    for call in (
        lambda: numbadnn.softmax(nothing),
        lambda: numbadnn.softmax_grad(torch.ones(2, 1000), nothing),
        lambda: numbadnn.softmax(torch.ones(2, 1000), out=nothing),
    ):
        with pytest.raises(TypeError, match="expected a tensor with memory of its own: this one is zeros"):
            call()


def test_tensors_with_a_tangent_or_traced_are_refused() -> None:
    plain, forward = torch.randn(3, 4), torch.autograd.forward_ad
    numbadnn.softmax(plain)
    with forward.dual_level():
        dual = forward.make_dual(plain, torch.ones(3, 4))
        with pytest.raises(TypeError, match="x: expected a tensor without a tangent"):
            numbadnn.softmax(dual)
        assert torch.equal(numbadnn.softmax(forward.unpack_dual(dual).primal), numbadnn.softmax(plain))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        kept = numbadnn.plan(numbadnn.softmax, plain)
        with pytest.raises(TypeError, match=r"expected a tensor outside torch\.jit\.trace, .* use numbadnn.torch"):
            torch.jit.trace(numbadnn.softmax, torch.randn(3, 4))
        with pytest.raises(TypeError, match=r"expected a tensor outside torch\.jit\.trace"):
            torch.jit.trace(lambda x: kept(x), torch.randn(3, 4))


def test_what_pytorch_traces_or_transforms_is_refused() -> None:
    """A graph without what numbadnn computed returned memory that nobody had written; functionalize read such memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(3, 4)
    kept = numbadnn.plan(numbadnn.softmax, x)

    class Module(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return numbadnn.softmax(a)

    def into(a: torch.Tensor) -> torch.Tensor:
        return numbadnn.softmax(a, out=torch.empty(3, 4))

    def of_a_constant(a: torch.Tensor) -> torch.Tensor:
        return (a * numbadnn.softmax(x)).sum()

    for function in (lambda a: numbadnn.softmax(a), lambda a: kept(a), into):
        for options in ({}, {"pre_dispatch": True}, {"tracing_mode": "fake"}, {"tracing_mode": "symbolic"}):
            with pytest.raises(TypeError, match="use numbadnn.torch's functions there"):
                make_fx(function, **options)(x)
        with pytest.raises(TypeError, match="outside the transforms of torch.func .* use numbadnn.torch"):
            torch.func.functionalize(function)(x)
    with pytest.raises(TypeError, match="outside the transforms of torch.func .* use numbadnn.torch"):
        torch.func.grad(of_a_constant)(x)
    with pytest.raises(TypeError, match="use numbadnn.torch"):
        torch.export.export(Module(), (x,), strict=False)
    for lenient in (False, True):
        with (
            FakeTensorMode(allow_non_fake_inputs=lenient),
            pytest.raises(TypeError, match="outside .*fake tensor modes.* use numbadnn.torch"),
        ):
            numbadnn.softmax(x)
    assert torch.equal(numbadnn.softmax(x), kept(x))


def test_modes_that_return_what_was_computed_are_none_of_our_business() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.randn(3, 4)
    wanted = numbadnn.softmax(x)
    with FlopCounterMode(display=False):
        assert torch.equal(numbadnn.softmax(x), wanted)
    with torch.inference_mode():
        out = torch.empty(3, 4)
        assert torch.equal(numbadnn.softmax(x), wanted) and numbadnn.softmax(x, out=out) is out
    assert torch.equal(numbadnn.softmax(x, out=out), wanted)  # a tensor of inference mode has no version counter


def test_tensor_subclasses_are_refused_by_name() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2, 4, 6, 5))
    with pytest.raises(TypeError, match=r"input: .* got the FakeTensor of a trace, .* use numbadnn.torch"):
        numbadnn.conv2d(fake, torch.from_numpy(W))

    class Own(torch.Tensor):
        pass

    with pytest.raises(TypeError, match=r"input: expected a plain torch.Tensor, got the subclass .*Own"):
        numbadnn.conv2d(torch.ones(2, 4, 6, 5).as_subclass(Own), torch.from_numpy(W))


def test_a_tensor_inside_vmap_is_refused() -> None:
    with pytest.raises(TypeError, match="img: expected a tensor outside the transforms of torch.func"):
        torch.vmap(lambda x: numbadnn.pool(x, (2, 2)))(torch.ones(3, 1, 1, 4, 4))


def test_where_numpy_arrays_lie(tmp_path: Any) -> None:
    """Read from the array's structure, it is what the array itself says."""
    block = np.arange(24.0).reshape(2, 3, 4)
    mapped = np.memmap(tmp_path / "kept", np.float32, "w+", shape=(5, 3))
    frozen = block[:, 1:].view()
    frozen.flags.writeable = False
    arrays = (
        block[1, ::-1, 1::2],
        block.T,
        frozen,
        mapped[2:],
        np.array(3),
        np.empty((0, 2)),
        np.broadcast_to(1.0, (4, 4)),
    )
    for array in arrays:
        assert numpy_.address(array) == array.__array_interface__["data"][0] == numpy_._told(array)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 16, 128, 64)])  # small, and large enough for a line of memory
@pytest.mark.parametrize("layout", ["", "nhwc"])
def test_new_results_have_the_strides_of_their_spec(shape: tuple[int, ...], layout: str) -> None:
    spec = Spec.of("float32", shape, layout)
    make = numpy_.allocator(spec)
    first, second = make(), make()
    assert first.shape == shape and first.strides == tuple(4 * s for s in spec.strides)
    assert not np.may_share_memory(first, second) and first.flags.writeable
    assert spec.size * 4 < numpy_.LARGE or numpy_.address(first) % 64 == 0
