"""Recurrent layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from numbadnn.errors import NotSupportedError
from numbadnn.torch import rnn
from numbadnn.torch.nn.layer import Layer


class _Recurrent(Layer):
    @staticmethod
    def refusal(module: Any) -> str:
        if module.proj_size:
            return f"proj_size: expected 0, got {module.proj_size}"
        dtype = module.weight_ih_l0.dtype
        return "" if dtype in rnn.DTYPES else f"weight_ih_l0: expected dtype float16, float32 or float64, got {dtype}"

    def _run(self, function: Any, input: Any, hx: Any) -> Any:
        """Results with the axis of the batch that the input has, as ``torch.nn``'s; hx None is zeros."""
        layer: Any = self
        if isinstance(input, PackedSequence):
            raise NotSupportedError("input: expected a tensor, got a PackedSequence: torch.nn's layers take one", ())
        layer._update_flat_weights()  # a caller may have put others in their place, as torch.func.functional_call does
        cells = isinstance(self, nn.LSTM)
        single = input.ndim == 2
        axis = 0 if layer.batch_first else 1
        x = input.unsqueeze(axis) if single else input
        if hx is None:
            directions = 2 if layer.bidirectional else 1
            zeros = x.new_zeros(layer.num_layers * directions, x.shape[axis], layer.hidden_size)
            hx = (zeros, zeros) if cells else zeros
        elif single:
            hx = tuple(h.unsqueeze(1) for h in hx) if cells else hx.unsqueeze(1)
        network = layer.bias, layer.num_layers, layer.dropout, layer.training, layer.bidirectional, layer.batch_first
        y, *ends = function(x, hx, layer._flat_weights, *network, **self.how)
        if single:
            y, ends = y.squeeze(axis), [h.squeeze(1) for h in ends]
        return (y, tuple(ends)) if cells else (y, ends[0])


class LSTM(_Recurrent, nn.LSTM):
    """``torch.nn.LSTM`` by ``numbadnn.torch.lstm``; packed sequences and projections are refused."""

    def forward(self, input: Any, hx: tuple[torch.Tensor, torch.Tensor] | None = None) -> Any:
        return self._run(rnn.lstm, input, hx)


class GRU(_Recurrent, nn.GRU):
    """``torch.nn.GRU`` by ``numbadnn.torch.gru``; packed sequences are refused."""

    def forward(self, input: Any, hx: torch.Tensor | None = None) -> Any:
        return self._run(rnn.gru, input, hx)


class RNN(_Recurrent, nn.RNN):
    """``torch.nn.RNN`` by ``numbadnn.torch.rnn_tanh`` or ``rnn_relu``; packed sequences are refused."""

    def forward(self, input: Any, hx: torch.Tensor | None = None) -> Any:
        return self._run(rnn.rnn_tanh if self.nonlinearity == "tanh" else rnn.rnn_relu, input, hx)
