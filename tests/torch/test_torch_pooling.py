"""Pooling of numbadnn.torch where windows reach beyond the image: what ``ceil_mode`` and divisors ask for, as PyTorch has it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import numbadnn.torch as nt  # noqa: E402


@pytest.mark.parametrize("window", [dict(kernel_size=3, stride=3, padding=1), dict(kernel_size=5, stride=3, padding=2)])
def test_the_gradient_of_infinities_stays_in_the_image(window: dict[str, int]) -> None:
    torch.manual_seed(0)
    x = torch.where(torch.rand(2, 3, 9, 9) < 0.7, -torch.inf, torch.randn(2, 3, 9, 9)).requires_grad_()
    ours, theirs = (m.max_pool2d(x, **window, ceil_mode=True) for m in (nt, F))
    g = torch.randn_like(theirs)
    assert torch.equal(ours, theirs)
    found, wanted = (torch.autograd.grad(y, x, g)[0] for y in (ours, theirs))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("more", [dict(ceil_mode=True), dict(divisor_override=9)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_averages_of_16_bits_are_rounded_once(more: dict[str, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = dict(kernel_size=4, stride=3, **more)
    for x in (torch.full((1, 1, 8, 8), 10000.0, dtype=dtype), torch.rand(2, 3, 15, 15).to(dtype)):
        wanted = F.avg_pool2d(x.double(), **given)
        found = nt.avg_pool2d(x, **given)
        assert found.dtype is dtype
        assert ((found.double() - wanted).abs() <= 0.501 * torch.finfo(dtype).eps * wanted).all()
