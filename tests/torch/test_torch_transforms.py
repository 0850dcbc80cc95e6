"""numbadnn.torch under torch.compile, torch.export, torch.func, checkpoint, make_fx and in two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo import compiled_autograd  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch.func import functional_call, grad, hessian, jacrev, vmap  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch_functions import CASES, leaves  # noqa: E402
from torch_networks import Network, gradients, images  # noqa: E402

import numbadnn  # noqa: E402
import numbadnn.torch as nt  # noqa: E402

#: the operators that a forward and a backward pass of ``Network`` call
OPERATORS = 7 + 8


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def calls(graph: Any) -> int:
    """Of numbadnn's operators; one that writes in place is an argument of PyTorch's ``auto_functionalized``."""
    return sum(any(str(a).startswith("numbadnn.") for a in (node.target, *node.args)) for node in graph.nodes)


class Counted:
    """aot_eager that counts numbadnn's operators in the graphs."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.backend = aot_autograd(fw_compiler=self._compile, bw_compiler=self._compile)

    def _compile(self, module: Any, inputs: Any) -> Callable[..., Any]:
        from functorch.compile import make_boxed_func

        self.counts.append(calls(module.graph))
        return make_boxed_func(module.forward)


COMPILED = (
    "conv2d, same, groups", "conv1d, channels last", "conv_transpose2d", "causal_conv1d", "unshared_conv2d", "lstm",
    "max_pool2d, ceil", "avg_pool2d, inside, ceil", "log_softmax, channels last", "batch_norm, training", "grid_sample, edges",
    "upsample_bilinear", "dropout",
)  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_function_is_one_graph_with_the_call(name: str) -> None:
    case, counted = CASES[name], Counted()
    eager, compiled = leaves(case), leaves(case)
    wanted = case.ours(*eager)
    found = torch.compile(case.ours, fullgraph=True, backend=counted.backend)(*compiled)
    assert torch.equal(found, wanted) and found.stride() == wanted.stride()
    wanted.square().sum().backward()
    found.square().sum().backward()
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)
    assert len(counted.counts) == 2 and min(counted.counts) >= 1


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow(15))])
def test_a_compiled_network_trains_as_the_eager_one(backend: str) -> None:
    """Of any batch, size and layout, without a new graph for each."""
    eager, compiled = Network(), Network()
    step = torch.compile(compiled, fullgraph=True, backend=backend, dynamic=True)
    for count, rows, layout in (
        (2, 8, torch.contiguous_format),
        (3, 10, torch.contiguous_format),
        (4, 6, torch.channels_last),
    ):
        x = images(count, rows, layout).requires_grad_()
        z = x.detach().clone().requires_grad_()
        wanted, found = eager(x), step(z)
        torch.testing.assert_close(found, wanted)
        wanted.square().sum().backward()
        found.square().sum().backward()
        torch.testing.assert_close(z.grad, x.grad, rtol=1e-4, atol=1e-5)
        for name, value in gradients(compiled).items():
            torch.testing.assert_close(value, gradients(eager)[name], rtol=1e-4, atol=1e-4)
    for a, b in zip(eager.buffers(), compiled.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_locally_connected_layers_of_two_sizes_compile_in_one_process() -> None:
    """Dynamo makes the sizes of the second symbols; its bias was refused, as no shape of symbols lies in a tuple of shapes."""
    torch._dynamo.reset()
    for size in (6, 8):
        layer, x = nt.nn.LocallyConnected2d(2, 3, input_size=size, kernel_size=3), torch.randn(2, 2, size, size)
        assert torch.equal(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))


