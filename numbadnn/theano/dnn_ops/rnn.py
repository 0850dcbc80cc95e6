"""``theano.gpuarray.dnn``'s recurrent networks: RNNBlock and the op classes under it, called with arrays.

All run as under ``using(backend="cudnn")``, the fallback policy in force. Where the ops took a cuDNN descriptor they
take the ``RNNBlock``. Source: docs/explanation/semantics.md#recurrent-networks.
"""

from __future__ import annotations

from typing import Any

import numbadnn
from numbadnn.ops.conv_build import truth
from numbadnn.problems.rnn_network import DIRECTION_MODES, GATES
from numbadnn.theano.config import cudnn_first
from numbadnn.theano.dnn_ops.library import DnnBase

__all__ = ["GpuDnnRNNGradInputs", "GpuDnnRNNOp", "RNNBlock"]


class RNNBlock(numbadnn.RNNBlock):
    """``numbadnn.RNNBlock`` with the specification's signature: a cx given to other modes than lstm is ignored.

    >>> import numpy as np
    >>> block = RNNBlock("float32", 16, 3, "gru")
    >>> params = np.zeros(block.get_param_size([2, 32]), "float32")
    >>> [part.shape for part in block.split_params(params, 0, [2, 32])][:2]
    [(32, 16), (16,)]
    """

    def __init__(
        self, dtype: Any, hidden_size: int, num_layers: int, rnn_mode: str, input_mode: str = "linear",
        direction_mode: str = "unidirectional", context_name: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(dtype, hidden_size, num_layers, rnn_mode, input_mode, direction_mode)

    def _call(self, w: Any, x: Any, hx: Any, cx: Any, *more: Any) -> tuple[Any, ...]:
        with cudnn_first():
            return super()._call(w, x, hx, cx if self.network.has_cell else None, *more)

    def forward(self, w: Any, x: Any, hx: Any, cx: Any = None, **more: Any) -> tuple[list[Any], Any]:
        return super().forward(w, x, hx, cx if self.network.has_cell else None, **more)

    def backward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        with cudnn_first():
            return super().backward(*args, **kwargs)


def _check_block(block: Any) -> None:
    if not isinstance(block, numbadnn.RNNBlock):
        raise TypeError(f"block: expected an RNNBlock, got {type(block).__name__}")


class GpuDnnRNNOp(DnnBase):
    """``GpuDnnRNNOp(rnn_mode, direction_mode)(block, w, x, hx, cx=None)``: (reserve, y, hy) or (reserve, y, hy, cy).

    ValueError for a mode that is not known, or that is not the block's.
    """

    def __init__(self, rnn_mode: str, direction_mode: str) -> None:
        super().__init__()
        if not isinstance(rnn_mode, str) or rnn_mode not in GATES:
            raise ValueError(f"rnn_mode: expected one of {', '.join(GATES)}, got {rnn_mode!r}")
        if not isinstance(direction_mode, str) or direction_mode not in DIRECTION_MODES:
            raise ValueError(f"direction_mode: expected one of {', '.join(DIRECTION_MODES)}, got {direction_mode!r}")
        self.rnn_mode, self.direction_mode = rnn_mode, direction_mode

    def __call__(self, block: RNNBlock, w: Any, x: Any, hx: Any, cx: Any = None) -> tuple[Any, ...]:
        _check_block(block)
        modes = block.network.rnn_mode, block.network.direction_mode
        if modes != (self.rnn_mode, self.direction_mode):
            raise ValueError(f"block: expected one of {self.rnn_mode}, {self.direction_mode}, got {block!r}")
        with cudnn_first():  # a block of numbadnn's own does not see to it
            outputs, reserve = block.forward(w, x, hx, cx if block.network.has_cell else None)
        return (reserve, *outputs)


class GpuDnnRNNGradInputs(DnnBase):
    """``GpuDnnRNNGradInputs(rnn_mode, grad_h, grad_c)(block, reserve, dy[, dhy][, dcy])``: (dx, dhx) or (dx, dhx, dcx).

    ``grad_h`` and ``grad_c`` say whether dhy and dcy are given. The reserve, of ``GpuDnnRNNOp``, holds the arrays of
    that call.
    """

    def __init__(self, rnn_mode: str, grad_h: bool, grad_c: bool) -> None:
        super().__init__()
        if not isinstance(rnn_mode, str) or rnn_mode not in GATES:
            raise ValueError(f"rnn_mode: expected one of {', '.join(GATES)}, got {rnn_mode!r}")
        self.grad_h, self.grad_c = truth("grad_h", grad_h), truth("grad_c", grad_c)
        if grad_c and rnn_mode != "lstm":
            raise ValueError(f"grad_c: expected False for {rnn_mode}, which has no cell state")
        self.rnn_mode = rnn_mode

    def __call__(self, block: RNNBlock, reserve: Any, dy: Any, *ends: Any) -> tuple[Any, ...]:
        _check_block(block)
        if block.network.rnn_mode != self.rnn_mode:
            raise ValueError(f"block: expected one of {self.rnn_mode}, got {block!r}")
        if len(ends) != self.grad_h + self.grad_c:
            raise ValueError(f"expected {self.grad_h + self.grad_c} gradients of final states, got {len(ends)}")
        given = list(ends)
        dhy = given.pop(0) if self.grad_h else None
        dcy = given.pop(0) if self.grad_c else None
        with cudnn_first():
            return block.backward(reserve, dy, dhy, dcy)[1:]
