"""Calls on tensors like those of a call before: launched at once, and looked at again where anything is not as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import numbadnn  # noqa: E402
import numbadnn.torch as nt  # noqa: E402
from numbadnn.call.planning import thread  # noqa: E402
from numbadnn.torch.library import OPERATORS  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    """Other tests call the same functions on tensors like these."""
    thread.ready.clear()


@contextmanager
def kernels() -> Iterator[list[str]]:
    """The operators whose kernels are called within, by name."""
    called: list[str] = []
    before = {operator: operator.kernel for operator in OPERATORS.values()}

    def counted(operator: Any, kernel: Any) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            called.append(operator.op._opname)
            return kernel(*given)

        return run

    for operator, kernel in before.items():
        operator.kernel = counted(operator, kernel)
    try:
        yield called
    finally:
        for operator, kernel in before.items():
            operator.kernel = kernel


def drawn(shapes: list[tuple[int, ...]], device: str) -> list[Any]:
    return [torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True) for shape in shapes]


def averages(like: Any) -> tuple[Any, Any]:
    return torch.zeros_like(like, requires_grad=False), torch.ones_like(like, requires_grad=False)


#: ours and PyTorch's of the tensors drawn; their shapes
CASES: dict[str, Any] = {
    "conv": (lambda f: lambda x, w: f.conv2d(x, w, padding=1), [(2, 3, 5, 4), (4, 3, 3, 3)]),
    "conv, bias": (lambda f: lambda x, w, b: f.conv1d(x, w, b, stride=2), [(2, 3, 8), (4, 3, 3), (4,)]),
    "transposed": (
        lambda f: lambda x, w, b: f.conv_transpose2d(x, w, b, stride=2),
        [(2, 3, 4, 5), (3, 4, 2, 2), (4,)],
    ),
    "average": (lambda f: lambda x: f.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [(2, 3, 5, 6)]),
    "pool": (lambda f: lambda x: f.max_pool2d(x, 2), [(2, 3, 4, 6)]),
    "norm": (
        lambda f: lambda x, w, b: f.batch_norm(x, *averages(w), w, b, training=True),
        [(4, 3, 5), (3,), (3,)],
    ),
    "norm, test": (lambda f: lambda x, w, b: f.batch_norm(x, *averages(w), w, b), [(4, 3, 5), (3,), (3,)]),
    "softmax": (lambda f: lambda x: f.softmax(x, 1), [(2, 3, 4)]),
}


def test_autocast_is_no_hindrance() -> None:
    layers = torch.nn.Sequential(nt.nn.Conv2d(3, 4, 3, bias=False), nt.nn.BatchNorm2d(4))
    for number in range(2):
        x = torch.randn(2, 3, 6, 6)
        with kernels() as called, torch.autocast("cpu", torch.bfloat16):
            y = layers(x)
            y.sum().backward()
        wanted = F.batch_norm(F.conv2d(x.bfloat16(), layers[0].weight.bfloat16()), None, None, training=True)
        assert y.dtype is torch.bfloat16
        torch.testing.assert_close(y, wanted, rtol=2e-2, atol=2e-2)
        assert bool(called) is (number == 0)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_the_second_call_looks_at_nothing_again(name: str, device: str) -> None:
    make, shapes = CASES[name]
    ours, theirs = make(nt), make(F)
    for number in range(3):
        tensors = drawn(shapes, device)
        with kernels() as called:
            y = ours(*tensors)
            top = torch.randn_like(y)
            found = torch.autograd.grad(y, tensors, top)
            with torch.no_grad():
                again = ours(*tensors)
        wanted = theirs(*tensors)
        torch.testing.assert_close(y, wanted, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(again, wanted, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(found, torch.autograd.grad(wanted, tensors, top), rtol=1e-10, atol=1e-10)
        assert called if number == 0 else not called


@pytest.mark.parametrize("name", CASES)
def test_a_call_without_gradients_takes_none_from_the_next(name: str) -> None:
    make, shapes = CASES[name]
    ours, tensors = make(nt), drawn(shapes, "cpu")
    for _ in range(2):
        for no_gradients in (torch.no_grad, torch.inference_mode):
            with no_gradients():
                assert not ours(*tensors).requires_grad
            assert ours(*tensors).requires_grad


def unlike(x: Any, w: Any) -> dict[str, tuple[Any, Any]]:
    """Tensors that differ from (x, w) in one thing each."""
    shifted = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)
    assert shifted.data_ptr() % 16
    return {
        "channels last": (x.contiguous(memory_format=torch.channels_last), w),
        "dtype": (x.float(), w.float()),
        "shape of w": (x, w[:2].clone()),
        "not packed": (torch.stack((x, x), -1)[..., 0], w),
        "not aligned": (shifted, w),
        "gradient": (x.clone().requires_grad_(), w),
        "parameter": (x, torch.nn.Parameter(w)),
    }


@pytest.mark.parametrize("name", unlike(torch.ones(1, 1, 1, 1), torch.ones(3, 1, 1, 1)))
def test_what_differs_is_computed_as_it_is(name: str) -> None:
    x, w = torch.randn(2, 3, 5, 4, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    for _ in range(2):
        nt.conv2d(x, w)
    for _ in range(3):
        a, b = unlike(x, w)[name]
        y, wanted = nt.conv2d(a, b), F.conv2d(a, b)
        torch.testing.assert_close(y, wanted)
        assert y.dtype is wanted.dtype and y.stride() == wanted.stride() and y.requires_grad == wanted.requires_grad


def test_what_is_refused_is_refused_after_calls_that_were_not() -> None:
    x, w = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 2, 2)
    for _ in range(2):
        nt.conv2d(x, w, stride=1)
    with pytest.raises(TypeError, match="^stride: expected integers"):
        nt.conv2d(x, w, stride=(True, True))
    with pytest.raises(ValueError, match="^backend"):
        nt.conv2d(x, w, stride=1, backend="gpu")
    with pytest.raises(ValueError, match="^weight: expected 6 dimensions"):
        nt.unshared_conv2d(x, w, stride=1)
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match="memory of its own"):
        nt.conv2d(freed, w, stride=1)
    for image, pending in (
        (torch.complex(x, x).imag, False),
        (torch.complex(x, x).conj().imag, True),
    ):  # laid out alike
        assert image.is_neg() is pending
        for _ in range(2):
            with pytest.raises(TypeError, match="negation") if pending else nullcontext():
                nt.conv2d(image, w)


def test_a_mode_sees_calls_that_were_made_before() -> None:
    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x, w = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 2, 2)
    for _ in range(2):
        nt.conv2d(x, w)
    with Watching():
        nt.conv2d(x, w)
    assert seen == [torch.ops.numbadnn.conv.default]


def test_options_and_caches_decide_anew() -> None:
    x, w = torch.randn(2, 3, 5, 4), torch.randn(4, 3, 3, 3)
    for _ in range(2):
        nt.conv2d(x, w)
    with numbadnn.using(determinism="batch_invariant"):
        nt.conv2d(x, w)
        nt.conv2d(x, w)
        assert numbadnn.last_call().determinism in ("batch_invariant", "gpu_to_gpu")  # type: ignore[union-attr]
    before = numbadnn.cache_info().misses
    nt.conv2d(x, w)
    assert numbadnn.cache_info().misses == before
    numbadnn.clear_caches()
    nt.conv2d(x, w)
    assert numbadnn.cache_info().misses == before + 1


def test_each_thread_has_plans_of_its_own() -> None:
    x, w = torch.randn(2, 3, 5, 4), torch.randn(4, 3, 3, 3)
    results, called = [nt.conv2d(x, w), nt.conv2d(x, w)], []

    def run() -> None:
        with kernels() as found:
            results.append(nt.conv2d(x, w))
            called.extend(found)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert called == ["conv"] and torch.equal(results[2], results[1])


def test_averages_are_written_to_in_each_call() -> None:
    x, w, b, mean, var = torch.randn(4, 3, 5), torch.ones(3), torch.zeros(3), torch.zeros(3), torch.ones(3)
    theirs = mean.clone(), var.clone()
    for _ in range(3):
        versions = mean._version, var._version
        nt.batch_norm(x, mean, var, w, b, training=True)
        F.batch_norm(x, *theirs, w, b, training=True)
        torch.testing.assert_close((mean, var), theirs)
        assert mean._version > versions[0] and var._version > versions[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_plain_mean_of_averages_is_planned_once(dtype: Any) -> None:
    theirs = torch.nn.BatchNorm2d(3, momentum=None).to(dtype)
    ours = nt.nn.BatchNorm2d(3, momentum=None).to(dtype)
    misses = []
    for _ in range(4):
        x = torch.randn(4, 3, 2, 5).to(dtype)
        ours(x), theirs(x)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
        misses.append(numbadnn.cache_info().misses)
    assert misses[0] == misses[3]


@pytest.mark.parametrize("case", ["conv", "pool"])
def test_a_hook_that_calls_numbadnn_itself_is_not_launched_instead(case: str) -> None:
    function, shapes = CASES[case]

    def pack(tensor: Any) -> Any:
        if tensor.shape == tensors[0].shape:  # the last call then is one on the first tensor
            numbadnn.softmax(tensor.detach())
        return tensor

    tensors = drawn(shapes, "cpu")
    wanted = function(F)(*tensors)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        for _ in range(3):
            torch.testing.assert_close(function(nt)(*tensors), wanted)
