"""Pooling, softmax and dropout layers."""

from __future__ import annotations

from typing import Any

from torch import nn

from numbadnn.torch import pool
from numbadnn.torch.dropout import dropout
from numbadnn.torch.nn.layer import Layer
from numbadnn.torch.softmax import log_softmax, softmax


class _MaxPool(Layer):
    @staticmethod
    def refusal(module: Any) -> str:
        if module.return_indices:
            return "return_indices: expected False, got True"
        dilation = module.dilation if isinstance(module.dilation, tuple | list) else (module.dilation,)
        return "" if set(dilation) == {1} else f"dilation: expected 1, got {module.dilation}"

    def _given(self, input: Any) -> Any:
        layer: Any = self
        return input, layer.kernel_size, layer.stride, layer.padding, 1, layer.ceil_mode


class MaxPool1d(_MaxPool, nn.MaxPool1d):
    """``torch.nn.MaxPool1d`` by ``numbadnn.torch.max_pool1d``."""

    def forward(self, input: Any) -> Any:
        return pool.max_pool1d(*self._given(input), **self.how)


class MaxPool2d(_MaxPool, nn.MaxPool2d):
    """``torch.nn.MaxPool2d`` by ``numbadnn.torch.max_pool2d``."""

    def forward(self, input: Any) -> Any:
        return pool.max_pool2d(*self._given(input), **self.how)


class MaxPool3d(_MaxPool, nn.MaxPool3d):
    """``torch.nn.MaxPool3d`` by ``numbadnn.torch.max_pool3d``."""

    def forward(self, input: Any) -> Any:
        return pool.max_pool3d(*self._given(input), **self.how)


class _AvgPool(Layer):
    def _given(self, input: Any) -> Any:
        layer: Any = self
        return input, layer.kernel_size, layer.stride, layer.padding, layer.ceil_mode, layer.count_include_pad


class AvgPool1d(_AvgPool, nn.AvgPool1d):
    """``torch.nn.AvgPool1d`` by ``numbadnn.torch.avg_pool1d``."""

    def forward(self, input: Any) -> Any:
        return pool.avg_pool1d(*self._given(input), **self.how)


class AvgPool2d(_AvgPool, nn.AvgPool2d):
    """``torch.nn.AvgPool2d`` by ``numbadnn.torch.avg_pool2d``."""

    def forward(self, input: Any) -> Any:
        given: Any = (*self._given(input), self.divisor_override)
        return pool.avg_pool2d(*given, **self.how)


class AvgPool3d(_AvgPool, nn.AvgPool3d):
    """``torch.nn.AvgPool3d`` by ``numbadnn.torch.avg_pool3d``."""

    def forward(self, input: Any) -> Any:
        given: Any = (*self._given(input), self.divisor_override)
        return pool.avg_pool3d(*given, **self.how)


class _Along(Layer):
    @staticmethod
    def refusal(module: Any) -> str:
        return "" if isinstance(module.dim, int) else f"dim: expected an integer, got {module.dim!r}"


class Softmax(_Along, nn.Softmax):
    """``torch.nn.Softmax`` by ``numbadnn.torch.softmax``."""

    def forward(self, input: Any) -> Any:
        return softmax(input, self.dim, **self.how)


class LogSoftmax(_Along, nn.LogSoftmax):
    """``torch.nn.LogSoftmax`` by ``numbadnn.torch.log_softmax``."""

    def forward(self, input: Any) -> Any:
        return log_softmax(input, self.dim, **self.how)


class Dropout(Layer, nn.Dropout):
    """``torch.nn.Dropout`` by ``numbadnn.torch.dropout``: as random, by another mask."""

    def forward(self, input: Any) -> Any:
        return dropout(input, self.p, self.training, self.inplace, **self.how)
