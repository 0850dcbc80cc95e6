"""What a training step of a layer of two operands costs the host at least, where the layer is written in Python.

An ``autograd.Function`` keeps its operands, and its result and both gradients are memory that nobody writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Nothing(torch.autograd.Function):
    """A layer that computes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, model: Any) -> Any:
        ctx.save_for_backward(x, w)
        return torch.empty_like(model)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, w = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(w), None


def step(batch: int, channels: int, filters: int, size: int, window: int, device: str) -> Callable[[], Any]:
    """A training step of it on the operands of a locally connected layer of these sizes."""
    out = size - window + 1
    x = torch.randn(batch, channels, size, size, device=device, requires_grad=True)
    w = torch.randn(filters, out, out, channels, window, window, device=device, requires_grad=True)
    top = torch.randn(batch, filters, out, out, device=device)
    return lambda: torch.autograd.grad(Nothing.apply(x, w, top), (x, w), top)
