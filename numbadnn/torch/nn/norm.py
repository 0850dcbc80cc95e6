"""Batch normalization layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from numbadnn.torch.nn.layer import Layer, held
from numbadnn.torch.norm import batch_norm


def _forward(layer: Any, input: Any) -> Any:
    """As ``torch.nn``'s: the batch's statistics in training or where none are tracked; ``momentum`` None is the plain mean."""
    layer._check_input_dim(input)
    momentum, training, buffers = layer.momentum, layer.training, layer._buffers
    mean, var = held(buffers, layer, "running_mean"), held(buffers, layer, "running_var")
    if training and layer.track_running_stats:
        batches = held(buffers, layer, "num_batches_tracked")
        if batches is not None:
            batches.add_(1)
            if momentum is None and mean is not None and input.numel():
                return _plain_mean(layer, input, mean, var, batches)
    elif training:
        mean = var = None
    return _by_averages(layer, input, mean, var, 0.0 if momentum is None else momentum)


def _by_averages(layer: Any, input: Any, mean: Any, var: Any, momentum: float) -> Any:
    weight, bias = held(layer._parameters, layer, "weight"), held(layer._parameters, layer, "bias")
    of_batch = layer.training or mean is None
    return batch_norm(
        input, mean, var, weight, bias, of_batch, momentum, layer.eps, backend=layer.backend, determinism=layer.determinism
    )  # fmt: skip


def _plain_mean(layer: Any, input: Any, mean: Any, var: Any, batches: Any) -> Any:
    """The averages move on by 1 / batches: by PyTorch, as a call of another momentum would be planned anew in each step."""
    wide = torch.float32 if mean.dtype.itemsize == 2 else mean.dtype
    of_batch = torch.zeros_like(mean, dtype=wide), torch.zeros_like(var, dtype=wide)
    y = _by_averages(layer, input, *of_batch, 1.0)
    share = batches.to(wide).reciprocal()
    for average, new in zip((mean, var), of_batch, strict=True):
        average.copy_(torch.lerp(average.to(wide), new, share))
    return y


class BatchNorm1d(Layer, nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` by ``numbadnn.torch.batch_norm``."""

    def forward(self, input: Any) -> Any:
        return _forward(self, input)


class BatchNorm2d(Layer, nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d`` by ``numbadnn.torch.batch_norm``."""

    def forward(self, input: Any) -> Any:
        return _forward(self, input)


class BatchNorm3d(Layer, nn.BatchNorm3d):
    """``torch.nn.BatchNorm3d`` by ``numbadnn.torch.batch_norm``."""

    def forward(self, input: Any) -> Any:
        return _forward(self, input)
