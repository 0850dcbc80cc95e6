"""Convolutions, transposed ones too, and locally connected layers."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from numbadnn.torch import convolution, unshared
from numbadnn.torch.arguments import each
from numbadnn.torch.conv import result_sizes
from numbadnn.torch.convolution import pads_of
from numbadnn.torch.nn.layer import Layer, held


def _forward(function: Any, layer: Any, input: Any, weight: Any, bias: Any) -> Any:
    padding = layer.padding
    if layer.padding_mode != "zeros":
        input = F.pad(input, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = 0
    given = layer.stride, padding, layer.dilation, layer.groups
    return function(input, weight, bias, *given, backend=layer.backend, determinism=layer.determinism)


class _Conv(Layer):
    _parameters: dict[str, Any]

    def forward(self, input: Any) -> Any:
        weight, bias = held(self._parameters, self, "weight"), held(self._parameters, self, "bias")
        return self._conv_forward(input, weight, bias)  # type: ignore[attr-defined]


class Conv1d(_Conv, nn.Conv1d):
    """``torch.nn.Conv1d`` by ``numbadnn.torch.conv1d``."""

    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        return _forward(convolution.conv1d, self, input, weight, bias)


class Conv2d(_Conv, nn.Conv2d):
    """``torch.nn.Conv2d`` by ``numbadnn.torch.conv2d``."""

    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        return _forward(convolution.conv2d, self, input, weight, bias)


class Conv3d(_Conv, nn.Conv3d):
    """``torch.nn.Conv3d`` by ``numbadnn.torch.conv3d``."""

    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        return _forward(convolution.conv3d, self, input, weight, bias)


def _transposed(function: Any, layer: Any, input: Any, output_size: Any) -> Any:
    axes = len(layer.kernel_size)
    sizes = layer.stride, layer.padding, layer.kernel_size, axes, layer.dilation
    more = layer._output_padding(input, output_size, *sizes)
    given = layer.weight, layer.bias, layer.stride, layer.padding, more, layer.groups, layer.dilation
    return function(input, *given, **layer.how)


class ConvTranspose1d(Layer, nn.ConvTranspose1d):
    """``torch.nn.ConvTranspose1d`` by ``numbadnn.torch.conv_transpose1d``."""

    def forward(self, input: Any, output_size: Any = None) -> Any:
        return _transposed(convolution.conv_transpose1d, self, input, output_size)


class ConvTranspose2d(Layer, nn.ConvTranspose2d):
    """``torch.nn.ConvTranspose2d`` by ``numbadnn.torch.conv_transpose2d``."""

    def forward(self, input: Any, output_size: Any = None) -> Any:
        return _transposed(convolution.conv_transpose2d, self, input, output_size)


class ConvTranspose3d(Layer, nn.ConvTranspose3d):
    """``torch.nn.ConvTranspose3d`` by ``numbadnn.torch.conv_transpose3d``."""

    def forward(self, input: Any, output_size: Any = None) -> Any:
        return _transposed(convolution.conv_transpose3d, self, input, output_size)


# ---- locally connected -----------------------------------------------------------------------------------------------


class _LocallyConnected(nn.Module):
    axes: int
    in_channels: int
    out_channels: int

    def __init__(
        self, in_channels: int, out_channels: int, input_size: Any, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1, bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        axes = self.axes
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        if min(in_channels, out_channels) < 1:
            raise ValueError(
                f"in_channels, out_channels: expected positive integers, got {in_channels} and {out_channels}"
            )
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"groups: expected a divisor of {in_channels} and {out_channels} channels, got {groups}")
        self.input_size, self.kernel_size = each("input_size", input_size, axes), each("kernel_size", kernel_size, axes)
        self.stride, self.dilation = each("stride", stride, axes), each("dilation", dilation, axes)
        self.padding = padding if isinstance(padding, str) else each("padding", padding, axes, 0)
        pads = pads_of(self.padding, self.kernel_size, self.stride, self.dilation)
        places = result_sizes((1, 1, *self.input_size), self.kernel_size, pads, self.stride, self.dilation)
        if min(places) < 1:
            raise ValueError(
                f"kernel_size: expected windows that fit input_size {self.input_size}, got {self.kernel_size}"
            )
        shape = (out_channels, *places, in_channels // groups, *self.kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        empty = torch.empty((out_channels, *places), device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if empty is None else nn.Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(elements of a window), as ``torch.nn.Conv2d``'s."""
        bound = 1 / math.sqrt(self.weight.shape[self.axes + 1 :].numel())
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, input_size={self.input_size}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, groups={self.groups}, "
            f"bias={self.bias is not None}"
        )

    def _given(self, input: Any) -> Any:
        return input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups


class LocallyConnected1d(Layer, _LocallyConnected):
    """``unshared_conv1d`` as a layer for inputs of ``input_size``; weight (K, P, C/groups, R), bias (K, P).

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.nn.LocallyConnected1d(2, 4, 8, 3)(torch.ones(1, 2, 8)).shape
    torch.Size([1, 4, 6])
    """

    axes = 1

    def forward(self, input: Any) -> Any:
        return unshared.unshared_conv1d(*self._given(input), **self.how)


class LocallyConnected2d(Layer, _LocallyConnected):
    """``unshared_conv2d`` as a layer for images of ``input_size``; weight (K, P, Q, C/groups, R, S), bias (K, P, Q).

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.nn.LocallyConnected2d(3, 4, (8, 6), 3, stride=2)(torch.ones(1, 3, 8, 6)).shape
    torch.Size([1, 4, 3, 2])
    """

    axes = 2

    def forward(self, input: Any) -> Any:
        return unshared.unshared_conv2d(*self._given(input), **self.how)
