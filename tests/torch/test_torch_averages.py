"""Running averages of numbadnn.torch.batch_norm: moved on in place as PyTorch's, eager, mapped, compiled and kept."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.func import vmap  # noqa: E402

import numbadnn.torch as nt  # noqa: E402


def given(*lead: int) -> tuple[Any, ...]:
    """Images, averages, weight and bias, in float64."""
    torch.manual_seed(0)
    vectors = [torch.rand(*lead, 3, dtype=torch.float64) for _ in range(4)]
    return torch.randn(*lead, 4, 3, 5, dtype=torch.float64), *vectors


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def of(module: Any, x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
    return module.batch_norm(x, mean, var, w, b, training=True, momentum=0.3)


@pytest.mark.parametrize("recorded", [False, True])
def test_averages_are_moved_on_in_place(recorded: bool) -> None:
    x, mean, var, w, b = given()
    x.requires_grad_(recorded)
    theirs = mean.clone(), var.clone()
    places, versions = (mean.data_ptr(), var.data_ptr()), (mean._version, var._version)
    for _ in range(2):  # the second call is warm
        close(of(nt, x, mean, var, w, b), of(F, x, *theirs, w, b))
    close((mean, var), theirs)
    assert (mean.data_ptr(), var.data_ptr()) == places
    assert mean._version > versions[0] and var._version > versions[1]


def test_averages_that_a_kernel_cannot_take_as_they_are() -> None:
    x, mean, var, w, b = given()
    strided = torch.stack((mean, var), 1)
    theirs = mean.clone(), var.clone()
    for _ in range(2):
        close(of(nt, x, strided[:, 0], strided[:, 1], w, b), of(F, x, *theirs, w, b))
    close((strided[:, 0], strided[:, 1]), theirs)
    low = [t.bfloat16() for t in (x, mean, var)]  # kernels have them in float32
    of(nt, low[0], low[1], low[2], None, None)
    torch.testing.assert_close(low[1:], [0.7 * m + 0.3 * s for m, s in ((mean, x.mean((0, 2))), (var, x.var((0, 2))))],
                               rtol=0.02, atol=0.02, check_dtype=False)  # fmt: skip


def test_averages_under_inference_mode() -> None:
    with torch.inference_mode():
        x, mean, var, w, b = given()
        theirs = mean.clone(), var.clone()
        close(of(nt, x, mean, var, w, b), of(F, x, *theirs, w, b))
        close((mean, var), theirs)


def test_what_was_saved_is_known_to_have_changed() -> None:
    x, mean, var, w, b = given()
    leaf = torch.ones(3, dtype=torch.float64, requires_grad=True)
    y = (leaf * mean).sum()
    of(nt, x, mean, var, w, b)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_operators_that_write_obey_pytorch() -> None:
    x, mean, var, w, b = given()
    torch.library.opcheck(torch.ops.numbadnn.batch_norm_train.default, (x, w, b, mean, var, 0.3, 1e-5, "", ""))


def test_averages_are_mapped_with_the_images() -> None:
    x, mean, var, w, b = given(6)
    theirs, loop = (mean.clone(), var.clone()), []
    for i in range(6):
        loop.append(of(F, x[i], theirs[0][i], theirs[1][i], w[i], b[i]))
    close(vmap(lambda *a: of(nt, *a))(x, mean, var, w, b), torch.stack(loop))
    close((mean, var), theirs)
    with pytest.raises(ValueError, match="^running_mean, running_var: expected averages that vmap maps too"):
        vmap(lambda x: of(nt, x, mean[0], var[0], w[0], b[0]))(x)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow(8))])
def test_averages_of_a_compiled_layer(backend: str) -> None:
    x, *_ = given()
    eager, compiled = (nt.nn.BatchNorm1d(3, dtype=torch.float64) for _ in range(2))
    step = torch.compile(compiled, fullgraph=True, backend=backend)
    for _ in range(2):
        a, z = x.clone().requires_grad_(), x.clone().requires_grad_()
        wanted, found = eager(a), step(z)
        close(found, wanted)
        wanted.square().sum().backward()
        found.square().sum().backward()
        close(z.grad, a.grad)
    close(compiled.state_dict(), eager.state_dict())


def test_averages_of_an_exported_layer(tmp_path: Any) -> None:
    x, *_ = given()
    layer, same = (nt.nn.BatchNorm1d(3, dtype=torch.float64) for _ in range(2))
    torch.export.save(torch.export.export(layer, (x,)), tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    for _ in range(2):
        close(loaded(x), same(x))
    close(dict(loaded.named_buffers()), dict(same.named_buffers()))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("layout", "backend"),
    [*itertools.product(("planes", "large", "channels last"), ("numba", "cudnn")), ("strided", "numba")],
)
def test_averages_on_a_gpu(layout: str, backend: str) -> None:
    """Of every kernel, warm calls too: the first one plans, the others take the quick way."""
    torch.manual_seed(0)
    shape = (16, 24, 64, 64) if layout == "large" else (4, 24, 8, 8)
    x = torch.randn(shape, device="cuda")
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    if layout == "strided":
        x = torch.randn(*shape[:3], 16, device="cuda")[..., ::2]
    mean, var, w, b = (torch.rand(24, device="cuda") for _ in range(4))
    theirs, places = (mean.clone(), var.clone()), (mean.data_ptr(), var.data_ptr())
    for _ in range(3):
        y = nt.batch_norm(x, mean, var, w, b, training=True, momentum=0.3, backend=backend)
        torch.testing.assert_close(y, of(F, x, *theirs, w, b), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close((mean, var), theirs, rtol=1e-5, atol=1e-5)
    assert (mean.data_ptr(), var.data_ptr()) == places


@pytest.mark.parametrize("averages", [True, False])
def test_training_may_be_functionalized(averages: bool) -> None:
    """PyTorch's functionalize refuses operators that write to their arguments, whatever these are."""
    from torch.func import functionalize, grad
    from torch.fx.experimental.proxy_tensor import make_fx

    x, mean, var, w, b = given()
    theirs, wrt = (mean.clone(), var.clone()), (0, 3, 4)

    def loss(module: Any) -> Any:
        def of_five(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
            return of(module, x, *((mean, var) if averages else (None, None)), w, b).sin().sum()

        return of_five

    for around in (lambda f: functionalize(grad(f, wrt)), lambda f: grad(functionalize(f), wrt)):
        close(around(loss(nt))(x, mean, var, w, b), grad(loss(F), wrt)(x, *theirs, w, b))
    close((mean, var), theirs)
    graph = make_fx(functionalize(loss(nt)))(x, mean, var, w, b).graph
    assert any(node.target is torch.ops.numbadnn.batch_norm_test.default for node in graph.nodes)
    before = mean.clone(), var.clone()
    assert functionalize(lambda x: of(nt, x, mean, var, w, b))(x[:0]).shape == (0, 3, 5)
    close((mean, var), before)
