"""batch_invariant and deterministic over unchanged models: the same bits alone and in a batch, gradients, what is put back."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numbadnn.torch as nt  # noqa: E402

nn, F = torch.nn, torch.nn.functional
#: layers of real models: (make, shape of an input without the batch)
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "speech 1x1": (lambda: nn.Conv1d(80, 96, 1), (80, 57)),
    "speech": (lambda: nn.Conv1d(80, 48, 3, stride=2, padding=1), (80, 57)),
    "patches": (lambda: nn.Conv2d(3, 64, 8, stride=8), (3, 32, 32)),
    "ResNet": (lambda: nn.Conv2d(32, 48, 3, padding=1), (32, 14, 14)),
    "ConvNeXt": (lambda: nn.Conv2d(24, 24, 7, padding=3, groups=24), (24, 14, 14)),
    "VAE decoder": (lambda: nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), (32, 7, 7)),
    "VAE encoder 3-D": (lambda: nn.Conv3d(4, 8, 3, padding=1), (4, 5, 8, 8)),
    "VAE decoder 1-D": (lambda: nn.ConvTranspose1d(16, 8, 3, stride=2, output_padding=1), (16, 21)),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, "last"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_sample_has_the_same_bits_in_any_batch(name: str, layout: Any) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer, x = make(), torch.randn(7, *shape)
    if layout == "last":
        last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
        if last is None:
            pytest.skip("there is no channels-last layout of three axes")
        layer, x = layer.to(memory_format=last), x.to(memory_format=last)
    wanted = layer(x)
    with torch.no_grad(), nt.batch_invariant() as counts:
        found = layer(x)
        for batch in (1, 2, 4):
            assert torch.equal(found[:batch], layer(x[:batch]))
    assert counts.computed == 4 and not counts.elsewhere
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert found.is_contiguous(memory_format=torch.contiguous_format) == wanted.is_contiguous()


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding="same"),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
        nn.Conv2d(4, 2, 1),
    ).double()


@pytest.mark.parametrize("block", [nt.batch_invariant, nt.deterministic])
def test_an_unchanged_model_trains(block: Any) -> None:
    theirs = network()
    ours, x = copy.deepcopy(theirs), torch.randn(3, 3, 6, 6, dtype=torch.float64)
    theirs(x).square().sum().backward()
    with block() as counts:
        ours(x).square().sum().backward()
        assert counts.computed == 6 and nt.counts() is counts
        small, w = x[:1, :, :4, :4].clone().requires_grad_(), theirs[0].weight.detach().clone().requires_grad_()
        assert torch.autograd.gradgradcheck(F.conv2d, (small, w), fast_mode=True)
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-9, atol=1e-9)


def test_pytorchs_kernels_are_back_afterwards() -> None:
    layer, x = nn.Conv2d(2, 3, 3), torch.randn(1, 2, 5, 5)
    before = layer(x)
    with pytest.raises(KeyError), nt.batch_invariant() as outer:
        with nt.deterministic() as inner:
            layer(x)
        layer(x)
        raise KeyError
    assert (outer.computed, inner.computed) == (1, 1) and nt.counts() is None
    assert torch.equal(layer(x), before) and outer.computed == 1


def test_what_numbadnn_has_not_is_counted_and_shown() -> None:
    x, w = torch.arange(16).view(1, 1, 4, 4), torch.ones(1, 1, 2, 2, dtype=torch.int64)
    wanted = F.conv2d(x, w)
    with pytest.warns(RuntimeWarning, match="0 by numbadnn, 1 by PyTorch \\(int64\\)"), nt.batch_invariant() as counts:
        assert torch.equal(F.conv2d(x, w), wanted)
        assert F.conv2d(x.to("meta"), w.to("meta")).shape == wanted.shape
    assert counts.computed == 0 and counts.elsewhere == {"int64": 1}
    reason = {"mixed dtypes": 1}
    with pytest.warns(RuntimeWarning, match="mixed dtypes"), pytest.raises(RuntimeError), nt.deterministic() as counts:
        F.conv2d(x.float(), w.double())
    assert counts.elsewhere == reason


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, IMAGE)], ids=["script", "trace"])
def test_models_of_torch_jit_are_covered(make: Any) -> None:
    """Their graphs have ``aten::_convolution`` in the place of ``aten::convolution``."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(3, 2, 3)).double()
    wanted, made = model(IMAGE), make(model)
    with nt.batch_invariant() as counts:
        found = made(IMAGE)
        found.sum().backward()
        assert counts.computed == 4
        torch.testing.assert_close(make(model)(IMAGE), wanted)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.jit.trace(model, IMAGE)(IMAGE), wanted)


