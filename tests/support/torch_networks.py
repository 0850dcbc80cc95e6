"""Small networks of numbadnn.torch's functions that the tests compile, export and train."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import numbadnn.torch as nt


class Network(nn.Module):
    """Convolutions there and back, batch norm, pooling: (N, 3, H, W) to log-probabilities (N, 5)."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator) * 0.3)

        self.first, self.bias, self.last = parameter(4, 3, 3, 3), parameter(4), parameter(5, 4, 1, 1)
        self.scale, self.shift, self.back = nn.Parameter(torch.ones(4)), parameter(4), parameter(4, 4, 2, 2)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: Any) -> Any:
        x = nt.conv2d(x * 1.5, self.first, self.bias, padding="same")
        x = nt.batch_norm(x, self.mean, self.var, self.scale, self.shift, self.training)
        x = nt.max_pool2d(torch.relu(x), 2)
        x = nt.conv_transpose2d(x, self.back, stride=2)
        x = nt.conv2d(nt.avg_pool2d(x, 3, 1, 1), self.last)
        return nt.log_softmax(x, 1).mean((2, 3))


def images(count: int, rows: int = 8, layout: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 3, rows, 8, generator=generator).to(memory_format=layout)


def gradients(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
