"""Layers: those of ``torch.nn`` computed by numbadnn, with the same arguments and state_dict, and locally connected ones.

>>> import torch, numbadnn.torch
>>> layer = numbadnn.torch.nn.Conv2d(3, 4, 3, determinism="batch_invariant")
>>> layer.load_state_dict(torch.nn.Conv2d(3, 4, 3).state_dict())
<All keys matched successfully>
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from numbadnn.ops.habits import absent
from numbadnn.torch.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    LocallyConnected1d,
    LocallyConnected2d,
)
from numbadnn.torch.nn.layer import Layer
from numbadnn.torch.nn.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from numbadnn.torch.nn.pool import (
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    Dropout,
    LogSoftmax,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    Softmax,
)
from numbadnn.torch.nn.rnn import GRU, LSTM, RNN

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Layer",
    "LocallyConnected1d",
    "LocallyConnected2d",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Softmax",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """No name is found here: the error says where it is."""
        raise absent(__name__, name, __all__, (torch.nn,))
