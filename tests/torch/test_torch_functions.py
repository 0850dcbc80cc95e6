"""numbadnn.torch's functions beside PyTorch's: values, layouts, gradients of gradients, vmap, and the operators below."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.func import grad, vmap  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch_functions import CASES, Case, Recorded, leaves  # noqa: E402

import numbadnn  # noqa: E402
import numbadnn.torch as nt  # noqa: E402

cases = pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])


@cases
def test_equals_pytorch(case: Case) -> None:
    found = case.ours(*case.arrays)
    if case.theirs is not None:
        wanted = case.theirs(*case.arrays)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    through_gradient = case.ours(*leaves(case))
    assert torch.equal(found, through_gradient.detach()) and found.stride() == through_gradient.stride()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        if dtype is torch.bfloat16 and found.ndim == 1:  # of recurrent networks, which numbadnn has not in bfloat16
            with pytest.raises(numbadnn.NotSupportedError, match="^input: expected dtype"):
                case.ours(*(a.to(dtype) for a in case.arrays))
            continue
        low = case.ours(*(a.to(dtype) for a in case.arrays))
        assert low.dtype is dtype and low.shape == found.shape


@cases
def test_gradients_of_gradients(case: Case) -> None:
    arrays = leaves(case)
    assert torch.autograd.gradcheck(case.ours, arrays, fast_mode=True)
    assert torch.autograd.gradgradcheck(case.ours, arrays, fast_mode=True)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items() if name != "dropout"])
def test_vmap_of_gradients_is_the_loop(case: Case) -> None:
    for mapped in range(len(case.arrays)):
        rows = torch.stack([case.arrays[mapped], case.arrays[mapped].flip(-1) * 0.5])

        def loss(a: torch.Tensor, mapped: int = mapped) -> torch.Tensor:
            return case.ours(*case.arrays[:mapped], a, *case.arrays[mapped + 1 :]).square().sum()

        wanted = torch.stack([grad(loss)(a) for a in rows])
        torch.testing.assert_close(vmap(grad(loss))(rows), wanted, rtol=1e-10, atol=1e-10)
        twice = vmap(grad(lambda a, loss=loss: grad(loss)(a).square().sum()))  # type: ignore[misc]
        torch.testing.assert_close(twice(rows), torch.stack([second(loss, a) for a in rows]), rtol=1e-10, atol=1e-10)


def second(loss: Any, a: torch.Tensor) -> torch.Tensor:
    """The gradient of the squares of the gradient, without torch.func."""
    a = a.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(a), a, create_graph=True)
    return torch.autograd.grad(first.square().sum(), a)[0]


#: operators and the layouts that another case has shown
CHECKED: set[tuple[object, object]] = set()


@cases
def test_operators_obey_pytorch(case: Case) -> None:
    """Results without memory, schemas and the compiler's own trace, of every operator that a call and its gradients use."""
    with Recorded() as recorded:
        arrays = leaves(case)
        found = torch.autograd.grad(case.ours(*arrays).square().sum(), arrays, create_graph=True)
        torch.autograd.grad(sum(f.square().sum() for f in found), arrays, allow_unused=True)
    seen = {}
    for operator, args in recorded.calls:
        layout = tuple((a.ndim, a.is_contiguous()) for a in args if isinstance(a, torch.Tensor))
        seen[operator, layout] = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in args)
    assert seen
    seen = {key: args for key, args in seen.items() if key not in CHECKED}
    CHECKED.update(seen)
    for (operator, _), args in seen.items():
        torch.library.opcheck(operator, args)


@cases
def test_shapes_alone_are_computed_on_the_meta_device(case: Case) -> None:
    arrays = [a.detach().to("meta").requires_grad_() for a in case.arrays]
    found, wanted = case.ours(*arrays), case.ours(*case.arrays)
    assert found.is_meta and found.shape == wanted.shape and found.stride() == wanted.stride()
    found.sum().backward()
    assert all(a.grad is None or a.grad.is_meta for a in arrays) and any(a.grad is not None for a in arrays)
    assert case.ours(*(a.detach() for a in arrays)).shape == wanted.shape