def test_options_are_part_of_the_graph() -> None:
    x, w = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3)
    compiled = torch.compile(nt.conv2d, fullgraph=True, backend="aot_eager")
    with numbadnn.using(determinism="batch_invariant", backend="cpu"):
        compiled(x, w)
    assert numbadnn.last_call().determinism in ("batch_invariant", "gpu_to_gpu")  # type: ignore[union-attr]
    counted: list[Any] = []
    torch._dynamo.reset()

    def keep(module: Any, inputs: Any) -> Any:
        counted.extend(node.args[-1] for node in module.graph.nodes if str(node.target).startswith("numbadnn."))
        return module.forward

    with numbadnn.using(determinism="batch_invariant"):
        torch.compile(nt.conv2d, fullgraph=True, backend=keep)(x, w)
    assert counted == ["determinism=batch_invariant"]


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_network_is_saved_and_loaded(strict: bool, tmp_path: Path) -> None:
    network = Network().eval()
    batch = torch.export.Dim("batch")
    exported = torch.export.export(network, (images(2),), dynamic_shapes={"x": {0: batch}}, strict=strict)
    assert calls(exported.graph) == 7
    torch.export.save(exported, tmp_path / "network.pt2")
    loaded = torch.export.load(tmp_path / "network.pt2").module()
    wanted, found = network(images(5)), loaded(images(5))
    assert torch.equal(found, wanted)
    found.sum().backward()
    assert all(p.grad is not None for p in loaded.parameters())


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_make_fx_sees_the_operators(mode: str) -> None:
    network = Network().eval()
    parameters, buffers = dict(network.named_parameters()), dict(network.named_buffers())

    def step(p: Any, b: Any, x: Any) -> Any:
        return grad(lambda p: functional_call(network, (p, b), (x,)).square().sum())(p)

    traced = make_fx(step, tracing_mode=mode)(parameters, buffers, images(2))
    wanted = step(parameters, buffers, images(2))
    for name, found in traced(parameters, buffers, images(2)).items():
        torch.testing.assert_close(found, wanted[name])
    assert calls(traced.graph) >= OPERATORS


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_sees_the_operators_before_they_are_dispatched(mode: str) -> None:
    w = torch.ones(2, 3, 3, 3, requires_grad=True)
    both = lambda x, w: nt.max_pool2d(nt.conv2d(x, w), 2)
    traced = make_fx(both, tracing_mode=mode, pre_dispatch=True)(images(1), w)
    assert calls(traced.graph) == 2
    torch.testing.assert_close(traced(images(1), w), both(images(1), w))


def test_gradients_of_each_image() -> None:
    network = Network().eval()
    parameters, buffers = dict(network.named_parameters()), dict(network.named_buffers())

    def loss(p: Any, x: Any) -> Any:
        return functional_call(network, (p, buffers), (x[None],)).square().sum()

    wanted = [grad(loss)(parameters, x) for x in images(3)]
    each = vmap(grad(loss), (None, 0))
    for name, found in each(parameters, images(3)).items():
        torch.testing.assert_close(found, torch.stack([w[name] for w in wanted]), rtol=1e-4, atol=1e-5)


def test_gradients_of_each_image_are_compiled() -> None:
    one = grad(lambda w, x: nt.conv2d(x[None], w).square().sum())
    w, x = torch.ones(4, 3, 3, 3), images(3)
    found = torch.compile(vmap(one, (None, 0)), fullgraph=True, backend="aot_eager")(w, x)
    torch.testing.assert_close(found, torch.stack([one(w, a) for a in x]))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # PyTorch's own
def test_the_graph_of_gradients_is_compiled() -> None:
    w, x = torch.randn(4, 3, 3, 3, requires_grad=True), images(1)
    y = nt.conv2d(x, w)
    (wanted,) = torch.autograd.grad(y.square().sum(), w)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        nt.conv2d(x, w).square().sum().backward()
    torch.testing.assert_close(w.grad, wanted)


def test_jacobians_and_hessians() -> None:
    x, w = torch.randn(1, 2, 4, 4, dtype=torch.float64), torch.randn(2, 2, 3, 3, dtype=torch.float64)
    loss = lambda of: lambda w: of(x, w).square().sum()
    jacobian = jacrev(lambda w: nt.conv2d(x, w))(w)
    torch.testing.assert_close(jacobian, jacrev(lambda w: torch.nn.functional.conv2d(x, w))(w))
    curved = jacrev(grad(loss(nt.conv2d)))(w)
    wanted = hessian(loss(torch.nn.functional.conv2d))(w)
    torch.testing.assert_close(curved, wanted)
    _, back = torch.func.vjp(grad(loss(nt.conv2d)), w)  # called outside of the transform
    torch.testing.assert_close(back(torch.ones_like(w))[0], wanted.sum((0, 1, 2, 3)))


