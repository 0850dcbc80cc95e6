"""Small networks of numbadnn.torch's functions that the tests compile, export and train."""

from __future__ import annotations

import itertools
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


# ---- models of torch.nn that are converted -------------------------------------------------------------------------------


class Block(nn.Module):
    """A basic residual block."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = stride == 1 and before == after
        shortcut = (nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Identity() if same else nn.Sequential(*shortcut)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18(width: int = 64, classes: int = 10) -> nn.Sequential:
    """ResNet-18 (He et al. 2015), narrower if asked."""
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stages = [
        nn.Sequential(Block(a, b, 1 if i == 0 else 2), Block(b, b, 1))
        for i, (a, b) in enumerate(itertools.pairwise(widths))
    ]
    stem = (nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes))


class UNet(nn.Module):
    """Two levels down and up again (Ronneberger et al. 2015), a class for each pixel."""

    def __init__(self, width: int = 8, classes: int = 3) -> None:
        super().__init__()

        def twice(before: int, after: int) -> nn.Sequential:
            layers = [(nn.Conv2d(n, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()) for n in (before, after)]
            return nn.Sequential(*(layer for group in layers for layer in group))

        self.one, self.two, self.bottom = twice(3, width), twice(width, 2 * width), twice(2 * width, 4 * width)
        self.up_two = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up_one = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.again_two, self.again_one = twice(4 * width, 2 * width), twice(2 * width, width)
        self.down, self.last = nn.MaxPool2d(2), nn.Conv2d(width, classes, 1)

    def forward(self, x: Any) -> Any:
        one = self.one(x)
        two = self.two(self.down(one))
        x = self.up_two(self.bottom(self.down(two)))
        x = self.up_one(self.again_two(torch.cat([two, x], 1)))
        return self.last(self.again_one(torch.cat([one, x], 1)))


def losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int = 20) -> list[float]:
    """Of each step of plain gradient descent with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found