IMAGE = torch.randn(2, 2, 5, 5, dtype=torch.float64)


def test_transforms_of_an_unchanged_model() -> None:
    w, t = torch.randn(2, 3, 2, 3, 3, dtype=torch.float64)
    looks = {
        "forward mode": lambda: torch.func.jvp(lambda w: F.conv2d(IMAGE, w), (w,), (t,))[1],
        "hessian": lambda: torch.func.hessian(lambda w: F.conv2d(IMAGE, w).pow(3).sum())(w),
        "vmap": lambda: torch.vmap(lambda i: F.conv2d(i[None], w))(IMAGE),
    }
    for look in looks.values():
        wanted = look()
        with nt.batch_invariant() as counts:
            torch.testing.assert_close(look(), wanted)
        assert counts.computed and not counts.elsewhere


def test_tensors_of_a_subclass_are_tensors() -> None:
    class Image(torch.Tensor):
        pass

    image, w = IMAGE.as_subclass(Image), torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    wanted = F.conv2d(IMAGE, w)
    with nt.batch_invariant() as counts:
        under = F.conv2d(image, w)
    for found in (under, nt.conv2d(image, w), nt.conv2d(image, w.detach())):
        assert type(found) is Image and torch.allclose(found.as_subclass(torch.Tensor), wanted)
    under.sum().backward()
    assert counts.computed == 1 and type(nt.max_pool2d(image, 2)) is Image


def test_complex_numbers_are_pairs_of_real_ones() -> None:
    x = torch.randn(1, 2, 5, 5, dtype=torch.complex128, requires_grad=True)
    w = torch.randn(3, 2, 3, 3, dtype=torch.complex128)
    wanted = F.conv2d(x, w)
    with nt.batch_invariant() as counts:
        found = F.conv2d(x, w)
        (gradient,) = torch.autograd.grad(found.abs().sum(), x)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted.abs().sum(), x)[0])
    assert counts.computed >= 6 and not counts.elsewhere


@pytest.mark.parametrize("value", ["batch_invariant", "other"])
def test_the_environment_asks_for_it(value: str) -> None:
    program = """
import torch, numbadnn.torch
layer, x = torch.nn.Conv2d(2, 3, 3), torch.randn(3, 2, 5, 5)
assert torch.equal(layer(x)[:1], layer(x[:1]))
print(numbadnn.torch.counts())
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "NUMBADNN_TORCH": value}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    if value == "other":
        assert "NUMBADNN_TORCH: expected one of batch_invariant, deterministic, got 'other'" in done.stderr
    else:
        assert done.stdout.split() == ["2", "by", "numbadnn"], done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
def test_a_sample_has_the_same_bits_in_any_batch_on_a_gpu(name: str, dtype: Any) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer, x = make().to("cuda", dtype), torch.randn(64, *shape).to("cuda", dtype)
    with torch.no_grad(), nt.batch_invariant() as counts:
        found = layer(x)
        for batch in (1, 2, 4, 7):
            assert torch.equal(found[:batch], layer(x[:batch]))
    assert counts.computed == 5
    torch.testing.assert_close(found.float(), layer.float()(x.float()), rtol=2e-2, atol=2e-2)