def test_checkpoints_compute_again() -> None:
    plain, kept = Network().eval(), Network().eval()
    x = images(2).requires_grad_()
    plain(x).square().sum().backward()
    torch.utils.checkpoint.checkpoint(kept, x, use_reentrant=False).square().sum().backward()
    for name, found in gradients(kept).items():
        assert torch.equal(found, gradients(plain)[name])


def dual(x: Any, w: Any) -> Any:
    with torch.autograd.forward_ad.dual_level():
        return numbadnn.conv2d(torch.autograd.forward_ad.make_dual(x, x), w)


def under_autocast(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return numbadnn.conv2d(x, w)


@pytest.mark.parametrize(
    "follow",
    [
        lambda x, w: make_fx(lambda x, w: numbadnn.conv2d(x, w))(x, w),
        lambda x, w: torch.jit.trace(numbadnn.conv2d, (x, w)),
        lambda x, w: vmap(numbadnn.conv2d, (0, None))(x[None], w),
        lambda x, w: grad(lambda x: numbadnn.conv2d(x, w).sum())(x),
        lambda x, w: numbadnn.conv2d(x, w.clone().requires_grad_()),
        lambda x, w: torch.compile(lambda x: numbadnn.conv2d(x, w) + 1, fullgraph=True, backend="eager")(x),
        dual,
        under_autocast,
    ],
    ids=["make_fx", "trace", "vmap", "grad", "requires grad", "compile", "tangent", "autocast"],
)
def test_plain_functions_name_those_that_follow(follow: Callable[..., Any]) -> None:
    x, w = images(1), torch.ones(2, 3, 3, 3)
    with pytest.raises((TypeError, torch._dynamo.exc.Unsupported), match="numbadnn.torch"):
        follow(x, w)


@pytest.mark.slow(10)
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_two_processes_train_one_network(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "support" / "torch_two_processes.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo"}
    commands = [[sys.executable, program, str(rank), str(tmp_path / "meeting")] for rank in (0, 1)]
    both = [subprocess.Popen(c, env=environment, stderr=subprocess.PIPE, text=True) for c in commands]
    errors = [process.communicate(timeout=200)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], "".join(errors)[-3000:]


@pytest.mark.gpu
def test_a_training_step_is_captured_in_a_cuda_graph() -> None:
    network, eager = Network().cuda().eval(), Network().cuda().eval()
    x = images(4).cuda()

    def step() -> Any:
        network.zero_grad(set_to_none=False)
        loss = network(x).square().sum()
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    x.copy_(images(5)[:4])
    graph.replay()
    wanted = eager(x).square().sum()
    wanted.backward()
    torch.testing.assert_close(loss, wanted)
    for name, found in gradients(network).items():
        torch.testing.assert_close(found, gradients(eager)[name], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [n for n in CASES if n != "dropout"])
def test_equals_pytorch_on_a_gpu(name: str) -> None:
    """Both layouts of each case, gradients too, and on a stream of the caller's."""
    case = CASES[name]
    there = [a.detach().cuda().requires_grad_() for a in case.arrays]
    here = leaves(case)
    with torch.cuda.stream(torch.cuda.Stream()):
        found = case.ours(*there)
        found.square().sum().backward()
    torch.cuda.synchronize()
    wanted = case.ours(*here)
    wanted.square().sum().backward()
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-9, atol=1e-9)
    assert found.stride() == wanted.stride()
    for a, b in zip(there, here, strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["conv2d", "softmax", "log_softmax, first", "grid_sample", "avg_pool3d", "batch_norm, training"]
)
def test_autocast_gives_pytorchs_dtypes_on_a_gpu(name: str) -> None:
    case = CASES[name]
    assert case.theirs is not None
    for dtype in (torch.float32, torch.float16):
        arrays = [a.detach().to("cuda", dtype) for a in case.arrays]
        with torch.autocast("cuda", torch.float16):
            assert case.ours(*arrays).dtype is case.theirs(*arrays).dtype