@pytest.mark.parametrize("cut", [lambda x: x[::2], lambda x: x[:, :, 1:], lambda x: x[:1], lambda x: x[:, :1]])
def test_results_of_a_cut_batch_lie_as_without_memory(cut: Any) -> None:
    x = cut(torch.randn(4, 3, 6, 7).to(memory_format=torch.channels_last))
    w = torch.randn(5, x.shape[1], 3, 3)
    for call in (lambda x, w: nt.conv2d(x, w), lambda x, w: nt.max_pool2d(x, 2), lambda x, w: nt.softmax(x, 1)):
        assert call(x, w).stride() == call(x.to("meta"), w.to("meta")).stride()


def test_batch_norm_of_no_images_keeps_its_averages() -> None:
    x, w, mean, var = (
        torch.ones(0, 3, 4, requires_grad=True),
        torch.ones(3, requires_grad=True),
        torch.ones(3),
        torch.ones(3),
    )
    y = nt.batch_norm(x, mean, var, w, training=True)
    y.sum().backward()
    assert y.shape == x.shape == x.grad.shape and torch.equal(w.grad, torch.zeros(3)), w.grad
    assert torch.equal(mean, torch.ones(3)) and torch.equal(var, torch.ones(3))


def test_dropout_draws_another_mask_each_time() -> None:
    x = torch.ones(64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = nt.dropout(x), nt.dropout(x)
        torch.manual_seed(0)
        assert torch.equal(first, nt.dropout(x)) and not torch.equal(first, second)
    assert nt.dropout(x, training=False) is x


def test_pytorchs_own_samples_and_errors() -> None:
    """In a process of its own: PyTorch's test tools forbid everybody else to set its flags."""
    pytest.importorskip("expecttest")
    program = Path(__file__).parents[1] / "support" / "torch_opinfo.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=280, check=False, env=environment
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "conv2d: 30 equal, 0 refused by name, 10 errors by name" in done.stdout


@pytest.mark.parametrize("level", ["O1", "float64", "float16"])
@pytest.mark.parametrize(
    "name",
    ["conv1d", "conv3d", "conv_transpose2d", "softmax", "log_softmax, first", "max_pool2d", "avg_pool2d, inside",
        "avg_pool3d", "grid_sample",
     "batch_norm, training"],
)  # fmt: skip
def test_autocast_gives_pytorchs_dtypes(name: str, level: str) -> None:
    case = CASES[name]
    assert case.theirs is not None
    dtype = {"O1": torch.float32, "float64": torch.float64, "float16": torch.float16}[level]
    arrays = [a.detach().to(dtype, copy=True).requires_grad_() for a in case.arrays]
    with torch.autocast("cpu", torch.bfloat16):
        wanted, found = case.theirs(*arrays), case.ours(*arrays)
    assert found.dtype is wanted.dtype
    found.sum().backward()
    assert all(a.grad is None or a.grad.dtype is dtype for a in arrays)


X, W, POINT = torch.ones(1, 2, 4, 4), torch.ones(2, 2, 3, 3), torch.ones(1, 1, 1, 2)


def dual() -> Any:
    with torch.autograd.forward_ad.dual_level():
        return nt.conv2d(torch.autograd.forward_ad.make_dual(X, X), W)


BAD = {
    "int": (TypeError, "input: expected dtype float16", lambda: nt.conv2d(X.long(), W.long())),
    "complex": (TypeError, "input: expected dtype float16", lambda: nt.conv2d(X.cfloat(), W.cfloat())),
    "another dtype": (TypeError, "weight: expected the dtype of input", lambda: nt.conv2d(X, W.double())),
    "sparse": (TypeError, "input: expected a dense tensor", lambda: nt.conv2d(X.to_sparse(), W)),
    "no tensor": (TypeError, "weight: expected a torch.Tensor", lambda: nt.conv2d(X, W.numpy())),
    "elsewhere": (ValueError, "weight: expected a tensor on cpu", lambda: nt.conv2d(X, W.to("meta"))),
    "padding": (ValueError, "padding: expected no 'same'", lambda: nt.conv2d(X, W, padding="same", stride=2)),
    "float stride": (TypeError, "stride: expected integers", lambda: nt.conv2d(X, W, stride=(1, 1.5))),
    "bias": (ValueError, "bias: expected shape \\(2,\\)", lambda: nt.conv2d(X, W, torch.ones(3))),
    "groups": (ValueError, "groups: expected a positive divisor", lambda: nt.conv2d(X, W, groups=3)),
    "backend": (ValueError, "backend: expected one of", lambda: nt.conv2d(X, W, backend="other")),
    "determinism": (ValueError, "determinism: expected one of", lambda: nt.conv2d(X, W, determinism="other")),
    "dilation": (numbadnn.NotSupportedError, "dilation: expected 1", lambda: nt.max_pool2d(X, 2, dilation=2)),
    "padding_mode": (
        numbadnn.NotSupportedError, "padding_mode: expected 'zeros'", lambda: nt.grid_sample(X, POINT, padding_mode="border"),
    ),
    "one value": (ValueError, "input: expected more than 1", lambda: nt.batch_norm(X[:, :, 0, 0], None, None, training=True)),
    "a number that equals": (
        TypeError, "stride: expected an integer or 2", lambda: (nt.conv2d(X, W, stride=1), nt.conv2d(X, W, stride=1.0)),
    ),
    "a truth": (TypeError, "groups: expected an integer", lambda: (nt.conv2d(X, W), nt.conv2d(X, W, groups=True))),
    "no number": (TypeError, "p: expected a number", lambda: nt.dropout(X, "a")),
    "seed": (TypeError, "seed: expected an integer", lambda: nt.dropout(X, seed=1.5)),
    "seeds": (TypeError, "seed: expected an integer", lambda: nt.dropout(X, seed=torch.ones(2, dtype=torch.int64))),
    "size": (ValueError, "size: expected four", lambda: nt.affine_grid(torch.ones(1, 2, 3), 5)),
    "ratio": (ValueError, "ratio: expected a positive", lambda: nt.upsample_bilinear(X, [])),
    "module": (TypeError, "module: expected a torch.nn.Module", lambda: nt.convert(5)),
    "a layer's backend": (ValueError, "backend: expected one of", lambda: nt.nn.Conv2d(2, 2, 3, backend="other")),
    "no channels": (ValueError, "in_channels, out_channels: expected", lambda: nt.nn.LocallyConnected2d(0, 2, 4, 3)),
    "probability": (ValueError, "p: expected a probability", lambda: nt.dropout(X, 2.0)),
    "forward mode": (RuntimeError, "forward AD|jvp", lambda: torch.func.jvp(lambda x: nt.softmax(x, 1), (X,), (X,))),
    "forward over reverse": (
        RuntimeError, "forward AD|jvp", lambda: torch.func.hessian(lambda w: nt.conv2d(X, w).square().sum())(W),
    ),
    "torch.jit": (
        numbadnn.NotSupportedError, "input: expected a tensor outside torch.jit.trace",
        lambda: torch.jit.trace(nt.nn.MaxPool2d(2), X),
    ),
    "a tangent": (RuntimeError, "forward AD|jvp", dual),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "call"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(kind: type[Exception], text: str, call: Any) -> None:
    with pytest.raises(kind, match=f"^{text}" if ":" in text else text):
        call()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_several_results_at_once(name: str) -> None:
    """``is_grads_batched`` is what jacobian(vectorize=True) and gradcheck(check_batched_grad=True) go through."""
    arrays = leaves(CASES[name])
    y = CASES[name].ours(*arrays)
    several = torch.randn(2, *y.shape, dtype=torch.float64)
    found = torch.autograd.grad(y, arrays, several, is_grads_batched=True, retain_graph=True)
    for i, top in enumerate(several):
        for a, b in zip(found, torch.autograd.grad(y, arrays, top, retain_graph=True), strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-10, atol=1e-10)


def test_options_in_force_reach_the_gradient() -> None:
    """Whatever thread runs it, and when."""
    x, w = leaves(CASES["conv2d, no batch"])
    with numbadnn.using(backend="cpu", determinism="batch_invariant", workspace_limit="1MiB"):
        y = nt.conv2d(x, w)
    with Recorded() as recorded:
        y.sum().backward()
    assert [args[-1] for _, args in recorded.calls] == [
        "backend=cpu determinism=batch_invariant workspace_limit=1048576B"
    ] * 2
    with Recorded() as recorded:
        nt.conv2d(x.detach(), w.detach(), determinism="gpu_to_gpu", backend="cpu")
    assert recorded.calls[0][1][-2:] == ("cpu", "determinism=gpu_to_gpu")
    assert numbadnn.last_call().determinism == "gpu_to_gpu"  # type: ignore[union-attr]


def test_lists_that_are_reset_are_empty_in_the_gradient_too() -> None:
    x, w = leaves(CASES["conv2d, no batch"])
    with numbadnn.using(backend="cudnn", only="cudnn.*", exclude="cpu.*"):
        with numbadnn.using(backend=None, only=None, exclude=None):
            y = nt.conv2d(x, w)
        with Recorded() as recorded:
            y.sum().backward()
    assert [args[-1] for _, args in recorded.calls] == ["backend= exclude= only="] * 2


class Named(TorchDispatchMode):
    """The names of all operators that are called within."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_batch_norm_makes_no_gradients_of_its_statistics() -> None:
    x, w = torch.randn(4, 3, 5, requires_grad=True), torch.ones(3, requires_grad=True)
    y = nt.batch_norm(x, torch.zeros(3), torch.ones(3), w, training=True)
    with Named() as called:
        y.backward(torch.ones(4, 3, 5))
    assert "batch_norm_train_grad" in called.names and "zeros" not in called.names


BIASED = [name for name in CASES if name.startswith(("conv", "unshared")) and len(CASES[name].arrays) == 3]


@pytest.mark.parametrize("name", BIASED)
def test_a_bias_is_part_of_the_call(name: str) -> None:
    """One step forwards, and one more backwards, its sum."""
    arrays = leaves(CASES[name])
    with Named() as called:
        y = CASES[name].ours(*arrays)
    assert set(called.names) <= {"conv", "conv_grad_input", "detach"} and called.names.count("detach") < 3
    with Named() as called:
        y.backward(torch.ones_like(y))
    assert not {"view", "unsqueeze", "select_backward"} & set(called.names) and called.names.count("sum") == 1


def test_parameters_of_batch_norm_are_taken_as_they_are() -> None:
    x, (w, b) = torch.randn(4, 3, 5, requires_grad=True), torch.ones(2, 3)
    with Named() as called:
        nt.batch_norm(x, torch.zeros(3), torch.ones(3), w, b, training=True).backward(torch.ones(4, 3, 5))
    assert set(called.names) - {"detach", "ones"} <= {"batch_norm_train", "batch_norm_train_grad", "zeros"}


def test_gradients_that_nobody_needs_are_not_computed() -> None:
    x, w = leaves(CASES["conv2d, no batch"])
    with Recorded() as recorded:
        nt.conv2d(x, w.detach()).sum().backward()
    assert [str(op) for op, _ in recorded.calls] == ["numbadnn.conv.default", "numbadnn.conv_grad_input.default"]


@pytest.mark.parametrize(
    ("module", "name", "hint"),
    (
        (nt, "interpolate", "upsample_bilinear"),
        (nt, "relu", "torch.nn.functional has it"),
        (nt, "Conv2d", "numbadnn.torch.nn has it"),
        (nt, "Linear", "torch.nn has it"),
        (nt, "spatialtf_grid", "numbadnn has it"),
        (nt, "max_pol2d", "is 'max_pool2d' meant?"),
        (nt.nn, "Linear", "torch.nn has it"),
        (nt.nn, "Conv2D", "is 'Conv2d' meant?"),
    ),
)
def test_a_name_that_is_elsewhere_is_said(module: Any, name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    assert str(caught.value) == f"module {module.__name__!r} has no attribute {name!r}: {hint}"
    assert not hasattr(module, "_absent")
