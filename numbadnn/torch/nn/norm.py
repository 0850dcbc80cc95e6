"""Batch normalization layers."""

from __future__ import annotations

from typing import Any

from torch import nn

from numbadnn.torch.nn.layer import Layer
from numbadnn.torch.norm import batch_norm


def _forward(layer: Any, input: Any) -> Any:
    """As ``torch.nn``'s: the batch's statistics in training or where none are tracked; ``momentum`` None is the plain mean."""
    layer._check_input_dim(input)
    momentum, training = layer.momentum, layer.training
    mean, var = layer.running_mean, layer.running_var  # found by a search, in each access
    if training and layer.track_running_stats and (batches := layer.num_batches_tracked) is not None:
        batches.add_(1)
        if momentum is None:
            momentum = 1.0 / float(batches)
    of_batch = training or mean is None
    if training and not layer.track_running_stats:
        mean = var = None
    momentum = 0.0 if momentum is None else momentum
    return batch_norm(input, mean, var, layer.weight, layer.bias, of_batch, momentum, layer.eps, **layer.how)


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
